"""`da3_ros view`: draws a picture of a scene, of its measured depth, or of a replay's tracks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED, size_argument
from da3_ros.parameter_schema import ConfigError

PORT = 8080
SCENE_SIZE, TRACKS_SIZE, DENSE_SIZE = "960x720", "480x360", "320x240"


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
    view.add_argument("--output", type=Path, help="PNG to write; replaced")
    view.add_argument(
        "--serve", action="store_true",
        help="show a saved scene in a browser instead, until Ctrl-C (needs viser)",
    )  # fmt: skip
    view.add_argument(
        "--port", type=int,
        help=f"port of --serve (default: the first free one from {PORT} on)",
    )  # fmt: skip
    view.add_argument(
        "--host", default="127.0.0.1",
        help="address of --serve; other than 127.0.0.1: everyone in the network sees the scene",
    )  # fmt: skip
    view.add_argument(
        "--from", dest="sides", nargs="+", choices=_sides(),
        help="viewpoint relative to the first camera (default: behind); several give pictures "
        "side by side",
    )  # fmt: skip
    view.add_argument(
        "--size", metavar="WxH",
        help=f"size of each picture (default: {SCENE_SIZE}; with --tracks {TRACKS_SIZE}, with "
        f"--dense {DENSE_SIZE})",
    )  # fmt: skip
    view.add_argument(
        "--below", type=float, metavar="Z",
        help="draw only points below this height in the map; for a PLY, whose ceiling cannot "
        "be found without cameras",
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
        text = _drawn(options)
    except (ExportError, SceneFileError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _serve(options: argparse.Namespace) -> int:
    if options.output is not None:
        raise ConfigError("--serve: --output is for pictures")
    from da3_ros.cli.scene_server import serve

    return serve(options.scene, options.host, options.port, PORT)


def _drawn(options: argparse.Namespace) -> str:
    if options.output is None:
        raise ConfigError("--output is missing: give the PNG to write, or --serve")
    if options.port is not None:
        raise ConfigError("--port is for --serve")
    if options.tracks or options.dense:
        if options.sides is not None or options.below is not None:
            name = "--tracks" if options.tracks else "--dense"
            raise ConfigError(f"{name}: --from and --below are for scenes")
        return _tracks(options) if options.tracks else _dense(options)
    return _scene(options)


def _dense(options: argparse.Namespace) -> str:
    from da3_ros.cli.dense_viewer import view_dense

    return view_dense(options.scene, options.output, size_argument(options.size or DENSE_SIZE))


def _scene(options: argparse.Namespace) -> str:
    from da3_ros.cli.scene_viewer import view

    return view(
        options.scene,
        options.output,
        options.sides or ["behind"],
        size_argument(options.size or SCENE_SIZE),
        float("inf") if options.below is None else options.below,
    )


def _tracks(options: argparse.Namespace) -> str:
    from da3_ros.cli.track_viewer import view_tracks

    return view_tracks(options.scene, options.output, size_argument(options.size or TRACKS_SIZE))


def _sides() -> tuple[str, ...]:
    return ("behind", "corner", "side", "top")
