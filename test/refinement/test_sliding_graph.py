"""What the graph keeps, gives back, and shares out."""

import numpy as np
import pytest

from da3_ros.refinement.bundle import Metre, PosePriors
from da3_ros.refinement.features import Features
from da3_ros.refinement.measured_poses import SETTLED, UNKNOWN_METRE
from da3_ros.refinement.refiner import GuessedFocal
from da3_ros.refinement.sliding_graph import (
    MOST_CONTRADICTIONS,
    MOST_OPEN,
    SlidingGraph,
    _without_loose,
    gather,
)
from da3_ros.refinement.tracked_view import MeasuredPose, TrackedView
from da3_ros.types import Prediction, View, Window

K = np.array([[400.0, 0, 320], [0, 400, 240], [0, 0, 1]])


def view(id, tracks, own_K=False, focal=400.0):
    count = len(tracks)
    features = Features((480, 640), np.full((count, 2), 10.0), np.zeros((count, 128), np.uint8))
    mine = K * np.array([[focal / 400, 1, 1], [1, focal / 400, 1], [1, 1, 1]])
    out = TrackedView(id, "", features, mine, np.eye(4), np.zeros(count), own_K)
    out.track = np.array(tracks)
    return out


def test_each_new_view_keeps_its_share_of_the_tracks():
    """The last camera of a rig has tracks enough for all."""
    views = [
        view(0, range(40)),
        view(1, range(40, 400)),
        view(2, range(40)),
        view(3, range(40, 400)),
    ]
    free = np.array([False, False, True, True])
    ids, seen = gather(views, free, 60, np.array([2, 3]))
    assert len(ids) == 60
    assert np.bincount(seen.view).tolist() == [30, 30, 30, 30]


@pytest.mark.parametrize(
    ("tracks", "pairs", "held"),
    [
        ([(0, 40), (60, 100), (60, 100)], [], [0, 1]),  # a group apart: its oldest is held
        ([(0, 40), (60, 100), (60, 100)], [(0, 2)], [0]),  # a prior connects it
        ([(0, 40), (30, 70), (60, 100)], [], [0, 1, 2]),  # too few common tracks
        ([(0, 40), (20, 70), (50, 100)], [], [0]),  # a chain
    ],
)
def test_a_group_that_nothing_connects_is_held_by_its_oldest_view(tracks, pairs, held):
    views = [view(k, range(*t)) for k, t in enumerate(tracks)]
    ends = np.array(pairs, int).reshape(-1, 2).T
    ones = np.ones(len(pairs))
    T = np.tile(np.eye(4), (len(pairs), 1, 1))
    priors = PosePriors.isotropic(*ends, T, ones, ones, 0)
    free = np.array([False, True, True])
    _, observations = gather(views, free, 600, np.array([2]))
    free = _without_loose(free, observations, priors)
    assert np.flatnonzero(~free).tolist() == held


def test_tracks_that_are_not_used_connect_nothing():
    """The few short tracks to the held view are the first that a limit leaves out."""
    views = [view(0, range(12)), *(view(k, range(400 if k > 1 else 412)) for k in (1, 2, 3))]
    views[1].track = np.concatenate((np.arange(12), np.arange(100, 400)))
    views[2].track = views[3].track = np.arange(100, 400)
    free = np.array([False, True, True, True])
    for most, held in ((60, [0, 1]), (600, [0])):
        _, observations = gather(views, free, most, np.array([3]))
        found = _without_loose(free, observations, PosePriors.none())
        assert np.flatnonzero(~found).tolist() == held


def test_a_restored_graph_is_what_it_was():
    graph = SlidingGraph(300, 8)
    graph.views = {0: view(0, [0, 1, -1])}
    graph.points.set(np.array([0, 1]), np.ones((2, 3)))
    saved = graph.saved()
    changed = graph.views[0]
    changed.T_local_camera, changed.log_scale, changed.K = 2 * np.eye(4), 1.0, 2 * K
    changed.track[:] = 7
    graph.points.set(np.array([1, 7]), np.zeros((2, 3)))
    graph.noise.depth, graph.metre = 9.0, Metre(1.0, 0.1)
    graph.views[1] = view(1, [7])
    graph.restore(saved)
    assert list(graph.views) == [0]
    again = graph.views[0]
    np.testing.assert_array_equal(again.T_local_camera, np.eye(4))
    np.testing.assert_array_equal(again.K, K)
    assert (again.log_scale, again.track.tolist()) == (0.0, [0, 1, -1])
    np.testing.assert_array_equal(graph.points.of(np.array([0, 1, 7]))[:, 0], [1, 1, np.nan])
    assert graph.noise.depth == 0.1
    assert graph.metre == UNKNOWN_METRE


