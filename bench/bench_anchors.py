#!/usr/bin/env python3
"""Global poses (tags, GNSS, docks) that hold the map of a walk: errors and honesty.

Usage: bench_anchors.py truth|da3-tiny [--scale SOURCE] [--rooms N ...] [--frames N] [--out FILE]

The whole pipeline along a corridor round a block, by default less than one lap, so that no loop
closes: on exact windows with noise (``NOISE``), or on da3-tiny with refinement. What is up is that
of a rover, and metres are: odometry that errs by 2 % per root metre. ``none``: without global
poses, in the frame of the true first pose. ``tags``: each 5 s, 2 cm and 1 degree; ``often``: each
second. ``GNSS``: each second, 0.5 m along the ground and 1 m in height, no orientation. ``docks``:
within the first and last second, 1 cm and half a degree. ``a wrong tag``: as tags, of which one in
the middle is 2 m off.

``live``: published poses from the 2 s after the map was first placed on, RMS. ``path``: all of the
path at the end, RMS. No error is aligned. NEES: mean square error over the stated variance, per
degree of freedom, of live poses: 1 is honest, less is cautious. ``way``: error of the length of
the path; ``sigma``: what the scale states at the end; ``known``: when it was known.

With ``--scale global_pose`` metres are those of the global poses, without odometry.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from refinement_runs import one_thread
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import T_ROS_MAP, invert_pose
from da3_ros.inference import open_networks
from da3_ros.mapping.anchors import about_z
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.calibration import pinhole_calibration
from da3_ros.synthetic import intrinsics, make_ring, render, ring_walk
from da3_ros.synthetic.odometry import DriftingOdometry, base_below
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import UNKNOWN_RAD2, Array, Frame, GlobalPose, Image, TrackedFrame

MODES = ("truth", "da3-tiny")
RATE_HZ, SETTLED_S = 5.0, 2.0
SIZES = {"truth": (84, 70), "da3-tiny": (224, 168)}
NOISE = Noise(0.02, 0.03, 0.01, 0.2, 0.003)
ODOMETRY = {"noise_m": 0.02, "noise_deg": 0.2}
MOUNT = np.eye(4)
MOUNT[:3, :3] = T_ROS_MAP[:3, :3]  # optical axes on a base with x forward
MOUNT[:3, 3] = 0.2, 0.0, 0.5
GLOBAL = np.eye(4)  # the room where the global poses have it
GLOBAL[:3, :3] = Rotation.from_euler("z", 0.7).as_matrix()
GLOBAL[:3, 3] = 30.0, -20.0, 1.0


@dataclass(frozen=True)
class Anchors:
    """A kind of global poses. deg: 0 for one without an orientation."""

    every_s: float
    ground_m: float
    height_m: float
    deg: float
    at_ends: bool = False
    off_m: float = 0.0  # by which the one in the middle is wrong

    def times(self, count: int) -> list[int]:
        """Returns the indices of the frames of a walk that have one."""
        if self.at_ends:
            return [2, 5, count - 5, count - 2]
        step = round(self.every_s * RATE_HZ)
        return list(range(min(step, 10), count, step))


KINDS = {
    "none": None,
    "tags": Anchors(5.0, 0.02, 0.02, 1.0),
    "often": Anchors(1.0, 0.02, 0.02, 1.0),
    "GNSS": Anchors(1.0, 0.5, 1.0, 0.0),
    "docks": Anchors(0.0, 0.01, 0.01, 0.5, at_ends=True),
    "a wrong tag": Anchors(5.0, 0.02, 0.02, 1.0, off_m=2.0),
}
USUAL = ("none", "tags", "GNSS", "docks", "a wrong tag")


@dataclass(frozen=True, eq=False)
class Walk:
    """A rendered walk along a corridor."""

    room: int
    frames: list[Truth]
    images: list[Image]

    @staticmethod
    def of(room: int, count: int, laps: float, size: tuple[int, int]) -> Walk:
        """Renders the walk of a room."""
        ring = make_ring(room)
        poses, K = ring_walk(ring, count, laps), intrinsics(size, 70.0)
        frames, images = [], []
        for first in range(0, count, 20):
            seen = render(ring, poses[first : first + 20], K, size)
            for i, depth in enumerate(np.asarray(seen.depth), first):
                frames.append(Truth(round(1e9 * (1 + i / RATE_HZ)), depth, poses[i], K))
            images += list(np.asarray(seen.image))
        return Walk(room, frames, images)

    def true(self, i: int) -> Array:
        """Returns the true pose [4, 4] of a frame's camera in the map of the global poses."""
        return np.asarray(GLOBAL @ self.frames[i].T_room_camera)

    def anchors(self, kind: Anchors | None) -> dict[int, GlobalPose]:
        """Returns global poses with errors, by the index of the frame that they are of."""
        rng, out = np.random.default_rng([self.room, 5]), {}
        if kind is None:
            return out
        at = kind.times(len(self.frames))
        sigmas = np.array([kind.ground_m, kind.ground_m, kind.height_m])
        turn = math.radians(kind.deg)
        for i in at:
            T = self.true(i) @ invert_pose(MOUNT)
            T[:3, 3] += sigmas * rng.standard_normal(3)
            if i == at[len(at) // 2]:
                T[:3, 3] += kind.off_m * np.array([0.8, 0.6, 0.0])
            R = Rotation.from_rotvec(turn * rng.standard_normal(3)).as_matrix()
            T[:3, :3] = R @ T[:3, :3] if turn else np.eye(3)
            known = np.full(3, turn**2 or UNKNOWN_RAD2)
            covariance = np.diag(np.concatenate((sigmas**2, known)))
            out[i] = GlobalPose(self.frames[i].stamp_ns, T, covariance, MOUNT)
        return out


@dataclass(frozen=True, eq=False)
class Live:
    """A published pose: in the map of the global poses, with its errors."""

    T: Array  # [4, 4] of the camera
    result: TrackedFrame
    placed: bool  # whether global poses had placed the map


def run(
    walk: Walk, mode: str, scale: str, anchors: dict[int, GlobalPose]
) -> tuple[Pipeline, list[Live]]:
    """Returns the pipeline after a walk, and its published poses."""
    size = SIZES[mode]
    values = {"process_res": size[0], "scale.source": scale, "dense.enabled": False}
    if mode == "truth":
        values |= {"refinement.enabled": False, "hold_when_blind": False}
    config = config_from_parameters(values | {"model": "da3-tiny", "map.remove_movers": False})
    exact = TruthSession(walk.frames, noise=NOISE, seed=walk.room)
    pipeline = Pipeline(config, exact if mode == "truth" else open_networks(config)[0])
    lens = pinhole_calibration(walk.frames[0].K, size)
    robot = DriftingOdometry(walk.frames[0].T_room_camera, seed=walk.room, **ODOMETRY)
    out: list[Live] = []
    for i, (f, image) in enumerate(zip(walk.frames, walk.images, strict=True)):
        robot.move(f.T_room_camera, 1 / RATE_HZ)
        frame = Frame(
            f.stamp_ns, image, calibration=lens, T_prior_camera=robot.T_odom_camera.copy(),
            T_level_camera=invert_pose(base_below(f.T_room_camera)) @ f.T_room_camera,
            anchors=(anchors[i - 1],) if i - 1 in anchors else (),  # it comes a frame late
        )  # fmt: skip
        for r in pipeline.push(frame):
            held = pipeline.scene_map
            out.append(Live(held.T_ros_map @ r.T_map_camera, r, held.anchoring.placed))
    pipeline.flush()
    return pipeline, out


def figures(walk: Walk, pipeline: Pipeline, live: Sequence[Live]) -> dict[str, Any]:
    """Returns the errors of one walk, to be joined."""
    index = {f.stamp_ns: i for i, f in enumerate(walk.frames)}
    anchored = pipeline.scene_map.anchoring.placed
    first = next((n for n, one in enumerate(live) if one.placed or not anchored), len(live))
    shift = np.eye(4)
    if not anchored:  # the map begins where the first camera is
        one = next((x for x in live if x.result.scale.metric), live[0])
        shift = walk.true(index[one.result.stamp_ns]) @ invert_pose(one.T)
    found: dict[str, list[float]] = {name: [] for name in ("m", "deg", "nees", "heading_nees")}
    for one in live[first + round(SETTLED_S * RATE_HZ) :]:
        if not (one.result.posed and one.result.scale.metric):
            continue
        true, T = walk.true(index[one.result.stamp_ns]), shift @ one.T
        error, turn = T[:3, 3] - true[:3, 3], _heading(T, true)
        found["m"].append(float(np.linalg.norm(error)))
        found["deg"].append(math.degrees(turn))
        stated = one.result.covariance_map
        if stated is not None:
            R = T[:3, :3] @ one.result.T_map_camera[:3, :3].T
            C, H = R @ stated[:3, :3] @ R.T, R @ stated[3:, 3:] @ R.T
            found["nees"].append(float(error @ np.linalg.solve(C, error)) / 3)
            found["heading_nees"].append(turn**2 / H[2, 2])
    metric = [one.result for one in live if one.result.scale.metric]
    found["known_s"] = [(r.stamp_ns - live[0].result.stamp_ns) / 1e9 for r in metric[:1]]
    found["scale_sigma"] = [r.scale.sigma for r in metric[-1:]]
    return found | _path(walk, pipeline, shift, index)


def _path(
    walk: Walk, pipeline: Pipeline, shift: Array, index: dict[int, int]
) -> dict[str, list[float]]:
    """Returns errors of the path at the end."""
    poses = list(pipeline.scene().poses)
    ours = [shift @ pipeline.scene_map.T_ros_map @ p.T_map_camera for p in poses]
    true = [walk.true(index[p.stamp_ns]) for p in poses]
    pairs = list(zip(ours, true, strict=True))
    ways = [np.diff([T[:3, 3] for T in all_], axis=0) for all_ in (ours, true)]
    a, b = (float(np.linalg.norm(way, axis=1).sum()) for way in ways)
    return {
        "path_m": [float(np.linalg.norm(T[:3, 3] - t[:3, 3])) for T, t in pairs],
        "path_deg": [math.degrees(_heading(T, t)) for T, t in pairs],
        "way_error": [a / b - 1],
    }


def _heading(T: Array, true: Array) -> float:
    """Returns the error of the heading, rad."""
    R = about_z(T[:3, :3] @ true[:3, :3].T)
    return math.atan2(R[1, 0], R[0, 0])


def row(mode: str, scale: str, kind: str, walks: Sequence[Walk]) -> dict[str, Any]:
    """Returns the figures of a kind of global poses, over all walks."""
    joined: dict[str, list[float]] = {}
    counts = np.zeros(3, int)
    for walk in walks:
        pipeline, live = run(walk, mode, scale, walk.anchors(KINDS[kind]))
        for name, values in figures(walk, pipeline, live).items():
            joined.setdefault(name, []).extend(values)
        count = pipeline.counters
        counts += len(pipeline.snapshot().anchors), count["anchors_wrong"], count["anchors"]
    out = {
        "windows": mode, "scale": scale, "kind": kind, "walks": len(walks),
        "metric_walks": len(joined["known_s"]),
        "known_s": max(joined["known_s"], default=math.nan),
        "scale_sigma": _rms(joined["scale_sigma"]),
        **{f"live_{name}": _rms(joined[name]) for name in ("m", "deg")},
        "live_largest_m": max(joined["m"], default=math.nan),
        **{name: _rms(joined[name]) for name in ("path_m", "path_deg", "way_error")},
        "path_largest_m": max(joined["path_m"]),
        **{name: _mean(joined[name]) for name in ("nees", "heading_nees")},
        "come": int(counts[2]), "used": int(counts[0]), "wrong": int(counts[1]),
    }  # fmt: skip
    return {k: v for k, v in out.items() if v == v}  # without NaN: nothing to be compared


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per kind of global poses."""
    size = SIZES[options.mode]
    walks = [Walk.of(room, options.frames, options.laps, size) for room in options.rooms]
    for kind in options.kinds:
        yield row(options.mode, options.scale, kind, walks)


def main(arguments: list[str]) -> None:
    """Prints a row for each kind, and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--scale", choices=("odometry", "global_pose"), default="odometry")
    parser.add_argument("--rooms", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=USUAL)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--laps", type=float, default=0.95)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    one_thread()
    logging.getLogger("da3_ros").setLevel(logging.ERROR)
    found = []
    for one in rows(options):
        found.append(one)
        results_file.show(one)
        results_file.write(options.out, {"rows": found}, "cpu")


if __name__ == "__main__":
    main(sys.argv[1:])
