"""Colours of confidence: what a person must see in them. Those of depth: test_build.py."""

import numpy as np
import pytest

from da3_ros.drawing.colormaps import (
    CONFIDENCE_EXCESS,
    UNKNOWN_RGB,
    color_table,
    colorize_confidence,
)

each_map = pytest.mark.parametrize("name", ["spectral", "turbo"])


def image(*values):
    return np.array([values], np.float32)


@each_map
def test_doubt_is_red_and_what_is_sure_is_cold(name):
    doubt, sure = colorize_confidence(image(1.01, 11.0), name)[0].astype(int)
    assert doubt[0] > 100
    assert doubt[0] > 1.5 * doubt[1:].max()
    assert sure[2] > sure[0]


@each_map
def test_confidence_outside_the_range_takes_its_end_colours(name):
    below, low, high, above, most = colorize_confidence(image(1, 1.01, 11, 1e4, np.inf), name)[0]
    np.testing.assert_array_equal(below, low)
    np.testing.assert_array_equal(above, high)
    np.testing.assert_array_equal(most, high)
    np.testing.assert_array_equal(color_table(name)[[0, -1]], [low, high])


def test_confidence_is_coloured_by_order_of_magnitude():
    """Orders of magnitude of confidence are even steps of colour."""
    excess = np.geomspace(*CONFIDENCE_EXCESS, 4)
    steps = colorize_confidence(image(*(1 + excess)))[0]
    np.testing.assert_array_equal(steps, color_table("spectral")[[0, 85, 170, 255]])


def test_colour_of_a_confidence_depends_on_nothing_beside_it():
    alone = colorize_confidence(image(1.5))[0, 0]
    for others in ((1.0, 1.0, 1.0), (30.0, 40.0, 50.0), (np.nan, np.nan, 1.1)):
        np.testing.assert_array_equal(colorize_confidence(image(1.5, *others))[0, 0], alone)


def test_unknown_confidence_is_black():
    colors = colorize_confidence(image(np.nan, 1.2, np.nan))[0]
    np.testing.assert_array_equal(colors[[0, 2]], [UNKNOWN_RGB] * 2)
    assert colors[1].any()
