"""Drift of window alignment: WindowAligner against simpler methods and an oracle.

    python bench/bench_alignment.py drift --frames 500 --out bench/results/alignment-drift.json
    python bench/bench_alignment.py keyframes --out bench/results/alignment-keyframes.json
    python bench/bench_alignment.py network --frames 60 --out bench/results/alignment-network.json
    python bench/bench_alignment.py nees --out bench/results/alignment-nees.json
    python bench/bench_alignment.py cost --out bench/results/alignment-cost.json
    python bench/bench_alignment.py gate --frames 150 --out bench/results/alignment-gate.json

Methods ("ours" is WindowAligner):

    ours, told      the unit of each window is given with an error of 1 %
    oracle          the standard deviations of all noise and the outlier pixels are given
    least squares   plain least squares over all points of the overlap views
    chain           the same, but each window is aligned only to the previous window
    centres         camera centres of the overlap views only

``drift``: windows are exact (rendered depth and poses) plus noise, each in a unit and a coordinate
frame of its own; all methods get the same windows. The true room, transformed into the scene by
each window's alignment, should not move. The table gives its movement: RMS error of the camera
position after the best Sim(3) (evo), standard deviation of the room's rotation and of its scale.
``keyframes``: the same for 0 to 3 keyframes in windows of equal size.
``network``: windows of da3-tiny, the same for every method; the table gives the ATE (evo).
``nees``: consistency of the covariance of an alignment. ``cost``: milliseconds per alignment.
``gate``: half of every fifth window is wrong (depth times 1.5 in half of the image, half of the
overlap views rotated by 20 degrees, or with the depth of another location); the table gives the
shares of wrong and of correct windows that the residual gate refuses, and the path's error with
and without the gate.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import math
import statistics
import time
from pathlib import Path

import numpy as np
import results_file
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import InferenceSession, Session
from da3_ros.mapping import alignment
from da3_ros.mapping.alignment import Alignment, WindowAligner, robust_mean
from da3_ros.mapping.map_table import SAMPLES, OverlapView, sample
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
LEARNED = 20  # first alignments of `nees`, which only teach the aligner its usual residuals


def fit_points(source: Array, target: Array, weights: Array) -> Similarity | None:
    """Returns the weighted least-squares Sim(3) from ``source`` to ``target``.

    source, target: points [M, 3]; weights [M]. Returns None if the points do not determine a
    positive scale. Method: Umeyama, PAMI 1991.
    """
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
    """Returns ``fit`` as an accepted alignment, None for None."""
    return None if fit is None else Alignment(fit, True, float("nan"), 1.0)


class CameraCentreAligner:
    """Aligns windows by the camera centres of the overlap views only."""

    def align(self, overlap_views, prediction, indices, scale=None):
        """Like ``WindowAligner.align``, which it calls for fewer than three overlap views."""
        known = np.array([a.T_local_camera for a in overlap_views])
        poses = prediction.T_window_camera[list(indices)]
        if len(known) < 3:
            return WindowAligner().align(overlap_views, prediction, indices)
        ones = np.ones(len(known))
        return accepted(fit_points(poses[:, :3, 3], known[:, :3, 3], ones))


class LeastSquaresAligner:
    """Aligns windows by plain least squares over all points of the overlap views."""

    def align(self, overlap_views, prediction, indices, scale=None):
        """Like ``WindowAligner.align``."""
        source, target = [], []
        for overlap_view, i in zip(overlap_views, indices, strict=True):
            ours = prediction.depth[i].reshape(-1)[overlap_view.pixels].astype(np.float64)
            good = np.isfinite(ours) & np.isfinite(overlap_view.depth)
            rays = overlap_view.rays()[good]
            T, S = overlap_view.T_local_camera, prediction.T_window_camera[i]
            target.append(overlap_view.depth[good, None] * rays @ T[:3, :3].T + T[:3, 3])
            source.append(ours[good, None] * rays @ S[:3, :3].T + S[:3, 3])
        points = np.concatenate(source)
        return accepted(fit_points(points, np.concatenate(target), np.ones(len(points))))


class ChainAligner(LeastSquaresAligner):
    """Aligns each window only to the previous one, by plain least squares over shared points."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Array, Array]] = {}

    def align(self, overlap_views, prediction, indices, scale=None):
        """Like ``WindowAligner.align``, with depth and poses of the previous window only."""
        # A view with one observation was new in the previous window: only that window placed it.
        pairs = [
            (self._as_last(a), i)
            for a, i in zip(overlap_views, indices, strict=True)
            if a.view.id in self._last or a.observations == 1
        ]
        found = super().align([a for a, _ in pairs], prediction, [i for _, i in pairs])
        if found is not None:
            self._last = {
                a.view.id: (
                    found.T_local_window.scale * prediction.depth[i].reshape(-1)[a.pixels],
                    found.T_local_window.pose(prediction.T_window_camera[i]),
                )
                for a, i in zip(overlap_views, indices, strict=True)
            }
        return found

    def _as_last(self, overlap_view):
        if overlap_view.view.id not in self._last:
            return overlap_view
        depth, T = self._last[overlap_view.view.id]
        return dataclasses.replace(overlap_view, depth=depth.astype(np.float64), T_local_camera=T)


