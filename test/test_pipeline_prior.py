"""Known poses through the pipeline: what the network is given, and what comes out."""

import dataclasses
import itertools

import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.geometry import invert_pose
from da3_ros.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame

SIZE = (140, 112)


def settings(**values):
    base = {
        "process_res": 140,
        "model": "da3-tiny",
        "checkpoint": "random",
        "window.size": 6,
        "pose_prior.source": "odometry",
    }
    return config_from_parameters({**base, **values})


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=24, rate_hz=4.0)
    frames = list(camera)
    odometry = DriftingOdometry(frames[0].T_world_camera)
    priors = []
    for frame in frames:
        odometry.move(frame.T_world_camera, 0.25)
        priors.append(odometry.T_odom_camera.copy())
    return camera, frames, priors


class Spy(TruthSession):
    """Remembers what the network is given."""

    given = ()

    def infer(self, window):
        self.given = (*self.given, window.T_prior_camera)
        return super().infer(window)


def run(walk, config, keep=lambda i: True, noise=None):
    camera, frames, priors = walk
    session = Spy(frames, noise=noise)
    pipeline = Pipeline(config, session)
    results = []
    for i, (f, prior) in enumerate(zip(frames, priors, strict=True)):
        prior = prior if keep(i) else None
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += list(pipeline.push(frame))
    return pipeline, session, results


def test_every_window_gets_the_poses_of_all_its_views(walk):
    pipeline, session, results = run(walk, settings())
    assert all(given is not None for given in session.given)
    assert [len(g) for g in session.given] == [len(r.window.view_ids) for r in results]
    assert pipeline.counters["windows_with_prior"] == len(results)
    np.testing.assert_array_equal(session.given[-1][-1], walk[2][-1])


def test_without_a_source_the_network_gets_nothing(walk):
    _, session, _ = run(walk, settings(**{"pose_prior.source": "none"}))
    assert all(given is None for given in session.given)


def test_a_gap_in_the_odometry_leaves_windows_without_poses_and_says_so(walk, caplog):
    _, session, results = run(walk, settings(), keep=lambda i: i != 10)
    missing = [i for i, given in enumerate(session.given) if given is None]
    assert missing[0] == 10
    assert missing == [10]  # its successors do without it
    assert len(session.given[11]) == 5
    assert any("frames without a pose" in r.message for r in caplog.records)
    assert len(results) == 24


def test_given_poses_make_metres_from_the_first_windows_that_move(walk):
    _, _, results = run(walk, settings(**{"scale.source": "odometry"}))
    metric = [r for r in results if r.scale.metric]
    _, _, later = run(walk, settings(**{"scale.source": "odometry", "pose_prior.source": "none"}))
    assert len(metric) > 10
    assert len(metric) >= sum(r.scale.metric for r in later)
    truth = {f.stamp_ns: f for f in walk[1]}
    errors = [np.nanmedian(r.depth_m / truth[r.stamp_ns].depth) - 1 for r in metric]
    assert np.abs(errors).max() < 0.02


@pytest.mark.parametrize("keep", [lambda i: True, lambda i: i not in (0, 1, 12)])
def test_the_priors_own_poses_go_out_when_asked_for(walk, keep):
    values = {"scale.source": "odometry", "pose_prior.output": "prior"}
    noise = Noise(rotation_deg=0.5, translation=0.005)
    _, session, results = run(walk, settings(**values), keep, noise)
    given = [g is not None for g in session.given]
    stretch = [i for i in range(16, 24) if given[i] and results[i].scale.metric]
    assert len(stretch) > 4
    a, b = stretch[1], stretch[-1]
    ours = invert_pose(results[a].T_world_camera) @ results[b].T_world_camera
    theirs = invert_pose(walk[2][a]) @ walk[2][b]
    np.testing.assert_allclose(ours[:3, :3], theirs[:3, :3], atol=1e-6)
    length = np.linalg.norm(theirs[:3, 3])
    assert np.linalg.norm(ours[:3, 3]) == pytest.approx(length, rel=0.05)


def test_a_standing_robot_gives_rotation_only(caplog):
    camera = SyntheticCamera(seed=4, size=SIZE, walk="spot", frames=8)
    frames = list(camera)
    priors = [f.T_world_camera.copy() for f in frames]
    for prior in priors:
        prior[:3, 3] = 0
    config = settings(**{"scale.source": "odometry"})
    _, session, results = run((camera, frames, priors), config)
    assert all(given is not None for given in session.given[1:])
    assert not any(r.scale.metric for r in results)
    assert any("no scale" in r.message for r in caplog.records)


class Wobbling(Spy):
    """Depths that no two windows agree about, beside good poses."""

    def infer(self, window):
        found = super().infer(window)
        if window.id < 10:
            return found
        wild = np.random.default_rng(window.id).uniform(0.5, 2, found.depth.shape)
        return dataclasses.replace(found, depth=(found.depth * wild).astype(np.float32))


def test_a_trusted_prior_leads_whatever_the_depths_say(walk):
    """Windows whose depths do not fit would else end the scene, for all that the robot knows."""
    values = {"scale.source": "odometry", "pose_prior.output": "prior"}
    camera, frames, priors = walk
    pipeline = Pipeline(settings(**values), Wobbling(frames))
    results = []
    for f, prior in zip(frames, priors, strict=True):
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += list(pipeline.push(frame))
    after = range(9, len(results))
    assert {r.window.segment for r in results} == {0}
    assert all(results[i].window.aligned for i in after)
    for i, j in itertools.pairwise(after):
        ours = invert_pose(results[i].T_world_camera) @ results[j].T_world_camera
        np.testing.assert_allclose(
            ours[:3, :3], (invert_pose(priors[i]) @ priors[j])[:3, :3], atol=1e-6
        )
    assert all(results[i].covariance_odom is None for i in after)
