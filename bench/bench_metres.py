#!/usr/bin/env python3
"""What each source of metres costs per frame, of one core (docs/figures.md, side by side).

Usage: bench_metres.py [--runs N] [--frames N] [--out FILE]. The pipeline with refinement and exact
windows, in a rendered room, 224 x 168 pixels; no network runs, and no map is built. Sources take
turns, in one process. A row is the time of the thread in what a source alone needs: its
measurements and its estimate of the scale, depth by tracks at returns, global poses in the map.
``share``: of all of the pipeline's time for a frame without a source, which has no network.
"""

from __future__ import annotations

import argparse
import functools
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from refinement_runs import one_thread

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.pipeline import window_steps
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.range_sensors import RenderedRanges, mount
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame, GlobalPose, RangeCone, RangeReturns

SIZE, RATE_HZ, ROOM = (224, 168), 5.0, 5
NOISE = Noise(0.02, 0.03, 0.01, 0.2, 0.003)
MOUNT, HALF_ANGLE = mount(0.0, -0.1, -0.05), math.radians(2.0)
NAMES, BASELINE_M = ("front", "left"), 0.3
Timed = Callable[..., Any]


@dataclass
class Clock:
    """Seconds of the thread in some functions, by frame."""

    seconds: list[float] = field(default_factory=list)
    _inside: bool = False

    def timed(self, function: Timed) -> Timed:
        """Returns the function, whose time counts for the newest frame."""

        @functools.wraps(function)
        def run(*arguments: Any, **values: Any) -> Any:
            if self._inside:
                return function(*arguments, **values)
            start, self._inside = time.thread_time(), True
            try:
                return function(*arguments, **values)
            finally:
                self._inside = False
                self.seconds[-1] += time.thread_time() - start

        return run

    def watch(self, pipeline: Pipeline) -> None:
        """Times what sources of metres and global poses need of a pipeline."""
        scene_map, refiner = pipeline.scene_map, pipeline.refinement.refiner
        for source in scene_map.scale.source.members:
            source.measure = self.timed(source.measure)  # type: ignore[method-assign]
        for owner, name in (
            (scene_map.scale, "update"), (scene_map, "hold_by_anchors"),
            (scene_map, "hold_by_scale"), (refiner, "_by_tracks"),
        ):  # fmt: skip
            setattr(owner, name, self.timed(getattr(owner, name)))


class Room:
    """A rendered walk of two cameras, with what each source needs of a frame."""

    def __init__(self, frames: int) -> None:
        self.cameras = {
            name: SyntheticCamera(
                ROOM, SIZE, walk="loop", frames=frames, rate_hz=RATE_HZ,
                mount=rig_mount(i, BASELINE_M, 0.0),
            )
            for i, name in enumerate(NAMES)
        }  # fmt: skip
        self.frames = {name: list(camera) for name, camera in self.cameras.items()}
        self._ranges = RenderedRanges(self.cameras[NAMES[0]])

    def given(self, name: str, i: int, robot: DriftingOdometry) -> dict[str, Any]:
        """Returns what a frame gets for a source, by its number."""
        f = self.frames[NAMES[0]][i]
        if name.startswith("range"):
            return {"returns": self._returns(i, lidar="LiDAR" in name)}
        robot.move(f.T_room_camera, 1 / RATE_HZ)
        out: dict[str, Any] = {}
        if name.startswith(("odometry", "global")):
            out["T_prior_camera"] = robot.T_odom_camera.copy()
        if name.startswith("global") and i % int(RATE_HZ) == 0:
            on_base = np.eye(4)
            on_base[:3, :3] = T_ROS_MAP[:3, :3]
            T = f.T_room_camera @ np.linalg.inv(on_base)
            out["anchors"] = (GlobalPose(f.stamp_ns, T, 4e-4 * np.eye(6), on_base),)
        return out

    def _returns(self, i: int, *, lidar: bool) -> RangeReturns:
        if lidar:
            points, _ = self._ranges.sweep(MOUNT, i / RATE_HZ, 1e-6)
            points = points @ MOUNT[:3, :3].T + MOUNT[:3, 3]
            return RangeReturns(np.asarray(points[points[:, 2] > 0.05], np.float32))
        distance = self._ranges.distance(MOUNT, i / RATE_HZ, HALF_ANGLE)
        cone = RangeCone(MOUNT[:3, 3], MOUNT[:3, 0], HALF_ANGLE, distance)
        return RangeReturns(np.zeros((0, 3), np.float32), (cone,))


