"""Rooms with poor texture: path errors of da3-tiny with and without refinement.

    python bench/bench_texture.py --out bench/results/texture.json

Rooms are rendered with plain surfaces: edges, shading, and tiles on one surface of four. Errors
are those of the poses at the end, after a Sim(3) fit to the true ones. ``first_tenth``: local
scale of the first tenth of the way over the median of all tenths. Kinds: ``dim`` has a fifth of
the light, and noise of 3 grey levels; ``blur`` is 9 pixels wide; ``textured`` has the usual
surfaces.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import results_file
from refinement_runs import Walk, as_walk, one_thread, pose_errors, tracked
from tqdm import tqdm

from da3_ros.synthetic import Pace, SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.types import Array

WALKS = ("loop", "handheld", "strafe", "straight")
RATE_HZ, FRAMES, SIZE = 6.0, 60, (504, 378)
PACE = Pace(RATE_HZ, 0.3, 15.0)
FIRST_ROOM, ROOMS = 100, 12  # of other seeds than training's
VALUES = {
    "model": "da3-tiny", "process_res": 224, "window.size": 8, "dense.enabled": False,
}  # fmt: skip
DIM, DIM_NOISE = 0.2, 3.0  # factor on brightness, and noise in grey levels
BLUR = 9  # pixels of a horizontal motion blur
PARTS = 10
KINDS = ("plain", "dim", "blur", "textured")


def walk_of(room: int, kind: str) -> Walk:
    """Returns a walk through a room; its kind is one of ``KINDS``."""
    camera = SyntheticCamera(
        room, SIZE, walk=WALKS[room % len(WALKS)], frames=FRAMES, rate_hz=RATE_HZ, pace=PACE,
        plain=kind != "textured",
    )  # fmt: skip
    walk = as_walk(f"{room} {WALKS[room % len(WALKS)]}", camera, list(camera))
    for k, frame in enumerate(walk.frames):
        if kind == "dim":
            noise = np.random.default_rng([room, k]).normal(0, DIM_NOISE, frame.image.shape)
            image = (DIM * frame.image + noise).round().clip(0, 255).astype(np.uint8)
        elif kind == "blur":
            image = cv2.blur(frame.image, (BLUR, 1))
        else:
            continue
        frame.image[:] = image
    return walk


def row_of(walk: Walk, room: int, kind: str, refined: bool) -> dict[str, Any]:
    """Runs a walk through the pipeline; returns its errors."""
    start = time.perf_counter()
    pipeline, results = tracked(VALUES | {"refinement.enabled": refined}, walk.frames)
    seconds = time.perf_counter() - start
    true = {f.stamp_ns: f.T_room_camera for f in walk.truth}
    final = [p for p in pipeline.poses() if p.stamp_ns in true]
    T = np.array([p.T_map_camera for p in final])
    wanted = np.array([true[p.stamp_ns] for p in final])
    way = float(_steps(wanted).sum())
    errors = pose_errors(walk, results)
    return {
        "room": room, "walk": walk.name, "kind": kind, "refined": refined, "way_m": way,
        "ate_share": trajectory_error(T, wanted) / way,
        "rotation_deg": errors["rotation_deg"], "first_tenth": _first_tenth(T, wanted),
        "windows_refined": pipeline.counters["windows_refined"],
        "windows_few_tracks": pipeline.counters["windows_few_tracks"],
        "s_per_frame": seconds / len(walk.frames),
    }  # fmt: skip


def _steps(T: Array) -> Array:
    return np.asarray(np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1))


def _first_tenth(T: Array, wanted: Array) -> float:
    ours, true = _steps(T), _steps(wanted)
    part = np.minimum((np.cumsum(true) / true.sum() * PARTS).astype(int), PARTS - 1)
    local = [ours[part == k].sum() / true[part == k].sum() for k in range(PARTS)]
    return float(local[0] / np.median(local))


def main() -> None:
    """Runs all rooms; prints medians and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", type=int, default=ROOMS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["plain"])
    parser.add_argument("--out", type=Path, help="write JSON")
    args = parser.parse_args()
    one_thread()
    rows = []
    for kind in args.kinds:
        for room in tqdm(range(FIRST_ROOM, FIRST_ROOM + args.rooms), desc=kind):
            walk = walk_of(room, kind)
            rows += [row_of(walk, room, kind, refined) for refined in (False, True)]
            shares = ", ".join(f"{100 * r['ate_share']:.2f} %" for r in rows[-2:])
            tqdm.write(f"{walk.name}: {shares}")
        for refined in (False, True):
            mine = [r for r in rows if r["kind"] == kind and r["refined"] == refined]
            share, turn = (
                100 * np.median([r["ate_share"] for r in mine]),
                np.median([r["rotation_deg"] for r in mine]),
            )
            print(f"{kind}, refined {refined}: {share:.2f} % of the way, {turn:.3f} degrees")
    results_file.write(args.out, {"rows": rows}, "cpu")


if __name__ == "__main__":
    main()
