"""A keyframe's pose has one owner: no other object keeps a copy of it between two windows."""

import functools
from collections import deque

import numpy as np
import pytest
from support.cases import long_after
from support.ring import DescribedTruth, walked

from da3_ros.config import config_from_parameters
from da3_ros.mapping.map_table import MapListener
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Calibration, Frame

# Objects that may hold the pose of an overlap view, by the classes on the way to it.
OWNER = "MapTable"
# What says where a camera was last, or when it began to stand, and not where a keyframe is.
OTHERS = {
    "WindowOdometry.newest",
    "OdomFrame",
    "SeenCamera.last",
    "PoseUncertainty._learned_at",
    "_Stand.T_local_camera",
}


def poses_in(root):
    """Yields the way to each pose [3 or 4, 4] below an object of ours, and the pose."""
    seen, todo = set(), deque([("", root)])
    while todo:
        way, one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            if one.dtype.names and "T" in one.dtype.names:
                yield from ((way, T) for T in one["T"])
            elif one.shape[-2:] in ((3, 4), (4, 4)):
                yield from ((way, T) for T in one.reshape(-1, *one.shape[-2:]))
        elif isinstance(one, dict):
            todo.extend((way, value) for value in one.values())
        elif isinstance(one, list | tuple | set | frozenset | deque):
            todo.extend((way, value) for value in one)
        elif type(one).__module__.startswith("da3_ros."):
            name = type(one).__name__
            for attribute, value in vars(one).items():
                todo.append((f"{way}/{name}.{attribute}", value))


def copies(pipeline, root):
    """Returns the ways to copies of poses of overlap views, in their submap, odometry or map."""
    table, found = pipeline.map.table, set()
    known = []
    for key in table.shared:
        T = table.view(key).T_local_camera
        known += [table.shared[key].T_submap_camera, T, table.T_map_local.pose(T)]
    # The first view of a submap is its frame: the identity is no copy of anything.
    known = np.array([T[:3] for T in known if np.abs(T - np.eye(4)).max() > 1e-6])
    for way, T in poses_in(root):
        if len(known) and np.abs(known - T[:3]).max(axis=(1, 2)).min() < 1e-9:
            found.add(way)
    return found


def others(ways):
    return {
        way for way in ways
        if OWNER not in way and not any(name in way for name in OTHERS)
    }  # fmt: skip


@functools.cache
def after_a_loop():
    walk = walked(110)
    settings = {
        "process_res": 84, "window.size": 6, "map.voxel_m": 0.1, "loop.every": 2,
        "refinement.enabled": False, "hold_when_blind": False,  # images are black
        "map.remove_movers": False,
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(settings), DescribedTruth(walk))
    K = walk[0].K.copy()
    K[:2, 2] -= 0.5
    size = walk[0].depth.shape
    black, lens = np.zeros((*size, 3), np.uint8), Calibration(size[1], size[0], K)
    for f in walk:
        list(pipeline.push(Frame(f.stamp_ns, black, calibration=lens)))
    assert pipeline.loops.closed
    return pipeline


class Refinements(MapListener):
    """The newest pose of each view in its submap, as it was told."""

    def __init__(self, table):
        self.poses = {}
        table.listeners.append(self)

    def on_refinement(self, frames):
        self.poses |= {f.stamp_ns: (f.submap, f.T_submap_camera[:3]) for f in frames}


@functools.cache
def after_refined_windows():
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="loop", frames=14)
    pipeline = Pipeline(
        config_from_parameters({"process_res": 140, "window.size": 6}),
        TruthSession(list(camera)),
    )
    pipeline.told = Refinements(pipeline.map.table)
    for f in camera:
        list(pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration)))
    assert pipeline.counters["windows_refined"] > 10
    assert len(pipeline._steps.refinement.refiner.graph.views) > 5
    return pipeline


@pytest.mark.parametrize("made", long_after(1, [after_refined_windows, after_a_loop]))
def test_no_other_object_keeps_the_pose_of_a_shared_view(made):
    pipeline = made()
    ways = copies(pipeline, pipeline)
    assert any(OWNER in way for way in ways)
    assert others(ways) == set()


def test_path_and_listeners_have_the_refined_poses():
    pipeline = after_refined_windows()
    rows = pipeline.map.table.path.poses().rows
    path = {int(r["stamp_ns"]): (int(r["submap"]), r["T"]) for r in rows}
    told = pipeline.told.poses
    assert len(told) > 10
    for stamp_ns, (submap, T) in told.items():
        assert path[stamp_ns][0] == submap
        np.testing.assert_array_equal(path[stamp_ns][1], T)


def test_a_copy_would_be_found():
    pipeline = after_refined_windows()
    key = next(iter(pipeline.map.table.shared))
    T = pipeline.map.table.view(key).T_local_camera
    pipeline.odometry.prior.copy = [{1: T.copy()}]
    assert others(copies(pipeline, pipeline)) != set()
    del pipeline.odometry.prior.copy