SOURCES = {
    "none": {"scale.source": "none"},
    "odometry": {"scale.source": "odometry"},
    "rig, 0.3 m": {"scale.source": "rig", "cameras": list(NAMES)},
    "range, LiDAR": {"scale.source": "range"},
    "range, one beam": {"scale.source": "range"},
    "global poses, one a second": {"scale.source": "odometry"},
}


def run(room: Room, name: str) -> tuple[list[float], float]:
    """Returns the seconds of a source in each frame, and those of all of the walk per frame."""
    values = SOURCES[name]
    names = NAMES if "cameras" in values else NAMES[:1]
    config = config_from_parameters({
        "model": "da3-tiny", "process_res": SIZE[0], "dense.enabled": False,
        "map.remove_movers": False, "window.size": 4 * len(names), **values,
    })  # fmt: skip
    truth = {name: room.frames[name] for name in names}
    session = TruthSession(truth if len(names) > 1 else truth[names[0]], noise=NOISE)
    pipeline, clock = Pipeline(config, session), Clock()
    clock.watch(pipeline)
    by_prior = window_steps.unit_by_prior
    window_steps.unit_by_prior = clock.timed(by_prior)
    robot = DriftingOdometry(room.frames[NAMES[0]][0].T_room_camera, noise_m=0.02, noise_deg=0.5)
    start = time.thread_time()
    given_s = 0.0
    try:
        for i in range(len(room.frames[NAMES[0]])):
            clock.seconds.append(0.0)
            begun = time.thread_time()
            given = room.given(name, i, robot)
            given_s += time.thread_time() - begun
            frames = [
                Frame(
                    room.frames[camera][i].stamp_ns, room.frames[camera][i].image,
                    camera=camera if len(names) > 1 else "",
                    calibration=room.cameras[camera].calibration,
                    T_rig_camera=rig_mount(k, BASELINE_M, 0.0) if len(names) > 1 else None,
                    **given,
                )
                for k, camera in enumerate(names)
            ]  # fmt: skip
            list(pipeline.push(*frames))
    finally:
        window_steps.unit_by_prior = by_prior
    whole = time.thread_time() - start - given_s
    return clock.seconds, whole / len(clock.seconds)


def main(arguments: list[str]) -> None:
    """Prints a row for each source, and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    one_thread()
    logging.getLogger("da3_ros").setLevel(logging.ERROR)
    room = Room(options.frames)
    seconds: dict[str, list[float]] = {name: [] for name in SOURCES}
    whole: dict[str, list[float]] = {name: [] for name in SOURCES}
    for _ in range(options.runs):
        for name in SOURCES:
            of_source, of_frame = run(room, name)
            seconds[name] += of_source
            whole[name].append(of_frame)
    frame_s = float(np.median(whole["none"]))
    rows = [
        {
            "source": name, "ms": 1e3 * float(np.mean(found)),
            "extra_ms": 1e3 * float(np.mean(found) - np.mean(seconds["none"])),
            "largest_ms": 1e3 * max(found),
            "share": float(np.mean(found) - np.mean(seconds["none"])) / frame_s,
            "frame_ms": 1e3 * float(np.median(whole[name])),
        }
        for name, found in seconds.items()
    ]  # fmt: skip
    for row in rows:
        results_file.show(row)
    results_file.write(options.out, {"rows": rows}, "cpu")


if __name__ == "__main__":
    main(sys.argv[1:])
