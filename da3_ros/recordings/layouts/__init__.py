"""The table of layouts of data sets, and which one a folder has."""

from __future__ import annotations

from pathlib import Path

from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.layouts.layout import Layout
from da3_ros.recordings.layouts.tum import TumRgbd

# A folder that has several layouts counts as the first of them.
LAYOUTS: dict[str, Layout] = {
    "tum": TumRgbd(),
}


def layout_of(folder: Path) -> Layout | None:
    """Returns the layout of a folder, the first that matches; None: it is not a data set."""
    return next((one for one in LAYOUTS.values() if one.matches(folder)), None)


def find_data_set(folder: Path) -> tuple[Layout, Path] | None:
    """Returns the layout and the folder of the data set in ``folder``: that folder, or else the
    only one in it that is a data set.

    Returns None if there is none. Raises RecordingError if there are several.
    """
    if not folder.is_dir():
        return None
    if (layout := layout_of(folder)) is not None:
        return layout, folder
    inner = [
        (layout, one) for one in sorted(folder.iterdir())
        if one.is_dir() and (layout := layout_of(one)) is not None
    ]  # fmt: skip
    if len(inner) > 1:
        names = " | ".join(one.name for _, one in inner)
        raise RecordingError(f"{folder} holds several data sets: give one of {names}")
    return inner[0] if inner else None
