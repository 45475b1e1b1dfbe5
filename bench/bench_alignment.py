"""How well windows join: ours against the two obvious ways, a chain of windows and an oracle.

    python bench/bench_alignment.py drift --frames 500 --out bench/results/alignment-drift.json
    python bench/bench_alignment.py keyframes --out bench/results/alignment-keyframes.json
    python bench/bench_alignment.py network --frames 60 --out bench/results/alignment-network.json
    python bench/bench_alignment.py nees --out bench/results/alignment-nees.json
    python bench/bench_alignment.py cost --out bench/results/alignment-cost.json
    python bench/bench_alignment.py gate --frames 150 --out bench/results/alignment-gate.json

Windows are exact (rendered depth and poses), each in a unit and a world of its own, with noise.
Every way of joining gets the same windows with the same noise. The oracle is our solver told what
nobody can know: the standard deviations of all noise, and which pixels are no outliers. "Told" is
ours where somebody says each window's unit to 1 %.
Numbers are of the room in the scene, which should never move: RMS error of the camera's place
after the best Sim(3) (evo), standard deviation of the room's turn and of its scale. ``network``
takes the windows of da3-tiny instead, the same for every method, and gives the camera's ATE (evo).
``gate``: every fifth window has one half that is wrong (depth by 1.5, shared views turned by 20
degrees, or those of other places); what the residual gate refuses of these and of honest ones, and
the path's error with and without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import logging
import math
import statistics
import time
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import InferenceSession, Session
from da3_ros.mapping import alignment
from da3_ros.mapping.alignment import Alignment, WindowAligner, robust_mean
from da3_ros.mapping.shared_view import SAMPLES, SharedView, sample
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import (
    Pace,
    SyntheticCamera,
    intrinsics,
    make_room,
    make_walk,
    render,
)
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import Array, Calibration, Frame, View, Window

SIZE = (84, 70)
FULL = Noise(0.01, 0.01, 0.003, 0.1, 0.005)
CASES = {
    "independent": Noise(independent=0.01),
    "all": FULL,
    "outliers 20 %": dataclasses.replace(FULL, outliers=0.2),
    "outliers 40 %": dataclasses.replace(FULL, outliers=0.4),
    "lies 10 %": dataclasses.replace(FULL, lies=0.1),
}
WALKS = ("straight", "spot", "loop", "handheld", "still")


def fit_points(source: Array, target: Array, weights: Array) -> Similarity | None:
    """Weighted least-squares Sim(3) of points [M, 3] (Umeyama, PAMI 1991), or None."""
    w = (weights / weights.sum())[:, None]
    mean_s, mean_t = (w * source).sum(axis=0), (w * target).sum(axis=0)
    s, t = source - mean_s, target - mean_t
    u, d, vt = np.linalg.svd((w * t).T @ s)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    variance = (w * s * s).sum()
    if not variance > 1e-20:
        return None
    R = (u * sign) @ vt
    scale = float((d * sign).sum() / variance)
    return Similarity(scale, R, mean_t - scale * R @ mean_s) if scale > 0 else None


def accepted(fit: Similarity | None) -> Alignment | None:
    """An alignment that nobody doubts."""
    return None if fit is None else Alignment(fit, True, float("nan"), 1.0)


class Centres:
    """Join by the camera centres of the shared frames alone."""

    def align(self, shared_views, prediction, indices, scale=None):
        """As WindowAligner; the first windows (fewer than three centres) get the rotations."""
        known = np.array([a.T_ref_camera for a in shared_views])
        poses = prediction.T_window_camera[list(indices)]
        if len(known) < 3:
            return WindowAligner().align(shared_views, prediction, indices)
        ones = np.ones(len(known))
        return accepted(fit_points(poses[:, :3, 3], known[:, :3, 3], ones))


class LeastSquares:
    """Join by all shared points, plain least squares."""

    def align(self, shared_views, prediction, indices, scale=None):
        """As WindowAligner."""
        source, target = [], []
        for shared_view, i in zip(shared_views, indices, strict=True):
            ours = prediction.depth[i].reshape(-1)[shared_view.pixels].astype(np.float64)
            good = np.isfinite(ours) & np.isfinite(shared_view.depth)
            rays = shared_view.rays()[good]
            T, S = shared_view.T_ref_camera, prediction.T_window_camera[i]
            target.append(shared_view.depth[good, None] * rays @ T[:3, :3].T + T[:3, 3])
            source.append(ours[good, None] * rays @ S[:3, :3].T + S[:3, 3])
        points = np.concatenate(source)
        return accepted(fit_points(points, np.concatenate(target), np.ones(len(points))))


class Chain(LeastSquares):
    """Join each window to the one before it alone, by plain least squares over shared points."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Array, Array]] = {}

    def align(self, shared_views, prediction, indices, scale=None):
        """As WindowAligner, with what the previous window said, not what the scene knows."""
        # The previous window's new view was placed by it and by no other.
        pairs = [
            (self._as_last(a), i)
            for a, i in zip(shared_views, indices, strict=True)
            if a.view.id in self._last or a.observations == 1
        ]
        found = super().align([a for a, _ in pairs], prediction, [i for _, i in pairs])
        if found is not None:
            self._last = {
                a.view.id: (
                    found.T_ref_window.scale * prediction.depth[i].reshape(-1)[a.pixels],
                    found.T_ref_window.pose(prediction.T_window_camera[i]),
                )
                for a, i in zip(shared_views, indices, strict=True)
            }
        return found

    def _as_last(self, shared_view):
        if shared_view.view.id not in self._last:
            return shared_view
        depth, T = self._last[shared_view.view.id]
        return dataclasses.replace(shared_view, depth=depth.astype(np.float64), T_ref_camera=T)


