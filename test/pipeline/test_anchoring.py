"""Global poses hold the map of a walk: its place, its heading and its drift."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bench_anchors import GLOBAL, MOUNT
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.ring import CALM, SIZE, STEP_NS, DescribedTruth, walked
from support.sessions import METRIC, SETTINGS, MetricModel, later, saved
from support.submaps import adjust

from da3_ros.config import config_from_parameters
from da3_ros.export.scene_file import load_scene
from da3_ros.geometry.poses import T_ROS_MAP, invert_pose
from da3_ros.geometry.similarity import IDENTITY
from da3_ros.mapping.anchors import about_z
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.trajectory import Pose, Poses, Trajectory
from da3_ros.pipeline.anchoring import Anchoring
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.truth import Noise
from da3_ros.types import (
    UNKNOWN_RAD2,
    Calibration,
    Frame,
    GlobalPose,
    ScaleMeasurement,
    View,
)

SIGMA_M, SIGMA_RAD = 0.05, 0.02
FRAMES = 60


@pytest.fixture(scope="module")
def truth():
    return walked(FRAMES, laps=0.42)


def true_pose(f):
    return GLOBAL @ f.T_room_camera


def anchor(f, rng, off=(0, 0, 0), *, turned=True, after_ns=0):
    """A global pose with an error, in metres; turned: with an orientation."""
    T = true_pose(f) @ invert_pose(MOUNT)
    T[:3, 3] += SIGMA_M * rng.standard_normal(3) + off
    T[:3, :3] = Rotation.from_rotvec(SIGMA_RAD * rng.standard_normal(3)).as_matrix() @ T[:3, :3]
    covariance = np.diag(np.repeat([SIGMA_M**2, SIGMA_RAD**2 if turned else UNKNOWN_RAD2], 3))
    if not turned:
        T[:3, :3] = np.eye(3)
    return GlobalPose(f.stamp_ns + after_ns, T, covariance, MOUNT)


def run(truth, anchors, seed=0, level=False, pipeline=None, **values):
    """Results by frame; anchors: global poses by the index of the frame that they come with."""
    session = DescribedTruth(truth, seed)
    config = config_from_parameters({**SETTINGS, **METRIC, "window.size": 4, **values})
    pipeline, out = pipeline or Pipeline(config, session, MetricModel(session)), []
    K = truth[0].K.copy()
    K[:2, 2] -= 0.5
    black, lens = np.zeros((*SIZE[::-1], 3), np.uint8), Calibration(*SIZE, K)
    for i, f in enumerate(truth):
        T_level = None
        if level:
            T_level = np.eye(4)
            R = f.T_room_camera[:3, :3]
            heading = about_z(R @ T_ROS_MAP[:3, :3].T)
            T_level[:3, :3], T_level[2, 3] = heading.T @ R, 0.5
        given = Frame(f.stamp_ns, black, calibration=lens, T_level_camera=T_level,
                      anchors=tuple(anchors.get(i, ())))  # fmt: skip
        for r in pipeline.push(given):
            T_ros_map = pipeline.scene_map.T_ros_map
            out.append((r, T_ros_map @ r.T_map_camera, r.T_odom_map @ r.T_map_camera))
    return pipeline, out


def errors(out, truth):
    return np.array([
        np.linalg.norm(T[:3, 3] - true_pose(f)[:3, 3])
        for (_, T, _), f in zip(out, truth, strict=True)
    ])  # fmt: skip


def steps(out):
    """Steps of the published odometry, metres."""
    at = np.array([T[:3, 3] for _, _, T in out])
    return np.linalg.norm(np.diff(at, axis=0), axis=1)


def tags(truth, at, rng, wrong=()):
    return {i + 1: [anchor(truth[i], rng, (4, 3, 0) if i in wrong else (0, 0, 0))] for i in at}


@pytest.mark.slow
def test_tags_place_the_map_and_hold_its_drift(truth):
    """`~/odom` does not jump."""
    rng = np.random.default_rng(1)
    _, free = run(truth, {})
    held = tags(truth, range(4, FRAMES - 1, 12), rng)
    pipeline, out = run(truth, held)
    found = errors(out, truth)[6:]
    assert found.max() < 0.7
    assert np.median(found) < 0.3
    assert steps(out).max() < 1.5 * steps(free).max()
    assert pipeline.counters["anchors"] == len(held)
    assert pipeline.counters["anchors_wrong"] == 0
    assert pipeline.counters["anchor_corrections"] > 1
    assert pipeline.loops.closed == 0
    assert pipeline.scene_map.is_level


@pytest.mark.long
@pytest.mark.slow
def test_loops_close_in_a_map_that_tags_move():
    """One waits for another that agrees, and the map moves after most windows."""
    rng = np.random.default_rng(1)
    ring = walked(140)
    given = {i + 1: [anchor(ring[i], rng)] for i in range(4, 139, 2)}
    pipeline, out = run(ring, given, level=True, **{"loop.every": 2})
    assert pipeline.counters["anchor_corrections"] > 50
    assert pipeline.loops.closed >= 2
    assert pipeline.loops.found < 5 * pipeline.loops.closed
    assert np.median(errors(out, ring)[100:]) < 0.3


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_tag_is_named_and_not_followed(truth, caplog):
    rng = np.random.default_rng(2)
    at = range(4, FRAMES - 1, 12)
    pipeline, out = run(truth, tags(truth, at, rng, wrong=(40,)))
    assert errors(out, truth)[20:].max() < 0.7
    assert pipeline.counters["anchors_wrong"] == 1
    (line,) = [r.message for r in caplog.records if "global_pose" in r.message]
    assert f"global_pose: that of {truth[40].stamp_ns / 1e9:.3f} s is " in line
    assert "it is not followed" in line


@pytest.mark.long
@pytest.mark.slow
def test_positions_alone_give_a_level_map_its_heading(truth, caplog):
    """As GNSS does: nothing moves until the way is long enough."""
    rng = np.random.default_rng(3)
    given = {i + 1: [anchor(truth[i], rng, turned=False)] for i in range(4, FRAMES - 1, 4)}
    _, out = run(truth, given, level=True)
    assert errors(out, truth)[40:].max() < 0.7
    assert "they do not say yet how the map is turned: drive farther" in caplog.text


@pytest.mark.long
@pytest.mark.slow
def test_stated_errors_are_those_of_the_map(truth):
    values = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        _, out = run(truth, tags(truth, range(4, FRAMES - 1, 12), rng), seed=seed)
        for (r, T, _), f in list(zip(out, truth, strict=True))[30::10]:
            error = T[:3, 3] - true_pose(f)[:3, 3]
            R = T[:3, :3] @ r.T_map_camera[:3, :3].T  # covariances are in the map's axes
            covariance = R @ r.covariance_map[:3, :3] @ R.T
            values.append(error @ np.linalg.solve(covariance, error) / 3)
    assert 0.05 < np.mean(values) < 1.5


def test_an_anchor_between_two_frames_counts_at_its_own_time(truth):
    T = true_pose(truth[10]) @ invert_pose(MOUNT)
    middle = (true_pose(truth[10])[:3, 3] + true_pose(truth[11])[:3, 3]) / 2
    T[:3, 3] += middle - true_pose(truth[10])[:3, 3]
    given = GlobalPose(truth[10].stamp_ns + STEP_NS // 2, T, 1e-6 * np.eye(6), MOUNT)
    pipeline, out = run(truth[:20], {12: [given]})
    a, b = out[14][1][:3, 3], true_pose(truth[14])[:3, 3]
    assert np.linalg.norm(a - b) < 0.3
    assert pipeline.counters["anchors_without_frame"] == 0


@pytest.mark.parametrize("at", [(10,), (10, 14)])
def test_a_place_is_as_certain_as_its_anchors_once_two_agree(truth, at):
    """Not with the error of the scale times the distance from the map's origin, 36 m; a single one
    may be wrong by metres."""
    _, out = run(truth[:20], tags(truth, at, np.random.default_rng(6)))
    result = out[17][0]
    assert np.linalg.norm(result.T_map_camera[:3, 3]) > 30
    sigma = np.sqrt(np.diag(result.covariance_map)[:3].max())
    assert sigma < 0.2 if len(at) > 1 else 2.0 < sigma < 4.0


def test_of_two_that_contradict_each_other_none_is_called_wrong(truth):
    """The third one decides."""
    given = tags(truth, (4, 10, 16), np.random.default_rng(7), wrong=(4,))
    undecided, _ = run(truth[:16], given)
    assert undecided.counters["anchors_wrong"] == 0
    pipeline, _ = run(truth[:22], given)
    assert pipeline.counters["anchors_wrong"] == 1


@pytest.mark.long
def test_a_right_one_that_was_outnumbered_counts_again(truth, caplog):
    """Two readings of a wrong tag agree; the ones after them decide."""
    given = tags(truth, (4, 9, 14, 20, 26, 32), np.random.default_rng(7), wrong=(9, 14))
    before, _ = run(truth[:19], given)
    stamps = [a.given.stamp_ns for a in before.snapshot().anchors]
    assert truth[4].stamp_ns not in stamps
    assert before.counters["anchors_wrong"] == 1
    pipeline, _ = run(truth[:40], given)
    stamps = [a.given.stamp_ns for a in pipeline.snapshot().anchors]
    assert stamps == [truth[i].stamp_ns for i in (4, 20, 26, 32)]
    assert pipeline.counters["anchors_wrong"] == 2
    assert caplog.text.count(f"that of {truth[4].stamp_ns / 1e9:.3f} s") == 2, "once per run"


def test_of_two_of_one_stamp_only_the_wrong_one_is_called_so(truth):
    rng = np.random.default_rng(7)
    given = tags(truth, (4, 10, 16), rng)
    right, wrong = anchor(truth[20], rng), anchor(truth[20], rng, (4, 3, 0))
    given[21] = [right, wrong]
    pipeline, _ = run(truth[:30], given)
    assert pipeline.counters["anchors"] == 5
    assert pipeline.counters["anchors_wrong"] == 1
    saved_ones = [a.given for a in pipeline.snapshot().anchors]
    assert any(one is right for one in saved_ones)
    assert not any(one is wrong for one in saved_ones)
    assert len(saved_ones) == 4


@pytest.mark.long
def test_new_sessions_leave_old_ones_their_anchors():
    """Each session has 300 anchors in 10 submaps of its own; halved each time, the first would
    soon have none."""
    path, submaps, stamp = Trajectory(), {}, 0
    anchoring = Anchoring(Counter())
    for session in range(6):
        for k in range(300):
            stamp, submap = stamp + 10**9, 10 * session + k // 30
            submaps[submap] = Submap(submap, submap, IDENTITY)
            given = GlobalPose(stamp, np.eye(4), np.eye(6), np.eye(4))
            view = View(stamp, stamp, np.zeros((4, 4, 3), np.uint8), anchors=(given,))
            anchoring.add(view)
            one = Poses.of([Pose(stamp, np.eye(4), np.eye(3), (4, 4), False)])
            one.rows["submap"] = submap
            path.extend(one)
            problem = SimpleNamespace(nodes=(), T_map_local=IDENTITY)
            anchoring.correction(submaps, path, problem, IDENTITY, level=True)
            assert len(anchoring._held) <= 256
    by_session = Counter(a.submap // 10 for a in anchoring._held)
    assert min(by_session.values()) >= 20
    first = Counter(a.submap for a in anchoring._held if a.submap < 10)
    assert len(first) == 10


def test_a_new_scale_moves_the_map_from_where_anchors_hold_it(truth):
    """Without a solution of the graph, which is 36 m from the map's origin: the map is only moved
    back; by less than 5 cm not even that."""
    pipeline, _ = run(truth[:20], tags(truth, (10,), np.random.default_rng(6)))
    held, anchoring = pipeline.scene_map, pipeline.scene_map.anchoring
    submaps, problem = held.submaps.submaps, held.loops.problem()
    newest = max(submaps)
    T = replace(held._T_ros_map, scale=anchoring._shifted_at)

    def correction(T):
        return anchoring.correction(submaps, held.table.path, problem, T, level=True)

    assert correction(replace(T, scale=1.001 * T.scale)) is None
    far = (T @ submaps[newest].T_map_submap).t - anchoring.centre
    larger = replace(T, scale=1.01 * T.scale)
    moved = correction(larger)
    assert moved.covariance is None  # what is known of the pose stays
    move = moved.T_map_local @ problem.T_map_local.inverse()
    now = (larger @ move @ submaps[newest].T_map_submap).t - anchoring.centre
    np.testing.assert_allclose(now, 1.01 * far, atol=1e-6)
    assert correction(larger) is None


class Unsure(MetricModel):
    """Measures metres with errors: one of all windows, and one of each."""

    def __init__(self, session, common, each):
        super().__init__(session)
        self.rng, self.common, self.each = np.random.default_rng(4), common, each

    def measure(self, window, prediction):
        error = self.common + self.each * self.rng.standard_normal()
        value = float(np.exp(error) / self.session.unit)
        return replace(prediction, measure=ScaleMeasurement(value, 0.05))


def run_unsure(truth, anchors, common, each, noise=CALM):
    session = DescribedTruth(truth, 0, noise=noise)
    config = config_from_parameters({**SETTINGS, **METRIC, "window.size": 4})
    pipeline = Pipeline(config, session, Unsure(session, common, each))
    return run(truth, anchors, pipeline=pipeline)


@pytest.mark.long
def test_a_new_scale_moves_no_published_pose_away_from_where_anchors_hold_it(truth):
    """The map's origin is 36 m away: in the window of another scale, poses would be off by a
    per cent of that."""
    given = tags(truth, range(4, 38, 4), np.random.default_rng(6))
    _, out = run_unsure(truth[:40], given, 0.0, 0.05)
    changes = np.abs(np.diff(np.log([r.scale.value for r, *_ in out])))[14:]
    assert 36 * changes.max() > 0.3
    assert errors(out, truth[:40])[15:].max() < 0.25


def test_a_wrong_scale_makes_no_anchor_wrong(truth):
    """It is off by 8 %, which is 16 cm from one of these tags to the next; they are exact, and
    state a centimetre; so are the windows."""
    exact = SimpleNamespace(standard_normal=np.zeros)
    given = {
        i + 1: [replace(anchor(truth[i], exact), covariance=1e-4 * np.eye(6))]
        for i in range(4, 50, 10)
    }
    pipeline, out = run_unsure(truth[:52], given, 0.08, 0.0, Noise())
    assert pipeline.counters["anchors_wrong"] == 0
    assert errors(out, truth[:52])[30:].max() < 0.4


def test_anchors_are_where_the_path_has_their_frames_now(truth):
    """An adjustment of the map moves frames in their submaps, long after they were anchored."""
    pipeline, _ = run(truth[:20], tags(truth, (4, 10), np.random.default_rng(6)))
    held, problem = pipeline.scene_map, pipeline.loops.problem()
    T_ros_submap = {
        id: held._T_ros_map @ s.T_map_submap for id, s in held.table.submaps.items()
    }  # fmt: skip

    def places():
        anchors = held.anchoring._chosen(T_ros_submap, held.table.path, problem)
        return [(a.submap, a.T_submap_camera) for a in anchors]

    before = places()
    assert len(before) == 2
    rows = held.table.path.poses().rows
    shift = np.eye(4)
    shift[:3, 3] = 0.02, 0.0, -0.01
    moved = []
    for row in rows[rows["submap"] == before[0][0]]:
        T = np.eye(4)
        T[:3] = row["T"]
        moved.append(PoseInSubmap(int(row["stamp_ns"]), "", before[0][0], shift @ T))
    adjust(held.table, moved)
    for (submap, T), (_, now) in zip(before, places(), strict=True):
        wanted = shift @ T if submap == before[0][0] else T
        np.testing.assert_allclose(now, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"scale.source": "none"}, "they wait for metres: set scale.source"),
        ({"loop.enabled": False}, "loop.enabled is false"),
    ],
)
def test_what_keeps_anchors_from_being_used_is_said_once(truth, caplog, values, why):
    rng = np.random.default_rng(5)
    pipeline, _ = run(truth[:24], tags(truth, range(4, 20, 4), rng), **values)
    lines = [r.message for r in caplog.records if "global_pose" in r.message]
    assert len(lines) == 1
    assert why in lines[0]
    assert pipeline.counters["anchor_corrections"] == 0


@pytest.mark.parametrize("early", ["front", "left"])
def test_an_anchor_of_two_cameras_of_different_stamps_counts_once(early):
    """One has a frame of that time a window before the other one."""
    stamps = {"front": [4.99, 5.99, 6.99], "left": [5.0, 6.0, 7.0]}
    anchoring = Anchoring(Counter())
    given = GlobalPose(5 * 10**9, np.eye(4), np.eye(6), np.eye(4))
    submaps = {0: Submap(0, 0, IDENTITY)}
    for k in range(3):
        for camera in sorted(stamps, key=lambda name: name != early):
            here, last = (int(stamps[camera][i] * 1e9) for i in (k, k - 1))
            if given.stamp_ns <= here and (not k or given.stamp_ns > last):
                anchoring.add(
                    View(k, here, np.zeros((4, 4, 3), np.uint8), camera=camera, anchors=(given,))
                )
        done = [
            Pose(int(s * 1e9), np.eye(4), np.eye(3), (4, 4), False, camera)
            for camera, all_ in stamps.items() for s in all_[: k + 1]
        ]  # fmt: skip
        path = Trajectory()
        path.extend(Poses.of(done))
        anchoring.correction(
            submaps, path, SimpleNamespace(nodes=(), T_map_local=IDENTITY), IDENTITY, level=True
        )
    assert len(anchoring._held) == 1
    assert anchoring.counters == Counter(anchors=1)


@pytest.mark.long
def test_poses_that_wait_when_stamps_jump_back_are_not_of_the_time_after(truth):
    """That of a frame that has not come yet waits; a later one of its stamp is another."""
    late = [anchor(truth[35], np.random.default_rng(8), (4, 3, 0))]
    pipeline, _ = run([*truth[24:30], *truth[:40]], {5: late})
    assert pipeline.counters["anchors"] == 1
    assert pipeline.counters["anchors_without_frame"] == 1
    assert pipeline.counters["anchor_corrections"] == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mode", long_after(1, ["mapping", "localization"]))
def test_a_saved_map_that_they_have_placed_is_where_they_had_it(truth, tmp_path, caplog, mode):
    """Once it is loaded and the camera is found in it, others hold it; a read-only one stays."""
    rng = np.random.default_rng(9)
    first, _ = run(truth, tags(truth, range(4, FRAMES - 1, 12), rng))
    folder = saved(first, tmp_path)
    again = later(truth)
    config = config_from_parameters({**SETTINGS, **METRIC, "window.size": 4, "mode": mode})
    session = DescribedTruth([*truth, *again], 3, noise=CALM)
    pipeline = Pipeline(config, session, MetricModel(session))
    pipeline.resume(load_scene(folder))
    before = pipeline.scene_map.T_ros_map.copy()
    _, out = run(again, tags(again, range(24, FRAMES - 1, 8), rng), pipeline=pipeline)
    found = next(i for i, (r, *_) in enumerate(out) if r.covariance_map is not None)
    assert found < FRAMES - 20
    off = errors(out, again)[found + 2 :]  # odometry drifts from one correction to the next
    assert np.median(off) < 0.3
    assert off[-8:].max() < 0.3
    lines = [r.message for r in caplog.records if "global_pose: not used" in r.message]
    if mode == "localization":
        assert lines == ["global_pose: not used: the map is read-only"]
        assert pipeline.counters["anchor_corrections"] == 0
        np.testing.assert_array_equal(pipeline.scene_map.T_ros_map, before)
    else:
        assert pipeline.counters["anchors_wrong"] == 0


def resumed(scene, truth, again):
    """A pipeline that goes on in a saved scene of the truth, with frames of another session."""
    session = DescribedTruth([*truth, *again], 3, noise=CALM)
    config = config_from_parameters({**SETTINGS, **METRIC, "window.size": 4})
    pipeline = Pipeline(config, session, MetricModel(session))
    pipeline.resume(scene)
    return pipeline


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("repeats", "at"), [(False, 30), (True, 56)])
def test_a_wrong_one_does_not_move_a_saved_map(truth, tmp_path, repeats, at):
    """The map's own anchors contradict it, though it is the only one of its session."""
    rng = np.random.default_rng(11)
    first, _ = run(truth, tags(truth, range(4, FRAMES - 1, 12), rng))
    again = truth if repeats else later(truth)  # the clock begins again
    wrong = {at: [anchor(again[at - 2], rng, off=(4, 3, 0))]}

    def walked_again(scene):
        pipeline = resumed(scene, truth, again)
        _, out = run(again, wrong, pipeline=pipeline)
        assert pipeline.map.pose_known
        return pipeline, float(np.median(errors(out, again)[at + 2 :]))

    scene = load_scene(saved(first, tmp_path))
    assert len(scene.anchors) == 5
    pipeline, off = walked_again(scene)
    assert off < 0.5
    assert pipeline.counters["anchors_wrong"] == 1
    assert len(pipeline.snapshot().anchors) == 5, "the wrong one is not saved"
    _, off = walked_again(replace(scene, anchors=()))
    assert off > 3, "one alone moves a scene that nothing holds"


@pytest.mark.long
def test_a_loaded_map_does_not_say_that_its_global_poses_are_unused(truth, tmp_path, caplog):
    """None has come: the line would be about a topic that nobody has."""
    rng = np.random.default_rng(12)
    first, _ = run(truth, tags(truth, (6, 18, 30), rng))
    again = later(truth)[:6]
    pipeline = resumed(load_scene(saved(first, tmp_path)), truth, again)
    run(again, {}, pipeline=pipeline)
    assert pipeline.scene_map.anchoring.placed
    assert "global_pose" not in caplog.text


@pytest.mark.long
def test_a_reset_forgets_where_they_had_the_map(truth):
    """Those after it place the new one."""
    rng = np.random.default_rng(10)
    pipeline, _ = run(truth[:40], tags(truth, (6, 12), rng))
    pipeline.reset()
    assert not pipeline.scene_map.anchoring.placed
    np.testing.assert_array_equal(pipeline.scene_map.T_ros_map, T_ROS_MAP)
    _, out = run(truth[20:40], {k - 20: v for k, v in tags(truth, (26, 32), rng).items()},
                 pipeline=pipeline)  # fmt: skip
    assert errors(out, truth[20:40])[14:].max() < 0.5
