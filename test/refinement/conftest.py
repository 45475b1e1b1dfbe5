"""Bundles of a made-up scene: cameras that look at a cloud, with exact or noisy observations."""

import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.refinement.bundle import NETWORK, Bundle, Observations, PosePriors

K = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])


def made(seed=0, views=6, points=80, pixel=0.3, depth=0.1, start=0.02, **values):
    """A bundle whose first view is held, and its true poses [V, 4, 4] and points [N, 3]."""
    rng = np.random.default_rng(seed)
    T = np.tile(np.eye(4), (views, 1, 1))
    T[:, 0, 3] = np.linspace(0, 1, views)
    T[:, 1:3, 3] = rng.normal(0, 0.05, (views, 2))
    T[:, :3, :3] = Rotation.from_rotvec(rng.normal(0, 0.1, (views, 3))).as_matrix()
    X = np.column_stack(
        (rng.uniform(-2, 2, points), rng.uniform(-1.5, 1.5, points), rng.uniform(2, 6, points))
    )
    x = np.einsum("vji,vnj->vni", T[:, :3, :3], X[None] - T[:, None, :3, 3])
    uv = np.einsum("ij,vnj->vni", K, x)
    uv = uv[..., :2] / uv[..., 2:]
    inside = (uv > 0).all(-1) & (uv < [640, 480]).all(-1)
    view, point = np.nonzero(inside & (inside.sum(0) >= 2))
    order = np.lexsort((view, point))
    view, point = view[order], point[order]
    ids, point = np.unique(point, return_inverse=True)
    X = X[ids]
    count = len(view)
    observations = Observations(
        view, point, uv[view, ids[point]] + rng.normal(0, pixel, (count, 2)),
        np.full(count, max(pixel, 0.1)),
        np.log(x[view, ids[point], 2]) + rng.normal(0, depth, count), np.full(count, 0.3),
    )  # fmt: skip
    free = np.ones(views, bool)
    free[0] = False
    moved = T.copy()
    moved[1:, :3, 3] += rng.normal(0, start, (views - 1, 3))
    turn = Rotation.from_rotvec(rng.normal(0, start / 3, (views - 1, 3))).as_matrix()
    moved[1:, :3, :3] = moved[1:, :3, :3] @ turn
    steps = np.array([invert_pose(a) @ b for a, b in itertools.pairwise(T)])
    pairs = views - 1
    priors = PosePriors.isotropic(
        np.arange(pairs), np.arange(1, views), steps, np.full(pairs, 0.05), np.full(pairs, 0.1),
        NETWORK,
    )  # fmt: skip
    fields = {
        "T_local_camera": moved, "log_scale": np.zeros(views), "K": np.tile(K, (views, 1, 1)),
        "points": X + rng.normal(0, start, X.shape), "free": free, "observations": observations,
        "scale_prior": np.zeros(views), "scale_sigma": np.full(views, 0.1), "poses": priors,
    }  # fmt: skip
    return Bundle(**{**fields, **values}), T, X


@pytest.fixture(name="made")
def _made():
    return made
