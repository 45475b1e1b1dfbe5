"""Images without a stream: they become one window, in the given order."""

import numpy as np
import pytest

from da3_ros.inference import window_of_images


def test_images_become_new_views_at_the_networks_size():
    images = [np.full((75, 100, 3), shade, np.uint8) for shade in (10, 20, 30)]
    window = window_of_images(images, 140)
    assert [view.image.shape for view in window.views] == [(112, 140, 3)] * 3
    assert [int(view.image.mean()) for view in window.views] == [10, 20, 30]
    assert [view.id for view in window.views] == [0, 1, 2]
    assert window.new == 3
    assert window.wanted is None
    assert {view.K for view in window.views} == {None}


def test_the_shortest_side_can_be_the_given_one():
    (view,) = window_of_images([np.zeros((75, 100, 3), np.uint8)], 84, "lower_bound_resize").views
    assert view.image.shape == (84, 112, 3)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([], "given: none"),
        ([(48, 64), (64, 48)], "given: 48x64, 64x48; crop or resize"),
        ([(1, 30)], "too thin"),
    ],
)
def test_what_is_no_window_is_refused(sizes, told):
    with pytest.raises(ValueError, match=told):
        window_of_images([np.zeros((*size, 3), np.uint8) for size in sizes], 140)
