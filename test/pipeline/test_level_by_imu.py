"""What is up by an IMU: the map is level, tilt does not drift, and the floor's height is found."""

import dataclasses
import functools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.driving import level
from support.inertial import UNIT, InertialWalk
from support.pipelines import settings, to_frame
from support.sensor_rig import FACTOR
from support.sessions import METRIC, MetricModel

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.mount_check import MountCheck
from da3_ros.mapping.frames import LocalFrame
from da3_ros.pipeline.delivery import NO_WINDOW
from da3_ros.pipeline.level_finder import LevelFinder
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import UNKNOWN_RAD2, GlobalPose, ImuNoise, Scale

SIZE, FRAMES = (140, 112), 40
WRONG_MOUNT = np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])


@functools.cache
def walked(walk="carried", seed=4, frames=FRAMES):
    camera = SyntheticCamera(seed, SIZE, walk=walk, frames=frames)
    return camera, list(camera)


def run(
    mount=None, gap=(), walk="carried", frames=FRAMES, network=TruthSession, slips=None,
    late_s=0.0, of=None, shake=0.0, pushed=None, anchored=0.0, ends=False, **values,
):  # fmt: skip
    """slips: frame from which on the mount is the wrong one; None: from the beginning on. of:
    frames of the whole walk. shake: of the accelerometer, m/s^2. pushed: (first second, last, [3]
    m/s^2) of an error of it. anchored: deviation of a position each second, metres; 0: none.
    ends: the recording."""
    camera, whole = walked(walk, frames=of or frames)
    frames = whole[:frames]
    stamps = np.array([f.stamp_ns for f in frames])
    poses = camera.T_room_camera[: len(frames)]
    samples = imu_samples(poses, stamps, noise=ImuNoise(), seed=2, late_s=late_s)
    white = np.random.default_rng(5).normal(size=samples.acceleration.shape)
    acceleration = samples.acceleration + shake * white
    if pushed is not None:
        first, last, error = pushed
        seconds = (samples.stamps_ns - stamps[0]) / 1e9
        acceleration[(seconds >= first) & (seconds < last)] += error
    samples = dataclasses.replace(samples, acceleration=acceleration)
    stretches = [None, *samples.stretches(stamps, mount)]
    if slips is not None:
        stretches[:slips] = [None, *samples.stretches(stamps)][:slips]
    pipeline = Pipeline(
        settings(**{"level.source": "imu", "scale.source": "fixed", **values}),
        network(frames),
    )
    out, rng = [], np.random.default_rng(0)
    for k, (f, stretch) in enumerate(zip(frames, stretches, strict=True)):
        frame = to_frame(camera, f, imu=None if k in gap else stretch)
        if anchored and k % 10 == 5:
            frame = dataclasses.replace(frame, anchors=(position_of(f, anchored, rng),))
        out += pipeline.push(frame)
    if ends:
        out += pipeline.flush()
    return pipeline, out, frames


def position_of(f, sigma, rng):
    """A global pose of a frame's camera that has no orientation."""
    T = np.eye(4)
    T[:3, 3] = f.T_room_camera[:3, 3] + sigma * rng.standard_normal(3)
    covariance = np.diag(np.repeat([sigma**2, UNKNOWN_RAD2], 3))
    return GlobalPose(f.stamp_ns, T, covariance, np.eye(4))


def tilt(T, true):
    """Angle, degrees, between two ``T_level_camera``'s up."""
    return np.degrees(np.arccos(np.clip(T[2, :3] @ true[2, :3], -1, 1)))


def test_each_frame_and_the_map_know_what_is_up():
    pipeline, out, frames = run()
    known = [r.T_level_camera is not None for r in out]
    assert not known[0]  # nothing was measured yet
    assert known.count(True) > FRAMES / 2
    errors = [
        tilt(r.T_level_camera, level(f))
        for r, f in zip(out, frames, strict=True)
        if r.T_level_camera is not None
    ]
    assert np.median(errors) < 1.0
    assert max(errors) < 2.5
    up = pipeline.scene_map.T_ros_map @ out[-1].T_map_camera
    assert tilt(up, level(frames[-1])) < 2.0


def test_the_floors_height_is_that_of_the_map_in_metres():
    pipeline, out, frames = run(**{"scale.factor": factor()})
    seen = [r for r in out if r.height_known]
    assert seen
    assert pipeline.scene_map.is_level
    for r in seen[-5:]:
        true = level(next(f for f in frames if f.stamp_ns == r.stamp_ns))
        assert r.T_level_camera[2, 3] == pytest.approx(true[2, 3], rel=0.1)
        in_map = pipeline.scene_map.T_ros_map @ r.T_map_camera
        assert in_map[2, 3] == pytest.approx(true[2, 3], rel=0.15)


