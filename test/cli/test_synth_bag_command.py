"""`da3_ros synth-bag`: sensors beside the camera."""

import pytest

from da3_ros.cli import main
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


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "1e6"])
def test_a_rate_that_no_lidar_has_is_refused(tmp_path, capsys, rate):
    assert main(["synth-bag", str(tmp_path / "bag"), "--lidar", "--lidar-rate", rate]) == 2
    assert "--lidar-rate is" in capsys.readouterr().err
    assert not (tmp_path / "bag").exists()