class OracleAligner(WindowAligner):
    """WindowAligner with the true variances of the noise, and without outlier pixels."""

    def __init__(self, noise: Noise, frames: list[Truth]) -> None:
        super().__init__()
        self._true = {f.stamp_ns: f.depth for f in frames}
        per_frame = np.hypot(noise.per_frame, noise.smooth / 3)
        sigma = np.array([per_frame, np.radians(noise.rotation_deg), noise.translation])
        self.noise_model = FixedNoiseModel(np.maximum(sigma, [1e-5, 1e-6, 1e-6]) ** 2)

    def align(self, overlap_views, prediction, indices, scale=None):
        """Like ``WindowAligner.align``."""
        depth = prediction.depth.copy()
        kept = []
        for overlap_view, i in zip(overlap_views, indices, strict=True):
            true = self._true[overlap_view.view.stamp_ns]
            depth[i] = np.where(inlier_mask(depth[i] / true), depth[i], np.nan)
            good = inlier_mask(overlap_view.depth / true.reshape(-1)[overlap_view.pixels])
            cut = {n: getattr(overlap_view, n)[good] for n in ("pixels", "depth", "confidence")}
            kept.append(dataclasses.replace(overlap_view, **cut))
        return super().align(kept, dataclasses.replace(prediction, depth=depth), indices)


class KnownUnitAligner(WindowAligner):
    """WindowAligner that is given the unit of each window, with an error of ``SIGMA``."""

    SIGMA = 0.01  # relative

    def __init__(self) -> None:
        super().__init__()
        self.session: TruthSession | None = None  # set by ``run``
        self._rng = np.random.default_rng(0)
        self._scene: float | None = None  # scene units per metre

    def align(self, overlap_views, prediction, indices, scale=None):
        """Like ``WindowAligner.align``."""
        error = float(np.exp(self.SIGMA * self._rng.standard_normal()))
        known = None
        if self._scene is not None:
            known = (self._scene / self.session.unit * error, self.SIGMA)
        found = super().align(overlap_views, prediction, indices, known)
        if self._scene is None and found is not None:
            self._scene = found.T_local_window.scale * self.session.unit
        return found


def inlier_mask(ratio: Array) -> Array:
    """Returns which ratios to the truth [...] lie within 8 % of their robust mean, bool [...]."""
    log = np.log(ratio)
    known = np.isfinite(log)
    if known.sum() < 10:
        return known
    return np.abs(log - robust_mean(log[known], np.ones(int(known.sum())))) < 0.08


class FixedNoiseModel:
    """A noise model with given variances, which it does not update."""

    def __init__(self, variance: Array) -> None:
        self.variance = variance

    def add(self, squares: Array, freedom: Array) -> None:
        """Does nothing."""


def walk_truth(kind: str, frames: int, seed: int, size: tuple[int, int] = SIZE) -> list[Truth]:
    """Returns exact depth and poses of ``frames`` frames, 0.1 s apart, along a walk in a room."""
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
    """Returns the calibration of the rendered images (ROS pixel rule)."""
    K = intrinsics(size, 65.0)
    K[:2, 2] -= 0.5
    return Calibration(size[0], size[1], K)


class Recorder:
    """Records each alignment as the transform from the true room to the scene, and its time.

    The transforms of all windows are equal if the alignments have no error.
    """

    def __init__(self, aligner, session: TruthSession) -> None:
        self.aligner, self.session = aligner, session
        self.rooms: list[Similarity] = []  # from the room, metres, to the scene
        self.seconds: list[float] = []  # of each alignment

    def align(self, *arguments, **values):
        """Calls the aligner and records its result."""
        start = time.perf_counter()
        found = self.aligner.align(*arguments, **values)
        self.seconds.append(time.perf_counter() - start)
        if found is not None:
            fit, T = found.T_local_window, self.session.T_window_room
            unit = fit.scale * self.session.unit
            R = fit.R @ T[:3, :3]
            t = fit.points(self.session.unit * T[:3, 3])
            self.rooms.append(Similarity(unit, R, t))
        return found


