"""`da3_ros view`: draws a picture of a scene; needs neither viewer nor display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from da3_ros.drawing.drawing_file import read_drawing
from da3_ros.drawing.scene_drawing import Drawing, by_height
from da3_ros.drawing.scene_picture import render, write_png
from da3_ros.drawing.track_drawing import with_track_points
from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.export import ExportError

GAP = 8  # pixels between two views
MOST_SIDE = 8192  # pixels


@dataclass(frozen=True)
class Shown:
    """What is shown of a scene."""

    below: float = float("inf")  # largest height of points, in the map's unit
    color_map: str | None = None  # colours of heights; None: the points' own colours
    surface: Path | None = None  # mesh of the scene, which is drawn instead of its points
    tracks: bool = False  # whether the points of feature tracks are drawn instead


def view(
    source: Path, target: Path, sides: Sequence[str], size: tuple[int, int], shown: Shown
) -> str:
    """Write one PNG with the scene in ``source`` seen from each of ``sides``; returns a text.

    Raises SceneFileError or ExportError.
    """
    check_picture(target, size, MOST_SIDE)
    drawing = read_shown(source, shown)
    gap = np.full((size[1], GAP, 3), 255, np.uint8)
    row = [part for picture in render(drawing, size, sides) for part in (gap, picture)][1:]
    with atomic_path(target) as temporary:
        write_png(temporary, np.hstack(row))
    cameras = len(drawing.cameras) // 8
    return f"{target}: {described(drawing)}, {cameras} keyframes' cameras\n"


def read_shown(source: Path, shown: Shown) -> Drawing:
    """Read what is drawn of a scene.

    Raises SceneFileError, and ExportError if there is nothing to draw.
    """
    drawing = read_drawing(source)
    if shown.surface is not None:
        mesh = read_drawing(shown.surface)
        if not len(mesh.faces):
            raise ExportError(f"--surface {shown.surface} has no triangles: give a .mesh.glb")
        drawing = replace(drawing, points=mesh.points, rgb=mesh.rgb, faces=mesh.faces)
    elif shown.tracks:
        drawing = with_track_points(drawing, source)
    finite = np.isfinite(drawing.points).all(axis=1)
    drawing = drawing.take(finite & (drawing.points[:, 2] < shown.below))
    if not len(drawing.points) and not len(drawing.cameras):
        raise ExportError(f"{source}: no points and no cameras to draw")
    return drawing if shown.color_map is None else by_height(drawing, shown.color_map)


def described(drawing: Drawing) -> str:
    """Returns what a drawing has, in words."""
    faces = len(drawing.faces)
    return f"{faces} triangles" if faces else f"{len(drawing.points)} points"


def check_picture(target: Path, size: tuple[int, int], most: int) -> None:
    """Raises ExportError if ``target`` is no PNG, or a side of ``size`` is above ``most``."""
    if target.suffix.lower() != ".png":
        raise ExportError(f"--output {target}: must end with .png")
    if max(size) > most:
        raise ExportError(f"--size {size[0]}x{size[1]}: at most {most} pixels a side")
