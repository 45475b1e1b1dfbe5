"""A COLMAP model in its text or binary format, with its images beside it.

The formats are those of COLMAP's documentation ("Output Format"). COLMAP's pixel centres are at
0.5; a ``Calibration`` has them at integers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from da3_ros.geometry.poses import invert_pose
from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.folder import natural_order, stamps_of
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.listing import file_below, in_order, pinhole
from da3_ros.recordings.layouts.text_rows import numbers, pose_of, read_poses, rows
from da3_ros.types import Array, Calibration

Item = TypeVar("Item")

MODELS = (".", "sparse/0", "sparse")  # where a model lies in the folder
IMAGES = "images"  # beside the model, or beside the folder it is in
TEXT, BINARY = ".txt", ".bin"
LONGEST_NAME = 4096  # bytes of an image's name
POINT_BYTES = 24  # of a 2D point in images.bin: x, y, id of the 3D point


@dataclass(frozen=True)
class _ColmapLens:
    """A camera model of COLMAP's: its number in binary files, and what its parameters are."""

    number: int
    count: int  # of parameters
    distortion_model: str
    K: Callable[[Sequence[float]], Sequence[float]]  # fx, fy, cx, cy under the corner rule
    D: Callable[[Sequence[float]], Sequence[float]]


def _one_focal(p: Sequence[float]) -> Sequence[float]:
    return (p[0], p[0], p[1], p[2])


def _two_focals(p: Sequence[float]) -> Sequence[float]:
    return p[:4]


LENSES = {
    "SIMPLE_PINHOLE": _ColmapLens(0, 3, "plumb_bob", _one_focal, lambda p: ()),
    "PINHOLE": _ColmapLens(1, 4, "plumb_bob", _two_focals, lambda p: ()),
    "SIMPLE_RADIAL": _ColmapLens(2, 4, "plumb_bob", _one_focal, lambda p: (p[3], 0, 0, 0, 0)),
    "RADIAL": _ColmapLens(3, 5, "plumb_bob", _one_focal, lambda p: (p[3], p[4], 0, 0, 0)),
    "OPENCV": _ColmapLens(4, 8, "plumb_bob", _two_focals, lambda p: (*p[4:], 0)),
    "OPENCV_FISHEYE": _ColmapLens(5, 8, "equidistant", _two_focals, lambda p: p[4:]),
}
# Parameters of each model of binary files, so that those after an unknown one can be read.
PARAMETERS = (3, 4, 4, 5, 8, 8, 12, 5, 4, 5, 12)


@dataclass(frozen=True)
class _ColmapCamera:
    """A camera of a model."""

    lens: str
    size: tuple[int, int]  # (width, height)
    parameters: Sequence[float]

    def calibration(self, where: Path) -> Calibration:
        """Returns the calibration under the ROS rule. Raises RecordingError."""
        if self.lens not in LENSES:
            raise RecordingError(
                f"{where}: camera model {self.lens} is unknown (known: {', '.join(LENSES)}): "
                "convert the images with colmap image_undistorter"
            )
        lens = LENSES[self.lens]
        if len(self.parameters) != lens.count:
            raise RecordingError(
                f"{where}: {self.lens} has {len(self.parameters)} parameters, not {lens.count}"
            )
        fx, fy, cx, cy = lens.K(self.parameters)
        D = lens.D(self.parameters)
        return pinhole((fx, fy, cx - 0.5, cy - 0.5), self.size, where, D, lens.distortion_model)


@dataclass(frozen=True)
class _PosedImage:
    """An image of a model."""

    name: str
    camera: int  # id
    pose: Sequence[float]  # of the model in the camera: quaternion (w first), translation

    @property
    def group(self) -> str:
        """The folder of the image below ``images``, or ``images``."""
        parent = str(PurePosixPath(self.name).parent)
        return IMAGES if parent == "." else parent


class ColmapModel(Layout):
    """cameras and images (.txt or .bin) in the folder, in ``sparse/0`` or in ``sparse``, and the
    images in ``images`` in or beside the folder.

    Images come in the natural order of their names; each folder below ``images`` is a camera.
    Stamps are the names if these are times, else they follow the rate. The model's poses have a
    unit of their own, which is unknown.
    """

    title = "COLMAP"
    metric = False
    pose_per_image = True

    def matches(self, folder: Path) -> bool:
        return _model(folder) is not None

    def cameras(self, folder: Path) -> Sequence[str]:
        return sorted({one.group for one in _images(_found(folder))}, key=natural_order)

    def images(self, folder: Path, camera: str, rate_hz: float) -> ImageList:
        model = _found(folder)
        base, cameras = _image_folder(folder, *model), _cameras(model)
        calibrations: dict[int, Calibration] = {}
        images, bad = [], []
        for stamp_ns, one in _stamped(model, camera, rate_hz):
            if one.camera not in calibrations:
                if one.camera not in cameras:
                    bad.append(f"{one.name}: the model has no camera {one.camera}")
                    continue
                calibrations[one.camera] = cameras[one.camera].calibration(model[0])
            try:
                file = file_below(base, one.name)
            except ValueError as error:
                bad.append(str(error))
                continue
            images.append(ListedImage(stamp_ns, file, calibrations[one.camera]))
        images, bad = in_order(images, bad, model[0])
        lenses = sorted({cameras[i].lens for i in calibrations})
        return ImageList(images, f"the model's ({', '.join(lenses)})", bad=bad)

    def poses(self, folder: Path, camera: str, rate_hz: float) -> Iterator[tuple[int, Array]]:
        model = _found(folder)
        stamped = list(_stamped(model, camera, rate_hz))

        def read(line: tuple[int, str]) -> tuple[int, Array]:
            stamp_ns, one = stamped[line[0]]
            w, x, y, z, *position = numbers(one.pose, 7)
            return stamp_ns, invert_pose(pose_of(position, (x, y, z, w)))

        names = ((i, one.name) for i, (_, one) in enumerate(stamped))
        return read_poses(model[0] / f"images{model[1]}", names, read, images=True)


