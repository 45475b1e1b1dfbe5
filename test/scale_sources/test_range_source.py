"""Metres by returns of range sensors, in rendered rooms with exact and with wrong depth."""

import dataclasses
import functools
import math

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.pipelines import SIZE, settings, to_frame

from da3_ros.geometry.return_blocks import judged
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.scale_sources.range import RangeDepth, fit_ranges
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.range_sensors import RenderedRanges, mount
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import RangeCone, RangeReturns, View, Window, WindowEstimate

MOUNT = mount(0.0, -0.1, -0.05)
HALF_ANGLE = math.radians(2.0)
NETWORK_NOISE = 0.06  # smooth error of a network's depth


@functools.cache
def room(seed=3, walk="loop", frames=60):
    camera = SyntheticCamera(seed, SIZE, walk=walk, frames=frames, rate_hz=5.0)
    return camera, list(camera), RenderedRanges(camera)


@functools.cache
def lidar_points(seed, index):
    camera, _, ranges = room(seed)
    points, _ = ranges.sweep(MOUNT, index / camera.rate_hz, 1e-6)
    return points @ MOUNT[:3, :3].T + MOUNT[:3, 3]


def lidar(index, R=None, rain=0.0, seed=3):
    """Returns of a LiDAR; R: the camera's axes as wrongly declared; rain: share of drops."""
    points = lidar_points(seed, index)
    rng = np.random.default_rng(index)
    drops = rng.random(len(points)) < rain
    near = rng.uniform(0.3, 1.0, drops.sum())
    points = points.copy()
    points[drops] *= (near / np.linalg.norm(points[drops], axis=1))[:, None]
    points = points if R is None else points @ R.T
    return RangeReturns(points[points[:, 2] > 0.05].astype(np.float32))


def beam(index):
    camera, _, ranges = room()
    distance = ranges.distance(MOUNT, index / camera.rate_hz, HALF_ANGLE)
    axis = MOUNT[:3, :3] @ (1.0, 0.0, 0.0)
    cone = RangeCone(MOUNT[:3, 3], axis, HALF_ANGLE, distance)
    return RangeReturns(np.zeros((0, 3), np.float32), (cone,))


def window(index, returns, unit=0.4, noise=0.0, depth=None, seed=3):
    """A window of one view, and what a network says of it: unit: per metre."""
    f = room(seed)[1][index]
    depth = f.depth if depth is None else depth
    rng = np.random.default_rng(index)
    wrong = cv2.GaussianBlur(rng.standard_normal(depth.shape), (0, 0), 15)
    depth = (unit * depth * np.exp(noise * wrong / wrong.std())).astype(np.float32)
    view = View(index, f.stamp_ns, f.image, f.K, returns=returns)
    estimate = WindowEstimate(
        depth[None], np.ones_like(depth)[None], np.eye(4)[None], f.K[None]
    )  # fmt: skip
    return Window(index, (view,), 1), estimate


def estimated(sensor, noise=NETWORK_NOISE, count=30, unit=0.4, **options):
    """The estimate of a chain of windows by a source, with the source."""
    source = RangeDepth()
    estimator = source.estimator()
    for i in range(count):
        measure = source.measure(*window(i, sensor(i), unit, noise, **options), None)
        if measure is not None:
            estimator.add(measure, 1 / unit)  # odometry is in metres
        source.report_missing()
    return estimator.estimate(), source


def test_exact_depth_gives_the_exact_unit():
    found = fit_ranges(*window(0, lidar(0)))
    assert found.value == pytest.approx(1 / 0.4, rel=0.002)
    assert found.sigma < 0.02
    assert len(found.blocks) > 15


def test_a_unit_that_changes_makes_metres_as_uncertain_as_they_were_wrong():
    source = RangeDepth()
    estimator = source.estimator()
    for i in range(12):
        measure = source.measure(*window(i, lidar(i)), None)
        estimator.add(measure, 1 / 0.4 * (0.8 if i >= 9 else 1.0))
    assert estimator.estimate().deviation > 0.8 * np.log(1 / 0.8)


def test_a_chain_of_windows_gives_metres_with_an_honest_deviation():
    found, _ = estimated(lidar, count=12)
    assert abs(found.log) < 0.03
    assert abs(found.log) < 3 * found.sigma
    assert found.sigma < 0.05


def test_one_beam_gives_metres_over_the_way():
    """No window is enough; what the beam hits on the way is."""
    assert estimated(beam, count=8)[0] is None
    found, _ = estimated(beam, count=60)
    assert abs(found.log) < 0.02
    assert abs(found.log) < 2 * found.sigma


def test_rain_changes_nothing():
    dry, wet = estimated(lidar, count=12)[0], estimated(lambda i: lidar(i, rain=0.3), count=12)[0]
    assert abs(wet.log - dry.log) < 0.02


WRONG = [
    Rotation.from_euler(axis, angle, degrees=True).as_matrix()
    for axis in "yz" for angle in (90, -90, 180)
]  # fmt: skip
WRONG.append(MOUNT[:3, :3])  # a body frame declared as an optical one


@pytest.mark.parametrize("R", WRONG)
def test_a_wrong_mount_gives_no_metres_and_is_named(R, caplog):
    found, _ = estimated(lambda i: lidar(i, R), count=12)
    assert found is None
    assert "most returns do not fit the depth" in caplog.text
    assert caplog.text.count("scale.source range") == 1


