"""The one rule whose depth a window needs."""

import pytest
import torch

from da3_ros.inference.planner import ALIGNING, Request, predict, usual_wanted, wanted_views
from da3_ros.network.model import Chunks


@pytest.mark.parametrize(
    ("views", "new", "expected"),
    [
        (1, 1, (0,)), (2, 1, (0, 1)), (3, 1, (0, 1, 2)), (8, 1, (0, 3, 6, 7)),
        (8, 3, (0, 2, 4, 5, 6, 7)),
    ],
)  # fmt: skip
def test_first_middle_and_newest_shared_views_align(views, new, expected):
    assert usual_wanted(views, new) == expected


def test_keyframes_and_other_cameras_come_before_the_rest():
    cameras = ["left", "right", "left", "right", "left"]
    assert wanted_views([False] * 5, cameras, 0) == (0, 3, 4)
    assert wanted_views([False, True, True, True, False], ["left"] * 5, 1) == (1, 2, 4, 5)
    assert wanted_views([False, True, False, False, False], cameras, 1) == (1, 3, 4, 5)


def test_the_planner_counts_the_views_that_are_wanted():
    request = Request("da3-tiny", torch.float32, None, 112, 8, 1)
    size, chunks = (84, 112), Chunks(1, 1)
    grows = [
        predict(request, n, size, torch.float32, chunks).activations
        for n in (1 + ALIGNING, 2 + ALIGNING)
    ]
    more = predict(
        Request("da3-tiny", torch.float32, None, 112, 8, 2), 2 + ALIGNING, size, torch.float32,
        chunks,
    ).activations  # fmt: skip
    assert grows[0] < grows[1] < more
