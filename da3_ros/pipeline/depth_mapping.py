"""Runs the measurement of keyframes' depth between windows: at once, or in a thread."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from da3_ros.config import DenseConfig, DepthConfig
from da3_ros.derived.measuring import (
    DepthMeasurement,
    JobResult,
    Measurable,
    Measured,
    MeasureJob,
    Poses,
)
from da3_ros.mapping.depth_filter import filter_depth, without_smears
from da3_ros.mapping.submap_points import Bins, KeyframePoints, MeasuredPoints
from da3_ros.types import Array

log = logging.getLogger(__name__)

WAITING = 4  # keyframes of a camera that may wait for a thread
JOB = 4  # searches of a job in a thread, or one of each camera
# Searches in a row, at least, and limits in a row that may be saved for later, if ``dense.max_ms``
# allows for less: keyframes in a row confirm each other.
BURST = 4
REPORTED = 10  # failures that are logged; all are counted


@dataclass(frozen=True, eq=False)
class PointsMaker:
    """Makes points of measured keyframes, as the map is now. Owns what it reads: it may run in a
    thread."""

    filters: DepthConfig
    places: Mapping[int, tuple[Array, Bins]]  # ``T_submap_camera`` [4, 4], by id of the keyframe

    def points(self, one: Measured) -> MeasuredPoints | None:
        """Returns a keyframe's points; None: they stay as they are."""
        keyframe = one.keyframe
        if keyframe.id not in self.places or (one.dense is None and not one.is_withdrawn):
            return None
        T_submap_camera, bins = self.places[keyframe.id]
        depth = keyframe.depth if one.dense is None else one.dense.depth
        sky = np.isposinf(depth)
        filtered = filter_depth(depth, keyframe.confidence, self.filters, sky=sky)
        if self.filters.edge_filter:
            filtered = without_smears(filtered)
        return KeyframePoints(
            keyframe.id, filtered, keyframe.confidence, keyframe.image, keyframe.K,
            T_submap_camera, 1.0,
        ).measured(bins)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Found:
    """What a job has found of a keyframe."""

    measured: Measured
    points: MeasuredPoints | None  # None: they stay as they are


@dataclass(frozen=True, eq=False)
class _Done:
    """A job that has ended."""

    result: JobResult
    found: list[Found]
    seconds: float
    searches: int


Makers = Callable[[Iterable[Measurable]], PointsMaker]  # for these keyframes


@dataclass
class MeasuredSoFar:
    """How much of a map was measured."""

    keyframes: int = 0  # whose depth stays
    measured: int = 0  # of those, with measured pixels
    pixels: int = 0  # of those, with depth
    found_pixels: int = 0  # in which a search found depth
    measured_pixels: int = 0  # in which neighbours confirmed it
    searches: int = 0
    seconds: float = 0.0  # of all jobs
    behind_s: float = 0.0  # time that jobs have taken beyond ``dense.max_ms`` per keyframe
    rests: bool = False  # whether keyframes are skipped until that is 0

    def add(self, one: Measured) -> None:
        """Adds a keyframe whose depth stays."""
        self.keyframes += 1
        self.pixels += int(one.keyframe.known.sum())
        self.found_pixels += one.found
        if one.dense is not None:
            self.measured += 1
            self.measured_pixels += int(one.dense.measured.sum())

    def arrive(self, max_ms: float) -> None:
        """Notes a keyframe that is to be measured; max_ms: ``dense.max_ms``."""
        self.behind_s = max(self.behind_s - 1e-3 * max_ms, -1e-3 * BURST * max_ms)
        self.rests &= self.behind_s > 0

    def add_job(self, seconds: float, searches: int) -> None:
        """Adds the time of a job with this number of searches."""
        self.seconds += seconds
        self.searches += searches
        self.behind_s += seconds
        self.rests |= self.searches > 0 and self.behind_s > BURST * self.seconds / self.searches

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
        """Mean time of all searches of a keyframe whose depth stays; 0 without any."""
        return self.seconds / self.keyframes if self.keyframes else 0.0


