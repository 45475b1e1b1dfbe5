#!/usr/bin/env python3
"""One recording all at once, in separate chunks, in joined chunks, and in our sliding windows.

    python bench/bench_chunks.py --out bench/results/frames100-tiny.json
    python bench/bench_chunks.py --model da3-base --process-res 504 --rooms 1

Methods: ``all at once``: one window of all frames. ``chunks of N``: windows of N new frames that
share none, so that their depth and poses have no common unit and frame. ``joined N/M``: the recipe
of DA3-Streaming without its loops: chunks of N frames that share M, joined by Sim(3) from the
points of the shared frames by iteratively re-weighted least squares (figures: Huber 0.1 m, five
iterations, confidence above 0.1 of the lower median; metres are given, as by its metric model).
``ours W/K``: the pipeline with windows of W
views, K of them new; ``refined`` with feature tracks. Each method has a process of its own.

Ours has the camera's calibration, and makes the map while it runs. Tables and kernels of the size
are made before the time begins.

Weights: those that ship (da3-tiny), else random: then time and memory are meant, and errors are
left out. ``abs_rel``: after one scale for all frames; ``abs_rel_own``: after one for each window.
``ate_m``: RMSE of the camera's place after the best Sim(3), of the share ``posed`` of the frames.
Means over rooms.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import child
import numpy as np
import results_file
from bench_alignment import fit_points
from refinement_runs import tracked
from tqdm import tqdm

from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.devices import open_device
from da3_ros.inference.images import window_of_images
from da3_ros.inference.planner import GIB
from da3_ros.synthetic import Pace, SyntheticCamera
from da3_ros.synthetic.evaluation import resize_nearest, trajectory_error
from da3_ros.types import Array, Frame, Prediction

FIRST_ROOM, RATE_HZ = 101, 6.0  # rooms of other seeds than training's
PACE = Pace(RATE_HZ, 0.3, 15.0)
WALKS = ("loop", "handheld", "straight")
HUBER, ITERATIONS, CONFIDENT = 0.1, 5, 0.1  # of DA3-Streaming; the first in metres
POINTS = 4000  # per shared frame
SHIPS = "da3-tiny"
METHODS = (
    "all at once", "chunks of 10", "chunks of 8", "joined 60/30", "joined 20/10",
    "ours 8/1", "ours 16/4", "ours 8/1 refined", "ours 16/4 refined",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Depth [h, w] of each frame, its pose [4, 4], and the number of the window that made it.

    ``T``: None if the windows have no common frame. ``frames``: indices of the frames; None: all.
    """

    depth: list[Array]
    T: Array | None
    group: list[int]
    frames: list[int] | None = None


def camera_of(room: int, options: argparse.Namespace) -> SyntheticCamera:
    """Returns the camera of a room, with images of four to three."""
    size = options.process_res, round(options.process_res * 3 / 4)
    return SyntheticCamera(
        FIRST_ROOM + room, size, walk=WALKS[room % len(WALKS)], frames=options.frames,
        rate_hz=RATE_HZ, pace=PACE,
    )  # fmt: skip


def opened(options: argparse.Namespace) -> InferenceSession:
    """Returns a session with the weights that ship, or random ones."""
    config = InferenceConfig(
        options.model, "" if options.model == SHIPS else "random", options.device,
        options.backend, process_res=options.process_res, mixed_precision=options.precision,
    )  # fmt: skip
    return InferenceSession(config, poses=False)


def predicted(session: InferenceSession, images: list[Array], res: int) -> Prediction:
    """Returns the prediction of one window of these images, all new."""
    return session.infer(window_of_images(images, res))


def in_chunks(session: InferenceSession, images: list[Array], size: int, res: int):
    """Returns the frames of windows of ``size``; the last one may be shorter."""
    depth, group, T = [], [], None
    for number, start in enumerate(range(0, len(images), size)):
        found = predicted(session, images[start : start + size], res)
        depth += list(found.depth)
        group += [number] * len(found.depth)
        T = found.T_window_camera if size >= len(images) else None
    return Reconstruction(depth, T, group)


