"""Stored Gaussians become files: in the map's frame and unit, read back by other libraries."""

import json

import numpy as np
import pytest
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.splats import exact_values, psnr, read_glb, read_ply, render

from da3_ros.cli import main
from da3_ros.export import splat_glb, stored_splats
from da3_ros.export.selection import ExportError, Selection
from da3_ros.export.splat_rows import splat_rows
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.export.stored_splats import MOST, export_splats
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe, Tracks
from da3_ros.keyframe_store.store import JOURNAL, MapState, StoredScene, StoredSubmap, StoreWriter
from da3_ros.splats.gaussians import Gaussians
from da3_ros.splats.relative import CHANNELS, RelativeSplats, keep_visible
from da3_ros.synthetic import SyntheticCamera

SIZE = (160, 120)
FILTERS = DepthFilters(edge_filter=False)
UNIT = 0.5  # metres per unit of the submap
S_MAP_SUBMAP = Similarity(
    UNIT,
    Rotation.from_euler("xyz", (10, -20, 30), degrees=True).as_matrix(),
    np.array([1.0, 2, 3]),
)
T_ROS_MAP = np.array([[0.0, -1, 0, 1], [1, 0, 0, -2], [0, 0, 1, 0.5], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def frames():
    return list(SyntheticCamera(seed=5, size=SIZE, frames=6, rate_hz=1.5))


def write(folder, frames, *, with_splats=True, scene_scale=1.0, component=0, opacity=0.99):
    """Stores frames of a room, in a submap with a unit and a place of its own."""
    writer = StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, component, S_MAP_SUBMAP)])
    writer.set_map(MapState(metric=True, scene_scale=scene_scale, T_ros_map=T_ROS_MAP))
    back = S_MAP_SUBMAP.inverse()
    for f in frames:
        pose = FramePose(f.stamp_ns, "", 0, back.pose(f.T_room_camera), f.K, SIZE, True)
        values = exact_values(f.depth, f.image, f.K, opacity=opacity)
        splats = keep_visible(values, f.depth) if with_splats else None
        depth = (f.depth / UNIT).astype(np.float32)
        sure = np.full(f.depth.shape, 2.0, np.float32)
        writer.add_keyframe(Keyframe(pose, depth, sure, f.image, splats=splats))
    writer.journal.close()
    return folder


@pytest.fixture(scope="module")
def scene(frames, tmp_path_factory):
    return write(tmp_path_factory.mktemp("scene"), frames)


def exported(folder, path, **values):
    with StoredScene.open(folder) as stored:
        return export_splats(stored, path, Selection(**values), FILTERS)


def picture_of(splats, frame, scale=1.0):
    T = T_ROS_MAP @ frame.T_room_camera
    T[:3, 3] = T_ROS_MAP[:3, :3] @ frame.T_room_camera[:3, 3] * scale + T_ROS_MAP[:3, 3]
    return render(splats, T, frame.K, SIZE)


@pytest.mark.long
@pytest.mark.parametrize("degree", long_after(1, [2, 0]))
def test_a_ply_shows_the_room_where_it_is_in_the_map(scene, frames, tmp_path, degree):
    done = exported(scene, tmp_path / "room.splat.ply", sh_degree=degree)
    splats = read_ply(done.path)
    assert splats.sh.shape == (done.points, 3, {0: 1, 2: 9}[degree])
    for frame in frames[::2]:
        picture, opacity = picture_of(splats, frame)
        seen = opacity > 0.98
        assert seen.mean() > 0.75
        assert psnr(picture, frame.image, seen) > 25


