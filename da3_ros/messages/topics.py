"""Conventional names and types of camera topics."""

from __future__ import annotations

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"


def is_rectified_topic(topic: str) -> bool:
    """True if the name contains ``rect``: the rule for ``input_rectified: auto``."""
    return "rect" in topic


def info_topic(topic: str) -> str:
    """Returns the camera_info topic in an image topic's namespace, as image_transport does."""
    return f"{topic.removesuffix('/compressed').rpartition('/')[0]}/camera_info"
