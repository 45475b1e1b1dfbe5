"""An IMU and global poses on a robot with several cameras: each has its own mount and sight."""

import functools

import numpy as np
import pytest
from support.cases import long_after
from support.driving import level
from support.inertial import BODY
from support.sensor_rig import LEFT, METRES, MOUNTS, NAMES, SensorRig, tilt_deg

from da3_ros.geometry.poses import invert_pose
from da3_ros.synthetic.range_sensors import RenderedRanges, mount
from da3_ros.types import GlobalPose, RangeReturns

COUNT = 60
OTHER = np.eye(4)  # a wrong mount of the IMU
OTHER[:3, :3] = [[0, 1, 0], [-1, 0, 0], [0, 0, 1]]


@functools.cache
def rig(wrong=""):
    """wrong: the camera for which the mount of the IMU is declared wrongly."""
    stated = {wrong: OTHER @ invert_pose(MOUNTS[wrong]) @ BODY} if wrong else None
    return SensorRig(COUNT, stated=stated)


def metres_over_truth(results, walk):
    return np.array([
        np.nanmedian(r.depth_m / walk.true(r).depth) for r in results
        if r.scale.metric and not r.blind
    ])  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("blink", long_after(1, [6, 0]))
def test_metres_by_the_imu_are_those_of_one_cameras_path(blink):
    """Also where the first camera is covered in every sixth frameset, so that the other leads."""
    walk = rig()
    pipeline = walk.pipeline(**{"scale.source": "imu"})
    results = walk.run(
        pipeline, covered=lambda name, i: bool(blink) and name == "front" and i % blink == 5
    )
    found = metres_over_truth(results, walk)
    assert len(found) > (COUNT / 3 if blink else COUNT)
    np.testing.assert_allclose(found, 1.0, atol=0.05)


@pytest.mark.long
@pytest.mark.slow
def test_another_camera_takes_over_if_the_first_one_stays_covered():
    walk = rig()
    pipeline = walk.pipeline(**{"scale.source": "imu", "level.source": "imu"})
    results = walk.run(pipeline, covered=lambda name, i: name == "front" and i > 2)
    found = metres_over_truth(results, walk)
    assert len(found)
    np.testing.assert_allclose(found, 1.0, atol=0.06)
    up = [r for r in results if r.camera == "left" and r.T_level_camera is not None]
    assert up
    assert max(tilt_deg(r.T_level_camera, level(walk.true(r))) for r in up) < 2.5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("wrong", long_after(1, NAMES))
def test_a_wrong_mount_of_one_camera_makes_no_wrong_metres(wrong, caplog):
    """And does not keep the others from giving metres, if it is not that of the followed one."""
    walk = rig(wrong)
    pipeline = walk.pipeline(**{"scale.source": "imu"})
    found = metres_over_truth(walk.run(pipeline), walk)
    states = {name: state for name, (state, _) in pipeline.gyro.states.items()}
    right = next(name for name in NAMES if name != wrong)
    assert states == {wrong: "contradicts", right: "agrees"}
    assert f"imu: not used by camera {wrong}: " in caplog.text
    assert f"imu: not used by camera {right}: " not in caplog.text
    assert bool(len(found)) == (wrong == "left")
    np.testing.assert_allclose(found, 1.0, atol=0.05)


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_mount_of_another_camera_does_not_keep_the_map_from_being_held_level():
    walk = rig("left")
    pipeline = walk.pipeline(**METRES, **{"level.source": "imu", "keyframe.parallax": 0.03})
    walk.run(pipeline)
    assert {name: state for name, (state, _) in pipeline.gyro.states.items()} == {
        "left": "contradicts", "front": "agrees",
    }  # fmt: skip
    assert pipeline.loops.problem().ups


