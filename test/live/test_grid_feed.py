"""What subscribers to the occupancy grid get: all of it, or the part that has changed."""

import dataclasses

import numpy as np

from da3_ros.live.grid_feed import GridFeed, changed_part
from da3_ros.navigation.floor_grid import UNKNOWN, OccupancyGrid

GRID = OccupancyGrid(0.05, (0.0, 0.0), np.zeros((6, 8), np.int8))


def with_cell(grid, row, column):
    cells = grid.cells.copy()
    cells[row, column] = 100
    return dataclasses.replace(grid, cells=cells)


class Feed:
    def __init__(self, updates):
        self.grid, self.updates = GRID, updates
        self.feed = GridFeed(lambda: self.grid, lambda: self.updates)


def test_the_whole_grid_is_sent_each_time_unless_parts_are_asked_for():
    one = Feed(updates=False)
    assert one.feed.whole() is GRID
    one.grid = with_cell(GRID, 2, 3)
    assert one.feed.update() is None
    assert one.feed.whole() is one.grid


def test_then_only_the_changed_rectangle_is_sent():
    one = Feed(updates=True)
    assert one.feed.whole() is GRID
    assert one.feed.update() is None  # nothing has changed
    one.grid = with_cell(with_cell(GRID, 2, 3), 4, 5)
    assert one.feed.whole() is None
    part = one.feed.update()
    assert (part.x, part.y) == (3, 2)
    np.testing.assert_array_equal(part.cells, one.grid.cells[2:5, 3:6])
    assert one.feed.update() is None


def test_a_new_subscriber_and_a_new_size_get_the_whole_grid():
    one = Feed(updates=True)
    one.feed.whole()
    one.feed.renew()
    assert one.feed.whole() is GRID
    one.grid = dataclasses.replace(GRID, cells=np.zeros((12, 8), np.int8))
    assert one.feed.update() is None
    assert one.feed.whole() is one.grid


def test_parts_put_together_are_the_grid():
    rng, grid = np.random.default_rng(0), GRID
    shown = grid.cells.copy()
    for _ in range(20):
        newer = with_cell(grid, rng.integers(6), rng.integers(8))
        part = changed_part(grid, newer)
        if part is not None:
            height, width = part.cells.shape
            shown[part.y : part.y + height, part.x : part.x + width] = part.cells
        grid = newer
        np.testing.assert_array_equal(shown, grid.cells)


def test_after_a_reset_the_last_grid_is_unknown():
    one = Feed(updates=False)
    one.feed.whole()
    one.grid = None
    empty = one.feed.whole()
    assert empty.same_geometry(GRID)
    assert (empty.cells == UNKNOWN).all()
    assert Feed(updates=False).feed.whole() is GRID


def test_before_there_is_a_grid_nothing_is_sent():
    one = Feed(updates=True)
    one.grid = None
    assert one.feed.whole() is None
    assert one.feed.update() is None
