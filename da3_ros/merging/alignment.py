"""Aligns scenes that were joined, by cameras.

A loop measures a submap by the network's depth, whose errors are common to all of its loops: most
of a scene's size is lost in them. Tracks know where the cameras of a window are to each other. So
each window becomes a node of the graph, with an edge to each of its cameras, and all windows
between two scenes together determine where one is in the other. Stored keyframes know it better:
each camera that the images of another scene place is one more measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.loop_keyframes import PlacedKeyframe
from da3_ros.mapping.pose_graph import Edge, optimize
from da3_ros.types import Array

MAX_WINDOWS = 200  # that are used, evenly chosen
# Standard deviations of a camera in a window that tracks refined: rotation, rad; position over the
# depth that is seen. Scale: none is measured.
CAMERA_SIGMA = (10.0, 0.003, 0.003)
RIGID_SIGMA = 1e-4  # of a camera in its submap, likewise; of a scene's shape
MOST_OFF = 2.0  # standard deviations, of three of four cameras, within which shapes stay


@dataclass(frozen=True, eq=False)
class SeenTogether:
    """A window of keyframes of two scenes, with poses by tracks."""

    views: tuple[int, ...]  # ids of its views
    T_window_camera: Array  # [N, 4, 4], in the window's unit


@dataclass(frozen=True, eq=False)
class MeasuredCamera:
    """A camera of a scene, as stored keyframes of another scene place it."""

    own: int  # index of the node that it is in
    T_own_camera: Similarity
    other: int  # and of one of the other scene
    T_other_camera: Similarity  # its scale means nothing
    sigma: Array  # [2] of the latter: rotation, rad; position, units of its node
    depth: float  # typical one, units of its own node


@dataclass(frozen=True, eq=False)
class SceneGraph:
    """The graph of submaps of all scenes. N nodes."""

    poses: Sequence[Similarity]  # where they are now
    before: Sequence[Similarity]  # where they were in their own scenes
    component: Sequence[int]  # the component of a scene that each is in
    edges: Sequence[Edge]  # between indices of nodes
    across: Sequence[bool]  # whether an edge is a loop between two scenes
    metric: NDArray[np.bool_]  # [N] whether scales are known

    def edges_of_shape(self) -> list[Edge]:
        """Returns edges that keep the shape of each component, and those across scenes."""
        out, first = [], dict[int, int]()
        for k, component in enumerate(self.component):
            head = first.setdefault(component, k)
            if k != head:
                own = self.before[head].inverse() @ self.before[k]
                out.append(Edge(head, k, own, RIGID_SIGMA * np.ones(3)))
        return out + self._edges_across()

    def weak_edges(self) -> list[Edge]:
        """Returns all edges; those across scenes count together as much as one alone: their
        errors are common."""
        inside = [e for e, over in zip(self.edges, self.across, strict=True) if not over]
        return inside + self._edges_across()

    def _edges_across(self) -> list[Edge]:
        over = [e for e, over in zip(self.edges, self.across, strict=True) if over]
        return [replace(e, sigma=e.sigma * np.sqrt(len(over))) for e in over]

    def poses_of_shape(self) -> list[Similarity]:
        """Returns the poses of nodes with the shape that each component had, where its first node
        is."""
        first = dict[int, int]()
        heads = [first.setdefault(component, k) for k, component in enumerate(self.component)]
        return [
            self.poses[head] @ self.before[head].inverse() @ before
            for head, before in zip(heads, self.before, strict=True)
        ]


def aligned(
    graph: SceneGraph, windows: Sequence[SeenTogether], keyframes: Mapping[int, PlacedKeyframe],
    node_of: Mapping[int, int], cameras: Sequence[MeasuredCamera] = (),
) -> list[Similarity]:  # fmt: skip
    """Returns the poses of all nodes that fit edges, windows and cameras best.

    Each component keeps its shape if windows and cameras agree with that; else all bend. The first
    metric node, else the first, stays. keyframes, node_of: by the ids of views, the keyframe and
    the index of its node.
    """
    count = min(len(windows), MAX_WINDOWS)
    chosen = [windows[i * len(windows) // count] for i in range(count)]

    def solved(poses: list[Similarity], edges: list[Edge]) -> tuple[list[Similarity], float]:
        problem = _AlignmentProblem(poses, edges)
        problem.add_windows(chosen, keyframes, graph.poses, node_of)
        problem.add_cameras(cameras)
        return problem.solved(graph.metric)

    poses, off = solved(graph.poses_of_shape(), graph.edges_of_shape())
    if off > MOST_OFF:
        poses, _ = solved(list(graph.poses), graph.weak_edges())
    return poses


class _AlignmentProblem:
    """The nodes of a graph with those of cameras and windows, and all edges."""

    def __init__(self, poses: list[Similarity], edges: list[Edge]) -> None:
        self.poses, self.edges, self._count = poses, edges, len(poses)
        self._measures: list[int] = []  # indices of the edges that measure cameras

    def add_windows(
        self, windows: Sequence[SeenTogether], keyframes: Mapping[int, PlacedKeyframe],
        poses: Sequence[Similarity], node_of: Mapping[int, int],
    ) -> None:  # fmt: skip
        """Adds windows, and the cameras that they saw."""
        camera_at = {}
        for id in sorted({id for window in windows for id in window.views}):
            keyframe, at = keyframes[id], node_of[id]
            own = poses[at].inverse() @ Similarity.from_pose(keyframe.T_local_camera)
            camera_at[id] = self._add_camera(at, own, keyframe.depth / poses[at].scale)
        for window in windows:
            pose = _pose_of(window, keyframes)
            depth = np.median([keyframes[id].depth for id in window.views]) / pose.scale
            sigma = np.array(CAMERA_SIGMA) * [1.0, 1.0, depth]
            for id, T in zip(window.views, window.T_window_camera, strict=True):
                measured = Similarity(1 / pose.scale, T[:3, :3], T[:3, 3])
                self._measure(len(self.poses), camera_at[id], measured, sigma)
            self.poses.append(pose)

    def add_cameras(self, cameras: Sequence[MeasuredCamera]) -> None:
        """Adds cameras that stored keyframes of another scene place."""
        for one in cameras:
            camera = self._add_camera(one.own, one.T_own_camera, one.depth)
            sigma = np.array([CAMERA_SIGMA[0], *one.sigma])
            self._measure(one.other, camera, one.T_other_camera, sigma)

    def _add_camera(self, node: int, own: Similarity, depth: float) -> int:
        """Adds a camera of a node; returns its index."""
        sigma = RIGID_SIGMA * np.array([1.0, 1.0, depth])
        self.edges.append(Edge(node, len(self.poses), own, sigma))
        self.poses.append(self.poses[node] @ own)
        return len(self.poses) - 1

    def _measure(self, by: int, camera: int, measured: Similarity, sigma: Array) -> None:
        self._measures.append(len(self.edges))
        self.edges.append(Edge(by, camera, measured, sigma, loop=True))

    def solved(self, metric: NDArray[np.bool_]) -> tuple[list[Similarity], float]:
        """Returns the poses of the graph's nodes, and the residual that three of four measured
        cameras are within, standard deviations."""
        free = np.zeros(len(self.poses), bool)
        free[: self._count] = metric
        fixed = int(np.argmax(metric)) if metric.any() else 0
        found = optimize(self.poses, self.edges, fixed=fixed, metric=free)
        off = np.quantile(found.residuals[self._measures], 0.75) if self._measures else 0.0
        return found.nodes[: self._count], float(off)


def _pose_of(window: SeenTogether, keyframes: Mapping[int, PlacedKeyframe]) -> Similarity:
    """Returns about where a window is, by its cameras."""
    there = np.array([keyframes[id].T_local_camera for id in window.views])
    own = window.T_window_camera
    R = there[0, :3, :3] @ own[0, :3, :3].T
    away, own_away = (np.linalg.norm(T[:, :3, 3] - T[0, :3, 3], axis=1) for T in (there, own))
    scale = float(away.sum() / max(own_away.sum(), 1e-12))
    return Similarity(max(scale, 1e-9), R, there[0, :3, 3] - scale * R @ own[0, :3, 3])
