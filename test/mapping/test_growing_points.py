"""Points of a submap some of whose keyframes wait for their measured depth."""

import numpy as np
import pytest

from da3_ros.geometry.similarity import IDENTITY
from da3_ros.mapping.growing_points import GrowingPoints, seen_points
from da3_ros.mapping.submap_points import Bins, KeyframePoints, SubmapPoints
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.voxel_map import VoxelMap, VoxelSums

VOXEL = 0.1
K = np.array([[8.0, 0, 4], [0, 8, 3], [0, 0, 1]])


def points(seed, count=50):
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-1, 1, (count, 3)).astype(np.float32)
    rgb = rng.integers(0, 255, (count, 3), np.uint8)
    return seen_points(xyz, rgb, rng.uniform(1, 2, count).astype(np.float32))


def rows(cloud):
    """The points in an order that does not depend on when they came."""
    return np.array(sorted(np.column_stack((cloud.xyz, cloud.rgb, cloud.count)).tolist()))


def sums(cloud, voxel=VOXEL):
    return VoxelSums.of(cloud, voxel)


def plain(*clouds, voxel=VOXEL):
    out = GrowingPoints(voxel)
    for cloud in clouds:
        out.insert(cloud)
    return rows(out.shown.cloud())


def test_points_that_wait_are_shown_and_then_replaced():
    growing = GrowingPoints(VOXEL)
    growing.insert(points(0))
    growing.insert(points(1), waiting=1)
    growing.insert(points(2))
    growing.insert(points(3), waiting=3)
    np.testing.assert_array_equal(
        rows(growing.shown.cloud()), plain(*map(points, range(4)))
    )  # fmt: skip
    growing.replace([(1, sums(points(11)), False)])
    growing.replace([(1, sums(points(12)), True)])
    assert growing.waiting == (3,)
    expected = plain(points(0), points(2), points(12), points(3))
    np.testing.assert_allclose(rows(growing.shown.cloud()), expected, atol=1e-5)
    growing.replace([(3, sums(points(13)), True)])
    expected = plain(points(0), points(2), points(12), points(13))
    np.testing.assert_allclose(rows(growing.shown.cloud()), expected, atol=1e-5)
    assert not growing.waiting
    assert len(growing) == len(expected)


def test_what_is_removed_does_not_come_back_with_the_next_keyframe():
    growing = GrowingPoints(VOXEL)
    growing.insert(points(0))
    growing.insert(points(1), waiting=1)
    before = growing.shown.positions()
    chosen = np.arange(0, len(before), 3)
    growing.remove(chosen)
    left = np.delete(before, chosen, axis=0)
    np.testing.assert_array_equal(growing.shown.positions(), left)
    growing.replace([(1, sums(points(1)), True)])
    np.testing.assert_array_equal(growing.shown.positions(), left)


def test_new_points_of_a_keyframe_stay_out_of_what_was_removed_since_it_came():
    growing = GrowingPoints(VOXEL)
    growing.insert(points(1), waiting=1)
    everything = np.arange(len(growing))
    growing.remove(everything)
    growing.insert(points(1), waiting=2)  # came after that
    growing.replace([(1, sums(points(1)), True)])
    np.testing.assert_array_equal(rows(growing.shown.cloud()), plain(points(1)))
    growing.replace([(2, sums(points(2, 0)), True)])
    assert len(growing) == 0


def test_points_may_stay_as_they_are():
    growing = GrowingPoints(VOXEL)
    growing.insert(points(1), waiting=1)
    growing.remove(np.arange(5))
    before = rows(growing.shown.cloud())
    growing.replace([(1, None, False)])
    np.testing.assert_array_equal(rows(growing.shown.cloud()), before)
    growing.replace([(1, None, True)])
    np.testing.assert_array_equal(rows(growing.shown.cloud()), before)
    assert growing.waiting == ()


def test_larger_voxels_hold_what_waits_too():
    growing = GrowingPoints(VOXEL)
    growing.insert(points(0))
    growing.insert(points(1), waiting=1)
    growing.regrid(0.5)
    expected = plain(points(0), points(1), voxel=0.5)
    assert len(growing) == len(expected)
    growing.replace([(1, sums(points(2)), False)])  # made before the voxels changed
    assert len(growing) == pytest.approx(len(plain(points(0), points(2), voxel=0.5)), abs=2)
    growing.replace([(1, sums(points(1, 0), 0.5), True)])
    np.testing.assert_allclose(
        rows(growing.shown.cloud()), plain(points(0), voxel=0.5), atol=1e-5
    )  # fmt: skip


def test_what_was_removed_stays_out_when_voxels_change():
    growing = GrowingPoints(VOXEL)
    growing.insert(points(1), waiting=1)
    growing.remove(np.arange(len(growing)))
    growing.regrid(0.03)
    growing.replace([(1, sums(points(1), 0.03), True)])
    assert len(growing) == 0


def test_memory_of_a_keyframe_is_held_while_it_waits():
    growing = GrowingPoints(VOXEL)
    growing.insert(points(0))
    alone = growing.nbytes
    growing.insert(points(1), waiting=1)
    assert growing.nbytes > alone
    growing.replace([(1, sums(points(1, 0)), True)])
    assert growing.nbytes == alone


