"""A camera_info that comes after the first images, or changes: the scene goes on, calibrated."""

import dataclasses

import numpy as np
import pytest
from support.pipelines import settings, to_frame

from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping.map_table import OverlapView
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_odometry import rectified_again
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import View

D = (-0.25, 0.06, 0.0, 0.0, 0.0)
SIZE, COUNT, LATE = (140, 112), 20, 10


class ByCalibration(TruthSession):
    """Knows what raw images show if they are taken for a pinhole camera's, and rectified ones."""

    def __init__(self, raw, rectified):
        super().__init__({"raw": raw, "rectified": rectified})
        self.seen = []

    def infer(self, window):
        self.seen.append(window.views)
        views = tuple(
            dataclasses.replace(v, camera="raw" if v.K is None else "rectified")
            for v in window.views
        )
        return super().infer(dataclasses.replace(window, views=views))


@pytest.fixture(scope="module")
def bent():
    """A walk with a distorted lens, and the same through a pinhole."""
    options = {"seed": 3, "size": SIZE, "walk": "loop", "frames": COUNT}
    raw, pinhole = SyntheticCamera(D=D, **options), SyntheticCamera(**options)
    return raw, list(raw), list(pinhole)


def run(pipeline, frames):
    results = [r for frame in frames for r in pipeline.push(frame)]
    return results + list(pipeline.flush())


def motion_errors(results, frames):
    """Errors of the motion since the first result, metres of one unit for all results."""
    truth = {f.stamp_ns: f.T_room_camera for f in frames}
    true = [invert_pose(truth[results[0].stamp_ns]) @ truth[r.stamp_ns] for r in results]
    T0 = results[0].T_odom_map @ results[0].T_map_camera
    own = [invert_pose(T0) @ r.T_odom_map @ r.T_map_camera for r in results]
    moved = np.array([T[:3, 3] for T in own]), np.array([T[:3, 3] for T in true])
    unit = (moved[0] * moved[1]).sum() / (moved[1] ** 2).sum()
    return np.linalg.norm(moved[0] / unit - moved[1], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("new", [1, 3])
def test_a_late_calibration_continues_chain_and_map(bent, new):
    camera, raw, pinhole = bent
    session = ByCalibration(raw, pinhole)
    pipeline = Pipeline(settings(**{"window.new": new}), session)
    frames = [
        to_frame(camera, f, **({"calibration": None} if i < LATE else {}))
        for i, f in enumerate(raw)
    ]
    early = [r for f in frames[:LATE] for r in pipeline.push(f)]
    points = len(pipeline.map)
    results = early + run(pipeline, frames[LATE:])
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in raw]
    assert {r.window.chain for r in results} == {0}
    assert all(r.window.aligned for r in results)
    assert len(pipeline.map) >= points > 0
    assert pipeline.map.pose_known
    assert pipeline.counters["late_calibrations"] == 1
    assert motion_errors(results[LATE:], raw).max() < 0.02
    step = np.linalg.norm(
        [np.diff([r.T_map_camera[:3, 3] for r in results], axis=0)], axis=-1
    ).ravel()
    assert step[LATE - 1] < 2 * np.median(step)  # no jump where the calibration came
    for r in results[LATE:]:
        np.testing.assert_allclose(r.K[0, 0], pinhole[0].K[0, 0], rtol=1e-6)


def test_only_rectified_images_are_shared_after_that(bent):
    camera, raw, pinhole = bent
    session = ByCalibration(raw, pinhole)
    pipeline = Pipeline(settings(), session)
    run(pipeline, [to_frame(camera, f, calibration=None) for f in raw[:4]])
    run(pipeline, [to_frame(camera, f) for f in raw[4:7]])
    joining = session.seen[4]
    assert [v.stamp_ns for v in joining] == [raw[3].stamp_ns, raw[4].stamp_ns]
    again = np.abs(joining[0].image.astype(float) - pinhole[3].image)[joining[0].valid]
    assert np.median(again) < 8  # grey levels: interpolated
    for views in session.seen[4:]:
        assert all(v.K is not None for v in views)


