"""Arrays that lie in a file."""

import errno
import os

import numpy as np
import pytest

from da3_ros.keyframe_store import array_spill
from da3_ros.keyframe_store.array_spill import ArraySpill


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
    place, size = spill.place_of(one), spill.size
    spill.put(arrays())
    again = ArraySpill(tmp_path, "spill", size=size)
    assert_equal([again.at(place, one.dtype, one.shape)], arrays()[:1])
    assert_equal(again.put(arrays()), arrays())
    assert again.size == spill.size
    (tmp_path / "short").write_bytes(b"123")
    with pytest.raises(OSError, match="not complete"):
        ArraySpill(tmp_path, "short", size=10)


def test_places_outside_the_file_are_refused(tmp_path):
    spill = ArraySpill(tmp_path)
    spill.put(arrays())
    for place in (-8, spill.size):
        with pytest.raises(ValueError, match="outside"):
            spill.at(place, np.dtype("f8"), (2,))


def test_only_whole_arrays_of_the_file_have_a_place(tmp_path):
    spill, other = ArraySpill(tmp_path), ArraySpill(tmp_path)
    one, image, *_ = spill.put(arrays())
    assert spill.place_of(one[2:]) == spill.place_of(one) + 24
    for array in (one[:, 0], image.copy(), other.put(arrays())[0], arrays()[0]):
        assert spill.place_of(array) is None


def test_arrays_over_several_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(array_spill, "SEGMENT", 1 << 16)
    spill = ArraySpill(tmp_path)
    wanted = [np.full(40_000, i, np.uint8) for i in range(5)]
    found = [spill.put([one])[0] for one in wanted]
    assert_equal(found, wanted)
    assert [spill.place_of(one) for one in found] == [i << 16 for i in range(5)]
    with pytest.raises(OSError, match="an array has"):
        spill.put([np.zeros(1 << 17, np.uint8)])
    assert_equal(found, wanted)


def test_a_limit_and_a_full_disk_change_nothing(tmp_path, monkeypatch):
    spill = ArraySpill(tmp_path, limit_bytes=4000)
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
    assert spill.size == size
    assert_equal(spill.put(arrays()), arrays())
    assert_equal(first, arrays())


def test_beginning_anew_frees_the_file_and_keeps_what_is_held(tmp_path):
    spill = ArraySpill(tmp_path, limit_bytes=2000)
    for _ in range(20):  # each one takes over half of the limit
        held = spill.put(arrays())
        spill.begin()
    assert spill.size == 0
    assert_equal(held, arrays())
    named = ArraySpill(tmp_path, "spill", limit_bytes=2000)
    one = named.put(arrays())[0]
    named.begin()
    assert_equal([named.at(named.place_of(one), one.dtype, one.shape)], arrays()[:1])
    assert named.put(arrays())
