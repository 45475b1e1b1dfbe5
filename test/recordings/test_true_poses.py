"""True poses: files in the TUM format, and times between poses."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.recordings import RecordingError
from da3_ros.recordings.true_poses import TruePoses, read_true_poses, true_camera

MS = 1_000_000
LINES = "1.50 1 2 3 0 0 0 1\n1.54 2 2 3 0 0 0.70710678 0.70710678\n1.70 3 2 3 0 0 0 1\n"


@pytest.fixture
def poses(tmp_path):
    (tmp_path / "true.tum").write_text(LINES)
    return read_true_poses(tmp_path / "true.tum")


def test_poses_are_exact_at_their_stamps(poses):
    assert poses.stamps_ns.tolist() == [1500 * MS, 1540 * MS, 1700 * MS]
    assert poses.stamps_ns.dtype == np.int64
    known, T = poses.at(poses.stamps_ns[::-1])
    assert known.all()
    np.testing.assert_array_equal(T, poses.T_truth_camera[::-1])


def test_between_poses_position_is_linear_and_rotation_slerp(poses):
    known, T = poses.at([9000 * MS, 1510 * MS, 1530 * MS])
    assert known.tolist() == [False, True, True]
    np.testing.assert_allclose(T[:, :3, 3], [[1.25, 2, 3], [1.75, 2, 3]])
    angles = Rotation.from_matrix(T[:, :3, :3]).as_rotvec(degrees=True)
    np.testing.assert_allclose(angles, [[0, 0, 22.5], [0, 0, 67.5]], atol=1e-5)


def test_the_nearest_pose_counts_where_none_is_interpolated(poses):
    """Stamps of one pose differ by clocks, or by the digits of a file."""
    known, T = poses.at([1490 * MS, 1549 * MS, 1691 * MS, 1710 * MS])
    assert known.all()
    np.testing.assert_array_equal(T, poses.T_truth_camera[[0, 1, 2, 2]])


@pytest.mark.parametrize("ms", [1489, 1600, 1711])
def test_far_from_poses_and_in_long_gaps_no_pose_is_known(poses, ms):
    known, T = poses.at([ms * MS])
    assert not known.any()
    assert T.shape == (0, 4, 4)


@pytest.mark.parametrize(
    ("step_ms", "is_known"), [(5, True), (33, True), (100, True), (190, True), (250, False)]
)
def test_the_longest_gap_follows_the_rate_of_the_truth(step_ms, is_known):
    stamps = np.arange(5) * step_ms * MS
    truth = TruePoses(stamps, np.tile(np.eye(4), (5, 1, 1)))
    assert truth.at([stamps[2] + step_ms * MS // 2])[0].tolist() == [is_known]


def test_a_lost_pose_of_a_slow_truth_is_not_bridged():
    stamps = np.array([0, 100, 200, 400, 500]) * MS
    truth = TruePoses(stamps, np.tile(np.eye(4), (5, 1, 1)))
    assert truth.at([150 * MS, 300 * MS])[0].tolist() == [True, False]


def test_poses_of_images_are_valid_at_their_stamps_alone(poses):
    own = TruePoses(poses.stamps_ns, poses.T_truth_camera, per_image=True)
    assert own.at([1510 * MS, 1540 * MS, 1541 * MS])[0].tolist() == [False, True, False]


def test_lines_that_are_no_poses_are_left_out_with_one_warning(tmp_path, caplog):
    path = tmp_path / "true.tum"
    bad = ["1.1 0 0 0 0 0 0 0", "1.2 nan 0 0 0 0 0 1", "1.3 1 2", "x 0 0 0 0 0 0 1",
           "1e30 0 0 0 0 0 0 1", "-1 0 0 0 0 0 0 1", "1.5 9 9 9 0 0 0 1"]  # fmt: skip
    text = "\ufeff# stamp ...\n" + LINES + "\n".join(bad)
    path.write_bytes(text.replace("\n", "\r\n").encode())
    poses = read_true_poses(path)
    assert poses.stamps_ns.tolist() == [1500 * MS, 1540 * MS, 1700 * MS]
    assert poses.T_truth_camera[0, 0, 3] == 1  # of two with one stamp the first counts
    (warning,) = caplog.records
    assert (
        "6 lines without a pose are left out (line 5: the quaternion is zero)" in warning.message
    )


def test_long_files_are_read_in_parts(tmp_path, poses, monkeypatch):
    monkeypatch.setattr("da3_ros.recordings.layouts.text_rows.AT_ONCE", 2)
    again = read_true_poses(tmp_path / "true.tum")
    np.testing.assert_array_equal(again.T_truth_camera, poses.T_truth_camera)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"1 2 3\n", b"\0\xff\xfe" * 50])
def test_a_file_without_a_pose_says_what_is_expected(tmp_path, content):
    (tmp_path / "true.tum").write_bytes(content)
    with pytest.raises(RecordingError, match="tx ty tz qx qy qz qw"):
        read_true_poses(tmp_path / "true.tum")


@pytest.mark.parametrize("name", ["", "missing.tum"])
def test_what_has_no_truth_is_refused_in_one_line(tmp_path, name):
    with pytest.raises(RecordingError, match="give a trajectory file") as error:
        read_true_poses(tmp_path / name)
    assert "\n" not in str(error.value)


CAMERAS = ("cam0", "cam1")


@pytest.fixture
def two_cameras(tmp_path):
    for name in CAMERAS:
        (tmp_path / "mav0" / name).mkdir(parents=True)
        (tmp_path / "mav0" / name / "data.csv").write_text("1,1.png\n")
    return tmp_path


@pytest.mark.parametrize(
    ("recorded", "camera"), [("cam1", "cam1"), ("/cam1/image_raw", "cam1"), ("cam0", "cam0")]
)
def test_the_true_camera_is_that_of_the_recording(two_cameras, recorded, camera):
    assert true_camera(two_cameras, recorded) == camera


@pytest.mark.parametrize("recorded", ["", "room", "/camera/image_raw", "/cam1/cam0"])
def test_a_camera_that_is_not_known_has_to_be_given(two_cameras, recorded):
    with pytest.raises(RecordingError, match=r"give --truth-camera cam0 \| cam1$"):
        true_camera(two_cameras, recorded)


def test_a_file_of_poses_has_no_cameras(tmp_path, poses):
    assert true_camera(tmp_path / "true.tum", "cam1") is None
    assert poses.source == "true.tum"
    with pytest.raises(RecordingError, match="is a file of one camera"):
        read_true_poses(tmp_path / "true.tum", "cam1")
