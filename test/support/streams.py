"""The stream of the live node without a middleware."""

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.live.scene_stream import RawFrame
from da3_ros.live.stream import Stream
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.sensors.transform_tree import TransformTree

VALUES = {
    "model": "da3-tiny", "checkpoint": "random", "device": "cpu", "process_res": 112,
    "window.size": 4, "mixed_precision": "off",
}  # fmt: skip


class Host:
    """Takes what the stream publishes; ``lib`` makes its messages."""

    def __init__(self, lib):
        self.lib, self.topics, self.sent = lib, {}, []

    def publish(self, published):
        topic, kind, message = published
        self.sent.append((topic, bytes(self.lib.serialize(message, kind))))

    def has_subscribers(self, topic):
        return topic in ("depth/image", "pose")

    def now_ns(self):
        return 0

    def warn(self, text, every_s=0.0):
        raise AssertionError(text)

    def stopping(self):
        return False


def stream_of(session=None, **changes):
    host = Host(RosbagsLibrary())
    config = config_from_parameters({**VALUES, "tf.publish": "none", **changes}, NodeConfig)
    return Stream(config, host.lib, host, TransformTree(), session), host


def as_messages(camera, lib):
    for frame in camera:
        message = build.image(lib, frame.stamp_ns, "camera", frame.image)
        yield RawFrame(frame.stamp_ns, message, "camera", camera.calibration, True, "image")
