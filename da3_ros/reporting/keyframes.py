"""Pictures of a few stored keyframes, and of frames with their tracks, small enough for a page."""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.drawing.colormaps import colorize_confidence, colorize_depth
from da3_ros.drawing.track_sheet import draw_tracks
from da3_ros.drawing.tracks_file import load_tracks
from da3_ros.export.checked_files import SceneFileError
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.reporting.run_files import KeptScene
from da3_ros.types import FloatImage, Image

log = logging.getLogger(__name__)

MOST, MOST_OF_ALL = 12, 24  # keyframes of a scene, and of all scenes of a page
MOST_TRACKED, MOST_TRACKED_OF_ALL = 6, 12  # frames with tracks, likewise
SIDE = 320  # longest side of a picture, pixels
QUALITIES = (78, 60, 40, 25)  # of JPEG: the first one with which a picture is small enough
MOST_BYTES = 24_000  # of a picture: all of a page together stay below 3.5 MB


@dataclass(frozen=True)
class Picture:
    """An image for the page."""

    title: str
    url: str  # with the data
    size: tuple[int, int]  # (width, height), pixels


@dataclass(frozen=True)
class ShownKeyframe:
    """A keyframe to show. Lengths in the scene's unit."""

    stamp_ns: int
    camera: str
    near: float  # 2nd and 98th percentile of its depth: the range of the colours
    far: float
    known: float  # share 0..1 of pixels with depth
    measured: float  # share of pixels whose depth images have measured; NaN: none is stored
    baseline: float  # distance to its camera's next keyframe over its median depth; NaN: unknown
    pictures: tuple[Picture, ...]


def shown_keyframes(kept: KeptScene, scenes: int) -> list[ShownKeyframe]:
    """Returns an even choice of a scene's keyframes; leaves out damaged ones, with a warning.

    scenes: number of scenes of the page, which is to stay small.
    """
    if kept.stored is None:
        return []
    try:
        with kept.stored.keyframes() as stored:
            return list(_shown(stored, _most(MOST, MOST_OF_ALL, scenes)))
    except JournalError as error:
        log.warning("keyframes are left out: %s", error)
        return []


def _most(of_one: int, of_all: int, scenes: int) -> int:
    return max(1, min(of_one, of_all // scenes))


def _shown(stored: StoredScene, most: int) -> Iterator[ShownKeyframe]:
    keys = sorted(stored.images, key=lambda key: (stored.frames[key].stamp_ns, key))
    chosen = np.linspace(0, len(keys) - 1, min(most, len(keys))).round().astype(int)
    for at in chosen:
        try:
            yield _one(stored, keys, int(at))
        except JournalError as error:
            log.warning("%s: it is left out", error)


def _one(stored: StoredScene, keys: list[int], at: int) -> ShownKeyframe:
    keyframe, dense = stored.load(keys[at]), stored.load_measured(keys[at])
    submap = stored.submaps[keyframe.pose.submap]
    unit = submap.T_map_submap.scale * (stored.map.scene_scale if stored.map.metric else 1.0)
    finite = keyframe.depth[np.isfinite(keyframe.depth)]
    near, middle, far = np.percentile(finite, (2, 50, 98)) if len(finite) else (math.nan,) * 3
    colors = (near, max(far, 1.001 * near + 1e-9)) if len(finite) else (0.0, 1.0)
    pictures = [
        picture("image", keyframe.image),
        picture("depth of the network", colorize_depth(keyframe.depth, colors)),
        picture("confidence", colorize_confidence(keyframe.confidence)),
    ]
    measured = math.nan
    if dense is not None:
        measured = float(dense.measured.mean())
        depth: FloatImage = np.where(dense.measured, dense.depth, np.float32(np.nan))
        pictures.append(picture("measured depth", colorize_depth(depth, colors)))
    return ShownKeyframe(
        keyframe.pose.stamp_ns, keyframe.pose.camera, unit * near, unit * far,
        float(np.isfinite(keyframe.depth).mean()), measured,
        _baseline(stored, keys, at) / (submap.T_map_submap.scale * middle), tuple(pictures),
    )  # fmt: skip


def _baseline(stored: StoredScene, keys: list[int], at: int) -> float:
    """Returns the distance from a keyframe to its camera's next one, in the map's unit; NaN: there
    is none whose relative pose is measured."""
    one = stored.frames[keys[at]]
    for key in keys[at + 1 :]:
        other = stored.frames[key]
        if other.camera != one.camera:
            continue
        first, second = (stored.submaps[frame.submap] for frame in (one, other))
        if first.chain != second.chain:
            break
        ends = [
            submap.T_map_submap.points(frame.T_submap_camera[:3, 3])
            for submap, frame in ((first, one), (second, other))
        ]
        return float(np.linalg.norm(ends[1] - ends[0]))
    return math.nan


@dataclass(frozen=True)
class TrackedFramePicture:
    """A frame with its tracks drawn on it."""

    stamp_ns: int
    tracks: int
    rms_px: float  # reprojection error of the tracks; NaN: none has a point
    picture: Picture


def tracked_frames(kept: KeptScene, scenes: int) -> list[TrackedFramePicture]:
    """Returns an even choice of the frames whose tracks are kept; none, with a warning, if their
    file is damaged. scenes: as in ``shown_keyframes``."""
    if kept.tracks is None:
        return []
    try:
        frames = load_tracks(kept.tracks)
    except SceneFileError as error:
        log.warning("tracks are left out: %s", error)
        return []
    most = _most(MOST_TRACKED, MOST_TRACKED_OF_ALL, scenes)
    chosen = np.linspace(0, len(frames) - 1, min(most, len(frames))).round().astype(int)
    out = []
    for frame in (frames[k] for k in chosen):
        width, height = frame.image().shape[1::-1]
        factor = SIDE / max(width, height)
        size = max(1, round(factor * width)), max(1, round(factor * height))
        drawn = np.ascontiguousarray(draw_tracks([frame], size)[: size[1]])  # without its text
        history = frame.track_history
        out.append(TrackedFramePicture(
            frame.stamp_ns, len(history), float(history.rms_px), picture("tracks", drawn)
        ))  # fmt: skip
    return out


def picture(title: str, image: Image) -> Picture:
    """Returns an image RGB [H, W, 3] as a small JPEG."""
    side, small = SIDE, _shrunk(image, SIDE)
    data = _jpeg(small)
    while len(data) > MOST_BYTES and side > 1:  # noise is too much at any quality
        side //= 2
        small = _shrunk(image, side)
        data = _jpeg(small)
    url = "data:image/jpeg;base64," + base64.b64encode(data).decode()
    return Picture(title, url, (small.shape[1], small.shape[0]))


def _shrunk(image: Image, side: int) -> NDArray[np.uint8]:
    """Returns an image whose longer side is at most ``side`` pixels."""
    factor = side / max(image.shape[:2])
    if factor >= 1:
        return image
    size = tuple(max(1, round(factor * length)) for length in image.shape[1::-1])
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def _jpeg(image: NDArray[np.uint8]) -> bytes:
    """Returns a JPEG of the best quality that is small enough, or of the lowest."""
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    for quality in QUALITIES:
        data = cv2.imencode(".jpg", bgr, (cv2.IMWRITE_JPEG_QUALITY, quality))[1].tobytes()
        if len(data) <= MOST_BYTES:
            break
    return data
