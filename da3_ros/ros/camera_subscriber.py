"""Subscriptions of the cameras: image and camera_info, paired and passed on undecoded."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSPolicyKind, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from rclpy.utilities import get_rmw_implementation_identifier
from sensor_msgs.msg import CameraInfo, CompressedImage, Image

from da3_ros.config import InputConfig
from da3_ros.live.metrics import STALE_S
from da3_ros.live.missing_input_hints import (
    Awaited,
    GapMeter,
    WaitingReport,
    discovery_settings,
    profile_file,
    read_graph,
    waiting_text,
)
from da3_ros.live.rate_limit import RateLimit
from da3_ros.live.stream import RawFrame
from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.messages.decode import ImageError, image_size, stamp_ns
from da3_ros.messages.topics import CAMERA_INFO, info_topic, is_rectified_topic
from da3_ros.ros.qos import OVERRIDABLE, Endpoints
from da3_ros.sensors.camera_info_matcher import CameraInfoMatcher
from da3_ros.sensors.frame_id_filter import FrameIdFilter
from da3_ros.sensors.stamp_check import CheckedStamp, StampCheck

DEPTH = 5
QUEUED_BYTES = 256 << 20  # limit of images that wait for a camera_info
REMEDY = "set image_reliability to auto or best_effort, or make the publisher reliable"
GRAPH_PERIOD_S = 1.0
TELLS_NUMBERS = hasattr(Subscription, "CallbackType")  # Humble's rclpy does not
SAME_S = 5.0  # least seconds between two warnings of the same kind


class SubscriberHost(Protocol):
    """Receives the images; called from the executor's thread."""

    def take(self, raw: RawFrame) -> None:
        """Take an image that is paired with its calibration."""

    def drop(self, cause: str, text: str) -> None:
        """Count an image that cannot be used, and warn with ``text``."""

    def discard(self, cause: str, images: int) -> None:
        """Count images that are not used on purpose, without a warning."""

    def warn(self, text: str, every_s: float = 0.0) -> None: ...


@dataclass(frozen=True)
class ImageFacts:
    """State of the image topics of an active node."""

    lost: int  # images that never arrived, see ``GapMeter``
    stamp_age_s: float  # newest stamp's age on arrival, the worst camera's; NaN: no image yet
    silent: tuple[str, ...]  # topics without an image for ``STALE_S``


class CameraInputs:
    """The subscriptions of all cameras."""

    def __init__(
        self,
        node: Node,
        config: InputConfig,
        cameras: Sequence[str],
        endpoints: Endpoints,
        host: SubscriberHost,
    ) -> None:
        """``cameras``: names that prefix the topics; empty for one camera without a prefix."""
        self._all: list[CameraInput] = []
        try:
            for name in cameras or ("",):
                self._all.append(CameraInput(node, config, endpoints, host, name))
        except Exception:
            self.close()
            raise

    @property
    def image_topics(self) -> str:
        """Names of the image topics, separated by commas."""
        return ", ".join(one.image_topic for one in self._all)

    @property
    def image_types(self) -> list[tuple[str, str]]:
        """Full name and type of each image topic."""
        return [(one.image_topic, one.image_type) for one in self._all]

    @property
    def lost(self) -> int:
        """Number of images that never arrived, see ``GapMeter``."""
        return sum(one.gaps.missing for one in self._all)

    @property
    def stamp_age_s(self) -> float:
        """Age of the newest stamp on arrival by the ROS clock, seconds: the worst camera's.

        Negative if the stamp was ahead of the clock; NaN before the first image.
        """
        ages = [one.stamp_age_s for one in self._all if not math.isnan(one.stamp_age_s)]
        return max(ages, key=abs, default=math.nan)

    def facts(self) -> ImageFacts:
        """Returns the state of the image topics for the status."""
        return ImageFacts(self.lost, self.stamp_age_s, self.silent(STALE_S))

    def silent(self, after_s: float) -> tuple[str, ...]:
        """Returns the image topics without an image in the last ``after_s`` seconds."""
        now = time.monotonic()
        return tuple(one.image_topic for one in self._all if now - one.received_s > after_s)

    def update(self) -> None:
        """Check graph and clock; call this regularly, on steady time."""
        for one in self._all:
            one.update()

    def reset(self) -> None:
        """Start a new stream: its calibrations are selected again."""
        for one in self._all:
            one.reset()

    def close(self) -> None:
        """Drop the subscriptions."""
        for one in self._all:
            one.close()


