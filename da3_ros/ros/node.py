"""The live node: lifecycle, topics and services around one stream. Thin on purpose.

One SingleThreadedExecutor runs the callbacks, which only enqueue; one worker thread owns the
device.
"""

from __future__ import annotations

import gc
import logging
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from da3_ros.inference import BudgetError, DeviceError
from da3_ros.inference.devices import give_back
from da3_ros.live.log_throttle import Throttle
from da3_ros.live.publish_thread import Publisher
from da3_ros.live.stream import RawFrame, Stream
from da3_ros.live.tf_output import IDLE_S
from da3_ros.live.worker import Worker
from da3_ros.messages.odometry_tf import add_odometry
from da3_ros.messages.outputs import Published
from da3_ros.msg import Status
from da3_ros.network import MODELS, CheckpointError
from da3_ros.parameter_schema import ConfigError
from da3_ros.ros import parameters
from da3_ros.ros import status_report as report
from da3_ros.ros.camera_subscriber import GRAPH_PERIOD_S, SAME_S, CameraInputs
from da3_ros.ros.process_exit import leave
from da3_ros.ros.publishers import Topics
from da3_ros.ros.qos import Endpoints
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.ros.services import Services
from da3_ros.ros.tf_subscriber import SentTransforms, TfInput, TfPublishers
from da3_ros.sensors.pose_prior import PriorError
from da3_ros.sensors.transform_tree import TransformTree

EXPECTED = (ConfigError, CheckpointError, DeviceError, BudgetError)  # their texts say it all
SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
BUDGET = "memory_budget_gb"
STATUS_PERIOD_S = 1.0
PUBLISH_STOP_S = 0.25  # and, twice, for messages on their way out
CLOSE_S = 3.0  # for the whole end: the process is to be gone after four
STOP_S = 2.5  # how long the end waits for a window under way
FILES_S = 0.7  # and for the part of a file that is being written
ANSWER_S = 0.3  # and for the answers to callers of services
CLEANUP_S = 20.0  # how long a cleanup waits for a window under way
PUBLISH_CLEANUP_S = 5.0  # and, twice, for messages on their way out
TELL_S = 5.0  # between two lines about that
# Silence after which a transform's other publisher counts as gone. Up to twice as long, by chance:
# of two nodes that stop for each other, one is then the first to go on.
OWNER_GONE_S = 5.0


class RosLog(logging.Handler):
    """Hands what the ROS-free rooms log to the node's logger, warnings of one kind now and then.

    An error is the status's last error too.
    """

    def __init__(self, node: Da3Node) -> None:
        super().__init__()
        self._node, self._logger = node, node.get_logger()
        self._throttle = Throttle()

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record at its own level."""
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self._node.last_error = text
        if record.levelno >= logging.WARNING and not self._throttle.due(_kind(record), SAME_S):
            return
        # rclpy allows one severity per calling line, so each level has a line of its own.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        else:
            self._logger.info(text)


def _kind(record: logging.LogRecord) -> str:
    """What a record is about: its text before numbers come in, and the name that leads it."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
    return f"{record.msg} {first if isinstance(first, str) else ''}"


