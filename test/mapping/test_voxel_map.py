"""The voxel hash against a plain dictionary."""

import numpy as np
import pytest

from da3_ros.mapping.voxel_map import PointCloud, VoxelMap, VoxelSums, _cells, _keys, voxel_hash


def random_points(rng, n, spread=3.0):
    xyz = rng.uniform(-spread, spread, (n, 3))
    rgb = rng.integers(0, 256, (n, 3)).astype(np.uint8)
    return xyz, rgb, rng.uniform(1, 5, n).astype(np.float32)


def dictionary_map(batches, voxel):
    cells = {}
    for xyz, rgb, confidence in batches:
        for p, c, w in zip(xyz, rgb, confidence, strict=True):
            key = tuple(np.floor(p / voxel).astype(int))
            total = cells.setdefault(key, np.zeros(9))
            total += [*(p * w), *(c * float(w)), w * w, w, 1]
    return cells


def test_means_and_counts_equal_those_of_a_dictionary():
    """Mean position, colour, confidence and count."""
    rng = np.random.default_rng(0)
    batches = [random_points(rng, 3000) for _ in range(4)]
    voxel_map = VoxelMap(0.5)
    for batch in batches:
        voxel_map.insert(*batch)
    expected = dictionary_map(batches, 0.5)
    cloud = voxel_map.cloud()
    assert len(cloud) == len(expected)
    for xyz, rgb, confidence, count in zip(
        cloud.xyz, cloud.rgb, cloud.confidence, cloud.count, strict=True
    ):
        total = expected[tuple(np.floor(xyz.astype(float) / 0.5).astype(int))]
        np.testing.assert_allclose(xyz, total[:3] / total[7], atol=1e-5)
        np.testing.assert_allclose(rgb, total[3:6] / total[7], atol=0.51)
        assert confidence == pytest.approx(total[6] / total[7], rel=1e-5)
        assert count == total[8]


def test_position_stays_exact_a_kilometre_from_the_origin():
    voxel_map = VoxelMap(0.02)
    for _ in range(1000):
        voxel_map.insert(
            np.array([[1000.011, -2000.007, 5.013]]), np.zeros((1, 3), np.uint8), np.ones(1)
        )
    np.testing.assert_allclose(voxel_map.cloud().xyz[0], [1000.011, -2000.007, 5.013], atol=2e-4)


def test_unknown_and_infinite_points_are_left_out():
    xyz = np.array([[np.nan, 0, 0], [np.inf, 0, 0], [1e9, 0, 0], [0.1, 0.1, 0.1]])
    voxel_map = VoxelMap(0.02)
    voxel_map.insert(xyz, np.zeros((4, 3), np.uint8), np.ones(4))
    assert len(voxel_map) == 1


def test_points_that_are_means_weigh_as_many_as_they_are_of():
    voxel_map = VoxelMap(1.0)
    xyz = np.array([[0.25, 0.5, 0.5], [0.75, 0.5, 0.5]])
    rgb = np.array([[0, 0, 0], [200, 200, 200]], np.uint8)
    voxel_map.insert(xyz, rgb, np.full(2, 2.0), np.array([1, 3]))
    cloud = voxel_map.cloud()
    np.testing.assert_allclose(cloud.xyz, [[0.625, 0.5, 0.5]])
    assert (cloud.rgb == 150).all()
    assert (cloud.count[0], cloud.confidence[0]) == (4, 2.0)


@pytest.mark.parametrize("axes", [(0, 1), (0, 2), (1, 2)])
def test_voxels_of_any_wall_spread_over_the_table(axes):
    """Voxels of a wall spread over the table whatever way it stands."""
    xyz = np.zeros((128 * 128, 3))
    xyz[:, axes] = np.stack(np.meshgrid(np.arange(128), np.arange(128)), axis=-1).reshape(-1, 2)
    slots = voxel_hash(xyz + 0.5, 1.0) % 32768, _keys(_cells(xyz + 0.5, 1.0)[0]) % 32768
    for slot in slots:
        # Drawn at random, 16384 balls fill 12893 of 32768 boxes.
        assert len(np.unique(slot)) > 12500


def test_same_points_give_the_same_bytes():
    clouds = []
    for _ in range(2):
        rng = np.random.default_rng(2)
        voxel_map = VoxelMap(0.05)
        for _ in range(5):
            voxel_map.insert(*random_points(rng, 2000))
        clouds.append(voxel_map.cloud())
    assert clouds[0].xyz.tobytes() == clouds[1].xyz.tobytes()
    assert clouds[0].rgb.tobytes() == clouds[1].rgb.tobytes()


def test_very_fine_voxels_lose_no_distant_point():
    """At a tenth of a millimetre, a hundred and five metres are more than 2^20 cells."""
    xyz = np.array([[150.0, -300.0, 90.0], [0.01, 0, 0], [2000.0, 5.0, -2000.0]], np.float32)
    voxels = VoxelMap(1e-4)
    voxels.insert(xyz, np.zeros((3, 3), np.uint8), np.ones(3))
    np.testing.assert_allclose(
        np.sort(voxels.cloud().xyz, axis=0), np.sort(xyz, axis=0), atol=2e-4
    )


def test_what_is_added_to_an_emptied_voxel_is_all_that_it_has():
    voxels, xyz = VoxelMap(1.0), np.array([[0.5, 0.5, 0.5]])
    one, other = (
        VoxelSums.of(PointCloud(
            (xyz + off).astype(np.float32), np.full((1, 3), red, np.uint8), np.full(1, 2.0),
            np.ones(1, np.int32),
        ), 1.0)
        for off, red in ((0.3, 10), (-0.2, 200))
    )  # fmt: skip
    voxels.add(one)
    voxels.remove(np.array([0]))
    assert len(voxels) == len(voxels.cloud()) == 0
    voxels.add(other)
    cloud = voxels.cloud()
    np.testing.assert_allclose(cloud.xyz, xyz - 0.2, atol=1e-6)
    assert (cloud.rgb[0, 0], cloud.count[0]) == (200, 1)


def test_removed_voxels_are_gone_until_they_are_seen_again():
    voxels = VoxelMap(1.0)
    xyz = np.array([[0.5, 0.5, 0.5], [1.5, 0.5, 0.5], [2.5, 0.5, 0.5]])
    for x, red in zip(xyz, (10, 20, 30), strict=True):
        voxels.insert(x[None], np.array([[red, 0, 0]], np.uint8), np.ones(1))
    voxels.remove(np.array([1]))
    assert len(voxels) == 2
    np.testing.assert_array_equal(voxels.positions()[:, 0], [0.5, 2.5])
    np.testing.assert_array_equal(voxels.cloud(slice(1, None)).rgb[:, 0], [30])
    many = np.column_stack([np.arange(9000), np.zeros(9000), np.full(9000, 50)]) + 0.5
    voxels.insert(many, np.zeros((9000, 3), np.uint8), np.ones(9000))  # the table grows
    assert len(voxels) == len(voxels.cloud()) == 9002
    voxels.insert(xyz[1:2] + 0.25, np.array([[99, 0, 0]], np.uint8), np.ones(1))
    cloud = voxels.cloud()
    assert len(voxels) == len(cloud) == 9003
    (again,) = np.flatnonzero(cloud.xyz[:, 0] == 1.75)
    assert (cloud.rgb[again, 0], cloud.count[again]) == (99, 1)
