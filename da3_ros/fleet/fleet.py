"""Processes many recordings with workers on one machine or a cluster, and reports."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from da3_ros import __version__
from da3_ros.config import NodeConfig
from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.export import ExportError
from da3_ros.fleet.cluster import RayPool, connected, resources_for
from da3_ros.fleet.dispatcher import Dispatcher
from da3_ros.fleet.jobs import MERGED, REPORT, FleetError, Job, find_jobs
from da3_ros.fleet.merged_scene import (
    END_S,
    earlier_record,
    hidden_folder,
    publish,
    record_of,
    remove_hidden,
    scenes_of,
    summary_of,
)
from da3_ros.fleet.pool import WorkerLostError
from da3_ros.fleet.signals import signals_held
from da3_ros.fleet.worker import FAILED, Outcome, locked, read_outcome
from da3_ros.merging.merge import MergeSummary
from da3_ros.replay.report import write_json
from da3_ros.replay.results import ReplayOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FleetOptions:
    """What a fleet processes, and with which machines."""

    inputs: Sequence[Path]
    output: Path
    replay: ReplayOptions  # what all replays share; its input and output are not used
    address: str | None = None  # of a Ray cluster; None: this machine
    gpus_per_task: float | None = None  # None, also below: chosen by the machines
    cpus_per_task: int | None = None
    workers: int | None = None  # at most
    merge: bool = False


@dataclass
class FleetSummary:
    """What a fleet did. ``outcomes`` are in the order of names once all have one."""

    output: Path
    recordings: int
    outcomes: list[Outcome] = field(default_factory=list)
    skipped: int = 0  # of these outcomes, those of earlier runs
    workers: list[dict[str, Any]] = field(default_factory=list)
    merged: MergeSummary | str | None = None  # str: why nothing was merged
    merged_record: dict[str, Any] | None = None  # of the merged scene that is there
    wall_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """True if every recording was processed to its end, and all were joined if asked for."""
        done = [o.state == "complete" for o in self.outcomes]
        merged = self.merged is None or (
            isinstance(self.merged, MergeSummary) and self.merged.is_complete
        )
        return len(done) == self.recordings and all(done) and merged

    def report(self) -> dict[str, Any]:
        """Returns the content of fleet.json."""
        done = [o for o in self.outcomes if o.state != FAILED]
        return {
            "da3_ros": __version__,
            "recordings": self.recordings,
            "done": len(done),
            "failed": len(self.outcomes) - len(done),
            "from_earlier_runs": self.skipped,
            "frames": sum(o.frames for o in done),
            "wall_s": round(self.wall_s, 2),
            "workers": self.workers,
            "merged": self.merged if isinstance(self.merged, str) else self.merged_record,
            "outcomes": [dataclasses.asdict(o) for o in self.outcomes],
        }


class Observer:
    """Is told what a fleet does; does nothing itself."""

    def begin(self, jobs: Sequence[Job], done: Sequence[Outcome]) -> None:
        """``jobs`` are all; ``done`` are outcomes of earlier runs."""

    def outcome(self, outcome: Outcome) -> None:
        """A recording has an outcome."""

    def poll(self, dispatcher: Dispatcher) -> None:
        """About once a second."""

    def merging(self, scenes: int) -> None:
        """Merging begins."""


def run_fleet(
    options: FleetOptions, settings: NodeConfig, observer: Observer | None = None
) -> FleetSummary:
    """Processes all recordings that have no results yet, each into a folder of its own.

    Raises FleetError if nothing can be done; a recording that fails is an outcome. Also raises
    OSError. After an interruption, the same call goes on.
    """
    observer, start = observer or Observer(), time.monotonic()
    options = _absolute(options)
    jobs = find_jobs(options.inputs, options.output, options.replay, settings)
    options.output.mkdir(parents=True, exist_ok=True)
    with locked(options.output):
        remove_hidden(options.output)  # of a fleet that was killed
        try:
            return _run(options, settings, jobs, observer, start)
        finally:
            remove_hidden(options.output, END_S)


def _run(
    options: FleetOptions,
    settings: NodeConfig,
    jobs: Sequence[Job],
    observer: Observer,
    start: float,
) -> FleetSummary:
    known = {job.name: outcome for job in jobs if (outcome := read_outcome(job)) is not None}
    summary = FleetSummary(options.output, len(jobs), list(known.values()), len(known))
    summary.merged_record = earlier_record(options.output)
    observer.begin(jobs, summary.outcomes)
    missing = [job for job in jobs if job.name not in known and not job.unreadable]
    # The largest first: the last worker then ends soon after the others.
    missing.sort(key=lambda job: (-job.size, job.name))

    def noted(outcome: Outcome) -> None:
        summary.outcomes.append(outcome)
        summary.wall_s = time.monotonic() - start
        _write(summary)
        observer.outcome(outcome)

    for job in jobs:
        if job.unreadable:
            noted(Outcome(job.name, job.key, FAILED, job.unreadable, attempts=0))
    if options.merge and not missing:
        summary.merged = _known_merge(summary)
    if missing or (options.merge and summary.merged is None):
        with connected(options.address) as ray:
            one = resources_for(ray, settings, options.gpus_per_task, options.cpus_per_task)
            pool = RayPool(ray, settings, options.replay, one)
            dispatcher = Dispatcher(
                pool, missing, most_workers=options.workers, on_outcome=noted,
                on_poll=observer.poll,
            )  # fmt: skip
            try:
                dispatcher.run()
                if options.merge:
                    known_merge = _known_merge(summary)
                    summary.merged = known_merge or _merge(summary, dispatcher, pool, observer)
            finally:
                summary.workers = [
                    {"worker": n, **dataclasses.asdict(w.info), "recordings": w.recordings,
                     "busy_s": round(w.busy_s, 2), "end": w.end}
                    for n, w in sorted(dispatcher.workers.items())
                ]  # fmt: skip
                summary.outcomes.sort(key=lambda outcome: outcome.name)
                summary.wall_s = time.monotonic() - start
                _write(summary)
    summary.wall_s = time.monotonic() - start
    _write(summary)
    return summary


def _known_merge(summary: FleetSummary) -> MergeSummary | str | None:
    """Returns what a merge would give, if that is known without one, else None."""
    scenes = scenes_of(summary.output, summary.outcomes)
    if len(scenes) < 2:
        results = sum(outcome.state != FAILED for outcome in summary.outcomes)
        return f"{len(scenes)} of {results} results have a scene: there is nothing to merge"
    known = summary_of(summary.merged_record, scenes)
    if known is not None:
        log.info("%s holds these %d scenes already", known.output, len(scenes))
    return known


def _merge(
    summary: FleetSummary, dispatcher: Dispatcher, pool: RayPool, observer: Observer
) -> MergeSummary | str:
    """Merges the scenes of all results; returns why, if nothing could be merged."""
    scenes = scenes_of(summary.output, summary.outcomes)
    observer.merging(len(scenes))
    try:
        while True:
            worker, folder = dispatcher.spare_worker(), hidden_folder(summary.output)
            try:
                merged = pool.merge(worker, list(scenes), folder)
                merged = dataclasses.replace(merged, output=summary.output / MERGED)
                with signals_held():  # fleet.json says what is there
                    publish(folder, summary.output)
                    summary.merged_record = record_of(merged, scenes)
                return merged
            except WorkerLostError as error:
                dispatcher.idle.discard(worker)
                if worker == max(dispatcher.workers):  # the newest one: it is the merge that kills
                    return str(error)
    except FleetError as error:
        return str(error)


def _absolute(options: FleetOptions) -> FleetOptions:
    """Returns the options with paths that mean the same in every worker; links stay, since they
    may lead elsewhere on other machines."""
    output, plan = options.output.absolute(), options.replay.plan
    common = dataclasses.replace(
        options.replay, output=output, plan=None if plan is None else plan.absolute()
    )
    return dataclasses.replace(
        options, inputs=[p.absolute() for p in options.inputs], output=output, replay=common
    )


def _write(summary: FleetSummary) -> None:
    """Writes fleet.json; a failure costs only this file."""
    try:
        with atomic_path(summary.output / REPORT) as part:
            write_json(part, summary.report())
    except (ExportError, OSError) as error:
        log.warning("%s", error)
