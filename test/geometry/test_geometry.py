"""Poses and pixels: conventions against numbers worked out by hand."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import (
    T_ROS_MAP,
    invert_pose,
    matrix_from_quaternion,
    quaternion_from_matrix,
)
from da3_ros.geometry.projection import backproject, project

K = np.array([[50.0, 0, 32], [0, 40, 24], [0, 0, 1]])


def random_pose(seed):
    T = np.eye(4)
    T[:3, :3] = Rotation.random(random_state=seed).as_matrix()
    T[:3, 3] = np.random.default_rng(seed).normal(size=3)
    return T


def test_inverse_of_a_pose_is_the_inverse_matrix():
    T = random_pose(1)
    np.testing.assert_allclose(invert_pose(T), np.linalg.inv(T), atol=1e-12)


def test_map_axes_follow_rep_103():
    forward, right, down = np.array([0, 0, 1, 0]), np.array([1, 0, 0, 0]), np.array([0, 1, 0, 0])
    np.testing.assert_array_equal(T_ROS_MAP @ forward, [1, 0, 0, 0])
    np.testing.assert_array_equal(T_ROS_MAP @ right, [0, -1, 0, 0])
    np.testing.assert_array_equal(T_ROS_MAP @ down, [0, 0, -1, 0])
    assert np.linalg.det(T_ROS_MAP) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(20))
def test_quaternions_go_there_and_back(seed):
    R = random_pose(seed)[:3, :3]
    q = quaternion_from_matrix(R)
    assert q[3] >= 0
    assert np.linalg.norm(q) == pytest.approx(1)
    np.testing.assert_allclose(matrix_from_quaternion(q), R, atol=1e-12)


def test_quarter_turn_about_z_is_xyzw():
    R = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(quaternion_from_matrix(R), [0, 0, 0.5**0.5, 0.5**0.5], atol=1e-12)


def test_backprojected_pixels_project_onto_their_centres():
    depth = np.random.default_rng(0).uniform(1, 9, (48, 64)).astype(np.float32)
    points = backproject(depth, K)
    np.testing.assert_array_equal(points[..., 2], depth)
    row, column = np.mgrid[0:48, 0:64]
    pixels = project(points.astype(np.float64), K)
    np.testing.assert_allclose(pixels[..., 0], column + 0.5, atol=1e-4)
    np.testing.assert_allclose(pixels[..., 1], row + 0.5, atol=1e-4)


def test_unknown_depth_and_points_behind_have_no_pixel():
    """Unknown depth stays unknown and points behind have no pixel."""
    depth = np.array([[np.nan, 1.0]], np.float32)
    assert np.isnan(backproject(depth, K)[0, 0]).all()
    assert np.isnan(project(np.array([0.0, 0.0, -1.0]), K)).all()
