"""What has changed in a map since the viewer got it, read between two windows."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import SubmapStore
from da3_ros.types import Array
from da3_ros.viewer.strides import chosen_strides

MAX_PATH = 2000  # poses of the path that are shown
MAX_KEYFRAMES = 200
STEPS = 2  # of distances per doubling
MOST_OF_SUBMAP = 150_000  # points of a submap of a live map; reading them takes about 10 ms
MAX_POINTS_AT_ONCE = 40_000  # of changed submaps in an update; the others follow in the next


@dataclass(frozen=True, eq=False)
class ShownPoints:
    """Points of a submap, in its frame and unit."""

    xyz: NDArray[np.float32]  # [M, 3]
    rgb: NDArray[np.uint8]  # [M, 3]


@dataclass(frozen=True, eq=False)
class MapUpdate:
    """The map at one moment: all poses, and the points that the viewer does not have yet.

    Lengths are metres if the scale is known, else in the map's own unit.
    """

    submaps: Mapping[int, Similarity]  # T_map_submap of those that are shown
    points: Mapping[int, ShownPoints]  # of these, new or changed
    path: Scene  # poses of the path and keyframes, without points
    loops: Array  # [L, 2, 3] positions in the map of submaps that a loop connects
    unconnected: int  # components that are not shown: their pose in this one is unknown
    complete: bool = True  # False: changed points are missing, and follow

    @property
    def count(self) -> int:
        """Number of points that are sent."""
        return sum(len(one.xyz) for one in self.points.values())


@dataclass(frozen=True, eq=False)
class _Sent:
    """Which points of a submap the viewer has."""

    holder: weakref.ref[object]
    revision: int
    stride: int
    count: int

    def is_current(self, holder: object, revision: int, stride: int) -> bool:
        return (self.holder(), self.revision, self.stride) == (holder, revision, stride)


@dataclass
class MapReader:
    """Reads the displayed component of a map, incrementally; belongs to the thread that owns the
    map."""

    most: int  # points that are shown
    most_of_submap: int = MOST_OF_SUBMAP  # likewise, of one submap, which is read as a whole
    _sent: dict[int, _Sent] = field(default_factory=dict)

    def update(self, store: SubmapStore, T_ros_map: Array) -> MapUpdate:
        """Returns the map as it is, with the points that changed, nearest to the newest pose
        first."""
        view = store.view
        ids = [id for id, component in view.component_of.items() if component == view.component]
        path = view.trajectory.sample(ids, MAX_PATH, MAX_KEYFRAMES).moved(view.submap_poses)
        own = [s for s in view.submaps if s.component == view.component]
        shown = [s for s in own if store.points.is_in_memory(s) and store.points.point_count(s)]
        # The disk has the others: what the viewer got of them stays, as far as there is room.
        kept = [s for s in own if s.id in self._sent and not store.points.is_in_memory(s)]
        poses = {s.id: view.submap_poses[s.id] for s in (*kept, *shown)}
        newest = path.rows["T"][-1, :, 3] if len(path) else np.zeros(3)
        sizes = np.array([store.points.point_count(s) for s in shown], np.int64)
        gone, most = self._without_room(kept, poses, newest, int(sizes.sum()))
        poses = {id: T for id, T in poses.items() if id not in gone}
        points, complete = self._changed(store, shown, sizes, poses, newest, most)
        poses = {id: T for id, T in poses.items() if id in self._sent}
        self._sent = {id: self._sent[id] for id in poses}
        chains = {s.id: s.chain for s in store.all_submaps().values()}
        return MapUpdate(
            poses, points, Scene((), path, T_ros_map, chain_of=chains),
            _loops(store, view.submap_poses, set(ids)),
            len(set(view.component_of.values()) - {view.component}), complete,
        )  # fmt: skip

    def _without_room(
        self, kept: list[Submap], poses: Mapping[int, Similarity], camera: Array, in_memory: int
    ) -> tuple[set[int], int]:
        """Returns the ids of the farthest submaps on the disk, which leave the viewer, and how
        many points of others it may have beside those that stay.

        in_memory: points of submaps that are not on the disk; half of the room is theirs.
        """
        counts = np.array([self._sent[s.id].count for s in kept], np.int64)
        order = np.argsort(_distances(kept, poses, camera), kind="stable")
        room = self.most - min(in_memory, self.most // 2)
        taken = np.cumsum(counts[order])
        fit = int(np.searchsorted(taken, room, "right"))
        stays = int(taken[fit - 1]) if fit else 0
        return {kept[i].id for i in order[fit:]}, self.most - stays

    def _changed(
        self, store: SubmapStore, shown: list[Submap], sizes: Array,
        poses: Mapping[int, Similarity], camera: Array, most: int,
    ) -> tuple[dict[int, ShownPoints], bool]:  # fmt: skip
        """Returns the points that the viewer has not got, and whether these are all.

        sizes: points of the submaps that are ``shown`` [N]. most: of them that it may have.
        """
        distances = _distances(shown, poses, camera)
        strides = chosen_strides(sizes, distances, most)
        strides = np.maximum(strides, _coarsest(sizes / self.most_of_submap))
        out: dict[int, ShownPoints] = {}
        room = MAX_POINTS_AT_ONCE
        for i in np.argsort(distances, kind="stable"):
            submap, stride = shown[i], int(strides[i])
            holder, revision = store.points.state(submap)
            sent = self._sent.get(submap.id)
            if sent is not None and sent.is_current(holder, revision, stride):
                continue
            if out and room < sizes[i] // stride:
                return out, False
            cloud = store.points.cloud_slice(submap, slice(None, None, stride))
            out[submap.id] = ShownPoints(cloud.xyz, cloud.rgb)
            self._sent[submap.id] = _Sent(weakref.ref(holder), revision, stride, len(cloud))
            room -= len(cloud)
        return out, True


def _distances(submaps: list[Submap], poses: Mapping[int, Similarity], camera: Array) -> Array:
    """Returns the distances [N] of submaps from a place [3], in steps, so that a trembling camera
    does not change what is nearest."""
    centres = np.array([poses[s.id].t for s in submaps]).reshape(-1, 3)
    distances = np.linalg.norm(centres - camera, axis=1)
    return np.asarray(np.round(STEPS * np.log2(np.maximum(distances, 1e-3))))


def _loops(store: SubmapStore, poses: Mapping[int, Similarity], shown: set[int]) -> Array:
    ends = [
        (poses[edge.first].t, poses[edge.second].t)
        for edge in store.table.edges
        if edge.loop and edge.first in shown and edge.second in shown
    ]
    return np.array(ends).reshape(-1, 2, 3)


def _coarsest(parts: Array) -> Array:
    """Returns the least powers of two [N] that are at least some numbers [N]."""
    return np.exp2(np.ceil(np.log2(np.maximum(parts, 1.0)))).astype(np.int64)
