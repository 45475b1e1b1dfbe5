"""The map's table: submaps, and views, each with its pose in its submap."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from da3_ros.geometry.poses import nearest_rotation
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.overlap_view import NO_SUBMAP, OverlapView, ViewRow
from da3_ros.mapping.submap_spill import Submap
from da3_ros.types import Array


class MapTable:
    """Submaps and views by id, and the frame of odometry.

    ``local`` is the frame in which odometry places windows. Corrections never move the newest
    submap in it, so that odometry goes on; ``T_map_local`` says where it is in the map, and how
    long its unit is there. A view has its pose in its submap, so that no correction changes it. A
    view without a submap is in ``local``. It stays while windows may share it, or loops may be
    found to it. Not thread-safe.
    """

    def __init__(self, submaps: Iterable[Submap] = ()) -> None:
        self.submaps: dict[int, Submap] = {s.id: s for s in submaps}
        self._views: dict[int, ViewRow] = {}
        self.shared: frozenset[int] = frozenset()  # ids of views that windows may share
        self._kept: set[int] = set()  # ids of views that are kept for loops
        self.corrections = 0  # number of those that were applied
        self._T_map_local, self._is_map = IDENTITY, True
        self._T_local_submap: dict[int, Similarity] = {}  # derived; empty after each change

    @property
    def T_map_local(self) -> Similarity:
        """The frame of odometry in the map."""
        return self._T_map_local

    def add(self, submap: Submap) -> None:
        """Adds a submap."""
        self.submaps[submap.id] = submap

    def keep(self, ids: Collection[int]) -> None:
        """Removes all submaps but these, and those of overlap views."""
        used = {*ids, *(self._views[id].submap for id in self.shared)}
        self.submaps = {id: s for id, s in self.submaps.items() if id in used}
        self._T_local_submap.clear()

    def set_view(self, view: OverlapView) -> None:
        """Adds or replaces a view that windows share."""
        T = self.T_local_submap(view.submap)
        self._views[view.view.id] = view.stored(T, self._views.get(view.view.id))
        self.shared |= {view.view.id}

    def share(self, ids: Collection[int]) -> None:
        """Sets which views windows may share; removes those that nothing needs."""
        before, self.shared = self.shared, frozenset(ids)
        for id in before - self.shared:
            if id in self._kept:
                self._views[id] = self._views[id].with_fewer_pixels()
            else:
                del self._views[id]

    def keep_view(self, row: ViewRow) -> None:
        """Adds or replaces a view that is kept for loops."""
        self._views[row.id] = row
        self._kept.add(row.id)

    def forget_view(self, id: int) -> None:
        """Keeps a view for loops no longer."""
        self._kept.remove(id)
        if id not in self.shared:
            del self._views[id]

    def view(self, id: int) -> OverlapView:
        """Returns a view where its submap is in the frame of odometry. Raises KeyError."""
        row = self._views[id]
        return row.placed(self.T_local_submap(row.submap))

    def poses(self, ids: Sequence[int]) -> tuple[Array, Array]:
        """Returns the poses [N, 4, 4] of views in the frame of odometry, and the units [N] of
        their submaps there. Raises KeyError."""
        rows = [self._views[id] for id in ids]
        at = {submap: self.T_local_submap(submap) for submap in {row.submap for row in rows}}
        T, unit = np.zeros((len(ids), 4, 4)), np.array([at[row.submap].scale for row in rows])
        if rows:
            S, own = [at[row.submap] for row in rows], np.array([r.T_submap_camera for r in rows])
            R = np.array([s.R for s in S])
            T[:, :3, :3] = R @ own[:, :3, :3]
            T[:, :3, 3] = unit[:, None] * (R @ own[:, :3, 3:])[..., 0] + [s.t for s in S]
            T[:, 3, 3] = 1.0
        return T, unit

    def set_row(self, row: ViewRow) -> None:
        """Replaces a view in the frame of its submap."""
        self._views[row.id] = row

    def row(self, id: int) -> ViewRow:
        """Returns a view in the frame of its submap. Raises KeyError."""
        return self._views[id]

    def T_local_submap(self, id: int) -> Similarity:
        """Returns the pose of a submap in the frame of odometry; the identity for ``NO_SUBMAP``.
        Raises KeyError."""
        if id == NO_SUBMAP:
            return IDENTITY
        if self._is_map:  # exact
            return self.submaps[id].T_map_submap
        if id not in self._T_local_submap:
            to_local = self._T_map_local.inverse()
            self._T_local_submap[id] = to_local @ self.submaps[id].T_map_submap
        return self._T_local_submap[id]

    def T_map_camera(self, T_local_camera: Array) -> Similarity:
        """Returns a pose [4, 4] of odometry in the map, with the unit of odometry."""
        T = self._T_map_local.pose(T_local_camera)
        # As exact as numbers are: poses go to a submap and back many times.
        return Similarity(self._T_map_local.scale, nearest_rotation(T[:3, :3]), T[:3, 3])

    def set_poses(
        self, T_map_submap: Mapping[int, Similarity], T_map_local: Similarity | None = None
    ) -> None:
        """Sets poses of submaps in the map, and that of the frame of odometry; None: it stays."""
        for id, T in T_map_submap.items():
            self.submaps[id].T_map_submap = T
        if T_map_local is not None:
            self._T_map_local = T_map_local
            self._is_map = T_map_local.is_same(IDENTITY)
        self._T_local_submap.clear()

    def correct(self, correction: Correction, stays: Collection[int] = ()) -> float:
        """Applies a correction, also to the frame of odometry, so that the newest submap stays in
        it. Returns the farthest move in the map.

        stays: ids of submaps that keep their pose in the map. So do submaps that are older than
        those of the correction.
        """
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
        self.corrections += 1
        return far