@functools.cache
def factor():
    """Metres per unit of the truth session's first window."""
    _, out, frames = run()
    return float(np.nanmedian(frames[0].depth / out[0].depth_m))


def test_without_imu_data_nothing_is_level_():
    pipeline, out, _ = run(gap=range(FRAMES))
    assert all(r.T_level_camera is None for r in out)
    assert not pipeline.scene_map.is_level


def test_an_imu_that_begins_later_says_what_is_up_from_then_on():
    _, out, frames = run(gap=range(15))
    known = [(r, f) for r, f in zip(out, frames, strict=True) if r.T_level_camera is not None]
    assert len(known) > FRAMES / 4
    assert all(r.stamp_ns >= frames[15].stamp_ns for r, _ in known)
    assert np.median([tilt(r.T_level_camera, level(f)) for r, f in known]) < 1.5


def test_a_gap_does_not_turn_the_map():
    _, out, frames = run(gap=range(20, 26))
    errors = [
        tilt(r.T_level_camera, level(f))
        for r, f in zip(out, frames, strict=True)
        if r.T_level_camera is not None
    ]
    assert max(errors) < 3.0


def test_an_imu_that_the_camera_contradicts_is_not_followed():
    pipeline, out, _ = run(mount=WRONG_MOUNT)
    [(state, _)] = pipeline.gyro.states.values()
    assert state == "contradicts"
    assert out[-1].T_level_camera is None


@pytest.mark.parametrize("turned", [0, 90])
def test_before_the_camera_turns_up_is_believed_if_it_is_likely(turned):
    """No rotation has confirmed the mount; that of an image that lies on its side is wrong, or
    the camera does."""
    mount = np.eye(4)
    mount[:3, :3] = Rotation.from_euler("z", turned, degrees=True).as_matrix()
    pipeline, out, frames = run(mount=mount, walk="straight")
    assert {state for state, _ in pipeline.gyro.states.values()} == {"unknown"}
    known = [(r, f) for r, f in zip(out, frames, strict=True) if r.T_level_camera is not None]
    assert bool(known) == (turned == 0)
    assert all(tilt(r.T_level_camera, level(f)) < 3.0 for r, f in known)


@pytest.mark.long
def test_a_mount_that_slips_is_named_once_for_each_kind_of_fault(caplog):
    """However its angle grows while the newest rotations are compared, and the map stays level."""
    roll = np.eye(4)
    roll[:3, :3] = Rotation.from_euler("z", 90, degrees=True).as_matrix()
    pipeline, out, frames = run(mount=roll, slips=60, frames=140)
    lines = [m for m in caplog.messages if m.startswith("imu: not used")]
    assert any("from its stated mount" in line for line in lines)
    assert len(lines) == len({line.split(" by ")[0] for line in lines}) < 4
    assert out[-1].T_level_camera is None
    up = pipeline.scene_map.T_ros_map @ out[-1].T_map_camera
    assert tilt(up, level(frames[-1])) < 2.0


@pytest.mark.long
def test_a_small_slip_tilts_no_frame_for_long():
    """It is named before gravity follows it, though rotations still agree."""
    mount = np.eye(4)
    mount[:3, :3] = Rotation.from_euler("y", 20, degrees=True).as_matrix()
    pipeline, out, frames = run(mount=mount, slips=100, frames=140)
    assert {state for state, _ in pipeline.gyro.states.values()} == {"agrees"}
    after = list(zip(out, frames, strict=True))[100:]
    errors = [tilt(r.T_level_camera, level(f)) for r, f in after if r.T_level_camera is not None]
    assert len(errors) < 20
    assert max(errors) < 3.0


def test_late_stamps_are_named_once_with_the_remedy(caplog):
    run(late_s=0.08, frames=60)
    lines = [m for m in caplog.messages if "imu.time_offset_s" in m]
    assert len(lines) == 1
    assert "ms later than those of the images: subtract 0.0" in lines[0]


def test_what_is_up_is_as_uncertain_as_stated():
    """When it is known first, over walks whose poses have noise."""
    over = []
    for kind in ("carried", "drone", "handheld", "loop"):
        for seed in range(8):
            walk = InertialWalk(kind, seed, 4, position_m=0.005, rotation_deg=0.1)
            finder = LevelFinder(settings(**{"level.source": "imu"}), MountCheck())
            for i, T in enumerate(walk.poses):
                frame = LocalFrame(
                    i, int(walk.at[i]), "camera", "", *np.zeros((3, 1, 1)), np.eye(3), T,
                    Scale("fixed", 1 / UNIT, 0.01), NO_WINDOW,
                )  # fmt: skip
                stretch = walk.stretches[i - 1] if i else None
                finder.follow(frame, stretch, 1.0, trust="agrees")
                if finder.up is not None and i >= 20:
                    away = walk.tilt(T[:3, :3] @ finder.up.direction)
                    over.append(away / finder.up.sigma / np.sqrt(2))  # of each axis
                    break
    assert len(over) > 20
    assert 0.5 < np.sqrt(np.mean(np.square(over))) < 1.0


