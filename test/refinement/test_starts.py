"""Start poses: of the network, of points, of matches; and what counts against them."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.refinement import starts
from da3_ros.refinement.features import Features
from da3_ros.refinement.track_noise import TrackNoise
from da3_ros.refinement.tracked_view import Matches, TrackedView, TrackPoints

K = np.array([[400.0, 0, 320], [0, 400, 240], [0, 0, 1]])
COUNT = 120


def pose(x=0.0, turn=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", turn, degrees=True).as_matrix()
    T[0, 3] = x
    return T


TRUE = pose(0.2, 2.0)


def scene(seed=0, moving=0, move=(0.0, 0.0, 0.0)):
    """Two views of points, some of which have moved in between, with the true pose of the second;
    all matches are given."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        (rng.uniform(-1.5, 1.5, COUNT), rng.uniform(-1, 1, COUNT), rng.uniform(2, 5, COUNT))
    )
    later = X.copy()
    later[:moving] += move

    def view(id, T, X):
        x = (X - T[:3, 3]) @ T[:3, :3]
        pixel = x @ K.T
        features = Features(
            (480, 640), pixel[:, :2] / pixel[:, 2:], np.zeros((COUNT, 128), np.uint8)
        )
        return TrackedView(id, "", features, K, T, np.log(x[:, 2]))

    pairs = np.stack([np.arange(COUNT)] * 2, axis=1)
    known, new = view(0, np.eye(4), X), view(1, TRUE, later)
    return new, [Matches(known, pairs)]


def started(new, found, at, noise=None):
    new.T_local_camera = at
    good = starts.start_pose(new, found, [0], TrackPoints(), noise or TrackNoise())
    turn = Rotation.from_matrix(TRUE[:3, :3].T @ new.T_local_camera[:3, :3]).magnitude()
    return good[0], np.degrees(turn), np.linalg.norm(new.T_local_camera[:3, 3] - TRUE[:3, 3])


@pytest.mark.parametrize("at", [pose(0.2, 2.5), pose(-0.3, -10.0), pose(0.0, 0.0)])
def test_a_wrong_pose_of_the_network_is_replaced(at):
    good, turn, off = started(*scene(), at)
    assert good.mean() > 0.95
    assert turn < 0.1
    assert off < 0.02


@pytest.mark.parametrize("without", ["_by_points", "_by_matches"])
def test_points_and_matches_each_find_a_pose_far_from_the_networks(monkeypatch, without):
    monkeypatch.setattr(starts, without, lambda *_: iter(()))
    monkeypatch.setattr(starts, "pose_nearby", lambda *a: a[-1])
    _, turn, off = started(*scene(), pose(-0.6, -12.0))
    assert turn < 0.2
    assert off < 0.03


def test_matches_find_the_pose_where_depth_means_nothing():
    new, found = scene()
    known = found[0].known
    wild = np.random.default_rng(1).normal(0, 0.8, COUNT)
    known.log_depth = known.log_depth + wild
    noise = TrackNoise()
    noise.depth = 0.8
    _, turn, _ = started(new, found, pose(-0.3, -10.0), noise)
    assert turn < 0.3


def test_of_two_motions_the_one_near_the_networks_counts():
    """A little more than half of the points move on their own."""
    near, found = scene(moving=66, move=(0.25, 0.05, 0.1))
    noise = TrackNoise()
    noise.poses = {
        k: dataclasses.replace(v, rotation=0.01, position=0.01) for k, v in noise.poses.items()
    }
    good, turn, off = started(near, found, pose(0.21, 2.2), noise)
    assert turn < 0.3
    assert off < 0.02
    assert good[66:].mean() > 0.95 > 0.5 > good[:66].mean()


def test_matches_do_not_agree_with_a_pose_that_has_their_points_behind_it():
    """They lie on its epipolar lines: it has moved in the same direction, beyond the points."""
    one = scene()[1][0]  # the new view is where the known one is
    matched, beyond = starts._matched(one.known, one, TrackPoints(), 0.1), np.eye(4)
    beyond[2, 3] = 1000.0  # farther than they may be
    assert (starts.epipolar_distance(one.known, matched.there, beyond, K, matched.here) < 1).all()
    there, beyond = (starts._agreeing(one.known, T, [matched])[0][0] for T in (np.eye(4), beyond))
    assert there.all()
    assert not beyond.any()


def test_few_matches_do_not_outvote_the_network():
    """A repeated pattern: a tenth of the features agree on a far pose."""
    new, found = scene()
    few = Matches(found[0].known, found[0].pairs[:12])
    at = pose(0.9, 2.0)
    new.T_local_camera = at
    starts.start_pose(new, [few], [0], TrackPoints(), TrackNoise())
    np.testing.assert_array_equal(new.T_local_camera, at)


