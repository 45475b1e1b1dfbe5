"""The occupancy map moves with the map's table: at a bounded rate, and only if it must."""

import dataclasses
import itertools

import numpy as np
import pytest
from support.floors import RES, pose_at, square_view
from support.submaps import adjust

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.frames import LocalFrame, PoseInSubmap
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.submap_spill import Submap
from da3_ros.navigation import floor_grid, occupancy
from da3_ros.navigation.occupancy import FEET, NEWEST, PIECE, OccupancyMap
from da3_ros.replay.object_state import load_state, save_state
from da3_ros.types import Scale, WindowReport

REPORT = WindowReport(0, 0, (0,), 1, True, 0.0, 1.0, 1.0)
KEYFRAMES = 4  # of a submap
UNIT = 0.5  # metres per unit of a submap


class Drive:
    """A table and its occupancy map while a camera drives through the square room."""

    def __init__(self):
        self.table = MapTable()
        self.map = OccupancyMap(self.table, RES)
        self.true = {}  # pose of each submap, as it is at first
        self.count = 0

    def frame(self, T):
        return LocalFrame(
            self.count, self.count, "", "", np.zeros((4, 6, 3), np.uint8),
            np.ones((4, 6), np.float32), np.ones((4, 6), np.float32), np.eye(3), T,
            Scale("fixed", 1.0), REPORT, keyframe=True,
        )  # fmt: skip

    def submap(self, component=0):
        """Begins a submap that is turned, moved and in another unit."""
        id = len(self.true)
        c, s = np.cos(id), np.sin(id)
        R = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        self.true[id] = Similarity(UNIT, R, np.array([0.1 * id, -0.2 * id, 0.0]))
        one = Submap(id, 0, self.true[id])
        one.component = component
        self.table.add_submap(one)
        return id

    def see(self, submap, x, y, yaw, **given):
        """Adds a keyframe at its true place."""
        T = self.true[submap].inverse().pose(pose_at(x, y, yaw))
        self.table.path.add_pose(self.frame(T), T, submap)
        view = square_view(x, y, yaw, (self.count, "", submap), UNIT)
        self.map.add(view, T, IDENTITY, **given)
        self.count += 1
        return view

    def ride(self, submaps, component=0):
        """Adds submaps along a circle."""
        for _ in range(submaps):
            submap = self.submap(component)
            for k in range(KEYFRAMES):
                turn = 0.7 * (submap * KEYFRAMES + k)
                self.see(submap, 1.2 * np.cos(turn), 1.2 * np.sin(turn), turn + 1.6)
        return self

    def correct(self, moves):
        """Moves submaps in the map."""
        nodes = tuple(Node(id, id) for id in self.true)
        moves = Moves(nodes, tuple(moves.get(id, IDENTITY) for id in self.true))
        self.table.correct(Correction(moves, IDENTITY, IDENTITY))

    def windows(self):
        """Runs windows until nothing is carved any more; returns their number."""
        for count in itertools.count():
            before = self.map.revision
            self.map.end_window(IDENTITY)
            if self.map.revision == before and self.map._next is None:
                return count


def anew(drive):
    """The grid of the same views in a map that begins with them."""
    fresh = OccupancyMap(drive.table, RES)
    drive.table.listeners.remove(fresh)
    fresh.restore(drive.map.views())
    return fresh.grid(IDENTITY)


def same(a, b):
    return a.same_geometry(b) and np.array_equal(a.cells, b.cells)


def moved(x, yaw=0.0, scale=1.0):
    c, s = np.cos(yaw), np.sin(yaw)
    R = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return Similarity(scale, R, np.array([x, 0.0, 0.0]))


@pytest.mark.parametrize("move", [moved(0.5), moved(0, 0.2), moved(0, 0, 1.2)])
def test_a_correction_carves_anew_piece_by_piece(move):
    drive = Drive().ride(24)
    before = drive.map.grid(IDENTITY)
    drive.correct(dict.fromkeys(range(12), move))
    assert same(drive.map.grid(IDENTITY), before)
    drive.map.end_window(IDENTITY)
    assert same(drive.map.grid(IDENTITY), before)  # until the new one is complete
    assert drive.windows() >= 24 * KEYFRAMES // PIECE - 2
    after = drive.map.grid(IDENTITY)
    assert same(after, anew(drive))
    assert not same(after, before)


