"""Growth of time and memory per keyframe or window in long runs, as ratios.

    python bench/bench_growth.py pipeline --out bench/results/growth-pipeline.json
    python bench/bench_growth.py filled --out bench/results/growth-filled.json
    python bench/bench_growth.py still --out bench/results/growth-still.json

``pipeline``: the whole pipeline on exact windows over 1 000 submaps, on a straight path and round
a ring with loop closures. ``filled``: time of loop closure per keyframe with 100 to 10 000 earlier
submaps. ``still``: 20 000 windows of a camera that stands still; the slope of the second half,
with its 95 % interval, is given as the growth over the whole run. Times are processor times of
the network's thread; pose graphs are solved on another thread. The exit code is 1 if a cost grows.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import results_file
from growth import measure_growth

from da3_ros.config import LoopConfig, config_from_parameters
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import WindowTooLargeError
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.map_table import MapTable, OverlapView
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import KEYFRAMES
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import Array, Calibration, Frame, Prediction, View, Window

SIDE = 28
STEP_NS = 10**8
NOISE = Noise(0.005, 0.0, 0.002, 0.02, 0.001)
K = np.array([[20.0, 0, 14], [0, 20.0, 14], [0, 0, 1]])
FLAT = 1.3  # largest mean cost of a keyframe, relative to that after the fewest submaps
LAP = 20  # submaps per lap of the ring
COMPARED = 20  # windows of a sample whose time is compared

PosePath = Callable[[int], Array]  # frame number -> pose T_room_camera [4, 4]


def straight(n: int) -> Array:
    """Returns a pose on a sideways path, a fifth of the depth per frame: all are keyframes."""
    T = np.eye(4)
    T[0, 3] = 0.4 * n
    return T


def ring(n: int) -> Array:
    """Returns a pose on a ring, looking outwards."""
    angle = 2 * np.pi * n / (LAP * KEYFRAMES)
    T = np.eye(4)
    T[:3, :3] = [
        [np.cos(angle), 0, np.sin(angle)],
        [0, 1, 0],
        [-np.sin(angle), 0, np.cos(angle)],
    ]
    T[:3, 3] = 20 * T[:3, 2]
    return T


def still(n: int) -> Array:
    """Returns the identity: a camera that stands still."""
    return np.eye(4)


class UnboundedTruth:
    """The truth for every stamp of an unbounded path, computed on access and not stored."""

    def __init__(self, path: PosePath) -> None:
        self.path = path
        rows = np.linspace(1.6, 2.4, SIDE, dtype=np.float32)
        self.depth = np.ascontiguousarray(np.broadcast_to(rows[:, None], (SIDE, SIDE)))

    def __getitem__(self, key: tuple[str, int]) -> Truth:
        return Truth(key[1], self.depth, self.path(key[1] // STEP_NS - 1), K)


class UnboundedSession(TruthSession):
    """TruthSession of an unbounded path, with a descriptor [384] that depends on the pose."""

    def __init__(self, path: PosePath) -> None:
        super().__init__([], noise=NOISE)
        self._frames = UnboundedTruth(path)  # type: ignore[assignment]
        self._waves = np.random.default_rng(1).normal(size=(4, 384))

    def descriptor(self, stamp: int) -> Array:
        """Returns an artificial descriptor [384] float32, a smooth function of the pose."""
        T = self._frames["", stamp].T_room_camera
        pose = np.array([T[0, 3], T[2, 3], *T[[0, 2], 2]])
        return np.cos(pose @ self._waves * 0.7).astype(np.float32)

    def infer(self, window: Window) -> Prediction:
        """Like ``TruthSession.infer``, with descriptors."""
        descriptors = np.stack([self.descriptor(view.stamp_ns) for view in window.views])
        return dataclasses.replace(super().infer(window), descriptor=descriptors)


def start(path: PosePath, **values: object) -> Pipeline:
    """Returns a pipeline for tiny images of a path; ``values``: further parameters."""
    settings = {
        "process_res": SIDE, "window.size": 6, "map.voxel_m": 0.2, "refinement.enabled": False,
        "hold_when_blind": False, **values,  # all images are black
    }  # fmt: skip
    return Pipeline(config_from_parameters(settings), UnboundedSession(path))


def step(pipeline: Pipeline, n: int) -> float:
    """Pushes frame ``n`` and returns this thread's processor time, milliseconds."""
    lens = K.copy()
    lens[:2, 2] -= 0.5
    black = np.zeros((SIDE, SIDE, 3), np.uint8)
    frame = Frame(STEP_NS * (n + 1), black, calibration=Calibration(SIDE, SIDE, lens))
    before = time.thread_time()  # independent of other load on the machine
    for _ in pipeline.push(frame):
        pass
    return 1e3 * (time.thread_time() - before)


