"""Measured depth of a hand-held recording, against the depth that was recorded with it.

The recorded depth is registered to the colour camera. 7-Scenes was recorded with a Kinect: depth
with fx 585, colour with fx 525, and 2.5 cm between the cameras along their rows; the poses are
those of the depth camera. Every pixel of the depth image, split in four so that no hole opens
between them, becomes a point, is moved by the offset, and is projected into the colour image; the
nearest one of a pixel counts (z-buffer), so that what only the depth camera sees is hidden. 0 and
65535 are no depth. Depth edges are removed: pixels with another depth (more than 5 %), or none,
within two pixels of the colour image. ``--offsets`` measures at other offsets, and how well the
edges of the registered depth agree with those of the images: the offset that is right shows there.
So does the ratio of both focal lengths, but not their size. ``--focals`` repeats all with other
focal lengths of the colour images: depth from images is proportional to them. The way is fitted by
the places of the camera alone: orientations are bent by a wrong focal length.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from dense_scenes import (
    OffAndOn,
    depth_errors,
    fit_centres,
    fit_way,
    means,
    off_and_on,
    ratios,
    recorded,
    save_pictures,
    shape_errors,
)
from refinement_recordings import WINDOW, projection, true_poses

from da3_ros.geometry.projection import corner_K
from da3_ros.recordings import open_recording
from da3_ros.synthetic.evaluation import resize_nearest
from da3_ros.types import Array, FloatImage, Frame, Image

COLOUR, DEPTH = "/camera/image_raw/compressed", "/camera/depth/image_raw"
PNG_AT = 12  # bytes of header of compressedDepth
LEAST_MM, MOST_MM = 300, 8000  # of the depth camera
EDGE, EDGE_PX = 0.05, 2  # jump of depth that is an edge, and what is removed around it


@dataclass(frozen=True, eq=False)
class DepthCamera:
    """Recorded depth images and poses, and both cameras."""

    depth: dict[int, FloatImage]  # [h, w] metres by stamp, NaN unknown
    T_room_depth: dict[int, Array]  # [4, 4] by stamp
    K_depth: Array  # [3, 3] corner rule
    K: Array  # of the colour images
    shape: tuple[int, int]  # (height, width) of the colour images


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per focal length and offset of the cameras."""
    values = {
        "model": "da3-tiny", "backend": options.backend, "process_res": options.process_res,
        "window.size": WINDOW,
    }  # fmt: skip
    camera, data = depth_camera(options.folder), options.folder.name
    for focal in (None, *options.focals):
        name = data if focal is None else f"{data}-{focal:g}px"
        frames = colour_frames(options.folder, options.frames, focal)
        with (
            recorded(frames, values, options.keep, name) as folder,
            off_and_on(folder) as both,
        ):
            for offset in dict.fromkeys((options.offset, *options.offsets)):
                row = errors(both, camera, np.array([offset, 0, 0]), options)
                used = camera.K[0, 0] if focal is None else focal
                yield {"data": data, "focal_px": float(used), "offset_m": float(offset)} | row


