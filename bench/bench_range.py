#!/usr/bin/env python3
"""Range sensors in rendered rooms: metres by their returns, and the depth of keyframes with them.

Usage: bench_range.py TABLE [--seeds N ...] [--walks W ...] [--quick] [--out FILE]

``scale``: windows of da3-tiny with refinement, a LiDAR, rain in it, one beam with a cone of two
degrees: frames until metres are known, errors of depth and of the way, and the latter over the
stated deviation. ``depth``: RMSE of keyframes' depth in metres off (no returns) and on, with 64,
500 and 5000 returns per frame, spread evenly over the image. ``mounts``: whether wrong mounts give
metres. ``combined``: as ``scale``, by one beam, an IMU and odometry, alone and together; odometry
has a wheel that is 3 % too large, and errs by 1 % of each step. ``cost``: CPU milliseconds of each
step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from refinement_runs import one_thread
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.derived import measuring
from da3_ros.derived.range_depth import observed, with_returns
from da3_ros.geometry.projection import backproject
from da3_ros.inference import open_networks
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.ranges import CLOUD, read_ranges
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.scale_sources import range as range_source
from da3_ros.scale_sources.range import fit_ranges
from da3_ros.sensors.range_returns import RangeSensors
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.evaluation import resize_nearest
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.range_sensors import RenderedRanges, mount
from da3_ros.types import (
    Array,
    DenseDepth,
    FloatImage,
    Frame,
    ImuNoise,
    PreparedImage,
    RangeCone,
    RangeReturns,
    TrackedFrame,
    View,
    Window,
    WindowEstimate,
)

RATE_HZ = 5.0
MOUNT = mount(0.0, -0.1, -0.05)
HALF_ANGLE = math.radians(2.0)
COUNTS = 64, 500, 5000
RAIN = 0.25  # share of the returns that are drops, 0.3 to 1 m away
MOUNTS = {"right": np.eye(3)} | {
    f"{axis} {angle}": Rotation.from_euler(axis, angle, degrees=True).as_matrix()
    for axis in "xyz" for angle in (90, -90, 180)
}  # fmt: skip
WHEEL, STEP = 0.03, 0.01  # errors of odometry, relative
SOURCES = ("range",), ("imu",), ("odometry",), ("range", "imu"), ("range", "odometry"), (
    "imu", "odometry"), ("range", "imu", "odometry")  # fmt: skip
Sensor = Any  # a function of a frame's number to its returns


class Sensors:
    """The sensors of a walk, by what a frame gets of them."""

    def __init__(self, camera: SyntheticCamera, frames: list[SyntheticFrame]) -> None:
        self._ranges, self._frames = RenderedRanges(camera), frames

    def lidar(self, index: int) -> RangeReturns:
        """Returns of a LiDAR above the camera; the camera stands still during a sweep."""
        points, _ = self._ranges.sweep(MOUNT, index / RATE_HZ, 1e-6)
        return RangeReturns(_in_camera(points))

    def rain(self, index: int) -> RangeReturns:
        """The same with drops before it."""
        rng = np.random.default_rng(index)
        points, _ = self._ranges.sweep(MOUNT, index / RATE_HZ, 1e-6)
        drops = rng.random(len(points)) < RAIN
        near = rng.uniform(0.3, 1.0, int(drops.sum())).astype(np.float32)
        points[drops] *= (near / np.linalg.norm(points[drops], axis=1))[:, None]
        return RangeReturns(_in_camera(points))

    def beam(self, index: int) -> RangeReturns | None:
        """The return of one beam."""
        distance = self._ranges.distance(MOUNT, index / RATE_HZ, HALF_ANGLE)
        if not math.isfinite(distance):
            return None
        axis = MOUNT[:3, :3] @ (1.0, 0.0, 0.0)
        cone = RangeCone(MOUNT[:3, 3], axis, HALF_ANGLE, distance)
        return RangeReturns(np.zeros((0, 3), np.float32), (cone,))

    def even(self, index: int) -> RangeReturns:
        """As many returns as the largest count, spread evenly over the image."""
        frame = self._frames[index]
        points = backproject(frame.depth, frame.K).reshape(-1, 3)
        points = points[np.isfinite(points).all(axis=1)]
        chosen = np.random.default_rng(index).permutation(len(points))[: COUNTS[-1]]
        return RangeReturns(points[chosen])


def _in_camera(points: FloatImage, R: Array | None = None) -> FloatImage:
    out = points @ MOUNT[:3, :3].T + MOUNT[:3, 3]
    out = out if R is None else out @ R.T
    return np.asarray(out[out[:, 2] > 0.05], np.float32)


class Walk:
    """A rendered walk, and the network that sees it."""

    def __init__(self, seed: int, walk: str, options: argparse.Namespace) -> None:
        self.camera = SyntheticCamera(
            seed, options.size, walk=walk, frames=options.frames, rate_hz=RATE_HZ,
            plain=options.plain,
        )  # fmt: skip
        self.frames, self.options = list(self.camera), options
        self.sensors = Sensors(self.camera, self.frames)
        self.by_stamp = {f.stamp_ns: f for f in self.frames}

    def given(self, sources: tuple[str, ...]) -> Any:
        """Returns what frames get of these sources: a function of a frame's number."""
        stamps = np.array([f.stamp_ns for f in self.frames])
        samples = imu_samples(
            self.camera.T_room_camera, stamps, noise=ImuNoise(), seed=self.camera.seed
        )
        stretches = [None, *samples.stretches(stamps)]
        odometry = _odometry(self.camera.T_room_camera, self.camera.seed)
        return lambda i: {
            "returns": self.sensors.beam(i) if "range" in sources else None,
            "imu": stretches[i] if "imu" in sources else None,
            "T_prior_camera": odometry[i] if "odometry" in sources else None,
        }

    def run(self, given: Any, **values: Any) -> tuple[Pipeline, list[TrackedFrame], float]:
        """Returns the pipeline, its frames, and seconds that range sensors took per frame.

        given: fields of a frame by its number.
        """
        config = config_from_parameters({
            "model": "da3-tiny", "process_res": self.options.process_res, "backend": "torch",
            "scale.source": "range", **values,
        })  # fmt: skip
        pipeline, seconds = Pipeline(config, *open_networks(config)), 0.0
        source = pipeline.scale.source
        measure = source.measure

        def timed(*arguments: Any) -> Any:
            nonlocal seconds
            start = time.perf_counter()
            found = measure(*arguments)
            seconds += time.perf_counter() - start
            return found

        source.measure = timed  # type: ignore[method-assign]
        out: list[TrackedFrame] = []
        for i, f in enumerate(self.frames):
            frame = Frame(f.stamp_ns, f.image, calibration=self.camera.calibration)
            out += pipeline.push(replace(frame, **given(i)))
        out += pipeline.flush()
        return pipeline, out, seconds / len(self.frames)

    def scale_row(self, name: str, given: Any, **values: Any) -> dict[str, Any]:
        """Returns the errors of one kind of sensor; given: fields of a frame by its number."""
        pipeline, found, seconds = self.run(given, **{"dense.enabled": False, **values})
        metric = [r for r in found if r.scale.metric and r.posed]
        row = {"sensor": name, "metric_from": None, "ms": 1000 * seconds}
        if not metric:
            return row
        depth = []
        for r in metric:
            truth = resize_nearest(self.by_stamp[r.stamp_ns].depth, r.depth_m.shape)
            with np.errstate(divide="ignore", invalid="ignore"):
                log = np.log(r.depth_m / truth)
            if np.isfinite(log).any():
                depth.append(float(np.median(log[np.isfinite(log)])))
        poses = list(pipeline.scene().poses)
        true = np.array([self.by_stamp[p.stamp_ns].T_room_camera for p in poses])
        way = _way(np.array([p.T_map_camera for p in poses])) / _way(true)
        sigma = metric[-1].scale.sigma
        return row | {
            "metric_from": len(found) - len(metric),
            "depth_error": float(np.median(np.abs(depth))),
            "depth_bias": float(np.median(depth)),
            "way_error": way - 1,
            "sigma": sigma,
            "error_in_sigmas": abs(math.log(way)) / sigma,
        }


