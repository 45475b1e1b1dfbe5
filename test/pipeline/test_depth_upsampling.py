"""Depth at the camera's own size."""

import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.geometry.projection import backproject
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_steps import resize_depth
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession, at_size
from da3_ros.types import Frame

SETTINGS = {"process_res": 140, "model": "da3-tiny", "checkpoint": "random"}


def two_walls():
    depth = np.full((20, 30), 4.0, np.float32)
    depth[:, 15:] = 1.5
    depth[3, 4] = np.nan
    depth[8:10, 20:] = np.inf
    return depth


@pytest.mark.parametrize("size", [(60, 40), (75, 52), (41, 29), (30, 20), (12, 9)])
def test_no_depth_appears_that_was_not_there(size):
    out = resize_depth(two_walls(), size)
    assert out.shape == size[::-1]
    assert set(np.round(out[np.isfinite(out)], 5).tolist()) <= {1.5, 4.0}
    if size[0] >= 30:
        assert np.isnan(out).any()
        assert np.isposinf(out).any()


def test_a_slanted_plane_stays_a_plane():
    rows, columns = np.mgrid[:40, :60] + 0.5
    inverse = 0.2 + 0.004 * columns + 0.002 * rows
    out = resize_depth((1 / inverse).astype(np.float32), (150, 100))
    rows, columns = (np.mgrid[:100, :150] + 0.5) * 0.4
    expected = 1 / (0.2 + 0.004 * columns + 0.002 * rows)
    np.testing.assert_allclose(out[2:-2, 2:-2], expected[2:-2, 2:-2], rtol=1e-5)


def test_depth_at_input_size_is_right_and_fits_its_intrinsics():
    camera = SyntheticCamera(seed=5, size=(280, 224), walk="straight", frames=4)
    frames = list(camera)
    config = config_from_parameters({**SETTINGS, "depth.size": "input"})
    pipeline = Pipeline(config, TruthSession(at_size(frames, (140, 112))))
    results = [
        r
        for f in frames
        for r in pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    ]
    for result, frame in zip(results, frames, strict=True):
        assert result.depth_m.shape == result.confidence.shape == frame.depth.shape
        np.testing.assert_array_equal(result.image, frame.image)
        np.testing.assert_allclose(result.K, frame.K, atol=1e-9)
        known = np.isfinite(result.depth_m)
        assert known.mean() > 0.8
        ratio = result.depth_m[known] / frame.depth[known]
        unit = np.median(ratio)
        assert np.percentile(np.abs(ratio / unit - 1), 90) < 0.02
        points = backproject(result.depth_m, result.K)[known]
        assert np.isfinite(points).all()
    assert len(pipeline.map) > 100
