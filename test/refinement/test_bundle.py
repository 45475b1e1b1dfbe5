"""Bundle adjustment: derivatives against finite differences, solutions against truth and gtsam."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.lens import Lens
from da3_ros.refinement import bundle as module
from da3_ros.refinement.bundle import RIG, Metre, PosePriors, adjust
from da3_ros.refinement.measured_poses import rig_prior
from da3_ros.refinement.track_noise import PoseNoise


def cost_at(solver, state, views, points, common):
    return solver.linearize(state.moved((views, points, common), solver)).cost


def with_rig(bundle, T, metre=0.5, sigma=0.2, start=0.4):
    """The bundle with views in pairs, whose shape is known in metres: ``metre`` units each."""
    priors = []
    for k in range(0, len(T) - 1, 2):
        T_pair = np.linalg.inv(T[k]) @ T[k + 1]
        T_pair[:3, 3] /= metre
        priors.append(rig_prior(k, k + 1, T_pair, PoseNoise(0.002, 0.0)))
    poses = PosePriors.joined([bundle.poses, *priors])
    root = poses.root.copy()
    root[poses.source == RIG, 3:] /= start
    return dataclasses.replace(
        bundle, poses=dataclasses.replace(poses, root=root),
        metre_prior=Metre(np.log(start), sigma), log_metre=np.log(start),
    )  # fmt: skip


@pytest.mark.parametrize("rig", [False, True], ids=("no rig", "rig"))
@pytest.mark.parametrize(
    "sigma", [(), (0.05,), (0.05, 0.02, 0.03, 0.1, 0.1)],
    ids=("calibrated", "unknown focal length", "unknown lens"),
)  # fmt: skip
def test_derivatives_equal_finite_differences(made, sigma, rig):
    """Of views, scales, lens, metre and points, with all priors and robust weights."""
    bundle, T, _ = made(start=0.05, views=4, points=30)
    if sigma:
        start = np.array([[0.02, 0.01, -0.02, -0.05, 0.03]])[:, : len(sigma)]
        bundle = dataclasses.replace(
            bundle, lens=np.array([0, -1, 0, 0]), lens_sigma=sigma, lens_start=start
        )
    if rig:
        bundle = with_rig(bundle, T)
    solver, state = module._Solver(bundle), module._State.of(bundle)
    terms = solver.linearize(state)
    frees, common, step = 3, len(sigma) + int(rig), 1e-6
    views, points, common = np.zeros((frees, 7)), np.zeros_like(bundle.points), np.zeros(common)
    for array, found in (
        (views, terms.g[: 7 * frees]), (common, terms.g[7 * frees :]), (points, terms.gp),
    ):  # fmt: skip
        for at in np.ndindex(array.shape):
            array[at] = step
            after = cost_at(solver, state, views, points, common)
            array[at] = -step
            before = cost_at(solver, state, views, points, common)
            array[at] = 0.0
            slope = (after - before) / (4 * step)  # the gradient is that of half the cost
            assert found.reshape(array.shape)[at] == pytest.approx(slope, rel=1e-4, abs=2e-2)


@pytest.mark.parametrize("rig", [False, True], ids=("no rig", "rig"))
@pytest.mark.parametrize("groups", [0, 1, 2])
def test_many_views_are_solved_as_few_are(made, monkeypatch, groups, rig):
    """Points of many views are eliminated pair by pair of views, those of few at once."""
    bundle, T, _ = made(start=0.05, views=6, points=60)
    if rig:
        bundle = with_rig(bundle, T)
    kept = np.ones(len(bundle.observations.view), bool)
    kept[::7] = False  # not each view sees each point
    free = np.array([False, True, True, False, True, True])
    bundle = dataclasses.replace(
        bundle, free=free, observations=bundle.observations.where(kept),
        lens=np.arange(6) % groups if groups else None,
    )  # fmt: skip
    found = []
    for most in (1000, 0):
        monkeypatch.setattr(module, "FEW", most)
        done = adjust(bundle, 6)
        found.append([done.bundle.T_local_camera, done.bundle.points, done.covariance()])
        found[-1].append(done.lens if groups else done.by_held())
        found[-1].append(done.bundle.log_metre)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("most", [1000, 0])
def test_without_a_free_view_only_points_move(made, monkeypatch, most):
    monkeypatch.setattr(module, "FEW", most)
    bundle, _, _ = made(start=0.05, views=4, points=20)
    done = adjust(dataclasses.replace(bundle, free=np.zeros(4, bool)), 5)
    np.testing.assert_array_equal(done.bundle.T_local_camera, bundle.T_local_camera)
    assert np.isfinite(done.bundle.points).all()


def test_exact_observations_give_the_true_poses(made):
    bundle, T, X = made(pixel=0.0, depth=0.0)
    done = adjust(bundle, 30)
    assert np.abs(done.bundle.T_local_camera - T).max() < 1e-6
    assert np.abs(done.bundle.points - X).max() < 1e-5
    assert done.reprojection.max() < 1e-4


@pytest.mark.parametrize("start", [0.1, 0.5, 2.0])
def test_a_rig_shows_the_metre(made, start):
    """Where depths hardly count, the distances of the rig's cameras give lengths their unit."""
    bundle, T, _ = made(pixel=0.05, start=0.02)
    done = adjust(with_rig(bundle, T, metre=0.5, sigma=np.inf, start=start), 30)
    found = done.metre()
    assert found.sigma < 0.05
    assert abs(found.log - np.log(0.5)) < 3 * found.sigma
    baseline = np.linalg.norm(np.diff(done.bundle.T_local_camera[:2, :3, 3], axis=0))
    metres = np.linalg.norm(np.diff(T[:2, :3, 3], axis=0)) / 0.5
    assert baseline / np.exp(found.log) == pytest.approx(metres, rel=0.005)
    assert done.by_held().shape == (35, 7)
    assert done.by_network().shape == (35, 35)