def pipeline_rows(options: argparse.Namespace) -> list[dict]:
    """Returns median and mean cost of a keyframe around 100 submaps and at the end, by path."""
    rows = []
    for path in (straight, ring):
        small = {"map.max_points": 20_000, "map.memory_mb": 16}
        pipeline, cost, at = start(path, **small), [], []
        while len(at) == 0 or at[-1] < options.submaps:
            cost.append(step(pipeline, len(cost)))
            at.append(pipeline.map._next)
        early, late = (
            [c for c, s in zip(cost, at, strict=True) if low <= s < high]
            for low, high in ((90, 140), (options.submaps - 50, options.submaps + 1))
        )
        graph = pipeline.loops._graph
        rows.append({
            "way": path.__name__, "submaps": at[-1], "keyframes": len(cost),
            "early_ms": statistics.median(early), "late_ms": statistics.median(late),
            "median_ratio": statistics.median(late) / statistics.median(early),
            "mean_ratio": statistics.mean(late) / statistics.mean(early),
            "closed": pipeline.loops.closed, "looks": pipeline.loops.found
            + pipeline.loops.refused, "nodes": len(graph.nodes), "edges": len(graph._edges),
        })  # fmt: skip
        show(rows[-1])
    return rows


def filled_closure(count: int, dimensions: int) -> tuple[LoopClosure, MapTable]:
    """Returns a loop closure with the keyframes of a straight path of ``count`` submaps."""
    submaps, rng = MapTable(), np.random.default_rng(0)
    closure = LoopClosure(submaps)
    for n in range(count * KEYFRAMES):
        add_keyframe(closure, submaps, n, rng, dimensions)
    return closure, submaps