def in_rig(id, frameset, camera):
    T = np.eye(4)
    T[0, 3] = 0.1 * (camera == "right")
    out = view(id, range(40))
    out.camera = camera
    out.measured = MeasuredPose(T_rig_camera=T, frameset=frameset)
    return out


def rig_graph():
    graph = SlidingGraph(300, 8)
    graph.views = {
        2 * k + c: in_rig(2 * k + c, k, name)
        for k in range(5)
        for c, name in enumerate(("left", "right"))
    }
    graph._has_rig = True
    return graph


def free_of(graph):
    return int(graph._chosen([8, 9])[1].sum())


def test_all_views_move_until_the_rig_has_shown_the_metre():
    graph = rig_graph()
    assert free_of(graph) == 9  # but the first
    graph.metre = Metre(0.0, 2 * SETTLED)
    assert free_of(graph) == 9
    graph.metre = Metre(0.0, SETTLED / 2)
    assert free_of(graph) == 4
    graph.restart()
    assert graph.metre == UNKNOWN_METRE


def test_it_is_not_waited_for_for_ever():
    graph = rig_graph()
    for _ in range(MOST_OPEN):
        assert free_of(graph) == 9
    assert free_of(graph) == 4
    graph.forget_metre()
    assert free_of(graph) == 9


def test_a_metre_grows_uncertain_by_windows_that_tracks_do_not_refine():
    graph = rig_graph()
    graph.metre = Metre(1.0, 0.005)
    graph.age_metre()
    assert graph.metre.log == 1.0
    assert graph.metre.sigma > SETTLED
    assert free_of(graph) == 9  # it is looked for again


def test_the_map_does_not_bring_a_forgotten_metre_back():
    graph = rig_graph()
    graph.metre = Metre(1.0, 0.005)
    graph.take_metre(Metre(1.1, 0.002))
    assert graph.metre == Metre(1.1, 0.002)
    graph.forget_metre()  # a new chain, or another focal length
    graph.take_metre(Metre(1.1, 0.002))
    assert graph.metre == UNKNOWN_METRE


def test_nor_without_a_rig_that_shows_it():
    graph = rig_graph()
    graph._has_rig = False
    assert free_of(graph) == 4


def test_tracks_of_one_camera_connect_none():
    views = list(rig_graph().views.values())
    free = np.ones(len(views), bool)
    assert SlidingGraph._are_connected(views, free)
    for one in views:
        if one.camera == "right":
            one.track = one.track + 1000
    assert not SlidingGraph._are_connected(views, free)


def test_framesets_that_are_held_connect_none():
    """The rig's pose of held views is in no equation."""
    views = list(rig_graph().views.values())
    newest = max(v.measured.frameset for v in views)
    free = np.array([v.measured.frameset == newest for v in views])
    assert SlidingGraph._are_connected(views, free)
    for one, moves in zip(views, free, strict=True):
        if moves and one.camera == "right":
            one.track = one.track + 1000
    assert not SlidingGraph._are_connected(views, free)
    assert not SlidingGraph._are_connected(views[:1], free[:1])


def test_a_metre_that_tracks_contradict_again_and_again_is_not_believed(monkeypatch):
    """It may be that of another chain."""
    graph = rig_graph()
    graph.metre = Metre(1.0, 0.001)
    for _ in range(MOST_CONTRADICTIONS - 1):
        graph.note_rig(contradicted=True)
    graph.note_rig(contradicted=False)
    for _ in range(MOST_CONTRADICTIONS - 1):
        graph.note_rig(contradicted=True)
    assert graph.metre == Metre(1.0, 0.001)
    graph.note_rig(contradicted=True)
    assert graph.metre == UNKNOWN_METRE


def test_only_views_that_are_matched_keep_their_large_descriptors():
    graph = SlidingGraph(300, 8)
    for id in range(3):
        graph.views[id] = view(id, [-1] * 5)
        assert graph.views[id].features.unit.shape == (5, 128)
    graph.add(view(3, [-1] * 5), [2])
    held = [id for id, v in graph.views.items() if "unit" in vars(v.features)]
    assert held == [2, 3]


def test_all_views_of_a_camera_get_its_newest_guess_of_k():
    graph = SlidingGraph(300, 8)
    graph.views = {0: view(0, [0], own_K=True, focal=500.0), 1: view(1, [0])}
    graph.points.set(np.array([0]), np.ones((1, 3)))
    graph.set_guessed_K(view(2, [0], own_K=True, focal=400.0))
    assert graph.views[0].K[0, 0] == pytest.approx(400.0)
    assert np.isnan(graph.points.of(np.array([0]))).all()


