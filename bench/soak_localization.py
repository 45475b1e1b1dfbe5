"""Soak test: a camera is localized in a read-only map for 50 000 frames, in constant memory.

    python bench/soak_localization.py --out bench/results/soak-localization.json

The corridor of ``soak_keyframes.py`` is mapped over ``--map`` frames and saved. A second pipeline
loads the scene with ``mode: localization`` and walks out and back along the mapped way, again and
again: the network is the truth with noise and a made-up descriptor, everything else is what a
node runs. Memory is the process's own (without mapped files) at even steps, time that of the
thread that runs the network; growth is the slope of the second half. Errors are those of published
poses from the map's: the truth, fitted to the poses of the map once. The exit code is 1 if memory
or time grew, if the map has changed, or if the pose in the map was lost.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from growth import measure_growth
from soak_keyframes import SETTINGS, SIZE, STEP_M, STEP_NS, Corridor, K, own_mb, trim

from da3_ros.config import config_from_parameters
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.submaps import Snapshot
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.types import Array, Calibration, Frame

SAMPLES = 50
GROWTH = {"mb": 0.05, "ms": 0.05}  # tolerated over the whole run


class Rounds(Corridor):
    """Out and back along the mapped way, after it was mapped."""

    def __init__(self, mapped: int) -> None:
        super().__init__(mapped)
        self.half = mapped // 2

    def pose(self, number: int) -> Array:
        """Returns the pose [4, 4] of a frame in the room."""
        if number < self.frames:
            return super().pose(number)
        at = (number - self.frames + self.half // 2) % (2 * self.half)
        return super().pose(min(at, 2 * self.half - at))


def frame(session: Rounds, number: int, lens: Calibration) -> Frame:
    image, truth = session.frame(number)
    return Frame(truth.stamp_ns, image, calibration=lens)


def mapped(session: Rounds, lens: Calibration, folder: Path) -> Similarity:
    """Maps the corridor and saves the scene; returns the similarity from it to the truth."""
    pipeline = Pipeline(config_from_parameters({**SETTINGS, "refinement.enabled": False}), session)
    for number in range(session.frames):
        list(pipeline.push(frame(session, number, lens)))
    list(pipeline.flush())
    save_scene(pipeline.snapshot(), folder / "map")
    poses = list(pipeline.poses())
    ours = np.array([p.T_map_camera for p in poses])
    true = np.array([session.pose(p.stamp_ns // STEP_NS - 1) for p in poses])
    return fit_poses(ours, true)


def localized(
    session: Rounds, lens: Calibration, saved: Snapshot, fit: Similarity, frames: int
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Returns what a camera did in the saved map, and series of memory, time and error."""
    values = {**SETTINGS, "refinement.enabled": False, "mode": "localization"}
    pipeline = Pipeline(config_from_parameters(values), session)
    pipeline.resume(saved)
    series: dict[str, list[float]] = {
        name: [] for name in ("mb", "path_mb", "ms", "error_m", "known")
    }
    each, start = max(1, frames // SAMPLES), time.perf_counter()
    spent, errors = 0.0, []
    for number in range(session.frames, session.frames + frames):
        pushed = frame(session, number, lens)
        before = time.thread_time()
        results = list(pipeline.push(pushed))
        spent += time.thread_time() - before
        for result in results:
            T = fit.pose(result.T_map_camera)
            true = session.pose(result.stamp_ns // STEP_NS - 1)
            known = result.covariance_map is not None
            errors.append((known, float(np.linalg.norm(T[:3, 3] - true[:3, 3]))))
        if (number - session.frames + 1) % each == 0:
            trim()
            path = pipeline.map.table.live_path
            series["path_mb"].append(path.nbytes / 2**20)
            series["mb"].append(own_mb() - series["path_mb"][-1])
            series["ms"].append(1e3 * spent / each)
            series["known"].append(float(np.mean([known for known, _ in errors])))
            series["error_m"].append(float(np.median([away for known, away in errors if known])))
            spent, errors = 0.0, []
            print(
                f"{number - session.frames + 1} frames, {time.perf_counter() - start:.0f} s: "
                f"{series['mb'][-1]:.1f} MB, {series['ms'][-1]:.1f} ms per frame, error "
                f"{series['error_m'][-1]:.3f} m, {pipeline.loops.closed} corrections",
                flush=True,
            )
    after = pipeline.snapshot()
    row = {
        "frames": frames, "km": frames * STEP_M / 1000, "corrections": pipeline.loops.closed,
        "submaps_of_map": len(saved.submaps), "keyframes_of_map": len(known_keyframes(saved)),
        "map_unchanged": same(saved, after), "chains": pipeline.map.table.chain + 1,
    }  # fmt: skip
    return row, series


def known_keyframes(saved: Snapshot) -> tuple[Any, ...]:
    return () if saved.recognition is None else saved.recognition.keyframes


def same(a: Snapshot, b: Snapshot) -> bool:
    """Whether two scenes have the same points, poses and number of keyframes."""
    pairs = list(zip(a.submaps, b.submaps, strict=False))
    return (
        len(a.submaps) == len(b.submaps)
        and all(np.array_equal(x.cloud.xyz, y.cloud.xyz) for x, y in pairs)
        and all(np.array_equal(x.T_map_submap.t, y.T_map_submap.t) for x, y in pairs)
        and np.array_equal(a.poses.rows, b.poses.rows)
        and len(known_keyframes(a)) == len(known_keyframes(b))
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=50_000)
    parser.add_argument("--map", type=int, default=3000, help="frames of the map")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    session, folder = Rounds(options.map), Path(tempfile.mkdtemp())
    lens = Calibration(*SIZE, K - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    try:
        fit = mapped(session, lens, folder)
        saved = load_scene(folder / "map")
        row, series = localized(session, lens, saved, fit, options.frames)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, tolerance in GROWTH.items():
        growth = measure_growth(series[name], tolerance)
        # Other load makes times uncertain: they fail only if the lower bound exceeds it.
        flat = growth.flat if name == "mb" else growth.low <= tolerance
        interval = [growth.low, growth.high]
        row |= {
            f"{name}_growth": growth.growth,
            f"{name}_interval": interval,
            f"{name}_flat": flat,
        }
    row |= {"unit_m": fit.scale} | series
    print({k: v for k, v in row.items() if k not in series})
    results_file.write(options.out, {"rows": [row]}, "cpu")
    found = all(share == 1.0 for share in series["known"][1:])
    return 0 if found and row["map_unchanged"] and row["mb_flat"] and row["ms_flat"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
