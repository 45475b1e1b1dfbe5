"""The record of a saved scene with what its keyframes saw of the floor.

``docs/scene_file.md`` describes it. Damage costs the grid, not the scene.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from da3_ros.keyframe_store.checks import check, is_near, is_rotation
from da3_ros.keyframe_store.journal import JournalReader, JournalWriter
from da3_ros.keyframe_store.store import CAMERA
from da3_ros.mapping.floor_view import BINS, FloorView, FloorViews

VIEW = np.dtype(
    [("stamp_ns", "<i8"), ("camera", "<i2"), ("submap", "<i4"), ("R", "<f4", (3, 3)),
     ("height", "<f8"), ("cell", "<f8"), ("first", "<i2"), ("bins", "<i4"), ("marks", "<i4")]
)  # fmt: skip


def append_floor(journal: JournalWriter, floor: FloorViews) -> int:
    """Appends the views; returns the offset of their record. Raises OSError."""
    cameras = sorted({v.camera for v in floor.views})
    rows = np.zeros(len(floor.views), VIEW)
    for row, v in zip(rows, floor.views, strict=True):
        row["stamp_ns"], row["camera"], row["submap"] = (
            v.stamp_ns,
            cameras.index(v.camera),
            v.submap,
        )
        row["R"], row["height"], row["cell"] = v.R_level_camera, v.height, v.cell
        row["first"], row["bins"], row["marks"] = v.first, len(v.free), len(v.marks)
    about = {"kind": "floor", "resolution": floor.resolution, "cameras": cameras,
             "views": len(rows)}  # fmt: skip
    columns = [rows.tobytes(), *(v.free.astype("<f2").tobytes() for v in floor.views),
               *(v.marks.astype("<i2").tobytes() for v in floor.views)]  # fmt: skip
    return journal.append(about, b"".join(columns))


def load_floor(journal: JournalReader, start: int, submaps: Collection[int]) -> FloorViews:
    """Returns the views of the record at an offset, of a scene with these submaps.

    Raises OSError, JournalError, LookupError, TypeError, ValueError for damage.
    """
    record = journal.record(start)
    about, data = record.description, journal.data(record)
    check(about["kind"] == "floor", "the record of the floor")
    resolution, cameras, count = about["resolution"], about["cameras"], about["views"]
    check(isinstance(resolution, float) and 1e-3 <= resolution <= 10.0, "the resolution")
    check(all(CAMERA.fullmatch(name) for name in cameras), "a camera's name")
    check(type(count) is int and 0 <= count * VIEW.itemsize <= len(data), "the number of views")
    rows = np.frombuffer(data, VIEW, count)
    known = (rows["camera"] >= 0) & (rows["camera"] < len(cameras))
    check(bool(known.all() and np.isin(rows["submap"], list(submaps)).all()), "views")
    check(is_near(rows["height"]) and bool((rows["cell"] > 0).all()), "the numbers of views")
    check(is_near(rows["cell"]), "the cells of views")
    low, high = rows["first"] + BINS // 2, rows["first"] + BINS // 2 + rows["bins"]
    check(bool(((low >= 0) & (rows["bins"] >= 0) & (high <= BINS)).all()), "azimuths")
    check(bool((rows["marks"] >= 0).all()), "the number of marks")
    bins, marks = rows["bins"].astype(np.int64), rows["marks"].astype(np.int64)
    size = rows.nbytes + 4 * int(bins.sum() + marks.sum())
    check(size == len(data), "the size of views")
    free = np.frombuffer(data, "<f2", 2 * int(bins.sum()), rows.nbytes).reshape(-1, 2)
    cells = np.frombuffer(data, "<i2", offset=rows.nbytes + free.nbytes).reshape(-1, 2)
    check(not bool(np.isinf(free).any() or (free < 0).any()), "free distances")
    views = []
    parts = zip(rows, np.split(free, np.cumsum(bins)[:-1]), np.split(cells, np.cumsum(marks)[:-1]),
                strict=True) if count else ()  # fmt: skip
    for row, own_free, own_cells in parts:
        check(is_rotation(row["R"].astype(np.float64)), "a view's rotation")
        views.append(FloorView(
            int(row["stamp_ns"]), cameras[row["camera"]], int(row["submap"]),
            row["R"].astype(np.float32), float(row["height"]), int(row["first"]),
            own_free.astype(np.float16), float(row["cell"]), own_cells.astype(np.int16),
        ))  # fmt: skip
    return FloorViews(resolution, tuple(views))
