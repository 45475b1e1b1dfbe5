"""Keyframes of a camera that goes along a wall, whose points have descriptors of their own."""

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.refinement.features import Features
from da3_ros.refinement.map_bundle import MapView

SHAPE = (240, 320)
K = np.array([[260.0, 0, 160], [0, 260, 120], [0, 0, 1]])


def wall(seed, count=1500):
    """Points on a wavy wall along x, at z = 3, and their descriptors."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([-4, -1.5, 2.5], [10, 1.5, 3.5], (count, 3))
    return points, rng.integers(0, 120, (count, 128), dtype=np.uint8)


def there_and_back(count=24):
    """Poses of a camera that goes 5 m along the wall, turns a little, and comes back."""
    out = []
    for k in range(count):
        share = 2 * min(k, count - 1 - k) / (count - 1)
        T = np.eye(4)
        T[:3, :3] = Rotation.from_euler(
            "yx", [6 * np.sin(k), 3 * np.cos(2 * k)], degrees=True
        ).as_matrix()
        T[:3, 3] = 5 * share, 0.15 * np.sin(1.3 * k), 0.2 * np.sin(k)
        out.append(T)
    return np.array(out)


def drifted(T, scale=0.2, turn_deg=4.0):
    """Poses that drift along the way: lengths grow, and the camera turns."""
    out = [T[0]]
    for k in range(1, len(T)):
        step = np.linalg.inv(T[k - 1]) @ T[k]
        share = k / (len(T) - 1)
        step[:3, 3] *= 1 + scale * (share - 0.5)
        turn = Rotation.from_euler("y", turn_deg / len(T), degrees=True).as_matrix()
        step[:3, :3] = turn @ step[:3, :3]
        out.append(out[-1] @ step)
    return np.array(out)


def seen(T, points, descriptors, rng, noise=0.2, wrong=0.0, K=K):
    """Features of a view, and the logarithms of their depth."""
    x = (points - T[:3, 3]) @ T[:3, :3]
    ahead = np.flatnonzero(x[:, 2] > 0.1)
    at = (x[ahead] / x[ahead, 2:]) @ K.T
    inside = (at[:, 0] > 0) & (at[:, 1] > 0) & (at[:, 0] < SHAPE[1]) & (at[:, 1] < SHAPE[0])
    some, pixel = ahead[inside][:300], at[inside][:300, :2]
    d = np.clip(descriptors[some].astype(int) + rng.integers(-3, 4, (len(some), 128)), 0, 255)
    swapped = rng.permutation(np.flatnonzero(rng.random(len(some)) < wrong))
    d[np.sort(swapped)] = d[swapped]
    features = Features(SHAPE, pixel + rng.normal(0, noise, pixel.shape), d.astype(np.uint8))
    return features, np.log(x[some, 2])


def map_views(true, start, *, seed=0, wrong=0.0, **values):
    rng = np.random.default_rng(seed)
    points, descriptors = wall(seed)
    out = []
    for k, T in enumerate(true):
        features, log_depth = seen(T, points, descriptors, rng, wrong=wrong)
        out.append(MapView(k, "", features, K, start[k], log_depth, **values))
    return out
