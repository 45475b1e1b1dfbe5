#!/usr/bin/env python3
"""Scale and gravity from an IMU: errors, time until known, honesty, cost (docs/figures.md).

Usage: bench_imu.py poses|truth|da3-tiny|gyro|level [--runs N] [--seconds N] [--walks ...]
                    [--late S]
       bench_imu.py --euroc FOLDER

The IMU is simulated along rendered walks, with a consumer chip's noise and biases. poses: the
estimators alone, with exact poses of the camera and with noise. truth, da3-tiny: the pipeline with
refinement. gyro: errors of the path in odom, with the IMU's rotations and without, on exact
windows with noise (``PIXELS``), after an alignment. level: how level the map is of a network that
bends the way and of an exact one, with a sound IMU, with one whose mount slips by 10 degrees or
that shakes by half of gravity, and without. NEES is that of one quantity: 1 is honest.
--euroc: a recording in the layout of EuRoC
(mav0/imu0, mav0/state_groundtruth_estimate0), with its true poses as the camera's path.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import results_file
import yaml
from scipy.spatial.transform import Rotation, Slerp

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose, mean_rotation, turn_between
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.gravity import GravityFilter
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.scale_sources import SCALE_SOURCES
from da3_ros.scale_sources.imu import ImuFilter, ImuMotion
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame, make_room, make_walk
from da3_ros.synthetic.imu import ImuSamples, imu_samples
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Array, Frame, ImuNoise, ImuStretch, Prediction, View, Window

MODES = ("poses", "truth", "da3-tiny", "gyro", "level")
WALKS = ("carried", "drone", "handheld")
RATE_HZ = 10.0
AFTER_S = (2, 5, 10, 15, 30)
SIZE = (224, 168)
MOUNT = np.eye(4)  # of the IMU: beside the camera, with the axes of a body (x ahead, z up)
MOUNT[:3, :3] = [[0, -1, 0], [0, 0, -1], [1, 0, 0]]
MOUNT[:3, 3] = 0.05, 0.02, -0.03
CHIP = ImuNoise()
UNIT = 0.4  # units of the path per metre
PIXELS = Noise(independent=0.02, smooth=0.03, per_frame=0.01, rotation_deg=0.1, translation=0.002)
LEVEL_SIZE = (112, 84)
LEVELS = [
    (6.0, "off"),
    (6.0, "sound"),
    (0.0, "off"),
    (0.0, "sound"),
    (0.0, "slips"),
    (0.0, "shakes"),
]
SHAKE = 5.0  # of an accelerometer, m/s^2
SLIPPED = np.eye(4)
SLIPPED[:3, :3] = Rotation.from_euler("xz", [9, 4.5], degrees=True).as_matrix()
TRUTH_SCALE = float(np.exp(-np.random.default_rng(0).normal(0, 0.5)))  # of its first window
LAST = 20  # frames at the end of a walk


@dataclass(frozen=True)
class PoseNoise:
    """Errors of the camera's poses: white, and growing by a share of each step."""

    position_m: float = 0.0
    rotation_deg: float = 0.0
    drift: float = 0.0


POSES = {
    "exact": PoseNoise(),
    "1 % of the way": PoseNoise(0.0, 0.05, 0.01),
    "3 mm, 0.1 deg": PoseNoise(0.003, 0.1),
    "10 mm, 0.2 deg": PoseNoise(0.01, 0.2),
}


@dataclass
class Course:
    """What an estimator said of one walk, at each of its estimates."""

    seconds: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)  # of the log scale
    sigma: list[float] = field(default_factory=list)
    cost_s: list[float] = field(default_factory=list)  # of each frame, of one core
    up_seconds: list[float] = field(default_factory=list)  # of each frame
    tilt: list[float] = field(default_factory=list)  # error of up, rad
    tilt_sigma: list[float] = field(default_factory=list)
    up_cost_s: list[float] = field(default_factory=list)

    def at(self, seconds: float) -> int | None:
        """Returns the index of the newest estimate of that time; None before the first one."""
        found = [i for i, s in enumerate(self.seconds) if s <= seconds + 0.3]
        return found[-1] if found else None


