"""What a message of a global pose says, and what it leaves unknown."""

from types import SimpleNamespace

import numpy as np
import pytest

from da3_ros.messages.global_pose import GlobalPoseError, given_pose, stated
from da3_ros.types import UNKNOWN_M2, UNKNOWN_RAD2


def message(covariance=None, position=(1, 2, 3), orientation=(0, 0, 0, 1), frame="map", sec=7):
    values = np.zeros(36) if covariance is None else np.asarray(covariance, float)
    p, q = (SimpleNamespace(**dict(zip("xyzw", v, strict=False)))
            for v in (position, orientation))  # fmt: skip
    header = SimpleNamespace(frame_id=frame, stamp=SimpleNamespace(sec=sec, nanosec=5))
    pose = SimpleNamespace(position=p, orientation=q)
    return SimpleNamespace(
        header=header, pose=SimpleNamespace(pose=pose, covariance=values)
    )  # fmt: skip


def diagonal(*values):
    return np.diag(values).astype(float).ravel()


def test_a_full_pose_is_taken_as_it_is():
    C = np.diag([0.01, 0.02, 0.03, 0.001, 0.002, 0.003])
    C[0, 1] = C[1, 0] = 0.005
    given = given_pose(message(C.ravel(), frame="/tag_7"))
    assert (given.stamp_ns, given.frame) == (7_000_000_005, "tag_7")
    np.testing.assert_allclose(given.T_frame_base[:3, 3], [1, 2, 3])
    np.testing.assert_allclose(given.covariance, C)


@pytest.mark.parametrize(
    ("given", "position", "rotation"),
    [
        # Nothing stated: half a metre, and no orientation.
        ((0, 0, 0, 0, 0, 0), [0.25] * 3, [UNKNOWN_RAD2] * 3),
        # GNSS: no orientation, by large or negative variances.
        ((1, 1, 4, 99999, 99999, 99999), [1, 1, 4], [UNKNOWN_RAD2] * 3),
        ((1, 1, 4, -1, -1, -1), [1, 1, 4], [UNKNOWN_RAD2] * 3),
        ((1, 1, -1, 0.1, 0.1, np.nan), [1, 1, UNKNOWN_M2], [0.1, 0.1, UNKNOWN_RAD2]),
        # A robot on the ground.
        ((1, 2, 0, 0, 0, 0.01), [1, 2, 2], [0.0025, 0.0025, 0.01]),
        ((1e-12, 1e-12, 1e-12, 1e-12, 1e-12, 1e-12), [1e-6] * 3, [1e-6] * 3),
    ],
)
def test_what_is_zero_negative_or_huge(given, position, rotation):
    C = stated(diagonal(*given))
    np.testing.assert_allclose(np.diag(C), [*position, *rotation])
    np.testing.assert_allclose(C, np.diag(np.diag(C)))


def test_a_covariance_that_is_none_keeps_its_diagonal():
    C = np.diag([1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    C[0, 1] = C[1, 0] = 5.0
    np.testing.assert_allclose(stated(C.ravel()), np.diag(np.diag(C)))


def test_without_a_quaternion_there_is_no_orientation():
    given = given_pose(message(diagonal(1, 1, 1, 0.1, 0.1, 0.1), orientation=(0, 0, 0, 0)))
    np.testing.assert_allclose(np.diag(given.covariance)[3:], UNKNOWN_RAD2)
    np.testing.assert_allclose(given.T_frame_base[:3, :3], np.eye(3))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"frame": ""}, "no frame_id"),
        ({"sec": -5}, "no stamp"),
        ({"position": (np.nan, 0, 0)}, "not finite"),
        ({"orientation": (0, 0, np.inf, 1)}, "not finite"),
        ({"covariance": diagonal(-1, -1, 1, 1, 1, 1)}, "the position is unknown"),
        ({"covariance": diagonal(1e12, 1e12, 1, 1, 1, 1)}, "the position is unknown"),
    ],
)
def test_a_bad_message_is_refused_with_its_cause(values, why):
    with pytest.raises(GlobalPoseError, match=why):
        given_pose(message(**values))
