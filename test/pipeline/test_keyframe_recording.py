"""What the map gets is what is stored: units, places that move, what is not seen."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from support.scenes import frame, pose

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import NO_TRACKS
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import MapState, StoredScene
from da3_ros.mapping.submap_points import Submap
from da3_ros.pipeline.keyframe_recording import KeyframeRecording, Seen

R = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])


@pytest.fixture
def recording(tmp_path):
    recorder = KeyframeRecorder(tmp_path, counters=Counter(), wait=True)
    return KeyframeRecording(recorder), tmp_path


def seen(f):
    return Seen(np.repeat(np.repeat(f.image, 2, 0), 2, 1), f.depth, None, NO_TRACKS)


def test_depth_and_pose_are_in_the_unit_of_the_submap(recording):
    """A loop may have given the growing submap another scale."""
    stored, folder = recording
    submap = Submap(3, 1, Similarity(2.0, R, np.array([1.0, 2, 3])))
    f = frame(5, pose(4.0))
    stored.add(f, seen(f), submap, MapState())
    assert stored.finish(MapState(True, 0.5), 10)
    with StoredScene.open(folder) as scene:
        place = scene.places[3].T_scene_submap
        np.testing.assert_allclose(
            place.pose(scene.frames[0].T_submap_camera), f.T_scene_camera, atol=1e-12
        )
        known = np.isfinite(f.depth)
        depth = place.scale * scene.load(0).depth
        np.testing.assert_allclose(depth[known], f.depth[known], rtol=1e-4)
        assert (scene.places[3].segment, scene.map.scene_scale) == (1, 0.5)


def test_a_loop_moves_what_is_stored(recording):
    stored, folder = recording
    submap = Submap(0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))
    f = frame(5, pose(4.0))
    stored.add(f, seen(f), submap, MapState())
    submap.T_scene_submap = Similarity(1.1, R, np.array([0.0, 0, 7]))
    submap.part = 2
    stored.place([submap])
    assert stored.finish(MapState(), 10)
    with StoredScene.open(folder) as scene:
        place = scene.places[0]
        assert (place.T_scene_submap.scale, place.T_scene_submap.t[2], place.part) == (1.1, 7, 2)


def test_submaps_of_a_scene_that_begins_anew_are_stored_again(recording):
    stored, folder = recording
    f = frame(5, pose(4.0))
    for x in (1.0, 2.0):
        submap = Submap(0, 0, Similarity(1.0, np.eye(3), np.array([x, 0, 0])))
        stored.add(f, seen(f), submap, MapState())
        if x == 1.0:
            stored.begin()
    assert stored.finish(MapState(), 10)
    with StoredScene.open(folder) as scene:
        assert scene.places[0].T_scene_submap.t[0] == 2.0
        assert len(scene.images) == 1


def test_frames_that_are_no_keyframes_have_poses_only(recording):
    stored, folder = recording
    submap = Submap(0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))
    f = dataclasses.replace(frame(5, pose(4.0)), keyframe=False)
    stored.add(f, None, submap, MapState())
    stored.correct({(f.camera, f.stamp_ns): pose(9.0)})
    assert stored.finish(MapState(), 10)
    with StoredScene.open(folder) as scene:
        assert not scene.images
        np.testing.assert_array_equal(scene.frames[0].T_submap_camera, pose(9.0))
        assert not scene.frames[0].keyframe
