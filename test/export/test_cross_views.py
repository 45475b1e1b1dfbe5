"""Dynamic points in exports from stored keyframes: points and surface."""

import numpy as np
import pytest
from support.cases import long_after

from da3_ros.cli import main
from da3_ros.export import cross_views
from da3_ros.export.cross_views import CrossViews, depth_sigma
from da3_ros.export.derived import derived_scene
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.export.surface import fused_surface
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe
from da3_ros.keyframe_store.store import MapState, StoredScene, StoredSubmap, StoreWriter
from da3_ros.synthetic import SyntheticCamera, distance_to_surface
from da3_ros.synthetic.moving_box import crossing

SIZE, VOXEL = (192, 144), 0.03
FIRST, LAST = 6, 14  # frames in which the box is there


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=100, size=SIZE, walk="handheld", frames=24, rate_hz=3)
    return crossing(camera, FIRST, LAST, sweeps=2)


@pytest.fixture(scope="module")
def stored(walk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scene")
    write(folder, walk.frames)
    with StoredScene.open(folder) as scene:
        yield scene


def write(folder, frames, first_submap=10, components=(0, 0)):
    """Two submaps, of another unit each, in the frame of the room."""
    writer = StoreWriter(folder)
    S = [Similarity(0.5, np.eye(3), np.array([1.0, 2, 3])),
         Similarity(2.0, np.diag([-1.0, -1, 1]), np.zeros(3))]  # fmt: skip
    writer.place(
        [
            StoredSubmap(i, 0, component, s)
            for i, (s, component) in enumerate(zip(S, components, strict=True))
        ]
    )
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    for i, f in enumerate(frames):
        submap = int(i >= first_submap)
        T = S[submap].inverse().pose(f.T_room_camera)
        pose = FramePose(f.stamp_ns, "", submap, T, f.K, SIZE, True)
        depth = (f.depth / S[submap].scale).astype(np.float32)
        writer.add_keyframe(Keyframe(pose, depth, np.ones_like(depth), f.image))
    writer.journal.close()


def ghosts(walk, points):
    """Mask of points that lie at the box, and at no surface of the room."""
    static = distance_to_surface(walk.room, points) < 1.5 * VOXEL
    return ~static & (walk.distance_to_box(points) < 1.5 * VOXEL)


def static_cells(walk, points):
    near = points[distance_to_surface(walk.room, points) < 1.5 * VOXEL]
    return {tuple(c) for c in np.floor(near / (2 * VOXEL)).astype(int)}


def points_of(stored, *, remove):
    filters = DepthFilters(voxel=VOXEL, remove_movers=remove)
    scene = derived_scene(stored, readable_keyframes(stored, filters), filters)
    return scene.cloud().xyz.astype(np.float64)


def test_a_moving_box_leaves_and_the_room_stays(walk, stored):
    before, after = (points_of(stored, remove=remove) for remove in (False, True))
    assert ghosts(walk, before).sum() > 500
    assert ghosts(walk, after).sum() < 0.05 * ghosts(walk, before).sum()
    cells = static_cells(walk, before)
    assert len(cells - static_cells(walk, after)) < 0.01 * len(cells)


@pytest.mark.long
def test_it_leaves_the_surface(walk, stored):
    pytest.importorskip("skimage")
    before, after = (
        fused_surface(stored, DepthFilters(voxel=VOXEL, remove_movers=remove)).vertices
        for remove in (False, True)
    )
    assert ghosts(walk, before).sum() > 50
    assert ghosts(walk, after).sum() < 0.05 * ghosts(walk, before).sum()


@pytest.mark.long
def test_one_that_is_there_to_the_end_leaves_too(walk, tmp_path):
    """Nobody looks again: that the place was empty before counts, as nothing confirms it."""
    write(tmp_path, walk.frames[: (FIRST + LAST) // 2])
    with StoredScene.open(tmp_path) as stored:
        before, after = (points_of(stored, remove=remove) for remove in (False, True))
    assert ghosts(walk, after).sum() < 0.2 * ghosts(walk, before).sum()


def test_what_is_put_down_stays(walk, tmp_path):
    """The box stands still from the middle on: it belongs to the scene."""
    f = walk.frames[int(np.argmax(walk.sees))]
    write(tmp_path, [*[walk.frames[0]] * 3, *[f] * 3])
    with StoredScene.open(tmp_path) as stored:
        before, after = (points_of(stored, remove=remove) for remove in (False, True))
    assert ghosts(walk, before).sum() > 100
    assert ghosts(walk, after).sum() > 0.9 * ghosts(walk, before).sum()


@pytest.mark.long
def test_components_do_not_judge_each_other(walk, tmp_path):
    write(tmp_path, walk.frames[FIRST:], LAST + 1 - FIRST, components=(0, 1))
    write(tmp_path / "one", walk.frames[FIRST:], LAST + 1 - FIRST)
    left = []
    for folder in (tmp_path, tmp_path / "one"):
        with StoredScene.open(folder) as stored:
            left.append(ghosts(walk, points_of(stored, remove=True)).sum())
    assert left[0] > 2 * left[1]


@pytest.mark.long
def test_what_is_kept_of_keyframes_is_bounded(stored, monkeypatch):
    """Forgetting and decoding again changes nothing."""
    expected = points_of(stored, remove=True)
    monkeypatch.setattr(cross_views, "CACHED", 2)
    monkeypatch.setattr(cross_views, "JUDGED", 1)
    np.testing.assert_array_equal(points_of(stored, remove=True), expected)


@pytest.mark.long
def test_the_command_keeps_dynamic_points_on_request(walk, stored, tmp_path):
    folder = stored.reader.path.parent
    sizes = []
    for flag in ("--remove-movers", "--no-remove-movers"):
        path = tmp_path / f"room{flag}.ply"
        assert main(["export", str(folder), str(path), flag, "--voxel", str(VOXEL)]) == 0
        sizes.append(path.stat().st_size)
    assert sizes[0] < sizes[1]


def test_keyframes_without_depth_judge_nothing(walk, tmp_path):
    f = walk.frames[0]
    writer = StoreWriter(tmp_path)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=invert_pose(f.T_room_camera)))
    for stamp, depth in enumerate((f.depth, np.full_like(f.depth, np.nan))):
        pose = FramePose(stamp, "", 0, f.T_room_camera, f.K, SIZE, True)
        writer.add_keyframe(Keyframe(pose, depth, np.ones_like(depth), f.image))
    writer.journal.close()
    with StoredScene.open(tmp_path) as stored:
        assert len(points_of(stored, remove=True)) == len(points_of(stored, remove=False))


def standing(folder, stood, left):
    """A wall that one camera sees ``stood`` times behind a person, then ``left`` times alone."""
    K = np.array([[60.0, 0, 40], [0, 60, 30], [0, 0, 1]])
    writer = StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    rng = np.random.default_rng(0)
    for stamp in range(stood + left):
        depth = np.full((60, 80), 4.0, np.float32)
        if stamp < stood:
            depth[20:, 30:50] = 2.0
        T = np.eye(4)
        T[:3, 3] = rng.uniform(-0.02, 0.02, 3) if stamp < stood else (0.1, 0, 0)
        pose = FramePose(stamp, "", 0, T, K, (80, 60), True)
        image = np.zeros((60, 80, 3), np.uint8)
        writer.add_keyframe(Keyframe(pose, depth, np.ones_like(depth), image))
    writer.journal.close()


@pytest.mark.long
@pytest.mark.parametrize(("stood", "left"), long_after(1, [(60, 6), (120, 3)]))
def test_a_person_who_stood_for_long_leaves(tmp_path, stood, left):
    """The nearest keyframes have all seen the person."""
    standing(tmp_path, stood, left)
    with StoredScene.open(tmp_path) as stored:
        after, before = (points_of(stored, remove=remove)[:, 2] < 2.5 for remove in (True, False))
    assert after.sum() < 0.05 * before.sum()
    assert (~after).sum() > 0.99 * (~before).sum() > 100


def test_voters_see_the_place_and_are_spread_over_time(walk, stored, monkeypatch):
    views = CrossViews(readable_keyframes(stored, DepthFilters()))
    one = readable_keyframes(stored, DepthFilters())[5]
    depth = one.depth_of(one.load())
    K = stored.frames[one.key].K
    points = backproject(depth, K)[np.isfinite(depth)]
    voters = views._voters(5, points)
    assert voters == sorted(set(voters))
    assert 5 not in voters
    assert len(voters) <= cross_views.VOTERS
    sample = points[:: max(1, len(points) // 200)]
    seen = [j for j in range(len(walk.frames)) if j != 5 and views._share(j, 5, sample) >= 0.1]
    assert {seen[0], seen[1], seen[-2], seen[-1]} <= set(voters) <= set(seen)
    assert np.diff(voters).max() <= 4
    behind = points * (-1, 1, -1)  # what the camera does not see
    assert views._voters(5, behind.astype(np.float32)) == []


def test_the_deviation_of_depth_is_that_of_one_image():
    rng = np.random.default_rng(0)
    K = np.array([[100.0, 0, 80], [0, 100, 60], [0, 0, 1]])
    u, v = np.meshgrid(np.arange(160) + 0.5, np.arange(120) + 0.5)
    plane = (4 / (1 + 0.004 * (u - 80) + 0.002 * (v - 60))).astype(np.float32)
    for sigma in (0.0, 0.01, 0.03):
        noise = np.exp(sigma * rng.standard_normal((2, *plane.shape))).astype(np.float32)
        points = backproject(plane * noise[0], K).reshape(-1, 3)
        found = depth_sigma(points, plane * noise[1], K)
        assert found == pytest.approx(sigma, rel=0.1, abs=1e-5)
    assert np.isnan(depth_sigma(points[:5], plane, K))
    assert np.isnan(depth_sigma(-points, plane, K))
    assert np.isnan(depth_sigma(points, np.full_like(plane, np.nan), K))