def test_a_move_of_less_than_half_a_cell_carves_nothing():
    drive = Drive().ride(12)
    drive.correct({2: moved(0.4 * RES)})
    assert drive.windows() == 0


def test_new_views_count_while_the_grid_is_carved_anew():
    drive = Drive().ride(12)
    drive.correct(dict.fromkeys(range(6), moved(0.5)))
    drive.map.end_window(IDENTITY)
    drive.ride(3)
    drive.windows()
    assert same(drive.map.grid(IDENTITY), anew(drive))


def test_a_keyframe_that_moves_in_its_submap_is_carved_anew():
    drive = Drive().ride(12)
    frames = drive.table.path.frames_of([1], 0)
    far = [PoseInSubmap(f.stamp_ns, "", 1, f.T_submap_camera.copy()) for f in frames]
    for f in far:
        f.T_submap_camera[0, 3] += 0.5
    adjust(drive.table, far)
    assert drive.windows() > 0
    assert same(drive.map.grid(IDENTITY), anew(drive))


def test_the_newest_views_lie_where_they_are_now():
    drive = Drive().ride(3)
    last = drive.table.path.frames_of([2], 0)[-1:]
    last[0].T_submap_camera[0, 3] += 0.5
    adjust(drive.table, last)
    assert drive.windows() == 0
    assert same(drive.map.grid(IDENTITY), anew(drive))


def test_the_scale_and_the_axes_of_the_map_count():
    drive = Drive().ride(12)
    small = drive.map.grid(IDENTITY)
    grown = moved(0, 0, 1.5)
    for _ in range(12):
        drive.map.end_window(grown)
    cells = (drive.map.grid(grown).cells == 0).sum()
    assert cells > 1.8 * (small.cells == 0).sum()


def test_an_unconnected_component_is_left_out_until_it_joins():
    drive = Drive().ride(6)
    alone = drive.map.grid(IDENTITY)
    drive.ride(6, component=1)
    drive.map.finish(IDENTITY)
    assert same(drive.map.grid(IDENTITY), alone)
    for submap in drive.table.submaps.values():
        submap.component = 0
    drive.correct({})
    assert drive.windows() > 0
    joined = drive.map.grid(IDENTITY)
    assert same(joined, anew(drive))
    assert not same(joined, alone)


def test_a_reset_forgets_all():
    drive = Drive().ride(4)
    drive.table.clear()
    assert drive.map.grid(IDENTITY) is None
    assert drive.map.views() == ()


def test_measured_depth_replaces_a_view_that_waits_without_carving_anew():
    drive = Drive()
    submap = drive.submap()
    for k in range(NEWEST + 2):
        drive.see(submap, 0.0, 0.0, 0.1 * k, waiting=True)
    view = square_view(0, 0, 0.0, (0, "", submap), UNIT, pillar=(2, 0, 0.3))
    drive.map.replace(view)
    drive.map.end_waiting(submap, view.key)
    assert drive.map.view(submap, view.key) is view
    assert drive.windows() == 0
    assert same(drive.map.grid(IDENTITY), anew(drive))
    drive.see(submap, 0.0, 0.0, 0.0)
    later = square_view(0, 0, 0.0, (0, "", submap), UNIT)
    drive.map.replace(later)  # it is in the grid by now
    assert drive.windows() > 0
    assert same(drive.map.grid(IDENTITY), anew(drive))


def test_the_oldest_views_leave_memory_first(monkeypatch):
    drive = Drive().ride(4)
    monkeypatch.setattr(occupancy, "MEMORY", sum(v.nbytes for v in drive.map.views()))
    drive.ride(4)
    kept = drive.map.views()
    assert sum(v.nbytes for v in kept) <= occupancy.MEMORY
    assert {v.submap for v in kept} == set(range(8 - len({v.submap for v in kept}), 8))


