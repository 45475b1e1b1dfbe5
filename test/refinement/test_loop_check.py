"""A loop needs features of both visits that fit one geometry, whatever the network says."""

import dataclasses

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import IDENTITY
from da3_ros.refinement.features import FeatureDetector
from da3_ros.refinement.loop_check import (
    joined_by_tracks,
    joined_views,
    of_one_geometry,
    refined_loop,
    shows_known,
    shows_mostly_known,
)
from da3_ros.refinement.refiner import CameraImage, WindowRefiner
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.tracked_view import match, tracked_view
from da3_ros.synthetic import Pace, SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import View, Window, WindowEstimate

SIZE = (224, 168)
NOISE = Noise(smooth=0.05, rotation_deg=1.0, translation=0.02)
EFFORT = SolverLimits.full(400)


def frames(room, **walk):
    return list(SyntheticCamera(room, SIZE, walk="strafe", frames=6, rate_hz=3, **walk))


@pytest.fixture(scope="module")
def place():
    return frames(42)


def visits(first, second):
    """A window of three views of each of two visits, and what a network predicts for it."""
    again = [dataclasses.replace(f, stamp_ns=f.stamp_ns + 10**12) for f in second]
    both = first[:3] + again[:3]
    views = tuple(View(i, f.stamp_ns, f.image, f.K, camera="") for i, f in enumerate(both))
    window = Window(0, views, 0)
    return window, TruthSession(both, noise=NOISE).infer(window), both


def turn_error_deg(prediction, true):
    """Of the second visit relative to the first."""
    a, b = prediction.T_window_camera[[0, -1]]
    step = (invert_pose(a) @ b)[:3, :3]
    exact = (invert_pose(true[0].T_room_camera) @ true[-1].T_room_camera)[:3, :3]
    return np.degrees(Rotation.from_matrix(exact.T @ step).magnitude())


def test_a_true_loop_gets_the_poses_of_its_tracks(place):
    window, prediction, true = visits(place[:3], place[3:])
    refined = refined_loop(window, 3, prediction, EFFORT, 0.1)
    assert refined is not None
    assert turn_error_deg(refined.estimate, true) < turn_error_deg(prediction, true) / 3
    turn = np.radians(turn_error_deg(refined.estimate, true))
    assert turn < 4 * np.sqrt(3 * refined.variance[1])
    assert 0 < refined.variance[2] < 0.05**2


def test_two_places_that_the_network_takes_for_one_are_no_loop(place):
    """The other room's views get this one's poses: the network is sure, features are not."""
    other = [
        dataclasses.replace(f, T_room_camera=g.T_room_camera)
        for f, g in zip(frames(7), place, strict=True)
    ]
    window, prediction, _ = visits(place[:3], other)
    assert refined_loop(window, 3, prediction, EFFORT, 0.1) is None


def test_bare_images_are_no_loop(place):
    bare = [dataclasses.replace(f, image=np.full_like(f.image, 128)) for f in place]
    window, prediction, _ = visits(bare[:3], bare[3:])
    assert refined_loop(window, 3, prediction, EFFORT, 0.1) is None


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_depth_that_usually_means_nothing_is_no_reason_against_a_place(place, noise):
    """With a network that was not trained on such images."""
    window, prediction, true = visits(place[:3], place[3:])
    rng = np.random.default_rng(0)
    depth = prediction.depth * rng.uniform(0.2, 5, prediction.depth.shape).astype(np.float32)
    prediction = dataclasses.replace(prediction, depth=depth)
    views = range(6)
    joined = joined_by_tracks(window, [(views[:3], views[3:])], prediction, EFFORT, noise)
    assert joined is not None
    assert joined.depth_means_something == (noise == 1.0)
    assert turn_error_deg(joined.estimate, true) < 0.5


