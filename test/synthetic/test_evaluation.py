"""Measuring against the exact room: zero for the truth, right for known errors."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.projection import backproject
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic import evaluation as m

SIZE = (112, 84)


@pytest.fixture(scope="module", params=["straight", "spot", "loop", "still"])
def walk(request):
    camera = SyntheticCamera(seed=3, size=SIZE, walk=request.param, frames=9)
    return camera, list(camera)


def elsewhere(T, scale):
    """The pose in another frame and unit, where the camera is at p when it is at scale p here."""
    turn = np.eye(4)
    turn[:3, :3] = Rotation.from_euler("xyz", (20, -130, 75), degrees=True).as_matrix()
    turn[:3, 3] = 3, -2, 9
    out = turn @ T
    out[:3, 3] /= scale
    return out


def reconstruction(frames, scale=1.7):
    """Perfect pairs and their cloud, every frame's points."""
    pairs, clouds = [], []
    for f in frames:
        T = elsewhere(f.T_room_camera, scale)
        depth = np.where(np.isfinite(f.depth), f.depth / np.float32(scale), np.nan)
        pairs.append(m.FramePair(depth, T, f.depth, f.T_room_camera))
        points = backproject(depth, f.K).reshape(-1, 3)
        clouds.append(points[np.isfinite(points).all(1)] @ T[:3, :3].T + T[:3, 3])
    return pairs, np.concatenate(clouds)


def test_the_truth_in_another_frame_and_unit_has_no_error(walk):
    camera, frames = walk
    errors = m.measure(camera.room, *reconstruction(frames))
    assert errors.depth.abs_rel < 1e-6
    assert errors.depth.delta1 == 1
    assert errors.depth.scale == pytest.approx(1.7, rel=1e-5)
    assert errors.scale == pytest.approx(1.7, rel=1e-5)
    assert errors.ate_m < 1e-5
    assert errors.cloud.p90_m < 1e-4
    assert errors.cloud_by_depth.p90_m < 1e-4
    assert str(errors.cloud.points) in errors.text()


def test_depth_error_is_relative_after_one_scale(walk):
    _, frames = walk
    pairs, _ = reconstruction(frames)
    wrong = [replace(p, depth=p.depth * np.float32(2)) for p in pairs]
    wrong[0] = replace(wrong[0], depth=wrong[0].depth * np.float32(1.3))
    errors = m.depth_errors(wrong)
    known = [np.isfinite(p.depth).sum() for p in pairs]
    assert errors.abs_rel == pytest.approx(0.3 * known[0] / sum(known), rel=1e-3)
    assert errors.delta1 == pytest.approx(1 - known[0] / sum(known), rel=1e-3)


def test_trajectory_error_is_what_no_similarity_explains():
    true = np.tile(np.eye(4), (4, 1, 1))
    true[:, :3, 3] = [[0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]]
    ours = np.array([elsewhere(T, 0.4) for T in true])
    assert m.trajectory_error(ours, true) < 1e-9
    bent = true.copy()
    bent[:, 2, 3] = 0.1, -0.1, 0.1, -0.1  # a saddle: no similarity makes it flat
    assert m.trajectory_error(bent, true) == pytest.approx(0.1, rel=0.01)


def test_standing_still_is_wrong_by_the_spread_of_the_path():
    camera = SyntheticCamera(seed=3, size=(28, 28), walk="loop", frames=12)
    true = camera.T_room_camera
    spread = true[:, :3, 3] - true[:, :3, 3].mean(0)
    still = np.tile(np.eye(4), (len(true), 1, 1))
    expected = np.sqrt((spread**2).sum(1).mean())
    assert m.trajectory_error(still, true) == pytest.approx(expected)


def test_a_path_of_wrong_length_spoils_the_cloud_in_its_scale():
    """A path of wrong length spoils the cloud only in the path's own scale."""
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=9)
    pairs, _ = reconstruction(list(camera))
    shorter = []
    for p in pairs:
        T = p.T_map_camera.copy()
        T[:3, 3] = pairs[0].T_map_camera[:3, 3] + 0.5 * (T - pairs[0].T_map_camera)[:3, 3]
        shorter.append(replace(p, T_map_camera=T))
    points = backproject(pairs[0].depth, camera.K).reshape(-1, 3)
    T = shorter[0].T_map_camera
    errors = m.measure(camera.room, shorter, points @ T[:3, :3].T + T[:3, 3])
    assert errors.scale == pytest.approx(2 * errors.depth.scale)
    assert errors.cloud_by_depth.median_m < 0.25 < errors.cloud.median_m


def test_points_off_the_surfaces_are_that_far_off(walk):
    camera, _ = walk
    size = camera.room.size
    outside = np.array([[size[0] / 2, size[1] / 2, size[2] + d] for d in (0.1, 0.2, 0.3)])
    errors = m.cloud_errors(camera.room, outside)
    assert errors.median_m == pytest.approx(0.2)
    assert m.cloud_errors(camera.room, np.zeros((0, 3))).points == 0


def test_looking_beats_not_looking(walk):
    _, frames = walk
    pairs, _ = reconstruction(frames)
    assert m.depth_errors(m.constant_baseline(pairs)).abs_rel > 0.1
