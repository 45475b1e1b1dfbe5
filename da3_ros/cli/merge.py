"""`da3_ros merge`: saved scenes of several sessions or robots become one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3_ros.cli.arguments import FAILED, INCOMPLETE, add_parameters, load_config

if TYPE_CHECKING:
    from da3_ros.merging.merge import MergeSummary, SceneOutcome

EXIT_CODES = (
    "exit codes: 0 all scenes are joined; 1 failed, nothing written; 2 wrong usage; 3 written, "
    "but scenes or components are unconnected or left out; 130 interrupted, nothing written"
)


def add_merge(commands: Any) -> None:
    merge = commands.add_parser(
        "merge",
        help="join saved scenes of several sessions or robots into one",
        description="Scenes that have seen the same location become one, as the node finds its "
        "pose in a saved scene. The first metric scene, else the first, keeps its pose and "
        "size; without metres a scene gets those of the one that it met. Scenes that met none "
        "stay apart, unconnected; without metres such a scene is left out of a metric one.",
        epilog=f"The model must be that of the scenes: -p model:=NAME.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    merge.add_argument(
        "scenes", type=Path, nargs="+", metavar="SCENE",
        help="scene folder, or a replay's output folder; two or more",
    )  # fmt: skip
    merge.add_argument(
        "--output", type=Path, required=True, metavar="DIR",
        help="folder for the merged scene; an older scene there is replaced",
    )  # fmt: skip
    add_parameters(merge)
    merge.set_defaults(run=_run_merge)


def _run_merge(options: argparse.Namespace) -> int:
    from da3_ros.cli.progress_bar import progress_bar
    from da3_ros.export.checked_files import SceneFileError
    from da3_ros.export.selection import ExportError
    from da3_ros.inference import BudgetError, DeviceError
    from da3_ros.keyframe_store.journal import JournalError
    from da3_ros.merging.inputs import MergeError
    from da3_ros.merging.merge import merge
    from da3_ros.network import CheckpointError

    config = load_config(options.config, options.param).pipeline
    try:
        with progress_bar() as progress:
            summary = merge(options.scenes, options.output, config, progress=progress)
    except (
        MergeError, ExportError, SceneFileError, JournalError, CheckpointError, DeviceError,
        BudgetError, OSError,
    ) as error:  # fmt: skip
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text_of(summary))
    return 0 if summary.is_complete else INCOMPLETE


def text_of(summary: MergeSummary) -> str:
    """Returns a line per scene, and one about the result."""
    lines = [f"{one.name}: {_said_of(one, summary.metric)}" for one in summary.scenes]
    lines += [
        f"{one.name}: left out, it has {one.common} of its {one.frames} frames in common with "
        f"{one.of}" for one in summary.copies
    ]  # fmt: skip
    unit = "in metres" if summary.metric else "in the unit of the reference, not metres"
    lines.append(f"{summary.output}: {unit}; {summary.looks} windows were compared")
    return "\n".join(lines) + "\n"


def _said_of(one: SceneOutcome, metric: bool) -> str:
    met = " and ".join(f"{name} by {n} loop{'s' * (n > 1)}" for name, n in one.loops.items())
    said = ["the reference"] if one.is_reference else []
    if met:
        said.append(("" if one.is_reference else "joined to ") + met)
    for count, why in (
        (one.unconnected, "unconnected" if met else "met no other scene: unconnected"),
        (one.left_out, "met no metric scene and has no metres: left out"),
    ):
        if count:
            said.append(
                why
                if count == one.components
                else f"{count} of {one.components} components: {why}"
            )
    if metric and met and not one.metric:
        said.append("now in metres")
    if not one.recognised:
        said.append("has no keyframes that recognise its locations (saved by an older version, or "
                    "with loop.enabled: false)")  # fmt: skip
    if one.lacks_keyframes:
        said.append("without stored keyframes: meshes, and exports that filter depth, lack it")
    return "; ".join(said)
