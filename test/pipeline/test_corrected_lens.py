"""Cameras whose camera_info does not fit their images, in rendered rooms."""

import dataclasses
import logging

import numpy as np
import pytest
from support.cases import long_after
from support.pipelines import to_frame

from da3_ros.config import config_from_parameters
from da3_ros.geometry.lens import Lens
from da3_ros.pipeline import map_adjustment, window_builder
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.distortion import distort
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import Noise, TruthSession

SIZE, FRAMES = (320, 240), 30
LONG = {"focal": 1.08}
NOISE = Noise(smooth=0.1, per_frame=0.02, rotation_deg=0.3, translation=0.01)


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(42, SIZE, walk="loop", frames=FRAMES, rate_hz=4)
    return camera, list(camera)


def stated(calibration, focal=1.0, k1=0.0):
    K = calibration.K * np.array([[focal, 1, 1], [1, focal, 1], [1, 1, 1]])
    return dataclasses.replace(calibration, K=K, D=np.array([k1, 0.0, 0.0, 0.0, 0.0]))


def opened(true, **values):
    settings = {
        "process_res": 168, "window.size": 6, "dense.enabled": False, "loop.enabled": False,
        "depth.min_confidence": 0.0, "map.remove_movers": False, **values,
    }  # fmt: skip
    return Pipeline(config_from_parameters(settings), TruthSession(true, noise=NOISE))


def run(walk, calibration, *, ahead=False, **values):
    camera, true = walk
    pipeline = opened(true, **values)
    frames = [to_frame(camera, f, calibration=calibration) for f in true]
    if ahead:
        frames = [pipeline.prepare(f) for f in frames]
    results = []
    for frame in frames:
        results += pipeline.push(frame)
    return pipeline, results + list(pipeline.flush())


def wrong_px(calibration, camera):
    """By how much a calibration puts directions elsewhere in the raw image, pixels, RMS."""
    x, y = np.meshgrid(np.linspace(-0.5, 0.5, 11), np.linspace(-0.4, 0.4, 9))
    a, K = np.stack((x, y), -1).reshape(-1, 2), camera.calibration.K
    off = distort(calibration, a) - (a @ K[:2, :2].T + K[:2, 2])
    return np.sqrt((off**2).sum(1).mean())


def way_error(pipeline, true):
    poses = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    stamps = sorted(poses)
    exact = {f.stamp_ns: f.T_room_camera for f in true}
    return trajectory_error(
        np.array([poses[s] for s in stamps]), np.array([exact[s] for s in stamps])
    )


@pytest.fixture(scope="module")
def short_walk(walk):
    """Until a little after the first correction."""
    return walk[0], walk[1][:24]


@pytest.fixture(scope="module")
def corrected(short_walk):
    """A run with a focal length that is stated too long."""
    return run(short_walk, stated(short_walk[0].calibration, **LONG))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "left"),
    long_after(1, [(LONG, 0.25), ({"k1": 0.2}, 0.6), ({"focal": 0.94, "k1": -0.1}, 0.4)]),
)
def test_a_camera_info_that_does_not_fit_the_images_is_corrected(walk, fault, left, caplog):
    camera, true = walk
    wrong = stated(camera.calibration, **fault)
    with caplog.at_level(logging.WARNING):
        pipeline, results = run(walk, wrong)
    kept, _ = run(walk, wrong, **{"refinement.lens": False})
    assert pipeline.refinement.focal_sources == {"": "corrected"}
    assert pipeline.counters["lenses_corrected"] >= 1
    assert kept.refinement.focal_sources == {"": "camera_info"}
    said = [r.getMessage() for r in caplog.records if "does not fit its images" in r.getMessage()]
    assert len(said) == pipeline.counters["lenses_corrected"]
    assert "refinement.lens: false" in said[0]
    found = pipeline.builder.calibration("")
    assert wrong_px(found, camera) < left * wrong_px(wrong, camera)
    width = results[-1].depth_m.shape[1]
    P = found.K if found.P is None else found.P
    assert results[-1].K[0, 0] / width == pytest.approx(P[0, 0] / SIZE[0])
    assert way_error(pipeline, true) < 0.5 * way_error(kept, true)
    assert pipeline.counters["refinement_failed"] == 0
    assert pipeline.counters["map_adjustments_failed"] == 0
    assert len({r.window.chain for r in results}) == 1, "the path goes on"


@pytest.mark.long
@pytest.mark.slow
def test_frames_that_were_prepared_ahead_are_prepared_again(short_walk, corrected):
    _, results = run(short_walk, stated(short_walk[0].calibration, **LONG), ahead=True)
    for a, b in zip(corrected[1], results, strict=True):
        np.testing.assert_array_equal(a.K, b.K)
        np.testing.assert_array_equal(a.T_map_camera, b.T_map_camera)


