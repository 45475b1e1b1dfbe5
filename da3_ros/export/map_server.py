"""Writes an occupancy grid as the pair of files that map_server and map_saver use.

A PGM (P5), whose first row is the one with the largest y, and a YAML that describes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.selection import ExportError
from da3_ros.mapping.scene import Scene
from da3_ros.navigation.floor_grid import FREE, OCCUPIED, OccupancyGrid
from da3_ros.navigation.saved_grid import grid_of_scene

KEYS = ("image:", "resolution:")  # that a description of a map has
GREY = {FREE: 254, OCCUPIED: 0}
UNKNOWN_GREY = 205  # between the thresholds
OCCUPIED_THRESHOLD, FREE_THRESHOLD = 0.65, 0.196  # of 1 - grey / 255


def write_map(scene: Scene, path: Path, box: Sequence[float] = ()) -> int:
    """Writes the grid of a scene to ``path``, and its description beside it; returns the number
    of known cells. box: as in ``grid_of_scene``. Raises ExportError."""
    grid = grid_of_scene(scene, box)
    if grid is None and box:
        raise ExportError(
            f"no keyframe has seen a floor with z from {box[2]:g} to {box[5]:g} m (crop), or the "
            "scene has no occupancy grid"
        )
    if grid is None:
        raise ExportError(
            "the scene has no occupancy grid: it was not mapped in metres by a level map (set "
            "scale.source, and base_frame or level.source: ground), or by an older version: map "
            "it again"
        )
    known = int((grid.cells >= 0).sum())
    if box and not known:
        raise ExportError(f"the grid has no known cell in the box {[*box]} (crop), metres")
    path.write_bytes(pgm(grid))
    path.with_suffix(".yaml").write_text(description(grid, path.name), encoding="utf-8")
    return known


def pgm(grid: OccupancyGrid) -> bytes:
    """Returns the image of a grid."""
    grey = np.full(grid.cells.shape, UNKNOWN_GREY, np.uint8)
    for value, shade in GREY.items():
        grey[grid.cells == value] = shade
    height, width = grid.cells.shape
    return f"P5\n{width} {height}\n255\n".encode() + grey[::-1].tobytes()


def description(grid: OccupancyGrid, image: str) -> str:
    """Returns the YAML of a grid; image: the name of its file."""
    x, y = (round(v, 9) for v in grid.origin)
    return (
        f"image: {_quoted(image)}\nmode: trinary\nresolution: {np.float32(grid.resolution)!s}\n"
        f"origin: [{x}, {y}, 0]\n"
        f"negate: 0\noccupied_thresh: {OCCUPIED_THRESHOLD}\nfree_thresh: {FREE_THRESHOLD}\n"
    )


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def check_description(path: Path) -> None:
    """Raises ExportError if ``path`` is another kind of YAML file, which must not be replaced."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else KEYS
        is_map = all(any(line.startswith(key) for line in lines) for key in KEYS)
    except (OSError, UnicodeDecodeError):
        is_map = False
    if not is_map:
        raise ExportError(f"{path} is no description of a map: choose another name for the image")


@contextmanager
def placed_pair(path: Path) -> Iterator[Path]:
    """Yields a temporary path of an image; it, and then the description beside it, appear at the
    end. Raises ExportError."""
    with atomic_path(path) as image:
        about = image.with_suffix(".yaml")
        try:
            yield image
            text = about.read_text(encoding="utf-8").replace(
                _quoted(image.name), _quoted(path.name)
            )
        finally:
            about.unlink(missing_ok=True)
        with atomic_path(path.with_suffix(".yaml")) as final:
            final.write_text(text, encoding="utf-8")
