"""Hands recordings to workers, and decides what is tried again."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from da3_ros.fleet.jobs import FleetError, Job
from da3_ros.fleet.pool import Died, Event, Finished, NotOpened, Opened, Pool
from da3_ros.fleet.worker import FAILED, Outcome, WorkerInfo

log = logging.getLogger(__name__)

MOST_FAILURES = 2  # of one recording: the second one is final
MOST_DEATHS = 3  # of workers on one recording: it may be what kills them
MOST_REFUSALS = 3  # of workers in a row that could not be opened
POLL_S = 1.0
CAPACITY_S = 10.0  # between two looks at what machines there are


@dataclass
class _Tried:
    """A recording that waits or is being processed."""

    job: Job
    attempts: int = 0
    failures: int = 0
    deaths: int = 0
    failed_on: set[int] = field(default_factory=set)  # workers


@dataclass
class WorkerRecord:
    """What a worker was and did."""

    info: WorkerInfo
    recordings: int = 0
    busy_s: float = 0.0
    end: str = ""  # why it was stopped; empty: it worked to the end


class Dispatcher:
    """Processes recordings with all workers for which there is room."""

    def __init__(
        self,
        pool: Pool,
        jobs: Sequence[Job],
        *,
        most_workers: int | None = None,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
        on_poll: Callable[[Dispatcher], None] = lambda dispatcher: None,
    ) -> None:
        """on_outcome: called once for each recording. on_poll: called about once a second."""
        self.pool, self.most_workers = pool, most_workers
        self.waiting = deque(_Tried(job) for job in jobs)
        self.running: dict[int, _Tried] = {}  # by worker
        self.workers: dict[int, WorkerRecord] = {}  # all that were ever open
        self._on_outcome, self._on_poll = on_outcome, on_poll
        self._opening: set[int] = set()
        self.idle: set[int] = set()
        self._since: dict[int, float] = {}  # when a worker got its recording
        self._refused: list[str] = []  # why workers could not be opened
        self._in_a_row = 0  # of these, since one was opened
        self._capacity, self._look_again = 0, 0.0

    def run(self) -> None:
        """Returns when each recording has an outcome. Raises FleetError if no worker is left."""
        while self.waiting or self.running:
            self._start_workers()
            self._assign()
            for event in self.pool.wait(POLL_S):
                self._handle(event)
            self._on_poll(self)

    def spare_worker(self) -> int:
        """Returns an open worker that has no recording, and waits for one. Raises FleetError."""
        while not self.idle:
            if not self._alive:
                self._start_last()
            for event in self.pool.wait(POLL_S):
                self._handle(event)
        return min(self.idle)

    @property
    def starting(self) -> int:
        """The number of workers that are being started, or wait for room."""
        return len(self._opening)

    @property
    def _alive(self) -> int:
        return len(self._opening) + len(self.idle) + len(self.running)

    def _start_workers(self) -> None:
        """Starts workers while there are recordings and room for them."""
        now = time.monotonic()
        if now >= self._look_again:
            before, self._capacity = self._capacity, self.pool.capacity()
            self._look_again = now + CAPACITY_S
            if self._capacity > before:  # a machine has joined, which may be a better one
                self._in_a_row = 0
        room = self._capacity - self._in_a_row  # machines that refuse are not asked for ever
        if self.most_workers is not None:
            room = min(room, self.most_workers)
        wanted = min(room, len(self.waiting) + len(self.running))
        for _ in range(wanted - self._alive):
            self._opening.add(self.pool.start())
        if not self._alive:
            self._start_last()

    def _start_last(self) -> None:
        """Starts a worker where none is left. Raises FleetError if that is hopeless."""
        if self._refused and (self._in_a_row >= MOST_REFUSALS or not self.workers):
            raise FleetError(f"no worker could be started: {self._refused[-1]}")
        if not self.pool.capacity():
            raise FleetError("no machine has the cores and cards of one worker any more")
        self._opening.add(self.pool.start())

    def _assign(self) -> None:
        """Gives waiting recordings to idle workers, but none to one on which it failed."""
        for worker in sorted(self.idle):
            tried = next((t for t in self.waiting if worker not in t.failed_on), None)
            if tried is not None:
                self.waiting.remove(tried)
                self.idle.remove(worker)
                tried.attempts += 1
                self.running[worker] = tried
                self._since[worker] = time.monotonic()
                self.pool.run(worker, tried.job, tried.attempts)
            elif self.waiting:  # all that waits has failed on it: another one takes its place
                self._stop(worker, "replaced: what is left has failed on it")

    def _handle(self, event: Event) -> None:
        worker = event.worker
        if isinstance(event, Opened):
            self._opening.discard(worker)
            self.idle.add(worker)
            self.workers[worker] = WorkerRecord(event.info)
            self._in_a_row = 0
        elif isinstance(event, NotOpened):
            self._opening.discard(worker)
            self._refused.append(event.reason)
            self._in_a_row += 1
            log.warning("a worker could not be started: %s", event.reason)
        elif isinstance(event, Finished):
            self._finished(worker, event.outcome)
        else:
            self._died(worker, event)

    def _finished(self, worker: int, outcome: Outcome) -> None:
        tried = self._taken_from(worker)
        if outcome.worker_unhurt:
            self.idle.add(worker)
        else:
            self._stop(worker, f"replaced after {outcome.reason}")
        if outcome.state != FAILED:
            self._on_outcome(outcome)
            return
        tried.failures += 1
        tried.failed_on.add(worker)
        if tried.failures >= MOST_FAILURES:
            self._on_outcome(outcome)
        else:
            log.warning("%s failed and is tried again: %s", tried.job.name, outcome.reason)
            self.waiting.append(tried)

    def _died(self, worker: int, event: Died) -> None:
        tried = self._taken_from(worker)
        record = self.workers[worker]
        record.end = event.reason
        self._look_again = 0.0  # its machine may be gone
        tried.deaths += 1
        if tried.deaths >= MOST_DEATHS:
            reason = f"{tried.deaths} workers died while they processed it: {event.reason}"
            outcome = Outcome(
                tried.job.name, tried.job.key, FAILED, reason, worker=worker,
                node=record.info.node, attempts=tried.attempts,
            )  # fmt: skip
            self._on_outcome(outcome)
        else:
            log.warning(
                "a worker on %s died; %s goes on elsewhere from its last checkpoint: %s",
                record.info.node, tried.job.name, event.reason,
            )  # fmt: skip
            self.waiting.appendleft(tried)

    def _taken_from(self, worker: int) -> _Tried:
        """Returns the recording that a worker had, and notes its time."""
        record = self.workers[worker]
        record.recordings += 1
        record.busy_s += time.monotonic() - self._since.pop(worker)
        return self.running.pop(worker)

    def _stop(self, worker: int, why: str) -> None:
        self.idle.discard(worker)
        self.pool.stop(worker)
        self.workers[worker] = replace(self.workers[worker], end=why)
