"""What windows are measured to take, on a device that only counts."""

from da3_ros.inference.memory_governor import PeakMeter


class Counting:
    def __init__(self):
        self.released, self.used, self.most = 0, 10, 0

    def release(self):
        self.released += 1

    def in_use(self):
        return self.used

    def reset_peak(self):
        self.most = self.used

    def window_peak(self, before, persistent):
        return self.most - before + persistent


def test_the_largest_window_is_the_peak():
    device = Counting()
    meter = PeakMeter(device)
    for most, expected in ((50, 45), (110, 105), (60, 55)):
        meter.begin()
        device.most = most
        assert meter.window_peak(5) == expected
    assert meter.peak == 105


def test_after_letting_go_one_windows_peak_is_its_own():
    device = Counting()
    meter = PeakMeter(device)
    assert not meter.end()
    meter.release_cached()
    meter.begin()
    meter.begin()  # the same window again, after it ran out of memory
    assert device.released == 3
    assert [meter.end(), meter.end()] == [True, False]