@pytest.mark.long
def test_a_glb_holds_the_same_gaussians_in_its_own_axes(scene, tmp_path):
    wanted = read_ply(exported(scene, tmp_path / "room.splat.ply").path)
    found, colour, file = read_glb(exported(scene, tmp_path / "room.splat.glb").path)
    R = np.array([[0.0, -1, 0], [0, 0, 1], [-1, 0, 0]])
    np.testing.assert_allclose(found.means, wanted.means @ R.T, atol=1e-6)
    np.testing.assert_allclose(found.scales, wanted.scales, rtol=1e-5)
    np.testing.assert_allclose(found.opacities, wanted.opacities, atol=1e-5)
    turned = Rotation.from_matrix(R) * Rotation.from_quat(wanted.wxyz[:, [1, 2, 3, 0]])
    apart = turned.inv() * Rotation.from_quat(found.wxyz[:, [1, 2, 3, 0]])
    assert apart.magnitude().max() < 1e-4
    np.testing.assert_allclose(np.linalg.norm(found.wxyz, axis=1), 1, atol=1e-6)
    srgb = np.clip(0.5 + 0.28209479 * found.sh[:, :, 0], 0, 1)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    np.testing.assert_allclose(colour, np.column_stack((linear, found.opacities)), atol=1e-5)
    assert "KHR_gaussian_splatting" in file.extensionsUsed
    assert file.meshes[0].primitives[0].mode == 0
    about = file.meshes[0].primitives[0].extensions["KHR_gaussian_splatting"]
    assert about == {"kernel": "ellipse", "colorSpace": "srgb_rec709_display"}
    box = file.accessors[file.meshes[0].primitives[0].attributes.POSITION]
    np.testing.assert_array_equal(box.min, found.means.min(axis=0))
    np.testing.assert_array_equal(box.max, found.means.max(axis=0))


def test_colours_by_direction_turn_with_the_axes_of_a_glb(tmp_path):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(50, 4))
    given = Gaussians(
        rng.normal(size=(50, 3)), rng.uniform(0.1, 1, (50, 3)),
        q / np.linalg.norm(q, axis=1, keepdims=True), rng.uniform(0.1, 1, 50),
        0.3 * rng.normal(size=(50, 3, 9)),
    )  # fmt: skip
    from da3_ros.export.splat_glb import write_splat_glb
    from da3_ros.export.splat_ply import write_splat_ply

    with splat_rows(tmp_path) as rows:
        rows.add(given)
        for write_file, name in ((write_splat_glb, "a.glb"), (write_splat_ply, "a.ply")):
            write_file(rows, tmp_path / name, 2, lambda what, share: None)
    K = np.array([[60.0, 0, 30], [0, 60, 20], [0, 0, 1]])
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = Rotation.random(random_state=3).as_matrix(), (0.1, 0.2, 0.3)
    turn = np.eye(4)
    turn[:3, :3] = [[0, -1, 0], [0, 0, 1], [-1, 0, 0]]
    in_map, _ = render(read_ply(tmp_path / "a.ply"), T, K, (60, 40))
    in_glb, _ = render(read_glb(tmp_path / "a.glb")[0], turn @ T, K, (60, 40))
    assert in_map.max() > 0.2
    np.testing.assert_allclose(in_glb, in_map, atol=2e-3)


def same_places(a, b, within=1e-4):
    """Indices of points of two sets at equal places: rounding may change a Gaussian's owner."""
    distance, index = cKDTree(b).query(a, distance_upper_bound=within)
    found = np.isfinite(distance)
    return np.flatnonzero(found), index[found]


def test_metres_of_the_scene_scale_means_and_sizes(frames, tmp_path):
    one = exported(write(tmp_path / "one", frames), tmp_path / "one.splat.ply")
    more = exported(write(tmp_path / "more", frames, scene_scale=2.5), tmp_path / "more.splat.ply")
    a, b = read_ply(one.path), read_ply(more.path)
    origin = T_ROS_MAP[:3, 3]
    both = same_places(2.5 * (a.means - origin), b.means - origin, 2e-4)
    assert len(both[0]) > 0.999 * len(a.means)
    np.testing.assert_allclose(b.scales[both[1]], 2.5 * a.scales[both[0]], rtol=1e-4)
    picture, opacity = picture_of(b, frames[0], scale=2.5)
    assert psnr(picture, frames[0].image, opacity > 0.98) > 25