_Model = tuple[Path, str]  # folder of a model, and the suffix of its files


def _model(folder: Path) -> _Model | None:
    """Returns the model in a folder; the binary one if it has both."""
    for inner in MODELS:
        for suffix in (BINARY, TEXT):
            where = folder / inner
            if all((where / f"{name}{suffix}").is_file() for name in ("cameras", "images")):
                return where, suffix
    return None


def _found(folder: Path) -> _Model:
    """Returns the model in a folder that has one."""
    model = _model(folder)
    assert model is not None
    return model


def _image_folder(folder: Path, model: Path, suffix: str) -> Path:
    """Returns the folder that the names of a model's images start from. Raises RecordingError."""
    where, first = folder.resolve(), next(_images((model, suffix)), None)
    beside = [base / IMAGES for base in (where, where.parent, where.parent.parent)]
    name = "" if first is None else first.name
    having = [base for base in (*beside, where) if (base / name).is_file()]
    having += [base for base in beside if base.is_dir()]  # the first image is missing
    if not having:
        raise RecordingError(f"{folder} is a COLMAP model without images: put them into {IMAGES}/")
    return having[0]


def _stamped(model: _Model, camera: str, rate_hz: float) -> Iterator[tuple[int, _PosedImage]]:
    """Yields the stamp in ns of each image of a camera, in the natural order of their names."""
    images = sorted(
        (one for one in _images(model) if one.group == camera),
        key=lambda one: natural_order(one.name),
    )
    stems = [PurePosixPath(one.name).stem for one in images]
    return zip(stamps_of(stems, rate_hz), images, strict=True)


def _cameras(model: _Model) -> Mapping[int, _ColmapCamera]:
    """Returns the cameras by id. Raises RecordingError."""
    where, suffix = model
    path = where / f"cameras{suffix}"
    return dict(_text_cameras(path) if suffix == TEXT else _read_binary(path, _binary_cameras))


def _images(model: _Model) -> Iterator[_PosedImage]:
    """Yields the images in the order of the file. Raises RecordingError."""
    where, suffix = model
    path = where / f"images{suffix}"
    return _text_images(path) if suffix == TEXT else _read_binary(path, _binary_images)


def _text_cameras(path: Path) -> Iterator[tuple[int, _ColmapCamera]]:
    for number, text in rows(path):
        try:
            camera, lens, width, height, *parameters = text.split()
            values = numbers(parameters, len(parameters))
            yield int(camera), _ColmapCamera(lens, (int(width), int(height)), values)
        except ValueError as error:
            raise RecordingError(f"{path}, line {number}: {error}") from error


def _text_images(path: Path) -> Iterator[_PosedImage]:
    """Yields the images of images.txt: a line each, and below it one of its 2D points, which is
    empty, or not there at all in files of some other programs."""
    image_above = False
    for number, text in rows(path, blank=True):
        if not text or (image_above and _has_points(text)):
            image_above = False
            continue
        try:
            if _has_points(text):
                raise ValueError("2D points without an image")
            image, *pose, camera, name = text.split(maxsplit=9)
            int(image)  # else it is a damaged line of points
            yield _PosedImage(name, int(camera), [float(value) for value in pose])
        except ValueError as error:
            raise RecordingError(f"{path}, line {number}: {error}") from error
        image_above = True


def _has_points(text: str) -> bool:
    """Whether a line is one of 2D points (x, y, id of the 3D point each), not of an image: where
    that has its name, there are numbers too."""
    cells = text.split()
    try:
        for cell in cells:
            float(cell)  # also NaN
    except ValueError:
        return False
    return len(cells) % 3 == 0


def _read_binary(path: Path, read: Callable[[BinaryIO], Iterator[Item]]) -> Iterator[Item]:
    """Yields what ``read`` finds in a file. Raises RecordingError for a damaged one."""
    try:
        with path.open("rb") as file:
            yield from read(file)
    except (OSError, OverflowError, struct.error, ValueError) as error:
        raise RecordingError(f"{path} is damaged or no file of COLMAP's: {error}") from error


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    """Returns the next little-endian values of a file. Raises struct.error at its end."""
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))


def _binary_cameras(file: BinaryIO) -> Iterator[tuple[int, _ColmapCamera]]:
    (count,) = _unpack(file, "Q")
    names = {lens.number: name for name, lens in LENSES.items()}
    for _ in range(count):
        camera, number, width, height = _unpack(file, "iiQQ")
        if not 0 <= number < len(PARAMETERS):
            raise ValueError(f"camera model {number} is unknown")
        values = _unpack(file, f"{PARAMETERS[number]}d")
        yield camera, _ColmapCamera(names.get(number, str(number)), (width, height), values)


def _binary_images(file: BinaryIO) -> Iterator[_PosedImage]:
    (count,) = _unpack(file, "Q")
    for _ in range(count):
        _, *pose, camera = _unpack(file, "i7di")
        name = _name(file)
        (points,) = _unpack(file, "Q")
        file.seek(points * POINT_BYTES, 1)
        yield _PosedImage(name, camera, pose)


def _name(file: BinaryIO) -> str:
    """Returns the text up to the next zero byte."""
    found = bytearray()
    while (byte := file.read(1)) != b"\0":
        if not byte or len(found) == LONGEST_NAME:
            raise ValueError("the name of an image does not end")
        found += byte
    return found.decode()
