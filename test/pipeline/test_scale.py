"""Metres from odometry and from a metric model, on exact windows of rendered rooms."""

import dataclasses

import numpy as np
import pytest
from support.pipelines import odometry_of

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping.alignment import WindowAligner
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, ScaleMeasurement

SIZE = (140, 112)


def settings(**values):
    base = {
        "process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
        "refinement.enabled": False, "map.remove_movers": False,
    }  # fmt: skip
    return config_from_parameters({**base, **values})


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=60, rate_hz=5.0)
    return camera, list(camera)


class TrueRuler:
    """Measures a window's unit by its exact depth, with an error of its own."""

    def __init__(self, frames, sigma=0.0, wrong=()):
        self._frames = {f.stamp_ns: f for f in frames}
        self._rng = np.random.default_rng(0)
        self.sigma, self.wrong, self.asked = sigma, wrong, []

    def measure(self, window, prediction):
        self.asked.append(window.id)
        frame = self._frames[window.views[-1].stamp_ns]
        value = np.nanmedian(frame.depth / prediction.depth[-1])
        value *= np.exp(self.sigma * self._rng.standard_normal())
        value *= 2.0 if len(self.asked) in self.wrong else 1.0
        return dataclasses.replace(
            prediction, measure=ScaleMeasurement(float(value), self.sigma or 0.01)
        )


def run(walk, config, priors=None, metric_model=None, session=None):
    camera, frames = walk
    pipeline = Pipeline(config, session or TruthSession(frames), metric_model)
    results = []
    priors = priors or [None] * len(frames)
    for f, prior in zip(frames, priors, strict=True):
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += list(pipeline.push(frame))
    return pipeline, results + list(pipeline.flush())


def scale_errors(walk, results):
    """Relative error of every metric frame's depth."""
    truth = {f.stamp_ns: f for f in walk[1]}
    return np.array(
        [np.nanmedian(r.depth_m / truth[r.stamp_ns].depth) - 1 for r in results if r.scale.metric]
    )


def largest_step(results):
    values = np.array([r.scale.value for r in results if r.scale.metric])
    return np.abs(np.diff(np.log(values))).max()


@pytest.mark.long
@pytest.mark.slow
def test_clean_odometry_makes_metres_after_a_short_way(walk):
    priors = list(odometry_of(*walk))
    pipeline, results = run(walk, settings(**{"scale.source": "odometry"}), priors)
    assert not results[0].scale.metric
    assert np.isnan(results[0].scale.value)
    errors = scale_errors(walk, results)
    assert len(errors) > 30
    assert np.abs(errors).max() < 0.02
    assert largest_step(results) <= np.log(1.02) + 1e-9
    assert pipeline.scale.known


@pytest.mark.long
@pytest.mark.slow
def test_scale_of_noisy_odometry_is_within_four_sigma(walk):
    priors = list(odometry_of(*walk, noise_m=0.02, noise_deg=0.5, seed=1))
    _, results = run(walk, settings(**{"scale.source": "odometry"}), priors)
    errors, metric = scale_errors(walk, results), [r for r in results if r.scale.metric]
    z = errors / [r.scale.sigma for r in metric]
    assert np.abs(errors[-1]) < 0.05
    assert np.abs(z).max() < 4


@pytest.mark.slow
def test_a_wrong_metric_model_is_outvoted(walk):
    """A metric model is asked now and then and outvoted when wrong."""
    config = settings(**{"scale.source": "metric_model", "scale.metric_every": 5})
    metric_model = TrueRuler(walk[1], sigma=0.02, wrong=(2, 6))
    _, results = run(walk, config, metric_model=metric_model)
    assert len(metric_model.asked) <= 3 + 60 // 5
    errors = scale_errors(walk, results)
    assert np.abs(errors[-20:]).max() < 0.03
    assert largest_step(results) <= np.log(1.02) + 1e-9
    metric = [r for r in results if r.scale.metric]
    assert np.abs(errors / [r.scale.sigma for r in metric]).max() < 3.5


@pytest.mark.long
@pytest.mark.slow
def test_the_map_is_one_scene_in_metres_whatever_was_known_when(walk):
    from da3_ros.synthetic import distance_to_surface

    camera, frames = walk
    priors = list(odometry_of(camera, frames, noise_m=0.01))
    config = settings(**{"scale.source": "odometry", "map.voxel_m": 0.03})
    pipeline, _ = run(walk, config, priors)
    T = frames[0].T_room_camera
    scene = pipeline.scene()
    points = pipeline.map.cloud().xyz * pipeline.map.table.metres @ T[:3, :3].T + T[:3, 3]
    distance = np.asarray(distance_to_surface(camera.room, points))
    assert np.percentile(distance, 95) < 0.1
    first = invert_pose(T)
    for pose, frame in zip(scene.poses, frames, strict=True):
        true = (first @ frame.T_room_camera)[:3, 3]
        np.testing.assert_allclose(pose.T_map_camera[:3, 3], true, atol=0.1)


