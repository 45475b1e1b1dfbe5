"""What the package needs of the networks: sessions that run windows, and metric models.

These lie in the room of the session that implements them, below all that call it, and know only
plans and the shared vocabulary: no torch module, no device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from da3_ros.inference.planner import Plan
from da3_ros.types import Image, MotionError, Prediction, Window


class Limits(Protocol):
    """What a memory budget allows; never more than was asked for."""

    @property
    def process_res(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def new(self) -> int: ...


@dataclass(frozen=True)
class Running:
    """A window on a device that works beside us."""

    done: Callable[[], bool]  # does not wait
    ends: float  # when it probably will be, by ``time.perf_counter``; with a new shape unknown


@dataclass(frozen=True)
class SessionStatus:
    """What runs where, and its memory in GiB, by the names of da3_ros/Status."""

    device: str = ""
    precision: str = ""  # the type of matrix products
    attention: str = ""  # the kernel in use
    memory_budget_gb: float = math.nan
    memory_plan_gb: float = math.nan
    memory_peak_gb: float = math.nan
    degraded: tuple[str, ...] = ()  # what of the results the memory budget costs right now


class Session(ABC):
    """Runs windows through a network. One thread owns it; any may ask for ``check_budget``,
    ``status`` and ``plan``.

    Only ``infer`` has to be implemented. All else is here as it is for an answer that takes no
    memory: no plan, any budget, nothing to begin with early.
    """

    # What it may be off by in the same way in every window; None: not measured.
    motion_error: MotionError | None = None
    # Called while a window runs, on a device that works beside us.
    on_window_running: Callable[[Running], None] | None = None

    @abstractmethod
    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together.

        Raises WindowTooLargeError when only fewer views can help against memory that ran out.
        """

    def prefetch(self, image: Image) -> None:
        """Begin with the image [h, w, 3] of a view that waits for its window; only saves time."""
        return

    def warm_up(
        self, window: int, new: int, *, stopping: Callable[[], bool] = lambda: False
    ) -> tuple[Window, Prediction] | None:
        """Run windows before the first frame, of ``window`` views, ``new`` of them new.

        Returns one and its meaningless answer, for who else needs warming; None where there is
        nothing to warm or ``stopping`` said so in between. Raises BudgetError or
        WindowTooLargeError.
        """
        return None

    @property
    def plan(self) -> Plan | None:
        """What runs in the memory budget; None without a plan, or before the first."""
        return None

    def fit(self, image: tuple[int, int], window: int, new: int) -> Limits | None:
        """What the memory budget allows for images of (width, height); None: anything.

        Raises BudgetError when nothing fits.
        """
        return None

    def use_plan(self, plan: Plan) -> None:
        """Run as ``plan`` says, whatever the budget. Raises ValueError where that cannot be."""
        raise ValueError("it needs a network")

    def check_budget(self, memory_budget_gb: float) -> None:
        """Raise BudgetError if nothing fits into this budget; changes nothing."""
        return

    def set_budget(self, memory_budget_gb: float) -> None:
        """Take a new memory budget. Raises BudgetError, and changes nothing, if nothing fits."""
        return

    def undone_if_refused(self) -> AbstractContextManager[None]:
        """After a BudgetError within, the budget and all plans are those from before."""
        return nullcontext()

    def status(self) -> SessionStatus:
        """What runs where, now."""
        return SessionStatus()


class MetricModel(Protocol):
    """Looks at a window now and then, and tells its unit in metres."""

    def measure(self, window: Window, prediction: Prediction) -> Prediction:
        """``prediction`` with its ``measure``, and with ``sky`` where it looked."""