class Probed(ImuFilter):
    """An ``ImuFilter`` whose estimates are compared with the true poses of its keyframes."""

    def __init__(
        self, true: dict[int, Array], course: Course, metres: float | None = None
    ) -> None:
        """metres: per unit of the path; None: as a fit of its poses to the true ones says."""
        super().__init__()
        self._metres = metres
        self._true, self._course = true, course
        self._begin = min(true)
        self._gravity = GravityFilter()
        self._poses: deque[tuple[Array, Array]] = deque(maxlen=20)  # newest: path, truth

    def add_motion(self, view: View, T_local_camera: Array, depth: float) -> None:
        before, start = self.newest, time.process_time()
        super().add_motion(view, T_local_camera, depth)
        self._course.cost_s.append(time.process_time() - start)
        self._follow(view, T_local_camera)
        found = self.estimate()
        if self.newest is before or self.newest is None or found is None:
            return
        metres = self._metres or self._fitted()
        c = self._course
        c.seconds.append((view.stamp_ns - self._begin) / 1e9)
        c.error.append(found.log - math.log(metres))
        c.sigma.append(found.sigma)

    def _fitted(self) -> float:
        paths = np.stack([k.T_local_camera for k in self._keyframes])
        truth = np.stack([self._true[k.stamp_ns] for k in self._keyframes])
        return Similarity.aligning(truth, paths).scale

    def _follow(self, view: View, T_local_camera: Array) -> None:
        """Compares up with the truth, which the newest poses together give."""
        known, start = self.estimate(), time.process_time()
        metres = None if known is None else math.exp(known.log)
        found = self._gravity.follow(view.stamp_ns, view.imu, T_local_camera, metres)
        self._course.up_cost_s.append(time.process_time() - start)
        self._poses.append((T_local_camera, self._true[view.stamp_ns]))
        if found is None:
            return
        path, true = (np.stack(poses) for poses in zip(*self._poses, strict=True))
        up = mean_rotation(path, true) @ [0.0, 0.0, 1.0]
        c = self._course
        c.up_seconds.append((view.stamp_ns - self._begin) / 1e9)
        c.tilt.append(math.acos(min(float(found.up_local @ up), 1.0)))
        c.tilt_sigma.append(found.sigma)


def stamps_of(count: int) -> Array:
    """Returns int64 [N] stamps of frames."""
    return 1_000_000_000 + np.round(1e9 * np.arange(count) / RATE_HZ).astype(np.int64)


def disturbed(T: Array, noise: PoseNoise, seed: int) -> Array:
    """Returns poses [N, 4, 4] with noise, in a frame and a unit of their own."""
    rng, out = np.random.default_rng([seed, 7]), T.copy()
    step = np.linalg.norm(np.diff(T[:, :3, 3], axis=0, prepend=T[:1, :3, 3]), axis=1)
    white = noise.position_m * rng.normal(size=(len(T), 3))
    drift = np.cumsum(noise.drift * step[:, None] * rng.normal(size=(len(T), 3)), axis=0)
    turn = np.radians(noise.rotation_deg) * rng.normal(size=(len(T), 3))
    own = Rotation.random(random_state=seed).as_matrix()
    out[:, :3, :3] = own @ T[:, :3, :3] @ Rotation.from_rotvec(turn).as_matrix()
    out[:, :3, 3] = UNIT * (T[:, :3, 3] + white + drift) @ own.T
    return out


def poses_course(T: Array, at: Array, imu: ImuSamples, noise: PoseNoise, seed: int) -> Course:
    """Runs the estimators alone along a walk [N, 4, 4] with stamps [N]."""
    course = Course()
    filter = Probed(dict(zip(at.tolist(), T, strict=True)), course, 1 / UNIT)
    image = np.zeros((1, 1, 3), np.uint8)
    stretches: list[ImuStretch | None] = [None, *imu.stretches(at)]
    for i, (pose, stretch) in enumerate(zip(disturbed(T, noise, seed), stretches, strict=True)):
        filter.add_motion(View(i, int(at[i]), image, imu=stretch), pose, math.nan)
    return course


