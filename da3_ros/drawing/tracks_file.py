"""The feature tracks of a few frames of a replay, in a file, to be drawn later.

``docs/recordings.md`` names the file. Reading it takes arrays only, never objects.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.uniform_sampler import UniformSampler
from da3_ros.export.checked_files import SceneFileError
from da3_ros.mapping.submap_points import jpeg
from da3_ros.refinement.track_history import LENGTH, TrackHistory
from da3_ros.types import Image, TrackedFrame

NAME = "tracks.npz"
MOST_FRAMES = 12
LONGEST_SIDE = 640  # of a stored image, pixels
MAX_BYTES = 1 << 26  # of all arrays of a file
# Of each array: type and shape; None: any length. ``count`` and ``jpeg_bytes`` tell how many
# rows of ``position`` and ``error_px``, and how many bytes of ``jpeg``, each frame has.
ARRAYS: dict[str, tuple[str, tuple[int | None, ...]]] = {
    "stamp_ns": ("<i8", (None,)),
    "count": ("<i8", (None,)),
    "jpeg_bytes": ("<i8", (None,)),
    "position": ("<f4", (None, LENGTH, 2)),
    "error_px": ("<f4", (None,)),
    "jpeg": ("|u1", (None,)),
}


@dataclass(frozen=True, eq=False)
class FrameTracks:
    """A frame and the tracks that it sees."""

    stamp_ns: int
    jpeg: bytes  # the rectified image
    track_history: TrackHistory

    def image(self) -> Image:
        """Returns the image, RGB [h, w, 3]. Raises ValueError if it is none."""
        data = np.frombuffer(self.jpeg, np.uint8)
        bgr = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
        if bgr is None:
            raise ValueError("an image cannot be decoded")
        return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


class TrackSampler:
    """Keeps an even choice of a stream's refined frames with their tracks."""

    def __init__(self, track_history: Callable[[int], TrackHistory]) -> None:
        """track_history: returns those of a frame by its id; called for frames that are kept
        only."""
        self._track_history = track_history
        self._frames: UniformSampler[FrameTracks] = UniformSampler(MOST_FRAMES)

    def add_frame(self, frame: TrackedFrame) -> None:
        """Add the stream's next frame, right after it is delivered."""
        if frame.window.refined and not frame.blind:
            self._frames.add(lambda: self._taken(frame))

    def write(self, path: Path) -> None:
        """Write the file, if a frame was refined. Raises OSError."""
        frames = self._frames.chosen()
        if frames:
            save_tracks(path, frames)

    def _taken(self, frame: TrackedFrame) -> FrameTracks:
        return FrameTracks(
            frame.stamp_ns, jpeg(_small(frame.image)), self._track_history(frame.id)
        )


def save_tracks(path: Path, frames: Sequence[FrameTracks]) -> None:
    """Write at least one frame; the same frames give the same bytes. Raises OSError."""
    columns: dict[str, Any] = {
        "stamp_ns": [f.stamp_ns for f in frames],
        "count": [len(f.track_history) for f in frames],
        "jpeg_bytes": [len(f.jpeg) for f in frames],
        "position": np.concatenate([f.track_history.position for f in frames]),
        "error_px": np.concatenate([f.track_history.error_px for f in frames]),
        "jpeg": np.frombuffer(b"".join(f.jpeg for f in frames), np.uint8),
    }
    arrays: dict[str, Any] = {k: np.asarray(columns[k], ARRAYS[k][0]) for k in ARRAYS}
    np.savez_compressed(path, **arrays)


def load_tracks(path: Path) -> list[FrameTracks]:
    """Read ``path``, or ``tracks.npz`` in that folder; at least one frame, in stamp order.

    Raises SceneFileError.
    """
    file = path / NAME if path.is_dir() else path
    if not path.exists():
        raise SceneFileError(f"{path} does not exist")
    if not file.is_file():
        raise SceneFileError(
            f"{path} has no {NAME}: replay with refinement.enabled:=true; without a refined "
            "window (see report.json) there is none"
        )
    try:
        return _load(file)
    except Exception as error:  # zip, zlib, NumPy and OpenCV raise various ones
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SceneFileError(f"{file} is not a file of tracks or is damaged: {what}") from error


def _load(file: Path) -> list[FrameTracks]:
    with zipfile.ZipFile(file) as members:
        if sum(member.file_size for member in members.infolist()) > MAX_BYTES:
            raise ValueError("it is too large")
    with np.load(file, allow_pickle=False) as data:
        arrays = {name: _checked(data[name], name) for name in ARRAYS}
    tracks = _ends(arrays["count"], len(arrays["position"]))
    images = _ends(arrays["jpeg_bytes"], len(arrays["jpeg"]))
    frames = len(arrays["stamp_ns"])
    if frames > MOST_FRAMES:
        raise ValueError(f"it has {frames} frames; {MOST_FRAMES} are the most")
    if not 1 <= frames == len(tracks) == len(images) or len(arrays["error_px"]) != tracks[-1]:
        raise ValueError("lengths of arrays contradict each other")
    position = np.split(arrays["position"].astype(float), tracks[:-1])
    error_px = np.split(arrays["error_px"].astype(float), tracks[:-1])
    encoded = np.split(arrays["jpeg"], images[:-1])
    found = [
        FrameTracks(int(stamp), one.tobytes(), TrackHistory(p, e))
        for stamp, one, p, e in zip(arrays["stamp_ns"], encoded, position, error_px, strict=True)
    ]
    for frame in found:
        frame.image()
    return found


def _checked(array: NDArray[Any], name: str) -> NDArray[Any]:
    kind, shape = ARRAYS[name]
    fits = len(shape) == array.ndim and all(
        b in (None, a) for a, b in zip(array.shape, shape, strict=True)
    )
    if array.dtype != np.dtype(kind) or not fits:
        raise ValueError(f"type or shape of {name}")
    return array


def _ends(counts: NDArray[Any], total: int) -> NDArray[Any]:
    """Returns where each frame's part of an array ends. Raises ValueError."""
    if (counts < 0).any() or (counts > total).any() or counts.sum() != total:
        raise ValueError("lengths of arrays contradict each other")
    return np.cumsum(counts)


def _small(image: Image) -> Image:
    """Returns an image RGB [h, w, 3], made smaller if it is large."""
    factor = LONGEST_SIDE / max(image.shape)
    if factor >= 1:
        return image
    return np.asarray(cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA))
