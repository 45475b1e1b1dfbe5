"""The refinement on real recordings: with their true depth and poses plus noise as the network,
and with da3-tiny."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from refinement_runs import COUNTS, POSES_ONLY, Walk, compared, off_and_on, one_thread

from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.geometry.projection import corner_K
from da3_ros.recordings import open_recording
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import Array, Calibration, Image

NOISE = Noise(smooth=0.05, rotation_deg=0.3, translation=0.01)
TRUTH_RES, TINY_RES, WINDOW = 504, 224, 8
DISPARITIES, LEAST_DISPARITY = 128, 2.0  # pixels; less is too far to be measured
MAX_DEPTH_MM = 8000  # of the depth camera
ERRORS = ("rotation_deg", "direction_deg", "rotation_far_deg", "ate_m", "scale_drift")


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per recording, network and seed of noise, off and on."""
    one_thread()
    for walk in recordings(options.data):
        for network in options.networks:
            values = settings(network, options)
            for seed in range(options.runs if network == "truth" else 1):

                def session(seed: int = seed, network: str = network, walk: Walk = walk) -> Any:
                    truth = TruthSession(walk.truth, seed=seed, noise=NOISE)
                    return truth if network == "truth" else None

                for row, _, _ in off_and_on(walk, values, session):
                    yield {"data": walk.name, "network": network, "seed": seed} | row


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the means over seeds."""
    return compared(found, ("data", "network"), ERRORS, COUNTS)


def settings(network: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the parameters for a network, by its name."""
    size = options.process_res or (TRUTH_RES if network == "truth" else TINY_RES)
    return POSES_ONLY | {
        "model": "da3-tiny", "backend": options.backend, "process_res": size,
        "window.size": WINDOW,
    }  # fmt: skip


def recordings(folder: Path | None) -> list[Walk]:
    """Returns the recordings with truth that are in ``folder``. Raises SystemExit without any."""
    readers = {"kitti_stereo_10": stereo, "redkitchen_24": depth_camera}
    there = [name for name in readers if folder is not None and (folder / name).is_dir()]
    if not there or folder is None:
        raise SystemExit(f"none of {', '.join(readers)} in the folder of --data: {folder}")
    return [readers[name](folder / name) for name in there]


def stereo(folder: Path) -> Walk:
    """Returns the left images of a stereo recording, with depth by semi-global matching."""
    with open_recording(folder, camera="/left") as bag:
        frames, poses = list(bag), true_poses(bag)
    with open_recording(folder, camera="/right") as bag:
        others = list(bag)
    P = projection(others[0].calibration)
    truth = [
        Truth(a.stamp_ns, stereo_depth(a.image, b.image, -P[0, 3]), T, corner_K(P[:, :3]))
        for a, b, T in zip(frames, others, poses, strict=True)
    ]
    return Walk(folder.name, frames, truth)


def projection(calibration: Calibration | None) -> Array:
    """Returns P [3, 4] of a rectified image."""
    assert calibration is not None
    if calibration.P is not None:
        return calibration.P
    return np.column_stack((calibration.K, np.zeros(3)))


def stereo_depth(left: Image, right: Image, focal_times_baseline: float) -> Array:
    """Returns float32 depth [H, W] in metres, NaN unknown; of grey images [H, W, 3]."""
    edge = 5
    matcher = cv2.StereoSGBM.create(
        0, DISPARITIES, edge, P1=8 * edge**2, P2=32 * edge**2, uniquenessRatio=8,
        speckleWindowSize=100, speckleRange=2, mode=cv2.STEREO_SGBM_MODE_SGBM_3WAY,
    )  # fmt: skip
    disparity = matcher.compute(left[..., 0], right[..., 0]).astype(np.float32) / 16
    known = disparity > LEAST_DISPARITY
    depth = focal_times_baseline / np.maximum(disparity, LEAST_DISPARITY)
    return np.where(known, depth, np.nan).astype(np.float32)


def depth_camera(folder: Path) -> Walk:
    """Returns the colour images of a recording with depth images, and depth at their pixels. The
    2.5 cm between both cameras are left out, as by the data set."""
    with open_recording(folder, camera="/camera/image_raw/compressed") as bag:
        frames, poses = list(bag), true_poses(bag)
        infos = [m for _, m in bag.messages("/camera/depth/camera_info")]
        images = [m for _, m in bag.messages("/camera/depth/image_raw")]
    K_depth = corner_K(np.array(infos[0].k).reshape(3, 3))
    K = corner_K(projection(frames[0].calibration)[:, :3])
    truth = [
        Truth(f.stamp_ns, seen_through(metres(m), K_depth, K, f.image.shape), T, K)
        for f, m, T in zip(frames, images, poses, strict=True)
    ]
    return Walk(folder.name, frames, truth)


def seen_through(depth: Array, K_depth: Array, K: Array, shape: tuple[int, ...]) -> Array:
    """Returns depth [H, W] at the pixels of a camera with ``K`` and ``shape`` at the same
    location; nearest pixel, NaN outside of the depth image [h, w]."""
    row, column = np.indices(shape[:2]) + 0.5
    rays = np.stack((column, row, np.ones_like(row)), axis=-1) @ np.linalg.inv(K).T
    at = (rays @ K_depth.T)[..., :2].astype(np.float32) - np.float32(0.5)
    return cv2.remap(
        depth, at[..., 0], at[..., 1], cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT,
        borderValue=float("nan"),
    )  # fmt: skip


def metres(message: Any) -> Array:
    """Returns float32 depth [H, W] of a 16UC1 image, NaN unknown."""
    raw = np.frombuffer(bytes(message.data), "<u2").reshape(message.height, message.width)
    known = (raw > 0) & (raw < MAX_DEPTH_MM)
    return np.where(known, raw / 1000, np.nan).astype(np.float32)


def true_poses(bag: Any) -> list[Array]:
    """Returns ``T_room_camera`` [4, 4] of the true odometry, one per image."""
    poses = []
    for _, message in bag.messages("/ground_truth/odom"):
        p, q = message.pose.pose.position, message.pose.pose.orientation
        T = np.eye(4)
        T[:3, :3] = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
        T[:3, 3] = p.x, p.y, p.z
        poses.append(T)
    return poses
