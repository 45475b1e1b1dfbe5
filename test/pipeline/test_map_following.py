"""Another SLAM corrects the robot's odometry: the map moves along, and its double walls vanish."""

import dataclasses
import itertools
import logging
from collections import Counter

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support import slam
from support.cases import long_after
from support.slam import by_path, by_tf, errors, path_until, run, settings, share_off, to_frame

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.poses import invert_pose
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.graph_solution import solve
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.multi_camera import open_pipelines
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.truth import TruthSession

AT = 100  # the frame at which the other SLAM closes its loop


@pytest.fixture(scope="module")
def walk():
    return slam.drifting_walk()


def said(walk, corrections, at=AT):
    frames, priors = walk
    if corrections == "path":
        return by_path(frames, {at: path_until(frames, at)})
    return by_tf(frames, priors, {at} if corrections == "tf" else ())


@pytest.fixture(scope="module", params=long_after(1, ["tf", "path"]))
def followed(request, walk):
    """With points that later keyframes look through: corrections move what they are seen from."""
    config = settings(request.param, **{"map.remove_movers": True})
    return (request.param, *run(walk, config, said(walk, request.param)))


@pytest.fixture(scope="module")
def before(walk):
    """The same with a SLAM that corrects nothing."""
    return run(walk, settings("tf"), said(walk, "none"))


def test_the_map_moves_to_the_surfaces(walk, before, followed):
    """What two visits saw lies on one wall: without the correction a fifth lies on another."""
    was, now = errors(before[0], walk[0]), errors(followed[1], walk[0])
    assert share_off(was) > 0.1
    assert share_off(now) < 0.001
    assert np.quantile(now, 0.95) < {"tf": 0.12, "path": 0.03}[followed[0]]
    assert followed[1].scene_map.following.count == 1
    assert followed[1].loops.closed == 0


def test_odometry_does_not_jump_and_the_pose_does(walk, before, followed):
    def in_odom(r):
        return r.T_odom_map @ r.T_map_camera

    results = followed[2]
    metric = [i for i, r in enumerate(results) if r.scale.metric and i]
    for i, j in itertools.pairwise(metric):
        step = invert_pose(in_odom(results[i])) @ in_odom(results[j])
        plain = invert_pose(in_odom(before[1][i])) @ in_odom(before[1][j])
        np.testing.assert_allclose(step, plain, atol=1e-6)
    poses = [(followed[1].scene_map.T_ros_map @ r.T_map_camera)[:3, 3] for r in results]
    assert np.linalg.norm(poses[AT] - poses[AT - 1]) > 0.2
    true = (slam.T_SLAM_ROOM @ walk[0][AT].T_room_camera)[:3, 3]
    assert np.linalg.norm(poses[AT] - true) < 0.05
    assert all(r.covariance_map is None for r in results)


def largest_step(pipeline, frames):
    """The largest error of the motion from frame to frame: a gap between two submaps."""
    true = {f.stamp_ns: f.T_room_camera for f in frames}
    pairs = itertools.pairwise((p.T_map_camera, true[p.stamp_ns]) for p in pipeline.poses())
    return max(
        np.linalg.norm((invert_pose(a) @ b)[:3, 3] - (invert_pose(x) @ y)[:3, 3])
        for (a, x), (b, y) in pairs
    )


def test_neighbouring_submaps_stay_together(walk, followed):
    """A jump bends the path evenly. A path that knows better than odometry parts two submaps by
    what odometry drifts within one: here 6.4 cm to the side."""
    assert largest_step(followed[1], walk[0]) < {"tf": 0.015, "path": 0.08}[followed[0]]