class Oracle(WindowAligner):
    """Our solver with the true variances, and scales of pixels that are no outliers."""

    def __init__(self, noise: Noise, frames: list[Truth]) -> None:
        super().__init__()
        self._true = {f.stamp_ns: f.depth for f in frames}
        per_frame = np.hypot(noise.per_frame, noise.smooth / 3)
        sigma = np.array([per_frame, np.radians(noise.rotation_deg), noise.translation])
        self.noise_model = Known(np.maximum(sigma, [1e-5, 1e-6, 1e-6]) ** 2)

    def align(self, shared_views, prediction, indices, scale=None):
        """As WindowAligner."""
        depth = prediction.depth.copy()
        kept = []
        for shared_view, i in zip(shared_views, indices, strict=True):
            true = self._true[shared_view.view.stamp_ns]
            depth[i] = np.where(inlying(depth[i] / true), depth[i], np.nan)
            good = inlying(shared_view.depth / true.reshape(-1)[shared_view.pixels])
            cut = {n: getattr(shared_view, n)[good] for n in ("pixels", "depth", "confidence")}
            kept.append(dataclasses.replace(shared_view, **cut))
        return super().align(kept, dataclasses.replace(prediction, depth=depth), indices)


class Told(WindowAligner):
    """Ours, told by somebody what each window's unit is, to 1 %."""

    SIGMA = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.session: TruthSession | None = None  # set by ``run``
        self._rng = np.random.default_rng(0)
        self._scene: float | None = None  # scene units per metre

    def align(self, shared_views, prediction, indices, scale=None):
        """As WindowAligner."""
        error = float(np.exp(self.SIGMA * self._rng.standard_normal()))
        known = None
        if self._scene is not None:
            known = (self._scene / self.session.unit * error, self.SIGMA)
        found = super().align(shared_views, prediction, indices, known)
        if self._scene is None and found is not None:
            self._scene = found.T_ref_window.scale * self.session.unit
        return found


def inlying(ratio: Array) -> Array:
    """Which of the ratios to the truth are noise about one unit, outliers left out."""
    log = np.log(ratio)
    known = np.isfinite(log)
    if known.sum() < 10:
        return known
    return np.abs(log - robust_mean(log[known], np.ones(int(known.sum())))) < 0.08


