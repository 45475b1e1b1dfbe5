"""The grid of a saved scene: what comes back from the file, and map_server's pair of files."""

import dataclasses
import functools
import re

import cv2
import numpy as np
import pytest
import yaml
from support.floors import RES, pipeline_of, push, room_and_frames, true_frames
from support.stored_walls import write_walls

from da3_ros.cli import main
from da3_ros.export.map_server import description, pgm
from da3_ros.export.scene_file import SceneFile, load_scene, save_scene
from da3_ros.keyframe_store.store import JOURNAL
from da3_ros.navigation.floor_grid import OccupancyGrid
from da3_ros.navigation.saved_grid import grid_of_scene


@functools.cache
def driven():
    """A pipeline that has seen a few frames of a room."""
    _, poses, depths, K = room_and_frames(3, 10)
    frames = true_frames(poses, depths, K)
    pipeline = pipeline_of(frames)
    push(pipeline, frames)
    return pipeline


@pytest.fixture
def saved(tmp_path):
    save_scene(driven().snapshot(), tmp_path / "scene")
    return tmp_path / "scene"


def test_the_grid_of_a_saved_scene_is_the_live_one(saved):
    live = driven().scene_map.occupancy(finished=True)
    for loaded in (load_scene(saved), SceneFile(saved).saved):
        again = grid_of_scene(loaded.scene())
        assert again.same_geometry(live)
        assert (again.cells != live.cells).mean() < 1e-4


def test_a_read_only_map_has_the_grid_at_once(saved):
    pipeline = pipeline_of([], mode="localization")
    pipeline.resume(load_scene(saved))
    live, again = driven().scene_map.occupancy(finished=True), pipeline.scene_map.occupancy()
    assert again.same_geometry(live)
    assert (again.cells != live.cells).mean() < 1e-4
    assert len(pipeline.snapshot().floor.views) == len(driven().snapshot().floor.views)


def test_a_file_has_one_storey_and_a_box_chooses_another_one(caplog):
    scene = driven().snapshot().scene()
    views = scene.floor.views
    assert len(views) > 5
    below = [
        dataclasses.replace(v, height=v.height + 3.0 / scene.unit_of[v.submap]) for v in views[:4]
    ]

    def grid(*views, box=()):
        floor = dataclasses.replace(scene.floor, views=views)
        return grid_of_scene(dataclasses.replace(scene, floor=floor), box)

    both = grid(*below, *views[4:])
    assert np.array_equal(both.cells, grid(*views[4:]).cells)
    assert "leaves out 4 keyframes" in caplog.text
    assert "floors from -3" in caplog.text
    caplog.clear()
    newest = max(views, key=lambda v: v.stamp_ns)
    wrong = dataclasses.replace(newest, height=newest.height + 3.0 / scene.unit_of[newest.submap])
    rest = [v for v in views if v is not newest]
    assert np.array_equal(grid(*rest, wrong).cells, grid(*rest).cells)
    caplog.clear()
    lower = grid(*below, *views[4:], box=(-50, -50, -4, 50, 50, -2))
    assert np.array_equal(lower.cells, grid(*below).cells)
    known = np.nonzero(lower.cells >= 0)
    middle = lower.origin[0] + np.median(known[1]) * RES
    half = grid(*below, *views[4:], box=(-50, -50, -4, middle, 50, -2))
    columns = np.nonzero(half.cells >= 0)[1]
    assert half.origin[0] + (columns.max() + 0.5) * RES < middle
    assert 0.4 * len(known[1]) < len(columns) < 0.6 * len(known[1])
    assert not caplog.text
    assert grid(*views, box=(-50, -50, 8, 50, 50, 9)) is None


def test_a_box_beside_the_grid_is_said(saved, tmp_path, capsys):
    box = ["50", "50", "-1", "60", "60", "1"]
    assert main(["export", str(saved), str(tmp_path / "room.pgm"), "--crop", *box]) == 1
    assert (
        "no known cell in the box [50.0, 50.0, -1.0, 60.0, 60.0, 1.0]" in capsys.readouterr().err
    )
    assert not list(tmp_path.glob("room.*"))


def test_the_command_writes_what_map_server_reads(saved, tmp_path, capsys):
    assert main(["export", str(saved), str(tmp_path / "room.pgm")]) == 0
    grid = grid_of_scene(load_scene(saved).scene())
    assert f"{(grid.cells >= 0).sum()} cells in" in capsys.readouterr().out
    about = yaml.safe_load((tmp_path / "room.yaml").read_text())
    assert about == {
        "image": "room.pgm", "mode": "trinary", "resolution": RES,
        "origin": pytest.approx([*grid.origin, 0]), "negate": 0, "occupied_thresh": 0.65,
        "free_thresh": 0.196,
    }  # fmt: skip
    image = cv2.imread(str(tmp_path / about["image"]), cv2.IMREAD_UNCHANGED)
    assert {path.name for path in tmp_path.iterdir()} == {"scene", "room.pgm", "room.yaml"}
    share = (255 - image[::-1].astype(float)) / 255  # as map_server reads it
    read = np.where(share > about["occupied_thresh"], 100,
                    np.where(share < about["free_thresh"], 0, -1))  # fmt: skip
    np.testing.assert_array_equal(read, grid.cells)


def test_rows_go_down_from_the_largest_y():
    grid = OccupancyGrid(RES, (-0.05, 1.0), np.array([[0, 100], [-1, -1]], np.int8))
    assert pgm(grid) == b"P5\n2 2\n255\n" + bytes([205, 205, 254, 0])
    assert "origin: [-0.05, 1.0, 0]" in description(grid, "a.pgm")


def test_a_scene_without_a_grid_is_refused_in_one_line(tmp_path, capsys):
    plain = dataclasses.replace(driven().snapshot(), floor=type(driven().snapshot().floor)())
    save_scene(plain, tmp_path / "scene")
    assert main(["export", str(tmp_path / "scene"), str(tmp_path / "room.pgm")]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert "no occupancy grid" in said[-1]
    assert "base_frame" in said[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["scene"]


def test_a_run_that_did_not_end_has_no_grid(tmp_path, capsys):
    walls = write_walls(tmp_path / "walls", 2)
    assert main(["export", str(walls), str(tmp_path / "room.pgm")]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "a run that did not end" in line
    assert not (tmp_path / "room.pgm").exists()


def test_points_cannot_be_selected_for_a_grid(saved, tmp_path, capsys):
    assert main(["export", str(saved), str(tmp_path / "a.pgm"), "--voxel", "0.1"]) == 1
    assert "no points" in capsys.readouterr().err
    assert not (tmp_path / "a.pgm").exists()


def test_a_place_that_cannot_be_written_gets_neither_file(saved, tmp_path, capsys):
    (tmp_path / "room.yaml").mkdir()
    assert main(["export", str(saved), str(tmp_path / "room.pgm")]) == 1
    assert "room.yaml" in capsys.readouterr().err
    assert not (tmp_path / "room.pgm").exists()


def test_damage_costs_the_grid_and_not_the_scene(saved, caplog):
    """Each byte of the record's first kilobyte."""
    journal = saved / JOURNAL
    whole = journal.read_bytes()
    start = re.search(rb'"kind": ?"floor"', whole).start()
    for at in range(start, start + 1024, 101):
        journal.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        loaded = load_scene(saved)
        assert loaded.floor.views == ()
        assert len(loaded.poses) == len(driven().snapshot().poses)
    assert "no occupancy grid any more" in caplog.text