@pytest.mark.long
def test_noise_of_odometry_parts_submaps_by_millimetres(walk):
    frames, rng, priors = walk[0], np.random.default_rng(1), []
    for frame in frames:
        noise = np.eye(4)
        turn = np.radians(0.1) * rng.normal(size=3)
        noise[:3, :3] = Rotation.from_rotvec(turn).as_matrix()
        noise[:3, 3] = 0.003 * rng.normal(size=3)
        priors.append(frame.T_room_camera @ noise)
    there = np.eye(4)
    there[0, 3] = 30.0
    talk = [slam.SlamPose(slam.T_SLAM_ROOM)] * 100 + [slam.SlamPose(there @ slam.T_SLAM_ROOM)] * 10
    config = settings("tf", **{"pose_prior.output": "refined"})
    pipeline, _ = run((frames, priors), config, talk)
    assert largest_step(pipeline, frames) < 0.008
    assert np.quantile(errors(pipeline, frames, there @ slam.T_SLAM_ROOM), 0.95) < 0.03


@pytest.mark.long
def test_a_path_that_is_sent_again_unchanged_moves_nothing(walk):
    frames = walk[0]
    paths = {90: path_until(frames, 90), 95: path_until(frames, 90, 2)}
    pipeline, _ = run(walk, settings("path"), by_path(frames, paths))
    assert pipeline.scene_map.following.count == 1


@pytest.mark.long
def test_later_paths_correct_what_was_seen_since(walk):
    frames = walk[0]
    paths = {i: path_until(frames, i, i) for i in range(20, 110, 10)}
    pipeline, _ = run(walk, settings("path"), by_path(frames, paths))
    assert np.quantile(errors(pipeline, frames), 0.95) < 0.04


@pytest.mark.long
@pytest.mark.parametrize("corrections", long_after(1, ["tf", "path"]))
def test_without_loop_closure_it_works_too(walk, corrections):
    config = settings(corrections, **{"loop.enabled": False})
    pipeline, _ = run(walk, config, said(walk, corrections))
    assert share_off(errors(pipeline, walk[0])) < 0.001
    assert not pipeline.loops._graph.nodes


def test_a_later_solution_of_the_graph_does_not_undo_it(followed):
    closure = followed[1].loops
    solved = solve(closure._graph.problem(True))
    for move in solved.moves.moves:
        np.testing.assert_allclose(move.t, 0, atol=1e-6)
    assert len(closure.keyframes) > 10  # places can be recognised later


@pytest.mark.long
def test_small_corrections_are_collected(walk):
    """Each is below the tolerance; the map moves once they exceed it together."""
    _frames, _priors = walk
    T, out = np.eye(4), []
    for i in range(60):
        T = T.copy()
        T[0, 3] += 0.004 if i >= 40 else 0.0
        out.append(slam.SlamPose(T_slam_prior=T))
    pipeline, _ = run(walk, settings("tf"), out)
    assert pipeline.scene_map.following.count == 1


@pytest.mark.long
def test_a_jump_that_is_no_drift_moves_the_map_as_one(walk):
    """The other SLAM finds at frame 30 that it was elsewhere all the time."""
    frames, priors = walk
    there = np.array([[0, -1, 0, 8.0], [1, 0, 0, 3.0], [0, 0, 1, 0], [0, 0, 0, 1]])
    moved = [
        slam.SlamPose(T_slam_prior=there @ s.T_slam_prior if i >= 30 else s.T_slam_prior)
        for i, s in enumerate(by_tf(frames, priors, ())[:40])
    ]
    pipeline, _ = run(walk, settings("tf"), moved)
    plain, _ = run(walk, settings("tf"), by_tf(frames, priors, ())[:40])
    was, now = errors(plain, frames), errors(pipeline, frames, there @ slam.T_SLAM_ROOM)
    np.testing.assert_allclose(np.quantile(now, 0.95), np.quantile(was, 0.95), atol=0.01)


@pytest.mark.long
def test_a_correction_before_the_scale_is_known_waits(walk, caplog):
    frames, priors = walk
    config = settings("tf", **{"scale.source": "none"})
    with caplog.at_level(logging.WARNING):
        pipeline, _ = run(walk, config, by_tf(frames, priors, {30})[:40])
    assert sum("wait until the scale is known" in r.message for r in caplog.records) == 1
    assert pipeline.scene_map.following.count == 0
    early = [*by_tf(frames, priors, {2, AT})]
    pipeline, _ = run(walk, settings("tf"), early)
    assert share_off(errors(pipeline, frames)) < 0.01


