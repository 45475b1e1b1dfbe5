"""True poses: files in the TUM format, and times between poses."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.recordings import RecordingError
from da3_ros.recordings.true_poses import TruePoses, read_true_poses

MS = 1_000_000
LINES = "1.50 1 2 3 0 0 0 1\n1.54 2 2 3 0 0 0.70710678 0.70710678\n1.70 3 2 3 0 0 0 1\n"


@pytest.fixture
def poses(tmp_path):
    (tmp_path / "true.tum").write_text(LINES)
    return read_true_poses(tmp_path / "true.tum")


def test_poses_are_exact_at_their_stamps(poses):
    assert poses.stamps_ns.tolist() == [1500 * MS, 1540 * MS, 1700 * MS]
    assert poses.stamps_ns.dtype == np.int64
    for stamp_ns, T in zip(poses.stamps_ns, poses.T_truth_camera, strict=True):
        np.testing.assert_array_equal(poses.at(int(stamp_ns)), T)


def test_between_poses_position_is_linear_and_rotation_slerp(poses):
    T = poses.at(1510 * MS)
    np.testing.assert_allclose(T[:3, 3], [1.25, 2, 3])
    angle = Rotation.from_matrix(T[:3, :3]).as_rotvec(degrees=True)
    np.testing.assert_allclose(angle, [0, 0, 22.5], atol=1e-5)


@pytest.mark.parametrize("ms", [1499, 1600, 1701])
def test_outside_and_in_long_gaps_no_pose_is_known(poses, ms):
    assert poses.at(ms * MS) is None


def test_poses_of_images_are_not_interpolated(poses):
    own = TruePoses(poses.stamps_ns, poses.T_truth_camera, longest_gap_ns=0)
    assert own.at(1510 * MS) is None
    assert own.at(1540 * MS) is not None


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
