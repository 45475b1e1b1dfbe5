"""Keyframes kept for loops: the oldest on the disk, in order, whatever happens to them."""

import dataclasses
from concurrent.futures import Future

import numpy as np
import pytest
from support.submaps import table_of

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.mapping import loop_keyframes
from da3_ros.mapping.loop_keyframes import LoopKeyframes, PlacedKeyframe, numbered
from da3_ros.mapping.map_table import FEW_SAMPLES, MapTable, ViewRow
from da3_ros.types import View


def keyframe(number):
    rng = np.random.default_rng(number)
    view = View(number, number, rng.integers(0, 255, (8, 10, 3), np.uint8), frame_id="")
    pixels = np.arange(80)
    row = ViewRow(view, np.eye(3), np.eye(4), pixels, rng.random(80), rng.random(80), number)
    look, depth = rng.random(4).astype(np.float32), float(np.median(row.depth))
    return dataclasses.replace(row, descriptor=look, typical_depth=depth)


@pytest.fixture
def spill(tmp_path):
    return ArraySpill(tmp_path)


@pytest.fixture
def kept(spill, monkeypatch):
    monkeypatch.setattr(loop_keyframes, "MAX_KEYFRAMES", 3)
    kept = LoopKeyframes(table_of([IDENTITY] * 8), spill)
    for number in range(8):
        kept.add_keyframe(keyframe(number), 0)
    return kept


def on_disk(kept, spill):
    """The numbers of the keyframes of which all arrays lie on the disk."""
    return [k.submap for k in kept if all(spill.offset_of(a) is not None for a in k.arrays)]


def test_a_removed_keyframe_moves_the_border(kept, spill):
    assert on_disk(kept, spill) == [0, 1, 2, 3, 4]
    kept.remove(kept.ids[2])  # on the disk
    kept.remove(kept.ids[6])  # the newest, in memory
    kept.add_keyframe(keyframe(8), 0)
    assert [k.submap for k in kept] == [0, 1, 3, 4, 5, 6, 8]
    kept.add_keyframe(keyframe(9), 0)
    assert on_disk(kept, spill) == [0, 1, 3, 4, 5]
    count = len(on_disk(kept, spill))
    one = kept[0].descriptor.nbytes + loop_keyframes.OVERHEAD
    arrays = sum(a.nbytes for a in kept[-1].arrays)
    assert kept.nbytes == 3 * (arrays + one) + count * one


def test_where_memory_is_full_of_what_lies_on_the_disk_all_are_thinned(tmp_path):
    """Not the newest ones alone: no loop would be closed any more."""
    kept = LoopKeyframes(MapTable(), ArraySpill(tmp_path, background=False))
    room = 20 * (keyframe(0).descriptor.nbytes + loop_keyframes.OVERHEAD)
    for number in range(200):
        kept.add_keyframe(keyframe(number), room)
    assert kept.nbytes <= room
    assert kept.ids[-1] == 199
    assert 10 < len(kept) < 20
    assert sum(id >= 100 for id in kept.ids) > 4
    assert sum(id < 100 for id in kept.ids) > 2


def test_a_correction_writes_nothing(kept, spill):
    move = Similarity(2.0, np.eye(3), np.array([1.0, 2, 3]))
    before, size = [k.depth.copy() for k in kept], spill.size
    submaps = kept._table
    for _ in range(2):
        submaps.set_poses({id: move @ s.T_map_submap for id, s in submaps.submaps.items()})
    assert on_disk(kept, spill) == [0, 1, 2, 3, 4]
    assert spill.size == size
    for k, depth in zip(kept, before, strict=True):
        placed = PlacedKeyframe.of(k, submaps)
        np.testing.assert_array_equal(placed.view.depth, 4 * depth)
        assert placed.depth == pytest.approx(4 * np.median(depth))
        np.testing.assert_allclose(placed.view.T_local_camera[:3, 3], [3, 6, 9])
        np.testing.assert_array_equal(placed.T_local_camera, placed.view.T_local_camera)


@pytest.fixture
def late(tmp_path, monkeypatch):
    """A spill of which each offer is answered by hand."""
    spill = ArraySpill(tmp_path)
    spill.answers = []

    def offer(arrays):
        future = Future()
        spill.answers.append((future, list(arrays)))
        return future

    put = spill.put
    monkeypatch.setattr(spill, "offer", offer)
    monkeypatch.setattr(loop_keyframes, "MAX_KEYFRAMES", 3)

    def answer(error=None):
        future, arrays = spill.answers.pop(0)
        if error is not None:
            future.set_exception(error)
            return
        with monkeypatch.context() as patch:
            patch.setattr(spill, "offer", ArraySpill.offer.__get__(spill))
            future.set_result(put(arrays))

    spill.answer = answer
    return spill


def test_keyframes_on_their_way_to_the_disk_count_as_there(late):
    kept = LoopKeyframes(MapTable(), late)
    for number in range(6):
        kept.add_keyframe(keyframe(number), 0)
    assert len(late.answers) == 3
    assert on_disk(kept, late) == []
    kept.remove(kept.ids[0])  # before it is written
    late.answer()
    late.answer()
    late.answer(OSError("full"))
    kept.add_keyframe(keyframe(6), 0)
    assert [k.submap for k in kept] == [1, 3, 4, 5, 6]  # 2 was not written: it is forgotten
    assert on_disk(kept, late) == [1]
    late.answer()
    kept.add_keyframe(keyframe(7), 0)
    assert on_disk(kept, late) == [1, 3]
    np.testing.assert_array_equal(kept[1].arrays[0], keyframe(3).arrays[0])


def test_a_keyframe_keeps_few_samples():
    """A saved scene refuses more."""
    kept, rng = LoopKeyframes(MapTable()), np.random.default_rng(0)
    many = dataclasses.replace(
        keyframe(0), pixels=np.arange(3000), depth=rng.random(3000), confidence=np.ones(3000)
    )
    kept.add_keyframe(many, 0)
    assert len(kept[0].pixels) == len(kept[0].depth) == len(kept[0].confidence) == FEW_SAMPLES
    at = np.flatnonzero(np.isin(many.pixels, kept[0].pixels))
    np.testing.assert_array_equal(kept[0].depth, many.depth[at])


def test_keyframes_of_another_session_get_ids_of_their_own():
    """Else a loaded keyframe and a new view could have one id."""
    rows = numbered([keyframe(0), keyframe(5)])
    assert [row.view.id for row in rows] == [-1, -2]
    kept = LoopKeyframes(MapTable())
    kept.restore(rows)
    kept.add_keyframe(keyframe(0), 0)
    assert [row.view.id for row in kept] == [-1, -2, 0]
    assert kept.ids.index(-2) == 1


def test_a_new_list_begins_without_keyframes():
    table = MapTable()
    LoopKeyframes(table).add_keyframe(keyframe(0), 0)
    assert len(table.keyframes) == 1
    assert len(LoopKeyframes(table)) == len(table.keyframes) == 0
