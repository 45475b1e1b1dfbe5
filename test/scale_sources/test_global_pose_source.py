"""Metres from global poses, frame by frame: noise, arms, wrong ones, and nothing to measure."""

import logging
import math

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.metric_scale import MAX_SIGMA
from da3_ros.scale_sources import scale_source
from da3_ros.scale_sources.global_poses import MOST, PATIENCE, Fix, fit_stretch
from da3_ros.types import UNKNOWN_M2, UNKNOWN_RAD2, GlobalPose, View

IMAGE = np.zeros((1, 1, 3), np.uint8)
METRES = 2.5  # per unit of ``local``
STEP_NS = 200_000_000
DEPTH = 1.2  # of what is seen, units
T_GLOBAL_LOCAL = np.eye(4)  # metres
T_GLOBAL_LOCAL[:3, :3] = Rotation.from_euler("xyz", (0.3, -0.5, 2.0)).as_matrix()
T_GLOBAL_LOCAL[:3, 3] = 40.0, -7.0, 3.0
MOUNT = np.eye(4)  # T_base_camera
MOUNT[:3, 3] = 0.6, -0.2, 0.5


def circle(count, radius=5.0, step=0.2):
    """True poses [count, 4, 4] of a camera in metres, that looks along its way."""
    turns = step / radius * np.arange(count)
    out = np.tile(np.eye(4), (count, 1, 1))
    out[:, :3, :3] = Rotation.from_euler("y", -turns[:, None]).as_matrix()
    out[:, 0, 3], out[:, 2, 3] = radius * np.cos(turns), radius * np.sin(turns)
    return out


def straight(count, step=0.2):
    out = np.tile(np.eye(4), (count, 1, 1))
    out[:, 2, 3] = step * np.arange(count)
    return out


class Robot:
    """A camera on its way, and the positions that something outside gives of its base."""

    def __init__(self, truth, sigmas=(0.02, 0.02, 0.02), seed=0, stated=None):
        self.truth, self.sigmas = truth, np.array(sigmas)
        self.stated = self.sigmas if stated is None else np.array(stated)
        self.rng = np.random.default_rng(seed)

    def given(self, i, off=(0.0, 0.0, 0.0), share=1.0):
        """The base between frames ``i - 1`` and ``i``."""
        T = T_GLOBAL_LOCAL @ self.truth[i] @ invert_pose(MOUNT)
        if share < 1:
            before = T_GLOBAL_LOCAL @ self.truth[i - 1] @ invert_pose(MOUNT)
            T[:3, 3] = share * T[:3, 3] + (1 - share) * before[:3, 3]
        T[:3, 3] += off + self.sigmas * self.rng.standard_normal(3)
        stamp_ns = round((i - 1 + share) * STEP_NS)
        covariance = np.diag([*self.stated**2, *[UNKNOWN_RAD2] * 3])
        return GlobalPose(stamp_ns, T, covariance, MOUNT)

    def local(self, i):
        """The pose of a frame by odometry."""
        T = self.truth[i].copy()
        T[:3, 3] /= METRES
        return T

    def drive(self, filter, every=5, wrong=(), share=1.0, frames=None):
        for i in frames or range(len(self.truth)):
            anchors = ()
            if i and i % every == 0:
                anchors = (self.given(i, (0.0, 2.0, 0.0) if i in wrong else (0, 0, 0), share),)
            view = View(i, i * STEP_NS, IMAGE, anchors=anchors)
            filter.add_motion(view, self.local(i), DEPTH)
        return filter


def new():
    return scale_source("global_pose").estimator()


def error(filter):
    return filter.estimate().log - math.log(METRES)


def fixes(truth, sigmas=(0.0, 0.0, 0.0), seed=0, stated=None):
    robot = Robot(truth, sigmas, seed, stated)
    out = []
    for i in range(1, len(truth)):
        given, T = robot.given(i), robot.local(i)
        arm = T[:3, :3] @ invert_pose(MOUNT)[:3, 3]
        out.append(Fix(given.T_ros_base[:3, 3], np.diag(robot.stated**2), T[:3, 3], arm))
    return out


@pytest.mark.parametrize("way", [circle, straight])
@pytest.mark.parametrize("count", [4, 30])
def test_a_stretch_without_noise_gives_the_scale_also_on_a_line_and_beside_the_base(way, count):
    found = fit_stretch(fixes(way(count), stated=(0.02, 0.02, 0.05)))
    assert found.scale.log == pytest.approx(math.log(METRES), abs=1e-6)
    assert found.chance == pytest.approx(1)


@pytest.mark.long
def test_what_a_stretch_states_is_its_error():
    sigmas = (0.5, 0.5, 1.0)
    found = [fit_stretch(fixes(circle(60), sigmas, seed)) for seed in range(200)]
    errors = np.array([(f.scale.log - math.log(METRES)) / f.scale.sigma for f in found])
    assert 0.7 < np.mean(errors**2) < 1.2
    assert abs(errors.mean()) < 0.25
    assert np.median([f.scale.sigma for f in found]) < 0.05
    assert min(f.chance for f in found) > 1e-4


