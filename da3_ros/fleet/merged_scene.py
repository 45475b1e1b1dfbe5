"""The merged scene of a fleet: what it is made of, whether it is there already, and where.

A worker merges into a hidden folder; only the fleet itself moves the result to its place. So none
appears after an interruption, however long the worker lives on.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from da3_ros.export.atomic_files import hidden_prefix, replace_folder
from da3_ros.export.export import ExportError
from da3_ros.export.scene_folder import check_scene_target, is_scene, scene_file
from da3_ros.fleet.jobs import MERGED, REPORT, FleetError
from da3_ros.fleet.worker import FAILED, Outcome, locked
from da3_ros.merging.inputs import Copy
from da3_ros.merging.merge import MergeSummary, SceneOutcome

END_S = 10.0  # within which a worker that was told to end has ended
LOOK_S = 0.1


def scenes_of(output: Path, outcomes: Sequence[Outcome]) -> dict[Path, str]:
    """Returns the folders of all results that have a scene, sorted, and what identifies each:
    the key of its recording and when the scene was written."""
    found = {}
    for one in sorted(outcomes, key=lambda outcome: outcome.name):
        scene = output / one.name / "scene"
        file = scene_file(scene)
        if one.state != FAILED and file is not None and is_scene(scene):
            written = file.stat().st_mtime_ns
            found[output / one.name] = f"{one.key}-{written}"
    return found


def earlier_record(output: Path) -> dict[str, Any] | None:
    """Returns what fleet.json says of the merged scene that is there; None: there is none, or
    nothing is known of it."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        record = json.loads((output / REPORT).read_text())["merged"]
        if isinstance(record, dict) and is_scene(output / MERGED):
            return record
    return None


def record_of(merged: MergeSummary, scenes: Mapping[Path, str]) -> dict[str, Any]:
    """Returns what fleet.json says of a merged scene. scenes: as ``scenes_of``."""
    return {
        "output": str(merged.output),
        "metric": merged.metric,
        "looks": merged.looks,
        "scenes": [vars(one) for one in merged.scenes],
        "copies": [vars(one) for one in merged.copies],
        "of": _named(scenes, merged.output.parent),
    }


def summary_of(
    record: Mapping[str, Any] | None, scenes: Mapping[Path, str]
) -> MergeSummary | None:
    """Returns the summary of a merged scene that is made of these scenes; None: of others."""
    if record is None:
        return None
    try:
        output = Path(record["output"])
        if record["of"] != _named(scenes, output.parent):
            return None
        return MergeSummary(
            output,
            tuple(SceneOutcome(**one) for one in record["scenes"]),
            record["metric"],
            record["looks"],
            tuple(Copy(**one) for one in record["copies"]),
        )
    except (LookupError, TypeError):  # of another version
        return None


def _named(scenes: Mapping[Path, str], output: Path) -> dict[str, str]:
    return {str(folder.relative_to(output)): what for folder, what in scenes.items()}


def hidden_folder(output: Path) -> Path:
    """Returns a new folder for a worker to merge in; ``remove_hidden`` removes what is left.

    Raises FleetError, also if nothing could be moved to its place afterwards.
    """
    try:
        check_scene_target(output / MERGED)
        return Path(tempfile.mkdtemp(prefix=hidden_prefix(MERGED), dir=output))
    except (ExportError, OSError) as error:
        raise FleetError(f"{output / MERGED} cannot be written: {error}") from error


def publish(folder: Path, output: Path) -> None:
    """Moves the scene that was merged in a hidden folder to its place. Raises FleetError."""
    try:
        check_scene_target(output / MERGED)
        replace_folder(folder / MERGED, output / MERGED)
    except (ExportError, OSError) as error:
        raise FleetError(f"{output / MERGED} cannot be written: {error}") from error


def remove_hidden(output: Path, patience_s: float = 0.0) -> None:
    """Removes the hidden folders of this fleet and of killed ones, once no worker is in them."""
    end = time.monotonic() + patience_s
    for folder in output.glob(f"{hidden_prefix(MERGED)}*"):
        while not _removed(folder) and time.monotonic() < end:
            time.sleep(LOOK_S)


def _removed(folder: Path) -> bool:
    try:
        with locked(folder):
            shutil.rmtree(folder)
    except FleetError:
        return False
    except OSError:
        return not folder.exists()
    return True