def joined(
    session: InferenceSession, frames: list, size: int, shared: int, res: int
) -> Reconstruction:
    """Returns the frames of chunks that share frames, joined one to the next."""
    images = [f.image for f in frames]
    depth: list[Array] = []
    poses: list[Array] = []
    fit, last = IDENTITY, None
    for start in range(0, max(1, len(images) - shared), size - shared):
        session.feature_cache.bound(0)  # the recipe runs shared frames again
        found = predicted(session, images[start : start + size], res)
        if last is None:
            metres = float(np.nanmedian(frames[0].depth) / np.median(found.depth[0]))
        else:
            huber = HUBER / (metres * fit.scale)  # in the unit of the chunk before
            fit = fit @ fit_shared(last, found, min(shared, len(found.depth)), huber)
        new = range(0 if last is None else shared, len(found.depth))
        depth += [fit.scale * found.depth[k] for k in new]
        poses += [fit.pose(found.T_window_camera[k]) for k in new]
        last = found
    return Reconstruction(depth, np.array(poses), [0] * len(depth))


def fit_shared(before: Prediction, after: Prediction, shared: int, huber: float) -> Similarity:
    """Returns the Sim(3) from a chunk to the one before, by the points of shared frames.

    huber: in the unit of the one before.
    """
    source, target, weights = [], [], []
    rng = np.random.default_rng(0)
    for k in range(shared):
        k_before = len(before.depth) - shared + k
        pair = before.confidence[k_before], after.confidence[k]
        sure = np.minimum(*pair)
        good = sure > CONFIDENT * min(np.median(confidence) for confidence in pair)
        chosen = rng.permutation(np.flatnonzero(good))[:POINTS]
        target.append(points_of(before, k_before)[chosen])
        source.append(points_of(after, k)[chosen])
        weights.append(sure.ravel()[chosen])
    a, b, w = np.concatenate(source), np.concatenate(target), np.concatenate(weights)
    fit = fit_points(a, b, w)
    for _ in range(ITERATIONS):
        if fit is None:
            return IDENTITY
        off = np.linalg.norm(fit.points(a) - b, axis=1)
        fit = fit_points(a, b, w * np.minimum(1.0, huber / np.maximum(off, 1e-12)))
    return fit or IDENTITY


def points_of(found: Prediction, k: int) -> Array:
    """Returns the points [H * W, 3] of a view in the window's frame."""
    T = found.T_window_camera[k]
    points = backproject(found.depth[k], found.K[k]).reshape(-1, 3).astype(np.float64)
    return points @ T[:3, :3].T + T[:3, 3]


def by_pipeline(
    camera: SyntheticCamera, frames: list, options, size: int, new: int, refined: bool
):
    """Returns the frames of our pipeline with windows of ``size`` views, ``new`` of them new."""
    values = {
        "model": options.model, "checkpoint": "" if options.model == SHIPS else "random",
        "device": options.device, "backend": options.backend,
        "mixed_precision": options.precision, "process_res": options.process_res,
        "window.size": size, "window.new": new, "refinement.enabled": refined,
        "dense.enabled": False,
    }  # fmt: skip
    given = [Frame(f.stamp_ns, f.image, calibration=camera.calibration) for f in frames]
    session = opened(options)
    predicted(session, [f.image for f in frames[:2]], options.process_res)
    session.renew()
    start = time.perf_counter()
    pipeline, results = tracked(values, given, session)
    seconds = time.perf_counter() - start
    final = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    results = [r for r in results if r.stamp_ns in final]
    T = np.array([final[r.stamp_ns] for r in results])
    peak = session.status().memory_peak_gb
    numbers = {f.stamp_ns: k for k, f in enumerate(frames)}
    seen = [numbers[r.stamp_ns] for r in results]
    depth = [r.depth_m for r in results]
    return Reconstruction(depth, T, [0] * len(results), seen), seconds, peak


