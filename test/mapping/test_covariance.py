"""Published covariances against real errors: exact walks with noise, many times over."""

import dataclasses
from types import SimpleNamespace

import bench_covariance as bench
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import chi2
from support.cases import long_after

from da3_ros.mapping.covariance import (
    EXACT,
    KINDS,
    UNMEASURED,
    WITHOUT_TRACKS,
    JointCovariance,
    PoseUncertainty,
    RefinedObservation,
    SystematicError,
    WindowNoise,
    WindowObservation,
    error_transport,
    in_metres,
    kept_error,
    propagated_covariance,
    rotated_covariance,
)
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import MotionError

RUNS, FRAMES = 10, 30


@pytest.fixture(scope="module")
def walk():
    return bench.frames_of("loop", 3, (112, 84), FRAMES)


def published(walk, noise, seed, **values):
    camera, frames = walk
    config = bench.settings(process_res=112, **{"window.size": 6, **values})
    pipeline = Pipeline(config, TruthSession(frames, seed=seed, noise=noise))
    results = bench.run(pipeline, camera, frames)
    unit = float(np.exp(np.random.default_rng(seed).normal(0, 0.5)))
    return results, bench.errors(results, frames, unit)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runs"), long_after(1, [("of each view", 5), *((n, RUNS) for n in bench.NOISES)])
)
def test_nees_of_published_poses_is_one_within_its_bounds(walk, name, runs):
    found = []
    for seed in range(runs):
        results, error = published(walk, bench.NOISES[name], seed)
        found.append(bench.nees(results, error))
    value = np.mean(found, axis=0)[bench.SETTLED :].mean()
    low, high = chi2.ppf([0.025, 0.975], 6 * runs) / (6 * runs)
    assert low < value < high


@pytest.mark.slow
def test_odometry_grows_along_the_way(walk):
    results, _ = published(walk, bench.NOISES["both"], 0, **{"window.keyframes": 0})
    sizes = [np.trace(r.covariance_odom) for r in results]
    assert sizes[29] > sizes[12] > sizes[6] > 0
    np.testing.assert_allclose(results[0].covariance_odom, 0, atol=1e-9)
    assert all(np.linalg.eigvalsh(r.covariance_odom).min() > 0 for r in results)


@pytest.mark.long
@pytest.mark.slow
def test_noise_is_learned_from_disagreement(walk):
    """Standard deviations of the kinds, against those that the windows were made with."""
    pipelines = []
    for seed in range(4):
        camera, frames = walk
        config = bench.settings(process_res=112, **{"window.size": 6})
        session = TruthSession(frames, seed=seed, noise=bench.NOISES["both"])
        pipelines.append(Pipeline(config, session))
        bench.run(pipelines[-1], camera, frames)
    found = np.sqrt(np.mean([p.odometry.uncertainty.noise.variances for p in pipelines], axis=0))
    true = [np.radians(0.2), 0.003, np.radians(0.5), 0.01]
    np.testing.assert_allclose(found[1:], true, rtol=0.35)


def test_errors_of_places_follow_rotation_and_scale():
    S = np.array([0.01, 0.02, -0.03, 0.01, 0, 0, 0])  # log scale, rotation
    arm = np.array([1.0, 2.0, 3.0])
    moved = error_transport(arm[None])[0] @ S
    np.testing.assert_allclose(moved[4:], 0.01 * arm + np.cross(S[1:4], arm))


