"""The floor as what is up, for a camera without a robot."""

import dataclasses

import numpy as np
import pytest
from support.driving import level
from support.solids import SIZE, K, Solid, camera_at, depth_of

from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping.frames import LocalFrame
from da3_ros.navigation.floor import Floor, below_first_camera, find_floor
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Scale, WindowReport

TABLE = Solid((0.8, -1.0, 0.68), (2.5, 1.0, 0.72))
WALL = Solid((6.0, -8, 0), (6.2, 8, 3.0))


def local_frame(depth, T_local_camera, K=K, chain=0):
    report = WindowReport(0, 0, (0,), 1, True, 0.0, 1.0, 1.0, chain=chain)
    image = np.zeros((*depth.shape, 3), np.uint8)
    return LocalFrame(
        0, 0, "optical", "", image, depth, np.ones_like(depth), K, T_local_camera, Scale(), report
    )


def noisy(depth, sigma=0.02, seed=0):
    rng = np.random.default_rng(seed)
    return (depth * np.exp(sigma * rng.normal(size=depth.shape))).astype(np.float32)


def tilt_deg(T, true):
    """Angle between what both take for up."""
    return np.degrees(np.arccos(np.clip(T[2, :3] @ true[2, :3], -1, 1)))


@pytest.mark.parametrize(
    ("height", "pitch"),
    [(0.2, -10.0), (0.2, 0.0), (1.0, -10.0), (1.0, 0.0), (1.7, 0.0), (1.7, 30.0)],
)
def test_height_and_tilt_of_one_image(height, pitch):
    T = camera_at(height, pitch)
    found = Floor().follow(local_frame(noisy(depth_of(T, [WALL])), np.eye(4)))
    assert tilt_deg(found, T) < 0.5
    assert found[2, 3] == pytest.approx(height, rel=0.03)
    np.testing.assert_allclose(found[:2, 3], 0, atol=1e-9)  # below the camera
    assert found[0, 2] > 0  # x where it looks
    assert abs(found[1, 2]) < 1e-9


def test_a_table_is_no_floor():
    T = camera_at(1.2, 25.0)
    found = Floor().follow(local_frame(noisy(depth_of(T, [TABLE, WALL])), np.eye(4)))
    assert found is None or found[2, 3] == pytest.approx(1.2, rel=0.05)


def test_stairs_ahead_are_no_floor():
    T = camera_at(0.3)
    steps = [Solid((1 + 0.3 * i, -3, 0), (9, 3, 0.18 * (i + 1))) for i in range(8)]
    found = Floor().follow(local_frame(noisy(depth_of(T, [*steps, WALL])), np.eye(4)))
    assert tilt_deg(found, T) < 3
    assert found[2, 3] == pytest.approx(0.3, rel=0.1)


def test_a_desk_that_came_first_is_given_up(caplog):
    desk = Solid((0.3, -3.0, 0.68), (1.6, 3.0, 0.72))
    close = Solid((1.6, -8, 0), (1.8, 8, 3.0))
    floor, T = Floor(), camera_at(1.2, 25.0)
    first = floor.follow(local_frame(noisy(depth_of(T, [desk, close])), np.eye(4)))
    assert first[2, 3] == pytest.approx(0.48, rel=0.1)
    back = T.copy()
    back[0, 3] = -3.0
    moved = np.eye(4)
    moved[:3, 3] = T[:3, :3].T @ [-3.0, 0, 0]
    for step in range(20):
        depth = noisy(depth_of(back, [desk, close]), seed=step)
        found = floor.follow(local_frame(depth, moved))
    assert found[2, 3] == pytest.approx(1.2, rel=0.06)
    assert tilt_deg(found, back) < 2
    assert "another floor" in caplog.text


@pytest.mark.long
def test_a_desk_that_comes_later_stays_an_obstacle():
    desk = Solid((0.3, -3.0, 0.68), (1.6, 3.0, 0.72))
    close = Solid((1.6, -8, 0), (1.8, 8, 3.0))
    floor, T = Floor(), camera_at(1.2, 25.0)
    floor.follow(local_frame(noisy(depth_of(T, [WALL])), np.eye(4)))
    for step in range(40):
        depth = noisy(depth_of(T, [desk, close]), seed=step)
        found = floor.follow(local_frame(depth, np.eye(4)))
    assert found[2, 3] == pytest.approx(1.2, rel=0.05)