def _odometry(T: Array, seed: int) -> Array:
    """Returns poses [N, 4, 4] of the camera by wheels, in the frame of its first pose."""
    rng, out = np.random.default_rng(seed), [np.eye(4)]
    for a, b in itertools.pairwise(T):
        step = np.linalg.inv(a) @ b
        step[:3, 3] *= (1 + WHEEL) * (1 + STEP * rng.normal(size=3))
        out.append(out[-1] @ step)
    return np.array(out)


def returned(sensor: Any) -> Any:
    """Returns a sensor's returns as fields of a frame."""
    return lambda i: {"returns": sensor(i)}


def _way(poses: Array) -> float:
    return float(np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1).sum())


def walks(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Walk]]:
    """Yields the walks, each with its name."""
    for seed in options.seeds:
        for walk in options.walks:
            yield {"room": seed, "walk": walk}, Walk(seed, walk, options)


def scale_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk and sensor."""
    for name, walk in walks(options):
        for sensor in ("lidar", "rain", "beam"):
            yield name | walk.scale_row(sensor, returned(getattr(walk.sensors, sensor)))


def combined_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk and list of sources."""
    for name, walk in walks(options):
        for sources in SOURCES:
            values = {"scale.source": list(sources)}
            row = walk.scale_row(", ".join(sources), walk.given(sources), **values)
            row.pop("ms")  # of one source only
            yield name | row


