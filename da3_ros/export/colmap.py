"""Writes a COLMAP text model, the input of tools for 3D Gaussian splatting.

``sparse/0`` holds ``cameras.txt`` (PINHOLE), ``images.txt`` (world to camera, quaternions w first)
and ``points3D.txt`` as in COLMAP's documentation of its text format; COLMAP's pixel centres are at
0.5, the corner rule of ``types``. Its world is the ROS map frame. ``images`` holds the images of
keyframes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.atomic_files import files_in
from da3_ros.export.selection import ExportError, Points, Progress
from da3_ros.export.track_points import NO_POINTS, TriangulatedTracks
from da3_ros.geometry.poses import invert_pose, quaternion_from_matrix
from da3_ros.mapping.scene import Scene, jpeg_bytes
from da3_ros.types import Array

FILES = ("cameras.txt", "images.txt", "points3D.txt")
IMAGES_HEADER = "# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, then POINTS2D[]\n"
OLDER_HEADER = IMAGES_HEADER.replace("\n", " (none)\n")  # of models that had no tracks yet
DEPTH_PARAMETERS = "depth_params.json"
TRAINERS = "points3D.ply"  # what Inria's trainer makes of points3D.txt, once: it must not survive
ROW = "%d %.6f %.6f %.6f %d %d %d -1\n"  # COLMAP's error of a point without a track: -1
NO_PIXELS = np.zeros((0, 2), np.float32)
NO_INDICES = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class ModelImage:
    """An image of a model."""

    name: str  # of its file below ``images``
    camera: str
    T_ros_camera: Array  # [4, 4]
    K: Array  # [3, 3] corner rule
    size: tuple[int, int]  # (width, height)
    features: NDArray[np.float32] = field(default_factory=lambda: NO_PIXELS)  # [M, 2] pixels
    point: NDArray[np.int64] = field(default_factory=lambda: NO_INDICES)  # [M] index; -1: none


def write_colmap(scene: Scene, points: Points, folder: Path, progress: Progress) -> None:
    """Writes a scene with the images that its map has kept, at the network's size, into an empty
    folder.

    Raises ExportError if the scene has no keyframe.
    """
    poses = [p for p in scene.poses if p.keyframe]
    shown = [p for p in poses if (p.camera, p.stamp_ns) in scene.images]
    suffix = "jpg" if shown else "png"
    images, chosen = [], shown or poses
    names = flat_names(image_name(pose.camera, pose.stamp_ns) for pose in chosen)
    for pose, name in zip(chosen, (f"{name}.{suffix}" for name in names), strict=True):
        T_ros_camera = scene.T_ros_map @ pose.T_map_camera
        images.append(ModelImage(name, pose.camera, T_ros_camera, pose.K, pose.size))
        if shown:
            write_image(folder, name, jpeg_bytes(scene.images[pose.camera, pose.stamp_ns]))
    write_model(images, NO_POINTS, scene, points, folder, progress)


def write_model(
    images: Sequence[ModelImage], tracked: TriangulatedTracks, scene: Scene, points: Points,
    folder: Path, progress: Progress,
) -> None:  # fmt: skip
    """Writes the text files: points with tracks first, then those of the scene, without.

    Raises ExportError if there is no image.
    """
    if not images:
        raise ExportError("the scene has no keyframe: a COLMAP model needs cameras")
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    cameras = _write_cameras(model / "cameras.txt", images)
    _write_images(model / "images.txt", images, cameras)
    with (model / "points3D.txt").open("w") as text:
        text.write("# POINT3D_ID X Y Z R G B ERROR TRACK[] (IMAGE_ID POINT2D_IDX)\n")
        if scene.unconnected:
            components, unconnected = len(scene.components), scene.unconnected
            text.write(f"# components {components}, of which {unconnected} unconnected\n")
        text.writelines(_track_rows(images, tracked))
        first = 1 + len(tracked)
        for chunk in points.chunks(progress):
            ids = range(first, first + len(chunk))
            columns = (*chunk["xyz"].T.tolist(), *chunk["rgb"].T.tolist())
            # Twice as fast as NumPy's savetxt.
            text.writelines(map(ROW.__mod__, zip(ids, *columns, strict=True)))
            first += len(chunk)


def image_name(camera: str, stamp_ns: int) -> str:
    """Returns a keyframe's file name without suffix: its stamp, in a folder per camera."""
    return f"{camera}/{stamp_ns}" if camera else str(stamp_ns)


