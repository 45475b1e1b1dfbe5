"""The subscriptions of one camera: image and camera_info, paired and handed on undecoded."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSPolicyKind, QoSProfile, ReliabilityPolicy
from rclpy.utilities import get_rmw_implementation_identifier
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from da3_ros.config import InputConfig
from da3_ros.live.health import STALE_S
from da3_ros.live.missing_input_hints import (
    Awaited,
    GapMeter,
    WaitingReport,
    describe_surroundings,
    look_around,
    profile_file,
    waiting_text,
)
from da3_ros.live.rate_limit import RateLimit
from da3_ros.live.stream import RawFrame
from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.messages.decode import ImageError, image_size, stamp_ns
from da3_ros.messages.topics import CAMERA_INFO, info_topic, says_rectified
from da3_ros.ros.qos import OVERRIDABLE, Endpoints
from da3_ros.sensors.camera_info_matcher import CameraInfoMatcher

DEPTH = 5
WAITING_BYTES = 256 << 20  # of images that wait for a camera_info
REMEDY = "set image_reliability to auto or best_effort, or have it publish reliable"
GRAPH_PERIOD_S = 1.0
SAME_S = 5.0  # between two warnings about the same


class Host(Protocol):
    """Where images go; called from the executor's thread."""

    def take(self, raw: RawFrame) -> None:
        """An image that is paired with its calibration."""

    def drop(self, cause: str, text: str) -> None:
        """An image that is not used, and why in one line."""

    def discard(self, cause: str, images: int) -> None:
        """So many images are not used, as was asked for."""

    def warn(self, text: str, every_s: float = 0.0) -> None: ...


@dataclass(frozen=True)
class ImageFacts:
    """What an active node knows of its cameras' topics."""

    lost: int  # images that never came, as far as gaps between stamps tell
    stamp_age_s: float  # of the newest stamp when it came, the worst camera's; NaN: no image yet
    silent: tuple[str, ...]  # topics without an image for ``STALE_S``


class CameraInputs:
    """The inputs of all cameras."""

    def __init__(
        self,
        node: Node,
        config: InputConfig,
        cameras: Sequence[str],
        endpoints: Endpoints,
        host: Host,
    ) -> None:
        """``cameras``: names that prefix the topics; empty: one camera without a prefix."""
        self._all: list[CameraInput] = []
        try:
            for name in cameras or ("",):
                self._all.append(CameraInput(node, config, endpoints, host, name))
        except Exception:
            self.close()
            raise

    @property
    def image_topics(self) -> str:
        """Names of the image topics."""
        return ", ".join(one.image_topic for one in self._all)

    @property
    def lost(self) -> int:
        """Images that never came, as far as gaps between stamps tell."""
        return sum(one.gaps.missing for one in self._all)

    @property
    def stamp_age_s(self) -> float:
        """How far the newest stamp lay behind the ROS clock when it came: the worst camera's.

        Negative where it lay ahead; NaN before the first image.
        """
        ages = [one.stamp_age_s for one in self._all if not math.isnan(one.stamp_age_s)]
        return max(ages, key=abs, default=math.nan)

    def facts(self) -> ImageFacts:
        """What the status says of the images."""
        return ImageFacts(self.lost, self.stamp_age_s, self.silent(STALE_S))

    def silent(self, after_s: float) -> tuple[str, ...]:
        """Image topics on which nothing has come for so long, or ever."""
        now = time.monotonic()
        return tuple(one.image_topic for one in self._all if now - one.heard_s > after_s)

    def update(self) -> None:
        """Look at the graph and the clock; call this regularly, on steady time."""
        for one in self._all:
            one.update()

    def reset(self) -> None:
        """A new stream: which calibrations belong to it is decided anew."""
        for one in self._all:
            one.reset()

    def close(self) -> None:
        """Drop the subscriptions."""
        for one in self._all:
            one.close()