@pytest.mark.long
@pytest.mark.slow
def test_a_right_camera_info_stays(walk):
    camera, _ = walk
    pipeline, results = run(walk, camera.calibration)
    assert pipeline.counters["lenses_corrected"] == 0
    assert pipeline.refinement.focal_sources == {"": "camera_info"}
    assert all(np.array_equal(r.K, results[0].K) for r in results)


@pytest.mark.slow
def test_another_camera_info_is_taken_as_it_is(short_walk, corrected):
    """As after a new calibration by the user: what was found belongs to the old one."""
    camera, true = short_walk
    pipeline, results = corrected
    assert results[-1].K[0, 0] != results[0].K[0, 0]
    late = dataclasses.replace(true[-1], stamp_ns=true[-1].stamp_ns + 10**9)
    pipeline.session.add_frame(late)
    given = to_frame(camera, late, calibration=camera.calibration)
    (result,) = [*pipeline.push(given), *pipeline.flush()]
    width = result.depth_m.shape[1]
    assert result.K[0, 0] / width == pytest.approx(camera.calibration.K[0, 0] / SIZE[0])
    assert pipeline.refinement.focal_sources == {"": "camera_info"}


def in_thread(true, monkeypatch, **values):
    """A pipeline whose map is adjusted in a thread, and never moves by that."""
    monkeypatch.setattr(map_adjustment, "adjusted_map", lambda *_, **__: None)
    pipeline = opened(true, **values)
    pipeline.scene_map.adjustment.waits = False
    return pipeline


def push_and_wait(pipeline, frame):
    """Returns results; the job in the thread has ended then."""
    results = list(pipeline.push(frame))
    if pipeline.scene_map.adjustment._running is not None:
        pipeline.scene_map.adjustment._running[1].result(60.0)
    return results


@pytest.mark.long
@pytest.mark.slow
def test_a_lens_is_corrected_once_where_its_job_is_late(walk, monkeypatch):
    """No job begins of keyframes that are without a correction that is known already."""
    camera, true = walk
    monkeypatch.setattr(map_adjustment, "MORE", 1.0)
    pipeline = in_thread(true, monkeypatch)
    wrong = stated(camera.calibration, **LONG)
    for f in true:
        push_and_wait(pipeline, to_frame(camera, f, calibration=wrong))
        if pipeline.counters["map_adjustments_refused"]:
            pipeline.scene_map.adjustment._all = True  # as after a loop
    first, *later = pipeline.refinement.lenses[""]
    assert abs(first.lens.focal) > 0.04
    assert all(abs(one.lens.focal) < 0.5 * abs(first.lens.focal) for one in later)
    assert wrong_px(pipeline.builder.calibration(""), camera) < 0.4 * wrong_px(wrong, camera)


@pytest.mark.long
@pytest.mark.slow
def test_a_lens_that_cannot_be_taken_over_and_a_check_that_fails_are_said(
    short_walk, monkeypatch, caplog
):
    camera, _ = short_walk
    checked = []

    def check(views, matches):
        checked.append(len(views))
        if len(checked) > 1:
            raise RuntimeError("no lens today")
        return map_adjustment.LensEstimate(Lens(focal=0.1), 0.001, 0.1, 0.2, len(views))

    monkeypatch.setattr(map_adjustment, "MORE", 1.0)
    monkeypatch.setattr(map_adjustment, "measured_lens", check)
    monkeypatch.setattr(window_builder, "corrected_calibration", lambda *_, **__: None)
    pipeline, results = run(short_walk, camera.calibration)
    assert len(checked) >= 2
    assert pipeline.counters["lenses_refused"] == 1
    assert pipeline.counters["map_adjustments_failed"] == len(checked) - 1
    assert pipeline.counters["map_adjustments"] > 0
    assert "distortion_model cannot express that: it stays" in caplog.text
    assert "no lens today" in caplog.text
    assert pipeline.refinement.focal_sources == {"": "camera_info"}
    assert np.array_equal(results[-1].K, results[0].K)


@pytest.mark.long
@pytest.mark.slow
def test_a_lens_of_another_camera_info_is_not_taken_over(walk, monkeypatch):
    """The user has calibrated the camera again while its keyframes were checked."""
    camera, true = walk
    pipeline = in_thread(true, monkeypatch)
    wrong, frames, found = stated(camera.calibration, **LONG), iter(true), []
    work = map_adjustment.measured_lens
    monkeypatch.setattr(
        map_adjustment, "measured_lens",
        lambda *args: found.append(work(*args)) or found[-1],
    )  # fmt: skip
    while not any(found):
        push_and_wait(pipeline, to_frame(camera, next(frames), calibration=wrong))
    for f in frames:
        (result,) = push_and_wait(pipeline, to_frame(camera, f))
    assert pipeline.counters["lenses_corrected"] == 0
    width = result.depth_m.shape[1]
    assert result.K[0, 0] / width == pytest.approx(camera.calibration.K[0, 0] / SIZE[0])
