"""Where the components of merged scenes lie: where loops place them, else beside what is
placed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.merging.joining import Group, Joined
from da3_ros.merging.scene_components import JoinedComponents
from da3_ros.types import Array

GAP = 0.2  # space beside an unconnected component, over the longest side of all that is placed


class Placement:
    """The poses of all components in the merged scene.

    The groups of components with one of the reference scene keep its frame; others are put beside
    these, level as they were. A group without metres cannot be in a metric scene: it is left out.
    """

    def __init__(
        self, components: JoinedComponents, joined: Joined, boxes: Mapping[int, Array]
    ) -> None:
        """boxes: corners [8, 3] of what each submap has, in the frame of its scene."""
        self.components = components
        self._moves = joined.moves
        self._nodes: dict[int, list[int]] = {}  # first submaps of the nodes of each component
        for first in joined.moves:
            self._nodes.setdefault(components.component(first), []).append(first)
        self.component_of: dict[int, int] = {}  # new number of each component that is not left out
        self._beside: dict[int, Similarity] = {}  # of each, from where its group is alone
        self._place(sorted(joined.groups, key=lambda one: not self._stays(one)), boxes)

    def move(self, submap: int) -> Similarity | None:
        """Returns the move of a submap from the frame of its scene; None: it is left out."""
        component = self.components.component(submap)
        if component not in self.component_of:
            return None
        return self._beside[component] @ self._move_alone(submap)

    def move_of_component(self, component: int) -> Similarity:
        """Returns the move of a component from where its group is alone."""
        return self._beside[component]

    def _place(self, groups: Sequence[Group], boxes: Mapping[int, Array]) -> None:
        reference = self.components.inputs[0].saved
        T_ros_reference = Similarity.from_pose(reference.T_ros_map)
        occupied: list[Array] = []  # corners in the map
        for group in groups:
            if reference.metric and not any(map(self.components.is_metric, group)):
                continue
            corners = [
                self._move_alone(id).points(box)
                for id, box in boxes.items() if self.components.component(id) in group
            ]  # fmt: skip
            by = IDENTITY
            if not self._stays(group):
                own = self.components.inputs[
                    self.components.scene_of_component(self._leading(group))
                ].saved
                T_ros_own = Similarity.from_pose(own.T_ros_map)
                shift = _shift([T_ros_own.points(box) for box in corners], occupied)
                by = T_ros_reference.inverse() @ shift @ T_ros_own
            occupied += [T_ros_reference.points(by.points(box)) for box in corners]
            for component in group:
                self.component_of[component], self._beside[component] = min(group), by

    def _stays(self, group: Group) -> bool:
        """Whether a group has a component of the reference scene, which keeps its pose."""
        return self.components.scene_of_component(min(group)) == 0

    def _leading(self, group: Group) -> int:
        """Returns the component that gives a group its frame: the oldest metric one, else the
        oldest."""
        return next(
            (component for component in sorted(group) if self.components.is_metric(component)),
            min(group),
        )

    def _move_alone(self, submap: int) -> Similarity:
        """Returns the move of a submap to where its group is alone: that of its node, or of the
        nearest one of its component."""
        nodes = self._nodes.get(self.components.component(submap))
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
