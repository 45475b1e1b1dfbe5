"""EuRoC's layout (ASL), which TUM-VI has too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from da3_ros.geometry.poses import invert_pose
from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.folder import natural_order
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.listing import file_below, in_order, pinhole
from da3_ros.recordings.layouts.text_rows import (
    Row,
    cells,
    numbers,
    pose_of,
    pose_of_matrix,
    read_poses,
    rows,
    to_ns,
)
from da3_ros.types import Array, Calibration

TRUTH = ("state_groundtruth_estimate0", "mocap0")  # EuRoC's, TUM-VI's: poses of the body
KALIBR = ("dso/camchain.yaml", "camchain.yaml")  # TUM-VI's calibration, in kalibr's format
BAD_YAML = (ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError)
DISTORTIONS = {
    "radial-tangential": "plumb_bob",
    "radtan": "plumb_bob",
    "equidistant": "equidistant",
    "none": "plumb_bob",
}


@dataclass(frozen=True, eq=False)
class _Sensor:
    """A camera's calibration and mount."""

    calibration: Calibration
    T_body_camera: Array  # [4, 4]
    origin: str  # name of the file


class EurocAsl(Layout):
    """``mav0/camN`` has data.csv (stamp in ns, file), the images in ``data``, and sensor.yaml with
    K, distortion and T_BS, camera to body; else K and mount are in kalibr's camchain.yaml.

    ``imu0/data.csv`` has the samples of the IMU, which is the body: stamp in ns, gyro, specific
    force. The truth's data.csv has the body's position and quaternion (w first) at stamps of its
    own.
    """

    title = "EuRoC (ASL)"

    def matches(self, folder: Path) -> bool:
        return bool(self.cameras(folder))

    def cameras(self, folder: Path) -> Sequence[str]:
        found = (one.parent.name for one in _root(folder).glob("cam*/data.csv"))
        return sorted(found, key=natural_order)

    def images(self, folder: Path, camera: str, rate_hz: float) -> ImageList:
        where = _root(folder) / camera
        sensor = _sensor(folder, camera)
        calibration = None if sensor is None else sensor.calibration
        origin = "no calibration" if sensor is None else sensor.origin
        images, bad = [], []
        for number, text in _csv(where / "data.csv"):
            try:
                stamp, name = cells(text)[:2]
                file = file_below(where / "data", name)
                images.append(ListedImage(to_ns(stamp), file, calibration))
            except ValueError as error:
                bad.append(f"{camera}/data.csv, line {number}: {error}")
        images, bad = in_order(images, bad, where / "data.csv")
        return ImageList(images, origin, bad=bad)

    def mount(self, folder: Path, camera: str) -> Array | None:
        sensor = _sensor(folder, camera)
        return None if sensor is None else sensor.T_body_camera

    def imu(self, folder: Path) -> Iterator[tuple[int, Array]] | None:
        file = _root(folder) / "imu0" / "data.csv"
        if not file.exists():
            return None

        def read(line: Row) -> tuple[int, Array]:
            stamp, *rest = cells(line[1])
            return to_ns(stamp), np.array(numbers(rest, 6))

        return read_poses(file, _csv(file), read, what="numbers")

    def poses(self, folder: Path, camera: str, rate_hz: float) -> Iterator[tuple[int, Array]]:
        files = [_root(folder) / name / "data.csv" for name in TRUTH]
        file = next((file for file in files if file.exists()), None)
        sensor = _sensor(folder, camera)
        if file is None or sensor is None:
            what = " or ".join(TRUTH) if file is None else f"{camera}/sensor.yaml (T_BS)"
            raise RecordingError(f"{folder} has no true camera poses: it lacks {what}")
        T_body_camera = sensor.T_body_camera

        def read(line: Row) -> tuple[int, Array]:
            stamp, *rest = cells(line[1])
            x, y, z, qw, qx, qy, qz = numbers(rest, 7)
            return to_ns(stamp), pose_of((x, y, z), (qx, qy, qz, qw)) @ T_body_camera

        return read_poses(file, _csv(file), read)


def _root(folder: Path) -> Path:
    """Returns the folder with the sensors."""
    return folder / "mav0" if (folder / "mav0").is_dir() else folder


def _csv(path: Path) -> Iterator[Row]:
    """Yields the rows of a table, without a header."""
    return (row for row in rows(path) if row[0] > 1 or not row[1][0].isalpha())


def _sensor(folder: Path, camera: str) -> _Sensor | None:
    """Returns what is known of a camera; None without a calibration file. Raises
    RecordingError."""
    root = _root(folder)
    own = root / camera / "sensor.yaml"
    if own.exists():
        return _read(own, lambda content: _from_asl(content, own))
    for base in (folder, root.parent):
        for file in (base / name for name in KALIBR):
            if file.exists():
                return _read(file, lambda content: _from_kalibr(content[camera], file))  # noqa: B023
    return None


def _read(file: Path, make: Any) -> _Sensor:
    """Returns what ``make`` makes of a YAML file. Raises RecordingError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        if text.startswith("%YAML"):  # OpenCV's first line, which is no YAML 1.1 directive
            text = text.partition("\n")[2]
        sensor: _Sensor = make(yaml.safe_load(text))
    except (*BAD_YAML, OSError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise RecordingError(f"{file} is not a camera's calibration ({why})") from error
    return sensor


def _from_asl(content: Mapping[str, Any], file: Path) -> _Sensor:
    T_body_camera = pose_of_matrix(numbers(content["T_BS"]["data"], 16))
    D = content.get("distortion_coefficients") or ()
    return _Sensor(_calibration(content, D, file), T_body_camera, file.name)


def _from_kalibr(content: Mapping[str, Any], file: Path) -> _Sensor:
    T_camera_body = pose_of_matrix(numbers(np.ravel(content["T_cam_imu"]).tolist(), 16))
    D = content.get("distortion_coeffs") or ()
    return _Sensor(_calibration(content, D, file), invert_pose(T_camera_body), file.name)


def _calibration(content: Mapping[str, Any], D: Sequence[float], file: Path) -> Calibration:
    """Returns the calibration of a file's ``intrinsics``, ``resolution`` and distortion."""
    lens = str(content.get("camera_model", "pinhole"))
    model = str(content.get("distortion_model") or "none")
    if lens != "pinhole" or model not in DISTORTIONS:
        raise RecordingError(
            f"{file}: camera model {lens} with distortion {model} is unknown: known is pinhole "
            f"with {', '.join(DISTORTIONS)}"
        )
    width, height = (int(value) for value in content["resolution"])
    K = numbers(content["intrinsics"], 4)
    D = numbers(D, len(D))
    return pinhole(K, (width, height), file, [] if model == "none" else D, DISTORTIONS[model])
