"""The stored keyframes of a scene as views with features on the camera's full images.

Images are read when they are needed; those of the last ones stay in memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from da3_ros.export.stored_depth import submap_poses_of
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.merging.inputs import InputScene
from da3_ros.refinement.features import FeatureDetector, Features
from da3_ros.refinement.tracked_view import TrackedView, tracked_view
from da3_ros.types import Array, FloatImage

log = logging.getLogger(__name__)

IN_MEMORY = 64  # keyframes of a scene with features and depth
GRID = 8  # points along each side of a keyframe that tell which others see the same


@dataclass(frozen=True, eq=False)
class _Read:
    features: Features
    depth: FloatImage  # [h, w] in the scene's unit


class StoredViews:
    """The stored keyframes of a scene, in the frame and unit that the scene was saved in."""

    def __init__(self, one: InputScene, stored: StoredScene, detector: FeatureDetector) -> None:
        """stored: those keyframes."""
        self._stored, self._detector = stored, detector
        poses = submap_poses_of(self._stored)
        self._keys = [
            k for k in self._stored.images
            if (s := self._stored.frames[k].submap) in poses and s < one.submap_count
        ]  # fmt: skip
        frames = [self._stored.frames[k] for k in self._keys]
        self._scale = [poses[f.submap].scale for f in frames]
        self.submap = np.array([f.submap + one.first_submap for f in frames], int)  # new ids
        self.T_map_camera = np.array(
            [poses[f.submap].pose(f.T_submap_camera) for f in frames]
        ).reshape(-1, 4, 4)
        self._K = np.array([f.K for f in frames]).reshape(-1, 3, 3)
        self._size = np.array([f.size for f in frames]).reshape(-1, 2)
        self._read: OrderedDict[int, _Read] = OrderedDict()
        self._damaged: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def view(
        self, number: int, id: int, T_local_camera: Array, scale: float
    ) -> TrackedView | None:
        """Returns a keyframe at a pose in local, without tracks; None: its images are damaged.

        scale: units of local per unit of the scene.
        """
        read = self._load(number)
        if read is None:
            return None
        camera = self._stored.frames[self._keys[number]].camera
        return tracked_view(
            id, camera, read.features, self._K[number], T_local_camera,
            np.float32(scale) * read.depth,
        )  # fmt: skip

    def surface(self, number: int) -> Array:
        """Returns some points [M, 3] that a keyframe sees, in the scene; none of a damaged one."""
        read = self._load(number)
        if read is None:
            return np.zeros((0, 3))
        h, w = read.depth.shape
        row, column = (np.arange(GRID) * n // GRID + n // (2 * GRID) for n in (h, w))
        row, column = (a.ravel() for a in np.meshgrid(row, column, indexing="ij"))
        depth = read.depth[row, column]
        known = np.isfinite(depth)
        pixel = np.column_stack((column + 0.5, row + 0.5, np.ones(len(row))))[known]
        x = depth[known, None] * pixel @ np.linalg.inv(self._K[number]).T
        T = self.T_map_camera[number]
        return np.asarray(x @ T[:3, :3].T + T[:3, 3])

    def shares(self, some: Array, points: Array) -> Array:
        """Returns which share [S] of points [M, 3] in the scene lies in the image of each of
        ``some`` keyframes [S]."""
        T = self.T_map_camera[some]
        x = np.einsum("nji,nmj->nmi", T[:, :3, :3], points[None] - T[:, None, :3, 3])
        pixel = np.einsum("nij,nmj->nmi", self._K[some], x)
        with np.errstate(invalid="ignore", divide="ignore"):
            at = pixel[..., :2] / pixel[..., 2:]
        inside = (x[..., 2] > 0) & ((at > 0) & (at < self._size[some, None])).all(axis=2)
        return np.asarray(inside.mean(axis=1))

    def _load(self, number: int) -> _Read | None:
        if number in self._read:
            self._read.move_to_end(number)
            return self._read[number]
        if number in self._damaged:
            return None
        try:
            keyframe = self._stored.load(self._keys[number])
        except JournalError as error:
            self._damaged.add(number)
            log.warning("%s: scenes are aligned without it", error)
            return None
        depth = self._depth(number, keyframe) * np.float32(self._scale[number])
        self._read[number] = _Read(self._detector(keyframe.image), depth)
        while len(self._read) > IN_MEMORY:
            self._read.popitem(last=False)
        return self._read[number]

    def _depth(self, number: int, keyframe: Keyframe) -> FloatImage:
        """Returns the depth [h, w] of a keyframe, in its submap's unit: as it was measured, if it
        was."""
        try:
            dense = self._stored.load_measured(self._keys[number])
        except JournalError as error:
            log.warning("measured depth: %s: the network's is used", error)
            return keyframe.depth
        return keyframe.depth if dense is None else dense.depth
