"""The recordings of a fleet: where they are, what their results are called, and their keys."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3_ros import __version__
from da3_ros.config import NodeConfig
from da3_ros.parameter_schema import parameters
from da3_ros.recordings.search import find_recordings, is_recording, name_of
from da3_ros.replay.checkpoint import fingerprint
from da3_ros.replay.report import NOT_REPORTED
from da3_ros.replay.results import ReplayOptions

log = logging.getLogger(__name__)

REPORT, MERGED = "fleet.json", "merged"  # in the output folder
RESERVED = (REPORT, MERGED)


class FleetError(RuntimeError):
    """A fleet that cannot be run; the text is one line with the remedy."""


@dataclass(frozen=True)
class Job:
    """A recording, the folder for its results, its size in bytes and its key."""

    name: str  # of the folder below the fleet's output folder
    input: Path
    output: Path
    size: int
    key: str  # a hash of sampled blocks, and one of parameters and options
    unreadable: str = ""  # why the recording cannot be read at all; it has no key then


def find_jobs(
    inputs: Sequence[Path], output: Path, options: ReplayOptions, settings: NodeConfig
) -> list[Job]:
    """Returns a job for each recording in ``inputs``, which are recordings or folders to search.

    A recording found in a folder is named by its path there, without suffix. options: what all
    replays share. Raises FleetError, also if two have one name, and OSError.
    """
    found: dict[str, Path] = {}
    known: dict[Path, str] = {}  # by real path: a link may lead to the same recording
    for path in inputs:
        for name, recording in _named(path, output.resolve()):
            if known.setdefault(recording.resolve(), name) != name:
                continue
            if found.setdefault(name, recording).resolve() != recording.resolve():
                raise FleetError(
                    f"{found[name]} and {recording} would both be written to {output / name}: "
                    "rename one, or give the folder that holds both folders"
                )
    if not found:
        raise FleetError(f"no recording in {', '.join(map(str, inputs))}")
    _check_names(found)
    common = _settings_key(options, settings)
    return [_job(name, path, output / name, common) for name, path in sorted(found.items())]


def _named(path: Path, output: Path) -> Iterator[tuple[str, Path]]:
    """Yields names and paths of the recordings in ``path``. Raises FleetError, OSError."""
    if not path.exists():
        raise FleetError(f"{path} does not exist")
    if not path.is_dir() or is_recording(path):
        yield name_of(path), path
        return

    def is_result(folder: Path) -> bool:
        return folder.resolve() == output or (folder / "report.json").exists()

    for one in find_recordings(path, is_result):
        yield str(one.relative_to(path).with_name(name_of(one))), one
    old = sum(1 for _ in path.rglob("*.bag"))
    if old:
        log.warning(
            "%s: %d ROS 1 bags are left out: convert them with rosbags-convert --src FILE",
            path, old,
        )  # fmt: skip


def _check_names(found: Mapping[str, Path]) -> None:
    """Raises FleetError if results would lie among those of another recording or of the fleet."""
    for name, path in found.items():
        parents = [str(parent) for parent in Path(name).parents]
        if Path(name).parts[0] in RESERVED:
            raise FleetError(
                f"{path}: {Path(name).parts[0]!r} is a name of the fleet's: rename it"
            )
        if inside := next((parent for parent in parents if parent in found), None):
            raise FleetError(
                f"{path}: its results would lie among those of {found[inside]}: rename one"
            )


def _job(name: str, path: Path, output: Path, common: str) -> Job:
    try:
        files = [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else [path]
        size = sum(f.stat().st_size for f in files)
        return Job(name, path, output, size, f"{fingerprint(path, output)}-{common}")
    except OSError as error:
        return Job(name, path, output, 0, "", f"{path}: {error}")


def _settings_key(options: ReplayOptions, settings: NodeConfig) -> str:
    """Returns a hash of what all results depend on beside the recording."""
    values = {p.name: p.value for p in parameters(settings) if p.name not in NOT_REPORTED}
    about: dict[str, Any] = {
        "da3_ros": __version__,
        "options": options.of_results(),
        "plan": None if options.plan is None else options.plan.read_text(),
        "parameters": values,
    }
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
