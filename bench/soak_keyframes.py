"""Soak test: the whole pipeline with a store over 100 000 frames and 3 km, in little memory.

    python bench/soak_keyframes.py --out bench/results/soak-keyframes.json

A camera looks at the wall of a corridor, for half of the way out and then back to its start. The
network is the truth with noise and a made-up descriptor; everything else is what a node runs:
alignment, map, loops, keyframes on the disk; ``--refine`` adds the refinement, for which such
small images are too coarse (the scale drifts). Memory is the process's own (without mapped files),
at even steps; its growth is the slope of the second half (``growth``), as is that of the time per
frame. At the end the scene is exported, and its points are held against the
corridor's walls. The exit code is 1 if memory or time grew, or if the export lacks a part of the
way.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import math
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import results_file
import trimesh
from growth import measure_growth

from da3_ros.config import config_from_parameters
from da3_ros.export.export import export_scene
from da3_ros.export.selection import Selection
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.replay.object_state import save_state
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import Array, Calibration, Frame, Image, Prediction, Window

SIZE = (98, 70)
K = np.array([[70.0, 0, 49], [0, 70.0, 35], [0, 0, 1]])
STEP_M, STEP_NS = 0.03, 33_000_000
HALF_WIDTH, HEIGHT = 2.0, 2.8  # of the corridor, metres
FAR = 12.0  # metres beyond which nothing is seen
CELL = 0.25  # of the texture, metres
HEADING = np.radians(60)  # of the camera, from the way to the wall
NOISE = Noise(0.01, 0.002, 0.002, 0.05, 0.001)
SAMPLES = 60
LOOKED_AT = 2_000_000  # exported points that are held against the walls
# Tolerated over the whole run: the table of poses fills up (15 MB at 100 000, then it is thinned),
# and each of ten thousand submaps keeps a kilobyte.
GROWTH = {"mb": 0.1, "ms": 0.05}
SETTINGS = {
    "process_res": 98, "model": "da3-tiny", "checkpoint": "random", "window.size": 10,
    "window.new": 6, "map.voxel_m": 0.05, "map.memory_mb": 64, "scale.source": "none",
}  # fmt: skip


class Corridor(TruthSession):
    """The truth of frames that are rendered when they are asked for."""

    def __init__(self, frames: int) -> None:
        super().__init__([], noise=NOISE)
        self.frames, self.loops = frames, 0
        self._rays = _rays()
        self._waves = np.random.default_rng(5).normal(size=(3, 64))

    def pose(self, number: int) -> Array:
        """Returns the pose [4, 4] of a frame in the room, z up: out, and back."""
        turned = min(number, self.frames - number)
        yaw = HEADING + 0.05 * np.sin(0.002 * turned)
        c, s = np.cos(yaw), np.sin(yaw)
        T = np.eye(4)
        T[:3, :3] = np.array([[s, 0, c], [-c, 0, s], [0, -1, 0]])  # right, down, ahead
        T[:3, 3] = STEP_M * turned, 0.3 * np.sin(0.001 * turned), 1.4
        return T

    def frame(self, number: int) -> tuple[Image, Truth]:
        """Returns the image and the truth of a frame."""
        T = self.pose(number)
        rays = self._rays @ T[:3, :3].T
        with np.errstate(divide="ignore"):
            wall = (np.sign(rays[:, 1]) * HALF_WIDTH - T[1, 3]) / rays[:, 1]
            level = np.where(rays[:, 2] > 0, HEIGHT - T[2, 3], -T[2, 3]) / rays[:, 2]
        on_wall = wall < level
        depth = np.where(on_wall, wall, level)
        at = T[:3, 3] + depth[:, None] * rays
        along = np.where(on_wall, at[:, 2], at[:, 1])
        plane = np.where(on_wall, np.sign(rays[:, 1]), 2 * np.sign(rays[:, 2]))
        grey = _texture(at[:, 0] / CELL, along / CELL, plane.astype(np.int64))
        # What is finer than a pixel fades: it would look like a pattern that moves by itself.
        slope = np.abs(np.where(on_wall, rays[:, 1], rays[:, 2])) / np.linalg.norm(rays, axis=1)
        pixel = depth / K[0, 0] / np.maximum(slope, 0.05)
        grey = 127 + (grey - 127) * np.exp(-((pixel / (0.3 * CELL)) ** 2))
        image = np.repeat(grey.astype(np.uint8)[:, None], 3, axis=1)
        depth = np.where(depth < FAR, depth, np.inf).reshape(SIZE[::-1])
        truth = Truth((number + 1) * STEP_NS, depth, T, K)
        return image.reshape(*SIZE[::-1], 3), truth

    def infer(self, window: Window) -> Prediction:
        """Returns the truth of the window, and what its places look like."""
        self.loops += window.new == 0
        stamps = {view.stamp_ns for view in window.views}
        self._frames = {("", s): self.frame(s // STEP_NS - 1)[1] for s in stamps}
        found = super().infer(window)
        places = [self.pose(view.stamp_ns // STEP_NS - 1)[:3, 3] for view in window.views]
        descriptor = np.cos(np.array(places) * [0.7, 1, 1] @ self._waves)
        return Prediction(**{**vars(found), "descriptor": descriptor.astype(np.float32)})


def _rays() -> Array:
    """Returns the rays [H * W, 3] of all pixels, z = 1."""
    row, column = np.mgrid[: SIZE[1], : SIZE[0]].reshape(2, -1) + 0.5
    return np.stack((column, row, np.ones(len(row))), axis=1) @ np.linalg.inv(K).T


def _texture(u: Array, v: Array, plane: Array) -> Array:
    """Returns grey values [M] that are smooth between the points of a grid."""
    i, j = np.floor(u).astype(np.int64), np.floor(v).astype(np.int64)
    a, b = u - i, v - j
    grey = np.zeros(len(u))
    for di, dj in ((0, 0), (0, 1), (1, 0), (1, 1)):
        key = (i + di) * 73856093 ^ (j + dj) * 19349663 ^ plane * 83492791
        key = (key ^ key >> 13) * 1274126177
        grey += (a if di else 1 - a) * (b if dj else 1 - b) * ((key ^ key >> 16) & 255)
    return grey


def trim() -> None:
    """Gives free memory back to the system, where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def own_mb() -> float:
    """Returns the memory of this process without mapped files, MB."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    return int(fields["RssAnon"].split()[0]) / 1024


def run(
    frames: int, folder: Path, *, refine: bool
) -> tuple[Pipeline, dict, dict[str, list[float]]]:
    """Runs the pipeline; returns it, what it did, and series of memory and time."""
    session = Corridor(frames)
    settings = {**SETTINGS, "refinement.enabled": refine}
    pipeline = Pipeline(config_from_parameters(settings), session)
    recorder = KeyframeRecorder(folder, counters=pipeline.counters, wait=True)
    spill = ArraySpill(folder)
    pipeline.scene_map.record(KeyframeRecording(recorder), spill)
    lens = Calibration(*SIZE, K - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    series: dict[str, list[float]] = {"mb": [], "ms": [], "untrimmed_mb": []}
    each, spent, start = max(1, frames // SAMPLES), 0.0, time.perf_counter()
    for number in range(frames):
        image, truth = session.frame(number)
        before = time.thread_time()
        for _ in pipeline.push(Frame(truth.stamp_ns, image, calibration=lens)):
            pass
        spent += time.thread_time() - before
        if (number + 1) % each == 0:
            series["untrimmed_mb"].append(own_mb())
            trim()  # what is free, in pieces between what is not, would count else
            series["mb"].append(own_mb())
            series["ms"].append(1e3 * spent / each)
            spent = 0.0
            show(pipeline, number + 1, series, time.perf_counter() - start)
    list(pipeline.flush())
    pipeline.scene_map.finish_recording()
    found = {
        "refine": refine, "frames": frames, "km": frames * STEP_M / 1000,
        "seconds": time.perf_counter() - start,
        "keyframes": pipeline.counters["keyframes_stored"], "points": len(pipeline.map),
        "map_mb": pipeline.map.nbytes / 2**20, "spilled_mb": spill.size / 2**20,
        "loops_closed": pipeline.loops.closed, "loops_looked_at": session.loops,
        "chains": pipeline.map.table.chain + 1,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    return pipeline, found, series


def show(pipeline: Pipeline, number: int, series: dict[str, list[float]], seconds: float) -> None:
    print(
        f"{number} frames, {seconds:.0f} s: {series['mb'][-1]:.0f} MB, "
        f"{series['ms'][-1]:.1f} ms per frame, {len(pipeline.map) / 1e6:.2f} million points, "
        f"{pipeline.loops.closed} loops",
        flush=True,
    )


def coverage(pipeline: Pipeline, frames: int, path: Path) -> tuple[float, list[list[float]]]:
    """Returns the share of the way, in steps of 10 m, on which an exported cloud has points that
    lie on the walls; and the other steps, with their number of points and median distance from
    the walls, metres.

    The map has its own frame, unit and drift; the pose of the nearest keyframe relates both.
    """
    xyz = np.asarray(trimesh.load(path).vertices)
    poses = pipeline.poses()
    session = pipeline.session
    assert isinstance(session, Corridor)
    numbers = poses.rows["stamp_ns"] // STEP_NS - 1
    steps = np.arange(0, STEP_M * frames / 2 - 10, 10.0)
    missed = []
    for step in steps:
        at = int(np.argmin(np.abs(numbers - (step + 5) / STEP_M)))
        near = slice(max(0, at - 100), at + 100)
        ours = poses.rows["T"][near, :, 3] @ pipeline.scene_map.T_ros_map[:3, :3].T
        ours += pipeline.scene_map.T_ros_map[:3, 3]
        true = np.array([session.pose(int(n))[:3, 3] for n in numbers[near]])
        unit = np.linalg.norm(ours[-1] - ours[0]) / np.linalg.norm(true[-1] - true[0])
        T = poses.rows["T"][at]
        R = (
            session.pose(int(numbers[at]))[:3, :3]
            @ (pipeline.scene_map.T_ros_map[:3, :3] @ T[:, :3]).T
        )
        middle = len(ours) // 2
        here = xyz[np.linalg.norm(xyz - ours[middle], axis=1) < 4 * unit]
        points = (here - ours[middle]) @ R.T / unit + true[middle]
        off = np.minimum.reduce([
            np.abs(np.abs(points[:, 1]) - HALF_WIDTH), np.abs(points[:, 2]),
            np.abs(points[:, 2] - HEIGHT),
        ])  # fmt: skip
        apart = float(np.median(off)) if len(off) else math.nan
        if not (len(points) > 200 and apart < 0.05):
            missed.append([float(step), len(points), apart])
    return 1 - len(missed) / max(1, len(steps)), missed


def export(pipeline: Pipeline, folder: Path) -> tuple[Path, dict]:
    """Exports all points, and some; returns the file of the latter, and what the former took."""
    before, start = own_mb(), time.perf_counter()
    path = folder / "scene.ply"
    export_scene(pipeline.scene(), path)
    took = {"export_s": time.perf_counter() - start, "export_mb": own_mb() - before,
            "exported_gb": path.stat().st_size / 1e9}  # fmt: skip
    export_scene(pipeline.scene(), path, Selection(max_points=LOOKED_AT))
    return path, took


def checkpoint(pipeline: Pipeline, folder: Path) -> dict:
    """Returns size and time of a checkpoint of the pipeline's state."""
    path, start = folder / "state", time.perf_counter()
    services = {"session": pipeline.session, "spill": pipeline.scene_map._spill}
    save_state(path, {"state": pipeline}, services)
    return {"checkpoint_s": time.perf_counter() - start,
            "checkpoint_mb": path.stat().st_size / 2**20}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--refine", action="store_true", help="with refinement by tracks")
    parser.add_argument("--folder", type=Path, help="for the store; default: a temporary one")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        pipeline, row, series = run(options.frames, folder, refine=options.refine)
        path, took = export(pipeline, folder)
        row |= took | checkpoint(pipeline, folder)
        row["coverage"], row["missed"] = coverage(pipeline, options.frames, path)
        with StoredScene.open(folder) as stored:
            row["stored_frames"] = len(stored.frames)
        row["stored_mb"] = sum(f.stat().st_size for f in folder.glob("*.da3k")) / 2**20
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, tolerance in GROWTH.items():
        growth = measure_growth(series[name], tolerance)
        row |= {f"{name}_growth": growth.growth, f"{name}_low": growth.low}
        row |= {f"{name}_high": growth.high, f"{name}_flat": growth.flat}
    row |= series
    print({k: v for k, v in row.items() if k not in series})
    results_file.write(options.out, {"rows": [row]}, "cpu")
    complete = row["coverage"] == 1.0 and row["stored_frames"] == options.frames
    return 0 if complete and row["mb_flat"] and row["ms_flat"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
