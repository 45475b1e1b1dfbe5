"""Windows that training sees: truth that agrees with itself, whatever was done to the pictures."""

import numpy as np
import pytest
import torch
from support.training_toy import generator, pool

from training.data import (
    FIRST_TRAINING_SEED,
    Bucket,
    conditioning_extrinsics,
    crop,
    draw_batch,
    draw_clips,
    draw_frames,
    is_narrow,
    make_batch,
    mirror,
    noisy_poses,
    scene_scale,
    take,
)


def draw(windows, views, low, generator):
    """Clips and frames of windows; every clip has its turn."""
    clip = torch.arange(windows) % len(pool())
    return clip, draw_frames(pool(), clip, views, low, generator)


def reprojection_error(images, depth, T, K):
    """Mean colour difference of the points of view 0 that view 1 sees, and how many there are.

    Written with NumPy alone, from the definitions.
    """
    images, depth, T, K = (x.double().numpy() for x in (images, depth, T, K))
    H, W = depth.shape[1:]
    v, u = np.mgrid[:H, :W] + 0.5
    rays = np.linalg.inv(K[0]) @ np.stack([u, v, np.ones_like(u)]).reshape(3, -1)
    z = depth[0].reshape(-1)
    known = np.isfinite(z)
    points = np.vstack([rays[:, known] * z[known], np.ones(known.sum())])
    there = (np.linalg.inv(T[1]) @ T[0] @ points)[:3]
    pixel = K[1] @ there
    x, y = pixel[:2] / np.where(pixel[2] > 0, pixel[2], np.nan)
    ok = (x >= 0) & (x < W) & (y >= 0) & (y < H)
    x, y, zs = x[ok].astype(int), y[ok].astype(int), there[2, ok]
    agrees = np.abs(depth[1, y, x] - zs) < 0.02 * zs
    colour = images[0].reshape(-1, 3)[known][ok]
    difference = np.abs(images[1, y, x] - colour).mean(1)[agrees]
    return difference.mean(), agrees.sum() / known.sum()


@pytest.mark.parametrize("flip", [False, True])
def test_reprojection_holds_after_mirroring_and_cropping(flip):
    drawn = draw(8, 2, 0.6, generator(3))
    window = crop(*take(pool(), *drawn), 42, 56)
    window = mirror(*window, torch.full((8,), flip))
    for one in zip(*window, strict=True):
        colour, seen = reprojection_error(*one)
        assert seen > 0.4
        assert colour < 0.1


def test_mirroring_the_picture_without_the_pose_is_noticed():
    drawn = draw(16, 2, 0.5, generator(3))
    images, depth, T, K = take(pool(), *drawn)
    right = mirror(images, depth, T, K, torch.ones(16, dtype=torch.bool))
    wrong = (right[0], right[1], T, right[3])
    seen = [[reprojection_error(*w)[1] for w in zip(*x, strict=True)] for x in (right, wrong)]
    assert np.mean(seen[1]) < np.mean(seen[0]) - 0.1


def test_mirrored_poses_are_rotations():
    drawn = draw(2, 3, 0.3, generator())
    T = mirror(*take(pool(), *drawn), torch.tensor([True, False]))[2]
    assert torch.allclose(torch.linalg.det(T[..., :3, :3]), torch.ones(2, 3), atol=1e-5)


def test_views_share_what_was_asked_for():
    clip, frames = draw(64, 3, 0.3, generator())
    assert all(len(set(row)) == 3 for row in frames.tolist())
    share = pool().share[clip[:, None, None], frames[:, :, None], frames[:, None]]
    mutual = torch.minimum(share, share.mT) - torch.eye(3)
    best = mutual.amax(-1).amin(-1)  # of the loneliest view
    assert (best >= 0.3).float().mean() > 0.8


