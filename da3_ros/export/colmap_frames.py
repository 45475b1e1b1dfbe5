"""Writes stored keyframes as a COLMAP model: images at the camera's resolution, points with the
tracks of refinement, and depth maps as the trainer of 3D Gaussian splatting reads them.

The trainer (https://github.com/graphdeco-inria/gaussian-splatting, ``--depths depths``) reads
``depths/NAME.png``, 16 bits, and ``sparse/0/depth_params.json``: inverse depth = code / 65536 *
``scale`` + ``offset``. It ignores maps whose ``scale`` is below a fifth or above five times the
median, so that all images have one scale here; a map without any depth has the scale 0. It needs
a map for each image, and has no code for unknown depth.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.export.centred import centred
from da3_ros.export.colmap import (
    DEPTH_PARAMETERS,
    ModelImage,
    flat_names,
    write_image,
    write_model,
)
from da3_ros.export.derived import file_names
from da3_ros.export.selection import Points, Progress, Selection
from da3_ros.export.stored_depth import Readable
from da3_ros.export.track_points import (
    NO_POINTS,
    OBSERVATION,
    Cameras,
    TriangulatedTracks,
    triangulated,
)
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import resize_K
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.submap_points import jpeg
from da3_ros.types import FloatImage

CODES = 1 << 16
# Depth that is nearer than the nearest one of a middle image by more than this is written as that
# distance: a wrong pixel must not cost the others their precision.
NEARER = 16.0
Rows = NDArray[np.void]  # of OBSERVATION


def write_keyframes(
    keyframes: Sequence[Readable], selection: Selection, scene: Scene, points: Points,
    folder: Path, progress: Progress,
) -> int:  # fmt: skip
    """Writes a model of stored keyframes into an empty folder; returns the number of its points.

    selection: its box, which points with tracks are in, and whether images are ``centred`` count.
    points: those of the scene, which follow without tracks. Raises ExportError, JournalError or
    OSError.
    """
    images, rows, scale = [], [], _depth_scale(keyframes)
    parameters: dict[str, dict[str, float]] = {}
    names = flat_names(file_names(keyframes))
    for index, (one, name) in enumerate(zip(keyframes, names, strict=True)):
        progress("writing keyframes", index / len(keyframes))
        found = centred(one.load()) if selection.centred else one.load()
        images.append(_model_image(one, found, name))
        rows.append(_observations(one, found, index))
        data = jpeg(found.image) if selection.centred else one.image_data()
        write_image(folder, images[-1].name, data)
        inverse = 1 / (found.depth * np.float32(one.T_map_submap.scale))
        _write_depth(folder / "depths" / f"{name}.png", inverse, scale)
        known = bool(np.isfinite(inverse).any())
        parameters[name] = {"scale": scale if known else 0.0, "offset": 0.0}
    progress("triangulating tracks", 0.0)
    tracked, of_rows = triangulated(np.concatenate(rows), _cameras(images))
    tracked, of_rows = _cropped(tracked, of_rows, selection.crop)
    bounds = np.cumsum([len(one) for one in rows])[:-1]
    for image, numbers in zip(images, np.split(of_rows, bounds), strict=True):
        image.point[:] = numbers
    write_model(images, tracked, scene, points, folder, progress)
    text = json.dumps(parameters, indent=1)
    (folder / "sparse" / "0" / DEPTH_PARAMETERS).write_text(text)
    return len(tracked) + len(points)


def tracked_points(keyframes: Iterable[Readable]) -> TriangulatedTracks:
    """Returns the points of the feature tracks of stored keyframes. Raises JournalError."""
    images, rows = [], [np.zeros(0, OBSERVATION)]
    for index, one in enumerate(keyframes):
        found = one.load()
        images.append(_model_image(one, found, str(one.key)))
        rows.append(_observations(one, found, index))
    return triangulated(np.concatenate(rows), _cameras(images))[0] if images else NO_POINTS


def _cameras(images: Sequence[ModelImage]) -> Cameras:
    return Cameras(
        np.array([invert_pose(image.T_ros_camera) for image in images]),
        np.array([image.K for image in images]),
    )


def _model_image(one: Readable, found: Keyframe, name: str) -> ModelImage:
    pose, size = found.pose, found.image.shape[1::-1]
    features = found.tracks.pixels
    return ModelImage(
        f"{name}.jpg", pose.camera, one.T_ros_camera, resize_K(pose.K, pose.size, size), size,
        features, np.full(len(features), -1),
    )  # fmt: skip


def _observations(one: Readable, found: Keyframe, index: int) -> Rows:
    """Returns what an image sees of tracks."""
    tracks, out = found.tracks, np.zeros(len(found.tracks.ids), OBSERVATION)
    out["track"], out["image"], out["pixel"] = tracks.ids, index, tracks.pixels
    out["rgb"] = _at(found.image, found)
    out["depth"] = _at(found.depth, found) * np.float32(one.T_map_submap.scale)
    return out


def _at(values: NDArray[Any], found: Keyframe) -> NDArray[Any]:
    """Returns the values [M, ...] of an image [h, w, ...] at the features of a keyframe."""
    height, width = values.shape[:2]
    ratio = np.divide((width, height), found.image.shape[1::-1])
    at = np.floor(found.tracks.pixels * ratio).astype(int)
    column, row = np.clip(at, 0, (width - 1, height - 1)).T
    return values[row, column]


def _cropped(
    tracked: TriangulatedTracks, of_rows: NDArray[np.int64], crop: Sequence[float]
) -> tuple[TriangulatedTracks, NDArray[np.int64]]:
    """Returns the points inside the box, and the point of each observation, -1 for none."""
    if not any(crop):
        return tracked, of_rows
    inside = np.all((tracked.xyz >= crop[:3]) & (tracked.xyz <= crop[3:]), axis=1)
    number = np.append(np.where(inside, np.cumsum(inside) - 1, -1), -1)
    return tracked.take(inside), number[of_rows]


def _depth_scale(keyframes: Sequence[Readable]) -> float:
    """Returns the inverse depth that the code 65536 would stand for."""
    ranges = {one: one.inverse_depths() for one in keyframes}
    # Without depth a keyframe has this range.
    known = [one for one, found in ranges.items() if found != (1.0, 1.0)] or keyframes
    nearest = [ranges[one][1] / one.T_map_submap.scale for one in known]
    largest = min(max(nearest), NEARER * float(np.median(nearest)))
    return largest * CODES / (CODES - 1)


def _write_depth(file: Path, inverse: FloatImage, scale: float) -> None:
    """Writes a depth map; unknown inverse depth [h, w] gets that of the nearest known pixel."""
    known = np.isfinite(inverse)
    codes = np.zeros(inverse.shape, np.uint16)
    if known.any():
        _, label = cv2.distanceTransformWithLabels(
            (~known).astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
        )
        of_label = np.zeros(label.max() + 1, np.float32)
        of_label[label[known]] = inverse[known]
        filled = np.where(known, inverse, of_label[label])
        codes = np.clip(np.rint(filled / scale * CODES), 0, CODES - 1).astype(np.uint16)
    file.parent.mkdir(parents=True, exist_ok=True)
    _, data = cv2.imencode(".png", codes)
    file.write_bytes(data.tobytes())