def test_a_loop_moves_what_is_stored(frames, tmp_path):
    folder = write(tmp_path / "scene", frames[:2])
    before = read_ply(exported(folder, tmp_path / "before.splat.ply").path)
    move = Similarity(1.2, Rotation.from_euler("z", 0.3).as_matrix(), np.array([0.5, 0, 0]))
    writer = StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, 0, move @ S_MAP_SUBMAP)])
    writer.journal.close()
    after = read_ply(exported(folder, tmp_path / "after.splat.ply").path)
    in_map = Similarity(1.0, T_ROS_MAP[:3, :3], T_ROS_MAP[:3, 3])
    whole = in_map @ move @ in_map.inverse()
    both = same_places(whole.points(before.means), after.means)
    assert len(both[0]) > 0.999 * len(before.means)
    np.testing.assert_allclose(after.scales[both[1]], 1.2 * before.scales[both[0]], rtol=1e-4)


def test_where_keyframes_overlap_one_of_them_is_kept(scene, frames, tmp_path):
    alone = [
        exported(write(tmp_path / f"{i}", [f]), tmp_path / f"{i}.splat.ply").points
        for i, f in enumerate(frames)
    ]
    together = exported(scene, tmp_path / "all.splat.ply").points
    assert max(alone) < together < 0.6 * sum(alone)


def wall_scene(folder, distances, aside=0.0, with_wall=None):
    """Stores keyframes that look at a wall, each so far from it as is said."""
    K, writer = np.array([[120.0, 0, 80], [0, 120, 60], [0, 0, 1]]), StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    for i, distance in enumerate(distances):
        T = np.eye(4)
        T[:3, 3] = aside * i, 0, distances[0] - distance
        depth = np.full(SIZE[::-1], distance, np.float32)
        image = np.full((*SIZE[::-1], 3), min(10 * i, 250), np.uint8)
        values = exact_values(depth, image, K)
        if with_wall is not None:
            with_wall(i, values)
        sure = np.full(depth.shape, 2.0, np.float32)
        pose = FramePose(i, "", 0, T, K, SIZE, True)
        writer.add_keyframe(Keyframe(pose, depth, sure, image, splats=keep_visible(values, depth)))
    writer.journal.close()
    return folder


@pytest.mark.parametrize("step", long_after(2, [0.1, 0.5, 0.25, 0.05, 0.15]))
@pytest.mark.parametrize("count", long_after(1, [2, 6, 3, 4]))
def test_no_surface_is_lost_to_keyframes_that_are_a_little_nearer(tmp_path, step, count):
    distances = [10 - step * i for i in range(count)]
    alone = exported(wall_scene(tmp_path / "a", distances[:1]), tmp_path / "a.splat.ply").points
    all_ = exported(wall_scene(tmp_path / "b", distances), tmp_path / "b.splat.ply").points
    assert 0.98 * alone < all_ < 1.4 * alone  # but for a pixel where regions meet


def test_the_nearer_keyframe_shows_a_surface(tmp_path):
    """Keyframes have colours of their own: in the middle, which all see, the nearest one's."""
    splats = read_ply(exported(wall_scene(tmp_path / "a", [8.0, 4.0, 2.0, 6.0]),
                               tmp_path / "a.splat.ply").path)  # fmt: skip
    middle = (np.abs(splats.means[:, :2]) < 0.5).all(axis=1)
    shown = np.round((0.5 + 0.28209479 * splats.sh[middle][:, 0, 0]) * 255)
    assert middle.sum() > 1000
    assert set(shown) == {20}


def test_surfaces_behind_others_are_kept(tmp_path):
    """A nearer keyframe that looks at something before the wall does not own the wall."""
    folder = wall_scene(tmp_path / "a", [8.0, 4.0])
    with StoredScene.open(folder) as stored:
        frame = stored.frames[1]
    depth = np.full(SIZE[::-1], 1.0, np.float32)
    values = exact_values(depth, np.full((*SIZE[::-1], 3), 200, np.uint8), frame.K)
    near = tmp_path / "b"
    writer = StoreWriter(wall_scene(near, [8.0]))
    pose = FramePose(9, "", 0, frame.T_submap_camera, frame.K, SIZE, True)
    writer.add_keyframe(Keyframe(pose, depth, np.full(depth.shape, 2.0, np.float32),
                        np.zeros((*SIZE[::-1], 3), np.uint8),
                        splats=keep_visible(values, depth)))  # fmt: skip
    writer.journal.close()
    splats = read_ply(exported(near, tmp_path / "b.splat.ply").path)
    wall = splats.means[:, 2] > 7
    alone = exported(wall_scene(tmp_path / "c", [8.0]), tmp_path / "c.splat.ply").points
    assert wall.sum() > 0.95 * alone


