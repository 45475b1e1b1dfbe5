"""Depth of stored keyframes that other keyframes look through, or have seen better.

Each keyframe is judged by those near it that see the same place, as the live map is
(``mapping/free_space``), but with all that came before and after.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

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


class CrossViews:
    """Keyframes of one part of a scene, in the order of time, that judge each other's depth."""

    def __init__(self, keyframes: Sequence[Readable]) -> None:
        self._keyframes = keyframes
        self._index = {one.key: index for index, one in enumerate(keyframes)}
        self._T = np.array([one.T_map_camera for one in keyframes]).reshape(-1, 4, 4)
        self._tree = cKDTree(self._T[:, :3, 3])
        self._gone: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()  # bits
        self._views: OrderedDict[int, DepthView] = OrderedDict()

    def depth_of(self, one: Readable, keyframe: Keyframe) -> FloatImage:
        """Returns a keyframe's depth [h, w] that passes the filters, units of the scene, else NaN.

        keyframe: ``one``, loaded. Later keyframes decide what has moved away; earlier ones where
        no later one has seen that something is still there.
        """
        depth = one.depth_of(keyframe)
        if not one.filters.remove_movers:
            return depth
        rows, columns = np.nonzero(np.isfinite(depth))
        index = self._index[one.key]
        if index not in self._gone:
            points = backproject(depth, keyframe.pose.K)[rows, columns]
            self._gone[index] = np.packbits(self._judged(index, points))
            if len(self._gone) > JUDGED:
                self._gone.popitem(last=False)
        gone = np.unpackbits(self._gone[index], count=len(rows)).astype(bool)
        depth[rows[gone], columns[gone]] = np.nan
        return depth

    def _judged(self, index: int, points: Array) -> NDArray[np.bool_]:
        """Returns the mask [M] of points of a keyframe that others look through."""
        voters, count = self._voters(index, points), len(points)
        votes = {j: self._votes(j, index, points) for j in voters}
        later = [votes[j] for j in voters if j > index]
        earlier = [votes[j] for j in reversed(voters) if j < index]
        confirmed = np.any([np.zeros(count, bool), *(v == CONFIRMED for v in later)], axis=0)
        return looked_through(later, count) | looked_through(earlier, count) & ~confirmed

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

    def _votes(self, j: int, index: int, points: Array) -> NDArray[np.int8]:
        moved, view = self._moved(j, index, points), self._view(j)
        return view.votes(moved, view.tolerance(moved[:: max(1, len(moved) // SAMPLE)]))

    def _view(self, j: int) -> DepthView:
        if j not in self._views:
            keyframe = self._keyframes[j].load()
            depth = self._keyframes[j].depth_of(keyframe)
            self._views[j] = depth_view(depth, keyframe.confidence, keyframe.pose.K)
            if len(self._views) > CACHED:
                self._views.popitem(last=False)
        self._views.move_to_end(j)
        return self._views[j]
