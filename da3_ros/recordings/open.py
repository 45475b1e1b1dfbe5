"""The one way to open a recording, whatever kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from da3_ros.messages.decode import MAX_PIXELS
from da3_ros.recordings import bag_files
from da3_ros.recordings.bag import BagRecording
from da3_ros.recordings.base import Recording, RecordingError, Selection
from da3_ros.recordings.folder import FolderRecording, image_files
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
    """Open a ROS 2 bag (folder, .mcap, .db3, also with .zstd), a video file or an image folder.

    ``camera``: an image topic or what comes before its last slash (bags only); ``cameras``: such
    of several, by the names that their frames get, in place of ``camera``. ``start_s`` and
    ``end_s`` count from the first image; ``every`` keeps each n-th frame of that span.
    ``rate_hz``: of an image folder whose names are no stamps. ``calibration`` (ROS pixel rule, as
    in CameraInfo) replaces the recording's own.
    ``input_rectified``: auto, true or false; auto goes by the topic's name. Raises RecordingError.
    """
    selection = Selection(start_s, end_s, every)
    try:
        path = Path(path).expanduser()
        there = path.exists()
    except (OSError, RuntimeError) as error:  # no such user; a name too long
        raise RecordingError(f"{path} cannot be looked for: {error}") from error
    if not there:
        raise RecordingError(f"{path} does not exist")
    if bag_files.is_bag(path):
        return BagRecording(
            path, camera, selection, cameras=cameras, calibration=calibration,
            input_rectified=input_rectified, camera_info_timeout_s=camera_info_timeout_s,
            max_pixels=max_pixels,
        )  # fmt: skip
    if cameras:
        raise RecordingError(f"{path.name} is no bag and has one camera: leave `cameras` out")
    if camera is not None:
        raise RecordingError(f"{path.name} is no bag and has no topics: leave --camera out")
    rectified = input_rectified == "true"
    if path.is_file() and path.suffix.lower() in VIDEO_SUFFIXES:
        return VideoRecording(path, selection, calibration, rectified, max_pixels)
    if path.is_dir() and image_files(path):
        return FolderRecording(path, selection, rate_hz, calibration, rectified, max_pixels)
    raise RecordingError(_what_is_wanted(path))


def _what_is_wanted(path: Path) -> str:
    kinds = "a ROS 2 bag folder, .mcap, .db3, a video file or a folder of images"
    if path.suffix == ".bag":
        return f"{path.name} is a ROS 1 bag: convert it with rosbags-convert --src {path.name}"
    if path.is_dir():
        inner = sorted({p.parent for p in path.rglob("*") if p.suffix.lower() in (".png", ".jpg")})
        hint = f"; images are in {inner[0]}" if inner else ""
        return f"{path} has neither bag files nor images: give {kinds}{hint}"
    return f"{path.name} is no recording that can be read: give {kinds}"
