"""Selects the points of a scene to export; collects them in a file, in bounded memory."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from da3_ros.mapping.scene import CHUNK, Scene
from da3_ros.mapping.voxel_map import MAX_CELLS, PointCloud, VoxelMap, voxel_hash

MIN_VOXEL = float(np.float32(1e-6))  # as float32, the type in the service's request
SHARE = 1 << 19  # points that are averaged at once
MAX_SHARES = 256  # number of temporary files
POINT = np.dtype(
    [("xyz", "<f4", (3,)), ("rgb", "u1", (3,)), ("confidence", "<f4"), ("count", "<u4")]
)
Progress = Callable[[str, float], None]  # takes the step's name and its completed share, 0..1


class ExportError(RuntimeError):
    """A failed export; one line with the path and the cause."""


class NumberError(ExportError):
    """A number outside its range: which one, and its value and range."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name} {text}")
        self.name, self.text = name, text


def portion(progress: Progress, first: float, last: float) -> Progress:
    """Returns a progress callback for a part of the work, between these shares of the whole."""
    return lambda step, share: progress(step, first + (last - first) * share)


def silent(step: str, share: float) -> None:
    """A progress callback that does nothing."""


@dataclass(frozen=True)
class Selection:
    """The part of a scene to export; by default all of it."""

    voxel: float = 0.0  # edge of the voxels that points are averaged in; 0: as stored
    min_confidence: float = 0.0
    min_observations: int = 1  # of a point; with ``voxel``, of an averaged one
    max_points: int = 0  # evenly thinned to at most this many; 0: all
    crop: tuple[float, ...] = (0.0,) * 6  # min x y z, max x y z in the map frame; zeros: none
    cameras: bool = True
    centred: bool = False  # images of a COLMAP model, around their principal point
    unconnected: bool = True  # also unconnected components
    sh_degree: int = 2  # of the colours of Gaussians, 0 or 2

    def check(self) -> None:
        """Raises ExportError for invalid numbers."""
        low, high = self.crop[:3], self.crop[3:]
        if any(self.crop) and not all(a < b for a, b in zip(low, high, strict=True)):
            raise NumberError("crop", f"is {list(self.crop)}: min x y z must be below max x y z")
        for name in ("voxel", "min_confidence", "min_observations", "max_points"):
            if not getattr(self, name) >= 0:
                raise NumberError(name, f"is {getattr(self, name)}: must be at least 0")
        if self.voxel and not MIN_VOXEL <= self.voxel < math.inf:
            raise NumberError(
                "voxel", f"is {self.voxel:g}: must be 0 (none), or at least 1e-06 and finite"
            )


class Points:
    """The points of an export, in the map frame, stored in a file."""

    def __init__(self, file: IO[bytes], total: int, stride: int) -> None:
        self._file, self._total, self._stride = file, total, stride

    def __len__(self) -> int:
        return -(-self._total // self._stride)

    def chunks(self, progress: Progress = silent) -> Iterator[NDArray[np.void]]:
        """Yields rows of POINT, at most ``CHUNK`` at once."""
        step = max(1, CHUNK // self._stride) * self._stride
        for start in range(0, self._total, step):
            progress("writing", start / self._total)
            self._file.seek(start * POINT.itemsize)
            wanted = min(step, self._total - start) * POINT.itemsize
            yield np.frombuffer(self._file.read(wanted), POINT)[:: self._stride]

    def box(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns the lowest and highest corner [3] of the box around all points; needs one."""
        corners = [(c["xyz"].min(axis=0), c["xyz"].max(axis=0)) for c in self.chunks()]
        low, high = zip(*corners, strict=True)
        return np.min(low, axis=0), np.max(high, axis=0)


@contextmanager
def selected(
    scene: Scene, selection: Selection, folder: Path, progress: Progress = silent
) -> Iterator[Points]:
    """Yields the selected points of ``scene``, in an unnamed file in ``folder``.

    Raises ExportError.
    """
    selection.check()
    total = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        for cloud in _chosen(scene, selection, folder, progress):
            file.write(_rows(cloud).tobytes())
            total += len(cloud)
        most = selection.max_points
        yield Points(file, total, max(1, -(-total // most)) if most else 1)


def _chosen(
    scene: Scene, selection: Selection, folder: Path, progress: Progress
) -> Iterator[PointCloud]:
    # One by one: points of two components must not be averaged, as nothing relates their poses.
    for component in scene.components:
        of_component = scene.of_component(component)
        clouds = _within(of_component, selection, progress)
        if selection.voxel > 0:
            clouds = _averaged(clouds, len(of_component), selection.voxel, folder, progress)
        for cloud in clouds:
            if selection.min_observations > 1:
                cloud = cloud.take(cloud.count >= selection.min_observations)
            yield cloud


def _within(scene: Scene, selection: Selection, progress: Progress) -> Iterator[PointCloud]:
    """Yields the points in the box and above the confidence, in chunks."""
    low, high = np.array(selection.crop[:3]), np.array(selection.crop[3:])
    done, total = 0, max(1, len(scene))
    for cloud in scene.chunks():
        progress("selecting", done / total)
        done += len(cloud)
        keep = cloud.confidence >= np.float32(selection.min_confidence)
        if any(selection.crop):
            keep &= ((cloud.xyz >= low) & (cloud.xyz <= high)).all(axis=1)
        yield cloud if keep.all() else cloud.take(keep)


def _averaged(
    clouds: Iterator[PointCloud], total: int, voxel: float, folder: Path, progress: Progress
) -> Iterator[PointCloud]:
    """Yields the points averaged in voxels, share by share; each voxel is in one share."""
    shares = max(1, min(MAX_SHARES, -(-total // SHARE)))
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(shares)]
        for cloud in clouds:
            _check_range(cloud, voxel)
            share = voxel_hash(cloud.xyz, voxel) % shares
            order = np.argsort(share, kind="stable")
            ends = np.searchsorted(share[order], np.arange(1, shares))
            for file, some in zip(files, np.split(_rows(cloud)[order], ends), strict=True):
                file.write(some.tobytes())
        for index, file in enumerate(files):
            progress("averaging", index / shares)
            yield _averaged_file(file, voxel)
            file.close()


def _check_range(cloud: PointCloud, voxel: float) -> None:
    """Raises ExportError for points whose voxel indices would overflow."""
    far = float(np.abs(cloud.xyz).max(initial=0.0))
    if far > voxel * MAX_CELLS:
        raise ExportError(f"voxel is {voxel:g}: too fine for points at {far:g}; use a larger one")


def _averaged_file(file: IO[bytes], voxel: float) -> PointCloud:
    """Returns the cloud of the points in a file, averaged in voxels."""
    voxels = VoxelMap(voxel)
    file.seek(0)
    while data := file.read(CHUNK * POINT.itemsize):
        rows = np.frombuffer(data, POINT)
        voxels.insert(rows["xyz"], rows["rgb"], rows["confidence"], rows["count"])
    return voxels.cloud()


def _rows(cloud: PointCloud) -> NDArray[np.void]:
    """Returns the cloud as rows of POINT."""
    rows = np.empty(len(cloud), POINT)
    rows["xyz"], rows["rgb"] = cloud.xyz, cloud.rgb
    rows["confidence"], rows["count"] = cloud.confidence, cloud.count
    return rows