def pipeline_course(walk: str, seed: int, count: int, network: str) -> Course:
    """Runs the pipeline with refinement along a rendered walk."""
    camera = SyntheticCamera(seed=seed, size=SIZE, walk=walk, frames=count, rate_hz=RATE_HZ)
    frames, course = list(camera), Course()
    at = np.array([f.stamp_ns for f in frames])
    imu = imu_samples(camera.T_room_camera, at, T_camera_imu=MOUNT, noise=CHIP, seed=seed)
    true = {f.stamp_ns: f.T_room_camera for f in frames}

    class Source(ImuMotion):
        def estimator(self) -> Probed:
            self._filter = Probed(true, course)
            return self._filter

    SCALE_SOURCES["imu"] = Source
    config = config_from_parameters({
        "model": "da3-tiny", "process_res": SIZE[0], "loop.enabled": False, "map.enabled": False,
        "dense.enabled": False, "scale.source": "imu",
    })  # fmt: skip
    session = open_networks(config)[0] if network == "da3-tiny" else None
    pipeline = Pipeline(config, session or TruthSession(frames, noise=PIXELS, seed=seed))
    stretches: list[ImuStretch | None] = [None, *imu.stretches(at)]
    for f, stretch in zip(frames, stretches, strict=True):
        list(pipeline.push(Frame(
            f.stamp_ns, f.image, calibration=camera.calibration, imu=stretch
        )))  # fmt: skip
    list(pipeline.flush())
    return course


def gyro_row(walk: str, seeds: Sequence[int], count: int, imu: bool) -> dict[str, Any]:
    """Returns errors of refined paths with the rotations of an IMU or without."""
    away, turned = [], []
    for seed in seeds:
        camera = SyntheticCamera(seed=seed, size=SIZE, walk=walk, frames=count, rate_hz=RATE_HZ)
        frames = list(camera)
        at = np.array([f.stamp_ns for f in frames])
        samples = imu_samples(camera.T_room_camera, at, T_camera_imu=MOUNT, noise=CHIP, seed=seed)
        config = config_from_parameters({
            "model": "da3-tiny", "process_res": SIZE[0], "loop.enabled": False,
            "map.enabled": False, "dense.enabled": False, "imu.enabled": imu,
        })  # fmt: skip
        pipeline = Pipeline(config, TruthSession(frames, noise=PIXELS, seed=seed))
        stretches: list[ImuStretch | None] = [None, *samples.stretches(at)]
        found = []
        for f, stretch in zip(frames, stretches, strict=True):
            given = stretch if imu else None
            found += pipeline.push(Frame(
                f.stamp_ns, f.image, calibration=camera.calibration, imu=given
            ))  # fmt: skip
        found += pipeline.flush()
        ours = np.array([r.T_odom_map @ r.T_map_camera for r in found])
        true = np.array([f.T_room_camera for f in frames])
        S = Similarity.aligning(true, ours)
        away.append(S.points(ours[:, :3, 3]) - true[:, :3, 3])
        turns = np.swapaxes(S.R @ ours[:, :3, :3], 1, 2) @ true[:, :3, :3]
        turned.append(Rotation.from_matrix(turns).magnitude())
    return {
        "walk": walk, "runs": len(seeds), "imu": "on" if imu else "off",
        "ate_mm": 1e3 * float(np.sqrt(np.mean(np.sum(np.square(away), axis=2)))),
        "rotation_deg": math.degrees(np.mean(turned)),
        "rotation_largest_deg": math.degrees(np.max(turned)),
    }  # fmt: skip


