"""Features, matches and tracks on images that are made from one another."""

import itertools
import threading

import cv2
import numpy as np
import pytest

from da3_ros.refinement.features import FeatureDetector, FeaturesAhead, spread
from da3_ros.refinement.tracked_view import Matches, TrackedView, TrackPoints, extend_tracks, match


def texture(seed=0, size=(240, 180)):
    noise = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3)).astype(np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 2.5)


def view_of(id, features):
    unknown = np.full(len(features), np.nan)
    return TrackedView(id, "", features, np.eye(3), np.eye(4), unknown)


def test_a_shifted_image_has_the_same_features():
    detect, image = FeatureDetector(150, 800_000), texture(size=(300, 200))
    first, second = detect(image[:, :240]), detect(image[:, 40:280])
    pairs = match(first, second)
    off = first.pixel[pairs[:, 0]] - second.pixel[pairs[:, 1]] - [40, 0]
    assert len(pairs) > 40
    assert np.median(np.abs(off)) < 0.05


def test_positions_follow_the_corner_rule():
    """A symmetric spot around the middle of the image lies at half the size."""
    image = np.zeros((61, 81, 3), np.uint8)
    cv2.circle(image, (40, 30), 8, (255, 255, 255), -1, cv2.LINE_AA)
    image = cv2.GaussianBlur(image, (0, 0), 2)
    found = FeatureDetector(10, 800_000)(image).pixel
    nearest = found[np.argmin(np.linalg.norm(found - [40.5, 30.5], axis=1))]
    assert np.abs(nearest - [40.5, 30.5]).max() < 0.05


@pytest.fixture
def ahead():
    return FeaturesAhead(150, 800_000)


def test_features_that_were_begun_are_those_of_the_detector(ahead):
    image, usable = texture(), np.ones((180, 240), bool)
    usable[100:, :150] = False
    other = texture(1)
    ahead.begin(image, usable)
    ahead.begin(image, usable)  # has begun
    ahead.begin(other, None)
    for *_, begun in ahead._begun:
        begun.result()
    assert ahead.take(image, None) is None, "with another mask"
    found = ahead.take(image, usable)
    alone = FeatureDetector(150, 800_000)(image, usable)
    assert np.array_equal(found.pixel, alone.pixel)
    assert np.array_equal(found.descriptor, alone.descriptor)
    assert ahead.take(image, usable) is None, "each is given once"
    assert ahead.take(image.copy(), usable) is None
    assert len(ahead.take(other, None)) > 50


def test_what_nobody_holds_is_dropped(ahead):
    images = [texture(k) for k in range(3)]
    for image in images:
        ahead.begin(image, None)
    for *_, begun in ahead._begun:
        begun.result()
    del image, images[0]
    images.append(texture(3))
    ahead.begin(images[2], None)
    assert [id(known()) for known, *_ in ahead._begun] == list(map(id, images))
    assert len(ahead.take(images[1], None)) > 50
    assert len(ahead.take(images[0], None)) > 50, "in any order"


def test_the_oldest_of_too_many_is_dropped(ahead, monkeypatch):
    monkeypatch.setattr("da3_ros.refinement.features.MOST_AHEAD", 2)
    images = [texture(k) for k in range(3)]
    for image in images:
        ahead.begin(image, None)
    assert len(ahead._begun) == 2
    assert ahead.take(images[0], None) is None


@pytest.mark.parametrize("new", [1, 3, 8, 16])
@pytest.mark.parametrize("behind_network", [False, True])
def test_a_replay_with_large_windows_detects_each_image_once(ahead, new, behind_network):
    """As ``replay.run``: images begin as they are read, two windows ahead; on a GPU those of the
    next window begin while one runs too. Nothing begins before the first window is refined."""
    images = [np.zeros((1, 1, 3), np.uint8) for _ in range(12 * new)]
    detected, taken, reads = [], 0, iter(images)
    ahead._detector = lambda image, _: detected.append(image) or ()
    read: list[np.ndarray] = []

    def fill(*, begin):
        for image in itertools.islice(reads, 2 * new + 1 - len(read)):  # one waits for a place
            if begin:
                ahead.begin(image, None)
            read.append(image)

    fill(begin=False)
    for number in range(12):
        window = []
        for _ in range(new):
            window.append(read.pop(0))
            fill(begin=number > 0)
        if behind_network and number > 0:
            for image in read[:new]:
                ahead.begin(image, None)
        for *_, begun in ahead._begun:
            begun.result()
        taken += sum(ahead.take(image, None) is not None for image in window)
    assert len({id(image) for image in detected}) == len(detected), "none twice"
    assert taken == len(detected), "none for nothing"
    assert taken >= (12 - 4) * new


def test_what_has_not_started_is_not_waited_for(ahead):
    """It would wait for the image before it, which perhaps nobody needs any more."""
    started, go_on = threading.Event(), threading.Event()
    plain = ahead._detector

    def slow(*arguments):
        started.set()
        assert go_on.wait(30)
        return plain(*arguments)

    ahead._detector = slow
    first, second = texture(0), texture(1)
    ahead.begin(first, None)
    ahead.begin(second, None)
    assert started.wait(30)
    assert ahead.take(second, None) is None
    go_on.set()
    ahead.begin(first, None)
    assert len(ahead._begun[0][2].result()) > 50


def test_an_error_ahead_is_the_detectors(ahead):
    with pytest.raises(cv2.error):
        FeatureDetector(150, 800_000)(np.zeros((0, 0, 3), np.uint8))
    empty = np.zeros((0, 0, 3), np.uint8)
    ahead.begin(empty, None)
    ahead._begun[0][2].exception()
    with pytest.raises(cv2.error):
        ahead.take(empty, None)


def test_a_bare_image_has_none():
    assert len(FeatureDetector(100, 800_000)(np.full((90, 120, 3), 128, np.uint8))) == 0


def test_no_feature_lies_on_the_robot():
    usable = np.ones((180, 240), bool)
    usable[100:, :150] = False
    found = FeatureDetector(300, 800_000)(texture(), usable).pixel
    assert len(found) > 50
    rows, columns = found[:, 1].astype(int), found[:, 0].astype(int)
    assert usable[rows, columns].all()


def test_features_are_spread_over_the_image():
    """Strong features of one corner do not displace weak ones elsewhere."""
    rng = np.random.default_rng(0)
    dense, sparse = rng.uniform(0, 40, (500, 2)), rng.uniform(0, 320, (100, 2))
    strength = np.concatenate((np.full(500, 9.0), np.full(100, 1.0)))
    kept = spread(np.concatenate((dense, sparse)), strength, (320, 320), 120)
    assert len(kept) == 120
    assert (kept >= 500).sum() > 80


def test_tracks_go_on_from_view_to_view():
    detect, image = FeatureDetector(150, 800_000), texture(size=(320, 200))
    points, views = TrackPoints(), []
    for k in range(4):
        view = view_of(k, detect(image[:, 20 * k : 20 * k + 240]))
        found = [Matches(v, match(view.features, v.features)) for v in views]
        if found:
            extend_tracks(view, found, [np.ones(len(m.pairs), bool) for m in found], points)
        views.append(view)
    long = set.intersection(*({int(t) for t in v.track if t >= 0} for v in views))
    assert len(long) > 30
    for view in views:
        used = view.track[view.track >= 0]
        assert len(np.unique(used)) == len(used)
    for track in long:
        columns = [v.features.pixel[v.track == track][0, 0] + 20 * v.id for v in views]
        assert np.ptp(columns) < 3