def test_noise_of_depth_makes_no_holes(frames, tmp_path):
    """Two keyframes whose depth disagrees by 2 % do not leave a surface to each other."""
    folder = wall_scene(tmp_path / "a", [5.0, 4.9, 4.8])
    whole = exported(folder, tmp_path / "a.splat.ply").points
    noisy = tmp_path / "b"
    writer = StoreWriter(noisy)
    rng = np.random.default_rng(0)
    with StoredScene.open(folder) as stored:
        writer.place(stored.submaps.values())
        writer.set_map(stored.map)
        for key in stored.images:
            one = stored.load(key)
            depth = one.depth * np.float32(1 + 0.01 * rng.normal())
            splats = stored.load_splats(key)
            writer.add_keyframe(
                Keyframe(one.pose, depth, one.confidence, one.image, splats=splats)
            )
    writer.journal.close()
    assert exported(noisy, tmp_path / "b.splat.ply").points > 0.97 * whole


def test_gaussians_far_from_their_surface_are_left_out(tmp_path):
    def float_away(index, values):
        values[CHANNELS["stretch"].start, 50:60, 50:60] = 4.0

    folder = wall_scene(tmp_path / "a", [3.0], with_wall=float_away)
    found = read_ply(exported(folder, tmp_path / "a.splat.ply").path)
    assert found.means[:, 2].max() < 3.2
    assert len(found.means) == exported(wall_scene(tmp_path / "b", [3.0]),
                                        tmp_path / "b.splat.ply").points - 100  # fmt: skip


def test_gaussians_beyond_the_largest_depth_are_left_out(tmp_path):
    def a_little_behind(index, values):
        values[CHANNELS["stretch"].start, 50:60, 50:60] += 0.04

    folder = wall_scene(tmp_path / "a", [3.0], with_wall=a_little_behind)
    for most, lost in ((3.2, 0), (3.05, 100)):
        with StoredScene.open(folder) as stored:
            filters = DepthFilters(edge_filter=False, max_depth=most)
            done = export_splats(stored, tmp_path / "a.splat.ply", Selection(), filters)
        assert done.points == exported(wall_scene(tmp_path / f"{most}", [3.0]),
                                       tmp_path / "b.splat.ply").points - lost  # fmt: skip


def test_gaussians_before_all_surfaces_are_left_out(tmp_path):
    def before_the_camera(index, values):
        values[CHANNELS["stretch"].start, 50:60, 50:60] = -0.9

    folder = wall_scene(tmp_path / "a", [3.0], with_wall=before_the_camera)
    found = read_ply(exported(folder, tmp_path / "a.splat.ply").path)
    assert found.means[:, 2].min() > 2.8


@pytest.mark.parametrize("thickness", [0.0, 0.1, 0.15])
def test_a_wall_that_is_seen_from_both_sides_keeps_both(tmp_path, thickness):
    K = np.array([[120.0, 0, 80], [0, 120, 60], [0, 0, 1]])
    writer = StoreWriter(tmp_path / "scene")
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    counts = []
    for stamp, distance in enumerate((4.0, 3.0)):
        T = np.eye(4)
        if stamp:  # behind the wall, looking back
            T[:3, :3], T[2, 3] = np.diag([-1.0, 1, -1]), 4.0 + thickness + distance
        depth = np.full(SIZE[::-1], distance, np.float32)
        image = np.full((*SIZE[::-1], 3), 100 + 50 * stamp, np.uint8)
        splats = keep_visible(exact_values(depth, image, K), depth)
        counts.append(len(splats))
        pose = FramePose(stamp, "", 0, T, K, SIZE, True)
        writer.add_keyframe(Keyframe(pose, depth, np.ones_like(depth), image, splats=splats))
    writer.journal.close()
    assert exported(tmp_path / "scene", tmp_path / "a.splat.ply").points == sum(counts)


