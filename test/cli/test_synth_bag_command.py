"""`da3_ros synth-bag`: sensors beside the camera."""

import numpy as np
import pytest

from da3_ros.cli import main
from da3_ros.messages.decode import stamp_ns
from da3_ros.messages.global_pose import given_pose
from da3_ros.recordings import open_recording

SMALL = ("--frames", "4", "--rate", "4", "--width", "56", "--height", "42")


@pytest.mark.slow
def test_a_bag_has_the_sensors_that_are_asked_for(tmp_path):
    path = tmp_path / "bag"
    assert main(["synth-bag", str(path), *SMALL, "--lidar", "--lidar-rate", "8", "--range"]) == 0
    with open_recording(path, camera="/camera/image_raw") as recording:
        clouds = [m for _, m in recording.messages("/lidar/points")]
        assert len(clouds) == 5  # whole sweeps before the last image
        images = {f.stamp_ns for f in recording}
        stamps = {c.header.stamp.sec * 10**9 + c.header.stamp.nanosec for c in clouds}
        assert not images & stamps
        assert [f.name for f in clouds[0].fields] == ["x", "y", "z", "t"]
        assert len(list(recording.messages("/range"))) == 14
        (mounts,) = [m for _, m in recording.messages("/tf_static")]
        frames = [(t.header.frame_id, t.child_frame_id) for t in mounts.transforms]
        assert frames == [("camera_optical", "lidar"), ("camera_optical", "range")]


@pytest.mark.slow
def test_a_bag_has_global_poses_that_say_how_good_they_are(tmp_path):
    path = tmp_path / "bag"
    words = ("--frames", "120", "--rate", "4", "--width", "28", "--height", "28")
    assert main(["synth-bag", str(path), *words, "--global-pose"]) == 0
    with open_recording(path, camera="/camera/image_raw") as recording:
        found = [given_pose(m) for _, m in recording.messages("/global_pose")]
        truth = {
            stamp_ns(m.header.stamp): m.pose.pose.position
            for _, m in recording.messages("/truth/odom")
        }
    assert [p.stamp_ns - found[0].stamp_ns for p in found] == [k * 10**9 for k in range(30)]
    true = np.array([[p.x, p.y, p.z] for p in (truth[g.stamp_ns] for g in found)])
    off = np.array([g.T_frame_base[:3, 3] for g in found]) - true
    stated = np.sqrt(found[0].covariance[0, 0])
    assert 0.7 * stated < np.sqrt(np.mean(off**2)) < 1.3 * stated
    assert {g.frame for g in found} == {"map"}


@pytest.mark.long
@pytest.mark.slow
def test_the_documented_replay_lies_where_the_global_poses_have_it(tmp_path):
    path, out = tmp_path / "bag", tmp_path / "out"
    words = ("--frames", "30", "--rate", "4", "--width", "112", "--height", "84")
    assert main(["synth-bag", str(path), *words, "--global-pose"]) == 0
    values = (
        "model:=da3-tiny", "process_res:=112", "backend:=torch", "scale.source:=odometry",
        "window.size:=4", "dense.enabled:=false",
    )  # fmt: skip
    given = [word for value in values for word in ("-p", value)]
    assert main([
        "replay", str(path), "--output", str(out), "--camera", "/camera/image_raw",
        "--odometry", "/truth/odom", "--global-pose", "/global_pose", "--no-report", *given,
    ]) == 0  # fmt: skip
    found = np.loadtxt(out / "trajectory.tum")
    with open_recording(path, camera="/camera/image_raw") as recording:
        true = np.array([
            [m.pose.pose.position.x, m.pose.pose.position.y, m.pose.pose.position.z]
            for _, m in recording.messages("/truth/odom")
        ])  # fmt: skip
    off = np.linalg.norm(found[:, 1:4] - true[: len(found)], axis=1)
    assert np.median(off) < 0.08


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "1e6"])
def test_a_rate_that_no_lidar_has_is_refused(tmp_path, capsys, rate):
    assert main(["synth-bag", str(tmp_path / "bag"), "--lidar", "--lidar-rate", rate]) == 2
    assert "--lidar-rate is" in capsys.readouterr().err
    assert not (tmp_path / "bag").exists()
