"""The transform tree answers what tf2 would, or gives the reason."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.sensors import transform_tree as transforms
from da3_ros.sensors.transform_tree import TransformError, TransformTree

S = 10**9


def pose(x=0.0, y=0.0, z=0.0, yaw=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("z", yaw, degrees=True).as_matrix()
    T[:3, 3] = x, y, z
    return T


@pytest.fixture
def robot():
    tree = TransformTree()
    tree.add("map", "odom", pose(x=10), 0)
    tree.add("map", "odom", pose(x=10), 4 * S)
    tree.add("odom", "base", pose(), 0)
    tree.add("odom", "base", pose(x=2, yaw=90), 2 * S)
    tree.add("base", "camera", pose(z=1.5), 0, static=True)
    return tree


def test_chain_is_interpolated_in_place_and_turn(robot):
    T = robot.lookup("odom", "camera", S)
    np.testing.assert_allclose(T, pose(x=1, z=1.5, yaw=45), atol=1e-12)


def test_lookup_across_branches_and_its_inverse(robot):
    robot.add("odom", "other", pose(y=3), 0, static=True)
    T = robot.lookup("other", "camera", S)
    np.testing.assert_allclose(T, np.linalg.inv(pose(y=3)) @ pose(x=1, z=1.5, yaw=45), atol=1e-12)
    np.testing.assert_allclose(T @ robot.lookup("camera", "other", S), np.eye(4), atol=1e-12)


def test_a_frame_to_itself_is_the_identity(robot):
    """A frame to itself is the identity and slashes do not matter."""
    np.testing.assert_array_equal(robot.lookup("camera", "camera", 99 * S), np.eye(4))
    np.testing.assert_allclose(robot.lookup("/odom", "/base", 2 * S), pose(x=2, yaw=90))


@pytest.mark.parametrize(("stamp", "message"), [(3 * S, "1.000 s after"), (-S, "1.000 s before")])
def test_times_outside_the_history_name_the_edge(robot, stamp, message):
    with pytest.raises(TransformError, match=f"odom -> base.*{message}"):
        robot.lookup("odom", "camera", stamp)


def test_unknown_and_unconnected_frames_are_distinguished(robot):
    robot.add("elsewhere", "thing", pose(), 0, static=True)
    with pytest.raises(TransformError, match="two separate trees"):
        robot.lookup("thing", "camera", S)
    with pytest.raises(TransformError, match="'lidar' is not in the transform tree; known: base"):
        robot.lookup("lidar", "camera", S)


def test_out_of_order_stamps_are_sorted_in(robot):
    robot.add("odom", "base", pose(x=5), S)
    np.testing.assert_allclose(robot.lookup("odom", "base", S)[:3, 3], [5, 0, 0])


def test_history_is_bounded():
    tree = TransformTree(keep_s=1.0)
    for i in range(1000):
        tree.add("odom", "base", pose(x=i), i * S // 100)
    with pytest.raises(TransformError, match="before"):
        tree.lookup("odom", "base", 0)
    assert len(tree._edges["base"].stamps) <= 102


def test_time_that_jumps_back_starts_the_history_anew():
    tree = TransformTree(keep_s=1.0)
    for stamp in (100 * S, 101 * S, 5 * S, 6 * S):
        tree.add("odom", "base", pose(x=stamp / S), stamp)
    np.testing.assert_allclose(tree.lookup("odom", "base", 5 * S + S // 2)[0, 3], 5.5)
    with pytest.raises(TransformError, match="after"):
        tree.lookup("odom", "base", 100 * S)


def test_a_restarted_simulator_leaves_no_future_transforms(robot):
    robot.add("odom", "base", pose(x=100), S // 2)  # it had come to 2 s
    with pytest.raises(TransformError, match="after"):
        robot.lookup("odom", "base", S)
    np.testing.assert_allclose(robot.lookup("base", "camera", 0), pose(z=1.5))


def test_invented_frames_fill_no_memory(monkeypatch, robot):
    monkeypatch.setattr(transforms, "MAX_FRAMES", 4)
    robot.add("base", "lidar", pose(), 0, static=True)
    with pytest.raises(TransformError, match="4 frames are known"):
        robot.add("base", "invented", pose(), 0)
    robot.add("odom", "base", pose(x=3), 3 * S)


def test_a_new_parent_replaces_the_old_one_as_in_tf2(robot):
    robot.add("wheel", "camera", pose(x=7), 0, static=True)
    assert robot.parent("camera") == "wheel"


@pytest.mark.parametrize("bad", [np.full((4, 4), np.nan), np.full((4, 4), np.inf)])
def test_non_finite_transforms_and_cycles_are_refused(robot, bad):
    with pytest.raises(TransformError, match="NaN or Inf"):
        robot.add("odom", "base", bad, 0)
    with pytest.raises(TransformError, match="two different names"):
        robot.add("odom", "odom", pose(), 0)
    robot.add("camera", "map", pose(), 0, static=True)
    with pytest.raises(TransformError, match="form a cycle"):
        robot.lookup("map", "base", S)


def test_an_owner_is_gone_after_silence_on_both_clocks():
    now = [0.0]
    tree = TransformTree(gone_s=5.0, clock=lambda: now[0])
    tree.add("odom", "base", np.eye(4), S)
    assert not tree.abandoned("base", 100 * S)  # its stamps are old, but it speaks
    now[0] = 6.0
    assert not tree.abandoned("base", 2 * S)  # a pause: the frames have not gone on
    assert tree.abandoned("base", 7 * S)
    assert tree.abandoned("base", -7 * S)  # a recording began again without it
    assert tree.parent("base") == "odom"
    tree.add("odom", "base", np.eye(4), 8 * S)
    assert not tree.abandoned("base", 100 * S)
    now[0] = 15.0  # the second silence may last twice as long
    assert not tree.abandoned("base", 100 * S)
    now[0] = 17.0
    assert tree.abandoned("base", 100 * S)


def test_static_edges_and_recordings_keep_their_owners():
    now = [0.0]
    live = TransformTree(gone_s=5.0, clock=lambda: now[0])
    live.add("base", "camera", np.eye(4), 0, static=True, owner="/robot")
    recording = TransformTree(clock=lambda: now[0])
    recording.add("odom", "base", np.eye(4), 0)
    now[0] = 1e6
    assert not live.abandoned("camera", 10**15)
    assert live.owner("camera") == "/robot"
    assert not recording.abandoned("base", 10**15)
    assert not recording.abandoned("nobody", 0)
