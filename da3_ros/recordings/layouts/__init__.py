"""The table of layouts of data sets, and which one a folder has."""

from __future__ import annotations

from pathlib import Path

from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.folder import image_files
from da3_ros.recordings.layouts.colmap import ColmapModel
from da3_ros.recordings.layouts.euroc import EurocAsl
from da3_ros.recordings.layouts.kitti import KittiOdometry
from da3_ros.recordings.layouts.layout import Layout
from da3_ros.recordings.layouts.scannet import ScanNet
from da3_ros.recordings.layouts.seven_scenes import SevenScenes
from da3_ros.recordings.layouts.tum import TumRgbd

# A folder that has several layouts counts as the first of them.
LAYOUTS: dict[str, Layout] = {
    "tum": TumRgbd(),
    "euroc": EurocAsl(),
    "kitti": KittiOdometry(),
    "7-scenes": SevenScenes(),
    "scannet": ScanNet(),
    "colmap": ColmapModel(),
}


def layout_of(folder: Path) -> Layout | None:
    """Returns the layout of a folder, the first that matches; None: it is not a data set."""
    return next((one for one in LAYOUTS.values() if one.matches(folder)), None)


def find_data_set(folder: Path) -> tuple[Layout, Path] | None:
    """Returns the layout and the folder of the data set in ``folder``: that folder, or else, if
    it has no images, the only folder in it that is a data set.

    Returns None if there is none. Raises RecordingError if there are several, or if the folder
    cannot be read.
    """
    try:
        if not folder.is_dir():
            return None
        if (layout := layout_of(folder)) is not None:
            return layout, folder
        inner = [] if image_files(folder) else _data_sets_in(folder)
    except OSError as error:
        raise RecordingError(f"{folder} cannot be read: {error.strerror or error}") from error
    if len(inner) > 1:
        names = " | ".join(one.name for _, one in inner)
        raise RecordingError(f"{folder} holds several data sets: give one of {names}")
    return inner[0] if inner else None


def _data_sets_in(folder: Path) -> list[tuple[Layout, Path]]:
    """Returns the folders in ``folder`` that are data sets, with their layouts. Raises OSError."""
    found = []
    for one in sorted(folder.iterdir()):
        if one.is_dir() and not one.name.startswith(".") and (layout := layout_of(one)):
            found.append((layout, one))
    return found