def test_a_known_metre_gives_lengths_their_unit(made):
    """A scene that starts 30 % too large gets the size that the rig says."""
    bundle, T, _ = made(pixel=0.1, start=0.0)
    first = T[0, :3, 3]
    grown = bundle.T_local_camera.copy()
    grown[:, :3, 3] = first + 1.3 * (grown[:, :3, 3] - first)
    o = dataclasses.replace(
        bundle.observations, log_depth=bundle.observations.log_depth + np.log(1.3)
    )
    loose = PosePriors.none()
    bundle = dataclasses.replace(
        bundle, T_local_camera=grown, points=first + 1.3 * (bundle.points - first), poses=loose,
        observations=o, scale_sigma=np.full(6, 1.0),
    )  # fmt: skip
    done = adjust(with_rig(bundle, T, metre=0.5, sigma=1e-4, start=0.5), 40)
    way = np.linalg.norm(np.diff(done.bundle.T_local_camera[:, :3, 3], axis=0), axis=1).sum()
    true = np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1).sum()
    assert way == pytest.approx(true, rel=0.01)


def test_without_a_rig_there_is_no_metre(made):
    assert adjust(made()[0], 5).metre() is None


def test_held_views_stay_to_the_bit(made):
    bundle, _, _ = made()
    free = bundle.free.copy()
    free[[1, 3]] = False
    done = adjust(dataclasses.replace(bundle, free=free), 10)
    for at in (0, 1, 3):
        assert np.array_equal(done.bundle.T_local_camera[at], bundle.T_local_camera[at])
    assert not np.array_equal(done.bundle.T_local_camera[2], bundle.T_local_camera[2])


def test_wrong_matches_do_not_move_the_cameras(made):
    bundle, T, _ = made(points=200)
    clean = adjust(bundle, 20)
    o = bundle.observations
    pixel = o.pixel.copy()
    wrong = np.random.default_rng(1).random(len(pixel)) < 0.1
    pixel[wrong] += np.random.default_rng(2).normal(0, 60, (int(wrong.sum()), 2))
    bad = dataclasses.replace(bundle, observations=dataclasses.replace(o, pixel=pixel))

    def error(done):
        return np.abs(done.bundle.T_local_camera[:, :3, 3] - T[:, :3, 3]).max()

    done = adjust(bad, 20)
    assert error(done) < 3 * error(clean) + 0.01
    assert np.median(done.reprojection[wrong]) > 10 * np.median(done.reprojection[~wrong])


def test_a_views_wrong_scale_is_found(made):
    bundle, _, _ = made(depth=0.02, points=150)
    o = bundle.observations
    log_depth = o.log_depth + np.where(o.view == 3, -0.3, 0.0)
    wrong = dataclasses.replace(
        bundle, observations=dataclasses.replace(o, log_depth=log_depth),
        scale_sigma=np.full(6, 1.0),
    )  # fmt: skip
    scale = adjust(wrong, 20).bundle.log_scale
    assert scale[3] == pytest.approx(0.3, abs=0.03)
    assert np.abs(np.delete(scale, 3)).max() < 0.05


