"""Measures speed and stages of a session with sliding windows. They do not depend on the weights.

Times cover the session only: upload, pre-processing, network, download; no messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from da3_ros.backends.compiled import CALLS_BEFORE_COMPILING
from da3_ros.inference.interfaces import Session
from da3_ros.inference.planner import Plan
from da3_ros.inference.preprocess import resize_for_network
from da3_ros.inference.random_windows import random_windows, slide
from da3_ros.inference.session import InferenceSession
from da3_ros.inference.stage_meter import StageMeter
from da3_ros.network.stages import PREPARE

WARM_UP = (
    1 + CALLS_BEFORE_COMPILING
)  # windows before any that count: all views are new in the first
OTHER = "other"  # copies, stacking, planning
MEMORY_WINDOWS = 2  # whose memory is measured
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
        # All views of the first window of a run are new.
        window_s=tuple(_run(session, plan, views, windows, on_window, before=1)),
        unseen_s=tuple(_run(session, plan, views, unseen, on_window, unseen=True)),
        planned=planned,
    )


@dataclass(frozen=True)
class Stage:
    """What a stage of a window takes."""

    name: str
    seconds: float  # mean of the timed windows
    # Bytes at its peak, above weights, kept prefixes and what else was in use; with what the
    # stages before it keep, where a runtime does that.
    memory: int


def measure_stages(session: InferenceSession, image: tuple[int, int], windows: int) -> list[Stage]:
    """Measure the stages of the session's usual windows, in the order in which they begin.

    image: (width, height) of the camera, whose new images are resized in each window. The session
    must have a plan and be warm.
    """
    timed = _watched(session, image, windows, memory=False)
    weighed = _watched(session, image, MEMORY_WINDOWS, memory=True)
    return [
        Stage(name, seconds / windows, weighed.peaks.get(name, 0))
        for name, seconds in timed.seconds.items()
    ]


def _watched(
    session: InferenceSession, image: tuple[int, int], windows: int, *, memory: bool
) -> StageMeter:
    plan = session.memory.plan
    assert plan is not None, "call fit first"
    meter = StageMeter(session.hardware, memory=memory)
    views = plan.window if session.spec.multi_view else plan.new
    given = random_windows(plan, views, plan.new, 1 + windows)
    session.infer(next(given))  # all of its views are new
    picture = np.random.default_rng(0).integers(0, 256, (image[1], image[0], 3)).astype(np.uint8)
    with meter.watching(session.stage_calls()):
        session.loaded.release()
        meter.begin()  # after the first window, whose prefixes are kept
        meter.seconds.clear()
        for window in given:
            if memory:  # what an engine keeps for its next run belongs to the stages that made it
                session.loaded.release()
            with meter.stage(PREPARE):
                for _ in range(plan.new):
                    resize_for_network(picture, None, plan.process_res, plan.process_res_method)
            with meter.stage(OTHER):
                session.infer(window)
    return meter


def _run(
    session: Session,
    plan: Plan,
    views: int | None,
    windows: int,
    on_window: Callable[[], object],
    *,
    before: int = 0,
    unseen: bool = False,
) -> list[float]:
    """Seconds of each window; ``before``: number of windows that run first and do not count."""
    count = before + windows
    sliding = slide(session, _views(plan, views), _new(plan, views), count, unseen=unseen)
    seconds = []
    for done in itertools.islice(sliding, before, None):
        seconds.append(done.inference_s)
        on_window()
    return seconds


def _views(plan: Plan, views: int | None) -> int:
    return min(views or plan.window, plan.window)


def _new(plan: Plan, views: int | None) -> int:
    return min(plan.new, _views(plan, views))
