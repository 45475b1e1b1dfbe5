"""The accumulated scene in submaps: stretches of keyframes, each with its points in its own frame.

A submap has a place in the scene that a pose graph may change: its points and its poses go along.
What is held is bounded by number, memory and distance (``submap_points``).
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.config import MapConfig
from da3_ros.geometry.poses import T_MAP_WORLD
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import SceneFrame
from da3_ros.mapping.scene import (
    REFERENCE,
    Scene,
    SubmapCloud,
    join,
)
from da3_ros.mapping.submap_points import Submap, SubmapPoints
from da3_ros.mapping.trajectory import MAX_POSES, ROW, Poses, Trajectory
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

log = logging.getLogger(__name__)

KEYFRAMES = 16  # that make a submap: short enough that windows have hardly drifted within it
MOST_VOXELS = 500_000  # of a growing submap; with more, the next one begins early
_REVISIONS = itertools.count()


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
        self._points = SubmapPoints(self.submaps)
        self._next = self._segment = 0
        self.part = REFERENCE  # what comes belongs to
        self._begins: list[tuple[int, int]] = []  # first submap of each stretch of one part
        self.revision = next(_REVISIONS)  # another one after every change that can be seen
        self._forget_at = 64  # submaps

    def __len__(self) -> int:
        return len(self._points)

    @property
    def nbytes(self) -> int:
        """Memory held, bytes: points, poses and images."""
        return self._points.nbytes + self.trajectory.nbytes

    @property
    def newest(self) -> Submap | None:
        """The submap that grows; None at the beginning of a segment."""
        return self._points.newest

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
        self._points.close()
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
            if self.limits.keep_images:
                self._points.keep_image(submap, frame)
            self._points.insert(frame, T, self._radius())
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
        self._points.regrid(self._voxel)

    def restore(self, saved: Snapshot) -> None:
        """Take over a saved scene, in an empty store; what comes now is a segment of its own."""
        self.revision = next(_REVISIONS)
        for submap in saved.submaps:
            one = replace(submap, cloud=join([]), images={})
            self.submaps[one.id] = one
            self._note_part(one)
            self._points.restore(one, submap.cloud, submap.images)
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
            cloud, images = self._points.cloud_of(s), dict(s.images)
            submaps.append(replace(s, cloud=cloud, T_scene_submap=places[s.id], images=images))
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
        sizes = [self._points.size_of(s) for s in shown]
        stride = max(1, -(-sum(sizes) // most))
        for s, size in zip(shown, sizes, strict=True):
            cloud = self._points.some_of(s, slice(-before % stride, None, stride))
            clouds.append(SubmapCloud(cloud, places[s.id], s.part))
            before += size
        return Scene(tuple(clouds), Poses.of([]), T_map_world)

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
            self._points.close()
            begin = Similarity.from_pose(frame.T_scene_camera)
            submap = Submap(self._next, self._segment, begin)
            submap.part = self.part
            self._note_part(submap)
            self.submaps[submap.id] = submap
            self._points.begin(submap, self._voxel(submap))
            self._next += 1
        return submap

    def _note_part(self, submap: Submap) -> None:
        if not self._begins or self._begins[-1][1] != submap.part:
            self._begins.append((submap.id, submap.part))

    def _is_full(self, submap: Submap) -> bool:
        return submap.keyframes >= KEYFRAMES or self._points.size_of(submap) > MOST_VOXELS

    def _voxel(self, submap: Submap) -> float:
        return self.limits.voxel_m / self.metres / submap.T_scene_submap.scale

    def _radius(self) -> float:
        """``radius_m`` in scene units; 0: none."""
        return self.limits.radius_m / self.metres

    def _bound(self, camera: Array) -> None:
        """Let go of what is too much, or too far from the camera [3]."""
        room = self.limits.memory_mb * 2**20
        self._points.sweep(camera, self._radius())
        self._points.bound(self.limits.max_points, room, self.trajectory.nbytes)
        self._forget_empty()

    def _forget_empty(self) -> None:
        """Submaps without points and poses are nothing; poses thin out with time."""
        if len(self.submaps) < self._forget_at:
            return
        used = {int(i) for i in np.unique(self.trajectory.poses().rows["submap"])}
        for id, submap in list(self.submaps.items()):
            if id not in used and not len(submap.cloud) and submap is not self.newest:
                self._points.drop_images(submap)
                del self.submaps[id]
        self._forget_at = 2 * len(self.submaps) + 64


def moved_back(S: Similarity, T: Array) -> Array:
    """A rigid pose [4, 4] of the scene in the frame that lies at ``S`` in it."""
    out = np.eye(4)
    out[:3, :3] = S.R.T @ T[:3, :3]
    out[:3, 3] = S.R.T @ (T[:3, 3] - S.t) / S.scale
    return out


def _scaled(S: Similarity, factor: float) -> Similarity:
    return Similarity(factor * S.scale, S.R, factor * S.t)
