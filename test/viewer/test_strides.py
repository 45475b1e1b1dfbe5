"""How densely each submap is shown."""

import numpy as np

from da3_ros.viewer.strides import chosen_strides


def shown(sizes, strides):
    return -(-np.asarray(sizes) // strides)


def test_few_points_are_all_shown():
    assert chosen_strides([10, 0, 5], np.zeros(3), 15).tolist() == [1, 1, 1]
    assert chosen_strides([], [], 15).tolist() == []


def test_the_nearest_submaps_are_shown_whole_and_the_bound_holds():
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = rng.integers(1, 40)
        sizes, distances = rng.integers(0, 5000, count), rng.random(count)
        most = int(rng.integers(count + 1, 50_000))
        strides = chosen_strides(sizes, distances, most)
        assert shown(sizes, strides).sum() <= most
        assert set(np.log2(strides) % 1) == {0.0}
        ordered = strides[np.argsort(distances)]
        assert (np.diff(ordered) >= 0).all(), "a farther submap is shown more densely"


def test_half_of_the_room_goes_to_what_is_near():
    strides = chosen_strides([1000] * 100, np.arange(100), 20_000)
    assert (strides == 1).sum() >= 8
    assert strides.max() <= 16


def test_a_submap_that_does_not_fit_is_shown_as_densely_as_it_can_be():
    assert chosen_strides([1000], [0.0], 600).tolist() == [2]
    assert chosen_strides([1000, 1000], [1.0, 0.0], 800).tolist() == [4, 2]


def test_an_unknown_position_of_the_camera_is_no_problem():
    strides = chosen_strides([1000] * 10, np.full(10, np.nan), 2000)
    assert shown([1000] * 10, strides).sum() <= 2000
