"""Depth of stored keyframes that other keyframes look through, or have seen better.

Each keyframe is judged by those near it that see the same location, as the live map is
(``mapping/free_space``), but with all that came before and after.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from da3_ros.export.stored_depth import Readable
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe
from da3_ros.mapping.free_space import (
    CONFIRMED,
    FEWEST,
    SAME,
    DepthView,
    depth_view,
    looked_through,
)
from da3_ros.types import Array, FloatImage

NEAREST = 48  # keyframes with the nearest cameras, of which voters are chosen
AROUND = 96  # others whose cameras are around, evenly over time, of which they are chosen too
RADIUS = 0.5  # of those cameras' distances, in median depths
VOTERS = 16  # keyframes that judge one
ENDS = 2  # voters that are the first, and the last
OVERLAP = 0.1  # least share of a keyframe's points in a voter's image
CACHED = 256  # keyframes whose depth is kept in cells
JUDGED = 1024  # keyframes of which is kept what moved away
SAMPLE = 4000  # pixels that show how well the depths of two keyframes agree


@dataclass(frozen=True, eq=False)
class Judged:
    """Depth of a keyframe after the judgement of the others."""

    depth: FloatImage  # [h, w] units of the scene, NaN where unknown or moved away
    sigma: float  # relative standard deviation of its depth, by that of others; NaN: alone


@dataclass(frozen=True, eq=False)
class _CrossViewVoter:
    view: DepthView
    points: FloatImage  # [M, 3] an even choice of what it sees, in its camera


class CrossViews:
    """Keyframes of one component of a scene, in the order of time, that judge each other's
    depth."""

    def __init__(self, keyframes: Sequence[Readable]) -> None:
        self._keyframes = keyframes
        self._index = {one.key: index for index, one in enumerate(keyframes)}
        self._T = np.array([one.T_ros_camera for one in keyframes]).reshape(-1, 4, 4)
        self._tree = cKDTree(self._T[:, :3, 3])
        self._found: OrderedDict[int, tuple[NDArray[np.uint8], float]] = OrderedDict()
        self._views: OrderedDict[int, _CrossViewVoter] = OrderedDict()

    def judge(self, one: Readable, keyframe: Keyframe) -> Judged:
        """Returns a keyframe's depth that passes the filters, as the others see it.

        keyframe: ``one``, loaded. Later keyframes decide what has moved away; earlier ones where
        no later one has seen that something is still there.
        """
        depth, index = one.depth_of(keyframe), self._index[one.key]
        rows, columns = np.nonzero(np.isfinite(depth))
        if index not in self._found:
            points = backproject(depth, keyframe.pose.K)[rows, columns]
            self._found[index] = self._compare(index, points, depth)
            if len(self._found) > JUDGED:
                self._found.popitem(last=False)
        bits, sigma = self._found[index]
        if one.filters.remove_movers:
            gone = np.unpackbits(bits, count=len(rows)).astype(bool)
            depth[rows[gone], columns[gone]] = np.nan
        return Judged(depth, sigma)

    def _compare(
        self, index: int, points: Array, depth: FloatImage
    ) -> tuple[NDArray[np.uint8], float]:
        """Returns which points [M] of a keyframe others look through, as bits, and the standard
        deviation of its depth [h, w]."""
        voters, count = self._voters(index, points), len(points)
        votes, sigmas = {}, [math.nan]
        K = self._pose(index).K
        for j in voters:
            moved, voter = self._moved(j, index, points), self._view(j)
            apart = voter.view.disagreement(moved[:: max(1, count // SAMPLE)])
            votes[j] = voter.view.votes(moved, apart)
            sigmas.append(depth_sigma(self._shared(index, j, voter.points), depth, K))
        later = [votes[j] for j in voters if j > index]
        earlier = [votes[j] for j in reversed(voters) if j < index]
        confirmed = np.any([np.zeros(count, bool), *(v == CONFIRMED for v in later)], axis=0)
        gone = looked_through(later, count) | looked_through(earlier, count) & ~confirmed
        known = [sigma for sigma in sigmas if not math.isnan(sigma)]
        return np.packbits(gone), float(np.median(known)) if known else math.nan

    def _voters(self, index: int, points: Array) -> list[int]:
        """Returns the keyframes that see the same location, in the order of time; an even
        choice."""
        if not len(points):
            return []
        count, at = min(NEAREST + 1, len(self._keyframes)), self._T[index, :3, 3]
        _, near = self._tree.query(at, count)
        around = self._tree.query_ball_point(at, RADIUS * float(np.median(points[:, 2])))
        # The nearest ones alone may all have seen a person who stood for some time.
        candidates = {*np.atleast_1d(near).tolist(), *_even(sorted(around), AROUND)}
        sample = points[:: max(1, len(points) // 200)]
        seen = [j for j in sorted(candidates - {index})
                if self._share(j, index, sample) >= OVERLAP]  # fmt: skip
        return sorted({*seen[:ENDS], *_even(seen, VOTERS - 2 * ENDS), *seen[-ENDS:]})

    def _share(self, j: int, index: int, points: Array) -> float:
        """Returns the share of points [M, 3] of a keyframe that lie in the image of another."""
        pose = self._pose(j)
        pixels = project(self._moved(j, index, points), pose.K)
        inside = (pixels >= 0) & (pixels < np.array(pose.size))
        return float(inside.all(axis=1).mean())

    def _moved(self, j: int, index: int, points: Array) -> Array:
        """Returns points [M, 3] of a keyframe in the camera of another."""
        T = (invert_pose(self._T[j]) @ self._T[index]).astype(np.float32)
        return np.asarray(points @ T[:3, :3].T + T[:3, 3])

    def _shared(self, index: int, j: int, points: Array) -> Array:
        """Returns points [M, 3] of keyframe ``j`` in the camera of another, without those seen
        from the other side: a wall has two."""
        moved = self._moved(index, j, points)
        T = invert_pose(self._T[index]) @ self._T[j]
        return np.asarray(moved[(moved * (moved - T[:3, 3])).sum(axis=1) > 0], np.float32)

    def _pose(self, j: int) -> FramePose:
        return self._keyframes[j].stored.frames[self._keyframes[j].key]

    def _view(self, j: int) -> _CrossViewVoter:
        if j not in self._views:
            keyframe = self._keyframes[j].load()
            depth = self._keyframes[j].depth_of(keyframe)
            view = depth_view(depth, keyframe.confidence, keyframe.pose.K)
            points = backproject(depth, keyframe.pose.K)[np.isfinite(depth)]
            self._views[j] = _CrossViewVoter(view, points[:: max(1, len(points) // SAMPLE)].copy())
            if len(self._views) > CACHED:
                self._views.popitem(last=False)
        self._views.move_to_end(j)
        return self._views[j]


def depth_sigma(points: Array, depth: FloatImage, K: Array) -> float:
    """Returns the relative standard deviation of a depth image [h, w], NaN where unknown.

    points: [M, 3] in its camera, that another image with the same deviation has measured. Their
    median deviation counts: most of them are seen by both. NaN: too few are.
    """
    if len(points) < FEWEST:
        return math.nan
    pixels = np.nan_to_num(project(points, K) - 0.5, nan=-9.0)  # behind the camera
    column, row = pixels.astype(np.float32).T
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / depth  # linear on planes
    there = cv2.remap(
        inverse, column[:, None], row[:, None], cv2.INTER_LINEAR, borderValue=math.nan
    )[:, 0]  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(np.log(there * points[:, 2]))
    same = off[off < SAME]
    return 1.4826 / math.sqrt(2) * float(np.median(same)) if len(same) >= FEWEST else math.nan


def _even(values: Sequence[int], most: int) -> list[int]:
    """Returns an even choice."""
    chosen = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[k] for k in chosen]
