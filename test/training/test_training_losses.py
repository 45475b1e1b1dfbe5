"""Losses: zero at the truth, larger beside it; correspondences against other rays."""

import pytest
import torch
from support.training_toy import generator, pool

from da3_ros.network.camera import quaternion_from_matrix
from da3_ros.network.head import Dense
from training.data import Bucket, draw_batch
from training.losses import (
    Weights,
    attention_loss,
    field_of_view,
    flow_to_reference,
    patch_matches,
    ray_map,
    total_loss,
)
from training.model import Cameras, TrainingOutput


@pytest.fixture(scope="module")
def truth():
    return draw_batch(pool(), Bucket(3, 56, 70), 4, 0.3, generator(1))


def perfect(truth):
    """Predictions of a perfect network."""
    q = quaternion_from_matrix(truth.T_window_camera[..., :3, :3])
    cameras = Cameras(truth.T_window_camera[..., :3, 3], -q, field_of_view(truth.K, truth.size))
    known = truth.depth.isfinite()
    patches = truth.depth.log().unflatten(3, (5, 14)).unflatten(2, (4, 14)).transpose(3, 4)
    patches = patches.flatten(4)
    finite = patches.isfinite()
    mean = torch.where(finite, patches, 0).sum(-1) / finite.sum(-1).clamp_min(1)
    small = ray_map(truth.T_window_camera, truth.K, truth.size, (4, 5))
    probe = torch.cat((mean[..., None], small), -1).flatten(2, 3)
    moved, _ = flow_to_reference(truth.depth, truth.T_window_camera, truth.K)
    probe = torch.cat((probe, torch.nn.functional.pad(moved, (0, 0, 0, 0, 1, 0))), -1)
    ray = ray_map(truth.T_window_camera, truth.K, truth.size, (32, 40))
    depth = torch.where(known, truth.depth, 7.0)
    dense = Dense(depth, torch.full_like(depth, 2.0), ray, torch.full_like(ray[..., 0], 2.0))
    matches = patch_matches(truth.depth, truth.T_window_camera, truth.K)
    return TrainingOutput(cameras, [probe], [matches.clamp_min(1e-12).log()], dense)


def test_every_term_is_zero_at_the_truth(truth):
    _, terms = total_loss(perfect(truth), truth, Weights())
    assert {"depth", "gradient", "ray", "quaternion", "centre", "fov", "probe"} < terms.keys()
    for name, value in terms.items():
        assert float(value) == pytest.approx(0, abs=2e-5), name


@pytest.mark.parametrize("wrong", ["depth", "ray", "cameras", "probes", "attention"])
def test_an_error_anywhere_costs(truth, wrong):
    output = perfect(truth)
    if wrong in ("depth", "ray"):
        dense = output.dense._replace(**{wrong: getattr(output.dense, wrong) * 1.1})
        output = output._replace(dense=dense)
    elif wrong == "cameras":
        cameras = Cameras(*(c + 0.1 for c in output.cameras))
        output = output._replace(cameras=cameras)
    else:
        output = output._replace(**{wrong: [0.5 * x for x in getattr(output, wrong)]})
    assert float(total_loss(output, truth, Weights())[0]) > 5e-3


def test_confidence_loss_is_least_where_it_matches_the_error(truth):
    output = perfect(truth)
    off = output.dense._replace(depth=output.dense.depth * 1.2)
    sizes = torch.tensor([1.05, 0.2 / 0.1823, 2.0])  # 0.2 / error is the best
    losses = []
    for c in sizes:
        one = off._replace(confidence=torch.full_like(off.confidence, float(c)))
        terms = total_loss(output._replace(dense=one), truth, Weights(trust=1.0))[1]
        losses.append(float(terms["depth"]))
    assert losses[1] < losses[0]
    assert losses[1] < losses[2]


