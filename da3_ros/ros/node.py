"""The live node: lifecycle, topics and services around one stream. Thin on purpose.

One SingleThreadedExecutor runs the callbacks, which only enqueue; one worker thread owns the
device.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.signals import SignalHandlerOptions
from std_srvs.srv import SetBool, Trigger
from tf2_msgs.msg import TFMessage

from da3_ros.config import ConfigError
from da3_ros.inference import BudgetError, DeviceError
from da3_ros.mapping.export import ExportError, Selection
from da3_ros.msg import Status
from da3_ros.network import MODELS, CheckpointError
from da3_ros.pose_prior import PriorError
from da3_ros.ros import parameters, report
from da3_ros.ros.camera_input import GRAPH_PERIOD_S, CameraInput
from da3_ros.ros.export_path import PathError, resolve_inside
from da3_ros.ros.outputs import FRAME_TOPICS, MAP_TOPIC, PATH_TOPIC, WINDOW_TOPIC, Published
from da3_ros.ros.prior_input import add_odometry
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.ros.stream import Pending, Stream
from da3_ros.ros.tf_input import TfInput
from da3_ros.ros.worker import Worker, WorkerStoppedError
from da3_ros.srv import ExportScene
from da3_ros.transforms import TransformTree

STATUS_PERIOD_S = 1.0
STOP_S = 2.5  # how long the end waits for a window under way
DEPTHS = {"pose": 10, "odom": 10, "window": 5, "/tf": 100}
LATCHED = ("path", "map/points", "status")
FORMATS = {"glb": ".glb", "ply": ".ply", "tum": ".tum", "": ""}


class RosLog(logging.Handler):
    """Hands what the ROS-free rooms log to the node's logger."""

    def __init__(self, node: LifecycleNode) -> None:
        super().__init__()
        self._logger = node.get_logger()

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record at its own level."""
        text = record.getMessage()
        # rclpy allows one severity per calling line, so each level has a line of its own.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        else:
            self._logger.info(text)


class Da3Node(LifecycleNode):
    """``da3``: camera topics in; depth, poses, clouds, transforms and an export service out."""

    def __init__(self, **options: Any) -> None:
        super().__init__("da3", **options)
        self._log = RosLog(self)
        logging.getLogger("da3_ros").addHandler(self._log)
        parameters.declare(self)
        self.add_on_set_parameters_callback(self._on_parameters)
        self.steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.library = RclpyLibrary()
        self.stream: Stream | None = None
        self.worker: Worker | None = None
        self.input: CameraInput | None = None
        self.tf_input: TfInput | None = None
        self._odometry: Any = None
        self.transforms = TransformTree()
        self.enabled = True
        self.last_error = ""
        self._topics: dict[str, Any] = {}
        self._map_subscribers = 0
        self._closing = False
        self._create_services()
        self._status = self._publisher("status", Status)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._timers_on()
        if self.get_parameter("autostart").value:
            self._start_timer = self.create_timer(0.0, self._autostart, clock=self.steady)

    # Lifecycle ---------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the parameters and load the network."""
        try:
            config = parameters.read(self)
            self.transforms = TransformTree()
            self.stream = Stream(config, self.library, self, self.transforms)
        except (ConfigError, CheckpointError, DeviceError, BudgetError) as error:
            return self._failed(str(error))
        self.last_error = ""
        self.worker = Worker(self.stream.step, self._on_worker_error)
        self._create_publishers()
        self.tf_input = TfInput(self, self.transforms, self._is_ours)
        spec = MODELS[config.pipeline.inference.model]
        device = getattr(self.stream.pipeline.session, "device", "?")
        self.get_logger().info(f"{spec.name} on {device}, weights under {spec.license}")
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe."""
        assert self.stream is not None
        if self.stream.prior is not None and self.stream.prior.source == "odometry":
            self._odometry = self.create_subscription(
                Odometry, "odometry", self._on_odometry, QoSProfile(depth=50)
            )
        self.input = CameraInput(self, self.stream.config.input, self._on_frame, self._on_bad)
        self.get_logger().info(f"waiting for {self.input.image_topic}")
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the subscriptions; what was received is still processed."""
        self._close_input()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the device."""
        self._release()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """As cleanup, from any state."""
        self._close_input()
        self._release()
        return TransitionCallbackReturn.SUCCESS

    def close(self) -> bool:
        """End the node's work; False if a window is still under way on the worker."""
        self._closing = True
        self._close_input()
        logging.getLogger("da3_ros").removeHandler(self._log)
        return self._release()

    # What the stream needs (called from the worker) ----------------------------------------------

    def publish(self, published: Published) -> None:
        """Publish one message."""
        topic, _, message = published
        publisher = self._topics.get(topic)
        if publisher is not None and not self._closing:
            publisher.publish(message)

    def wanted(self, topic: str) -> bool:
        """Whether somebody subscribes to a topic of ours."""
        publisher = self._topics.get(topic)
        return publisher is not None and publisher.get_subscription_count() > 0

    def now_ns(self) -> int:
        """The ROS clock, nanoseconds."""
        return int(self.get_clock().now().nanoseconds)

    def warn(self, text: str, every_s: float = 0.0) -> None:
        """Log a warning, at most every so often; it is the status's last error too."""
        self.last_error = text
        if every_s:
            self.get_logger().warning(text, throttle_duration_sec=every_s)
        else:
            self.get_logger().warning(text)

    def stopping(self) -> bool:
        """Whether the end is near."""
        return self._closing or self.worker is None or self.worker.stopping

    # Callbacks ---------------------------------------------------------------------------------

    def _on_frame(self, pending: Pending) -> None:
        if self.stream is None or self.worker is None:
            return
        if not self.enabled:
            self.stream.received += 1
            self.stream.drops["paused"] += 1
            return
        self.stream.put(pending)
        self.worker.notify()

    def _on_odometry(self, message: Odometry) -> None:
        if self.stream is None or self.stream.prior is None:
            return
        try:
            add_odometry(self.stream.prior, message)
        except PriorError as error:
            self.warn(f"odometry: {error}", every_s=5.0)

    def _on_bad(self, text: str) -> None:
        if self.stream is not None:
            self.stream.received += 1
            self.stream.drops["bad_image"] += 1
        self.warn(text, every_s=5.0)

    def _on_worker_error(self, error: BaseException) -> None:
        if self.stream is not None:
            self.stream.drops["failed"] += 1
        self.last_error = f"a window failed: {type(error).__name__}: {error}"
        self.get_logger().error(self.last_error)

    def _on_graph(self) -> None:
        if self.input is not None:
            self.input.update()
        count = self._topics["map/points"].get_subscription_count() if self._topics else 0
        if count > self._map_subscribers and self.stream is not None and self.worker is not None:
            self.worker.submit(self.stream.publish_map)
        self._map_subscribers = count

    def _on_status(self) -> None:
        if not self._closing:
            state = self._state_machine.current_state[1]
            self._status.publish(report.status(self, self.stream, state))
            self._diagnostics.publish(report.diagnostics(self, self.stream, state))

    def _on_parameters(self, changes: list[Parameter]) -> Any:
        """Accept what takes effect, refuse the rest with the reason."""
        fixed = [c.name for c in changes if not parameters.is_dynamic(c.name)]
        known = [name for name in fixed if name in parameters.NAMES]
        if known and self.stream is not None:
            return parameters.refuse(
                f"{known[0]} cannot change while the node is configured: "
                "deactivate and clean up first"
            )
        try:
            config = parameters.read(self, changes)
        except ConfigError as error:
            return parameters.refuse(str(error))
        if self.stream is not None and self.worker is not None:
            self.worker.submit(lambda: self.stream and self.stream.reconfigure(config.pipeline))
        return parameters.accept()

    # Services ----------------------------------------------------------------------------------

    def _create_services(self) -> None:
        # A group of their own: in the default one, awaiting the worker would freeze the executor.
        group = ReentrantCallbackGroup()
        for kind, name, callback in (
            (ExportScene, "~/export_scene", self._on_export),
            (Trigger, "~/reset", self._on_reset),
            (SetBool, "~/enable", self._on_enable),
        ):
            self.create_service(kind, name, callback, callback_group=group)

    async def _on_export(self, request: Any, response: Any) -> Any:
        if self.stream is None:
            response.message = "the node is not configured: there is no scene"
            return response
        try:
            await self._export(self.stream, request, response)
        except (ExportError, PathError, WorkerStoppedError) as error:
            response.success, response.message = False, str(error)
        return response

    async def _export(self, stream: Stream, request: Any, response: Any) -> None:
        form = request.format.lower().lstrip(".")
        if form not in FORMATS:
            known = ", ".join(f for f in FORMATS if f)
            raise ExportError(f"unknown format {request.format!r}: one of {known}, or empty")
        path = resolve_inside(stream.config.export_dir, request.path, FORMATS[form])
        selection = Selection(
            voxel=request.voxel_m,
            min_confidence=request.min_confidence,
            max_points=request.max_points,
            crop=tuple(float(v) for v in request.crop),
            cameras=request.include_cameras,
        )
        written, points = await self._on_worker(lambda: stream.export(path, selection))
        response.success, response.path = True, str(written)
        response.points, response.bytes = points, written.stat().st_size
        response.message = f"{points} points in {written}"

    async def _on_reset(self, request: Any, response: Any) -> Any:
        if self.stream is None:
            response.message = "the node is not configured: there is nothing to reset"
            return response
        try:
            await self._on_worker(self.stream.reset)
        except WorkerStoppedError as error:
            response.message = str(error)
            return response
        if self.input is not None:
            self.input.reset()
        response.success, response.message = True, "window, odometry and map start anew"
        return response

    def _on_enable(self, request: Any, response: Any) -> Any:
        self.enabled = bool(request.data)
        response.success = True
        response.message = "inference goes on" if self.enabled else "inference is paused"
        return response

    def _on_worker(self, job: Callable[[], Any]) -> Any:
        """An awaitable for a job on the worker; its end wakes the executor."""
        future = rclpy.task.Future(executor=self.executor)
        if self.worker is None:
            raise WorkerStoppedError("the node is not configured")

        def done(result: Future[Any]) -> None:
            error = result.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result.result())
            if self.executor is not None:
                self.executor.wake()

        self.worker.submit(job).add_done_callback(done)
        return future

    # Parts -------------------------------------------------------------------------------------

    def _autostart(self) -> None:
        self._start_timer.cancel()
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    def _timers_on(self) -> None:
        # Steady time: timers on the ROS clock never fire before the first /clock.
        self.create_timer(GRAPH_PERIOD_S, self._on_graph, clock=self.steady)
        self.create_timer(STATUS_PERIOD_S, self._on_status, clock=self.steady)

    def _create_publishers(self) -> None:
        topics = {**FRAME_TOPICS, **dict((WINDOW_TOPIC, PATH_TOPIC, MAP_TOPIC))}
        for topic, kind in topics.items():
            self._topics[topic] = self._publisher(topic, self.library.type(kind))

    def _publisher(self, topic: str, kind: Any) -> Any:
        latched = topic in LATCHED
        profile = QoSProfile(
            depth=DEPTHS.get(topic, 1),
            reliability=ReliabilityPolicy.RELIABLE,
            durability=(
                DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
            ),
        )
        name = topic if topic.startswith("/") else f"~/{topic}"
        options = QoSOverridingOptions.with_default_policies()
        # Not a lifecycle publisher: the last frames of a deactivated node are still delivered.
        return self.create_publisher(kind, name, profile, qos_overriding_options=options)

    def _is_ours(self, message: TFMessage, parent: str, child: str) -> bool:
        """Whether a transform came from this very node."""
        return self.stream is not None and (parent, child) in self.stream.own_edges

    def _failed(self, text: str) -> TransitionCallbackReturn:
        self.last_error = text
        self.get_logger().error(text)
        self._release()
        return TransitionCallbackReturn.FAILURE

    def _close_input(self) -> None:
        if self.input is not None:
            self.input.close()
            self.input = None
        if self._odometry is not None:
            self.destroy_subscription(self._odometry)
            self._odometry = None

    def _release(self) -> bool:
        """Stop the worker, drop publishers and the network; False if it is still in a window."""
        done = self.worker is None or self.worker.stop(STOP_S)
        if self.tf_input is not None:
            self.tf_input.close()
            self.tf_input = None
        self.worker = self.stream = None
        if done:
            for publisher in self._topics.values():
                self.destroy_publisher(publisher)
            self._topics = {}
        return done


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; gone within four seconds even in mid-window."""
    stop = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()

    # Ours, not rclpy's: it would shut its context first, and the worker's publish would raise.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = Da3Node()
    except rclpy.exceptions.InvalidParameterTypeException as error:
        sys.stderr.write(f"da3_node: {error}\n")
        rclpy.try_shutdown()
        return 2
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not stop.is_set():
        executor.spin_once(timeout_sec=0.2)
    finished = node.close()
    if not finished:
        # The network is in C++ code that nothing can interrupt, and tearing Python down around it
        # could crash: leave at once.
        node.get_logger().info("stopped in mid-window")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    executor.shutdown(timeout_sec=0.5)
    node.destroy_node()
    rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
