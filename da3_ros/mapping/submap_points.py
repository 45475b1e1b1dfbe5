"""Points and images of the submaps, with limits on number, memory and distance.

Only the newest submap grows, in a voxel hash, and those before it whose keyframes wait for their
measured depth; the others are compact arrays, so that the cost of a window does not depend on the
size of the map. What is above the limits goes to the disk if the
scene is stored, and is dropped else.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill, SpillBusyError
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.free_space import DepthView, depth_view
from da3_ros.mapping.growing_points import GrowingPoints, seen_points
from da3_ros.mapping.scene import CHUNK, Jpeg, Shot, SubmapCloud
from da3_ros.mapping.submap_spill import Submap, SubmapSpill
from da3_ros.mapping.voxel_map import PointCloud, VoxelMap, VoxelSums
from da3_ros.types import Array, FloatImage, Image

log = logging.getLogger(__name__)

KEPT_SHARE = 0.9  # share of a limit that is kept when it is exceeded, so that this is rare
MARGIN = 0.05  # camera motion over the radius after which distant points are dropped
JPEG_QUALITY = 95
POINT_BYTES = 19  # memory of a point in a closed submap


@dataclass(frozen=True, eq=False)
class KeyframePoints:
    """What the points of a keyframe are made of."""

    id: int
    depth: FloatImage  # [h, w] z-depth; points where it is finite
    confidence: FloatImage  # [h, w]
    image: Image  # [h, w, 3] RGB
    K: Array  # [3, 3] corner rule
    T_submap_camera: Array  # [4, 4]
    unit: float  # of ``depth``, per unit of the submap

    def within(self, radius: float) -> PointCloud:
        """Returns the points nearer than ``radius`` (unit of ``depth``; 0: all), in the submap."""
        known = np.isfinite(self.depth)
        points = backproject(self.depth, self.K)[known]
        if radius:
            near = (points**2).sum(axis=1) < ((1 - MARGIN) * radius) ** 2
            points, known = points[near], _masked(known, near)
        # The camera is near the submap's origin, so that float32 is exact anywhere in the map.
        scale = np.float32(1 / self.unit)
        R, t = self.T_submap_camera[:3, :3].astype(np.float32), self.T_submap_camera[:3, 3]
        xyz = scale * points @ R.T + t.astype(np.float32)
        return seen_points(xyz, self.image[known], self.confidence[known])

    def measured(self, bins: Bins) -> MeasuredPoints:
        """Returns what the keyframe's submap needs of it; ``unit`` is that of the submap."""
        sums = VoxelSums.of(self.within(bins.radius), bins.voxel)
        return MeasuredPoints(sums, depth_view(self.depth, self.confidence, self.K))


@dataclass(frozen=True)
class Bins:
    """How points are added to a submap; lengths in its unit."""

    voxel: float  # edge length
    radius: float  # within which points are added; 0: any


@dataclass(frozen=True, eq=False)
class MeasuredPoints:
    """The points of a keyframe whose depth was measured, in its submap."""

    sums: VoxelSums
    view: DepthView  # to judge others' points


# Id of a keyframe that waits, its points (None: as they are), and whether it waits no more.
Replacement = tuple[int, MeasuredPoints | None, bool]


