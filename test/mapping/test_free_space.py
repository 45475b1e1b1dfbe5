"""Which points keyframes look through, and which leave the map."""

import numpy as np
import pytest
from support.submaps import adjust, local_frame

from da3_ros.config import MapConfig
from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.free_space import CONFIRMED, NONE, THROUGH, depth_view, looked_through
from da3_ros.mapping.submap_points import KeyframePoints
from da3_ros.mapping.submaps import KEYFRAMES, SubmapStore

SIZE = (96, 72)
K = np.array([[80.0, 0, 48], [0, 80, 36], [0, 0, 1]])
WALL = 3.0


def wall(box=0.0):
    """Depth [h, w] of a wall, with a box before its middle."""
    depth = np.full(SIZE[::-1], WALL, np.float32)
    if box:
        depth[24:48, 36:60] = box
    return depth


def view(depth, confidence=None):
    return depth_view(depth, np.ones_like(depth) if confidence is None else confidence, K)


def votes(view, *points):
    return view.votes(np.array(points, np.float32), 0.01).tolist()


def test_points_before_on_and_behind_a_surface():
    before, on, behind, outside = (0, 0, 2.0), (0, 0, 3.05), (0, 0, 4.0), (9.0, 0, 2.0)
    expected = [THROUGH, CONFIRMED, NONE, NONE]
    assert votes(view(wall()), before, on, behind, outside) == expected
    assert votes(view(wall()), (0, 0, -2.0), (np.nan, 0, 2)) == [NONE, NONE]


def test_a_point_at_a_depth_edge_gets_no_vote():
    """Between a box at 1 m and the wall behind it, one pixel beside the box and ten."""
    beside, away = (12.5 / 80 * 2, 0, 2.0), (22.5 / 80 * 2, 0, 2.0)
    assert votes(view(wall()), beside, away) == [THROUGH, THROUGH]
    assert votes(view(wall(1.0)), beside, away) == [NONE, THROUGH]


def test_pixels_without_depth_or_confidence_do_not_vote():
    masked, unsure = wall(), np.ones(SIZE[::-1], np.float32)
    masked[30:42, 40:56] = np.nan
    unsure[30:42, 40:56] = 0.1
    middle, aside = (0, 0, 2.0), (0.8, 0.5, 2.0)
    assert votes(view(masked), middle, aside) == [NONE, THROUGH]
    assert votes(view(wall(), unsure), middle, aside) == [NONE, THROUGH]
    sky = np.full(SIZE[::-1], np.inf, np.float32)
    assert votes(view(sky), middle) == [NONE]


def test_points_within_what_most_depths_are_off_by_get_no_vote():
    points = backproject(wall(), K).reshape(-1, 3)
    assert view(wall()).disagreement(points) == pytest.approx(0, abs=1e-6)
    off = view(1.1 * wall()).disagreement(points)
    assert off == pytest.approx(1.4826 * np.log(1.1), rel=1e-3)
    near = np.array([[0, 0, 2.9]], np.float32)
    assert view(1.1 * wall()).votes(near, off) == [CONFIRMED]
    assert view(1.1 * wall()).votes(near, 0.0) == [THROUGH]
    few = view(wall()).disagreement(points[:5])
    assert np.isnan(few)
    assert view(wall()).votes(points / 2, few).tolist() == [NONE] * len(points)


def test_the_last_votes_decide():
    through, none, confirmed = (np.array([v], np.int8) for v in (THROUGH, NONE, CONFIRMED))

    def leaves(*votes):
        return bool(looked_through(votes, 1)[0])

    assert leaves(through, through)
    assert leaves(*[confirmed] * 9, through, none, through)
    assert not leaves(through)
    assert not leaves(through, confirmed, through)
    assert not leaves(through, through, confirmed)
    assert not leaves(*[through] * 9, confirmed, confirmed, through)


def keyframe(stamp, depth, x=0.0, camera=""):
    T = np.eye(4)
    T[0, 3] = x
    image = np.zeros((*depth.shape, 3), np.uint8)
    return local_frame(stamp, camera, image, depth, np.ones_like(depth), K, T, True)


def box_points(store):
    xyz = store.cloud().xyz
    return int((np.abs(xyz[:, 2] - 1.0) < 0.2).sum())


def wall_points(store):
    return int((np.abs(store.cloud().xyz[:, 2] - WALL) < 0.2).sum())


def store_of(**limits):
    store = SubmapStore(MapConfig(voxel_m=0.05, keep_images=False, **limits))
    store.set_limits(store.limits)
    return store


def test_a_box_leaves_the_map_at_the_second_look_through():
    store = store_of()
    for stamp in range(3):
        store.add_frame(keyframe(stamp, wall(1.0), 0.01 * stamp))
    store.add_frame(keyframe(3, wall()))
    assert box_points(store) > 30
    store.add_frame(keyframe(4, wall()))
    assert box_points(store) == 0
    assert len(store) == len(store.cloud()) == wall_points(store) > 1000


def test_a_box_that_comes_stays():
    store = store_of()
    for stamp in range(3):
        store.add_frame(keyframe(stamp, wall(), 0.01 * stamp))
    for stamp in range(3, 6):
        store.add_frame(keyframe(stamp, wall(1.0), 0.01 * stamp))
    assert box_points(store) > 30