class BentSession(TruthSession):
    """Exact windows, but for a tilt about an axis of the room that grows from view to view."""

    def __init__(self, frames: Sequence[SyntheticFrame], degrees: float) -> None:
        """degrees: from one frame to the next."""
        super().__init__(frames)
        self._axis = {f.stamp_ns: f.T_room_camera[0, :3] for f in frames}  # x, camera axes
        self._step = math.radians(degrees)

    def infer(self, window: Window) -> Prediction:
        """Returns what a network would that bends the way."""
        out = super().infer(window)
        assert out.T_window_camera is not None
        poses, first = out.T_window_camera.copy(), window.views[0].id
        for k, view in enumerate(window.views):
            turn = Rotation.from_rotvec(self._step * (view.id - first) * self._axis[view.stamp_ns])
            poses[k, :3, :3] = poses[k, :3, :3] @ turn.as_matrix()
        return dataclasses.replace(out, T_window_camera=poses)


@dataclass(frozen=True)
class Held:
    """How level a map is, and how good its path."""

    of_map: Array  # [N] tilts, degrees
    published: Array  # [N] of poses as they were published
    square_m2: float  # mean square of the path's errors


def level_row(
    walk: str, seeds: Sequence[int], count: int, degrees: float, fault: str
) -> dict[str, Any]:
    """Returns how level the map and published poses are where a network bends the whole way by
    some degrees. fault: of the IMU, or off."""
    runs = [level_run(walk, seed, count, degrees, fault) for seed in seeds]
    return {
        "walk": walk, "runs": len(seeds), "bend_deg": degrees, "imu": fault,
        "end_deg": float(np.mean([run.of_map[-LAST:].mean() for run in runs])),
        "largest_deg": float(np.max([run.of_map.max() for run in runs])),
        "published_deg": float(np.mean([run.published[-LAST:].mean() for run in runs])),
        "ate_mm": 1e3 * math.sqrt(np.mean([run.square_m2 for run in runs])),
    }  # fmt: skip


def level_run(walk: str, seed: int, count: int, degrees: float, fault: str) -> Held:
    """Runs the pipeline along one walk; arguments as of ``level_row``."""
    # Of a longer walk, so that it does not come back to where windows would see the bend.
    camera = SyntheticCamera(seed, LEVEL_SIZE, walk=walk, frames=count * 5 // 4, rate_hz=RATE_HZ)
    frames = list(itertools.islice(camera, count))
    config = config_from_parameters({
        "model": "da3-tiny", "process_res": LEVEL_SIZE[0], "loop.every": 10**6,
        "dense.enabled": False, "refinement.enabled": False, "keyframe.parallax": 0.03,
        "scale.source": "fixed", "scale.factor": TRUTH_SCALE, "map.remove_movers": False,
        "level.source": "none" if fault == "off" else "imu",
    })  # fmt: skip
    pipeline, found = Pipeline(config, BentSession(frames, degrees / count)), []
    stretches = faulty_imu(camera, frames, seed, fault)
    for f, stretch in zip(frames, stretches, strict=True):
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, imu=stretch)
        found += pipeline.push(frame)
    found += pipeline.flush()
    true = {f.stamp_ns: f.T_room_camera for f in frames}
    path = [(p.T_map_camera, true[p.stamp_ns]) for p in pipeline.map.poses()]
    ours, truth = (np.array(T) for T in zip(*path, strict=True))
    live = [(r.T_map_camera, true[r.stamp_ns]) for r in found]
    R = pipeline.scene_map.T_ros_map[:3, :3]
    if fault == "off":  # level at the beginning
        R = turn_between(ours[0, :3, :3] @ truth[0, 2, :3], np.array([0.0, 0.0, 1.0]))
    S = Similarity.aligning(truth, ours)
    away = S.points(ours[:, :3, 3]) - truth[:, :3, 3]
    return Held(
        tilts_of(R, ours, truth),
        tilts_of(R, *(np.array(T) for T in zip(*live, strict=True))),
        float(np.mean(np.sum(away**2, axis=1))),
    )


