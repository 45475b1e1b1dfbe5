"""The map in submaps: what it remembers, that it moves, and that it stays within its bounds."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.scenes import K, frame, pose, store

from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping import submaps
from da3_ros.mapping.submaps import KEYFRAMES


def room_points(f):
    points = backproject(f.depth, f.K)[np.isfinite(f.depth)]
    return points @ f.T_local_camera[:3, :3].T + f.T_local_camera[:3, 3]


def in_order(points):
    return points[np.lexsort(points.T)]


def test_points_lie_where_the_camera_saw_them():
    """Points lie where the camera saw them in open and closed submaps."""
    held = store()
    frames = [frame(i, pose(0.3 * i, turn_deg=5.0 * i), seed=i) for i in range(2 * KEYFRAMES + 3)]
    assert [held.add_frame(f)[0].id for f in frames] == [
        i // KEYFRAMES for i in range(len(frames))
    ]
    expected = np.concatenate([room_points(f) for f in frames])
    cloud = held.cloud()
    assert len(held) == len(cloud) == len(expected) == 190 * len(frames)
    np.testing.assert_allclose(in_order(cloud.xyz), in_order(expected), atol=2e-3)
    assert set(cloud.count) == {1}
    scene = held.scene(np.eye(4))
    assert len(scene) == len(expected)
    T = np.array([p.T_map_camera for p in scene.poses])
    np.testing.assert_allclose(T, [f.T_local_camera for f in frames], atol=1e-12)


def test_far_from_the_origin_nothing_is_lost_to_rounding():
    held = store(voxel_m=0.01)
    f = frame(0, pose(50_000.0, 20_000.0))
    for _ in range(30):
        held.add_frame(f)
    local = held.scene().clouds[-1].cloud.xyz
    near = backproject(f.depth, K)[np.isfinite(f.depth)]
    assert np.abs(in_order(local)[:3] - in_order(near)[:3]).max() < 0.02
    assert held.submaps[0].T_map_submap.t[0] == 50_000.0


def test_points_seen_again_are_averaged_by_confidence():
    """What is seen again is averaged by confidence and counted."""
    held = store(voxel_m=10.0)
    a, b = frame(0, pose()), frame(1, pose())
    b = replace(b, image=np.full_like(b.image, 200), confidence=np.full_like(b.confidence, 9.0))
    a = replace(a, image=np.zeros_like(a.image), confidence=np.ones_like(a.confidence))
    held.add_frame(a)
    held.add_frame(b)
    cloud = held.cloud()
    assert cloud.count.sum() == 380
    assert (cloud.rgb == 180).all()  # (1 * 0 + 9 * 200) / 10
    np.testing.assert_allclose(cloud.confidence, 8.2, rtol=1e-3)


def test_a_submap_that_moves_takes_its_points_and_poses_along():
    held = store()
    frames = [frame(i, pose(0.3 * i), seed=i) for i in range(KEYFRAMES + 2)]
    frames.insert(3, frame(99, pose(0.7), keyframe=False))
    for f in frames:
        held.add_frame(f)
    before, poses = held.scene(np.eye(4)), list(held.poses())
    R = Rotation.from_euler("xyz", [10, 20, 30], degrees=True).as_matrix()
    moved = Similarity(1.5, R, np.array([3.0, -2, 1]))
    old = held.submaps[0].T_map_submap
    held.table.set_poses({0: Similarity(1.5 * old.scale, R @ old.R, moved.points(old.t))})
    after = held.scene(np.eye(4))
    first, second = (next(iter(s.chunks())).xyz for s in (before, after))
    np.testing.assert_allclose(second, moved.points(first), atol=1e-5)
    np.testing.assert_array_equal(list(before.chunks())[1].xyz, list(after.chunks())[1].xyz)
    for i, (was, now) in enumerate(zip(poses, held.poses(), strict=True)):
        expected = moved.pose(was.T_map_camera) if i < KEYFRAMES + 1 else was.T_map_camera
        np.testing.assert_allclose(now.T_map_camera, expected, atol=1e-9)


def test_a_growing_submap_can_move_and_goes_on_growing():
    held = store()
    held.add_frame(frame(0, pose()))
    held.table.set_poses({0: Similarity(2.0, np.eye(3), np.array([0.0, 0, 5]))})
    later = frame(1, pose(1.0), depth=4.0, seed=1)
    held.add_frame(later)
    np.testing.assert_allclose(in_order(room_points(later)), in_order(held.cloud().xyz[190:]),
                               atol=4e-3)  # fmt: skip
    np.testing.assert_allclose(list(held.poses())[1].T_map_camera, later.T_local_camera)


def test_every_chain_begins_a_submap():
    held = store()
    held.add_frame(frame(0, pose()))
    held.start_chain()
    assert held.newest is None
    assert held.add_frame(frame(1, pose()))[0].id == 1
    assert [s.chain for s in held.submaps.values()] == [0, 1]
    held.start_chain()
    held.start_chain()
    assert held.add_frame(frame(2, pose(), keyframe=False))[0].id == 2


def test_a_frame_that_is_no_keyframe_leaves_its_pose_only():
    held = store(keep_images=True)
    held.add_frame(frame(0, pose(), keyframe=False))
    off = store(enabled=False, keep_images=True)
    off.add_frame(frame(0, pose()))
    for one in (held, off):
        assert (len(one), len(one.poses()), len(one.scene().images)) == (0, 1, 0)


def test_the_path_is_the_leading_cameras_and_thins_evenly():
    held = store()
    for i in range(50):
        for camera in ("front", "left"):
            held.add_frame(frame(i, pose(float(i)), keyframe=False, camera=camera))
    assert len(held.poses()) == 100
    assert {p.camera for p in held.view.path()} == {"front"}
    assert [p.stamp_ns for p in held.view.path(10)] == [1000 + i for i in range(0, 50, 5)]


def test_keyframes_images_are_kept_as_jpeg():
    held = store(keep_images=True)
    f = replace(frame(0, pose()), image=np.full((12, 16, 3), (200, 100, 20), np.uint8))
    held.add_frame(f)
    ((shot, data),) = held.scene().images.items()
    assert shot == ("", 1000)
    shown = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_allclose(shown.astype(float), np.full((12, 16, 3), (20, 100, 200)), atol=4)


def test_points_stay_below_their_cap_and_the_oldest_leave():
    held = store(max_points=3000)
    for i in range(100):
        held.add_frame(frame(i, pose(10.0 * i), seed=i))
        assert len(held) <= 3000
    x = held.cloud().xyz[:, 0]
    assert len(held) > 0.8 * 3000
    assert x.max() > 985
    assert x.min() > 10 * (99 - 3000 / 190) - 2


def test_a_cap_below_one_frame_holds_too():
    held = store(max_points=50)
    for i in range(5):
        held.add_frame(frame(i, pose(10.0 * i), seed=i))
        assert 40 <= len(held) <= 50


@pytest.mark.slow
def test_nothing_is_held_beyond_the_radius_in_metres():
    held = store(radius_m=12.0)
    held.table.known_metres = 2.0  # six units of the scene
    for i in range(300):
        T = pose(0.05 * i)
        held.add_frame(frame(i, T, depth=2.5 + 2.5 * (i % 2), seed=i))
        away = np.linalg.norm(held.cloud().xyz - T[:3, 3], axis=1)
        assert away.max() <= 6.0 + 1e-3
    assert away.max() > 5.0
    assert held.cloud().xyz[:, 0].min() < 0.05 * 299 - 3


def test_memory_stays_within_its_cap_with_images_and_points():
    held = store(memory_mb=1, keep_images=True)
    most = 0
    for i in range(700):
        held.add_frame(frame(i, pose(10.0 * i), seed=i))
        most = max(most, held.nbytes)
        assert held.nbytes <= 2**20
    assert most > 0.6 * 2**20
    assert held.cloud().xyz[:, 0].max() > 6980
    assert ("", 1699) in held.scene().images
    assert ("", 1000) not in held.scene().images


def test_the_reported_memory_is_what_is_held():
    held = store(keep_images=True)
    for i in range(KEYFRAMES + 1):
        held.add_frame(frame(i, pose(10.0 * i), seed=i))
    held.start_chain()
    points = sum(s.cloud.nbytes for s in held.submaps.values())
    images = sum(len(data) for data in held.scene().images.values())
    assert held.nbytes == points + images + held.table.path.nbytes
    assert points == 19 * len(held)


@pytest.mark.long
@pytest.mark.slow
def test_memory_of_an_hour_at_10_hz_stays_flat_after_the_cap(monkeypatch):
    monkeypatch.setattr(submaps, "MAX_POSES", 5000)
    held = store(max_points=20_000, memory_mb=4, keep_images=True)
    frames, told = [frame(i, pose(), seed=i) for i in range(7)], []
    for i in range(36_000):
        seen = {"keyframe": i % 20 == 0, "T_local_camera": pose(0.1 * i)}
        held.add_frame(replace(frames[i % 7], stamp_ns=i, **seen))
        if i >= 12_000 and i % 1000 == 0:
            told.append(held.nbytes)
    assert max(told) < 1.15 * min(told)
    assert max(told) <= 4 * 2**20
    assert len(held) <= 20_000
    assert len(held.poses()) <= 5000
    assert len(held.submaps) < 150


def test_voxels_of_a_known_scale_keep_colours_and_counts():
    held = store(voxel_m=0.05)
    for i in range(KEYFRAMES + 2):
        held.add_frame(frame(i, pose(0.01 * i), seed=i))
    points, seen = len(held), held.cloud().count.sum()
    held.table.known_metres = 0.1  # so that a voxel is half a unit
    held.regrid()
    assert len(held) < points / 5
    assert held.cloud().count.sum() == pytest.approx(seen, rel=1e-6)
    assert held.scene().clouds[0].T_map_submap.scale == pytest.approx(0.1)
    held.add_frame(frame(99, pose(0.01), seed=99))
    assert len(held) < points / 5 + 40


def test_a_scene_does_not_change_while_the_map_goes_on():
    held = store(max_points=4000)
    for i in range(20):
        held.add_frame(frame(i, pose(float(i)), seed=i))
    scene = held.scene()
    before = [c.xyz.copy() for c in scene.chunks()]
    for i in range(20, 100):
        held.add_frame(frame(i, pose(float(i)), seed=i))
    held.table.set_poses({held.newest.id: Similarity(1.0, np.eye(3), np.ones(3))})
    for old, new in zip(before, scene.chunks(), strict=True):
        np.testing.assert_array_equal(old, new.xyz)
    assert len(scene.poses) == 20


def test_shown_points_are_an_even_choice_of_all_submaps():
    """What is shown is an even choice of open and closed submaps."""
    held = store()
    for i in range(2 * KEYFRAMES + 3):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    for most in (10, 500, 5000, 10**6):
        shown = held.view.thinned(most, np.eye(4))
        assert 0.5 * min(most, len(held)) < len(shown) <= most
        np.testing.assert_array_equal(shown.cloud().xyz, held.scene(np.eye(4)).cloud(most).xyz)
    assert len(store().view.thinned(100, np.eye(4))) == 0


def test_a_component_that_left_the_map_keeps_its_number():
    """Loops still know its submaps: what ties them would tie the new component."""
    held = store()
    held.add_frame(frame(0, pose()))
    held.start_chain()
    gone = held.add_frame(frame(1, pose(1.0)))[0].id
    held.start_chain()
    back = held.add_frame(frame(2, pose(2.0)))[0].id
    held.merge_components([(0, back)])
    held.submaps.remove(gone)
    held.start_chain()
    held.add_frame(frame(3, pose(3.0)))
    held.merge_components([(0, gone)])
    assert not held.pose_known
