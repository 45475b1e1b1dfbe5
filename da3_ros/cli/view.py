"""`da3_ros view`: pictures and videos of a scene, its measured depth, or a replay's tracks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3_ros.cli.arguments import FAILED, size_argument
from da3_ros.config import COLOR_MAPS
from da3_ros.parameter_schema import ConfigError

if TYPE_CHECKING:
    from da3_ros.cli.scene_viewer import Shown

SCENE_SIZE, VIDEO_SIZE, TRACKS_SIZE, DENSE_SIZE = "960x720", "1280x720", "480x360", "320x240"
SECONDS, RATE = 20.0, 30  # of a video
LOCAL, PORT = "127.0.0.1", 8080  # of the viewer


def add_view(commands: Any) -> None:
    view = commands.add_parser(
        "view",
        help="draw a picture of a scene (points, cameras and path), of its keyframes' measured "
        "depth, or of a replay's feature tracks, without a display",
        description="Draws a scene off-screen: a saved scene, a replay's output folder, a GLB or "
        "a PLY. Ceilings and walls between the viewpoint and the room are left out. With --tracks "
        "it draws frames of a replay with the feature tracks that refined their windows, with "
        "--dense the depth of keyframes.",
    )
    view.add_argument("scene", type=Path, help="scene folder, replay's output folder, .glb, .ply")
    target = view.add_mutually_exclusive_group(required=True)
    target.add_argument("--output", type=Path, help="PNG to write; replaced")
    target.add_argument(
        "--video", type=Path, metavar="FILE.mp4",
        help="video to write, behind the camera along its path; replaced",
    )  # fmt: skip
    target.add_argument(
        "--serve", action="store_true",
        help="show a saved scene in a browser, until Ctrl-C (needs viser)",
    )  # fmt: skip
    view.add_argument(
        "--port", type=int, help=f"of --serve (default: the first free one from {PORT} on)"
    )
    view.add_argument(
        "--host",
        help=f"address of --serve (default: {LOCAL}); with another one everyone in the network "
        "sees the scene",
    )  # fmt: skip
    view.add_argument("--orbit", action="store_true", help="video of a turn around the scene")
    view.add_argument("--seconds", type=float, help=f"of the video (default: {SECONDS:g})")
    view.add_argument("--fps", type=int, help=f"pictures per second (default: {RATE})")
    view.add_argument(
        "--from", dest="sides", nargs="+", choices=_sides(),
        help="viewpoint relative to the first camera (default: behind); several give pictures "
        "side by side",
    )  # fmt: skip
    view.add_argument(
        "--size", metavar="WxH",
        help=f"size of each picture (default: {SCENE_SIZE}; with --video {VIDEO_SIZE}, with "
        f"--tracks {TRACKS_SIZE}, with --dense {DENSE_SIZE})",
    )  # fmt: skip
    view.add_argument(
        "--below", type=float, metavar="Z",
        help="draw only points below this height in the map; for a PLY, whose ceiling cannot "
        "be found without cameras",
    )  # fmt: skip
    view.add_argument(
        "--color-map", metavar="NAME", choices=COLOR_MAPS,
        help=f"colours of points by their height ({', '.join(COLOR_MAPS)}; default: their own), "
        f"with --dense those of depth (default: {COLOR_MAPS[0]})",
    )  # fmt: skip
    points = view.add_mutually_exclusive_group()
    points.add_argument(
        "--track-points", action="store_true",
        help="draw the points of feature tracks instead of the map's: green to red by "
        "reprojection error (red: 2 pixels)",
    )  # fmt: skip
    points.add_argument(
        "--surface", type=Path, metavar="MESH",
        help="draw this surface of the scene (`da3_ros export SCENE room.mesh.glb`) instead of "
        "its points",
    )  # fmt: skip
    instead = view.add_mutually_exclusive_group()
    instead.add_argument(
        "--dense", action="store_true",
        help="draw six keyframes with measured depth: image, the network's depth, measured depth, "
        "and its relative standard deviation (red 0.1 to blue 5 percent; black: not measured)",
    )  # fmt: skip
    instead.add_argument(
        "--tracks", action="store_true",
        help="draw frames of a replay (its output folder, or a tracks.npz) with their feature "
        "tracks: green to red by reprojection error (red: 2 pixels), grey without a point",
    )  # fmt: skip
    view.set_defaults(run=_run_view)


def _run_view(options: argparse.Namespace) -> int:
    from da3_ros.export.checked_files import SceneFileError
    from da3_ros.export.export import ExportError

    try:
        if options.serve:
            return _serve(options)
        if options.port is not None or options.host is not None:
            raise ConfigError("--port and --host are for --serve")
        text = _drawn(options)
    except (ExportError, SceneFileError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _serve(options: argparse.Namespace) -> int:
    others = _for_scenes(options) | {
        "--size": options.size is not None, "--color-map": options.color_map is not None,
        "--dense": options.dense, "--tracks": options.tracks,
    }  # fmt: skip
    for option, given in others.items():
        if given:
            raise ConfigError(f"--serve: {option} is for pictures and videos")
    from da3_ros.cli.scene_server import serve

    return serve(options.scene, options.host or LOCAL, options.port, PORT)


def _drawn(options: argparse.Namespace) -> str:
    """Returns what was written, in a line. Raises ConfigError."""
    if options.tracks or options.dense:
        name = "--tracks" if options.tracks else "--dense"
        for option, value in _for_scenes(options).items():
            if value:
                raise ConfigError(f"{name}: {option} is for scenes")
        if options.tracks and options.color_map is not None:
            raise ConfigError("--tracks: --color-map is for scenes and --dense")
        return _tracks(options) if options.tracks else _dense(options)
    if options.video is not None:
        return _video(options)
    if options.orbit or options.seconds is not None or options.fps is not None:
        raise ConfigError("--orbit, --seconds and --fps: give --video FILE.mp4")
    return _scene(options)


def _for_scenes(options: argparse.Namespace) -> dict[str, bool]:
    """Returns whether the options are given that only pictures and videos of scenes have."""
    return {
        "--video": options.video is not None, "--orbit": options.orbit,
        "--surface": options.surface is not None, "--track-points": options.track_points,
        "--from": options.sides is not None, "--below": options.below is not None,
        "--seconds": options.seconds is not None, "--fps": options.fps is not None,
    }  # fmt: skip


def _video(options: argparse.Namespace) -> str:
    from da3_ros.cli.video_viewer import VideoOptions, view_video

    if options.sides is not None:
        raise ConfigError("--from is for pictures: give --orbit, or nothing to follow the path")
    wanted = VideoOptions(
        size_argument(options.size or VIDEO_SIZE),
        SECONDS if options.seconds is None else options.seconds,
        RATE if options.fps is None else options.fps,
        options.orbit,
        _shown(options),
    )
    return view_video(options.scene, options.video, wanted)


def _dense(options: argparse.Namespace) -> str:
    from da3_ros.cli.dense_viewer import view_dense

    return view_dense(
        options.scene,
        options.output,
        size_argument(options.size or DENSE_SIZE),
        options.color_map or COLOR_MAPS[0],
    )


def _scene(options: argparse.Namespace) -> str:
    from da3_ros.cli.scene_viewer import view

    return view(
        options.scene,
        options.output,
        options.sides or ["behind"],
        size_argument(options.size or SCENE_SIZE),
        _shown(options),
    )


def _shown(options: argparse.Namespace) -> Shown:
    from da3_ros.cli.scene_viewer import Shown

    below = float("inf") if options.below is None else options.below
    if below != below:
        raise ConfigError("--below nan: give a height")
    return Shown(below, options.color_map, options.surface, options.track_points)


def _tracks(options: argparse.Namespace) -> str:
    from da3_ros.cli.track_viewer import view_tracks

    return view_tracks(options.scene, options.output, size_argument(options.size or TRACKS_SIZE))


def _sides() -> tuple[str, ...]:
    return ("behind", "corner", "side", "top")