@pytest.mark.long
@pytest.mark.parametrize("step", [0.1, 0.02, 0.01])
def test_what_comes_into_view_slowly_is_kept(tmp_path, step):
    """The camera goes back: each keyframe adds a strip around the earlier ones' view."""
    distances = [2.0 + step * i for i in range(round(1 / step / 2) + 1)]
    folder = wall_scene(tmp_path / "a", distances)
    splats = read_ply(exported(folder, tmp_path / "a.splat.ply").path)
    end = distances[-1]
    K = np.array([[120.0, 0, 80], [0, 120, 60], [0, 0, 1]])
    T = np.eye(4)
    T[2, 3] = distances[0] - end
    _, opacity = render(splats, T, K, SIZE)
    assert (opacity[5:-5, 6:-6] > 0.9).mean() > 0.99


@pytest.mark.long
def test_keyframes_on_the_spot_share_what_they_see(tmp_path):
    """A camera turns twice in a round room: nearly one layer, though all cameras are near."""
    K, writer = np.array([[80.0, 0, 40], [0, 80, 30], [0, 0, 1]]), StoreWriter(tmp_path / "s")
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    x = np.tile(np.arange(80) + 0.5 - 40, (60, 1))
    depth = (3.0 / np.hypot(x / 80, 1)).astype(np.float32)  # a cylinder around the camera
    image = np.full((60, 80, 3), 120, np.uint8)
    splats = keep_visible(exact_values(depth, image, K), depth)
    for stamp in range(72):
        T = np.eye(4)
        T[:3, :3] = Rotation.from_euler("y", 10.0 * stamp, degrees=True).as_matrix()
        pose = FramePose(stamp, "", 0, T, K, (80, 60), True)
        writer.add_keyframe(Keyframe(pose, depth, np.ones_like(depth), image, splats=splats))
    writer.journal.close()
    layers = 360 / np.degrees(2 * np.arctan(0.5)) * len(splats)
    assert exported(tmp_path / "s", tmp_path / "a.splat.ply").points < 2 * layers


@pytest.mark.long
def test_few_keyframes_in_memory_change_nothing(scene, tmp_path, monkeypatch):
    exported(scene, tmp_path / "a.splat.ply")
    monkeypatch.setattr(stored_splats, "CACHED", 1)
    exported(scene, tmp_path / "b.splat.ply")
    assert (tmp_path / "a.splat.ply").read_bytes() == (tmp_path / "b.splat.ply").read_bytes()


def test_gaussians_that_are_none_cost_their_keyframe(tmp_path, caplog):
    """A journal with values that no network gives: another program wrote it."""
    folder = wall_scene(tmp_path / "a", [3.0, 2.9])
    alone = exported(wall_scene(tmp_path / "b", [3.0]), tmp_path / "b.splat.ply").points
    with StoredScene.open(folder) as stored:
        splats = {key: stored.load_splats(key) for key in stored.images}
        keyframes = {key: stored.load(key) for key in stored.images}
        places, state = list(stored.submaps.values()), stored.map
    for name, value in (("opacity", 2.0), ("scale", 0.0), ("rotation", 0.0), ("sh", np.nan),
                        ("stretch", -2.0)):  # fmt: skip
        writer = StoreWriter(tmp_path / name)
        writer.place(places)
        writer.set_map(state)
        for key, one in keyframes.items():
            values = splats[key].values.copy()
            if key == 1:
                values[7, CHANNELS[name]] = value
            given = RelativeSplats(splats[key].kept, values)
            writer.add_keyframe(
                Keyframe(one.pose, one.depth, one.confidence, one.image, splats=given)
            )
        writer.journal.close()
        caplog.clear()
        assert exported(tmp_path / name, tmp_path / f"{name}.splat.ply").points == alone
        assert "its Gaussians are left out" in caplog.text


