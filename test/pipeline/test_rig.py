"""Two cameras in one pipeline, on exact windows of rendered rooms: one scene of all of them."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.rig_sync import RigSync
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import Calibration, Frame

SIZE = (140, 112)
NAMES = ("front", "left")


def mount(x=0.0, yaw_deg=0.0):
    """A camera beside the first one [4, 4]: metres to the right, turned to the left."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec([0, -np.radians(yaw_deg), 0]).as_matrix()
    T[0, 3] = x
    return T


def settings(**values):
    base = {
        "process_res": 140,
        "model": "da3-tiny",
        "checkpoint": "random",
        "refinement.enabled": False,
        "map.remove_movers": False,
        "window.size": 8,
        "cameras": list(NAMES),
    }
    return config_from_parameters({**base, **values})


class Rig:
    """Two cameras on one walk."""

    def __init__(self, T_front_left, **walk):
        walk = {"seed": 3, "size": SIZE, "walk": "loop", "frames": 16, "rate_hz": 5.0, **walk}
        self.mounts = {"front": np.eye(4), "left": T_front_left}
        self.cameras = {n: SyntheticCamera(mount=T, **walk) for n, T in self.mounts.items()}
        self.frames = {name: list(camera) for name, camera in self.cameras.items()}

    def frame(self, name, i, **changes):
        f = self.frames[name][i]
        frame = Frame(
            f.stamp_ns, f.image, f"{name}_optical", name, self.cameras[name].calibration,
            T_rig_camera=self.mounts[name],
        )  # fmt: skip
        return dataclasses.replace(frame, **changes)

    def framesets(self, keep=lambda name, i: True):
        for i in range(len(self.frames["front"])):
            frameset = [self.frame(name, i) for name in NAMES if keep(name, i)]
            if frameset:
                yield frameset

    def true(self, result):
        """The truth of one result."""
        return next(f for f in self.frames[result.camera] if f.stamp_ns == result.stamp_ns)


@pytest.fixture(scope="module")
def rig():
    return Rig(mount(0.2, 40))


def run(rig, config, framesets=None, session=None):
    pipeline = Pipeline(config, session or TruthSession(rig.frames))
    results = [r for frameset in framesets or rig.framesets() for r in pipeline.push(*frameset)]
    return pipeline, results + list(pipeline.flush())


def assert_one_scene(rig, results, first="front"):
    """All poses and depths are the truth's, in the unit of the first window."""
    begin = invert_pose(rig.true(next(r for r in results if r.camera == first)).T_room_camera)
    unit = np.nanmedian(results[0].depth_m / rig.true(results[0]).depth)
    for r in results:
        true = rig.true(r)
        expected = begin @ true.T_room_camera
        np.testing.assert_allclose(r.T_map_camera[:3, :3], expected[:3, :3], atol=5e-4)
        np.testing.assert_allclose(r.T_map_camera[:3, 3] / unit, expected[:3, 3], atol=5e-3)
        assert np.nanmax(np.abs(r.depth_m / true.depth / unit - 1)) < 5e-3


@pytest.mark.parametrize("new", [1, 2])
def test_two_cameras_make_one_scene_and_no_frame_comes_twice(rig, new):
    _, results = run(rig, settings(**{"window.new": new}))
    expected = [
        (n, f.stamp_ns)
        for fs in zip(*rig.frames.values(), strict=True)
        for n, f in zip(NAMES, fs, strict=True)
    ]
    assert [(r.camera, r.stamp_ns) for r in results] == expected
    assert all(r.frame_id == f"{r.camera}_optical" for r in results)
    assert_one_scene(rig, results)
    assert [r.is_reference for r in results] == [True, False] * 16


def test_the_window_of_two_cameras_shares_views_of_both(rig):
    _, results = run(rig, settings())
    owner = {r.id: r.camera for r in results}
    for r in results[4::2]:
        ids = r.window.view_ids
        assert r.window.new_frames == 2
        assert len(ids) <= 8
        assert {owner[i] for i in ids[:-2]} == set(NAMES)
        assert [owner[i] for i in ids[-2:]] == list(NAMES)
    assert len(results[-1].window.view_ids) == 8


def test_missing_frames_of_one_camera_stop_nothing(rig):
    gone = {("front", 5), ("left", 3), *(("left", i) for i in range(8, 12))}
    _, results = run(rig, settings(), rig.framesets(lambda n, i: (n, i) not in gone))
    assert len(results) == 32 - len(gone)
    assert_one_scene(rig, results)
    assert results[-1].window.new_frames == 2


def test_the_scene_begins_at_a_camera_that_comes_alone(rig):
    _, results = run(rig, settings(), rig.framesets(lambda n, i: n == "left" or i > 4))
    assert_one_scene(rig, results, first="left")


@pytest.mark.slow
def test_the_path_is_the_first_cameras_and_the_map_is_of_all(rig):
    pipeline, results = run(rig, settings())
    assert [p.stamp_ns for p in pipeline.poses()] == [
        r.stamp_ns for r in results if r.camera == "front"
    ]
    keyframes = {r.camera for r in results if r.keyframe}
    assert keyframes == set(NAMES)
    front_only = Pipeline(settings(), TruthSession(rig.frames))
    for frameset in rig.framesets():
        list(front_only.push(frameset[0]))
    assert len(pipeline.map) > 1.2 * len(front_only.map)


