"""TrackHistory of tracks, held against the positions of features in each view."""

import numpy as np
import pytest

from da3_ros.refinement.features import Features
from da3_ros.refinement.track_history import LENGTH, TrackHistory, history_of
from da3_ros.refinement.tracked_view import TrackedView, TrackPoints

SIDE = np.array([320.0, 240.0])
K = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])


def view(id, tracks, camera="", x=0.0):
    """A view at ``x`` whose features lie anywhere; ``tracks`` are those of its features."""
    pixel = np.random.default_rng(id).uniform(0, SIDE, (len(tracks), 2))
    features = Features((240, 320), pixel, np.zeros((len(tracks), 128), np.uint8))
    T = np.eye(4)
    T[0, 3] = x
    out = TrackedView(id, camera, features, K, T, np.zeros(len(tracks)))
    out.track = np.array(tracks)
    return out


def graph(*views):
    return {v.id: v for v in views}


def test_a_track_is_where_each_view_of_the_camera_sees_the_track():
    views = graph(
        view(3, [7, 5, -1]), view(4, [5, 7], camera="other"), view(6, [-1, 5]),
        view(8, [5, -1, 7, 9]), view(9, [5, 7]),
    )  # fmt: skip
    history = history_of(8, views, TrackPoints())
    assert history.position.shape == (3, LENGTH, 2)
    at = {i: views[i].features.pixel / SIDE for i in views}
    np.testing.assert_array_equal(history.position[0, -3:], [at[3][1], at[6][1], at[8][0]])
    np.testing.assert_array_equal(history.position[1, -3:], [at[3][0], [np.nan] * 2, at[8][2]])
    np.testing.assert_array_equal(history.position[2, -1], at[8][3])
    assert np.isnan(history.position[2, :-1]).all()
    assert np.isnan(history.position[:, :-3]).all()


def test_a_track_has_the_last_views_only():
    views = graph(*(view(i, [0]) for i in range(LENGTH + 5)))
    history = history_of(LENGTH + 4, views, TrackPoints())
    seen = [views[i].features.pixel[0] / SIDE for i in range(5, LENGTH + 5)]
    np.testing.assert_array_equal(history.position[0], seen)


def test_the_error_is_the_distance_to_the_projected_point():
    one, points = view(0, [2, 4, 6, 8], x=0.5), TrackPoints()
    wrong = one.features.pixel + [[3.0, 4.0], [0, 0], [0, 0], [1, 0]]
    depth = np.array([2.0, 3.0, 4.0, -1.0])  # the last point is behind the camera
    rays = np.column_stack((wrong, np.ones(4))) @ np.linalg.inv(K).T
    X = rays * depth[:, None] + [0.5, 0, 0]
    points.set(np.array([2, 4, 8]), X[[0, 1, 3]])
    history = history_of(0, graph(one), points)
    np.testing.assert_allclose(history.error_px, [5, 0, np.nan, np.nan], atol=1e-9)
    assert history.rms_px == pytest.approx(5 / np.sqrt(2))


def test_a_view_without_tracks_has_no_tracks():
    history = history_of(0, graph(view(0, [-1, -1])), TrackPoints())
    assert len(history) == 0
    assert np.isnan(history.rms_px)
    assert isinstance(history, TrackHistory)


def test_an_unknown_view_is_an_error():
    with pytest.raises(KeyError):
        history_of(1, graph(view(0, [0])), TrackPoints())
