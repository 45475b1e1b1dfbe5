"""The gyro's rotations: when they are believed, what they learn, and being carried."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.inertial.gyro_turns import GyroTurns, turn_between
from da3_ros.synthetic import Pace, make_room, make_walk
from da3_ros.synthetic.imu import imu_samples
from da3_ros.types import ImuNoise, View

IMAGE = np.zeros((1, 1, 3), np.uint8)
RIGHT_ANGLE = np.eye(4)
RIGHT_ANGLE[:3, :3] = Rotation.from_euler("z", 90, degrees=True).as_matrix()


def walk(rate_hz=10.0, seconds=6.0, kind="carried", seed=3):
    frames = int(rate_hz * seconds)
    T = make_walk(make_room(seed), kind, frames, seed, Pace(rate_hz))
    stamps = 10**9 + np.round(np.arange(frames) * 1e9 / rate_hz).astype(np.int64)
    return T, stamps


def followed(T, stamps, *, mount=None, noise_deg=0.0, dead=False, by_tracks=True, gap=None):
    """Turns that have seen a whole walk, whose poses have noise."""
    samples = imu_samples(T, stamps, noise=ImuNoise(), seed=1)
    stretches = [None, *samples.stretches(stamps, mount)]
    turns, rng = GyroTurns(), np.random.default_rng(2)
    for i, (pose, stretch) in enumerate(zip(T, stretches, strict=True)):
        if dead and stretch is not None:
            stretch = dataclasses.replace(stretch, gyro=np.zeros_like(stretch.gyro))
        view = View(i, int(stamps[i]), IMAGE, imu=None if i == gap else stretch)
        turns.add(view)
        seen = pose.copy()
        noise = Rotation.from_rotvec(math.radians(noise_deg) * rng.normal(size=3))
        seen[:3, :3] = seen[:3, :3] @ noise.as_matrix()
        turns.learn([view], {i: seen}, by_tracks=by_tracks)
    return turns


@pytest.mark.parametrize("rate_hz", [10.0, 30.0])
@pytest.mark.parametrize(("noise_deg", "by_tracks"), [(0.05, True), (0.5, False)])
def test_a_sound_gyro_agrees_with_noisy_poses_and_learns_its_bias(rate_hz, noise_deg, by_tracks):
    T, stamps = walk(rate_hz)
    turns = followed(T, stamps, noise_deg=noise_deg, by_tracks=by_tracks)
    assert turns.state("") == "agrees"
    last = len(T) - 1
    R, sigma = turns.turn(last - 5, last)
    true = T[last - 5, :3, :3].T @ T[last, :3, :3]
    error = Rotation.from_matrix(R.T @ true).magnitude()
    assert error < 3 * sigma < math.radians(2)
    samples = imu_samples(T, stamps, noise=ImuNoise(), seed=1)
    [(_, bias)] = turns.states.values()
    if by_tracks:
        true_bias = np.linalg.norm(samples.gyro_bias[-1])
        assert bias == pytest.approx(true_bias, rel=0.3)


@pytest.mark.parametrize(("mount", "state"), [(None, "agrees"), (RIGHT_ANGLE, "contradicts")])
def test_views_that_come_every_few_seconds_tell_too(mount, state):
    """As of a network that takes so long for a window."""
    T, stamps = walk(seconds=60.0)
    T, stamps = T[::30], stamps[::30]
    assert np.diff(stamps).min() == 3 * 10**9
    every, at = walk(seconds=60.0)
    samples = imu_samples(every, at, noise=ImuNoise(), seed=1)
    turns = GyroTurns()
    for i, stretch in enumerate([None, *samples.stretches(stamps, mount)]):
        view = View(i, int(stamps[i]), IMAGE, imu=stretch)
        turns.add(view)
        turns.learn([view], {i: T[i]})
    assert turns.state("") == state


@pytest.mark.parametrize("rate_hz", [10.0, 30.0])
@pytest.mark.parametrize("by_tracks", [True, False])
@pytest.mark.parametrize("fault", ["dead", "mount"])
def test_a_gyro_that_measures_something_else_is_contradicted(rate_hz, by_tracks, fault):
    T, stamps = walk(rate_hz)
    noise = 0.05 if by_tracks else 0.5
    mount = RIGHT_ANGLE if fault == "mount" else None
    turns = followed(T, stamps, noise_deg=noise, by_tracks=by_tracks, mount=mount,
                     dead=fault == "dead")  # fmt: skip
    assert turns.state("") != "agrees"
    assert turns.turn(len(T) - 5, len(T) - 1) is None


def test_a_camera_that_does_not_turn_says_nothing_of_the_gyro():
    T, stamps = walk(kind="straight")
    T[:, :3, :3] = T[0, :3, :3]
    assert followed(T, stamps).state("") == "unknown"


def test_no_rotation_is_known_across_a_gap():
    T, stamps = walk()
    turns = followed(T, stamps, gap=40)
    assert turns.turn(35, 45) is None
    assert turns.turn(41, 45) is not None
    assert turns.turn(30, 39) is not None


def test_a_mount_that_slips_is_noticed():
    T, stamps = walk(seconds=24.0)
    good, bad = (
        imu_samples(T, stamps, noise=ImuNoise(), seed=1).stretches(stamps, mount)
        for mount in (None, RIGHT_ANGLE)
    )
    turns, states = GyroTurns(), []
    for i, pose in enumerate(T):
        stretch = None if i == 0 else (good if i < len(T) // 3 else bad)[i - 1]
        view = View(i, int(stamps[i]), IMAGE, imu=stretch)
        turns.add(view)
        turns.learn([view], {i: pose})
        states.append(turns.state(""))
    assert states[len(T) // 3 - 1] == "agrees"
    assert states[-1] == "contradicts"


def test_a_rest_tells_the_bias_and_memory_is_bounded():
    T, _ = walk()
    rest = np.tile(T[0], (100, 1, 1))
    at = 10**9 + np.arange(100) * 10**8
    samples = imu_samples(rest, at, noise=ImuNoise(), seed=1)
    turns = GyroTurns()
    for i, stretch in enumerate([None, *samples.stretches(at)]):
        turns.add(View(i, int(at[i]), IMAGE, imu=stretch))
        turns.note_rest(i, T[0, :3, :3])
        turns.keep([1])
    [(state, bias)] = turns.states.values()
    assert state == "unknown"  # nothing has turned
    assert bias == pytest.approx(np.linalg.norm(samples.gyro_bias[-1]), rel=0.1)
    assert len(turns._poses) == 2


@pytest.mark.parametrize("metres", [0.0, 0.3, 1.0])
def test_a_camera_that_is_carried_away_is_felt(metres):
    T, stamps = walk(seconds=8.0)
    T = T.copy()
    way = (1 - np.cos(np.linspace(0, np.pi, 11))) / 2  # in one second
    T[60:71, 2, 3] += metres * way
    T[71:, 2, 3] += metres
    turns = followed(T, stamps)
    felt = turns.carried_m(60, 70)
    before = turns.carried_m(45, 55)
    assert before < 0.8  # of walking itself
    if metres == 1.0:
        assert felt > 0.5


def test_turns_are_as_uncertain_as_the_gyro_is_stated_to_be():
    T, stamps = walk(seconds=4.0)
    sigmas, known = [], []
    for noise in (ImuNoise(), ImuNoise(gyro=0.01), ImuNoise(gyro_walk=0.01)):
        turns = GyroTurns()
        stretches = imu_samples(T, stamps, noise=ImuNoise(), seed=1).stretches(stamps)
        for i, stretch in enumerate([None, *stretches]):
            stated = stretch and dataclasses.replace(stretch, noise=noise)
            view = View(i, int(stamps[i]), IMAGE, imu=stated)
            turns.add(view)
            turns.learn([view], {i: T[i]})
        sigmas.append(turns.turn(len(T) - 6, len(T) - 1)[1])
        known.append(turns._gyros[""].variance)
    assert known[1] > 1.2 * known[0], "a noisy gyro's bias is learned more slowly"
    assert sigmas[1] > 5 * sigmas[0]
    assert sigmas[2] > 1.5 * sigmas[0]
    # Without any noise, its scale factor and its mount err by a hundredth of an angle.
    a = dataclasses.replace(turns._gyros[""].pose, white=0.0, bias_sigma=0.0)
    b = dataclasses.replace(a, time_s=a.time_s + 1, angle=a.angle + 2.0)
    assert turn_between(a, b)[1] == pytest.approx(0.02)


@pytest.mark.parametrize("degrees", [0, 3])
@pytest.mark.parametrize("seed", [1, 3])
def test_turns_are_as_uncertain_as_the_mount_is_wrong(degrees, seed):
    """However little that is: too little to be named, or to be seen in any one rotation."""
    T, stamps = walk(seconds=8.0, seed=seed)
    mount = np.eye(4)
    mount[:3, :3] = Rotation.from_rotvec(
        np.radians(degrees) * np.array([0.6, 0.0, 0.8])
    ).as_matrix()
    turns = followed(T, stamps, mount=mount, noise_deg=0.05)
    assert turns.state("") == "agrees"
    misfit = turns.pose(len(T) - 1).misfit
    if degrees:
        assert misfit == pytest.approx(math.radians(degrees), rel=0.4)
    else:
        assert misfit == pytest.approx(0.01, abs=0.002)


def test_cameras_of_a_rig_have_frames_of_their_own():
    """No rotation is known between views of two cameras, whose poses begin in other axes."""
    T, stamps = walk()
    samples = imu_samples(T, stamps, noise=ImuNoise(), seed=1)
    stretches, turns = [None, *samples.stretches(stamps)], GyroTurns()
    for i, (pose, stretch) in enumerate(zip(T, stretches, strict=True)):
        for k, name in enumerate(("front", "left")):
            view = View(2 * i + k, int(stamps[i]), IMAGE, camera=name, imu=stretch)
            turns.add(view)
            turns.learn([view], {view.id: pose})
    last = 2 * len(T) - 2  # of front
    assert turns.turn(last - 10, last) is not None
    assert turns.turn(last - 10, last + 1) is None
    assert turns.carried_m(last - 10, last) < math.inf
    assert turns.carried_m(last - 10, last + 1) == math.inf
