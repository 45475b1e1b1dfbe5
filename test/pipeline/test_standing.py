"""A robot that stands does not drift; one that creeps is not held, whatever moves before it."""

import dataclasses
import itertools

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.standing import by_imu, by_odometry, stands
from da3_ros.refinement.still_image import ImageMotion, StillImage
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame, ImuStretch, View

SIZE = (126, 98)
NOISE = Noise(
    independent=0.02, smooth=0.02, per_frame=0.01, rotation_deg=0.2, translation=0.003
)  # of a good network
DRIVE = 14  # frames before and after the stand


def frames_at(poses, rate_hz=2.0):
    """Rendered frames with image noise at poses of the room."""
    camera = SyntheticCamera(3, SIZE, walk="loop", frames=2, rate_hz=rate_hz, noise_sigma=2.0)
    camera.T_room_camera = np.stack(poses)
    return camera, list(camera)


def drive(frames=2 * DRIVE):
    return list(SyntheticCamera(3, SIZE, walk="loop", frames=frames, rate_hz=2.0).T_room_camera)


def run(camera, frames, priors=None, stretches=None, folder=None, **values):
    settings = {
        "process_res": SIZE[0], "model": "da3-tiny", "checkpoint": "random", "window.size": 6,
        "dense.enabled": False, "map.remove_movers": False, "refinement.enabled": False, **values,
    }  # fmt: skip
    session = TruthSession(frames, seed=1, noise=NOISE)
    pipeline, out = Pipeline(config_from_parameters(settings), session), []
    sizes = []
    if folder is not None:
        pipeline.store(folder, None, DiskLimit(), wait=True)
    for f, T, imu in itertools.zip_longest(frames, priors or (), stretches or ()):
        given = Frame(
            f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=T, imu=imu
        )
        out += pipeline.push(given)
        sizes.append((len(pipeline.map), len(pipeline.map.submaps), pipeline.loops.found))
    return pipeline, out, sizes


def apart(a, b):
    """Distance, and angle in degrees, between two poses."""
    T = invert_pose(a) @ b
    return np.linalg.norm(T[:3, 3]), np.degrees(Rotation.from_matrix(T[:3, :3]).magnitude())


def stood(refined, count):
    """A walk with a stand of ``count`` frames in its middle: pipeline, results, frames."""
    way = drive()
    poses = way[:DRIVE] + [way[DRIVE - 1]] * count + way[DRIVE:]
    camera, frames = frames_at(poses)
    return (*run(camera, frames, **{"refinement.enabled": refined}), frames)


def check_stand(refined, count):
    pipeline, out, sizes, frames = stood(refined, count)
    begin, end = DRIVE + 3, DRIVE + count  # held after a second
    assert pipeline.counters["frames_standing"] == end - begin + 2
    first = out[begin]
    for r, f in zip(out[begin:end], frames[begin:end], strict=True):
        assert max(apart(first.T_map_camera, r.T_map_camera)) < 1e-9
        np.testing.assert_allclose(r.covariance_odom, first.covariance_odom, rtol=1e-9)
        assert not r.keyframe
        assert not r.blind
        assert (r.scale, r.window.chain) == (first.scale, first.window.chain)
        depth = r.depth_m / f.depth  # in the unit of the map
        assert np.nanmedian(depth) == pytest.approx(
            np.nanmedian(first.depth_m / frames[begin].depth), rel=0.02
        )
        assert np.nanmedian(np.abs(depth / np.nanmedian(depth) - 1)) < 0.05
    assert len(set(sizes[begin:end])) == 1  # points, submaps, loops
    ways = [
        np.linalg.norm(out[b].T_map_camera[:3, 3] - out[a].T_map_camera[:3, 3])
        / np.linalg.norm(frames[b].T_room_camera[:3, 3] - frames[a].T_room_camera[:3, 3])
        for a, b in ((0, DRIVE - 1), (DRIVE - 1, len(out) - 1))
    ]
    assert ways[1] == pytest.approx(ways[0], rel=0.1)  # the unit after the stand is that before
    return out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("refined", long_after(1, [False, True]))