def test_gravity_is_a_factor_of_submaps():
    pipeline, *_ = run()
    graph = pipeline.loops._graph
    ups = graph.problem(metric=True).ups
    assert ups
    for k, up in ups.items():
        R = graph.pose(graph.nodes[k]).R
        first = invert_pose(walked()[1][0].T_room_camera)[:3, :3]
        assert np.degrees(np.arccos(R @ up.direction @ first @ [0, 0, 1])) < 2.0


class Bending(TruthSession):
    """Tilts each new view by 0.015 degrees about one axis of the room, as windows would that bend
    the way, and fit each other exactly."""

    def __init__(self, frames):
        super().__init__(frames)
        self.T_room = {f.stamp_ns: f.T_room_camera for f in frames}

    def infer(self, window):
        out = super().infer(window)
        poses = out.T_window_camera.copy()
        for k, view in enumerate(window.views):
            axis = self.T_room[view.stamp_ns][0, :3]  # x of the room
            turn = np.radians(0.015 * (view.id - window.views[0].id)) * axis
            poses[k, :3, :3] = poses[k, :3, :3] @ Rotation.from_rotvec(turn).as_matrix()
        return dataclasses.replace(out, T_window_camera=poses)


def tilts_of(poses, frames, T_ros_map):
    """Angles, degrees, between up as poses by stamp have it and z of the published map."""
    at = [(poses[f.stamp_ns], f.T_room_camera) for f in frames]
    ups = [T_ros_map[:3, :3] @ T[:3, :3] @ true[2, :3] for T, true in at]
    return np.degrees(np.arccos(np.clip(np.array(ups)[:, 2], -1, 1)))


def judged(pipeline, out, frames):
    """Tilts of the map's and of the published poses, degrees, error of the path in mm, and its
    scale."""
    T_ros_map = pipeline.scene_map.T_ros_map
    poses = {pose.stamp_ns: pose.T_map_camera for pose in pipeline.map.poses()}
    published = tilts_of({r.stamp_ns: r.T_map_camera for r in out}, frames, T_ros_map)
    frames = [f for f in frames if f.stamp_ns in poses]  # the path is thinned
    of_map = tilts_of(poses, frames, T_ros_map)
    true = np.array([f.T_room_camera for f in frames])
    S = Similarity.aligning(true, np.array([poses[f.stamp_ns] for f in frames]))
    away = [S.points(poses[f.stamp_ns][:3, 3]) - f.T_room_camera[:3, 3] for f in frames]
    rms = 1e3 * np.sqrt(np.mean(np.sum(np.square(away), axis=1)))
    return of_map, published, rms, S.scale


WALK = {"walk": "loop", "frames": 400, "of": 500, "keyframe.parallax": 0.03}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_gravity_holds_roll_and_pitch_of_the_map():
    """Without a loop, what windows bend by 6 degrees in 40 s is straightened, to the end of the
    map and in the newest published poses; up itself is known to 0.7 degrees of that way."""
    found = {}
    for source in ("none", "imu"):
        pipeline, out, frames = run(
            network=Bending, ends=True, **WALK, **{
                "level.source": source, "loop.every": 10**6,
                "scale.factor": FACTOR,
            },
        )  # fmt: skip
        assert pipeline.loops.closed == 0
        found[source] = judged(pipeline, out, frames)
    bent, held = found["none"], found["imu"]
    for of in (0, 1):  # map, published
        assert bent[of][-20:].mean() > 4.5
        assert held[of][-20:].mean() < 1.5
        assert held[of][-20:].mean() < bent[of][-20:].mean() / 3
    assert held[0].max() < 2.2
    assert held[2] < 0.6 * bent[2]
    assert held[3] == pytest.approx(bent[3], rel=0.002)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["slips", "shakes"])
