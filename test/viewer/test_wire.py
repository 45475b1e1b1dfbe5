"""Messages between the viewer's process and the one that feeds it."""

import io

import numpy as np
import pytest

from da3_ros.viewer.wire import ViewerMessage, WireError, read_message, write_message

ARRAYS = {
    "xyz": np.arange(6, dtype=np.float16).reshape(2, 3),
    "none": np.zeros((0, 3), np.uint8),
    "deep": np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)[:, :, ::2],
}


def written(*messages):
    stream = io.BytesIO()
    for message in messages:
        write_message(stream, message)
    return stream.getvalue()


def test_messages_come_back_as_they_were_sent():
    one = ViewerMessage("map", {"ids": [1, 2], "text": "ä\n", "unknown": float("nan")}, ARRAYS)
    stream = io.BytesIO(written(one, ViewerMessage("state")))
    read = read_message(stream)
    assert read.kind == "map"
    assert read.values["ids"] == [1, 2]
    assert read.values["text"] == "ä\n"
    assert np.isnan(read.values["unknown"])
    for name, array in ARRAYS.items():
        assert read.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays[name], array)
    assert read_message(stream).kind == "state"
    assert read_message(stream) is None


def test_a_message_that_ends_early_is_refused_wherever_it_ends():
    data = written(ViewerMessage("map", {"a": 1}, ARRAYS))
    for size in range(1, len(data)):
        with pytest.raises(WireError):
            read_message(io.BytesIO(data[:size]))


@pytest.mark.parametrize("layout", [
    '["map", {}, [["x", "O", [1]]]]', '["map", {}, [["x", "f4", [-1]]]]', "[1, 2]", "nonsense",
    '["map", {}, [["x", "f8", [1000000, 1000000]]]]',
])  # fmt: skip
def test_only_arrays_of_numbers_are_read(layout):
    head = layout.encode()
    with pytest.raises(WireError):
        read_message(io.BytesIO(len(head).to_bytes(4, "little") + head + bytes(64)))


def test_objects_are_not_sent():
    with pytest.raises(WireError, match="O8"):
        written(ViewerMessage("map", {}, {"x": np.array([object()])}))
