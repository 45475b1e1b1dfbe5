"""`da3_ros export`: writes a saved scene in another format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED
from da3_ros.export.formats import FORMATS, SceneFormat


def add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help=f"write a saved scene as {_titles()}",
        description="Convert a scene of a replay, of map.store or of the service save_scene. "
        "Where keyframes are stored (a replay, map.store), --voxel, --min-confidence and the "
        "filters of depth make points anew from their depth; without any of them the saved points "
        "are exported. Points are written in chunks, so that little more memory is used than for "
        "the scene.",
    )
    export.add_argument("scene", type=Path, help="scene folder, or a replay's output folder")
    export.add_argument(
        "output",
        type=Path,
        help=f"{_file_names()}; replaced",
    )
    export.add_argument(
        "--format", default="", choices=tuple(FORMATS),
        help="format, if the output's suffix does not define it",
    )  # fmt: skip
    _add_filters(export)
    _add_selection(export)
    export.set_defaults(run=_run_export)


def _titles() -> str:
    *titles, last = (f.title for f in FORMATS.values())
    return f"{', '.join(titles)} or {last}"


def _file_names() -> str:
    """Returns how outputs are named: files of points and poses, other files, folders."""
    files = [f for f in FORMATS.values() if not f.folder]
    scene = [end for f in files if isinstance(f, SceneFormat) for end in f.endings]
    others = [f.endings for f in files if not isinstance(f, SceneFormat)]
    names = ", ".join(f"NAME{', '.join(ends)}" for ends in (scene, *others))
    folders = (f"NAME{end}" for f in FORMATS.values() if f.folder for end in f.endings)
    return f"{names}, or a folder {', '.join(folders)}"


def _add_filters(export: argparse.ArgumentParser) -> None:
    """Adds options of points and of the depth of stored keyframes."""
    export.add_argument(
        "--voxel", type=float, default=0.0, metavar="M",
        help="average points in voxels of this edge; also merges overlapping submaps. 0, the "
        "default: as saved, and 0.02 for a mesh and for points made anew",
    )  # fmt: skip
    export.add_argument(
        "--min-confidence", type=float, default=0.0, metavar="C",
        help="leave out what is less certain: pixels of stored keyframes, else points",
    )  # fmt: skip
    export.add_argument(
        "--confidence-percentile", type=float, metavar="P",
        help="leave out this share of each stored keyframe, the least confident pixels, percent",
    )  # fmt: skip
    export.add_argument(
        "--max-depth", type=float, metavar="M",
        help="leave out what was farther from the camera, of stored keyframes",
    )  # fmt: skip
    export.add_argument(
        "--edge-filter", action=argparse.BooleanOptionalAction,
        help="leave out smears at depth edges of stored keyframes (default: yes)",
    )  # fmt: skip
    export.add_argument(
        "--remove-movers", action=argparse.BooleanOptionalAction,
        help="leave out what other stored keyframes look through (default: yes). With drifting "
        "poses that may be things that stand still",
    )  # fmt: skip
    depth = export.add_mutually_exclusive_group()
    depth.add_argument(
        "--measure-depth", dest="measure", action="store_true", default=None,
        help="measure the depth of stored keyframes by the images of all their neighbours first, "
        "also where it was measured while they were recorded; about a second per keyframe",
    )  # fmt: skip
    depth.add_argument(
        "--network-depth", dest="network", action="store_true", default=None,
        help="use the network's depth of stored keyframes, also where it was measured by images",
    )  # fmt: skip


def _add_selection(export: argparse.ArgumentParser) -> None:
    """Adds options of what of the scene is written, and how."""
    export.add_argument(
        "--min-observations", type=int, default=1, metavar="N",
        help="leave out points with fewer observations (after averaging)",
    )  # fmt: skip
    export.add_argument(
        "--max-points",
        type=int,
        default=0,
        metavar="N",
        help="thin evenly to this number of points; of Gaussians leave out the least opaque ones, "
        "with 0 above 4 million",
    )
    export.add_argument(
        "--crop", type=float, nargs=6, default=[0.0] * 6,
        metavar=("X0", "Y0", "Z0", "X1", "Y1", "Z1"),
        help="box in the map frame; of a grid, also the storey: that whose floor is in the box",
    )  # fmt: skip
    export.add_argument(
        "--no-cameras", action="store_true", help="a GLB without camera frusta and path"
    )
    export.add_argument(
        "--centred", action="store_true",
        help="a COLMAP model whose images are cropped around their principal point, for trainers "
        "that take it in the middle (as graphdeco-inria/gaussian-splatting)",
    )  # fmt: skip
    export.add_argument(
        "--sh-degree", type=int, choices=(0, 2), default=2,
        help="harmonics of the colours of Gaussians: 0 has a quarter of the size",
    )  # fmt: skip
    export.add_argument(
        "--known-only", action="store_true",
        help="leave out unconnected components of the scene (after a time jump, or where "
        "windows could not be aligned)",
    )  # fmt: skip


def _run_export(options: argparse.Namespace) -> int:
    from da3_ros.cli.conversion import convert
    from da3_ros.export.checked_files import SceneFileError
    from da3_ros.export.export import ExportError, Selection
    from da3_ros.export.selection import NumberError
    from da3_ros.export.stored_depth import DepthFilters
    from da3_ros.keyframe_store.journal import JournalError

    selection = Selection(
        voxel=options.voxel,
        min_confidence=options.min_confidence,
        min_observations=options.min_observations,
        max_points=options.max_points,
        crop=tuple(options.crop),
        cameras=not options.no_cameras,
        centred=options.centred,
        unconnected=not options.known_only,
        sh_degree=options.sh_degree,
    )
    asked = {
        name: getattr(options, name)
        for name in (
            "confidence_percentile",
            "max_depth",
            "edge_filter",
            "remove_movers",
            "measure",
            "network",
        )
        if getattr(options, name) is not None
    }
    filtered = options.voxel or options.min_confidence or asked.keys() - {"measure", "network"}
    filters = DepthFilters(
        voxel=options.voxel or DepthFilters.voxel, min_confidence=options.min_confidence,
        is_source_only=not filtered, **asked,
    )  # fmt: skip
    try:
        text = convert(
            options.scene,
            options.output,
            selection,
            filters,
            options.format,
            derive=bool(asked) or options.centred,
        )
    except NumberError as error:
        sys.stderr.write(f"da3_ros: --{error.name.replace('_', '-')} {error.text}\n")
        return FAILED
    except (ExportError, SceneFileError, JournalError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0
