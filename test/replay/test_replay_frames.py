"""Frames and transforms of a replay: as the parameters and the recording's own tree require."""

from collections import Counter

import numpy as np
import pytest
from support.file_readers import messages, pose_matrix

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.export.scene_file import load_scene
from da3_ros.geometry.poses import invert_pose
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.navigation.saved_grid import grid_of_scene
from da3_ros.recordings import open_recording
from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.writer import BagFolderWriter
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.odometry import base_below
from da3_ros.synthetic.truth import TruthSession

BASE = {"process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 4}
METRIC = {"scale.source": "fixed", "scale.factor": 1 / np.exp(0.1257)}
TF = "tf2_msgs/msg/TFMessage"
FRAMES = 6


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=(140, 112), walk="straight", frames=FRAMES)


@pytest.fixture(scope="module")
def bags(camera, tmp_path_factory):
    """A recording of a robot: its mount in /tf_static, and with ``odom`` its own odom -> base."""
    frames, lib = list(camera), RosbagsLibrary()
    mount = invert_pose(base_below(frames[0].T_room_camera)) @ frames[0].T_room_camera
    out = {}
    for kind in ("camera", "base", "odom"):
        out[kind] = tmp_path_factory.mktemp("bags") / kind
        with BagFolderWriter(out[kind], lib, "mcap") as bag:
            for f in frames:
                stamp = f.stamp_ns
                info = build.calibration_message(lib, stamp, "optical", camera.calibration)
                image = build.image(lib, stamp, "optical", f.image)
                bag.write("/camera/camera_info", "sensor_msgs/msg/CameraInfo", info, stamp)
                bag.write("/camera/image_raw", "sensor_msgs/msg/Image", image, stamp)
                if kind != "camera" and f is frames[0]:
                    edge = (stamp, "base_link", "optical", mount)
                    bag.write("/tf_static", TF, build.tf(lib, [edge]), stamp)
                if kind == "odom":
                    T = base_below(f.T_room_camera)
                    edge = (stamp, "odom", "base_link", T)
                    bag.write("/tf", TF, build.tf(lib, [edge]), stamp)
    return out


def run(bag, camera, output, **values):
    config = config_from_parameters({**BASE, **values}, NodeConfig)
    replay(ReplayOptions(bag, output), config, TruthSession(camera))
    return output


def edges(output):
    """(parent, child) of everything in /tf, with the number of times."""
    with open_recording(output / "output.mcap", camera="/da3/rgb") as recording:
        found = recording.messages("/tf") if recording.topics_of(TF) else ()
        return Counter(
            (t.header.frame_id, t.child_frame_id) for _, m in found for t in m.transforms
        )


@pytest.mark.long
@pytest.mark.slow
def test_frames_have_the_names_that_were_asked_for(bags, camera, tmp_path):
    values = {"map_frame": "room", "odom_frame": "drift"}
    out = run(bags["camera"], camera, tmp_path / "out", **values)
    assert edges(out) == {("room", "drift"): FRAMES, ("drift", "optical"): FRAMES}
    assert {m.header.frame_id for m in messages(out, "/da3/pose")} == {"room"}
    assert {m.header.frame_id for m in messages(out, "/da3/odom")} == {"drift"}
    assert {m.header.frame_id for m in messages(out, "/da3/window")} == {"room"}
    (cloud,) = messages(out, "/da3/map/points")
    assert cloud.header.frame_id == "room"


def test_no_transforms_where_none_are_wanted(bags, camera, tmp_path):
    out = run(bags["camera"], camera, tmp_path / "out", **{"tf.publish": "none"})
    assert edges(out) == {}


def test_a_camera_on_a_robot_gets_no_second_parent(bags, camera, tmp_path, caplog):
    """The recording's /tf_static parents the camera; without metres nothing may be attached."""
    out = run(bags["base"], camera, tmp_path / "out", base_frame="base_link")
    assert edges(out) == {}
    assert "already the parent of optical" in caplog.text


@pytest.mark.slow
def test_a_known_base_is_moved_and_levels_the_map(bags, camera, tmp_path):
    out = run(bags["base"], camera, tmp_path / "out", base_frame="base_link", **METRIC)
    own = {("map", "odom"): FRAMES, ("odom", "base_link"): FRAMES}
    assert edges(out) == own | {("base_link", "optical"): FRAMES}  # the recording's own
    frames = list(camera)
    base = base_below(frames[0].T_room_camera)
    for message, f in zip(messages(out, "/da3/pose"), frames, strict=True):
        expected = invert_pose(base) @ f.T_room_camera  # the map begins at the base
        np.testing.assert_allclose(pose_matrix(message.pose.pose), expected, atol=0.02)
    lines = np.loadtxt(out / "trajectory.tum")
    begin = (invert_pose(base) @ frames[0].T_room_camera)[:3, 3]
    np.testing.assert_allclose(lines[0, 1:4], begin, atol=1e-6)


def test_a_level_map_in_metres_has_an_occupancy_grid(bags, camera, tmp_path):
    """In the bag, and in the saved scene; without a base in neither."""
    out = run(bags["base"], camera, tmp_path / "out", base_frame="base_link", **METRIC)
    (grid,) = messages(out, "/da3/map/occupancy")
    assert grid.header.frame_id == "map"
    saved = grid_of_scene(load_scene(out / "scene").scene())
    assert (grid.info.width, grid.info.height) == saved.cells.shape[::-1]
    assert grid.data.reshape(saved.cells.shape).tolist() == saved.cells.tolist()
    assert (saved.cells == 0).sum() > 100
    plain = run(bags["base"], camera, tmp_path / "plain", **METRIC)
    with pytest.raises(RecordingError, match="no topic"):
        messages(plain, "/da3/map/occupancy")


def test_a_floor_that_was_not_found_is_said(bags, camera, tmp_path, caplog):
    run(bags["camera"], camera, tmp_path / "out", **{"level.source": "ground"})  # no metres
    assert [r.message for r in caplog.records if "no occupancy grid" in r.message]


@pytest.mark.slow
def test_beside_the_robots_own_odometry_only_the_map_is_placed(bags, camera, tmp_path):
    values = METRIC | {"base_frame": "base_link"}
    out = run(bags["odom"], camera, tmp_path / "out", **values)
    others = {("odom", "base_link"): FRAMES, ("base_link", "optical"): FRAMES}
    assert edges(out) == {("map", "odom"): FRAMES} | others


@pytest.mark.slow
def test_scenes_lie_where_the_poses_do(bags, camera, tmp_path):
    import trimesh

    level = run(bags["base"], camera, tmp_path / "a", base_frame="base_link", **METRIC)
    points = np.asarray(trimesh.load(level / "scene.ply").vertices)
    # The floor of the room is at the height of the base.
    assert abs(np.percentile(points[:, 2], 2)) < 0.1


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
def test_two_runs_with_a_base_give_the_same_bytes(bags, camera, tmp_path):
    runs = [
        run(bags["odom"], camera, tmp_path / n, base_frame="base_link", **METRIC) for n in "ab"
    ]
    for name in ("output.mcap", "trajectory.tum", "report.json", "scene.ply"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes(), name
