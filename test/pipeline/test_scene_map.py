"""The map's frames where the unit or the beginning of odometry changes between two windows, and
what reports say of views in them."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from support.pipelines import SIZE, settings, to_frame

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.loop_candidates import DriftModel
from da3_ros.mapping.metric_scale import MapScale
from da3_ros.mapping.submap_spill import Submap
from da3_ros.pipeline.delivery import UNPLACED, PlacedWindow
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Prediction, Scale, View, Window, WindowEstimate


@pytest.fixture
def scene_map():
    return SceneMap(settings(), Counter())


@pytest.mark.parametrize("jump", [False, True])
def test_a_correction_that_comes_late_leaves_a_consistent_map_as_it_is(
    scene_map, monkeypatch, jump
):
    """It was solved before odometry got another unit, or began anew after a jump of time."""
    table = scene_map.table
    poses = [Similarity(1.0, np.eye(3), np.array([float(k), 0, 0])) for k in range(4)]
    for id, pose in enumerate(poses):
        table.add_submap(Submap(id, 0, pose))
    nodes = tuple(Node(k, k) for k in range(3))
    solved = Correction(Moves(nodes, (IDENTITY,) * 3), IDENTITY, IDENTITY)
    moved = Similarity(2.0, np.eye(3), np.array([5.0, 0, 0]))
    table.set_poses({}, moved)
    if jump:
        scene_map.to_origin()
    monkeypatch.setattr(scene_map.loops, "collect", lambda wait: solved)
    scene_map.close_loop()
    for id, pose in enumerate(poses):
        np.testing.assert_allclose(table.submaps[id].T_map_submap.t, pose.t, atol=1e-12)
    assert table.T_map_local.scale == (1.0 if jump else 2.0)


def test_drift_of_loops_follows_a_new_unit_of_odometry(scene_map, monkeypatch):
    drift = scene_map.loops._drift_model = DriftModel()
    drift.add(np.array([1e-4, 1e-4, 1.0]), np.zeros(3))

    def update(self, *_, own_motion):
        self._set_unit(5.0)
        return Scale()

    monkeypatch.setattr(MapScale, "update", update)
    scene_map.update_scale(None, None, None, own_motion=True)
    assert drift.variance_at(np.zeros(3))[2] == pytest.approx(1 / 25)  # as long in the map


def test_a_report_has_shared_views_where_the_map_has_them_not_where_the_network_saw_them():
    """They differ by the network's noise; the new view is where it is published."""
    camera = SyntheticCamera(3, SIZE, walk="loop", frames=10)
    noise = Noise(rotation_deg=1.0, translation=0.05)
    pipeline = Pipeline(settings(), TruthSession(camera, noise=noise))
    table, compared = pipeline.map.table, 0
    for f in camera:
        (result,) = pipeline.push(to_frame(camera, f))
        poses = dict(zip(result.window.view_ids, result.window.T_map_camera, strict=True))
        np.testing.assert_array_equal(poses.pop(result.id), result.T_map_camera)
        for id in poses.keys() & table.shared.keys():
            T = table.T_map_local.pose(table.view(id).T_local_camera)
            np.testing.assert_allclose(poses[id], T, atol=1e-12)
            compared += 1
    assert compared > 15


def test_a_view_that_is_shared_no_longer_has_no_pose_in_a_report(scene_map):
    view = View(3, 3, np.zeros((2, 2, 3), np.uint8))
    depth = np.ones((2, 2, 2), np.float32)
    prediction = Prediction(
        depth, depth, np.tile(np.eye(4), (2, 1, 1)), np.tile(np.eye(3), (2, 1, 1))
    )
    placed = PlacedWindow(
        Window(0, (view, dataclasses.replace(view, id=4)), 1), prediction,
        WindowEstimate.of(prediction), UNPLACED, depth,
    )  # fmt: skip
    lost, new = scene_map.poses_of(placed, Scale())
    assert np.isnan(lost).all()
    np.testing.assert_array_equal(new, np.eye(4))
