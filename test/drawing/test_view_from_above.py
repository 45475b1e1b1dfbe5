"""The map from above: calm, with the path so far and the camera."""

import numpy as np
import pytest

from da3_ros.drawing.scene_renderer import BACKGROUND
from da3_ros.drawing.view_from_above import ViewFromAbove
from da3_ros.mapping.scene import Scene, SubmapCloud
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.mapping.voxel_map import PointCloud

SIZE = (160, 120)
K = np.array([[100.0, 0, 50], [0, 100, 50], [0, 0, 1]])
GREY = (128, 128, 128)


def scene(extent, steps=10):
    """A floor of this extent, and a path along x, in the map as ROS has it."""
    xy = np.random.default_rng(0).uniform(-extent, extent, (4000, 2))
    xyz = np.column_stack((xy, np.full(4000, -1.0))).astype(np.float32)
    rgb = np.full((4000, 3), GREY, np.uint8)
    cloud = PointCloud(xyz, rgb, np.ones(4000, np.float32), np.ones(4000, np.uint16))
    poses = [Pose(k, pose(k / 10), K, (100, 100), True) for k in range(steps)]
    return Scene((SubmapCloud(cloud),), Poses.of(poses), np.eye(4))


def pose(x):
    T = np.eye(4)
    T[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
    T[0, 3] = x
    return T


@pytest.fixture
def above():
    return ViewFromAbove(SIZE)


def blue(picture):
    return ((picture[..., 2] > 200) & (picture[..., 0] < 80)).sum()


def test_the_path_is_shown_up_to_the_frame(above):
    above.look(scene(2.0))
    shown = [blue(above.picture(stamp, None)) for stamp in (0, 4, 9)]
    assert shown[0] == 0
    assert 5 < shown[1] < 0.6 * shown[2]


def test_the_camera_points_up_where_it_looks_along_x(above):
    above.look(scene(2.0))
    white = [np.argwhere(above.picture(0, pose(x)).min(axis=2) > 200).mean(axis=0) for x in (0, 1)]
    assert white[1][0] < white[0][0] - 10
    assert white[1][1] == pytest.approx(white[0][1], abs=1)


def test_without_a_pose_and_without_a_map_nothing_is_invented(above):
    assert (above.picture(0, None) == BACKGROUND).all()
    assert (above.picture(0, pose(0)) == BACKGROUND).all()


def test_the_shown_part_changes_seldom(above):
    sizes = []
    for extent in (2.0, 2.05, 2.1, 3.0, 3.05, 1.9, 0.5):
        above.look(scene(extent))
        sizes.append(above._viewpoint.eye[2])
    assert sizes[0] == sizes[1] == sizes[2], "it grows within the margin"
    assert sizes[3] > 1.3 * sizes[0]
    assert sizes[3] == sizes[4] == sizes[5], "what was seen stays in the picture"
    assert sizes[6] < 0.5 * sizes[5], "but not when the unit has changed"


def test_the_whole_map_is_in_the_picture_and_fills_it(above):
    above.look(scene(2.0))
    rows, columns = np.nonzero((above.picture(0, None) > BACKGROUND + 40).any(axis=2))
    assert 0 < rows.min() < 30
    assert 90 < rows.max() < 119
    assert np.ptp(columns) < 130, "it is as wide as it is high"
