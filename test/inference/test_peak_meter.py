"""What windows take on a host, for backends that keep their tensors: never a sum of noise."""

import pytest

from da3_ros.inference.devices import Cpu
from da3_ros.inference.memory_governor import PeakMeter

MIB = 2**20
WEIGHTS = 50 * MIB


class Host(Cpu):
    """A process: a base, an engine's tensors that stay, and a heap that a release returns."""

    def __init__(self):
        super().__init__()
        self.base, self.tensors, self.heap, self.most = 400 * MIB, 0, 0, 0

    def in_use(self):
        return self.base + self.tensors + self.heap

    def release(self):
        self.heap = 0

    def reset_peak(self):
        self.most = self.in_use()

    def peak(self):
        return self.most

    def run(self, tensors, heap, other=0):
        self.tensors, self.heap = max(self.tensors, tensors), max(self.heap, heap)
        self.base += other
        self.most = max(self.most, self.in_use())


def window(meter, host, tensors=100, heap=20, other=0):
    """Runs a window, all in MiB; returns what it took beside the weights."""
    meter.begin()
    host.run(tensors * MIB, heap * MIB, other * MIB)
    meter.end()
    return (meter.window_peak(WEIGHTS, keeps=True) - WEIGHTS) / MIB


@pytest.fixture
def host():
    return Host()


def test_releases_add_nothing_to_what_windows_take(host):
    meter, taken = PeakMeter(host), []
    for number in range(200):
        if number % 10 == 0:
            meter.release_cached()
        taken.append(window(meter, host))
    assert set(taken) == {120}
    assert meter.peak == WEIGHTS + 120 * MIB
    meter.release_cached()
    assert meter.held == 100 * MIB, "the heap is free now, and does not count twice"


def test_a_map_that_grows_beside_it_is_no_memory_of_the_network(host):
    meter = PeakMeter(host)
    for number in range(500):
        if number % 10 == 0:
            meter.release_cached()
        taken = window(meter, host, other=2)
    assert taken <= 130


def test_tensors_of_another_image_size_count(host):
    meter = PeakMeter(host)
    assert window(meter, host) == 120
    assert window(meter, host, tensors=160) == 180
    assert window(meter, host, tensors=160) == 180


def test_an_engine_that_is_gone_keeps_nothing(host):
    meter = PeakMeter(host)
    window(meter, host)
    meter.forget_kept()
    host.tensors = host.heap = 0
    assert window(meter, host, tensors=30, heap=0) == 30
