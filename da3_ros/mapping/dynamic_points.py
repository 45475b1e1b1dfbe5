"""Points of the map that new keyframes look through leave it (``free_space``).

Each keyframe judges the growing submap and, in turn, one of the others near it. A point leaves if
the newest keyframe looks through it and most of those before it did not confirm it since. They
vote from where the map's path has them now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.free_space import THROUGH, DepthView, depth_view, looked_through
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.submap_points import SubmapPoints
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.voxel_map import VoxelSums
from da3_ros.types import Array

LOOKED_AT = 64  # submaps per keyframe, of which the next one near is judged
REMEMBERED = 8  # keyframes of a camera that vote
SAMPLE = 8000  # points that show how well the depths of a keyframe agree with a submap


@dataclass(frozen=True, eq=False)
class _Voter:
    """A keyframe that votes; depth in the unit of its submap."""

    id: int
    stamp_ns: int
    camera: str
    submap: int
    view: DepthView


Placed = tuple[_Voter, Array]  # with its pose [4, 4] in its submap


class DynamicPoints:
    """Removes points of a scene that later keyframes look through; owner of what they saw."""

    def __init__(
        self, submaps: Mapping[int, Submap], points: SubmapPoints, table: MapTable
    ) -> None:
        """table: its path has the keyframes' poses."""
        self._submaps, self._points, self._table = submaps, points, table
        self._voters: list[_Voter] = []
        self._turn = 0

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return sum(v.view.nbytes for v in list(self._voters))

    def add(self, frame: LocalFrame, submap: Submap, unit: float, camera: Array) -> None:
        """Lets a keyframe of ``submap`` vote, which is in the path, before its own points are
        added.

        unit: of odometry, per unit of the submap. camera: [3] in the map.
        """
        view = depth_view(frame.depth / np.float32(unit), frame.confidence, frame.K)
        self._remember(_Voter(frame.id, frame.stamp_ns, frame.camera, submap.id, view))
        reach, voters = submap.T_map_submap.scale * view.reach, self._placed()
        if not voters or voters[-1][0].id != frame.id:  # a full path may have dropped it at once
            return
        for judged in self._near(submap, camera, reach):
            self._judge(judged, voters)

    def measure(self, id: int, view: DepthView) -> None:
        """Gives a keyframe its measured depth, unit of its submap, for later votes."""
        self._voters = [replace(v, view=view) if v.id == id else v for v in self._voters]

    def remaining(self, submap: Submap, id: int, sums: VoxelSums) -> VoxelSums:
        """Returns the measured points of a keyframe of ``submap`` without those that later ones
        look through: these have voted on where the network had put them."""
        voters = [v for v in self._placed() if v[0].id > id and self._is_beside(v[0], submap)]
        if not voters:
            return sums
        xyz, among = sums.cloud().xyz, self._points.positions(submap)
        votes = [self._votes(v, submap, xyz, among) for v in voters]
        return sums.where(~looked_through(votes, len(xyz)))

    def _placed(self) -> list[Placed]:
        """Returns the keyframes that vote where the map has them now, oldest first; without those
        that its path has dropped."""
        frames = [(v.stamp_ns, v.camera) for v in self._voters]
        rows = zip(self._voters, self._table.path.rows_of(frames), strict=True)
        return [(v, row[1]) for v, row in rows if row is not None and row[0] == v.submap]

    def _remember(self, voter: _Voter) -> None:
        self._voters = [v for v in self._voters if v.submap in self._submaps]
        same = [v for v in self._voters if v.camera == voter.camera]
        if len(same) >= REMEMBERED:
            self._voters.remove(same[0])
        self._voters.append(voter)

    def _near(self, newest: Submap, camera: Array, reach: float) -> list[Submap]:
        """Returns the newest submap, and the next in turn of those in memory that the camera may
        see; a few are looked at, so that the cost does not grow with the map."""
        others = self._points.closed_in_memory
        for step in range(min(LOOKED_AT, len(others))):
            one = self._submaps[others[(self._turn + step) % len(others)]]
            T = one.T_map_submap
            far = float(np.linalg.norm(T.points(one.middle) - camera)) - one.reach * T.scale
            if one is not newest and one.component == newest.component and far < reach:
                self._turn = (self._turn + step + 1) % len(others)
                return [newest, one]
        self._turn += LOOKED_AT
        return [newest]

    def _judge(self, submap: Submap, voters: Sequence[Placed]) -> None:
        xyz = self._points.positions(submap)
        newest, *before = reversed(voters)
        suspects = np.flatnonzero(self._votes(newest, submap, xyz, xyz) == THROUGH)
        if not len(suspects):
            return
        beside = [v for v in reversed(before) if self._is_beside(v[0], submap)]
        votes = [self._votes(v, submap, xyz[suspects], xyz) for v in (*beside, newest)]
        leaving = suspects[looked_through(votes, len(suspects))]
        if len(leaving):
            self._points.remove(submap, leaving)

    def _is_beside(self, voter: _Voter, submap: Submap) -> bool:
        """Whether a voter's pose relative to a submap is known."""
        own = self._submaps.get(voter.submap)
        return own is not None and own.component == submap.component

    def _votes(self, placed: Placed, submap: Submap, xyz: Array, among: Array) -> NDArray[np.int8]:
        """Returns the votes on points [M, 3] of a submap; ``among``: all of its points."""
        voter, T_submap_camera = placed
        pose = self._submaps[voter.submap].T_map_submap
        to_camera = Similarity.from_pose(invert_pose(T_submap_camera))
        T = to_camera @ pose.inverse() @ submap.T_map_submap
        scale_R, t = (T.scale * T.R.T).astype(np.float32), T.t.astype(np.float32)
        sample = among[:: max(1, len(among) // SAMPLE)]
        return voter.view.votes(xyz @ scale_R + t, voter.view.disagreement(sample @ scale_R + t))