@pytest.mark.parametrize(("nonsense", "expected"), [(1, True), (4, False)])
def test_the_depth_of_the_later_views_is_judged(place, nonsense, expected):
    """One earlier view with nonsense depth says nothing of them."""
    window, prediction, _ = visits(place[:3], place[3:])
    rng, depth = np.random.default_rng(0), prediction.depth.copy()
    depth[nonsense] *= np.exp(rng.normal(0, 1, depth[0].shape)).astype(np.float32)
    prediction = dataclasses.replace(prediction, depth=depth)
    views = range(6)
    joined = joined_by_tracks(window, [(views[:3], views[3:])], prediction, EFFORT, 0.01)
    assert joined.depth_means_something == expected


def refined_start(frames, count):
    """A refiner that knows the first ``count`` views; the window of all, and its estimate."""
    views = tuple(View(i, f.stamp_ns, f.image, f.K, camera="") for i, f in enumerate(frames))
    first = Window(0, views[:count], new=count)
    prediction = TruthSession(frames, noise=NOISE).infer(Window(0, views, 0))
    estimate = WindowEstimate.of(prediction)
    begun = dataclasses.replace(
        estimate, depth=estimate.depth[:count], T_window_camera=estimate.T_window_camera[:count],
        K=estimate.K[:count], confidence=estimate.confidence[:count],
    )  # fmt: skip
    refiner = WindowRefiner(EFFORT)
    images = [CameraImage(f.image, None) for f in frames]
    assert refiner.refine(first, images[:count], begun, IDENTITY) is not None
    return refiner, Window(1, views, new=len(frames) - count), images[count:], estimate


@pytest.mark.parametrize(
    ("new", "expected"),
    [("same", {4, 5}), ("elsewhere", set()), ("odd depth", {4}), ("little", {5})],
)
def test_doubted_views_are_joined_by_tracks_and_depth(place, new, expected):
    frames = list(place)
    if new == "elsewhere":  # both show one location, and so do not vouch for each other
        frames[4:] = [
            dataclasses.replace(f, image=np.ascontiguousarray(f.image[::-1])) for f in frames[4:]
        ]
    if new == "little":  # most of it is covered
        image = frames[4].image.copy()
        image[:, :150], image[60:] = 128, 128
        frames[4] = dataclasses.replace(frames[4], image=image)
    refiner, window, images, estimate = refined_start(frames, 4)
    if new == "odd depth":
        depth, rng = estimate.depth.copy(), np.random.default_rng(0)
        depth[5] *= np.exp(rng.normal(0, 1, depth[5].shape)).astype(np.float32)
        estimate = dataclasses.replace(estimate, depth=depth)
    before = [v.track.copy() for v in refiner.graph.views.values()]
    poses = [v.T_local_camera for v in refiner.graph.views.values()]
    trial = refiner.copied(images[-1])
    assert trial.calibration is not refiner.calibration
    assert joined_views(trial, window, images, [4, 5], estimate, IDENTITY) == expected
    assert list(refiner.graph.views) == [0, 1, 2, 3]  # a trial changes nothing
    for view, track, T in zip(refiner.graph.views.values(), before, poses, strict=True):
        np.testing.assert_array_equal(view.track, track)
        assert view.T_local_camera is T


def test_what_opencv_refuses_is_no_match(place, monkeypatch):
    def refuses(*args, **options):
        raise cv2.error("odd")

    known = [seen_by(f) for f in place[:3]]
    monkeypatch.setattr(cv2, "findEssentialMat", refuses)
    assert not shows_known(seen_by(place[4]).features, place[4].K, known)


def seen_by(frame):
    detect = FeatureDetector(400, 10**6)
    return tracked_view(0, "", detect(frame.image), frame.K, np.eye(4), frame.depth)


def mostly_known(view, others):
    return shows_mostly_known(view.features, view.log_depth, view.K, others)