@pytest.mark.long
@pytest.mark.slow
def test_odometry_does_not_jump_when_the_scale_is_corrected(walk):
    frames = walk[1]
    metric_model = TrueRuler(frames, sigma=0.2)
    config = settings(**{"scale.source": "metric_model", "scale.metric_every": 1})
    _, results = run(walk, config, metric_model=metric_model)
    metric = [r for r in results if r.scale.metric]
    assert largest_step(results) > 0.001
    true = {f.stamp_ns: f.T_room_camera[:3, 3] for f in frames}
    places = np.array([(r.T_odom_map @ r.T_map_camera)[:3, 3] for r in metric])
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    way = np.linalg.norm(np.diff([true[r.stamp_ns] for r in metric], axis=0), axis=1)
    scale_error = 1 + scale_errors(walk, results)[1:]
    np.testing.assert_allclose(steps, way * scale_error, atol=1e-3)


@pytest.mark.slow
def test_without_odometry_nothing_is_called_metres(walk):
    pipeline, results = run(walk, settings(**{"scale.source": "odometry"}))
    assert not any(r.scale.metric for r in results)
    assert not pipeline.scale.known


@pytest.mark.long
@pytest.mark.slow
def test_after_a_time_jump_known_units_join_the_scene(walk):
    camera, frames = walk
    priors = list(odometry_of(camera, frames))
    pipeline = Pipeline(settings(**{"scale.source": "odometry"}), TruthSession(frames))

    def push(indices):
        out = []
        for i in indices:
            f = frames[i]
            frame = Frame(
                f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=priors[i]
            )
            out += list(pipeline.push(frame))
        return out

    push(range(40))
    poses, before = len(pipeline.map.table.path), pipeline.map.table.metres
    again = push(range(40))
    assert not again[0].scale.metric
    assert again[-1].scale.metric
    assert np.abs(scale_errors(walk, again)).max() < 0.02
    assert pipeline.map.table.metres == pytest.approx(before, rel=0.02)
    unknown = sum(not r.scale.metric for r in again)
    assert len(pipeline.map.table.path) == poses + len(again) - unknown


@pytest.mark.long
@pytest.mark.slow
def test_windows_join_with_their_own_estimate_of_the_unit(walk, monkeypatch):
    told = []
    align = WindowAligner.align

    def listen(self, overlap_views, prediction, indices, scale=None):
        fit = align(self, overlap_views, prediction, indices, scale)
        told.append((scale, fit.T_local_window.scale))
        return fit

    monkeypatch.setattr(WindowAligner, "align", listen)
    config = settings(**{"scale.source": "metric_model", "scale.metric_every": 1})
    run(walk, config, metric_model=TrueRuler(walk[1], sigma=0.01))
    assert told[0][0] is None  # the scene's unit is still unknown
    known = [(scale, found) for scale, found in told if scale is not None]
    assert len(known) > 0.8 * len(told)
    assert all(abs(np.log(scale[0] / found)) < 4 * scale[1] for scale, found in known)
    assert all(0.01 < scale[1] < 0.05 for scale, _ in known)


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_word_on_a_windows_unit_does_not_spoil_its_fit(walk):
    config = settings(**{"scale.source": "metric_model", "scale.metric_every": 1})
    pipeline, results = run(
        walk, config, metric_model=TrueRuler(walk[1], sigma=0.002, wrong=(20, 30))
    )
    assert pipeline.counters["windows_refused"] == 0
    assert np.abs(scale_errors(walk, results)).max() < 0.02


class Measuring(TruthSession):
    """Knows its unit: three of our units are a metre."""

    def infer(self, window):
        found = super().infer(window)
        return dataclasses.replace(found, measure=ScaleMeasurement(3.0 / self.unit, 0.003))


@pytest.mark.slow
def test_covariance_of_places_is_in_the_published_unit():
    """An uncertain scale adds no uncertainty where position and rotation are correlated."""
    camera = SyntheticCamera(seed=3, size=SIZE, walk="straight", frames=10)
    frames = list(camera)
    found = []
    for source in ("none", "metric_model"):
        pipeline = Pipeline(settings(**{"scale.source": source}), Measuring(frames))
        results = []
        for f in frames:
            frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration)
            results += pipeline.push(frame)
        last = results[-1]
        assert last.scale.metric == (source != "none")
        # Metres of a metre of the room, and units of the scene for one without a scale.
        unit = 3.0 if last.scale.metric else np.nanmedian(last.depth_m / frames[-1].depth)
        found.append([c[:3, 3:] / unit for c in (last.covariance_odom, last.covariance_map)])
    for plain, metric in zip(*found, strict=True):
        assert np.linalg.norm(metric) == pytest.approx(np.linalg.norm(plain), rel=0.2)
