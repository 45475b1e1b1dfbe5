"""What the layout of a data set says of its images, calibrations and true poses.

Knows nothing of frames, pipelines and selections: a layout names files, and decodes at most one
image, for its size.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from da3_ros.recordings.base import RecordingError
from da3_ros.types import Array, Calibration


@dataclass(frozen=True, eq=False)
class ListedImage:
    """An image that a data set lists. The file may be missing."""

    stamp_ns: int
    file: Path
    calibration: Calibration | None = None  # None: unknown
    depth: Path | None = None  # its true depth image


@dataclass(frozen=True, eq=False)
class ImageList:
    """The images of one camera of a data set, in the order of their stamps, which differ."""

    images: Sequence[ListedImage]
    calibration: str  # where the calibration comes from, in words
    rectified: bool = False
    bad: Sequence[str] = field(default_factory=list)  # what is listed but cannot be used, and why


class Layout(abc.ABC):
    """A way to lay out a data set in a folder. ``rate_hz`` counts where it has no times."""

    title: str  # for messages
    metric = True  # whether true positions are in metres; else their unit is unknown
    pose_per_image = False  # whether true poses have the stamps of images; else they have others
    depth_step_m = 0.001  # of a depth image's values
    no_depth: tuple[int, ...] = (0, 65535)  # values that mean unknown depth

    @abc.abstractmethod
    def matches(self, folder: Path) -> bool:
        """Whether a folder has this layout, by the names of its files."""

    @abc.abstractmethod
    def cameras(self, folder: Path) -> Sequence[str]:
        """Returns the names of the cameras, the default one first."""

    @abc.abstractmethod
    def images(self, folder: Path, camera: str, rate_hz: float) -> ImageList:
        """Returns the images of one of ``cameras``. Raises RecordingError."""

    def mount(self, folder: Path, camera: str) -> Array | None:
        """Returns ``T_rig_camera`` [4, 4] of one of ``cameras``, metres; None: it is not known.
        Raises RecordingError."""
        return None

    def imu(self, folder: Path) -> Iterator[tuple[int, Array]] | None:
        """Yields the stamp in ns and the values [6] (gyro, rad/s; specific force, m/s^2) of an
        IMU's samples, in the axes of the rig; None: it has none. Raises RecordingError."""
        return None

    @abc.abstractmethod
    def poses(self, folder: Path, camera: str, rate_hz: float) -> Iterator[tuple[int, Array]]:
        """Yields the stamp in ns and T_truth_camera [4, 4] of each known true pose, in any order.

        The frame ``truth`` is the data set's own. Raises RecordingError without true poses.
        """


def camera_of(layout: Layout, folder: Path, wanted: str | None) -> str:
    """Returns the layout's name of a camera; None: the default one. Raises RecordingError."""
    names = layout.cameras(folder)
    if not names:
        raise RecordingError(f"{folder.name} ({layout.title}) has no images")
    if wanted is None:
        return names[0]
    if wanted.strip("/") not in names:
        raise RecordingError(
            f"no camera {wanted}: {folder.name} ({layout.title}) has {' | '.join(names)}"
        )
    return wanted.strip("/")
