"""Colours of confidence: what a person must see in them. Those of depth: test_build.py."""

import numpy as np
import pytest

from da3_ros.config import COLOR_MAPS
from da3_ros.drawing.colormaps import (
    CONFIDENCE_EXCESS,
    UNKNOWN_RGB,
    color_table,
    colorize_confidence,
    colorize_depth,
    marks,
)

warm_to_cold = pytest.mark.parametrize("name", ["spectral", "turbo"])
each_map = pytest.mark.parametrize("name", COLOR_MAPS)


def image(*values):
    return np.array([values], np.float32)


@warm_to_cold
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


@pytest.mark.parametrize(
    ("name", "far", "near"),
    [
        ("viridis", (68, 1, 84), (253, 231, 37)), ("plasma", (13, 8, 135), (240, 249, 33)),
        ("magma", (0, 0, 4), (252, 253, 191)), ("inferno", (0, 0, 4), (252, 255, 164)),
        ("turbo", (48, 18, 59), (122, 4, 3)), ("grey", (0, 0, 0), (255, 255, 255)),
        ("spectral", (94, 79, 162), (158, 1, 66)),
    ],
)  # fmt: skip
def test_tables_are_those_that_were_published(name, far, near):
    table = color_table(name).astype(int)
    assert table.shape == (256, 3)
    assert np.abs(table[[0, -1]] - [near, far]).max() <= 1


@pytest.mark.parametrize("name", ["viridis", "plasma", "magma", "inferno", "grey"])
def test_what_is_near_is_brighter(name):
    luminance = color_table(name) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) < 1).all()
    assert luminance[0] > luminance[-1] + 150


@each_map
def test_unknown_and_sky_have_no_colour_of_depth(name):
    colors = colorize_depth(image(np.nan, np.inf, 1.0, 3.0), (1.0, 3.0), name)[0].astype(int)
    np.testing.assert_array_equal(colors[:2], marks(name))
    table = color_table(name).astype(int)
    for mark in colors[:2]:
        assert np.linalg.norm(table - mark, axis=1).min() > 30


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=", ".join(COLOR_MAPS)):
        color_table("rainbow")