def test_what_is_known_at_the_first_frame_places_the_map(walk):
    frames, priors = walk
    pipeline, results = run(walk, settings("tf"), by_tf(frames, priors, ())[:3])
    at = pipeline.scene_map.T_ros_map @ results[0].T_map_camera
    np.testing.assert_allclose(at, slam.T_SLAM_ROOM @ frames[0].T_room_camera, atol=1e-9)
    assert pipeline.scene_map.map_placed


@pytest.mark.long
def test_what_is_known_later_places_the_map_then(walk):
    frames, priors = walk
    late = [s if i >= 40 else None for i, s in enumerate(by_tf(frames, priors, {AT}))]
    pipeline, _ = run(walk, settings("tf"), late)
    at = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}[frames[-1].stamp_ns]
    true = slam.T_SLAM_ROOM @ frames[-1].T_room_camera
    ours = pipeline.scene_map.T_ros_map @ at
    assert np.linalg.norm(ours[:3, 3] - true[:3, 3]) < 0.05


@pytest.mark.long
@pytest.mark.parametrize("corrections", ["tf", "path"])
def test_reset_begins_a_scene_in_the_other_map(walk, corrections):
    frames = walk[0]
    pipeline, _ = run(walk, settings(corrections), said(walk, corrections, 40)[:50])
    pipeline.reset()
    later = said(walk, "path") if corrections == "path" else by_tf(*walk, {50, AT})
    run(walk, None, later, pipeline, begin=50)
    assert share_off(errors(pipeline, frames)) < 0.001


@pytest.mark.long
def test_a_component_after_a_time_jump_gets_its_place(walk):
    """The recording begins anew elsewhere on the way; the transform still tells where that is."""
    frames, priors = walk
    config = settings("tf")
    pipeline = slam.open_pipeline(frames, config)
    talk = by_tf(frames, priors, ())
    run(walk, config, talk[:70], pipeline)
    run(walk, config, talk[:60], pipeline, begin=30)
    assert {s.chain for s in pipeline.map.submaps.values()} == {0, 1}
    assert pipeline.map.pose_known
    assert len(pipeline.map.components) == 1
    plain, _ = run(walk, config, talk[:70])
    was, now = (np.quantile(errors(p, frames), 0.95) for p in (plain, pipeline))
    assert now < was + 0.03


