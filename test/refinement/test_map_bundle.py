"""Keyframes of a map that are adjusted together, on points with descriptors of their own."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.wall_views import SHAPE, K, drifted, map_views, seen, there_and_back, wall

from da3_ros.refinement import map_bundle
from da3_ros.refinement.bundle import NETWORK, Metre, PosePriors
from da3_ros.refinement.features import Features
from da3_ros.refinement.map_bundle import (
    AROUND,
    BEFORE,
    FEWEST,
    MapMatches,
    MapView,
    adjusted_map,
    joined_tracks,
    pairs_to_compare,
    verified_matches,
)
from da3_ros.refinement.measured_poses import UNKNOWN_METRE
from da3_ros.refinement.tracked_view import MeasuredPose

NONE = PosePriors.none()
NOTHING = {
    "features": Features(SHAPE, np.zeros((0, 2)), np.zeros((0, 128), np.uint8)),
    "log_depth": np.zeros(0),
}


def adjusted(views, loops=NONE, held=()):
    matches = MapMatches()
    matches.extend(views)
    return adjusted_map(views, matches, loops, held)


def error(poses, true):
    """Root mean square distance of positions after the similarity that fits best."""
    a, b = poses[:, :3, 3], true[:, :3, 3]
    a, b = a - a.mean(0), b - b.mean(0)
    U, S, Vt = np.linalg.svd(b.T @ a)
    D = np.diag([1, 1, np.sign(np.linalg.det(U @ Vt))])
    scale = (S * np.diag(D)).sum() / (a**2).sum()
    return float(np.sqrt(((scale * a @ (U @ D @ Vt).T - b) ** 2).sum(1).mean()))


def poses_of(done, count):
    return np.array([done.poses[k] for k in range(count)])


def test_drift_goes_and_the_map_stays_where_it_was():
    true = there_and_back()
    start = drifted(true)
    done = adjusted(map_views(true, start))
    assert len(done.poses) == len(true)
    found = poses_of(done, len(true))
    assert error(found, true) < error(start, true) / 20
    assert error(found, true) < 0.005
    np.testing.assert_allclose(found[:, :3, 3].mean(0), start[:, :3, 3].mean(0), atol=1e-9)
    turn = np.einsum("vij,vkj->ik", start[:, :3, :3], found[:, :3, :3])
    np.testing.assert_allclose(turn, turn.T, atol=1e-6)  # no rotation on average
    assert done.error_px < 0.5 * done.error_before_px
    np.testing.assert_allclose(np.linalg.det(found[:, :3, :3]), 1.0, atol=1e-9)


def test_points_that_come_back_are_the_same_points():
    true = there_and_back()
    views = map_views(true, drifted(true))
    matches = MapMatches()
    matches.extend(views)
    tracks = joined_tracks(views, matches.of(views))
    ends = [{v for v, _ in t} for t in tracks]
    both = [t for t in ends if t & set(range(6)) and t & set(range(18, 24))]
    assert len(both) > 50
    assert all(len(t) == len({v for v, _ in t}) for t in tracks)  # one feature of a view
    features = [f for t in tracks for f in t]
    assert len(features) == len(set(features))  # each in one track


@pytest.mark.parametrize("factor", long_after(1, [0.7, 1.0, 1.4]))
def test_depths_or_distances_stay_on_average(factor):
    """Of a path that is too long or too short for its depths."""
    true = there_and_back()
    start = drifted(true)
    start[:, :3, 3] *= factor
    matches = MapMatches()
    views = map_views(true, start)
    matches.extend(views)

    def size(poses):
        return np.linalg.norm(poses[:, :3, 3] - poses[:, :3, 3].mean(0))

    done = adjusted_map(views, matches, NONE, by_depth=True)
    assert size(poses_of(done, 24)) == pytest.approx(size(true), rel=0.01)
    done = adjusted_map(views, matches, NONE)
    assert size(poses_of(done, 24)) == pytest.approx(size(start), rel=0.05)
    blind = [dataclasses.replace(v, log_depth=np.full_like(v.log_depth, np.nan)) for v in views]
    done = adjusted_map(blind, matches, NONE, by_depth=True)  # nobody knows depths
    assert size(poses_of(done, 24)) == pytest.approx(size(start), rel=0.05)


@pytest.mark.parametrize("count", [3, 4])
def test_distances_of_settled_keyframes_stay(count):
    """Their depth was measured by these distances. A few of them show nothing."""
    true = there_and_back()
    start = drifted(true)
    start[:, :3, 3] *= 1.2
    views, matches = map_views(true, start), MapMatches()
    matches.extend(views)

    def size(poses):
        return np.linalg.norm(poses[:count, :3, 3] - poses[:count, :3, 3].mean(0))

    done = adjusted_map(views, matches, NONE, by_depth=True, settled=range(count))
    found = poses_of(done, 24)
    assert size(found) == pytest.approx(size(start if count > 3 else true), rel=0.02)


def test_settled_keyframes_in_one_place_say_nothing_of_distances():
    true = there_and_back()
    start = drifted(true)
    start[:, :3, 3] *= 1.2
    start[:8, :3, 3] = start[0, :3, 3] + 0.01 * (start[:8, :3, 3] - start[0, :3, 3])
    views, matches = map_views(true, start), MapMatches()
    matches.extend(views)
    by_depth = adjusted_map(views, matches, NONE, by_depth=True)
    done = adjusted_map(views, matches, NONE, by_depth=True, settled=range(8))
    for id, T in by_depth.poses.items():
        np.testing.assert_array_equal(done.poses[id], T)


BASELINE = 0.25


def rig_views(true, start, declared=None, metre=1.0):
    """Views of two cameras, the right one ``BASELINE`` beside the left one. start: poses of the
    left ones; the right ones start at half of the distance. declared: pose of the right camera."""
    rng = np.random.default_rng(0)
    points, descriptors = wall(0)
    mounts = np.eye(4), at_right(BASELINE)
    known = np.eye(4), at_right(BASELINE) if declared is None else declared
    out = []
    for k, T in enumerate(true):
        for c, name in enumerate(("left", "right")):
            features, log_depth = seen(T @ mounts[c], points, descriptors, rng)
            placed = start[k] @ (np.eye(4), at_right(metre * BASELINE / 2))[c]
            measured = MeasuredPose(T_rig_camera=known[c], frameset=k)
            out.append(MapView(len(out), name, features, K, placed, log_depth, measured=measured))
    return out


def at_right(metres, turn_deg=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", turn_deg, degrees=True).as_matrix()
    T[0, 3] = metres
    return T


def way(poses):
    return np.linalg.norm(np.diff(poses[::2, :3, 3], axis=0), axis=1).sum()


def baselines(poses):
    return np.linalg.norm(poses[1::2, :3, 3] - poses[::2, :3, 3], axis=1)


def true_rig(true):
    return np.array([T @ mount for T in true for mount in (np.eye(4), at_right(BASELINE))])


@pytest.mark.parametrize("known", long_after(1, [None, 0.8]))
def test_a_rig_gives_a_map_its_size(known):
    """A known metre is kept, also if the way was 20 % too long for it."""
    true = there_and_back(12)
    start = drifted(true)
    start[:, :3, 3] *= 1.2
    views = rig_views(true, start)
    matches = MapMatches()
    matches.extend(views)
    metre = UNKNOWN_METRE if known is None else Metre(np.log(known), 0.01)
    done = adjusted_map(views, matches, NONE, metre=metre)
    found = poses_of(done, len(views))
    length = np.exp(done.metre.log)
    np.testing.assert_allclose(baselines(found) / length, BASELINE, rtol=0.01)
    assert way(found) / length == pytest.approx(way(true_rig(true)), rel=0.01)
    assert error(found, true_rig(true)) < 0.01
    assert abs(np.log(way(found) / length / way(true_rig(true)))) < 3 * done.metre.sigma < 0.02
    if known is None:  # lengths are those of the way before
        assert way(found) == pytest.approx(way(np.repeat(start, 2, 0)), rel=0.1)
    else:
        assert length == pytest.approx(known, rel=1e-3)


@pytest.mark.parametrize("turn_deg", long_after(1, [2.0, 0.0]))
def test_a_rig_that_is_declared_a_little_turned_gives_the_same_size(turn_deg):
    true = there_and_back(12)
    views = rig_views(true, drifted(true), at_right(BASELINE, turn_deg))
    matches = MapMatches()
    matches.extend(views)
    done = adjusted_map(views, matches, NONE)
    length = np.exp(done.metre.log)
    assert way(poses_of(done, 24)) / length == pytest.approx(way(true_rig(true)), rel=0.01)


@pytest.mark.parametrize(
    "declared", long_after(1, [at_right(BASELINE, 20.0), at_right(-BASELINE)])
)
def test_a_rig_that_is_declared_wrongly_changes_nothing(declared):
    true = there_and_back(12)
    views = rig_views(true, drifted(true), declared)
    matches = MapMatches()
    matches.extend(views)
    done = adjusted_map(views, matches, NONE, metre=Metre(0.0, 0.01))
    assert done.metre is None
    assert error(poses_of(done, 24), true_rig(true)) < 0.01


def test_exact_poses_stay():
    true = there_and_back()
    done = adjusted(map_views(true, true))
    assert error(poses_of(done, len(true)), true) < 0.003


@pytest.mark.parametrize("seed", long_after(1, [1, 2, 3]))
def test_wrong_matches_do_not_count(seed):
    true = there_and_back()
    start = drifted(true)
    done = adjusted(map_views(true, start, seed=seed, wrong=0.2))
    assert error(poses_of(done, len(true)), true) < error(start, true) / 10


def test_held_keyframes_stay_and_give_the_unit():
    true = there_and_back()
    start = drifted(true)
    start[:4] = true[:4]
    done = adjusted(map_views(true, start), held=range(4))
    found = poses_of(done, len(true))
    np.testing.assert_array_equal(found[:4], true[:4])
    assert np.linalg.norm(found[:, :3, 3] - true[:, :3, 3], axis=1).max() < 0.03  # as they are


@pytest.mark.long
@pytest.mark.parametrize("factor", long_after(1, [0.9, 1.1]))
def test_a_guessed_focal_length_is_found_too(factor):
    true = there_and_back()
    start = drifted(true)
    wrong = K * [[factor, 1, 1], [1, factor, 1], [1, 1, 1]]
    views = [dataclasses.replace(v, K=wrong) for v in map_views(true, start)]
    held = adjusted(views)
    free = adjusted([dataclasses.replace(v, guessed_K=True) for v in views])
    assert error(poses_of(free, len(true)), true) < 0.01
    assert held is None or error(poses_of(held, len(true)), true) > 0.01


def test_what_is_worse_is_refused(monkeypatch):
    true = there_and_back()
    views = map_views(true, true)
    assert adjusted(views) is not None
    adjust = map_bundle.adjust

    def spoiled(bundle, steps):
        done = adjust(bundle, steps)
        done.bundle.T_local_camera[5:, 1, 3] += 0.2
        return done

    monkeypatch.setattr(map_bundle, "adjust", spoiled)
    assert adjusted(views) is None


def test_too_little_is_no_map():
    true = there_and_back()
    views = map_views(true, true)
    assert adjusted([]) is None
    assert adjusted(views[:2]) is None
    assert adjusted([dataclasses.replace(v, **NOTHING) for v in views]) is None


def test_few_features_know_less_than_windows():
    """Those of tiny or dim images."""
    true = there_and_back()
    views = map_views(true, true)
    for count, enough in ((30, False), (200, True)):
        few = [
            dataclasses.replace(
                v, log_depth=v.log_depth[:count],
                features=Features(SHAPE, v.features.pixel[:count], v.features.descriptor[:count]),
            )
            for v in views
        ]  # fmt: skip
        assert (adjusted(few) is not None) == enough


def test_a_keyframe_without_matches_has_no_pose_and_spoils_none():
    true = there_and_back()
    start = drifted(true)
    views = map_views(true, start)
    views[7] = dataclasses.replace(views[7], **NOTHING)
    done = adjusted(views)
    assert set(range(24)) - done.poses.keys() == {7}
    rest = [k for k in range(24) if k != 7]
    assert error(np.array([done.poses[k] for k in rest]), true[rest]) < 0.005


@pytest.mark.long
def test_a_loop_that_images_do_not_show_holds():
    """The second half of the way shows another wall; only the loop connects both."""
    true = there_and_back()
    start = drifted(true, scale=0.4)
    rng = np.random.default_rng(0)
    views = []
    for k, T in enumerate(true):
        points, descriptors = wall(0 if k < 12 else 5)
        features, log_depth = seen(T, points, descriptors, rng)
        views.append(MapView(k, "", features, K, start[k], log_depth))
    loop = PosePriors.isotropic(
        np.array([0]), np.array([23]), (np.linalg.inv(true[0]) @ true[23])[None],
        np.array([0.002]), np.array([0.005]), NETWORK,
    )  # fmt: skip
    gap = np.linalg.norm(true[23, :3, 3] - true[0, :3, 3])
    for loops, closed in ((NONE, False), (loop, True)):
        done = adjusted(views, loops)
        found = np.linalg.norm(done.poses[23][:3, 3] - done.poses[0][:3, 3])
        assert (abs(found - gap) < 0.02) == closed


def test_a_rig_whose_cameras_see_different_walls_keeps_its_shape():
    true = there_and_back(16)
    start = drifted(true)
    across = np.eye(4)
    across[:3, 3] = 0.3, 0, 0
    rng = np.random.default_rng(0)
    views = []
    for k, T in enumerate(true):
        for name, seed, mount in (("a", 0, np.eye(4)), ("b", 9, across)):
            points, descriptors = wall(seed)
            features, log_depth = seen(T @ mount, points, descriptors, rng)
            views.append(MapView(
                2 * k + seed // 9, name, features, K, start[k] @ mount, log_depth,
                measured=MeasuredPose(None, None, mount, k),
            ))  # fmt: skip
    done = adjusted(views)
    pairs = [np.linalg.inv(done.poses[2 * k]) @ done.poses[2 * k + 1] for k in range(16)]
    turns = [Rotation.from_matrix(T[:3, :3]).magnitude() for T in pairs]
    assert max(turns) < np.radians(0.3)
    assert np.std([T[0, 3] for T in pairs]) < 0.02
    assert error(np.array([done.poses[2 * k] for k in range(16)]), true) < 0.01


def test_pairs_are_bounded_and_compared_once(monkeypatch):
    true = there_and_back(40)
    views = map_views(true, true)
    pairs = pairs_to_compare(views)
    assert len(pairs) <= (BEFORE + AROUND) * len(views)
    assert all(i < j for i, j in pairs)
    assert len(pairs) == len(set(pairs))
    assert {(0, 39), (1, 38)} <= set(pairs)  # the same place, much later
    calls = []
    compare = map_bundle.verified_matches
    monkeypatch.setattr(
        map_bundle, "verified_matches",
        lambda a, b: (calls.append((a.id, b.id)), compare(a, b))[1],
    )  # fmt: skip
    matches = MapMatches()
    matches.extend(views[:20])
    first = len(calls)
    matches.extend(views)
    assert len(calls) == len(set(calls)) == len(set(pairs) | set(calls[:first]))
    matches.keep(range(10))
    assert {id for i, j, _ in matches.of(views) for id in (i, j)} <= set(range(10))
    assert all("unit" not in v.features.__dict__ for v in views)


def test_views_back_to_back_are_not_compared():
    true = there_and_back(30)
    turned = true.copy()
    turned[15:, :3, :3] = turned[15:, :3, :3] @ np.diag([-1.0, 1.0, -1.0])
    pairs = pairs_to_compare(map_views(true, turned))
    assert not any(i < 15 <= j and j - i > BEFORE for i, j in pairs)


def test_matches_need_one_epipolar_geometry_like_that_of_the_poses():
    true = there_and_back()
    a, b, *_ = map_views(true, true)
    found = verified_matches(a, b)
    assert len(found) > 100
    far = dataclasses.replace(b, T_local_camera=b.T_local_camera.copy())
    far.T_local_camera[:3, :3] = Rotation.from_euler("y", 40, degrees=True).as_matrix()
    assert not len(verified_matches(a, far))
    near = dataclasses.replace(b, T_local_camera=b.T_local_camera.copy())
    near.T_local_camera[:3, :3] = Rotation.from_euler("y", 8, degrees=True).as_matrix()
    assert len(verified_matches(a, near)) > 0.8 * len(found)
    few = Features(SHAPE, b.features.pixel[: FEWEST - 1], b.features.descriptor[: FEWEST - 1])
    assert not len(verified_matches(a, dataclasses.replace(b, features=few)))


@pytest.mark.usefixtures("solved_each_time")
def test_the_same_keyframes_give_the_same_map():
    true = there_and_back()
    start = drifted(true)
    one, other = (adjusted(map_views(true, start, wrong=0.1)) for _ in range(2))
    for id, T in one.poses.items():
        np.testing.assert_array_equal(T, other.poses[id])
