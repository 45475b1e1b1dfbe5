#!/usr/bin/env python3
"""How wrong metres are, by source, on a walk through a rendered room; the table of docs/scale.md.

Usage: bench_scale.py [SEED ...]. Windows come from the truth, exact or disturbed, so that the
sources are compared and not a network.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from da3_ros.config import config_from_parameters
from da3_ros.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Array, Frame, Measure, Prediction, TrackedFrame, Window

SIZE, FRAMES, RATE_HZ = (140, 112), 60, 5.0
DISTURBED = Noise(
    independent=0.02, smooth=0.03, per_frame=0.01, rotation_deg=0.2, translation=0.003
)
ODOMETRY = {"scale.source": "odometry"}
GIVEN = ODOMETRY | {"pose_prior.source": "odometry"}
METRIC = {"scale.source": "metric_model", "scale.metric_every": 5}
NOISY: dict[str, float] = {"noise_m": 0.02, "noise_deg": 0.5}
CASES: tuple[tuple[str, dict[str, Any], dict[str, float]], ...] = (
    ("odometry, clean", ODOMETRY, {}),
    ("odometry, 2 % per root metre", ODOMETRY, NOISY),
    ("the same, given to the network", GIVEN, NOISY),
    ("metric model, 5 % per look", METRIC, {}),
)


class NoisyRuler:
    """Says every window's unit by its true depth, 5 % off at random."""

    def __init__(self, frames: list[SyntheticFrame]) -> None:
        self._frames = {f.stamp_ns: f for f in frames}
        self._rng = np.random.default_rng(0)

    def measure(self, window: Window, prediction: Prediction) -> Prediction:
        """As MetricRuler does it."""
        true = self._frames[window.views[-1].stamp_ns].depth
        value = np.nanmedian(true / prediction.depth[-1]) * np.exp(0.05 * self._rng.normal())
        return dataclasses.replace(prediction, measure=Measure(float(value), 0.05))


def odometry(frames: list[SyntheticFrame], noise: dict[str, Any]) -> Iterator[Array]:
    """Where the robot says its camera is, frame by frame."""
    robot = DriftingOdometry(frames[0].T_world_camera, **noise)
    for frame in frames:
        robot.move(frame.T_world_camera, 1 / RATE_HZ)
        yield robot.T_odom_camera.copy()


def run(
    camera: SyntheticCamera,
    frames: list[SyntheticFrame],
    values: dict[str, Any],
    noise: dict[str, float],
    disturbed: Noise | None,
) -> list[TrackedFrame]:
    """All frames through the pipeline."""
    config = config_from_parameters({"process_res": SIZE[0], "window.size": 5} | values)
    pipeline = Pipeline(config, TruthSession(frames, noise=disturbed), NoisyRuler(frames))
    out: list[TrackedFrame] = []
    for f, T in zip(frames, odometry(frames, noise), strict=True):
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=T)
        out += pipeline.push(frame)
    return out


def row(frames: list[SyntheticFrame], results: list[TrackedFrame]) -> str:
    """What one run says: from when on, how wrong, how wrong by its own account."""
    truth = {f.stamp_ns: f.depth for f in frames}
    metric = [r for r in results if r.scale.metric]
    if not metric:
        return "never | | | "
    error = np.abs([np.nanmedian(r.depth_m / truth[r.stamp_ns]) - 1 for r in metric])
    sigma = np.median([r.scale.sigma for r in metric])
    return (
        f"{len(results) - len(metric)} | {100 * np.median(error):.1f} % | "
        f"{100 * error.max():.1f} % | {100 * sigma:.1f} %"
    )


def main(seeds: list[int]) -> None:
    """Print the table."""
    print("| room | windows | source | metric from frame | median error | worst frame | sigma |")
    print("|---|---|---|---|---|---|---|")
    for seed in seeds:
        camera = SyntheticCamera(seed, SIZE, walk="loop", frames=FRAMES, rate_hz=RATE_HZ)
        frames = list(camera)
        for label, disturbed in (("exact", None), ("disturbed", DISTURBED)):
            for name, values, noise in CASES:
                results = run(camera, frames, values, noise, disturbed)
                print(f"| {seed} | {label} | {name} | {row(frames, results)} |", flush=True)


if __name__ == "__main__":
    main([int(s) for s in sys.argv[1:]] or [3, 37])
