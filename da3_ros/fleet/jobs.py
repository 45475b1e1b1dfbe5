"""The recordings of a fleet: where they are, what their results are called, and their keys."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3_ros import __version__
from da3_ros.config import NodeConfig
from da3_ros.export.scene_folder import is_scene
from da3_ros.parameter_schema import parameters
from da3_ros.recordings.search import find_recordings, is_recording, name_of
from da3_ros.replay.checkpoint import contents_of_parameters, fingerprint
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
    _check_output(output)
    recordings: dict[
        Path, _FoundRecording
    ] = {}  # by real path: a link may lead to the same recording
    for path in inputs:
        for one in _found_in(path, output.resolve()):
            recordings.setdefault(one.path.resolve(), one)
    if not recordings:
        raise FleetError(f"no recording in {', '.join(map(str, inputs))}")
    found = _named(list(recordings.values()), output)
    _check_names(found)
    _check_outside(found, output)
    common = _settings_key(options, settings)
    return [_job(name, path, output / name, common) for name, path in sorted(found.items())]


@dataclass(frozen=True)
class _FoundRecording:
    """A recording and its path below the folder that was searched."""

    path: Path
    below: Path

    @property
    def name(self) -> str:
        """The path without the suffix of its file."""
        return str(self.below.with_name(name_of(self.path)))


def _found_in(path: Path, output: Path) -> Iterator[_FoundRecording]:
    """Yields the recordings in ``path``. Raises FleetError, OSError."""
    if not path.exists():
        raise FleetError(f"{path} does not exist")
    if not path.is_dir() or is_recording(path):
        if not _is_nameable(Path(path.name), path):
            raise FleetError(f"{str(path)!r}: rename it")
        yield _FoundRecording(path, Path(Path(os.path.abspath(path)).name))
        return
    results = 0

    def is_result(folder: Path) -> bool:
        nonlocal results
        found = folder.resolve() == output or _is_result(folder)
        results += found
        return found

    for one in find_recordings(path, is_result):
        if _is_nameable(one.relative_to(path), one):
            yield _FoundRecording(one, one.relative_to(path))
        else:
            log.warning("%r is left out: rename it", str(one))
    if results:
        log.info("%s: %d folders with results are not searched", path, results)
    old = sum(name.endswith(".bag") for _, _, names in os.walk(path) for name in names)
    if old:
        log.warning(
            "%s: %d ROS 1 bags are left out: convert them with rosbags-convert --src FILE",
            path, old,
        )  # fmt: skip


def _is_nameable(below: Path, path: Path) -> bool:
    """Whether a recording's path below the searched folder can name a folder and be shown."""
    hidden = any(unicodedata.category(c) in ("Cc", "Cs") for c in str(below))
    return not hidden and name_of(path) not in ("", ".", "..")


def _check_output(output: Path) -> None:
    """Raises FleetError if the output folder is a recording, or lies in one."""
    for folder in (output.resolve(), *output.resolve().parents):
        with contextlib.suppress(OSError):
            if folder.is_dir() and is_recording(folder):
                raise FleetError(
                    f"{output} lies in the recording {folder}: choose another --output"
                )


def _is_result(folder: Path) -> bool:
    """Whether a folder holds the results of a replay or a merged scene, and is no recording."""
    if (folder / "metadata.yaml").exists():
        return False
    if is_scene(folder):
        return True
    try:
        report = json.loads((folder / "report.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and "da3_ros" in report


def _named(recordings: Sequence[_FoundRecording], output: Path) -> dict[str, Path]:
    """Returns the recordings by name. Where several in one folder would have one name, or one the
    name of another's folder, they keep their suffixes. Raises FleetError."""
    count = Counter(one.name for one in recordings)
    folders = {str(parent) for one in recordings for parent in Path(one.name).parents}
    found: dict[str, Path] = {}
    for one in recordings:
        clear = count[one.name] == 1 and one.name not in folders
        name = one.name if clear else str(one.below)
        if name in found:
            raise FleetError(
                f"{found[name]} and {one.path} would both be written to {output / name}: "
                "rename one, or give the folder that holds both"
            )
        found[name] = one.path
    return found


def _check_outside(found: Mapping[str, Path], output: Path) -> None:
    """Raises FleetError if results would lie in a recording, and become a part of it."""
    folders = {path.resolve(): path for path in found.values() if path.is_dir()}
    for name in found:
        target = (output / name).resolve()
        if inside := next((p for p in (target, *target.parents) if p in folders), None):
            raise FleetError(
                f"{output / name}: results would lie in the recording {folders[inside]}: choose "
                "another --output"
            )


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
        "contents": contents_of_parameters(settings),
    }
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
