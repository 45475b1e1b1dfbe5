"""Which camera of a rig an IMU is compared with."""

from da3_ros.inertial.followed_camera import UNSEEN_NS, FollowedCamera

S = 10**9


def test_the_first_camera_counts_until_it_has_not_been_seen_for_a_while():
    followed = FollowedCamera()
    assert followed.admits("front", 10 * S)
    assert not followed.admits("left", 10 * S)
    assert followed.admits("front", 11 * S)
    assert not followed.admits("left", 11 * S + UNSEEN_NS - 1)
    assert followed.name == "front"
    assert followed.admits("left", 11 * S + UNSEEN_NS)
    assert followed.name == "left"
    assert not followed.admits("front", 12 * S + UNSEEN_NS)


def test_a_camera_that_is_gone_is_not_waited_for_after_stamps_have_jumped_back():
    followed = FollowedCamera()
    assert followed.admits("front", 100 * S)
    assert followed.admits("left", 10 * S)
