"""Global poses that hold a saved scene are in its file; damage costs them alone."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.journals import rewritten
from support.scenes import full_store

from da3_ros.export.anchor_file import ANCHOR
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.types import UNKNOWN_M2, UNKNOWN_RAD2, GlobalPose


def pose(rng):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec(rng.standard_normal(3)).as_matrix()
    T[:3, 3] = 1e6 * rng.standard_normal(3)
    return T


@pytest.fixture
def scene(tmp_path):
    """A saved scene with three anchors of two cameras, and its folder."""
    rng, saved = np.random.default_rng(0), full_store().snapshot(metric=True)
    A = rng.standard_normal((6, 6))
    unknown = np.diag([1e-6, 1e-6, UNKNOWN_M2, UNKNOWN_RAD2, UNKNOWN_RAD2, 1e-8])
    ids = [s.id for s in saved.submaps]
    anchors = tuple(
        HeldAnchor(GlobalPose(10**18 + k, pose(rng), C, pose(rng)), ids[k % len(ids)],
                   (10**18 + k - 5, camera), pose(rng))
        for k, (C, camera) in enumerate(((A @ A.T, "left"), (unknown, "front"), (unknown, "left")))
    )  # fmt: skip
    saved = dataclasses.replace(saved, anchors=anchors)
    save_scene(saved, tmp_path / "scene")
    return saved, tmp_path / "scene"


def test_anchors_are_loaded_as_they_were_saved(scene):
    saved, folder = scene
    found = load_scene(folder).anchors
    assert len(found) == 3
    for one, other in zip(saved.anchors, found, strict=True):
        assert (one.submap, one.frame) == (other.submap, other.frame)
        assert one.given.stamp_ns == other.given.stamp_ns
        for name in ("T_ros_base", "covariance", "T_base_camera"):
            np.testing.assert_array_equal(getattr(one.given, name), getattr(other.given, name))
        np.testing.assert_array_equal(one.T_frame_camera, other.T_frame_camera)


def test_a_scene_without_anchors_has_none(tmp_path):
    save_scene(full_store().snapshot(), tmp_path / "scene")
    assert load_scene(tmp_path / "scene").anchors == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("submap", 999), ("submap", -1), ("camera", 2), ("camera", -1),
        ("T_ros_base", np.nan), ("T_ros_base", 0.5), ("T_frame_camera", 1e13),
        ("T_base_camera", -np.eye(4)[:3]), ("covariance", np.zeros((6, 6))),
        ("covariance", np.full((6, 6), np.inf)), ("covariance", np.ones((6, 6)) - 3 * np.eye(6)),
        ("covariance", 2 * np.ones((6, 6)) - np.eye(6)),
    ],
)  # fmt: skip
def test_anchors_that_cannot_be_cost_only_themselves(scene, caplog, name, value):
    saved, folder = scene

    def change(description, data):
        if description["kind"] == "anchors":
            rows = np.frombuffer(data, ANCHOR).copy()
            rows[name][1] = value
            data = rows.tobytes()
        return description, data

    rewritten(folder, change)
    found = load_scene(folder)
    assert found.anchors == ()
    assert len(found.submaps) == len(saved.submaps)
    (line,) = [r.message for r in caplog.records if "no global poses hold" in r.message]
    assert str(folder) in line