def flat_names(names: Iterable[str]) -> list[str]:
    """Returns names without folders, which stay apart.

    Some trainers read the last part of an image's name only; cameras of a rig share stamps.
    """
    out: dict[str, None] = {}
    for name in names:
        flat = name.replace("/", "_")
        while flat in out:  # cameras a/b and a_b
            flat += "_"
        out[flat] = None
    return list(out)


def write_image(folder: Path, name: str, data: bytes) -> None:
    """Writes the file of an image of a model. Raises OSError."""
    file = folder / "images" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def foreign_to_model(folder: Path) -> Path | None:
    """Returns a file of a folder that is no part of a model that was written here; None: none is.

    Models of earlier versions have the text files beside ``images``.
    """
    model = folder / "sparse" / "0"
    model = model if model.is_dir() else folder
    names = _written_names(model / "images.txt")
    ours = {model / file for file in (*FILES, DEPTH_PARAMETERS, TRAINERS)} if names else set()
    for name in names:
        ours.update((folder / "images" / name, (folder / "depths" / name).with_suffix(".png")))
    return next((file for file in files_in(folder) if file not in ours), None)


def _written_names(file: Path) -> list[str]:
    """Returns the images' names in a text file that was written here; else none."""
    try:
        with file.open(errors="replace") as text:
            if text.readline() not in (IMAGES_HEADER, OLDER_HEADER):
                return []
            return [name for line in islice(text, 0, None, 2) for name in line.split()[-1:]]
    except OSError:
        return []


def _write_cameras(path: Path, images: Iterable[ModelImage]) -> list[int]:
    """Writes each distinct camera once; returns the camera number of each image."""
    numbers: dict[tuple[str, str], int] = {}
    chosen = []
    for image in images:
        K = image.K
        values = " ".join(f"{v:.6f}" for v in (K[0, 0], K[1, 1], K[0, 2], K[1, 2]))
        line = f"PINHOLE {image.size[0]} {image.size[1]} {values}"
        # With the name: two cameras of a rig stay two, even with equal intrinsics.
        chosen.append(numbers.setdefault((image.camera, line), len(numbers) + 1))
    rows = (f"{number} {line}\n" for (_, line), number in numbers.items())
    header = "# CAMERA_ID MODEL WIDTH HEIGHT PARAMS[] (fx fy cx cy)\n"
    path.write_text(header + "".join(rows))
    return chosen


def _write_images(path: Path, images: Sequence[ModelImage], cameras: Sequence[int]) -> None:
    with path.open("w") as text:
        text.write(IMAGES_HEADER)
        for number, (image, camera) in enumerate(zip(images, cameras, strict=True), start=1):
            T_camera_ros = invert_pose(image.T_ros_camera)
            x, y, z, w = quaternion_from_matrix(T_camera_ros[:3, :3])
            values = " ".join(f"{v:.9f}" for v in (w, x, y, z, *T_camera_ros[:3, 3]))
            text.write(f"{number} {values} {camera} {image.name}\n")
            ids = np.where(image.point < 0, -1, image.point + 1).tolist()
            seen = (
                f"{u:.3f} {v:.3f} {id}" for (u, v), id in zip(image.features, ids, strict=True)
            )
            text.write(" ".join(seen) + "\n")


def _track_rows(images: Sequence[ModelImage], tracked: TriangulatedTracks) -> Iterable[str]:
    """Yields the rows of points with tracks."""
    seen: list[list[str]] = [[] for _ in range(len(tracked))]
    for number, image in enumerate(images, start=1):
        for index in np.flatnonzero(image.point >= 0).tolist():
            seen[int(image.point[index])].append(f"{number} {index}")
    columns = zip(tracked.xyz.tolist(), tracked.rgb.tolist(), tracked.error_px, seen, strict=True)
    for id, ((x, y, z), (r, g, b), error, track) in enumerate(columns, start=1):
        yield f"{id} {x:.6f} {y:.6f} {z:.6f} {r} {g} {b} {error:.4f} {' '.join(track)}\n"
