"""Keyframes of a pipeline get depth by returns of range sensors where images measure nothing."""

import numpy as np
import pytest
from support.pipelines import SIZE, settings, to_frame

from da3_ros.geometry.projection import backproject
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import RangeReturns

NOISE = Noise(smooth=0.06)


def returns_of(frame):
    """A return in every sixth pixel, both ways."""
    points = backproject(frame.depth, frame.K)[3::6, 3::6].reshape(-1, 3)
    return RangeReturns(points[np.isfinite(points).all(axis=1)])


def run(returns_of=returns_of, **values):
    """A camera that turns on the spot, without refinement: no images are compared."""
    camera = SyntheticCamera(3, SIZE, walk="spot", frames=24, rate_hz=4.0)
    frames = list(camera)
    config = settings(**{"map.voxel_m": 0.05, "scale.source": "range", **values})
    pipeline, measured = Pipeline(config, TruthSession(frames, noise=NOISE)), {}
    take = pipeline.scene_map.dense.measurement.take

    def spy(result):
        measured.update({one.keyframe.stamp_ns: one for one in result.measured})
        take(result)

    pipeline.scene_map.dense.measurement.take = spy
    for f in frames:
        list(pipeline.push(to_frame(camera, f, returns=returns_of(f))))
    list(pipeline.flush())
    return pipeline, {f.stamp_ns: f for f in frames}, measured


def rmse(depth, truth):
    """Of depth in an unknown unit, metres."""
    known = np.isfinite(depth) & np.isfinite(truth)
    unit = np.median(truth[known] / depth[known])
    return np.sqrt(np.mean((unit * depth - truth)[known] ** 2))


@pytest.mark.slow
def test_a_camera_that_only_turns_gets_measured_depth():
    pipeline, frames, measured = run()
    so_far = pipeline.scene_map.dense.so_far
    assert so_far.keyframes == so_far.measured > 3
    assert 0.01 < so_far.share < 0.1  # a return in 36 pixels
    assert so_far.agreement == 1
    for stamp, one in measured.items():
        before, after = (
            rmse(d, frames[stamp].depth) for d in (one.keyframe.depth, one.dense.depth)
        )
        assert after < 0.6 * before


@pytest.mark.slow
def test_returns_measure_nothing_while_the_scale_is_unknown():
    pipeline, _, measured = run(**{"scale.source": "none"})
    assert pipeline.scene_map.dense.so_far.measured == 0
    assert not any(one.dense for one in measured.values())


def mirrored(frame):
    """Of a sensor whose left is declared as its right."""
    return RangeReturns(returns_of(frame).points * np.array([-1, 1, 1], np.float32))


@pytest.mark.slow
def test_returns_of_a_wrong_mount_are_not_taken_for_depth(caplog):
    """Metres come from elsewhere, so that nothing else judges the mount."""
    values = {"scale.source": "fixed"}
    pipeline, _, measured = run(**values)
    assert pipeline.scene_map.dense.so_far.measured > 0
    pipeline, _, measured = run(mirrored, **values)
    assert not any(one.dense for one in measured.values())
    assert caplog.text.count("most returns do not fit the depth of keyframes") == 1
