"""Saves the state of a replay from time to time, so that an interrupted one can go on.

The state is what decides about later results: the pipelines, how much of the recording was read,
and how much of each file was written. Files are only appended to, so that going on means to cut
off what came after the checkpoint. Results do not depend on when checkpoints were made.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3_ros import __version__
from da3_ros.config import NodeConfig
from da3_ros.inference import Plan
from da3_ros.network.checkpoint import shipped_folder
from da3_ros.network.hub import CONFIG, WEIGHTS
from da3_ros.parameter_schema import parameters
from da3_ros.recordings import Recording
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.replay.object_state import StateError, load_state, save_state
from da3_ros.replay.result_bag import BagState
from da3_ros.replay.results import ReplayOptions, WrittenScene
from da3_ros.sensors.ego_mask import CAMERA

log = logging.getLogger(__name__)

BLOCKS, BLOCK = 64, 1 << 16  # blocks of a recording that are compared; bytes of one
PERIOD_S = 30.0  # between two checkpoints, at least
SHARE = 0.05  # of the time that checkpoints may take


@dataclass(frozen=True, eq=False)
class Written:
    """How much of the files was written."""

    bag: BagState
    scenes: dict[str, WrittenScene]


@dataclass(frozen=True, eq=False)
class Beginning:
    """What is needed before the state can be loaded into a new program."""

    run: dict[str, Any]  # what the results depend on, as ``describe_run``
    plan: Plan | None
    limits: SolverLimits
    written: Written
    wall_s: float  # that the replay has taken


def describe_run(
    recording: Recording, settings: NodeConfig, options: ReplayOptions
) -> dict[str, Any]:
    """Returns what the results of a replay depend on, by names that a user knows."""
    values = {p.name: p.value for p in parameters(settings)}
    saved = options.resume if options.resume is not None and options.resume.exists() else None
    about: dict[str, Any] = {
        "da3_ros": __version__,
        "recording": os.path.realpath(recording.path),
        "recording with contents": fingerprint(Path(recording.path), options.output),
        "--resume": None if options.resume is None else os.path.realpath(options.resume),
        "--resume with contents": saved and fingerprint(saved, options.output),
        **{f"option {name}": value for name, value in options.of_results().items()},
        **{f"parameter {name}": value for name, value in values.items()},
        **{
            f"parameter {name} with contents": content
            for name, content in contents_of_parameters(settings).items()
        },
        "frames": recording.length,  # last: what a user has chosen is named first
    }
    plain: dict[str, Any] = json.loads(json.dumps(about, default=str))
    return plain


def contents_of_parameters(settings: NodeConfig) -> dict[str, str]:
    """Returns by name a fingerprint of each file, or both files of weights, that a parameter names
    and that is on this machine. Files of the hub are pinned by their revision.

    Raises OSError.
    """
    config = settings.pipeline
    files = {
        "checkpoint": _weights(config.inference.checkpoint, config.inference.model),
        "scale.metric_checkpoint": _weights(config.scale.metric_checkpoint),
        "mask": [
            Path(config.mask.replace(CAMERA, camera)).expanduser()
            for camera in config.cameras or ("",) if config.mask
        ],
    }  # fmt: skip
    there = {name: [f for f in named if f.is_file()] for name, named in files.items()}
    return {
        name: "-".join(fingerprint(file, file / "none") for file in found)
        for name, found in there.items() if found
    }  # fmt: skip


def _weights(source: str, model: str = "") -> list[Path]:
    """Returns the files of a checkpoint folder; ``source`` empty: of the one in the package."""
    folder = Path(source).expanduser() if source else shipped_folder(model)
    return [] if folder is None else [folder / CONFIG, folder / WEIGHTS]


def fingerprint(path: Path, output: Path) -> str:
    """Returns a hash of sampled blocks of a recording's files, and of their names and sizes;
    without those in ``output``, which may lie inside.

    Raises OSError.
    """
    files = [path]
    if path.is_dir():
        own = output.resolve()
        found = (f for f in path.rglob("*") if f.is_file() and own not in f.resolve().parents)
        files = sorted(found)
    digest, blocks = hashlib.blake2b(digest_size=8), max(1, BLOCKS // max(1, len(files)))
    for index, file in enumerate(files):
        size = file.stat().st_size
        digest.update(os.fsencode(file.name) + f" {size};".encode())
        if index % (len(files) // BLOCKS + 1) == 0:
            with file.open("rb") as data:
                for block in range(blocks):
                    data.seek(block * max(0, size - BLOCK) // max(1, blocks - 1))
                    digest.update(data.read(BLOCK))
    return digest.hexdigest()


def load_beginning(path: Path, run: Mapping[str, Any]) -> Beginning:
    """Returns the beginning of a checkpoint. Raises StateError, also if it is of another run."""
    beginning = load_state(path, "beginning", None, {})
    if not isinstance(beginning, Beginning):
        raise StateError(f"{path} is damaged")
    check_run(path.parent, beginning.run, run)
    return beginning


def check_run(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises StateError if the unfinished replay in a folder is another run than this one."""
    for name in [*now, *(set(before) - set(now))]:
        if name in ("--resume", "--resume with contents") and now.get(name) is None:
            continue  # without a scene it goes on in the same one
        if before.get(name) != now.get(name):
            raise StateError(
                f"the unfinished replay in {folder} had {name} {before.get(name)}, not "
                f"{now.get(name)}: repeat it, or begin anew without --resume"
            )


class Checkpoints:
    """Saves checkpoints when they are due."""

    def __init__(
        self, path: Path, save: Callable[[], tuple[Beginning, Any, dict[str, Any]]]
    ) -> None:
        """save: returns the beginning, the state and the objects that are no part of it."""
        self._path, self._save = path, save
        self._due = time.monotonic() + PERIOD_S

    def save_if_due(self) -> None:
        """Saves a checkpoint if the last one is long ago. A failure costs the checkpoint only."""
        start = time.monotonic()
        if start < self._due:
            return
        try:
            save_checkpoint(self._path, *self._save())
        except (OSError, StateError) as error:
            log.warning("no checkpoint could be saved: %s", error)
        end = time.monotonic()
        self._due = end + max(PERIOD_S, (end - start) / SHARE)


def save_checkpoint(
    path: Path, beginning: Beginning, state: Any, services: Mapping[str, Any]
) -> None:
    """Replaces the checkpoint at ``path``. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        save_state(part, {"beginning": beginning, "state": state}, services)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # after a failure, others need the room on the disk
