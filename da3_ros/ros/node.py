"""The live node: lifecycle, topics and services around one stream.

One SingleThreadedExecutor runs the callbacks, which only enqueue; one worker thread owns the
device.
"""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Imu

from da3_ros.inference.devices import release_memory
from da3_ros.live.scene_output import IDLE_S
from da3_ros.live.stream import RawFrame, Stream
from da3_ros.messages.imu import TOPIC as IMU_TOPIC
from da3_ros.messages.imu import read_imu
from da3_ros.messages.odometry_tf import add_odometry
from da3_ros.messages.outputs import Published
from da3_ros.msg import Status
from da3_ros.network import MODELS
from da3_ros.parameter_schema import ConfigError
from da3_ros.ros import parameters
from da3_ros.ros import status_report as report
from da3_ros.ros.camera_subscriber import GRAPH_PERIOD_S, SAME_S, CameraInputs
from da3_ros.ros.conflict_watch import ConflictWatch
from da3_ros.ros.global_pose import GlobalPoseInput
from da3_ros.ros.initial_pose import InitialPose
from da3_ros.ros.map_display import MapDisplay
from da3_ros.ros.node_log import NodeLog
from da3_ros.ros.parameter_changes import ParameterChanges
from da3_ros.ros.process_exit import exit_process
from da3_ros.ros.publishers import Topics
from da3_ros.ros.qos import Endpoints
from da3_ros.ros.range_subscriber import RangeInputs
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.ros.services import Services
from da3_ros.ros.slam_path import SlamPathInput
from da3_ros.ros.stream_runner import EXPECTED, STOP_S, StreamRunner
from da3_ros.ros.tf_subscriber import SentTransforms, TfInput, TfPublishers
from da3_ros.ros.viewer_commands import ViewerCommands
from da3_ros.sensors.imu_input import ImuError
from da3_ros.sensors.pose_prior import PriorError
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.viewer.feed import ViewerFeed

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
STATUS_PERIOD_S = 1.0
PUBLISH_STOP_S = 0.25  # longest wait, twice, for messages that are being published
CLOSE_S = 3.0  # limit of a whole shutdown: the process must end within four seconds
FILES_S = 0.7  # longest wait for a part of a file that is being written
ANSWER_S = 0.3  # longest wait for the responses of services
TAKE_S = 0.1  # wait for requests that the executor has not taken yet
# Silence after which another publisher of a transform counts as gone. Multiplied by a random
# factor of 1 to 2, so that of two nodes that yield to each other one resumes first.
OWNER_GONE_S = 5.0


