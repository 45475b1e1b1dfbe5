"""A prediction stays as the network made it: what is found of a window is a value of its own."""

import dataclasses

import cv2
import numpy as np
import pytest
from support.pipelines import odometry_of

from da3_ros.config import config_from_parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, Prediction, ScaleMeasurement

SIZE = (140, 112)
SITUATIONS = {
    "refined, no camera_info": {},
    "prior": {
        "pose_prior.source": "odometry", "pose_prior.output": "prior", "dense.enabled": False,
    },
    "metric model": {
        "scale.source": "metric_model", "scale.metric_every": 1, "dense.enabled": False,
    },
    "mask": {"dense.enabled": False},  # a file
}  # fmt: skip


class SealedTruth(TruthSession):
    """Its predictions cannot be written to."""

    def __init__(self, frames):
        super().__init__(frames)
        self.predictions, self.infers = [], False

    def infer(self, window):
        self.infers = True
        prediction = super().infer(window)
        self.infers = False
        for array in arrays(prediction):
            array.flags.writeable = False
        self.predictions.append(prediction)
        return prediction


class MetricModel:
    def measure(self, window, estimate):
        return dataclasses.replace(estimate, measure=ScaleMeasurement(2.0, 0.01))


def arrays(prediction):
    values = (getattr(prediction, field.name) for field in dataclasses.fields(prediction))
    return [value for value in values if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("name", SITUATIONS)
def test_nobody_changes_a_prediction_or_makes_another(name, monkeypatch, tmp_path):
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=7, rate_hz=4.0)
    frames, made = list(camera), []
    session, original = SealedTruth(frames), Prediction.__init__

    def note(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if not session.infers:
            made.append(self)

    monkeypatch.setattr(Prediction, "__init__", note)
    settings = {
        "model": "da3-tiny", "process_res": SIZE[0], "window.size": 5, "map.voxel_m": 0.05,
        **SITUATIONS[name],
    }  # fmt: skip
    if name == "mask":
        settings["mask"] = str(tmp_path / "mask.png")
        shown = np.full(SIZE[::-1], 255, np.uint8)
        shown[100:] = 0
        cv2.imwrite(settings["mask"], shown)
    metric_model = MetricModel() if name == "metric model" else None
    pipeline = Pipeline(config_from_parameters(settings), session, metric_model)
    results = []
    for f, T in zip(frames, odometry_of(camera, frames), strict=True):
        given = {} if name.startswith("refined") else {"calibration": camera.calibration}
        given |= {"T_prior_camera": T} if name == "prior" else {}
        results += pipeline.push(Frame(f.stamp_ns, f.image, "camera_optical", **given))
    results += pipeline.flush()
    assert len(results) == len(frames)
    assert len(session.predictions) > 3
    if name == "prior":
        assert pipeline.counters["windows_with_prior"] > 3
    elif name != "mask":
        assert pipeline.counters["windows_refined"] > 3
    if name == "metric model":
        assert results[-1].scale.metric
    assert made == []


class SkyMetricModel(MetricModel):
    """Sees sky in the upper quarter of all views."""

    def measure(self, window, estimate):
        sky = np.zeros_like(estimate.depth)
        sky[:, : sky.shape[1] // 4] = 1
        return dataclasses.replace(super().measure(window, estimate), sky=sky)


def run_metric(metric_model):
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=10, rate_hz=4.0)
    frames = list(camera)
    settings = {
        "model": "da3-tiny", "process_res": SIZE[0], "window.size": 5, "map.voxel_m": 0.05,
        "scale.source": "metric_model", "scale.metric_every": 1, "refinement.enabled": False,
    }  # fmt: skip
    config = config_from_parameters(settings)
    pipeline, results = Pipeline(config, TruthSession(frames), metric_model), []
    for f in frames:
        frame = Frame(f.stamp_ns, f.image, "camera", calibration=camera.calibration)
        results += pipeline.push(frame)
    return results + list(pipeline.flush())


def test_sky_that_the_metric_model_sees_is_published():
    results = run_metric(SkyMetricModel())
    depth = results[-1].depth_m
    rows = depth.shape[0] // 4
    assert np.isposinf(depth[: rows - 1]).all()
    assert np.isfinite(depth[rows + 1 :]).mean() > 0.8
