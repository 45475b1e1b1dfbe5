"""What a replay keeps of its course: a bounded number of bins, each of as many frames.

When there are too many bins, each two neighbours become one, so that sums stay exact and memory
is constant. ``docs/recordings.md`` names the file. What depends on the machine (times, memory) is
in columns of its own, since it is written to another file.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.types import Array, TrackedFrame

NAME = "timeline.json"
VERSION = 1
MOST_BINS = 2000
MAX_BYTES = 1 << 24  # of a file; one of ``MOST_BINS`` takes a megabyte
DIGITS = 6  # significant digits in the file
# Why frames have no depth (``TrackedFrame.blind``); any other cause counts as the last one.
CAUSES = ("dark", "overexposed", "blurred", "noise", "frozen", "lost", "uncertain", "refused",
          "other")  # fmt: skip
STAMPS = ("first_ns", "last_ns")
# Columns that two bins add up, of which they keep the largest, and of which they keep the newest
# known value.
SUMS = (
    "frames",
    "keyframes",
    *(f"blind_{cause}" for cause in CAUSES),
    "known_depth",  # of frames that are not blind: share 0..1 of pixels with depth
    "windows",
    "refined",  # windows whose poses tracks determine
    "tracks",  # of all windows
    "reprojection_px",  # of refined windows, RMS of the tracks
    "loops",  # corrections of the map by loops
)
LARGEST = ("gap_s",)  # time to the frame before
NEWEST = (
    "scale",  # metres per unit of the scene
    "scale_sigma",  # its relative standard deviation
    "focal_ratio",  # the network's focal length over the calibrated one
    # Standard deviations of the position in the map, in the axes of ROS and the published unit.
    "sigma_x", "sigma_y", "sigma_z",
)  # fmt: skip
MEASURED_SUMS = ("inference_s", "refinement_s", "window_s")  # of windows; the last one: in all
MEASURED_LARGEST = ("memory_mb",)  # resident memory of the process
COLUMNS = (*STAMPS, *SUMS, *LARGEST, *NEWEST)
MEASURED_COLUMNS = (*MEASURED_SUMS, *MEASURED_LARGEST)
ROW = np.dtype(
    [(name, "<i8" if name in STAMPS else "<f8") for name in (*COLUMNS, *MEASURED_COLUMNS)]
)


class TimelineError(RuntimeError):
    """A file that is no timeline; one line."""


class Timeline:
    """Samples the delivered frames of a scene. Deterministic but for ``MEASURED_COLUMNS``."""

    def __init__(self) -> None:
        self._rows = np.zeros(MOST_BINS, ROW)
        self._bins = 0
        self._in_bin = 0  # frames in the newest bin
        self.frames_per_bin = 1
        self._newest_ns: int | None = None  # stamp of the newest reference frame

    def add_frame(self, frame: TrackedFrame, R_ros_map: Array, *, leading: bool) -> None:
        """Adds the stream's next frame.

        R_ros_map [3, 3]: axes of the map in those of ROS. leading: whether its camera's path is
        that of the scene.
        """
        row = np.zeros(1, ROW)
        for name in NEWEST:
            row[name] = math.nan
        row["first_ns"] = row["last_ns"] = frame.stamp_ns
        row["frames"], row["keyframes"] = 1, frame.keyframe
        if frame.blind:
            row[f"blind_{frame.blind if frame.blind in CAUSES else CAUSES[-1]}"] = 1
        elif frame.depth_m.size:
            row["known_depth"] = float(np.isfinite(frame.depth_m).mean())
        if frame.is_reference:
            if self._newest_ns is not None:
                row["gap_s"] = (frame.stamp_ns - self._newest_ns) / 1e9
            self._newest_ns = frame.stamp_ns
        if leading and not frame.blind and frame.covariance_map is not None:
            variance = np.diag(R_ros_map @ frame.covariance_map[:3, :3] @ R_ros_map.T)
            row["sigma_x"], row["sigma_y"], row["sigma_z"] = np.sqrt(np.maximum(variance, 0))
        if frame.scale.metric:
            row["scale"], row["scale_sigma"] = frame.scale.value, frame.scale.sigma
        if frame.ends_window and not frame.blind:
            _add_window(row, frame)
        self._append(row)

    def _append(self, row: NDArray[np.void]) -> None:
        if self._in_bin % self.frames_per_bin == 0:
            if self._bins == MOST_BINS:
                self._rows[: MOST_BINS // 2] = _joined(self._rows[::2], self._rows[1::2])
                self._bins, self.frames_per_bin = MOST_BINS // 2, 2 * self.frames_per_bin
            self._rows[self._bins] = row[0]
            self._bins, self._in_bin = self._bins + 1, 1
            return
        last = self._rows[self._bins - 1 : self._bins]
        last[:] = _joined(last, row)
        self._in_bin += 1

    @property
    def rows(self) -> NDArray[np.void]:
        """The bins [B] so far, of ``ROW``."""
        return self._rows[: self._bins]

    def write(self, path: Path) -> None:
        """Writes all but ``MEASURED_COLUMNS``: the same frames give the same bytes. Raises
        OSError."""
        content = {"version": VERSION, "frames_per_bin": self.frames_per_bin}
        columns = _columns(self.rows, COLUMNS)
        path.write_text(json.dumps(content | {"columns": columns}, separators=(",", ":")) + "\n")

    def measured(self) -> dict[str, list[float | None]]:
        """Returns the ``MEASURED_COLUMNS`` by name, for a file that differs between runs."""
        return _columns(self.rows, MEASURED_COLUMNS)


def read_timeline(path: Path, measured: Mapping[str, Any]) -> NDArray[np.void]:
    """Returns the bins [B] of a file, of ``ROW``. Raises TimelineError, OSError.

    measured: what ``Timeline.measured`` returned; columns that do not fit are NaN.
    """
    if path.stat().st_size > MAX_BYTES:
        raise TimelineError(f"{path} is too large for a timeline")
    try:
        content = json.loads(path.read_text())
        version, columns = content["version"], content["columns"]
        if len(columns[STAMPS[0]]) > MOST_BINS:
            raise ValueError(f"more than {MOST_BINS} bins")
        rows = np.zeros(len(columns[STAMPS[0]]), ROW)
        for name in COLUMNS if version == VERSION else ():
            rows[name] = _numbers(columns[name], name)
    except (
        ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError
    ) as error:  # fmt: skip
        raise TimelineError(f"{path} is no timeline, or damaged: {error}") from error
    if version != VERSION:
        raise TimelineError(f"{path} has version {version!r}, this da3_ros reads {VERSION}")
    for name in MEASURED_COLUMNS:
        found = measured.get(name)
        fits = isinstance(found, list) and len(found) == len(rows)
        try:
            rows[name] = _numbers(found, name) if fits else math.nan
        except (ValueError, TypeError, ArithmeticError):
            rows[name] = math.nan
    return rows


def coarser(rows: NDArray[np.void], most: int) -> NDArray[np.void]:
    """Returns at most ``most`` bins, of neighbours."""
    while len(rows) > most:
        even = len(rows) // 2 * 2
        rows = np.concatenate((_joined(rows[:even:2], rows[1:even:2]), rows[even:]))
    return rows


def _numbers(values: Any, name: str) -> NDArray[Any]:
    """Returns a column; null is NaN. Raises ValueError, TypeError."""
    if name in STAMPS:
        return np.array(values, np.int64)
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _add_window(row: NDArray[np.void], frame: TrackedFrame) -> None:
    """Adds the window that a frame ends to the frame's row."""
    window = frame.window
    row["windows"], row["refined"] = 1, window.refined
    row["tracks"] = window.tracks
    row["reprojection_px"] = window.reprojection_px if window.refined else 0.0
    row["loops"] = window.loop_closed
    row["focal_ratio"] = window.focal_ratio
    row["inference_s"], row["refinement_s"] = window.inference_s, window.refinement_s
    row["window_s"], row["memory_mb"] = window.total_s, resident_mb()


def _joined(first: NDArray[np.void], second: NDArray[np.void]) -> NDArray[np.void]:
    """Returns bins [N] of two neighbours each."""
    out = first.copy()
    out["last_ns"] = second["last_ns"]
    for name in (*SUMS, *MEASURED_SUMS):
        out[name] += second[name]
    for name in (*LARGEST, *MEASURED_LARGEST):
        out[name] = np.maximum(first[name], second[name])
    for name in NEWEST:
        out[name] = np.where(np.isnan(second[name]), first[name], second[name])
    return out


def _columns(rows: NDArray[np.void], names: tuple[str, ...]) -> dict[str, list[float | None]]:
    return {
        name: rows[name].tolist() if name in STAMPS else [_short(v) for v in rows[name].tolist()]
        for name in names
    }


def _short(value: float) -> float | None:
    """Returns a number as it is written: rounded, null where it is unknown."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short


def resident_mb() -> float:
    """Returns the memory of this process, MiB; NaN where the system does not tell."""
    if sys.platform != "linux":
        return math.nan
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
