"""Depth of stored keyframes that other keyframes look through, or have seen better.

Each keyframe is judged by those near it that see the same place, as the live map is
(``mapping/free_space``), but with all that came before and after.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from da3_ros.export.stored_depth import Readable
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.mapping.free_space import CONFIRMED, DepthView, depth_view, looked_through
from da3_ros.types import Array, FloatImage

NEAREST = 48  # keyframes, by the distance of their cameras, of which voters are chosen
VOTERS = 16  # keyframes that judge one
OVERLAP = 0.1  # least share of a keyframe's points in a voter's image
CACHED = 256  # keyframes whose depth is kept in cells
JUDGED = 1024  # keyframes of which is kept what moved away
SAMPLE = 4000  # pixels that show how well the depths of two keyframes agree


@dataclass(frozen=True, eq=False)
class Judged:
    """Depth of a keyframe after the judgement of the others."""

    depth: FloatImage  # [h, w] units of the scene, NaN where unknown or moved away
    sigma: float  # relative standard deviation of depths from each other; NaN: alone


class CrossViews:
    """Keyframes of one part of a scene, in the order of time, that judge each other's depth."""

    def __init__(self, keyframes: Sequence[Readable]) -> None:
        self._keyframes = keyframes
        self._index = {one.key: index for index, one in enumerate(keyframes)}
        self._T = np.array([one.T_map_camera for one in keyframes]).reshape(-1, 4, 4)
        self._tree = cKDTree(self._T[:, :3, 3])
        self._found: OrderedDict[int, tuple[NDArray[np.uint8], float]] = OrderedDict()
        self._views: OrderedDict[int, DepthView] = OrderedDict()

    def judge(self, one: Readable, keyframe: Keyframe) -> Judged:
        """Returns a keyframe's depth that passes the filters, as the others see it.

        keyframe: ``one``, loaded. Later keyframes decide what has moved away; earlier ones where
        no later one has seen that something is still there.
        """
        depth, index = one.depth_of(keyframe), self._index[one.key]
        rows, columns = np.nonzero(np.isfinite(depth))
        if index not in self._found:
            points = backproject(depth, keyframe.pose.K)[rows, columns]
            self._found[index] = self._compare(index, points)
            if len(self._found) > JUDGED:
                self._found.popitem(last=False)
        bits, sigma = self._found[index]
        if one.filters.remove_movers:
            gone = np.unpackbits(bits, count=len(rows)).astype(bool)
            depth[rows[gone], columns[gone]] = np.nan
        return Judged(depth, sigma)

    def _compare(self, index: int, points: Array) -> tuple[NDArray[np.uint8], float]:
        """Returns which points [M] of a keyframe others look through, as bits, and by how much
        depths disagree."""
        voters, count = self._voters(index, points), len(points)
        votes, sigmas = {}, [math.nan]
        for j in voters:
            moved, view = self._moved(j, index, points), self._view(j)
            sigmas.append(view.disagreement(moved[:: max(1, count // SAMPLE)]))
            votes[j] = view.votes(moved, sigmas[-1])
        later = [votes[j] for j in voters if j > index]
        earlier = [votes[j] for j in reversed(voters) if j < index]
        confirmed = np.any([np.zeros(count, bool), *(v == CONFIRMED for v in later)], axis=0)
        gone = looked_through(later, count) | looked_through(earlier, count) & ~confirmed
        known = [sigma for sigma in sigmas if not math.isnan(sigma)]
        return np.packbits(gone), float(np.median(known)) if known else math.nan

    def _voters(self, index: int, points: Array) -> list[int]:
        """Returns the keyframes that see the same place, in the order of time; an even choice."""
        if not len(points):
            return []
        count = min(NEAREST + 1, len(self._keyframes))
        _, near = self._tree.query(self._T[index, :3, 3], count)
        sample = points[:: max(1, len(points) // 200)]
        seen = [j for j in sorted(np.atleast_1d(near).tolist())
                if j != index and self._share(j, index, sample) >= OVERLAP]  # fmt: skip
        chosen = np.linspace(0, len(seen) - 1, min(VOTERS, len(seen))).round().astype(int)
        return [seen[k] for k in chosen]

    def _share(self, j: int, index: int, points: Array) -> float:
        """Returns the share of points [M, 3] of a keyframe that lie in the image of another."""
        pose = self._keyframes[j].stored.frames[self._keyframes[j].key]
        pixels = project(self._moved(j, index, points), pose.K)
        inside = (pixels >= 0) & (pixels < np.array(pose.size))
        return float(inside.all(axis=1).mean())

    def _moved(self, j: int, index: int, points: Array) -> Array:
        """Returns points [M, 3] of a keyframe in the camera of another."""
        T = (invert_pose(self._T[j]) @ self._T[index]).astype(np.float32)
        return np.asarray(points @ T[:3, :3].T + T[:3, 3])

    def _view(self, j: int) -> DepthView:
        if j not in self._views:
            keyframe = self._keyframes[j].load()
            depth = self._keyframes[j].depth_of(keyframe)
            self._views[j] = depth_view(depth, keyframe.confidence, keyframe.pose.K)
            if len(self._views) > CACHED:
                self._views.popitem(last=False)
        self._views.move_to_end(j)
        return self._views[j]
