"""Opens recordings of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from da3_ros.messages.decode import MAX_PIXELS
from da3_ros.recordings import bag_files
from da3_ros.recordings.bag import BagRecording
from da3_ros.recordings.base import FrameSelection, Recording, RecordingError, check_rate
from da3_ros.recordings.data_set import DataSetRecording
from da3_ros.recordings.folder import FolderRecording, image_files
from da3_ros.recordings.layouts import LAYOUTS, find_data_set, layout_of
from da3_ros.recordings.video import VIDEO_SUFFIXES, VideoRecording
from da3_ros.types import Calibration


def open_recording(
    path: Path | str,
    camera: str | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
    every: int = 1,
    *,
    cameras: Mapping[str, str] | None = None,
    rate_hz: float = 10.0,
    calibration: Calibration | None = None,
    input_rectified: str = "auto",
    camera_info_timeout_s: float = 2.0,
    max_pixels: int = MAX_PIXELS,
) -> Recording:
    """Open a ROS 2 bag (folder, .mcap, .db3, also with .zstd), a data set (``layouts``), a video
    file or an image folder. A folder that could be several of these is the first of them.

    ``camera``: an image topic or its namespace, or the name of a data set's camera. ``cameras``:
    replaces ``camera`` for several cameras; maps the name that the frames get to what would be
    ``camera``. ``start_s`` and ``end_s`` count from the first image; ``every`` selects each n-th
    frame of that span. ``rate_hz``: frame rate of images without times. ``calibration``
    (pixel centres at integers, as in CameraInfo) replaces the recording's own.
    ``input_rectified``: auto, true or false; auto decides by the topic's name.
    ``camera_info_timeout_s``: longest wait of an image for its camera_info, in recorded time.
    Raises RecordingError.
    """
    selection = FrameSelection(start_s, end_s, every)
    check_rate(rate_hz)
    try:
        path = Path(path).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # no such user; a name too long
        raise RecordingError(f"{path} is not a valid path: {error}") from error
    if not exists:
        raise RecordingError(f"{path} does not exist")
    if bag_files.is_bag(path):
        return BagRecording(
            path, camera, selection, cameras=cameras, calibration=calibration,
            input_rectified=input_rectified, camera_info_timeout_s=camera_info_timeout_s,
            max_pixels=max_pixels,
        )  # fmt: skip
    if (data_set := find_data_set(path)) is not None:
        layout, folder = data_set
        return DataSetRecording(
            folder, layout, selection, camera, cameras=cameras, rate_hz=rate_hz,
            calibration=calibration, input_rectified=input_rectified, max_pixels=max_pixels,
        )  # fmt: skip
    if cameras:
        raise RecordingError(f"{path.name} is not a bag and has one camera: omit `cameras`")
    if camera is not None:
        raise RecordingError(f"{path.name} is not a bag and has no topics: omit --camera")
    rectified = input_rectified == "true"
    if path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES:
        return VideoRecording(path, selection, calibration, rectified, max_pixels)
    if path.is_dir() and image_files(path):
        return FolderRecording(path, selection, rate_hz, calibration, rectified, max_pixels)
    raise RecordingError(_unsupported_text(path))


def _unsupported_text(path: Path) -> str:
    kinds = (
        "a ROS 2 bag folder, .mcap, .db3, a video file, a folder of images or a data set "
        f"({', '.join(layout.title for layout in LAYOUTS.values())})"
    )
    if path.suffix == ".bag":
        return f"{path.name} is a ROS 1 bag: convert it with rosbags-convert --src {path.name}"
    if path.is_dir():
        inner = sorted({p.parent for p in path.rglob("*") if p.suffix.lower() in (".png", ".jpg")})
        hint = f"; {_what_is_in(inner[0], path)}" if inner else ""
        return f"{path} contains neither bag files nor images: give {kinds}{hint}"
    return f"{path.name} is not a supported recording: give {kinds}"


def _what_is_in(inner: Path, outer: Path) -> str:
    """Returns words for the images in ``inner``: the data set that they are of, if they are."""
    for folder in (inner, *inner.parents):
        if folder == outer:
            break
        if (layout := layout_of(folder)) is not None:
            return f"{folder} is a data set of {layout.title}"
    return f"images are in {inner}"