def test_views_that_stand_apart_are_preferred():
    clip = torch.arange(4).repeat(64)

    def mean_distance(parallax):
        frames = draw_frames(pool(), clip, 2, 0.2, generator(), parallax=parallax)
        return pool().apart[clip, frames[:, 0], frames[:, 1]].mean()

    assert mean_distance(parallax=True) > 1.1 * mean_distance(parallax=False)


def test_shared_view_with_oneself_is_whole():
    own = torch.diagonal(pool().share, dim1=1, dim2=2)
    assert torch.allclose(own, torch.ones_like(own))


def test_truth_is_relative_to_the_reference_in_its_unit():
    batch = draw_batch(pool(), Bucket(3, 56, 70), 4, 0.3, generator())
    assert torch.allclose(batch.T_window_camera[:, 0], torch.eye(4).expand(4, 4, 4), atol=1e-5)
    unit = scene_scale(batch.depth[:, 0], batch.K[:, 0])
    assert torch.allclose(unit, torch.ones(4), atol=1e-3)
    assert (batch.K[..., 0, 2] == 35).all()


def test_the_same_generator_draws_the_same_batch():
    a, b = (draw_batch(pool(), Bucket(2, 56, 70), 4, 0.3, generator(5)) for _ in range(2))
    assert torch.equal(a.images, b.images)
    assert torch.equal(a.T_window_camera, b.T_window_camera)


def test_training_rooms_are_wide_and_held_out_ones_narrow():
    """Training rooms are wide and held out ones narrow when asked."""
    assert not any(is_narrow(c.room) for c in draw_clips(FIRST_TRAINING_SEED, 3, clips=1))
    narrow = draw_clips(0, 1, narrow=True, clips=1)
    assert all(is_narrow(c.room) for c in narrow)
    assert all(c.room.seed < FIRST_TRAINING_SEED for c in narrow)


def test_buckets_hold_about_equally_many_patches():
    for bucket in (Bucket(2, 98, 126), Bucket(6, 126, 168), Bucket(8, 168, 224)):
        patches = bucket.windows(4096) * bucket.views * bucket.height * bucket.width / 196
        assert patches == pytest.approx(4096, rel=0.35)
    with pytest.raises(ValueError, match="multiple of 14"):
        Bucket(2, 100, 126)


def test_noisy_poses_keep_the_reference_and_stay_near():
    batch = draw_batch(pool(), Bucket(3, 56, 70), 4, 0.3, generator())
    exact, noisy = noisy_poses(batch, 0.0, 0.0, 1), noisy_poses(batch, 2.0, 0.05, 1)
    assert torch.equal(exact[:, 0], noisy[:, 0])
    turn = torch.linalg.matrix_norm(exact[..., :3, :3] - noisy[..., :3, :3])
    assert 0 < turn.max() < 0.2
    off = (exact - noisy)[..., :3, 3].norm(dim=-1)
    assert (off <= 0.2 * exact[..., :3, 3].norm(dim=-1) + 1e-6).all()


def test_conditioning_divides_by_the_lower_median_distance():
    T = torch.eye(4).repeat(1, 4, 1, 1)
    T[0, :, 0, 3] = torch.tensor([1.0, 1.5, 3.0, 2.0])  # 0, 0.5, 2, 1 from the first
    centres = -conditioning_extrinsics(T)[0, :, 0, 3]
    assert torch.allclose(centres, torch.tensor([0.0, 1.0, 4.0, 2.0]))


def test_sky_does_not_disturb_the_unit():
    depth = torch.full((1, 2, 4, 4), 2.0)
    depth[..., 0, :] = torch.inf
    K = torch.tensor([[4.0, 0, 2], [0, 4, 2], [0, 0, 1]]).expand(1, 2, 3, 3)
    batch = make_batch(torch.rand(1, 2, 4, 4, 3), depth, torch.eye(4).expand(1, 2, 4, 4), K)
    assert 2.0 < float(batch.scale_m) < 2.3
    assert torch.isinf(batch.depth[0, 0, 0]).all()
