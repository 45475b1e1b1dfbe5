"""Metres from an IMU, frame by frame: gaps, refined poses, and nothing to measure."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.inertial import BODY, UNIT, InertialWalk, rover
from support.pipelines import SIZE, settings

from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.gravity import GravityFilter
from da3_ros.inertial.mount_check import MountCheck
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.replay.object_state import load_state, save_state
from da3_ros.scale_sources import scale_source
from da3_ros.scale_sources.imu import MAX_KEYFRAMES, ImuFilter
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, ImuNoise, View

IMAGE = np.zeros((1, 1, 3), np.uint8)


def follow(filter, walk, frames=None, without=()):
    """Adds frames of a walk; ``without``: those without IMU data."""
    for i in frames or range(len(walk.at)):
        imu = walk.stretches[i - 1] if i and i not in without else None
        filter.add_motion(View(i, int(walk.at[i]), IMAGE, imu=imu), walk.poses[i], math.nan)
    return filter


def error(filter):
    return abs(filter.estimate().log + np.log(UNIT))


def test_a_path_gets_metres_within_seconds_and_more_certain_later():
    walk, filter = InertialWalk("carried", 3, 15, position_m=0.003, rotation_deg=0.1), ImuFilter()
    assert follow(filter, walk, range(10)).estimate() is None
    early = follow(filter, walk, range(10, 51)).estimate()
    assert error(filter) < 0.05
    late = follow(filter, walk, range(51, 151)).estimate()
    assert late.sigma < early.sigma
    assert error(filter) < min(3 * late.sigma, 0.015)


@pytest.mark.parametrize(("times", "seed"), [(10, 5), (30, 3)])
def test_the_stated_noise_of_a_noisy_imu_gives_the_scale(times, seed):
    """Else its noise passes for that of the poses, which shortens the path."""
    chip, noisy = ImuNoise(), {}
    loud = replace(chip, acceleration=times * chip.acceleration, gyro=times * chip.gyro)
    for stated in (chip, loud):
        walk = InertialWalk("carried", seed, 8, noise=loud, position_m=0.002)
        walk.stretches = [replace(stretch, noise=stated) for stretch in walk.stretches]
        noisy[stated] = follow(ImuFilter(), walk)
    assert error(noisy[loud]) < min(3 * noisy[loud].estimate().sigma, error(noisy[chip]) / 4)
    assert noisy[loud].newest.position_sigma / UNIT == pytest.approx(0.002, rel=0.3)


def test_gaps_and_interruptions_are_left_out():
    walk = InertialWalk("carried", 3, 10)
    filter = follow(ImuFilter(), walk, without={*range(20, 25), 60})
    assert error(filter) < 3 * filter.estimate().sigma
    filter = follow(ImuFilter(), walk, range(40))
    filter.interrupt_motion()
    follow(filter, walk, range(43, 101))
    assert error(filter) < 3 * filter.estimate().sigma
    assert filter.estimate().sigma < 0.015


def test_refined_poses_replace_those_that_were_given():
    walk = InertialWalk("drone", 3, 6)
    good = walk.poses.copy()
    walk.poses[:, :3, 3] += 0.01 * np.random.default_rng(0).normal(size=(61, 3))
    filter = follow(ImuFilter(), walk, range(55))
    before = filter.estimate().sigma
    filter.refine({i: good[i] for i in range(55)})
    follow(filter, walk, range(55, 61))
    assert filter.estimate().sigma < before / 2
    assert error(filter) < 3 * filter.estimate().sigma


def test_a_path_moves_with_its_map():
    """Its first half in submaps that a correction has moved and scaled, as if half of the path
    had another unit."""
    walk, S = InertialWalk("drone", 3, 6), Similarity(1.3, np.eye(3), np.array([0.1, 0, 0]))
    good = walk.poses.copy()
    walk.poses[:30] = [S.inverse().pose(T) for T in good[:30]]
    filter = follow(ImuFilter(), walk, range(55))
    before = filter.newest.sigma
    filter.move(dict.fromkeys(range(30), S))
    for one in filter._keyframes:
        np.testing.assert_allclose(one.T_local_camera, good[one.id], atol=1e-12)
    follow(filter, walk, range(55, 61))
    assert filter.newest.sigma < before / 2
    assert error(filter) < 3 * filter.estimate().sigma


def test_memory_is_bounded_and_a_scale_is_held_while_the_camera_stands():
    """And becomes less certain, since the path's unit may drift."""
    walk, filter = InertialWalk("carried", 3, 6), ImuFilter()
    known = follow(filter, walk).estimate()
    rest = np.tile(walk.true[-1], (300, 1, 1))
    stands = InertialWalk("still", 3, 30, poses=rest)
    stands.at += walk.at[-1]
    for s in stands.stretches:
        s.stamps_ns[:] = s.stamps_ns + walk.at[-1]
    stands.poses[:] = walk.poses[-1]
    follow(filter, stands, range(1, 300))
    held = filter.estimate()
    assert held.log == pytest.approx(known.log, abs=0.001)
    assert known.sigma < held.sigma < known.sigma + 0.02
    assert "hardly accelerates" in filter.why_unknown
    assert len(filter._keyframes) <= MAX_KEYFRAMES