class CameraInput:
    """Subscribes to one camera until closed; passes images with calibration to the host."""

    def __init__(
        self,
        node: Node,
        config: InputConfig,
        endpoints: Endpoints,
        host: SubscriberHost,
        camera: str = "",
    ) -> None:
        self.node, self.config, self.camera = node, config, camera
        self._endpoints, self._host = endpoints, host
        self.compressed = config.image_transport == "compressed"
        self.image_topic = image_topic(node, config.image_transport, camera)
        self.info_topic = camera_info_topic(node, camera)
        self.rectified = (
            is_rectified_topic(self.image_topic)
            if config.input_rectified == "auto"
            else config.input_rectified == "true"
        )
        self._matcher: CameraInfoMatcher[Any] = CameraInfoMatcher(
            self.info_topic, config.camera_info_timeout_s
        )
        self._stamps: StampCheck[tuple[Any, int, int]] = StampCheck(of_rig=bool(camera))
        self._frame_ids = FrameIdFilter(self.image_topic)
        self.images = self.infos = 0
        self.gaps = GapMeter(
            self.image_topic,
            profile_file(os.environ.get("AMENT_PREFIX_PATH", "")),
            get_rmw_implementation_identifier(),
        )
        self._limit = RateLimit(config.max_image_hz)
        self.stamp_age_s = math.nan  # newest image's age on arrival
        self.received_s = time.monotonic()  # newest image, or start of the subscription
        self._waiting = WaitingReport(self.received_s)
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
        """Check graph and clock; call this regularly, on steady time."""
        reliable = self._should_be_reliable()
        if reliable != self.reliable:
            self._subscribe_image(reliable)
        self._pair(self._stamps.overdue(time.monotonic()))
        self._forward()
        text = self._waiting.due(time.monotonic(), self._waiting_text)
        if text:
            self.node.get_logger().warning(text)

    def reset(self) -> None:
        """Start a new stream: its calibration is selected again."""
        self._frame_ids.reset()
        waited = self._matcher.reset() + self._stamps.reset()
        if waited:
            self._host.discard("cleared", waited)

    def close(self) -> None:
        """Drop the subscriptions: otherwise rclpy delivers to an inactive node too."""
        # Drops images that wait for a camera_info: a later one may hold other intrinsics.
        self.reset()
        self._endpoints.drop_subscription(self._image_subscription)
        self._endpoints.drop_subscription(self._info_subscription)

    @property
    def image_type(self) -> str:
        """ROS type of the image topic."""
        return "sensor_msgs/msg/" + ("CompressedImage" if self.compressed else "Image")

    def _should_be_reliable(self) -> bool:
        """True if to subscribe as reliable; ``auto``: only if every publisher offers reliable."""
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
        self.gaps.restart()
        self._image_subscription = self._endpoints.subscribe(
            CompressedImage if self.compressed else Image,
            self.image_topic,
            self._on_numbered_image if TELLS_NUMBERS else self._on_image,
            self._profile(reliable),
            remedy=REMEDY,
            # Not reliability: rclpy stores that of the first subscription as a parameter and would
            # force it on later subscriptions, which follow the publishers.
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
        self._forward()

    def _on_numbered_image(self, message: Any, info: Mapping[str, Any]) -> None:
        self._on_image(message, _number(info))

    def _on_image(self, message: Any, numbered: tuple[bytes, int] | None = None) -> None:
        self.images += 1
        self.received_s = time.monotonic()
        self._waiting.received(self.received_s)
        own = self._is_own(message.header.frame_id)
        if own or numbered is not None:  # numbers are those of the publisher, stamps of the camera
            self._note_gaps(message, numbered)
        if not own:
            return
        if not self._limit.admit(self.received_s):
            self._host.drop("too_fast", self._rate_warning())
            return
        try:
            width, height = image_size(message)
        except ImageError as error:
            self._host.drop("bad_image", f"{self.image_topic}: image dropped: {error}")
            return
        clock_ns, stamp = self._clock_ns(), stamp_ns(message.header.stamp)
        self._pair(self._stamps.add((message, width, height), stamp, clock_ns, self.received_s))
        for fault in self._stamps.take_faults():
            self._host.drop("bad_stamp", f"{self.image_topic}: image dropped: {fault}")
        # Bounds the memory of large images that wait for a calibration.
        self._forward(final=self._matcher.waiting * len(message.data) > QUEUED_BYTES)

    def _clock_ns(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)

    def _pair(self, believed: Sequence[CheckedStamp[tuple[Any, int, int]]]) -> None:
        """Lets images whose stamps are believed wait for their calibration."""
        for one in believed:
            message, width, height = one.item
            self.stamp_age_s = (self._clock_ns() - one.time.stamp_ns) / 1e9
            now = time.monotonic_ns()
            self._matcher.add_image(message, message.header.frame_id, width, height, now)

    def _is_own(self, frame_id: str) -> bool:
        """False, counted and reported, for an image of another camera on this topic."""
        own = self._frame_ids.admit(frame_id, time.monotonic_ns())
        for notice in self._frame_ids.notices():
            self.node.get_logger().warning(notice)
        if own:
            return True
        self._host.discard("foreign_frame", 1)
        if warning := self._frame_ids.warning(frame_id):
            offers = self.node.get_publishers_info_by_topic(self.image_topic)
            names = sorted({f"{o.node_namespace.rstrip('/')}/{o.node_name}" for o in offers})
            self._host.warn(f"{warning} (published by {', '.join(names) or 'nobody now'})")
        return False

    def _note_gaps(self, message: Any, numbered: tuple[bytes, int] | None) -> None:
        stamp = stamp_ns(message.header.stamp)
        warning = self.gaps.add(
            stamp, len(message.data), best_effort=not self.reliable, numbered=numbered
        )
        if warning:
            self.node.get_logger().warning(warning)

    def _rate_warning(self) -> str:
        return (
            f"{self.image_topic}: receives {self._limit.rate():.0f} images per second, more than "
            f"max_image_hz = {self._limit.hz:g}; the excess is dropped. Does a second node "
            "publish this topic? Reduce its rate, or raise max_image_hz"
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
        settings = discovery_settings(os.environ, get_rmw_implementation_identifier())
        return waiting_text(awaited, read_graph(self.node, awaited), settings)

    def _forward(self, final: bool = False) -> None:
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


def _number(info: Mapping[str, Any]) -> tuple[bytes, int] | None:
    """Returns a message's publisher and its number there; None if the middleware or an older
    rclpy does not tell both."""
    number, publisher = info.get("publication_sequence_number"), info.get("publisher_gid")
    if number is None or not publisher:
        return None
    return bytes(publisher["data"]), int(number)


def _reliability_override(node: Node, topic: str) -> str:
    """Returns the image's reliability set by ``qos_overrides``, or an empty text."""
    name = f"qos_overrides.{topic}.subscription.reliability"
    if not node.has_parameter(name):
        about = ParameterDescriptor(description="overrides image_reliability", read_only=True)
        node.declare_parameter(name, "", about)
    return str(node.get_parameter(name).value)


def image_topic(node: Node, transport: str, camera: str = "") -> str:
    """Returns the full image topic; a remapping of ``image`` moves the compressed one too."""
    base = node.resolve_topic_name(_name("image", camera))
    return f"{base}/compressed" if transport == "compressed" else base


def camera_info_topic(node: Node, camera: str = "") -> str:
    """Returns the remapped ``camera_info``, else the sibling of the resolved image topic."""
    name = _name("camera_info", camera)
    resolved = node.resolve_topic_name(name)
    unmapped = f"{node.get_namespace().rstrip('/')}/{name}"
    if resolved != unmapped:
        return resolved
    return info_topic(node.resolve_topic_name(_name("image", camera)))


def _name(topic: str, camera: str) -> str:
    return f"{camera}/{topic}" if camera else topic
