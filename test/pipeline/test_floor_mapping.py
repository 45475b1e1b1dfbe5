"""The occupancy grid of a pipeline: from frames to cells, and why there is none."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from support import ring as walks
from support.floors import (
    RES,
    SETTINGS,
    errors,
    level_of,
    pipeline_of,
    push,
    room_and_frames,
    seen_cells,
    solid_cells,
    true_frames,
)
from support.sessions import opened

from da3_ros.mapping.submaps import KEYFRAMES
from da3_ros.navigation.floor_grid import FloorGrid
from da3_ros.navigation.occupancy import PIECE, OccupancyMap
from da3_ros.navigation.saved_grid import grid_of_scene


@functools.cache
def walked(seed=3, count=16):
    room, poses, depths, K = room_and_frames(seed, count)
    return room, true_frames(poses, depths, K)


@functools.cache
def mapped():
    pipeline = pipeline_of(walked()[1])
    push(pipeline, walked()[1])
    return pipeline


@pytest.mark.slow
def test_the_grid_of_a_map_is_that_of_the_room():
    room, frames = walked()
    grid = mapped().scene_map.occupancy()
    origin = grid.origin + frames[0].T_room_camera[:2, 3]  # the map begins below the camera
    solid = solid_cells(room, origin, grid.cells.shape)
    keyframes = {v.stamp_ns for v in mapped().scene_map.floor_map.occupancy.views()}
    looked = [f for f in frames if f.stamp_ns in keyframes]
    poses, depths = [f.T_room_camera for f in looked], [f.depth for f in looked]
    seen = seen_cells(poses, depths, frames[0].K, origin, grid.cells.shape)
    missed, false = errors(grid, solid, seen)
    assert (grid.cells >= 0).sum() > 2000
    assert missed < 0.01
    assert false < 0.02


def test_keyframes_in_metres_have_views():
    """All but those of the first window, whose scale is not known yet."""
    pipeline = mapped()
    rows = pipeline.map.table.path.poses().rows
    keyframes = {int(row["stamp_ns"]) for row in rows[rows["keyframe"]]}
    later = {stamp for stamp in keyframes if stamp > walked()[1][SETTINGS["window.size"]].stamp_ns}
    views = {v.stamp_ns for v in pipeline.scene_map.floor_map.occupancy.views()}
    assert len(later) > 5
    assert later <= views < keyframes


@pytest.mark.parametrize(
    ("values", "level"), [({}, None), ({"scale.source": "none"}, level_of)]
)  # fmt: skip
def test_without_up_or_metres_there_is_no_grid(values, level):
    frames = walked()[1][:6]
    pipeline = pipeline_of(frames, **values)
    push(pipeline, frames, level)
    assert pipeline.scene_map.occupancy() is None


def test_a_camera_on_the_floor_by_its_mount_carves_nothing():
    def without_height(T_room_camera):
        T = level_of(T_room_camera)
        T[2, 3] = 0.0
        return T

    frames = walked()[1][:7]
    pipeline = pipeline_of(frames)
    push(pipeline, frames, without_height)
    assert pipeline.scene_map.occupancy() is None


@pytest.mark.slow
def test_the_floor_may_lie_below_the_base():
    frames = walked()[1][:7]
    high = pipeline_of(frames, **{"level.floor_z": -0.3})

    def on_base(T_room_camera):
        T = level_of(T_room_camera)
        T[2, 3] -= 0.3
        return T

    push(high, frames, on_base)
    usual = pipeline_of(frames)
    push(usual, frames)
    a, b = high.scene_map.occupancy(), usual.scene_map.occupancy()
    assert np.array_equal(a.cells, b.cells)
    assert a.resolution == np.float32(RES)


@pytest.mark.long
@pytest.mark.slow
def test_a_loop_moves_the_grid_a_piece_after_each_window(monkeypatch):
    """A lap of a corridor: the grid becomes that of the corrected map, a few views at a time."""
    ring = walks.walked(110, 1.0)
    end_ns = ring[-1].stamp_ns
    walk = [*ring, *(replace(f, stamp_ns=f.stamp_ns + end_ns) for f in ring[:25])]
    pipeline = opened(walk, metric=True)
    carved, counts = [], []
    carve, end_window = FloorGrid.carve, OccupancyMap.end_window

    def counted(grid, *given):
        carved.append(True)
        carve(grid, *given)

    def bounded(own, T_ros_map):
        carved.clear()
        end_window(own, T_ros_map)
        counts.append(len(carved))

    monkeypatch.setattr(FloorGrid, "carve", counted)
    monkeypatch.setattr(OccupancyMap, "end_window", bounded)
    push(pipeline, walk, size=walks.SIZE)
    assert pipeline.loops.closed
    assert 0 < max(counts) < PIECE + KEYFRAMES
    live = pipeline.scene_map.occupancy(finished=True)
    again = grid_of_scene(pipeline.snapshot().scene())
    assert again.same_geometry(live)
    assert (again.cells != live.cells).mean() < 1e-3
    assert (live.cells == 0).sum() > 1000
