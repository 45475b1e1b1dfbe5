"""Measures seconds and memory of the stages of a window: pre-processing, backbone, head, camera.

A stage may call another: the time and memory of the inner one are its own. For benchmarks only,
since each change of stage waits for the device.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from da3_ros.inference.devices import Device
from da3_ros.network.stages import StageCall


class StageMeter:
    """Adds up the seconds of each stage and keeps its peak of memory."""

    def __init__(self, hardware: Device, *, memory: bool) -> None:
        """memory: measure peaks too. That frees cached memory at each change of stage, so the
        seconds are then too long."""
        self._hardware, self._memory = hardware, memory
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, int] = {}  # bytes above what was in use at ``begin``
        self._open: list[str] = []
        self._started = 0.0
        self._base = 0

    def begin(self) -> None:
        """What is in use now belongs to no stage."""
        self._hardware.release()
        self._base = self._hardware.in_use()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs in this context as ``name``, apart from stages inside it."""
        self._pause()
        self._open.append(name)
        self._resume()
        try:
            yield
        finally:
            self._pause()
            self._open.pop()
            self._resume()

    @contextmanager
    def watching(self, calls: Iterable[StageCall]) -> Iterator[None]:
        """Count the calls of these methods in this context, each as its stage."""
        watched = [call for call in calls if call.method not in vars(call.owner)]
        for stage, owner, method in watched:
            setattr(owner, method, self._counted(stage, getattr(owner, method)))
        try:
            yield
        finally:
            for _, owner, method in watched:
                delattr(owner, method)

    def _counted(self, stage: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.stage(stage):
                return method(*args, **kwargs)

        return counted

    def _pause(self) -> None:
        if not self._open:
            return
        self._hardware.wait()
        name = self._open[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._started
        if self._memory:
            peak = max(0, self._hardware.peak() - self._base)
            self.peaks[name] = max(self.peaks.get(name, 0), peak)

    def _resume(self) -> None:
        if not self._open:
            return
        if self._memory:
            self._hardware.release()
            self._hardware.reset_peak()
        self._started = time.perf_counter()
