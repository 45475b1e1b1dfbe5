"""Poses from the robot: at the right time, refused when bad, and the unit that they give."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import extrapolate
from da3_ros.messages.odometry_tf import add_odometry
from da3_ros.pipeline.pose_conditioning import window_prior, with_prior_poses
from da3_ros.scale_sources.depth_consistency import fit_unit
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.sensors.pose_prior import PoseHistory, PosePrior, PriorError
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, View, Window

S = 10**9
AGE = S // 5


def pose(x=0.0, yaw_deg=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("z", yaw_deg, degrees=True).as_matrix()
    T[0, 3] = x
    return T


def history(*stamps):
    out = PoseHistory()
    for stamp in stamps:
        out.add(stamp, pose(stamp / S))
    return out


def test_poses_are_interpolated_but_not_across_a_gap():
    h = history(0, S // 10, S)
    np.testing.assert_allclose(h.at(S // 20, AGE), pose(0.05))
    np.testing.assert_array_equal(h.at(S, AGE), pose(1.0))
    with pytest.raises(PriorError, match=r"gap of 0\.90 s"):
        h.at(S // 2, AGE)
    with pytest.raises(PriorError, match="older than the odometry"):
        h.at(-1, AGE)


def test_late_odometry_is_carried_on_for_a_moment():
    """A late odometry is carried on for a moment and then it is stale."""
    h = history(0, S // 10, 2 * S // 10)
    np.testing.assert_allclose(h.at(3 * S // 10, AGE), pose(0.3), atol=1e-12)
    with pytest.raises(PriorError, match=r"0\.50 s old"):
        h.at(7 * S // 10, AGE)
    with pytest.raises(PriorError, match="no odometry yet"):
        PoseHistory().at(0, AGE)


def test_messages_out_of_order_find_their_place():
    """Messages out of order find their place and a jump back starts anew."""
    h = history(0, S // 5, S // 10)
    np.testing.assert_allclose(h.at(S // 20, AGE), pose(0.05))
    for first in (100 * S, 3 * S):
        h = history(first, S)
        with pytest.raises(PriorError):
            h.at(first, AGE)


def test_a_repeated_stamp_replaces_the_pose_and_fills_no_memory():
    h = PoseHistory()
    for n in range(100):
        h.add(S, pose(n))
    np.testing.assert_allclose(h.at(S, AGE), pose(99))
    assert len(h._poses) == 1


def test_no_pose_is_no_pose():
    for bad in (np.full((4, 4), np.nan), 2 * np.eye(4), np.diag([1.0, 1, -1, 1])):
        with pytest.raises(PriorError, match="not a rigid motion"):
            PoseHistory().add(0, bad)


def test_a_turn_is_carried_on_as_a_turn():
    np.testing.assert_allclose(extrapolate(pose(0, 0), pose(0, 10), 2.0), pose(0, 30), atol=1e-12)


@pytest.mark.parametrize("source", ["odometry", "tf"])
def test_the_camera_is_where_base_and_mount_put_it(source):
    tree, mount = TransformTree(), pose(0.3, 20)
    tree.add("base", "optical", mount, 0, static=True)
    prior = PosePrior(source, 0.2, tree, "odom")
    for i in range(4):
        tree.add("odom", "base", pose(0.1 * i, 5 * i), i * S // 10)
        prior.add_odometry("base", pose(0.1 * i, 5 * i), i * S // 10)
    expected = pose(0.2, 10) @ mount
    np.testing.assert_allclose(prior.camera("optical", 2 * S // 10), expected, atol=1e-12)
    late = extrapolate(pose(0.2, 10), pose(0.3, 15), 1.0) @ mount
    found = prior.camera("optical", 4 * S // 10)
    np.testing.assert_allclose(found, late, atol=3e-3 if source == "tf" else 1e-12)
    with pytest.raises(PriorError, match="old"):
        prior.camera("optical", S)
    with pytest.raises(PriorError, match="elsewhere"):
        prior.camera("elsewhere", S // 10)


def views(poses, K=True):
    image = np.zeros((14, 14, 3), np.uint8)
    K = np.eye(3) if K else None
    return [View(i, i, image, K, T_prior_camera=T) for i, T in enumerate(poses)]


def test_what_is_given_to_the_network_is_whole_or_nothing():
    good = [pose(0.1 * i) for i in range(5)]
    assert window_prior(views(good)).scale
    assert "without a pose" in window_prior(views([*good[:4], None])).reason
    assert window_prior(views([*good[:4], None])).T_prior_camera is None
    assert "camera_info" in window_prior(views(good, K=False)).reason
    assert "not finite" in window_prior(views([*good[:4], np.full((4, 4), np.inf)])).reason


@pytest.mark.parametrize("poses", [[pose(0), pose(5)], [pose(0, 10 * i) for i in range(6)]])
def test_two_views_or_a_standing_camera_give_no_scale(poses):
    """Two views or a standing camera give rotation and no scale."""
    given = window_prior(views(poses))
    assert given.T_prior_camera is not None
    assert not given.scale
    assert "no scale" in given.reason


@pytest.fixture(scope="module", params=["straight", "loop"])
def walk(request):
    camera = SyntheticCamera(seed=3, size=(140, 112), walk=request.param, frames=8, rate_hz=3.0)
    return list(camera)


def predict(frames, seed):
    session = TruthSession(frames, seed=seed)
    image = np.zeros((112, 140, 3), np.uint8)
    seen = tuple(View(i, f.stamp_ns, image, f.K) for i, f in enumerate(frames))
    return session.infer(Window(0, seen, 1))


def test_exact_poses_give_the_unit_of_any_window(walk):
    for seed in range(3):
        prediction = predict(walk, seed)
        true = np.nanmedian(walk[0].depth / prediction.depth[0])
        found = fit_unit(np.stack([f.T_room_camera for f in walk]), prediction)
        assert found.value == pytest.approx(true, rel=0.01)
        assert found.sigma < 0.02


def test_unit_of_noisy_odometry_is_as_wrong_as_stated(walk):
    z = []
    for seed in range(20):
        odometry = DriftingOdometry(walk[0].T_room_camera, noise_m=0.03, seed=seed)
        poses = []
        for frame in walk:
            odometry.move(frame.T_room_camera, 1 / 3)
            poses.append(odometry.T_odom_camera.copy())
        prediction = predict(walk, seed)
        true = np.nanmedian(walk[0].depth / prediction.depth[0])
        found = fit_unit(np.stack(poses), prediction)
        z.append(np.log(found.value / true) / found.sigma)
    assert np.std(z) < 2
    assert np.abs(np.mean(z)) < 1


def test_depths_give_the_unit_that_wrong_baselines_hide(walk):
    """All of the network's motions 10 % too long: the surfaces still give their distance."""
    prediction = predict(walk, 0)
    true = np.nanmedian(walk[0].depth / prediction.depth[0])
    poses = prediction.T_window_camera.copy()
    poses[:, :3, 3] = poses[0, :3, 3] + 1.1 * (poses[:, :3, 3] - poses[0, :3, 3])
    prediction = dataclasses.replace(prediction, T_window_camera=poses)
    found = fit_unit(np.stack([f.T_room_camera for f in walk]), prediction)
    assert abs(np.log(found.value / true)) < 3 * found.sigma