def test_nothing_drifts_while_a_robot_stands(refined):
    """The pose is held, the covariance does not grow, the map stays; depth goes on. Then it drives
    on."""
    out = check_stand(refined, 24)
    if refined:
        assert out[-1].window.refined


def test_stored_and_saved_scenes_have_one_unit_while_a_robot_stands(tmp_path):
    """That of the newest window which has moved odometry."""
    way = drive()[:10]
    camera, frames = frames_at(way + [way[-1]] * 8)
    pipeline, _, _ = run(camera, frames, folder=tmp_path / "scene")
    assert pipeline.counters["frames_standing"] > 3
    unit = pipeline.snapshot().unit
    assert pipeline.scene_map.finish_recording(10)
    with StoredScene.open(tmp_path / "scene") as stored:
        assert stored.map.unit == unit


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("refined", [False, True])
def test_nothing_drifts_in_ten_minutes(refined):
    check_stand(refined, 1200)


@pytest.mark.slow
@pytest.mark.long
def test_a_slow_creep_loses_no_way():
    """A millimetre per second: the pose is held in between, and no way is lost."""
    way = drive()[:DRIVE]
    R, t = way[-1][:3, :3], way[-1][:3, 3]
    poses = list(way)
    for k in range(120):
        T = way[-1].copy()
        T[:3, 3] = t + 0.0005 * k * R[:, 0]  # sideways
        poses.append(T)
    camera, frames = frames_at(poses)
    pipeline, out, _ = run(camera, frames, **{"refinement.enabled": True})
    held = pipeline.counters["frames_standing"]
    assert 30 < held < 115
    unit = np.linalg.norm(out[DRIVE - 1].T_map_camera[:3, 3] - out[0].T_map_camera[:3, 3])
    unit /= np.linalg.norm(poses[DRIVE - 1][:3, 3] - poses[0][:3, 3])
    base = out[DRIVE].T_map_camera
    moved = np.array([(invert_pose(base) @ r.T_map_camera)[0, 3] for r in out[DRIVE:]]) / unit
    true = 0.0005 * np.arange(120)
    runs = [len(list(same)) for _, same in itertools.groupby(moved.round(9))]
    assert 3 < max(runs) < 15  # 6 mm are two tenths of a pixel
    assert moved[-1] == pytest.approx(true[-1], abs=0.012)
    assert np.abs(moved - true).max() < 0.02


