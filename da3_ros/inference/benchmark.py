"""Measures the speed of a session with sliding windows. It does not depend on the weights.

Times cover the session only: upload, pre-processing, network, download; no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from da3_ros.backends.compiled import CALLS_BEFORE_COMPILING
from da3_ros.inference.interfaces import Session
from da3_ros.inference.planner import Plan
from da3_ros.inference.random_windows import slide

WARM_UP = (
    1 + CALLS_BEFORE_COMPILING
)  # windows before any that count: all views are new in the first
MAX_REPLANS = 3  # warm-ups, each repeated if a measured window changed the plan


@dataclass(frozen=True)
class Speed:
    """The measured times in seconds, in the order in which the windows ran."""

    views: int  # per window
    new: int  # new views per window in ``window_s``
    first_s: float  # the first window, including one-time work of compiler and libraries
    window_s: tuple[float, ...]  # sliding windows
    unseen_s: tuple[float, ...]  # windows of only new views
    planned: Plan  # the plan before any measurement

    @property
    def frames_per_s(self) -> float:
        """New frames per second in the median window."""
        return self.new / self.percentile(50)

    def percentile(self, q: float) -> float:
        """The ``q``-th percentile of the sliding windows' times, in seconds."""
        return float(np.percentile(self.window_s, q))


def measure_speed(
    session: Session,
    windows: int,
    *,
    views: int | None = None,
    warm_up: int = WARM_UP,
    unseen: int = 0,
    on_window: Callable[[], object] = lambda: None,
) -> Speed:
    """Time ``windows`` sliding windows of the session's plan, and ``unseen`` of only new views.

    ``views``: views per window, if fewer than planned. ``on_window`` is called after each window.
    Raises WindowTooLargeError.
    """
    planned = session.memory.plan
    assert planned is not None, "call fit first"
    warming: list[float] = []
    for _ in range(MAX_REPLANS):
        plan = session.memory.plan or planned
        warming += _run(session, plan, views, warm_up, on_window)
        if session.memory.plan is None or session.memory.plan.repeatable() == plan.repeatable():
            break  # otherwise a measured window has changed the plan: warm up again
    plan = session.memory.plan or planned
    return Speed(
        views=_views(plan, views),
        new=_new(plan, views),
        first_s=warming[0],
        window_s=tuple(_run(session, plan, views, windows, on_window)),
        unseen_s=tuple(_run(session, plan, views, unseen, on_window, unseen=True)),
        planned=planned,
    )


def _run(
    session: Session,
    plan: Plan,
    views: int | None,
    windows: int,
    on_window: Callable[[], object],
    *,
    unseen: bool = False,
) -> list[float]:
    """Seconds of each window."""
    seconds = []
    for done in slide(session, _views(plan, views), _new(plan, views), windows, unseen=unseen):
        seconds.append(done.inference_s)
        on_window()
    return seconds


def _views(plan: Plan, views: int | None) -> int:
    return min(views or plan.window, plan.window)


def _new(plan: Plan, views: int | None) -> int:
    return min(plan.new, _views(plan, views))