def predicted(focals, shape=(84, 112)):
    views = tuple(View(i, i, np.zeros((*shape, 3), np.uint8)) for i in range(len(focals)))
    guess = np.array([np.diag([f, f, 1.0]) for f in focals])
    maps = np.ones((len(focals), *shape), np.float32)
    return Window(0, views, 1), Prediction(
        maps, maps, np.tile(np.eye(4), (len(focals), 1, 1)), guess
    )


def test_guesses_of_the_focal_length_are_steadied_by_image_size():
    guessed = GuessedFocal()
    for focal in (500.0, 400.0, 404.0, 396.0):
        steady = guessed.steadied(*predicted([focal]), known=())
    assert steady.K[0, 0, 0] == pytest.approx(402.0)
    other = guessed.steadied(*predicted([300.0], (84, 84)), known=())
    assert other.K[0, 0, 0] == pytest.approx(300.0)
    kept = guessed.steadied(*predicted([777.0]), known={""})
    assert kept.K[0, 0, 0] == pytest.approx(777.0)


def test_pixels_of_a_camera_are_square_whatever_the_network_guesses():
    """Those of its image are not: sides are rounded to patches."""
    guessed = GuessedFocal()
    window, guess = predicted([500.0])
    guess.K[0, 1, 1] = 180.0
    plain = guessed.steadied(window, guess, known=()).K[0]
    assert plain[0, 0] == pytest.approx(plain[1, 1]) == pytest.approx(300.0)
    guessed.note_size(window.views[0], (370, 1226, 3))
    K = guessed.steadied(window, guess, known=()).K[0]
    focal = K[0, 0] * 1226 / 112, K[1, 1] * 370 / 84  # pixels of the camera
    assert focal[0] == pytest.approx(focal[1])
    assert K[0, 0] * K[1, 1] == pytest.approx(500 * 180)
    guess.K[0, 0, 0] = np.nan  # it says nothing, and spoils no other
    assert guessed.steadied(window, guess, known=()).K[0, 0, 0] == pytest.approx(K[0, 0])


def test_a_restart_does_not_give_ids_again():
    """Stored keyframes of two chains would seem to see one point."""
    graph = SlidingGraph(100, 5)
    first = graph.points.new_ids(3)
    graph.restart()
    assert not set(first) & set(graph.points.new_ids(3))


def placed_at(*x, unit=1.0):
    """Poses in local of views 0, 1, ..., at these places."""
    poses = {}
    for id, at in enumerate(x):
        T = np.eye(4)
        T[0, 3] = at
        poses[id] = T, unit
    return poses


def test_between_windows_a_view_has_no_pose_and_its_depth_follows_its_submap():
    graph = SlidingGraph(300, 8)
    graph.views = {id: view(id, [0, 1]) for id in range(3)}
    graph.end_window({0: 1.0, 1: 2.0})
    assert list(graph.views) == [0, 1]  # no later window shares the other
    assert not any(v.is_placed for v in graph.views.values())
    graph.end_window({0: 3.0, 1: 3.0})  # of a window that was not refined: nothing is known
    poses = placed_at(5.0, 7.0, unit=4.0)
    graph.place(poses, 0)
    for id, by in ((0, 4.0), (1, 2.0)):  # as long as the unit of its submap became
        np.testing.assert_array_equal(graph.views[id].T_local_camera, poses[id][0])
        np.testing.assert_allclose(np.exp(graph.views[id].log_depth), by)
    graph.end_window({0: 4.0, 1: 4.0})
    graph.place({1: poses[1]}, 0)  # the other can be shared no more
    assert list(graph.views) == [1]
    np.testing.assert_allclose(np.exp(graph.views[1].log_depth), 2.0)


def test_what_a_window_that_failed_has_left_is_forgotten():
    """Its views have a depth in the unit of that window, and nobody knows their submaps' units."""
    graph = SlidingGraph(300, 8)
    graph.views = {0: view(0, [0, 1])}
    graph.end_window({0: 1.0})
    graph.place(placed_at(0.0), 0)
    graph.views[1] = view(1, [0, 1])
    graph.place(placed_at(0.0, 1.0, unit=0.5), 0)
    assert not graph.views


def test_points_of_tracks_are_found_anew_after_a_correction():
    graph = SlidingGraph(300, 8)
    graph.views = {0: view(0, [0, 1])}
    graph.points.set(np.array([0, 1]), np.ones((2, 3)))
    graph.end_window({0: 1.0})
    graph.place(placed_at(0.0), 0)
    assert len(graph.points) == 2
    graph.end_window({0: 1.0})
    graph.place(placed_at(1.0), 1)
    assert len(graph.points) == 0
    assert graph.points.new_ids(1).tolist() == [0]  # none was given out