def test_without_the_removal_it_stays():
    store = store_of(remove_movers=False)
    for stamp in range(6):
        store.add_frame(keyframe(stamp, wall(1.0 if stamp < 3 else 0.0)))
    assert box_points(store) > 30


def measured(store, frame, depth):
    """Replaces the points of a keyframe that waits by those of its measured depth."""
    submap = store.newest.id
    points = KeyframePoints(
        frame.id, depth, frame.confidence, frame.image, K, frame.T_local_camera, 1.0
    ).measured(store.bins(submap))
    store.replace_points(submap, [(frame.id, points, True)])


@pytest.mark.parametrize("removed", [True, False])
def test_measured_points_that_later_keyframes_look_through_stay_out(removed):
    """They voted on where the network had put the box."""
    store, first = store_of(remove_movers=removed), keyframe(0, wall(2.0))
    store.add_frame(first, waiting=True)
    for stamp in (1, 2):
        store.add_frame(keyframe(stamp, wall(), 0.01 * stamp))
    measured(store, first, wall(1.0))
    assert (box_points(store) == 0) == removed
    assert wall_points(store) > 1000


def test_measured_points_that_later_keyframes_confirm_come_in():
    store, first = store_of(), keyframe(0, wall())
    store.add_frame(first, waiting=True)
    for stamp in (1, 2, 3):
        store.add_frame(keyframe(stamp, wall(1.0 if stamp > 1 else 0.0), 0.01 * stamp))
    before = box_points(store)
    measured(store, first, wall(1.0))
    assert box_points(store) >= before > 30


def test_measured_points_of_what_has_come_come_in():
    """Keyframes before it looked through where it stands now."""
    store = store_of()
    for stamp in (0, 1, 2):
        store.add_frame(keyframe(stamp, wall(), 0.01 * stamp))
    last = keyframe(3, wall(1.0))
    store.add_frame(last, waiting=True)
    measured(store, last, wall(1.0))
    assert box_points(store) > 30


def filled(store, extra=0):
    """A box in a submap that is closed, seen by its last keyframes only."""
    for stamp in range(KEYFRAMES + extra):
        store.add_frame(keyframe(stamp, wall(1.0)))


def test_closed_submaps_are_judged_at_their_corrected_places():
    """A loop moved and scaled both submaps, not alike: keyframes move with them."""
    store = store_of()
    filled(store, extra=1)
    R = np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]])
    t = np.array([5.0, 6, 7])
    poses = {0: Similarity(2.0, R, t), 1: Similarity(0.5, R, t)}
    store.table.set_poses(poses)
    assert len(store.submaps) == 2
    before = len(store.submaps[0].cloud)
    for stamp in (100, 101, 102):
        f = keyframe(stamp, 2 * wall())
        T = poses[0].pose(f.T_local_camera)
        store.add_frame(local_frame(stamp, "", f.image, f.depth, f.confidence, K, T, True))
    assert len(store.submaps[0].cloud) < before
    depth = store.submaps[0].cloud.xyz[:, 2]
    assert not (np.abs(depth - 1) < 0.2).any()
    assert (np.abs(depth - WALL) < 0.1).sum() > 1000


def test_a_keyframe_votes_from_where_the_map_has_it_now():
    """It was placed 50 m off, until keyframes were adjusted together."""
    for known in (False, True):
        store = store_of()
        store.add_frame(keyframe(0, wall(1.0)))
        store.add_frame(keyframe(1, wall(), x=50.0))
        if known:
            adjust(store.table, [PoseInSubmap(1, "", 0, np.eye(4))])
        store.add_frame(keyframe(2, wall()))
        assert (box_points(store) == 0) == known


def test_unconnected_components_do_not_judge_each_other():
    store = store_of()
    filled(store)
    store.add_frame(keyframe(50, wall()))
    store.start_chain()
    store.add_frame(keyframe(100, wall()))
    assert box_points(store) > 30


def test_keyframes_of_another_component_do_not_vote():
    store = store_of()
    for stamp in range(3):
        store.add_frame(keyframe(stamp, wall()))
    store.start_chain()
    store.add_frame(keyframe(100, wall(1.0)))
    store.add_frame(keyframe(101, wall()))
    assert box_points(store) > 30


def test_each_camera_of_a_rig_remembers_its_own_keyframes():
    store = store_of()
    store.add_frame(keyframe(0, wall(1.0)))
    for stamp in range(1, 3):
        store.add_frame(keyframe(stamp, wall()))
        for other in range(9):
            away = keyframe(stamp, wall(), x=50.0, camera=str(other))
            store.add_frame(away)
    assert box_points(store) == 0


def test_replays_are_equal():
    clouds = []
    for _ in range(2):
        store = store_of()
        for stamp in range(40):
            store.add_frame(keyframe(stamp, wall(1.0 if stamp % 7 < 3 else 0.0), 0.02 * stamp))
        clouds.append(store.cloud())
    np.testing.assert_array_equal(clouds[0].xyz, clouds[1].xyz)
    np.testing.assert_array_equal(clouds[0].count, clouds[1].count)
