"""`da3_ros view`: draws a picture of a saved scene."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED, size_argument


def add_view(commands: Any) -> None:
    view = commands.add_parser(
        "view",
        help="draw a picture of a scene (points, cameras and path) without a display",
        description="Draws a scene off-screen: a saved scene, a replay's output folder, a GLB or "
        "a PLY. Ceilings and walls between the viewpoint and the room are left out.",
    )
    view.add_argument("scene", type=Path, help="scene folder, replay's output folder, .glb, .ply")
    view.add_argument("--output", type=Path, required=True, help="PNG to write; replaced")
    view.add_argument(
        "--from", dest="sides", nargs="+", default=["behind"], choices=_sides(),
        help="viewpoint relative to the first camera (default: behind); several give pictures "
        "side by side",
    )  # fmt: skip
    view.add_argument(
        "--size", default="960x720", metavar="WxH", help="size of each picture (default: 960x720)"
    )
    view.add_argument(
        "--below", type=float, default=float("inf"), metavar="Z",
        help="draw only points below this height in the map; for a PLY, whose ceiling cannot "
        "be found without cameras",
    )  # fmt: skip
    view.set_defaults(run=_run_view)


def _run_view(options: argparse.Namespace) -> int:
    from da3_ros.cli.scene_viewer import view
    from da3_ros.export.export import ExportError
    from da3_ros.export.scene_file import SceneFileError

    try:
        text = view(
            options.scene,
            options.output,
            options.sides,
            size_argument(options.size),
            options.below,
        )
    except (ExportError, SceneFileError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _sides() -> tuple[str, ...]:
    return ("behind", "corner", "side", "top")