def conveyor(frames):
    """The right half of each image moves by three pixels per frame, up and down."""
    out = []
    for k, f in enumerate(frames):
        image = f.image.copy()
        half = image[:, SIZE[0] // 2 :]
        image[:, SIZE[0] // 2 :] = np.roll(half, 3 * k, axis=0)
        out.append(dataclasses.replace(f, image=image))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("knows", long_after(1, [True, False]))
def test_a_conveyor_moves_no_robot_whose_odometry_stands(knows):
    way = drive()[:DRIVE]
    camera, frames = frames_at(way + [way[-1]] * 20)
    frames = frames[:DRIVE] + conveyor(frames[DRIVE:])
    priors = [invert_pose(way[0]) @ f.T_room_camera for f in frames]
    pipeline, out, _ = run(camera, frames, priors if knows else None)
    assert (pipeline.counters["frames_standing"] > 10) == knows
    if knows:
        assert max(apart(out[-1].T_map_camera, out[-10].T_map_camera)) < 1e-9


@pytest.mark.slow
def test_a_robot_that_drives_before_a_scene_that_comes_along_is_not_held():
    """Each image is the same, as in front of a moving wall: odometry says that it drives."""
    way = drive()[:DRIVE]
    camera, frames = frames_at(way + [way[-1]] * 12)
    priors = [np.eye(4) for _ in frames]
    for k, T in enumerate(priors):
        T[0, 3] = 0.1 * k
    pipeline, _, _ = run(camera, frames, priors)
    assert not pipeline.counters["frames_standing"]


@pytest.mark.slow
def test_a_standing_robot_without_metres_still_gets_them():
    """What measures at rest goes on until the scale is known."""
    camera, frames = frames_at([drive()[0]] * 16)

    class Ruler:
        def measure(self, window, estimate):
            from da3_ros.types import ScaleMeasurement

            measure = ScaleMeasurement(1 / session.unit, 0.02)
            return dataclasses.replace(estimate, measure=measure)

    config = config_from_parameters({
        "process_res": SIZE[0], "model": "da3-tiny", "checkpoint": "random", "window.size": 4,
        "scale.source": "metric_model", "refinement.enabled": False, "dense.enabled": False,
        "map.remove_movers": False,
    })  # fmt: skip
    session = TruthSession(frames, seed=1, noise=NOISE)
    pipeline, out = Pipeline(config, session, Ruler()), []
    for f in frames:
        out += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    assert [r.scale.metric for r in out] == [False] * 2 + [True] * 14
    assert pipeline.counters["frames_standing"] >= 12
    assert np.nanmedian(out[-1].depth_m / frames[-1].depth) == pytest.approx(1.0, rel=0.05)


# What comes along with the camera


def with_body(image):
    """A sharp pattern in the lower sixth, in fog that takes four fifths of the contrast."""
    image = (128 + 0.2 * (image.astype(float) - 128)).astype(np.uint8)
    image[-SIZE[1] // 6 :] = 250
    image[-SIZE[1] // 6 :: 6, ::6] = 5
    image[-SIZE[1] // 6 + 1 :: 6, ::6] = 5
    image[-SIZE[1] // 6 :: 6, 1::6] = 5
    return image


def with_text(image):
    """Two lines of text, in dusk."""
    image = np.ascontiguousarray((0.3 * image.astype(float)).astype(np.uint8))
    for text, row in (("CAM 01 2026-11-27", 10), ("BAT 12V ALT 10m", SIZE[1] - 4)):
        cv2.putText(image, text, (2, row), 0, 0.35, (255, 255, 255), 1)
    return image


def with_drops(image):
    """Dark drops on the lens, in fog."""
    image = np.ascontiguousarray((128 + 0.3 * (image.astype(float) - 128)).astype(np.uint8))
    for x, y in np.random.default_rng(0).integers(6, (SIZE[0] - 6, SIZE[1] - 6), (14, 2)):
        cv2.circle(image, (int(x), int(y)), 2, (20, 20, 20), -1)
    return image


def with_bad_pixels(image):
    """Pixels of the sensor that are always bright, at night."""
    image = (20 + 0.15 * (image.astype(float) - 128)).clip(0, 255).astype(np.uint8)
    image[np.random.default_rng(0).random(image.shape[:2]) < 0.006] = 255
    return image


@pytest.fixture(scope="module")
def walk():
    return frames_at(list(SyntheticCamera(3, SIZE, walk="loop", frames=24).T_room_camera), 5.0)


@pytest.mark.parametrize("fixed", [with_body, with_text, with_drops, with_bad_pixels])
def test_what_is_fixed_in_the_image_does_not_speak_for_it(walk, fixed):
    _, frames = walk
    f, g = frames[8], frames[12]
    image = StillImage(fixed(f.image), None, f.depth)
    assert not stands(image.motion_to(fixed(g.image)), None, None)
    assert not stands(image.motion_to(fixed(g.image)), None, True)
    again = fixed(f.image) + np.random.default_rng(1).integers(0, 3, f.image.shape, np.uint8)
    assert stands(image.motion_to(again), True, None)


@pytest.mark.parametrize("told", [None, np.eye(4)])
def test_a_robot_that_windows_see_moving_is_not_held(walk, told):
    """All images show one thing; odometry is silent, or repeats its pose without any noise."""
    camera, frames = walk
    rng = np.random.default_rng(1)
    same = [
        dataclasses.replace(f, image=frames[0].image // 2
                            + rng.integers(0, 4, f.image.shape, np.uint8))
        for f in frames
    ]  # fmt: skip
    pipeline, out, _ = run(camera, same, None if told is None else [told] * len(frames))
    assert not pipeline.counters["frames_standing"]
    # As far as it truly moves, where odometry gives no unit.
    moved = apart(out[0].T_map_camera, out[12].T_map_camera)[0]
    true = apart(frames[0].T_room_camera, frames[12].T_room_camera)[0]
    assert told is not None or moved > 0.5 * true


@pytest.mark.parametrize("noisy", [False, True])
def test_what_images_alone_hold_is_less_certain(noisy):
    """A motion that a window would not notice is stated; not so where odometry measures rest."""
    way = drive()[:DRIVE]
    camera, frames = frames_at(way + [way[-1]] * 8)
    rng = np.random.default_rng(0)
    priors = [invert_pose(way[0]) @ f.T_room_camera for f in frames]
    for T in priors:
        T[:3, 3] += 1e-4 * rng.standard_normal(3)
    pipeline, out, _ = run(camera, frames, priors if noisy else None)
    assert pipeline.counters["frames_standing"] > 4
    placed, held = (np.sqrt(np.diag(out[k].covariance_odom)[:3]) for k in (DRIVE, -1))
    assert (held > 1.05 * placed).all() != noisy


# Who decides


STILL, MOST, HALF, FILLED, ALL = (
    ImageMotion(s, s, s, 0.02) for s in (0.97, 0.7, 0.5, 0.2, 0.05)
)  # fmt: skip
FAR = ImageMotion(0.85, 0.4, 0.8, 0.02)  # what is near has moved
SMALL = ImageMotion(0.97, 0.97, 0.2, 0.02)  # a text on a picture that shows nothing else
CREEPS = ImageMotion(1.0, 1.0, 1.0, 0.3)
FEW = ImageMotion(float("nan"), float("nan"), 0.0, float("inf"))


@pytest.mark.parametrize(
    ("motion", "said", "held"),
    [
        (STILL, (None, None), True),
        (STILL, (True, None), True),
        (STILL, (False, None), False),
        (STILL, (True, False), False),
        (HALF, (None, None), False),
        (HALF, (True, None), True),
        (MOST, (None, None), False),
        (MOST, (None, True), True),
        (HALF, (None, True), False),
        (HALF, (True, False), False),
        (FAR, (None, None), False),
        (FAR, (None, True), True),
        (FILLED, (True, None), False),
        (FILLED, (True, True), True),
        (ALL, (True, True), False),
        (SMALL, (None, None), False),
        (SMALL, (True, None), True),
        (FEW, (None, None), False),
        (FEW, (True, None), False),
        (FEW, (True, True), True),
        (CREEPS, (None, None), False),
        (CREEPS, (True, True), False),
    ],
)
def test_who_decides_whether_a_robot_stands(motion, said, held):
    assert stands(motion, *said) == held


def test_odometry_says_whether_the_robot_stands():
    def view(T):
        return View(0, 0, np.zeros((2, 2, 3), np.uint8), T_prior_camera=T)

    def at(x=0.0, turn=0.0):
        T = np.eye(4)
        T[:3, :3] = Rotation.from_rotvec([0, 0, turn]).as_matrix()
        T[0, 3] = x
        return T

    assert by_odometry(view(at()), view(at(0.0005))) is True
    assert by_odometry(view(at()), view(at(0.03))) is False
    assert by_odometry(view(at()), view(at(0.0, 0.1))) is False
    assert by_odometry(view(at()), view(at(0.008))) is None
    assert by_odometry(view(at()), view(None)) is None
    assert by_odometry(view(at(np.nan)), view(at())) is None


def stretch(
    gyro, acceleration, bias=(0.0, 0.0, 0.0), force=(0.0, 0.0, 0.0), stamps_ns=(0, 250_000_000)
):
    """50 samples of an IMU that shakes (standard deviations of its axes), turns with ``bias`` and
    is moved by ``force``."""
    rng = np.random.default_rng(0)
    return ImuStretch(
        np.linspace(*stamps_ns, 50).astype(np.int64), bias + gyro * rng.standard_normal((50, 3)),
        [0, -9.8, 0] + np.array(force) + acceleration * rng.standard_normal((50, 3)), np.zeros(3),
    )  # fmt: skip


def test_an_imu_says_whether_the_robot_stands():
    """One that shakes does not tell: neither an engine that idles nor a motor moves a robot."""

    def said(*values, first=None, **named):
        return by_imu(first or stretch(0.003, 0.03), stretch(*values, **named))

    assert said(0.003, 0.03, (0.02, 0.0, -0.01)) is True
    assert said(0.003, 0.03, (0.3, 0.0, 0.0)) is False  # an even turn
    assert said(0.003, 2.0, (0.3, 0.0, 0.0)) is False
    assert said(0.02, 0.2) is None
    assert said(0.003, 2.0) is None
    assert said(0.3, 0.03) is None
    # A lift that starts, smoothly, or with a motor that shakes; and one that had started before.
    assert said(0.003, 0.03, force=(0.0, 0.5, 0.0)) is False
    assert said(0.003, 0.5, force=(0.0, 1.0, 0.0)) is False
    assert said(0.003, 2.0, force=(0.0, 0.5, 0.0)) is None
    assert said(0.003, 0.03, first=stretch(0.003, 0.03, force=(0.0, 0.5, 0.0))) is False


def shaken(frames, acceleration, force=lambda seconds: 0.0):
    """Stretches before all frames of a robot that shakes, and has a vertical ``force``."""
    out = [None]
    for k, (a, b) in enumerate(itertools.pairwise(frames)):
        one = stretch(0.02, acceleration, stamps_ns=(a.stamp_ns, b.stamp_ns))
        seconds = (one.stamps_ns - frames[0].stamp_ns) / 1e9
        one.acceleration[:] = np.roll(one.acceleration, k, axis=0)
        one.acceleration[:, 1] -= np.vectorize(force)(seconds)
        out.append(one)
    return out


@pytest.mark.parametrize("mm_per_s", [0, 5])
def test_a_robot_whose_engine_idles_is_held_unless_it_moves(mm_per_s):
    """Its IMU shakes, and says nothing; its images say whether it creeps."""
    at = drive()[0]
    poses = [at.copy() for _ in range(20)]
    for k, T in enumerate(poses):
        T[:3, 3] += 0.001 * mm_per_s * k / 2 * T[:3, 0]  # sideways
    camera, frames = frames_at(poses)
    pipeline, out, _ = run(camera, frames, stretches=shaken(frames, 1.0), **{"imu.enabled": True})
    held = pipeline.counters["frames_standing"]
    assert held > 14 if mm_per_s == 0 else held < 4
    if mm_per_s == 0:
        assert max(apart(out[6].T_map_camera, out[-1].T_map_camera)) < 1e-9


def test_a_lift_that_starts_is_not_held():
    """Its images show what comes along; its IMU feels it, though it hardly shakes: for a second
    from each change on, as the constant speed between is rest to it."""
    camera, frames = frames_at([drive()[0]] * 20)
    from_s, to_s = 4.0, 5.0

    def force(seconds):
        return 0.8 * max(0.0, min(1.0, seconds - from_s, to_s + 1 - seconds))

    def held(stretches):
        pipeline, *_ = run(camera, frames, stretches=stretches, **{"imu.enabled": True})
        return pipeline.counters["frames_standing"]

    at_rest, in_lift = held(shaken(frames, 0.05)), held(shaken(frames, 0.05, force))
    assert at_rest > 14
    assert at_rest - in_lift > 3
