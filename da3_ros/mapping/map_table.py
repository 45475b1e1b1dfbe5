"""The map's table: submaps, views and frames, each with its pose in its submap, and edges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import nearest_rotation
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.keyframe_store.array_spill import Arrays
from da3_ros.mapping.frames import LocalFrame, PoseInSubmap
from da3_ros.mapping.graph_solution import Correction, Node
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.trajectory import Trajectory
from da3_ros.types import Array, View

# Views that windows share: their poses and samples of their depth.

SAMPLES = 2730  # pixels of a view that give its depth
FEW_SAMPLES = 1024  # of a keyframe that is kept for loops only
NO_SUBMAP = -1  # in place of a submap's id


class KeyframeFile(Protocol):
    """A file with the keyframes of a saved scene."""

    def arrays(self, index: int) -> tuple[Arrays, NDArray[np.bool_] | None]:
        """Returns the arrays of a keyframe, as ``ViewRow.arrays``, and the valid pixels of its
        image, if not all are. Raises OSError."""
        ...


@dataclass(frozen=True, eq=False)
class ViewRow:
    """A view in the frame and unit of its submap: corrections leave it as it is. Its arrays may be
    on the disk."""

    view: View
    K: Array  # [3, 3] corner rule; the same in every window
    T_submap_camera: Array  # [4, 4]; of a loaded scene, in the saved frame, see below
    pixels: Array  # [M] indices into the flattened depth image
    depth: Array  # [M] z-depth
    confidence: Array  # [M]
    submap: int = NO_SUBMAP
    observations: float = 1.0  # number of windows that are averaged
    refined: bool = False  # whether feature tracks, or a prior, determine its pose
    kept: float = 1.0  # share of the camera's image that remains after cuts to other sizes
    # Of keyframes of loops:
    descriptor: Array = field(default_factory=lambda: np.zeros(0))  # [D]
    # [3] variance since its submap's first keyframe: log scale, rotation, position
    variance_in_submap: Array = field(default_factory=lambda: np.zeros(3))
    typical_depth: float = float("nan")  # median
    depth_factor: float = 1.0  # of what later windows say of the depth, over that of the samples
    # Of keyframes of a loaded scene: the file that holds the arrays, and its number there. Until
    # it is ``loaded``, the image is black and there are no samples.
    T_submap_saved: Similarity | None = None  # of the frame in the file; None: the submap
    file: KeyframeFile | None = None
    index: int = -1

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that may lie on the disk."""
        return self.view.image, self.pixels, self.depth, self.confidence

    def with_arrays(self, arrays: Sequence[Array]) -> ViewRow:
        """Returns the row with the ``arrays`` that are its own."""
        image, pixels, depth, confidence = arrays
        return replace(
            self, view=replace(self.view, image=image), pixels=pixels, depth=depth,
            confidence=confidence, file=None,
        )  # fmt: skip

    def with_fewer_pixels(self) -> ViewRow:
        """Returns the row with fewer pixels: many keyframes are kept for a long time."""
        if len(self.pixels) <= FEW_SAMPLES:
            return self
        keep = sample(np.ones(len(self.pixels), bool), FEW_SAMPLES)
        return replace(
            self, pixels=self.pixels[keep], depth=self.depth[keep],
            confidence=self.confidence[keep],
        )  # fmt: skip

    def loaded(self) -> ViewRow:
        """Returns the row with its arrays. Raises OSError."""
        if self.file is None:
            return self
        arrays, valid = self.file.arrays(self.index)
        out = self.with_arrays(arrays)
        return replace(out, view=replace(out.view, valid=valid))

    def placed(self, T_local_camera: Array, unit: float) -> OverlapView:
        """Returns the view at a pose [4, 4] in the frame of odometry, with lengths ``unit`` times
        as long."""
        depth = self.depth if unit == 1.0 else unit * self.depth
        return OverlapView(
            self.view, self.K, T_local_camera, self.pixels, depth, self.confidence,
            self.observations, submap=self.submap, refined=self.refined, kept=self.kept,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class OverlapView:
    """An overlap view in the frame and unit of odometry, for the time of one window."""

    view: View
    K: Array  # [3, 3] corner rule; the same in every window
    T_local_camera: Array  # [4, 4]
    pixels: Array  # [M] indices into the flattened depth image
    depth: Array  # [M] z-depth
    confidence: Array  # [M]
    observations: float = 1.0  # number of windows that are averaged
    keyframe: bool = False  # shared as a keyframe, not as one of the newest views
    submap: int = NO_SUBMAP
    refined: bool = False  # whether feature tracks, or a prior, determine its pose
    kept: float = 1.0  # share of the camera's image that remains after cuts to other sizes

    def stored(self, T_local_submap: Similarity) -> ViewRow:
        """Returns the view in the frame of its submap."""
        back = T_local_submap.inverse()
        depth = self.depth if back.scale == 1.0 else back.scale * self.depth
        return ViewRow(
            self.view, self.K, back.pose(self.T_local_camera), self.pixels, depth,
            self.confidence, self.submap, self.observations, self.refined, self.kept,
        )  # fmt: skip

    @staticmethod
    def of(view: View, frame: LocalFrame) -> OverlapView:
        """Returns the overlap view of a frame; without pixels of unknown depth."""
        pixels = sample(np.isfinite(frame.depth), SAMPLES)
        depth = frame.depth.reshape(-1)[pixels].astype(np.float64)
        confidence = frame.confidence.reshape(-1)[pixels].astype(np.float64)
        view = replace(view, returns=None)  # measured once; many are kept
        return OverlapView(view, frame.K, frame.T_local_camera, pixels, depth, confidence)

    def rays(self) -> Array:
        """Returns the rays [M, 3] of the pixels, z = 1, camera axes."""
        row, column = np.divmod(self.pixels, self.view.image.shape[1])
        ones = np.ones(len(self.pixels))
        return np.stack((column + 0.5, row + 0.5, ones), axis=1) @ np.linalg.inv(self.K).T


def sample(valid: Array, count: int) -> Array:
    """Returns indices of at most ``count`` valid pixels, evenly spread; deterministic."""
    index = np.flatnonzero(valid)
    if len(index) <= count:
        return index
    return index[np.arange(count) * len(index) // count]


class MapListener:
    """Is told of each change of poses in the map, right after it."""

    def on_clear(self) -> None:
        """The map begins anew: all ids were those of another map."""

    def on_correction(self, correction: Correction, before: Mapping[int, Similarity]) -> None:
        """Submaps have moved in the map, and with them all that has its pose in them.

        before: ``T_map_submap`` of all submaps before.
        """

    def on_refinement(self, frames: Sequence[PoseInSubmap]) -> None:
        """Frames have other poses in their submaps."""


class MapTable:
    """Submaps, views and frames by id, edges between submaps, and the frame of odometry.

    ``local`` is the frame in which odometry places windows. Corrections never move the newest
    submap in it, so that odometry goes on; ``T_map_local`` says where it is in the map, and how
    long its unit is there. A view has its pose in its submap, so that no correction changes it. A
    view without a submap is in ``local``. Not thread-safe.

    A view is in the table while windows may share it, and as a keyframe while loops may be found
    to it: with few samples and the image that it had then, but with pose and scale as they are
    known now. All frames are rows of a path. Listeners are told of each change of poses.

    Chains are counted here, through all maps of a session.
    """

    def __init__(self, submaps: Iterable[Submap] = ()) -> None:
        self.listeners: list[MapListener] = []  # told in this order
        self.corrections = 0  # number of those that were applied
        self.chain = 0  # number of the newest chain
        self._chain_is_used = False  # whether something belongs to it
        self.unit = 1.0  # of odometry, per network unit; see ``set_unit``
        self._clear(submaps)

    def _clear(self, submaps: Iterable[Submap]) -> None:
        self.submaps: dict[int, Submap] = {s.id: s for s in submaps}
        self.path = Trajectory()  # frames of the map
        self.set_read_only(None)
        self.nodes: list[Node] = []  # submaps that move as one, in the order of their ids
        self.edges: list[Edge] = []  # between nodes, by their first submap
        self.keyframes: dict[int, ViewRow] = {}  # of loops
        self.shared: dict[int, ViewRow] = {}  # views that windows may share
        self._apart: set[int] = set()  # ids of those whose keyframe has another image
        self.known_metres: float | None = None  # per unit of the map; None: unknown
        self.T_map_local = IDENTITY  # the frame of odometry in the map; ``set_poses`` sets it
        self._is_map = True  # whether it is that of the map
        # Derived; empty after each change. Of views: no more than are shared.
        self._T_local_submap: dict[int, Similarity] = {}
        self._T_local_view: dict[int, Array] = {}

    def clear(self) -> None:
        """Removes all rows: the map begins anew."""
        self._clear(())
        for listener in self.listeners:
            listener.on_clear()

    def set_read_only(self, first_live: int | None) -> None:
        """Makes the map of all submaps before ``first_live`` read-only: later ones are those of a
        camera that is localized in it. None: lets it grow again."""
        self.read_only = first_live is not None
        self.first_live = first_live or 0
        # Of new frames: that of the map, or of the localized camera, which begins now.
        self.live_path = Trajectory() if self.read_only else self.path

    @property
    def metres(self) -> float:
        """Metres per unit of the map; 1 if unknown."""
        return 1.0 if self.known_metres is None else self.known_metres

    def set_unit(self, unit: float) -> None:
        """Sets units of odometry per network unit, of a window that has moved it, or as assumed
        of the next one."""
        self.unit = unit

    def begin_chain(self, after: int = -1) -> None:
        """Begins a chain. Its number is larger than ``after``, and than those of all chains of the
        session that anything belongs to."""
        self.chain = max(self.chain + self._chain_is_used, after + 1)
        self._chain_is_used = False

    def use_chain(self) -> int:
        """Returns the number of the newest chain, for what belongs to it from now on."""
        self._chain_is_used = True
        return self.chain

    def add_submap(self, submap: Submap) -> None:
        """Adds a submap."""
        self.submaps[submap.id] = submap

    def keep(self, ids: Collection[int]) -> None:
        """Removes all submaps but these, and those of views that windows may share."""
        used = {*ids, *(row.submap for row in self.shared.values())}
        self.submaps = {id: s for id, s in self.submaps.items() if id in used}
        self._forget_derived()

    def share(self, ids: Collection[int]) -> None:
        """Removes all views that windows may share but these."""
        for id in self.shared.keys() - set(ids):
            del self.shared[id]
            self._T_local_view.pop(id, None)
        self._apart &= self.shared.keys()

    def set_view(self, view: OverlapView, *, same_image: bool = True) -> None:
        """Adds or replaces a view that windows may share; moves its keyframe too, unless the view
        has had another image (``same_image`` False) since then."""
        id, row = view.view.id, view.stored(self.T_local_submap(view.submap))
        before = self.shared.get(id, row)
        self.set_row(row)
        if not same_image:
            self._apart.add(id)
        keyframe = self.keyframes.get(id)
        if keyframe is not None and id not in self._apart:
            factor = keyframe.depth_factor * _depth_ratio(before.depth, row.depth)
            T = row.T_submap_camera
            self.keyframes[id] = replace(keyframe, T_submap_camera=T, depth_factor=factor)

    def refine(self, views: Iterable[OverlapView]) -> None:
        """Replaces shared views by ones whose pose and depth are known better, and their poses in
        the path.

        Points stay where they are: poses of the newest frames move by millimetres, without
        ``refinement`` by centimetres.
        """
        path, frames = self.live_path, []
        for view in views:
            id = view.view.id
            before = self._T_local_camera(id) if id in self.shared else None
            self.set_view(view)
            row = self.shared[id]
            if before is not None and np.array_equal(before, view.T_local_camera):
                continue  # only its depth is known better
            one = PoseInSubmap(row.view.stamp_ns, row.view.camera, row.submap, row.T_submap_camera)
            if row.submap != NO_SUBMAP:  # else it is not in the path
                frames.append(one)
        path.move(frames)
        self._tell_refinement(frames)

    def _move(self, frames: Sequence[PoseInSubmap]) -> None:
        """Gives frames of the path other poses in their submaps, and their views and keyframes
        too."""
        self.path.move(frames)
        at = {(f.stamp_ns, f.camera, f.submap): f.T_submap_camera for f in frames}
        for rows in (self.shared, self.keyframes):
            for id, row in rows.items():
                T = at.get((row.view.stamp_ns, row.view.camera, row.submap))
                if T is not None and row.T_submap_saved is None:
                    rows[id] = replace(row, T_submap_camera=T)
        self._T_local_view.clear()

    def _tell_refinement(self, frames: Sequence[PoseInSubmap]) -> None:
        for listener in self.listeners if frames else ():
            listener.on_refinement(frames)

    def set_row(self, row: ViewRow) -> None:
        """Adds or replaces a view that windows may share, in the frame of its submap."""
        self.shared[row.view.id] = row
        self._T_local_view.pop(row.view.id, None)

    def view(self, id: int) -> OverlapView:
        """Returns a shared view where its submap is in the frame of odometry. Raises KeyError."""
        row = self.shared[id]
        return row.placed(self._T_local_camera(id), self.T_local_submap(row.submap).scale)

    def poses(self, ids: Sequence[int]) -> tuple[Array, Array]:
        """Returns the poses [N, 4, 4] of shared views in the frame of odometry, and the units [N]
        of their submaps there. Raises KeyError."""
        T = np.array([self._T_local_camera(id) for id in ids]).reshape(-1, 4, 4)
        return T, np.array([self.T_local_submap(self.shared[id].submap).scale for id in ids])

    def _T_local_camera(self, id: int) -> Array:
        T = self._T_local_view.get(id)
        if T is None:
            row = self.shared[id]
            T = self._T_local_view[id] = self.T_local_submap(row.submap).pose(row.T_submap_camera)
        return T

    def _forget_derived(self) -> None:
        self._T_local_submap.clear()
        self._T_local_view.clear()

    def T_local_submap(self, id: int) -> Similarity:
        """Returns the pose of a submap in the frame of odometry; the identity for ``NO_SUBMAP``.
        Raises KeyError."""
        if id == NO_SUBMAP:
            return IDENTITY
        if self._is_map:  # exact
            return self.submaps[id].T_map_submap
        if id not in self._T_local_submap:
            to_local = self.T_map_local.inverse()
            self._T_local_submap[id] = to_local @ self.submaps[id].T_map_submap
        return self._T_local_submap[id]

    def T_map_camera(self, T_local_camera: Array) -> Similarity:
        """Returns a pose [4, 4] of odometry in the map, with the unit of odometry."""
        T = self.T_map_local.pose(T_local_camera)
        # As exact as numbers are: poses go to a submap and back many times.
        return Similarity(self.T_map_local.scale, nearest_rotation(T[:3, :3]), T[:3, 3])

    def set_poses(
        self, T_map_submap: Mapping[int, Similarity], T_map_local: Similarity | None = None
    ) -> None:
        """Sets poses of submaps in the map, and that of the frame of odometry; None: it stays."""
        for id, T in T_map_submap.items():
            self.submaps[id].T_map_submap = T
        if T_map_local is not None:
            self.T_map_local = T_map_local
            self._is_map = T_map_local.is_same(IDENTITY)
        self._forget_derived()

    def correct(
        self,
        correction: Correction,
        stays: Collection[int] = (),
        frames: Sequence[PoseInSubmap] = (),
    ) -> float:
        """Applies a correction, also to the frame of odometry, so that the newest submap stays in
        it. Returns the farthest move of a submap in the map.

        stays: ids of submaps that keep their pose in the map. So do submaps that are older than
        those of the correction. frames: those that have other poses in their submaps after it.
        """
        before = {id: s.T_map_submap for id, s in self.submaps.items()}
        oldest, moved, far = next(iter(correction.moves), 0), {}, 0.0
        for id, submap in self.submaps.items():
            if id < oldest or id in stays:
                continue
            T_local = self.T_local_submap(id)
            if id in correction.moves:
                T_local = correction.moves[id] @ T_local
            moved[id] = correction.T_map_local @ T_local
            far = max(far, float(np.linalg.norm(moved[id].t - submap.T_map_submap.t)))
        self.set_poses(moved, correction.T_map_local)
        self._move(frames)
        self.corrections += 1
        for listener in self.listeners:
            listener.on_correction(correction, before)
        self._tell_refinement(frames)
        return far


class SubmapsById(Mapping[int, Submap]):
    """Some of a table's submaps, by their ids alone, in the order in which they came."""

    def __init__(self, table: MapTable) -> None:
        self._table = table
        self._ids: dict[int, None] = {}

    def insert(self, submap: Submap) -> None:
        """Adds a submap, also to the table."""
        self._table.add_submap(submap)
        self._ids[submap.id] = None

    def remove(self, id: int) -> None:
        """Removes a submap, which stays in the table for as long as anything needs it."""
        del self._ids[id]

    def __getitem__(self, id: int) -> Submap:
        if id not in self._ids:
            raise KeyError(id)
        return self._table.submaps[id]

    def __contains__(self, id: object) -> bool:
        return id in self._ids

    def __iter__(self) -> Iterator[int]:
        """All ids as they are now: another thread may change them."""
        return iter(tuple(self._ids))

    def __len__(self) -> int:
        return len(self._ids)

    def values(self) -> ValuesView[Submap]:
        """All submaps as they are now, while another thread may remove some; much faster than one
        by one."""
        rows = self._table.submaps
        return {id: rows[id] for id in tuple(self._ids) if id in rows}.values()


def _depth_ratio(before: Array, now: Array) -> float:
    """Returns by what factor depth [M] has changed: the median of its pixels."""
    if now is before or not len(now) or len(now) != len(before):
        return 1.0
    return float(np.median(now / before))
