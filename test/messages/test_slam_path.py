"""Paths of another SLAM as messages: what is read, and what is refused with one clear line."""

from types import SimpleNamespace as Message

import numpy as np
import pytest

from da3_ros.messages.slam_path import PathReader, SlamPathError

NOW = 1000.0


def stamp(seconds):
    return Message(sec=int(seconds), nanosec=round(seconds % 1 * 1e9))


def header(seconds, frame="map"):
    return Message(stamp=stamp(seconds), frame_id=frame)


def pose(seconds, x=0.0, w=1.0, frame="map"):
    at = Message(
        position=Message(x=x, y=2.0, z=3.0), orientation=Message(x=0.0, y=0.0, z=0.0, w=w)
    )
    return Message(header=header(seconds, frame), pose=at)


def path(*poses, seconds=NOW, frame="map"):
    return Message(header=header(seconds, frame), poses=list(poses))


def test_a_path_is_read_with_its_stamps():
    found, note = PathReader().read(path(pose(1.5, 4.0), pose(2.5, 5.0, w=2.0)))
    assert note == ""
    np.testing.assert_array_equal(found.stamps_ns, [1_500_000_000, 2_500_000_000])
    np.testing.assert_allclose(found.T_slam_base[1, :3, 3], [5, 2, 3])
    np.testing.assert_allclose(found.T_slam_base[1, :3, :3], np.eye(3))


@pytest.mark.parametrize(
    ("sent", "expected"), [(3.0, 3.0), (0.0, 2.5), (1.7e9, 2.5)], ids=["sent", "none", "clock"]
)
def test_the_time_of_a_path_is_that_of_its_header(sent, expected):
    """Unless it has none, or one of another clock."""
    found, _ = PathReader().read(path(pose(1.5), pose(2.5), seconds=sent))
    assert found.stamp_ns == expected * 1e9


def test_two_paths_have_different_numbers():
    reader, message = PathReader(), path(pose(1.5))
    assert reader.read(message)[0].number != reader.read(message)[0].number


REFUSED = [
    (path(), "no poses"),
    (path(pose(1.0), frame="odom"), "is in the frame 'odom', not in 'map'"),
    (path(pose(1.0, frame="odom")), "is in the frame 'odom', not in 'map'"),
    (path(pose(1.0), frame=""), "is in the frame '', not in 'map'"),
    (path(pose(1.0, np.nan)), "none of its 1 poses is finite"),
    (path(pose(2.0), pose(1.0)), "go back"),
    (path(pose(0.0), pose(0.0)), "all have the stamp 0.000 s"),
    (path(pose(7.0), pose(7.0), pose(7.0)), "all have the stamp 7.000 s"),
]


@pytest.mark.parametrize(("message", "text"), REFUSED)
def test_an_unusable_path_is_refused(message, text):
    with pytest.raises(SlamPathError, match=text):
        PathReader("map").read(message)


def test_the_first_frame_holds_where_none_is_named():
    reader = PathReader()
    reader.read(path(pose(1.0, frame="world"), frame="/world"))
    with pytest.raises(SlamPathError, match="is in the frame 'map', not in 'world'"):
        reader.read(path(pose(1.0)))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (pose(2.0, np.inf), "1 of its 3 poses are not finite"),
        (pose(2.0, w=0.0), "1 of its 3 poses are not finite"),
        (pose(3.0, 9.0), "1 of its 3 poses have the stamp of a later one"),
    ],
)
def test_single_bad_poses_are_left_out_and_named(bad, text):
    found, note = PathReader().read(path(pose(1.0), bad, pose(3.0, 4.0)))
    assert text in note
    np.testing.assert_array_equal(found.stamps_ns, [10**9, 3 * 10**9])
    assert found.T_slam_base[-1, 0, 3] == 4.0
