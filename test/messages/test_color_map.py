"""Coloured depth and confidence of the live node have the colours that `depth.color_map` names."""

import numpy as np
import pytest
from support.viewers import tracked

from da3_ros.config import COLOR_MAPS, config_from_parameters
from da3_ros.drawing.colormaps import colorize_confidence, colorize_depth
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import Outputs

TOPICS = ("depth/image_color", "confidence/image_color")


@pytest.mark.parametrize("name", COLOR_MAPS)
def test_images_have_the_colours_of_the_parameter(name):
    config = config_from_parameters({"depth.color_map": name, "depth.color_range_m": [0.5, 4.0]})
    frame = tracked(1, np.eye(4))
    sent = {
        topic: np.asarray(message.data).reshape(*frame.depth_m.shape, 3)
        for topic, _, message in Outputs(RosbagsLibrary(), config).frame(frame)
        if topic in TOPICS
    }
    depth = colorize_depth(frame.depth_m, (0.5, 4.0), name)
    np.testing.assert_array_equal(sent[TOPICS[0]], depth)
    np.testing.assert_array_equal(sent[TOPICS[1]], colorize_confidence(frame.confidence, name))
