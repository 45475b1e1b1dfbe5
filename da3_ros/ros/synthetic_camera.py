"""Node `synthetic_camera`: publishes a rendered room as a real camera driver would.

A thread renders the frames of a walk (at most `buffer_frames`) once, before or while they are
published. A longer stream repeats them: a `loop` is closed, any other walk goes forward and
backward. So 640x480 at 30 Hz costs no more than copying once the walk is rendered (a third of a
second per frame on two cores). Publishing begins when the missing frames will be rendered in time
and the image has `wait_for_subscribers` matched subscribers.

Topics: `image_raw` or `image_raw/compressed`, `camera_info` in the same namespace, and the truth:
`~/truth/depth/image` (32FC1, metres), `~/truth/pose`, `~/truth/odom` in the frame `room` (z up).
Optional: odometry with drift (`~/odometry`) and a robot's transforms.

With `pace_topic` the consumer sets the pace: the next frame is published after the result of the
last one. A slow machine then shows the same walk more slowly, with the same motion between frames.

With `cameras: [front, left]` the node is a rig: it publishes `front/image_raw` and so on in the
frames `front_optical` and so on, fixed to the first camera's frame by /tf_static. Truth and
odometry are those of the first camera.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import cv2
import rclpy
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.exceptions import ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from da3_ros.messages import build
from da3_ros.messages.decode import stamp_ns
from da3_ros.parameter_schema import ConfigError, option, parameters
from da3_ros.ros.frame_schedule import FrameBuffer, ResultPacer, StampGrid, cycle_index
from da3_ros.ros.parameters import descriptor
from da3_ros.ros.process_exit import exit_process
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.sensors.calibration_check import check_calibration
from da3_ros.sensors.camera_models import CAMERA_MODELS
from da3_ros.synthetic import WALKS
from da3_ros.synthetic.rig import rig_mount
from da3_ros.types import Array, Calibration, FloatImage, Image

if TYPE_CHECKING:
    from da3_ros.synthetic import SyntheticCamera, SyntheticFrame

IMAGE, INFO = "image_raw", "camera_info"
# Wait after a match: the subscriber may discover the publisher a moment later.
SETTLE_S = 0.5


@dataclass(frozen=True)
class CameraConfig:
    """Parameters of the synthetic camera; fixed at start."""

    transport: str = option("raw", "image_raw or image_raw/compressed (JPEG)",
                            choices=("raw", "compressed"))  # fmt: skip
    reliability: str = option("reliable", "reliability QoS of image and camera_info",
                              choices=("reliable", "best_effort"))  # fmt: skip
    encoding: str = option("rgb8", "encoding of image_raw", choices=("rgb8", "bgr8", "mono8"))
    jpeg_quality: int = option(95, "JPEG quality of image_raw/compressed", low=1, high=100)
    frame_id: str = option("camera_optical", "optical frame of the camera")
    cameras: tuple[str, ...] = option(
        (), "camera names of a rig, which prefix the topics; empty: one camera", items=str
    )
    camera_baseline_m: float = option(
        0.2, "distance of neighbouring cameras of the rig, to the right, metres"
    )
    camera_yaw_deg: float = option(
        0.0, "rotation between neighbouring cameras, to the right, degrees"
    )
    rate_hz: float = option(10.0, "frames per second", low=0.05, high=240.0)
    frames: int = option(0, "number of frames to publish; 0: endless", low=0, high=10_000_000)
    loop: bool = option(False, "repeat the walk endlessly after `frames`")
    buffer_frames: int = option(
        60, "most frames rendered and kept, up to 7 bytes per pixel each; longer streams repeat",
        low=1, high=10_000,
    )  # fmt: skip
    width: int = option(640, "image width, pixels", low=16, high=8192)
    height: int = option(480, "image height, pixels", low=16, high=8192)
    fov_deg: float = option(65.0, "horizontal field of view, degrees", low=5.0, high=170.0)
    distortion_model: str = option(
        "plumb_bob", "distortion model of the lens", choices=lambda: tuple(CAMERA_MODELS)
    )
    distortion: tuple[float, ...] = option(
        (0.0,), "distortion coefficients in ROS order; all 0: none"
    )
    noise_sigma: float = option(
        0.0, "image noise, grey levels of 255 (1 sigma)", low=0.0, high=100.0
    )
    exposure_drift: float = option(0.0, "largest relative change of brightness", low=0.0, high=0.9)
    seed: int = option(7, "seed of room, walk and noise", low=0, high=2**31 - 1)
    walk: str = option("loop", "path of the camera", choices=WALKS)
    max_speed_m_s: float = option(
        0.8, "largest speed of the walk, metres per second", low=0.0, high=10.0
    )
    max_turn_deg_s: float = option(
        40.0, "largest rotation rate, degrees per second", low=0.0, high=360.0
    )
    wait_for_subscribers: int = option(
        0, "publishing begins when the image has this many matched subscribers", low=0, high=100
    )
    pace_topic: str = option(
        "", "CameraInfo topic on which the consumer answers each frame with its stamp; the "
        "next frame waits for it, at most rate_hz; da3_node needs window.new 1; empty: no waiting",
    )  # fmt: skip
    pace_timeout_s: float = option(
        10.0,
        "without a result the next frame is published after this time, seconds",
        low=0.05,
        high=3600.0,
    )
    exit_when_done: bool = option(False, "exit after the last frame; false: keep running")
    room_frame: str = option("room", "frame of the truth, z up")
    publish_odometry: bool = option(False, "publish ~/odometry")
    odometry_child: str = option(
        "base", "frame whose pose ~/odometry holds", choices=("base", "optical")
    )
    odometry_noise_m: float = option(
        0.0,
        "drift after one metre, metres (1 sigma per axis, grows with the square root)",
        low=0.0,
    )
    odometry_noise_deg: float = option(
        0.0, "heading drift after one second, degrees (1 sigma, grows with the square root)",
        low=0.0,
    )  # fmt: skip
    publish_tf: bool = option(
        False, "publish transforms odom to base (as ~/odometry) and base to camera"
    )
    odom_frame: str = option("odom", "frame of the odometry: the first pose of the base")
    base_frame: str = option(
        "base_link", "base frame: level, initially on the floor below the camera"
    )

    def __post_init__(self) -> None:
        for parameter in parameters(self):
            parameter.check()

    @property
    def endless(self) -> bool:
        """True if the stream has no last frame."""
        return self.loop or not self.frames

    @property
    def walk_frames(self) -> int:
        """Number of frames to render."""
        return min(self.frames or self.buffer_frames, self.buffer_frames)


@dataclass(frozen=True, eq=False)
class _RenderedFrame:
    """A rendered frame, complete except for its stamps."""

    images: tuple[Any, ...]  # sensor_msgs/Image or CompressedImage of each camera
    depth: FloatImage  # of the first camera, metres
    T_room_camera: Array  # of the first camera


@dataclass(frozen=True, eq=False)
class _CameraPublishers:
    """The publishers of one camera."""

    name: str  # empty for a single camera
    frame_id: str
    image: Publisher
    info: Publisher


class SyntheticCameraNode(Node):
    """Publishes the walk; ``done`` becomes True when the node can be destroyed."""

    def __init__(self) -> None:
        """Declare parameters, create publishers, start rendering.

        Raises ParameterException or ConfigError.
        """
        super().__init__("synthetic_camera")
        self.config = _read_config(self)
        self.done = self.failed = False
        self._lib = RclpyLibrary()
        self._calibration: Calibration | None = None
        self._odometry: Any = None  # DriftingOdometry, once the walk is known
        self._count = 0
        self._grid = StampGrid(self.config.rate_hz)
        self._pacer = ResultPacer(self.config.pace_timeout_s)
        self._last_ns = 0  # time of the last frame, by the pacing clock
        self._matched_s: float | None = None
        self._last_missing = ""
        self._advertise()
        self._rendered = FrameBuffer(self.config.walk_frames, self._render)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._sim_time = bool(self.get_parameter("use_sim_time").value)
        self._pace_clock = self.get_clock() if self._sim_time else steady
        self._timer = self.create_timer(0.05, self._try_to_start, clock=steady)

    def close(self) -> bool:
        """Stop rendering; True if the thread has ended."""
        return self._rendered.stop(timeout_s=1.5)

    # Set-up -------------------------------------------------------------------------------------

    def _advertise(self) -> None:
        c, lib = self.config, self._lib
        self._outputs = [self._advertise_camera(name) for name in c.cameras or ("",)]
        self._truth_depth = self._publisher("sensor_msgs/msg/Image", "~/truth/depth/image")
        self._truth_pose = self._publisher("geometry_msgs/msg/PoseStamped", "~/truth/pose")
        self._truth_odom = self._publisher("nav_msgs/msg/Odometry", "~/truth/odom")
        self._odom = (
            self._publisher("nav_msgs/msg/Odometry", "~/odometry") if c.publish_odometry else None
        )
        if c.pace_topic:
            info = lib.type("sensor_msgs/msg/CameraInfo")
            self._results = self.create_subscription(info, c.pace_topic, self._on_result, 10)
        tf = lib.type("tf2_msgs/msg/TFMessage")
        if c.publish_tf:
            self._tf = self.create_publisher(tf, "/tf", 100)
        if c.publish_tf or len(c.cameras) > 1:
            latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
            self._tf_static = self.create_publisher(tf, "/tf_static", latched)

    def _advertise_camera(self, name: str) -> _CameraPublishers:
        c, prefix = self.config, f"{name}/" if name else ""
        base = self.resolve_topic_name(prefix + IMAGE)
        kind = "Image" if c.transport == "raw" else "CompressedImage"
        topic = base if c.transport == "raw" else f"{base}/compressed"
        reliable = c.reliability == "reliable"
        camera = QoSProfile(
            depth=10 if reliable else 5,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        )
        info = self._lib.type("sensor_msgs/msg/CameraInfo")
        return _CameraPublishers(
            name,
            f"{name.replace('/', '_')}_optical" if name else c.frame_id,
            self.create_publisher(self._lib.type(f"sensor_msgs/msg/{kind}"), topic, camera),
            self.create_publisher(info, _sibling(self, base, prefix + INFO), camera),
        )

    def _publisher(self, kind: str, topic: str) -> Publisher:
        return self.create_publisher(self._lib.type(kind), topic, 10)

    def _render(self) -> Iterator[_RenderedFrame]:
        """Runs in the buffer's thread."""
        # Imported here: importing torch takes seconds, in which other nodes can discover this one.
        from da3_ros.synthetic import SyntheticCamera
        from da3_ros.synthetic.odometry import DriftingOdometry

        c = self.config
        rig = [_make_camera(SyntheticCamera, c, i) for i in range(len(self._outputs))]
        check_calibration(rig[0].calibration, rig[0].size)
        self._calibration = rig[0].calibration
        self._odometry = DriftingOdometry(
            rig[0].T_room_camera[0], c.odometry_noise_m, c.odometry_noise_deg, c.seed
        )
        for frames in zip(*rig, strict=True):
            images = tuple(self._image_message(frame) for frame in frames)
            yield _RenderedFrame(images, frames[0].depth, frames[0].T_room_camera)

    def _image_message(self, frame: SyntheticFrame) -> Any:
        c = self.config
        if c.transport == "compressed":
            return build.compressed_image(self._lib, 0, "", frame.image, quality=c.jpeg_quality)
        image = build.image(self._lib, 0, "", _in_encoding(frame.image, c.encoding))
        image.encoding = c.encoding
        return image

    # Beginning ----------------------------------------------------------------------------------

    def _try_to_start(self) -> None:
        if self._rendered.error is not None:
            self.get_logger().fatal(f"cannot render: {self._rendered.error}")
            self.done = self.failed = True
            return
        if missing := self._missing():
            if missing != self._last_missing:
                self.get_logger().info(f"waiting for {missing}")
            self._last_missing = missing
            return
        self._timer.cancel()
        c = self.config
        many = "without end" if c.endless else f"{c.frames} frames"
        self.get_logger().info(
            f"publishing {many} at {c.rate_hz:g} Hz on "
            f"{', '.join(output.image.topic_name for output in self._outputs)} "
            f"({c.width}x{c.height}, {c.reliability})"
        )
        if c.publish_tf or len(self._outputs) > 1:
            self._publish_static()
        # At the consumer's pace a result may come at any time, so the timer runs more often.
        period_s = (0.1 if c.pace_topic else 1.0) / c.rate_hz
        self._timer = self.create_timer(period_s, self._tick, clock=self._pace_clock)
        self._tick()

    def _missing(self) -> str:
        """Returns what publishing waits for; empty if it can begin."""
        c = self.config
        if not self._rendered.enough(c.rate_hz):
            return f"the rendering of {c.walk_frames} frames"
        if self._sim_time and not self.get_clock().now().nanoseconds:
            return "/clock (use_sim_time is true)"
        if c.wait_for_subscribers and c.pace_topic and not self._results.get_publisher_count():
            return f"a publisher of {self._results.topic_name}"
        topics = ", ".join(output.image.topic_name for output in self._outputs)
        return "" if self._are_subscribers_matched() else f"subscribers of {topics}"

    def _are_subscribers_matched(self) -> bool:
        """True if the required subscribers have been matched for ``SETTLE_S``."""
        wanted, now = self.config.wait_for_subscribers, time.monotonic()
        if min(o.image.get_subscription_count() for o in self._outputs) < wanted:
            self._matched_s = None
            return False
        self._matched_s = self._matched_s or now
        return not wanted or now - self._matched_s >= SETTLE_S

    # Publishing ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.config.pace_topic and not self._may_publish():
            return
        c = self.config
        index = cycle_index(self._count, c.walk_frames, closed=c.walk == "loop")
        rendered = self._rendered.get(index)
        if rendered is None:
            self.get_logger().warning(
                f"rendering is slower than {c.rate_hz:g} Hz: frames are late", once=True
            )
            return
        now_ns = self.get_clock().now().nanoseconds
        # No fixed periods at the consumer's pace: a gap in the grid would look like lost frames.
        stamp = now_ns if c.pace_topic else self._grid.next(now_ns)
        self._pacer.frame_sent(stamp, time.monotonic())  # before a result can come
        self._last_ns = self._pace_clock.now().nanoseconds
        self._publish(rendered, stamp)
        self._count += 1
        if not c.endless and self._count == c.frames:
            self._finish()

    def _may_publish(self) -> bool:
        """True if a period is over and the last frame has a result or timed out."""
        c, since_ns = self.config, self._pace_clock.now().nanoseconds - self._last_ns
        # Negative: the clock was set back, or the simulation restarted.
        early = self._count > 0 and 0 <= since_ns < 1e9 / c.rate_hz
        if early or not self._pacer.may_send(time.monotonic()):
            return False
        if self._pacer.missed:
            self.get_logger().warning(
                f"no result on {self._results.topic_name} within {c.pace_timeout_s:g} s of its "
                "frame: the next frame is published without it",
                once=True,
            )
        return True

    def _on_result(self, message: Any) -> None:
        self._pacer.result_received(stamp_ns(message.header.stamp))

    def _publish(self, rendered: _RenderedFrame, stamp_ns: int) -> None:
        """Publish poses first, so that they arrive before the image."""
        c, lib, T = self.config, self._lib, rendered.T_room_camera
        first = self._outputs[0].frame_id
        self._publish_odometry(T, stamp_ns)
        if _has_subscriber(self._truth_pose):
            self._truth_pose.publish(build.pose_stamped(lib, stamp_ns, c.room_frame, T))
        if _has_subscriber(self._truth_odom):
            self._truth_odom.publish(build.odometry(lib, stamp_ns, c.room_frame, first, T))
        if _has_subscriber(self._truth_depth):
            self._truth_depth.publish(build.image(lib, stamp_ns, first, rendered.depth))
        assert self._calibration is not None
        for output, image in zip(self._outputs, rendered.images, strict=True):
            frame_id = output.frame_id
            output.info.publish(
                build.calibration_message(lib, stamp_ns, frame_id, self._calibration)
            )
            image.header = build.header(lib, stamp_ns, frame_id)
            output.image.publish(image)

    def _publish_odometry(self, T_room_camera: Array, stamp_ns: int) -> None:
        c, odometry = self.config, self._odometry
        seconds = 1.0 / c.rate_hz if self._count else 0.0
        T_odom_base = odometry.move(T_room_camera, seconds)
        if self._odom is not None:
            base = c.odometry_child == "base"
            self._odom.publish(
                build.odometry(
                    self._lib, stamp_ns, c.odom_frame,
                    c.base_frame if base else self._outputs[0].frame_id,
                    T_odom_base if base else odometry.T_odom_camera, odometry.covariance,
                )
            )  # fmt: skip
        if c.publish_tf:
            edge = (stamp_ns, c.odom_frame, c.base_frame, T_odom_base)
            self._tf.publish(build.tf(self._lib, [edge]))

    def _publish_static(self) -> None:
        now_ns = self.get_clock().now().nanoseconds
        c, (first, *others) = self.config, [output.frame_id for output in self._outputs]
        edges = [
            (now_ns, first, frame_id, rig_mount(i, c.camera_baseline_m, c.camera_yaw_deg))
            for i, frame_id in enumerate(others, start=1)
        ]
        if c.publish_tf:
            edges.append((now_ns, c.base_frame, first, self._odometry.T_base_camera))
        self._tf_static.publish(build.tf(self._lib, edges))

    def _finish(self) -> None:
        self._timer.cancel()
        self.get_logger().info(f"all {self._count} frames are published")
        if self.config.exit_when_done:
            # A destroyed reliable writer delivers no more messages.
            for output in self._outputs:
                output.image.wait_for_all_acked(Duration(seconds=2))
            self.done = True


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until SIGINT, SIGTERM or its end; returns the exit status."""
    stop = threading.Event()
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, lambda *_: stop.set())
    rclpy.init(
        args=None if args is None else list(args), signal_handler_options=SignalHandlerOptions.NO
    )
    try:
        node = SyntheticCameraNode()
    except (ParameterException, ConfigError) as error:
        rclpy.logging.get_logger("synthetic_camera").fatal(str(error))
        rclpy.shutdown()
        return 1
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not (stop.is_set() or node.done):
        executor.spin_once(timeout_sec=0.2)
    _exit(node, executor)


def _exit(node: SyntheticCameraNode, executor: SingleThreadedExecutor) -> NoReturn:
    status = int(node.failed)
    node.close()
    executor.shutdown()
    node.destroy_node()
    rclpy.shutdown()
    exit_process(status)


def _read_config(node: Node) -> CameraConfig:
    """Declare all parameters, fixed at start, and read them."""
    values: dict[str, Any] = {}
    for parameter in parameters(CameraConfig()):
        is_list = isinstance(parameter.value, tuple)
        about: ParameterDescriptor = descriptor(parameter)
        about.read_only = True
        default = list(parameter.value) if is_list else parameter.value
        value = node.declare_parameter(parameter.name, default, about).value
        values[parameter.name] = tuple(value or ()) if is_list else value
    return CameraConfig(**values)


def _make_camera(cls: type[SyntheticCamera], c: CameraConfig, number: int) -> SyntheticCamera:
    from da3_ros.synthetic import Pace

    return cls(
        c.seed, (c.width, c.height), c.fov_deg, c.walk, c.walk_frames, c.rate_hz, c.noise_sigma,
        c.exposure_drift, distortion_model=c.distortion_model, D=c.distortion,
        pace=Pace(c.rate_hz, c.max_speed_m_s, c.max_turn_deg_s),
        mount=rig_mount(number, c.camera_baseline_m, c.camera_yaw_deg),
    )  # fmt: skip


def _sibling(node: Node, topic: str, name: str) -> str:
    """Returns the remapped ``name``; if it is not remapped, the sibling of ``topic``."""
    resolved = node.resolve_topic_name(name)
    if resolved != node.resolve_topic_name(name, only_expand=True):
        return resolved
    return f"{topic.rpartition('/')[0]}/{name.rpartition('/')[2]}"


def _in_encoding(rgb: Image, encoding: str) -> Image:
    """Converts to the encoding: uint8 [H, W, 3] or, for mono8, [H, W]."""
    if encoding == "mono8":
        return cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)  # type: ignore[return-value]
    return rgb[..., ::-1] if encoding == "bgr8" else rgb


def _has_subscriber(publisher: Publisher) -> bool:
    return publisher.get_subscription_count() > 0


if __name__ == "__main__":
    sys.exit(main())
