#!/usr/bin/env python3
"""Errors of published poses with a prior: refined by the network, or passed on unchanged.

Usage: bench_prior.py [--rooms N] [--frames N] [--errors DEG ...] [--model NAME] [--out FILE]

A camera walks through rendered rooms. The prior has a given rotation error, and a position error
that grows with it and with the depth. Columns, for the prior itself ("given") and for the
published poses ("refined", "prior": the values of pose_prior.output): "rotation" and "direction",
the median errors of rotation and of the direction of translation between frames five apart, in
degrees; "depth", the standard deviation of the ratio of depth to the truth along the walk, in %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.truth import at_size
from da3_ros.types import Array, Frame, TrackedFrame

WALKS = ("loop", "straight", "handheld")
APART = 5  # frames
OUTPUTS = ("refined", "prior")


def noisy_priors(frames: Sequence[SyntheticFrame], degrees: float, seed: int) -> list[Array]:
    """Returns true poses [4, 4] with independent errors in each frame.

    degrees: RMS of the rotation error. The RMS of the position error is 0.3 times that angle (in
    radians) times the median depth.
    """
    rng, out = np.random.default_rng(seed), []
    for f in frames:
        T, depth = f.T_room_camera.copy(), float(np.median(f.depth[np.isfinite(f.depth)]))
        rotation = np.radians(degrees) / np.sqrt(3) * rng.normal(size=3)
        T[:3, :3] = T[:3, :3] @ Rotation.from_rotvec(rotation).as_matrix()
        T[:3, 3] += 0.3 * np.radians(degrees) / np.sqrt(3) * depth * rng.normal(size=3)
        out.append(T)
    return out


def motion_errors(poses: Sequence[Array], frames: Sequence[SyntheticFrame]) -> tuple[float, float]:
    """Returns the median errors of the motion over ``APART`` frames, degrees.

    The first is of the rotation, the second of the direction of translation, over motions of more
    than 2 cm. poses: [4, 4], camera to map.
    """
    rotations, directions = [], []
    for i in range(len(frames) - APART):
        ours = invert_pose(poses[i]) @ poses[i + APART]
        true = invert_pose(frames[i].T_room_camera) @ frames[i + APART].T_room_camera
        rotations.append(Rotation.from_matrix(ours[:3, :3] @ true[:3, :3].T).magnitude())
        a, b = ours[:3, 3], true[:3, 3]
        if np.linalg.norm(b) > 0.02:
            cosine = a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12)
            directions.append(np.arccos(np.clip(cosine, -1, 1)))
    return (
        float(np.degrees(np.median(rotations))),
        float(np.degrees(np.median(directions or [0.0]))),
    )


def published_poses(
    options: argparse.Namespace, output: str, camera: Any, frames: Any, priors: Any
) -> tuple[list[Array], float]:
    """Returns the published poses T_odom_camera [4, 4] and the spread of the depth scale.

    output: value of pose_prior.output. Runs the pipeline on ``frames`` with ``priors``.
    """
    config = config_from_parameters({
        "model": options.model, "process_res": 224, "window.size": 6, "loop.enabled": False,
        "map.enabled": False, "scale.source": "odometry", "pose_prior.source": "odometry",
        "pose_prior.output": output,
    })  # fmt: skip
    session, _ = open_networks(config)
    pipeline, results = Pipeline(config, session), []
    for f, prior in zip(frames, priors, strict=True):
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += pipeline.push(frame)
    results += pipeline.flush()
    poses = [r.T_odom_map @ r.T_map_camera for r in results]
    return poses, depth_scale_spread(results, frames)


def depth_scale_spread(results: Sequence[TrackedFrame], frames: Sequence[SyntheticFrame]) -> float:
    """Returns the standard deviation of the log ratio of depth to the truth, per cent.

    The ratio is the median over each frame whose scale is known; NaN without such frames.
    """
    shape = results[0].depth_m.shape
    true = {f.stamp_ns: f.depth for f in at_size(frames, (shape[1], shape[0]))}
    known = [r for r in results if r.scale.metric and np.isfinite(r.depth_m).any()]
    found = [np.nanmedian(r.depth_m / true[r.stamp_ns]) for r in known]
    return 100 * float(np.std(np.log(found))) if found else float("nan")


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per rotation error of the prior, averaged over all rooms."""
    scenes = []
    for seed in range(options.rooms):
        walk = WALKS[seed % len(WALKS)]
        camera = SyntheticCamera(
            seed=200 + seed, size=(224, 168), walk=walk, frames=options.frames
        )
        scenes.append((camera, list(camera)))
    for degrees in options.errors:
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ("given", *OUTPUTS)}
        for seed, (camera, frames) in enumerate(scenes):
            priors = noisy_priors(frames, degrees, seed)
            found["given"].append(motion_errors(priors, frames))
            for output in OUTPUTS:
                poses, depth = published_poses(options, output, camera, frames, priors)
                found[output].append((*motion_errors(poses, frames), depth))
        row: dict[str, Any] = {"error_deg": degrees}
        for name, values in found.items():
            # The prior itself has no depth; a walk without a known scale has NaN.
            means = np.nanmean(values, axis=0)
            names = ("rotation", "direction", "depth")[: len(means)]
            row |= {f"{name} {n}": float(mean) for n, mean in zip(names, means, strict=True)}
        yield row


def main(arguments: list[str] | None = None) -> int:
    """Prints a table, and writes it with ``--out``. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", type=int, default=6)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--model", default="da3-tiny")
    parser.add_argument(
        "--errors", type=float, nargs="+", default=[0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0],
        help="rotation errors of the prior, degrees",
    )  # fmt: skip
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    done = []
    for row in rows(options):
        done.append(row)
        print("  ".join(f"{k} {v:.2f}" for k, v in row.items()), flush=True)
    results_file.write(options.out, {"rows": done}, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
