"""`da3_ros nav2-config`: writes Nav2's costmap parameters for one camera."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED
from da3_ros.config import LevelConfig, ObstacleConfig
from da3_ros.parameter_schema import ConfigError

EXAMPLE = """example:
  da3_ros nav2-config --camera-height 0.3 --output nav2_costmap.yaml

docs/navigation.md has the lines for the node and Nav2."""


def add_nav2_config(commands: Any) -> None:
    nav2 = commands.add_parser(
        "nav2-config",
        help="write Nav2's costmap parameters for one camera",
        description="Write parameters of Nav2's local and global costmap, which take obstacles "
        "and free space from the node. Heights are above the floor.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    obstacles, level = ObstacleConfig(), LevelConfig()
    nav2.add_argument("--camera-height", type=float, required=True, metavar="M", help="m")
    nav2.add_argument(
        "--robot-height", type=float, default=obstacles.max_height, metavar="M",
        help="m; the robot passes beneath what is higher (default: %(default)s)",
    )  # fmt: skip
    nav2.add_argument(
        "--max-range", type=float, default=obstacles.max_range, metavar="M",
        help="m; obstacles.max_range of the node (default: %(default)s)",
    )  # fmt: skip
    nav2.add_argument(
        "--floor-z", type=float, default=level.floor_z, metavar="M",
        help="m; level.floor_z of the node: height of the floor in base_frame",
    )  # fmt: skip
    nav2.add_argument("--layer", default="voxel", help="voxel (default) or stvl")
    nav2.add_argument(
        "--fov", default="", metavar="HxV",
        help="horizontal and vertical field of view, degrees; for stvl, which clears by it",
    )  # fmt: skip
    nav2.add_argument("--node", default="/da3", help="full name of the node (default: /da3)")
    nav2.add_argument(
        "--cameras", nargs="+", default=[], metavar="NAME",
        help="the node's cameras, if it has several: two sources for each",
    )  # fmt: skip
    nav2.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")
    nav2.set_defaults(run=_run_nav2_config)


def _run_nav2_config(options: argparse.Namespace) -> int:
    from da3_ros.export.atomic_files import atomic_path
    from da3_ros.export.selection import ExportError
    from da3_ros.navigation.nav2_config import CostmapRequest, costmap_text

    text = costmap_text(
        CostmapRequest(
            camera_height_m=options.camera_height,
            max_range_m=options.max_range,
            robot_height_m=options.robot_height,
            floor_z_m=options.floor_z,
            layer=options.layer,
            node=options.node,
            fov_deg=_field_of_view(options.fov) if options.fov else None,
            cameras=tuple(options.cameras),
        )
    )
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with atomic_path(options.output) as temporary:
            temporary.write_text(text)
    except ExportError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    return 0


def _field_of_view(text: str) -> tuple[float, float]:
    """Returns degrees of HxV. Raises ConfigError."""
    try:
        horizontal, vertical = map(float, text.split("x"))
    except ValueError:
        raise ConfigError(f"--fov {text!r}: write degrees as HORIZONTALxVERTICAL") from None
    return horizontal, vertical
