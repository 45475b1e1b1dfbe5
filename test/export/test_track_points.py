"""Points of feature tracks, held against points that are known."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.export import track_points
from da3_ros.export.track_points import OBSERVATION, Cameras, triangulated

K = np.array([[300.0, 0, 160], [0, 310, 120], [0, 0, 1]])
IMAGES, POINTS = 6, 400


def cameras():
    """A camera that moves sideways, 0.2 m an image, and turns a little."""
    T = np.tile(np.eye(4), (IMAGES, 1, 1))
    for i in range(IMAGES):
        T[i, :3, :3] = Rotation.from_euler("xyz", [1, 2 * i, -i], degrees=True).as_matrix()
        T[i, :3, 3] = [-0.2 * i, 0.02 * i, 0.1]
    return Cameras(T, np.tile(K, (IMAGES, 1, 1)))


def observed(pixel_sigma=0.0, depth_error=1.0):
    """Points ahead, and all their observations, image by image; ids are not in order."""
    rng = np.random.default_rng(0)
    xyz = rng.uniform([-1, -1, 2], [1, 1, 5], (POINTS, 3))
    rgb, ids = rng.integers(0, 256, (POINTS, 3)), 7 * rng.permutation(POINTS)
    rows = np.zeros((IMAGES, POINTS), OBSERVATION)
    for image, T in enumerate(cameras().T_camera_ros):
        seen = xyz @ T[:3, :3].T + T[:3, 3]
        pixel = (seen / seen[:, 2:] @ K.T)[:, :2] + pixel_sigma * rng.standard_normal((POINTS, 2))
        rows[image]["pixel"], rows[image]["depth"] = pixel, depth_error * seen[:, 2]
        rows[image]["track"], rows[image]["image"], rows[image]["rgb"] = ids, image, rgb
    return xyz[np.argsort(ids)], rgb[np.argsort(ids)], rows.reshape(-1)


@pytest.mark.parametrize("chunk", [track_points.CHUNK, 100])
def test_points_and_their_observations_come_back(monkeypatch, chunk):
    monkeypatch.setattr(track_points, "CHUNK", chunk)
    xyz, rgb, rows = observed()
    found, point = triangulated(rows, cameras())
    np.testing.assert_allclose(found.xyz, xyz, atol=1e-4)
    np.testing.assert_array_equal(found.rgb, rgb)
    assert found.error_px.max() < 1e-2
    np.testing.assert_array_equal(7 * point, rows["track"])


def test_parallax_outweighs_wrong_depth():
    xyz, _, rows = observed(pixel_sigma=0.2, depth_error=1.1)
    found, _ = triangulated(rows, cameras())
    off = np.linalg.norm(found.xyz - xyz, axis=1) / xyz[:, 2]
    assert np.median(off) < 0.01
    assert 0.1 < found.error_px.mean() < 0.6


def test_without_parallax_depth_decides():
    xyz, _, rows = observed(pixel_sigma=0.2)
    fixed = cameras()
    fixed.T_camera_ros[:] = fixed.T_camera_ros[0]
    rows["pixel"] = np.tile(rows["pixel"][:POINTS], (IMAGES, 1))
    rows["depth"] = np.tile(rows["depth"][:POINTS], IMAGES)
    found, _ = triangulated(rows, fixed)
    assert np.median(np.linalg.norm(found.xyz - xyz, axis=1)) < 0.01


def test_outliers_leave_their_tracks():
    xyz, _, rows = observed()
    rows["pixel"][:40] += (60, -30)  # in the first image
    found, point = triangulated(rows, cameras())
    assert (point[:40] == -1).all()
    assert (point[40:] >= 0).all()
    np.testing.assert_allclose(found.xyz, xyz, atol=1e-3)


def test_a_point_needs_two_images_and_depth():
    _, _, rows = observed()
    lone, blind = 7 * 3, 7 * 5
    rows = rows[(rows["track"] != lone) | (rows["image"] == 2)]
    rows["depth"][rows["track"] == blind] = [np.nan, np.inf, 0, -1, np.nan, np.inf]
    again = rows[rows["track"] == 0]
    again["pixel"] += 2
    found, point = triangulated(np.concatenate((rows, again)), cameras())
    assert len(found) == POINTS - 2
    assert (point[: len(rows)] < 0).sum() == 1 + IMAGES
    assert (point[len(rows) :] == -1).all()  # a track twice in an image: the first one counts


def test_two_images_are_enough():
    xyz, _, rows = observed()
    found, _ = triangulated(rows[(rows["image"] == 0) | (rows["image"] == 3)], cameras())
    np.testing.assert_allclose(found.xyz, xyz, atol=1e-3)


def test_a_point_of_which_one_image_is_left_is_none():
    """Two images that disagree: their depth, which is off, is no reason to keep one."""
    _, _, rows = observed()
    rows = rows[rows["image"] < 2]
    rows["pixel"][:40] += (300, -200)
    found, point = triangulated(rows, cameras())
    assert len(found) == POINTS - 40
    assert (point[:40] == -1).all()
    assert (point[POINTS : POINTS + 40] == -1).all()


def test_a_point_has_the_mean_colour_of_its_images():
    _, _, rows = observed()
    rows["rgb"] = 10 + 20 * rows["image"][:, None]
    found, _ = triangulated(rows, cameras())
    np.testing.assert_array_equal(found.rgb, np.full((POINTS, 3), 10 + 20 * (IMAGES - 1) / 2))


def test_depth_holds_a_point_that_images_of_one_place_leave_open():
    """Features of a camera that turns on the spot, off by half a pixel each: depth decides."""
    xyz, _, rows = observed(pixel_sigma=0.5)
    near = cameras()
    near.T_camera_ros[:, :3, 3] = near.T_camera_ros[0, :3, 3] + 0.001 * np.arange(IMAGES)[:, None]
    for image, T in enumerate(near.T_camera_ros):
        seen = xyz @ T[:3, :3].T + T[:3, 3]
        of = rows[image * POINTS : (image + 1) * POINTS]
        order = of["track"] // 7
        noise = 0.5 * np.random.default_rng(image).standard_normal((POINTS, 2))
        of["pixel"] = (seen / seen[:, 2:] @ K.T)[order, :2] + noise
        of["depth"] = seen[order, 2]
    found, _ = triangulated(rows, near)
    off = np.linalg.norm(found.xyz - xyz, axis=1) / xyz[:, 2]
    assert np.quantile(off, 0.95) < 0.03


def test_nothing_gives_nothing():
    found, point = triangulated(np.zeros(0, OBSERVATION), cameras())
    assert len(found) == len(point) == 0