def test_without_data_one_line_says_what_is_missing(caplog):
    walk, source = InertialWalk("carried", 3, 3), scale_source("imu")
    assert source.needs_imu
    assert not scale_source("odometry").needs_imu
    filter = source.estimator()
    for i in range(30):
        filter.add_motion(View(i, int(walk.at[i]), IMAGE), walk.poses[i], math.nan)
        source.report_missing()
    assert [r.message for r in caplog.records] == [
        "scale.source imu: no IMU data: give topic `imu` (sensor_msgs/Imu) and the transform from "
        "the optical frame to its frame_id"
    ]
    assert "no IMU data" in source.why_unknown("imu")


@pytest.mark.parametrize("state", ["unknown", "no"])
def test_an_imu_that_rotations_do_not_confirm_gives_no_metres(state):
    walk, source = InertialWalk("carried", 3, 6), scale_source("imu")
    filter = follow(source.estimator(), walk)
    source.note_imu(state)
    assert filter.estimate() is None
    assert ("contradict" if state == "no" else "must turn") in source.why_unknown("imu")
    source.note_imu("agrees")
    # As uncertain as the accelerometer's gain, at least.
    assert filter.estimate().sigma > 0.01


def test_an_imu_that_is_turned_on_a_rover_is_named_once_and_gives_no_metres(caplog):
    stated = BODY.copy()
    stated[:3, :3] = BODY[:3, :3] @ Rotation.from_euler("z", 45, degrees=True).as_matrix()
    walk = InertialWalk("still", 1, 15, poses=rover(1, 15), stated=stated, position_m=0.002)
    source = scale_source("imu")
    filter = source.estimator()
    source.note_imu("agrees")  # all rotations of a robot on a floor do
    for i in range(len(walk.at)):
        follow(filter, walk, [i])
        source.report_missing()
        found = filter.estimate()
        assert found is None or found.sigma > 0.15 or error(filter) < 3 * found.sigma
    assert [r.message.split(" by ")[0] for r in caplog.records] == [
        "scale.source imu: no metres: the IMU is turned about the vertical"
    ]


@pytest.mark.slow
def test_the_pipeline_publishes_metres_by_the_imu():
    camera = SyntheticCamera(3, SIZE, walk="carried", frames=45)
    frames = list(camera)
    at = np.array([f.stamp_ns for f in frames])
    samples = imu_samples(camera.T_room_camera, at, seed=3)
    pipeline, out = (
        Pipeline(settings(**{"scale.source": "imu"}), TruthSession(frames)), [],
    )  # fmt: skip
    for f, imu in zip(frames, [None, *samples.stretches(at)], strict=True):
        out += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration, imu=imu))
    metric = [(r, f) for r, f in zip(out, frames, strict=True) if r.scale.metric]
    assert len(metric) > 15
    for r, f in metric:
        assert np.nanmedian(r.depth_m / f.depth) == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("make", [ImuFilter, GravityFilter, MountCheck])
def test_a_replay_that_is_continued_has_all_state(make, tmp_path):
    walk = InertialWalk("carried", 3, 5, position_m=0.003)

    def add(one, frames):
        found = []
        for i in frames:
            stretch = walk.stretches[i - 1] if i else None
            if make is ImuFilter:
                follow(one, walk, [i])
                found.append(one.estimate())
            elif make is GravityFilter:
                up = one.follow(int(walk.at[i]), stretch, walk.poses[i], 2.5)
                found.append(None if up is None else up.up_local.tolist())
            elif make is MountCheck:
                one.add(int(walk.at[i]), stretch, walk.poses[i, :3, :3])
                found.append((one.fault, one.time_offset_s))
            else:
                found.append(one.add(stretch))
        return found

    whole, first = make(), make()
    before = add(whole, range(30)), add(first, range(30))
    assert before[0] == before[1]
    save_state(tmp_path / "state", {"one": first}, {})
    again = load_state(tmp_path / "state", "one", make(), {})
    assert add(again, range(30, 51)) == add(whole, range(30, 51))
