"""The progress of a fleet: bars on a terminal, else a line from time to time."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

from da3_ros.fleet.dispatcher import Dispatcher
from da3_ros.fleet.fleet import Observer
from da3_ros.fleet.jobs import Job
from da3_ros.fleet.worker import Outcome
from da3_ros.replay.log_lines import logs_above_bars

log = logging.getLogger(__name__)

LINE_EVERY_S = 30.0
MOST_BARS = 16  # of workers
MB = 1e6


class FleetProgress(Observer, contextlib.AbstractContextManager["FleetProgress"]):
    """Shows how much of all recordings, by their bytes, is done, and what each worker does."""

    def __init__(self) -> None:
        self._bars = sys.stderr.isatty()
        self._stack = contextlib.ExitStack()
        self._jobs: dict[str, Job] = {}
        self._done = self._total = 0  # recordings
        self._begun, self._next_line = time.monotonic(), 0.0
        self._done_mb = self._all_mb = 0.0
        self._whole: tqdm[None] | None = None
        self._of_worker: dict[int, tqdm[None]] = {}

    def begin(self, jobs: Sequence[Job], done: Sequence[Outcome]) -> None:
        self._jobs = {job.name: job for job in jobs}
        known = {outcome.name for outcome in done}
        self._done, self._total = len(known), len(jobs)
        self._all_mb = sum(job.size for job in jobs if job.name not in known) / MB
        self._begun = time.monotonic()
        log.info("%d recordings, %d of them done already", len(jobs), len(known))
        if self._bars:
            self._stack.enter_context(logs_above_bars())
            self._whole = self._stack.enter_context(
                tqdm(
                    total=self._all_mb, desc=self._title(), position=0,
                    bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
                )
            )  # fmt: skip

    def outcome(self, outcome: Outcome) -> None:
        self._done += 1
        self._done_mb += self._jobs[outcome.name].size / MB
        why = outcome.reason and f": {outcome.reason}"
        log.info(
            "%d/%d %s: %s, %d frames in %.1f s%s", self._done, self._total, outcome.name,
            outcome.state, outcome.frames, outcome.wall_s, why,
        )  # fmt: skip

    def poll(self, dispatcher: Dispatcher) -> None:
        read = dispatcher.pool.progress()
        now_mb = self._done_mb
        for worker, tried in dispatcher.running.items():
            done, total = read.get(worker, (0, 0))
            now_mb += tried.job.size / MB * (done / total if total else 0.0)
        if self._whole is not None:
            self._whole.set_description_str(self._title(), refresh=False)
            self._whole.n = now_mb
            self._whole.refresh()
            self._show_workers(dispatcher, read)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            log.info(
                "%s, %.0f %% of all bytes, %s left, %d workers, %d that start or wait for room",
                self._title(),
                100 * now_mb / self._all_mb if self._all_mb else 100.0, self._left(now_mb),
                len(dispatcher.running), dispatcher.starting,
            )  # fmt: skip

    def merging(self, scenes: int) -> None:
        log.info("merging %d scenes", scenes)

    def interrupted(self) -> str:
        """Returns what is to be said if the fleet is interrupted."""
        if not self._jobs:
            return ""
        return f"{self._done} of {self._total} recordings are done; the same command goes on"

    def __exit__(self, *_: object) -> None:
        for bar in self._of_worker.values():
            bar.close()
        self._stack.close()

    def _show_workers(self, dispatcher: Dispatcher, read: dict[int, tuple[int, int]]) -> None:
        for worker in [w for w in self._of_worker if w not in dispatcher.running]:
            self._of_worker.pop(worker).close()
        for worker, tried in dispatcher.running.items():
            bar = self._of_worker.get(worker)
            if bar is None:
                if len(self._of_worker) >= MOST_BARS:
                    continue
                bar = self._of_worker[worker] = tqdm(unit="frame", leave=False)
            done, total = read.get(worker, (0, 0))
            if done < bar.n or bar.desc != tried.job.name:
                bar.reset()
                bar.set_description_str(tried.job.name, refresh=False)
            bar.total, bar.n = total or None, done
            bar.refresh()

    def _title(self) -> str:
        return f"{self._done}/{self._total} recordings"

    def _left(self, now_mb: float) -> str:
        if now_mb <= 0:
            return "unknown time"
        seconds = (time.monotonic() - self._begun) * (self._all_mb - now_mb) / now_mb
        return tqdm.format_interval(seconds)