def test_what_is_too_far_leaves():
    drive, submap = Drive(), 0
    for k in range(60):
        submap = drive.submap() if k % KEYFRAMES == 0 else submap
        T = drive.true[submap].inverse().pose(pose_at(k, 0, 0))
        drive.table.path.add_pose(drive.frame(T), T, submap)
        view = square_view(0, 0, 0, (drive.count, "", submap), UNIT)
        drive.map.add(view, T, IDENTITY, radius=10.0)
        drive.count += 1
    grid = drive.map.grid(IDENTITY)
    assert grid.origin[0] > 59 - 10 - 128 * RES
    assert grid.cells.shape[1] * RES <= 2 * 10 + 2 * 128 * RES
    assert len(drive.map.views()) < 30


def test_an_interrupted_map_goes_on(tmp_path):
    drive = Drive().ride(12)
    drive.correct(dict.fromkeys(range(6), moved(0.5)))
    drive.map.end_window(IDENTITY)
    save_state(tmp_path / "state", {"drive": drive.map}, {})
    table = MapTable()
    again = load_state(tmp_path / "state", "drive", OccupancyMap(table, RES), {})
    for _ in range(12):
        drive.map.end_window(IDENTITY)
        again.end_window(IDENTITY)
        assert same(again.grid(IDENTITY), drive.map.grid(IDENTITY))


def test_unconnected_components_are_left_out():
    drive = Drive().ride(3)
    with_one = drive.map.grid(IDENTITY)
    drive.ride(1)  # the same place, then declared to be elsewhere
    drive.table.submaps[3].component = 1
    again = drive.map.grid(IDENTITY)
    assert again.same_geometry(with_one)
    alone = Drive()
    submap = alone.submap(component=1)
    alone.see(submap, 0.0, 0.0, 0.0)
    assert alone.map.grid(IDENTITY) is None  # also where there is no other one


def test_a_loaded_scene_is_whole_at_once():
    drive = Drive().ride(6)
    fresh = OccupancyMap(drive.table, RES)
    fresh.restore(drive.map.views())
    fresh.end_window(IDENTITY)  # nobody asked before
    assert np.array_equal(fresh.grid(IDENTITY).cells, anew(drive).cells)


def test_a_submap_that_moved_while_its_views_were_new_is_carved_where_it_is():
    drive = Drive().ride(4)
    drive.correct({0: Similarity(1.0, np.eye(3), np.array([0.4, 0.0, 0.0]))})
    drive.windows()
    drive.correct({3: Similarity(1.0, np.eye(3), np.array([0.0, 0.6, 0.0]))})
    drive.windows()
    drive.ride(3)
    drive.map.finish(IDENTITY)
    assert np.array_equal(drive.map.grid(IDENTITY).cells, anew(drive).cells)


def test_a_jump_keeps_the_grid_small_and_the_views():
    drive = Drive().ride(4)
    views = len(drive.map.views())
    submap = drive.submap()
    for x in (5000.0, 1e12):
        drive.see(submap, x, 0.0, 0.0)
        assert drive.map.grid(IDENTITY).cells.size < 10_000_000
    assert len(drive.map.views()) == views + 2