def test_depth_times_ray_plus_origin_is_one_point_for_all_views(truth):
    """Rays and depth of a view give points that another view sees at its own depth."""
    H, W = truth.size
    ray = ray_map(truth.T_window_camera, truth.K, truth.size, (H, W))
    points = torch.where(truth.depth.isfinite(), truth.depth, 1)[..., None] * ray[..., :3]
    points = points + ray[..., 3:]  # [B, N, H, W, 3] in the reference frame
    from_first = points[:, 1].flatten(1, 2)  # seen from the reference camera itself
    pixel = from_first @ truth.K[:, 0].mT
    uv = pixel[..., :2] / pixel[..., 2:]
    inside = (uv >= 0).all(-1) & (uv[..., 0] < W) & (uv[..., 1] < H) & (pixel[..., 2] > 0)
    at = uv[..., 1].clamp(0, H - 1).long() * W + uv[..., 0].clamp(0, W - 1).long()
    seen = truth.depth[:, 0].flatten(1).gather(1, at)
    agree = ((seen / from_first[..., 2] - 1).abs() < 0.05)[inside]
    assert agree.float().mean() > 0.6


def test_matches_point_to_where_the_surface_is(truth):
    """Reproject patch middles one by one; the matched patches' middle of mass must lie there."""
    matches = patch_matches(truth.depth, truth.T_window_camera, truth.K)
    N, P, h, w = 3, 20, 4, 5
    rows = torch.arange(P) // w + 0.5
    columns = torch.arange(P) % w + 0.5
    checked = 0
    for b in range(2):
        for i in range(N):
            for p in range(P):
                r, c = 14 * (p // w) + 7, 14 * (p % w) + 7
                d = truth.depth[b, i, r, c]
                if not torch.isfinite(d):
                    continue
                ray = torch.linalg.inv(truth.K[b, i]) @ torch.tensor([c + 0.5, r + 0.5, 1.0])
                point = truth.T_window_camera[b, i] @ torch.cat((ray * d, torch.ones(1)))
                for j in range(N):
                    target = matches[b, i * P + p, j * P : (j + 1) * P]
                    if target.sum() == 0:
                        continue
                    there = (torch.linalg.inv(truth.T_window_camera[b, j]) @ point)[:3]
                    u, v, z = truth.K[b, j] @ there
                    place = torch.stack((u, v)) / z / 14
                    mass = target / target.sum()
                    found = torch.stack(((mass * columns).sum(), (mass * rows).sum()))
                    edge = torch.tensor([w - 0.5, h - 0.5])
                    assert torch.allclose(found, place.clamp_min(0.5).minimum(edge), atol=1e-3)
                    assert i != j
                    checked += 1
    assert checked > 50


def test_a_view_matches_itself_onto_the_same_patches():
    batch = draw_batch(pool(), Bucket(2, 56, 70), 2, 0.3, generator())
    twice = [
        x[:, :1].repeat(1, 2, *[1] * (x.ndim - 2)) for x in (batch.depth, batch.T_window_camera)
    ]
    matches = patch_matches(*twice, batch.K)
    across = matches[:, :20, 20:]
    known = batch.depth[:, 0, 7::14, 7::14].isfinite().flatten(1)
    # The middle of a patch is half a pixel from the point that stands for it.
    assert (torch.diagonal(across, dim1=1, dim2=2)[known] > 0.9).all()
    assert (matches[:, :20, :20] == 0).all()


def test_what_is_hidden_matches_nothing(truth):
    depth = truth.depth.clone()
    depth[:, 1:] = 0.05  # a wall right before the other views
    matches = patch_matches(depth, truth.T_window_camera, truth.K)
    assert (matches[:, :20] == 0).all()


def test_attention_within_a_frame_is_left_alone(truth):
    matches = patch_matches(truth.depth, truth.T_window_camera, truth.K)
    logits = torch.randn(4, 60, 60)
    other = logits.clone()
    for i in range(3):
        other[:, 20 * i : 20 * (i + 1), 20 * i : 20 * (i + 1)] += 5
    a, b = (attention_loss([x], matches, 3) for x in (logits, other))
    assert torch.allclose(a, b)
    assert a > 0.1
