"""Measures where scenes are in each other by their stored keyframes, on the camera's full images.

What verifies loops sees the small images of the network; scenes were refined on those of the
camera. Cameras of one scene are placed among keyframes of another, which stay as they are.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from da3_ros.export.selection import Progress
from da3_ros.geometry.similarity import Similarity
from da3_ros.merging.alignment import MeasuredCamera
from da3_ros.merging.inputs import InputScene
from da3_ros.merging.stored_views import StoredViews
from da3_ros.refinement.features import FeatureDetector
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.refinement.view_among_others import place_among
from da3_ros.types import Array

log = logging.getLogger(__name__)

TRACKS = 600  # of a camera and those that it is placed among; nothing waits for the result
MAX_CAMERAS = 100  # that are placed, of two scenes; evenly chosen
REACH = 2.0  # times the depth: distance of cameras that may see the same
OTHERS, FEWEST_OTHERS = 8, 2  # keyframes that a camera is placed among
MIN_SHARE = 0.3  # of what the camera sees that each of them sees too
MAX_MOVE = 0.2  # of a camera from where loops place it, over depth; more is a mistake
FEWEST_CAMERAS = 3  # that measure two scenes; each has six of the seven unknowns


@dataclass(frozen=True, eq=False)
class NodePoses:
    """The graph's nodes: where they were in their own scenes, and where they are now."""

    before: Sequence[Similarity]
    now: Sequence[Similarity]
    of: Callable[[int], int]  # index of the node of a submap; -1: its component has none
    component: Callable[[int], int]  # the component of a submap
    group: Callable[[int], int]  # and the number of what that is joined with

    def move(self, node: int) -> Similarity:
        """Returns the move of a node from the frame of its scene."""
        return self.now[node] @ self.before[node].inverse()


