"""Views have their pose in their submap: corrections move them without changing them."""

import dataclasses
import pickle

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.scenes import frame
from support.submaps import add_keyframe, table_of

from da3_ros.config import MapConfig, ScaleConfig
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.levelling import Up
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.loop_keyframes import PlacedKeyframe
from da3_ros.mapping.map_table import NO_SUBMAP, MapListener, OverlapView
from da3_ros.mapping.metric_scale import MapScale
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import SubmapStore
from da3_ros.types import View

K = np.array([[60.0, 0, 40], [0, 60, 30], [0, 0, 1]])
MOVE = Similarity(
    1.5, Rotation.from_euler("z", 30, degrees=True).as_matrix(), np.array([1.0, 2, 3])
)


def pose(x, yaw_deg=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", yaw_deg, degrees=True).as_matrix()
    T[0, 3] = x
    return T


def overlap_view(id, submap, T):
    view, depth = View(id, id, np.zeros((60, 80, 3), np.uint8), K), np.full(10, 2.0)
    return OverlapView(view, K, T, np.arange(10), depth, np.ones(10), submap=submap)


@pytest.fixture
def table():
    """Three submaps, and a view in each, and one without."""
    table = table_of([Similarity.from_pose(pose(n, 20 * n)) for n in range(3)])
    for id, submap in enumerate((0, 1, 2, NO_SUBMAP)):
        table.set_view(overlap_view(id, submap, pose(10 * id, 5)))
    return table


def test_a_view_is_where_it_was_put(table):
    for id in range(4):
        np.testing.assert_allclose(table.view(id).T_local_camera, pose(10 * id, 5), atol=1e-14)
        np.testing.assert_allclose(
            table.poses([id])[0][0], table.view(id).T_local_camera, atol=1e-14
        )
        np.testing.assert_array_equal(table.view(id).depth, 2.0)
    with pytest.raises(KeyError):
        table.view(4)


def test_a_correction_moves_the_views_of_its_submaps_and_changes_none(table):
    table.keyframes[0] = table.shared[0].with_fewer_pixels()
    before = {id: table.shared[id] for id in range(4)}
    moves = Moves((Node(0, 1), Node(2, 2)), (MOVE, IDENTITY))
    table.correct(Correction(moves, Similarity(2.0, np.eye(3), np.array([7.0, 0, 0])), IDENTITY))
    assert all(table.shared[id] is row for id, row in before.items())
    assert table.keyframes[0] is not None
    for id in (0, 1):
        expected = MOVE.pose(pose(10 * id, 5))
        np.testing.assert_allclose(table.view(id).T_local_camera, expected, atol=1e-12)
        np.testing.assert_allclose(table.view(id).depth, 3.0)
        assert table.poses([2, id])[1] == pytest.approx([1.0, 1.5])
    for id in (2, 3):  # of the newest submap, and of none
        np.testing.assert_allclose(table.view(id).T_local_camera, pose(10 * id, 5), atol=1e-12)
        np.testing.assert_allclose(table.view(id).depth, 2.0)
    assert table.corrections == 1


def test_the_submaps_of_views_are_kept(table):
    table.keep(())
    assert list(table.submaps) == [0, 1, 2]
    table.share({1, 3})
    table.keep({2})
    assert list(table.submaps) == [1, 2]
    assert table.shared.keys() == {1, 3}
    with pytest.raises(KeyError):
        table.shared[0]


def test_a_view_of_a_standing_robot_does_not_creep():
    """Its pose goes to its submap and back with each window; the network's poses are rotations
    but for single precision."""
    table, begin = table_of([]), pose(3.0, 40).astype(np.float32).astype(float)
    begin[:3, :3] *= 1 + 1e-7
    table.add_submap(Submap(0, 0, table.T_map_camera(begin)))
    table.set_view(overlap_view(0, 0, pose(8.0)))
    for _ in range(20_000):
        table.set_view(dataclasses.replace(table.view(0), observations=2.0))
    np.testing.assert_allclose(table.view(0).T_local_camera, pose(8.0), atol=1e-9)


def test_a_keyframe_of_loops_has_the_pose_that_is_known_now_and_its_own_arrays(table):
    table.keyframes[1] = kept = table.shared[1].with_fewer_pixels()
    seen = dataclasses.replace(table.view(1), T_local_camera=pose(12), depth=np.full(10, 9.0))
    table.set_view(seen)
    found = table.keyframes[1]
    np.testing.assert_array_equal(found.T_submap_camera, table.shared[1].T_submap_camera)
    assert found.depth is kept.depth
    assert found.depth_factor == pytest.approx(4.5)  # 9 m now, 2 m before
    table.set_view(dataclasses.replace(table.view(1), depth=np.full(10, 4.0)))
    assert table.keyframes[1].depth_factor == pytest.approx(2.0)
    placed = PlacedKeyframe.of(dataclasses.replace(table.keyframes[1], typical_depth=2.0), table)
    np.testing.assert_allclose(placed.view.depth, 4.0)
    np.testing.assert_allclose(placed.view.T_local_camera, pose(12), atol=1e-12)
    assert placed.depth == pytest.approx(4.0)
    found = table.keyframes[1]
    table.set_row(dataclasses.replace(table.shared[1], kept=0.5))  # cut to another image size
    assert table.keyframes[1] is found
    table.share(())
    assert table.keyframes == {1: found}


def test_a_keyframe_stays_where_its_view_gets_another_image(table):
    """It was rectified again: its pose is that of the new image, from then on."""
    table.keyframes[1] = kept = table.shared[1]
    table.set_view(dataclasses.replace(table.view(1), T_local_camera=pose(12)), same_image=False)
    table.set_view(dataclasses.replace(table.view(1), T_local_camera=pose(13)))
    assert table.keyframes[1] is kept
    table.share(())
    table.set_view(overlap_view(1, 1, pose(14)))  # another view
    assert table.keyframes[1] is not kept


def test_submaps_older_than_a_correction_stay_in_the_map(table):
    moves = Moves((Node(1, 1), Node(2, 2)), (MOVE, IDENTITY))
    correction = Correction(moves, Similarity(2.0, np.eye(3), np.array([7.0, 0, 0])), IDENTITY)
    before = {n: table.T_local_submap(n) for n in (0, NO_SUBMAP)}
    at = table.submaps[0].T_map_submap
    table.correct(correction)
    assert table.submaps[0].T_map_submap is at
    moved = correction.local_move(0) @ before[0]
    np.testing.assert_allclose(table.T_local_submap(0).t, moved.t, atol=1e-12)
    assert table.T_local_submap(0).scale == pytest.approx(moved.scale)
    assert correction.local_move(NO_SUBMAP) is correction.local_move(3) is None


def test_a_view_that_is_not_in_the_map_changes_no_row_of_the_path(table):
    """Also not one of a submap that was forgotten, which has the same number."""
    T = pose(1)
    table.path.add_pose(dataclasses.replace(frame(3, T), stamp_ns=3, camera=""), T, NO_SUBMAP)
    table.refine([dataclasses.replace(table.view(3), T_local_camera=pose(99))])
    np.testing.assert_array_equal(table.path.poses().rows["T"], [T[:3]])
    np.testing.assert_array_equal(table.view(3).T_local_camera, pose(99))


class Seen(MapListener):
    """What the forms of a view's pose are, whenever the table tells of a change."""

    def __init__(self, table, id):
        self.table, self.id, self.events = table, id, []
        table.listeners.append(self)

    def look(self, event):
        table, row = self.table, self.table.shared[self.id]
        in_path = table.path.pose_of(row.view.stamp_ns, row.view.camera, row.submap)
        forms = [in_path, row.T_submap_camera, table.keyframes[self.id].T_submap_camera]
        T_local = (
            table.T_local_submap(row.submap).inverse().pose(table.view(self.id).T_local_camera)
        )
        self.events.append((event, np.array([T[:3] for T in (*forms, T_local)])))

    def on_correction(self, correction, before):
        self.look("correction")

    def on_refinement(self, frames):
        self.look("refinement")


def one_view(table):
    """A table whose view 1 is a keyframe and in the path, and what listens to it."""
    table.keyframes[1] = table.shared[1].with_fewer_pixels()
    T = table.shared[1].T_submap_camera
    table.path.add_pose(dataclasses.replace(frame(1, T), stamp_ns=1, camera=""), T, 1)
    seen = Seen(table, 1)
    seen.look("before")  # so that what is derived from the old pose is known
    return seen


def test_a_correction_with_frames_is_one_change_of_all_forms_of_a_pose(table):
    """Listeners never see submaps that have moved with frames that have not."""
    seen, to = one_view(table), pose(12, 30)
    correction = Correction(Moves((Node(0, 0),), (MOVE,)), IDENTITY, IDENTITY)
    table.correct(correction, frames=[PoseInSubmap(1, "", 1, to)])
    assert [event for event, _ in seen.events] == ["before", "correction", "refinement"]
    for _, forms in seen.events[1:]:
        np.testing.assert_allclose(forms, np.broadcast_to(to[:3], (4, 3, 4)), atol=1e-9)


def test_a_view_that_is_known_better_is_so_in_all_forms_of_its_pose(table):
    seen = one_view(table)
    table.refine([dataclasses.replace(table.view(1), T_local_camera=pose(12, 30))])
    (_, before), (event, forms) = seen.events
    assert event == "refinement"
    assert np.ptp(before, axis=0).max() < 1e-9 < np.abs(forms - before).max()
    assert np.ptp(forms, axis=0).max() < 1e-9
    table.refine([dataclasses.replace(table.view(1), depth=np.full(10, 3.0))])
    assert len(seen.events) == 2  # its pose is the same
    np.testing.assert_allclose(table.view(1).depth, 3.0)


def test_nothing_is_left_of_views_that_are_shared_no_more(table):
    """A run of days shares millions."""
    table.share(())
    before = len(pickle.dumps(table))
    for id in range(100, 1100):
        table.set_view(overlap_view(id, id % 3, pose(1.0)))
        table.share(range(id - 3, id + 1))
        table.view(id)
        table.poses(sorted(table.shared))
    table.share(())
    assert len(pickle.dumps(table)) == before


def test_all_ask_the_table_whether_the_map_is_read_only():
    """Points, loops, their graph, and the scale."""
    table = table_of([IDENTITY, IDENTITY])
    store, loops = SubmapStore(MapConfig(), table=table), LoopClosure(table)
    scale = MapScale(ScaleConfig(), table)
    table.known_metres = 1.0  # as a source has measured it
    up = Up(np.array([0.0, 0.0, 1.0]), 0.01, 0)

    def answers():
        return (
            len(store.staying) > 0,
            loops.add_up(1, up) is None,
            loops._graph.map_size,
            scale.measured,
            table.live_path is not table.path,
        )

    for id in (0, 1):
        add_keyframe(loops, overlap_view(id, id, pose(id)), np.ones(4))
    store.submaps.insert(table.submaps[0])
    assert answers() == (False, False, 0, True, False)
    table.set_read_only(2)
    assert answers() == (True, True, 2, False, True)
    table.clear()
    assert not table.read_only