class CameraInput:
    """Subscribes while it lives; its host gets every image, paired with its calibration."""

    def __init__(
        self,
        node: Node,
        config: InputConfig,
        endpoints: Endpoints,
        host: Host,
        camera: str = "",
    ) -> None:
        self.node, self.config, self.camera = node, config, camera
        self._endpoints, self._host = endpoints, host
        self.compressed = config.image_transport == "compressed"
        self.image_topic = image_topic(node, config.image_transport, camera)
        self.info_topic = camera_info_topic(node, camera)
        self.rectified = (
            says_rectified(self.image_topic)
            if config.input_rectified == "auto"
            else config.input_rectified == "true"
        )
        self._matcher: CameraInfoMatcher[Any] = CameraInfoMatcher(
            self.info_topic, config.camera_info_timeout_s
        )
        self.images = self.infos = 0
        self.gaps = GapMeter(
            self.image_topic,
            profile_file(os.environ.get("AMENT_PREFIX_PATH", "")),
            get_rmw_implementation_identifier(),
        )
        self._limit = RateLimit(config.max_image_hz)
        self.stamp_age_s = math.nan  # of the newest image when it came
        self.heard_s = time.monotonic()  # when an image came, or we began to listen
        self._waiting = WaitingReport(self.heard_s)
        self.reliable: bool | None = None
        self._overridden = _reliability_override(node, self.image_topic)
        self._image_subscription: Any = None
        self._subscribe_image(self._should_be_reliable())
        try:
            self._info_subscription = endpoints.subscribe(
                CameraInfo, self.info_topic, self._on_info, self._profile(reliable=False)
            )
        except Exception:
            endpoints.drop_subscription(self._image_subscription)
            raise

    def update(self) -> None:
        """Look at the graph and the clock; call this regularly, on steady time."""
        reliable = self._should_be_reliable()
        if reliable != self.reliable:
            self._subscribe_image(reliable)
        self._hand_on()
        text = self._waiting.due(time.monotonic(), self._waiting_text)
        if text:
            self.node.get_logger().warning(text)

    def reset(self) -> None:
        """A new stream: which calibration belongs to it is decided anew."""
        waited = self._matcher.reset()
        if waited:
            self._host.discard("cleared", waited)

    def close(self) -> None:
        """Drop the subscriptions: rclpy delivers to inactive nodes otherwise."""
        self.reset()  # without a camera_info, images that wait would get another's intrinsics
        self._endpoints.drop_subscription(self._image_subscription)
        self._endpoints.drop_subscription(self._info_subscription)

    @property
    def image_type(self) -> str:
        """ROS type of the image topic."""
        return "sensor_msgs/msg/" + ("CompressedImage" if self.compressed else "Image")

    def _should_be_reliable(self) -> bool:
        """``auto``: if and only if every publisher offers it, so that none is left unheard."""
        chosen = self._overridden or self.config.image_reliability
        if chosen != "auto":
            return chosen == "reliable"
        offers = self.node.get_publishers_info_by_topic(self.image_topic)
        reliable = ReliabilityPolicy.RELIABLE
        return bool(offers) and all(o.qos_profile.reliability == reliable for o in offers)

    def _subscribe_image(self, reliable: bool) -> None:
        if self._image_subscription is not None:
            self._endpoints.drop_subscription(self._image_subscription)
        self.reliable = reliable
        self._image_subscription = self._endpoints.subscribe(
            CompressedImage if self.compressed else Image,
            self.image_topic,
            self._on_image,
            self._profile(reliable),
            remedy=REMEDY,
            # Not reliability: rclpy keeps the first subscription's as a parameter and would force
            # it on the later ones that follow the publishers.
            overridable=[p for p in OVERRIDABLE if p != QoSPolicyKind.RELIABILITY],
        )

    def _on_info(self, message: CameraInfo) -> None:
        self.infos += 1
        try:
            calibration = calibration_from_msg(message)
        except (ImageError, ValueError) as error:
            self._host.warn(f"{self.info_topic}: {error}", every_s=SAME_S)
            return
        self._matcher.add_info(calibration, message.header.frame_id)
        self._hand_on()

    def _on_image(self, message: Any) -> None:
        self.images += 1
        self.heard_s = time.monotonic()
        self._waiting.heard(self.heard_s)
        self._look_at_stamp(message)
        if not self._limit.admit(self.heard_s):
            self._host.drop("too_fast", self._too_fast())
            return
        try:
            width, height = image_size(message)
        except ImageError as error:
            self._host.drop("bad_image", f"{self.image_topic}: image dropped: {error}")
            return
        now = time.monotonic_ns()
        self._matcher.add_image(message, message.header.frame_id, width, height, now)
        # Large images do not wait for a calibration until memory is gone.
        self._hand_on(final=self._matcher.waiting * len(message.data) > WAITING_BYTES)

    def _look_at_stamp(self, message: Any) -> None:
        stamp = stamp_ns(message.header.stamp)
        self.stamp_age_s = (self.node.get_clock().now().nanoseconds - stamp) / 1e9
        warning = self.gaps.add(stamp, len(message.data), best_effort=not self.reliable)
        if warning:
            self.node.get_logger().warning(warning)

    def _too_fast(self) -> str:
        return (
            f"{self.image_topic}: {self._limit.rate():.0f} images per second come, and "
            f"max_image_hz is {self._limit.hz:g}: the others are dropped; is there one publisher "
            "too many? Slow it down, or raise max_image_hz"
        )

    def _waiting_text(self) -> str:
        awaited = [
            Awaited(
                self.image_topic,
                self.image_type,
                "image",
                "reliable" if self.reliable else "best_effort",
                reliability_parameter="image_reliability",
            )
        ]
        if not self.infos:
            awaited.append(Awaited(self.info_topic, CAMERA_INFO, "camera_info"))
        surroundings = describe_surroundings(os.environ, get_rmw_implementation_identifier())
        return waiting_text(awaited, look_around(self.node, awaited), surroundings)

    def _hand_on(self, final: bool = False) -> None:
        for message, calibration in self._matcher.ready(time.monotonic_ns(), final):
            self._host.take(
                RawFrame(
                    stamp_ns=stamp_ns(message.header.stamp),
                    message=message,
                    frame_id=message.header.frame_id,
                    calibration=calibration,
                    rectified=self.rectified,
                    topic=self.image_topic,
                    camera=self.camera,
                )
            )
        for notice in self._matcher.notices():
            self.node.get_logger().warning(notice)

    @staticmethod
    def _profile(reliable: bool) -> QoSProfile:
        return QoSProfile(
            depth=DEPTH,
            history=HistoryPolicy.KEEP_LAST,
            reliability=(
                ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
            ),
        )


def _reliability_override(node: Node, topic: str) -> str:
    """What the user's ``qos_overrides`` say of the image's reliability, or an empty text."""
    name = f"qos_overrides.{topic}.subscription.reliability"
    if not node.has_parameter(name):
        about = ParameterDescriptor(description="wins over image_reliability", read_only=True)
        node.declare_parameter(name, "", about)
    return str(node.get_parameter(name).value)


def image_topic(node: Node, transport: str, camera: str = "") -> str:
    """Full name of the image topic; remapping ``image`` moves the compressed one too."""
    base = node.resolve_topic_name(_name("image", camera))
    return f"{base}/compressed" if transport == "compressed" else base


def camera_info_topic(node: Node, camera: str = "") -> str:
    """Where ``camera_info`` is remapped to, else the sibling of the resolved image topic."""
    name = _name("camera_info", camera)
    resolved = node.resolve_topic_name(name)
    unmapped = f"{node.get_namespace().rstrip('/')}/{name}"
    if resolved != unmapped:
        return resolved
    return info_topic(node.resolve_topic_name(_name("image", camera)))


def _name(topic: str, camera: str) -> str:
    return f"{camera}/{topic}" if camera else topic
