#!/usr/bin/env python3
"""What becomes of a robot's own poses: refined by the network, or passed on as they are.

Usage: bench_prior.py [--rooms N] [--frames N] [--errors DEG ...] [--model NAME] [--out FILE]

A camera walks through rendered rooms; the prior's rotations are off by a given error, its places
by the like over the depth. Printed: how far neighbours within a window (five frames apart) are
turned against the truth, in degrees, for the prior itself and for what is published; and how
unevenly depth is scaled along the walk: the standard deviation of its ratio to the truth, percent.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.truth import at_size
from da3_ros.types import Array, Frame, TrackedFrame

WALKS = ("loop", "straight", "handheld")
APART = 5
OUTPUTS = ("refined", "prior")


def disturbed(frames: Sequence[SyntheticFrame], degrees: float, seed: int) -> list[Array]:
    """Poses [4, 4] whose rotations are off by ``degrees`` (length of the error), all anew."""
    rng, out = np.random.default_rng(seed), []
    for f in frames:
        T, depth = f.T_world_camera.copy(), float(np.median(f.depth[np.isfinite(f.depth)]))
        turn = np.radians(degrees) / np.sqrt(3) * rng.normal(size=3)
        T[:3, :3] = T[:3, :3] @ Rotation.from_rotvec(turn).as_matrix()
        T[:3, 3] += 0.3 * np.radians(degrees) / np.sqrt(3) * depth * rng.normal(size=3)
        out.append(T)
    return out


def apart(poses: Sequence[Array], frames: Sequence[SyntheticFrame]) -> tuple[float, float]:
    """Median errors of motion over ``APART`` frames: rotation, degrees; direction of the way."""
    turns, ways = [], []
    for i in range(len(frames) - APART):
        ours = invert_pose(poses[i]) @ poses[i + APART]
        true = invert_pose(frames[i].T_world_camera) @ frames[i + APART].T_world_camera
        turns.append(Rotation.from_matrix(ours[:3, :3] @ true[:3, :3].T).magnitude())
        a, b = ours[:3, 3], true[:3, 3]
        if np.linalg.norm(b) > 0.02:
            cosine = a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12)
            ways.append(np.arccos(np.clip(cosine, -1, 1)))
    return float(np.degrees(np.median(turns))), float(np.degrees(np.median(ways or [0.0])))


def published(
    options: argparse.Namespace, output: str, camera: Any, frames: Any, priors: Any
) -> tuple[list[Array], float]:
    """Poses that go out, and how uneven the depth is."""
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
    return [r.T_odom_world @ r.T_world_camera for r in results], uneven(results, frames)


def uneven(results: Sequence[TrackedFrame], frames: Sequence[SyntheticFrame]) -> float:
    """Standard deviation of depth over the truth along the frames that are metric, percent."""
    shape = results[0].depth_m.shape
    true = {f.stamp_ns: f.depth for f in at_size(frames, (shape[1], shape[0]))}
    known = [r for r in results if r.scale.metric and np.isfinite(r.depth_m).any()]
    found = [np.nanmedian(r.depth_m / true[r.stamp_ns]) for r in known]
    return 100 * float(np.std(np.log(found))) if found else float("nan")


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per error of the prior."""
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
            priors = disturbed(frames, degrees, seed)
            found["given"].append(apart(priors, frames))
            for output in OUTPUTS:
                poses, depth = published(options, output, camera, frames, priors)
                found[output].append((*apart(poses, frames), depth))
        row: dict[str, Any] = {"error_deg": degrees}
        for name, values in found.items():
            # The prior itself has no depth, nor has a walk on which metres are never known.
            means = np.nanmean(values, axis=0)
            names = ("rotation", "direction", "depth")[: len(means)]
            row |= {f"{name} {n}": float(mean) for n, mean in zip(names, means, strict=True)}
        yield row


def main(arguments: list[str] | None = None) -> int:
    """Print a table; write it with ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", type=int, default=6)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--model", default="da3-tiny")
    parser.add_argument(
        "--errors", type=float, nargs="+", default=[0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0]
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    done = []
    for row in rows(options):
        done.append(row)
        print("  ".join(f"{k} {v:.2f}" for k, v in row.items()), flush=True)
    if options.out:
        command = f"bench_prior.py {' '.join(arguments or sys.argv[1:])}"
        content = {"command": command, "machine": platform.processor(), "rows": done}
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
