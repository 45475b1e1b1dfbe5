"""The state of objects in a file: all of it, and nothing but it."""

import dataclasses
import json
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.journal import JournalReader, JournalWriter
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.voxel_map import VoxelMap
from da3_ros.network.model import Chunks
from da3_ros.replay.object_state import VERSION, StateError, load_state, save_state


def back(tmp_path, value, there=None, services=None):
    path = tmp_path / "state"
    path.unlink(missing_ok=True)
    save_state(path, {"one": value}, services or {})
    return load_state(path, "one", there, services or {})


VALUES = [
    None, True, 3, -(2**70), 0.1, float("inf"), "text", b"bytes", [1, [2.0]], (1, (2,)),
    {1, 2}, frozenset({"a"}), {("front", 3): [None], 2: "b"}, Counter(a=2),
    OrderedDict([(2, 1), (1, 2)]), deque([1, 2], maxlen=3), deque([1]), np.float32(0.1),
    np.int64(7), Chunks(*range(len(Chunks._fields))),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_plain_values_come_back_with_their_types(tmp_path, value):
    found = back(tmp_path, value)
    assert found == value
    assert type(found) is type(value)
    assert getattr(found, "maxlen", 0) == getattr(value, "maxlen", 0)
    assert list(found) == list(value) if isinstance(value, dict) else True


def test_not_a_number_comes_back(tmp_path):
    assert np.isnan(back(tmp_path, float("nan")))


ROW = np.dtype([("stamp", "<i8"), ("T", "<f8", (3, 4)), ("name", "S4")])
WHOLE = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
ARRAYS = [
    WHOLE, WHOLE.T, WHOLE[:, 1], WHOLE[::-1, :, ::2], WHOLE[:0], np.zeros((0, 3)),
    np.array(3.5), np.zeros(4, ROW), np.array([True, False]), np.float16([1, np.nan]),
    np.broadcast_to(np.float32(2), (3, 4)), np.array([["a", "bc"]]),
]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.kind}{a.shape}{a.strides}")
def test_arrays_come_back_with_their_layout(tmp_path, array):
    found = back(tmp_path, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    if array.size and 0 not in array.strides:
        assert found.strides == array.strides


def test_a_few_values_of_a_large_array_take_little(tmp_path):
    column = np.zeros((1000, 1000))[:, 0]
    found = back(tmp_path, column)
    assert (tmp_path / "state").stat().st_size < 20_000
    assert found.strides == (8,)


def test_an_array_stays_read_only_or_not(tmp_path):
    array = np.zeros(3)
    assert back(tmp_path, array).flags.writeable
    array.flags.writeable = False
    assert not back(tmp_path, array).flags.writeable


def test_large_arrays_are_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("da3_ros.replay.object_state.PIECE", 1000)
    array = np.random.default_rng(0).random(1001)
    np.testing.assert_array_equal(back(tmp_path, array), array)


def test_one_object_stays_one(tmp_path):
    one = np.zeros(3)
    pair = [one, one, (one,)]
    pair.append(pair)
    found = back(tmp_path, pair)
    assert found[0] is found[1] is found[2][0]
    assert found[3] is found


def test_objects_come_back_in_place_and_values_anew(tmp_path):
    voxels, place = VoxelMap(0.1), Similarity(2.0, np.eye(3), np.ones(3))
    voxels.insert(np.ones((5, 3)), np.zeros((5, 3), np.uint8), np.ones(5))
    there = {"map": VoxelMap(0.5), "place": Similarity(1.0, np.eye(3), np.zeros(3))}
    mine, shared = there["map"], there["place"]
    found = back(tmp_path, {"map": voxels, "place": place}, there)
    assert found["map"] is mine
    assert (mine.voxel, len(mine)) == (0.1, 1)
    assert found["place"] is not shared  # frozen: others may have it
    assert (shared.scale, found["place"].scale) == (1.0, 2.0)


def test_objects_of_a_list_come_back_in_place(tmp_path):
    """Listeners are first met in a list, and what is not written of them is the program's."""
    before, there = [VoxelMap(0.1), VoxelMap(0.2)], [VoxelMap(0.5), VoxelMap(0.6)]
    mine = list(there)
    found = back(tmp_path, {"l": before}, {"l": there})["l"]
    assert [a is b for a, b in zip(found, mine, strict=True)] == [True, True]
    assert [v.voxel for v in mine] == [0.1, 0.2]
    found = back(tmp_path, {"l": before}, {"l": [VoxelMap(0.5)]})["l"]
    assert [v.voxel for v in found] == [0.1, 0.2]


def test_an_object_is_not_made_two_things(tmp_path):
    """The new program has one object where the state has two."""
    one = VoxelMap(0.5)
    found = back(tmp_path, {"a": VoxelMap(0.1), "b": VoxelMap(0.2)}, {"a": one, "b": one})
    assert [found[k].voxel for k in "ab"] == [0.1, 0.2]


def test_counters_stay_those_of_the_program(tmp_path):
    """Another thread counts in them."""
    counters = Counter(old=3)
    assert back(tmp_path, {"c": Counter(new=1)}, {"c": counters})["c"] is counters
    assert counters == Counter(new=1)


def test_services_and_code_stay_those_of_the_program(tmp_path):
    def scheduler(warn):
        out = LoopClosure()
        out.warn, out.session = warn, object()
        return out

    before, now = scheduler(print), scheduler(repr)
    before.closed = 4
    save_state(tmp_path / "state", {"one": before}, {"session": before.session})
    load_state(tmp_path / "state", "one", now, {"session": now.session})
    assert now.closed == 4
    assert now.warn is repr
    assert now.session is not before.session
    with pytest.raises(StateError, match=r"the state has .*, this program does not"):
        load_state(tmp_path / "state", "one", None, {"session": now.session})


def test_a_running_computation_comes_back_with_its_result(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        found = back(tmp_path, [pool.submit(lambda: 7)])[0]
    assert isinstance(found, Future)
    assert (found.done(), found.result()) == (True, 7)


def test_arrays_on_the_disk_stay_there(tmp_path):
    spill = ArraySpill(tmp_path, "spill")
    array = spill.put([np.arange(100_000)])[0]
    path = tmp_path / "state"
    save_state(path, {"one": [array, array[5:], array[::2]]}, {"spill": spill})
    assert path.stat().st_size < 500_000  # only the third is copied
    again = ArraySpill(tmp_path, "spill", size=spill.size, crc=spill.crc)
    found = load_state(path, "one", None, {"spill": again})
    for a, b in zip(found, (array, array[5:], array[::2]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.offset_of(found[1]) == 40


@pytest.mark.parametrize("value", [object(), np.array([None]), (x for x in ()), 1j])
def test_what_cannot_be_written_is_named(tmp_path, value):
    with pytest.raises(StateError, match=r"one\[\]\[deep\].*cannot be written"):
        save_state(tmp_path / "state", {"one": [{"deep": value}]}, {})


def crafted(path, roots, nodes):
    """A state file with any tree."""
    journal = JournalWriter(path)
    journal.append({"kind": "state", "format": "da3_ros state", "version": VERSION})
    journal.append({"kind": "tree"}, json.dumps({"roots": roots, "nodes": nodes}).encode())
    journal.append({"kind": "end"})
    journal.close()


NODE = {"one": {"node": 0}}
CRAFTED = [
    ({"kind": "object", "module": "subprocess", "class": "Popen", "attributes": {}}, "no class"),
    ({"kind": "object", "module": "da3_ros.replay.object_state", "class": "json.decoder",
      "attributes": {}}, "no class"),
    ({"kind": "object", "module": "da3_ros.replay.object_state", "class": "Path",
      "attributes": {}}, "no class"),  # of another module
    ({"kind": "object", "module": "da3_ros.replay.object_state", "class": "save_state",
      "attributes": {}}, "no class"),
    ({"kind": "named tuple", "module": "da3_ros.mapping.voxel_map", "class": "VoxelMap",
      "values": [0.1]}, "no tuple"),
    ({"kind": "kept", "type": "builtins.type"}, "this program does not"),
    ({"kind": "unheard"}, "this program does not"),
    ({"kind": "array", "type": "|O", "shape": [1], "strides": [8], "record": 0}, "objects"),
    ({"kind": "array", "type": "<f8", "shape": [10], "strides": [8], "record": 0,
      "scalar": False, "writeable": True}, "length|damaged"),
    ({"kind": "tuple", "values": [{"node": 0}]}, "damaged"),  # contains itself
    ({"kind": "list", "values": [{"service": "none"}]}, "damaged"),
    ({"kind": "list", "values": [{"node": 7}]}, "damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "why"), CRAFTED, ids=range(len(CRAFTED)))
def test_crafted_files_are_refused(tmp_path, node, why):
    crafted(tmp_path / "state", NODE, [node])
    with pytest.raises(StateError, match=why):
        load_state(tmp_path / "state", "one", print, {})


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "state"
    save_state(path, {"one": np.arange(1000)}, {})
    whole = path.read_bytes()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with pytest.raises(StateError, match="state"):
            load_state(path, "one", None, {})
    at = whole.index(np.arange(1000).tobytes()) + 500
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    with pytest.raises(StateError, match="damaged"):
        load_state(path, "one", None, {})
    with pytest.raises(StateError, match="nowhere"):
        load_state(tmp_path / "nowhere", "one", None, {})


def test_a_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "state"
    save_state(path, {"one": 1}, {})
    data = path.read_bytes()
    assert f'"version":{VERSION}'.encode() in data
    with JournalReaderOf(path) as reader:
        assert next(reader.records()).description["version"] == VERSION
    path.unlink()
    journal = JournalWriter(path)
    journal.append({"kind": "state", "format": "da3_ros state", "version": VERSION - 1})
    journal.append({"kind": "end"})
    journal.close()
    with pytest.raises(StateError, match="this version"):
        load_state(path, "one", None, {})


class JournalReaderOf:
    def __init__(self, path: Path) -> None:
        self.reader = JournalReader(path)

    def __enter__(self) -> JournalReader:
        return self.reader

    def __exit__(self, *_: object) -> None:
        self.reader.close()


def test_values_are_frozen_dataclasses():
    assert dataclasses.is_dataclass(Similarity)
    assert Similarity.__dataclass_params__.frozen
