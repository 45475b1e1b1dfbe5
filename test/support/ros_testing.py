"""For tests with real ROS processes: start them, wait for what must happen, end them.

Waiting is always for a condition (matched endpoints, a line of output, a message), never for a
fixed time. Everything here skips where rclpy is not importable.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import programs, shared_memory
from support.domains import domain as domain
from support.processes import delay_s, queued_s

rclpy = pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy  # noqa: E402

from da3_ros.ros.rclpy_library import RclpyLibrary  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "config" / "fastdds_images.xml"
PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
BEST_EFFORT = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)

PATIENCE_S = 120.0  # before a condition counts as never met: other work may share the processor


def environment(domain_id: int, **extra: str | None) -> dict[str, str]:
    """This process's environment for nodes of ``domain_id`` on this machine only.

    A variable whose value in ``extra`` is None is taken away.
    """
    wanted = {
        "ROS_DOMAIN_ID": str(domain_id),
        **({"ROS_LOCALHOST_ONLY": "1"} if os.environ.get("ROS_DISTRO") == "humble" else {}),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "PYTHONUNBUFFERED": "1",
        "RCUTILS_COLORIZED_OUTPUT": "0",
        **extra,
    }
    merged = {**os.environ, **wanted}
    return {name: value for name, value in merged.items() if value is not None}


def without_profile() -> dict[str, None]:
    """``extra`` for ``environment``: no Fast DDS profile, as in a process without our settings."""
    return dict.fromkeys(PROFILE_VARIABLES)


class Process:
    """A node in a process of its own; use it as a context manager, so that it never stays."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        """Run ``python command``, see `support.programs`."""
        self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self.command = command
        self._process = programs.start(command, env, self._file.name, self._file.name)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._file.close()
        shared_memory.remove_abandoned()

    @property
    def pid(self) -> int:
        """Of the process itself."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.exitcode is None

    def output(self) -> str:
        """What it has written so far, standard output and error together."""
        return Path(self._file.name).read_text(errors="replace")

    def wait_for(self, text: str, timeout_s: float = PATIENCE_S) -> None:
        """Until ``text`` is in the output; fails with the output if it ends or time runs out."""
        end = time.monotonic() + timeout_s
        while text not in self.output():
            if not self.running or time.monotonic() > end:
                pytest.fail(f"{text!r} never came from {self.command}:\n{self.output()}")
            time.sleep(0.02)

    def stop(self, sig: int = signal.SIGINT, timeout_s: float = 4.0) -> int:
        """Send ``sig`` and return the exit status; fails if it takes longer than ``timeout_s``.

        Time in which the process waits for a processor that others have does not count.
        """
        if self.running:
            os.kill(self.pid, sig)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Exit status of a process that ends by itself; fails when it does not."""
        end, before, late_s = time.monotonic() + timeout_s, queued_s(self.pid), 0.0
        while self.running and time.monotonic() < end + late_s:
            self._process.join(0.1)
            late_s = max(late_s, delay_s(before, queued_s(self.pid)))
        if self.running:
            pytest.fail(f"{self.command} did not end in {timeout_s} s:\n{self.output()}")
        return self._process.exitcode


def start(module: str, *ros_args: str, env: dict[str, str]) -> Process:
    """A node's module (``da3_ros.ros.node``) or script file as a process.

    ``ros_args`` stand behind ``--ros-args``: ``"-p", "rate_hz:=5.0", "-r", "__ns:=/robot"``.
    """
    target = [module] if module.endswith(".py") else ["-m", module]
    return Process([*target, "--ros-args", *ros_args], env)


@contextlib.contextmanager
def session(domain_id: int, name: str = "test_node") -> Iterator[Any]:
    """A node of this process in ``domain_id``, with an executor of its own (``node.executor``)."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment(domain_id).items():
            if key.startswith("ROS_"):
                patch.setenv(key, value)
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain_id)
    node = rclpy.create_node(name, context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    try:
        yield node
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)


def spin_until(node: Any, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> bool:
    """Serve ``node`` until ``condition`` holds. Returns whether it did in time.

    Use it as ``assert spin_until(...)``.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        node.executor.spin_once(timeout_sec=0.05)
    return True


def matched(endpoint: Any, count: int = 1) -> bool:
    """Whether a publisher or subscription of this process sees ``count`` of its counterparts."""
    if hasattr(endpoint, "get_subscription_count"):
        return endpoint.get_subscription_count() >= count
    return endpoint.get_publisher_count() >= count


def collect(
    node: Any, kind: type | str, topic: str, qos: QoSProfile | int = RELIABLE
) -> list[Any]:
    """A list that fills with the messages of ``topic`` while the node is served.

    ``kind`` is a message class or its name, ``sensor_msgs/msg/Image``; with names alone a test
    file imports no ROS, and is skipped as a whole where there is none.
    """
    messages: list[Any] = []
    cls = RclpyLibrary().type(kind) if isinstance(kind, str) else kind
    node.create_subscription(cls, topic, messages.append, qos)
    return messages


def stamp_ns(message: Any) -> int:
    """Header stamp in nanoseconds."""
    return message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
