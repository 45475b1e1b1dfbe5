"""Decoder of image_transport's ``compressedDepth``, as a subscriber of that plugin has it.

Written from ``decodeCompressedDepthImage`` in compressed_depth_image_transport/src/codec.cpp and
``ConfigHeader`` in its compression_common.h (image_transport_plugins, rolling, 7404d77). It shares
nothing with our encoder.
"""

import struct

import cv2
import numpy as np

HEADER = struct.Struct("<iff")  # an enumeration of compression formats, depthParam[2]


def decode(message):
    """Returns encoding and depth [H, W]: 32FC1 is float32 with NaN for 0, 16UC1 is unchanged.

    message: sensor_msgs/CompressedImage. Raises ValueError where the plugin logs an error and
    gives no image.
    """
    encoding, semicolon, ending = message.format.partition(";")
    plain = "compressedDepth" in ending and "compressedDepth " not in ending
    if semicolon and not plain and "compressedDepth png" not in ending:
        raise ValueError(f"Unsupported image format: {message.format}")
    data = bytes(message.data)
    if len(data) <= HEADER.size:
        raise ValueError("no image behind the header")
    _, a, b = HEADER.unpack_from(data)
    stored = cv2.imdecode(np.frombuffer(data, np.uint8, offset=HEADER.size), cv2.IMREAD_UNCHANGED)
    if stored is None or stored.dtype != np.uint16 or stored.ndim != 2:
        raise ValueError("no PNG of 16 bits and one channel")
    if encoding != "32FC1":  # the plugin asks for the encoding's bits; 16 bits are millimetres
        return encoding, stored
    with np.errstate(divide="ignore"):
        depth = np.float32(a) / (stored.astype(np.float32) - np.float32(b))
    return encoding, np.where(stored > 0, depth, np.float32(np.nan))
