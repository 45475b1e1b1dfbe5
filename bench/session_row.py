"""One row of the tables about sessions: speed, memory and stability, in a process of its own.

``run`` starts the process, so that a row's memory is measured from the start. Weights are random,
because speed and memory do not depend on their values. Times include upload, pre-processing and
download. Engines are built anew for each row, unless the setting names a folder for them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import child
import numpy as np

from da3_ros.inference import BudgetError, DeviceError, InferenceConfig, InferenceSession
from da3_ros.inference.benchmark import MAX_REPLANS, WARM_UP
from da3_ros.inference.planner import GIB
from da3_ros.inference.random_windows import random_windows
from da3_ros.types import Window

FEWEST = {95: 20, 99: 100}  # runs from which on a percentile is more than the slowest run
ENDLESS = 1 << 30


@dataclass(frozen=True)
class RowSetting:
    """What a row measures: a session, and windows of random images."""

    model: str = "da3-small"
    device: str = "auto"
    backend: str = "auto"
    mode: str = "balanced"
    precision: str = "auto"
    compile: str = "off"
    cache_dir: str = ""  # of engines; empty: a new one, so that a cold start builds its engine
    gib: float = 0.0  # memory budget; 0: the session's default
    process_res: int = 504
    image: tuple[int, int] = (504, 280)  # width and height
    views: int = 8  # per window
    unseen: bool = False  # all views of each window are new, with depth; else one is
    warm_up: int = WARM_UP  # windows before those that count
    repeats: int = 5  # windows that count
    same: int = 3  # windows on one input, for the stability; with ``unseen`` the timed ones


def measure(setting: RowSetting) -> dict[str, Any]:
    """Returns the row: a cold start, then windows; or ``refused`` with the reason."""
    with tempfile.TemporaryDirectory() as empty:
        cache = setting.cache_dir or empty
        start = time.perf_counter()
        try:
            session = InferenceSession(_config(setting, cache), poses=False)
            new = setting.views - 1 if setting.unseen else 1
            session.memory.fit(setting.image, max(2, setting.views), max(1, new))
            planned = session.memory.plan
        except (BudgetError, DeviceError, ValueError) as error:
            return {"refused": str(error)}
        load_s = time.perf_counter() - start
        timed = TimedWindows(session, setting)
        timed.run()
    assert planned is not None
    ran = session.status().backend
    if setting.backend not in ("auto", ran):
        return {"refused": f"ran on {ran}: {setting.backend} does not fit, or failed"}
    if timed.stability == float("inf"):
        return {"refused": "depth that is known in one run is unknown in another"}
    row = _row(session, timed, planned.predicted, load_s)
    # An engine that is kept was built by another row.
    return row | {"cold_start_s": None} if setting.cache_dir else row


def _config(setting: RowSetting, cache: str) -> InferenceConfig:
    return InferenceConfig(
        model=setting.model, checkpoint="random", device=setting.device, backend=setting.backend,
        cache_dir=cache, performance_mode=setting.mode, mixed_precision=setting.precision,
        compile=setting.compile, memory_budget_gb=setting.gib, process_res=setting.process_res,
    )  # fmt: skip


class TimedWindows:
    """Runs the windows of a row and keeps their times in seconds."""

    def __init__(self, session: InferenceSession, setting: RowSetting) -> None:
        self._session, self._setting = session, setting
        self.views = self.new = 0
        self.first_s = 0.0  # the first window, with one-time work of compiler and libraries
        self.seconds: list[float] = []  # of those that count
        self.stability = 0.0  # see ``spread``

    def run(self) -> None:
        """Runs warm-up, timed windows, and windows on one input, where the timed ones differ."""
        windows = self._warmed()
        depths = (self._timed(next(windows)) for _ in range(self._setting.repeats))
        if self._setting.unseen:  # copies of the same images each time
            self.stability = spread(depths)
            return
        for _ in depths:
            pass
        self.stability = spread(self._again(next(windows)))

    def _timed(self, window: Window) -> np.ndarray:
        done = self._session.infer(window)
        self.seconds.append(done.inference_s)
        return done.depth

    def _warmed(self) -> Iterator[Window]:
        """Returns the windows after the warm-up, which is repeated while it changes the plan."""
        warm_up = self._setting.warm_up
        if self._setting.compile == "on":
            warm_up = max(warm_up, WARM_UP)
        for _ in range(MAX_REPLANS):
            plan = self._session.memory.plan
            assert plan is not None
            self.views = min(self._setting.views, plan.window)
            self.new = self.views if self._setting.unseen else 1
            windows = random_windows(
                plan, self.views, self.new, ENDLESS, unseen=self._setting.unseen
            )
            for _ in range(warm_up):
                took = self._session.infer(next(windows)).inference_s
                self.first_s = self.first_s or took
            now = self._session.memory.plan
            if now is None or now.repeatable() == plan.repeatable():
                break
        return windows

    def _again(self, window: Window) -> Iterator[np.ndarray]:
        """Yields depth of the same images again and again, with as many new views as before."""
        old = len(window.views) - self.new
        for _ in range(self._setting.same):
            # A session keeps features by the array: a copy counts as a new image.
            fresh = (dataclasses.replace(v, image=v.image.copy()) for v in window.views[old:])
            again = dataclasses.replace(window, views=(*window.views[:old], *fresh))
            yield self._session.infer(again).depth


def spread(depths: Iterator[np.ndarray]) -> float:
    """Returns the largest difference of depth from the first run over the first's median depth."""
    first = next(depths)
    known = np.isfinite(first)
    largest = max((_farthest(d, first, known) for d in depths), default=0.0)
    return largest / float(np.median(first[known]))