def test_a_glb_that_is_too_large_is_refused(scene, tmp_path, monkeypatch):
    monkeypatch.setattr(splat_glb, "MAX_BYTES", 10_000)
    with pytest.raises(ExportError, match="set max_points, or write PLY"):
        exported(scene, tmp_path / "a.splat.glb")
    assert not list(tmp_path.iterdir())


def test_keyframes_are_copied_with_their_gaussians(frames, tmp_path):
    """As `da3_ros merge` does: bytes of another journal, with the tracks numbered anew."""
    f = frames[0]
    values = keep_visible(exact_values(f.depth, f.image, f.K), f.depth)
    tracks = Tracks(np.arange(5), np.ones((5, 2), np.float32))
    pose = FramePose(f.stamp_ns, "", 0, np.eye(4), f.K, SIZE, True)
    sure = np.ones(f.depth.shape, np.float32)
    writer = StoreWriter(tmp_path / "a")
    writer.place([StoredSubmap(0, 0, 0, S_MAP_SUBMAP)])
    writer.add_keyframe(
        Keyframe(pose, f.depth.astype(np.float32), sure, f.image, None, tracks, values)
    )
    writer.journal.close()
    copy = StoreWriter(tmp_path / "b")
    copy.place([StoredSubmap(0, 0, 0, S_MAP_SUBMAP)])
    with StoredScene.open(tmp_path / "a") as stored:
        assert copy.copy(stored, 0, pose, 100) == 105
    copy.journal.close()
    with StoredScene.open(tmp_path / "b") as stored:
        np.testing.assert_array_equal(stored.load_splats(0).values, values.values)
        np.testing.assert_array_equal(stored.load_splats(0).kept, values.kept)
        np.testing.assert_array_equal(stored.load(0).tracks.ids, np.arange(100, 105))


def test_the_farthest_share_is_left_out(frames, tmp_path):
    kept = read_ply(exported(write(tmp_path / "s", frames[:1]), tmp_path / "a.splat.ply").path)
    T = T_ROS_MAP @ frames[0].T_room_camera
    z = (kept.means - T[:3, 3]) @ T[:3, 2]
    known = frames[0].depth[np.isfinite(frames[0].depth)]
    assert z.max() == pytest.approx(np.quantile(known, 0.9), rel=0.02)


def test_the_least_opaque_are_left_out_first(tmp_path):
    count = 70_000
    opacities = np.linspace(0.01, 1, count)[np.random.default_rng(0).permutation(count)]
    opacities = opacities.astype(np.float16).astype(float)
    q = np.tile([1.0, 0, 0, 0], (count, 1))
    many = Gaussians(np.zeros((count, 3)), np.ones((count, 3)), q, opacities,
                     np.zeros((count, 3, 9)))  # fmt: skip
    for most in (count, count - 1, 40_000, 7, 1):
        with splat_rows(tmp_path) as rows:
            rows.add(many.take(np.arange(30_000)))
            rows.add(many.take(np.arange(30_000, count)))
            rows.limit(most)
            found = np.concatenate([chunk["opacity"] for chunk in rows.chunks()])
            assert len(rows) == len(found) == most
        least = np.sort(opacities)[count - most]
        assert found.min() >= least - 2**-16


def test_a_number_of_points_bounds_the_file(scene, tmp_path):
    assert exported(scene, tmp_path / "a.splat.ply", max_points=500).points == 500
    assert len(read_ply(tmp_path / "a.splat.ply").means) == 500
    assert MOST > 1_000_000


def test_a_crop_bounds_the_means(scene, tmp_path):
    whole = read_ply(exported(scene, tmp_path / "all.splat.ply").path).means
    box = (*(np.quantile(whole, 0.2, axis=0) + 0.011), *(np.quantile(whole, 0.9, axis=0) + 0.011))
    inside = ((whole >= box[:3]) & (whole <= box[3:])).all(axis=1)
    assert 0 < inside.sum() < len(whole)
    found = read_ply(exported(scene, tmp_path / "some.splat.ply", crop=box).path).means
    np.testing.assert_array_equal(found, whole[inside])