class Da3Node(LifecycleNode):
    """``da3``: camera topics in; depth, poses, clouds, transforms and an export service out."""

    def __init__(self, **options: Any) -> None:
        super().__init__("da3", **options)
        self._log = RosLog(self)
        rooms = logging.getLogger("da3_ros")
        rooms.addHandler(self._log)
        if rooms.level == logging.NOTSET:  # Python's own default lets no information through
            rooms.setLevel(logging.INFO)
        parameters.declare(self)
        self.add_on_set_parameters_callback(self._on_parameters)
        self.steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.library = RclpyLibrary()
        self.endpoints = Endpoints(self)
        self._throttle = Throttle()
        self.stream: Stream | None = None
        self.worker: Worker | None = None
        self.input: CameraInputs | None = None
        self.tf_input: TfInput | None = None
        self._odometry: Any = None
        self.transforms = TransformTree()
        self.enabled = True
        self.last_error = self.failure = ""
        self._map_subscribers = 0
        self._map_job: Future[Any] | None = None
        self._budget_job: Future[Any] | None = None  # of the newest change that was accepted
        self._restoring_budget = False
        self._closing = False
        self.ending: Callable[[], bool] = lambda: False  # whether the process is to end
        self._sent = SentTransforms()
        self.topics = Topics(self.endpoints, self.library, self._sent)
        self._tf_publishers = TfPublishers(self)
        self.requests = Services(self)
        self._status = self.topics.advertise("status", Status)
        self._diagnostics = self.topics.advertise("/diagnostics", DiagnosticArray)
        self._timers_on()
        if self.get_parameter("autostart").value:
            self._start_timer = self.create_timer(0.0, self._autostart, clock=self.steady)

    # Lifecycle ---------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the parameters and load the network."""
        try:
            self._configure()
        except EXPECTED as error:
            return self._failed(str(error))
        except Exception as error:  # rclpy would drop it without a word
            return self._failed(f"configuring failed: {type(error).__name__}: {error}")
        self.last_error = self.failure = ""
        return SUCCESS

    def _configure(self) -> None:
        config = parameters.read(self)
        self.transforms = TransformTree(gone_s=OWNER_GONE_S * (1 + random.random()))
        self.stream = Stream(config, self.library, self, self.transforms)
        self.stream.publisher = Publisher(self._on_publish_error)
        self.worker = Worker(self.stream.step, self._on_worker_error)
        warm_up = self.stream.warm_up
        self.worker.submit(lambda: warm_up(self._leaving)).add_done_callback(self._on_applied)
        self.topics.create(config.pipeline.cameras or ("",), tuple(self.stream.lanes))
        self.tf_input = TfInput(
            self.endpoints, self.transforms, self._tf_publishers, self._sent,
            lambda text: self.warn(text, SAME_S),
        )  # fmt: skip
        spec = MODELS[config.pipeline.inference.model]
        device = getattr(self.stream.pipeline.session, "device", "?")
        self.get_logger().info(f"{spec.name} on {device}, weights under {spec.license}")

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe. What breaks here leaves the node inactive, with its network and its scene."""
        if self.worker is None or self.worker.stopping:
            return self._say_failed("a cleanup has begun and is not done: clean up again")
        try:
            self._subscribe()
        except Exception as error:  # as above
            known = isinstance(error, EXPECTED)
            text = str(error) if known else f"activating failed: {type(error).__name__}: {error}"
            self._close_input()
            return self._say_failed(text)
        self.failure = ""
        return super().on_activate(state)

    def _subscribe(self) -> None:
        assert self.stream is not None
        if self.stream.prior is not None and self.stream.prior.source == "odometry":
            # Best effort hears every publisher, and a pose that is lost is interpolated.
            qos = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
            self._odometry = self.endpoints.subscribe(Odometry, "odometry", self._on_odometry, qos)
        config = self.stream.config
        self.input = CameraInputs(
            self, config.input, config.pipeline.cameras, self.endpoints, self
        )
        if text := parameters.unknown_overrides(self):
            self.warn(text)
        self.get_logger().info(f"waiting for {self.input.image_topics}")

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the subscriptions; what was received is still processed."""
        self._close_input()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the device, after the window under way. What fails can be tried again."""
        if not self._finish("cleanup"):
            return FAILURE
        self.failure = ""
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """As cleanup, from any state; there is no second try."""
        self._close_input()
        if self._finish("shutdown"):
            return SUCCESS
        self._stop_threads(0.0, 0.0)  # as soon as they can
        return FAILURE

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """A transition broke off in the middle: back to unconfigured, with nothing held."""
        self._say_failed(f"an error while {state.label}; clean, ready to be configured again")
        self._close_input()
        return SUCCESS if self._finish("cleanup") else FAILURE

    def callback_failed(self, error: Exception) -> None:
        """Log an unexpected exception of a callback; the node goes on."""
        self.last_error = f"a callback failed: {type(error).__name__}: {error}"
        place = traceback.extract_tb(error.__traceback__)[-1:]
        # Each fault by itself: rclpy's throttle would hide the second of two within a second.
        if self._throttle.due(f"{type(error).__name__} {place}", 1.0):
            self.get_logger().error(self.last_error)
        self.get_logger().debug("".join(traceback.format_exception(error)))

    def close(self) -> bool:
        """End the node's work; False if a window is still under way on the worker."""
        end = time.monotonic() + CLOSE_S
        self._closing = True
        self.requests.close(0.0)  # whoever writes a file leaves off while we wait for the window
        self._close_input()
        logging.getLogger("da3_ros").removeHandler(self._log)
        done = self._stop_threads(STOP_S, PUBLISH_STOP_S)
        if done:
            self._let_go()
        return self.requests.close(max(0.0, min(FILES_S, end - time.monotonic()))) and done

    # What the stream needs (called from the worker) ----------------------------------------------

    def publish(self, published: Published) -> None:
        """Publish one message."""
        if not self._closing:
            self.topics.publish(published)

    def wanted(self, topic: str) -> bool:
        """Whether a topic of ours has a subscriber."""
        return self.topics.wanted(topic)

    def now_ns(self) -> int:
        """The ROS clock, nanoseconds."""
        return int(self.get_clock().now().nanoseconds)

    def warn(self, text: str, every_s: float = 0.0, about: str = "") -> None:
        """Log a warning; it is the status's last error too.

        With ``every_s`` not more often than that ``about`` the same and with the same beginning up
        to the colon, which is the topic.
        """
        self.last_error = text
        if not every_s or self._throttle.due(about + text.partition(":")[0], every_s):
            self.get_logger().warning(text)

    def stopping(self) -> bool:
        """Whether the end is near."""
        return self._closing or self.worker is None or self.worker.stopping

    def _leaving(self) -> bool:
        """Whether the end is near, or a cleanup waits for the worker and may give up."""
        return self.stopping() or (self.worker is not None and self.worker.leaving)

    def forget_input(self) -> None:
        """The stream starts anew: forget what was gathered of the inputs."""
        if self.input is not None:
            self.input.reset()

    # What the cameras' inputs need -------------------------------------------------------------

    def take(self, pending: RawFrame) -> None:
        """An image that is paired with its calibration."""
        if self.stream is None or self.worker is None:
            return
        if not self.enabled:
            self.discard("paused", 1)
            return
        self.stream.put(pending)
        self.worker.notify()

    def drop(self, cause: str, text: str) -> None:
        """An image that is not used, and why in one line."""
        self.discard(cause, 1)
        self.warn(text, every_s=SAME_S, about=cause)

    def discard(self, cause: str, images: int) -> None:
        """So many images are not used, as was asked for."""
        if self.stream is not None:
            self.stream.received += images
            self.stream.drops.add(cause, images)

    # Callbacks ---------------------------------------------------------------------------------

    def _on_odometry(self, message: Odometry) -> None:
        if self.stream is None or self.stream.prior is None:
            return
        try:
            add_odometry(self.stream.prior, message)
        except PriorError as error:
            self.warn(f"odometry: {error}", every_s=SAME_S)

    def _on_publish_error(self, error: BaseException) -> None:
        if self.stream is not None:
            self.stream.publish_failed += 1  # no drop: the frame counts as processed
        self._say_error("publishing a frame failed", error)

    def _on_worker_error(self, error: BaseException) -> None:
        self._say_error("a window failed", error)

    def _say_error(self, what: str, error: BaseException) -> None:
        self.last_error = f"{what}: {type(error).__name__}: {error}"
        self.get_logger().error(self.last_error)

    def _on_graph(self) -> None:
        self._restore_budget()
        if self.input is not None:
            self.input.update()
        for text in self.endpoints.tell(time.monotonic()):
            self.warn(text)
        count = self.topics.map_subscribers()
        ready = self._map_job is None or self._map_job.done()  # else a window takes its time
        if count and ready and self.stream is not None and self.worker is not None:
            new = count > self._map_subscribers
            self._map_job = self.worker.submit(
                self.stream.publish_map if new else self.stream.refresh_map
            )
            self._map_job.add_done_callback(self._on_map_shown)
            self._map_subscribers = count
        self._map_subscribers = min(count, self._map_subscribers)

    def _on_map_shown(self, job: Future[Any]) -> None:
        error = job.exception()
        if error is not None and not self.stopping():
            self.warn(f"the map cannot be shown: {type(error).__name__}: {error}", every_s=SAME_S)

    def _on_idle(self) -> None:
        # An inactive node claims no transform; a paused one still does.
        if self.input is not None and self.stream is not None and not self._closing:
            self.stream.repeat_transforms()

    def _on_status(self) -> None:
        if not self._closing:
            state = self._state_machine.current_state[1]
            self._status.publish(report.status(self, self.stream, state))
            self._diagnostics.publish(report.diagnostics(self, self.stream, state))

    def _on_parameters(self, changes: list[Parameter]) -> Any:
        """Accept what takes effect, refuse the rest with the reason."""
        if self._restoring_budget:
            return parameters.accept()  # it is in force already
        if not any(change.name in parameters.NAMES for change in changes):
            return parameters.accept()  # rclpy's own, such as the QoS overrides it declares
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
        stream, worker = self.stream, self.worker
        if stream is not None and worker is not None:
            budget = any(change.name == BUDGET for change in changes)
            try:
                if budget:
                    stream.check_budget(config.pipeline.inference.memory_budget_gb)
            except BudgetError as error:
                return parameters.refuse(f"{BUDGET}: {error}")
            except Exception as error:  # passed on, it would leave the caller without an answer
                text = f"{BUDGET} cannot be checked: {type(error).__name__}: {error}"
                self.callback_failed(error)
                return parameters.refuse(text)
            job = worker.submit(lambda: stream.reconfigure(config.pipeline, budget=budget))
            job.add_done_callback(self._on_applied)
            self._budget_job = job if budget else self._budget_job
        return parameters.accept()

    def _restore_budget(self) -> None:
        """Where a budget was accepted and then did not fit, the parameter is the old one again."""
        if self.stream is None or self._budget_job is None or not self._budget_job.done():
            return
        self._budget_job = None
        in_force = self.stream.config.pipeline.inference.memory_budget_gb
        if self.get_parameter(BUDGET).value != in_force:
            self._restoring_budget = True
            try:
                self.set_parameters([Parameter(BUDGET, value=in_force)])
            finally:
                self._restoring_budget = False

    def _on_applied(self, job: Future[Any]) -> None:
        """Report a job that failed on the worker: nothing else reads its future."""
        error = job.exception()
        if error is not None and not self.stopping():
            known = isinstance(error, EXPECTED)
            self.last_error = str(error) if known else f"{type(error).__name__}: {error}"
            self.get_logger().error(self.last_error)

    # Parts -------------------------------------------------------------------------------------

    def _autostart(self) -> None:
        self._start_timer.cancel()
        if self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def _timers_on(self) -> None:
        # Steady time: timers on the ROS clock never fire before the first /clock.
        self.create_timer(GRAPH_PERIOD_S, self._on_graph, clock=self.steady)
        self.create_timer(STATUS_PERIOD_S, self._on_status, clock=self.steady)
        self.create_timer(IDLE_S, self._on_idle, clock=self.steady)

    def _failed(self, text: str) -> TransitionCallbackReturn:
        self._finish("configuring")
        return self._say_failed(text)

    def _say_failed(self, text: str) -> TransitionCallbackReturn:
        self.last_error = self.failure = text
        self.get_logger().error(text)
        return FAILURE

    def _close_input(self) -> None:
        if self.input is not None:
            self.input.close()
            self.input = None
            if self.stream is not None and self.worker is not None:
                self.stream.put_rest()
                self.worker.notify()
        if self._odometry is not None:
            self.endpoints.drop_subscription(self._odometry)
            self._odometry = None

    def _finish(self, what: str) -> bool:
        """End the work between two windows and let go of all; False, and said, if that hangs.

        The state is a consistent one then: with the window still under way nothing has changed.
        """
        if self.worker is not None and not self.worker.stopping:
            waiting = _Patience(what, self.get_logger().info, self.ending)
            if not self.worker.retire(waiting):
                self._say_failed(
                    f"{what} failed: the window under way has not ended within "
                    f"{waiting.elapsed_s:.0f} s; nothing was freed, try again later"
                )
                return False
        if not self._stop_threads(STOP_S, PUBLISH_CLEANUP_S):
            self._say_failed(f"{what} failed: messages are still on their way out; try again")
            return False
        self._let_go()
        return True

    def _stop_threads(self, window_s: float, publish_s: float) -> bool:
        """Stop the worker and the publisher; False if one is still busy after so long."""
        done = self.worker is None or self.worker.stop(window_s)
        publisher = None if self.stream is None else self.stream.publisher
        return (publisher is None or publisher.stop(publish_s if done else 0.0)) and done

    def _let_go(self) -> None:
        """Drop publishers, the network and all that was heard."""
        if self.tf_input is not None:
            self.tf_input.close()
            self.tf_input = None
        self.worker = self.stream = self._map_job = self._budget_job = None
        self._map_subscribers = 0
        self.topics.drop()
        give_back()