class Known:
    """A spread that is told and learns nothing."""

    def __init__(self, variance: Array) -> None:
        self.variance = variance

    def add(self, squares: Array, freedom: Array) -> None:
        """Nothing to learn."""


def walk_truth(kind: str, frames: int, seed: int, size: tuple[int, int] = SIZE) -> list[Truth]:
    """Exact depth and poses along a walk."""
    room = make_room(seed)
    poses = make_walk(room, kind, frames, seed)
    K = intrinsics(size, 65.0)
    truth = []
    for first in range(0, frames, 50):
        part = poses[first : first + 50]
        seen = render(room, part, K, size).depth.numpy()
        truth += [
            Truth(10**8 * (first + i + 1), d, T, K)
            for i, (d, T) in enumerate(zip(seen, part, strict=True))
        ]
    return truth


def calibration(size: tuple[int, int]) -> Calibration:
    """Of the rendered images (ROS pixel rule)."""
    K = intrinsics(size, 65.0)
    K[:2, 2] -= 0.5
    return Calibration(size[0], size[1], K)


class Recorder:
    """Notes where a joiner places windows: the room in the scene, which should never move."""

    def __init__(self, aligner, session: TruthSession) -> None:
        self.aligner, self.session = aligner, session
        self.rooms: list[Similarity] = []
        self.seconds: list[float] = []

    def align(self, *arguments, **values):
        """As the joiner."""
        start = time.perf_counter()
        found = self.aligner.align(*arguments, **values)
        self.seconds.append(time.perf_counter() - start)
        if found is not None:
            place, T = found.T_ref_window, self.session.T_window_world
            unit = place.scale * self.session.unit
            R = place.R @ T[:3, :3]
            t = place.points(self.session.unit * T[:3, 3])
            self.rooms.append(Similarity(unit, R, t))
        return found


def run(truth: list[Truth], noise: Noise, aligner=None, seed: int = 0, **values) -> Recorder:
    """Send exact windows with noise through the pipeline, joined by ``aligner``."""
    size = truth[0].depth.shape[::-1]
    settings = {"process_res": max(size), "map.enabled": False, **values}
    session = TruthSession(truth, seed=seed, noise=noise)
    pipeline = Pipeline(config_from_parameters(settings), session)
    if isinstance(aligner, Told):
        aligner.session = session
    recorder = Recorder(aligner or WindowAligner(), session)
    pipeline.odometry.aligner = recorder
    black, lens = np.zeros((*size[::-1], 3), np.uint8), calibration(size)
    for f in truth:
        list(pipeline.push(Frame(f.stamp_ns, black, calibration=lens)))
    if pipeline.odometry.segment or pipeline.counters["windows_refused"]:
        recorder.rooms = []  # lost: no one scene
    return recorder


def wander(poses: Array) -> float:
    """How far a camera that stands still seems to be from its mean place, RMS."""
    off = poses[:, :3, 3] - poses[:, :3, 3].mean(axis=0)
    return float(np.sqrt((off**2).sum(axis=1).mean()))


def drift(recorder: Recorder, truth: list[Truth]) -> dict:
    """How far the room moves in the scene: of the camera's place after the best Sim(3), of turn
    and of scale the standard deviation. A frame's own noise is no part of it."""
    true = np.array([f.T_world_camera for f in truth])
    path = float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum())
    rooms, count = recorder.rooms, len(truth) - 1
    if len(rooms) < count:
        return {"path_m": path, "place_m": np.inf, "turn_deg": np.inf, "scale": np.inf}
    rooms, true, unit = rooms[-count:], true[1:], rooms[0].scale
    placed = np.array([room.pose(T) for room, T in zip(rooms, true, strict=True)])
    placed[:, :3, 3] /= unit
    turns = Rotation.from_matrix(np.array([room.R for room in rooms]))
    turn = (turns * turns.mean().inv()).magnitude()
    return {
        "path_m": path,
        "place_m": trajectory_error(placed, true) if path > 0.1 else wander(placed),
        "turn_deg": float(np.degrees(np.sqrt(np.mean(turn**2)))),
        "scale": float(np.std(np.log([room.scale for room in rooms]))),
    }


