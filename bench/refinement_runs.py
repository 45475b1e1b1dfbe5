"""Runs of the pipeline on frames with truth, and their errors without and with refinement.

For the tables of ``bench_refinement.py``; knows no table.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.demo_settings import PACE, PARAMETERS, RATE_HZ, SEED
from da3_ros.synthetic.evaluation import resize_nearest, trajectory_error
from da3_ros.synthetic.truth import Noise, TrueFrame
from da3_ros.types import Array, Frame, TrackedFrame

WALKS = ("loop", "strafe", "straight", "spot")
FIRST_ROOM = 100  # rooms of smaller seeds than the training's are held out
CORRELATED = Noise(
    independent=0.01, smooth=0.05, per_frame=0.02, rotation_deg=0.2, translation=0.005,
    bend_deg=0.5, bend=0.01,
)  # fmt: skip
POSES_ONLY = {"map.enabled": False, "loop.enabled": False}
FAR = 20  # frames between two poses, for the error of rotation over a longer way
LEAST_MOTION_M = 0.02  # motions that are shorter have no direction to compare
# An error is worse if it grows by more than 5 % and by more than this.
WORSE = {"ate_m": 0.005, "rotation_deg": 0.05, "rotation_far_deg": 0.05, "scale_drift": 0.005}
COUNTS = ("placed", "windows_refused", "windows_refined")
WORSE_RATIO = 1.05


@dataclass(frozen=True, eq=False)
class Walk:
    """Frames of a camera with their truth, in the same order."""

    name: str
    frames: list[Frame]
    truth: Sequence[TrueFrame]  # depth in metres, NaN where it is unknown or not compared

    def uncalibrated(self) -> Walk:
        """Returns the same without calibration."""
        frames = [Frame(f.stamp_ns, f.image) for f in self.frames]
        return Walk(self.name, frames, self.truth)


def one_thread() -> None:
    """Makes results and times independent of the number of cores."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)


def room_seeds(count: int) -> list[int]:
    """Returns seeds of held-out rooms, the demo's first."""
    return [SEED, *range(FIRST_ROOM, FIRST_ROOM + count - 1)]


def room_camera(walk: str, seed: int, size: tuple[int, int], count: int) -> SyntheticCamera:
    """Returns a camera on a walk of ``count`` frames at the demo's pace; ``size``: (w, h)."""
    return SyntheticCamera(seed, size, walk=walk, frames=count, rate_hz=RATE_HZ, pace=PACE)


def as_walk(name: str, camera: SyntheticCamera, frames: Sequence[SyntheticFrame]) -> Walk:
    """Returns rendered frames as a walk."""
    given = [Frame(f.stamp_ns, f.image, calibration=camera.calibration) for f in frames]
    return Walk(name, given, frames)


def room_walks(options: argparse.Namespace) -> Iterator[tuple[str, int, Walk]]:
    """Yields the name of each walk, the seed of each held-out room, and that walk there."""
    for name in options.walks:
        for seed in room_seeds(options.rooms):
            camera = room_camera(name, seed, options.size, options.frames)
            yield name, seed, as_walk(f"{name} {seed}", camera, list(camera))


def demo_values(process_res: int, backend: str) -> dict[str, Any]:
    """Returns the demo's parameters without map and loops, which poses do not need."""
    return PARAMETERS | POSES_ONLY | {"process_res": process_res, "backend": backend}


def tracked(
    values: dict[str, Any], frames: Iterable[Frame], session: Any = None
) -> tuple[Pipeline, list[TrackedFrame]]:
    """Runs frames through a new pipeline; returns it and the tracked frames.

    session: None: the network of the parameters.
    """
    config = config_from_parameters(values)
    pipeline = Pipeline(config, *(open_networks(config) if session is None else (session,)))
    out: list[TrackedFrame] = []
    for frame in frames:
        out += pipeline.push(frame)
    return pipeline, out + list(pipeline.flush())


def off_and_on(
    walk: Walk, values: dict[str, Any], session: Callable[[], Any]
) -> Iterable[tuple[dict[str, Any], Pipeline, list[TrackedFrame]]]:
    """Yields errors, pipeline and tracked frames, without refinement and with it.

    session: makes the session of a run; both get the same random numbers.
    """
    without: dict[str, Any] = {}
    for refine in (False, True):
        settings = values | {"refinement.enabled": refine}
        pipeline, results = tracked(settings, walk.frames, session())
        row = {"refined": refine} | pose_errors(walk, results)
        row["windows_refined"] = pipeline.counters["windows_refined"]
        row["windows_refused"] = pipeline.counters["windows_refused"]
        row["worse"] = worse(without, row) if refine else ""
        without = row
        yield row, pipeline, results


