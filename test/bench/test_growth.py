"""The growth measure of the soak and of the growth benchmark, on series of known growth."""

import numpy as np
import pytest
from growth import measure_growth

N = 60
NOISE = np.random.default_rng(0).normal(size=N)


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_a_flat_series_is_flat(noise):
    found = measure_growth(300 + noise * NOISE, 0.05)
    assert found.flat
    assert found.low <= 0 <= found.high


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_a_slow_leak_is_not_flat(noise):
    """40 MB over the run: less than the old bound allowed in a part twice as long."""
    found = measure_growth(300 + np.linspace(0, 40, N) + noise * NOISE, 0.05)
    assert not found.flat
    assert found.low - 0.01 < 40 / 330 < found.high + 0.01
    assert found.growth == pytest.approx(40 / 330, abs=0.03)


def test_what_settles_in_the_first_half_is_flat():
    warm = 300 - 80 * np.exp(-np.arange(N) / 5)
    assert measure_growth(warm + 0.2 * NOISE, 0.05).flat


def test_growth_that_begins_late_is_not_flat():
    late = 300 + np.maximum(0, np.arange(N) - N // 2) * 1.5
    assert not measure_growth(late + 0.2 * NOISE, 0.05).flat


def test_one_peak_is_no_growth():
    peak = 300 + 0.1 * NOISE
    peak[-5] = 900
    assert measure_growth(peak, 0.05).flat


def test_a_series_with_too_much_noise_is_not_called_flat():
    assert not measure_growth(300 + 60 * NOISE, 0.05).flat


def test_too_few_values_are_not_judged():
    with pytest.raises(ValueError, match="at least 20"):
        measure_growth([1.0] * 19, 0.05)
