"""The course of a scene: its paths to draw and to compare, and their uncertainty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.camera_frusta import path_points
from da3_ros.mapping.scene import REFERENCE, Scene
from da3_ros.reporting.plots import OTHER, SERIES, Line, Spread
from da3_ros.reporting.run_files import KeptScene
from da3_ros.types import Array

MOST_COMPONENTS = len(SERIES) - 1  # with a colour of their own


def poses_of(scene: Scene) -> tuple[Array, Array, Array]:
    """Returns of the leading cameras' poses: stamps [N] int64, ns; T_ros_camera [N, 4, 4]; and the
    number [N] of the scene's component."""
    leading = replace(scene, poses=scene.poses.leading())
    T = np.tile(np.eye(4), (len(leading.poses), 1, 1))
    T[:, :3] = leading.poses.rows["T"]
    stamps = leading.poses.rows["stamp_ns"].astype(np.int64)
    return stamps, scene.T_ros_map @ T, np.array(leading.component_of_poses(), np.int64)


def path_length(scene: Scene) -> float:
    """Returns the length of the leading cameras' paths, where their motion was measured."""
    points, chain = path_points(scene), _chains(scene)
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    return float(steps[chain[1:] == chain[:-1]].sum())


def lines_of(scene: Scene, begin_ns: int) -> list[Line]:
    """Returns the path of each component, interrupted where motion was not measured; those beyond
    ``MOST_COMPONENTS`` as one.

    begin_ns: stamp at which the time of the report begins.
    """
    stamps, _, component = poses_of(scene)
    points, chain = path_points(scene), _chains(scene)
    seconds = (stamps - begin_ns) / 1e9
    lines = []
    for number, one in enumerate(np.unique(component)):
        own = component == one
        at, t = _interrupted(points[own], seconds[own], chain[own])
        known = one == REFERENCE
        name = "path" if known else f"component {one}, pose unknown"
        color = SERIES[number] if number < MOST_COMPONENTS else OTHER
        lines.append(Line(name, at, t, color, dashed=not known))
    few, others = lines[:MOST_COMPONENTS], lines[MOST_COMPONENTS:]
    return [*few, _together(others)] if len(others) > 1 else lines


def _together(lines: list[Line]) -> Line:
    """Returns lines as one, interrupted between them."""
    ends = np.cumsum([len(line.points) for line in lines])[:-1]
    points, seconds = (np.concatenate(parts) for parts in (
        [line.points for line in lines], [line.seconds for line in lines]
    ))  # fmt: skip
    return Line(
        f"{len(lines)} more, pose unknown", np.insert(points, ends, np.nan, axis=0),
        np.insert(seconds, ends, np.nan), OTHER, dashed=True,
    )  # fmt: skip


def spread_of(kept: KeptScene, begin_ns: int) -> Spread | None:
    """Returns the standard deviations of the position as they were published, at the final poses
    of the first component; None: none is known."""
    if kept.scene is None or kept.timeline is None:
        return None
    stamps, _, component = poses_of(kept.scene)
    points = path_points(kept.scene)
    points, stamps = points[component == REFERENCE], stamps[component == REFERENCE]
    rows = kept.timeline[np.isfinite(kept.timeline["sigma_x"])]
    if kept.metric:  # else these deviations have another unit
        rows = rows[np.isfinite(rows["scale"])]
    if not len(rows) or not len(stamps):
        return None
    order = np.argsort(stamps, kind="stable")
    at = np.clip(np.searchsorted(stamps[order], rows["last_ns"]), 0, len(stamps) - 1)
    sigma = np.column_stack([rows[f"sigma_{axis}"] for axis in "xyz"])
    return Spread(points[order[at]], (rows["last_ns"] - begin_ns) / 1e9, sigma)


def _chains(scene: Scene) -> NDArray[np.int64]:
    """Returns the chain [N] of each pose of the leading cameras."""
    ids = scene.poses.leading().rows["submap"]
    return np.array([scene.chain_of.get(int(id), 0) for id in ids], np.int64)


def _interrupted(points: Array, seconds: Array, chain: NDArray[np.int64]) -> tuple[Array, Array]:
    """Returns points and times with a row of NaN wherever a chain ends."""
    ends = np.flatnonzero(np.diff(chain)) + 1
    return np.insert(points, ends, np.nan, axis=0), np.insert(seconds, ends, np.nan)