class _Patience:
    """How long an end waits for the window under way; says now and then that it does."""

    def __init__(self, what: str, say: Callable[[str], Any], ending: Callable[[], bool]) -> None:
        self._what, self._say, self._ending = what, say, ending
        self._since = time.monotonic()
        self._told_s = 0.5 - TELL_S  # most windows are over before there is anything to say

    @property
    def elapsed_s(self) -> float:
        """Since the waiting began."""
        return time.monotonic() - self._since

    def __call__(self) -> bool:
        elapsed_s = self.elapsed_s
        if elapsed_s - self._told_s >= TELL_S:
            self._told_s = elapsed_s
            self._say(f"{self._what} waits up to {CLEANUP_S:.0f} s for the window under way")
        return elapsed_s < CLEANUP_S and not self._ending()


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
    except (rclpy.exceptions.InvalidParameterTypeException, ConfigError) as error:
        sys.stderr.write(f"da3_node: {error}\n")
        rclpy.try_shutdown()
        return 2
    node.ending = stop.is_set
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    _spin(executor, node, lambda: not stop.is_set())
    done = node.close()
    end_s = time.monotonic() + ANSWER_S
    _spin(executor, node, lambda: node.requests.waiting > 0 and time.monotonic() < end_s)
    if done:
        executor.shutdown(timeout_sec=0.5)
        node.destroy_node()
        rclpy.try_shutdown()
        # The middleware frees its shared memory (2 x 17 MB of Fast DDS) with the last handle, and
        # some are in reference cycles: without this each start would leave that behind.
        del node, executor
        gc.collect()
    else:  # the network is in C++ code that nothing can interrupt
        node.get_logger().info("stopped in mid-window")
    leave(0)


def _spin(executor: SingleThreadedExecutor, node: Da3Node, while_: Callable[[], bool]) -> None:
    while while_():
        try:
            executor.spin_once(timeout_sec=0.05 if node.ending() else 0.2)
        except Exception as error:  # of one callback: the others go on
            node.callback_failed(error)


if __name__ == "__main__":
    sys.exit(main())
