"""Arrays that lie in a file."""

import errno
import os
import threading
import time

import numpy as np
import pytest

from da3_ros.keyframe_store import array_spill
from da3_ros.keyframe_store.array_spill import ArraySpill, SpillBusyError
from da3_ros.keyframe_store.disk_limit import DiskLimit


def arrays():
    rng = np.random.default_rng(0)
    return [
        rng.normal(size=(50, 3)).astype(np.float32), rng.integers(0, 255, (7, 5, 3), np.uint8),
        np.zeros((0, 3), np.float16), rng.normal(size=11)[::2],
    ]  # fmt: skip


def assert_equal(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["", "spill"])
def test_arrays_come_back(tmp_path, name):
    spill = ArraySpill(tmp_path, name)
    first, second = spill.put(arrays()), spill.put(arrays())
    assert_equal(first, arrays())
    assert_equal(second, arrays())
    assert not first[0].flags.writeable
    assert [p.name for p in tmp_path.iterdir()] == ([name] if name else [])


def test_a_file_with_a_name_goes_on_where_it_was(tmp_path):
    spill = ArraySpill(tmp_path, "spill")
    one = spill.put(arrays())[0]
    offset, size, crc = spill.offset_of(one), spill.size, spill.crc
    spill.put(arrays())
    again = ArraySpill(tmp_path, "spill", size=size, crc=crc)
    assert_equal([again.at(offset, one.dtype, one.shape)], arrays()[:1])
    assert_equal(again.put(arrays()), arrays())
    assert (again.size, again.crc) == (spill.size, spill.crc)
    (tmp_path / "short").write_bytes(b"123")
    with pytest.raises(OSError, match="not complete"):
        ArraySpill(tmp_path, "short", size=10)


def test_a_damaged_file_is_no_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(array_spill, "SEGMENT", 1 << 12)
    monkeypatch.setattr(array_spill, "PIECE", 1000)
    spill = ArraySpill(tmp_path, "spill")
    for _ in range(8):  # with holes between arrays and at the ends of segments
        spill.put(arrays())
    size, crc = spill.size, spill.crc
    assert ArraySpill(tmp_path, "spill", size=size, crc=crc).size == size
    with open(tmp_path / "spill", "r+b") as file:
        file.seek(size - 20)
        byte = file.read(1)[0]
        file.seek(size - 20)
        file.write(bytes([byte ^ 4]))
    with pytest.raises(OSError, match="spill is damaged"):
        ArraySpill(tmp_path, "spill", size=size, crc=crc)


class HangingDisk:
    """Writing waits for ``go_on``."""

    def __init__(self, monkeypatch):
        self.go_on = threading.Event()
        self.error = None
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self)

    def __call__(self, *args):
        assert threading.current_thread().name == "da3-spill"
        assert self.go_on.wait(30)
        if self.error is not None:
            raise self.error
        return self._write(*args)


@pytest.fixture
def disk(monkeypatch):
    disk = HangingDisk(monkeypatch)
    yield disk
    disk.go_on.set()


def test_in_the_background_nobody_waits_for_the_disk(tmp_path, disk, monkeypatch):
    spill = ArraySpill(tmp_path, background=True)
    monkeypatch.setattr(array_spill, "WAITING", 5000)
    futures = [spill.offer(arrays()) for _ in range(5)]
    with pytest.raises(SpillBusyError):
        spill.offer([np.zeros(4000, np.uint8)])
    assert not any(future.done() for future in futures)
    spill.begin()  # what waits is not lost
    later = spill.offer(arrays())
    disk.go_on.set()
    for future in [*futures, later]:
        assert_equal(future.result(30), arrays())
    assert_equal(spill.put([np.zeros(4000, np.uint8)]), [np.zeros(4000, np.uint8)])


def test_in_the_background_a_failing_disk_is_left_alone_for_a_while(tmp_path, disk, monkeypatch):
    spill = ArraySpill(tmp_path, background=True)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    disk.go_on.set()
    with pytest.raises(OSError, match="No space"):
        spill.offer(arrays()).result(30)
    assert not spill.is_ready
    with pytest.raises(OSError, match="failed a moment ago"):
        spill.offer(arrays())
    later = time.monotonic() + array_spill.RETRY_S + 1
    monkeypatch.setattr(array_spill.time, "monotonic", lambda: later)
    disk.error = None
    assert spill.is_ready
    assert_equal(spill.offer(arrays()).result(30), arrays())


def test_without_a_thread_an_offer_is_refused(tmp_path, monkeypatch):
    spill = ArraySpill(tmp_path, background=True)

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(OSError, match="new thread"):
            spill.offer(arrays())
        spill.begin()
    assert_equal(spill.offer(arrays()).result(30), arrays())


def test_an_error_of_any_kind_is_the_futures(tmp_path, monkeypatch):
    spill = ArraySpill(tmp_path, background=True)
    monkeypatch.setattr(array_spill, "RETRY_S", -1.0)

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(MemoryError):
            spill.offer(arrays()).result(30)
    assert_equal(spill.offer(arrays()).result(30), arrays())