def make_aligner(method: str, noise: Noise, truth: list[Truth]):
    """A fresh one of METHODS."""
    if method == "oracle":
        return Oracle(noise, truth)
    plain = {
        "ours": WindowAligner,
        "ours, told": Told,
        "centres": Centres,
        "least squares": LeastSquares,
        "chain": Chain,
    }
    return plain[method]()


METHODS = ("ours", "ours, told", "oracle", "least squares", "chain", "centres")


def drift_rows(options: argparse.Namespace) -> list[dict]:
    """Every walk, noise and method."""
    rows = []
    for walk in options.walks:
        truth = walk_truth(walk, options.frames, options.seed)
        for case in options.cases:
            for method in options.methods:
                aligner = make_aligner(method, CASES[case], truth)
                found = drift(run(truth, CASES[case], aligner), truth)
                rows.append({"walk": walk, "noise": case, "method": method, **found})
                show(rows[-1])
    return rows


def keyframe_rows(options: argparse.Namespace) -> list[dict]:
    """The same walks with and without keyframes in windows of equal size."""
    rows = []
    for walk in options.walks:
        truth = walk_truth(walk, options.frames, options.seed)
        for count in (0, 1, 2, 3):
            found = drift(run(truth, FULL, **{"window.keyframes": count}), truth)
            rows.append({"walk": walk, "keyframes": count, **found})
            show(rows[-1])
    return rows


class Cached(Session):
    """A network that is asked only once about the same views."""

    def __init__(self, session: InferenceSession) -> None:
        self.session, self.found = session, {}

    def fit(self, *arguments):
        """As the session."""
        return self.session.fit(*arguments)

    def infer(self, window: Window):
        """As the session."""
        key = (window.wanted, *(view.stamp_ns for view in window.views))
        if key not in self.found:
            self.found[key] = self.session.infer(window)
        return self.found[key]


def network_rows(options: argparse.Namespace) -> list[dict]:
    """The network's own windows, joined by every method, with and without keyframes."""
    config = {"model": options.model, "checkpoint": options.checkpoint, "process_res": 224}
    settings = config_from_parameters({**config, "device": "cpu"})
    rows = []
    for walk, seed in itertools.product(options.walks, options.rooms):
        pace = Pace(2.5, 0.5, 15.0)
        camera = SyntheticCamera(seed, (224, 168), walk=walk, frames=options.frames, pace=pace)
        frames, session = list(camera), Cached(InferenceSession(settings.inference))
        for keyframes, method in itertools.product((0, 2), options.methods):
            if method in ("oracle", "ours, told"):  # nobody knows the truth of a network
                continue
            values = {**config, "window.keyframes": keyframes, "map.enabled": False}
            found = network_row(camera, frames, session, make_aligner(method, FULL, []), values)
            rows.append({"walk": walk, "room": seed, "keyframes": keyframes, "method": method})
            rows[-1].update(found)
            show(rows[-1])
    return rows


def network_row(camera: SyntheticCamera, frames: list, session, aligner, values: dict) -> dict:
    """One run: length of the path, ATE, refused windows."""
    pipeline = Pipeline(config_from_parameters(values), session)
    pipeline.odometry.aligner = aligner
    results = []
    for f in frames:
        results += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    ours = np.array([r.T_world_camera for r in results])
    true = np.array([f.T_world_camera for f in frames])
    path = float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum())
    error = trajectory_error(ours, true)
    turns = Rotation.from_matrix(ours[:, :3, :3] @ true[:, :3, :3].transpose(0, 2, 1))
    turn = np.sqrt(np.mean((turns * turns.mean().inv()).magnitude() ** 2))
    refused = pipeline.counters["windows_refused"]
    return {
        "path_m": path, "ate_m": error, "turn_deg": float(np.degrees(turn)), "refused": refused
    }  # fmt: skip


