"""`da3_ros report`: one HTML page about a run, for people."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED, INCOMPLETE
from da3_ros.parameter_schema import ConfigError

EXIT_CODES = (
    "exit codes: 0 success; 1 failed, nothing written; 2 wrong usage; "
    "3 written, but too few poses have a true one"
)


def add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write one HTML page about a replay, or about a saved scene",
        description="Writes one HTML page, with everything in it: what was recorded and lost, the "
        "trajectory, keyframes with depth, tracks, loops, scale, times, and what to do better "
        "next time. It loads nothing from elsewhere. A replay writes it by itself.",
        epilog=EXIT_CODES,
    )
    report.add_argument("scene", type=Path, help="a replay's output folder, or a scene folder")
    report.add_argument(
        "--output", type=Path, help="HTML file to write; replaced (default: report.html in the "
        "output folder of a replay, else beside the scene)",
    )  # fmt: skip
    report.add_argument(
        "--truth", type=Path, metavar="POSES",
        help="true poses of the camera: a trajectory file in the TUM format, or the folder of a "
        "data set; errors against them are added",
    )  # fmt: skip
    report.add_argument(
        "--truth-camera", metavar="NAME",
        help="camera of the data set that was recorded, if the replay cannot tell",
    )  # fmt: skip
    report.set_defaults(run=_run_report)


def _run_report(options: argparse.Namespace) -> int:
    from da3_ros.export.export import ExportError
    from da3_ros.export.scene_folder import check_outside_scenes
    from da3_ros.recordings import RecordingError
    from da3_ros.reporting.figures import ReportError
    from da3_ros.reporting.page import write_page

    target = options.output or _beside(options.scene)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--output {target}: must end with .html")
    if options.truth_camera is not None and options.truth is None:
        raise ConfigError("--truth-camera: give --truth too")
    try:
        check_outside_scenes(target)
        page = write_page(options.scene, target, options.truth, options.truth_camera)
    except (ExportError, RecordingError, ReportError, OSError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(page.text)
    if not page.unmet:
        return 0
    sys.stderr.write(f"da3_ros: --truth: {page.unmet}\n")
    return INCOMPLETE


def _beside(scene: Path) -> Path:
    """Returns where the page of a run is written by default: a saved scene takes no other
    files."""
    from da3_ros.export.scene_folder import scene_file
    from da3_ros.reporting.page import NAME

    if scene_file(scene) is None:
        return scene / NAME
    return scene.with_name(f"{scene.name}_{NAME}")
