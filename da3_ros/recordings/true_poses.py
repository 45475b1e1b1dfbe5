"""True camera poses of a recording, for figures alone: no pose enters the processing."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from da3_ros.geometry.poses import interpolate
from da3_ros.recordings.base import RecordingError, check_rate
from da3_ros.recordings.layouts import find_data_set
from da3_ros.recordings.layouts.layout import camera_of
from da3_ros.recordings.layouts.text_rows import tum_poses
from da3_ros.types import Array

LONGEST_GAP_NS = 50_000_000


@dataclass(frozen=True, eq=False)
class TruePoses:
    """True camera poses of a recording, in the frame of its truth."""

    stamps_ns: Array  # [M] int64, ascending
    T_truth_camera: Array  # [M, 4, 4] float64, metres (optical axes of the camera)
    metric: bool = True  # False: positions have an unknown unit, that of a COLMAP model
    longest_gap_ns: int = LONGEST_GAP_NS  # between poses that are interpolated; 0: none is

    def at(self, stamp_ns: int) -> Array | None:
        """Returns T_truth_camera [4, 4] at a time, interpolated between the nearest poses (slerp,
        linear), and exact at their stamps.

        Returns None before the first and after the last pose, and in longer gaps than
        ``longest_gap_ns``.
        """
        after = int(np.searchsorted(self.stamps_ns, stamp_ns))
        if after < len(self.stamps_ns) and self.stamps_ns[after] == stamp_ns:
            return np.array(self.T_truth_camera[after])
        if not 0 < after < len(self.stamps_ns):
            return None
        start, end = (int(stamp) for stamp in self.stamps_ns[after - 1 : after + 1])
        if end - start > self.longest_gap_ns:
            return None
        share = (stamp_ns - start) / (end - start)
        return interpolate(self.T_truth_camera[after - 1], self.T_truth_camera[after], share)


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
        return _sorted(tum_poses(path), path, "`stamp tx ty tz qx qy qz qw` in each line")
    found = find_data_set(path)
    if found is None:
        raise RecordingError(
            f"{path} has no true poses: give a trajectory file in the TUM format, or a data set's "
            "folder"
        )
    layout, folder = found
    poses = layout.poses(folder, camera_of(layout, folder, camera), rate_hz)
    return _sorted(
        poses, folder, f"those of {layout.title}", metric=layout.metric,
        longest_gap_ns=0 if layout.pose_per_image else LONGEST_GAP_NS,
    )  # fmt: skip


def _sorted(
    poses: Iterator[tuple[int, Array]], path: Path, expected: str, *, metric: bool = True,
    longest_gap_ns: int = LONGEST_GAP_NS,
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
    return TruePoses(ascending, matrices, metric, longest_gap_ns)
