"""Runs the measurement of keyframes' depth between windows: at once, or in a thread."""

from __future__ import annotations

import logging
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from da3_ros.config import DenseConfig
from da3_ros.derived.measuring import (
    DepthMeasurement,
    JobResult,
    Measured,
    MeasureJob,
    Poses,
)

log = logging.getLogger(__name__)

WAITING = 4  # keyframes that may wait for a thread
REPORTED = 10  # failures that are logged; all are counted


@dataclass(eq=False)
class MeasuredSoFar:
    """How much of a map was measured."""

    keyframes: int = 0  # whose depth stays
    measured: int = 0  # of those, with measured pixels
    pixels: int = 0  # of those, with depth
    found_pixels: int = 0  # in which a search found depth
    measured_pixels: int = 0  # in which neighbours confirmed it
    searches: int = 0
    seconds: float = 0.0  # of all jobs

    def add(self, one: Measured) -> None:
        """Adds a keyframe whose depth stays."""
        self.keyframes += 1
        self.pixels += int(one.keyframe.known.sum())
        self.found_pixels += one.found
        if one.dense is not None:
            self.measured += 1
            self.measured_pixels += int(one.dense.measured.sum())

    def add_job(self, seconds: float, searches: int) -> None:
        """Adds the time of a job with this number of searches."""
        self.seconds += seconds
        self.searches += searches

    @property
    def share(self) -> float:
        """Share of the pixels with depth that are measured; 0 without any."""
        return self.measured_pixels / max(1, self.pixels)

    @property
    def agreement(self) -> float:
        """Share of the pixels found that neighbours confirmed; 0 without any."""
        return self.measured_pixels / max(1, self.found_pixels)

    @property
    def seconds_per_keyframe(self) -> float:
        """Mean time of a search with all that follows; 0 without any."""
        return self.seconds / max(1, self.searches)


class DepthMapping:
    """Measures the newest keyframes of one map. Not thread-safe."""

    def __init__(self, config: DenseConfig, counters: Counter[str]) -> None:
        self.config, self.counters = config, counters
        self.waits = True  # for each job, so that a recording always gives the same map
        self.so_far = MeasuredSoFar()
        self.newest: Measured | None = None  # the newest keyframe with measured pixels
        self.measurement = DepthMeasurement(config.size)
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[JobResult] | None = None
        self._behind_s = 0.0  # time that earlier jobs have taken beyond ``dense.max_ms``

    def clear(self) -> None:
        """The map begins anew: what was found of the old one does not count."""
        self.measurement = DepthMeasurement(self.config.size)
        self._running = self.newest = None

    def end_window(self, poses: Poses) -> list[Measured]:
        """Goes on after a window; returns what was found."""
        self.measurement.end_window()
        out = self._collect()
        if self._running is None:
            if not self.waits:
                self._drop_late()
            self._start(self.measurement.job(poses))
            out += self._collect()
        return out

    def finish(self, poses: Poses) -> list[Measured]:
        """Measures all keyframes that wait, with what there is; returns what was found."""
        out = self._collect(wait=True)
        while (job := self.measurement.job(poses, ends=True)) is not None:
            self._start(job)
            out += self._collect(wait=True)
        return out

    def _drop_late(self) -> None:
        """Drops keyframes that a thread has no time for, oldest first."""
        is_behind = self.config.max_ms > 0 and self._behind_s > 0
        dropped = self.measurement.drop_waiting(0 if is_behind else WAITING)
        if is_behind:  # each makes up for a part of what earlier ones took
            self._behind_s -= 1e-3 * self.config.max_ms * dropped
        self.counters["keyframes_depth_skipped"] += dropped

    def _start(self, job: MeasureJob | None) -> None:
        if job is None:
            return
        if self.waits:
            done = Future[JobResult]()
            done.set_result(self._run(job))
            self._running = done  # only now: Ctrl-C may come before
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "da3-dense")
        self._running = self._thread.submit(self._run, job)

    def _run(self, job: MeasureJob) -> JobResult:
        """Runs a job; one that fails measures nothing."""
        start = time.perf_counter()
        try:
            return job.run()
        except Exception as error:
            self.counters["keyframes_depth_failed"] += len(job.due)
            if self.counters["keyframes_depth_failed"] <= REPORTED:
                log.error("depth is not measured: %s: %s", type(error).__name__, error,
                          exc_info=True)  # fmt: skip
            return job.unmeasured()
        finally:
            seconds = time.perf_counter() - start
            self.so_far.add_job(seconds, len(job.due))
            self._behind_s += seconds - 1e-3 * self.config.max_ms * len(job.due)
            self._behind_s = max(0.0, self._behind_s)

    def _collect(self, *, wait: bool = False) -> list[Measured]:
        """Returns what a job has found, if it has ended."""
        if self._running is None or not (wait or self.waits or self._running.done()):
            return []
        result, self._running = self._running.result(), None
        self.measurement.take(result)
        for one in result.measured:
            if one.stays:
                self.so_far.add(one)
            if one.dense is not None and (
                self.newest is None or one.keyframe.id >= self.newest.keyframe.id
            ):
                self.newest = one
        return list(result.measured)