def test_voxels_of_replaced_points_do_not_add_up():
    growing, most = GrowingPoints(VOXEL), 0
    for n in range(200):
        growing.insert(points(2 * n, 500), waiting=n)
        growing.replace([(n, sums(points(2 * n + 1, 500)), False)])
        growing.replace([(n, sums(points(0, 500)), True)])
        most = max(most, growing.nbytes)
    assert len(growing) == len(plain(points(0, 500)))
    assert most < 8 * growing.shown.nbytes / len(growing.shown._keys) * 2000


def test_other_threads_see_no_less_while_points_are_replaced(monkeypatch):
    """The number of points is read for the status."""
    growing, seen = GrowingPoints(VOXEL), []
    growing.insert(points(0))
    growing.insert(points(1), waiting=1)
    least = min(len(growing), len(plain(points(0), points(2))))
    for name in ("_rows", "_make_empty", "_reserve", "_clear"):
        whole = getattr(VoxelMap, name)

        def noting(self, *args, whole=whole):
            seen.append(len(growing))
            out = whole(self, *args)
            seen.append(len(growing))
            return out

        monkeypatch.setattr(VoxelMap, name, noting)
    growing.replace([(1, sums(points(2)), True)])
    growing.insert(points(3, 5000))  # makes the table larger
    assert len(seen) > 6
    assert min(seen) >= least


def keyframe(id, depth):
    image = np.full((6, 8, 3), 10 * id, np.uint8)
    depth = np.full((6, 8), depth, np.float32)
    return KeyframePoints(id, depth, np.ones_like(depth), image, K, np.eye(4), 1.0)


def measured(id, depth, radius=0.0):
    return keyframe(id, depth).measured(Bins(VOXEL, radius))


@pytest.fixture
def submaps():
    return {id: Submap(id, 0, IDENTITY) for id in range(2)}


def test_a_closed_submap_is_compact_once_none_of_its_keyframes_waits(submaps):
    store = SubmapPoints(submaps)
    store.begin(submaps[0], VOXEL)
    store.insert(keyframe(1, 1.0), 0.0, waiting=True)
    store.insert(keyframe(2, 2.0), 0.0, waiting=True)
    store.close()
    store.begin(submaps[1], VOXEL)
    assert store.is_growing(submaps[0])
    assert not len(submaps[0].cloud)
    before = len(store)
    assert before == store.point_count(submaps[0]) > 0
    assert store.bins(submaps[0], 3.0) == Bins(VOXEL, 3.0)
    store.replace(submaps[0], [(1, measured(1, 3.0), True)])
    assert store.is_growing(submaps[0])
    store.replace(submaps[0], [(2, measured(2, 4.0), True)])
    assert not store.is_growing(submaps[0])
    z = submaps[0].cloud.xyz[:, 2]
    assert set(np.round(z).astype(int)) == {3, 4}
    assert len(store) == len(submaps[0].cloud)
    assert store.bins(submaps[0], 3.0) is None
    store.replace(submaps[0], [(2, measured(2, 9.0), True)])  # too late: nothing
    np.testing.assert_array_equal(submaps[0].cloud.xyz[:, 2], z)


def test_too_little_memory_ends_the_waiting(submaps, caplog):
    store = SubmapPoints(submaps)
    store.begin(submaps[0], VOXEL)
    store.insert(keyframe(1, 1.0), 0.0, waiting=True)
    store.close()
    store.begin(submaps[1], VOXEL)
    store.insert(keyframe(2, 1.0), 0.0, waiting=True)
    count = len(store)
    store.enforce_limits(0, 1000, 0)
    assert caplog.text.count("leave no room for keyframes that wait") == 1
    assert not store.is_growing(submaps[0])
    assert not store.is_growing(submaps[1])
    assert store.newest is None
    assert len(store) <= count
    store.replace(submaps[0], [(1, measured(1, 5.0), True)])
    assert len(store) <= count


def test_distant_points_leave_submaps_that_wait(submaps):
    store = SubmapPoints(submaps)
    store.begin(submaps[0], VOXEL)
    store.insert(keyframe(1, 1.0), 0.0, waiting=True)
    store.close()
    store.drop_distant(np.array([0.0, 0, 100]), 10.0)
    assert len(store) == 0
    assert not store.is_growing(submaps[0])


def test_near_points_of_keyframes_that_wait_are_still_replaced(submaps):
    store = SubmapPoints(submaps)
    store.begin(submaps[0], VOXEL)
    store.insert(keyframe(1, 1.0), 0.0, waiting=True)
    store.insert(keyframe(2, 9.0), 0.0, waiting=True)
    store.drop_distant(np.zeros(3), 5.0)
    assert store.is_growing(submaps[0])
    assert store.positions(submaps[0])[:, 2].max() < 5
    store.replace(submaps[0], [(1, measured(1, 2.0, 5.0), True)])
    np.testing.assert_allclose(store.positions(submaps[0])[:, 2], 2, atol=1e-3)
