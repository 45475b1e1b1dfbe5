"""Where the parts of merged scenes lie: where loops place them, else beside what is placed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.merging.joining import Group, Joined
from da3_ros.merging.scene_parts import JoinedParts
from da3_ros.types import Array

GAP = 0.2  # space beside a part at a guessed place, over the longest side of all that is placed


class Placement:
    """The places of all parts in the merged scene.

    The groups of parts with one of the reference scene keep its frame; others are put beside
    these, level as they were. A group without metres cannot be in a metric scene: it is left out.
    """

    def __init__(self, parts: JoinedParts, joined: Joined, boxes: Mapping[int, Array]) -> None:
        """boxes: corners [8, 3] of what each submap has, in the frame of its scene."""
        self.parts = parts
        self._moves = joined.moves
        self._nodes: dict[int, list[int]] = {}  # first submaps of the nodes of each part
        for first in joined.moves:
            self._nodes.setdefault(parts.part(first), []).append(first)
        self.part_of: dict[int, int] = {}  # new number of each part that is not left out
        self._beside: dict[int, Similarity] = {}  # of each part, from where its group is alone
        self._place(sorted(joined.groups, key=lambda one: not self._stays(one)), boxes)

    def move(self, submap: int) -> Similarity | None:
        """Returns the move of a submap from the frame of its scene; None: it is left out."""
        part = self.parts.part(submap)
        if part not in self.part_of:
            return None
        return self._beside[part] @ self._move_alone(submap)

    def move_of_part(self, part: int) -> Similarity:
        """Returns the move of a part from where its group is alone."""
        return self._beside[part]

    def _place(self, groups: Sequence[Group], boxes: Mapping[int, Array]) -> None:
        reference = self.parts.inputs[0].saved
        T_map_scene = Similarity.from_pose(reference.T_map_world)
        occupied: list[Array] = []  # corners in the map
        for group in groups:
            if reference.metric and not any(map(self.parts.is_metric, group)):
                continue
            corners = [
                self._move_alone(id).points(box)
                for id, box in boxes.items() if self.parts.part(id) in group
            ]  # fmt: skip
            by = IDENTITY
            if not self._stays(group):
                own = self.parts.inputs[self.parts.scene_of_part(self._leading(group))].saved
                to_map = Similarity.from_pose(own.T_map_world)
                shift = _shift([to_map.points(box) for box in corners], occupied)
                by = T_map_scene.inverse() @ shift @ to_map
            occupied += [T_map_scene.points(by.points(box)) for box in corners]
            for part in group:
                self.part_of[part], self._beside[part] = min(group), by

    def _stays(self, group: Group) -> bool:
        """Whether a group has a part of the reference scene, which keeps its place."""
        return self.parts.scene_of_part(min(group)) == 0

    def _leading(self, group: Group) -> int:
        """Returns the part that gives a group its frame: the oldest metric one, else the
        oldest."""
        return next((part for part in sorted(group) if self.parts.is_metric(part)), min(group))

    def _move_alone(self, submap: int) -> Similarity:
        """Returns the move of a submap to where its group is alone: that of its node, or of the
        nearest one of its part."""
        nodes = self._nodes.get(self.parts.part(submap))
        if nodes is None:  # nothing recognises it
            return IDENTITY
        return self._moves[nodes[max(bisect_right(nodes, submap) - 1, 0)]]


def _shift(corners: Sequence[Array], occupied: Sequence[Array]) -> Similarity:
    """Returns the shift in the map that brings boxes in front of those that are there."""
    if not corners or not occupied:
        return IDENTITY
    own, there = np.concatenate(corners), np.concatenate(occupied)
    gap = GAP * float(max(np.ptp(own, axis=0).max(), np.ptp(there, axis=0).max()))
    forward = there[:, 0].max() + gap - own[:, 0].min()
    aside = (there[:, 1].min() + there[:, 1].max() - own[:, 1].min() - own[:, 1].max()) / 2
    return Similarity(1.0, np.eye(3), np.array([forward, aside, 0.0]))


def box_of(points: Array) -> Array:
    """Returns the corners [8, 3] of the box around points [M, 3]."""
    bounds = np.stack((points.min(axis=0), points.max(axis=0))).astype(np.float64)
    return np.stack([bounds[[i, j, k], [0, 1, 2]] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
