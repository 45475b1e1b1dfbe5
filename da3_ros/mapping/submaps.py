"""The accumulated scene in submaps: runs of keyframes with their points in the submap's frame.

A submap has a pose in the map, which a pose graph may change: its points and poses move with
it. Number, memory and distance of points are limited (``submap_points``).
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from da3_ros.config import MapConfig
from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.mapping.dynamic_points import DynamicPoints
from da3_ros.mapping.floor_view import FloorViews
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.map_table import MapTable, SubmapsById
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.scene import (
    REFERENCE,
    Scene,
    SubmapCloud,
    join,
)
from da3_ros.mapping.submap_points import (
    Bins,
    KeyframePoints,
    MeasuredPoints,
    Replacement,
    SubmapPoints,
)
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.trajectory import MAX_POSES, ROW, Poses, Trajectory
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

log = logging.getLogger(__name__)


KEYFRAMES = 16  # keyframes of a submap; few, so that drift within it is small
MAX_VOXELS = 500_000  # voxels of a growing submap; with more, the next one begins early
_REVISIONS = itertools.count()


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A whole scene at one moment; shares memory with the store.

    Its unit is the metre if the scale is known.
    """

    submaps: tuple[Submap, ...]
    poses: Poses  # in the frames of their submaps
    chain: int  # the current one
    metric: bool
    T_ros_map: Array
    # Lengths of the snapshot (metres if ``metric``) per network unit of the newest window.
    unit: float = 1.0
    recognition: Recognition | None = None  # None: its locations are not recognised
    floor: FloorViews = field(default_factory=FloorViews)
    is_level: bool = False  # whether z of ``T_ros_map`` is known to be up
    anchors: tuple[HeldAnchor, ...] = ()  # global poses by which the map lies where it does

    def scene(self) -> Scene:
        """Returns the scene to show and export."""
        submap_poses = {s.id: s.T_map_submap for s in self.submaps}
        clouds = tuple(
            SubmapCloud(s.cloud, submap_poses[s.id], s.component)
            for s in self.submaps
            if len(s.cloud)
        )
        images = {shot: data for s in self.submaps for shot, data in s.images.items()}
        component_of = {s.id: s.component for s in self.submaps}
        chain_of = {s.id: s.chain for s in self.submaps}
        poses = self.poses.moved(submap_poses)
        unit_of = {id: T.scale for id, T in submap_poses.items()}
        return Scene(
            clouds, poses, self.T_ros_map, images, component_of, chain_of, self.floor, unit_of
        )


