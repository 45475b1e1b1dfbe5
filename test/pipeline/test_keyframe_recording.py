"""What the map gets is what is stored: units, places that move, what is not seen."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from support.pipelines import settings, to_frame
from support.scenes import frame, pose

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import NO_TRACKS
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import MapState, StoredScene
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import relative_pose
from da3_ros.pipeline.keyframe_recording import KeyframeData, KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

R = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])


@pytest.fixture
def recording(tmp_path):
    recorder = KeyframeRecorder(tmp_path, counters=Counter(), wait=True)
    return KeyframeRecording(recorder), tmp_path


def data_of(f):
    return KeyframeData(np.repeat(np.repeat(f.image, 2, 0), 2, 1), f.depth, None, NO_TRACKS)


def test_depth_and_pose_are_in_the_unit_of_the_submap(recording):
    """A loop may have given the growing submap another scale."""
    stored, folder = recording
    submap = Submap(3, 1, Similarity(2.0, R, np.array([1.0, 2, 3])))
    f = frame(5, pose(4.0))
    T = relative_pose(submap.T_map_submap, f.T_local_camera)
    stored.add_frame(f, data_of(f), submap, T, submap.T_map_submap.scale, MapState())
    assert stored.finish(MapState(True, 0.5), 10)
    with StoredScene.open(folder) as scene:
        stored_submap = scene.submaps[3].T_map_submap
        np.testing.assert_allclose(
            stored_submap.pose(scene.frames[0].T_submap_camera), f.T_local_camera, atol=1e-12
        )
        known = np.isfinite(f.depth)
        depth = stored_submap.scale * scene.load(0).depth
        np.testing.assert_allclose(depth[known], f.depth[known], rtol=1e-4)
        assert (scene.submaps[3].chain, scene.map.scene_scale) == (1, 0.5)


def test_a_loop_moves_what_is_stored(recording):
    stored, folder = recording
    submap = Submap(0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))
    f = frame(5, pose(4.0))
    stored.add_frame(f, data_of(f), submap, f.T_local_camera, 1.0, MapState())
    submap.T_map_submap = Similarity(1.1, R, np.array([0.0, 0, 7]))
    submap.component = 2
    stored.place([submap])
    assert stored.finish(MapState(), 10)
    with StoredScene.open(folder) as scene:
        stored_submap = scene.submaps[0]
        assert (
            stored_submap.T_map_submap.scale,
            stored_submap.T_map_submap.t[2],
            stored_submap.component,
        ) == (1.1, 7, 2)


def test_a_correction_stores_the_submaps_that_it_has_moved_or_joined(recording, monkeypatch):
    """And one that is not stored yet."""
    stored, _folder = recording
    at = [Similarity(1.0, R, np.array([0.0, 0, x])) for x in range(4)]
    some = [Submap(id, 0, T) for id, T in enumerate(at)]
    stored.place(some[:3])
    placed = []
    monkeypatch.setattr(KeyframeRecorder, "place", lambda self, them: placed.append(them))
    rounding = Similarity(1.0, R, at[0].t + 1e-12)
    some[0].T_map_submap, some[1].T_map_submap, some[2].component = rounding, at[0], 1
    stored.move(some, dict(enumerate(at)), MapState())
    assert [s.id for s in placed[0]] == [1, 2, 3]
    stored.move(some, {s.id: s.T_map_submap for s in some}, MapState())
    assert placed[1] == []


def test_submaps_of_a_scene_that_begins_anew_are_stored_again(recording):
    stored, folder = recording
    f = frame(5, pose(4.0))
    for x in (1.0, 2.0):
        submap = Submap(0, 0, Similarity(1.0, np.eye(3), np.array([x, 0, 0])))
        stored.add_frame(f, data_of(f), submap, f.T_local_camera, 1.0, MapState())
        if x == 1.0:
            stored.begin()
    assert stored.finish(MapState(), 10)
    with StoredScene.open(folder) as scene:
        assert scene.submaps[0].T_map_submap.t[0] == 2.0
        assert len(scene.images) == 1


def test_frames_that_are_no_keyframes_have_poses_only(recording):
    stored, folder = recording
    submap = Submap(0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))
    f = dataclasses.replace(frame(5, pose(4.0)), keyframe=False)
    stored.add_frame(f, None, submap, f.T_local_camera, 1.0, MapState())
    stored.correct([PoseInSubmap(f.stamp_ns, f.camera, 0, pose(9.0))])
    assert stored.finish(MapState(), 10)
    with StoredScene.open(folder) as scene:
        assert not scene.images
        np.testing.assert_array_equal(scene.frames[0].T_submap_camera, pose(9.0))
        assert not scene.frames[0].keyframe


@pytest.mark.long
def test_depth_of_a_later_chain_is_in_the_unit_of_the_scene(tmp_path):
    """Each chain has a unit of its own; metres relate them."""
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="loop", frames=24, rate_hz=4.0)
    values = {"pose_prior.source": "odometry", "scale.source": "odometry"}
    pipeline = Pipeline(settings(**values), TruthSession(camera, seed=6))
    recorder = KeyframeRecorder(tmp_path, counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder), None)
    units = []
    for lap in (0, -(10**12)):  # the second one is a jump back in time
        for f in camera:
            changes = {"T_prior_camera": f.T_room_camera, "stamp_ns": f.stamp_ns + lap}
            pipeline.session.add_frame(dataclasses.replace(f, stamp_ns=f.stamp_ns + lap))
            list(pipeline.push(to_frame(camera, f, **changes)))
        units.append(pipeline.scale.unit)
    assert pipeline.scene_map.finish_recording(10)
    assert abs(units[1] / units[0] - 1) > 0.1
    truth = {f.stamp_ns % 10**12: f.depth for f in camera}
    with StoredScene.open(tmp_path) as stored:
        chains = {p.chain for p in stored.submaps.values()}
        assert len(chains) == 2
        for key in stored.images:
            one = stored.load(key)
            stored_submap = stored.submaps[one.pose.submap].T_map_submap
            depth = one.depth * stored_submap.scale * stored.map.scene_scale
            known = np.isfinite(depth)
            ratio = np.median(depth[known] / truth[one.pose.stamp_ns % 10**12][known])
            assert ratio == pytest.approx(1, abs=0.05)
