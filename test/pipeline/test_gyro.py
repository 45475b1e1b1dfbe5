"""The gyro in a pipeline: held views turn, wrong rotations are refused, and gaps are bridged."""

import dataclasses
import functools

import bench_blind
import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame, ImuNoise, View

SIZE = (168, 126)
BEFORE, DARK = 24, 8  # frames before the dark, and in it
WRONG_MOUNT = np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])


@functools.cache
def whip_pan(angle_deg=150.0, carried_m=0.0):
    """A camera that looks to and fro, turns away in the dark, and looks to and fro there."""
    camera = SyntheticCamera(3, SIZE, walk="spot", frames=60)
    poses = camera.T_room_camera.copy()
    at = poses[0].copy()
    slow = 0.35 * np.sin(np.arange(BEFORE) / 4)
    dark = slow[-1] + np.radians(angle_deg) * (1 - np.cos(np.linspace(0, np.pi, DARK + 2))) / 2
    after = dark[-1] + 0.3 * np.sin(np.arange(1, 17) / 4)
    yaw = np.concatenate((slow, dark[1:-1], after))
    # Small steps, so that there are tracks with parallax.
    step = np.stack((0.06 * np.sin(np.arange(len(yaw)) / 3), 0 * yaw, 0 * yaw), axis=1)
    way = (1 - np.cos(np.linspace(0, np.pi, DARK + 2))) / 2
    step[BEFORE - 1 : BEFORE + DARK + 1, 2] -= carried_m * way
    step[BEFORE + DARK + 1 :, 2] -= carried_m
    poses = np.tile(at, (len(yaw), 1, 1))
    for pose, angle, offset in zip(poses, yaw, step, strict=True):
        pose[:3, :3] = Rotation.from_euler("z", angle).as_matrix() @ at[:3, :3]
        pose[:3, 3] = at[:3, 3] + at[:3, :3] @ offset
    camera.T_room_camera = poses
    return camera, list(camera)


def blurred(frames, kind, start, count):
    """Frames as a fast pan shows them: streaks and noise."""
    out = list(frames)
    for k in range(start, start + count):
        image = frames[k].image
        for _ in range(2):
            image = cv2.blur(image, (61, 1), borderType=cv2.BORDER_REFLECT)
        noise = np.random.default_rng(k).normal(0, 2, image.shape)
        image = np.clip(image + noise, 0, 255).astype(np.uint8)
        out[k] = dataclasses.replace(frames[k], image=image)
    return out


def run(
    *, imu=True, refine=True, mount=None, network=TruthSession, noise=None, carried_m=0.0,
    count=None, fault=bench_blind.with_fault, **values,
):  # fmt: skip
    """count: of the first frames; None: all."""
    camera, frames = whip_pan(carried_m=carried_m)
    dark = range(BEFORE, BEFORE + DARK)
    faulty = fault(frames, "black", dark.start, len(dark))
    stamps = np.array([f.stamp_ns for f in frames])
    samples = imu_samples(camera.T_room_camera, stamps, noise=noise or ImuNoise(), seed=1)
    stretches = [None, *samples.stretches(stamps, mount)]
    config = config_from_parameters({
        "model": "da3-tiny", "window.size": 6, "process_res": SIZE[0], "dense.enabled": False,
        "refinement.enabled": refine, "map.remove_movers": False, "imu.enabled": imu, **values,
    })  # fmt: skip
    pipeline, results = Pipeline(config, network(frames)), []
    for frame, stretch in zip(faulty[:count], stretches[:count], strict=True):
        results += pipeline.push(Frame(
            frame.stamp_ns, frame.image, calibration=camera.calibration,
            imu=stretch if imu else None,
        ))  # fmt: skip
    return pipeline, results + list(pipeline.flush()), frames


def errors(results, frames):
    """Rotation, degrees, and distance, units of the first frame's depth, of the poses in odom."""
    unit = float(np.nanmedian(results[0].depth_m / frames[0].depth))
    first = invert_pose(frames[0].T_room_camera)
    out = []
    for r, f in zip(results, frames, strict=True):
        T, true = r.T_odom_map @ r.T_map_camera, first @ f.T_room_camera
        turn = Rotation.from_matrix(true[:3, :3].T @ T[:3, :3]).magnitude()
        out.append((np.degrees(turn), np.linalg.norm(T[:3, 3] / unit - true[:3, 3])))
    return np.array(out)


@functools.cache
def bridged():
    return run()


@pytest.mark.long
def test_a_camera_that_turns_away_in_the_dark_is_lost_without_an_imu():
    pipeline, results, frames = run(imu=False)
    assert len(pipeline.map.components) == 2
    assert errors(results, frames)[-1, 0] > 90


@pytest.mark.long
def test_the_gyro_turns_the_pose_in_the_dark():
    _, results, frames = bridged()
    dark = slice(BEFORE, BEFORE + DARK)
    assert all(r.blind for r in results[dark])
    found = errors(results, frames)[dark]
    assert found[:, 0].max() < 1.0
    assert found[:, 1].max() < 0.15
    assert all(np.isnan(r.depth_m).all() for r in results[dark])


def test_a_turn_in_the_dark_is_bridged():
    pipeline, results, frames = bridged()
    assert pipeline.counters["gaps_bridged"] == 1
    assert len(pipeline.map.components) == 1
    assert pipeline.map.pose_known
    found = errors(results, frames)[BEFORE + DARK :]
    assert found[:, 0].max() < 2.0
    assert found[:, 1].max() < 0.15
    assert not any(r.blind for r in results[-10:])
    # Nobody knows how well the position was held.
    assert results[-1].covariance_odom is None
    assert results[-1].covariance_map is None


