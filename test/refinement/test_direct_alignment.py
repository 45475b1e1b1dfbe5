"""Direct alignment of small images to images with depth."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.refinement.direct_alignment import WIDTH, AlignmentImage, aligned_pose
from da3_ros.refinement.track_noise import PoseNoise
from da3_ros.synthetic import Pace, SyntheticCamera

SIZE = (256, 192)
DEPTH_SIGMA = 0.05
START = PoseNoise(0.03, 0.05)


@pytest.fixture(scope="module")
def camera():
    """A walk sideways along plain walls."""
    return SyntheticCamera(
        104, SIZE, walk="loop", frames=30, pace=Pace(6.0, 0.3, 15.0), plain=True
    )


@pytest.fixture(scope="module")
def frames(camera):
    return [camera[k] for k in (10, 11, 14)]


def small(frame, usable=None, factor=1.0, image=None):
    depth = np.where(np.isfinite(frame.depth), factor * frame.depth, np.nan).astype(np.float32)
    return AlignmentImage.of(frame.image if image is None else image, usable, depth)


def motion(a, b):
    return np.linalg.inv(a.T_room_camera) @ b.T_room_camera


def errors(T, wanted):
    """Degrees, and metres."""
    turn = Rotation.from_matrix(T[:3, :3].T @ wanted[:3, :3]).magnitude()
    return np.degrees(turn), np.linalg.norm(T[:3, 3] - wanted[:3, 3])


def off(T):
    """A start that is a degree and two centimetres away."""
    out = T.copy()
    out[:3, :3] = out[:3, :3] @ Rotation.from_rotvec([0.0, np.radians(1.0), 0.0]).as_matrix()
    out[0, 3] += 0.02
    return out


@pytest.mark.parametrize("k", [1, 2])
def test_a_view_of_plain_walls_is_placed(frames, k):
    wanted = motion(frames[0], frames[k])
    K = frames[0].K
    found = aligned_pose(small(frames[0]), small(frames[k]), K, K, off(wanted), DEPTH_SIGMA, START)
    turn, move = errors(found, wanted)
    assert turn < 0.1
    assert move < 0.006


@pytest.mark.parametrize(("factor", "offset"), [(0.6, 12), (0.4, 0), (0.5, 80), (1.6, -30)])
def test_exposure_does_not_matter(frames, factor, offset):
    wanted, K = motion(frames[0], frames[1]), frames[0].K
    other = (factor * frames[1].image.astype(float) + offset).clip(0, 255).astype(np.uint8)
    view = small(frames[1], image=other)
    found = aligned_pose(small(frames[0]), view, K, K, off(wanted), DEPTH_SIGMA, START)
    assert errors(found, wanted)[0] < 0.25


def test_where_brightness_says_nothing_the_start_pose_stays(frames):
    """A bare wall with one edge: nothing is known along it."""
    image = np.full((*SIZE[::-1], 3), 120, np.uint8)
    image[:, SIZE[0] // 2 :] = 170
    image = (image + np.random.default_rng(0).normal(0, 2, image.shape)).clip(0, 255)
    shifted = np.roll(image, 4, axis=1)
    shifted[:, :4] = 120
    depth, K = np.full(SIZE[::-1], 2.0, np.float32), frames[0].K
    one, other = (AlignmentImage.of(i.astype(np.uint8), None, depth) for i in (image, shifted))
    start = np.eye(4)
    start[1, 3] = 0.03
    found = aligned_pose(one, other, K, K, start, DEPTH_SIGMA, START)
    assert found is None or errors(found, start)[1] < 0.1


def test_lengths_are_in_the_unit_of_depth(frames):
    wanted, K = motion(frames[0], frames[2]), frames[0].K
    start = wanted.copy()
    start[:3, 3] *= 2
    found = aligned_pose(
        small(frames[0], factor=2.0), small(frames[2]), K, K, start, DEPTH_SIGMA, START
    )
    assert errors(found, start)[1] < 0.015


def test_masked_pixels_do_not_count(frames):
    """A part of the robot that moves with the camera says that it stands."""
    wanted, K = motion(frames[0], frames[2]), frames[0].K
    rows = SIZE[1] // 3
    body = np.random.default_rng(0).integers(0, 256, (rows, SIZE[0], 3), np.uint8)
    body = np.repeat(np.repeat(body[::8, ::8], 8, 0), 8, 1)[:rows, : SIZE[0]]
    images = []
    usable = np.ones(SIZE[::-1], bool)
    usable[-rows:] = False
    for frame in (frames[0], frames[2]):
        image = frame.image.copy()
        image[-rows:] = body
        images.append(small(frame, usable, image=image))
    found = aligned_pose(*images, K, K, wanted, DEPTH_SIGMA, START)
    assert errors(found, wanted)[1] < 0.02
    unmasked = [AlignmentImage(i.grey, i.log_depth, None) for i in images]
    for image, frame in zip(unmasked, (frames[0], frames[2]), strict=True):
        image.log_depth[:] = small(frame).log_depth
    found = aligned_pose(*unmasked, K, K, wanted, DEPTH_SIGMA, START)
    assert found is None or errors(found, wanted)[1] > 0.04


@pytest.mark.parametrize("what", ["another room", "noise", "grey"])
def test_another_scene_is_not_aligned(frames, what):
    K = frames[0].K
    rng = np.random.default_rng(0)
    other = {
        "another room": SyntheticCamera(105, SIZE, walk="loop", frames=30, plain=True)[3].image,
        "noise": rng.integers(0, 256, (*SIZE[::-1], 3), np.uint8),
        "grey": np.full((*SIZE[::-1], 3), 90, np.uint8),
    }[what]
    view = small(frames[1], image=other)
    assert aligned_pose(small(frames[0]), view, K, K, np.eye(4), DEPTH_SIGMA, START) is None


def test_no_depth_no_pose(frames):
    K = frames[0].K
    known = AlignmentImage.of(frames[0].image, None, np.full(SIZE[::-1], np.nan, np.float32))
    assert aligned_pose(known, small(frames[1]), K, K, np.eye(4), DEPTH_SIGMA, START) is None


@pytest.mark.parametrize("size", [(8, 6), (28, 28), (640, 90)])
def test_small_and_flat_images_are_no_fault(size):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
    depth = np.ones((5, 7), np.float32)
    one = AlignmentImage.of(image, None, depth)
    assert one.grey.shape[1] <= WIDTH
    K = np.array([[20.0, 0, 4], [0, 20.0, 3], [0, 0, 1]])
    found = aligned_pose(one, AlignmentImage.of(image, None, depth), K, K, np.eye(4), 0.1, START)
    assert found is None or errors(found, np.eye(4))[0] < 1
    one.release()
    assert "levels" not in one.__dict__