def test_a_wrong_focal_length_is_found(made):
    bundle, _, _ = made(views=8, points=200, pixel=0.1, depth=0.02)
    K = bundle.K * np.array([[1.1, 1, 1], [1, 1.1, 1], [1, 1, 1]])
    done = adjust(dataclasses.replace(bundle, K=K, lens=np.zeros(8, int)), 40)
    assert done.bundle.K[:, 0, 0] == pytest.approx(500, rel=0.02)


def test_a_wrong_lens_is_found_by_each_camera(made):
    """Two cameras, of which one is as stated."""
    bundle, T, X = made(views=12, points=300, pixel=0.0, depth=0.0, start=0.0)
    true = Lens(0.03, 0.01, -0.01, -0.08, 0.02)
    o, lens = bundle.observations, np.arange(12) % 2
    x = np.einsum("oji,oj->oi", T[o.view, :3, :3], X[o.point] - T[o.view, :3, 3])
    K = bundle.K[0]
    shown = true.seen(x[:, :2] / x[:, 2:]) * np.diag(K)[:2] + K[:2, 2]
    pixel = np.where((lens[o.view] == 1)[:, None], shown, o.pixel)
    wrong = dataclasses.replace(
        bundle, observations=dataclasses.replace(o, pixel=pixel, sigma=np.full(len(pixel), 0.02)),
        lens=lens, lens_sigma=(0.05, 0.02, 0.02, 0.1, 0.1),
    )  # fmt: skip
    done = adjust(wrong, 40)
    np.testing.assert_allclose(done.lens, [np.zeros(5), true.errors], atol=2e-3)
    np.testing.assert_allclose(done.bundle.K[1], true.K(K), rtol=2e-3)
    sigma = np.sqrt(np.diagonal(done.lens_covariance(), axis1=1, axis2=2))
    assert sigma.shape == (2, 5)
    assert (np.abs(done.lens - [np.zeros(5), true.errors]) < 4 * sigma).all()
    np.testing.assert_allclose(done.focal_sigma(), sigma[:, 0])


def test_views_without_observations_keep_their_motion(made):
    """Only the priors hold them."""
    bundle, T, _ = made(views=4)
    o = bundle.observations
    kept = np.isin(o.view, (0, 1))
    ids, point = np.unique(o.point[kept], return_inverse=True)
    sparse = dataclasses.replace(
        bundle,
        points=bundle.points[ids],
        observations=dataclasses.replace(o.where(kept), point=point),
    )
    done = adjust(sparse, 20).bundle.T_local_camera
    step = np.linalg.inv(done[2]) @ done[3]
    assert np.abs(step - np.linalg.inv(T[2]) @ T[3]).max() < 1e-3


def test_covariance_is_that_of_repeated_noise(made):
    """The spread over 60 draws of the noise agrees with the stated standard deviations."""
    errors, stated = [], []
    for seed in range(60):
        bundle, T, _ = made(
            seed=seed, views=4, points=60, pixel=0.5, depth=0.3, poses=PosePriors.none()
        )
        sigma = dataclasses.replace(
            bundle.observations, sigma=np.full(len(bundle.observations.view), 0.5)
        )
        done = adjust(dataclasses.replace(bundle, observations=sigma), 15)
        found = done.bundle.T_local_camera[3]
        turn = Rotation.from_matrix(T[3, :3, :3].T @ found[:3, :3]).as_rotvec()
        error = np.concatenate((turn, found[:3, 3] - T[3, :3, 3]))
        P = done.covariance()[14:20, 14:20]
        errors.append(error @ np.linalg.solve(P, error) / 6)
        stated.append(np.sqrt(np.diag(P)))
    assert 0.6 < np.mean(errors) < 1.6  # 0.86 to 1.15 for exact Gaussian noise


