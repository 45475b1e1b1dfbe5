"""Cost of a keyframe while the map grows, and memory and processor time of exports.

    python bench/bench_map.py                 # both tables
    python bench/bench_map.py --points 1e7    # size of the exported scene

Growth: a camera that never sees a location twice, so that the map always grows; the last keyframes
are compared with the first ones of the same run. Exports: each format is written in a process of
its own, so that peak memory can be measured; memory is given on top of that of the map.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import child
import numpy as np
import results_file

from da3_ros.config import MapConfig
from da3_ros.export.export import Selection, export_scene
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.submap_points import Submap, compact
from da3_ros.mapping.submaps import Snapshot, SubmapStore
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.pipeline.delivery import NO_WINDOW
from da3_ros.types import Array, Scale

SIZE = (504, 378)
SUBMAP_POINTS = 500_000
JOBS = ["ply", "glb", "colmap", "ply:0.05", "ply:0.5", "save", "load"]


def keyframe(i: int, rng: np.random.Generator) -> LocalFrame:
    """Returns a frame of a rough wall 2 m ahead, 3 m beside that of frame ``i`` - 1."""
    depth = rng.uniform(1.8, 2.2, SIZE[::-1]).astype(np.float32)
    image = rng.integers(0, 256, (*SIZE[::-1], 3)).astype(np.uint8)
    K = np.array([[400.0, 0, SIZE[0] / 2], [0, 400, SIZE[1] / 2], [0, 0, 1]])
    T = np.eye(4)
    T[0, 3] = 3.0 * i
    confidence = np.full(depth.shape, 2.0, np.float32)
    return LocalFrame(
        i, i, "", "", image, depth, confidence, K, T, Scale(), NO_WINDOW, keyframe=True
    )


def growth(keyframes: int) -> dict[str, float]:
    """Returns the processor time per keyframe in the first and last quarter of a run, ms."""
    rng = np.random.default_rng(0)
    store = SubmapStore(MapConfig(voxel_m=0.02, max_points=0, memory_mb=0, keep_images=False))
    frames = [keyframe(i, rng) for i in range(8)]
    times = []
    for i in range(keyframes):
        T = np.eye(4)
        T[0, 3] = 3.0 * i
        frame = frames[i % len(frames)]
        object.__setattr__(frame, "T_local_camera", T)
        start = time.process_time()  # independent of other load on the machine
        store.add_frame(frame)
        times.append(time.process_time() - start)
    # Quarters hold whole submaps: within a submap the cost rises with the size of its tables.
    quarter = len(times) // 4
    first, last = times[:quarter], times[-quarter:]
    return {
        "keyframes": keyframes,
        "points": len(store),
        "bytes_per_point": store.nbytes / len(store),
        "first_ms": 1e3 * float(np.mean(first)),
        "last_ms": 1e3 * float(np.mean(last)),
        "ratio": float(np.mean(last) / np.mean(first)),
        "slowest_ms": 1e3 * max(times),
    }


def made_scene(points: int) -> Snapshot:
    """Returns a scene of ``points`` random points in submaps, with 2000 poses."""
    rng = np.random.default_rng(0)
    submaps = []
    for i in range(-(-points // SUBMAP_POINTS)):
        n = min(SUBMAP_POINTS, points - i * SUBMAP_POINTS)
        cloud = PointCloud(
            rng.uniform(-10, 10, (n, 3)).astype(np.float32),
            rng.integers(0, 256, (n, 3)).astype(np.uint8),
            rng.uniform(1, 5, n).astype(np.float32),
            np.ones(n, np.int32),
        )
        pose = Similarity(1.0, np.eye(3), np.array([20.0 * i, 0, 0]))
        submaps.append(Submap(i, 0, pose, compact(cloud)))
    K = np.array([[400.0, 0, 252], [0, 400, 189], [0, 0, 1]])
    poses = Poses.of([Pose(i, _at(0.01 * i), K, SIZE, i % 10 == 0) for i in range(2000)])
    return Snapshot(tuple(submaps), poses, 0, True, np.eye(4))


def _at(x: float) -> Array:
    T = np.eye(4)
    T[0, 3] = x
    return T


def export_alone(points: int, job: str, folder: Path) -> None:
    """Runs one job in this process, and prints its time, peak memory and file size as JSON."""
    saved = made_scene(points)
    form, _, voxel = job.partition(":")
    before, start = reset_peak(), time.process_time()
    if form == "save":
        save_scene(saved, folder / "scene")
    elif form == "load":
        save_scene(saved, folder / "scene")
        before, start = reset_peak(), time.process_time()
        load_scene(folder / "scene")
    else:
        selection = Selection(voxel=float(voxel or 0))
        export_scene(saved.scene(), folder / f"scene.{form}", selection)
    spent = time.process_time() - start
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    map_mb = sum(s.cloud.nbytes for s in saved.submaps) / 2**20
    row = {"job": job, "points": points, "map_mb": map_mb, "cpu_s": spent}
    print(json.dumps({**row, "extra_peak_mb": peak_mb() - before, "file_mb": size / 2**20}))


def reset_peak() -> float:
    """Resets the process's peak memory. Returns the current resident memory, MiB."""
    # Freed memory that the C library keeps would be reused without raising the peak.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def peak_mb() -> float:
    """Returns the peak resident memory of this process since the last reset, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 1024


def exports(points: int, jobs: list[str]) -> list[dict[str, float]]:
    """Runs each job in a process of its own, and returns a row for each."""
    rows = []
    for job in jobs:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--points", str(points), "--alone", job]
            done = child.run([*command, "--folder", folder], stderr=subprocess.PIPE)
            if done.returncode:
                raise SystemExit(done.stderr)
            rows.append(json.loads(done.stdout))
        print("{job:10} {cpu_s:7.1f} s {extra_peak_mb:8.0f} MiB above the map of {map_mb:.0f} "
              "MiB; writes {file_mb:.0f} MiB".format(**rows[-1]))  # fmt: skip
    return rows


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=float, default=1e7, help="of the exported scene")
    parser.add_argument("--keyframes", type=int, default=160, help="of the growing map")
    parser.add_argument("--jobs", nargs="+", default=JOBS, help="FORMAT, FORMAT:VOXEL, save, load")
    parser.add_argument("--out", type=Path, help="write JSON")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        export_alone(int(args.points), args.alone, args.folder)
        return
    grown = growth(args.keyframes)
    print("{points} points after {keyframes} keyframes of 504 x 378, {bytes_per_point:.1f} bytes "
          "each; a keyframe takes {first_ms:.0f} ms in the first quarter, {last_ms:.0f} ms "
          "in the last: ratio {ratio:.2f}; slowest {slowest_ms:.0f} ms"
          .format(**grown))  # fmt: skip
    rows = exports(int(args.points), args.jobs)
    cores = sorted(os.sched_getaffinity(0))
    results_file.write(args.out, {"cores": cores, "growth": grown, "exports": rows}, "cpu")


if __name__ == "__main__":
    main()
