"""Depth in 16 bits, read as image_transport's plugin and OpenNI's consumers read it."""

import numpy as np
import pytest
from support.compressed_depth import decode

from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary

LIB = RosbagsLibrary()


def through(depth):
    """float32 [N] through the plugin's decoder."""
    message = build.compressed_depth(LIB, 5, "camera", np.array([depth], np.float32))
    encoding, values = decode(message)
    assert encoding == "32FC1"
    return values[0]


def test_compressed_depth_is_exact_to_its_quantum_up_to_100_m():
    depth = np.geomspace(0.17, 99.9, 5000).astype(np.float32)
    error = np.abs(through(depth) - depth)
    assert (error <= depth**2 / 20000 + 1e-6).all()
    # Truncation, as the plugin's own encoder has it, would be twice as far off.
    assert (error > 0.9 * depth**2 / 20200).any()


@pytest.mark.parametrize("depth", [np.nan, np.inf, -np.inf, -1.0, 0.0, 0.1, 100.1, 1e30])
def test_what_compressed_depth_cannot_hold_is_unknown(depth):
    assert np.isnan(through([depth, 2.0])).tolist() == [True, False]


def test_the_decoder_refuses_what_the_plugin_refuses():
    message = build.compressed_depth(LIB, 5, "camera", np.ones((2, 2), np.float32))
    message.format = "32FC1; compressedDepth rvm"
    with pytest.raises(ValueError, match="Unsupported"):
        decode(message)
    message.format = "32FC1; compressedDepth"  # as versions before the choice of a codec wrote
    assert decode(message)[1].shape == (2, 2)


def test_millimetres_are_rounded_and_zero_where_unknown():
    """depth_image_proc/depth_traits.hpp: 0 is unknown; REP-118 has no other code."""
    depth = np.array([[1.0004, 1.0006, 0.0004, 65.535, 65.536, np.nan, np.inf, -1]], np.float32)
    assert build.millimetres(depth).tolist() == [[1000, 1001, 0, 65535, 0, 0, 0, 0]]
