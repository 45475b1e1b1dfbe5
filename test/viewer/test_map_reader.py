"""The map in the viewer: what was sent, put together, is the map."""

import dataclasses

import numpy as np
import pytest
from support.scenes import frame, full_store, pose, store

from da3_ros.config import MapConfig
from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.submaps import SubmapStore
from da3_ros.viewer import map_reader
from da3_ros.viewer.map_reader import MAX_PATH, MapReader


class Mirror:
    """Keeps what a viewer keeps: points of submaps, and where these are."""

    def __init__(self, most=10**6):
        self.reader = MapReader(most)
        self.points, self.last, self.sent = {}, None, 0

    def take(self, held):
        update = self.reader.update(held, T_ROS_MAP)
        self.points |= update.points
        self.points = {id: self.points[id] for id in update.submaps}
        self.last, self.sent = update, sum(len(p.xyz) for p in update.points.values())
        return update

    def placed(self):
        return {id: self.last.submaps[id].points(p.xyz) for id, p in self.points.items()}


def true_points(held):
    view = held.view
    return {
        s.id: view.submap_poses[s.id].points(held.points.cloud_of(s).xyz)
        for s in view.submaps
        if s.component == view.component and held.points.point_count(s)
    }


def assert_equal(mirror, held):
    true, placed = true_points(held), mirror.placed()
    assert true.keys() == placed.keys()
    for id, points in true.items():
        np.testing.assert_allclose(placed[id], points, atol=1e-6)


def test_a_growing_map_is_followed_and_only_what_changed_is_sent():
    held, mirror = store(), Mirror()
    for i in range(40):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
        mirror.take(held)
        assert_equal(mirror, held)
        assert len(mirror.last.points) <= 2, "closed submaps are sent again"
    mirror.take(held)
    assert mirror.sent == 0
    assert mirror.last.complete


def test_a_correction_moves_submaps_without_sending_points():
    held, mirror = store(), Mirror()
    for i in range(40):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    mirror.take(held)
    moved = Similarity(1.1, np.eye(3), np.array([0.5, 0.0, 0.1]))
    unmoved = held.table.T_map_local
    first = next(iter(held.submaps))
    held.table.correct(Correction({first: moved}, unmoved, unmoved))
    held.note_correction(())
    mirror.take(held)
    assert mirror.sent == 0
    assert_equal(mirror, held)
    np.testing.assert_allclose(mirror.last.submaps[first].scale, 1.1, rtol=0.2)


@pytest.mark.parametrize("in_memory", [1500, 6000])
def test_a_map_whose_points_go_to_the_disk_is_shown_in_bounds(tmp_path, in_memory):
    """For as long as it grows: what was sent is sent again to each page that is opened."""
    most = 1500
    held = SubmapStore(
        MapConfig(voxel_m=1e-3, keep_images=False, remove_movers=False, max_points=in_memory),
        ArraySpill(tmp_path, background=False),
    )
    mirror, largest = Mirror(most), 0
    for i in range(200):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
        mirror.take(held)
        largest = max(largest, sum(len(p.xyz) for p in mirror.points.values()))
    spilled = [s for s in held.submaps.values() if not held.points.is_in_memory(s)]
    assert len(spilled) > 5
    assert most // 2 < largest <= most
    near = max(held.submaps)
    assert near in mirror.points
    assert min(held.submaps) not in mirror.points  # the farthest


def test_points_that_are_removed_or_averaged_anew_are_sent_again():
    held, mirror = store(), Mirror()
    for i in range(20):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    mirror.take(held)
    held.points.remove(held.submaps[0], np.arange(10))
    mirror.take(held)
    assert set(mirror.last.points) == {0}
    assert_equal(mirror, held)
    held.limits = dataclasses.replace(held.limits, voxel_m=0.5)
    held.regrid()
    mirror.take(held)
    assert_equal(mirror, held)
    assert mirror.sent < 300


