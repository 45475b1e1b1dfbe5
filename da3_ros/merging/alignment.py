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

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.loop_keyframes import LoopKeyframe
from da3_ros.mapping.pose_graph import Edge, Metric, optimize
from da3_ros.mapping.submap_graph import Node
from da3_ros.types import Array

MAX_WINDOWS = 200  # that are used, evenly chosen
# Standard deviations of a camera in a window that tracks refined: rotation, rad; position over the
# depth that is seen. Scale: none is measured.
CAMERA_SIGMA = (10.0, 0.003, 0.003)
RIGID_SIGMA = 1e-4  # of a camera in its submap, likewise


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
    sigma: Array  # [2] of the latter: rotation, rad; position, units of the node


def aligned(
    nodes: Sequence[Node], edges: Sequence[Edge], windows: Sequence[SeenTogether],
    keyframes: Mapping[int, LoopKeyframe], node_of: Mapping[int, int], metric: Metric, fixed: int,
    cameras: Sequence[MeasuredCamera] = (),
) -> list[Similarity]:  # fmt: skip
    """Returns the places of all nodes that fit edges, windows and cameras best; node ``fixed``
    stays.

    edges: between indices of nodes. keyframes, node_of: by the ids of views, the keyframe and the
    index of its node. metric: as in ``optimize``.
    """
    count = min(len(windows), MAX_WINDOWS)
    chosen = [windows[i * len(windows) // count] for i in range(count)]
    views = sorted({id for window in chosen for id in window.views})
    places = [n.place for n in nodes]
    camera_at = {id: len(nodes) + i for i, id in enumerate(views)}
    more = list(edges)
    for id in views:
        keyframe, at = keyframes[id], node_of[id]
        place = Similarity.from_pose(keyframe.T_vo_camera)
        scale = keyframe.depth / places[at].scale
        sigma = RIGID_SIGMA * np.array([1.0, 1.0, scale])
        more.append(Edge(at, camera_at[id], places[at].inverse() @ place, sigma))
        places.append(place)
    for window in chosen:
        own = _place_of(window, keyframes)
        depth = np.median([keyframes[id].depth for id in window.views]) / own.scale
        for id, T in zip(window.views, window.T_window_camera, strict=True):
            measured = Similarity(1 / own.scale, T[:3, :3], T[:3, 3])
            sigma = np.array(CAMERA_SIGMA) * [1.0, 1.0, depth]
            more.append(Edge(len(places), camera_at[id], measured, sigma, loop=True))
        places.append(own)
    for camera in cameras:
        depth = camera.sigma[1] / CAMERA_SIGMA[2]
        rigid = RIGID_SIGMA * np.array([1.0, 1.0, depth])
        more.append(Edge(camera.own, len(places), camera.T_own_camera, rigid))
        sigma = np.array([CAMERA_SIGMA[0], *camera.sigma])
        more.append(Edge(camera.other, len(places), camera.T_other_camera, sigma, loop=True))
        places.append(places[camera.own] @ camera.T_own_camera)
    free = np.zeros(len(places), bool)
    free[: len(nodes)] = metric
    return optimize(places, more, fixed=fixed, metric=free).nodes[: len(nodes)]


def weaker(edges: Sequence[Edge], across: Sequence[bool]) -> list[Edge]:
    """Returns edges of which those ``across`` scenes count together as much as one alone: their
    errors are common."""
    factor = np.sqrt(max(sum(across), 1))
    return [
        replace(e, sigma=e.sigma * factor) if over else e
        for e, over in zip(edges, across, strict=True)
    ]


def _place_of(window: SeenTogether, keyframes: Mapping[int, LoopKeyframe]) -> Similarity:
    """Returns about where a window is, by its cameras."""
    there = np.array([keyframes[id].T_vo_camera for id in window.views])
    own = window.T_window_camera
    R = there[0, :3, :3] @ own[0, :3, :3].T
    away, own_away = (np.linalg.norm(T[:, :3, 3] - T[0, :3, 3], axis=1) for T in (there, own))
    scale = float(away.sum() / max(own_away.sum(), 1e-12))
    return Similarity(max(scale, 1e-9), R, there[0, :3, 3] - scale * R @ own[0, :3, 3])