class DepthMapping:
    """Measures the newest keyframes of one map. Not thread-safe."""

    def __init__(
        self, config: DenseConfig, counters: Counter[str], device: str = "cpu"
    ) -> None:  # fmt: skip
        """device: that searches, if it is a CUDA device: Apple's lack some of what that needs."""
        self.config, self.counters = config, counters
        self.waits = True  # for each job, so that a recording always gives the same map
        self.device = device if device.startswith("cuda") else "cpu"
        self._metres = math.nan  # per unit of odometry, for returns; NaN: unknown
        self._thread: ThreadPoolExecutor | None = None
        self._stopping: threading.Event | None = None  # of the newest job in the thread
        self.windows = 0  # after which measuring has gone on
        self.restart()

    def restart(self) -> None:
        """The map begins anew: what was found of the old one does not count."""
        self.so_far = MeasuredSoFar()
        self.clear()

    def clear(self) -> None:
        """Forgets the keyframes that wait."""
        self.stop()
        self.measurement = DepthMeasurement(self.config.size)
        self.newest: dict[str, Measured] = {}  # keyframe with measured pixels, by camera
        self._running: Future[_Done] | None = None
        # Whether no keyframe has come since all were measured with what there was.
        self._is_settled = True

    def stop(self) -> None:
        """Tells a job in the thread to leave out what is not searched yet. Thread-safe."""
        if self._stopping is not None:
            self._stopping.set()

    @property
    def goes_on(self) -> bool:
        """Whether there is something to do in a pause (`pause`)."""
        return self._running is not None or not self._is_settled

    @property
    def is_idle(self) -> bool:
        """Whether a window leaves nothing to do. A keyframe that is measured counts as long as it
        is kept: when the map is corrected, it may be measured anew."""
        return not self.goes_on and self.measurement.is_empty

    @property
    def waiting(self) -> int:
        """Number of keyframes that a pause would go on with; 0 after one. Thread-safe."""
        return self.measurement.unfinished if self.goes_on else 0

    def note_metres(self, metres: float) -> None:
        """Notes metres per unit of odometry, by which returns of range sensors count; NaN:
        unknown."""
        self._metres = metres

    def add_keyframe(self, keyframe: Measurable) -> None:
        """Adds the newest keyframe."""
        self.measurement.add_keyframe(keyframe)
        self.so_far.arrive(self.config.max_ms)
        self._is_settled = False

    def end_window(self, poses: Poses, makers: Makers) -> list[Found]:
        """Goes on after a window; returns what was found."""
        self.windows += 1
        self.measurement.end_window()
        out = self._collect()
        if self._running is not None:
            return self._forget_late()
        again = self.waits or not self._drop_late()
        most = None if self.waits else JOB
        self._start(self._job(poses, again=again, most=most), makers)
        return out + self._collect()

    def pause(self, poses: Poses, makers: Makers) -> list[Found]:
        """Goes on while no window comes, for a thread; returns what was found.

        Keyframes wait for no later ones. When all are searched, they are decided on once more:
        neighbours may have been searched since.
        """
        out = self._collect()
        if self._running is not None or self._is_settled:
            return out
        self.counters["keyframes_depth_skipped"] -= self.measurement.begin_pause()
        again = not (self._rests and self._drop_late())
        job = self._job(poses, again=again, most=JOB)
        if job is None:
            self._is_settled = True
            job = self._job(poses, again=again, most=JOB, settles=True)
        self._start(job, makers)
        return out

    def _job(self, poses: Poses, **options: Any) -> MeasureJob | None:
        return self.measurement.job(poses, metres=self._metres, **options)

    def _forget_late(self) -> list[Found]:
        late, skipped = self.measurement.forget_late()
        self.counters["keyframes_depth_skipped"] += skipped
        for one in late:
            self._note(one)
        return [Found(one, None) for one in late]

    def finish(
        self, poses: Poses, makers: Makers, timeout_s: float | None = None
    ) -> list[Found]:  # fmt: skip
        """Measures all keyframes that wait, with what there is; returns what was found.

        timeout_s: after which no further one is searched; what is not searched is left out.
        """
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s

        def is_over() -> bool:
            return time.monotonic() > end

        if timeout_s is not None:
            self.stop()
        out = self._collect(wait=True, timeout_s=timeout_s)
        while True:
            if is_over():
                dropped = self.measurement.drop_waiting(0, ends=True)
                self.counters["keyframes_depth_skipped"] += dropped
            job = self._job(poses, ends=True, again=timeout_s is None)
            if job is None:
                return out
            self._running = self._ended(job, makers, is_over)
            out += self._collect(wait=True)

    @property
    def _rests(self) -> bool:
        return self.config.max_ms > 0 and self.so_far.rests

    def _drop_late(self) -> bool:
        """Drops keyframes that a thread has no time for, oldest first; returns whether it rests,
        by ``dense.max_ms``."""
        rests = self._rests
        dropped = self.measurement.drop_waiting(0 if rests else WAITING)
        self.counters["keyframes_depth_skipped"] += dropped
        return rests

    def _start(self, job: MeasureJob | None, makers: Makers) -> None:
        if job is None:
            return
        if self.waits:
            self._running = self._ended(job, makers, lambda: False)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "da3-dense")
        self._stopping = threading.Event()
        self._running = self._thread.submit(
            self._run, job, self._maker(job, makers), self._stopping.is_set
        )

    def _ended(
        self, job: MeasureJob, makers: Makers, stopping: Callable[[], bool]
    ) -> Future[_Done]:
        """Runs a job; not in a thread, so that Ctrl-C ends it."""
        done = Future[_Done]()
        done.set_result(self._run(job, self._maker(job, makers), stopping))
        return done

    @staticmethod
    def _maker(job: MeasureJob, makers: Makers) -> PointsMaker:
        return makers(job.keyframes[id] for id in job.decided)

    def _run(self, job: MeasureJob, maker: PointsMaker, stopping: Callable[[], bool]) -> _Done:
        """Runs a job, and makes the points of what it has measured. Raises nothing."""
        start = time.perf_counter()
        try:
            result = self._run_on_device(job, stopping)
        except Exception as error:  # no window may end by it, nor measuring itself
            result = job.failed(error)
        for why in result.failed.values():
            self._note_failure("the depth of a keyframe is not measured", why)
        self._note_returns(result.returns_contradict)
        found = [Found(one, self._points(maker, one)) for one in result.measured]
        return _Done(result, found, time.perf_counter() - start, len(result.searches))

    def _points(self, maker: PointsMaker, one: Measured) -> MeasuredPoints | None:
        try:
            return maker.points(one)
        except Exception as error:  # the others still get theirs
            self._note_failure(
                "the points of a keyframe are not those of its measured depth", error
            )
            return None

    def _note_failure(self, what: str, error: Exception) -> None:
        self.counters["keyframes_depth_failed"] += 1
        if self.counters["keyframes_depth_failed"] <= REPORTED:
            log.error("%s: %s: %s", what, type(error).__name__, error, exc_info=error)

    def _note_returns(self, contradict: bool) -> None:
        self.counters["returns_contradict"] += contradict
        if contradict and self.counters["returns_contradict"] == 1:
            log.warning(
                "range sensors: most returns do not fit the depth of keyframes, and are not used "
                "there: check the transform from the sensor to the camera, and the stamps of both"
            )

    def _run_on_device(self, job: MeasureJob, stopping: Callable[[], bool]) -> JobResult:
        """Runs a job on the device; on the CPU from then on if that fails there."""
        if self.device == "cpu":
            return job.run(stopping=stopping)
        try:
            # On another stream than the network's work, beside it.
            with torch.cuda.device(self.device), torch.cuda.stream(_stream_of(self.device)):
                result = job.run(self.device, stopping)
            error = result.device_error
        except RuntimeError as why:  # there is no such device, or no memory for a stream
            result, error = job.run(stopping=stopping), why
        if error is not None:
            log.warning("depth is measured on the CPU from now on: %s", error)
            self.device = "cpu"
        return result

    def _collect(self, *, wait: bool = False, timeout_s: float | None = None) -> list[Found]:
        """Returns what a job has found, if it has ended; one that does not in time is given up."""
        if self._running is None or not (wait or self.waits or self._running.done()):
            return []
        running, self._running = self._running, None
        if not futures.wait([running], timeout_s).done:  # TimeoutError is another one in 3.10
            return []
        done = running.result()
        self.so_far.add_job(done.seconds, done.searches)
        found = [one for one in done.found if one.measured.keyframe.id in self.measurement]
        self.measurement.take(done.result)
        for one in found:
            self._note(one.measured)
        return found

    def _note(self, one: Measured) -> None:
        camera, newest = one.keyframe.camera, self.newest.get(one.keyframe.camera)
        if one.stays:
            self.so_far.add(one)
        if one.dense is None:
            if newest is not None and newest.keyframe is one.keyframe:
                del self.newest[camera]
        elif newest is None or one.keyframe.id >= newest.keyframe.id:
            self.newest[camera] = one


@functools.cache
def _stream_of(device: str) -> torch.cuda.Stream:
    """Returns the stream of all searches on a device. Each further one would keep memory that
    PyTorch has freed, since that is used again in its own stream only."""
    return torch.cuda.Stream(device)
