"""What the refiner forgets and takes back; rigs whose cameras see few tracks; dark views."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.refinement import sliding_graph
from da3_ros.refinement.bundle import NETWORK, Adjusted, PosePriors
from da3_ros.refinement.features import Features
from da3_ros.refinement.refiner import WindowRefiner
from da3_ros.refinement.sliding_graph import SlidingGraph
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.tracked_view import TrackedView

K = np.array([[400.0, 0, 320], [0, 400, 240], [0, 0, 1]])
BARE = 3  # features of a view that hardly sees anything


def seen_view(id, X, T, camera="", few=False, wrong=0):
    """A view of the points [N, 3], the first ``wrong`` of whose features are off."""
    x = (X - T[:3, 3]) @ T[:3, :3]
    uv = x @ K.T
    uv = uv[:, :2] / uv[:, 2:]
    seen = np.flatnonzero((x[:, 2] > 0) & (uv > 0).all(1) & (uv < [640, 480]).all(1))
    seen = seen[:BARE] if few else seen
    pixel = uv[seen]
    pixel[:wrong] += 60.0
    features = Features((480, 640), pixel, np.zeros((len(seen), 128), np.uint8))
    out = TrackedView(id, camera, features, K, T, np.log(x[seen, 2]), False)
    out.track = seen
    return out


def posed(x, turn=0.0):
    T = np.eye(4)
    T[:3, :3], T[0, 3] = Rotation.from_rotvec([0, turn, 0]).as_matrix(), x
    return T


@pytest.fixture
def rig():
    """A graph of two cameras, b nearly blind; the newest views are at the network's poses, a
    little off. And the true poses."""
    X = np.random.default_rng(0).uniform([-2, -1.5, 3], [2, 1.5, 6], (200, 3))
    graph, true = SlidingGraph(300, 20), {}
    graph.points.new_ids(len(X))
    for k in range(4):
        for camera, side in (("a", 0.0), ("b", 0.2)):
            id = 2 * k + (camera == "b")
            true[id] = posed(0.1 * k + side)
            newest = id >= 6
            view = seen_view(id, X, true[id], camera, camera == "b", wrong=5 * (id == 6))
            if newest:
                view.T_local_camera = posed(0.1 * k + side + 0.03, 0.02)
            graph.views[id] = view
    return graph, true


def test_a_view_of_a_rig_with_few_tracks_follows_the_others(rig):
    graph, true = rig
    ids = np.array([6]), np.array([7])
    step = np.linalg.inv(true[6]) @ true[7]
    sigma = np.array([0.001])
    priors = PosePriors.isotropic(*ids, step[None], sigma, sigma, NETWORK)
    done = graph.refine([6, 7], priors)
    assert {6, 7} <= set(done.ids)
    for id in (6, 7):
        np.testing.assert_allclose(done.poses[id], true[id], atol=2e-3)


def test_cameras_of_a_rig_hold_their_views_in_turn():
    """A camera with many tracks leaves places to the others."""
    X = np.random.default_rng(0).uniform([-2, -1.5, 3], [2, 1.5, 6], (300, 3))
    Y = X[:40] + [0, 0, 100.0]  # what b sees
    graph = SlidingGraph(300, 8)
    graph.points.new_ids(2 * len(X))
    for k in range(12):
        graph.views[2 * k] = seen_view(2 * k, X, posed(0.05 * k), "a")
        other = seen_view(2 * k + 1, Y, posed(0.05 * k), "b")
        other.track = other.track + len(X)
        graph.views[2 * k + 1] = other
    used, free = graph._chosen([22, 23])
    held = [graph.views[i].camera for i, moves in zip(used, free, strict=True) if not moves]
    assert (held.count("a"), held.count("b")) == (4, 4)


def test_views_without_features_are_not_the_newest_that_must_match():
    X = np.random.default_rng(0).uniform([-2, -1.5, 3], [2, 1.5, 6], (100, 3))
    views = [seen_view(k, X, posed(0.05 * k), few=k in (3, 4)) for k in range(5)]
    assert sliding_graph._newest(views, views[-1]) == {1, 2}


def test_of_a_rig_the_own_newest_views_count_too():
    X = np.random.default_rng(0).uniform([-2, -1.5, 3], [2, 1.5, 6], (100, 3))
    views = [seen_view(k, X, posed(0.05 * k), "abc"[k % 3]) for k in range(9)]
    assert sliding_graph._newest(views[:6], views[6]) == {0, 3, 4, 5}


def test_undo_takes_back_a_focal_length():
    refiner = WindowRefiner(SolverLimits.full(400))
    refiner._before = refiner.graph.saved(), {}
    refiner.calibration.known["left"] = K, (640, 480)
    refiner.undo()
    assert refiner.calibration.source("left") == "network"


def test_images_of_another_size_forget_the_focal_length():
    refiner = WindowRefiner(SolverLimits.full(400))
    refiner.calibration.known["left"] = K, (640, 480)
    refiner.forget_calibration()
    assert refiner.calibration.source("left") == "network"


def test_depth_that_contradicts_tracks_counts_less(made, monkeypatch):
    """More than the noise that was learned."""
    bundle, T, _ = made(views=4, depth=0.0, pixel=0.3, start=0.0, poses=PosePriors.none())
    o = bundle.observations
    bent = dataclasses.replace(o, log_depth=o.log_depth + 2 * (o.pixel[:, 0] / 640 - 0.5))
    bundle = dataclasses.replace(bundle, observations=bent, free=np.array([0, 0, 1, 1], bool))
    errors = []
    for factor in (sliding_graph.CONTRADICTION, math.inf):
        monkeypatch.setattr(sliding_graph, "CONTRADICTION", factor)
        graph = SlidingGraph(300, 30)
        graph.noise.depth, graph.noise.pixel = 0.02, 0.3
        done, _ = graph._solve(bundle)
        assert isinstance(done, Adjusted)
        sigma = np.median(done.bundle.observations.depth_sigma)
        errors.append((sigma, np.abs(done.bundle.T_local_camera - T).max()))
    assert errors[0][0] > 5 * errors[1][0]
    assert errors[0][1] < errors[1][1]
