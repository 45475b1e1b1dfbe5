"""Run da3_ros as a baseline of VSLAM-LAB, a harness for many SLAM systems (docs/vslam_lab.md).

VSLAM-LAB calls it with the arguments below, and further ones, which are ignored. The images of
``--rgb_csv`` are replayed with the calibration of ``--calibration_yaml``, and the poses go to
``NNNNN_KeyFrameTrajectory.csv`` in ``--exp_folder``. ``--settings_yaml``, if it exists, is a file
of parameters of da3_ros. ``--model`` names the network.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from da3_ros.cli.arguments import load_config
from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.selection import ExportError
from da3_ros.parameter_schema import ConfigError
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay

CAMERA = "rgb_0"
HEADER = ("ts (ns)", "tx (m)", "ty (m)", "tz (m)", "qx", "qy", "qz", "qw")
DISTORTIONS = {"radtan4": "plumb_bob", "radtan5": "plumb_bob", "equid4": "equidistant"}
LATER_NS = 1_000_000_000  # stamps may begin at 0, which means "no stamp" in ROS


class InputError(ValueError):
    """What VSLAM-LAB gave cannot be used; the text is one line."""


def write_data_set(sequence: Path, rgb_csv: Path, calibration_yaml: Path, folder: Path) -> None:
    """Writes a data set in the layout of TUM RGB-D, whose images are links, into a new folder.

    Without a calibration that da3_ros knows, it has none. Raises InputError, OSError.
    """
    rows = read_images(rgb_csv)
    folder.mkdir(parents=True)
    (folder / "sequence").symlink_to(sequence.resolve(), target_is_directory=True)
    lines = [f"{seconds(stamp_ns + LATER_NS)} sequence/{name}\n" for stamp_ns, name in rows]
    (folder / "rgb.txt").write_text("".join(lines))
    info = camera_info(calibration_yaml)
    if info is not None:
        (folder / "camera_info.yaml").write_text(yaml.safe_dump(info))


def read_images(rgb_csv: Path) -> list[tuple[int, str]]:
    """Returns stamps in ns and files of the first camera. Raises InputError, OSError."""
    stamp, name = f"ts_{CAMERA} (ns)", f"path_{CAMERA}"
    with rgb_csv.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        if table.fieldnames is None or not {stamp, name} <= set(table.fieldnames):
            raise InputError(f"{rgb_csv} lacks the columns {stamp!r} and {name!r}")
        try:
            return [(int(row[stamp]), row[name]) for row in table]
        except (TypeError, ValueError) as error:
            raise InputError(f"{rgb_csv}, line {table.line_num}: {error}") from error


def camera_info(path: Path) -> dict[str, Any] | None:
    """Returns the first camera of a calibration as camera_calibration writes it; None for a camera
    model that da3_ros does not know. Raises InputError, OSError."""
    # Its first line says YAML 1.2, of which the reader knows 1.1.
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("%YAML"))
    try:
        (camera,) = (c for c in yaml.safe_load(text)["cameras"] if c["cam_name"] == CAMERA)
        model = camera.get("distortion_type") or "radtan4"
        if camera["cam_model"] != "pinhole" or model not in DISTORTIONS:
            return None
        (fx, fy), (cx, cy) = camera["focal_length"], camera["principal_point"]
        width, height = camera["image_dimension"]
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path} has no calibration of {CAMERA}: {why}") from error
    return {
        "image_width": width,
        "image_height": height,
        "camera_matrix": {"rows": 3, "cols": 3, "data": [fx, 0, cx, 0, fy, cy, 0, 0, 1]},
        "distortion_model": DISTORTIONS[model],
        "distortion_coefficients": {"data": list(camera.get("distortion_coefficients") or [])},
    }


def seconds(stamp_ns: int) -> str:
    """Returns ns as seconds, exact."""
    return f"{stamp_ns // 10**9}.{stamp_ns % 10**9:09d}"


def write_poses(trajectory: Iterable[str], path: Path) -> None:
    """Writes the poses of a trajectory's lines in the TUM format as VSLAM-LAB reads them."""
    with atomic_path(path) as unfinished, unfinished.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(HEADER)
        for stamp, *numbers in (line.split() for line in trajectory if line[0] != "#"):
            table.writerow([int(stamp.replace(".", "")) - LATER_NS, *numbers])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("sequence_path", "rgb_csv", "calibration_yaml", "exp_folder"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--settings_yaml", type=Path)
    parser.add_argument("--exp_it", default="0")
    parser.add_argument("--model", default="da3-small")
    options, _ = parser.parse_known_args()
    work = options.exp_folder / f"da3_ros_{options.exp_it.zfill(5)}"
    settings = options.settings_yaml
    try:
        shutil.rmtree(work, ignore_errors=True)
        config = load_config(
            settings if settings and settings.is_file() else None, [f"model:={options.model}"]
        )
        images = work / "images"
        write_data_set(options.sequence_path, options.rgb_csv, options.calibration_yaml, images)
        replay(ReplayOptions(images, work / "out"), config)
        with (work / "out" / "trajectory.tum").open() as trajectory:
            name = f"{options.exp_it.zfill(5)}_KeyFrameTrajectory.csv"
            write_poses(trajectory, options.exp_folder / name)
    except (InputError, ReplayError, ConfigError, ExportError, OSError) as error:
        sys.stderr.write(f"vslam_lab: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