@pytest.mark.long
@pytest.mark.slow
def test_wrong_mounts_of_both_cameras_are_both_named(caplog):
    walk = SensorRig(30, stated={n: OTHER @ invert_pose(MOUNTS[n]) @ BODY for n in NAMES})
    pipeline = walk.pipeline(**{"scale.source": "imu"})
    walk.run(pipeline)
    assert {state for state, _ in pipeline.gyro.states.values()} == {"contradicts"}
    for name in NAMES:
        assert caplog.text.count(f"imu: not used by camera {name}: ") == 1


@pytest.mark.long
def test_what_is_up_is_that_of_the_followed_camera():
    walk = rig()
    pipeline = walk.pipeline(**{"level.source": "imu", **METRES})
    results = walk.run(pipeline)
    known = [r for r in results if r.T_level_camera is not None]
    assert {r.camera for r in known} == {"front"}
    assert max(tilt_deg(r.T_level_camera, level(walk.true(r))) for r in known) < 2.5
    T = pipeline.scene_map.T_ros_map
    for r in results[-2:]:  # the map is level for both
        assert tilt_deg(T @ r.T_map_camera, walk.true(r).T_room_camera) < 2.0


BASE = np.eye(4)  # the robot's base on the front camera
BASE[:3, 3] = 0.1, 0.3, -0.2


def anchored(covered, count=COUNT):
    """A run with a global pose of the base at every fifth frameset, which each camera gets."""
    walk = rig()
    mounts = {"front": BASE, "left": invert_pose(LEFT) @ BASE}  # T_camera_base
    rng = np.random.default_rng(1)
    said = {}
    for i in range(4, count - 1, 5):
        T = walk.frames["front"][i].T_room_camera @ BASE
        T[:3, 3] += 0.01 * rng.normal(size=3)
        said[i] = T, walk.frames["front"][i].stamp_ns

    def given(name, i):
        if i - 1 not in said:
            return {}
        T, stamp_ns = said[i - 1]
        covariance = np.diag([1e-4] * 3 + [1e-4] * 3)
        one = GlobalPose(stamp_ns, T, covariance, invert_pose(mounts[name]))
        return {"anchors": (one,)}

    pipeline = walk.pipeline(**METRES)
    walk.run(pipeline, covered=covered, given=given)
    off = {name: [] for name in NAMES}
    for pose in pipeline.map.poses():
        true = next(f for f in walk.frames[pose.camera] if f.stamp_ns == pose.stamp_ns)
        T = pipeline.scene_map.T_ros_map @ pose.T_map_camera
        off[pose.camera].append(np.linalg.norm(T[:3, 3] - true.T_room_camera[:3, 3]))
    return pipeline, off, len(said)


@pytest.mark.slow
@pytest.mark.parametrize("from_frame", long_after(1, [10, 2, COUNT]))
def test_global_poses_hold_the_map_by_whichever_camera_sees(from_frame):
    """from_frame: the frameset from which on the first camera is covered."""
    pipeline, off, said = anchored(lambda name, i: name == "front" and i >= from_frame)
    assert pipeline.counters["anchors"] == said
    assert pipeline.counters["anchors_without_frame"] == 0
    assert pipeline.counters["anchors_wrong"] == 0
    assert pipeline.counters["anchor_corrections"] > 0
    for camera in NAMES:
        assert off[camera]
        assert np.median(off[camera]) < 0.06


@pytest.mark.long
@pytest.mark.slow
def test_a_reset_in_mid_run_begins_anew_with_all_sensors():
    walk = rig()
    pipeline = walk.pipeline(**{"scale.source": "imu", "level.source": "imu"})
    for _ in range(2):
        results = walk.run(pipeline)
        found = metres_over_truth(results, walk)
        assert len(found) > COUNT / 2
        assert not results[0].scale.metric
        np.testing.assert_allclose(found, 1.0, atol=0.05)
        T = pipeline.scene_map.T_ros_map @ results[-1].T_map_camera
        assert tilt_deg(T, walk.true(results[-1]).T_room_camera) < 2.5
        pipeline.reset()
        assert not pipeline.scale.known
        assert pipeline.scene_map.level_finder.up is None