def test_a_standing_camera_has_no_unit():
    prediction = predict(list(SyntheticCamera(seed=4, size=(140, 112), walk="still", frames=4)), 0)
    found = fit_unit(np.stack([np.eye(4)] * 4), prediction)
    assert np.isnan(found.value)


def test_the_priors_own_poses_in_the_windows_unit(walk):
    prediction = predict(walk, 0)
    T = np.stack([f.T_room_camera for f in walk])
    out = with_prior_poses(prediction, T, 2.0)
    np.testing.assert_allclose(out.T_window_camera[:, :3, 3] * 2, T[:, :3, 3])
    np.testing.assert_array_equal(out.T_window_camera[:, :3, :3], T[:, :3, :3])


def test_the_variance_is_that_of_the_newest_pose_before():
    h = PoseHistory()
    for i in range(40):
        h.add(i * S, pose(i), None if i == 37 else np.full(6, float(i)))
    assert h.variance(36 * S + 5).tolist() == [36.0] * 6
    assert h.variance(37 * S) is None
    assert h.variance(5 * S) is None  # forgotten with its pose
    h.add(38 * S, pose(38))  # a repeated stamp replaces
    assert h.variance(38 * S) is None
    h.add(S, pose(1), np.ones(6))  # the clock was set back
    assert h.variance(39 * S).tolist() == [1.0] * 6


def odometry(covariance):
    stamp = SimpleNamespace(sec=1, nanosec=0)
    at = SimpleNamespace(x=0.0, y=0.0, z=0.0)
    pose = SimpleNamespace(position=at, orientation=SimpleNamespace(x=0.0, y=0.0, z=0.0, w=1.0))
    return SimpleNamespace(
        header=SimpleNamespace(stamp=stamp, frame_id="odom"),
        child_frame_id="base_link",
        pose=SimpleNamespace(pose=pose, covariance=covariance),
    )


@pytest.mark.parametrize(
    ("covariance", "expected"),
    [
        (np.diag([1, 2, 3, 4, 5, 6.0]).ravel(), [1, 2, 3, 4, 5, 6]),
        (np.zeros(36), None),
        (np.full(36, np.nan), None),
    ],
)
def test_frames_get_the_variance_of_the_odometry(covariance, expected):
    tree = TransformTree()
    tree.add("base_link", "camera_optical", np.eye(4), 0, static=True)
    prior = PosePrior("odometry", 0.2, tree, "odom")
    add_odometry(prior, odometry(covariance))
    annotator = FrameAnnotator(PipelineConfig(), tree, prior, lambda *_, **__: None)
    frame = Frame(S, np.zeros((2, 2, 3), np.uint8))
    (annotated,) = annotator.annotate([frame])
    assert annotated.T_prior_camera is not None
    found = annotated.prior_variance
    assert found is None if expected is None else found.tolist() == expected
