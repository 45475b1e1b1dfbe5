"""The training network computes what the shipped network computes, and reads its attention."""

import pytest
import torch
import torch.nn.functional as F
from support.training_toy import SPEC, generator, network, pool

from da3_ros.network import build_network
from training.data import Bucket, conditioning_extrinsics, draw_batch, noisy_poses
from training.model import TrainingNetwork, position_table


@pytest.fixture(scope="module")
def batch():
    return draw_batch(pool(), Bucket(3, 56, 70), 2, 0.3, generator())


@pytest.mark.parametrize("given", [False, True])
def test_training_forward_agrees_with_the_network(batch, given):
    net = network()
    model = TrainingNetwork(net).eval()
    poses = ()
    if given:
        poses = (conditioning_extrinsics(noisy_poses(batch, 1.0, 0.05, 0)), batch.K)
    with torch.no_grad():
        output = model(batch.images, *poses, rays=True)
        out = net(batch.images, *poses, ref_view="first", rays=True)
    assert torch.allclose(output.dense.depth, out.depth)
    assert torch.allclose(output.dense.confidence, out.confidence)
    assert torch.allclose(output.dense.ray, out.ray)
    R, t = out.extrinsics[..., :3], out.extrinsics[..., 3]
    assert torch.allclose(output.cameras.centre, -(R.mT @ t[..., None])[..., 0], atol=1e-6)
    f = batch.images.shape[-2] / 2 / (output.cameras.fov[..., 0] / 2).tan()
    assert torch.allclose(f, out.intrinsics[..., 1, 1], rtol=1e-5)


def test_recorded_attention_is_what_the_network_attends_with(batch, monkeypatch):
    """With values that name their token, fused attention puts out its own weights."""
    net = network()
    for p in net.parameters():  # norms and layers that do something
        p.data.add_(0.05 * torch.randn_like(p))
    model = TrainingNetwork(net).train()
    real, weights = F.scaled_dot_product_attention, []
    B, N, T = 2, 3, 21

    def spy(q, k, v):
        if q.shape[2] == N * T:  # across frames
            names = torch.eye(N * T).expand(*q.shape[:2], -1, -1)
            weights.append(real(q, k, names)[:, model.recorder.head])
        return real(q, k, v)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    output = model(batch.images, dense=False)
    assert len(output.attention) == len(weights) == 2  # blocks 3 and 5
    patches = torch.arange(N * T) % T > 0
    for logits, softmax in zip(output.attention, weights, strict=True):
        expected = softmax[:, patches][:, :, patches]
        expected = expected / expected.sum(-1, keepdim=True)
        assert logits.shape == (B, 60, 60)
        assert torch.allclose(logits.softmax(-1), expected, atol=1e-6)


def test_attention_carries_gradients_to_queries_and_keys(batch):
    net = network()
    output = TrainingNetwork(net).train()(batch.images, dense=False)
    output.attention[-1].log_softmax(-1)[:, 0, 30].sum().backward()
    grad = net.backbone.pretrained.blocks[5].attn.qkv.weight.grad
    q, k, v = grad.chunk(3)
    assert q.abs().max() > 0
    assert k.abs().max() > 0
    assert v.abs().max() == 0


def test_nothing_is_recorded_outside_training(batch):
    model = TrainingNetwork(network()).eval()
    with torch.no_grad():
        assert model(batch.images, dense=False).attention == []
        model.network(batch.images)
    assert model.recorder.take() == []


def test_last_layers_stay_in_float32_under_autocast(batch):
    model = TrainingNetwork(network()).train()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(batch.images, rays=True)
        assert torch.is_autocast_enabled("cpu")
    assert output.dense.depth.dtype == output.dense.ray.dtype == torch.float32
    assert all(c.dtype == torch.float32 for c in output.cameras)


def test_initial_cameras_are_sensible_and_positions_frozen(batch):
    net = network()
    output = TrainingNetwork(net).eval()(batch.images, dense=False)
    identity = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert (output.cameras.quaternion - identity).abs().max() < 0.5
    assert (output.cameras.fov - 1.1).abs().max() < 0.5
    assert not net.backbone.pretrained.pos_embed.requires_grad


def test_position_table_is_smooth_at_every_size_trained_on():
    vit = network().backbone.pretrained
    vit.pos_embed.data.copy_(position_table(vit, 0.5))
    assert vit.pos_embed[:, 1:].pow(2).mean().sqrt() == pytest.approx(0.5, rel=0.05)
    fine = vit.position_embedding(37, 37)[0, 1:].unflatten(0, (37, 37))
    for h, w in ((7, 9), (9, 12), (12, 16)):
        coarse = vit.position_embedding(h, w)[0, 1:].unflatten(0, (h, w))
        again = F.interpolate(fine.permute(2, 0, 1)[None], (h, w), mode="bilinear")[0]
        # The network's resize is off by 0.1 patches; the crest of a wave is 0.7 high.
        assert (coarse.permute(2, 0, 1) - again).abs().max() < 0.2


def test_tiny_is_the_size_that_was_planned():
    total = sum(p.numel() for p in build_network("da3-tiny").parameters())
    assert 6e6 < total < 8e6
    assert SPEC.width % 64 == 0