class SubmapStore:
    """Submaps and trajectory of a scene, within ``limits``.

    Lengths are in map units; the table knows metres per unit. The oldest
    points leave memory first; points are dropped before they are farther than ``radius_m`` from
    the camera. While the table is read-only, submaps of new frames have no points, and are in
    ``live``.
    """

    def __init__(
        self, limits: MapConfig, spill: ArraySpill | None = None, table: MapTable | None = None
    ) -> None:
        """spill: where points go that memory cannot hold; None: they are dropped. table: an empty
        one."""
        self.table = table or MapTable()
        self.restart(limits, spill)

    def restart(self, limits: MapConfig, spill: ArraySpill | None = None) -> None:
        """Begins with an empty scene, in a table that has been cleared."""
        self.limits = limits
        self.submaps = SubmapsById(self.table)
        self.live = LiveSubmaps(self.table)
        self.points = SubmapPoints(self.submaps)
        self.points.spill_to(spill)
        self._dynamic = DynamicPoints(self.submaps, self.points, self.table)
        self._next = 0
        self.components_of_scene = SceneComponents()
        self._is_searched = False  # whether new frames are looked for in the first component
        self.revision = next(_REVISIONS)  # changes with every visible change
        self._ended = -1  # id of a submap that the next keyframe ends
        self._forget_at = 64  # number of submaps at which empty ones are removed

    def set_limits(self, limits: MapConfig) -> None:
        """Sets the limits for frames from now on."""
        self.limits = limits

    def __len__(self) -> int:
        return len(self.points)

    @property
    def nbytes(self) -> int:
        """Memory held, bytes: points, poses and images."""
        live = self.table.live_path.nbytes if self.table.read_only else 0
        return self.points.nbytes + self.table.path.nbytes + live + self._dynamic.nbytes

    @property
    def newest(self) -> Submap | None:
        """The submap of new frames; None at the beginning of a chain."""
        return self.live.newest if self.table.read_only else self.points.newest

    @property
    def next_id(self) -> int:
        """Id of the next new submap."""
        return self._next

    @property
    def newest_stamp_ns(self) -> int:
        """Stamp of the newest pose; 0 if there is none."""
        newest = self.table.live_path if len(self.table.live_path) else self.table.path
        return newest.newest_stamp_ns if len(newest) else 0

    def all_submaps(self) -> dict[int, Submap]:
        """Returns the submaps of the map, and those of a localized camera. Any thread may call
        this."""
        rows, ids = self.table.submaps, (*self.submaps, *self.live.submaps)
        return {id: submap for id in ids if (submap := rows.get(id)) is not None}

    def localize(self, on: bool) -> None:
        """Makes the map read-only, or lets it grow again."""
        if on == self.table.read_only:
            return
        self.begin_submap()
        self.points.end_growth()  # nothing changes a read-only map
        self._dynamic = DynamicPoints(self.submaps, self.points, self.table)
        self.table.set_read_only(self._next if on else None)
        self.live = LiveSubmaps(self.table)
        if not on and not self.submaps:  # the map begins now
            self.components_of_scene = SceneComponents()
        self.revision = next(_REVISIONS)

    def forget_pose(self) -> None:
        """Forgets where a localized camera is, and its path: both were wrong."""
        if self.table.read_only:
            self.begin_component()
            self.table.set_read_only(self.table.first_live)
            self.live = LiveSubmaps(self.table)

    def begin_submap(self) -> None:
        """Begins a new submap with the next frame."""
        self.points.close()
        self.live.close()

    def end_submap(self, id: int) -> None:
        """Begins a new submap with the next keyframe, if the newest one is still this one."""
        self._ended = id

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that have poses, the leading one first."""
        return self.table.path.cameras

    @property
    def pose_known(self) -> bool:
        """Whether the pose of new frames in the map is known; never if there is none to be
        localized in."""
        has_map = not self.table.read_only or len(self.submaps) > 0
        return has_map and self.components_of_scene.pose_known

    @property
    def components(self) -> set[int]:
        """The components of the scene, including the current one."""
        found = {s.component for s in self.all_submaps().values()}
        return found | {self.components_of_scene.current}

    def start_chain(self) -> None:
        """Begins a chain that is not aligned to the last one: a new submap and a new component."""
        self.table.begin_chain()
        self.begin_component()

    def begin_component(self) -> None:
        """Begins a new submap in a new component: the pose of new frames in the map is unknown."""
        self.begin_submap()
        self.components_of_scene.begin(self.all_submaps().values())

    def merge_components(self, tied: Iterable[tuple[int, int]]) -> None:
        """Merges the components of pairs of submaps that loops connect; the older component
        remains."""
        if self.components_of_scene.merge(tied, self.all_submaps().values()):
            self.revision = next(_REVISIONS)

    def add_frame(self, frame: LocalFrame, *, waiting: bool = False) -> tuple[Submap, Array]:
        """Adds a frame's pose, and a keyframe's points and image; returns its submap, and its pose
        [4, 4] there.

        waiting: whether ``replace_points`` follows.
        """
        submap = self._submap_for(frame)
        S = self.table.T_local_submap(submap.id)
        T = relative_pose(S, frame.T_local_camera)
        submap.keyframes += frame.keyframe
        room = self.limits.memory_mb * 2**20 // (4 * ROW.itemsize)
        self.table.path.max_poses = min(MAX_POSES, room) if room else MAX_POSES
        self.table.live_path.add_pose(frame, T, submap.id, S.scale)
        if frame.keyframe and self.limits.enabled and not self.table.read_only:
            camera = self.table.T_map_camera(frame.T_local_camera).t
            if self.limits.keep_images:
                self.points.keep_image(submap, frame)
            if self.limits.remove_movers:
                self._dynamic.add(frame, submap, S.scale, camera)
            points = KeyframePoints(
                frame.id, frame.depth, frame.confidence, frame.image, frame.K, T, S.scale
            )
            self.points.insert(points, self._radius(), waiting=waiting)
            self.revision = next(_REVISIONS)
            self._enforce_limits(camera)
        return submap, T

    def replace_points(self, submap: int, keyframes: Sequence[Replacement]) -> None:
        """Replaces the points of keyframes that wait, as ``SubmapPoints.replace``."""
        one = self.submaps.get(submap)
        if one is not None:
            for id, points, _ in keyframes:
                if points is not None:
                    self._dynamic.measure(id, points.view)
            self.points.replace(one, [
                (id, points and self._without_dynamic(one, id, points), stays)
                for id, points, stays in keyframes
            ])  # fmt: skip
            self.revision = next(_REVISIONS)

    def _without_dynamic(self, submap: Submap, id: int, points: MeasuredPoints) -> MeasuredPoints:
        return replace(points, sums=self._dynamic.remaining(submap, id, points.sums))

    def bins(self, submap: int) -> Bins | None:
        """Returns how the points of a keyframe that waits are added up, as
        ``SubmapPoints.bins``."""
        one = self.submaps.get(submap)
        if one is None or not self.limits.enabled:
            return None
        return self.points.bins(one, self._radius())

    @property
    def staying(self) -> Collection[int]:
        """The submaps that corrections do not move: those of a read-only map."""
        return self.submaps.keys() if self.table.read_only else ()

    def note_correction(self, tied: Iterable[tuple[int, int]]) -> None:
        """Notes that submaps have moved, their points and poses with them; merges the components
        of pairs of submaps that loops connect."""
        if not self.table.read_only:
            self.revision = next(_REVISIONS)
        self.merge_components(tied)

    def regrid(self) -> None:
        """Averages all points in voxels of the edge length by ``limits`` and the map's metres; not
        of a read-only map."""
        if self.table.read_only:
            return
        self.revision = next(_REVISIONS)
        self.points.regrid(self._voxel)

    def restore(self, saved: Snapshot, *, searched: bool = False, whole: bool = False) -> None:
        """Takes over a saved scene in an empty store; new frames begin a new chain.

        searched: whether the pose of new frames is looked for in the scene. whole: whether it
        stays whole, whatever the limits are.
        """
        self.revision = next(_REVISIONS)
        for submap in saved.submaps:
            one = replace(submap, cloud=join([]), images={}, moved=[])
            self.submaps.insert(one)
            self.components_of_scene.note(one)
            self.points.restore(one, submap.cloud, submap.images)
            self._next = max(self._next, one.id + 1)
        self.table.path.extend(saved.poses)
        self.table.begin_chain(after=saved.chain)
        self._is_searched = searched
        self.components_of_scene.begin_after(saved.submaps)
        if saved.recognition is not None and saved.recognition.nodes:  # some may have no submap
            self._next = max(self._next, saved.recognition.nodes[-1].last + 1)
        if len(self.table.path) and not whole:
            self._enforce_limits(self.poses().rows["T"][-1, :, 3])

    def snapshot(
        self, T_ros_map: Array = T_ROS_MAP, metric: bool = False, unit: float = 1.0
    ) -> Snapshot:
        """Returns the scene as it is now; cheap, and not changed by later frames."""
        submap_poses, submaps = self._submap_poses(), []
        for s in self.submaps.values():
            cloud, images = self.points.cloud_of(s), s.all_images()
            pose = submap_poses[s.id]
            submaps.append(replace(s, cloud=cloud, T_map_submap=pose, images=images, moved=[]))
        scale = unit * self.table.metres
        poses, chain = self.table.path.poses(), self.table.chain
        return Snapshot(tuple(submaps), poses, chain, metric, T_ros_map, scale)

    def scene(self, T_ros_map: Array = T_ROS_MAP) -> Scene:
        """Returns the scene to show and export, in metres if the scale is known."""
        return self.snapshot(T_ros_map).scene()

    @property
    def view(self) -> SceneView:
        """What is displayed: the current component, or the last one while that is empty; the first
        one while the camera is looked for in it, or if the map is read-only.

        The path is that of a localized camera, instead of the map's.
        """
        submaps, component = tuple(self.submaps.values()), self.components_of_scene.current
        newest = max(submaps, key=lambda s: s.id, default=None)
        searched = self._is_searched or self.table.read_only
        if searched and any(s.component == REFERENCE for s in submaps):
            component = REFERENCE
        elif newest is not None:
            component = newest.component
        submap_poses = self._submap_poses()
        component_of = {s.id: s.component for s in self.all_submaps().values()}
        submap_poses[SETTLED] = IDENTITY.scaled(self.table.metres)
        component_of[SETTLED] = REFERENCE
        path = self.table.live_path
        return SceneView(component, submaps, self.points, path, submap_poses, component_of)

    def poses(self) -> Poses:
        """Returns the poses of all cameras in the map, in metres if the scale is known."""
        return self.table.path.poses().moved(self._submap_poses())

    def cloud(self) -> PointCloud:
        """Returns all points in the map, in map units."""
        scene = self.snapshot(np.eye(4)).scene()
        unit = 1 / self.table.metres
        clouds = [replace(c, T_map_submap=c.T_map_submap.scaled(unit)) for c in scene.clouds]
        return replace(scene, clouds=tuple(clouds)).cloud()

    def _submap_poses(self) -> dict[int, Similarity]:
        submaps = self.all_submaps().items()
        return {id: s.T_map_submap.scaled(self.table.metres) for id, s in submaps}

    def _submap_for(self, frame: LocalFrame) -> Submap:
        submap = self.newest
        if submap is None or (frame.keyframe and self._is_full(submap)):
            self.begin_submap()
            begin = self.table.T_map_camera(frame.T_local_camera)
            submap = Submap(self._next, self.table.use_chain(), begin)
            submap.component = self.components_of_scene.current
            self.components_of_scene.note(submap)
            self._next += 1
            if self.table.read_only:
                if submap.id == 0:
                    log.warning("mode is localization, but there is no map: load one (map.load)")
                self.live.begin(submap)
                self.components_of_scene.forget(self.table.first_live, min(self.live.submaps))
                return submap
            self.submaps.insert(submap)
            self.points.begin(submap, self._voxel(submap))
        return submap

    def _is_full(self, submap: Submap) -> bool:
        if self.table.read_only:
            return submap.keyframes >= KEYFRAMES
        if submap.id == self._ended:
            return True
        return submap.keyframes >= KEYFRAMES or self.points.point_count(submap) > MAX_VOXELS

    def _voxel(self, submap: Submap) -> float:
        return self.limits.voxel_m / self.table.metres / submap.T_map_submap.scale

    def _radius(self) -> float:
        """``radius_m`` in map units; 0: none."""
        return self.limits.radius_m / self.table.metres

    def _enforce_limits(self, camera: Array) -> None:
        """Drops points and images beyond the limits, or too far from the camera [3]."""
        room = self.limits.memory_mb * 2**20
        self.points.drop_distant(camera, self._radius())
        held = self.table.path.nbytes + self._dynamic.nbytes
        self.points.enforce_limits(self.limits.max_points, room, held)
        self._forget_empty()

    def _forget_empty(self) -> None:
        """Removes submaps without points and poses; thinning removes poses over time."""
        if len(self.submaps) < self._forget_at:
            return
        used = {int(i) for i in np.unique(self.table.path.poses().rows["submap"])}
        for submap in [s for s in self.submaps.values() if s.id not in used and not len(s.cloud)]:
            if submap is not self.newest and not self.points.is_growing(submap):
                self.points.drop_images(submap)
                self.submaps.remove(submap.id)
        self._forget_at = 2 * len(self.submaps) + 64


def relative_pose(S: Similarity, T: Array) -> Array:
    """Returns a pose ``T`` [4, 4] in the frame that ``S`` places where ``T`` is given."""
    out = np.eye(4)
    out[:3, :3] = S.R.T @ T[:3, :3]
    out[:3, 3] = S.R.T @ (T[:3, 3] - S.t) / S.scale
    return out


# The components of a scene: submaps whose poses relative to each other are measured.


class SceneComponents:
    """The component of new frames, and of each submap, also of those that were removed."""

    def __init__(self) -> None:
        self.current = REFERENCE  # of new frames
        self._begins: list[tuple[int, int]] = []  # (first submap, component) of each run

    @property
    def pose_known(self) -> bool:
        """Whether the pose of new frames in the map is known."""
        return self.current == REFERENCE

    def note(self, submap: Submap) -> None:
        """Adds a submap, the newest one."""
        if not self._begins or self._begins[-1][1] != submap.component:
            self._begins.append((submap.id, submap.component))

    def begin_unconnected(self) -> None:
        """Marks the first component as unconnected: the map's frame is older than the scene."""
        self.current = REFERENCE + 1

    def begin(self, submaps: Iterable[Submap]) -> None:
        """Begins a new component for new frames, unless none of the ``submaps`` is in the current
        one; its number was never used: loops may refer to submaps that were removed."""
        if any(s.component == self.current for s in submaps):
            self.current = 1 + max(self.current, *(component for _, component in self._begins))

    def begin_after(self, submaps: Iterable[Submap]) -> None:
        """Begins a new component after the ``submaps`` of a loaded scene."""
        self.current = 1 + max((s.component for s in submaps), default=REFERENCE - 1)

    def merge(self, tied: Iterable[tuple[int, int]], submaps: Iterable[Submap]) -> bool:
        """Merges the components of pairs of submaps that loops connect; the older component
        remains. Returns whether there were such components."""
        submaps, changed = list(submaps), False
        for pair in tied:
            older, newer = sorted(map(self._of, pair))
            if older == newer:
                continue
            log.info(
                "component %d of the scene was joined to component %d by a loop", newer, older
            )
            changed = True
            for submap in submaps:
                submap.component = older if submap.component == newer else submap.component
            begins = [(id, older if p == newer else p) for id, p in self._begins]
            changes = [True, *(a[1] != b[1] for a, b in itertools.pairwise(begins))]
            self._begins = list(itertools.compress(begins, changes))
            self.current = older if self.current == newer else self.current
        return changed

    def forget(self, first: int, last: int) -> None:
        """Forgets the submaps from ``first`` to before ``last``: no loop refers to them."""
        component = self._of(last)
        kept = [b for b in self._begins if not first <= b[0] <= last]
        at = sum(id < first for id, _ in kept)
        self._begins = [*kept[:at], (last, component), *kept[at:]]

    def _of(self, submap: int) -> int:
        """Returns the component of a submap by its id."""
        at = bisect_right(self._begins, submap, key=lambda begin: begin[0])
        return self._begins[at - 1][1] if at else REFERENCE