def observed(ids, centres, shared, gain=None, update_weights=0.5):
    poses = np.tile(np.eye(4), (len(ids), 1, 1))
    poses[:, :3, 3] = centres
    gains = np.tile(np.eye(7) / max(shared, 1), (shared, 1, 1)) if gain is None else gain
    return WindowObservation(
        ids, poses, 1.0, np.mean(centres[: max(shared, 1)], axis=0), gains,
        np.zeros((shared, 7)), np.full((shared, 7), update_weights),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
def test_a_chain_of_windows_agrees_with_simulation():
    """The same linear estimator, run on random errors."""
    rng = np.random.default_rng(0)
    centres = np.cumsum(rng.normal(size=(6, 3)), axis=0)
    own = np.array([0.01, 0.02, 0.03]) ** 2
    variances = np.array([*own, 0.0, 0.0])
    joint = JointCovariance()
    windows = [observed([0, 1], centres[:2], 0)]
    windows += [observed([i, i + 1, i + 2], centres[i : i + 3], 2) for i in range(4)]
    joint.begin_chain(windows[0], 0)
    for window in windows[1:]:
        joint.add_window(window)
    spread = np.sqrt(own)[[0, 1, 1, 1, 2, 2, 2]]
    last = []
    for _ in range(4000):
        noise = spread * rng.normal(size=(2, 7))
        arm = centres[1] - centres[0]
        tied = noise[1] - error_transport(arm[None])[0] @ np.append(0.0, noise[0, 1:])
        x = {0: noise[0] * [1, 0, 0, 0, 0, 0, 0], 1: tied}
        for w in windows[1:]:
            n = spread * rng.normal(size=(3, 7))
            fit = sum(
                g @ (x[i] - n[k]) for k, (i, g) in enumerate(zip(w.ids, w.gains, strict=False))
            )
            placed = error_transport(w.centres - w.pivot) @ fit + n
            for k in range(2):
                x[w.ids[k]] = 0.5 * x[w.ids[k]] + 0.5 * placed[k]
            x[w.ids[2]] = placed[2]
        last.append(x[5])
    expected = np.cov(np.array(last).T)
    ours = joint.of(5, variances)
    np.testing.assert_allclose(np.diag(ours), np.diag(expected), rtol=0.12)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((ours - expected) / scale).max() < 0.1


def test_a_carried_covariance_is_the_plain_product():
    rng = np.random.default_rng(0)
    L, G, stay = rng.normal(size=(28, 7)), rng.normal(size=(7, 21)), rng.random(21)
    P = rng.normal(size=(2, 21, 21))
    P = P @ P.transpose(0, 2, 1)
    A = L @ G
    A[:21] += np.diag(stay)
    np.testing.assert_allclose(propagated_covariance(L, G, stay, P), A @ P @ A.T)


def test_what_is_forgotten_frees_its_room():
    joint = JointCovariance()
    joint.begin_chain(observed([0, 1], np.eye(3)[:2], 0), 0)
    for i in range(500):
        joint.add_window(observed([i, i + 1, i + 2], np.eye(3), 2))
        joint.keep({i + 1, i + 2})
    assert joint.P.nbytes < 300_000
    assert 501 in joint
    assert 0 not in joint


def test_windows_joined_by_nothing_known_stay_unknown():
    joint = JointCovariance()
    joint.begin_chain(observed([0, 1], np.eye(3)[:2], 0), 0)
    joint.add_window(observed([7, 8, 9], np.eye(3), 2))
    assert 9 not in joint


def test_a_loop_changes_the_maps_covariance_not_odometrys():
    uncertainty = PoseUncertainty(EXACT)
    uncertainty.begin_chain(observed([0, 1], np.eye(3)[:2], 0), 0)
    for i in range(30):
        uncertainty.add_window(observed([i, i + 1, i + 2], np.eye(3), 2))
        uncertainty.keep({i + 1, i + 2})
    before = uncertainty.odometry(31)
    np.testing.assert_array_equal(before, uncertainty.in_map(31))
    known = 1e-12 * np.eye(7)
    views = {30: np.eye(3)[1], 31: np.eye(3)[2]}
    uncertainty.close_loop(known, 31, [], views, [])
    np.testing.assert_allclose(uncertainty.odometry(31), before, rtol=1e-6)
    np.testing.assert_allclose(uncertainty.in_map(31), 3e-12 * np.eye(6), atol=1e-15)
    uncertainty.add_window(observed([30, 31, 32], np.eye(3), 2))
    assert np.trace(uncertainty.in_map(32)) < np.trace(uncertainty.odometry(32))


@pytest.mark.parametrize("measured", [True, False])
def test_a_loop_says_where_a_camera_is_of_which_nothing_was_known(measured):
    """After a gap it was found by views that an earlier loop has moved."""
    uncertainty = PoseUncertainty(EXACT)
    uncertainty.begin_chain(observed([0, 1], np.eye(3)[:2], 0), 0)
    uncertainty.enter_submap(0, 0)
    uncertainty.add_window(observed([0, 1, 2], np.eye(3), 2))
    views = dict(enumerate(np.eye(3)))
    uncertainty.close_loop(1e-12 * np.eye(7), 2, [0], views, [0, 1])
    uncertainty.add_window(observed([0, 1, 3], np.eye(3), 2))
    uncertainty.keep({0, 1, 3})
    assert uncertainty.in_map(3) is None
    if not measured:
        uncertainty.note_unmeasured()
    views = {0: np.eye(3)[0], 1: np.eye(3)[1], 3: np.eye(3)[2]}
    uncertainty.close_loop(1e-4 * np.eye(7), 3, [0], views, [0, 1])
    assert uncertainty.odometry(3) is None
    if not measured:
        assert uncertainty.in_map(3) is None
        return
    np.testing.assert_allclose(uncertainty.in_map(3), 2e-4 * np.eye(6), rtol=1e-6)
    uncertainty.add_window(observed([1, 3, 4], np.eye(3), 2))
    assert np.trace(uncertainty.in_map(4)) > 12e-4


def test_systematic_errors_take_the_surest_way():
    error = SystematicError(MotionError(rotation=0.1, distance=0.2, least=0.01))
    error.begin(0)
    far = observed([0, 1, 2], np.array([[0, 0, 0], [1, 0, 0], [1.1, 0, 0]]), 2)
    error.add(far, 1, [0])
    error.add(far, 2, [0, 1])  # from 0 it is one link, from 1 two
    np.testing.assert_allclose(error.of(1), np.hypot([0.2, 0.2], 0.01))
    np.testing.assert_allclose(error.of(2), np.hypot([0.22, 0.22], 0.01))


def test_views_without_tracks_have_a_larger_error_where_tracks_are_looked_for():
    found = []
    for later in (False, True):
        error = SystematicError(UNMEASURED)
        error.begin(0)
        window = observed([0, 1], np.array([[0, 0, 0], [1.0, 0, 0]]), 1)
        error.add(dataclasses.replace(window, refined_later=later), 1, [0])
        found.append(error.of(1))
    np.testing.assert_allclose(found[1], WITHOUT_TRACKS * found[0])


def test_poses_without_tracks_are_less_certain_if_tracks_are_looked_for(walk):
    camera, frames = walk
    bare = [dataclasses.replace(f, image=np.full_like(f.image, 128)) for f in frames[:8]]
    stated = []
    for looked_for in (False, True):
        values = {"refinement.enabled": looked_for, "hold_when_blind": False}
        config = bench.settings(process_res=112, **values)
        session = TruthSession(bare, seed=0, noise=bench.NOISES["of each view"])
        session.motion_error = UNMEASURED
        pipeline = Pipeline(config, session)
        results = bench.run(pipeline, camera, bare)
        assert not pipeline.counters["windows_refined"]
        stated.append(np.sqrt(np.trace(results[-1].covariance_odom[:3, :3])))
    assert 1.5 < stated[1] / stated[0] <= WITHOUT_TRACKS


def test_a_standing_camera_does_not_become_less_sure():
    error = SystematicError(UNMEASURED)
    error.begin(0)
    for i in range(1, 1000):
        error.add(observed([0, i], np.zeros((2, 3)), 1), 1, [0])
        error.keep({0})
    still = observed([0, 1000], np.zeros((2, 3)), 1)
    error.add(still, 1, [0])
    np.testing.assert_allclose(error.of(1000), UNMEASURED.least)


def test_metres_scale_places_and_add_the_scales_uncertainty():
    P = np.diag([1.0, 2, 3, 4, 5, 6])
    out = in_metres(P, 2.0, 0.1, np.array([10.0, 0, 0]))
    np.testing.assert_allclose(np.diag(out), [4 + 1, 8, 12, 4, 5, 6])
    np.testing.assert_allclose(np.diag(in_metres(P, 2.0, np.nan, np.ones(3))), [4, 8, 12, 4, 5, 6])


def test_axes_turn_with_the_map():
    R = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0.0]])  # optical axes to those of the map
    out = rotated_covariance(np.diag([1.0, 2, 3, 4, 5, 6]), R)
    np.testing.assert_allclose(np.diag(out), [3, 1, 2, 6, 4, 5])


