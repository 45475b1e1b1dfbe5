#!/usr/bin/env python3
"""The occupancy grid of rendered rooms: missed and false cells, memory and time per keyframe.

Poses are exact, and depth has noise, so that errors are those of depth and of carving. A missed
cell holds an obstacle that exact depth shows within 3 m, and no cell beside it is occupied. A
false cell is occupied, and no cell beside it holds an obstacle.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import results_file

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from support import floors

from da3_ros.mapping.floor_view import FloorView, floor_view
from da3_ros.navigation.floor_grid import FloorGrid
from da3_ros.navigation.sighting import sight
from da3_ros.types import Array

# Standard deviations of depth: of each pixel, and common to all pixels of a frame.
NOISES = {
    "exact": (0.0, 0.0), "pixels 2 %": (0.02, 0.0), "pixels and frames 1.4 %": (0.014, 0.014),
}  # fmt: skip
SIZE = (504, 378)
NEWEST = 8  # views that are carved each time that a grid is asked for


def room(seed: int, frames: int) -> list[dict[str, Any]]:
    """Returns errors and costs in the room of a seed, by the noise of depth."""
    walls, poses, depths, K = floors.room_and_frames(seed, frames, SIZE)
    rows = []
    for name, (pixels, common) in NOISES.items():
        rng, grid, views, times = np.random.default_rng(seed), FloorGrid(floors.RES), [], []
        for T, depth in zip(poses, depths, strict=True):
            factor = pixels * rng.normal(size=depth.shape) + common * rng.normal()
            noisy = depth * np.exp(factor).astype(np.float32)
            view, place, ms = carved(grid, noisy, K, T)
            views.append((view, place))
            times.append(ms)
        found = grid.occupancy()
        assert found is not None
        solid = floors.solid_cells(walls, found.origin, found.cells.shape)
        seen = floors.seen_cells(poses, depths, K, found.origin, found.cells.shape)
        missed, false = floors.errors(found, solid, seen)
        rows.append({
            "room": seed, "depth": name, "known_m2": float((found.cells >= 0).sum()) * 0.0025,
            "missed_percent": 100 * float(missed), "false_percent": 100 * float(false),
            "bytes": statistics.fmean(view.nbytes for view, _ in views),
            **{key: statistics.median(t[i] for t in times)
               for i, key in enumerate(("sight_ms", "view_ms", "carve_ms"))},
            "asked_ms": asked(grid, views[-NEWEST:]),
        })  # fmt: skip
    return rows


def carved(
    grid: FloorGrid, depth: Array, K: Array, T_room_camera: Array
) -> tuple[FloorView, Array, tuple[float, float, float]]:
    """Adds a keyframe to a grid; returns its view, its place, and milliseconds of the steps."""
    level = floors.level_of(T_room_camera)
    seen, a = timed(lambda: sight(depth, K, level, floors.BAND))
    view, b = timed(lambda: floor_view(
        (0, "", 0), seen.marks, seen.floor, level, 1.0, floors.RES / 2
    ))  # fmt: skip
    place = view.place(T_room_camera, 1.0)
    _, c = timed(lambda: grid.carve(view, place, 1.0))
    return view, place, (a, b, c)


def asked(grid: FloorGrid, newest: list[tuple[FloorView, Array]]) -> float:
    """Returns the milliseconds of a grid with the newest views."""

    def ask() -> None:
        copy = grid.copy()
        for view, place in newest:
            copy.carve(view, place, 1.0)
        copy.occupancy()

    return min(timed(ask)[1] for _ in range(5))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Returns a result, and milliseconds."""
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", type=int, nargs="+", default=[1, 3, 4, 9, 10, 11])
    parser.add_argument("--frames", type=int, default=24, help="keyframes in each room")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in options.rooms:
        for row in room(seed, options.frames):
            rows.append(row)
            results_file.show(row)
    results_file.write(options.output, {"rows": rows}, "cpu")


if __name__ == "__main__":
    main()