def add_keyframe(
    closure: LoopClosure, submaps: MapTable, n: int, rng: np.random.Generator, dimensions: int
) -> None:
    """Adds keyframe ``n`` of a straight path, and a window, to ``closure``."""
    T = straight(n)
    covariance = np.diag([1e-3, *[3e-4] * 3, *[1e-3] * 3]) ** 2
    fit = Similarity(1.0, np.eye(3), np.zeros(3))
    closure.add_window(Alignment(fit, True, 0.0, 1.0, covariance, np.zeros(3)), T[:3, 3], 1.0)
    view = View(n, n, np.zeros((SIDE, SIDE, 3), np.uint8), K)
    pixels = np.arange(SIDE * SIDE)
    depth = np.full(len(pixels), 2.0)
    overlap_view = OverlapView(view, K, T, pixels, depth, depth, submap=n // KEYFRAMES)
    if n % KEYFRAMES == 0:
        submaps.keep(closure.submaps_in_use)
        submaps.add_submap(Submap(n // KEYFRAMES, 0, Similarity.from_pose(T)))
    submaps.set_view(overlap_view)
    submaps.share([n])
    closure.add_keyframe(n, rng.normal(size=dimensions).astype(np.float32))


def filled_rows(options: argparse.Namespace) -> list[dict]:
    """Returns the cost of a keyframe with its search for loops, by number of earlier submaps."""
    rows: list[dict] = []
    rng = np.random.default_rng(1)
    for submaps in options.filled:
        (closure, table), cost = filled_closure(submaps, options.dimensions), []
        for k in range(20 * KEYFRAMES):
            before = time.thread_time()
            add_keyframe(closure, table, submaps * KEYFRAMES + k, rng, options.dimensions)
            closure.limit_memory(0)
            closure.try_close_loop(k, LoopConfig(), 8, refuse_inference, WindowAligner(), False)
            cost.append(1e3 * (time.thread_time() - before))
        first = rows[0] if rows else None
        row = {"submaps": submaps, "median_ms": statistics.median(cost)}
        row |= {"mean_ms": statistics.mean(cost), "p99_ms": float(np.percentile(cost, 99))}
        row["mib"] = closure.keyframes.nbytes / 2**20
        row["mean_ratio"] = row["mean_ms"] / (first or row)["mean_ms"]
        rows.append(row)
        show(row)
    return rows


def refuse_inference(window: Window) -> Prediction:
    """Raises WindowTooLargeError instead of verifying a loop: only the search is measured."""
    raise WindowTooLargeError("none")


def still_rows(options: argparse.Namespace) -> list[dict]:
    """Returns memory and time of windows of a camera that stands still, with and without loops.

    The time of a window is given relative to that of a new pipeline; both are measured in turn.
    """
    rows = []
    for loops in (True, False):
        values = {"loop.enabled": loops}  # and the limits that users have
        pipeline, each = start(still, **values), max(2 * COMPARED, options.windows // 100)
        tracemalloc.start()
        held, cost = [], []
        for n in range(100):
            for k in range(each - COMPARED):
                step(pipeline, n * each + k)
            first = (n + 1) * each - COMPARED
            cost.append(time_ratio(pipeline, first, start(still, **values)))
            gc.collect()  # freed tuples and lists that Python keeps would count as held
            held.append(tracemalloc.get_traced_memory()[0] / 2**20)
        tracemalloc.stop()
        row = {"loops": loops, "windows": 100 * each, "mib": held[-1]}
        row["time_ratio"] = statistics.median(cost[50:])
        for name, series, tolerance in (("memory", held, 0.02), ("time", cost, 0.1)):
            found = measure_growth(series, tolerance)
            row |= {f"{name}_growth": found.growth, f"{name}_low": found.low}
            row |= {f"{name}_high": found.high, f"{name}_flat": found.flat}
            if name == "memory":
                row["bytes_per_window"] = found.growth * held[-1] * 2**20 / row["windows"]
        row["loop_bytes"] = pipeline.loops.keyframes.nbytes
        rows.append(row)
        show(row)
    return rows


def time_ratio(pipeline: Pipeline, first: int, new: Pipeline) -> float:
    """Returns the median time of ``COMPARED`` windows from ``first`` on, over a new pipeline's."""
    for k in range(COMPARED):  # until its window is full
        step(new, k)
    times = [(step(pipeline, first + k), step(new, COMPARED + k)) for k in range(COMPARED)]
    ours, theirs = zip(*times, strict=True)
    return statistics.median(ours) / statistics.median(theirs)


def show(row: dict) -> None:
    """Prints a row of the table."""
    cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=("pipeline", "filled", "still"), nargs="?", default="pipeline"
    )
    parser.add_argument("--submaps", type=int, default=1000, help="for pipeline")
    parser.add_argument(
        "--filled", type=int, nargs="+", default=[100, 1000, 10_000],
        help="numbers of earlier submaps, for filled",
    )  # fmt: skip
    parser.add_argument("--dimensions", type=int, default=384, help="of descriptors, for filled")
    parser.add_argument("--windows", type=int, default=20_000, help="for still")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = {"pipeline": pipeline_rows, "filled": filled_rows, "still": still_rows}[options.what](
        options
    )
    results_file.write(options.out, {"rows": rows}, "cpu")
    kept = [row.get("mean_ratio", 1.0) <= FLAT for row in rows]
    kept += [bool(v) for row in rows for k, v in row.items() if k.endswith("_flat")]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