def run(truth: list[Truth], noise: Noise, aligner=None, seed: int = 0, **values) -> Recorder:
    """Runs exact windows with noise through the pipeline, aligned by ``aligner``.

    ``values``: further parameters. The recorder has no transforms if the track was lost.
    """
    size = truth[0].depth.shape[::-1]
    settings = {
        "process_res": max(size), "map.enabled": False, "hold_when_blind": False, **values,
    }  # fmt: skip
    session = TruthSession(truth, seed=seed, noise=noise)
    pipeline = Pipeline(config_from_parameters(settings), session)
    if isinstance(aligner, KnownUnitAligner):
        aligner.session = session
    recorder = Recorder(aligner or WindowAligner(), session)
    pipeline.odometry.aligner = recorder
    black, lens = np.zeros((*size[::-1], 3), np.uint8), calibration(size)
    for f in truth:
        list(pipeline.push(Frame(f.stamp_ns, black, calibration=lens)))
    if pipeline.map.table.chain or pipeline.counters["windows_refused"]:
        recorder.rooms = []  # lost: the windows are not in one chain
    return recorder


def position_spread(poses: Array) -> float:
    """Returns the RMS distance of camera positions from their mean; poses [N, 4, 4].

    Stands in for the ATE of a camera that does not move.
    """
    off = poses[:, :3, 3] - poses[:, :3, 3].mean(axis=0)
    return float(np.sqrt((off**2).sum(axis=1).mean()))


def drift(recorder: Recorder, truth: list[Truth]) -> dict:
    """Returns how far the true room moves in the scene while windows are aligned.

    place_m: RMS error of the camera position after the best Sim(3), metres; turn_deg: standard
    deviation of the room's rotation, degrees; scale: of the logarithm of its scale. All are
    infinite if the track was lost. Noise of single frames is not included, because true poses are
    transformed by the alignments.
    """
    true = np.array([f.T_room_camera for f in truth])
    path = float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum())
    rooms, count = recorder.rooms, len(truth) - 1
    if len(rooms) < count:
        return {"path_m": path, "place_m": np.inf, "turn_deg": np.inf, "scale": np.inf}
    rooms, true, unit = rooms[-count:], true[1:], rooms[0].scale
    placed = np.array([fit.pose(T) for fit, T in zip(rooms, true, strict=True)])
    placed[:, :3, 3] /= unit
    turns = Rotation.from_matrix(np.array([fit.R for fit in rooms]))
    turn = (turns * turns.mean().inv()).magnitude()
    return {
        "path_m": path,
        "place_m": trajectory_error(placed, true) if path > 0.1 else position_spread(placed),
        "turn_deg": float(np.degrees(np.sqrt(np.mean(turn**2)))),
        "scale": float(np.std(np.log([fit.scale for fit in rooms]))),
    }


def make_aligner(method: str, noise: Noise, truth: list[Truth]):
    """Returns a new aligner for one of ``METHODS``."""
    if method == "oracle":
        return OracleAligner(noise, truth)
    plain = {
        "ours": WindowAligner,
        "ours, told": KnownUnitAligner,
        "centres": CameraCentreAligner,
        "least squares": LeastSquaresAligner,
        "chain": ChainAligner,
    }
    return plain[method]()


METHODS = ("ours", "ours, told", "oracle", "least squares", "chain", "centres")


def drift_rows(options: argparse.Namespace) -> list[dict]:
    """Returns a row for every walk, noise case and method."""
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
    """Returns rows for the same walks with 0 to 3 keyframes in windows of equal size."""
    rows = []
    for walk in options.walks:
        truth = walk_truth(walk, options.frames, options.seed)
        for count in (0, 1, 2, 3):
            found = drift(run(truth, FULL, **{"window.keyframes": count}), truth)
            rows.append({"walk": walk, "keyframes": count, **found})
            show(rows[-1])
    return rows


class CachedSession(Session):
    """Keeps the predictions of a session, so that each set of views is inferred once."""

    def __init__(self, session: InferenceSession) -> None:
        self.session, self.found = session, {}
        self.memory = session.memory

    def infer(self, window: Window):
        """Returns the kept prediction for the same views, else calls the session."""
        key = (window.wanted, *(view.stamp_ns for view in window.views))
        if key not in self.found:
            self.found[key] = self.session.infer(window)
        return self.found[key]