def test_tags_give_metres_within_seconds_and_the_more_the_surer():
    robot, filter = Robot(circle(200)), new()
    assert robot.drive(filter, frames=range(10)).estimate() is None
    early = robot.drive(filter, frames=range(10, 50)).estimate()
    assert abs(error(filter)) < 0.05
    late = robot.drive(filter, frames=range(50, 200)).estimate()
    assert late.sigma < early.sigma
    assert abs(error(filter)) < 0.015


@pytest.mark.long
def test_noisy_positions_give_it_by_many_of_them():
    walks = [Robot(circle(400), (0.5, 0.5, 1.0), seed).drive(new()) for seed in range(12)]
    found = [filter.estimate() for filter in walks]
    assert all(f is not None and f.sigma < 0.08 for f in found)
    off = np.array([(f.log - math.log(METRES)) / f.sigma for f in found])
    assert np.mean(off**2) < 2
    assert np.sqrt(np.mean((off * [f.sigma for f in found]) ** 2)) < 0.05


def test_a_wrong_tag_is_outvoted():
    sound, one = (Robot(circle(200)).drive(new(), wrong=wrong) for wrong in ((), (100,)))
    assert abs(error(sound)) < 0.01
    assert abs(error(one)) < max(0.03, 3 * one.estimate().sigma)


@pytest.mark.parametrize("seed", [6, 7])
def test_where_a_fifth_is_wrong_stretches_with_one_do_not_count(seed):
    """Counted, they make metres 13 and 21 % wrong at times."""
    rng, robot, filter, off = np.random.default_rng(seed), Robot(circle(400), seed=seed), new(), []
    wrong = {i for i in range(5, 400, 5) if rng.random() < 0.2}
    for i in range(0, 400, 5):
        found = robot.drive(filter, frames=range(i, i + 5), wrong=wrong).estimate()
        if found is not None and found.sigma < MAX_SIGMA:
            off.append(abs(error(filter)))
    assert len(off) > 30
    assert max(off) < 0.03


def test_wrong_ones_from_the_beginning_give_no_metres_and_are_named():
    """Each second one is 2 m beside, so that all ways between two of them are too long."""
    source = scale_source("global_pose")
    filter = Robot(circle(200)).drive(source.estimator(), wrong=range(5, 200, 10))
    assert filter.estimate() is None
    assert "do not have the shape" in source.why_unknown("global_pose")


@pytest.mark.parametrize("stated", long_after(1, [0.02, 0.2]))
def test_covariances_that_are_too_small_are_found_out(stated):
    """As GNSS states them. Of stretches that do not fit, some do by chance."""
    off, known = [], 0
    for seed in range(6):
        robot, filter = Robot(circle(400), (0.5,) * 3, seed, stated=(stated,) * 3), new()
        for i in range(0, 400, 5):
            found = robot.drive(filter, frames=range(i, i + 5)).estimate()
            if found is not None and found.sigma < MAX_SIGMA:
                off.append((found.log - math.log(METRES)) / found.sigma)
        known += found is not None
    assert known > 3
    assert np.mean(np.square(off)) < 2
    assert np.abs(off).max() < 4