def test_a_submap_that_is_larger_than_its_bound_is_thinned():
    held = store()
    for i in range(40):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    sizes = {s.id: held.points.point_count(s) for s in held.submaps.values()}
    bound = min(sizes.values()) // 3
    few = MapReader(10**6, most_of_submap=bound).update(held, T_ROS_MAP)
    assert all(bound // 2 < len(few.points[id].xyz) <= bound for id in sizes)
    whole = MapReader(10**6).update(held, T_ROS_MAP)
    assert {id: len(points.xyz) for id, points in whole.points.items()} == sizes


def test_only_the_shown_component_is_sent_and_the_others_are_counted():
    held, mirror = full_store(), Mirror()
    mirror.take(held)
    assert mirror.last.unconnected == 1
    assert_equal(mirror, held)
    assert len(mirror.last.path.poses) == 2


def test_a_cleared_map_is_empty():
    held, mirror = store(), Mirror()
    held.add_frame(frame(0, pose()))
    mirror.take(held)
    assert mirror.points
    mirror.take(store())
    assert not mirror.points
    assert not len(mirror.last.path.poses)


def test_large_maps_come_in_pieces_nearest_first(monkeypatch):
    held, mirror = store(), Mirror()
    for i in range(60):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    monkeypatch.setattr(map_reader, "MAX_POINTS_AT_ONCE", 100)
    order = []
    while not order or not mirror.last.complete:
        mirror.take(held)
        order += list(mirror.last.points)
        assert len(order) < 20
    assert order == sorted(held.submaps, reverse=True)
    assert_equal(mirror, held)


def test_the_number_of_points_is_bounded_and_the_nearest_are_whole():
    held, mirror = store(), Mirror(most=4500)
    for i in range(60):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
        mirror.take(held)
    assert len(held) > 5000
    assert sum(len(p.xyz) for p in mirror.points.values()) <= 4500
    newest = max(mirror.points)
    assert len(mirror.points[newest].xyz) == held.points.point_count(held.submaps[newest])


def test_a_second_viewer_gets_all():
    held, mirror = store(), Mirror()
    for i in range(20):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    mirror.take(held)
    mirror = Mirror()
    mirror.take(held)
    assert_equal(mirror, held)


def test_loops_connect_the_submaps_that_are_shown():
    held, mirror = store(), Mirror()
    for i in range(40):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    unit, sigma = Similarity(1.0, np.eye(3), np.zeros(3)), np.full(3, 0.1)
    held.table.edges += [
        Edge(0, 1, unit, sigma), Edge(0, 2, unit, sigma, loop=True),
        Edge(0, 99, unit, sigma, loop=True),
    ]  # fmt: skip
    mirror.take(held)
    ends = [held.view.submap_poses[id].t for id in (0, 2)]
    np.testing.assert_allclose(mirror.last.loops, [ends])


@pytest.mark.slow
def test_a_long_path_is_thinned_and_ends_at_the_newest_pose():
    held, mirror = store(), Mirror()
    for i in range(MAX_PATH * 2 + 7):
        held.add_frame(frame(i, pose(0.01 * i), keyframe=i % 500 == 0))
    mirror.take(held)
    rows = mirror.last.path.poses.rows
    assert len(rows) < 1.1 * MAX_PATH
    assert rows["stamp_ns"][-1] == held.newest_stamp_ns
    assert rows["keyframe"].sum() >= 8


def test_a_sample_of_the_path_is_that_of_its_poses():
    held = full_store()
    for i in range(300):
        held.add_frame(frame(100 + i, pose(1.0 + 0.1 * i), keyframe=i % 7 == 0, seed=i))
    held.table.path.settle(0, IDENTITY, -1)  # as a localized camera's oldest poses
    everything = held.table.path.poses()
    for ids in ([], [-1], [1], [1, 2], sorted({int(i) for i in everything.rows["submap"]})):
        leading = everything.leading()
        own = leading.rows[np.isin(leading.rows["submap"], ids)]
        whole = held.table.path.sample(ids, 10**6, 10**6).rows
        np.testing.assert_array_equal(whole["stamp_ns"], own["stamp_ns"])
        some = held.table.path.sample(ids, 20, 5).rows
        assert len(some) <= 26
        assert set(some["stamp_ns"]) <= set(own["stamp_ns"])
        assert not len(own) or some["stamp_ns"][-1] == own["stamp_ns"][-1]


def test_a_trembling_camera_sends_no_points_again():
    held, mirror = store(), Mirror(most=3000)
    for i in range(60):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    while not mirror.last or not mirror.last.complete:
        mirror.take(held)
    for i in range(20):
        held.add_frame(frame(100 + i, pose(17.7 + 0.01 * (i % 2)), keyframe=False))
        mirror.take(held)
        assert mirror.sent == 0