@pytest.mark.long
def test_a_pan_that_blurs_all_images_is_bridged():
    pipeline, results, frames = run(fault=blurred)
    dark = results[BEFORE : BEFORE + DARK]
    assert sum(r.blind == "blurred" for r in dark) > DARK - 3
    assert pipeline.counters["gaps_bridged"] == 1
    assert len(pipeline.map.components) == 1
    off = errors(results, frames)
    assert off[BEFORE + DARK :, 0].max() < 2
    # The unit of the way after it is the network's, until the scale is measured again.
    assert off[BEFORE + DARK : BEFORE + DARK + 3, 1].max() < 0.15


@pytest.mark.long
def test_a_camera_that_is_carried_in_the_dark_is_not_bridged():
    """The gyro alone would go on at the place where it went dark."""
    pipeline, *_ = run(carried_m=0.7)
    assert pipeline.counters["gaps_bridged"] == 0
    assert len(pipeline.map.components) == 2


def test_a_gap_near_a_wall_is_not_bridged():
    """By its speed before, the camera may have moved by more than a quarter of the depth."""
    pipeline, results, frames = run(count=BEFORE + DARK // 2)
    steps, dark = pipeline._steps, results[-1]
    view = View(dark.id, dark.stamp_ns, frames[-1].image)
    assert steps.blind.bridge(view) is not None
    steps.blind.sight._camera("").depth /= 10
    assert steps.blind.bridge(view) is None


@pytest.mark.long
def test_a_gap_longer_than_the_limit_is_not_bridged():
    pipeline, *_ = run(**{"imu.bridge_s": 0.5})
    assert pipeline.counters["gaps_bridged"] == 0
    assert len(pipeline.map.components) == 2


@pytest.mark.long
def test_a_gyro_with_a_wrong_mount_is_named_and_not_used(caplog):
    pipeline, results, frames = run(mount=WRONG_MOUNT)
    assert pipeline.counters["gaps_bridged"] == 0
    assert len(pipeline.map.components) == 2
    assert sum(m.startswith("imu: not used") for m in caplog.messages) >= 1
    clean = errors(run(imu=False, count=BEFORE)[1], frames[:BEFORE])
    np.testing.assert_allclose(errors(results, frames)[:BEFORE], clean, atol=1e-6)


class Confused(TruthSession):
    """Has no idea how far the camera has turned, in each view from the tenth on."""

    def infer(self, window):
        out = super().infer(window)
        poses = out.T_window_camera.copy()
        for k, view in enumerate(window.views):
            if k >= len(window.views) - window.new and view.id > 16:
                wrong = Rotation.from_rotvec([0, 0.4 * (-1) ** view.id, 0]).as_matrix()
                poses[k, :3, :3] = poses[k, :3, :3] @ wrong
        return dataclasses.replace(out, T_window_camera=poses)


@pytest.mark.parametrize("refine", long_after(1, [False, True]))
def test_a_network_that_errs_by_far_is_corrected(refine):
    pipeline, with_imu, frames = run(network=Confused, refine=refine)
    assert pipeline.counters["windows_turned_by_gyro"] > 3
    assert errors(with_imu, frames)[:BEFORE, 0].max() < 2.0
    if not refine:
        _, without, _ = run(network=Confused, refine=refine, imu=False)
        assert errors(without, frames)[:BEFORE, 0].max() > 10


def test_an_unbiased_start_is_not_needed():
    pipeline, *_ = bridged()
    [(state, bias)] = pipeline.gyro.states.values()
    assert state == "agrees"
    assert bias > 0.003


@pytest.mark.long
def test_a_mount_that_is_wrong_by_little_makes_no_path_worse():
    """By three degrees: less than what is named."""
    camera = SyntheticCamera(3, SIZE, walk="loop", frames=80)
    frames, off = list(camera), {}
    stamps = np.array([f.stamp_ns for f in frames])
    samples = imu_samples(camera.T_room_camera, stamps, noise=ImuNoise(), seed=3)
    mount = np.eye(4)
    mount[:3, :3] = Rotation.from_rotvec(np.radians(3) * np.array([0.6, 0.0, 0.8])).as_matrix()
    noise = Noise(
        independent=0.02, smooth=0.03, per_frame=0.01, rotation_deg=0.1, translation=0.002
    )
    for imu in (False, True):
        config = config_from_parameters({
            "model": "da3-tiny", "window.size": 6, "process_res": SIZE[0], "imu.enabled": imu,
            "dense.enabled": False, "loop.enabled": False, "map.remove_movers": False,
        })  # fmt: skip
        pipeline, out = Pipeline(config, TruthSession(frames, noise=noise, seed=3)), []
        for f, stretch in zip(frames, [None, *samples.stretches(stamps, mount)], strict=True):
            out += pipeline.push(Frame(
                f.stamp_ns, f.image, calibration=camera.calibration, imu=stretch if imu else None,
            ))  # fmt: skip
        at = np.stack([r.T_odom_map @ r.T_map_camera for r in [*out, *pipeline.flush()]])
        true = np.stack([f.T_room_camera for f in frames])
        placed = Similarity.aligning(true, at).points(at[:, :3, 3])
        off[imu] = np.sqrt(((placed - true[:, :3, 3]) ** 2).sum(axis=1).mean())
    assert off[True] < 1.2 * off[False]
