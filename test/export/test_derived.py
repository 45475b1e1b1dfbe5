"""Points that are made anew from stored keyframes."""

import numpy as np
import pytest
from support.file_readers import read_ply
from support.stored_walls import SIZE, WALL, K, write_walls

from da3_ros.cli import main


@pytest.fixture(scope="module")
def wall(tmp_path_factory):
    """A wall whose confidence grows from 1 at the left to 3 at the right of one image."""
    sure = np.tile(np.linspace(1, 3, SIZE[0]), (SIZE[1], 1))
    return write_walls(tmp_path_factory.mktemp("wall"), 1, confidence=sure)


def exported(scene, target, *options):
    assert main(["export", str(scene), str(target), *options]) == 0
    return read_ply(target)


def test_a_point_has_the_confidence_of_its_pixels(wall, tmp_path):
    rows = exported(wall, tmp_path / "x.ply", "--voxel", "0.1")
    column = K[0, 0] * rows["x"] / WALL + K[0, 2] - 0.5
    expected = np.interp(column, np.arange(SIZE[0]), np.linspace(1, 3, SIZE[0]))
    np.testing.assert_allclose(rows["confidence"], expected, atol=0.05)


def test_the_least_confidence_counts_for_pixels_not_for_their_mean(tmp_path):
    stripes = np.tile([1.0, 3.0], (SIZE[1], SIZE[0] // 2))
    scene = write_walls(tmp_path / "scene", 1, confidence=stripes)
    voxel = ["--voxel", "0.3"]
    assert exported(scene, tmp_path / "all.ply", *voxel)["confidence"].min() < 2.7
    rows = exported(scene, tmp_path / "sure.ply", *voxel, "--min-confidence", "2")
    assert len(rows) > 20
    np.testing.assert_array_equal(rows["confidence"], 3)
