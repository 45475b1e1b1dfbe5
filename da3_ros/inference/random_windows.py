"""Windows of random images, for warm-up and speed measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from da3_ros.inference.interfaces import Session
from da3_ros.inference.planner import Plan, usual_wanted
from da3_ros.types import Prediction, View, Window


def slide(
    session: Session, views: int, new: int, windows: int, *, unseen: bool = False
) -> Iterator[Prediction]:
    """Yield predictions of ``windows`` sliding windows of ``views`` views, ``new`` of them new.

    The session must have a plan. The wanted views are as in the pipeline: new views, and shared
    views for alignment. ``unseen``: no view was in a window before.
    """
    assert session.memory.plan is not None
    for window in random_windows(session.memory.plan, views, new, windows, unseen=unseen):
        yield session.infer(window)


def random_windows(
    plan: Plan, views: int, new: int, windows: int, *, unseen: bool = False
) -> Iterator[Window]:
    """Yield the windows of ``slide``: random images of the plan's size."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (views, plan.height, plan.width, 3)).astype(np.uint8)
    held = [View(i, i, picture) for i, picture in enumerate(pictures)]
    wanted = usual_wanted(views, new)
    for number in range(windows):
        # A session caches prefixes by array identity: a copy counts as a new image.
        fresh = [
            dataclasses.replace(v, id=v.id + views, image=v.image.copy())
            for v in held[: views if unseen else new]
        ]
        held = [*held[len(fresh) :], *fresh]
        yield Window(number, tuple(held), new, wanted)


def usual_window(plan: Plan, *, poses: bool) -> Window:
    """A typical window of a stream with random images; all overlap views show the same image.

    poses: whether the window has known poses.
    """
    rng = np.random.default_rng(0)
    old, *fresh = rng.integers(0, 256, (1 + plan.new, plan.height, plan.width, 3)).astype(np.uint8)
    K = np.array([[plan.width, 0, plan.width / 2], [0, plan.width, plan.height / 2], [0, 0, 1.0]])
    pictures = [old] * (plan.window - plan.new) + fresh
    T = np.tile(np.eye(4), (plan.window, 1, 1))
    T[:, 0, 3] = np.arange(plan.window)
    return Window(
        id=0,
        views=tuple(View(i, i, picture, K) for i, picture in enumerate(pictures)),
        new=plan.new,
        wanted=usual_wanted(plan.window, plan.new),
        T_prior_camera=T if poses else None,
    )