def shifted(index, t, R=None):
    """Returns of a LiDAR whose declared place is wrong by t, metres."""
    points = lidar(index, R).points + np.asarray(t, np.float32)
    return RangeReturns(points[points[:, 2] > 0.05])


PITCH = Rotation.from_euler("x", 10, degrees=True).as_matrix()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("t", "R"), [((0, 0, 0.3), None), ((0, 0, -0.3), None), ((0, 0, 0), PITCH), ((0, 0, 0), None)]
)
def test_the_deviation_covers_what_is_unknown_of_the_mount(t, R):
    found, _ = estimated(lambda i: shifted(i, t, R), count=30)
    assert abs(found.log) < 2 * found.sigma
    assert R is not None or any(t) or found.sigma < 0.04


@pytest.mark.slow
@pytest.mark.parametrize("t", [(0, 0, 1), (1, 0, 0)])
def test_a_sensor_a_metre_from_where_it_is_declared_gives_no_sure_metres(t):
    found, _ = estimated(lambda i: shifted(i, t), count=30)
    assert found is None or abs(found.log) < 3 * found.sigma


def test_a_beam_from_another_place_is_less_certain():
    """Its distances are all too long by 0.3 m."""

    def ahead(index):
        (cone,) = beam(index).cones
        cone = dataclasses.replace(cone, origin=cone.origin + 0.3 * cone.axis)
        return RangeReturns(np.zeros((0, 3), np.float32), (cone,))

    found, _ = estimated(ahead, count=60)
    assert found.log > 0.05
    assert abs(found.log) < 2 * found.sigma


def test_a_wrong_mount_in_a_window_is_no_measurement_of_its_unit():
    found = fit_ranges(*window(4, lidar(4, WRONG[2]), noise=0.03))
    assert not math.isfinite(found.sigma)


def test_returns_at_one_distance_are_held(caplog):
    """Before a bare wall any mount fits."""
    shape = (SIZE[1], SIZE[0])
    v, u = np.mgrid[0 : shape[0] : 6, 0 : shape[1] : 6] + 0.5
    K = room()[1][0].K
    rays = np.stack([u, v, np.ones_like(u)], -1).reshape(-1, 3) @ np.linalg.inv(K).T
    wall = RangeReturns((2.0 * rays).astype(np.float32))
    depth = np.full(shape, 2.0, np.float32)
    found, _ = estimated(lambda i: wall, noise=0.0, count=12, depth=depth)
    assert found is None
    assert "all returns are at about the same distance" in caplog.text


def test_no_return_in_the_image_is_said(caplog):
    nothing = RangeReturns(np.array([[9, 0, 0.1]], np.float32))
    found, _ = estimated(lambda i: nothing, count=4)
    assert found is None
    assert "no return is in the image" in caplog.text


def test_a_cone_measures_its_nearest_surface():
    """A post before a wall, at the side of the cone's axis."""
    depth = np.full((SIZE[1], SIZE[0]), 4.0, np.float32)
    depth[:, 76:82] = 2.0
    K = room()[1][0].K
    width = math.radians(15)
    cone = RangeCone(np.zeros(3), np.array([0, 0, 1.0]), width, 2.0)
    inside = RangeReturns(np.zeros((0, 3), np.float32), (cone,))
    found = fit_ranges(*window(0, inside, depth=depth))
    assert found.value == pytest.approx(1 / 0.4, rel=0.02)
    outside = dataclasses.replace(cone, axis=np.array([math.sin(0.6), 0, math.cos(0.6)]))
    cones = RangeReturns(np.zeros((0, 3), np.float32), (outside,))
    assert fit_ranges(*window(0, cones, depth=depth)) is None  # it leaves the image
    assert K[0, 0] > 0


def run(sensor, noise=None):
    camera, frames, _ = room()
    values = {"scale.source": "range", "dense.enabled": False}
    pipeline = Pipeline(settings(**values), TruthSession(frames, noise=noise))
    found = []
    for i, f in enumerate(frames[:30]):
        found += pipeline.push(to_frame(camera, f, returns=sensor(i)))
    return found, frames


@pytest.mark.slow
def test_a_pipeline_is_in_metres_after_a_few_windows():
    noise = Noise(independent=0.02, smooth=0.03, per_frame=0.01)
    found, frames = run(lidar, noise)
    metric = [r.scale.metric for r in found]
    assert metric.index(True) < 16
    assert all(metric[metric.index(True) :])
    assert {r.scale.source for r in found if r.scale.metric} == {"range"}
    frames = frames[: len(found)]
    depth = np.nanmedian(found[-1].depth_m / frames[-1].depth)
    assert depth == pytest.approx(1, rel=0.03)
    centres = np.array([r.T_map_camera[:3, 3] for r in found])
    true = np.array([f.T_room_camera[:3, 3] for f in frames])
    ratio = np.linalg.norm(np.diff(centres, axis=0), axis=1).sum()
    ratio /= np.linalg.norm(np.diff(true, axis=0), axis=1).sum()
    assert ratio == pytest.approx(1, rel=0.04)


FAR = np.linspace(0, 3, 100)  # log distances, as outdoors


@pytest.mark.parametrize(
    ("logs", "shows"),
    [
        (0.05 * np.sin(37 * FAR), ""),
        (0.4 * np.sin(37 * FAR), "wrong"),  # less than the distances, more than a network errs
        (FAR - 3, "wrong"),
    ],
)
def test_depth_that_errs_by_more_than_a_network_does_is_no_witness(logs, shows):
    assert judged(logs, FAR) == shows