BEFORE, DARK = 20, 8  # framesets before the dark, and in it


def turning_rig():
    """A rig that looks to and fro, turns away in the dark, and looks to and fro there."""
    slow = 0.35 * np.sin(np.arange(BEFORE) / 4)
    turn = np.radians(120) * (1 - np.cos(np.linspace(0, np.pi, DARK + 2))) / 2
    dark = slow[-1] + turn
    yaw = np.concatenate((slow, dark[1:-1], dark[-1] + 0.3 * np.sin(np.arange(1, 13) / 4)))
    return SensorRig(len(yaw), walk="spot", yaw=yaw)


@pytest.mark.slow
@pytest.mark.parametrize("order", long_after(1, [("front", "left"), (("left", "front"),)]))
def test_a_turn_in_the_dark_is_bridged_by_the_gyro_of_one_camera(order):
    """The cameras' axes differ, and with them what the gyro says: the place where the map goes on
    is that of one camera from the dark to the light."""
    walk = turning_rig()
    pipeline = walk.pipeline(**{"imu.enabled": True, "cameras": list(order)})
    dark = range(BEFORE, BEFORE + DARK)
    results = walk.run(pipeline, covered=lambda name, i: i in dark, order=order)
    assert pipeline.counters["gaps_bridged"] == 1
    assert len(pipeline.map.components) == 1
    first = results[0]
    T_map_room = first.T_map_camera @ invert_pose(walk.true(first).T_room_camera)
    for r in results[-4:]:
        T = T_map_room @ walk.true(r).T_room_camera
        turn = T[:3, :3].T @ r.T_map_camera[:3, :3]
        assert np.degrees(np.arccos((np.trace(turn) - 1) / 2)) < 3.0


@pytest.mark.long
@pytest.mark.slow
def test_the_distance_of_the_cameras_and_the_imu_give_metres_together():
    """As of a stereo pair on a drone."""
    walk = rig()
    pipeline = walk.pipeline(**{"scale.source": "rig+imu"})
    results = walk.run(pipeline, given=lambda name, i: {"T_rig_camera": MOUNTS[name]})
    found = metres_over_truth(results, walk)
    assert len(found) > COUNT
    np.testing.assert_allclose(found, 1.0, atol=0.03)
    states = {s.name: s.state for s in pipeline.scale.filter.estimator.states}
    assert states == {"rig": "counts", "imu": "counts"}


LIDAR = mount(0.0, -0.1, -0.05)  # on the front camera


@functools.cache
def lidar_walk():
    """A rig, and the returns of each frameset as a LiDAR of the declared mount would have them."""
    walk = SensorRig(36, walk="loop")
    ranges = RenderedRanges(walk.cameras["front"])
    sweeps = [ranges.sweep(LIDAR, i / 10, 1e-6)[0] for i in range(len(walk))]
    return walk, [s @ LIDAR[:3, :3].T + LIDAR[:3, 3] for s in sweeps]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("ahead", long_after(1, [0.3, 0.0]))
def test_a_sensors_wrong_mount_is_covered_by_the_deviation_of_metres(ahead):
    """Each camera sees its error in other axes. ahead: of the declared place, metres."""
    walk, points = lidar_walk()

    def given(name, i):
        T = invert_pose(MOUNTS[name])
        seen = (points[i] + [0, 0, ahead]) @ T[:3, :3].T + T[:3, 3]
        return {"returns": RangeReturns(seen[seen[:, 2] > 0.05].astype(np.float32))}

    results = walk.run(walk.pipeline(**{"scale.source": "range"}), given=given)
    metric = [r for r in results if r.scale.metric]
    assert len(metric) > len(walk)
    off = metres_over_truth(results, walk) - 1
    assert (np.abs(off) < 2.5 * np.array([r.scale.sigma for r in metric])).all()
    assert ahead or np.abs(off).max() < 0.02