def test_unconnected_components_can_be_left_out(frames, tmp_path):
    folder = write(tmp_path / "scene", frames[:1], component=1)
    assert exported(folder, tmp_path / "a.splat.ply").points > 0
    with pytest.raises(ExportError, match="no Gaussian passes"):
        exported(folder, tmp_path / "b.splat.ply", unconnected=False)
    assert not (tmp_path / "b.splat.ply").exists()


def test_the_command_writes_both(scene, tmp_path, capsys):
    for name in ("room.splat.ply", "room.splat.glb"):
        assert main(["export", str(scene), str(tmp_path / name)]) == 0
        assert f"Gaussians in {tmp_path / name}" in capsys.readouterr().out
    words = ["export", str(scene), str(tmp_path / "small.ply"), "--format", "splat"]
    assert main([*words, "--sh-degree", "0"]) == 0
    small, large = ((tmp_path / n).stat().st_size for n in ("small.ply", "room.splat.ply"))
    assert small < 0.45 * large


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["room.splat.obj"], r"NAME.splat.ply, NAME.splat.glb"),
        (["room.splat.ply", "--voxel", "0.1"], "leave out voxel"),
        (["room.splat.ply", "--min-observations", "2"], "min_observations"),
        (["room.splat.ply", "--max-depth", "0.01"], "no Gaussian passes"),
    ],
)
def test_what_cannot_be_asked_for_is_said(scene, tmp_path, capsys, words, text):
    assert main(["export", str(scene), str(tmp_path / words[0]), *words[1:]]) == 1
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_scene_without_gaussians_names_the_remedy(frames, tmp_path, capsys):
    folder = write(tmp_path / "scene", frames[:1], with_splats=False)
    assert main(["export", str(folder), str(tmp_path / "a.splat.ply")]) == 1
    err = capsys.readouterr().err
    assert "set splats.enabled to true" in err
    assert "NAME.colmap" in err


def test_a_damaged_keyframe_costs_itself(frames, tmp_path, caplog):
    folder = write(tmp_path / "scene", frames[:3])
    whole = (folder / JOURNAL).read_bytes()
    with StoredScene.open(folder) as stored:
        record = stored.images[1].record
    data = bytearray(whole)
    data[record.start + record.size // 2] ^= 255
    (folder / JOURNAL).write_bytes(bytes(data))
    assert exported(folder, tmp_path / "a.splat.ply").points > 0
    assert "it is left out" in caplog.text


def test_other_exports_of_such_a_scene_are_the_same(frames, tmp_path):
    for name, with_splats in (("with", True), ("without", False)):
        write(tmp_path / name, frames, with_splats=with_splats)
        out = str(tmp_path / f"{name}.ply")
        assert main(["export", str(tmp_path / name), out, "--voxel", "0.05"]) == 0
    assert (tmp_path / "with.ply").read_bytes() == (tmp_path / "without.ply").read_bytes()


def test_an_export_that_is_ended_leaves_nothing(scene, tmp_path):
    def stop(what, share):
        if what == "writing":
            raise ExportError("enough")

    with StoredScene.open(scene) as stored, pytest.raises(ExportError, match="enough"):
        export_splats(stored, tmp_path / "a.splat.ply", Selection(), FILTERS, stop)
    assert not list(tmp_path.iterdir())


def test_a_glb_names_what_it_holds(scene, tmp_path):
    exported(scene, tmp_path / "a.splat.glb", sh_degree=0)
    data = (tmp_path / "a.splat.glb").read_bytes()
    text = json.loads(data[20 : 20 + int.from_bytes(data[12:16], "little")])
    names = set(text["meshes"][0]["primitives"][0]["attributes"])
    own = ("ROTATION", "SCALE", "OPACITY", "SH_DEGREE_0_COEF_0")
    assert names == {"POSITION", "COLOR_0", *(f"KHR_gaussian_splatting:{n}" for n in own)}
