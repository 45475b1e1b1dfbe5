#!/usr/bin/env python3
"""Error of the metric scale by source, on walks through rendered rooms; tables of docs/figures.md.

Usage: bench_scale.py [--runs N] [--out FILE] [SEED ...]. Windows are the truth, exact or with
noise ("disturbed"), so that the sources are compared without the errors of a network. The N runs
of each row differ in all noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results_file

from da3_ros.config import config_from_parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Array, Frame, Prediction, ScaleMeasurement, TrackedFrame, Window

SIZE, FRAMES, RATE_HZ = (140, 112), 60, 5.0
DISTURBED = Noise(
    independent=0.02, smooth=0.03, per_frame=0.01, rotation_deg=0.2, translation=0.003
)
NAMES = ("front", "left")
BASELINES_M, YAW_DEG = (0.1, 0.3), -30.0
ODOMETRY = {"scale.source": "odometry"}
GIVEN = ODOMETRY | {"pose_prior.source": "odometry"}
METRIC = {"scale.source": "metric_model", "scale.metric_every": 5}
RIG = {"scale.source": "rig", "cameras": list(NAMES), "window.size": 8}
NOISY = {"noise_m": 0.02, "noise_deg": 0.5}


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    name: str
    values: dict[str, Any]
    odometry: dict[str, float] = dataclasses.field(default_factory=dict)
    baseline_m: float = 0.0  # distance to a second camera; 0: one camera


CASES = (
    Case("odometry, clean", ODOMETRY),
    Case("odometry, 2 % per root metre", ODOMETRY, NOISY),
    Case("the same, given to the network", GIVEN, NOISY),
    Case("metric model, 5 % per measurement", METRIC),
    *(Case(f"rig, {b:g} m between two cameras", RIG, baseline_m=b) for b in BASELINES_M),
)


@dataclass(frozen=True, eq=False)
class Room:
    """Rendered frames of a walk through a room, of one or two cameras."""

    seed: int
    cameras: dict[str, SyntheticCamera]
    frames: dict[str, list[SyntheticFrame]]

    @staticmethod
    def walk(seed: int, baseline_m: float = 0.0) -> Room:
        """Renders a loop; with a baseline also of a second camera, rotated by ``YAW_DEG``."""
        names = NAMES if baseline_m else ("",)
        cameras = {
            name: SyntheticCamera(
                seed, SIZE, walk="loop", frames=FRAMES, rate_hz=RATE_HZ,
                mount=rig_mount(i, baseline_m, YAW_DEG),
            )
            for i, name in enumerate(names)
        }  # fmt: skip
        return Room(seed, cameras, {name: list(camera) for name, camera in cameras.items()})


class NoisyMetricModel:
    """Stands in for MetricDepthModel: measures each window's scale with an error of 5 %."""

    def __init__(self, frames: list[SyntheticFrame], seed: int) -> None:
        self._frames = {f.stamp_ns: f for f in frames}
        self._rng = np.random.default_rng(seed)

    def measure(self, window: Window, prediction: Prediction) -> Prediction:
        """Returns ``prediction`` with a scale measurement, like ``MetricDepthModel.measure``."""
        true = self._frames[window.views[-1].stamp_ns].depth
        value = np.nanmedian(true / prediction.depth[-1]) * np.exp(0.05 * self._rng.normal())
        return dataclasses.replace(prediction, measure=ScaleMeasurement(float(value), 0.05))


def odometry(frames: list[SyntheticFrame], seed: int, noise: dict[str, Any]) -> Iterator[Array]:
    """Yields T_odom_camera [4, 4] of each frame by drifting odometry."""
    robot = DriftingOdometry(frames[0].T_room_camera, seed=seed, **noise)
    for frame in frames:
        robot.move(frame.T_room_camera, 1 / RATE_HZ)
        yield robot.T_odom_camera.copy()


def run(
    room: Room, case: Case, disturbed: Noise | None, seed: int
) -> Iterator[tuple[TrackedFrame, float]]:
    """Yields all tracked frames, each with the log ratio of its scale to the true one."""
    config = config_from_parameters({"process_res": SIZE[0], "window.size": 5} | case.values)
    first = next(iter(room.frames.values()))
    session = TruthSession(
        room.frames if len(room.frames) > 1 else first, noise=disturbed, seed=seed
    )
    pipeline = Pipeline(config, session, NoisyMetricModel(first, seed))
    priors = odometry(first, seed, case.odometry)
    for i, T in enumerate(priors):
        frameset = [
            Frame(
                fs[i].stamp_ns, fs[i].image, camera=name, T_prior_camera=T,
                calibration=room.cameras[name].calibration,
                T_rig_camera=rig_mount(k, case.baseline_m, YAW_DEG),
            )
            for k, (name, fs) in enumerate(room.frames.items())
        ]  # fmt: skip
        for result in pipeline.push(*frameset):
            yield result, float(np.log(result.scale.value * session.unit * result.window.unit))


def figures(room: Room, runs: list[list[tuple[TrackedFrame, float]]]) -> dict[str, float]:
    """Returns the figures of one case over all runs; empty if no frame was metric.

    Errors and sigmas are relative; ``metric_from`` is a frame's index. The last two are the scale
    error in stated sigmas.
    """
    truth = {(n, f.stamp_ns): f.depth for n, fs in room.frames.items() for f in fs}
    metric = [item for results in runs for item in results if item[0].scale.metric]
    if not metric:
        return {}
    first = [sum(not r.scale.metric for r, _ in results) for results in runs]
    depth = [np.nanmedian(r.depth_m / truth[r.camera, r.stamp_ns]) - 1 for r, _ in metric]
    off = np.abs([error for _, error in metric])
    sigma = np.array([r.scale.sigma for r, _ in metric])
    return {
        "metric_from": float(np.median(first) // len(room.frames)),
        "depth_error": float(np.median(np.abs(depth))),
        "scale_error": float(np.median(off)),
        "largest_scale_error": float(off.max()),
        "sigma": float(np.median(sigma)),
        "rms_in_sigmas": float(np.sqrt(np.mean((off / sigma) ** 2))),
        "largest_in_sigmas": float((off / sigma).max()),
    }


def cells(found: dict[str, float]) -> str:
    """Returns the table's cells for ``figures``."""
    if not found:
        return "never | | | | | "
    start, *errors, rms, largest = found.values()
    shares = " | ".join(f"{100 * e:.1f} %" for e in errors)
    return f"{start:.0f} | {shares} | {rms:.1f}, {largest:.1f}"


def main(arguments: list[str]) -> None:
    """Runs all cases and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", nargs="*", type=int, default=[3, 37])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--case", default="", help="run only cases whose name begins with this")
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args(arguments)
    rows = []
    print(
        "| room | windows | source | metric from | depth error | scale error | at most | sigma | "
        "in sigmas: RMS, at most |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for seed, case in itertools.product(options.seeds, CASES):
        if not case.name.startswith(options.case):
            continue
        room = Room.walk(seed, case.baseline_m)
        for label, disturbed in (("exact", None), ("disturbed", DISTURBED)):
            runs = [list(run(room, case, disturbed, n)) for n in range(options.runs)]
            found = figures(room, runs)
            print(f"| {seed} | {label} | {case.name} | {cells(found)} |", flush=True)
            rows.append({"room": seed, "windows": label, "source": case.name, **found})
    results_file.write(options.out, {"rows": rows}, "cpu")


if __name__ == "__main__":
    main(sys.argv[1:])
