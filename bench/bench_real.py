"""Whole real recordings with da3-tiny: path errors with and without refinement.

    python bench/bench_real.py --data DIR --out bench/results/real.json

DIR has redkitchen_200, kitti_mono_51 and dashcam_100, or some of them. Each is run four times:
without refinement, with that of windows alone, with keyframes adjusted together too, and so as if
there were no camera_info. Errors are those of the poses that a replay writes at the end, in
metres, after a Sim(3) fit to the true ones.

``local_scale``: length of our way over the true one in each tenth of the way, over that of all.
``blind``: frames that were held because they seemed to show nothing. ``focal_px``: the medians of
fx and fy, pixels of the camera's image. The dash-cam has no truth: only blind and focal_px.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from refinement_recordings import true_poses
from refinement_runs import one_thread, tracked
from tqdm import tqdm

from da3_ros.recordings import open_recording
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.types import Array, Frame, TrackedFrame

# By name: the camera's topic, and whether the recording has the true path.
RECORDINGS = {
    "redkitchen_200": ("/camera/image_raw/compressed", True),
    "kitti_mono_51": ("/left/image_rect/compressed", True),
    "dashcam_100": (None, False),
}
PARTS = 10
VALUES = {"model": "da3-tiny", "window.size": 8, "dense.enabled": False}


def frames_of(folder: Path, count: int | None) -> tuple[list[Frame], dict[int, Array]]:
    """Returns the first frames of a recording, and its true poses [4, 4] by stamp."""
    topic, has_truth = RECORDINGS[folder.name]
    with open_recording(folder, camera=topic) as bag:
        frames = list(bag)
        poses = true_poses(bag) if has_truth else []
    stamps = [f.stamp_ns for f in frames]
    return frames[:count], dict(zip(stamps, poses, strict=False))


def measured(
    frames: Sequence[Frame], true: dict[int, Array], values: dict[str, Any]
) -> dict[str, Any]:
    """Runs frames through the pipeline; returns a row."""
    start = time.perf_counter()
    pipeline, results = tracked(values, tqdm(frames, leave=False))
    seconds = time.perf_counter() - start
    counters = pipeline.counters
    row: dict[str, Any] = {
        "frames": len(results),
        "blind": sum(bool(r.blind) for r in results),
        "windows_refined": counters["windows_refined"],
        "windows_refused": counters["windows_refused"],
        "windows_few_tracks": counters["windows_few_tracks"],
        "map_adjustments": counters["map_adjustments"],
        "loops_found": pipeline.loops.found,
        "loops_closed": pipeline.loops.closed,
        "focal_px": focal_px(frames, results),
        "focal_source": pipeline.refinement.focal_sources,
        "s_per_frame": seconds / len(frames),
    }
    if not true:
        return row
    # A frame that was held has no pose of its own in the path: the published one counts.
    final = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    posed = [r for r in results if r.posed]
    ours = np.array([final.get(r.stamp_ns, r.T_map_camera) for r in posed])
    room = np.array([true[r.stamp_ns] for r in posed])
    return row | {
        "way_m": way(room),
        "posed": len(posed),
        "ate_m": trajectory_error(ours, room),
        "local_scale": local_scale(ours, room),
    }


def way(poses: Array) -> float:
    """Returns the length of a path [N, 4, 4]."""
    return float(np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1).sum())


def local_scale(ours: Array, true: Array) -> list[float]:
    """Returns, for each part of the path, our length over the true one, over that of all."""
    ends = np.linspace(0, len(ours) - 1, PARTS + 1).round().astype(int)
    parts = [slice(a, b + 1) for a, b in itertools.pairwise(ends)]
    whole = way(ours) / way(true)
    return [round(way(ours[p]) / max(way(true[p]), 1e-9) / whole, 3) for p in parts]


def focal_px(frames: Sequence[Frame], results: Sequence[TrackedFrame]) -> list[float]:
    """Returns the medians of fx and fy, pixels of the camera's image."""
    height, width = frames[0].image.shape[:2]
    K = np.array([
        r.K[[0, 1], [0, 1]] * (width / r.image.shape[1], height / r.image.shape[0])
        for r in results
    ])  # fmt: skip
    return [round(float(v), 1) for v in np.nanmedian(K, axis=0)]


def main() -> None:
    """Runs the recordings and writes a row per run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--only", nargs="+", choices=RECORDINGS, default=list(RECORDINGS))
    parser.add_argument("--frames", type=int, help="first frames of each; default: all")
    parser.add_argument("--process-res", type=int, default=224)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    one_thread()
    rows = []
    for name in (n for n in options.only if (options.data / n).is_dir()):
        frames, true = frames_of(options.data / name, options.frames)
        has_info = frames[0].calibration is not None
        plain = [dataclasses.replace(f, calibration=None) for f in frames]
        runs = [(False, False, has_info), (True, False, has_info), (True, True, has_info)]
        for refined, adjusted, calibrated in runs + [(True, True, False)] * has_info:
            values = VALUES | {
                "process_res": options.process_res, "backend": options.backend, "device": "cpu",
                "refinement.enabled": refined, "refinement.map": adjusted,
            }  # fmt: skip
            row = {
                "data": name, "refined": refined, "adjusted": adjusted, "camera_info": calibrated,
            }  # fmt: skip
            rows.append(row | measured(frames if calibrated else plain, true, values))
            results_file.show(rows[-1])
    if not rows:
        known = ", ".join(RECORDINGS)
        raise SystemExit(f"none of {known} in the folder of --data: {options.data}")
    results_file.write(options.out, {"rows": rows}, "cpu")


if __name__ == "__main__":
    main()
