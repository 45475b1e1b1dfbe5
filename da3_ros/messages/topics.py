"""Names and types of camera topics, by convention."""

from __future__ import annotations

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"


def is_rectified_topic(topic: str) -> bool:
    """The interface's rule for ``input_rectified: auto``: the topic's name contains ``rect``."""
    return "rect" in topic


def info_topic(topic: str) -> str:
    """The camera_info beside an image topic, as image_transport's CameraSubscriber finds it."""
    return f"{topic.removesuffix('/compressed').rpartition('/')[0]}/camera_info"
