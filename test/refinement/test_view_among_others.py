"""A view is placed among views whose poses are known."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.refinement.features import Features
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.refinement.view_among_others import place_among

K = np.array([[400.0, 0, 320], [0, 400, 240], [0, 0, 1]])
EFFORT = SolverLimits.full(400)


def pose(x, y=0.0, turn=0.0):
    T = np.eye(4)
    T[:3, :3], T[:2, 3] = Rotation.from_rotvec([0, turn, 0]).as_matrix(), (x, y)
    return T


def made(count=200, wide=0.4, noise_px=0.3):
    """Four views ``wide`` apart of points that look different, and one beside them."""
    rng = np.random.default_rng(0)
    X = rng.uniform([-1.5, -1, 3], [2, 1, 6], (count, 3))
    looks = rng.integers(0, 255, (count, 128), dtype=np.uint8)
    views = []
    for id, T in enumerate([*(pose(wide * k, 0.05 * k) for k in range(4)), pose(0.5, 0.2, 0.05)]):
        x = (X - T[:3, 3]) @ T[:3, :3]
        uv = x @ K.T
        uv = uv[:, :2] / uv[:, 2:]
        seen = np.flatnonzero((uv > 0).all(1) & (uv < [640, 480]).all(1))
        pixel = uv[seen] + rng.normal(0, noise_px, (len(seen), 2))
        log_depth = np.log(x[seen, 2]) + rng.normal(0, 0.05, len(seen))
        features = Features((480, 640), pixel, looks[seen])
        views.append(TrackedView(id, "", features, K, T, log_depth))
    return views[:4], views[4]


def test_a_view_is_found_from_a_start_that_is_off():
    others, view = made()
    true = view.T_local_camera
    before = [other.T_local_camera.copy() for other in others]
    view.T_local_camera = true @ pose(0.03, -0.02, 0.01)
    found = place_among(view, others, EFFORT)
    turn = Rotation.from_matrix(true[:3, :3].T @ found.T_local_camera[:3, :3]).magnitude()
    assert turn < 4 * found.sigma[1] < 0.01
    away = np.linalg.norm(found.T_local_camera[:3, 3] - true[:3, 3])
    assert away < 4 * found.sigma[2] < 0.03
    for other, T in zip(others, before, strict=True):
        np.testing.assert_array_equal(other.T_local_camera, T)


def test_others_near_each_other_place_a_view_less_surely():
    """Errors of the others count more there."""
    wide, near = (place_among(*made(wide=w)[::-1], EFFORT) for w in (0.4, 0.05))
    assert near is None or near.sigma[2] > 1.5 * wide.sigma[2]


@pytest.mark.parametrize("count", [3, 15])
def test_few_tracks_place_nothing(count):
    others, view = made(count=count)
    assert place_among(view, others, EFFORT) is None
