"""Stated calibrations that keyframes contradict, on points with descriptors of their own."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.wall_views import K, drifted, map_views

from da3_ros.geometry.lens import Lens
from da3_ros.pipeline.window_refinement import described
from da3_ros.refinement.features import Features
from da3_ros.refinement.lens_calibration import FEWEST_VIEWS, measured_lens
from da3_ros.refinement.map_bundle import MapMatches

COUNT = 16


def turning(count=COUNT, turn_deg=12.0):
    """Poses of a camera that goes along the wall, and looks left, right, up and down."""
    out = []
    for k in range(count):
        T = np.eye(4)
        angles = [turn_deg * np.sin(1.1 * k), 0.6 * turn_deg * np.cos(1.7 * k), turn_deg * k / 9]
        T[:3, :3] = Rotation.from_euler("yxz", angles, degrees=True).as_matrix()
        T[:3, 3] = 2.5 * k / count, 0.3 * np.sin(1.3 * k), 0.4 * np.sin(0.9 * k)
        out.append(T)
    return np.array(out)


def taken_by(lens, views):
    """Views as the lens shows them, whose K says that there is none."""
    out = []
    for view in views:
        a = (view.features.pixel - K[:2, 2]) / np.diag(K)[:2]
        pixel = lens.seen(a) * np.diag(K)[:2] + K[:2, 2]
        out.append(
            dataclasses.replace(view, features=dataclasses.replace(view.features, pixel=pixel))
        )
    return out


def keyframes(lens=None, poses=None, start=None, **values):
    true = turning() if poses is None else poses
    views = map_views(true, drifted(true, 0.05, 1.0) if start is None else start, **values)
    return views if lens is None else taken_by(lens, views)


def lens_of(views):
    matches = MapMatches()
    matches.extend(views)
    return measured_lens(views, matches)


@pytest.mark.parametrize(
    "lens",
    long_after(3, [
        Lens(np.log(0.96), 0.012, -0.008, -0.08, 0.02), Lens(focal=np.log(1 / 1.05)),
        Lens(k1=-0.1), Lens(focal=np.log(1.1)), Lens(k1=0.08),
    ]),
    ids=("all", "long", "barrel", "short", "pincushion"),
)  # fmt: skip
def test_a_lens_that_is_not_as_stated_is_measured(lens):
    found = lens_of(keyframes(lens))
    assert found is not None
    assert found.lens.focal == pytest.approx(lens.focal, abs=0.008)
    assert not found.lens.is_radial
    assert described(found).startswith("focal length")
    assert found.lens.k1 == pytest.approx(lens.k1, abs=0.03)
    assert found.lens.centre_x == pytest.approx(lens.centre_x, abs=0.01)
    assert abs(found.lens.focal - lens.focal) < 4 * found.focal_sigma
    assert found.error_px < 0.9 * found.error_before_px
    assert found.views == COUNT


def test_wrong_matches_do_not_bend_the_lens():
    lens = Lens(focal=np.log(1.06), k1=-0.05)
    found = lens_of(keyframes(lens, wrong=0.1))
    assert found.lens.focal == pytest.approx(lens.focal, abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_right_calibration_is_left_alone(seed):
    assert lens_of(keyframes(seed=seed)) is None


def test_a_lens_that_no_track_determines_is_left_alone():
    """Sideways without turning, a shorter lens is a nearer wall."""
    lens = Lens(focal=np.log(1.08))
    assert lens_of(keyframes(lens)) is not None
    poses = turning(turn_deg=0.0)
    poses[:, 1:3, 3] = 0.0
    assert lens_of(keyframes(lens, poses=poses)) is None


@pytest.mark.long
@pytest.mark.parametrize("focal", [0.0, np.log(1.05)], ids=("right", "short"))
@pytest.mark.parametrize("k1", long_after(1, [-0.1, 0.1]))
def test_distortion_is_measured_where_the_focal_length_hardly_is(k1, focal):
    poses = turning(turn_deg=0.5)
    poses[:, 1:3, 3] = 0.0
    found = lens_of(keyframes(Lens(focal, k1=k1), poses=poses))
    assert found is not None
    assert found.lens.is_radial  # the rest stays as stated
    assert described(found).startswith("radial distortion k1")
    assert found.lens.k1 == pytest.approx(k1 * np.exp(2 * focal), abs=0.03)
    assert found.focal_sigma > 0.015


@pytest.mark.long
@pytest.mark.parametrize("seed", long_after(1, range(3)))
def test_a_stabiliser_is_no_barrel(seed):
    """It moves each image as a small turn would, but for what a barrel does."""
    poses = turning(turn_deg=0.0)
    poses[:, 1:3, 3] = 0.0
    moves = np.random.default_rng(100 + seed).normal(0, 0.02, (COUNT, 2))
    views = [
        taken_by(Lens(centre_x=x, centre_y=y), [view])[0]
        for view, (x, y) in zip(keyframes(poses=poses, seed=seed), moves, strict=True)
    ]
    assert lens_of(views) is None


def test_a_lens_that_changes_on_the_way_is_left_alone():
    short, right = keyframes(Lens(focal=np.log(1.1))), keyframes()
    assert lens_of(short[: COUNT // 2] + right[COUNT // 2 :]) is None


def noisy(views, pixels):
    rng, out = np.random.default_rng(0), []
    for view in views:
        pixel = view.features.pixel + rng.normal(0, pixels, view.features.pixel.shape)
        out.append(
            dataclasses.replace(view, features=dataclasses.replace(view.features, pixel=pixel))
        )
    return out


def test_tracks_that_fit_no_lens_well_leave_the_focal_length_alone():
    """What else is wrong, as a rolling shutter, would be taken for it."""
    assert lens_of(noisy(keyframes(Lens(focal=np.log(1.1))), 0.35)) is None


@pytest.mark.long
def test_tracks_that_fit_no_lens_well_still_show_what_is_radial():
    found = lens_of(noisy(keyframes(Lens(centre_y=0.01, k1=-0.12)), 0.35))
    assert found.lens.k1 == pytest.approx(-0.12, abs=0.05)
    assert found.lens.is_radial
    assert lens_of(noisy(keyframes(Lens(k1=-0.12)), 0.8)) is None


@pytest.mark.parametrize("turn_deg", [0.0, 3.0, 12.0])
def test_noise_alone_bends_no_lens(turn_deg):
    poses = turning(turn_deg=turn_deg)
    assert lens_of(noisy(keyframes(poses=poses, wrong=0.2), 0.4)) is None


@pytest.mark.long
def test_a_principal_point_that_is_only_lower_is_left_alone():
    """It may be a rolling shutter."""
    assert lens_of(keyframes(Lens(centre_y=0.03))) is None
    assert lens_of(keyframes(Lens(centre_x=0.03))) is not None


def test_few_keyframes_and_few_tracks_say_nothing():
    views = keyframes(Lens(focal=np.log(1.1)))
    assert lens_of(views[: FEWEST_VIEWS - 1]) is None
    bare = [
        dataclasses.replace(
            v, log_depth=v.log_depth[:15],
            features=Features(
                v.features.shape, v.features.pixel[:15], v.features.descriptor[:15]
            ),
        )
        for v in views
    ]  # fmt: skip
    assert lens_of(bare) is None


def test_keyframes_stay_as_they_are():
    views = keyframes(Lens(focal=np.log(1.1)))
    before = [(v.features.pixel.copy(), v.T_local_camera.copy()) for v in views]
    lens_of(views)
    for view, (pixel, T) in zip(views, before, strict=True):
        np.testing.assert_array_equal(view.features.pixel, pixel)
        np.testing.assert_array_equal(view.T_local_camera, T)
