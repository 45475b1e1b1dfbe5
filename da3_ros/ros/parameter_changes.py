"""Parameter changes while the node runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from da3_ros.inference import BudgetError
from da3_ros.live.stream import Stream
from da3_ros.parameter_schema import ConfigError
from da3_ros.ros import parameters
from da3_ros.ros.node_log import NodeLog
from da3_ros.ros.stream_runner import StreamRunner

BUDGET = "memory_budget_gb"


class ParameterChanges:
    """Accepts changes that can take effect and rejects all others with the reason."""

    def __init__(
        self, node: Node, current: Callable[[], StreamRunner | None], log: NodeLog
    ) -> None:
        self._node, self._current, self._log = node, current, log
        self._budget_job: Future[Any] | None = None  # of the newest accepted change
        self._restoring_budget = False
        node.add_on_set_parameters_callback(self._on_change)

    def forget(self) -> None:
        """Forget the accepted budget: the stream has ended."""
        self._budget_job = None

    @property
    def pending(self) -> bool:
        """True if an accepted budget has not been compared with the budget in force."""
        return self._budget_job is not None

    def restore_budget(self) -> None:
        """Restore the parameter if the worker could not apply an accepted budget."""
        runner = self._current()
        if runner is None or self._budget_job is None or not self._budget_job.done():
            return
        self._budget_job = None
        in_force = runner.stream.config.pipeline.inference.memory_budget_gb
        if self._node.get_parameter(BUDGET).value != in_force:
            self._restoring_budget = True
            try:
                self._node.set_parameters([Parameter(BUDGET, value=in_force)])
            finally:
                self._restoring_budget = False

    def _on_change(self, changes: list[Parameter]) -> SetParametersResult:
        if self._restoring_budget:
            return parameters.accept()  # the restored value is already in force
        names = [change.name for change in changes if change.name in parameters.NAMES]
        if not names:
            return parameters.accept()  # rclpy's own, such as the QoS overrides it declares
        fixed = [name for name in names if name not in parameters.LIVE]
        runner = self._current()
        if fixed and runner is not None:
            return parameters.refuse(
                f"{fixed[0]} cannot change while the node is configured: "
                "deactivate and clean up first"
            )
        try:
            config = parameters.read(self._node, changes)
        except ConfigError as error:
            return parameters.refuse(str(error))
        if runner is None:
            return parameters.accept()
        stream, budget = runner.stream, BUDGET in names
        requested_gb = config.pipeline.inference.memory_budget_gb
        if budget and (reason := self._why_not(stream, requested_gb)):
            return parameters.refuse(reason)
        job = runner.submit(lambda: stream.reconfigure(config.pipeline, budget=budget))
        self._budget_job = job if budget else self._budget_job
        return parameters.accept()

    def _why_not(self, stream: Stream, memory_budget_gb: float) -> str:
        """Returns one line that says why a budget (GiB) is rejected; empty if it fits."""
        try:
            stream.session.memory.check_budget(memory_budget_gb)
        except BudgetError as error:
            return f"{BUDGET}: {error}"
        except Exception as error:  # raised, it would leave the caller without an answer
            self._log.callback_failed(error)
            return f"{BUDGET} cannot be checked: {type(error).__name__}: {error}"
        return ""
