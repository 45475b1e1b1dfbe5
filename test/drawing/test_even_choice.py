"""An even choice of a stream of unknown length."""

import numpy as np
import pytest

from da3_ros.drawing.uniform_sampler import UniformSampler


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 24, 25, 26, 200, 3001])
def test_few_items_evenly_from_the_whole_stream(length):
    choice, made, held = UniformSampler(12), [], []
    for n in range(length):
        choice.add(lambda n=n: made.append(n) or n)
        held.append(len(choice._items))
    chosen = choice.chosen()
    assert len(chosen) == min(12, length)
    assert max(held, default=0) <= 24
    assert len(made) <= 24 + 12 * max(0, np.log2(length / 24 + 1e-9)) + 12
    if length > 1:
        gaps = np.diff([0, *chosen[1:], length])
        assert chosen[0] == 0
        assert gaps.min() >= 1
        assert gaps.max() <= 2.5 * length / min(12, length)
