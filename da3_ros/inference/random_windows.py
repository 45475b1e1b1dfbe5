"""A sliding window of random pictures, to measure time and memory with: they need no meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from da3_ros.inference.planner import JOINING, Plan
from da3_ros.inference.session import InferenceSession
from da3_ros.types import Prediction, View, Window


def slide(
    session: InferenceSession, views: int, new: int, windows: int, *, unseen: bool = False
) -> Iterator[Prediction]:
    """Predictions of ``windows`` windows of ``views`` views, ``new`` of them new each time.

    The session must have a plan. Depth is wanted as the pipeline does: of new views and of those
    that join the window to the scene. ``unseen``: as if no view had been in a window before.
    """
    assert session.plan is not None
    for window in random_windows(session.plan, views, new, windows, unseen=unseen):
        yield session.infer(window)


def usual_wanted(views: int, new: int) -> tuple[int, ...]:
    """Whose depth is wanted in a window: of new views, and of those that join it to the scene."""
    shared = views - new
    joining = {0, (shared - 1) // 2, shared - 1} if shared >= JOINING else set(range(shared))
    return (*sorted(joining), *range(shared, views))


def random_windows(
    plan: Plan, views: int, new: int, windows: int, *, unseen: bool = False
) -> Iterator[Window]:
    """The windows of ``slide``, of random pictures of the plan's size."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (views, plan.height, plan.width, 3)).astype(np.uint8)
    held = [View(i, i, picture) for i, picture in enumerate(pictures)]
    wanted = usual_wanted(views, new)
    for number in range(windows):
        # What a session keeps of a picture belongs to the array: a copy is a picture of its own.
        fresh = [
            dataclasses.replace(v, id=v.id + views, image=v.image.copy())
            for v in held[: views if unseen else new]
        ]
        held = [*held[len(fresh) :], *fresh]
        yield Window(number, tuple(held), new, wanted)