def test_a_view_shows_known_things_if_its_matches_have_one_geometry(place):
    known = [seen_by(f) for f in place[:3]]
    shows = lambda f, K: shows_known(seen_by(f).features, K, known)  # noqa: E731
    assert shows(place[4], place[4].K)
    assert shows(place[4], None)  # the network's K: that of the others
    assert not shows(frames(7)[0], place[0].K)
    assert not shows_known(seen_by(place[4]).features, place[4].K, [])
    noise = np.random.default_rng(0).integers(0, 255, place[0].image.shape, np.uint8)
    assert not shows(dataclasses.replace(place[4], image=noise), place[4].K)
    # The same features, but elsewhere: matches without one geometry.
    features = seen_by(place[4]).features
    order = np.random.default_rng(0).permutation(len(features))
    mixed = dataclasses.replace(features, pixel=features.pixel[order])
    assert not shows_known(mixed, place[4].K, known)


@pytest.fixture(scope="module")
def plain():
    """Views of a room with few features."""
    camera = SyntheticCamera(
        105,
        (504, 378),
        walk="handheld",
        frames=6,
        pace=Pace(6.0, 0.3, 15.0),
        rate_hz=6,
        plain=True,
    )
    return list(camera)


def test_few_features_that_two_views_have_too_are_known(plain):
    known, view = [seen_by(f) for f in plain[:4]], seen_by(plain[4])
    assert 20 < len(view.features) < 100
    assert mostly_known(view, known)
    assert mostly_known(view, [*known, seen_by(frames(7)[0])])
    assert not mostly_known(view, known[-1:])  # by two
    assert not mostly_known(view, [])
    assert shows_mostly_known(view.features, view.log_depth, None, known)  # that of the others
    assert not mostly_known(view, [seen_by(f) for f in frames(7)[:4]])
    # The same features, but elsewhere: matches without one geometry.
    order = np.random.default_rng(0).permutation(len(view.features))
    features = dataclasses.replace(view.features, pixel=view.features.pixel[order])
    assert not mostly_known(dataclasses.replace(view, features=features), known)


@pytest.mark.parametrize(("count", "expected"), [(12, False), (18, True)])
def test_a_dozen_features_are_too_few_to_be_known(plain, count, expected):
    """Also if these are all that a view and the known ones have."""

    def only(view, some):
        f = view.features
        some_of = dataclasses.replace(f, pixel=f.pixel[some], descriptor=f.descriptor[some])
        return dataclasses.replace(view, features=some_of, log_depth=view.log_depth[some])

    view, known = seen_by(plain[4]), seen_by(plain[3])
    pairs = match(view.features, known.features)
    agree = of_one_geometry(
        known.features.pixel[pairs[:, 1]], known.K, view.features.pixel[pairs[:, 0]], view.K
    )
    pairs = pairs[agree][:count]
    assert len(pairs) == count
    known = only(known, pairs[:, 1])
    assert mostly_known(only(view, pairs[:, 0]), [known, known]) == expected


@pytest.mark.parametrize(("sigma", "expected"), [(0.1, True), (0.5, False), (np.nan, False)])
def test_a_view_whose_depth_is_another_is_not_known(plain, sigma, expected):
    known, view = [seen_by(f) for f in plain[:4]], seen_by(plain[4])
    off = np.random.default_rng(0).normal(0, 1, len(view.features)) * sigma
    log_depth = view.log_depth + off + 0.7  # in another unit
    view = dataclasses.replace(view, log_depth=log_depth)
    assert mostly_known(view, known) == expected


def test_views_with_many_features_are_told_by_their_tracks(place):
    known, view = [seen_by(f) for f in place[:4]], seen_by(place[4])
    assert len(view.features) > 100
    assert not mostly_known(view, known)


@pytest.mark.parametrize("skin", [False, True])
def test_a_hand_over_half_of_a_view_with_few_features_is_not_known(plain, skin):
    known, image = [seen_by(f) for f in plain[:4]], plain[4].image.copy()
    noise = np.random.default_rng(0).integers(0, 255, image.shape, np.uint8)
    hand = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 4), None, 0, 255, cv2.NORM_MINMAX)
    half = image.shape[1] // 2
    for part in (np.s_[:, :half], np.s_[:, half:]):
        covered = image.copy()
        covered[part] = (190, 140, 120) if skin else hand[part]
        view = seen_by(dataclasses.replace(plain[4], image=covered))
        assert not mostly_known(view, known)