def test_after_refusals_each_camera_goes_on_where_it_was(rig):
    class Lost(TruthSession):
        calls = 0

        def infer(self, window):
            self.calls += 1
            prediction = super().infer(window)
            if 6 <= self.calls < 11:
                scale = np.exp(np.random.default_rng(self.calls).normal(size=len(window.views)))
                prediction = dataclasses.replace(
                    prediction,
                    depth=prediction.depth * scale[:, None, None].astype(np.float32),
                )
            return prediction

    pipeline, results = run(rig, settings(), session=Lost(rig.frames))
    assert pipeline.counters["windows_refused"] == 5
    later = [r for r in results if r.window.chain == 1]
    assert len(later) == 12
    # The rig keeps its shape in the new chain.
    front, left = later[0], later[1]
    ours = invert_pose(front.T_map_camera) @ left.T_map_camera
    np.testing.assert_allclose(ours[:3, :3], rig.mounts["left"][:3, :3], atol=1e-3)
    before = [r for r in results if r.window.chain == 0 and r.camera == "front"][-1]
    np.testing.assert_allclose(front.T_map_camera, before.T_map_camera, atol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_a_time_jump_of_both_cameras_is_one_jump(rig):
    pipeline = Pipeline(settings(), TruthSession(rig.frames))
    for _ in range(2):
        results = [r for frameset in rig.framesets() for r in pipeline.push(*frameset)]
    assert pipeline.counters["time_jumps"] == 1
    assert len(results) == 32
    np.testing.assert_allclose(results[0].T_map_camera, np.eye(4), atol=1e-9)


def test_a_camera_of_another_shape_is_left_out_with_the_remedy(rig, caplog):
    wide = SyntheticCamera(seed=3, size=(140, 84), walk="loop", frames=4, rate_hz=5.0)
    pipeline = Pipeline(settings(), TruthSession(rig.frames))
    results = []
    for i, f in enumerate(wide):
        left = Frame(f.stamp_ns, f.image, "left_optical", "left", wide.calibration)
        results += pipeline.push(rig.frame("front", i), left)
    assert [r.camera for r in results] == ["front"] * 4
    assert pipeline.counters["dropped_other_size"] == 4
    assert caplog.text.count("set window.mode to independent") == 1
    assert pipeline.builder.network_size == SIZE


def test_unequal_stamps_are_kept_and_grouped(rig):
    sync, pipeline = RigSync.of(settings()), Pipeline(settings(), Late(rig.frames))
    frames = []
    for i in range(8):
        left = rig.frame("left", i)
        frames += [rig.frame("front", i), dataclasses.replace(left, stamp_ns=left.stamp_ns + LATE)]
    framesets = [i for f in frames for i in sync.add(f)] + sync.flush()
    results = [r for i in framesets for r in pipeline.push(*i.frames)]
    assert [len(i) for i in framesets] == [2] * 8
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in frames]
    assert results[-1].window.stamp_ns == frames[-1].stamp_ns


LATE = 3_000_000


class Late(TruthSession):
    """Knows left's frames by stamps that are a little later."""

    def __init__(self, frames):
        late = [dataclasses.replace(f, stamp_ns=f.stamp_ns + LATE) for f in frames["left"]]
        super().__init__({**frames, "left": late})


SIDE = 28
LENS = np.array([[20.0, 0, 14], [0, 20.0, 14], [0, 0, 1]])
ROUGH = Noise(0.01, 0.02, 0.01, 0.5, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("near", "far"), [(0.5, 20), (1, 20)])
def test_a_near_and_a_far_camera_stay_one_chain(near, far):
    """What the near camera sees is small beside how sure places of such a scene are."""
    slope = np.linspace(0.9, 1.1, SIDE)[:, None] * np.ones((1, SIDE))
    truth = {
        name: [
            Truth(10**8 * (k + 1), (depth * slope).astype(np.float32), ahead(0.1 * k, yaw), LENS)
            for k in range(60)
        ]
        for name, depth, yaw in (("front", far, 0), ("left", near, 90))
    }
    config = settings(**{"process_res": SIDE, "window.size": 6, "map.voxel_m": 0.5})
    pipeline = Pipeline(config, TruthSession(truth, seed=0, noise=ROUGH))
    lens = LENS.copy()
    lens[:2, 2] -= 0.5
    black, seen = np.zeros((SIDE, SIDE, 3), np.uint8), Calibration(SIDE, SIDE, lens)
    for k in range(60):
        at = 10**8 * (k + 1)
        list(pipeline.push(*(Frame(at, black, n, n, calibration=seen) for n in NAMES)))
    assert pipeline.counters["windows_refused"] <= 3
    assert pipeline.map.table.chain == 0


def ahead(x, yaw):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", yaw, degrees=True).as_matrix()
    T[2, 3] = x
    return T


@pytest.mark.long
def test_refinement_keeps_the_known_geometry_of_the_rig():
    rig = Rig(mount(0.2, 40), size=(224, 168), frames=10)
    noise = Noise(smooth=0.05, per_frame=0.02, rotation_deg=0.3, translation=0.01)

    def turn_error_deg(**values):
        session = TruthSession(rig.frames, noise=noise)
        config = settings(**{"process_res": 224, "dense.enabled": False, **values})
        _, results = run(rig, config, session=session)
        turns = [
            (invert_pose(a.T_map_camera) @ b.T_map_camera)[:3, :3]
            for a, b in zip(results[::2], results[1::2], strict=True)
        ]
        error = Rotation.from_matrix(rig.mounts["left"][:3, :3].T @ np.array(turns))
        return np.degrees(error.magnitude().mean())

    assert turn_error_deg(**{"refinement.enabled": True}) < turn_error_deg() / 2.5