class StoredAlignment:
    """Measures cameras of scenes that were joined; a context manager."""

    def __init__(
        self, inputs: Sequence[InputScene], poses: NodePoses, max_features: int, depth: float,
        progress: Progress,
    ) -> None:  # fmt: skip
        """depth: typical one, in the unit of the poses. Raises JournalError."""
        self.inputs, self.poses, self._depth = inputs, poses, depth
        self._limits = dataclasses.replace(SolverLimits.full(max_features), tracks=TRACKS)
        detector = FeatureDetector(self._limits.features, self._limits.pixels)
        self._progress = progress
        self._views: dict[int, StoredViews] = {}
        self._open = ExitStack()  # their files
        for number, one in enumerate(inputs):
            if one.reader.has_keyframes:
                stored = self._open.enter_context(one.reader.keyframes())
                self._views[number] = StoredViews(one, stored, detector)

    def __enter__(self) -> StoredAlignment:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def measure(
        self, pairs: Sequence[frozenset[int]]
    ) -> dict[frozenset[int], list[MeasuredCamera]]:
        """Returns the cameras that measure each pair of scenes, by pairs of their indices.

        A pair that too few measure is left out, with a warning.
        """
        out = {}
        for pair in pairs:
            names = " and ".join(self.inputs[i].name for i in sorted(pair))
            missing = [self.inputs[i].name for i in sorted(pair) if i not in self._views]
            why = f"{' and '.join(missing)} without stored keyframes"
            if not missing:
                found = self._between(*(self._views[i] for i in sorted(pair)))
                if len(found) >= FEWEST_CAMERAS:
                    out[pair] = found
                    continue
                why = f"{len(found)} stored keyframes show the same in both"
            log.warning(
                "%s are aligned by the small images that recognise locations, not by "
                "stored ones: %s",
                names, why,
            )  # fmt: skip
        return out

    def _between(self, first: StoredViews, second: StoredViews) -> list[MeasuredCamera]:
        """Returns cameras of the scene with fewer keyframes, placed among those of the other."""
        asked, others = sorted((first, second), key=len)
        if not len(asked):
            return []
        nodes, other_nodes = (
            np.array([self.poses.of(int(s)) for s in one.submap]) for one in (asked, others)
        )
        near = self._near(asked, nodes, others, other_nodes)
        count = min(len(near), MAX_CAMERAS)
        found = []
        for i in range(count):
            self._progress("aligning stored keyframes", i / count)
            number = int(near[i * len(near) // count])
            camera = self._placed(asked, number, int(nodes[number]), others, other_nodes)
            if camera is not None:
                found.append(camera)
        return found

    def _near(
        self, asked: StoredViews, nodes: Array, others: StoredViews, other_nodes: Array
    ) -> Array:
        """Returns the numbers of keyframes near others of one group with them."""
        centres, other_centres = (
            np.array([
                self.poses.move(n).points(T[:3, 3])
                for n, T in zip(at.tolist(), one.T_map_camera, strict=True)
            ])
            for one, at in ((asked, nodes), (others, other_nodes))
        )  # fmt: skip
        groups, other_groups = (
            np.array([self.poses.group(int(s)) for s in one.submap]) for one in (asked, others)
        )
        near = np.zeros(len(asked), bool)
        for group in np.intersect1d(groups[nodes >= 0], other_groups[other_nodes >= 0]):
            tree = cKDTree(other_centres[(other_groups == group) & (other_nodes >= 0)])
            some = (groups == group) & (nodes >= 0)
            near[some] = tree.query(centres[some])[0] < REACH * self._depth
        return np.flatnonzero(near)

    def _placed(
        self, asked: StoredViews, number: int, node: int, others: StoredViews, other_nodes: Array
    ) -> MeasuredCamera | None:
        """Returns a camera among those of another scene that see the same; None: it cannot be
        placed."""
        points = asked.surface(number)
        group = self.poses.group(int(asked.submap[number]))
        moved = self.poses.move(node).points(points)
        chosen = self._seeing(moved, group, others, other_nodes)
        if len(chosen) < FEWEST_OTHERS:
            return None
        other = int(other_nodes[chosen[0]])
        start = self.poses.move(other).inverse() @ self.poses.move(node)
        T = asked.T_map_camera[number]
        views: list[TrackedView] = []
        for k in chosen:
            held = others.view(k, len(views), others.T_map_camera[k], 1.0)
            if held is not None:
                views.append(held)
        own = asked.view(number, len(views), start.pose(T), start.scale)
        if own is None or len(views) < FEWEST_OTHERS:
            return None
        found = place_among(own, views, self._limits)
        if found is None:
            return None
        moved_by = np.linalg.norm(found.T_local_camera[:3, 3] - start.pose(T)[:3, 3])
        if moved_by * self.poses.move(other).scale > MAX_MOVE * self._depth:
            return None
        back, other_back = (self.poses.before[k].inverse() for k in (node, other))
        return MeasuredCamera(
            node, back @ Similarity.from_pose(T),
            other, other_back @ Similarity.from_pose(found.T_local_camera),
            found.sigma[1:] * [1.0, other_back.scale], self._depth / self.poses.now[node].scale,
        )  # fmt: skip

    def _seeing(self, points: Array, group: int, others: StoredViews, nodes: Array) -> list[int]:
        """Returns the keyframes of one component that see most of some points, which are where
        nodes are now."""
        shares = np.zeros(len(others))
        if not len(points):
            return []
        for node in np.unique(nodes[nodes >= 0]):
            some = np.flatnonzero(nodes == node)
            if self.poses.group(int(others.submap[some[0]])) == group:
                there = self.poses.move(int(node)).inverse().points(points)
                shares[some] = others.shares(some, there)
        order = np.argsort(-shares, kind="stable")
        order = order[shares[order] > MIN_SHARE]
        components = [self.poses.component(int(others.submap[k])) for k in order]
        same = [
            k
            for k, component in zip(order.tolist(), components, strict=True)
            if component == components[0]
        ]
        return same[:OTHERS]
