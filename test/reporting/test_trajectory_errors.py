"""Errors of trajectories are those that evo computes of the same poses."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import Similarity
from da3_ros.reporting.trajectory_errors import SHARES, trajectory_errors

evo_metrics = pytest.importorskip("evo.core.metrics")


def walk(count=60, seed=3):
    """True poses of a curved path, where the camera stands for a while, and estimates with
    noise."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 5, count)
    t[20:26] = t[20]
    true = np.tile(np.eye(4), (count, 1, 1))
    true[:, :3, 3] = np.column_stack((t, np.sin(t), 0.2 * np.cos(2 * t)))
    true[:, :3, :3] = Rotation.from_euler("xyz", np.column_stack((0 * t, 0.1 * t, t))).as_matrix()
    noisy = true.copy()
    noisy[:, :3, 3] += np.cumsum(rng.normal(size=(count, 3)), axis=0) * 0.01
    noisy[:, :3, :3] = (
        Rotation.from_rotvec(np.cumsum(rng.normal(size=(count, 3)), axis=0) * 0.01).as_matrix()
        @ noisy[:, :3, :3]
    )
    away = Similarity(0.4, Rotation.from_rotvec([0.3, -1.0, 0.6]).as_matrix(), np.ones(3))
    return np.array([away.pose(T) for T in noisy]), true


def by_evo(estimated, true, *, scale):
    """ATE, RPE of positions and rotations, and drift by evo."""
    from evo.core.metrics import APE, RPE, PoseRelation, StatisticsType, Unit
    from evo.core.trajectory import PosePath3D

    path, reference = PosePath3D(poses_se3=list(estimated)), PosePath3D(poses_se3=list(true))
    path.align(reference, correct_scale=scale)

    def value(metric, kind):
        metric.process_data((reference, path))
        return metric.get_statistic(kind)

    rmse, mean = StatisticsType.rmse, StatisticsType.mean
    relations = PoseRelation.translation_part, PoseRelation.rotation_angle_deg
    drift = []
    for share in SHARES:
        distance = share * reference.path_length
        options = {"delta": distance, "delta_unit": Unit.meters, "all_pairs": True,
                   "pairs_from_reference": True}  # fmt: skip
        moved, turned = (value(RPE(relation, **options), mean) for relation in relations)
        drift.append((100 * moved / distance, turned / distance))
    return (
        value(APE(relations[0]), rmse),
        [value(RPE(relation, 1, Unit.frames), rmse) for relation in relations],
        drift,
    )


def test_long_trajectories_are_compared_in_parts(monkeypatch):
    estimated, true = walk()
    whole = trajectory_errors(estimated, true, metric=False).sim3
    monkeypatch.setattr("da3_ros.reporting.trajectory_errors.AT_ONCE", 7)
    parts = trajectory_errors(estimated, true, metric=False).sim3
    assert (parts.rpe_m, parts.rpe_deg, parts.drift) == (whole.rpe_m, whole.rpe_deg, whole.drift)


@pytest.mark.parametrize("kind", ["sim3", "se3"])
def test_errors_are_those_of_evo(kind):
    estimated, true = walk()
    found = getattr(trajectory_errors(estimated, true, metric=True), kind)
    ate, rpe, drift = by_evo(estimated, true, scale=kind == "sim3")
    assert found.ate_m == pytest.approx(ate, rel=1e-9)
    assert (found.rpe_m, found.rpe_deg) == pytest.approx(tuple(rpe), rel=1e-6)
    assert [(d.percent, d.deg_per_m) for d in found.drift] == [
        pytest.approx(one, rel=1e-6) for one in drift
    ]
    assert not found.by_orientation
    assert found.ate_m > 0.01


def test_a_straight_path_is_fitted_by_orientations():
    """Its positions leave the turn about the path open: evo refuses it."""
    true = np.tile(np.eye(4), (10, 1, 1))
    true[:, 0, 3] = np.arange(10)
    away = Similarity(0.5, Rotation.from_rotvec([0.5, 0.2, 0.1]).as_matrix(), np.ones(3))
    errors = trajectory_errors(np.array([away.pose(T) for T in true]), true, metric=False)
    assert errors.sim3.by_orientation
    assert errors.sim3.T_truth_map.scale == pytest.approx(2.0)
    assert errors.sim3.ate_m == pytest.approx(0, abs=1e-9)
    assert errors.se3 is None
    assert errors.path_m == pytest.approx(9)


def test_a_camera_that_stands_has_no_drift():
    poses = np.tile(np.eye(4), (5, 1, 1))
    errors = trajectory_errors(poses, poses, metric=True)
    assert errors.path_m == 0
    assert not errors.moves
    assert all(np.isnan(one.percent) and one.pairs == 0 for one in errors.sim3.drift)


def test_two_poses_are_too_few():
    with pytest.raises(ValueError, match="2 poses have a true one: at least 3"):
        trajectory_errors(np.tile(np.eye(4), (2, 1, 1)), np.zeros((2, 4, 4)), metric=True)