def mount_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk and mount: what the returns show, and whether there are metres."""
    for name, walk in walks(options):
        for mounted, R in MOUNTS.items():

            def turned(index: int, R: Array = R, walk: Walk = walk) -> RangeReturns:
                points = walk.sensors.lidar(index).points @ R.T
                return RangeReturns(points[points[:, 2] > 0.05].astype(np.float32))

            row = walk.scale_row(mounted, returned(turned))
            yield name | row | {"mount": mounted, "metric": row["metric_from"] is not None}


def depth_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk: errors of keyframes' depth, metres, off and by number of returns."""
    for name, walk in walks(options):
        found: dict[int, dict[str, Any]] = {}

        def spy(keyframe: Any, dense: Any, metres: float, found: Any = found) -> None:
            found[keyframe.id] = {"keyframe": keyframe, "dense": dense, "metres": metres}

        with _spied(spy):
            walk.run(returned(walk.sensors.even))
        rows = [_depth_errors(one, walk) for one in found.values()]
        yield (
            name
            | {"keyframes": len(rows)}
            | {key: float(np.mean([r.get(key, 0.0) for r in rows])) for key in rows[0]}
        )


@contextlib.contextmanager
def _spied(spy: Any) -> Iterator[None]:
    """Calls a function with the keyframe, its depth by images and metres per unit of each keyframe
    that is measured."""
    by_images = measuring.MeasureJob._by_images

    def spied(job: Any, id: int, searches: Any) -> Any:
        one = by_images(job, id, searches)
        if id in job.placed and math.isfinite(job.metres):
            spy(one.keyframe, one.dense, job.metres * job.placed[id].unit)
        return one

    measuring.MeasureJob._by_images = spied  # type: ignore[method-assign]
    try:
        yield
    finally:
        measuring.MeasureJob._by_images = by_images  # type: ignore[method-assign]


def _depth_errors(one: dict[str, Any], walk: Walk) -> dict[str, float]:
    keyframe, dense, metres = one["keyframe"], one["dense"], one["metres"]
    truth = resize_nearest(walk.by_stamp[keyframe.stamp_ns].depth, keyframe.depth.shape)
    off = keyframe.depth if dense is None else dense.depth
    out = {"off": _rmse(metres * off, truth), "measured_by_images": float(dense is not None)}
    if dense is not None:
        out["share"] = float(dense.measured.mean())
        out["in_sigmas_off"] = _in_sigmas(dense, metres, truth)
    for count in COUNTS:
        start = time.perf_counter()
        returns = observed(keyframe.returns[:count], keyframe.K, keyframe.depth, metres)
        on, _ = with_returns(keyframe.depth, dense, returns)
        out[f"ms_{count}"] = 1000 * (time.perf_counter() - start)
        assert on is not None
        out[f"on_{count}"] = _rmse(metres * on.depth, truth)
        out[f"in_sigmas_{count}"] = _in_sigmas(on, metres, truth)
    return out