class Da3Node(LifecycleNode):
    """``da3``: camera topics in; depth, poses, clouds, transforms and an export service out."""

    def __init__(self, **options: Any) -> None:
        super().__init__("da3", **options)
        self.log = NodeLog(self.get_logger())
        self.log.attach()
        parameters.declare(self)
        self.steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.library = RclpyLibrary()
        self.endpoints = Endpoints(self)
        self.runner: StreamRunner | None = None  # while the node is configured
        self.input: CameraInputs | None = None  # while it is active
        self.tf_input: TfInput | None = None
        self._odometry: Any = None
        self._imu: Any = None
        self._initial_pose: InitialPose | None = None
        self._slam_path: SlamPathInput | None = None
        self._ranges: RangeInputs | None = None
        self._global_pose: GlobalPoseInput | None = None
        self._viewer_commands: ViewerCommands | None = None
        self.enabled = True
        self._closing = False
        self.ending: Callable[[], bool] = lambda: False  # returns True if the process must end
        self._sent = SentTransforms()
        self.topics = Topics(self.endpoints, self.library, self._sent)
        self._tf_publishers = TfPublishers(self)
        self.parameter_changes = ParameterChanges(self, lambda: self.runner, self.log)
        self._map_display = MapDisplay(self.topics, self.log)
        self._conflict_watch = ConflictWatch(self, self.topics, self.log)
        self.requests = Services(self)
        self._status = self.topics.advertise("status", Status, latched=True)
        self._diagnostics = self.topics.advertise("/diagnostics", DiagnosticArray, depth=10)
        self._timers_on()
        if self.get_parameter("autostart").value:
            self._start_timer = self.create_timer(0.0, self._autostart, clock=self.steady)

    # Lifecycle ---------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the parameters and load the network."""
        if self._closing:
            return FAILURE
        try:
            self._configure()
        except EXPECTED as error:
            return self._configuring_failed(str(error))
        except Exception as error:  # rclpy would ignore it silently
            return self._configuring_failed(f"configuring failed: {type(error).__name__}: {error}")
        self.log.last_error = self.log.failure = ""
        return SUCCESS

    def _configure(self) -> None:
        config = parameters.read(self)
        transforms = TransformTree(gone_s=OWNER_GONE_S * (1 + random.random()))
        stream = Stream(config, self.library, self, transforms)
        self.runner = StreamRunner(stream, self.log)
        self.runner.submit(lambda: stream.warm_up(self._is_stop_requested))
        names = config.pipeline.cameras or ("",), tuple(stream.scene_streams)
        if self.topics.create(*names) and config.pipeline.occupancy.updates:
            self.warn(
                "occupancy.updates is on, but map_msgs is not installed (apt install "
                "ros-$ROS_DISTRO-map-msgs): whole grids are sent"
            )
        self.tf_input = TfInput(
            self.endpoints, transforms, self._tf_publishers, self._sent,
            lambda text: self.warn(text, SAME_S),
        )  # fmt: skip
        if stream.view is not None and config.viewer.control:
            self._viewer_commands = stream.view.feed.commands = ViewerCommands(self)
        spec = MODELS[config.pipeline.inference.model]
        device = stream.session.status().device or "?"
        self.log.logger.info(f"{spec.name} on {device}, weights under {spec.license}")

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe. On an error the node stays inactive and keeps its network and scene."""
        if self._closing:
            return FAILURE
        if self.runner is None or self.runner.worker.stopping:
            return self._failed("a cleanup has not finished: clean up again")
        try:
            self._subscribe(self.runner)
        except Exception as error:  # rclpy would ignore it silently
            known = isinstance(error, EXPECTED)
            text = str(error) if known else f"activating failed: {type(error).__name__}: {error}"
            self._close_input()
            return self._failed(text)
        self.log.failure = ""
        return super().on_activate(state)

    def _subscribe(self, runner: StreamRunner) -> None:
        stream = runner.stream
        if stream.prior is not None and stream.prior.source == "odometry":
            # Best effort is compatible with every publisher; a lost pose is interpolated.
            qos = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
            self._odometry = self.endpoints.subscribe(Odometry, "odometry", self._on_odometry, qos)
        if stream.imu is not None:
            # Drivers send several hundred messages per second, and some of them in bursts.
            qos = QoSProfile(depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT)
            self._imu = self.endpoints.subscribe(Imu, IMU_TOPIC, self._on_imu, qos)
        self._initial_pose = InitialPose(self.endpoints, runner, self.log.logger.info)
        self._global_pose = GlobalPoseInput(
            self.endpoints, stream.anchors, lambda text: self.warn(text, SAME_S)
        )
        config = stream.config
        if config.pipeline.pose_prior.corrections == "path":
            self._slam_path = SlamPathInput(
                self.endpoints, runner, lambda text: self.warn(text, SAME_S)
            )
        if stream.ranges is not None:
            self._ranges = RangeInputs(
                self, self.endpoints, self.library, stream.ranges, lambda text: self.warn(text)
            )
        self.input = CameraInputs(
            self, config.input, config.pipeline.cameras, self.endpoints, self
        )
        if text := parameters.unknown_overrides(self):
            self.warn(text)
        self.log.logger.info(f"waiting for {self.input.image_topics}")

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the subscriptions; received images are still processed."""
        self._close_input()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the device after the running window. A failed cleanup can be tried again."""
        if not self._finish("cleanup"):
            return FAILURE
        self.log.failure = ""
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Clean up from any state; there is no second attempt."""
        self._close_input()
        if self._finish("shutdown"):
            return SUCCESS
        if self.runner is not None:
            self.runner.stop(0.0, 0.0)  # they stop as soon as they can
        return FAILURE

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return to unconfigured after an error in a transition, with everything released."""
        self.log.transition_failed(
            f"error in state {state.label}; everything is released, configure again"
        )
        self._close_input()
        return SUCCESS if self._finish("cleanup") else FAILURE

    def close(self) -> bool:
        """End the node's work; False if the worker still runs a window."""
        end = time.monotonic() + CLOSE_S
        self._closing = True
        self.requests.close(0.0)  # a file export stops while we wait for the window
        self._close_input()
        self.log.detach()
        done = self.runner is None or self.runner.stop(STOP_S, PUBLISH_STOP_S)
        if done:
            self._release()
        return self.requests.close(max(0.0, min(FILES_S, end - time.monotonic()))) and done

    # What the stream needs (called from the worker) ----------------------------------------------

    def publish(self, published: Published) -> None:
        """Publish one message."""
        if not self._closing:
            self.topics.publish(published)

    def has_subscribers(self, topic: str) -> bool:
        """True if a topic of this node has a subscriber."""
        return self.topics.has_subscribers(topic)

    def now_ns(self) -> int:
        """ROS time, nanoseconds."""
        return int(self.get_clock().now().nanoseconds)

    def warn(self, text: str, every_s: float = 0.0, about: str = "") -> None:
        """Log a warning (see NodeLog.warn)."""
        self.log.warn(text, every_s, about)

    def stopping(self) -> bool:
        """True if the stream is about to end."""
        return self._closing or self.runner is None or self.runner.worker.stopping

    def _is_stop_requested(self) -> bool:
        """True if the stream ends, or if a cleanup waits for the worker and may give up."""
        return self.stopping() or (self.runner is not None and self.runner.worker.stop_requested)

    def forget_input(self) -> None:
        """Start a new stream: forget data collected from the inputs."""
        if self.input is not None:
            self.input.reset()

    # What the cameras' inputs need -------------------------------------------------------------

    def take(self, raw: RawFrame) -> None:
        """Take an image that is paired with its calibration."""
        if self.runner is None:
            return
        if not self.enabled:
            self.discard("paused", 1)
            return
        self.runner.stream.put(raw)
        self.runner.worker.notify()

    def drop(self, cause: str, text: str) -> None:
        """Count an image that cannot be used, and warn with ``text``."""
        self.discard(cause, 1)
        self.warn(text, every_s=SAME_S, about=cause)

    def discard(self, cause: str, images: int) -> None:
        """Count images that are not used on purpose, without a warning."""
        if self.runner is not None:
            self.runner.stream.frame_counts.discard(cause, images)

    # Callbacks ---------------------------------------------------------------------------------

    def _on_odometry(self, message: Odometry) -> None:
        prior = None if self.runner is None else self.runner.stream.prior
        if prior is None:
            return
        try:
            add_odometry(prior, message)
        except PriorError as error:
            self.warn(f"odometry: {error}", every_s=SAME_S)

    def _on_imu(self, message: Imu) -> None:
        imu = None if self.runner is None else self.runner.stream.imu
        if imu is None:
            return
        try:
            imu.history.add(read_imu(message))
        except ImuError as error:
            self.warn(f"imu: {error}", every_s=SAME_S)

    def _on_graph(self) -> None:
        self.parameter_changes.restore_budget()
        if self.input is not None:
            self.input.update()
        if self._ranges is not None:
            self._ranges.update()
        for text in self.endpoints.warnings(time.monotonic()):
            self.warn(text)
        self._conflict_watch.update(self.input)
        self._map_display.update(self.runner)

    def _on_idle(self) -> None:
        # An inactive node repeats no transforms; a paused one does.
        if self.input is not None and self.runner is not None and not self._closing:
            self.runner.stream.repeat_transforms()

    def _on_status(self) -> None:
        if not self._closing:
            stream = None if self.runner is None else self.runner.stream
            facts = self._facts()
            self._status.publish(report.status(facts, stream))
            diagnostics = report.diagnostics(facts, stream)
            self._diagnostics.publish(diagnostics)
            if stream is not None and stream.view is not None:
                self._show_state(stream.view.feed, diagnostics.status[0])

    def _show_state(self, feed: ViewerFeed, status: DiagnosticStatus) -> None:
        """Show the state in the viewer, and the values of what its page may change."""
        feed.take_state({v.key: v.value for v in status.values} | {"health": status.message})
        if self._viewer_commands is not None:
            live = {name: self.get_parameter(name).value for name in parameters.LIVE}
            plain = {
                name: v if isinstance(v, bool | int | float | str) else list(v)
                for name, v in live.items()
                if v is not None
            }
            feed.take_settings({"enabled": self.enabled, "parameters": plain})

    def _facts(self) -> report.NodeFacts:
        return report.NodeFacts(
            name=self.get_fully_qualified_name(),
            library=self.library,
            now_ns=self.now_ns(),
            state=self._state_machine.current_state[1],
            enabled=self.enabled,
            last_error=self.log.last_error,
            failure=self.log.failure,
            images=None if self.input is None else self.input.facts(),
            conflicts=self._conflict_watch.conflicts.lasting,
            mesh_percent=self.requests.stored_exports.percent,
        )

    # Parts -------------------------------------------------------------------------------------

    def _autostart(self) -> None:
        self._start_timer.cancel()
        if not self._closing and self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def _timers_on(self) -> None:
        # Steady time: timers on the ROS clock never fire before the first /clock.
        self.create_timer(GRAPH_PERIOD_S, self._on_graph, clock=self.steady)
        self.create_timer(STATUS_PERIOD_S, self._on_status, clock=self.steady)
        self.create_timer(IDLE_S, self._on_idle, clock=self.steady)

    def _configuring_failed(self, text: str) -> TransitionCallbackReturn:
        self._finish("configuring")
        return self._failed(text)

    def _failed(self, text: str) -> TransitionCallbackReturn:
        self.log.transition_failed(text)
        return FAILURE

    def _close_input(self) -> None:
        if self.input is not None:
            self.input.close()
            self.input = None
            if self.runner is not None:
                self.runner.stream.put_rest()
                self.runner.worker.notify()
        if self._odometry is not None:
            self.endpoints.drop_subscription(self._odometry)
            self._odometry = None
        if self._imu is not None:
            self.endpoints.drop_subscription(self._imu)
            self._imu = None
        if self._initial_pose is not None:
            self._initial_pose.close()
            self._initial_pose = None
        if self._slam_path is not None:
            self._slam_path.close()
            self._slam_path = None
        if self._ranges is not None:
            self._ranges.close()
            self._ranges = None
        if self._global_pose is not None:
            self._global_pose.close()
            self._global_pose = None

    def _finish(self, what: str) -> bool:
        """Stop the work between two windows and release everything; ``what`` names the transition.

        False, with a log line, if the running window takes too long; then nothing has changed.
        """
        reason = "" if self.runner is None else self.runner.try_stop(what, self.ending)
        if reason:
            self.log.transition_failed(reason)
            return False
        self._release()
        return True

    def _release(self) -> None:
        """Release publishers, network and received data."""
        if self.tf_input is not None:
            self.tf_input.close()
            self.tf_input = None
        self.runner = None
        if self._viewer_commands is not None:
            self._viewer_commands.close()
            self._viewer_commands = None
        self.parameter_changes.forget()
        self._map_display.forget()
        self.topics.drop()
        release_memory()


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; it ends within four seconds, even during a window."""
    gc.enable()
    gc.freeze()  # what was imported stays: to search it for garbage stops all threads for 0.1 s
    stop = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()

    # Not rclpy's handler: it would shut its context down first, and the worker's publish would
    # raise.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = Da3Node()
    except (rclpy.exceptions.InvalidParameterTypeException, ConfigError) as error:
        sys.stderr.write(f"da3_node: {error}\n")
        rclpy.try_shutdown()
        return 2
    node.ending = stop.is_set
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    _spin(executor, node, lambda: not stop.is_set())
    done = node.close()
    _answer_callers(executor, node)
    if done:
        executor.shutdown(timeout_sec=0.5)
        node.destroy_node()
        rclpy.try_shutdown()
        # The middleware frees its shared memory (2 x 17 MB of Fast DDS) with the last handle, and
        # some handles are in reference cycles: without a collection the memory would stay.
        del node, executor
        gc.collect()
    else:  # the network runs C++ code that cannot be interrupted
        node.log.logger.info("stopped during a window")
    exit_process(0)


def _answer_callers(executor: SingleThreadedExecutor, node: Da3Node) -> None:
    """Answer the requests of a closed node, also those that the executor has not taken yet."""
    closed_s = time.monotonic()

    def unanswered() -> bool:
        waited_s = time.monotonic() - closed_s
        return waited_s < TAKE_S or (node.requests.waiting > 0 and waited_s < ANSWER_S)

    _spin(executor, node, unanswered)


def _spin(executor: SingleThreadedExecutor, node: Da3Node, while_: Callable[[], bool]) -> None:
    while while_():
        try:
            executor.spin_once(timeout_sec=0.05 if node.ending() else 0.2)
        except Exception as error:  # of one callback: the others continue
            node.log.callback_failed(error)


if __name__ == "__main__":
    sys.exit(main())