def errors(
    both: OffAndOn, camera: DepthCamera, offset: Array, options: argparse.Namespace
) -> dict[str, Any]:
    """Returns means over keyframes with recorded depth; offset: place [3] of the colour camera in
    the depth camera's axes, metres."""
    T = np.eye(4)
    T[:3, 3] = offset
    true = {s: P @ T for s, P in camera.T_room_depth.items()}
    T_room_ros, way_m = fit_way(both.stored, true, fit_centres)
    ones = [one for one in both.keyframes if one.stamp_ns in camera.depth]
    truth, edges = {}, []
    for one in ones:
        full = registered(camera, camera.depth[one.stamp_ns], offset)
        edges.append(edge_agreement(full, one.image))
        truth[one.key] = resize_nearest(without_edges(full), one.network.shape)
    found = means([depth_errors(one, truth[one.key], T_room_ros.scale) for one in ones])
    found |= shape_errors(ones, truth, T_room_ros.scale)
    if options.pictures and offset[0] == options.offset:
        save_pictures(options.pictures, options.folder.name, ones, truth, T_room_ros.scale)
    row = {
        "keyframes": len(both.keyframes), "with_depth": len(ones), "way_error_m": way_m,
        "edge_agreement": float(np.mean(edges)),
    }  # fmt: skip
    return row | found | ratios(found) | {"seconds": both.seconds}


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the offsets at which edges, and measured depth, agree best."""
    found = [row for row in found if row["focal_px"] == found[0]["focal_px"]]
    if len(found) < 2:
        return {}
    by_edges = max(found, key=lambda r: r["edge_agreement"])
    by_depth = min(found, key=lambda r: r["measured_on"])
    return {"best_offset_by_edges_m": by_edges["offset_m"],
            "best_offset_by_depth_m": by_depth["offset_m"]}  # fmt: skip


def colour_frames(
    folder: Path, count: int | None, focal: float | None = None
) -> Iterator[Frame]:  # fmt: skip
    """Yields the colour images of a recording, the first ``count``. focal: pixels, in the place of
    that of their calibration."""
    with open_recording(folder, camera=COLOUR) as bag:
        for index, frame in enumerate(bag):
            if index == count:
                return
            yield frame if focal is None else with_focal(frame, focal)


def with_focal(frame: Frame, focal: float) -> Frame:
    """Returns a frame with a calibration of another focal length, pixels."""
    known = frame.calibration
    assert known is not None
    larger = np.array([[focal / known.K[0, 0]], [focal / known.K[0, 0]], [1.0]])

    def scaled(M: Array) -> Array:
        return np.hstack((M[:, :2] * larger, M[:, 2:]))

    P = None if known.P is None else scaled(known.P)
    return replace(frame, calibration=replace(known, K=scaled(known.K), P=P))


def depth_camera(folder: Path) -> DepthCamera:
    """Returns the recorded depth of a folder."""
    with open_recording(folder, camera=COLOUR) as bag:
        first = next(iter(bag))
        compressed = f"{DEPTH}/compressedDepth"
        kinds = bag.topics_of("sensor_msgs/msg/CompressedImage")
        messages = list(bag.messages(compressed if compressed in kinds else DEPTH))
        _, info = next(bag.messages("/camera/depth/camera_info"))
        stamps = [_stamp(m) for _, m in bag.messages("/ground_truth/odom")]
        poses = true_poses(bag)
    return DepthCamera(
        {_stamp(m): metres(m) for _, m in messages}, dict(zip(stamps, poses, strict=True)),
        corner_K(np.array(info.k).reshape(3, 3)),
        corner_K(projection(first.calibration)[:, :3]), first.image.shape[:2],
    )  # fmt: skip


def _stamp(message: Any) -> int:
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


def metres(message: Any) -> FloatImage:
    """Returns float32 depth [h, w] of a depth image, compressed or not; NaN unknown."""
    data = np.frombuffer(bytes(message.data), np.uint8)
    if hasattr(message, "format"):
        raw = cv2.imdecode(data[PNG_AT:], cv2.IMREAD_UNCHANGED)
    else:
        raw = data.view("<u2").reshape(message.height, message.width)
    known = (raw >= LEAST_MM) & (raw <= MOST_MM)
    return np.where(known, raw / 1000, np.nan).astype(np.float32)


def registered(camera: DepthCamera, depth: FloatImage, offset: Array) -> FloatImage:
    """Returns depth [H, W] at the pixels of the colour camera, NaN unknown."""
    fine = cv2.resize(depth, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST)
    row, column = np.nonzero(np.isfinite(fine))
    z = fine[row, column].astype(np.float64)
    pixels = np.stack([(column + 0.5) / 2, (row + 0.5) / 2, np.ones(len(z))])
    points = np.linalg.inv(camera.K_depth) @ pixels * z - offset[:, None]
    u, v, z = camera.K @ points
    u, v = np.floor(u / z).astype(int), np.floor(v / z).astype(int)
    height, width = camera.shape
    inside = (u >= 0) & (v >= 0) & (u < width) & (v < height)
    out = np.full(height * width, np.inf)
    np.minimum.at(out, v[inside] * width + u[inside], z[inside])
    return np.where(np.isfinite(out), out, np.nan).reshape(height, width).astype(np.float32)


def without_edges(depth: FloatImage) -> FloatImage:
    """Returns depth [H, W] without pixels near depth edges, or near unknown depth."""
    side = np.ones((2 * EDGE_PX + 1,) * 2, np.uint8)
    known = np.isfinite(depth)
    low = cv2.erode(np.where(known, depth, 0).astype(np.float32), side)
    high = cv2.dilate(np.where(known, depth, 0).astype(np.float32), side)
    return np.where((low > 0) & (high < (1 + EDGE) * low), depth, np.nan).astype(np.float32)


def edge_agreement(depth: FloatImage, image: Image) -> float:
    """Returns the mean grey gradient along the columns of an image at depth edges, over that of
    the whole image: largest where both are registered."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    gradient = np.abs(cv2.Sobel(grey, cv2.CV_32F, 1, 0))
    step = np.log(depth[:, 1:]) - np.log(depth[:, :-1])
    edge = np.abs(step) > 2 * EDGE
    return float(gradient[:, 1:][edge].mean() / gradient.mean()) if edge.any() else float("nan")
