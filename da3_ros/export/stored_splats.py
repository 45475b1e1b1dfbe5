"""Writes the Gaussians of a scene's stored keyframes as one file.

Each surface belongs to one keyframe, the first one of those that saw it from nearest. Else
Gaussians of several keyframes would lie on it, and their errors would blur it.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from da3_ros.export.atomic_files import atomic_path, check_file_target
from da3_ros.export.cross_views import CrossViews
from da3_ros.export.formats import SPLAT
from da3_ros.export.selection import ExportError, Progress, Selection, silent
from da3_ros.export.splat_glb import write_splat_glb
from da3_ros.export.splat_ply import write_splat_ply
from da3_ros.export.splat_rows import SplatRows, splat_rows
from da3_ros.export.stored_depth import DepthFilters, Readable, by_component, readable_keyframes
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.scene import REFERENCE
from da3_ros.splats.gaussians import Gaussians, in_camera, mean_depth
from da3_ros.splats.relative import RelativeSplats
from da3_ros.types import Array, FloatImage

log = logging.getLogger(__name__)

MOST = 4_000_000  # Gaussians, if no other number is asked for
FAR_SHARE = 0.1  # of each keyframe, the farthest: there its Gaussians are the worst
AROUND = 24  # keyframes that one is compared with
CANDIDATES = 4 * AROUND  # those with the nearest cameras, of which these are chosen
ALIKE = 0.5  # cosine between two directions of view: those that see the same location
SAME = 0.05  # of the distance: at most so far apart, two keyframes see one surface
NEARER = 1.25  # steps of distance: in one step the earlier keyframe counts, not the nearer one
CACHED = 128  # keyframes whose depth is kept


@dataclass(frozen=True)
class ExportedSplats:
    """The result of the export of Gaussians."""

    path: Path
    points: int  # number of Gaussians
    bytes: int
    keyframes: int  # that are stored

    @property
    def text(self) -> str:
        """The result in one line."""
        return f"{self.points} Gaussians in {self.path}"


def export_splats(
    stored: StoredScene, path: Path, selection: Selection, filters: DepthFilters,
    progress: Progress = silent,
) -> ExportedSplats:  # fmt: skip
    """Writes the Gaussians of stored keyframes; the format is that of the suffix of ``path``.

    filters: of the depth of their pixels. The selection's box, components, number of points and
    degree of harmonics count. ``progress`` may raise, which ends the work without a file. Raises
    ExportError.
    """
    SPLAT.check_name(path)
    _check_selection(selection)
    check_file_target(path)
    keyframes = readable_keyframes(stored, filters, progress)
    keyframes = [one for one in keyframes if stored.has_splats(one.key)]
    if not keyframes:
        raise ExportError(
            "no Gaussians are stored: set splats.enabled to true and model to da3-giant or "
            "da3nested-giant-large, or export NAME.colmap for programs that make splats"
        )
    with atomic_path(path) as temporary, splat_rows(temporary.parent) as rows:
        for component, ones in by_component(keyframes).items():
            if selection.unconnected or component == REFERENCE:
                _add_component(rows, ones, selection, progress)
        rows.limit(selection.max_points or MOST)
        if not len(rows):
            raise ExportError("no Gaussian passes the filters, or lies in the crop")
        write = write_splat_ply if path.suffix.lower() == ".ply" else write_splat_glb
        write(rows, temporary, selection.sh_degree, progress)
        progress("writing", 1.0)  # the last moment to end the work
        count = len(rows)
    return ExportedSplats(path, count, path.stat().st_size, len(stored.images))


def _check_selection(selection: Selection) -> None:
    selection.check()
    if selection.voxel or selection.min_observations > 1:
        raise ExportError(
            "Gaussians are not averaged: leave out voxel and min_observations, and choose "
            "max_points for fewer"
        )


def _add_component(
    rows: SplatRows, keyframes: Sequence[Readable], selection: Selection, progress: Progress
) -> None:
    """Adds the Gaussians of one component of a scene, in the map frame."""
    owners = _Owners(keyframes)
    low, high = np.array(selection.crop[:3]), np.array(selection.crop[3:])
    for index in range(len(keyframes)):
        progress("placing Gaussians", index / len(keyframes))
        try:
            found = owners.own(index)
        except JournalError as error:
            log.warning("%s: its Gaussians are left out", error)
            continue
        if any(selection.crop):
            inside = (found.means >= low) & (found.means <= high)
            found = found.take(np.asarray(inside.all(axis=1)))
        if len(found):
            rows.add(found)


class _Owners:
    """Keyframes of one component of a scene; each surface belongs to the one nearest to it."""

    def __init__(self, keyframes: Sequence[Readable]) -> None:
        self._keyframes, self._judges = keyframes, CrossViews(keyframes)
        self._T = np.array([one.T_ros_camera for one in keyframes])
        self._tree = cKDTree(self._T[:, :3, 3])
        self._depths: OrderedDict[int, FloatImage] = OrderedDict()
        # Steps of distance begin at a multiple of the scene's own length, in any unit.
        self._unit = math.exp(
            float(np.mean(np.log([one.T_map_submap.scale for one in keyframes])))
        )

    def own(self, index: int) -> Gaussians:
        """Returns the Gaussians of a keyframe in the map, without those on surfaces that belong to
        another one. Raises JournalError."""
        one = self._keyframes[index]
        frame = one.stored.frames[one.key]
        splats, depth = one.stored.load_splats(one.key), self._depth(index)
        kept = np.isfinite(depth)
        rows, columns = np.nonzero(kept)
        points = backproject(depth, frame.K)[rows, columns]
        kept[rows, columns] = ~self._elsewhere(index, points)
        few = RelativeSplats(kept, splats.values[kept[splats.kept]])
        T = self._T[index]
        return in_camera(few, depth, frame.K).moved(Similarity(1.0, T[:3, :3], T[:3, 3]))

    def _elsewhere(self, index: int, points: Array) -> NDArray[np.bool_]:
        """Returns which points [M, 3] of a keyframe lie on surfaces that belong to another."""
        out = np.zeros(len(points), bool)
        if not len(points):
            return out
        for j in self._around(index):
            left = np.flatnonzero(~out)
            try:
                out[left] = self._belong_to(j, index, points[left])
            except JournalError:
                continue  # it adds none
        return out

    def _around(self, index: int) -> list[int]:
        """Returns the keyframes with the nearest cameras that look the same way."""
        count = min(CANDIDATES + 1, len(self._keyframes))
        _, near = self._tree.query(self._T[index, :3, 3], count)
        near = np.atleast_1d(near)
        alike = self._T[near, :3, 2] @ self._T[index, :3, 2] > ALIKE
        chosen = [int(j) for j in near[alike] if j != index]
        return sorted(chosen[:AROUND])

    def _belong_to(self, j: int, index: int, points: Array) -> NDArray[np.bool_]:
        """Returns which points [M, 3] of a keyframe belong to another one, if no third is there.

        Both keyframes decide by the same point, that of the earlier one; else a surface whose
        measured positions differ could belong to none.
        """
        depth, K = self._depth(j), self._K(j)
        T = invert_pose(self._T[j]) @ self._T[index]
        there = points @ T[:3, :3].T + T[:3, 3]
        # A wall that is seen from both sides has two surfaces.
        facing = (there * (there - T[:3, 3])).sum(axis=1) > 0
        out, row, column = _same_surface(there, facing, depth, K)
        here, there = points[out], there[out]
        if j < index:
            there = backproject(depth, K)[row, column]
            here = (there - T[:3, 3]) @ T[:3, :3]
        theirs, ours = (_level(np.linalg.norm(p, axis=1) / self._unit) for p in (there, here))
        out[out] = theirs <= ours if j < index else theirs < ours
        return out

    def _K(self, j: int) -> Array:
        one = self._keyframes[j]
        return one.stored.frames[one.key].K

    def _depth(self, index: int) -> FloatImage:
        """Returns the depth [h, w] where a keyframe has Gaussians to show, else NaN."""
        if index not in self._depths:
            one = self._keyframes[index]
            frame, splats = one.stored.frames[one.key], one.stored.load_splats(one.key)
            depth = self._judges.judge(one, one.load()).depth
            depth[~splats.kept] = np.nan
            known = depth[np.isfinite(depth)]
            if len(known):
                limit = float(np.quantile(known, 1 - FAR_SHARE))
                # A mean may lie elsewhere than the surface of its pixel.
                mean = mean_depth(splats, depth, frame.K)
                depth[(depth > limit) | (mean > limit * (1 + SAME))] = np.nan
                depth[mean > one.filters.max_depth] = np.nan
                depth[mean < known.min() * (1 - SAME)] = np.nan
            self._depths[index] = depth
            if len(self._depths) > CACHED:
                self._depths.popitem(last=False)
        self._depths.move_to_end(index)
        return self._depths[index]


def _level(distance: Array) -> Array:
    """Returns a number that is smaller for what is nearer, in steps of ``NEARER``."""
    return np.floor(np.log(distance) / math.log(NEARER))


def _same_surface(
    points: Array, facing: NDArray[np.bool_], depth: FloatImage, K: Array
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Returns which points [M, 3] in a camera lie on what it sees, and the rows and columns of
    these in its image. facing: [M] which points it may see.

    Not at the border of what it sees: there the surface ends within a pixel, for it.
    """
    height, width = depth.shape
    pixels = np.nan_to_num(project(points, K), nan=-1.0)
    out = np.asarray(((pixels >= 0) & (pixels < (width, height))).all(axis=1)) & facing
    column, row = pixels[out].astype(int).T
    inner = cv2.erode(np.isfinite(depth).astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    with np.errstate(invalid="ignore"):
        same = np.abs(depth[row, column] / points[out, 2] - 1) < SAME
    same &= inner[row, column]
    out[out] = same
    return out, row[same], column[same]