def faulty_imu(
    camera: SyntheticCamera, frames: Sequence[SyntheticFrame], seed: int, fault: str
) -> list[ImuStretch | None]:
    """Returns what an IMU measures before each frame."""
    at = np.array([f.stamp_ns for f in frames])
    samples = imu_samples(camera.T_room_camera[: len(at)], at, noise=CHIP, seed=seed)
    if fault == "shakes":
        white = np.random.default_rng(seed).normal(size=samples.acceleration.shape)
        samples = dataclasses.replace(samples, acceleration=samples.acceleration + SHAKE * white)
    stretches = samples.stretches(at)
    if fault == "slips":
        half = len(at) // 2
        stretches = stretches[:half] + samples.stretches(at, SLIPPED)[half:]
    return [None, *stretches]


def tilts_of(R_ros_map: Array, poses: Array, true: Array) -> Array:
    """Returns the angles [N], degrees, between up as poses in the map have it and its z."""
    up = np.einsum("ij,njk,nk->ni", R_ros_map, poses[:, :3, :3], true[:, 2, :3])
    return np.degrees(np.arccos(np.clip(up[:, 2], -1, 1)))


def figures(courses: Sequence[Course]) -> dict[str, Any]:
    """Returns errors of the scale in per cent and of gravity in degrees, over all walks."""
    out: dict[str, Any] = {
        "known_s": float(np.median([c.seconds[0] if c.seconds else math.inf for c in courses]))
    }
    for after in AFTER_S:
        found = [(c, i) for c in courses if (i := c.at(after)) is not None]
        if not found or max(max(c.seconds) for c, _ in found) < after - 1:
            continue
        error = np.array([c.error[i] for c, i in found])
        sigma = np.array([c.sigma[i] for c, i in found])
        out[f"{after} s"] = {
            "known": len(found),
            "error_median": 100 * float(np.median(np.abs(error))),
            "errors": [round(100 * float(e), 3) for e in error],
            "sigmas": [round(100 * float(e), 3) for e in sigma],
            "error_largest": 100 * float(np.abs(error).max()),
            "sigma": 100 * float(np.median(sigma)),
            "nees": float(np.mean((error / sigma) ** 2)),
        } | tilts(courses, after)
    cost = np.concatenate([c.cost_s for c in courses])
    out["cost_ms"] = 1e3 * float(cost.mean())
    out["cost_largest_ms"] = 1e3 * float(cost.max())
    out["up_cost_ms"] = 1e3 * float(np.mean(np.concatenate([c.up_cost_s for c in courses])))
    return out


