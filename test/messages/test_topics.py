"""Conventions of camera topics' names."""

import pytest

from da3_ros.messages.topics import info_topic


@pytest.mark.parametrize(
    ("image", "info"),
    [
        ("/cam/image_raw", "/cam/camera_info"),
        ("/cam/image_raw/compressed", "/cam/camera_info"),
        ("/image", "/camera_info"),
    ],
)
def test_camera_info_is_the_sibling_of_either_transport(image, info):
    assert info_topic(image) == info
