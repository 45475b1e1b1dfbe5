"""Frames of a data set whose layout is known (``layouts``). Its true poses stay outside."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from da3_ros.geometry.poses import invert_pose
from da3_ros.messages.decode import MAX_PIXELS, ImageError, decode_file
from da3_ros.recordings.base import FrameSelection, ImuRecording, Recording, RecordingError
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage, camera_of
from da3_ros.recordings.layouts.listing import read_image
from da3_ros.sensors.imu_input import ImuSample
from da3_ros.types import Array, Calibration, Frame

log = logging.getLogger(__name__)


IMU_FRAME = "imu"


def _frame_id(camera: str) -> str:
    return f"{camera}_optical" if camera else "camera_optical"


@dataclass(frozen=True, eq=False)
class _NamedCamera:
    """A camera of the data set, and the name that its frames get."""

    name: str
    camera: str
    listed: ImageList


class DataSetRecording(Recording):
    """One or several cameras of a data set, in the order of their stamps."""

    def __init__(
        self, path: Path, layout: Layout, selection: FrameSelection, camera: str | None = None,
        *, cameras: Mapping[str, str] | None = None, rate_hz: float = 10.0,
        calibration: Calibration | None = None, input_rectified: str = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:  # fmt: skip
        """path: the folder with the layout. Other arguments as in ``open_recording``."""
        self.path = path
        self.counters, self.bad_images = {"bad_images": 0}, []
        self._layout, self._selection, self._max_pixels = layout, selection, max_pixels
        self._calibration = calibration
        self._rectified = {"true": True, "false": False}.get(input_rectified)
        self._cameras = self._find_cameras(cameras or {"": camera}, rate_hz)
        self.camera = ", ".join(source.camera for source in self._cameras)
        stamps = [one.stamp_ns for source in self._cameras for one in source.listed.images]
        self.length = selection.estimate(len(stamps), (max(stamps) - min(stamps)) / 1e9)
        log.info("%s", self.describe())

    @property
    def stopped_at(self) -> str | None:
        """Always None: an image that is missing or damaged is skipped and counted."""
        return None

    def describe(self) -> str:
        """The layout, and of each camera the number of images and where the calibration is from,
        in one line."""
        about = []
        for source in self._cameras:
            origin = "given" if self._calibration is not None else source.listed.calibration
            images = f"{len(source.listed.images)} images of {source.camera}"
            about.append(f"{images}, calibration: {origin}")
        chosen = {source.camera for source in self._cameras}
        if others := [name for name in self._layout.cameras(self.path) if name not in chosen]:
            about.append(f"not used: {', '.join(others)}")
        return f"{self.path.resolve().name}: {self._layout.title}; {'; '.join(about)}"

    def mounts(self) -> dict[str, Array]:
        """Returns ``T_rig_camera`` [4, 4], metres, by the names of cameras, if all are known.

        The frame ``rig`` is EuRoC's body, or KITTI's camera 0.
        """
        found = {one.name: self._layout.mount(self.path, one.camera) for one in self._cameras}
        known = {name: T for name, T in found.items() if T is not None}
        return known if len(known) == len(found) else {}

    def imu(self) -> ImuRecording | None:
        """Returns the IMU of the data set, if the mounts of all cameras are known too."""
        rows, mounts = self._layout.imu(self.path), self.mounts()
        if rows is None or not mounts:
            return None
        samples = (ImuSample(stamp_ns, IMU_FRAME, values) for stamp_ns, values in rows)
        return ImuRecording(
            samples, {_frame_id(name): invert_pose(T) for name, T in mounts.items()}
        )

    def __iter__(self) -> Iterator[Frame]:
        """Yield the selected frames."""
        self.counters["bad_images"], self.bad_images = 0, []
        for source in self._cameras:
            for text in source.listed.bad:
                self._note_bad(text)
        for stamp_ns, (source, one) in self._selection.apply(self._ordered()):
            try:
                image = decode_file(read_image(one.file), self._max_pixels, upright=False)
            except (ImageError, OSError) as error:
                self._note_bad(f"{one.file.relative_to(one.file.parents[1])}: {error}")
                continue
            yield Frame(
                stamp_ns=stamp_ns,
                image=image,
                frame_id=_frame_id(source.name),
                camera=source.name,
                calibration=self._calibration or one.calibration,
                rectified=source.listed.rectified if self._rectified is None else self._rectified,
            )

    def _find_cameras(
        self, wanted: Mapping[str, str | None], rate_hz: float
    ) -> list[_NamedCamera]:
        """Returns the cameras by the names of their frames. Raises RecordingError."""
        found: list[_NamedCamera] = []
        for name, wish in wanted.items():
            try:
                camera = camera_of(self._layout, self.path, wish)
            except RecordingError as error:
                hint = f" (camera {name}: give it with --camera {name}:=NAME)" if name else ""
                raise RecordingError(f"{error}{hint}") from error
            if other := next((one.name for one in found if one.camera == camera), None):
                raise RecordingError(
                    f"cameras {other} and {name} are both {camera}: choose them with --camera "
                    "NAME:=CAMERA"
                )
            listed = self._layout.images(self.path, camera, rate_hz)
            found.append(_NamedCamera(name, camera, listed))
        return found

    def _ordered(self) -> list[tuple[int, tuple[_NamedCamera, ListedImage]]]:
        """Returns all images in the order of their stamps; of one stamp in that of the cameras."""
        items = [
            (one.stamp_ns, (source, one))
            for source in self._cameras
            for one in source.listed.images
        ]
        return sorted(items, key=lambda item: item[0])

    def _note_bad(self, text: str) -> None:
        self.counters["bad_images"] += 1
        self.bad_images.append(text)
        log.warning("%s", text)