def test_noise_without_disagreement_is_not_zero():
    noise = WindowNoise()
    fitted, doubt = np.zeros((14, 14)), np.stack([np.eye(14)] * 5)
    for _ in range(50):
        noise.add(np.zeros((2, 7)), fitted, doubt, 1.0)
    assert (noise.variances >= WindowNoise.FLOOR).all()
    assert np.isfinite(noise.variances).all()


def test_a_broken_window_teaches_little():
    rng = np.random.default_rng(0)
    noise, fitted, doubt = WindowNoise(), np.zeros((28, 28)), np.stack([np.eye(28) / 5] * 5)
    for _ in range(40):
        noise.add(0.01 * rng.normal(size=(4, 7)), fitted, doubt, 1.0)
    before = noise.variances.sum()
    noise.add(10 * rng.normal(size=(4, 7)), fitted, doubt, 1.0)
    assert noise.variances.sum() < 3 * before


@pytest.mark.slow
def test_networks_without_stated_noise_get_a_large_one(walk):
    session = TruthSession(walk[1])
    del session.motion_error
    pipeline = Pipeline(bench.settings(process_res=112), session)
    results = bench.run(pipeline, *walk)
    stated = np.sqrt(np.trace(results[-1].covariance_odom[3:, 3:]))
    assert stated >= UNMEASURED.least
    assert dataclasses.astuple(EXACT) == (0.0, 0.0, 0.0)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("refine", [False, True])
