"""How fast a session is in a sliding window. Weights may be random: speed does not depend on them.

Times are those of the session: upload, pre-processing, network, download. Nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from da3_ros.inference.compiled import IN_A_ROW
from da3_ros.inference.interfaces import Session
from da3_ros.inference.planner import Plan
from da3_ros.inference.random_windows import slide

WARM_UP = 1 + IN_A_ROW  # windows before any that count: all views are new in the first
MOST_PLANS = 3  # how often the warm-up begins anew because a measured window changed the plan


@dataclass(frozen=True)
class Speed:
    """What was measured; times in seconds, in the order in which the windows ran."""

    views: int  # of a window
    new: int  # of them new in each of ``window_s``
    first_s: float  # the very first window, with what compiler and libraries do once
    window_s: tuple[float, ...]  # windows as in a stream
    unseen_s: tuple[float, ...]  # windows none of whose views had been seen before
    planned: Plan  # before anything was measured

    @property
    def frames_per_s(self) -> float:
        """New frames per second, by the median window."""
        return self.new / self.percentile(50)

    def percentile(self, q: float) -> float:
        """Seconds of a window in a stream that ``q`` percent of them do not exceed."""
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
    """Time ``windows`` windows of the session's plan, and ``unseen`` whole ones.

    ``views``: in a window, fewer than planned. ``on_window`` is called after each one. Raises
    WindowTooLargeError.
    """
    planned = session.plan
    assert planned is not None, "call fit first"
    warming: list[float] = []
    for _ in range(MOST_PLANS):
        plan = session.plan or planned
        warming += _run(session, plan, views, warm_up, on_window)
        if session.plan is None or session.plan.repeatable() == plan.repeatable():
            break  # else a measured window has changed what runs
    plan = session.plan or planned
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
