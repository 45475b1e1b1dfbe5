"""IMU, range sensors and odometry as one source of metres, in pipelines on rendered rooms."""

import functools

import numpy as np
import pytest
from support.inertial import BODY
from support.pipelines import SIZE, odometry_of, settings, to_frame

from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.range_sensors import RenderedRanges, mount
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import ImuNoise, RangeReturns

COUNT = 55
LIDAR = mount(0.0, -0.1, -0.05)


@functools.cache
def walk():
    camera = SyntheticCamera(3, SIZE, walk="carried", frames=COUNT)
    frames, ranges = list(camera), RenderedRanges(camera)
    stamps = np.array([f.stamp_ns for f in frames])
    samples = imu_samples(
        camera.T_room_camera, stamps, T_camera_imu=BODY, noise=ImuNoise(), seed=3
    )
    sweeps = [ranges.sweep(LIDAR, i / camera.rate_hz, 1e-6)[0] for i in range(COUNT)]
    points = [(s @ LIDAR[:3, :3].T + LIDAR[:3, 3]).astype(np.float32) for s in sweeps]
    returns = [RangeReturns(p[p[:, 2] > 0.05]) for p in points]
    odometry = list(odometry_of(camera, frames, noise_m=0.001))
    return camera, frames, [None, *samples.stretches(stamps)], returns, odometry


def run(source, *, imu_until=COUNT, ranges_from=0, odometry_factor=1.0, **values):
    camera, frames, stretches, returns, odometry = walk()
    config = settings(**{"scale.source": source, "dense.enabled": False, **values})
    pipeline, out = Pipeline(config, TruthSession(frames)), []
    for i, f in enumerate(frames):
        T = odometry[i].copy()
        T[:3, 3] *= odometry_factor
        frame = to_frame(
            camera, f, imu=stretches[i] if i < imu_until else None,
            returns=returns[i] if i >= ranges_from else None,
            T_prior_camera=T if "odometry" in source else None,
        )  # fmt: skip
        out += pipeline.push(frame)
    return pipeline, out


def errors(out):
    """Relative errors of metric depth, and the scale's deviations."""
    frames = walk()[1]
    metric = [(r, f) for r, f in zip(out, frames, strict=True) if r.scale.metric]
    found = [np.nanmedian(r.depth_m / f.depth) - 1 for r, f in metric]
    return np.array(found), np.array([r.scale.sigma for r, _ in metric])


def names(out):
    return {name for r in out if r.scale.metric for name in r.scale.source.split("+")}


def states(pipeline):
    return {s.name: s.state for s in pipeline.scale.filter.estimator.states}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("source", ["odometry+imu+range", "imu+range", "odometry+imu"])
def test_sensors_that_agree_give_metres_together(source, caplog):
    pipeline, out = run(source)
    found, sigmas = errors(out)
    assert len(found) > COUNT / 2
    assert np.abs(found).max() < 0.05
    assert (np.abs(found) < 3 * sigmas).all()
    assert names(out) == set(source.split("+"))
    assert set(states(pipeline).values()) == {"counts"}
    assert "differs" not in caplog.text


@pytest.mark.long
@pytest.mark.slow
def test_odometry_of_a_wrong_unit_is_named_and_left_out_by_imu_and_range(caplog):
    pipeline, out = run("odometry+imu+range", odometry_factor=1.4)
    found, _ = errors(out)
    assert abs(found[-1]) < 0.05
    assert states(pipeline)["odometry"] == "left out"
    assert "odometry differs by" in caplog.text
    assert "from imu and range and is left out" in caplog.text


@pytest.mark.long
@pytest.mark.slow
def test_of_odometry_and_imu_that_disagree_the_scale_is_as_uncertain(caplog):
    _, out = run("odometry+imu", odometry_factor=1.4)
    found, sigmas = errors(out)
    assert "nothing tells which is wrong" in caplog.text
    assert (np.abs(found[-5:]) < 2 * sigmas[-5:]).all()
    assert sigmas[-1] > 0.2


@pytest.mark.long
@pytest.mark.slow
def test_one_sensor_takes_over_where_another_one_ends():
    """An IMU that fails, and a LiDAR that is switched on then."""
    pipeline, out = run("imu+range", imu_until=35, ranges_from=35)
    found, _ = errors(out)
    assert len(found) > COUNT / 2
    assert np.abs(found).max() < 0.06
    assert states(pipeline)["range"] == "counts"
    assert {r.scale.source for r in out if r.scale.metric} >= {"imu"}
