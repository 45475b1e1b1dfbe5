"""The grid of the floor against exact rooms: what is missed, what is false, what goes away."""

import numpy as np
import pytest
from support.cases import long_after
from support.floors import (
    HALF,
    RES,
    errors,
    level_of,
    room_and_frames,
    seen_cells,
    solid_cells,
    square_view,
    view_of,
)
from support.solids import K, Solid, camera_at, depth_of

from da3_ros.config import ObstacleConfig
from da3_ros.mapping.floor_view import floor_view
from da3_ros.navigation.floor_grid import BLOCK, FREE, OCCUPIED, UNKNOWN, FloorGrid
from da3_ros.navigation.sighting import sight


def at(grid, x, y):
    return grid.cells[tuple(np.floor((np.array([y, x]) - grid.origin[::-1]) / RES).astype(int))]


def carved(*views):
    """The grid of views, each with its place."""
    grid = FloorGrid(RES)
    for view, place in views:
        grid.carve(view, np.array(place, float), 1.0)
    return grid.occupancy()


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(1, [3, 4]))
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_rooms_are_as_they_are_to_one_cell(seed, noise):
    room, poses, depths, K = room_and_frames(seed)
    rng, grid = np.random.default_rng(seed), FloorGrid(RES)
    for T, depth in zip(poses, depths, strict=True):
        noisy = depth * np.exp(noise * rng.normal(size=depth.shape)).astype(np.float32)
        view = view_of(noisy, K, level_of(T))
        grid.carve(view, view.place(T, 1.0), 1.0)
    found = grid.occupancy()
    solid = solid_cells(room, found.origin, found.cells.shape)
    seen = seen_cells(poses, depths, K, found.origin, found.cells.shape)
    missed, false = errors(found, solid, seen)
    assert seen.sum() > 50
    assert missed < 0.01
    assert false < 0.02


def test_a_view_says_what_is_free_occupied_and_unknown():
    grid = carved((square_view(0, 0, 0, (1, "", 0)), (0, 0, 0)))
    assert at(grid, 2, 0) == FREE
    assert at(grid, HALF + 0.01, 0) == OCCUPIED
    assert at(grid, HALF + 0.3, 0) == UNKNOWN
    assert at(grid, -1, 0) == UNKNOWN  # behind the camera
    assert at(grid, 0.85, 0) == UNKNOWN  # nearer than the floor that it sees


def test_a_thin_pole_marks_the_cell_that_is_else_seen_free():
    grid = carved((square_view(0, 0, 0, (1, "", 0), pillar=(1.3, 0.01, 0.008)), (0, 0, 0)))
    assert at(grid, 1.29, 0.01) == OCCUPIED
    assert at(grid, 1.29, 0.1) == FREE


def test_a_view_lies_where_its_keyframe_is():
    grid = carved((square_view(1, -1, np.pi / 2, (1, "", 0)), (1, -1, np.pi / 2)))
    assert at(grid, 1, 2) == FREE
    assert at(grid, 1, HALF + 0.01) == OCCUPIED
    assert at(grid, 2.9, -1) == UNKNOWN


def test_what_is_gone_is_free_after_a_few_views_and_what_comes_is_seen():
    pillar, place = (2.0, 0.0, 0.2), (0, 0, 0)
    there = (square_view(0, 0, 0, (1, "", 0), pillar=pillar), place)
    gone = (square_view(0, 0, 0, (1, "", 0)), place)
    assert at(carved(there, there, there), 1.81, 0) == OCCUPIED
    assert at(carved(*[there] * 9, *[gone] * 3), 1.81, 0) != FREE
    assert at(carved(*[there] * 9, *[gone] * 4), 1.81, 0) == FREE
    assert at(carved(*[gone] * 9, *[there] * 3), 1.81, 0) == OCCUPIED


def test_a_wall_seen_along_it_stays():
    """A camera close to a wall that looks along it, from many places."""
    views = [
        (square_view(x, HALF - 0.3, 0, (1, "", 0)), (x, HALF - 0.3, 0))
        for x in np.linspace(-2, 1, 40)
    ]
    grid = carved(*views)
    wall = [at(grid, x, HALF + 0.01) for x in np.arange(0.0, 2.8, RES)]
    assert wall.count(OCCUPIED) >= 0.97 * len(wall)


def test_a_grid_grows_in_blocks_and_keeps_what_it_has():
    grid = FloorGrid(RES)
    grid.carve(square_view(0, 0, 0, (1, "", 0)), np.zeros(3), 1.0)
    before = grid.occupancy()
    grid.carve(square_view(0, 0, 0, (1, "", 0)), np.array([-9.0, 1.0, 0.0]), 1.0)
    after = grid.occupancy()
    for one in (before, after):
        assert all(k % BLOCK == 0 for k in one.cells.shape)
        assert np.allclose(
            np.remainder(np.array(one.origin) / np.float32(RES) + 1e-6, BLOCK), 0, atol=1e-4
        )
    assert at(after, 2, 0) == FREE
    assert not before.same_geometry(after)


def test_a_crop_drops_whole_blocks():
    grid = FloorGrid(RES)
    for x in (0.0, 40.0):
        grid.carve(square_view(0, 0, 0, (1, "", 0)), np.array([x, 0.0, 0.0]), 1.0)
    assert grid.crop(np.array([40.0, 0.0]), 10.0)
    assert not grid.crop(np.array([40.0, 0.0]), 10.0)
    left = grid.occupancy()
    assert at(left, 42, 0) == FREE
    assert left.origin[0] > 20


@pytest.mark.parametrize("camera", [camera_at(1.0, 15.0), camera_at(0.3)], ids=["high", "low"])
@pytest.mark.parametrize("lower", [0.25, 2.0, np.inf], ids=["step", "storey", "nothing"])
def test_a_way_down_is_not_free(camera, lower):
    ledge = Solid((-5, -5, -0.01), (2.0, 5, 0))
    below = [] if np.isinf(lower) else [Solid((-90, -90, -lower - 1), (90, 90, -lower))]
    cells = seen_of(camera, [ledge, *below], floor=False)
    assert [cells(x, 0.0) for x in (1.3, 1.6)] == [0, 0]
    assert [cells(x, 0.0) for x in (2.2, 2.5, 3.0, 3.5, 4.1)] == [-1] * 5


def test_what_lies_behind_a_trench_is_not_free():
    floor = [Solid((-5, -5, -0.01), (1.8, 5, 0)), Solid((2.4, -5, -0.01), (9, 5, 0))]
    cells = seen_of(camera_at(1.0, 15.0), floor, floor=False)
    assert cells(1.5, 0.0) == 0
    assert [cells(x, 0.0) for x in (2.1, 2.8, 3.5)] == [-1] * 3
    whole = seen_of(camera_at(1.0, 15.0), [])
    assert [whole(x, 0.0) for x in (1.5, 2.1, 2.8, 3.5)] == [0] * 4


def seen_of(camera, solids, **options):
    """What a grid has of one view of some solids: the cell at x, y."""
    found = sight(depth_of(camera, solids, **options), K, camera, ObstacleConfig())
    view = floor_view((0, "", 0), found.marks, found.floor, camera, 1.0, RES / 2)
    grid = FloorGrid(RES)
    grid.carve(view, view.place(camera, 1.0), 1.0)
    out = grid.occupancy()

    def cell(x, y):
        column, row = ((np.array([x, y]) - out.origin) // out.resolution).astype(int)
        inside = 0 <= row < out.cells.shape[0] and 0 <= column < out.cells.shape[1]
        return int(out.cells[row, column]) if inside else -1

    return cell
