"""What joins a chain to others is a hypothesis: later looks weigh against it."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.submaps import add_keyframe, add_submap

from da3_ros.config import LoopConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping import loop_candidates, loop_closure
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.loop_candidates import Loop, drift_around
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.loop_keyframes import PlacedKeyframe
from da3_ros.mapping.map_table import OverlapView
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.types import PlacedView, RefinedLoop, View

K = np.array([[20.0, 0, 14], [0, 20.0, 14], [0, 0, 1]])
SURE = np.diag([1e-3, *[3e-4] * 3, *[1e-3] * 3]) ** 2
VARIANCE = np.array([5e-3, 3e-3, 1e-2]) ** 2
FIT = Similarity(1.0, np.eye(3), np.zeros(3))
COUNT = 20  # keyframes of a chain, four in a submap
TURN = Rotation.from_euler("y", 5, degrees=True).as_matrix()
WRONG, RIGHT = Similarity(1.0, TURN, np.array([0.3, 0, 0])), FIT


def begin(n):
    """Where keyframe ``n`` was added."""
    T = np.eye(4)
    T[0, 3] = 0.4 * (n % COUNT)
    return T


def walk(closer, first):
    """Adds a chain of keyframes along x, the first of which has the id ``first``."""
    for n in range(first, first + COUNT):
        T = begin(n)
        closer.add_window(Alignment(FIT, True, 0.0, 1.0, SURE, np.zeros(3)), T[:3, 3])
        view = View(n, n, np.zeros((28, 28, 3), np.uint8), K)
        depth = np.full(784, 2.0)
        add_submap(closer._submaps, n // 4, T)
        shared = OverlapView(view, K, T, np.arange(784), depth, depth, submap=n // 4)
        add_keyframe(closer, shared, np.random.default_rng(n).normal(size=64))


def two_chains(*, lost):
    out = LoopClosure()
    walk(out, 0)
    out.start_chain(lost=lost)
    walk(out, COUNT)
    return out


@pytest.fixture
def closer():
    """Two chains, the second one unconnected to the first."""
    return two_chains(lost=False)


def looks(closer, monkeypatch, pairs, drift):
    """Verifies loops between keyframes ``pairs`` (old, new) that measure a drift of the second
    chain from where it began; applies what they correct. Returns whether each was to be solved."""
    out = []
    table = closer._submaps
    for old, new in pairs:
        rows = {k.view.id: k for k in closer.keyframes}
        ends = rows[old].submap, rows[new].submap
        S_old, S_new = (Similarity.from_pose(begin(4 * id)) for id in ends)
        loop = Loop(
            old, new, S_old.inverse() @ drift @ S_new, VARIANCE,
            frozenset(range(old - 1, old + 2)), frozenset(range(new - 1, new + 2)),
        )  # fmt: skip
        monkeypatch.setattr(loop_closure, "measured_loop", lambda *_, found=loop: found)
        monkeypatch.setattr(loop_closure, "see_same_surface", lambda *_: True)
        closer.candidates._from = new, lambda _: True
        window = [rows[old], rows[new]]
        seen = RefinedLoop(None, np.zeros(3))
        solves = closer._verify(rows[old], window, seen, aligner=WindowAligner())
        if solves:
            closer.solve(True)
            table.correct(closer.collect(wait=True).at(table.T_map_local))
        out.append(solves)
    return out


def error(closer):
    """How far the second chain is from where it is right, seen from the first one, metres."""
    table = closer._submaps
    first, last = (table.submaps[k].T_map_submap for k in (0, 2 * COUNT // 4 - 1))
    wanted = Similarity.from_pose(begin(0)).inverse() @ Similarity.from_pose(begin(2 * COUNT - 4))
    return float(np.linalg.norm((first.inverse() @ last).t - wanted.t))


APART = [(4, 24), (8, 28), (12, 32), (16, 36)]


def test_two_looks_that_compare_the_same_views_are_one(closer, monkeypatch):
    """They may repeat one error; three are enough."""
    assert looks(closer, monkeypatch, [(4, 24), (5, 28), (4, 32)], RIGHT) == [False, False, True]
    assert error(closer) < 0.02


@pytest.mark.parametrize("surface", [True, False])
@pytest.mark.parametrize("known", ["placed", "placed elsewhere", "not placed", "unread"])
def test_a_loop_is_as_tracks_measure_it(closer, monkeypatch, caplog, known, surface):
    """A window says only where to begin; and what the network sees counts without tracks alone."""
    rows, table = {k.view.id: k for k in closer.keyframes}, closer._submaps
    old, new = rows[4], rows[26]
    here = PlacedKeyframe.of(new, table)
    ends = [table.T_local_submap(one.submap) for one in (old, new)]
    away = Similarity(1.5, TURN, np.array([0.1, 0, 0]))
    loop = Loop(4, 26, ends[0].inverse() @ away @ ends[1], VARIANCE, frozenset([4]))
    monkeypatch.setattr(loop_closure, "measured_loop", lambda *_: loop)
    monkeypatch.setattr(loop_closure, "see_same_surface", lambda *_: surface)
    true = Similarity.from_pose(begin(26)).pose(np.eye(4))
    true[:3, :3], true[2, 3] = TURN.T, 0.2
    asked, sigma = [], np.array([0.01, 0.002, 0.02])

    def place(start, others):
        asked.append((start, others))
        return PlacedView(true, 0.1, sigma, 50) if known.startswith("placed") else None

    if known == "unread":
        monkeypatch.setattr(loop_closure, "keyframes_around", unread)
    compared = []
    monkeypatch.setattr(
        loop_candidates, "depths_agree", lambda *two: compared.append(two) or known == "placed"
    )
    seen = RefinedLoop(None, np.zeros(3))
    found = closer._measured(old, new, [old, new], seen, WindowAligner(), place)
    if known != "unread":
        start, others = asked[0]
        np.testing.assert_allclose(start.T_local_camera, away.pose(here.T_local_camera))
        np.testing.assert_allclose(start.depth, 1.5 * here.view.depth)
        near = [one.view.id for one in others]
        assert near[0] == 4
        assert sorted(near) == list(range(8))  # of its chain, nearest in time
    assert ("cannot be read" in caplog.text) == (known == "unread")
    if known == "placed elsewhere" and not surface:  # nor does its depth agree there
        assert found is None
        placed = compared[0][0]
        np.testing.assert_allclose(placed.T_local_camera, true)
        np.testing.assert_allclose(placed.depth, 1.5 * np.exp(0.1) * here.view.depth)
        assert len(compared) == 8
        return
    if not known.startswith("placed"):
        assert found is (loop if surface else None)
        return
    assert not (surface and compared)
    drift = found.drift(*ends)
    np.testing.assert_allclose(drift.pose(here.T_local_camera), true, atol=1e-9)
    assert drift.scale == pytest.approx(1.5 * np.exp(0.1))
    assert (found.old, found.new, found.old_side) == (4, 26, frozenset([4]))
    closer._add_to_graph(found)
    at = closer._graph.edges[-1].pivot.at  # of the camera in its submap
    np.testing.assert_allclose(at, new.T_submap_camera[:3, 3])
    assert np.linalg.norm(at) > 0.5
    around = [PlacedKeyframe.of(rows[n], table) for n in range(8)]
    spread = drift_around(closer._graph, around[4], around)
    assert (spread > 0).all()
    np.testing.assert_allclose(found.variance[1:], sigma[1:] ** 2 + spread[1:])
    assert found.variance[0] > 0.05**2  # depth of all views may be off in common


def unread(*_):
    raise OSError("a damaged file")


def test_the_variance_of_a_loop_by_tracks_is_in_the_unit_of_its_submap():
    here = SimpleNamespace(view=SimpleNamespace(T_local_camera=np.eye(4), depth=np.ones(3)))
    here.T_local_submap = Similarity(2.0, np.eye(3), np.zeros(3))
    loop = Loop(0, 1, FIT, VARIANCE)
    there = SimpleNamespace(T_local_submap=FIT, view=None)
    view = PlacedView(np.eye(4), 0.0, np.array([0.0, 0.002, 0.02]), 50)
    here.view = OverlapView(None, K, np.eye(4), np.arange(3), np.ones(3), np.ones(3))
    found = loop_candidates.loop_by_tracks(
        loop, there, here, [there], np.array([0, 1e-6, 3e-4]), lambda *_: view, same_surface=True
    )
    np.testing.assert_allclose(found.variance[1:], [4e-6 + 1e-6, (4e-4 + 3e-4) / 4])


ASKEW = Similarity(1.0, Rotation.from_rotvec([0, 0.025, 0]).as_matrix(), np.array([0, 0, 0.1]))


def test_a_right_look_is_not_averaged_with_two_wrong_ones(closer, monkeypatch):
    """Two that share views repeat one error, of six standard deviations: they do not agree with a
    third one."""
    assert looks(closer, monkeypatch, [(4, 24), (5, 28)], ASKEW) == [False, False]
    assert looks(closer, monkeypatch, [(4, 30)], RIGHT) == [False]
    assert looks(closer, monkeypatch, [(5, 32), (4, 34)], RIGHT) == [False, True]
    assert error(closer) < 0.02
    assert len(closer._graph.ties(COUNT // 4)) == 3


def test_looks_at_two_places_withhold_a_join_until_one_has_more(closer, monkeypatch):
    assert looks(closer, monkeypatch, [(4, 24), (5, 28)], WRONG) == [False, False]
    assert looks(closer, monkeypatch, [(10, 30), (14, 34)], RIGHT) == [False, False]
    assert closer.closed == 0
    assert looks(closer, monkeypatch, [(17, 37)], RIGHT) == [True]
    assert error(closer) < 0.02


def test_a_joined_place_is_not_averaged_with_what_contradicts_it(closer, monkeypatch):
    looks(closer, monkeypatch, APART[:2], RIGHT)
    before = error(closer)
    assert looks(closer, monkeypatch, [(9, 29)], ASKEW) == [False]
    assert error(closer) == before
    assert len(closer._graph.ties(COUNT // 4)) == 2


def test_two_looks_apart_join(closer, monkeypatch):
    assert looks(closer, monkeypatch, APART[:2], RIGHT) == [False, True]
    assert error(closer) < 0.02
    assert closer.closed == 1


def test_a_wrong_join_is_undone_by_two_later_looks(closer, monkeypatch, caplog):
    looks(closer, monkeypatch, APART[:2], WRONG)
    assert error(closer) > 0.3
    assert looks(closer, monkeypatch, APART[2:3], RIGHT) == [False]
    assert error(closer) > 0.3  # one is not enough
    assert looks(closer, monkeypatch, APART[3:], RIGHT) == [True]
    assert error(closer) < 0.02
    assert closer.undone == 1
    assert "place in the map was wrong: 2 later looks" in caplog.text
    assert looks(closer, monkeypatch, [(2, 38)], RIGHT) == [False]  # agrees, and goes on
    assert len(closer._graph.ties(COUNT // 4)) >= 2


def test_later_looks_must_agree_with_each_other(closer, monkeypatch):
    looks(closer, monkeypatch, APART[:2], RIGHT)
    assert looks(closer, monkeypatch, APART[2:3], WRONG) == [False]
    assert looks(closer, monkeypatch, APART[3:], WRONG.inverse()) == [False]
    assert error(closer) < 0.02
    assert closer.undone == 0


def test_and_must_not_repeat_one_error(closer, monkeypatch):
    looks(closer, monkeypatch, APART[:2], RIGHT)
    assert looks(closer, monkeypatch, [(12, 32), (13, 36), (12, 28)], WRONG) == [False] * 3
    assert error(closer) < 0.02


def test_what_many_have_joined_two_do_not_undo(closer, monkeypatch):
    looks(closer, monkeypatch, APART, RIGHT)
    ties = len(closer._graph.ties(COUNT // 4))
    assert ties > 2
    assert looks(closer, monkeypatch, [(2, 22), (6, 26)], WRONG) == [False, False]
    assert error(closer) < 0.02


TWIN = Similarity(1.0, np.eye(3), np.array([-1.6, 0, 0]))  # one period of the place
NINE = [(k, k + COUNT) for k in (2, 6, 10, 14, 3, 7, 11, 15, 18)]  # five of which share no view


def test_what_five_places_have_joined_four_looks_at_a_twin_do_not_undo(closer, monkeypatch):
    looks(closer, monkeypatch, NINE, RIGHT)
    assert len(closer._graph.ties(COUNT // 4)) > 4
    pairs = [(k, k + 4 + COUNT) for k in (2, 6, 10, 14)]
    assert looks(closer, monkeypatch, pairs, TWIN) == [False] * 4
    assert error(closer) < 0.02


def test_looks_at_the_same_views_are_one_look_against_a_join(closer, monkeypatch):
    looks(closer, monkeypatch, NINE, RIGHT)
    pairs = [(k, k + 4 + COUNT) for k in (2, 3, 6, 7, 10, 11, 14)]
    assert not any(looks(closer, monkeypatch, pairs, TWIN))
    assert error(closer) < 0.02


def test_what_five_places_have_joined_five_undo(closer, monkeypatch):
    looks(closer, monkeypatch, NINE, WRONG)
    pairs = [(k, k + COUNT) for k in (1, 5, 9, 13, 17)]
    assert looks(closer, monkeypatch, pairs, RIGHT) == [False] * 4 + [True]
    assert error(closer) < 0.02
    assert closer.undone == 1


def test_loops_within_a_chain_are_not_undone(monkeypatch):
    """Odometry contradicts what they deny."""
    closer = LoopClosure()
    walk(closer, 0)
    assert looks(closer, monkeypatch, [(2, 14), (5, 18)], WRONG) == [False, False]
    assert closer.undone == 0
    assert not closer._against


def test_keyframes_whose_images_match_are_compared_first(closer):
    """Their descriptors say nothing here."""
    assert closer.candidates.next(None) is None
    closer.candidates.restart()
    given = []

    def matching(new, others):
        given.append((new.view.id, [o.view.id for o in others]))
        return [o for o in others if o.view.id in (7, 12)], len(given) > 3

    found = [closer.candidates.next(None, matching) for _ in range(5)]
    assert [f and f.view.id for f in found] == [7, 12, None, None, None]
    assert len(given) == 4  # until all were compared
    newest, others = given[0]
    assert newest == 2 * COUNT - 1
    assert set(range(COUNT)) <= set(others)
    assert not set(others) & set(range(newest - 8, newest + 1))  # which share windows with it


def test_good_looks_go_on_after_a_join_one_from_each_new_keyframe(closer, monkeypatch):
    """Else the camera's place would be as exact as the first two looks, until it has left the
    submap in which it was found."""
    newest = 2 * COUNT - 1

    def found():
        closer.candidates._from = None
        closer.candidates.restart()

        def matching(new, others):
            return [o for o in others if o.view.id == newest - COUNT], True

        old = closer.candidates.next(None, matching)
        return old and old.view.id

    off = Similarity(1.0, np.eye(3), np.array([0.03, 0, 0]))
    looks(closer, monkeypatch, [(12, 32), (newest - COUNT, newest - 1)], off)
    before = error(closer)
    assert before > 0.02
    assert found() == newest - COUNT  # though the submaps of both are tied
    assert looks(closer, monkeypatch, [(newest - COUNT, newest)], RIGHT) == [True]
    assert error(closer) < 0.8 * before
    assert found() is None  # the same look again would say nothing new


@pytest.mark.parametrize("hinted", [True, False])
def test_a_hint_is_looked_at_after_each_window_though_the_pose_is_known(
    closer, monkeypatch, hinted
):
    looks(closer, monkeypatch, APART[:2], WRONG)
    closer.candidates._from = None
    closer.candidates.restart()
    row = next(k for k in closer.keyframes if k.view.id == 16)
    there = loop_candidates.PlacedKeyframe.of(row, closer._submaps).centre
    hint = PoseHint(there, np.array([0.0, 1, 0]), 0.3) if hinted else None
    monkeypatch.setattr(loop_candidates, "MAX_DISTANCE", 0.01)  # times the depth: a camera's sight
    compared = []

    def infer(window):
        compared.append({view.id for view in window.views} & set(range(COUNT)))

    def look(window, matching=None):
        closer.try_close_loop(
            window, LoopConfig(every=50), 4, infer, WindowAligner(), True,
            hint=hint, matching=matching,
        )  # fmt: skip

    for window in (100, 101, 102):
        look(window)
    assert len(compared) == 2 * hinted  # of the two submaps near it, one after the other
    assert all(ids <= set(range(11, COUNT)) for ids in compared)
    # Elsewhere loops are looked for as usual.
    closer.candidates.restart()  # a new keyframe
    look(103, lambda new, others: ([o for o in others if o.view.id == 9], True))
    assert 9 in compared[-1]
    assert len(compared) == 2 * hinted + 1


@pytest.fixture
def lost():
    """As ``closer``; nobody knows where the second chain begins, and it is guessed."""
    return two_chains(lost=True)


def test_a_guess_confirms_no_join(lost, monkeypatch):
    assert looks(lost, monkeypatch, [(4, 24), (5, 25)], RIGHT) == [False, False]
    assert looks(lost, monkeypatch, [(12, 32)], RIGHT) == [True]


def test_nor_holds_it_a_wrong_one(lost, monkeypatch):
    looks(lost, monkeypatch, APART[:2], WRONG)
    assert looks(lost, monkeypatch, APART[2:], RIGHT) == [False, True]
    assert lost.undone == 1
    assert error(lost) < 0.02


@pytest.mark.parametrize("start", [False, True], ids=("unconnected", "lost"))
def test_after_a_false_join_the_true_place_is_looked_at(monkeypatch, start):
    """Also if it is far from the false one."""
    closer = two_chains(lost=start)
    far = Similarity(1.0, np.eye(3), np.array([0, 0, 10.0]))
    looks(closer, monkeypatch, APART[:2], far)
    assert error(closer) > 5
    closer.candidates._from = None
    closer.candidates.restart()
    newest = 2 * COUNT - 1

    def matching(new, others):
        return [o for o in others if o.view.id == newest - COUNT], True

    found = closer.candidates.next(None, matching)
    assert found is not None
    assert found.view.id == newest - COUNT
