"""Focal lengths by the tracks of made-up scenes: right where the motion shows them, else kept."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after

from da3_ros.refinement import self_calibration
from da3_ros.refinement.features import Features
from da3_ros.refinement.self_calibration import SelfCalibration, determined_factor
from da3_ros.refinement.sliding_graph import SlidingGraph
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.types import Prediction, View, Window

SHAPE, FOCAL, VIEWS = (480, 640), 500.0, 12
CORNERS = np.array([-4.0, -2, 3]), np.array([4.0, 2, 6])
MOTIONS = {"turning": (0.08, (0, 0, 0)), "arc": (0.06, (-0.25, 0, 0)),
           "strafe": (0.0, (0.1, 0, 0)), "straight": (0.0, (0, 0, 0.02))}  # fmt: skip


def K_of(focal):
    return np.array([[focal, 0, 320], [0, focal, 240], [0, 0, 1.0]])


def graph_of(motion, factor, pixel=0.2, camera="", own_K=True, views=VIEWS):
    """Views of a made-up scene that a network with a wrong focal length has placed."""
    turn, step = MOTIONS[motion]
    rng = np.random.default_rng(0)
    X = rng.uniform(*CORNERS, (600, 3))
    graph = SlidingGraph(300, 8)
    graph.points.new_ids(len(X))
    for k in range(views):
        T = np.eye(4)
        T[:3, :3] = Rotation.from_rotvec((0, turn * (k - views / 2), 0)).as_matrix()
        T[:3, 3] = np.multiply(k, step)
        x = (X - T[:3, 3]) @ T[:3, :3]
        uv = x @ K_of(FOCAL).T
        uv = uv[:, :2] / uv[:, 2:] + rng.normal(0, pixel, (len(X), 2))
        seen = np.flatnonzero((x[:, 2] > 0) & (uv > 0).all(1) & (uv < SHAPE[::-1]).all(1))
        features = Features(SHAPE, uv[seen], np.zeros((len(seen), 128), np.uint8))
        T[:3, :3] = Rotation.from_rotvec((0, turn * (k - views / 2) / factor, 0)).as_matrix()
        depth = np.log(x[seen, 2]) + rng.normal(0, 0.03, len(seen))
        view = TrackedView(k, camera, features, K_of(FOCAL * factor), T, depth, own_K)
        view.track = seen
        graph.views[k] = view
    return graph


def attempt(graph):
    """The calibration after as many windows as it waits."""
    calibration = SelfCalibration()
    return calibration, [calibration.run(graph) for _ in range(self_calibration.FIRST)]


@pytest.mark.parametrize("motion", ["turning", "arc"])
@pytest.mark.parametrize("factor", long_after(1, [0.85, 1.2]))
def test_a_turning_camera_shows_its_focal_length(motion, factor):
    graph = graph_of(motion, factor)
    found = determined_factor(graph, list(graph.views.values()))
    assert found * factor == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("motion", ["strafe", "straight"])
def test_a_camera_that_does_not_turn_keeps_the_networks_focal_length(motion):
    graph = graph_of(motion, 1.2)
    poses = [v.T_local_camera for v in graph.views.values()]
    calibration, changed = attempt(graph)
    assert not any(changed)
    assert calibration.source("") == "network"
    assert all(v.K[0, 0] == 1.2 * FOCAL for v in graph.views.values())
    assert [v.T_local_camera for v in graph.views.values()] == poses  # the same objects


@pytest.mark.long
def test_poses_follow_the_focal_length(caplog):
    caplog.set_level("INFO")
    graph = graph_of("turning", 1.2, camera="left")
    calibration, changed = attempt(graph)
    assert changed[:-1] == [None] * (self_calibration.FIRST - 1)
    assert changed[-1].depth == pytest.approx(1, abs=0.1)  # lengths keep the unit of depth
    T = [v.T_local_camera for v in graph.views.values()]
    turned = Rotation.from_matrix(T[0][:3, :3].T @ T[-1][:3, :3]).magnitude()
    assert turned == pytest.approx(MOTIONS["turning"][0] * (VIEWS - 1), rel=0.02)
    assert [v.K[0, 0] for v in graph.views.values()] == pytest.approx([FOCAL] * VIEWS, rel=0.02)
    assert calibration.source("left") == "tracks"
    assert "focal length of camera left by tracks: " in caplog.text
    assert "(network: 600)" in caplog.text


@pytest.mark.parametrize("motion", long_after(1, ["arc", "turning"]))
def test_lengths_between_cameras_change_as_their_positions_do(motion):
    graph = graph_of(motion, 1.2)
    before = np.array([v.T_local_camera[:3, 3] for v in graph.views.values()])
    change = attempt(graph)[1][-1]
    after = np.array([v.T_local_camera[:3, 3] for v in graph.views.values()])
    if motion == "turning":  # on the spot: positions show nothing
        assert change.motion == change.depth
    else:
        expected = np.ptp(after, axis=0).max() / np.ptp(before, axis=0).max()
        assert change.motion == pytest.approx(expected, rel=0.03)


def test_a_known_focal_length_is_that_of_all_later_predictions():
    calibration, _ = attempt(graph_of("turning", 1.2))
    image = np.zeros((120, 160, 3), np.uint8)
    views = (View(0, 0, image, None), View(1, 1, image, K_of(90.0)))
    nothing = np.zeros((2, 120, 160), np.float32)
    prediction = Prediction(nothing, nothing, np.zeros((2, 4, 4)), np.stack([K_of(150.0)] * 2))
    found = calibration.calibrated(Window(0, views, 1), prediction).K
    assert found[0, 0, 0] == pytest.approx(FOCAL / 4, rel=0.02)
    assert found[1, 0, 0] == 150.0  # camera_info is known to all who need it


@pytest.mark.parametrize("change", [{"own_K": False}, {"views": 6}, {"pixel": 5.0}])
def test_no_focal_length_is_determined_with_camera_info_few_views_or_noise(change):
    _, changed = attempt(graph_of("turning", 0.85, **change))
    assert not any(changed)


def test_views_whose_halves_disagree_determine_nothing(monkeypatch):
    """As of a lens that is not what it is taken for."""
    graph = graph_of("turning", 1.2)
    for view in list(graph.views.values())[VIEWS // 2 :]:
        centre = np.array([320, 240])
        view.features.pixel[:] = centre + 1.1 * (view.features.pixel - centre)
    assert determined_factor(graph, list(graph.views.values())) is None
    monkeypatch.setattr(self_calibration, "AGREEMENT", 1.0)
    monkeypatch.setattr(self_calibration, "by_lens", lambda _: 0.0)
    assert determined_factor(graph, list(graph.views.values())) is not None


@pytest.mark.parametrize("k1", long_after(1, [-0.05, 0.05]))
@pytest.mark.parametrize("motion", ["turning", "arc"])
def test_a_lens_that_distorts_determines_nothing(motion, k1, monkeypatch):
    """A little distortion looks like another focal length, in all views alike."""
    graph = graph_of(motion, 1.2)
    views = list(graph.views.values())
    for view in views:
        offset = view.features.pixel - [320, 240]
        r2 = (offset**2).sum(axis=1, keepdims=True) / FOCAL**2
        view.features.pixel[:] += k1 * r2 * offset
    assert determined_factor(graph, views) is None
    monkeypatch.setattr(self_calibration, "by_lens", lambda _: 0.0)
    assert abs(determined_factor(graph, views) * 1.2 - 1) > 0.015


def test_attempts_become_rare(monkeypatch):
    graph, tried = graph_of("strafe", 1.2), []
    monkeypatch.setattr(self_calibration, "determined_factor", lambda *_: tried.append(0))
    calibration = SelfCalibration()
    counts = []
    for _ in range(300):
        calibration.run(graph)
        counts.append(len(tried))
    assert counts[3] == 1
    assert counts[15] == 4
    assert counts[299] - counts[199] <= 4
