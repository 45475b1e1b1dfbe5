"""What is up by an IMU: the map is level, tilt does not drift, and the floor's height is found."""

import dataclasses
import functools
import logging

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.driving import level
from support.inertial import UNIT, InertialWalk
from support.pipelines import settings, to_frame
from support.sessions import METRIC, MetricModel

from da3_ros.geometry.poses import invert_pose
from da3_ros.inertial.mount_check import MountCheck
from da3_ros.mapping.frames import LocalFrame
from da3_ros.pipeline.delivery import NO_WINDOW
from da3_ros.pipeline.level_finder import LevelFinder
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import ImuNoise, Scale

SIZE, FRAMES = (140, 112), 40
WRONG_MOUNT = np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])


@functools.cache
def walked(walk="carried", seed=4, frames=FRAMES):
    camera = SyntheticCamera(seed, SIZE, walk=walk, frames=frames)
    return camera, list(camera)


def run(
    mount=None, gap=(), walk="carried", frames=FRAMES, network=TruthSession, slips=None,
    late_s=0.0, **values,
):  # fmt: skip
    """slips: frame from which on the mount is the wrong one; None: from the beginning on."""
    camera, frames = walked(walk, frames=frames)
    stamps = np.array([f.stamp_ns for f in frames])
    samples = imu_samples(camera.T_room_camera, stamps, noise=ImuNoise(), seed=2, late_s=late_s)
    stretches = [None, *samples.stretches(stamps, mount)]
    if slips is not None:
        stretches[:slips] = [None, *samples.stretches(stamps)][:slips]
    pipeline = Pipeline(
        settings(**{"level.source": "imu", "scale.source": "fixed", **values}),
        network(frames),
    )
    out = []
    for k, (f, stretch) in enumerate(zip(frames, stretches, strict=True)):
        frame = to_frame(camera, f, imu=None if k in gap else stretch)
        out += pipeline.push(frame)
    return pipeline, out, frames


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
    run(late_s=0.08, frames=100)
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
    """Tilts each new view by a quarter of a degree, as windows would that bend the way."""

    def infer(self, window):
        out = super().infer(window)
        poses = out.T_window_camera.copy()
        bend = Rotation.from_euler("x", 0.25, degrees=True).as_matrix()
        for k in range(len(window.views) - window.new, len(window.views)):
            poses[k, :3, :3] = poses[k, :3, :3] @ bend
        return dataclasses.replace(out, T_window_camera=poses)


@pytest.mark.long
def test_gravity_holds_roll_and_pitch_of_the_map(caplog):
    """Without a loop, what windows bend is straightened where submaps disagree about up."""
    ends = {}
    for source in ("none", "imu"):
        with caplog.at_level(logging.INFO):
            pipeline, out, frames = run(
                network=Bending, walk="loop", frames=120,
                **{"level.source": source, "keyframe.parallax": 0.03, "loop.every": 10**6},
            )  # fmt: skip
        first = invert_pose(frames[0].T_room_camera)[:3, :3]
        ups = [r.T_map_camera[:3, :3] @ f.T_room_camera[:3, :3].T @ [0, 0, 1]
               for r, f in zip(out, frames, strict=True)]  # fmt: skip
        angles = np.degrees(np.arccos(np.clip(np.array(ups) @ first @ [0, 0, 1], -1, 1)))
        ends[source] = angles[-20:].mean()
        assert pipeline.loops.closed == 0
    assert "submaps levelled by gravity" in caplog.text
    assert ends["none"] > 1.5
    # Gravity is known to half a degree in so short a walk: most of the bend is within that.
    assert ends["imu"] < 0.95 * ends["none"]


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