class Standing(Drive):
    """A camera that stands before a person in free floor."""

    def __init__(self, *, crowded=True, **given):
        super().__init__()
        self.own = self.submap()
        self.T = self.true[self.own].inverse().pose(pose_at(0.0, 0.0, 0.0))
        self.see(self.own, 0.0, 0.0, 0.0, **given)
        self.empty = square_view(0.0, 0.0, 0.0, (0, "", self.own), UNIT)
        middle = np.array([[60, 0]], np.int16)
        marks = np.concatenate((self.empty.marks, middle))
        self.crowded = dataclasses.replace(self.empty, marks=marks)
        for stamp in range(1, 4):
            frame = dataclasses.replace(self.frame(self.T), stamp_ns=stamp)
            self.table.path.add_pose(frame, self.T, self.own)
            view = dataclasses.replace(self.crowded if crowded else self.empty, stamp_ns=stamp)
            self.map.add(view, self.T, IDENTITY, **given)

    def turn_away(self, **given):
        """A keyframe that sees nothing of the person's cell."""
        stamp = self.map._stamps[""] + 200_000_000
        frame = dataclasses.replace(self.frame(self.T), stamp_ns=stamp)
        self.table.path.add_pose(frame, self.T, self.own)
        marks, free = np.array([[-60, 0]], np.int16), np.full_like(self.empty.free, np.nan)
        view = dataclasses.replace(self.empty, stamp_ns=stamp, marks=marks, free=free)
        self.map.add(view, self.T, IDENTITY, **given)

    def look(self, view, count=1, every_ns=200_000_000):
        """Frames at 5 Hz that are no keyframes."""
        for _ in range(count):
            stamp = self.map._stamps[""] + every_ns
            frame = dataclasses.replace(self.frame(self.T), stamp_ns=stamp, keyframe=False)
            self.table.path.add_pose(frame, self.T, self.own)
            if self.map.is_due("", stamp, pose_at(0.0, 0.0, 0.0)):
                self.map.look(dataclasses.replace(view, stamp_ns=stamp), self.T, IDENTITY)

    @property
    def cell(self):
        """The cell of the person."""
        where = UNIT * self.empty.cell * np.array([60.5, 0.5])
        grid = self.map.grid(IDENTITY)
        column, row = ((where - grid.origin) // RES).astype(int)
        return grid.cells[row, column]


@pytest.mark.parametrize("waiting", [False, True])
def test_a_standing_camera_sees_within_a_second_what_is_gone(waiting):
    """Also while its keyframes wait for measured depth."""
    drive = Standing(waiting=waiting)
    assert drive.cell == 100
    drive.look(drive.empty, 5)
    assert drive.cell == 0
    assert len(drive.map.views()) == 4
    drive.look(drive.empty, 10)
    drive.look(drive.crowded, 5)
    assert drive.cell == 100


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("comes", [False, True])
def test_looks_count_after_the_keyframes_before_them(waiting, comes):
    """Also once these have waited for measured depth, and later keyframes show something else."""
    drive = Standing(waiting=waiting)
    if comes:  # a person who is not in the keyframes
        drive = Standing(waiting=waiting, crowded=False)
    assert drive.cell == (0 if comes else 100)
    drive.look(drive.crowded if comes else drive.empty, 8)
    seen = 100 if comes else 0
    assert drive.cell == seen
    drive.turn_away(waiting=waiting)
    assert drive.cell == seen
    for submap, key in list(drive.map._newest):
        drive.map.end_waiting(submap, key)
    for _ in range(2 * NEWEST):
        drive.turn_away()
    assert not drive.map._looks  # all is in the grid
    assert drive.cell == seen


def test_looks_of_a_camera_are_few():
    drive = Standing(waiting=True)
    drive.look(drive.empty, 50)
    assert len(drive.map._looks) == occupancy.LOOKS
    assert len(drive.map._newest) == 4 + occupancy.LOOKS


def test_what_a_standing_camera_has_seen_outlasts_a_correction():
    drive = Standing()
    drive.look(drive.empty, 5)
    drive.map.restore(())  # all is carved anew
    drive.windows()
    assert drive.cell == 0


def test_a_moving_camera_looks_once_a_second():
    there, elsewhere = pose_at(0.0, 0.0, 0.0), pose_at(0.1, 0.0, 0.0)
    turned = pose_at(0.0, 0.0, np.radians(3))
    drive = Standing()
    assert not drive.map.is_due("", 100_000_000, there)
    assert drive.map.is_due("", 200_000_000, there)
    for T in (elsewhere, turned):
        assert not drive.map.is_due("", 500_000_000, T)
        assert drive.map.is_due("", 2_000_000_000, T)
        assert drive.map.is_due("", -2_000_000_000, T)
    assert not drive.map.is_due("another", 2_000_000_000, there)


class Far(Drive):
    """A camera that drives along x, and sees a square room around it everywhere."""

    def go(self, xs, y=0.0):
        for i, x in enumerate(xs):
            submap = self.submap() if i % KEYFRAMES == 0 else len(self.true) - 1
            T = self.true[submap].inverse().pose(pose_at(x, y, 0))
            self.table.path.add_pose(self.frame(T), T, submap)
            self.map.add(square_view(0, 0, 0, (self.count, "", submap), UNIT), T, IDENTITY)
            self.map.end_window(IDENTITY)
            self.count += 1

    def known(self, low, high):
        """Number of known cells between two x."""
        grid = self.map.grid(IDENTITY)
        x = grid.origin[0] + (np.arange(grid.cells.shape[1]) + 0.5) * RES
        return int((grid.cells[:, (x > low) & (x < high)] >= 0).sum())


def test_what_was_left_behind_is_there_again_when_the_camera_returns():
    drive = Far()
    drive.go(np.arange(0.0, 40.0, 2.0))
    before = drive.known(0, 20)
    drive.go(np.arange(40.0, 100.0, 2.0))
    assert drive.known(0, 20) == 0
    drive.go(np.arange(100.0, 30.0, -2.0))
    drive.windows()
    assert drive.known(0, 20) > 0.98 * before > 1000


@pytest.mark.parametrize("begin", [0.0, 4.5])
def test_what_a_near_view_saw_beyond_the_grids_end_comes_back(begin):
    """The view's place is within the radius all the time; part of its floor is not."""
    drive, low, high = Far(), begin + 0.5, begin + 9
    drive.go(begin - np.arange(0.0, 20.0, 2.0))
    before = drive.known(low, high)
    drive.go(begin - np.arange(20.0, 61.0, 2.0))
    drive.go(begin - np.arange(59.0, 7.0, -2.0))
    drive.windows()
    assert drive.known(low, high) == pytest.approx(before, rel=0.02)
    assert before > 1000


def test_a_place_that_is_left_for_good_is_not_carved_again():
    drive = Far()
    drive.go(np.arange(0.0, 200.0, 2.0))
    assert drive.windows() == 0


def test_a_large_map_that_is_carved_anew_has_what_is_near(monkeypatch):
    monkeypatch.setattr(floor_grid, "MOST_CELLS", 900_000)  # of the way: a million
    drive = Far()
    drive.go(np.arange(0.0, 200.0, 2.0))
    before = drive.known(150, 200)
    drive.correct({0: moved(0.1)})
    assert drive.windows() > 0
    assert drive.known(150, 200) == pytest.approx(before, rel=0.02)
    assert before > 1000


def test_small_cells_leave_room_for_what_is_near():
    fine = OccupancyMap(MapTable(), 0.01)
    side = 2 * (fine._radius + 5.0 + floor_grid.BLOCK * 0.01) / 0.01
    assert side**2 < floor_grid.MOST_CELLS
    assert OccupancyMap(MapTable(), RES)._radius == occupancy.RADIUS


class Storeys(Drive):
    """A camera that drives through square rooms with floors at several heights."""

    def see_from(self, x, floor, *, keyframe=True, **given):
        """Sees the room, with what stands in it, from ``x``; returns the windows until nothing is
        carved any more."""
        if self.count % KEYFRAMES == 0:
            self.submap()
        submap = len(self.true) - 1
        T_map = pose_at(x, 0.0, 0.0)
        T_map[2, 3] += floor
        T = self.true[submap].inverse().pose(T_map)
        self.stand_on(submap, floor)
        if keyframe:
            self.table.path.add_pose(self.frame(T), T, submap)
            view = square_view(x, 0.0, 0.0, (self.count, "", submap), UNIT, **given)
            self.map.add(view, T, IDENTITY)
        self.count += 1
        return self.windows()

    def stand_on(self, submap, floor, T_ros_map=IDENTITY, frames=1):
        for _ in range(frames):
            self.map.stand_on(submap, T_ros_map.points(np.array([0.0, 0.0, floor])), T_ros_map)

    def known(self, T_ros_map=IDENTITY):
        grid = self.map.grid(T_ros_map)
        return 0 if grid is None else np.count_nonzero(grid.cells >= 0)

    def cell(self, x, y):
        grid = self.map.grid(IDENTITY)
        column, row = np.floor((np.array([x, y]) - grid.origin) / RES).astype(int)
        return grid.cells[row, column]


PILLAR = {"pillar": (1.5, 0.0, 0.2)}
BEFORE_IT, IN_THE_WAY = (0.5, 0.0), (1.325, 0.0)


def test_another_storey_is_not_in_the_grid_and_comes_back():
    drive = Storeys()
    for x in np.linspace(-2, 0.2, 12):
        drive.see_from(x, 0.0, **PILLAR)
    assert drive.cell(*IN_THE_WAY) == 100
    below = drive.map.grid(IDENTITY)
    for floor in np.arange(0.2, 2.9, 0.2):  # by a lift: it sees no floor on the way
        drive.see_from(0.2, floor, keyframe=False)
    again = [drive.see_from(x, 2.8) for x in np.linspace(0.2, -2, 12)]
    assert sum(again) <= 2, "it is carved again and again"
    assert drive.cell(*IN_THE_WAY) == 0
    fresh = Storeys()
    for x in np.linspace(0.2, -2, 12):
        fresh.see_from(x, 2.8)
    assert same(drive.map.grid(IDENTITY), fresh.map.grid(IDENTITY))
    for floor in (*np.arange(2.6, -0.1, -0.2), *[0.0] * FEET):
        drive.see_from(0.2, floor, keyframe=False)
    assert same(drive.map.grid(IDENTITY), below)
    assert drive.cell(*IN_THE_WAY) == 100


def test_a_slope_and_a_bent_map_are_one_storey():
    drive = Storeys()
    for x in np.linspace(-2, 0.2, 12):
        drive.see_from(x, 0.6 * (x + 2), **PILLAR)
    flat = Storeys()
    for x in np.linspace(-2, 0.2, 12):
        flat.see_from(x, 0.0, **PILLAR)
    assert same(drive.map.grid(IDENTITY), flat.map.grid(IDENTITY))
    assert drive.cell(*BEFORE_IT) == 0


def test_in_a_loaded_map_the_first_place_tells_the_storey():
    drive = Storeys()
    for x in np.linspace(-2, 0.2, 12):
        drive.see_from(x, 0.0, **PILLAR)
    for x in np.linspace(0.2, -2, 12):
        drive.see_from(x, 2.8)
    loaded = OccupancyMap(drive.table, RES)
    loaded.restore(drive.map.views())
    assert loaded.grid(IDENTITY) is not None
    for floor, expected in ((0.0, 100), (2.8, 0)):
        drive.map = loaded
        drive.stand_on(0, floor, frames=FEET)
        drive.windows()
        assert drive.cell(*IN_THE_WAY) == expected


def test_where_an_unconnected_camera_stands_says_nothing():
    drive = Storeys()
    for x in np.linspace(-2, 0.2, 12):
        drive.see_from(x, 0.0, **PILLAR)
    drive.stand_on(drive.submap(component=1), 2.8, frames=FEET)
    assert drive.windows() == 0
    assert drive.cell(*IN_THE_WAY) == 100


def storey_of_pillar():
    drive = Storeys()
    for x in np.linspace(-2, 0.2, 12):
        drive.see_from(x, 0.0, **PILLAR)
    return drive


def test_a_map_that_moves_up_keeps_its_storey():
    """A loop may close after the last frame, and a global pose may place the map far up, while
    the camera sees no floor."""
    up = Similarity(1.0, np.eye(3), np.array([0.0, 0.0, 3.0]))
    drive = storey_of_pillar()
    before = drive.map.grid(IDENTITY)
    drive.correct(dict.fromkeys(drive.true, up))
    assert drive.known() == np.count_nonzero(before.cells >= 0)
    drive.map.finish(IDENTITY)
    assert same(drive.map.grid(IDENTITY), before)
    drive = storey_of_pillar()
    drive.map.finish(up)
    assert same(drive.map.grid(up), before)
    drive = storey_of_pillar()
    drive.map.end_window(up)
    assert same(drive.map.grid(up), before)


def test_a_few_frames_with_another_floor_change_nothing():
    """A pit, a table, or one of two cameras whose mount is somewhat wrong."""
    drive = storey_of_pillar()
    before = drive.map.grid(IDENTITY)
    for floors in ((-3.0,), (0.0, -3.0), (0.0, 0.6), (0.6, 0.0)) * FEET:
        for floor in floors:
            drive.stand_on(0, floor)
        drive.map.end_window(IDENTITY)
        assert drive.map._storey == 0.0
        assert same(drive.map.grid(IDENTITY), before)
        drive.stand_on(0, 0.0, frames=2)
    drive.stand_on(0, -3.0)
    up = Similarity(1.0, np.eye(3), np.array([0.0, 0.0, 0.2]))
    drive.map.finish(up)  # it is begun anew, with the wrong one as the newest
    assert same(drive.map.grid(up), before)
