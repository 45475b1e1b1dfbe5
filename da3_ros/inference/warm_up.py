"""A window before the first frame: kernels, tables and programs that the first would wait for.

It goes the way of a stream's windows, at their usual size: known views, new ones, depth of some.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from da3_ros.inference.compiled import CHECKS
from da3_ros.inference.planner import Plan
from da3_ros.inference.random_windows import usual_wanted
from da3_ros.inference.session import InferenceSession
from da3_ros.types import Prediction, View, Window

log = logging.getLogger(__name__)

IMAGE = (4, 3)  # width, height: the shape of image that is assumed while no camera has sent one


def warm_up(
    session: InferenceSession,
    window: int,
    new: int,
    *,
    image: tuple[int, int] = IMAGE,
    stopping: Callable[[], bool] = lambda: False,
) -> tuple[Window, Prediction] | None:
    """Plan for camera images of the shape of ``image`` and run the usual window of that plan.

    Returns a window and its meaningless answer, for who else needs warming; None where
    ``stopping`` said so in between. Raises BudgetError or WindowTooLargeError.
    """
    given = rehearsal(session.fit(image, window, new), session.takes_poses)
    done = None
    for _ in range(CHECKS.get(session.compile_mode, 1)):
        if stopping():
            return None
        done = given, session.rehearse(given)
        if not session.compile_mode:
            break  # the further ones are for the compiler
    return done


def rehearsal(plan: Plan, poses: bool) -> Window:
    """A window as most of a stream are: random pictures, the shared views all of one picture."""
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