def test_da3_tiny_is_not_overconfident(refine):
    """Rooms that it was not trained on; it makes the same errors again in every window."""
    walks = ("loop", "strafe") if refine else ("loop", "handheld")
    for row in bench.tiny_rows(
        SimpleNamespace(walks=walks, runs=1, frames=16, laps=1, refine=refine, plain=False)
    ):
        assert row["nees"] < 1, row


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("metres", [1.0, 5.0])
def test_odometry_does_not_become_certain_on_a_way_back(metres):
    """Refinement recognises where the camera began; odometry keeps the drift that it has."""
    camera, frames = bench.frames_of("spot", 6, (224, 168), 20)
    frames = bench.there_and_back(frames, 2)
    session = TruthSession(frames, seed=6, noise=bench.NOISES["both"])
    values = {"refinement.enabled": True, "scale.source": "fixed", "scale.factor": metres}
    config = bench.settings(process_res=224, **values)
    results = bench.run(Pipeline(config, session), camera, frames)
    unit = metres * float(np.exp(np.random.default_rng(6).normal(0, 0.5)))
    error = bench.errors(results, frames, unit)
    assert np.linalg.norm(error[-1, 3:]) > np.radians(0.2)  # else nothing could be too certain
    assert bench.nees(results, error)[bench.SETTLED :].max() < 3


def test_the_known_error_of_odometry_is_part_of_its_covariance():
    T_odom_local, T_local_camera = pose_at(0.1, 0, 0), pose_at(0, 2, 0)
    T_odom_local[:3, :3] = Rotation.from_rotvec([0, 0, 0.05]).as_matrix()
    P = kept_error(T_odom_local, T_local_camera)
    error = [0.1 - 2 * np.sin(0.05), 2 * np.cos(0.05) - 2, 0, 0, 0, 0.05]
    np.testing.assert_allclose(P, np.outer(error, error), atol=1e-12)
    assert not kept_error(np.eye(4), T_local_camera).any()


def refined_by(held, shares, by_network, covariance=1e-12):
    """Two views refined at (1, 0, 0) and (2, 0, 0), held by views along y."""
    poses = {10: pose_at(1, 0, 0), 11: pose_at(2, 0, 0)}
    poses |= {id: pose_at(0, id, 0) for id in held}
    return RefinedObservation(
        [10, 11], held, poses, 2.0, covariance * np.eye(14),
        np.kron(np.outer(np.ones(2), shares), np.eye(7)), by_network * np.eye(14),
    )  # fmt: skip


def pose_at(*place):
    T = np.eye(4)
    T[:3, 3] = place
    return T


def known_errors(sigma):
    """The joint covariance of views 0, 1, 2 with independent errors of position."""
    joint = JointCovariance()
    own = np.zeros((KINDS + 1, 21, 21))
    own[-1] = np.kron(np.diag(np.square(sigma)), np.diag([0, 0, 0, 0, 1, 1, 1]))
    joint._write([0, 1, 2], np.zeros((21, 0)), [], own)
    return joint


def test_refined_views_have_the_errors_of_the_views_that_hold_them():
    joint = known_errors([0.1, 0.2, 0.4])
    joint.add_refined(refined_by([0, 1, 2], [0.25, 0.25, 0.5], 0.0), UNMEASURED)
    found = joint.of(11, np.zeros(KINDS))[4:, 4:]
    expected = 0.25**2 * 0.1**2 + 0.25**2 * 0.2**2 + 0.5**2 * 0.4**2
    np.testing.assert_allclose(found, expected * np.eye(3), atol=1e-9)


