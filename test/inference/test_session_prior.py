"""A session that is given poses answers as the whole network does."""

import dataclasses

import numpy as np
import pytest
import torch

from da3_ros.config import InferenceConfig
from da3_ros.inference import InferenceSession
from da3_ros.inference.preprocess import normalize
from da3_ros.inference.session import camera_to_window
from da3_ros.network.conditioning import normalize_poses
from da3_ros.types import View, Window

K = np.array([[60.0, 0, 42], [0, 62.0, 28], [0, 0, 1]])


def poses(count):
    rng = np.random.default_rng(0)
    w2c = np.zeros((count, 3, 4))
    for i in range(count):
        w2c[i, :, :3] = np.linalg.qr(rng.standard_normal((3, 3)))[0]
        w2c[i, :, :3] *= np.sign(np.linalg.det(w2c[i, :, :3]))
        w2c[i, :, 3] = rng.standard_normal(3) + 1000.0  # far from odometry's origin
    return w2c


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(1)
    images = rng.integers(0, 255, (4, 56, 84, 3), np.uint8)
    views = tuple(View(i, i, image, K) for i, image in enumerate(images))
    config = InferenceConfig(
        model="da3-tiny", checkpoint="random", device="cpu", mixed_precision="off"
    )
    return InferenceSession(config), images, views


def test_given_poses_pass_the_encoder_as_in_the_reference(case):
    session, images, views = case
    w2c = poses(4)
    prior = camera_to_window(w2c)
    plain = session.infer(Window(0, views, 1))
    given = session.infer(Window(1, views, 1, T_prior_camera=prior))
    assert np.abs(given.depth / plain.depth - 1).max() > 1e-3
    with torch.inference_mode():
        out = session.loaded.module(
            normalize(torch.from_numpy(images))[None],
            normalize_poses(torch.from_numpy(prior)[None]).extrinsics,
            torch.from_numpy(K).float().expand(1, 4, 3, 3),
            ref_view="first",
        )
    np.testing.assert_allclose(given.depth, out.depth[0].numpy(), rtol=1e-4)
    expected = camera_to_window(out.extrinsics[0].double().numpy())
    np.testing.assert_allclose(given.T_window_camera, expected, atol=1e-4)


def test_poses_without_intrinsics_are_refused(case):
    session, _, views = case
    bare = tuple(dataclasses.replace(view, K=None) for view in views)
    with pytest.raises(ValueError, match="intrinsics of every view"):
        session.infer(Window(0, bare, 1, T_prior_camera=np.tile(np.eye(4), (4, 1, 1))))


def test_without_poses_only_their_encoder_is_dropped(case):
    session, _, views = case
    bare = InferenceSession(session.config, poses=False)
    assert not hasattr(bare.loaded.module, "cam_enc")
    window = Window(0, views, 1)
    np.testing.assert_allclose(bare.infer(window).depth, session.infer(window).depth, rtol=1e-6)
    with pytest.raises(ValueError, match="windows cannot have poses"):
        bare.infer(dataclasses.replace(window, T_prior_camera=camera_to_window(poses(4))))


def test_cameras_in_turns_keep_each_others_prefixes(case):
    session, _, views = case
    shared = InferenceSession(session.config, streams=2)
    shared.memory.fit((84, 56), 2, 1)
    for pair in (views[:2], views[2:]):
        shared.infer(Window(0, pair, 1))
    assert all(shared.feature_cache.get(view.image) is not None for view in views)
