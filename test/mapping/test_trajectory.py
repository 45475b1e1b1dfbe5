"""The path of a camera that stands: it does not grow, and who uses it sees no difference."""

from dataclasses import replace

import numpy as np
import pytest
from support.cases import long_after
from support.scenes import frame, pose, store

from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.mapping import trajectory
from da3_ros.mapping.following import OwnPoses
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.trajectory import MAX_GAP_NS, Trajectory

STEP_NS = 10**8
NOISE_M = 0.005  # of a place: 0.05 pixels at the wall, 2 m away, with a focal length of 20


def stay(held, begin, count, x=0.0, *, camera="", keyframe=False, seed=0):
    """Adds frames of a camera that stands, with noisy poses; returns the last one's number."""
    rng = np.random.default_rng(seed)
    for i in range(begin, begin + count):
        T = pose(x + NOISE_M * rng.uniform(-1, 1))
        f = frame(0, T, camera=camera, keyframe=keyframe and i == begin)
        held.add_frame(replace(f, stamp_ns=i * STEP_NS))
    return begin + count


def stamps(poses):
    return (poses.rows["stamp_ns"] // STEP_NS).tolist()


@pytest.mark.parametrize(
    ("localized", "count"), long_after(2, [(False, 2000), (True, 1000), (False, 20_000)])
)
def test_a_standing_cameras_path_does_not_grow(localized, count):
    held = store()
    stay(held, 0, 1, keyframe=True)
    held.localize(localized)
    stay(held, 1, 200)
    before = held.nbytes
    stay(held, 201, count, seed=1)
    assert held.nbytes == before
    assert len(held.view.path()) <= 3
    assert held.newest_stamp_ns == (200 + count) * STEP_NS


def test_a_rig_that_stands_has_a_path_that_does_not_grow():
    held = store()
    for i in range(300):
        for camera in ("front", "left"):
            stay(held, i, 1, camera=camera, keyframe=i == 0, seed=i)
    assert len(held.table.path) == 2
    stay(held, 300, 1, 1.0, camera="front")
    poses = held.poses()
    assert stamps(poses.leading()) == [0, 299, 300]
    assert stamps(poses) == [0, 0, 299, 300, 299]
    assert np.isclose(poses.newest()["front"][0, 3], 1.0, atol=NOISE_M)
    assert np.isclose(poses.newest()["left"][0, 3], 0.0, atol=NOISE_M)


def test_the_path_tells_from_when_to_when_a_camera_stood():
    held = store()
    end = stay(held, 0, 100, keyframe=True)
    end = stay(held, end, 1, 0.5)
    stay(held, end, 50, 1.0)
    poses = held.poses()
    assert stamps(poses) == [0, 99, 100, 101, 150]
    np.testing.assert_allclose(poses.rows["T"][:, 0, 3], [0, 0, 0.5, 1, 1], atol=2 * NOISE_M)
    assert poses.rows["keyframe"].tolist() == [True, False, False, False, False]


def test_keyframes_turns_and_slow_ways_are_stored():
    held = store()
    for i in range(4):
        held.add_frame(frame(i * STEP_NS, pose(), seed=i))
    for i in range(4, 8):
        held.add_frame(frame(i * STEP_NS, pose(turn_deg=2.0 * (i - 3)), keyframe=False))
    assert len(held.table.path) == 8
    for i in range(8, 208):  # a tenth of what counts as motion each: 1 m in all
        T = pose(0.005 * (i - 7), turn_deg=8.0)
        held.add_frame(frame(i * STEP_NS, T, keyframe=False))
        last = held.poses().rows["T"][-1, 0, 3]
        assert abs(last - T[0, 3]) < 0.06
    assert 25 <= len(held.table.path) <= 35


def test_frames_are_found_anywhere_and_the_newest_of_two(monkeypatch):
    monkeypatch.setattr(trajectory, "BLOCK", 4)
    path = Trajectory()
    for k in range(40):
        for camera in ("left", "right"):
            T = pose(k + 0.5 * (camera == "right"))
            f = replace(frame(0, T, camera=camera, keyframe=True), stamp_ns=k % 35 * STEP_NS)
            path.add_pose(f, T, k // 10)
    frames = [(3 * STEP_NS, "right"), (30 * STEP_NS, "left"), (7 * STEP_NS, "left"), (9, "left")]
    found = path.rows_of([*frames, (3 * STEP_NS, "rear")])
    assert found[3:] == [None, None]
    assert [(submap, T[0, 3]) for submap, T in found[:3]] == [(3, 38.5), (3, 30.0), (0, 7.0)]


def test_a_gap_and_a_time_jump_are_no_standing():
    held = store()
    for stamp_ns in (0, STEP_NS, STEP_NS + MAX_GAP_NS + 1, 5, 6):
        held.add_frame(replace(frame(0, pose(), keyframe=False), stamp_ns=stamp_ns))
    gap = STEP_NS + MAX_GAP_NS + 1
    assert held.poses().rows["stamp_ns"].tolist() == [0, STEP_NS, gap, 5, 6]


def test_other_slams_poses_find_ours_while_the_camera_stood():
    """Also 20 s in; but not in a gap of that length, after which the camera is there again."""
    held = store()
    end = stay(held, 0, 400, keyframe=True)
    stay(held, end + 200, 5)
    own = OwnPoses.of(held.table.path.poses().rows, {0: 1.0})
    asked = np.array([200, 399, 500, 602]) * STEP_NS
    found, submap, T = own.at(asked, {0: np.eye(4)}, {0: 0})
    assert found.tolist() == [0, 1, 3]
    assert submap.tolist() == [0, 0, 0]
    assert np.abs(T[:, :3, 3]).max() <= 2 * NOISE_M


def test_a_line_for_each_frame_is_got_back():
    """From the stamps of all frames, of which a part came before, with the same stamps."""
    held = store()
    end = stay(held, 3, 50, keyframe=True)
    end = stay(held, end, 1, 0.5)
    stay(held, end, 20, 1.0)
    frames = np.array([*range(30), *range(74)])
    poses = held.poses().with_frames(frames * STEP_NS)
    assert stamps(poses) == list(range(3, 74))
    x = poses.rows["T"][:, 0, 3]
    np.testing.assert_allclose(x, [0] * 50 + [0.5] + [1] * 20, atol=2 * NOISE_M)
    assert stamps(held.poses().with_frames(frames[:0])) == [3, 52, 53, 54, 73]


def test_refinement_corrects_the_pose_at_which_a_camera_stands():
    path = Trajectory()
    path.add_pose(replace(frame(0, pose()), stamp_ns=0), pose(), 0)
    path.add_pose(replace(frame(0, pose(), keyframe=False), stamp_ns=1), pose(), 0)
    path.move([
        PoseInSubmap(0, "", 0, pose(0.3)),
        PoseInSubmap(1, "", 0, pose(9.0)),  # not stored
        PoseInSubmap(0, "", 1, pose(9.0)),  # in another submap
    ])  # fmt: skip
    assert path.poses().rows["T"][:, 0, 3].tolist() == [0.3, 0.3]


def test_frames_of_any_submap_are_moved_and_one_that_is_not_stored_ends_the_search(monkeypatch):
    monkeypatch.setattr(trajectory, "BLOCK", 2)
    path, looked = Trajectory(), []
    for i in range(40):
        path.add_pose(replace(frame(0, pose(i)), stamp_ns=i), pose(i), i // 10)
    moved = [PoseInSubmap(i, "", i // 10, pose(0.5)) for i in (0, 10, 29, 39)]
    path.move([*moved, PoseInSubmap(99, "", 2, pose(9.0))])
    x = path.poses().rows["T"][:, 0, 3]
    assert np.flatnonzero(x == 0.5).tolist() == [0, 10, 29, 39]
    isin = np.isin
    monkeypatch.setattr(np, "isin", lambda a, b: looked.append(len(a)) or isin(a, b))
    path.move([PoseInSubmap(99, "", 3, pose(9.0))])
    assert 10 <= sum(looked) < 30


def test_a_frame_of_a_camera_that_stood_has_the_pose_at_which_it_stood():
    held = store()
    end = stay(held, 0, 10, keyframe=True)
    stay(held, end, 1, 0.5)
    path = held.table.path
    stood = path.poses().rows["T"][0]
    for i in (0, 4, 9):
        np.testing.assert_array_equal(path.pose_at(i * STEP_NS, "", 0), stood)
    assert path.pose_at(end * STEP_NS, "", 0)[0, 3] == pytest.approx(0.5, abs=2 * NOISE_M)
    assert path.pose_of(4 * STEP_NS, "", 0) is None
    for unknown in ((-1, "", 0), (11 * STEP_NS, "", 0), (0, "rear", 0), (0, "", 1)):
        assert path.pose_at(*unknown) is None


def test_a_saved_scene_has_the_ends_of_a_standing_stretch(tmp_path):
    held = store()
    end = stay(held, 0, 100, keyframe=True)
    (tmp_path / "scene").mkdir()
    save_scene(held.snapshot(), tmp_path / "scene")
    saved = load_scene(tmp_path / "scene")
    assert stamps(saved.poses) == [0, 99]
    for again in (saved, held.snapshot()):
        other = store()
        other.restore(again)
        assert stamps(other.poses()) == [0, 99]
        assert other.newest_stamp_ns == (end - 1) * STEP_NS


def test_poses_in_a_small_submap_stand_by_the_scenes_lengths():
    """A millimetre in a submap of a hundredth of the scene's size is a decimetre there: motion."""
    f = frame(0, pose(), keyframe=False)
    for unit, count in ((1.0, 1), (100.0, 2)):
        path = Trajectory()
        path.add_pose(replace(f, stamp_ns=0), pose(), 0, unit)
        path.add_pose(replace(f, stamp_ns=1), pose(0.001), 0, unit)
        assert len(path) == count


def row(held, at, submap, camera="", x=0.0):
    T = pose(x)
    f = frame(0, T, camera=camera, keyframe=False)
    held.add_pose(replace(f, stamp_ns=at * STEP_NS), T, submap)


def test_a_camera_that_stands_across_submaps_has_a_pose_in_each():
    held = Trajectory()
    for at, submap in enumerate((0, 0, 1, 1)):
        row(held, at, submap)
    assert len(held) == 2
    assert held.poses().rows["submap"].tolist() == [0, 0, 1, 1]


def test_forgotten_poses_leave_the_newest_stamp_of_a_standing_camera():
    held = Trajectory()
    row(held, 0, 0, "front")
    row(held, 3, 0, "left", x=1.0)
    row(held, 4, 1, "left", x=5.0)
    row(held, 5, 0, "front")
    held.forget(1)
    assert held.newest_stamp_ns == 5 * STEP_NS


def test_a_part_of_a_path_begins_with_the_last_pose_before_its_time():
    """Of one camera; also after time has jumped back."""
    held = Trajectory()
    for begin in (0, 20):
        for k in range(begin, begin + 40):
            row(held, k, k, "ab"[k % 2], x=float(k))
    assert stamps(held.poses("a", 55 * STEP_NS))[0] == 54
    assert stamps(held.poses("a", 55 * STEP_NS)) == stamps(held.poses())[-6:]
    assert len(held.poses("a", 15 * STEP_NS)) == 80 - 14
    assert len(held.poses("a", -1)) == len(held.poses("c", 55 * STEP_NS)) == 80
