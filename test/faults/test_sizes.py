"""A camera that changes its image size at will, with stamps that jump: nothing is lost."""

import random

import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.types import Frame

SIZES = ((140, 112), (140, 64), (64, 64), (33, 25), (140, 14), (140, 7), (2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_frame_of_any_size_comes_out_or_is_counted(seed):
    values = {"model": "da3-tiny", "checkpoint": "random", "process_res": 70, "window.size": 3}
    pipeline, draw = Pipeline(config_from_parameters(values)), random.Random(seed)
    stamp, out, count = 10**18, 0, 60
    for n in range(count):
        width, height = draw.choice(SIZES)
        stamp += draw.choice([10**8] * 8 + [-6 * 10**8, -(10**8)])
        # A few images again and again: places that look alike in every size.
        image = np.random.default_rng(n % 7).integers(0, 256, (height, width, 3)).astype(np.uint8)
        out += len(list(pipeline.push(Frame(stamp_ns=stamp, image=image, frame_id="optical"))))
    dropped = sum(n for name, n in pipeline.counters.items() if name.startswith("dropped_"))
    assert out + dropped == count, pipeline.counters
    assert out > count // 2