def test_a_guessed_focal_length_adds_an_error():
    sizes = []
    for guessed in (False, True):
        errors = SystematicError(EXACT)
        errors.begin(0)
        errors.add_refined(dataclasses.replace(refined_by([0], [1], 0.0), guessed_focal=guessed))
        sizes.append(errors.of(11)[1])
    assert sizes[1] - sizes[0] == pytest.approx(0.3 * 2, rel=0.2)  # of two units of motion


def test_what_no_known_view_holds_moves_with_the_newest_one():
    joint = known_errors([0.1, 0.2, 0.4])
    joint.add_refined(refined_by([0, 1, 7], [0.25, 0.25, 0.5], 0.0), UNMEASURED)
    expected = 0.25**2 * 0.1**2 + 0.75**2 * 0.2**2  # view 7 is unknown, view 1 the newest
    found = joint.of(11, np.zeros(KINDS))[4:, 4:]
    np.testing.assert_allclose(found, expected * np.eye(3), atol=1e-9)


def test_where_tracks_do_not_count_the_networks_error_does():
    found = []
    for share, error in ((0.0, UNMEASURED), (0.5, UNMEASURED), (1.0, UNMEASURED), (1.0, EXACT)):
        joint = known_errors([0.1, 0.2, 0.4])
        joint.add_refined(refined_by([0, 1, 2], [0, 0, 1], share), error)
        found.append(np.trace(joint.of(11, np.zeros(KINDS))[1:4, 1:4]))
    np.testing.assert_allclose(found[2], UNMEASURED.least**2, rtol=1e-6)
    np.testing.assert_allclose(found[1], found[2] / 4, rtol=1e-6)
    assert max(found[0], found[3]) < 1e-10


@pytest.mark.slow
def test_published_covariances_are_in_metres(walk):
    """With twice the metres per unit, variances of places are four times as large."""
    found = []
    for factor in (1.0, 2.0):
        values = {"scale.source": "fixed", "scale.factor": factor}
        results, _ = published(walk, bench.NOISES["both"], 0, **values)
        found.append(results[-1].covariance_odom)
    units = np.array([2, 2, 2, 1, 1, 1])
    np.testing.assert_allclose(found[1], found[0] * np.outer(units, units), rtol=1e-6)


def test_the_message_has_the_axes_of_the_map(walk):
    """Optical z, along which the camera looks, is the map's x."""
    from da3_ros.config import config_from_parameters
    from da3_ros.messages.build import RosbagsLibrary
    from da3_ros.messages.outputs import Outputs

    results, _ = published(walk, bench.NOISES["both"], 0)
    P = np.diag([1.0, 2, 3, 4, 5, 6])
    frame = dataclasses.replace(results[-1], covariance_map=P, covariance_odom=2 * P)
    outputs = Outputs(RosbagsLibrary(), config_from_parameters({"window.size": 6}))
    said = {topic: m for topic, _, m in outputs.frame(frame) if topic in ("pose", "odom")}
    for topic, factor in (("pose", 1), ("odom", 2)):
        diagonal = np.diag(np.array(said[topic].pose.covariance).reshape(6, 6))
        np.testing.assert_allclose(diagonal, factor * np.array([3, 1, 2, 6, 4, 5]), atol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_a_standing_camera_teaches_no_noise(walk):
    """A network makes the same error of the same picture: agreement of windows proves nothing."""
    results, _ = published(walk, bench.NOISES["both"], 0)
    camera, frames = walk
    session = TruthSession(frames, seed=0, noise=bench.NOISES["both"])
    pipeline = Pipeline(bench.settings(process_res=112, **{"window.size": 6}), session)
    bench.run(pipeline, camera, frames[:20])
    learned = pipeline.odometry.uncertainty.noise.variances.copy()
    session.noise = dataclasses.replace(session.noise, rotation_deg=0, translation=0, bend_deg=0,
                                        bend=0)  # fmt: skip
    for i in range(60):
        still = dataclasses.replace(frames[19], stamp_ns=frames[19].stamp_ns + (i + 1) * 10**8)
        session.add_frame(still)
        bench.run(pipeline, camera, [still])
    np.testing.assert_allclose(pipeline.odometry.uncertainty.noise.variances, learned, rtol=0.2)
    assert len(results) == FRAMES