# Where a camera has been that is localized in a read-only map: submaps without points, and poses.
#
# Both are bounded. Corrections move the newest submaps only. Poses of older ones keep the pose in
# the scene that they had last; if their component was unconnected, they are forgotten.

MAX_SUBMAPS = 16  # newest submaps, which corrections move
SETTLED = -1  # submap of poses that are given in the map, and stay


class LiveSubmaps:
    """The newest submaps of a localized camera; its poses are in ``live_path`` of the table."""

    def __init__(self, table: MapTable) -> None:
        self._table, self.submaps = table, SubmapsById(table)
        self.newest: Submap | None = None  # None: the next frame begins one

    def close(self) -> None:
        """Ends the newest submap."""
        self.newest = None

    def begin(self, submap: Submap) -> None:
        """Adds the submap of the next frames; the oldest one leaves."""
        self.submaps.insert(submap)
        self.newest = submap
        while len(self.submaps) > MAX_SUBMAPS:
            oldest = self.submaps[min(self.submaps)]
            self.submaps.remove(oldest.id)
            if oldest.component == REFERENCE:
                self._table.live_path.settle(oldest.id, oldest.T_map_submap, SETTLED)
            else:
                self._table.live_path.forget(oldest.id)


# What is displayed and written of a scene: the points of one component, and the path.


