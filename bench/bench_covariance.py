#!/usr/bin/env python3
"""Consistency of published covariances: normalised estimation error squared (NEES).

Usage: bench_covariance.py truth|da3-tiny [--runs N] [--frames N] [--laps N] [--walks ...] [...]

NEES is divided by its six degrees of freedom: 1 is consistent, more than 1 is overconfident.
truth: exact windows with known noise, some of it common to all views of a window; "low" and "high"
are the 95 % bounds of chi-squared. da3-tiny: its predictions for rendered rooms. All numbers are
of ``~/odom``, relative to the first frame. --refine: with refinement, whose covariances are
meant to be too large rather than too small: its noise is not known as well as that. --laps: the
camera goes there and back; "last lap" is the NEES of its last way. --plain: rooms with hardly any
texture.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Array, Frame, TrackedFrame

WALKS = ("loop", "straight", "strafe", "spot", "handheld")
PIXELS = Noise(independent=0.02, smooth=0.03, per_frame=0.01)
NOISES = {
    "of each view": dataclasses.replace(PIXELS, rotation_deg=0.2, translation=0.003),
    "both": dataclasses.replace(
        PIXELS, rotation_deg=0.2, translation=0.003, bend_deg=0.5, bend=0.01
    ),
    "along windows": dataclasses.replace(PIXELS, bend_deg=0.5, bend=0.01),
}
SETTLED = 5  # frames until the noise model has converged


def settings(**values: Any):
    """Returns a configuration without map and loops, which covariances do not need."""
    base = {
        "model": "da3-tiny", "loop.enabled": False, "map.enabled": False, "window.size": 6,
        "refinement.enabled": False,
    }  # fmt: skip
    return config_from_parameters(base | values)


def frames_of(
    walk: str, seed: int, size: tuple[int, int], count: int, *, plain: bool = False
) -> tuple[SyntheticCamera, list[SyntheticFrame]]:
    """Returns a camera and its rendered frames; ``size``: (width, height). plain: of a room with
    hardly any texture."""
    camera = SyntheticCamera(seed=seed, size=size, walk=walk, frames=count, plain=plain)
    return camera, list(camera)


def there_and_back(frames: Sequence[SyntheticFrame], laps: int) -> list[SyntheticFrame]:
    """Returns frames of a camera that goes a way forward and back, ``laps`` times in all."""
    way = [f for lap in range(laps) for f in (frames, frames[::-1])[lap % 2]]
    step = frames[1].stamp_ns - frames[0].stamp_ns
    first = frames[0].stamp_ns
    return [dataclasses.replace(f, stamp_ns=first + k * step) for k, f in enumerate(way)]


def run(
    pipeline: Pipeline, camera: SyntheticCamera, frames: Sequence[SyntheticFrame]
) -> list[TrackedFrame]:
    """Runs all frames through the pipeline and returns the tracked frames."""
    results = []
    for f in frames:
        results += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    return results + list(pipeline.flush())


def errors(results: list[TrackedFrame], frames: Sequence[SyntheticFrame], unit: float) -> Array:
    """Returns the odometry errors [N, 6]: position in scene units, rotation vector in radians.

    unit: scene units per metre.
    """
    out = []
    for r, f in zip(results, frames, strict=True):
        true = invert_pose(frames[0].T_room_camera) @ f.T_room_camera
        T = r.T_odom_map @ r.T_map_camera
        turn = Rotation.from_matrix(T[:3, :3] @ true[:3, :3].T).as_rotvec()
        out.append(np.concatenate([T[:3, 3] - unit * true[:3, 3], turn]))
    return np.array(out)


def nees(results: list[TrackedFrame], error: Array) -> Array:
    """Returns the NEES [N] over the degrees of freedom; NaN for frames without a covariance."""
    unknown = np.full((6, 6), np.nan)
    P = np.array([unknown if r.covariance_odom is None else r.covariance_odom for r in results])
    return np.einsum("ni,ni->n", error, np.linalg.solve(P, error[:, :, None])[:, :, 0]) / 6


def truth_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk and noise."""
    size = (224, 168) if options.refine else (112, 84)  # features need larger images
    config = settings(process_res=size[0], **{"refinement.enabled": options.refine})
    low, high = chi2.ppf([0.025, 0.975], 6 * options.runs) / (6 * options.runs)
    for walk in options.walks:
        camera, frames = frames_of(walk, 3, size, options.frames)
        frames = there_and_back(frames, options.laps)
        for name, noise in NOISES.items():
            found = []
            for seed in range(options.runs):
                session = TruthSession(frames, seed=seed, noise=noise)
                results = run(Pipeline(config, session), camera, frames)
                unit = float(np.exp(np.random.default_rng(seed).normal(0, 0.5)))
                found.append(nees(results, errors(results, frames, unit)))
            values = np.mean(found, axis=0)
            yield {
                "walk": walk, "noise": name, "nees": float(values[SETTLED:].mean()),
                "last": float(values[-1]), "last lap": float(values[-options.frames :].mean()),
                "low": low, "high": high,
            }  # fmt: skip


def tiny_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, each over ``options.runs`` rooms that da3-tiny was not trained on."""
    config = settings(process_res=224, **{"refinement.enabled": options.refine})
    for walk in options.walks:
        found, sizes = [], []
        for seed in range(100, 100 + options.runs):
            camera, frames = frames_of(walk, seed, (224, 168), options.frames, plain=options.plain)
            frames = there_and_back(frames, options.laps)
            session, _ = open_networks(config)
            pipeline = Pipeline(config, session)
            results = run(pipeline, camera, frames)
            unit = float(np.nanmedian(results[0].depth_m / frames[0].depth))
            error = errors(results, frames, unit)
            found.append(np.nanmean(nees(results, error)[SETTLED:]))
            known = [i for i, r in enumerate(results) if r.covariance_odom is not None][-1]
            stated = np.sqrt(np.trace(results[known].covariance_odom[3:, 3:]))
            sizes.append(np.degrees([np.linalg.norm(error[known, 3:]), stated]))
        off, stated = np.mean(sizes, axis=0)
        yield {
            "walk": walk, "nees": float(np.mean(found)), "worst room": float(np.max(found)),
            "over one": int(np.sum(np.array(found) > 1)), "rotation off deg": float(off),
            "stated deg": float(stated),
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Prints a table, and writes it with ``--out``. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("truth", "da3-tiny"), nargs="?", default="truth")
    parser.add_argument("--runs", type=int, default=20, help="runs per row")
    parser.add_argument("--frames", type=int, default=40, help="per run")
    parser.add_argument("--walks", nargs="+", default=list(WALKS), choices=WALKS)
    parser.add_argument("--refine", action="store_true", help="refine windows by feature tracks")
    parser.add_argument("--plain", action="store_true", help="rooms without texture (da3-tiny)")
    parser.add_argument("--laps", type=int, default=1, help="times that the way is gone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for row in (truth_rows if options.what == "truth" else tiny_rows)(options):
        rows.append(row)
        parts = (f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        text = "  ".join(parts)
        print(text, flush=True)
    results_file.write(options.out, {"rows": rows}, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