def test_a_wall_alone_or_nothing_shows_none():
    T = camera_at(1.5)
    near = Solid((0.8, -8, 0), (1.0, 8, 3.0))  # fills the image
    assert Floor().follow(local_frame(noisy(depth_of(T, [near])), np.eye(4))) is None
    empty = np.full((SIZE[1], SIZE[0]), np.nan, np.float32)
    assert Floor().follow(local_frame(empty, np.eye(4))) is None
    assert find_floor(np.zeros((0, 3))) is None


def test_it_is_kept_where_it_is_not_seen_and_lost_far_away():
    floor, T = Floor(), camera_at(1.0)
    first = floor.follow(local_frame(depth_of(T, [WALL]), np.eye(4)))
    nothing = np.full((SIZE[1], SIZE[0]), np.nan, np.float32)
    turned = np.eye(4)
    turned[:3, :3] = T[:3, :3].T @ camera_at(1.0, -20)[:3, :3]  # looks up by 20 degrees
    kept = floor.follow(local_frame(nothing, turned))
    assert tilt_deg(kept, camera_at(1.0, -20)) < 0.2
    assert kept[2, 3] == pytest.approx(first[2, 3])
    away = np.eye(4)
    away[2, 3] = 11.0
    assert floor.follow(local_frame(nothing, away)) is None


def test_another_chain_begins_anew():
    floor = Floor()
    assert floor.follow(local_frame(depth_of(camera_at(1.0)), np.eye(4))) is not None
    other = floor.follow(local_frame(depth_of(camera_at(0.5)), np.eye(4), chain=1))
    assert other[2, 3] == pytest.approx(0.5, rel=0.01)


def test_drift_of_odometry_does_not_tilt_it():
    """Odometry that pitches by 2 degrees a metre over a way, while the camera stays level."""
    floor, T = Floor(), camera_at(1.0, 10.0)
    depth, at = depth_of(T, [WALL]), np.zeros(3)
    for step in range(41):
        pitch = np.radians(0.2 * step)
        drifted = np.eye(4)
        drifted[1:3, 1:3] = [[np.cos(pitch), -np.sin(pitch)], [np.sin(pitch), np.cos(pitch)]]
        at += 0.1 * drifted[:3, :3] @ T[0, :3]  # level, as the camera sees it
        drifted[:3, 3] = at
        found = floor.follow(local_frame(noisy(depth, seed=step), drifted))
        assert tilt_deg(found, T) < 2.5
        assert found[2, 3] == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("seed", [1, 4])
def test_a_walk_through_a_room(seed):
    camera = SyntheticCamera(seed, (252, 189), walk="loop", frames=8)
    floor, known = Floor(), 0
    for f in camera:
        found = floor.follow(local_frame(noisy(f.depth), f.T_room_camera, f.K))
        if found is not None:
            known += 1
            assert tilt_deg(found, level(f)) < 1.5
            assert found[2, 3] == pytest.approx(f.T_room_camera[2, 3], rel=0.05)
    assert known >= 6


def test_a_map_begins_below_its_first_camera():
    later = np.eye(4)  # T_map_camera
    later[:3, 3] = 0.3, 0.0, 2.0
    T_level_map = camera_at(0.9, 12.0) @ invert_pose(later)
    T = below_first_camera(T_level_map)
    np.testing.assert_allclose(T[:2, 3], 0, atol=1e-12)
    assert T[1, 2] == pytest.approx(0, abs=1e-12)
    assert T[0, 2] > 0
    np.testing.assert_allclose(T[2, :3], T_level_map[2, :3])


def test_nothing_is_kept_of_another_frame():
    """Two runs give the same bits."""
    frames = [
        dataclasses.replace(local_frame(noisy(depth_of(camera_at(1.0, p))), np.eye(4)))
        for p in (0, 1, 2)
    ]
    runs = []
    for _ in range(2):
        floor = Floor()
        runs.append([floor.follow(frame) for frame in frames])
    np.testing.assert_array_equal(runs[0], runs[1])