def network_rows(options: argparse.Namespace) -> list[dict]:
    """Returns rows for da3-tiny's windows, by method, without keyframes and with two."""
    config = {"model": options.model, "checkpoint": options.checkpoint, "process_res": 224}
    settings = config_from_parameters({**config, "device": "cpu"})
    rows = []
    for walk, seed in itertools.product(options.walks, options.rooms):
        pace = Pace(2.5, 0.5, 15.0)
        camera = SyntheticCamera(seed, (224, 168), walk=walk, frames=options.frames, pace=pace)
        frames, session = list(camera), CachedSession(InferenceSession(settings.inference))
        for keyframes, method in itertools.product((0, 2), options.methods):
            if method in ("oracle", "ours, told"):  # these need exact windows
                continue
            values = {**config, "window.keyframes": keyframes, "map.enabled": False}
            found = network_row(camera, frames, session, make_aligner(method, FULL, []), values)
            rows.append({"walk": walk, "room": seed, "keyframes": keyframes, "method": method})
            rows[-1].update(found)
            show(rows[-1])
    return rows


def network_row(camera: SyntheticCamera, frames: list, session, aligner, values: dict) -> dict:
    """Runs one method and returns path length, ATE, rotation error and refused windows."""
    pipeline = Pipeline(config_from_parameters(values), session)
    pipeline.odometry.aligner = aligner
    results = []
    for f in frames:
        results += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    ours = np.array([r.T_map_camera for r in results])
    true = np.array([f.T_room_camera for f in frames])
    path = float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum())
    error = trajectory_error(ours, true)
    turns = Rotation.from_matrix(ours[:, :3, :3] @ true[:, :3, :3].transpose(0, 2, 1))
    turn = np.sqrt(np.mean((turns * turns.mean().inv()).magnitude() ** 2))
    refused = pipeline.counters["windows_refused"]
    return {
        "path_m": path, "ate_m": error, "turn_deg": float(np.degrees(turn)), "refused": refused
    }  # fmt: skip


def nees_rows(options: argparse.Namespace) -> list[dict]:
    """Returns the NEES (over the degrees of freedom) of alignments of four views, by walk."""
    if options.frames <= LEARNED:
        raise SystemExit(
            f"nees needs --frames above {LEARNED}: the first ones only teach the gate"
        )
    rows = []
    for walk in options.walks:
        some = walk_truth(walk, 40, options.seed)[::12]
        found = [one_nees(some, seed, FULL) for seed in range(options.frames)]
        aligner = WindowAligner()
        values = [nees(aligner, *pair) for pair in found][LEARNED:]
        rows.append(
            {"walk": walk, "nees": statistics.mean(values), "median": statistics.median(values)}
        )
        show(rows[-1])
    return rows


def one_nees(truth: list[Truth], seed: int, noise: Noise) -> tuple:
    """Returns overlap views in metres with noise, a prediction with noise, and the true fit."""
    black = np.zeros((*truth[0].depth.shape, 3), np.uint8)
    views = tuple(View(i, f.stamp_ns, black, f.K) for i, f in enumerate(truth))
    known = TruthSession(truth, seed=seed + 10_000, noise=noise)
    stored = known.infer(Window(0, views, 1))
    fit = true_fit(known)
    overlap_views = []
    for i, view in enumerate(views):
        pixels = sample(np.isfinite(stored.depth[i]), SAMPLES)
        depth = fit.scale * stored.depth[i].reshape(-1)[pixels]
        T = fit.pose(stored.T_window_camera[i])
        overlap_views.append(OverlapView(view, view.K, T, pixels, depth, np.ones(len(pixels))))
    session = TruthSession(truth, seed=seed, noise=noise)
    prediction = session.infer(Window(0, views, 1))
    return overlap_views, prediction, true_fit(session)


def true_fit(session: TruthSession) -> Similarity:
    """Returns the transform from the newest window to the room, metres."""
    T = session.T_window_room
    return Similarity(1 / session.unit, T[:3, :3].T, -T[:3, :3].T @ T[:3, 3])


def nees(aligner: WindowAligner, overlap_views, prediction, truth: Similarity) -> float:
    """Returns the NEES of one alignment over its seven degrees of freedom."""
    found = aligner.align(overlap_views, prediction, range(len(overlap_views)))
    fit, about = found.T_local_window, found.pivot
    turn = Rotation.from_matrix(fit.R @ truth.R.T).as_rotvec()
    place = fit.points(about) - truth.points(about)
    error = np.array([np.log(fit.scale / truth.scale), *turn, *place])
    return float(error @ np.linalg.solve(found.covariance, error) / 7)


