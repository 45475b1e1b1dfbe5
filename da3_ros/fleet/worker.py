"""What a worker of a fleet does: it loads the networks once, then processes recordings.

Knows nothing of how workers are started; ``cluster.py`` does that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gc
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from da3_ros import __version__
from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.export import ExportError
from da3_ros.fleet.jobs import MERGED, FleetError, Job
from da3_ros.inference import open_networks
from da3_ros.inference.devices import open_device
from da3_ros.inference.memory_governor import FREE_SHARE
from da3_ros.inference.planner import GIB
from da3_ros.merging.merge import MergeSummary, merge
from da3_ros.merging.network import open_loop_network
from da3_ros.replay.report import write_json
from da3_ros.replay.results import (
    ReplayError,
    ReplayOptions,
    ReplaySummary,
    UnfinishedError,
)
from da3_ros.replay.run import replay
from da3_ros.replay.work_folder import UNFINISHED

OUTCOME = "outcome.json"  # beside the results of a recording
LOG = "log.txt"  # what its replays have logged
COMPLETE, DAMAGED, FAILED = "complete", "damaged", "failed"  # states of an outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of a recording."""

    name: str
    key: str
    state: str  # complete; damaged: its readable part was processed; failed: there are no results
    reason: str = ""  # why it is damaged or failed
    frames: int = 0
    wall_s: float = 0.0  # of all attempts that led to the results
    worker: int = -1
    node: str = ""
    attempts: int = 1
    worker_unhurt: bool = True  # False: the failure was unexpected; another worker takes over


@dataclass(frozen=True)
class WorkerInfo:
    """A worker, as it is after loading the networks."""

    node: str
    device: str
    threads: int
    memory_budget_gb: float
    opened_s: float  # seconds to load the networks


class FleetWorker:
    """Processes one recording after the other with networks that are loaded once.

    ``progress`` may be called by another thread.
    """

    def __init__(
        self, number: int, settings: NodeConfig, options: ReplayOptions, share: float
    ) -> None:
        """options: what all replays share; ``output`` is the fleet's. share: of the device's free
        memory that this worker may use, if `memory_budget_gb` is 0."""
        self.number, self.settings, self.options, self.share = number, settings, options, share
        self._progress = (0, 0)

    def open(self, version: str) -> WorkerInfo:
        """Loads the networks. version: of the program that started the fleet.

        Raises FleetError, and what opening a network raises.
        """
        start = time.monotonic()
        node = platform.node()
        if version != __version__:
            raise FleetError(f"{node} has da3_ros {__version__}, not {version}: install the same")
        if not self.options.output.is_dir():
            raise FleetError(
                f"{node} does not see {self.options.output}: in- and output must be on storage "
                "that all machines share, under the same path"
            )
        config = _within_budget(self.settings.pipeline, self.share)
        self.session, self.metric_model = open_networks(config)
        status = self.session.status()
        return WorkerInfo(
            node, status.device, torch.get_num_threads(), round(status.memory_budget_gb, 2),
            round(time.monotonic() - start, 2),
        )  # fmt: skip

    def progress(self) -> tuple[int, int]:
        """The number of frames read of the current recording, and of all its frames."""
        return self._progress

    def run(self, job: Job, attempt: int) -> Outcome:
        """Processes a recording, and goes on where an interrupted attempt has stopped.

        Raises nothing: a failure is an outcome too.
        """
        self._progress = (0, 0)
        outcome = Outcome(
            job.name, job.key, FAILED, worker=self.number, node=platform.node(), attempts=attempt
        )
        try:
            job.output.mkdir(parents=True, exist_ok=True)
            with locked(job.output), _logged(job.output / LOG):
                (job.output / OUTCOME).unlink(missing_ok=True)
                outcome = self._replayed(job, outcome)
                if outcome.state != FAILED:
                    with atomic_path(job.output / OUTCOME) as part:
                        write_json(part, dataclasses.asdict(outcome))
        except (OSError, ExportError, FleetError) as error:
            outcome = dataclasses.replace(outcome, state=FAILED, reason=str(error))
        # A scene refers to itself: until it is collected, it keeps its deleted files on the disk.
        gc.collect()
        return outcome

    def merge(self, scenes: Sequence[Path], folder: Path) -> MergeSummary:
        """Merges the scenes of several recordings into a new scene in ``folder``, which exists,
        without copies; raises as ``merging.merge.merge``.

        The folder is locked until that has ended, or this process has.
        """
        self.session.renew()
        config = self.settings.pipeline
        network = open_loop_network(config, self.session)
        with locked(folder):
            return merge(scenes, folder / MERGED, config, network, leave_out_copies=True)

    def _replayed(self, job: Job, outcome: Outcome) -> Outcome:
        try:
            summary = self._replay(job)
        except ReplayError as error:
            log.error("%s", error)
            return dataclasses.replace(outcome, reason=str(error))
        except Exception as error:  # of any kind: the other recordings go on
            log.exception("unexpected")
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            return dataclasses.replace(outcome, reason=reason, worker_unhurt=False)
        return dataclasses.replace(
            outcome,
            state=DAMAGED if summary.damage else COMPLETE,
            reason=summary.damage or "",
            frames=summary.counts.get("processed", 0),
            wall_s=round(summary.measured["wall_s"], 3),
        )

    def _replay(self, job: Job) -> ReplaySummary:
        options = dataclasses.replace(
            self.options, input=job.input, output=job.output, go_on=True
        )  # fmt: skip
        try:
            summary = self._begun(options)
        except UnfinishedError as error:
            log.warning("%s; beginning anew", error)
            summary = self._begun(dataclasses.replace(options, go_on=False))
        for old in job.output.glob(f"{UNFINISHED}*"):  # of attempts that were killed
            with contextlib.suppress(FleetError), locked(old):  # else a replay by hand runs there
                shutil.rmtree(old)
        return summary

    def _begun(self, options: ReplayOptions) -> ReplaySummary:
        self.session.renew()
        if self.metric_model is not None:
            self.metric_model.renew()
        return replay(options, self.settings, self.session, self.metric_model, self._note)

    def _note(self, done: int, total: int) -> None:
        self._progress = (done, total)


def read_outcome(job: Job) -> Outcome | None:
    """Returns the outcome of a recording whose results are there and as wanted, else None."""
    try:
        values: dict[str, Any] = json.loads((job.output / OUTCOME).read_text())
        outcome = Outcome(**values)
    except (OSError, ValueError, TypeError):
        return None
    there = (job.output / "report.json").exists()
    return outcome if outcome.key == job.key and there else None


def _within_budget(config: PipelineConfig, share: float) -> PipelineConfig:
    """Returns the parameters with this worker's share of the free memory as its budget."""
    inference = config.inference
    if inference.memory_budget_gb or share >= 1:
        return config
    free = open_device(inference.device, inference.performance_mode).free()
    budget = FREE_SHARE * share * free / GIB
    return dataclasses.replace(
        config, inference=dataclasses.replace(inference, memory_budget_gb=budget)
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes out of a folder. Raises FleetError if one is in it, OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FleetError(f"another process works in {path}") from error
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Appends what is logged to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("da3_ros")
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