def test_errors_of_held_views_move_the_others_as_stated(made, monkeypatch):
    """Against solutions with a held view moved a little, in each of its six directions."""
    bundle, _, _ = made(
        views=5, points=80, pixel=0.0, depth=0.0, start=0.0, poses=PosePriors.none()
    )
    bundle = dataclasses.replace(bundle, free=np.array([False, False, True, True, True]))
    done = adjust(bundle, 60)
    monkeypatch.setattr(module, "CONVERGED", 1e-14)
    stated = done.by_held()[:, 7:13]
    scale, size = np.abs(stated).max(), 1e-4
    for at in range(6):
        ends = []
        for sign in (1, -1):
            T = done.bundle.T_local_camera.copy()
            step = np.eye(6)[at] * size * sign
            T[1, :3, :3] = T[1, :3, :3] @ Rotation.from_rotvec(step[:3]).as_matrix()
            T[1, :3, 3] += step[3:]
            ends.append(adjust(dataclasses.replace(done.bundle, T_local_camera=T), 60).bundle)
        more, less = (b.T_local_camera[2:] for b in ends)
        turns = Rotation.from_matrix(less[:, :3, :3].transpose(0, 2, 1) @ more[:, :3, :3])
        places = more[:, :3, 3] - less[:, :3, 3]
        scales = ends[0].log_scale[2:, None] - ends[1].log_scale[2:, None]
        found = np.concatenate((turns.as_rotvec(), places, scales), axis=1).ravel() / (2 * size)
        np.testing.assert_allclose(found, stated[:, at], atol=0.05 * scale)


def test_held_views_that_move_together_take_the_others_along(made):
    """Tracks know no place of their own: a turn of all held views turns the others too."""
    bundle, _, _ = made(views=5, points=80, poses=PosePriors.none())
    done = adjust(dataclasses.replace(bundle, free=np.array([0, 0, 1, 1, 1], bool)), 60)
    T, turn = done.bundle.T_local_camera, np.array([0.3, -0.2, 0.5])

    def moved(poses):
        own = np.einsum("vji,j->vi", poses[:, :3, :3], turn)
        there = np.cross(turn, poses[:, :3, 3])
        return np.concatenate((own, there, np.zeros((len(poses), 1))), axis=1).ravel()

    np.testing.assert_allclose(done.by_held() @ moved(T[:2]), moved(T[2:]), atol=0.02)


def test_the_network_counts_as_much_as_tracks_leave_open(made):
    """With many exact features hardly anything, with bad ones nearly everything."""
    shares = []
    for pixel in (0.01, 1000.0):
        bundle, _, _ = made(views=4, points=80)
        o = bundle.observations
        o = dataclasses.replace(o, sigma=np.full(len(o.view), pixel))
        bundle = dataclasses.replace(bundle, observations=o, free=np.array([0, 0, 1, 1], bool))
        found = adjust(bundle, 20).by_network()
        poses = [k for k in range(len(found)) if k % 7 != 6]  # scales concern depth alone
        shares.append(found[np.ix_(poses, poses)])
    assert np.abs(shares[0]).max() < 0.01
    np.testing.assert_allclose(shares[1], np.eye(len(shares[1])), atol=0.1)


def test_gtsam_finds_the_same_poses(made):
    """Without robust weights, depths and scales, which gtsam's projection factor does not know."""
    gtsam = pytest.importorskip("gtsam")
    bundle, _, _ = made(pixel=0.2, start=0.003, points=40)
    o = dataclasses.replace(
        bundle.observations, log_depth=np.full(len(bundle.observations.view), np.nan),
        sigma=np.full(len(bundle.observations.view), 1.0),
    )  # fmt: skip
    free = bundle.free.copy()
    free[-1] = False  # fixes the unit
    bundle = dataclasses.replace(bundle, observations=o, free=free, poses=PosePriors.none())
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    camera = gtsam.Cal3_S2(500, 500, 0, 320, 240)
    noise = gtsam.noiseModel.Isotropic.Sigma(2, 1.0)
    for v, T in enumerate(bundle.T_local_camera):
        values.insert(gtsam.symbol("c", v), gtsam.Pose3(T))
        if not free[v]:
            graph.add(gtsam.NonlinearEqualityPose3(gtsam.symbol("c", v), gtsam.Pose3(T)))
    for n, X in enumerate(bundle.points):
        values.insert(gtsam.symbol("p", n), X)
    for v, n, pixel in zip(o.view, o.point, o.pixel, strict=True):
        graph.add(
            gtsam.GenericProjectionFactorCal3_S2(
                pixel, noise, gtsam.symbol("c", int(v)), gtsam.symbol("p", int(n)), camera
            )
        )
    theirs = gtsam.LevenbergMarquardtOptimizer(graph, values).optimize()
    done = adjust(bundle, 60)
    for v in range(len(free)):
        expected = theirs.atPose3(gtsam.symbol("c", v)).matrix()
        assert np.abs(done.bundle.T_local_camera[v] - expected).max() < 2e-4