def _farthest(depth: np.ndarray, first: np.ndarray, known: np.ndarray) -> float:
    """Returns the largest difference; infinite where only one of both is known."""
    if not np.array_equal(np.isfinite(depth), known):
        return float("inf")
    return float(np.abs(depth - first)[known].max())


def _row(
    session: InferenceSession, timed: TimedWindows, planned: int, load_s: float
) -> dict[str, Any]:
    seconds, plan, status = timed.seconds, session.memory.plan, session.status()
    assert plan is not None
    mean, median = statistics.mean(seconds), statistics.median(seconds)
    size = f"{plan.width}x{plan.height}"
    return {
        "runs": f"{timed.views} x {size} {status.precision} {status.backend}",
        "reduced": list(plan.reduced),
        "timed": len(seconds),
        "mean_s": mean,
        "std_s": statistics.pstdev(seconds),
        "median_s": median,
        "p95_s": percentile(seconds, 95),
        "p99_s": percentile(seconds, 99),
        "images_per_s": timed.new / mean,
        "frames_per_s": timed.new / median,
        "stability": timed.stability,
        "planned_gib": planned / GIB,  # before the first measurement
        "predicted_gib": plan.predicted / GIB,
        "peak_gib": session.memory.meter.peak / GIB,
        "error": plan.predicted / max(session.memory.meter.peak, 1) - 1,
        "load_s": load_s,
        "cold_start_s": load_s + timed.first_s,
    }


def percentile(seconds: list[float], q: int) -> float | None:
    """Returns the ``q``-th percentile; None: too few runs to tell."""
    return float(np.percentile(seconds, q)) if len(seconds) >= FEWEST[q] else None


def run(setting: RowSetting, timeout: float | None = None) -> dict[str, Any]:
    """Measures the row in a new process; one that fails or takes too long is ``refused``, and has
    ``again``: the session itself has refused nothing.

    timeout: seconds.
    """
    words = [sys.executable, __file__, json.dumps(dataclasses.asdict(setting))]
    try:
        done = child.run(words, timeout=timeout, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return _failed(f"timed out after {timeout:g} s")
    if done.returncode < 0:
        return _failed(f"ended by signal {-done.returncode}, as when memory runs out")
    if done.returncode:
        return _failed((done.stderr.strip().splitlines() or ["no message"])[-1])
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _failed(text: str) -> dict[str, Any]:
    """Returns a row without figures that may have some another time."""
    return {"refused": text, "again": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setting", help="a RowSetting as JSON")
    values = json.loads(parser.parse_args().setting)
    logging.disable(logging.WARNING)
    print(json.dumps(measure(RowSetting(**values | {"image": tuple(values["image"])}))))


if __name__ == "__main__":
    main()