@pytest.mark.long
def test_stored_keyframes_and_saved_scenes_have_the_new_poses(walk, tmp_path):
    frames, _priors = walk
    config = settings("tf")
    pipeline = slam.open_pipeline(frames, config)
    recorder = KeyframeRecorder(tmp_path / "keyframes", counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    run(walk, config, said(walk, "tf"), pipeline)
    assert pipeline.scene_map.finish_recording(10)
    save_scene(pipeline.snapshot(), tmp_path / "scene")
    saved = load_scene(tmp_path / "scene")
    poses = {s.id: s.T_map_submap for s in pipeline.map.submaps.values()}
    unit = pipeline.map.table.metres
    for submap in saved.submaps:
        np.testing.assert_allclose(submap.T_map_submap.t, unit * poses[submap.id].t)
    with StoredScene.open(tmp_path / "keyframes") as stored:
        for id, pose in poses.items():
            np.testing.assert_allclose(stored.submaps[id].T_map_submap.t, pose.t)
        np.testing.assert_allclose(stored.map.T_ros_map, pipeline.scene_map.T_ros_map)


BAD = [
    ("begins anew", lambda frames: path_until(frames[60:], 30, 2)),
    ("ends earlier", lambda frames: path_until(frames, 40, 2)),
    ("begins later", lambda frames: path_until(frames[30:], 60, 2)),
]


@pytest.mark.long
@pytest.mark.parametrize(("text", "second"), long_after(1, BAD))
def test_a_path_that_is_no_correction_moves_nothing(walk, text, second, caplog):
    frames = walk[0]
    paths = {60: path_until(frames, 59), 95: second(frames)}
    with caplog.at_level(logging.WARNING):
        pipeline, _ = run(walk, settings("path"), by_path(frames, paths)[:97])
    assert sum(text in r.message for r in caplog.records) == 1
    expected = 2 if text == "begins later" else 1
    assert pipeline.scene_map.following.count == expected


@pytest.mark.long
def test_a_path_of_another_clock_moves_nothing(walk, caplog):
    frames = walk[0]
    paths = {60: path_until(slam.at_other_stamps(frames, 10**18), 59)}
    with caplog.at_level(logging.WARNING):
        pipeline, _ = run(walk, settings("path"), by_path(frames, paths))
    assert pipeline.scene_map.following.count == 0
    assert sum("cameras' clock" in r.message for r in caplog.records) == 1


WRONG = [
    ({"pose_prior.corrections": "tf", "pose_prior.map_frame": "map"}, "source is none"),
    ({"pose_prior.corrections": "tf", "pose_prior.source": "tf"}, "map_frame is empty"),
    ({"pose_prior.corrections": "path", "pose_prior.source": "tf"}, "base_frame is empty"),
    (
        {
            "pose_prior.corrections": "tf", "pose_prior.source": "tf",
            "pose_prior.map_frame": "odom",
        },
        "are both",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("values", "text"), WRONG)
def test_impossible_parameters_are_refused(values, text):
    with pytest.raises(ConfigError, match=text):
        config_from_parameters(values, NodeConfig)


@pytest.mark.long
def test_a_jump_may_come_between_the_new_frames_of_one_window(walk):
    frames = walk[0]
    config = settings("tf", **{"window.new": 3, "window.size": 6})
    pipeline, _ = run(walk, config, said(walk, "tf"))
    assert share_off(errors(pipeline, frames)) < 0.001


def of_camera(walk, name, i, talk):
    return dataclasses.replace(to_frame(walk[0][i], walk[1][i], talk[i]), camera=name)


@pytest.mark.long
def test_the_leading_camera_of_a_rig_counts(walk):
    """The other one has no poses of the robot at all."""
    frames, talk = walk[0], said(walk, "tf")
    config = settings("tf", **{"cameras": ["front", "left"], "window.size": 6})
    session = TruthSession({"front": frames, "left": frames})
    pipeline = Pipeline(config, session)
    for i in range(len(frames)):
        left = dataclasses.replace(of_camera(walk, "left", i, talk), slam=None)
        list(pipeline.push(of_camera(walk, "front", i, talk), left))
    assert pipeline.scene_map.following.count == 1
    assert share_off(errors(pipeline, frames)) < 0.001


@pytest.mark.long
def test_each_scene_of_independent_cameras_follows(walk):
    frames, talk = walk[0], said(walk, "tf")
    values = {"cameras": ["front", "left"], "window.mode": "independent"}
    session = TruthSession({"front": frames, "left": frames})
    pipelines = open_pipelines(settings("tf", **values), session)
    for name, pipeline in pipelines.items():
        for i in range(len(frames)):
            list(pipeline.push(of_camera(walk, name, i, talk)))
        assert pipeline.scene_map.following.count == 1
        assert share_off(errors(pipeline, frames)) < 0.001


@pytest.mark.parametrize("factor", long_after(1, [2.0, 0.5]))
def test_a_path_in_another_unit_is_not_followed(walk, caplog, factor):
    """Of a SLAM with one camera, which has no metres."""
    frames = walk[0]
    path = path_until(frames, 40)
    path.T_slam_base[:, :3, 3] *= factor
    with caplog.at_level(logging.WARNING):
        pipeline, _ = run(walk, settings("path"), by_path(frames, {40: path})[:42])
    assert pipeline.scene_map.following.count == 0
    (said,) = [r.getMessage() for r in caplog.records if "m long" in r.getMessage()]
    assert "must be in metres" in said


@pytest.mark.long
@pytest.mark.parametrize(("metres", "begins"), [(3.0, (50,)), (0.3, (50,)), (0.3, (40, 50, 60))])
def test_jumps_there_and_back_leave_the_next_one_right(walk, metres, begins):
    """A wrong pose of the other SLAM for a moment is no drift of the prior."""
    frames, talk = walk[0], said(walk, "tf")
    away = np.eye(4)
    away[:3, 3] = metres, 0, 0
    for i in (begin + more for begin in begins for more in range(4)):
        talk[i] = dataclasses.replace(talk[i], T_slam_prior=away @ talk[i].T_slam_prior)
    pipeline, _ = run(walk, settings("tf"), talk)
    assert share_off(errors(pipeline, frames)) < 0.001


@pytest.mark.long
@pytest.mark.parametrize("noisy", ["path", "prior"])
def test_a_robot_that_has_stood_still_is_followed(walk, noisy):
    """Noise on the spot is no way: else one of both ways would be much the longer one."""
    rng, (frames, priors) = np.random.default_rng(0), walk
    stood = [
        dataclasses.replace(frames[-1], stamp_ns=frames[-1].stamp_ns + 10**8 * (i + 1))
        for i in range(120)
    ]
    frames, priors = [*frames, *stood], [T.copy() for T in (*priors, *[priors[-1]] * 120)]
    path = path_until(frames, len(frames) - 10, every=1)
    for T in path.T_slam_base if noisy == "path" else priors:
        T[:3, 3] += rng.normal(0, 0.05, 3)
    talk = by_path(frames, {len(frames) - 10: path})
    pipeline, _ = run((frames, priors), settings("path"), talk)
    assert pipeline.scene_map.following.count == 1


@pytest.mark.long
def test_corrections_wait_until_the_place_in_a_loaded_scene_is_known(walk, caplog):
    """The loaded scene need not be in the other SLAM's map."""
    config = settings("tf")
    first, _ = run(walk, config, said(walk, "none")[:60])
    pipeline = slam.open_pipeline(walk[0], config)
    pipeline.resume(first.snapshot())
    with caplog.at_level(logging.WARNING):
        run(walk, config, by_tf(*walk, {80})[:90], pipeline, begin=60)
    assert pipeline.scene_map.following.count == 0
    assert sum("until the pose in the map is known" in r.message for r in caplog.records) == 1
    before = {s.id: s.T_map_submap for s in first.snapshot().submaps}
    for submap in pipeline.snapshot().submaps:
        if submap.id in before:
            np.testing.assert_allclose(submap.T_map_submap.t, before[submap.id].t, atol=2e-3)


@pytest.mark.long
def test_a_path_after_a_time_jump_is_of_another_run(walk, caplog):
    """Whether the other SLAM has the same map as before cannot be seen in it."""
    frames = walk[0]
    config = settings("path")
    pipeline = slam.open_pipeline(frames, config)
    run(walk, config, by_path(frames, {60: path_until(frames, 59)})[:70], pipeline)
    later = by_path(frames, {40: path_until(frames, 39, 2)})[:60]
    with caplog.at_level(logging.WARNING):
        run(walk, config, later, pipeline, begin=30)
    assert pipeline.scene_map.following.count == 1
    assert sum("begins anew" in r.message for r in caplog.records) == 1


@pytest.mark.long
def test_lost_poses_of_the_robot_leave_the_rest_right(walk):
    frames, priors = walk
    talk = said(walk, "tf")
    gaps = [None if 40 <= i < 55 else p for i, p in enumerate(priors)]
    pipeline, _ = run((frames, gaps), settings("tf"), talk)
    assert pipeline.scene_map.following.count >= 1
    assert share_off(errors(pipeline, frames)) < 0.02
