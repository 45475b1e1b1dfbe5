"""Viewpoints of videos: smooth, with everything or the camera in the picture."""

import numpy as np
import pytest

from da3_ros.drawing.camera_motion import along_path, orbit
from da3_ros.drawing.scene_drawing import Drawing

SIZE, RATE, COUNT = (320, 180), 10, 100
NO_LINES = np.zeros((0, 2, 3))
LEVEL = np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]])  # optical axes; looks along x
DOWN = np.array([[0.0, -1, 0], [-1, 0, 0], [0, 0, -1]])  # the picture's upper side is ahead


def poses(positions, R=LEVEL):
    T = np.tile(np.eye(4), (len(positions), 1, 1))
    T[:, :3, :3], T[:, :3, 3] = R, positions
    return T


def walk(start=0.0, length=4.0, R=LEVEL, steps=40):
    return poses(
        np.column_stack((np.linspace(start, start + length, steps), *np.zeros((2, steps)))), R
    )


def drawing(*chains):
    """Points two metres beside the path."""
    rng = np.random.default_rng(0)
    points = np.column_stack((rng.uniform(0, 4, 500), np.full(500, 2.0), rng.uniform(-1, 1, 500)))
    path = np.concatenate([np.stack((s[:-1, :3, 3], s[1:, :3, 3]), 1) for s in chains])
    rgb = np.zeros((500, 3), np.uint8)
    return Drawing(points.astype(np.float32), rgb, NO_LINES, path, chains)


def followed(*chains, count=COUNT):
    shots = list(along_path(drawing(*chains), SIZE, count, RATE))
    eyes = np.array([shot.viewpoint.eye for shot in shots])
    looks = np.array([shot.viewpoint.R[2] for shot in shots])
    return shots, eyes, looks


@pytest.mark.parametrize("scale", [0.01, 1.0, 1000.0])
def test_an_orbit_has_all_points_in_every_picture_and_closes(scale):
    points = scale * np.random.default_rng(0).uniform((-3, -1, 0), (5, 1, 2), (300, 3))
    shots = list(orbit(points, np.array([0.0, 1.0]), SIZE, 48))
    farthest = 0.0
    for shot in shots:
        pixels, depth = shot.viewpoint.project(points)
        assert (depth > 0).all()
        assert (pixels >= 0).all()
        assert (pixels <= SIZE).all()
        farthest = max(farthest, np.abs(pixels / SIZE - 0.5).max())
    assert farthest > 0.4, "the scene fills the picture"
    eyes = np.array([shot.viewpoint.eye for shot in shots])
    steps = np.linalg.norm(np.diff(np.concatenate((eyes, eyes[:1])), axis=0), axis=1)
    assert steps == pytest.approx(steps[0])
    assert eyes[0, 1] < points[:, 1].min(), "it begins behind the camera, which looks along y"


@pytest.mark.parametrize("R", [LEVEL, DOWN, DOWN @ np.diag([-1, 1, -1])])
def test_the_camera_is_ahead_in_the_picture(R):
    shots, eyes, looks = followed(walk(R=R))
    assert len(shots) == COUNT
    assert (looks[:, 2] < 0).all(), "it looks down"
    assert (np.abs(looks[:, 2]) < 0.95).all(), "a picture has an upper side"
    for shot in shots:
        pixels, depth = shot.viewpoint.project(shot.lines)
        assert (depth > shot.viewpoint.near).all()
        assert (pixels >= 0).all()
        assert (pixels <= SIZE).all()
    np.testing.assert_allclose(np.diff(eyes[20:-20, 0]), 4 / (COUNT - 1), rtol=1e-4)


def test_noise_of_the_poses_does_not_shake_the_picture():
    noisy = walk()
    noisy[:, :3, 3] += np.random.default_rng(0).normal(0, 0.05, (40, 3))
    _, eyes, looks = followed(noisy, count=300)
    raw = np.abs(np.diff(noisy[:, :3, 3], 2, axis=0)).max()
    assert np.abs(np.diff(eyes, 2, axis=0)).max() < raw / 20
    assert np.linalg.norm(np.diff(looks, axis=0), axis=1).max() < 0.01


def test_a_camera_that_stands_takes_no_time_and_one_that_turns_does():
    stood = np.concatenate((walk(), np.repeat(walk()[-1:], 500, axis=0)))
    np.testing.assert_allclose(followed(stood)[1], followed(walk())[1], atol=1e-3)
    angles = np.linspace(0, np.pi / 2, 30)
    turning = np.repeat(walk()[-1:], 30, axis=0)
    for T, angle in zip(turning, angles, strict=True):
        c, s = np.cos(angle), np.sin(angle)
        T[:3, :3] = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ LEVEL
    _, eyes, looks = followed(np.concatenate((walk(), turning)))
    turned = looks[:, 1] > 0.05
    assert 0.2 < turned.mean() < 0.5
    assert np.linalg.norm(np.diff(eyes, axis=0), axis=1).max() < 0.3


def test_chains_are_cut_not_joined():
    _, eyes, _ = followed(walk(), walk(start=100.0))
    steps = np.linalg.norm(np.diff(eyes, axis=0), axis=1)
    jumps = np.flatnonzero(steps > 1)
    assert len(jumps) == 1
    assert jumps[0] == COUNT // 2 - 1
    assert steps[steps < 1].max() < 0.2


def test_chains_too_short_to_be_seen_are_left_out():
    shots, eyes, _ = followed(walk(), walk(start=100.0, length=0.3), walk(start=200.0)[:1])
    assert len(shots) == COUNT
    assert eyes[:, 0].max() < 10


@pytest.mark.parametrize("chains", [(walk()[:1],), (np.repeat(walk()[:1], 9, axis=0),)])
def test_a_camera_that_never_moves_gives_no_video(chains):
    assert followed(*chains)[0] == []