def wall(seed, T_new=TRUE, turned=0.0, slope=0.0):
    """As ``scene``, of points of one wall, found to a third of a pixel.

    turned: of the wall, degrees. slope: error of the logarithm of the predicted depth at the right
    edge of the image; the opposite at the left one."""
    rng = np.random.default_rng(seed)
    X = np.column_stack((rng.uniform(-1, 1, COUNT), rng.uniform(-0.7, 0.7, COUNT)))
    X = np.column_stack((X, np.zeros(COUNT))) @ pose(turn=turned)[:3, :3].T + (0, 0, 1.5)

    def view(id, T):
        x = (X - T[:3, 3]) @ T[:3, :3]
        pixel = x @ K.T
        pixel = pixel[:, :2] / pixel[:, 2:] + rng.normal(0, 0.3, (COUNT, 2))
        features = Features((480, 640), pixel, np.zeros((COUNT, 128), np.uint8))
        wrong = slope * (pixel[:, 0] / 320 - 1)
        return TrackedView(id, "", features, K, T, np.log(x[:, 2]) + wrong)

    pairs = np.stack([np.arange(COUNT)] * 2, axis=1)
    return view(1, T_new), [Matches(view(0, np.eye(4)), pairs)]


@pytest.mark.parametrize("seed", range(6))
def test_before_a_wall_a_step_sideways_is_no_turn(seed):
    """A camera that turns by 6 degrees and steps sideways before a wall; the network's pose is
    that of a turn without a step, and its depth is that of a slanted wall."""
    true = pose(0.11, -6.0)
    new, found = wall(seed, true, slope=0.4)
    new.T_local_camera = pose(0.0, -10.2)
    good = starts.start_pose(new, found, [0], TrackPoints(), TrackNoise())
    turn = Rotation.from_matrix(true[:3, :3].T @ new.T_local_camera[:3, :3]).magnitude()
    assert np.degrees(turn) < 0.7
    assert 0.08 < new.T_local_camera[0, 3] < 0.14
    assert good[0].mean() > 0.95


def poses_of_wall(new, found):
    known = found[0].known
    depth = np.exp(known.log_depth)
    return starts.poses_before_plane(known, known.features.pixel, depth, new.features.pixel, K)[0]


@pytest.mark.parametrize("few", [0, 2])
def test_a_plane_is_looked_for_in_the_views_with_the_most_matches(few):
    """Of other known views there are few matches, of which none agrees with the true pose."""
    true = pose(0.11, -6.0)
    new, found = wall(0, true, slope=0.4)
    new.T_local_camera = pose(0.0, -10.2)
    for id in range(2, 2 + few):
        other, pairs = dataclasses.replace(found[0].known, id=-id), found[0].pairs[:14].copy()
        pairs[:, 1] = pairs[::-1, 1]
        found = [Matches(other, pairs), *found]
    good = starts.start_pose(new, found, [0], TrackPoints(), TrackNoise())
    assert good[-1].mean() > 0.95


@pytest.mark.parametrize("beside", [60, 90])
def test_a_plane_holds_many_points(beside):
    """Else each scene had one, and its poses are tried for nothing."""
    new, found = wall(0)
    known, depth = found[0].known, np.exp(found[0].known.log_depth)
    here = new.features.pixel.copy()
    here[:beside] = np.random.default_rng(0).uniform((0, 0), (640, 480), (beside, 2))
    poses, _ = starts.poses_before_plane(known, known.features.pixel, depth, here, K)
    assert bool(poses) == (beside == 60)


@pytest.mark.parametrize("turned", [0.0, 30.0])
def test_a_plane_shows_the_motion_before_it(turned):
    """One of the poses is right, in the unit of the known depths."""
    new, found = wall(0, turned=turned)
    known, depth = found[0].known, np.exp(found[0].known.log_depth)
    there, here = known.features.pixel, new.features.pixel.copy()
    here[:20] += (60, 20)  # beside it
    _, inside = starts.poses_before_plane(known, there, depth, here, K)
    assert inside[20:].mean() > 0.9 > 0.1 > inside[:20].mean()
    nearest = min(poses_of_wall(new, found), key=lambda T: np.linalg.norm(T - TRUE))
    turn = Rotation.from_matrix(TRUE[:3, :3].T @ nearest[:3, :3]).magnitude()
    assert np.degrees(turn) < 0.5
    np.testing.assert_allclose(nearest[:3, 3], TRUE[:3, 3], atol=0.04)
    at = pose(2.0, 40.0)  # of the known view
    found[0].known.T_local_camera = at
    elsewhere = min(poses_of_wall(new, found), key=lambda T: np.linalg.norm(T - at @ TRUE))
    np.testing.assert_allclose(elsewhere, at @ nearest, atol=1e-9)