def _in_sigmas(dense: DenseDepth, metres: float, truth: FloatImage) -> float:
    """Returns the RMS of errors over stated deviations, of pixels that are not measured."""
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(np.log(metres * dense.depth / truth)) / dense.sigma
    rest = np.isfinite(error) & ~dense.measured
    return float(np.sqrt(np.mean(np.minimum(error[rest], 10) ** 2)))


def _rmse(depth: FloatImage, truth: FloatImage) -> float:
    known = np.isfinite(depth) & np.isfinite(truth)
    return float(np.sqrt(np.mean((depth[known] - truth[known]) ** 2)))


def cost_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per size of a cloud: CPU milliseconds of each step, images of 224x168."""
    camera = SyntheticCamera(3, (224, 168), walk="loop", frames=4, rate_hz=RATE_HZ)
    frame, stamp = camera[2], camera[2].stamp_ns
    tree = TransformTree()
    tree.add("camera", "lidar", MOUNT, 0, static=True)
    for i, T in enumerate(camera.T_room_camera):
        tree.add("odom", "camera", T, camera[i].stamp_ns)
    ready = PreparedImage(224, frame.image, frame.image, frame.K, None)
    image = Frame(stamp, frame.image, "camera", ready=ready)
    for rows, columns in ((32, 360), (128, 1008)):
        points, times = RenderedRanges(camera).sweep(
            MOUNT, 2 / RATE_HZ, 0.1, rows=rows, columns=columns
        )
        cloud = build.timed_cloud(RosbagsLibrary(), stamp, "lidar", points, 1e9 * times)
        scan = read_ranges(CLOUD, cloud)
        sensors = RangeSensors(["lidar"], tree, "odom", lambda text, every_s=0: None)
        sensors.topics["lidar"].add(stamp, lambda scan=scan: scan, 1)  # type: ignore[misc]
        returns = sensors.at(image)
        assert returns is not None
        view = View(0, stamp, frame.image, frame.K, returns=returns)
        depth, K = frame.depth[None], frame.K[None]
        estimate = WindowEstimate(depth, depth, np.eye(4)[None], K)
        steps = {
            "decode": lambda cloud=cloud: read_ranges(CLOUD, cloud),
            "place": lambda sensors=sensors: sensors.at(image),
            "scale": lambda view=view, e=estimate: fit_ranges(Window(0, (view,), 1), e),
            "keyframe": lambda r=returns: with_returns(
                frame.depth, None, observed(r.points, frame.K, frame.depth, 1.0)
            ),
        }
        yield {"points": len(points), "returns": len(returns.points)} | {
            f"{name}_ms": _cpu_ms(step) for name, step in steps.items()
        }


def _cpu_ms(step: Any, times: int = 10) -> float:
    step()
    start = time.process_time()
    for _ in range(times):
        step()
    return 1000 * (time.process_time() - start) / times


TABLES = {
    "scale": scale_rows, "combined": combined_rows, "depth": depth_rows, "mounts": mount_rows,
    "cost": cost_rows,
}  # fmt: skip


def main() -> int:
    """Prints a row for each run, and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", choices=tuple(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[3, 5, 37])
    parser.add_argument("--walks", nargs="+", default=["loop", "handheld"])
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--process-res", type=int, default=224)
    parser.add_argument("--plain", action="store_true", help="bare walls")
    parser.add_argument("--quick", action="store_true", help="tiny: whether it runs at all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.size = (280, 210)
    if options.quick:
        options.seeds, options.walks, options.frames = [3], ["loop"], 24
        options.process_res, options.size = 112, (112, 84)
    one_thread()
    logging.getLogger(range_source.__name__).setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    for row in TABLES[options.table](options):
        rows.append(row)
        results_file.show(row)
        results_file.write(options.out, {"rows": rows}, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
