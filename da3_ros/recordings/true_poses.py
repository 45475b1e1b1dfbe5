"""True camera poses of a recording, for figures alone: no pose enters the processing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from da3_ros.geometry.poses import between
from da3_ros.recordings.base import RecordingError, check_rate
from da3_ros.recordings.layouts import find_data_set
from da3_ros.recordings.layouts.layout import Layout, camera_of
from da3_ros.recordings.layouts.text_rows import tum_poses
from da3_ros.types import Array

NEAREST_NS = 10_000_000  # between stamps of one pose that clocks or few digits have parted (evo)
# Longest gap in which poses are interpolated: these usual steps of the truth, within these bounds.
STEPS, SHORTEST_GAP_NS, LONGEST_GAP_NS = 1.5, 50_000_000, 200_000_000


@dataclass(frozen=True, eq=False)
class TruePoses:
    """True camera poses of a recording, in the frame of its truth."""

    stamps_ns: Array  # [M] int64, ascending
    T_truth_camera: Array  # [M, 4, 4] float64, metres (optical axes of the camera)
    metric: bool = True  # False: positions have an unknown unit, that of a COLMAP model
    per_image: bool = False  # True: poses of images, valid at their stamps alone
    source: str = ""  # where they are from, in words: file, or data set and camera

    @property
    def longest_gap_ns(self) -> float:
        """The longest gap in which poses are interpolated: ``STEPS`` of the usual step, at least
        ``SHORTEST_GAP_NS`` and at most ``LONGEST_GAP_NS``."""
        steps = np.diff(self.stamps_ns)
        usual = float(np.median(steps)) if len(steps) else 0.0
        return float(np.clip(STEPS * usual, SHORTEST_GAP_NS, LONGEST_GAP_NS))

    def at(self, stamps_ns: Array) -> tuple[Array, Array]:
        """Returns which times [N], ns, have a true pose [N] bool, and T_truth_camera [K, 4, 4] of
        these.

        A pose is exact at its stamp. Between two poses it is interpolated (slerp, linear) in gaps
        up to ``longest_gap_ns``. Elsewhere the nearest one within ``NEAREST_NS`` counts. Poses of
        images count at their stamps alone.
        """
        wanted = np.asarray(stamps_ns, np.int64)
        after = np.clip(np.searchsorted(self.stamps_ns, wanted), 0, len(self.stamps_ns) - 1)
        before = np.maximum(after - 1, 0)
        start, end = self.stamps_ns[before], self.stamps_ns[after]
        nearest = np.where(np.abs(wanted - start) < np.abs(end - wanted), before, after)
        exact = end == wanted
        if self.per_image:
            return exact, np.array(self.T_truth_camera[after[exact]])
        inside = (start < wanted) & (wanted < end) & (end - start <= self.longest_gap_ns)
        known = exact | inside | (np.abs(self.stamps_ns[nearest] - wanted) <= NEAREST_NS)
        T = np.array(self.T_truth_camera[nearest[known]])
        if inside.any():  # else SciPy may refuse none
            share = (wanted - start)[inside] / (end - start)[inside]
            a, b = (self.T_truth_camera[index[inside]] for index in (before, after))
            T[inside[known]] = between(a, b, share)
        return known, T


def true_camera(path: Path, recorded: str) -> str | None:
    """Returns which camera of the data set at ``path`` the camera of a recording is: its name, or
    the one whose name is a part of an image topic. None: ``path`` is no data set.

    recorded: camera or topic; empty: unknown. Raises RecordingError if it can be several.
    """
    found = None if path.is_file() else find_data_set(path)
    if found is None:
        return None
    names = found[0].cameras(found[1])
    parts = {recorded, *recorded.split("/")}
    fitting = [name for name in names if name in parts]
    if len(names) == 1 or len(fitting) == 1:
        return (fitting or list(names))[0]
    raise RecordingError(
        f"{path}: it is not known of which camera the poses are (recorded: "
        f"{recorded or 'unknown'}): give --truth-camera {' | '.join(names)}"
    )


def read_true_poses(path: Path, camera: str | None = None, rate_hz: float = 10.0) -> TruePoses:
    """Reads the true poses of a trajectory file in the TUM format, or of a data set's folder.

    camera: of a data set; None: the one that a replay takes by default. rate_hz: as in the replay;
    it gives the stamps of data sets without times. The poses are those of the camera in its
    optical axes (KITTI: of the rectified image), at the stamps of the recording's frames:

    * a file, TUM RGB-D, ETH3D: the camera that was tracked (TUM: ``rgb``), in the frame of
      tracking; the file's own stamps.
    * EuRoC, TUM-VI: the body's poses times T_BS of the camera's sensor.yaml, in the frame of the
      Vicon, Leica or motion capture system.
    * KITTI: camera 0's poses and the camera's offset by calib.txt, in the frame of camera 0 at
      the first image; times.txt and 1 s.
    * 7-Scenes, ScanNet: the matrix of each image, in the frame of their reconstruction. Images
      with NaN or infinity in it have no pose, and nothing is interpolated.
    * COLMAP: the model's, in its own frame and **unit** (``metric`` is False); not interpolated.

    Poses that cannot be read are left out with a warning. Raises RecordingError, also if none is
    left.
    """
    check_rate(rate_hz)
    path = Path(path).expanduser()
    if path.is_file():
        if camera is not None:
            raise RecordingError(f"{path} is a file of one camera: it has no camera {camera}")
        expected = "`stamp tx ty tz qx qy qz qw` in each line"
        return _sorted(tum_poses(path), path, expected, path.name)
    found = find_data_set(path)
    if found is None:
        raise RecordingError(
            f"{path} has no true poses: give a trajectory file in the TUM format, or a data set's "
            "folder"
        )
    layout, folder = found
    name = camera_of(layout, folder, camera)
    poses = layout.poses(folder, name, rate_hz)
    source = f"{layout.title} in {folder.resolve().name}, camera {name}"
    return _sorted(poses, folder, f"those of {layout.title}", source, layout)


def _sorted(
    poses: Iterator[tuple[int, Array]], path: Path, expected: str, source: str,
    layout: Layout | None = None,
) -> TruePoses:  # fmt: skip
    """Returns poses in the order of their stamps; of two with one stamp the first counts."""
    stamps, numbers = array("q"), array("d")  # far smaller than lists, for truth of hours
    for stamp_ns, T in poses:
        stamps.append(stamp_ns)
        numbers.frombytes(np.ascontiguousarray(T, np.float64).tobytes())
    if not stamps:
        raise RecordingError(f"{path} has no true pose that can be read: expected {expected}")
    ascending, first = np.unique(np.array(stamps, np.int64), return_index=True)
    matrices = np.frombuffer(numbers, np.float64).reshape(-1, 4, 4)[first]
    if layout is None:
        return TruePoses(ascending, matrices, source=source)
    return TruePoses(ascending, matrices, layout.metric, layout.pose_per_image, source)
