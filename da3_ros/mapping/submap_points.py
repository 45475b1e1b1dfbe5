"""Points and images of the submaps, within bounds of number, memory and distance.

Only the newest submap grows, in a hash of voxels; the others are plain compact arrays, so that a
window costs the same however large the map is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import cv2
import numpy as np

from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import SceneFrame
from da3_ros.mapping.scene import CHUNK, REFERENCE, Shot, join
from da3_ros.mapping.voxel_map import PointCloud, VoxelMap
from da3_ros.types import Array, Image

KEEP = 0.9  # share that stays when something must leave, so that it is rare
MARGIN = 0.05  # way over the radius after which what has come to lie beyond it leaves
JPEG_QUALITY = 95
HELD = 19  # bytes of a point that is held


@dataclass(eq=False)
class Submap:
    """A stretch of keyframes; ``cloud`` is empty while it still grows."""

    id: int  # counts up; never used twice in a scene
    segment: int  # submaps of one segment are joined by shared frames
    T_scene_submap: Similarity
    cloud: PointCloud = field(default_factory=lambda: join([]))
    images: dict[Shot, bytes] = field(default_factory=dict)  # JPEG, of keyframes
    keyframes: int = 0
    middle: Array = field(default_factory=lambda: np.zeros(3))  # of the ball that holds all points
    reach: float = 0.0  # the ball's radius
    part: int = REFERENCE  # of the scene; submaps of one part lie to each other as measured

    @property
    def image_bytes(self) -> int:
        """Memory of the images."""
        return sum(map(len, self.images.values()))


class SubmapPoints:
    """What the submaps of one scene show; the oldest leaves first when there is too much.

    Lengths are in scene units. Another thread may ask for ``len`` and ``nbytes``.
    """

    def __init__(self, submaps: Mapping[int, Submap]) -> None:
        """``submaps``: of the scene, in the order of their ids; the owner adds and removes."""
        self._submaps = submaps
        self.newest: Submap | None = None  # the one that grows
        self._growing: VoxelMap | None = None  # its points
        self._held = self._image_bytes = 0  # points outside it, bytes of all images
        self._swept_at = np.full(3, np.inf)

    def __len__(self) -> int:
        growing = self._growing  # once: it may be closed meanwhile
        return self._held + (0 if growing is None else len(growing))

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        growing = self._growing
        voxels = 0 if growing is None else growing.nbytes
        return self._held * HELD + self._image_bytes + voxels

    def size_of(self, submap: Submap) -> int:
        """How many points a submap has."""
        return len(self._growing_of(submap) or submap.cloud)

    def cloud_of(self, submap: Submap) -> PointCloud:
        """All points of a submap, in its frame."""
        growing = self._growing_of(submap)
        return submap.cloud if growing is None else held(growing.cloud())

    def some_of(self, submap: Submap, chosen: slice) -> PointCloud:
        """The chosen points of a submap, in its frame."""
        growing = self._growing_of(submap)
        return submap.cloud.take(chosen) if growing is None else growing.cloud(chosen)

    def begin(self, submap: Submap, voxel: float) -> None:
        """A new submap grows from now on, in voxels of this edge in its own unit."""
        self.newest, self._growing = submap, VoxelMap(voxel)

    def close(self) -> None:
        """The newest submap grows no more."""
        if self._growing is not None and self.newest is not None:
            submap, cloud = self.newest, self._growing.cloud()
            self.newest = self._growing = None
            self._set_cloud(submap, held(cloud))

    def insert(self, frame: SceneFrame, T_submap_camera: Array, radius: float) -> None:
        """Take a keyframe's points, within ``radius`` (0: any), into the submap that grows."""
        assert self._growing is not None
        assert self.newest is not None
        known = np.isfinite(frame.depth)
        points = backproject(frame.depth, frame.K)[known]
        if radius:
            near = (points**2).sum(axis=1) < ((1 - MARGIN) * radius) ** 2
            points, known = points[near], _masked(known, near)
        # The camera is near the submap's origin, so that float32 is exact anywhere in the scene.
        scale = np.float32(1 / self.newest.T_scene_submap.scale)
        R, t = T_submap_camera[:3, :3].astype(np.float32), T_submap_camera[:3, 3]
        xyz = scale * points @ R.T + t.astype(np.float32)
        self._growing.insert(xyz, frame.image[known], frame.confidence[known])

    def keep_image(self, submap: Submap, frame: SceneFrame) -> None:
        """Keep a keyframe's image as JPEG."""
        data = jpeg(frame.image)
        submap.images[frame.camera, frame.stamp_ns] = data
        self._image_bytes += len(data)

    def drop_images(self, submap: Submap) -> None:
        """Let go of a submap's images."""
        self._image_bytes -= submap.image_bytes
        submap.images.clear()

    def restore(self, submap: Submap, cloud: PointCloud, images: Mapping[Shot, bytes]) -> None:
        """Take over what a saved submap shows."""
        self._set_cloud(submap, cloud)
        submap.images.update(images)
        self._image_bytes += submap.image_bytes

    def regrid(self, voxel: Callable[[Submap], float]) -> None:
        """Voxels of the edge that ``voxel`` gives for each submap, in the submap's unit."""
        for submap in self._with_points():
            self._set_cloud(submap, held(regridded(submap.cloud, voxel(submap))))
        if self._growing is not None and self.newest is not None:
            cloud, self._growing = self._growing.cloud(), VoxelMap(voxel(self.newest))
            self._growing.insert(cloud.xyz, cloud.rgb, cloud.confidence, cloud.count)

    def bound(self, most: int, room: int, pose_bytes: int) -> None:
        """Let go of points beyond ``most``, and of points and images beyond ``room`` bytes.

        0: no bound. ``pose_bytes`` of the room are taken by poses.
        """
        if most and len(self) > most:
            self._shed(lambda: len(self) - math.floor(KEEP * most))
        if room and self._growing is not None and self._growing.nbytes > room / 4:
            self.close()  # which takes a third of the memory
        if room and self.nbytes + pose_bytes > room:
            self._shed(lambda: math.ceil((self.nbytes + pose_bytes - KEEP * room) / HELD))
            self._shed_images(lambda: self.nbytes + pose_bytes > KEEP * room)

    def sweep(self, camera: Array, radius: float) -> None:
        """Let go of points beyond the radius (0: none) when the camera [3] has gone some way."""
        if not radius or np.linalg.norm(camera - self._swept_at) < MARGIN * radius:
            return
        self._swept_at = camera.copy()
        most = (1 - MARGIN) * radius
        for submap in self._with_points():
            T = submap.T_scene_submap
            away = float(np.linalg.norm(T.points(submap.middle) - camera))
            if away + submap.reach * T.scale > most:
                self._cut(submap, camera, most)
        newest = self.newest
        if self._growing is not None and newest is not None:
            T, xyz = newest.T_scene_submap, self._growing.cloud().xyz
            if (((T.points(xyz) - camera) ** 2).sum(axis=1) > most**2).any():
                self.close()
                self._cut(newest, camera, most)

    def _growing_of(self, submap: Submap) -> VoxelMap | None:
        return self._growing if submap is self.newest else None

    def _with_points(self) -> Iterator[Submap]:
        return (s for s in list(self._submaps.values()) if len(s.cloud))

    def _set_cloud(self, submap: Submap, cloud: PointCloud) -> None:
        self._held += len(cloud) - len(submap.cloud)
        submap.cloud = cloud
        if len(cloud):
            submap.middle = (cloud.xyz.min(axis=0) + cloud.xyz.max(axis=0)) / 2
            submap.reach = math.sqrt(((cloud.xyz - submap.middle) ** 2).sum(axis=1).max())

    def _cut(self, submap: Submap, camera: Array, radius: float) -> None:
        xyz = submap.T_scene_submap.points(submap.cloud.xyz)
        near = ((xyz - camera) ** 2).sum(axis=1) <= radius**2
        self._set_cloud(submap, submap.cloud.take(near))
        if not near.any():
            self.drop_images(submap)

    def _shed(self, excess: Callable[[], int]) -> None:
        """Drop the oldest points while ``excess`` says that some are too many."""
        if self._growing is not None and excess() > self._held:
            self.close()
        for submap in self._with_points():
            points = excess()
            if points <= 0:
                return
            # A copy: a view would hold the memory of all.
            rest = np.arange(min(points, len(submap.cloud)), len(submap.cloud))
            self._set_cloud(submap, submap.cloud.take(rest))
            if not len(rest):
                self.drop_images(submap)

    def _shed_images(self, too_much: Callable[[], bool]) -> None:
        """Drop the oldest images while it is too much."""
        for submap in self._submaps.values():
            if not too_much():
                return
            self.drop_images(submap)


def held(cloud: PointCloud) -> PointCloud:
    """The cloud in the types that points are held in."""
    return PointCloud(
        cloud.xyz.astype(np.float32),
        cloud.rgb,
        np.clip(cloud.confidence, 0, np.finfo(np.float16).max).astype(np.float16),
        np.minimum(cloud.count, np.iinfo(np.uint16).max).astype(np.uint16),
    )


def regridded(cloud: PointCloud, voxel: float) -> PointCloud:
    """The cloud averaged in voxels of another edge length, weighted as the map does."""
    out = VoxelMap(voxel)
    for start in range(0, len(cloud), CHUNK):
        some = cloud.take(slice(start, start + CHUNK))
        out.insert(some.xyz, some.rgb, some.confidence, some.count)
    return out.cloud()


def jpeg(image: Image) -> bytes:
    """RGB [H, W, 3] as JPEG."""
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return bytes(data.tobytes())


def _masked(known: Array, chosen: Array) -> Array:
    """The mask [h, w] of those of its true pixels that are chosen."""
    out = np.zeros_like(known)
    out[known] = chosen
    return out
