"""The accumulated scene in submaps: stretches of keyframes, each with its points in its own frame.

A submap has a place in the scene that a pose graph may change: its points and its poses go along.
Only the newest grows, in a hash of voxels; the others are plain compact arrays, so that a window
costs the same however large the map is. What is held is bounded by number, memory and distance.
"""

from __future__ import annotations

import itertools
import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import cv2
import numpy as np

from da3_ros.config import MapConfig
from da3_ros.geometry.poses import T_MAP_WORLD
from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import SceneFrame
from da3_ros.mapping.scene import (
    CHUNK,
    REFERENCE,
    Scene,
    Shot,
    SubmapCloud,
    join,
)
from da3_ros.mapping.trajectory import MAX_POSES, ROW, Poses, Trajectory
from da3_ros.mapping.voxel_map import PointCloud, VoxelMap
from da3_ros.types import Array, Image

log = logging.getLogger(__name__)

KEYFRAMES = 16  # that make a submap: short enough that windows have hardly drifted within it
MOST_VOXELS = 500_000  # of a growing submap; with more, the next one begins early
KEEP = 0.9  # share that stays when something must leave, so that it is rare
MARGIN = 0.05  # way over radius_m after which what has come to lie beyond it leaves
JPEG_QUALITY = 95
HELD = 19  # bytes of a point that is held
_REVISIONS = itertools.count()


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


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A whole scene as it was at one moment; shares memory.

    Its unit is the metre where metres are known: a scene that is loaded goes on in it.
    """

    submaps: tuple[Submap, ...]
    poses: Poses  # in the frames of their submaps
    segment: int  # the one that was being added to
    metric: bool
    T_map_world: Array
    unit: float = 1.0  # scene units per network unit of the newest window

    def scene(self) -> Scene:
        """What is shown and exported of it."""
        places = {s.id: s.T_scene_submap for s in self.submaps}
        clouds = tuple(
            SubmapCloud(s.cloud, places[s.id], s.part) for s in self.submaps if len(s.cloud)
        )
        images = {shot: data for s in self.submaps for shot, data in s.images.items()}
        part_of = {s.id: s.part for s in self.submaps}
        return Scene(clouds, self.poses.moved(places), self.T_map_world, images, part_of)


class SubmapStore:
    """All that is remembered of a scene, within ``limits``, which may be replaced at any time.

    Lengths are in scene units; ``metres`` says what one is in metres, where that is known. The
    oldest leave first when there is too much, and at once what lies beyond the radius.
    """

    def __init__(self, limits: MapConfig) -> None:
        self.limits = limits
        self.metres = 1.0
        self.trajectory = Trajectory()
        self.submaps: dict[int, Submap] = {}
        self._growing: VoxelMap | None = None  # of the newest submap
        self._next = self._segment = 0
        self.part = REFERENCE  # what comes belongs to
        self._begins: list[tuple[int, int]] = []  # first submap of each stretch of one part
        self._held = self._image_bytes = 0  # points and bytes outside the growing submap
        self.revision = next(_REVISIONS)  # another one after every change that can be seen
        self._swept_at = np.full(3, np.inf)
        self._forget_at = 64  # submaps

    def __len__(self) -> int:
        growing = self._growing  # once: a status report on another thread may ask
        return self._held + (0 if growing is None else len(growing))

    @property
    def nbytes(self) -> int:
        """Memory held, bytes: points, poses and images."""
        growing = self._growing
        voxels = 0 if growing is None else growing.nbytes
        return self._held * HELD + self._image_bytes + self.trajectory.nbytes + voxels

    @property
    def newest(self) -> Submap | None:
        """The submap that grows; None at the beginning of a segment."""
        return None if self._growing is None else self.submaps[self._next - 1]

    @property
    def place_known(self) -> bool:
        """Whether it is measured where what comes lies in the map."""
        return self.part == REFERENCE

    @property
    def parts(self) -> set[int]:
        """The parts of the scene, the one that is being added to among them."""
        return {s.part for s in list(self.submaps.values())} | {self.part}

    def begin_guessed(self) -> None:
        """What comes first lies at a guessed place: the map's frame is older than this store."""
        self.part = REFERENCE + 1

    def start_segment(self) -> None:
        """What comes now is not joined to what was before: a new submap, and a part of its own."""
        self._close()
        if any(s.segment == self._segment for s in self.submaps.values()):
            self._segment += 1
        if any(s.part == self.part for s in self.submaps.values()):
            # Never a number that was used: loops may know submaps that have left the map.
            self.part = 1 + max(self.part, *(part for _, part in self._begins))

    def join_parts(self, tied: Iterable[tuple[int, int]]) -> None:
        """Loops tie these pairs of submaps: their parts become one, the older of both."""
        for pair in tied:
            older, newer = sorted(map(self._part_of, pair))
            if older == newer:
                continue
            log.info("part %d of the scene has found its place in part %d", newer, older)
            self.revision = next(_REVISIONS)
            for submap in self.submaps.values():
                submap.part = older if submap.part == newer else submap.part
            self._begins = [(id, older if p == newer else p) for id, p in self._begins]
            self.part = older if self.part == newer else self.part

    def _part_of(self, submap: int) -> int:
        """Of a submap by its id, also of one that has left the map."""
        at = bisect_right(self._begins, submap, key=lambda begin: begin[0])
        return self._begins[at - 1][1] if at else REFERENCE

    def add(self, frame: SceneFrame) -> int:
        """Take a frame's pose, and a keyframe's points and image; returns the submap."""
        submap = self._submap_for(frame)
        T = moved_back(submap.T_scene_submap, frame.T_scene_camera)
        room = self.limits.memory_mb * 2**20 // (4 * ROW.itemsize)
        self.trajectory.max_poses = min(MAX_POSES, room) if room else MAX_POSES
        self.trajectory.add(frame, T, submap.id)
        submap.keyframes += frame.keyframe
        if frame.keyframe and self.limits.enabled:
            self._keep_image(submap, frame)
            self._insert(submap, frame, T)
            self.revision = next(_REVISIONS)
            self._bound(frame.T_scene_camera[:3, 3])
        return submap.id

    def move(self, places: Mapping[int, Similarity]) -> None:
        """Submaps lie elsewhere now; their points and poses go with them."""
        self.revision = next(_REVISIONS)
        for id, T_scene_submap in places.items():
            self.submaps[id].T_scene_submap = T_scene_submap

    def regrid(self) -> None:
        """Voxels of the edge that ``limits`` and ``metres`` give now; brings no new detail."""
        self.revision = next(_REVISIONS)
        for submap in self._with_points():
            self._set_cloud(submap, held(regridded(submap.cloud, self._voxel(submap))))
        if self._growing is not None:
            cloud, self._growing = self._growing.cloud(), VoxelMap(self._voxel(self.newest))
            self._growing.insert(cloud.xyz, cloud.rgb, cloud.confidence, cloud.count)

    def restore(self, saved: Snapshot) -> None:
        """Take over a saved scene, in an empty store; what comes now is a segment of its own."""
        self.revision = next(_REVISIONS)
        for submap in saved.submaps:
            one = replace(submap, cloud=join([]), images=dict(submap.images))
            self.submaps[one.id] = one
            self._note_part(one)
            self._set_cloud(one, submap.cloud)
            self._image_bytes += one.image_bytes
            self._next = max(self._next, one.id + 1)
        self.trajectory.extend(saved.poses)
        self._segment = saved.segment + 1
        self.part = 1 + max((s.part for s in saved.submaps), default=REFERENCE - 1)
        if len(self.trajectory):
            self._bound(self.poses().rows["T"][-1, :, 3])

    def snapshot(
        self, T_map_world: Array = T_MAP_WORLD, metric: bool = False, unit: float = 1.0
    ) -> Snapshot:
        """Everything as it is now; cheap, and what the map does later does not change it."""
        places, submaps = self._places(), []
        for s in self.submaps.values():
            grows = self._growing is not None and s is self.newest
            cloud = held(self._growing.cloud()) if grows else s.cloud  # type: ignore[union-attr]
            submaps.append(
                replace(s, cloud=cloud, T_scene_submap=places[s.id], images=dict(s.images))
            )
        scale = unit * self.metres
        poses, segment = self.trajectory.poses(), self._segment
        return Snapshot(tuple(submaps), poses, segment, metric, T_map_world, scale)

    def scene(self, T_map_world: Array = T_MAP_WORLD) -> Scene:
        """What is shown and exported, in metres where they are known."""
        return self.snapshot(T_map_world).scene()

    @property
    def shown_part(self) -> int:
        """The part to display: the one that is added to, or the last one while it is empty.

        Another part's points would lie in the same frame at a place that is a guess.
        """
        newest = max(self.submaps, default=-1)
        return self.submaps[newest].part if newest >= 0 else self.part

    def thinned(self, most: int, T_map_world: Array = T_MAP_WORLD) -> Scene:
        """An even choice of at most ``most`` points of the part that is shown, for display; costs
        by what is chosen."""
        places, clouds, before = self._places(), [], 0
        shown = [s for s in self.submaps.values() if s.part == self.shown_part]
        sizes = [len(self._growing_of(s) or s.cloud) for s in shown]
        stride = max(1, -(-sum(sizes) // most))
        for s, size in zip(shown, sizes, strict=True):
            growing, chosen = self._growing_of(s), slice(-before % stride, None, stride)
            cloud = s.cloud.take(chosen) if growing is None else growing.cloud(chosen)
            clouds.append(SubmapCloud(cloud, places[s.id], s.part))
            before += size
        return Scene(tuple(clouds), Poses.of([]), T_map_world)

    def _growing_of(self, submap: Submap) -> VoxelMap | None:
        return self._growing if submap is self.newest else None

    def poses(self) -> Poses:
        """Of all cameras in the world, in metres where they are known."""
        return self.trajectory.poses().moved(self._places())

    def path(self, most: int = 0, *, shown: bool = False) -> Poses:
        """Where the leading camera has been, or an even choice of at most ``most`` poses.

        shown: in the part that is shown alone.
        """
        poses = self.trajectory.poses().leading()
        if shown and len(self.parts) > 1:
            ids = [s.id for s in self.submaps.values() if s.part == self.shown_part]
            poses = poses.take(np.isin(poses.rows["submap"], ids))
        stride = max(1, -(-len(poses) // most)) if most else 1
        return poses.take(slice(None, None, stride)).moved(self._places())

    def cloud(self) -> PointCloud:
        """All points in the scene's coordinates and unit."""
        scene = self.snapshot(np.eye(4)).scene()
        clouds = [replace(c, T_world_submap=_scaled(c.T_world_submap, 1 / self.metres))
                  for c in scene.clouds]  # fmt: skip
        return replace(scene, clouds=tuple(clouds)).cloud()

    def _places(self) -> dict[int, Similarity]:
        return {id: _scaled(s.T_scene_submap, self.metres) for id, s in self.submaps.items()}

    def _submap_for(self, frame: SceneFrame) -> Submap:
        submap = self.newest
        if submap is None or (frame.keyframe and self._is_full(submap)):
            self._close()
            begin = Similarity.from_pose(frame.T_scene_camera)
            submap = Submap(self._next, self._segment, begin)
            submap.part = self.part
            self._note_part(submap)
            self.submaps[submap.id] = submap
            self._growing = VoxelMap(self._voxel(submap))
            self._next += 1
        return submap

    def _note_part(self, submap: Submap) -> None:
        if not self._begins or self._begins[-1][1] != submap.part:
            self._begins.append((submap.id, submap.part))

    def _is_full(self, submap: Submap) -> bool:
        voxels = 0 if self._growing is None else len(self._growing)
        return submap.keyframes >= KEYFRAMES or voxels > MOST_VOXELS

    def _voxel(self, submap: Submap | None) -> float:
        scale = 1.0 if submap is None else submap.T_scene_submap.scale
        return self.limits.voxel_m / self.metres / scale

    def _close(self) -> None:
        """The newest submap grows no more."""
        if self._growing is not None:
            submap, cloud = self.submaps[self._next - 1], self._growing.cloud()
            self._growing = None
            self._set_cloud(submap, held(cloud))

    def _set_cloud(self, submap: Submap, cloud: PointCloud) -> None:
        self._held += len(cloud) - len(submap.cloud)
        submap.cloud = cloud
        if len(cloud):
            submap.middle = (cloud.xyz.min(axis=0) + cloud.xyz.max(axis=0)) / 2
            submap.reach = math.sqrt(((cloud.xyz - submap.middle) ** 2).sum(axis=1).max())

    def _with_points(self) -> Iterator[Submap]:
        return (s for s in list(self.submaps.values()) if len(s.cloud))

    def _keep_image(self, submap: Submap, frame: SceneFrame) -> None:
        if self.limits.keep_images:
            data = jpeg(frame.image)
            submap.images[frame.camera, frame.stamp_ns] = data
            self._image_bytes += len(data)

    def _insert(self, submap: Submap, frame: SceneFrame, T_submap_camera: Array) -> None:
        known = np.isfinite(frame.depth)
        points = backproject(frame.depth, frame.K)[known]
        radius = self._radius()
        if radius:
            near = (points**2).sum(axis=1) < ((1 - MARGIN) * radius) ** 2
            points, known = points[near], _masked(known, near)
        # The camera is near the submap's origin, so that float32 is exact anywhere in the scene.
        scale = np.float32(1 / submap.T_scene_submap.scale)
        R, t = T_submap_camera[:3, :3].astype(np.float32), T_submap_camera[:3, 3]
        xyz = scale * points @ R.T + t.astype(np.float32)
        assert self._growing is not None
        self._growing.insert(xyz, frame.image[known], frame.confidence[known])

    def _bound(self, camera: Array) -> None:
        """Let go of what is too much, or too far from the camera [3]."""
        self._sweep(camera)
        most, room = self.limits.max_points, self.limits.memory_mb * 2**20
        if most and len(self) > most:
            self._shed(lambda: len(self) - math.floor(KEEP * most))
        if room and self._growing is not None and self._growing.nbytes > room / 4:
            self._close()  # which takes a third of the memory
        if room and self.nbytes > room:
            self._shed(lambda: math.ceil((self.nbytes - KEEP * room) / HELD))
            self._shed_images(KEEP * room)
        self._forget_empty()

    def _radius(self) -> float:
        """``radius_m`` in scene units; 0: none."""
        return self.limits.radius_m / self.metres

    def _sweep(self, camera: Array) -> None:
        """Drop the points beyond the radius, when the camera has gone some way."""
        radius = self._radius()
        if not radius or np.linalg.norm(camera - self._swept_at) < MARGIN * radius:
            return
        self._swept_at = camera.copy()
        most = (1 - MARGIN) * radius
        for submap in self._with_points():
            T = submap.T_scene_submap
            away = float(np.linalg.norm(T.points(submap.middle) - camera))
            if away + submap.reach * T.scale > most:
                self._cut(submap, camera, most)
        if self._growing is not None and self.newest is not None:
            T, xyz = self.newest.T_scene_submap, self._growing.cloud().xyz
            if (((T.points(xyz) - camera) ** 2).sum(axis=1) > most**2).any():
                newest = self.newest
                self._close()
                self._cut(newest, camera, most)

    def _cut(self, submap: Submap, camera: Array, radius: float) -> None:
        xyz = submap.T_scene_submap.points(submap.cloud.xyz)
        near = ((xyz - camera) ** 2).sum(axis=1) <= radius**2
        self._set_cloud(submap, submap.cloud.take(near))
        if not near.any():
            self._drop_images(submap)

    def _shed(self, excess: Callable[[], int]) -> None:
        """Drop the oldest points while ``excess`` says that some are too many."""
        if self._growing is not None and excess() > self._held:
            self._close()
        for submap in self._with_points():
            points = excess()
            if points <= 0:
                return
            # A copy: a view would hold the memory of all.
            rest = np.arange(min(points, len(submap.cloud)), len(submap.cloud))
            self._set_cloud(submap, submap.cloud.take(rest))
            if not len(rest):
                self._drop_images(submap)

    def _shed_images(self, room: float) -> None:
        for submap in self.submaps.values():
            if self.nbytes <= room:
                return
            self._drop_images(submap)

    def _drop_images(self, submap: Submap) -> None:
        self._image_bytes -= submap.image_bytes
        submap.images.clear()

    def _forget_empty(self) -> None:
        """Submaps without points and poses are nothing; poses thin out with time."""
        if len(self.submaps) < self._forget_at:
            return
        used = {int(i) for i in np.unique(self.trajectory.poses().rows["submap"])}
        for id, submap in list(self.submaps.items()):
            if id not in used and not len(submap.cloud) and submap is not self.newest:
                self._drop_images(submap)
                del self.submaps[id]
        self._forget_at = 2 * len(self.submaps) + 64


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


def moved_back(S: Similarity, T: Array) -> Array:
    """A rigid pose [4, 4] of the scene in the frame that lies at ``S`` in it."""
    out = np.eye(4)
    out[:3, :3] = S.R.T @ T[:3, :3]
    out[:3, 3] = S.R.T @ (T[:3, 3] - S.t) / S.scale
    return out


def _scaled(S: Similarity, factor: float) -> Similarity:
    return Similarity(factor * S.scale, S.R, factor * S.t)


def _masked(known: Array, chosen: Array) -> Array:
    """The mask [h, w] of those of its true pixels that are chosen."""
    out = np.zeros_like(known)
    out[known] = chosen
    return out
