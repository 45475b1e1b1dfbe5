"""A picture of a replay's video: which depths its colours span."""

import dataclasses

import numpy as np
import pytest
from support.viewers import tracked

from da3_ros.config import DepthConfig
from da3_ros.drawing.video_sheet import FOLLOWS, VideoSheet
from da3_ros.types import Scale


def frame(near, far, metric=False):
    one = tracked(1, np.eye(4))
    depth = np.linspace(near, far, one.depth_m.size, dtype=np.float32)
    scale = Scale("fixed", 2.0, 0.1) if metric else Scale()
    return dataclasses.replace(one, depth_m=depth.reshape(one.depth_m.shape), scale=scale)


def test_metric_depth_has_the_configured_range():
    sheet = VideoSheet(DepthConfig(color_range_m=(0.5, 6.0)))
    assert frame(1, 2, metric=True).scale.metric
    assert sheet._depth_range(frame(1, 2, metric=True)) == (0.5, 6.0)


def test_a_range_without_metres_follows_the_frames_slowly():
    sheet = VideoSheet(DepthConfig())
    first = sheet._depth_range(frame(1, 2))
    assert first == pytest.approx((1, 2), abs=0.1)
    second = sheet._depth_range(frame(3, 4))
    assert second == pytest.approx(np.add(first, 2 * FOLLOWS), abs=0.01)
    nothing = frame(1, 2)
    nothing.depth_m[:] = np.nan
    assert sheet._depth_range(nothing) == second