def pose_errors(walk: Walk, results: Sequence[TrackedFrame]) -> dict[str, float]:
    """Returns errors of ``~/odom``: means over pairs of frames; lengths in metres.

    scale_drift: standard deviation of the logarithm of true over estimated depth, by frame.
    placed: share of the frames whose window fits, or is made to fit by tracks.
    """
    truth = {f.stamp_ns: f for f in walk.truth}
    posed = [r for r in results if r.posed]
    poses = np.array([r.T_odom_map @ r.T_map_camera for r in posed])
    true = np.array([truth[r.stamp_ns].T_room_camera for r in posed])
    return {
        "rotation_deg": rotation_error_deg(poses, true),
        "direction_deg": direction_error_deg(poses, true),
        "rotation_far_deg": rotation_error_deg(poses, true, min(FAR, len(poses) - 1)),
        "ate_m": trajectory_error(poses, true) if moves(true) else float("nan"),
        "scale_drift": scale_drift(results, truth),
        "placed": sum(r.window.aligned for r in posed) / len(walk.frames),
    }


def moves(poses: Array) -> bool:
    """Whether a camera leaves its place; the unit of a path without length cannot be fitted."""
    return bool(np.ptp(poses[:, :3, 3], axis=0).max() > LEAST_MOTION_M)


def motions(poses: Array, gap: int = 1) -> Array:
    """Returns the relative poses [N - gap, 4, 4] of frames ``gap`` apart, of poses [N, 4, 4]."""
    return np.array([
        invert_pose(a) @ b for a, b in zip(poses[:-gap], poses[gap:], strict=True)
    ])  # fmt: skip


def rotation_error_deg(poses: Array, true: Array, gap: int = 1) -> float:
    """Returns the mean rotation error of motions over ``gap`` frames, degrees."""
    found, exact = motions(poses, gap)[:, :3, :3], motions(true, gap)[:, :3, :3]
    cosine = (np.einsum("nij,nij->n", found, exact) - 1) / 2
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))).mean())


def direction_error_deg(poses: Array, true: Array) -> float:
    """Returns the mean angle between estimated and true motions from frame to frame, degrees;
    NaN if the camera stands."""
    found, exact = motions(poses)[:, :3, 3], motions(true)[:, :3, 3]
    length = np.linalg.norm(exact, axis=1)
    moving = length > LEAST_MOTION_M
    if not moving.any():
        return float("nan")
    product = np.linalg.norm(found, axis=1) * length
    cosine = np.einsum("ni,ni->n", found, exact)[moving] / np.maximum(product[moving], 1e-12)
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))).mean())


def scale_drift(results: Sequence[TrackedFrame], truth: dict[int, TrueFrame]) -> float:
    """Returns the standard deviation over frames of the logarithm of true over estimated depth."""
    logs = []
    for r in results:
        true = resize_nearest(truth[r.stamp_ns].depth, r.depth_m.shape)
        known = np.isfinite(true) & (r.depth_m > 0) & np.isfinite(r.depth_m)
        if known.mean() > 0.05:
            logs.append(float(np.log(np.median(true[known] / r.depth_m[known]))))
    return float(np.std(logs)) if logs else float("nan")


def worse(off: dict[str, Any], on: dict[str, Any]) -> str:
    """Returns the names of errors that refinement makes worse; empty: none."""
    names = [
        key for key, least in WORSE.items()
        if key in off and key in on and on[key] > max(WORSE_RATIO * off[key], off[key] + least)
    ]  # fmt: skip
    lost = on.get("placed", 1.0) < off.get("placed", 1.0)
    return " ".join(names + ["placed"] * lost)


def compared(
    rows: Sequence[dict[str, Any]],
    by: Sequence[str],
    errors: Sequence[str],
    counts: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Returns means in groups of rows with equal ``by``: off, on, and of errors off over on."""
    table: list[dict[str, Any]] = []
    groups = dict.fromkeys(tuple(r[k] for k in by) for r in rows)
    for group in groups:
        chosen = [r for r in rows if tuple(r[k] for k in by) == group]
        name = dict(zip(by, group, strict=True))
        for refine in (False, True):
            some = [r for r in chosen if r["refined"] == refine]
            table.append(name | {"refined": refine} | means(some, (*errors, *counts)))
        off, on = table[-2:]
        table[-1]["worse"] = worse(off, on)
        ratio = {k: off[k] / on[k] if on[k] else float("nan") for k in errors}
        table.append(name | {"refined": "ratio"} | ratio)
    return table


def means(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> dict[str, float]:
    """Returns the means of ``keys``; NaN values are left out."""
    found = {}
    for key in keys:
        values = np.array([r[key] for r in rows], float)
        values = values[~np.isnan(values)]
        found[key] = float(values.mean()) if len(values) else float("nan")
    return found


def frame_pairs(count: int, gap: int) -> Iterable[tuple[int, int]]:
    """Yields indices of frames ``gap`` apart."""
    return zip(range(count), itertools.islice(range(count), gap, None), strict=False)
