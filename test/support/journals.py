"""Scene files with other records in them, whose checksums and offsets are right."""

import copy

import numpy as np

from da3_ros.export.saved_records import NONE, SUBMAP
from da3_ros.keyframe_store.journal import JournalReader, JournalWriter
from da3_ros.keyframe_store.store import JOURNAL, KINDS


def records_of(file):
    """Offset, description and data of all records."""
    reader, out, at = JournalReader(file), [], 0
    for record in reader.records():
        data = reader._read(record.start, record.size)  # damaged or not
        out.append((at, record.description, data))
        at = reader.end
    reader.close()
    return out


def rewritten(folder, change):
    """Writes a scene's file again with records as ``change`` returns them, given description and
    data; None: without that record. What says where records are follows."""
    records, moved = records_of(folder / JOURNAL), {NONE: NONE}
    (folder / JOURNAL).unlink()
    writer = JournalWriter(folder / JOURNAL)
    for at, description, data in records:
        found = change(*_followed(copy.deepcopy(description), data, moved))
        if found is not None:
            moved[at] = writer.append(*found)
    writer.close()
    return folder


def _followed(description, data, moved):
    kind = description.get("kind")
    if kind == "contents":
        rows = np.frombuffer(data, SUBMAP).copy()
        for name in ("points", "images"):
            rows[name] = [moved.get(at, 10**9) for at in rows[name].tolist()]
        for name in ("path", "recognition", "floor", "anchors"):
            description[name] = moved.get(description[name], 10**9)
        data = rows.tobytes()
    elif kind == "recognition":
        count = description["keyframes"]
        starts = np.frombuffer(data[len(data) - 8 * count :], "<i8").tolist()
        kept = [moved[at] for at in starts if at in moved]
        description["keyframes"] = len(kept)
        data = data[: len(data) - 8 * count] + np.array(kept, "<i8").tobytes()
    elif kind == "end":
        description["contents"] = moved.get(description["contents"], 10**9)
    return description, data


def changed_in(kind, /, **values):
    """A change of a description."""

    def change(description, data):
        return (description | values if description["kind"] == kind else description), data

    return change


def changed_rows(kind, dtype, /, **values):
    """A change of columns of a record's rows."""

    def change(description, data):
        if description["kind"] == kind:
            rows = np.frombuffer(data, dtype).copy()
            for name, value in values.items():
                rows[name] = value
            data = rows.tobytes()
        return description, data

    return change


def without_keyframes(folder):
    """A scene without the stored keyframes of its run, as ``~/save_scene`` writes it."""

    def change(description, data):
        return None if description["kind"] in KINDS else (description, data)

    return rewritten(folder, change)
