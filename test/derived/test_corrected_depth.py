"""Depth of a frame, corrected by what was measured of a keyframe beside it."""

import dataclasses
import functools

import cv2
import numpy as np
import pytest

from da3_ros.derived.depth_correction import CorrectedKeyframe, corrected_depth
from da3_ros.derived.plane_sweep import SweepView, grey_of, mismatch
from da3_ros.synthetic import SyntheticCamera

SIZE = (168, 126)


@functools.cache
def pair():
    """A frame and a keyframe, with depth that errs by what is seen, not by the image."""
    frames = [SyntheticCamera(seed=91, size=SIZE, walk="loop", frames=60)[k] for k in (20, 26)]
    views = [SweepView(grey_of(f.image), f.K, f.T_room_camera) for f in frames]
    return frames, views, [f.depth * wrong(f) for f in frames]


def wrong(frame):
    """A smooth factor that depends on the place in the room: the same in both images."""
    v, u = np.mgrid[0 : SIZE[1], 0 : SIZE[0]] + 0.5
    rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(frame.K).T
    depth = np.where(np.isfinite(frame.depth), frame.depth, 5.0)
    at = (rays * depth[..., None]) @ frame.T_room_camera[:3, :3].T + frame.T_room_camera[:3, 3]
    return np.exp(0.1 * np.sin(1.5 * at[..., 0] + 1) + 0.05).astype(np.float32)


def keyframe(factor=1.0):
    frames, views, depth = pair()
    return CorrectedKeyframe(views[0], depth[0], (factor * frames[0].depth).astype(np.float32))


def error(depth, frame):
    known = np.isfinite(frame.depth)
    return np.abs(np.log(depth / frame.depth))[known].mean()


def test_a_frame_gets_the_keyframes_correction():
    frames, views, depth = pair()
    out = corrected_depth(views[1], depth[1], keyframe())
    assert out is not None
    assert error(out, frames[1]) < error(depth[1], frames[1]) / 2
    known = np.isfinite(depth[1])
    np.testing.assert_array_equal(np.isfinite(out), known)
    np.testing.assert_array_equal(out[~known], depth[1][~known])


def test_lengths_of_frame_and_keyframe_have_one_unit():
    _, views, depth = pair()

    def scaled(view):
        T = view.T_frame_camera.copy()
        T[:3, 3] *= 4
        return dataclasses.replace(view, T_frame_camera=T)

    one = keyframe()
    far = CorrectedKeyframe(scaled(one.view), 4 * one.network, 4 * one.depth)
    out = corrected_depth(scaled(views[1]), 4 * depth[1], far)
    np.testing.assert_allclose(out / 4, corrected_depth(views[1], depth[1], one), rtol=1e-5)


def test_a_correction_with_which_the_images_agree_less_is_refused():
    frames, views, _ = pair()
    exact = np.where(np.isfinite(frames[1].depth), frames[1].depth, np.nan).astype(np.float32)
    one = CorrectedKeyframe(views[0], frames[0].depth, 1.1 * frames[0].depth)
    assert corrected_depth(views[1], exact, one) is None
    same = CorrectedKeyframe(views[0], frames[0].depth, frames[0].depth)
    assert corrected_depth(views[1], exact, same) is None


def test_a_keyframe_that_shows_something_else_says_nothing():
    _, views, depth = pair()
    T = views[1].T_frame_camera.copy()
    T[:3, :3] = T[:3, :3] @ cv2.Rodrigues(np.array([0.0, np.pi, 0.0]))[0]
    away = dataclasses.replace(views[1], T_frame_camera=T)
    assert corrected_depth(away, depth[1], keyframe()) is None
    assert corrected_depth(views[1], np.full_like(depth[1], np.nan), keyframe()) is None


def test_another_surface_of_the_keyframe_corrects_nothing():
    """What hides the room from the keyframe has its own correction."""
    frames, views, depth = pair()
    one = keyframe()
    network, measured = one.network.copy(), one.depth.copy()
    network[40:90, 50:120] *= 0.6
    measured[40:90, 50:120] *= 0.6 * 1.3
    hidden = CorrectedKeyframe(one.view, network, measured)
    out = corrected_depth(views[1], depth[1], hidden)
    assert out is not None
    usual = corrected_depth(views[1], depth[1], one)
    assert error(out, frames[1]) < 1.6 * error(usual, frames[1])


def test_a_keyframe_that_shows_little_of_a_frame_corrects_nothing():
    _, views, depth = pair()
    one, corrected = keyframe(), []
    for columns in (20, 80):
        network = np.full_like(one.network, np.nan)
        network[:, 80 : 80 + columns] = one.network[:, 80 : 80 + columns]
        few = CorrectedKeyframe(one.view, network, one.depth)
        corrected.append(corrected_depth(views[1], depth[1], few) is not None)
    assert corrected == [False, True]


def test_the_true_depth_has_the_least_mismatch():
    frames, views, _ = pair()
    depth = np.where(np.isfinite(frames[1].depth), frames[1].depth, np.nan)
    off = mismatch(views[1], views[0], np.stack([0.9 * depth, depth, 1.1 * depth]))
    assert np.argmin(off) == 1
    assert off[1] < 0.7 * min(off[0], off[2])


def test_views_of_several_sizes_are_refused():
    _, views, depth = pair()
    small = dataclasses.replace(views[0], grey=views[0].grey[:-14])
    with pytest.raises(ValueError, match="one size"):
        mismatch(views[1], small, depth[1][None])
