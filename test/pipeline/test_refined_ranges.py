"""Returns of range sensors in windows that feature tracks refine."""

import dataclasses
import math

import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.refinement.refiner import has_few_returns
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.range_sensors import RenderedRanges, mount
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, RangeCone, RangeReturns, View

SIZE, RATE_HZ, FRAMES = (168, 126), 5.0, 45
MOUNT = mount(0.0, -0.1, -0.05)
HALF_ANGLE = math.radians(2.0)
TOO_FAR = 0.15  # of what the network sees in the middle of its images


class BiasedInTheMiddle(TruthSession):
    """The truth, but for an error that the middle of all images has."""

    def infer(self, window):
        found = super().infer(window)
        y, x = ((np.arange(n) - n / 2) / (0.2 * SIZE[0]) for n in found.depth.shape[1:])
        error = TOO_FAR * np.exp(-0.5 * (x**2 + y[:, None] ** 2))
        return dataclasses.replace(found, depth=(found.depth * np.exp(error)).astype(np.float32))


def error_of_way(beams):
    """Of its logarithm, by so many beams that hit the middle of the image."""
    camera = SyntheticCamera(7, SIZE, walk="loop", frames=FRAMES, rate_hz=RATE_HZ)
    frames, ranges = list(camera), RenderedRanges(camera)
    session = BiasedInTheMiddle(frames)
    config = config_from_parameters({
        "model": "da3-tiny", "process_res": SIZE[0], "scale.source": "range",
        "loop.enabled": False, "map.enabled": False, "dense.enabled": False,
    })  # fmt: skip
    pipeline, found = Pipeline(config, session), []
    for i, f in enumerate(frames):
        cone = RangeCone(
            MOUNT[:3, 3], MOUNT[:3, 0], HALF_ANGLE, ranges.distance(MOUNT, i / RATE_HZ, HALF_ANGLE)
        )
        returns = RangeReturns(np.zeros((0, 3), np.float32), (cone,) * beams)
        found += pipeline.push(
            Frame(f.stamp_ns, f.image, calibration=camera.calibration, returns=returns)
        )
    poses = np.array([r.T_map_camera[:3, 3] for r in found[-15:]])
    true = np.array([f.T_room_camera[:3, 3] for f in frames[-15:]])
    assert found[-1].scale.metric
    ways = [np.linalg.norm(np.diff(all_, axis=0), axis=1).sum() for all_ in (poses, true)]
    return math.log(ways[0] / ways[1])


@pytest.mark.long
def test_one_beam_is_compared_with_the_depth_that_tracks_correct():
    """Where it hits the network alone is wrong by 15 %."""
    assert abs(error_of_way(1)) < 0.02


@pytest.mark.parametrize(("points", "cones", "few"), [(0, 1, True), (24, 0, True), (24, 1, False)])
def test_errors_of_the_network_average_out_over_many_returns(points, cones, few):
    cone = RangeCone(MOUNT[:3, 3], MOUNT[:3, 0], HALF_ANGLE, 2.0)
    returns = RangeReturns(np.ones((points, 3), np.float32), (cone,) * cones)
    view = View(0, 0, np.zeros((4, 4, 3), np.uint8))
    assert has_few_returns(dataclasses.replace(view, returns=returns)) == few
    assert not has_few_returns(view)
