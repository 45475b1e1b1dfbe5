"""The occupancy grid of a map: where a robot can drive, and where obstacles stand.

It is derived from the map's table: what each keyframe saw of the floor is kept, and where it was
is asked when it is carved into the grid. After a correction a new grid is carved, a few keyframes
after each window; the old one is shown until then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.floor_view import FloorView
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.map_table import MapListener, MapTable
from da3_ros.mapping.scene import REFERENCE
from da3_ros.navigation.floor_grid import (
    BLOCK,
    FARTHEST,
    LEAST,
    MOST,
    MOST_CELLS,
    STOREY,
    FloorGrid,
    OccupancyGrid,
)
from da3_ros.types import Array

# Views of a camera that may still be refined: they are carved each time that a grid is asked for.
NEWEST = 8
WAITING = 64  # newest views that may wait for measured depth
PIECE = 16  # views that are carved again after a window, but at least those of a submap
MEMORY = 64 << 20  # bytes of views; the oldest leave first
# Metres from the newest camera, beyond which there is no grid; less if cells are small.
RADIUS = 60.0
SIDE = int(MOST_CELLS**0.5) // 2 - 6 * BLOCK  # cells of that, so that what is near finds room
RETURN = 0.8  # of it, within which views that have left the grid come back
CLIMB = 0.5  # metres by which the floor rises or falls until the grid is carved for its storey
FEET = 6  # newest frames that all say so: one alone may take a table or a pit for the floor

# Time without a keyframe, until another frame is looked at: of a camera that moves, and of one
# that stands, so that what is gone is free within a second.
LOOK_NS, STANDING_NS = 1_000_000_000, 180_000_000
STANDS = np.radians(2.0)  # largest turn of a camera that stands; it moves by less than a cell
LOOKS = MOST - LEAST  # newest looks of a camera: they outvote all that was there before

Key = tuple[str, int]  # camera and stamp


@dataclass(eq=False)
class _Carved:
    """A grid, and where all that it was carved from was then."""

    grid: FloorGrid
    T_ros_map: Similarity  # map to its published axes, metres
    T_map_submap: dict[int, Similarity]  # of the submaps that have it; grows
    T_ros_submap: dict[int, Similarity] = field(default_factory=dict)  # of those that are in it
    places: dict[tuple[int, Key], Array] = field(default_factory=dict)  # of views, x y yaw
    todo: list[int] = field(default_factory=list)  # submaps that are still to be carved, reversed
    late: list[tuple[int, Key]] = field(default_factory=list)  # views that come after them
    far: set[tuple[int, Key]] = field(default_factory=set)  # views that are too far to be in it


class OccupancyMap(MapListener):
    """What keyframes saw of the floor, and the grid that is carved from it. Not thread-safe.

    ``T_ros_map`` of all methods is the map in its published axes, with metres per map unit.
    """

    def __init__(self, table: MapTable, resolution: float) -> None:
        """resolution: edge of a cell, metres."""
        self.table, self._resolution = table, resolution
        self._radius = min(RADIUS, resolution * SIDE)
        self.revision = 0  # changes with each visible change
        self.on_clear()
        table.listeners.append(self)

    def on_clear(self) -> None:
        """The map begins anew."""
        self._views: dict[int, dict[Key, FloorView]] = {}  # by submap
        self._reach: dict[int, float] = {}  # of submaps, from their origin, in their unit
        # Views that are not in the grid yet, oldest first, and whether their depth is measured
        # later.
        self._newest: dict[tuple[int, Key], bool] = {}
        self._nbytes = 0
        self._here: Array | None = None  # newest camera [2], in the map as it goes out
        # Where the newest cameras stood, each in its submap [3]: corrections move it.
        self._feet: deque[tuple[int, Array]] = deque(maxlen=FEET)
        # Height of the floor about which the newest grid was begun, which has one storey. None:
        # unknown, and all storeys are in the grid.
        self._storey: float | None = None
        self._stamps: dict[str, int] = {}  # of the newest view of each camera
        # Where each camera was in the map as it goes out [4, 4], at its newest view but for those
        # while it stood.
        self._stood: dict[str, Array] = {}
        self._looks: dict[tuple[int, Key], FloorView] = {}  # those of the newest that are looks
        self._shown = self._empty(Similarity(1.0, np.eye(3), np.zeros(3)))
        self._next: _Carved | None = None  # is carved, while the other one is shown
        self._corrected = self._stale = False  # whether submaps, or views in them, have moved
        self.revision += 1

    def on_correction(self, correction: Correction, before: Mapping[int, Similarity]) -> None:
        """Notes that submaps have moved, or belong together now."""
        self._corrected = True

    def on_refinement(self, frames: Sequence[PoseInSubmap]) -> None:
        """Notes whether views in the grid have moved in their submaps."""
        carved = self._next or self._shown
        for f in frames:
            key = f.submap, (f.camera, f.stamp_ns)
            if key in carved.places and key not in carved.far:
                view = self._views[f.submap][key[1]]
                T = carved.T_ros_submap[f.submap]
                x, y, yaw, _ = view.place(T.pose(f.T_submap_camera), T.scale) - carved.places[key]
                turn = abs(np.arctan2(np.sin(yaw), np.cos(yaw)))
                moved = np.hypot(x, y) + T.scale * view.reach * turn
                self._stale |= bool(moved > self._resolution / 2)

    def add(
        self, view: FloorView, T_submap_camera: Array, T_ros_map: Similarity, *,
        waiting: bool = False, radius: float = 0.0,
    ) -> None:  # fmt: skip
        """Adds the view of a new keyframe.

        T_submap_camera: its pose [4, 4]. waiting: whether ``replace`` follows. radius: how far
        views are kept from the newest camera along x and y, metres; 0: however far they are.
        """
        T_ros_submap = T_ros_map @ self.table.submaps[view.submap].T_map_submap
        self._keep(view)
        self._note(view, T_ros_submap.pose(T_submap_camera))
        reach = float(np.linalg.norm(T_submap_camera[:3, 3])) + view.reach
        self._reach[view.submap] = max(self._reach.get(view.submap, 0.0), reach)
        self._newest[view.submap, view.key] = waiting
        self._settle_oldest(T_ros_map)
        here = T_ros_submap.pose(T_submap_camera)[:2, 3]
        if self._is_shown(view.submap) and np.abs(here).max() < FARTHEST:
            self._here = here
            self._limit(here, radius)
        self.revision += 1

    def look(self, view: FloorView, T_submap_camera: Array, T_ros_map: Similarity) -> None:
        """Takes the view of a frame that is no keyframe, which counts until all is carved anew;
        the newest ones after that too.

        A camera that stands makes no keyframes: so it sees what comes and goes. Its newest looks
        outvote all that was seen before, also what still waits, so that older ones are dropped.
        """
        T_ros_submap = T_ros_map @ self.table.submaps[view.submap].T_map_submap
        self._note(view, T_ros_submap.pose(T_submap_camera))
        self._newest[view.submap, view.key] = False
        self._looks[view.submap, view.key] = view
        own = [key for key, one in self._looks.items() if one.camera == view.camera]
        for key in own[:-LOOKS]:
            del self._looks[key], self._newest[key]
        self.revision += 1

    def stand_on(self, submap: int, T_ros_foot: Array, T_ros_map: Similarity) -> None:
        """Notes the floor [3] below the newest camera, in the map as it goes out: what was seen in
        other storeys is not in the grid. submap: of the camera."""
        if not self._is_shown(submap):
            return
        T_ros_submap = T_ros_map @ self.table.submaps[submap].T_map_submap
        self._feet.append((submap, T_ros_submap.inverse().points(T_ros_foot)))
        if self._storey is None and not self._views:
            self._storey = float(T_ros_foot[2])

    def _floors(self, T_ros_map: Similarity) -> list[float]:
        """Returns the heights of the floor below the newest cameras, as the map is now."""
        submaps = self.table.submaps
        return [
            float((T_ros_map @ submaps[id].T_map_submap).points(foot)[2])
            for id, foot in self._feet
            if self._is_shown(id)
        ]

    def _floor(self, T_ros_map: Similarity) -> float | None:
        """Returns that of them which is in the middle; None: none is known."""
        floors = sorted(self._floors(T_ros_map))
        return floors[len(floors) // 2] if floors else None

    def _has_climbed(self, T_ros_map: Similarity) -> bool:
        """Whether the newest cameras stand in another storey than the newest grid has."""
        floors = self._floors(T_ros_map)
        if self._storey is None:
            return bool(floors)
        return bool(floors) and min(abs(z - self._storey) for z in floors) > CLIMB

    def _settle_oldest(self, T_ros_map: Similarity) -> None:
        """Carves the oldest of the newest views into the grid, all in the order in which they
        came: evidence depends on it. A keyframe that waits holds up those after it."""
        keyframes = [key for key in self._newest if key not in self._looks]
        ready = len(keyframes) - NEWEST * len({camera for _, (camera, _) in keyframes})
        for key, waits in list(self._newest.items()):
            if ready <= 0 or (waits and len(keyframes) <= WAITING):
                break
            ready -= key not in self._looks
            self._settle(key, T_ros_map)

    def _note(self, view: FloorView, T_ros_camera: Array) -> None:
        camera, stamp_ns = view.key
        if not self._stands(camera, T_ros_camera):
            self._stood[camera] = T_ros_camera
        self._stamps[camera] = stamp_ns

    def _stands(self, camera: str, T_ros_camera: Array) -> bool:
        """Whether a camera is where it was."""
        before = self._stood.get(camera)
        if before is None:
            return False
        cosine = (np.sum(before[:3, :3] * T_ros_camera[:3, :3]) - 1) / 2
        moved = np.linalg.norm(T_ros_camera[:3, 3] - before[:3, 3])
        return bool(moved < self._resolution and cosine > np.cos(STANDS))

    def is_due(self, camera: str, stamp_ns: int, T_ros_camera: Array) -> bool:
        """Whether no view of a camera has come for so long that another frame is looked at; also
        when time has jumped back. T_ros_camera: [4, 4] in the map as it goes out."""
        wait = STANDING_NS if self._stands(camera, T_ros_camera) else LOOK_NS
        return abs(stamp_ns - self._stamps.get(camera, stamp_ns)) >= wait

    def replace(self, view: FloorView) -> None:
        """Replaces the view of a keyframe by that of its measured depth."""
        key = view.submap, view.key
        if self.view(*key) is not None:
            self._keep(view)
            self._stale |= key not in self._newest
            self.revision += 1

    def end_waiting(self, submap: int, key: Key) -> None:
        """Notes that the view of a keyframe stays as it is."""
        if (submap, key) in self._newest:
            self._newest[submap, key] = False

    def view(self, submap: int, key: Key) -> FloorView | None:
        """Returns the view of a keyframe; None: there is none."""
        return self._views.get(submap, {}).get(key)

    def views(self) -> tuple[FloorView, ...]:
        """Returns all views, in the order of submaps."""
        return tuple(v for id in sorted(self._views) for v in self._views[id].values())

    def restore(self, views: Iterable[FloorView]) -> None:
        """Takes over the views of a saved scene; its submaps and path are in the table."""
        for view in views:
            self._keep(view)
        for id, own in self._views.items():
            poses, reach = self._poses(id), 0.0
            for view in own.values():
                at = poses.get(view.key, np.zeros((4, 4)))[:3, 3]
                reach = max(reach, float(np.linalg.norm(at)) + view.reach)
            self._reach[id] = reach
        self._stale = True
        self.revision += 1

    def end_window(self, T_ros_map: Similarity) -> None:
        """Goes on to carve a grid anew after a window, if what it shows has moved by more than
        half a cell."""
        if self._next is None:
            if not (self._stale or self._has_moved(T_ros_map)):
                return
            self._begin(T_ros_map)
        self._carve_piece()

    def finish(self, T_ros_map: Similarity) -> None:
        """Carves all that has moved, now."""
        while self._next is not None:
            self._carve_piece()
        if self._stale or self._has_moved(T_ros_map):
            self._begin(T_ros_map)
        while self._next is not None:
            self._carve_piece()

    def grid(self, T_ros_map: Similarity) -> OccupancyGrid | None:
        """Returns the grid as it is now; None: no keyframe has seen the floor yet.

        Unconnected components are left out: where they are is not known.
        """
        if not self._shown.places and (self._stale or self._next is not None):
            self.finish(T_ros_map)  # of a loaded scene: there is nothing else to show
        grid = self._shown.grid.copy()
        for submap, key in self._newest:
            if (submap, key) in self._looks:
                self._carve_look(grid, self._looks[submap, key], T_ros_map)
                continue
            T = self._pose(submap, key)
            if T is not None:
                self._carve_at(grid, self._views[submap][key], T, T_ros_map)
        return grid.occupancy()

    def _carve_look(self, grid: FloorGrid, view: FloorView, T_ros_map: Similarity) -> None:
        camera, stamp_ns = view.key
        T = self.table.path.pose_at(stamp_ns, camera, view.submap)
        if T is not None:
            self._carve_at(grid, view, np.vstack((T, (0, 0, 0, 1))), T_ros_map)

    def _carve_at(
        self, grid: FloorGrid, view: FloorView, T_submap_camera: Array, T_ros_map: Similarity
    ) -> None:
        """Carves a view where its submap is now, if that is known and near."""
        if self._is_shown(view.submap):
            T_ros_submap = T_ros_map @ self.table.submaps[view.submap].T_map_submap
            place = view.place(T_ros_submap.pose(T_submap_camera), T_ros_submap.scale)
            # After a jump the oldest of them are elsewhere.
            if not self._is_far(place, self._floor(T_ros_map)):
                grid.carve(view, place, T_ros_submap.scale)

    def _is_far(self, place: Array, storey: float | None) -> bool:
        """Whether a place (x, y, yaw, z) is too far from the newest camera to be in the grid, or
        not in a storey."""
        here = self._here
        far = here is not None and np.abs(place[:2] - here).max() > self._radius
        return far or _is_elsewhere(place, storey)

    def _empty(self, T_ros_map: Similarity) -> _Carved:
        poses = {id: s.T_map_submap for id, s in self.table.submaps.items()}
        return _Carved(FloorGrid(self._resolution), T_ros_map, poses)

    def _keep(self, view: FloorView) -> None:
        own = self._views.setdefault(view.submap, {})
        self._nbytes += view.nbytes - (own[view.key].nbytes if view.key in own else 0)
        own[view.key] = view

    def _is_shown(self, submap: int) -> bool:
        """Whether it is known where a submap is."""
        own = self.table.submaps.get(submap)
        return own is not None and own.component == REFERENCE

    def _pose(self, submap: int, key: Key) -> Array | None:
        """Returns the pose [4, 4] of a keyframe in its submap; None: it is not stored any more."""
        T = self.table.path.pose_of(key[1], key[0], submap)
        if T is None:
            return self._poses(submap).get(key)
        return np.vstack((T, (0, 0, 0, 1)))

    def _poses(self, submap: int) -> dict[Key, Array]:
        frames = self.table.path.frames_of([submap], 0)
        return {(f.camera, f.stamp_ns): f.T_submap_camera for f in frames}

    # What is in the grid -------------------------------------------------------------------------

    def _settle(self, key: tuple[int, Key], T_ros_map: Similarity) -> None:
        """Carves one of the newest views into the grid, where it stays until all is carved
        anew."""
        del self._newest[key]
        if look := self._looks.pop(key, None):
            if self._shown.places:
                self._carve_look(self._shown.grid, look, T_ros_map)
            return
        submap, T = key[0], self._pose(*key)
        if T is None:
            self._forget([key])
            return
        if not self._is_shown(submap):
            return
        if not self._shown.places:
            self._shown.T_ros_map = T_ros_map
        if submap not in self._shown.T_ros_submap:  # it may have moved since the grid began
            self._shown.T_map_submap.pop(submap, None)
        self._carve(self._shown, key, T)
        if self._next is not None and submap not in self._next.todo:
            self._next.late.append(key)  # evidence depends on the order of views

    def _carve(self, carved: _Carved, key: tuple[int, Key], T_submap_camera: Array) -> None:
        submap = key[0]
        if submap not in carved.T_ros_submap:
            now = self.table.submaps[submap].T_map_submap
            T_map_submap = carved.T_map_submap.setdefault(submap, now)
            carved.T_ros_submap[submap] = carved.T_ros_map @ T_map_submap
        T = carved.T_ros_submap[submap]
        view = self._views[submap][key[1]]
        carved.places[key] = view.place(T.pose(T_submap_camera), T.scale)
        if self._is_far(carved.places[key], self._storey):
            carved.far.add(key)
        else:
            carved.grid.carve(view, carved.places[key], T.scale)

    def _begin(self, T_ros_map: Similarity) -> None:
        """Begins a new grid, of all submaps where they are now."""
        self._corrected = self._stale = False
        self._storey = self._floor(T_ros_map)
        self._next = self._empty(T_ros_map)
        self._next.todo = [id for id in sorted(self._views, reverse=True) if self._is_shown(id)]

    def _carve_piece(self) -> None:
        """Carves the views of the next submaps, and shows the new grid once it is complete."""
        carved, count = self._next, 0
        assert carved is not None
        while carved.todo and count < PIECE:
            submap = carved.todo.pop()
            poses = self._poses(submap) if submap in self.table.submaps else {}
            gone = [(submap, key) for key in self._views.get(submap, ()) if key not in poses]
            self._forget(gone)
            for key in self._views.get(submap, ()):
                if (submap, key) not in self._newest:
                    self._carve(carved, (submap, key), poses[key])
                    count += 1
        if not carved.todo:
            for late in carved.late:
                T = self._pose(*late) if self.view(*late) is not None else None
                if T is not None:
                    self._carve(carved, late, T)
            if self._here is not None:
                self._crop(carved, self._here, self._radius)
            self._shown, self._next = carved, None
            self.revision += 1

    def _has_moved(self, T_ros_map: Similarity) -> bool:
        """Whether anything in the grid has moved by more than half a cell, another component is
        shown, or the cameras are in another storey."""
        if self._feet and self._has_climbed(T_ros_map):
            return True
        shown, most = self._shown, self._resolution / 2
        if not shown.places and not self._corrected:
            return False
        if not self._corrected and _shift(shown.T_ros_map, T_ros_map, shown.grid.reach) <= most:
            return False
        self._corrected = False
        submaps = self.table.submaps
        settled = {id for id, own in self._views.items()
                   if any((id, key) not in self._newest for key in own)}  # fmt: skip
        now = {id for id in settled if self._is_shown(id)}
        if now != shown.T_ros_submap.keys():
            return True
        for id, before in shown.T_ros_submap.items():
            after = T_ros_map @ submaps[id].T_map_submap
            if _shift(before, after, before.scale * self._reach[id]) > most:
                return True
        return False

    # Limits --------------------------------------------------------------------------------------

    def _limit(self, here: Array, radius: float) -> None:
        """Drops what is too far from the newest camera [2], and the oldest views if all take too
        much memory."""
        shown = min(radius or self._radius, self._radius)
        self._crop(self._shown, here, shown)
        if self._next is None:
            self._stale |= self._returns(here, RETURN * shown)
        if radius:
            places = self._shown.places
            self._forget([k for k, p in places.items() if np.abs(p[:2] - here).max() > radius])
        while self._nbytes > MEMORY and len(self._views) > 1:
            oldest = min(self._views)
            self._forget([(oldest, key) for key in self._views[oldest]])

    def _crop(self, carved: _Carved, here: Array, radius: float) -> None:
        """Drops the blocks of a grid that are too far, and notes whose they were."""
        if carved.grid.crop(here, radius):
            carved.far |= {k for k in carved.places if self._farthest(carved, k, here) > radius}

    def _returns(self, here: Array, radius: float) -> bool:
        """Whether all that a view saw which has left the grid, or a part of it, is near to the
        camera [2] again."""
        shown = self._shown
        return any(self._farthest(shown, key, here) < radius for key in shown.far)

    def _farthest(self, carved: _Carved, key: tuple[int, Key], here: Array) -> float:
        """Returns how far what a view has seen is from a place [2], at most; +Inf: it is in
        another storey."""
        place = carved.places[key]
        if _is_elsewhere(place, self._storey):
            return math.inf
        view, T = self._views[key[0]][key[1]], carved.T_ros_submap[key[0]]
        return float(np.abs(place[:2] - here).max() + T.scale * view.reach)

    def _forget(self, keys: Iterable[tuple[int, Key]]) -> None:
        for submap, key in keys:
            gone = self._views.get(submap, {}).pop(key, None)
            self._newest.pop((submap, key), None)
            if gone is None:  # forgotten before
                continue
            self._nbytes -= gone.nbytes
            for carved in (self._shown, self._next):
                if carved is not None:
                    carved.places.pop((submap, key), None)
                    carved.far.discard((submap, key))
            if not self._views[submap]:
                del self._views[submap], self._reach[submap]
                for carved in (self._shown, self._next):
                    if carved is not None:
                        carved.T_ros_submap.pop(submap, None)


def _is_elsewhere(place: Array, storey: float | None) -> bool:
    """Whether a place (x, y, yaw, z) is not in a storey, by the height of its floor."""
    return storey is not None and abs(float(place[3]) - storey) > STOREY


def _shift(before: Similarity, after: Similarity, reach: float) -> float:
    """Returns the largest distance, at most, by which a point has moved that is no farther than
    ``reach`` (in the target's unit) from the source's origin."""
    turn = float(np.linalg.norm(before.R - after.R))
    grown = abs(after.scale / before.scale - 1)
    return float(np.linalg.norm(after.t - before.t)) + reach * (turn + grown)