def test_what_lies_beside_the_plane_is_told_of_the_view_that_shows_it():
    new, found = wall(0)
    new.features.pixel[:20] += (60, 20)
    few = Matches(dataclasses.replace(found[0].known, id=-2), found[0].pairs[:10])
    matched = [starts._matched(new, m, TrackPoints(), 0.1) for m in (few, *found)]
    told = list(starts._by_planes(new, matched))
    assert told
    for k, beside, _T in told:
        assert k == 1
        assert beside[:20].mean() > 0.9 > 0.1 > beside[20:].mean()


def test_no_plane_is_behind_a_camera():
    """That excludes half of the four motions that a homography allows."""
    poses = poses_of_wall(*wall(0, turned=30.0))
    assert 1 <= len(poses) <= 2
    for T in poses:
        np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-9)


def test_wrong_depths_do_not_change_the_length_of_a_step_before_a_plane():
    """Beside the plane, and of a few of its points."""
    new, found = wall(0)
    known, depth = found[0].known, np.exp(found[0].known.log_depth)
    here, wrong = new.features.pixel.copy(), 66
    here[:wrong] = np.random.default_rng(0).uniform(0, 480, (wrong, 2))
    depth[:wrong] *= 20
    depth[wrong : wrong + 5] *= 50
    poses, _ = starts.poses_before_plane(known, known.features.pixel, depth, here, K)
    nearest = min(poses, key=lambda T: np.linalg.norm(T - TRUE))
    np.testing.assert_allclose(nearest[:3, 3], TRUE[:3, 3], atol=0.04)


def test_a_turn_on_the_spot_before_a_plane_has_no_step():
    new, found = wall(0, pose(0.0, 5.0))
    for T in poses_of_wall(new, found):
        assert np.linalg.norm(T[:3, 3]) < 0.02
        turn = np.degrees(Rotation.from_matrix(T[:3, :3]).magnitude())
        assert turn == pytest.approx(5, abs=0.5)


def test_few_or_scattered_points_are_no_plane():
    """Without enough matches, known depths or a homography there are no poses."""
    new, found = wall(0)
    known, here = found[0].known, new.features.pixel
    there, depth = known.features.pixel, np.exp(known.log_depth)
    for count in (0, 3, 15):
        few = slice(count)
        poses, inside = starts.poses_before_plane(known, there[few], depth[few], here[few], K)
        assert poses == []
        assert len(inside) == count
    assert starts.poses_before_plane(known, there, np.full(COUNT, np.nan), here, K)[0] == []
    same = np.zeros_like(here)
    assert starts.poses_before_plane(known, same, depth, same, K)[0] == []


@pytest.mark.parametrize("has_rest", [True, False])
def test_a_plane_that_moves_does_not_outvote_what_stands_beside_it(monkeypatch, has_rest):
    """A little more than half of the points move on their own, by little."""
    moved = np.array([0.06, 0.02, 0.0])
    new, found = scene(moving=66, move=moved)
    before = pose(0.2, 2.0)
    before[:3, 3] -= moved
    rest = (np.arange(COUNT) >= 66) & has_rest
    monkeypatch.setattr(starts, "_by_planes", lambda *_: iter([(0, rest, before)]))
    for other in ("_by_points", "_by_matches"):
        monkeypatch.setattr(starts, other, lambda *_: iter([]))
    monkeypatch.setattr(starts, "pose_nearby", lambda *_: TRUE)
    good = started(new, found, pose(0.19, 2.2))[0]
    assert (good[66:].mean() > 0.95) == has_rest
    assert (good[:66].mean() > 0.95) != has_rest


def test_a_pose_before_a_plane_counts_if_it_agrees_with_more_than_all_others(monkeypatch):
    """Half of them are wrong: one near a wrong pose of the network must not win by that."""
    noise = TrackNoise()
    noise.poses = {k: dataclasses.replace(v, rotation=0.002) for k, v in noise.poses.items()}

    def tilted(degrees):
        T = TRUE.copy()
        T[:3, :3] = T[:3, :3] @ Rotation.from_euler("x", degrees, degrees=True).as_matrix()
        return T

    monkeypatch.setattr(
        starts, "_by_planes", lambda *_: iter([(0, np.zeros(COUNT, bool), tilted(0.08))])
    )
    monkeypatch.setattr(starts, "pose_nearby", lambda *_: TRUE)
    _, turn, _ = started(*scene(), tilted(0.35), noise)
    assert turn < 0.04