@dataclass(frozen=True, eq=False)
class SceneView:
    """A scene as it is displayed; shares memory with its store."""

    component: int  # to display; the poses of others relate to nothing in it
    submaps: Sequence[Submap]  # with points
    points: SubmapPoints
    trajectory: Trajectory  # the path
    submap_poses: Mapping[int, Similarity]  # in the map, by id
    component_of: Mapping[int, int]  # component of each submap

    def thinned(self, most: int, T_ros_map: Array) -> Scene:
        """Returns an even choice of at most ``most`` points of the component that are in memory.

        The cost is proportional to the chosen points.
        """
        shown = [s for s in self.submaps if s.component == self.component]
        clouds = self.points.thinned(shown, self.submap_poses, most)
        return Scene(clouds, Poses.of([]), T_ros_map)

    def path(self, most: int = 0, *, all_components: bool = False) -> Poses:
        """Returns the poses of the leading camera in the map, of the component or of all; an even
        choice of at most ``most`` (0: all)."""
        poses = self.trajectory.poses().leading()
        if not all_components:
            ids = [id for id, own in self.component_of.items() if own == self.component]
            poses = poses.take(np.isin(poses.rows["submap"], ids))
        stride = max(1, -(-len(poses) // most)) if most else 1
        return poses.take(slice(None, None, stride)).moved(self.submap_poses)

    def path_scene(self, T_ros_map: Array) -> Scene:
        """Returns the poses of all cameras and components as a scene without points."""
        poses = self.trajectory.poses().moved(self.submap_poses)
        return Scene((), poses, T_ros_map, component_of=self.component_of)