def errors(found: Reconstruction, frames: list) -> dict[str, float]:
    """Returns the errors of depth and path, and the share of the frames that have a pose."""
    count = len(frames)
    frames = frames if found.frames is None else [frames[k] for k in found.frames]
    ratios = []
    for depth, frame in zip(found.depth, frames, strict=True):
        true = resize_nearest(frame.depth, depth.shape)
        known = np.isfinite(true) & np.isfinite(depth) & (depth > 0)
        ratios.append(true[known] / depth[known])
    one = np.median(np.concatenate(ratios))
    own = {
        g: np.median(
            np.concatenate([r for r, k in zip(ratios, found.group, strict=True) if k == g])
        )
        for g in set(found.group)
    }
    scales = np.array([own[g] for g in found.group])
    true_T = np.array([f.T_room_camera for f in frames])
    return {
        "abs_rel": float(np.mean([np.abs(one / r - 1).mean() for r in ratios])),
        "abs_rel_own": float(
            np.mean([np.abs(s / r - 1).mean() for s, r in zip(scales, ratios, strict=True)])
        ),
        "posed": 0.0 if found.T is None else len(frames) / count,
        "ate_m": None if found.T is None else trajectory_error(found.T, true_T),
    }


def one(method: str, room: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a method on a room; returns its row."""
    camera = camera_of(room, options)
    frames = list(camera)
    images = [f.image for f in frames]
    kind, _, numbers = method.partition(" ")
    if kind == "ours":
        sizes, _, refined = numbers.partition(" ")
        size, new = map(int, sizes.split("/"))
        found, seconds, peak = by_pipeline(camera, frames, options, size, new, bool(refined))
    else:
        session = opened(options)
        predicted(session, images[:2], options.process_res)  # tables and kernels of this size
        session.feature_cache.bound(0)
        start = time.perf_counter()
        if kind == "joined":
            size, shared = map(int, numbers.split("/"))
            found = joined(session, frames, size, shared, options.process_res)
        else:
            size = len(images) if kind == "all" else int(numbers.removeprefix("of "))
            found = in_chunks(session, images, size, options.process_res)
        seconds, peak = time.perf_counter() - start, session.memory.meter.peak / GIB
    row = {"seconds": seconds, "peak_gib": peak}
    return row | (errors(found, frames) if options.model == SHIPS else {})


def spawned(method: str, room: int, options: argparse.Namespace) -> dict[str, Any]:
    """``one`` in a process of its own."""
    command = [sys.executable, __file__, "--one", method, str(room)]
    for name in ("model", "device", "backend", "precision", "process_res", "frames"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    done = child.run(command, stderr=subprocess.PIPE)
    if done.returncode:
        return {"refused": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def mean_of(rows: list[dict[str, Any]], method: str, frames: int) -> dict[str, Any]:
    """Returns the means of a method's rows."""
    refused = [r["refused"] for r in rows if "refused" in r]
    if refused:
        return {"method": method, "refused": refused[0]}
    row: dict[str, Any] = {"method": method}
    for name in rows[0]:
        values = [r[name] for r in rows]
        row[name] = None if None in values else float(np.mean(values))
    return row | {"frames_per_s": frames / row["seconds"]}


def main() -> None:
    """Runs all methods on all rooms; prints means and writes them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=SHIPS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--process-res", type=int, default=224)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--rooms", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "ROOM"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]), options)))
        return
    rows = []
    setting = {
        name: getattr(options, name)
        for name in ("model", "backend", "precision", "process_res", "frames", "rooms")
    }
    device = open_device(options.device).name()
    for method in tqdm(options.methods, unit="method"):
        found = [spawned(method, room, options) for room in range(options.rooms)]
        rows.append(mean_of(found, method, options.frames))
        results_file.show(rows[-1])
        results_file.write(options.out, {"setting": setting, "rows": rows}, device)


if __name__ == "__main__":
    main()