def test_a_bad_imu_does_not_bend_a_good_map(fault):
    """One whose mount slips by 10 degrees on the way, and one that shakes by half of gravity: up
    is wrong by 10 and by 2 degrees, at a stated deviation of 0.2."""
    mount = np.eye(4)
    mount[:3, :3] = Rotation.from_euler("xz", [10, 5], degrees=True).as_matrix()
    faults = {"slips": {"mount": mount, "slips": 200}, "shakes": {"shake": 5.0}}
    pipeline, out, frames = run(
        ends=True, **WALK, **faults[fault], **{"loop.every": 10**6, "scale.factor": FACTOR}
    )
    of_map, _, rms, _ = judged(pipeline, out, frames)
    assert np.ptp(of_map) < 0.3
    assert of_map.max() < 1.0
    assert rms < 1.0


@pytest.mark.long
def test_a_fault_of_the_first_seconds_does_not_last(caplog):
    """What was up then, and the bias that it made, do not count once the fault shows."""
    pipeline, out, frames = run(
        pushed=(2.0, 3.0, [0.0, 0.0, 4.0]), ends=True, **{**WALK, "frames": 180},
        **{"loop.every": 10**6, "scale.factor": FACTOR},
    )  # fmt: skip
    of_map, published, rms, _ = judged(pipeline, out, frames)
    assert published.max() > 3.0
    assert of_map.max() < 0.5
    assert published[-20:].max() < 0.5
    assert rms < 1.0
    assert len(pipeline.loops.problem().ups) > 0
    assert pipeline.counters["level_doubted"] > 0
    assert sum("has turned faster" in m for m in caplog.messages) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("network", "most"), [(TruthSession, 0.5), (Bending, 1.5)])
def test_gravity_and_global_poses_hold_one_map(network, most):
    """Where each moved the map by itself, they undid each other at each window; without gravity,
    positions with an error of 5 cm say what is up to some degrees."""
    found = []
    correct = SceneMap.correct

    def note(self, correction):
        found.append((correction.levelled, correction.anchored))
        correct(self, correction)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SceneMap, "correct", note)
        pipeline, out, frames = run(
            network=network, anchored=0.05, ends=True, **WALK,
            **{"loop.every": 10**6, "scale.factor": FACTOR},
        )  # fmt: skip
    of_map, published, _, _ = judged(pipeline, out, frames)
    assert of_map.mean() < most
    assert published[-50:].mean() < most
    first = found.index((False, True))
    assert not any(levelled for levelled, _ in found[first:])


def test_an_imu_with_a_known_fault_is_not_used(caplog, monkeypatch):
    monkeypatch.setattr(MountCheck, "fault", property(lambda self: "its axes are wrong"), False)
    monkeypatch.setattr(MountCheck, "fault", MountCheck.fault.setter(lambda self, text: None))
    pipeline, out, _ = run()
    assert all(r.T_level_camera is None for r in out)
    assert [m for m in caplog.messages if "imu" in m] == ["imu: not used: its axes are wrong"]
    # Nor are its rotations, though a mount that is wrong by little hardly changes them.
    [(state, _)] = pipeline.gyro.states.values()
    assert state == "agrees"
    assert all(pipeline.gyro.pose(r.id) is None for r in out)
    monkeypatch.setattr(MountCheck, "fault", "")
    assert pipeline.gyro.pose(out[-1].id) is not None
    assert not pipeline.loops._graph.problem(metric=True).ups


@pytest.mark.long
def test_a_map_is_not_levelled_by_frames_whose_place_in_it_is_unknown():
    """After a jump of the stamps, by a camera that was tilted meanwhile: its component is not
    connected, and knows better what is up."""
    camera, frames = walked(frames=12)
    roll = np.eye(4)
    roll[:3, :3] = Rotation.from_euler("z", 30, degrees=True).as_matrix()
    start = camera.start_ns - 100 * 10**9
    other = SyntheticCamera(4, SIZE, walk="carried", frames=FRAMES, start_ns=start, mount=roll)
    session = TruthSession([*frames, *other])
    config = settings(**{"level.source": "imu", **METRIC})
    pipeline = Pipeline(config, session, MetricModel(session))
    for one in (camera, other):
        stamps = np.array([f.stamp_ns for f in one])
        samples = imu_samples(one.T_room_camera, stamps, noise=ImuNoise(), seed=2)
        for f, stretch in zip(one, [None, *samples.stretches(stamps)], strict=True):
            list(pipeline.push(to_frame(one, f, imu=stretch)))
    assert len(pipeline.map.components) == 2
    assert pipeline.scene_map.level_finder.up.sigma < 0.5 * pipeline.scene_map._up_sigma
    poses = {pose.stamp_ns: pose.T_map_camera for pose in pipeline.map.poses()}
    T = pipeline.scene_map.T_ros_map @ poses[frames[-1].stamp_ns]
    assert tilt(T, level(frames[-1])) < 3.0
