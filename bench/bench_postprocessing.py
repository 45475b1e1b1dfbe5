#!/usr/bin/env python3
"""Flipping images at test time and filtering depth bilaterally: what they gain and cost.

    python bench/bench_postprocessing.py --out bench/results/postprocessing.json

The trained da3-tiny on windows of eight views in rendered rooms that it was not trained on.
``flips``: the window runs again with its images mirrored; depth is the geometric mean of both, and
poses are the mean of both in the plane of the mirror. ``bilateral D S``: OpenCV's filter of
log(depth) over D pixels with a deviation of S. ``abs_rel``: after one scale per window;
``abs_rel_edges``: within three pixels of a step of 10 % of the true depth. ``rotation_deg``,
``place_percent``: RMSE of the motion from the first view to each other one; the place in per cent
of the way, after the best scale.
``flips`` takes the time of two windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import results_file
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.devices import open_device
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Array, Prediction, View, Window

SIZE, WALKS, VIEWS = (224, 168), ("loop", "straight", "handheld"), 8
FIRST_ROOM = 600
STEP, NEAR = 0.1, 3  # of a depth edge, and pixels beside it
FILTERS = ((5, 0.02), (5, 0.05), (9, 0.05))
MIRROR = np.diag([-1.0, 1.0, 1.0, 1.0])


def window_of(room: int) -> tuple[Window, Array, Array]:
    """Returns a window with its true depth [N, h, w], metres, and poses [N, 4, 4]."""
    camera = SyntheticCamera(
        FIRST_ROOM + room, SIZE, walk=WALKS[room % len(WALKS)], frames=3 * VIEWS
    )
    frames = list(camera)[::3]
    views = tuple(View(i, f.stamp_ns, f.image) for i, f in enumerate(frames))
    depth = np.stack([f.depth for f in frames])
    return Window(room, views, VIEWS), depth, np.stack([f.T_room_camera for f in frames])


def flipped(session: InferenceSession, window: Window) -> Prediction:
    """Returns the mean of the window's prediction and that of its mirrored images."""
    plain = session.infer(window)
    views = tuple(replace(v, image=np.ascontiguousarray(v.image[:, ::-1])) for v in window.views)
    other = session.infer(replace(window, views=views))
    depth = other.depth[:, :, ::-1]
    unit = float(np.median(plain.depth / depth))
    T = MIRROR @ other.T_window_camera @ MIRROR
    T[:, :3, 3] *= unit
    mean = (plain.T_window_camera + T) / 2
    for k, (a, b) in enumerate(zip(plain.T_window_camera, T, strict=True)):
        mean[k, :3, :3] = Rotation.from_matrix([a[:3, :3], b[:3, :3]]).mean().as_matrix()
    return replace(plain, depth=np.sqrt(plain.depth * unit * depth), T_window_camera=mean)


def filtered(session: InferenceSession, window: Window, width: int, sigma: float) -> Prediction:
    """Returns the window's prediction with its depth filtered."""
    plain = session.infer(window)
    logs = np.log(plain.depth)
    smooth = np.stack([cv2.bilateralFilter(d, width, sigma, width / 2) for d in logs])
    return replace(plain, depth=np.exp(smooth))


def errors(found: Prediction, depth: Array, T: Array) -> dict[str, float]:
    """Returns the errors of a window."""
    known = np.isfinite(depth)
    scale = np.median(depth[known] / found.depth[known])
    off = np.abs(scale * found.depth - depth) / depth
    edges = np.stack([_edges(d) for d in depth]) & known
    ours = np.array([invert_pose(found.T_window_camera[0]) @ t for t in found.T_window_camera[1:]])
    true = np.array([invert_pose(T[0]) @ t for t in T[1:]])
    turn = Rotation.from_matrix(np.swapaxes(ours[:, :3, :3], 1, 2) @ true[:, :3, :3]).magnitude()
    a, b = ours[:, :3, 3], true[:, :3, 3]
    fit = (a * b).sum() / (a * a).sum()
    way = np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1).sum()
    return {
        "abs_rel": float(off[known].mean()), "abs_rel_edges": float(off[edges].mean()),
        "rotation_deg": float(np.degrees(np.sqrt((turn**2).mean()))),
        "place_percent": float(100 * np.sqrt(((fit * a - b) ** 2).sum(1).mean()) / way),
    }  # fmt: skip


def _edges(depth: Array) -> Array:
    """Returns the pixels near a step of depth."""
    logs = np.log(np.where(np.isfinite(depth), depth, 1e6)).astype(np.float32)
    step = cv2.dilate(logs, np.ones((3, 3))) - cv2.erode(logs, np.ones((3, 3))) > STEP
    near = cv2.dilate(step.astype(np.uint8), np.ones((2 * NEAR + 1,) * 2))
    return np.asarray(near > 0)


def main() -> None:
    """Runs all variants on all rooms in turns; prints means and writes them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rooms", type=int, default=12)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    config = InferenceConfig(
        "da3-tiny", "", options.device, "torch", mixed_precision="off", process_res=SIZE[0]
    )
    session = InferenceSession(config, poses=False)
    variants: dict[str, Callable[[Window], Prediction]] = {
        "plain": session.infer,
        "flips": lambda w: flipped(session, w),
    }
    for width, sigma in FILTERS:
        variants[f"bilateral {width} {sigma:g}"] = lambda w, d=width, s=sigma: filtered(
            session, w, d, s
        )
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for room in tqdm(range(options.rooms), unit="room"):
        window, depth, T = window_of(room)
        for name, run in variants.items():
            session.feature_cache.bound(0)
            found[name].append(errors(run(window), depth, T))
    rows = []
    for name, each in found.items():
        row: dict[str, Any] = {"variant": name, "rooms": len(each)}
        row |= {k: float(np.mean([r[k] for r in each])) for k in each[0]}
        better = [r["abs_rel"] < p["abs_rel"] for r, p in zip(each, found["plain"], strict=True)]
        rows.append(row | {"rooms_better": int(sum(better))})
        results_file.show(rows[-1])
    results_file.write(options.out, {"rows": rows}, open_device(options.device).name())


if __name__ == "__main__":
    main()
