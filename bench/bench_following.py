#!/usr/bin/env python3
"""Errors of the map before and after the corrections of another SLAM, which it follows.

Usage: bench_following.py [--rooms N] [--frames N] [--networks NAME ...] [--out FILE]

A camera walks a little more than once round a rendered corridor. The robot's odometry drifts from
frame to frame by a yaw and to the side; another SLAM corrects it when the walk comes back to its
start. Networks: "exact" (the truth in random units) and models. Columns: "output" is the value of
pose_prior.output, "corrections" that of pose_prior.corrections; "median_m" and "p95_m" are
distances of the map's points to the room's surfaces, in the other SLAM's map; "off" is the share
of points farther than two voxels; "pose_m" is the error of the newest published pose.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results_file

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import Session, open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import distance_to_surface, intrinsics, make_ring, render, ring_walk
from da3_ros.synthetic.odometry import drifted
from da3_ros.synthetic.truth import Truth, TruthSession
from da3_ros.types import Array, Calibration, Frame, SlamPath, SlamPose

SIZE, FOV_DEG = (224, 168), 70.0
VOXEL_M = 0.05
LAPS, STEP_NS = 1.1, 10**8
YAW_DEG, SIDEWAYS_M = 0.05, 0.002  # drift from frame to frame
BEFORE_END = 10  # frames before the last one, at which the other SLAM corrects
PATH_EVERY = 10  # frames between two poses of its path: 1 Hz
CORRECTIONS = ("none", "tf", "path")


@dataclass(frozen=True, eq=False)
class Walk:
    """Frames with their truth, images, and the odometry's poses of the camera."""

    room: Any
    frames: list[Truth]
    images: list[Array]  # [H, W, 3] uint8
    priors: list[Array]


def walk(seed: int, count: int) -> Walk:
    """Renders a walk."""
    room, K = make_ring(seed), intrinsics(SIZE, FOV_DEG)
    poses = ring_walk(room, count, LAPS)
    frames, images = [], []
    for i in range(0, count, 20):
        seen = render(room, poses[i : i + 20], K, SIZE)
        images += list(np.asarray(seen.image))
        frames += [
            Truth(STEP_NS * (i + k + 1), depth, poses[i + k], K)
            for k, depth in enumerate(np.asarray(seen.depth))
        ]
    return Walk(room, frames, images, drifted(list(poses), YAW_DEG, np.array([SIDEWAYS_M, 0, 0])))


def said(w: Walk, corrections: str) -> list[SlamPose | None]:
    """Returns what the other SLAM says at each frame."""
    at = len(w.frames) - BEFORE_END
    if corrections == "none":
        return [None] * len(w.frames)
    if corrections == "tf":
        T = w.frames[at].T_room_camera @ invert_pose(w.priors[at])
        return [SlamPose(np.eye(4))] * at + [SlamPose(T)] * BEFORE_END
    done = w.frames[:at:PATH_EVERY]
    stamps = np.array([f.stamp_ns for f in done])
    path = SlamPath(1, int(stamps[-1]), stamps, np.stack([f.T_room_camera for f in done]))
    mount = np.eye(4)
    before, after = SlamPose(T_base_camera=mount), SlamPose(path=path, T_base_camera=mount)
    return [before] * at + [after] * BEFORE_END


def run(w: Walk, network: str, output: str, corrections: str) -> dict[str, float]:
    """Returns the errors at the end of a walk."""
    exact = network == "exact"
    map_frame = {"pose_prior.map_frame": "map"} if corrections == "tf" else {}
    config = config_from_parameters({
        "model": "da3-tiny" if exact else network, "process_res": SIZE[0], "window.size": 6,
        "map.voxel_m": VOXEL_M, "scale.source": "odometry", "pose_prior.source": "odometry",
        "pose_prior.output": output, "pose_prior.corrections": corrections,
        "loop.enabled": False, "refinement.enabled": not exact, "hold_when_blind": not exact,
        **map_frame,
    })  # fmt: skip
    session: Session = TruthSession(w.frames) if exact else open_networks(config)[0]
    pipeline, results = Pipeline(config, session), []
    pipeline.scene_map.place_map(w.frames[0].T_room_camera)  # as an owner of none would have it
    half = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])  # the ROS rule of pixels
    talk = said(w, corrections)
    for frame, image, prior, slam in zip(w.frames, w.images, w.priors, talk, strict=True):
        calibration = Calibration(*SIZE, frame.K - half)
        results += pipeline.push(Frame(
            frame.stamp_ns, image, calibration=calibration, T_prior_camera=prior, slam=slam
        ))  # fmt: skip
    results += pipeline.flush()
    T = pipeline.scene_map.T_ros_map
    points = pipeline.map.table.metres * pipeline.map.cloud().xyz @ T[:3, :3].T + T[:3, 3]
    distance = distance_to_surface(w.room, points)
    newest = T @ results[-1].T_map_camera
    return {
        "median_m": float(np.median(distance)),
        "p95_m": float(np.quantile(distance, 0.95)),
        "off": float(np.mean(distance > 2 * VOXEL_M)),
        "pose_m": float(np.linalg.norm((newest - w.frames[-1].T_room_camera)[:3, 3])),
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per network, output and kind of corrections: means over the rooms."""
    walks = [walk(seed, options.frames) for seed in range(options.rooms)]
    for network in options.networks:
        outputs: Sequence[str] = ("prior", "refined")
        for output in outputs:
            for corrections in CORRECTIONS:
                found = [run(w, network, output, corrections) for w in walks]
                means = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
                yield {"network": network, "output": output, "corrections": corrections, **means}


def main(arguments: list[str] | None = None) -> int:
    """Prints a table, and writes it with ``--out``. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", type=int, default=3)
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--networks", nargs="+", default=["exact", "da3-tiny"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    done = []
    for row in rows(options):
        done.append(row)
        print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else v for k, v in row.items()),
              flush=True)  # fmt: skip
    results_file.write(options.out, {"rows": done}, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