class SubmapPoints:
    """Points and images of one scene's submaps; removes the oldest ones first.

    Lengths are in map units. Another thread may read ``len`` and ``nbytes``.
    """

    def __init__(self, submaps: Mapping[int, Submap]) -> None:
        """``submaps``: of the scene, in the order of their ids; its owner adds and removes."""
        self._submaps = submaps
        self.newest: Submap | None = None  # the one that grows
        # Points of submaps that are not compact yet: of the newest one, and of closed ones with
        # keyframes that wait.
        self._growing: dict[int, GrowingPoints] = {}
        self._in_memory: dict[int, None] = {}  # ids of closed ones with points there
        self._point_total = self._image_bytes = 0  # points of these, bytes of all images
        self._disk = SubmapSpill()
        self._spilled: dict[int, int] = {}  # number of points on the disk, by submap
        self._spilled_total = 0
        self._dropped_at = np.full(3, np.inf)
        self._ended = 0  # keyframes whose points were not replaced for want of room

    def spill_to(self, spill: ArraySpill | None) -> None:
        """Sets where points go that memory cannot hold; None: they are dropped."""
        self._disk.spill = spill

    def __len__(self) -> int:
        return self._memory_points + self._spilled_total

    @property
    def _memory_points(self) -> int:
        return self._point_total + sum(map(len, list(self._growing.values())))

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        voxels = sum(growing.nbytes for growing in list(self._growing.values()))
        return self._point_total * POINT_BYTES + self._image_bytes + voxels

    def point_count(self, submap: Submap) -> int:
        """Returns the number of points of a submap."""
        return len(self._growing.get(submap.id, submap.cloud))

    def cloud_of(self, submap: Submap) -> PointCloud:
        """Returns all points of a submap, in its frame."""
        growing = self._growing.get(submap.id)
        return submap.cloud if growing is None else compact(growing.shown.cloud())

    def cloud_slice(self, submap: Submap, chosen: slice) -> PointCloud:
        """Returns the chosen points of a submap, in its frame."""
        growing = self._growing.get(submap.id)
        return submap.cloud.take(chosen) if growing is None else growing.shown.cloud(chosen)

    def state(self, submap: Submap) -> tuple[object, int]:
        """Returns what holds a submap's points, and its revision: equal while they do not
        change."""
        growing = self._growing.get(submap.id)
        return (submap.cloud, 0) if growing is None else (growing.shown, growing.shown.revision)

    def thinned(
        self, submaps: Iterable[Submap], poses: Mapping[int, Similarity], most: int
    ) -> tuple[SubmapCloud, ...]:
        """Returns an even choice of at most ``most`` points of submaps that are in memory, at
        their ``poses``."""
        shown = [s for s in submaps if self.is_in_memory(s)]
        sizes = [self.point_count(s) for s in shown]
        stride, clouds, before = max(1, -(-sum(sizes) // most)), [], 0
        for s, size in zip(shown, sizes, strict=True):
            cloud = self.cloud_slice(s, slice(-before % stride, None, stride))
            clouds.append(SubmapCloud(cloud, poses[s.id], s.component))
            before += size
        return tuple(clouds)

    @property
    def closed_in_memory(self) -> list[int]:
        """Ids of the submaps with points in memory that do not grow."""
        return list(self._in_memory)

    def is_in_memory(self, submap: Submap) -> bool:
        """Whether a submap's points are in memory."""
        return submap.id not in self._spilled

    def positions(self, submap: Submap) -> NDArray[np.float32]:
        """Returns the positions [M, 3] of all points of a submap, in its frame."""
        growing = self._growing.get(submap.id)
        return submap.cloud.xyz if growing is None else growing.shown.positions()

    def remove(self, submap: Submap, chosen: Array) -> None:
        """Removes points of a submap by their indices [K] in ``positions``."""
        growing = self._growing.get(submap.id)
        if growing is not None:
            growing.remove(chosen)
            return
        kept = np.ones(len(submap.cloud), bool)
        kept[chosen] = False
        self._set_cloud(submap, submap.cloud.take(kept))

    def begin(self, submap: Submap, voxel: float) -> None:
        """Makes ``submap`` the growing one, in voxels of this edge length in its own unit."""
        self.newest, self._growing[submap.id] = submap, GrowingPoints(voxel)

    def is_growing(self, submap: Submap) -> bool:
        """Whether a submap's points are not compact yet."""
        return submap.id in self._growing

    def close(self) -> None:
        """Closes the newest submap: its points become a compact array, once none of its keyframes
        waits."""
        if self.newest is not None:
            submap, self.newest = self.newest, None
            if not self._growing[submap.id].waiting:
                self._make_compact(submap)

    def _make_compact(self, submap: Submap) -> None:
        """Ends a submap's growth; its keyframes wait no more."""
        if submap is self.newest:
            self.newest = None
        cloud = compact(self._growing[submap.id].shown.cloud())  # first: it takes time
        del self._growing[submap.id]
        self._set_cloud(submap, cloud)

    def end_growth(self) -> None:
        """Makes all submaps compact; keyframes that wait keep the points that they have."""
        waiting = sum(len(growing.waiting) for growing in self._growing.values())
        if waiting and not self._ended:
            log.warning(
                "map.memory_mb or map.max_points leave no room for keyframes that wait for their "
                "measured depth: their points stay as the network gave them"
            )
        self._ended += waiting
        for id in list(self._growing):
            self._make_compact(self._submaps[id])

    def insert(self, keyframe: KeyframePoints, radius: float, *, waiting: bool = False) -> None:
        """Adds a keyframe's points within ``radius`` (map units; 0: any) to the newest submap.

        waiting: whether ``replace`` follows.
        """
        assert self.newest is not None
        points = keyframe.within(radius * keyframe.unit / self.newest.T_map_submap.scale)
        self._growing[self.newest.id].insert(points, keyframe.id if waiting else None)

    def bins(self, submap: Submap, radius: float) -> Bins | None:
        """Returns how the points of a keyframe that waits are added up; None: none waits.

        radius: as for ``insert``.
        """
        growing = self._growing.get(submap.id)
        if growing is None:
            return None
        return Bins(growing.shown.voxel, radius / submap.T_map_submap.scale)

    def replace(self, submap: Submap, keyframes: Iterable[Replacement]) -> None:
        """Replaces the points of keyframes of one submap that wait; others are left out."""
        growing = self._growing.get(submap.id)
        if growing is None:
            return
        growing.replace(
            (id, None if one is None else one.sums, stays)
            for id, one, stays in keyframes if id in growing.waiting
        )  # fmt: skip
        if submap is not self.newest and not growing.waiting:
            self._make_compact(submap)

    def keep_image(self, submap: Submap, frame: LocalFrame) -> None:
        """Stores a keyframe's image as JPEG."""
        data = jpeg(frame.image)
        submap.images[frame.camera, frame.stamp_ns] = data
        self._image_bytes += len(data)

    def drop_images(self, submap: Submap) -> None:
        """Drops a submap's images."""
        self._image_bytes -= submap.image_bytes
        submap.images, submap.moved = {}, []

    def restore(self, submap: Submap, cloud: PointCloud, images: Mapping[Shot, Jpeg]) -> None:
        """Sets the points and images of a saved submap."""
        self._set_cloud(submap, cloud)
        submap.images.update(images)
        self._image_bytes += submap.image_bytes

    def regrid(self, voxel: Callable[[Submap], float]) -> None:
        """Averages all points in new voxels.

        voxel: returns the edge length for a submap, in the submap's unit.
        """
        for submap in self._with_points():
            on_disk = not self.is_in_memory(submap)
            self._set_cloud(submap, compact(regridded(submap.cloud, voxel(submap))))
            if on_disk:
                self._move_back(submap)
        for id, growing in self._growing.items():
            growing.regrid(voxel(self._submaps[id]))

    def enforce_limits(self, most: int, room: int, other_bytes: int) -> None:
        """Removes points above the number ``most``, and points and images above ``room`` bytes,
        from memory.

        0: no limit. other_bytes: memory of poses and of what removes dynamic points, a part of
        ``room``. While the disk is busy, memory holds more.
        """
        self._finish_moves()
        with contextlib.suppress(SpillBusyError):
            self._enforce_limits(most, room, other_bytes)

    def _enforce_limits(self, most: int, room: int, other_bytes: int) -> None:
        """As ``enforce_limits``. Raises SpillBusyError."""
        # Where points go to the disk, a few at a time do: no frame waits for many.
        share = 1.0 if self._disk.is_ready else KEPT_SHARE
        if most and self._memory_points > most:
            self._drop_points(lambda: self._memory_points - math.floor(share * most))
        if room and sum(g.nbytes for g in self._growing.values()) > room / 4:
            self.end_growth()  # takes a third of the memory
        if room and self.nbytes + other_bytes > room:
            self._drop_points(
                lambda: math.ceil((self.nbytes + other_bytes - share * room) / POINT_BYTES)
            )
            self._drop_images(lambda: self.nbytes + other_bytes > share * room)

    def drop_distant(self, camera: Array, radius: float) -> None:
        """Drops points beyond the radius (0: no limit) of the camera [3], after enough motion."""
        if not radius or np.linalg.norm(camera - self._dropped_at) < MARGIN * radius:
            return
        self._dropped_at = camera.copy()
        most = (1 - MARGIN) * radius
        for submap in self._with_points():
            T = submap.T_map_submap
            away = float(np.linalg.norm(T.points(submap.middle) - camera))
            if away + submap.reach * T.scale > most:
                self._keep_near(submap, camera, most)
        for id, growing in list(self._growing.items()):
            submap, xyz = self._submaps[id], growing.shown.cloud().xyz
            T = submap.T_map_submap
            far = np.flatnonzero(((T.points(xyz) - camera) ** 2).sum(axis=1) > most**2)
            if len(far) == len(xyz) or (len(far) and not growing.waiting):
                self._make_compact(submap)
                self._keep_near(submap, camera, most)
            elif len(far):
                growing.remove(far)

    def _with_points(self) -> Iterator[Submap]:
        return (s for s in list(self._submaps.values()) if len(s.cloud))

    def _set_cloud(self, submap: Submap, cloud: PointCloud) -> None:
        """Replaces a submap's points by others in memory."""
        self._note_points(submap, len(cloud), on_disk=False)
        submap.cloud = cloud
        if len(cloud):
            submap.middle = (cloud.xyz.min(axis=0) + cloud.xyz.max(axis=0)) / 2
            submap.reach = math.sqrt(((cloud.xyz - submap.middle) ** 2).sum(axis=1).max())

    def _note_points(self, submap: Submap, count: int, *, on_disk: bool) -> None:
        """Counts the points that a submap has from now on."""
        if submap.id in self._in_memory:
            del self._in_memory[submap.id]
            self._point_total -= len(submap.cloud)
        self._spilled_total -= self._spilled.pop(submap.id, 0)
        if on_disk and count:
            self._spilled[submap.id] = count
            self._spilled_total += count
        elif count:
            self._in_memory[submap.id] = None
            self._point_total += count

    def _move_back(self, submap: Submap) -> None:
        """Moves changed points to the disk where they were, or later, if that is possible."""
        with contextlib.suppress(SpillBusyError):
            self._move_to_disk(submap)

    def _move_to_disk(self, submap: Submap) -> bool:
        """Moves a submap's points and images to the disk, if that is possible. Raises
        SpillBusyError."""
        before = submap.image_bytes
        if not self._disk.move(submap):
            return False
        self._image_bytes -= before
        self._note_points(submap, len(submap.cloud), on_disk=True)
        self._finish_moves()
        return True

    def _finish_moves(self) -> None:
        for submap, image_bytes in self._disk.finish():
            self._image_bytes += image_bytes
            if not self.is_in_memory(submap):
                self._note_points(submap, len(submap.cloud), on_disk=False)

    def _keep_near(self, submap: Submap, camera: Array, radius: float) -> None:
        xyz = submap.T_map_submap.points(submap.cloud.xyz)
        near = ((xyz - camera) ** 2).sum(axis=1) <= radius**2
        on_disk = not self.is_in_memory(submap)
        if not near.all():
            self._set_cloud(submap, submap.cloud.take(near))
        if not near.any():
            self.drop_images(submap)
        elif on_disk and not near.all():
            self._move_back(submap)

    def _drop_points(self, excess: Callable[[], int]) -> None:
        """Removes the oldest points from memory until ``excess``, their number, is not
        positive. Raises SpillBusyError."""
        if self._growing and excess() > self._point_total:
            self.end_growth()
        for submap in (self._submaps[id] for id in sorted(self._in_memory)):
            points = excess()
            if points <= 0:
                return
            if self._move_to_disk(submap):
                continue
            # A copy: a view would hold the memory of all.
            rest = np.arange(min(points, len(submap.cloud)), len(submap.cloud))
            self._set_cloud(submap, submap.cloud.take(rest))
            if not len(rest):
                self.drop_images(submap)

    def _drop_images(self, too_much: Callable[[], bool]) -> None:
        """Drops the oldest images until ``too_much`` is False. Raises SpillBusyError."""
        for submap in self._submaps.values():
            if not too_much():
                return
            if submap.image_bytes and not self._move_to_disk(submap):
                self.drop_images(submap)


def compact(cloud: PointCloud) -> PointCloud:
    """Returns the cloud in the types of closed submaps, with 19 bytes per point."""
    return PointCloud(
        cloud.xyz.astype(np.float32),
        cloud.rgb,
        np.clip(cloud.confidence, 0, np.finfo(np.float16).max).astype(np.float16),
        np.minimum(cloud.count, np.iinfo(np.uint16).max).astype(np.uint16),
    )


def regridded(cloud: PointCloud, voxel: float) -> PointCloud:
    """Returns the cloud averaged in voxels of another edge length, weighted as in the map."""
    out = VoxelMap(voxel)
    for start in range(0, len(cloud), CHUNK):
        some = cloud.take(slice(start, start + CHUNK))
        out.insert(some.xyz, some.rgb, some.confidence, some.count)
    return out.cloud()


def jpeg(image: Image) -> bytes:
    """Encodes RGB [H, W, 3] as JPEG."""
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return bytes(data.tobytes())


def _masked(known: Array, chosen: Array) -> Array:
    """Returns the mask [h, w] with only the ``chosen`` ones of its true pixels."""
    out = np.zeros_like(known)
    out[known] = chosen
    return out