class CorruptedSession(TruthSession):
    """TruthSession whose every fifth window is wrong by half, from the eleventh window on.

    kind: "half the image" (depth times 1.5 in its left half), "half the views" (half of the shared
    views rotated by 20 degrees), "glued" (half of the overlap views have the depth of another
    place) or "none".
    """

    def __init__(self, truth: list[Truth], seed: int, noise: Noise, kind: str) -> None:
        super().__init__(truth, seed=seed, noise=noise)
        self.kind, self.count, self.bad = kind, 0, False
        self._truth = truth

    def infer(self, window: Window):
        """Like ``TruthSession.infer``; sets ``bad``: whether the window was corrupted."""
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


class GateRecorder:
    """WindowAligner, with or without its gate, that records refusals and times."""

    def __init__(self, session: CorruptedSession, gate: bool) -> None:
        self.aligner, self.session, self.gate = WindowAligner(), session, gate
        self.refused = {True: [], False: []}  # by whether the window was corrupted
        self.seconds: list[float] = []  # of each alignment

    def align(self, *arguments, **values):
        """Like ``WindowAligner.align``."""
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
    """Returns rows for each walk and kind of corruption, without and with the residual gate."""
    rows = []
    kinds = ("none", "half the image", "half the views", "glued")
    for walk, kind, gate in itertools.product(options.walks, kinds, (False, True)):
        truth = walk_truth(walk, options.frames, options.seed)
        session = CorruptedSession(truth, 0, FULL, kind)
        settings = {
            "process_res": max(SIZE), "map.enabled": False, "hold_when_blind": False,
        }  # fmt: skip
        pipeline = Pipeline(config_from_parameters(settings), session)
        recorder = GateRecorder(session, gate)
        pipeline.odometry.aligner = recorder
        found = []
        for f in truth:
            black = np.zeros((*SIZE[::-1], 3), np.uint8)
            found += pipeline.push(Frame(f.stamp_ns, black, calibration=calibration(SIZE)))
        ours = np.array([r.T_map_camera for r in found])
        true = np.array([f.T_room_camera for f in truth])
        path = float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum())
        error = trajectory_error(ours, true) if path > 0.1 else position_spread(ours)
        shares = {k: float(np.mean(v)) if v else 0.0 for k, v in recorder.refused.items()}
        rows.append({
            "walk": walk, "broken": kind, "gate": gate, "refused_broken": shares[True],
            "refused_honest": shares[False], "ate_m": error,
            "join_ms": 1e3 * statistics.median(recorder.seconds),
            "chains": pipeline.map.table.chain + 1,
        })  # fmt: skip
        show(rows[-1])
    return rows


def cost_rows(options: argparse.Namespace) -> list[dict]:
    """Returns milliseconds per alignment in windows of eight views, three with depth, 504x280."""
    truth = walk_truth("straight", min(options.frames, 100), options.seed, (504, 280))
    rows = []
    for method in ("ours", "least squares"):
        seconds = run(truth, FULL, make_aligner(method, FULL, truth)).seconds[10:]
        p50, p95 = np.percentile(seconds, (50, 95)) * 1e3
        rows.append({"method": method, "median_ms": p50, "p95_ms": p95, "windows": len(seconds)})
        show(rows[-1])
    return rows


def show(row: dict) -> None:
    """Prints a row of the table."""
    cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
    print("| " + " | ".join(cells) + " |", flush=True)


KINDS = {
    "drift": (drift_rows, "walk noise method path_m place_m turn_deg scale"),
    "keyframes": (keyframe_rows, "walk keyframes path_m place_m turn_deg scale"),
    "network": (network_rows, "walk room keyframes method path_m ate_m turn_deg refused"),
    "nees": (nees_rows, "walk nees median"),
    "gate": (
        gate_rows,
        "walk broken gate refused_broken refused_honest ate_m join_ms chains",
    ),
    "cost": (cost_rows, "method median_ms p95_ms windows"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="drift", choices=KINDS)
    parser.add_argument("--frames", type=int, default=500, help="per walk; for nees: trials")
    parser.add_argument("--walks", nargs="+", default=WALKS)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument(
        "--rooms", type=int, nargs="+", default=[37, 55], help="seeds, for network"
    )
    parser.add_argument("--model", default="da3-tiny")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    make, head = KINDS[options.what]
    print("| " + " | ".join(head.split()) + " |")
    print("|" + "---|" * len(head.split()))
    results_file.write(options.out, {"rows": make(options)}, "cpu")


if __name__ == "__main__":
    main()