def test_a_rectified_sample_is_the_same_point(bent):
    """Also with the rectifying rotation of a stereo camera."""
    camera, raw, pinhole = bent
    frame = raw[0]
    pixels = np.flatnonzero(np.isfinite(frame.depth))[::3]
    known = OverlapView(
        View(0, 0, frame.image), frame.K, np.eye(4), pixels,
        frame.depth.reshape(-1)[pixels], np.ones(len(pixels)),
    )  # fmt: skip
    out = rectified_again(known, camera.calibration, rectified=False)
    true = pinhole[0].depth.reshape(-1)[out.pixels]
    assert len(out.pixels) > 0.7 * len(pixels)
    assert np.median(np.abs(np.log(out.depth / true))) < 0.01

    angle = np.radians(5.0)
    R = np.array(
        [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    )
    turned = rectified_again(known, dataclasses.replace(camera.calibration, R=R), rectified=False)
    T = turned.T_local_camera
    points = turned.depth[:, None] * turned.rays() @ T[:3, :3].T
    ahead = points[:, :2] / points[:, 2:]
    seen = ahead @ frame.K[:2, :2] + frame.K[:2, 2]  # in the pinhole camera that is not turned
    inside = ((seen >= 0) & (seen < SIZE)).all(axis=1)
    x, y = seen[inside].astype(int).T
    error = np.abs(np.log(points[inside, 2] / pinhole[0].depth[y, x]))
    assert np.median(error) < 0.02


def test_the_mask_is_rectified_with_its_image(bent):
    camera, raw, _ = bent
    valid = np.ones((SIZE[1], SIZE[0]), bool)
    valid[:, :20] = False
    known = OverlapView(
        View(0, 0, raw[0].image, valid=valid), raw[0].K, np.eye(4),
        np.arange(100), np.ones(100), np.ones(100),
    )  # fmt: skip
    out = rectified_again(known, camera.calibration, rectified=False)
    assert not out.view.valid[:, :12].any()
    assert out.view.valid[40:70, 40:100].all()


@pytest.mark.slow
def test_a_zoom_continues_the_chain(bent):
    """Earlier views keep the calibration that they were taken with."""
    options = {"seed": 3, "size": SIZE, "walk": "loop", "frames": COUNT}
    wide = SyntheticCamera(**options, fov_deg=65.0)
    tele = SyntheticCamera(**options, fov_deg=50.0)
    mixed = list(wide)[:LATE] + list(tele)[LATE:]
    pipeline = Pipeline(settings(), TruthSession(mixed))
    results = run(pipeline, [to_frame(wide if i < LATE else tele, f) for i, f in enumerate(mixed)])
    assert {r.window.chain for r in results} == {0}
    assert all(r.window.aligned for r in results)
    assert motion_errors(results, mixed).max() < 0.02
    assert [r.K[0, 0] for r in results] == pytest.approx([f.K[0, 0] for f in mixed])
    assert pipeline.counters["late_calibrations"] == 0


def test_one_camera_of_a_rig_is_calibrated_late(bent):
    camera, raw, pinhole = bent
    session = TruthSession({"front": pinhole, "left": pinhole})
    pipeline = Pipeline(settings(**{"cameras": ["front", "left"], "window.size": 6}), session)
    for i, f in enumerate(raw[:6]):
        front = dataclasses.replace(to_frame(camera, f), camera="front")
        left = dataclasses.replace(front, camera="left")
        if i < 3:
            left = dataclasses.replace(left, calibration=None)
        list(pipeline.push(front, left))
    assert pipeline.counters["late_calibrations"] == 1
    assert pipeline.counters["processed"] == 12
    assert pipeline.counters["windows_refused"] == 0
    shared = [a.view for a in pipeline.odometry.overlap_views.all()]
    assert all(v.K is not None for v in shared)
    assert {v.camera for v in shared} == {"front", "left"}


@pytest.mark.long
@pytest.mark.slow
def test_with_refinement_the_late_calibration_holds(bent):
    camera, raw, pinhole = bent
    refined = settings(**{"refinement.enabled": True, "dense.enabled": False})
    pipeline = Pipeline(refined, ByCalibration(raw, pinhole))
    frames = [
        to_frame(camera, f, **({"calibration": None} if i < LATE else {}))
        for i, f in enumerate(raw)
    ]
    results = run(pipeline, frames)
    assert {r.window.chain for r in results} == {0}
    assert pipeline.refinement.focal_sources == {"": "camera_info"}
    assert pipeline.counters["refinement_failed"] == 0
    assert motion_errors(results[LATE:], raw).max() < 0.05
