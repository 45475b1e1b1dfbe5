"""Interfaces of the networks: sessions that run windows, and metric models.

They are in ``inference/``, so that every caller imports from a room below it. They depend only on
plans and ``da3_ros.types``, not on a torch module or a device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from da3_ros.inference.planner import Plan
from da3_ros.types import (
    Image,
    MotionError,
    Prediction,
    ResizeRule,
    Window,
    WindowEstimate,
)


class Limits(Protocol):
    """Limits that the memory budget sets; never above the requested values."""

    @property
    def rule(self) -> ResizeRule: ...
    @property
    def window(self) -> int: ...
    @property
    def new(self) -> int: ...


@dataclass(frozen=True)
class Running:
    """A window that runs asynchronously on the device."""

    done: Callable[[], bool]  # does not block
    ends: float  # expected end, by ``time.perf_counter``; for a new shape only a lower bound


@dataclass(frozen=True)
class SessionStatus:
    """Device, precision and memory (GiB) of a session, named as in da3_ros/Status."""

    device: str = ""
    precision: str = ""  # the type of matrix products
    int8_weight_bits: int | None = None  # of linear layers; None: not in int8
    attention: str = ""  # the attention kernel
    backend: str = ""  # runtime of the newest window, see da3_ros.backends
    backend_since: int | None = None  # id of the first window that ran on it
    memory_budget_gb: float = math.nan
    memory_plan_gb: float = math.nan
    memory_peak_gb: float = math.nan
    degraded: tuple[str, ...] = ()  # reductions of the results, caused by the memory budget


class Memory:
    """The memory budget of a session, and the plan that follows from it; by default of a session
    that takes no memory. Any thread may read ``plan`` and call ``check_budget``."""

    plan: Plan | None = None  # in force; None before the first plan, or if there are no plans

    def fit(self, image: tuple[int, int], window: int, new: int) -> Limits | None:
        """Limits that the budget sets for images of (width, height); None: no limit.

        Raises BudgetError if nothing fits.
        """
        return None

    def use_plan(self, plan: Plan) -> None:
        """Use ``plan`` whatever the budget is. Raises ValueError if there are no plans."""
        raise ValueError("a plan needs a network; this session has none")

    def check_budget(self, memory_budget_gb: float) -> None:
        """Raise BudgetError if nothing fits into this budget; changes nothing."""
        return

    def set_budget(self, memory_budget_gb: float) -> None:
        """Set the budget. Raises BudgetError, and changes nothing, if nothing fits."""
        return

    def grow(self) -> None:
        """Make the plan larger if memory has been free for long enough. Call it between windows
        of a live stream; a replay never does, so that its plan does not depend on time."""
        return

    def undone_if_refused(self) -> AbstractContextManager[None]:
        """A BudgetError inside this context restores the budget and all plans from before."""
        return nullcontext()


class Session(ABC):
    """Runs windows through a network. One thread owns it; any thread may call ``status``.

    Only ``infer`` has to be implemented. The other methods default to those of a session that
    takes no memory: nothing to plan or prefetch.
    """

    memory: Memory = Memory()
    # The motion error that is the same in every window; None: not measured.
    motion_error: MotionError | None = None
    # Called while a window runs on an asynchronous device.
    on_window_running: Callable[[Running], None] | None = None

    @abstractmethod
    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together.

        Raises WindowTooLargeError if memory ran out and only fewer views would help.
        """

    def renew(self) -> None:
        """Forget all windows, plans and measurements, as before another recording."""
        return

    def prefetch(self, image: Image) -> None:
        """Encode the image [h, w, 3] of a view before its window is complete; only saves time."""
        return

    def warm_up(
        self, window: int, new: int, *, stopping: Callable[[], bool] = lambda: False
    ) -> tuple[Window, Prediction] | None:
        """Run windows of ``window`` views, ``new`` of them new, before the first frame.

        Returns a window and its meaningless prediction, with which other networks can be warmed
        up; None if there is nothing to warm up or ``stopping()`` became true. Raises BudgetError
        or WindowTooLargeError.
        """
        return None

    def plan_ahead(self, window: int, new: int) -> None:
        """Plan windows of ``window`` views, ``new`` of them new, before the first frame.

        Raises BudgetError if nothing fits, so that the caller need not begin.
        """
        return

    def status(self) -> SessionStatus:
        """The current device, precision and memory."""
        return SessionStatus()


class MetricModel(Protocol):
    """Measures the unit of a window, in metres."""

    def measure(self, window: Window, estimate: WindowEstimate) -> WindowEstimate:
        """Return ``estimate`` with ``measure``, and with ``sky`` of the measured views."""