def nees_rows(options: argparse.Namespace) -> list[dict]:
    """Squared error over covariance and degrees of freedom, of the join of four frames."""
    rows = []
    for walk in options.walks:
        some = walk_truth(walk, 40, options.seed)[::12]
        found = [one_nees(some, seed, FULL) for seed in range(options.frames)]
        aligner = WindowAligner()
        values = [nees(aligner, *pair) for pair in found][20:]
        rows.append(
            {"walk": walk, "nees": statistics.mean(values), "median": statistics.median(values)}
        )
        show(rows[-1])
    return rows


def one_nees(truth: list[Truth], seed: int, noise: Noise) -> tuple:
    """Anchors in metres with noise, a window with noise, and the similarity that is right."""
    black = np.zeros((*truth[0].depth.shape, 3), np.uint8)
    views = tuple(View(i, f.stamp_ns, black, f.K) for i, f in enumerate(truth))
    known = TruthSession(truth, seed=seed + 10_000, noise=noise)
    stored = known.infer(Window(0, views, 1))
    place = true_place(known)
    shared_views = []
    for i, view in enumerate(views):
        pixels = sample(np.isfinite(stored.depth[i]), SAMPLES)
        depth = place.scale * stored.depth[i].reshape(-1)[pixels]
        T = place.pose(stored.T_window_camera[i])
        shared_views.append(SharedView(view, view.K, T, pixels, depth, np.ones(len(pixels))))
    session = TruthSession(truth, seed=seed, noise=noise)
    prediction = session.infer(Window(0, views, 1))
    return shared_views, prediction, true_place(session)


def true_place(session: TruthSession) -> Similarity:
    """Room from the newest window."""
    T = session.T_window_world
    return Similarity(1 / session.unit, T[:3, :3].T, -T[:3, :3].T @ T[:3, 3])


def nees(aligner: WindowAligner, shared_views, prediction, truth: Similarity) -> float:
    """Of one join, over its seven degrees of freedom."""
    found = aligner.align(shared_views, prediction, range(len(shared_views)))
    fit, about = found.T_ref_window, found.pivot
    turn = Rotation.from_matrix(fit.R @ truth.R.T).as_rotvec()
    place = fit.points(about) - truth.points(about)
    error = np.array([np.log(fit.scale / truth.scale), *turn, *place])
    return float(error @ np.linalg.solve(found.covariance, error) / 7)


