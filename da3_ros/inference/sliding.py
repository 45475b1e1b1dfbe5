"""A sliding window of random pictures, to measure time and memory with: they need no meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from da3_ros.inference.planner import JOINING
from da3_ros.inference.session import InferenceSession
from da3_ros.types import Prediction, View, Window


def slide(session: InferenceSession, views: int, new: int, windows: int) -> Iterator[Prediction]:
    """Predictions of ``windows`` windows of ``views`` views, ``new`` of them new each time.

    The session must have a plan. Depth is wanted as the pipeline does: of new views and of those
    that join the window to the scene.
    """
    plan = session.plan
    assert plan is not None
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (views, plan.height, plan.width, 3)).astype(np.uint8)
    held = [View(i, i, picture) for i, picture in enumerate(pictures)]
    shared = views - new
    joining = {0, (shared - 1) // 2, shared - 1} if shared >= JOINING else set(range(shared))
    wanted = (*sorted(joining), *range(shared, views))
    for number in range(windows):
        fresh = [dataclasses.replace(view, id=view.id + views) for view in held[:new]]
        held = [*held[new:], *fresh]
        yield session.infer(Window(number, tuple(held), new, wanted))