def test_two_frames_with_one_stamp_are_no_way():
    robot, filter = Robot(circle(100)), new()
    for i in range(100):
        view = View(
            i, (i // 2) * 2 * STEP_NS, IMAGE, anchors=(robot.given(i // 2 * 2),) if i else ()
        )
        filter.add_motion(view, robot.local(i // 2 * 2), DEPTH)
    assert abs(error(filter)) < 0.02


def test_one_between_two_frames_is_where_the_camera_was_then():
    """Taken at the later frame instead, each would be 0.16 m off along the way, which a straight
    way would hide: they come at other shares of a step."""
    robot, filter = Robot(circle(100), (0.002, 0.002, 0.002)), new()
    for i in range(100):
        anchors = (robot.given(i, share=(0.2, 1.0)[i // 5 % 2]),) if i and i % 5 == 0 else ()
        filter.add_motion(View(i, i * STEP_NS, IMAGE, anchors=anchors), robot.local(i), DEPTH)
    assert abs(error(filter)) < 0.002
    assert filter.estimate().sigma < 0.02


def test_unknown_heights_do_not_count():
    robot = Robot(circle(100), (0.02, 0.02, 50.0), stated=(0.02, 0.02, math.sqrt(UNKNOWN_M2)))
    robot.truth = np.linalg.inv(T_GLOBAL_LOCAL) @ level(robot.truth)
    filter = robot.drive(new())
    assert abs(error(filter)) < 0.02


def level(truth):
    """The walk in the ground plane of the global poses."""
    T = np.eye(4)
    T[:3, :3] = [[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]
    return T @ truth


@pytest.mark.parametrize("how", long_after(1, ["turns", "stands"]))
def test_without_a_way_there_is_none_and_nothing_grows(how):
    """The base of one that turns on the spot goes round the camera."""
    truth = np.tile(np.eye(4), (3000, 1, 1))
    if how == "turns":
        truth[:, :3, :3] = Rotation.from_euler("y", 0.1 * np.arange(3000)[:, None]).as_matrix()
    filter = Robot(truth, (0.5, 0.5, 0.5)).drive(new(), every=1)
    assert filter.estimate() is None
    assert len(filter._stretch) <= MOST


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_that_never_becomes_certain_is_bounded(seed):
    filter = Robot(straight(1000, step=0.1), (40.0, 40.0, 40.0), seed).drive(new(), every=1)
    assert filter.estimate() is None
    assert len(filter._stretch) <= MOST


def test_only_a_way_between_them_counts():
    """Many positions at one place have errors alike, and those of a short way are as small as the
    noise of the network."""
    filter = Robot(np.tile(np.eye(4), (300, 1, 1)), (0.5,) * 3).drive(new(), every=1)
    assert len(filter._stretch) == 1
    exact = Robot(straight(10, step=0.02), (1e-4,) * 3).drive(new(), every=1)
    assert not exact._measurements
    assert len(Robot(straight(60, step=0.02), (1e-4,) * 3).drive(new(), every=1)._measurements) > 1


def test_the_drift_of_a_path_is_no_misfit_of_exact_positions():
    robot = Robot(circle(200), (0.001,) * 3)
    bent = robot.truth.copy()
    way = 0.2 * np.arange(200)
    bent[:, 1, 3] += 0.01 * np.sin(2 * np.pi * way / 4)
    robot.local = lambda i: Robot(bent).local(i)
    filter = robot.drive(new())
    assert abs(error(filter)) < 0.02
    assert not filter.misfits


def test_a_position_within_a_long_gap_does_not_count():
    """The camera went round a bend there."""
    robot, filter = Robot(circle(80), (0.001,) * 3), new()
    robot.drive(filter, every=1, frames=range(20))
    before = len(filter._stretch)
    late = robot.given(40)
    filter.add_motion(View(60, 60 * STEP_NS, IMAGE, anchors=(late,)), robot.local(60), DEPTH)
    assert len(filter._stretch) == before


def test_the_way_is_that_of_one_camera_of_a_rig():
    """Positions come between the frames of two cameras, which are 2 m apart."""
    truth, beside, filter = circle(400), np.eye(4), new()
    beside[0, 3] = 2.0
    robot, other = Robot(truth, (0.002,) * 3), Robot(truth @ beside, (0.002,) * 3)
    for i in range(400):
        camera, one = (("a", robot), ("b", other))[i % 2]
        anchors = (robot.given(i, share=0.5),) if i % 4 == 0 and i else ()
        view = View(i, i * STEP_NS, IMAGE, camera=camera, anchors=anchors)
        filter.add_motion(view, one.local(i), DEPTH)
    assert abs(error(filter)) < 0.01


def test_a_refused_window_begins_a_new_stretch():
    """The odometry after it is somewhere else."""
    robot, filter = Robot(circle(120)), new()
    robot.drive(filter, frames=range(60))
    before = robot.truth.copy()
    robot.truth[60:, :3, 3] += 3.0
    filter.interrupt_motion()
    for i in range(60, 120):
        T = robot.local(i)
        robot_true = Robot(before, seed=i)
        anchors = (robot_true.given(i),) if i % 5 == 0 else ()
        filter.add_motion(View(i, i * STEP_NS, IMAGE, anchors=anchors), T, DEPTH)
    assert abs(error(filter)) < 0.02


def test_corrections_of_the_map_do_not_change_what_was_measured():
    """They bring the map to the global poses, whatever its scale is."""
    robot, filter = Robot(circle(100)), new()
    robot.drive(filter, frames=range(53))
    kept = list(filter._stretch)
    filter.move({i: Similarity(1.3, np.eye(3), np.ones(3)) for i in range(53)})
    filter.refine({i: np.eye(4) for i in range(53)})
    assert [f.camera.tolist() for f in filter._stretch] == [f.camera.tolist() for f in kept]
    assert abs(error(robot.drive(filter, frames=range(53, 100)))) < 0.02


def test_missing_ones_are_named_once(caplog):
    source = scale_source("global_pose")
    Robot(circle(PATIENCE + 5)).drive(source.estimator(), every=10**6)
    with caplog.at_level(logging.WARNING):
        source.report_missing()
        source.report_missing()
    assert caplog.text.count("~/global_pose") == 1
    assert "~/global_pose" in source.why_unknown("global_pose")


def test_seldom_ones_are_not_missing(caplog):
    source = scale_source("global_pose")
    Robot(circle(3 * PATIENCE)).drive(source.estimator(), every=2 * PATIENCE - 50)
    source.report_missing()
    assert not caplog.text
    assert "drive farther" in source.why_unknown("global_pose")


def test_while_they_come_it_says_what_to_do():
    source = scale_source("global_pose")
    Robot(circle(8)).drive(source.estimator(), every=1)
    assert "drive farther" in source.why_unknown("global_pose")
