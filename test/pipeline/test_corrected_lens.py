"""Cameras whose camera_info does not fit their images, in rendered rooms."""

import dataclasses
import logging

import numpy as np
import pytest
from support.cases import long_after
from support.pipelines import to_frame

from da3_ros.config import config_from_parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import Noise, TruthSession

SIZE, FRAMES = (320, 240), 48
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


def way_error(pipeline, true):
    poses = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    stamps = sorted(poses)
    exact = {f.stamp_ns: f.T_room_camera for f in true}
    return trajectory_error(
        np.array([poses[s] for s in stamps]), np.array([exact[s] for s in stamps])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", long_after(1, [{"focal": 1.08}, {"k1": 0.12}, {"focal": 0.94, "k1": -0.1}])
)
def test_a_camera_info_that_does_not_fit_the_images_is_corrected(walk, fault, caplog):
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
    width = results[-1].depth_m.shape[1]
    focal = results[-1].K[0, 0] / width / (camera.calibration.K[0, 0] / SIZE[0])
    assert focal == pytest.approx(1.0, abs=0.012)
    assert way_error(pipeline, true) < 0.5 * way_error(kept, true)
    assert pipeline.counters["refinement_failed"] == 0
    assert pipeline.counters["map_adjustments_failed"] == 0
    assert len({r.window.chain for r in results}) == 1, "the path goes on"


@pytest.mark.slow
def test_frames_that_were_prepared_ahead_are_prepared_again(walk):
    camera, _ = walk
    wrong = stated(camera.calibration, focal=1.08)
    (_, one), (_, other) = run(walk, wrong), run(walk, wrong, ahead=True)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.K, b.K)
        np.testing.assert_array_equal(a.T_map_camera, b.T_map_camera)


@pytest.mark.slow
def test_a_right_camera_info_stays(walk):
    camera, _ = walk
    pipeline, results = run(walk, camera.calibration)
    assert pipeline.counters["lenses_corrected"] == 0
    assert pipeline.refinement.focal_sources == {"": "camera_info"}
    assert all(np.array_equal(r.K, results[0].K) for r in results)


@pytest.mark.slow
def test_another_camera_info_is_taken_as_it_is(walk):
    """As after a new calibration by the user: what was found belongs to the old one."""
    camera, true = walk
    pipeline, results = run(walk, stated(camera.calibration, focal=1.08))
    assert results[-1].K[0, 0] != results[0].K[0, 0]
    late = dataclasses.replace(true[-1], stamp_ns=true[-1].stamp_ns + 10**9)
    pipeline.session.add(late)
    given = to_frame(camera, late, calibration=camera.calibration)
    (result,) = [*pipeline.push(given), *pipeline.flush()]
    width = result.depth_m.shape[1]
    assert result.K[0, 0] / width == pytest.approx(camera.calibration.K[0, 0] / SIZE[0])
