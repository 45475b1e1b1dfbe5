"""What is up: the map is level, and each frame knows where its camera is over the floor."""

import dataclasses
import logging
from collections import Counter

import numpy as np
import pytest
from support.driving import level, robots_frames
from support.pipelines import settings, to_frame
from support.solids import camera_at

from da3_ros.geometry.poses import T_ROS_MAP, invert_pose
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import Outputs
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Scale, TrackedFrame, WindowReport

SIZE = (140, 112)
METRIC = Scale("fixed", 1.0, 0.0)


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(4, SIZE, walk="loop", frames=8)


def walk(camera, frames, **values):
    """A pipeline that has seen frames, and what it gave."""
    pipeline = Pipeline(settings(**values), TruthSession(camera))
    out = []
    for frame in frames:
        out += pipeline.push(frame)
    return pipeline, out


def true_level(camera, tracked):
    return level(next(f for f in camera if f.stamp_ns == tracked.stamp_ns))


def test_a_map_by_the_base_begins_there(camera):
    pipeline, out = walk(camera, robots_frames(camera, camera))
    assert pipeline.scene_map.is_level
    np.testing.assert_allclose(pipeline.scene_map.T_ros_map, level(camera[0]), atol=1e-9)
    for tracked in out:
        np.testing.assert_array_equal(tracked.T_level_camera, true_level(camera, tracked))


def test_the_frames_of_a_flush_level_the_map_too(camera):
    pipeline = Pipeline(settings(**{"window.new": 4}), TruthSession(camera))
    for frame in robots_frames(camera, list(camera)[:3]):
        assert not list(pipeline.push(frame))
    assert not pipeline.scene_map.is_level
    assert len(list(pipeline.flush())) == 3
    np.testing.assert_allclose(pipeline.scene_map.T_ros_map, level(camera[0]), atol=1e-9)


def test_without_a_base_the_map_is_not_level(camera):
    pipeline, out = walk(camera, [to_frame(camera, f) for f in camera])
    assert not pipeline.scene_map.is_level
    assert pipeline.scene_map.map_placed
    np.testing.assert_array_equal(pipeline.scene_map.T_ros_map, T_ROS_MAP)
    assert {tracked.T_level_camera is None for tracked in out} == {True}


def test_a_map_by_the_floor_has_z_0_there_in_metres(camera):
    first, unscaled = walk(
        camera, [to_frame(camera, f) for f in camera], **{"level.source": "ground"}
    )
    assert not first.scene_map.is_level  # the floor's height is not in metres
    factor = true_level(camera, unscaled[0])[2, 3] / unscaled[0].T_level_camera[2, 3]
    pipeline, out = walk(
        camera, [to_frame(camera, f) for f in camera],
        **{"level.source": "ground", "scale.source": "fixed", "scale.factor": factor},
    )  # fmt: skip
    assert pipeline.scene_map.is_level
    T_ros_map = pipeline.scene_map.T_ros_map
    np.testing.assert_allclose(T_ros_map[:2, 3], 0, atol=0.02)
    for tracked in out:
        true, found = true_level(camera, tracked), tracked.T_level_camera
        assert found[2, :3] @ true[2, :3] > np.cos(np.radians(1.5))
        assert found[2, 3] == pytest.approx(true[2, 3], rel=0.05)
        in_map = T_ros_map @ tracked.T_map_camera
        assert in_map[2, 3] == pytest.approx(true[2, 3], rel=0.06)


def test_two_runs_by_the_floor_give_the_same_bits(camera):
    frames = [to_frame(camera, f) for f in camera]
    values = {"level.source": "ground", "scale.source": "fixed"}
    runs = [walk(camera, frames, **values)[1] for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a.T_level_camera, b.T_level_camera)


def tracked(T_level_camera, T_map_camera=None, scale=METRIC, **fields):
    report = WindowReport(0, 0, (0,), 1, True, 0.0, 1.0, 1.0)
    image, depth = np.zeros((4, 6, 3), np.uint8), np.ones((4, 6), np.float32)
    return TrackedFrame(
        0, 0, "optical", "", image, depth, depth, np.eye(3),
        np.eye(4) if T_map_camera is None else T_map_camera, True, scale, report,
        T_level_camera=T_level_camera, **fields,
    )  # fmt: skip


