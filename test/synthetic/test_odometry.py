"""Odometry of a rendered walk: exact without noise, a random walk with it."""

import numpy as np
import pytest

from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.odometry import DriftingOdometry, base_below


def test_odometry_without_noise_is_the_truth_of_a_level_base():
    """Odometry without noise is the truth seen from a level base on the floor."""
    walk = SyntheticCamera(5, (32, 24), frames=20, walk="loop").T_room_camera
    odometry = DriftingOdometry(walk[0])
    base = base_below(walk[0])
    np.testing.assert_allclose(base[2], [0, 0, 1, 0])
    for T in walk:
        T_odom_base = odometry.move(T, 0.1)
        np.testing.assert_allclose(base @ odometry.T_odom_camera, T, atol=1e-12)
        np.testing.assert_allclose(T_odom_base[2, :3], [0, 0, 1], atol=1e-9)  # stays level


@pytest.mark.slow
def test_drift_grows_with_the_root_of_the_distance():
    """Drift grows with the root of the way and repeats with its seed."""

    def end(seed, steps):
        odometry = DriftingOdometry(np.eye(4), noise_m=0.1, seed=seed)
        pose = np.eye(4)
        for _ in range(steps):
            pose[0, 3] += 0.1
            odometry.move(pose, 0.1)
        return odometry.T_odom_camera[0, 3] - pose[0, 3]

    short = np.std([end(seed, 10) for seed in range(200)])
    long = np.std([end(seed, 90) for seed in range(200)])
    assert short == pytest.approx(0.1, rel=0.2)
    assert long / short == pytest.approx(3.0, rel=0.2)
    assert end(3, 10) == end(3, 10)