def test_a_disk_that_hangs_is_no_busy_one(tmp_path, disk, monkeypatch):
    spill, now = ArraySpill(tmp_path, background=True), [100.0]
    monkeypatch.setattr(array_spill.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(array_spill, "WAITING", 5000)
    first = spill.offer([np.zeros(4000, np.uint8)])
    now[0] += array_spill.HANGS_S - 1
    with pytest.raises(SpillBusyError):
        spill.offer([np.zeros(4000, np.uint8)])
    now[0] += 2
    with pytest.raises(OSError, match="does not answer"):
        spill.offer([np.zeros(4000, np.uint8)])
    disk.go_on.set()
    first.result(30)
    while spill._has_thread:
        time.sleep(0.001)
    assert_equal(spill.offer(arrays()).result(30), arrays())


def test_what_failed_no_longer_waits(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(array_spill, "WAITING", 5000)
    monkeypatch.setattr(array_spill, "RETRY_S", -1.0)
    spill = ArraySpill(tmp_path, background=True)
    disk.go_on.set()
    disk.error = OSError(errno.EIO, "Input/output error")
    for _ in range(3):
        with pytest.raises(OSError, match="Input"):
            spill.offer([np.zeros(4000, np.uint8)]).result(30)
        while spill._has_thread:
            time.sleep(0.001)
    disk.error = None
    assert_equal(spill.offer([np.ones(4000, np.uint8)]).result(30), [np.ones(4000, np.uint8)])


@pytest.mark.parametrize("size", [1, 40, 200])
def test_half_a_write_leaves_nothing(tmp_path, monkeypatch, size):
    """A disk that becomes full writes a part first."""
    spill, write = ArraySpill(tmp_path, "spill"), os.pwrite
    spill.put([np.zeros(30, np.uint8)])

    def half(file, data, at):
        if len(data) > 1:
            return write(file, data[: (len(data) + 1) // 2], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                spill.put([np.full(31, 7, np.uint8), np.full(200, 9, np.uint8)])
    one = spill.put([np.full(size, 3, np.uint8)])
    two = spill.put(arrays())
    again = ArraySpill(tmp_path, "spill", size=spill.size, crc=spill.crc)
    assert_equal(one + two, [np.full(size, 3, np.uint8), *arrays()])
    assert_equal(again.put(arrays()), arrays())


def test_what_follows_a_checkpoint_is_no_part_of_later_holes(tmp_path):
    spill = ArraySpill(tmp_path, "spill")
    spill.put([np.ones(30, np.uint8)])
    size, crc = spill.size, spill.crc
    spill.put([np.full(300, 9, np.uint8)])
    again = ArraySpill(tmp_path, "spill", size=size, crc=crc)
    again.put([np.ones(10, np.uint8)])
    again.put([np.ones(10, np.uint8)])  # after a hole
    ArraySpill(tmp_path, "spill", size=again.size, crc=again.crc)


def test_places_outside_the_file_are_refused(tmp_path):
    spill = ArraySpill(tmp_path)
    spill.put(arrays())
    for offset in (-8, spill.size):
        with pytest.raises(ValueError, match="outside"):
            spill.at(offset, np.dtype("f8"), (2,))


def test_only_whole_arrays_of_the_file_have_a_place(tmp_path):
    spill, other = ArraySpill(tmp_path), ArraySpill(tmp_path)
    one, image, *_ = spill.put(arrays())
    assert spill.offset_of(one[2:]) == spill.offset_of(one) + 24
    for array in (one[:, 0], image.copy(), other.put(arrays())[0], arrays()[0]):
        assert spill.offset_of(array) is None


def test_arrays_over_several_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(array_spill, "SEGMENT", 1 << 16)
    spill = ArraySpill(tmp_path)
    wanted = [np.full(40_000, i, np.uint8) for i in range(5)]
    found = [spill.put([one])[0] for one in wanted]
    assert_equal(found, wanted)
    assert [spill.offset_of(one) for one in found] == [i << 16 for i in range(5)]
    with pytest.raises(OSError, match="an array has"):
        spill.put([np.zeros(1 << 17, np.uint8)])
    assert_equal(found, wanted)


def test_a_limit_and_a_full_disk_change_nothing(tmp_path, monkeypatch):
    limit = DiskLimit(4000)
    spill = ArraySpill(tmp_path, limit=limit)
    first = spill.put(arrays())
    size = spill.size
    with pytest.raises(OSError, match=r"map\.disk_gb"):
        spill.put([np.zeros(5000, np.uint8)])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            spill.put(arrays())
        with pytest.raises(OSError, match="No space"):
            spill.put([np.zeros(2500, np.uint8)])
    assert spill.size == size
    other = limit.share()
    other.require(4000 - size)  # what was not written takes no room
    with pytest.raises(OSError, match="disk_gb"):
        other.require(4001 - size)
    other.set_size(0)
    assert_equal(spill.put(arrays()), arrays())
    assert_equal(first, arrays())


def test_beginning_anew_frees_the_file_and_keeps_what_is_held(tmp_path):
    spill = ArraySpill(tmp_path, limit=DiskLimit(1500))
    for _ in range(20):  # each one takes over half of the limit
        held = spill.put(arrays())
        spill.begin()
    assert spill.size == 0
    assert_equal(held, arrays())
    named = ArraySpill(tmp_path, "spill", limit=DiskLimit(1500))
    one = named.put(arrays())[0]
    named.begin()
    assert_equal([named.at(named.offset_of(one), one.dtype, one.shape)], arrays()[:1])
    with pytest.raises(OSError, match=r"map\.disk_gb"):  # a crash may need the older arrays
        named.put(arrays())