def tilts(courses: Sequence[Course], after: float) -> dict[str, float]:
    """Returns errors of up in degrees within the last second of a time."""
    error, sigma = (
        np.array([
            value for c in courses for t, value in zip(c.up_seconds, getattr(c, name), strict=True)
            if after - 1 < t <= after + 0.05
        ]) for name in ("tilt", "tilt_sigma")
    )  # fmt: skip
    return {
        "tilt_deg": math.degrees(np.median(error)),
        "tilt_95_deg": math.degrees(np.percentile(error, 95)),
        "tilt_sigma_deg": math.degrees(np.median(sigma)),
        "tilt_nees": float(np.mean((error / sigma) ** 2) / 2),
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per kind of walk and of noise."""
    count = round(options.seconds * RATE_HZ) + 1
    for walk in options.walks:
        seeds = range(100, 100 + options.runs)
        if options.mode == "gyro":
            yield from (gyro_row(walk, seeds, count, imu) for imu in (False, True))
            continue
        if options.mode == "level":
            yield from (level_row(walk, seeds, count, *kind) for kind in LEVELS)
            continue
        if options.mode != "poses":
            courses = [pipeline_course(walk, seed, count, options.mode) for seed in seeds]
            yield {"walk": walk, "runs": options.runs} | figures(courses)
            continue
        ways = [make_walk(make_room(seed), walk, count, seed) for seed in seeds]
        at = stamps_of(count)
        imus = [
            imu_samples(T, at, T_camera_imu=MOUNT, noise=CHIP, seed=seed, late_s=options.late)
            for T, seed in zip(ways, seeds, strict=True)
        ]
        for name, noise in POSES.items():
            courses = [
                poses_course(T, at, imu, noise, seed)
                for T, imu, seed in zip(ways, imus, seeds, strict=True)
            ]
            yield {"walk": walk, "poses": name, "runs": options.runs} | figures(courses)


def euroc(folder: Path) -> tuple[Array, Array, ImuSamples]:
    """Returns true poses [N, 4, 4] of camera 0 at its frames, their stamps [N] and the IMU's
    samples, of a recording in EuRoC's layout."""
    data = folder / "mav0"
    stamps = numbers(data / "cam0/data.csv", np.int64)
    times = numbers(data / "state_groundtruth_estimate0/data.csv", np.int64)
    true = np.loadtxt(data / "state_groundtruth_estimate0/data.csv", delimiter=",")
    mount = yaml.safe_load((data / "cam0/sensor.yaml").read_text())["T_BS"]["data"]
    T_body_camera = np.array(mount, float).reshape(4, 4)
    stamps = stamps[(stamps >= times[0]) & (stamps <= times[-1])]
    since, at = (times - times[0]) / 1e9, (stamps - times[0]) / 1e9
    T = np.tile(np.eye(4), (len(stamps), 1, 1))
    turns = Rotation.from_quat(true[:, [5, 6, 7, 4]])  # w is the first in the file
    T[:, :3, :3] = Slerp(since, turns)(at).as_matrix()
    T[:, :3, 3] = np.column_stack([np.interp(at, since, axis) for axis in true[:, 1:4].T])
    samples = np.loadtxt(data / "imu0/data.csv", delimiter=",")
    unknown = np.full((len(samples), 3), np.nan)
    imu = ImuSamples(
        numbers(data / "imu0/data.csv", np.int64), samples[:, 1:4], samples[:, 4:7],
        unknown, unknown, invert_pose(T_body_camera),
    )  # fmt: skip
    return T @ T_body_camera, stamps, imu


def numbers(file: Path, kind: type) -> Array:
    """Returns the first column of a table; stamps do not fit into a float."""
    return np.loadtxt(file, kind, delimiter=",", usecols=0)


def euroc_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields a row per noise that is added to the true poses."""
    T, at, imu = euroc(folder)
    for name, noise in POSES.items():
        course = poses_course(T, at, imu, noise, 0)
        yield {"walk": folder.name, "poses": name, "runs": 1} | figures([course])


def show(row: dict[str, Any]) -> None:
    """Prints a row of the table."""
    if "imu" in row:
        results_file.show(row)
        return
    head = f"{row['walk']} | {row.get('poses', '')} | {row['known_s']:.1f}"
    cells = [
        f"{v['error_median']:.2f}, {v['error_largest']:.2f} / {v['sigma']:.2f} / {v['nees']:.1f} "
        f"/ {v['tilt_deg']:.2f}, {v['tilt_95_deg']:.2f} / {v['tilt_nees']:.1f} ({v['known']})"
        for k, v in row.items() if k.endswith(" s")
    ]  # fmt: skip
    print(f"| {head} | {' | '.join(cells)} | {row['cost_ms']:.1f}, {row['cost_largest_ms']:.0f} |",
          flush=True)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Runs a mode and prints its table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", nargs="?", default="poses", choices=MODES)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--walks", nargs="+", default=WALKS)
    parser.add_argument("--late", type=float, default=0.0, help="delay of the IMU's stamps, s")
    parser.add_argument("--out", type=Path, help="write JSON")
    parser.add_argument("--euroc", type=Path, help="a recording's folder, instead of walks")
    options = parser.parse_args(arguments)
    found = []
    for row in euroc_rows(options.euroc) if options.euroc else rows(options):
        show(row)
        found.append(row)
    results_file.write(options.out, {"rows": found}, "cpu")


if __name__ == "__main__":
    main(sys.argv[1:])