class Broken(TruthSession):
    """The truth, but every fifth window has one half that is wrong; none for ``kind`` "none"."""

    def __init__(self, truth: list[Truth], seed: int, noise: Noise, kind: str) -> None:
        super().__init__(truth, seed=seed, noise=noise)
        self.kind, self.count, self.bad = kind, 0, False
        self._truth = truth

    def infer(self, window: Window):
        """As TruthSession."""
        self.count += 1
        self.bad = self.kind != "none" and self.count > 10 and self.count % 5 == 0
        found = super().infer(window)
        if not self.bad:
            return found
        depth, poses = found.depth.copy(), found.T_window_camera.copy()
        half, views = depth.shape[2] // 2, (len(depth) - window.new + 1) // 2
        if self.kind == "half the image":
            depth[:, :, :half] *= 1.5
        elif self.kind == "half the views":
            turn = Rotation.from_rotvec([0, np.radians(20), 0]).as_matrix()
            poses[:views, :3, :3] = poses[:views, :3, :3] @ turn
        else:
            far = self._truth[(self.count + len(self._truth) // 2) % len(self._truth)]
            depth[:views] = self.unit * far.depth
        return dataclasses.replace(found, depth=depth, T_window_camera=poses)


class Noting:
    """A joiner that notes what it refused of broken and of honest windows, and its time."""

    def __init__(self, session: Broken, gate: bool) -> None:
        self.aligner, self.session, self.gate = WindowAligner(), session, gate
        self.refused = {True: [], False: []}
        self.seconds: list[float] = []

    def align(self, *arguments, **values):
        """As WindowAligner."""
        before, start = (alignment.MAX_BAD_BLOCKS, alignment.MAX_BAD_POSES), time.perf_counter()
        if not self.gate:
            alignment.MAX_BAD_BLOCKS, alignment.MAX_BAD_POSES = math.inf, (math.inf, 1)
        try:
            found = self.aligner.align(*arguments, **values)
        finally:
            alignment.MAX_BAD_BLOCKS, alignment.MAX_BAD_POSES = before
        self.seconds.append(time.perf_counter() - start)
        self.refused[self.session.bad].append(not (found and found.accepted))
        return found


def gate_rows(options: argparse.Namespace) -> list[dict]:
    """What the residual gate costs and saves."""
    rows = []
    kinds = ("none", "half the image", "half the views", "glued")
    for walk, kind, gate in itertools.product(options.walks, kinds, (False, True)):
        truth = walk_truth(walk, options.frames, options.seed)
        session = Broken(truth, 0, FULL, kind)
        settings = {"process_res": max(SIZE), "map.enabled": False}
        pipeline = Pipeline(config_from_parameters(settings), session)
        noting = Noting(session, gate)
        pipeline.odometry.aligner = noting
        found = []
        for f in truth:
            black = np.zeros((*SIZE[::-1], 3), np.uint8)
            found += pipeline.push(Frame(f.stamp_ns, black, calibration=calibration(SIZE)))
        ours = np.array([r.T_world_camera for r in found])
        true = np.array([f.T_world_camera for f in truth])
        path = float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum())
        error = trajectory_error(ours, true) if path > 0.1 else wander(ours)
        shares = {k: float(np.mean(v)) if v else 0.0 for k, v in noting.refused.items()}
        rows.append({
            "walk": walk, "broken": kind, "gate": gate, "refused_broken": shares[True],
            "refused_honest": shares[False], "ate_m": error,
            "join_ms": 1e3 * statistics.median(noting.seconds),
            "segments": pipeline.odometry.segment + 1,
        })  # fmt: skip
        show(rows[-1])
    return rows


def cost_rows(options: argparse.Namespace) -> list[dict]:
    """Milliseconds of a join in windows of eight views, three with depth, at 504x280."""
    truth = walk_truth("straight", min(options.frames, 100), options.seed, (504, 280))
    rows = []
    for method in ("ours", "least squares"):
        seconds = run(truth, FULL, make_aligner(method, FULL, truth)).seconds[10:]
        p50, p95 = np.percentile(seconds, (50, 95)) * 1e3
        rows.append({"method": method, "median_ms": p50, "p95_ms": p95, "windows": len(seconds)})
        show(rows[-1])
    return rows


def show(row: dict) -> None:
    """A row of a table, as it comes."""
    cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
    print("| " + " | ".join(cells) + " |", flush=True)


KINDS = {
    "drift": (drift_rows, "walk noise method path_m place_m turn_deg scale"),
    "keyframes": (keyframe_rows, "walk keyframes path_m place_m turn_deg scale"),
    "network": (network_rows, "walk room keyframes method path_m ate_m turn_deg refused"),
    "nees": (nees_rows, "walk nees median"),
    "gate": (
        gate_rows,
        "walk broken gate refused_broken refused_honest ate_m join_ms segments",
    ),
    "cost": (cost_rows, "method median_ms p95_ms windows"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="drift", choices=KINDS)
    parser.add_argument("--frames", type=int, default=500, help="of a walk; for nees: trials")
    parser.add_argument("--walks", nargs="+", default=WALKS)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--rooms", type=int, nargs="+", default=[37, 55], help="of network")
    parser.add_argument("--model", default="da3-tiny")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    make, head = KINDS[options.what]
    print("| " + " | ".join(head.split()) + " |")
    print("|" + "---|" * len(head.split()))
    rows = make(options)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
