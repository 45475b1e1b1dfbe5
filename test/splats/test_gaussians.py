"""Relative Gaussians become Gaussians in space, whose picture is the image they were made of."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.splats import Splats, exact_values, harmonics, psnr, render

from da3_ros.geometry.similarity import Similarity
from da3_ros.splats.gaussians import in_camera
from da3_ros.splats.harmonics import base_colour, basis, rotate
from da3_ros.splats.relative import CHANNELS, keep_visible
from da3_ros.synthetic import SyntheticCamera

SIZE = (160, 120)


@pytest.fixture(scope="module")
def frames():
    return list(SyntheticCamera(seed=5, size=SIZE, frames=6, rate_hz=1.5))


def as_splats(g):
    return Splats(g.means, g.scales, g.rotations, g.opacities, g.sh)


def placed(frame):
    values = exact_values(frame.depth, frame.image, frame.K)
    splats = keep_visible(values, frame.depth)
    T = frame.T_room_camera
    return in_camera(splats, frame.depth, frame.K).moved(Similarity(1.0, T[:3, :3], T[:3, 3]))


def test_gaussians_on_an_exact_surface_give_the_picture_back(frames):
    frame = frames[0]
    g = placed(frame)
    inside = (slice(6, -6), slice(8, -8))  # without the border, where there are none
    picture, opacity = render(as_splats(g), frame.T_room_camera, frame.K, SIZE)
    room = np.isfinite(frame.depth[inside])  # not the sky in its window
    assert opacity[inside][room].mean() > 0.98
    assert psnr(picture[inside], frame.image[inside], room) > 25


def test_another_camera_sees_the_same_room(frames):
    first, other = frames[0], frames[2]
    moved = np.linalg.norm(first.T_room_camera[:3, 3] - other.T_room_camera[:3, 3])
    assert moved > 0.1
    picture, opacity = render(as_splats(placed(first)), other.T_room_camera, other.K, SIZE)
    seen = opacity > 0.98
    assert seen.mean() > 0.5
    assert psnr(picture, other.image, seen) > 25
    assert psnr(np.roll(picture, 3, axis=1), other.image, seen) < 23  # it could fail


def test_lengths_follow_depth_and_angles_do_not(frames):
    frame = frames[0]
    splats = keep_visible(exact_values(frame.depth, frame.image, frame.K), frame.depth)
    one = in_camera(splats, frame.depth, frame.K)
    more = in_camera(splats, frame.depth * np.float32(2.5), frame.K)
    np.testing.assert_allclose(more.means, 2.5 * one.means, rtol=1e-6)
    np.testing.assert_allclose(more.scales, 2.5 * one.scales, rtol=1e-6)
    np.testing.assert_array_equal(more.rotations, one.rotations)


def test_a_moved_gaussian_has_the_moved_covariance_and_colours():
    rng = np.random.default_rng(0)
    S = Similarity(2.0, Rotation.random(random_state=1).as_matrix(), rng.normal(size=3))
    depth, K = (
        np.full((20, 30), 3.0, np.float32),
        np.array([[50.0, 0, 15], [0, 60, 10], [0, 0, 1]]),
    )
    values = rng.normal(size=(38, 20, 30)).astype(np.float16)
    values[CHANNELS["scale"]] = np.abs(values[CHANNELS["scale"]]) + 0.1
    values[CHANNELS["opacity"]] = 0.5
    before = in_camera(keep_visible(values, depth), depth, K)
    after = before.moved(S)

    def covariance(g):
        R = Rotation.from_quat(g.rotations[:, [1, 2, 3, 0]]).as_matrix()
        return (R * g.scales[:, None] ** 2) @ R.transpose(0, 2, 1)

    np.testing.assert_allclose(after.means, 2 * before.means @ S.R.T + S.t, atol=1e-9)
    np.testing.assert_allclose(covariance(after), 4 * S.R @ covariance(before) @ S.R.T, atol=1e-9)
    d = rng.normal(size=(len(before), 3))
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    seen = np.einsum("nci,ni->nc", before.sh, harmonics(d))
    np.testing.assert_allclose(
        np.einsum("nci,ni->nc", after.sh, harmonics(d @ S.R.T)), seen, atol=1e-6
    )


def test_harmonics_agree_with_another_table_of_them():
    d = np.random.default_rng(2).normal(size=(50, 3))
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    np.testing.assert_allclose(basis(d), harmonics(d), atol=1e-7)
    sh = np.random.default_rng(3).normal(size=(2, 3, 9))
    turned = rotate(rotate(sh, np.diag([1.0, -1, -1])), np.diag([1.0, -1, -1]))
    np.testing.assert_allclose(turned, sh, atol=1e-9)
    assert base_colour(np.zeros((1, 3, 9))) == pytest.approx(0.5)


@pytest.mark.parametrize("what", ["nan", "sky", "opacity", "stretch", "infinite", "rotation"])
def test_what_is_not_seen_is_not_kept(what):
    depth = np.full((64, 64), 2.0, np.float32)
    values = exact_values(depth, np.zeros((64, 64, 3)), np.diag([50.0, 50, 1]))
    spot = (slice(30, 34), slice(30, 34))
    if what in ("nan", "sky"):
        depth[spot] = {"nan": np.nan, "sky": np.inf}[what]
    else:
        name = "sh" if what == "infinite" else what
        value = {"opacity": 0.005, "stretch": -1.5, "sh": np.inf, "rotation": 0.0}[name]
        values[CHANNELS[name].start][spot] = value
    splats = keep_visible(values, depth)
    assert not splats.kept[spot].any()
    assert len(splats) == splats.kept.sum() == 60 * 60 - 16  # 2 of 64 pixels are border


def test_scales_that_are_too_small_for_16_bits_are_the_smallest():
    depth = np.full((64, 64), 2.0, np.float32)
    values = exact_values(depth, np.zeros((64, 64, 3)), np.diag([50.0, 50, 1]))
    values[CHANNELS["scale"], 30, 30] = 0
    splats = keep_visible(values, depth)
    assert splats.kept[30, 30]
    assert (splats.values[:, CHANNELS["scale"]] > 0).all()