def scene_map(**values):
    return SceneMap(settings(**values), Counter())


def test_what_is_up_may_be_known_later_and_then_counts_once(caplog):
    one, T = scene_map(), camera_at(1.0, 10.0)
    with caplog.at_level(logging.WARNING):
        one.level(tracked(None))
        assert one.map_placed
        assert not one.is_level
        one.level(tracked(T))
        one.level(tracked(camera_at(2.0, 30.0)))
    np.testing.assert_array_equal(one.T_ros_map, T)
    assert [r.message for r in caplog.records if "odom turn by" in r.message] == [
        "what is up is known from now on: map and odom turn by 10.0 degrees"
    ]


def test_a_mount_that_comes_late_counts_at_the_pose_of_its_frame():
    one, pan = scene_map(), camera_at(1.0, 25.0)
    one.level(tracked(None))
    turned = invert_pose(camera_at(1.0, 0.0)) @ pan  # 25 degrees down since the map began
    one.level(tracked(pan, turned))
    np.testing.assert_allclose(one.T_ros_map, camera_at(1.0, 0.0), atol=1e-9)


def test_a_covered_camera_says_nothing_of_it():
    one = scene_map()
    one.level(tracked(camera_at(1.0), blind="dark"))
    assert not one.map_placed
    one.level(tracked(camera_at(2.0)))
    assert one.T_ros_map[2, 3] == 2.0


def test_a_map_of_another_source_is_not_levelled():
    for T, is_level in ((camera_at(3.0), True), (T_ROS_MAP, True), (T_ROS_MAP, False)):
        one = scene_map()
        one.place_map(T, is_level=is_level)
        assert one.is_level == is_level
        one.level(tracked(camera_at(1.0, 10.0)))
        np.testing.assert_array_equal(one.T_ros_map, T)


def test_axes_by_the_floor_stay_until_its_height_is_in_metres(caplog):
    one = scene_map(**{"level.source": "ground"})
    with caplog.at_level(logging.WARNING):
        one.level(tracked(camera_at(0.5, 10.0), scale=Scale()))
        axes = one.T_ros_map.copy()
        one.level(tracked(camera_at(0.9, 12.0), scale=Scale()))
        np.testing.assert_array_equal(one.T_ros_map, axes)
        moved = np.eye(4)
        moved[2, 3] = 1.0
        one.level(tracked(camera_at(1.2, 10.0), moved))
    assert one.is_level
    # The camera moved 1 m along its view, 10 degrees down, to a height of 1.2 m.
    assert one.T_ros_map[2, 3] == pytest.approx(1.2 + np.sin(np.radians(10)), abs=1e-6)
    # The axes hardly turn.
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_the_level_frame_of_a_camera_without_a_robot_is_published():
    T = camera_at(1.2, 10.0)
    frame = dataclasses.replace(tracked(T), K=np.diag([5.0, 5, 1]))
    config = settings(**{"level.source": "ground"})
    wanted = ("/tf", "scan")
    out = Outputs(RosbagsLibrary(), config)
    messages = {t: m for t, _, m in out.frame(frame, lambda topic: topic in wanted)}
    edges = {e.child_frame_id: e for e in messages["/tf"].transforms}
    edge = edges["optical_level"]
    assert edge.header.frame_id == "optical"
    down = invert_pose(T)[:3, 3]
    t = edge.transform.translation
    np.testing.assert_allclose([t.x, t.y, t.z], down, atol=1e-12)
    assert messages["scan"].header.frame_id == "optical_level"
    silent = Outputs(RosbagsLibrary(), config, tf=lambda frame: [])  # tf.publish: none
    topics = [t for t, _, _ in silent.frame(frame, lambda topic: topic in wanted)]
    assert topics == []


def test_a_robots_frame_is_that_of_its_base():
    frame = tracked(camera_at(1.0))
    out = Outputs(RosbagsLibrary(), settings(), base_frame="base_link")
    messages = {t: m for t, _, m in out.frame(frame, lambda topic: topic in ("/tf", "scan"))}
    assert messages["scan"].header.frame_id == "base_link"
    assert {e.child_frame_id for e in messages["/tf"].transforms} == {"odom", "optical"}
