"""The surface of stored keyframes, held against the exact room."""

import builtins
import dataclasses

import numpy as np
import pytest
import trimesh
from scipy.spatial import cKDTree
from support.cases import long_after

pytest.importorskip("skimage", reason="needs scikit-image: pip install scikit-image")

from da3_ros.cli import main
from da3_ros.export import surface
from da3_ros.export.selection import ExportError
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.export.surface import fused_surface
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe
from da3_ros.keyframe_store.store import MapState, StoredScene, StoredSubmap, StoreWriter
from da3_ros.synthetic import SyntheticCamera

SIZE, VOXEL = (168, 126), 0.05
UNIT = 1.6  # units of the submap per metre
T_ROS_MAP = np.array([[0.0, 0, 1, 0.3], [-1, 0, 0, 0], [0, -1, 0, 0.2], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def frames():
    return list(SyntheticCamera(seed=5, size=SIZE, walk="loop", frames=20, rate_hz=2))


@pytest.fixture(scope="module")
def scene(frames, tmp_path_factory):
    """A metric scene whose submap has another unit, turned and moved in the map."""
    folder = tmp_path_factory.mktemp("scene")
    write(folder, frames)
    with StoredScene.open(folder) as stored:
        yield stored


def write(folder, frames, noise=0.0, end=True):
    rng = np.random.default_rng(0)
    writer = StoreWriter(folder)
    R = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    S = Similarity(2.0 / UNIT, R, np.array([1.0, 2, 3]))
    writer.place([StoredSubmap(0, 0, 0, S)])
    writer.set_map(MapState(True, 0.5, 1.0, T_ROS_MAP @ invert_pose(half(S))))
    for f in frames:
        T = invert_pose(frames[0].T_room_camera) @ f.T_room_camera
        T[:3, 3] *= UNIT
        pose = FramePose(f.stamp_ns, "", 0, T, f.K, SIZE, True)
        wrong = np.exp(noise * rng.standard_normal(f.depth.shape)).astype(np.float32)
        writer.add_keyframe(Keyframe(pose, f.depth * UNIT * wrong, np.ones_like(f.depth), f.image))
    if end:
        writer.journal.close()
    return writer


def half(S):
    """The submap's pose in the map, metres."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = S.R, 0.5 * S.t
    return T


def truth(frames):
    """Points [N, 3] of the room that the camera saw, in the map."""
    out = []
    for f in frames:
        T = T_ROS_MAP @ invert_pose(frames[0].T_room_camera) @ f.T_room_camera
        points = backproject(f.depth, f.K)[::2, ::2].reshape(-1, 3)
        out.append(points[np.isfinite(points[:, 2])] @ T[:3, :3].T + T[:3, 3])
    return np.concatenate(out)


def errors(mesh, frames):
    """Distances of the mesh from the room, and of the room from the mesh."""
    loaded = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False)
    points, _ = trimesh.sample.sample_surface(loaded, 40_000, seed=0)
    room = truth(frames)
    return cKDTree(room).query(points)[0], cKDTree(points).query(room[::5])[0]


def test_an_exact_room_is_met_within_a_voxel(scene, frames):
    mesh = fused_surface(scene, DepthFilters(voxel=VOXEL))
    off, missed = errors(mesh, frames)
    assert (off.mean() + missed.mean()) / 2 < VOXEL / 2  # Chamfer distance
    assert (missed < 1.5 * VOXEL).mean() > 0.97
    assert np.quantile(off, 0.99) < 2 * VOXEL


@pytest.mark.long
def test_noise_averages_out(frames, tmp_path):
    write(tmp_path, frames, noise=0.02)
    with StoredScene.open(tmp_path) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=VOXEL))
    off, missed = errors(mesh, frames)
    assert off.mean() < VOXEL / 2
    assert (missed < 1.5 * VOXEL).mean() > 0.95


def test_a_near_look_counts_more_than_far_ones(tmp_path):
    """Exact from 1 m, 1 % off from 8 m: the wall moves by millimetres, not by 4 cm."""
    K = np.array([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
    writer = StoreWriter(tmp_path)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    image = np.zeros((60, 80, 3), np.uint8)
    for stamp, (z, depth) in enumerate([(9.0, 1.0)] * 3 + [(2.0, 8.08)] * 3):
        T = np.eye(4)
        T[2, 3] = z
        pose = FramePose(stamp, "", 0, T, K, (80, 60), True)
        wall = np.full((60, 80), depth, np.float32)
        writer.add_keyframe(Keyframe(pose, wall, np.ones_like(wall), image))
    writer.journal.close()
    with StoredScene.open(tmp_path) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=0.05))
    near = mesh.vertices[np.abs(mesh.vertices[:, :2]).max(axis=1) < 0.2]
    assert len(near) > 20
    assert np.median(near[:, 2]) == pytest.approx(10.0, abs=0.01)


def test_triangles_face_the_camera_and_have_the_rooms_colours(scene, frames):
    mesh = fused_surface(scene, DepthFilters(voxel=VOXEL))
    corners = mesh.vertices[mesh.faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    room, colours, centres = truth(frames), [], []
    for f in frames:
        centres.append((T_ROS_MAP @ invert_pose(frames[0].T_room_camera)
                        @ f.T_room_camera)[:3, 3])  # fmt: skip
        known = np.isfinite(f.depth[::2, ::2])
        colours.append(f.image[::2, ::2][known])
    towards = np.mean(centres, axis=0) - corners.mean(axis=1)
    assert ((normal * towards).sum(axis=1) > 0).mean() > 0.95
    nearest = cKDTree(room).query(mesh.vertices)[1]
    difference = mesh.rgb.astype(int) - np.concatenate(colours)[nearest]
    assert np.median(np.abs(difference)) < 12


@pytest.mark.long
def test_the_seams_between_cubes_are_closed(scene, monkeypatch):
    """One large cube and many small ones make the same triangles."""
    whole = fused_surface(scene, DepthFilters(voxel=VOXEL))
    monkeypatch.setattr(surface, "CUBE", 2)
    parts = fused_surface(scene, DepthFilters(voxel=VOXEL))
    assert len(parts.faces) == len(whole.faces)
    assert len(parts.vertices) == len(whole.vertices)
    ends = [np.sort(m.vertices.round(5), axis=0) for m in (whole, parts)]
    np.testing.assert_allclose(*ends, atol=2e-5)


@pytest.mark.long
def test_filters_count(scene):
    near = fused_surface(scene, DepthFilters(voxel=VOXEL, max_depth=1.5))
    whole = fused_surface(scene, DepthFilters(voxel=VOXEL))
    assert 0 < len(near.faces) < len(whole.faces)


def test_a_crop_is_a_box_in_the_map(scene):
    whole = fused_surface(scene, DepthFilters(voxel=VOXEL))
    low, high = whole.vertices.min(axis=0), whole.vertices.max(axis=0)
    middle = (low + high) / 2
    cut = fused_surface(scene, DepthFilters(voxel=VOXEL), crop=[*low, *middle])
    assert 0 < len(cut.faces) < len(whole.faces) / 2
    assert (cut.vertices <= middle).all()
    assert cut.faces.max() == len(cut.vertices) - 1


@pytest.mark.long
def test_components_are_not_fused_and_unconnected_ones_can_be_left_out(frames, tmp_path):
    """The second component lies 10 cm off: fused, its walls would move the first one's."""
    writer = write(tmp_path, frames, end=False)
    writer.place([StoredSubmap(1, 1, 1, Similarity(1.0, np.eye(3), np.array([9.0, 0, 0])))])
    f = frames[0]
    T = np.eye(4)
    pose = FramePose(f.stamp_ns + 1, "", 1, T, f.K, SIZE, True)
    writer.add_keyframe(Keyframe(pose, 2 * f.depth, np.full_like(f.depth, 100.0), f.image))
    pose = dataclasses.replace(pose, stamp_ns=f.stamp_ns + 2)
    writer.add_keyframe(Keyframe(pose, 2 * f.depth, np.full_like(f.depth, 100.0), f.image))
    writer.journal.close()
    with StoredScene.open(tmp_path) as stored:
        known = fused_surface(stored, DepthFilters(voxel=VOXEL), unconnected=False)
        both = fused_surface(stored, DepthFilters(voxel=VOXEL))
    off, _ = errors(known, frames)
    assert np.quantile(off, 0.99) < 2 * VOXEL
    np.testing.assert_array_equal(both.vertices[: len(known.vertices)], known.vertices)
    assert len(both.faces) > len(known.faces)


def test_a_voxel_that_is_too_fine_is_refused(scene, monkeypatch):
    monkeypatch.setattr(surface, "MAX_CUBES", 5)
    with pytest.raises(ExportError, match=r"voxel is 0\.01: too fine for this scene"):
        fused_surface(scene, DepthFilters(voxel=0.01))


def test_a_mesh_of_too_many_triangles_is_refused(scene, monkeypatch):
    monkeypatch.setattr(surface, "MAX_TRIANGLES", 1000)
    with pytest.raises(ExportError, match=r"over 1000 triangles\); use a larger one, or a crop"):
        fused_surface(scene, DepthFilters(voxel=VOXEL))


def test_a_wall_between_two_blocks_is_there(tmp_path):
    """Its voxels are exactly on the surface: the edge of a block is 80 cm."""
    K = np.array([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
    writer = StoreWriter(tmp_path)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    depth = np.full((60, 80), 4.0, np.float32)
    for stamp in range(3):
        pose = FramePose(stamp, "", 0, np.eye(4), K, (80, 60), True)
        writer.add_keyframe(
            Keyframe(pose, depth, np.ones_like(depth), np.zeros((60, 80, 3), np.uint8))
        )
    writer.journal.close()
    with StoredScene.open(tmp_path) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=0.05))
    assert len(mesh.faces) > 1000
    np.testing.assert_allclose(mesh.vertices[:, 2], 4.0, atol=0.002)


@pytest.mark.long
def test_only_what_the_crop_needs_is_fused(scene, monkeypatch):
    whole = fused_surface(scene, DepthFilters(voxel=VOXEL))
    low, high = whole.vertices.min(axis=0), whole.vertices.max(axis=0)
    crop = [*(low + 0.4 * (high - low)), *(low + 0.7 * (high - low))]
    monkeypatch.setattr(surface, "CUBE", 2)
    volumes, volume = [], surface._Volume
    monkeypatch.setattr(surface, "_Volume", lambda *a: volumes.append(a) or volume(*a))
    fused_surface(scene, DepthFilters(voxel=VOXEL))
    all_cubes = len(volumes)
    cut = fused_surface(scene, DepthFilters(voxel=VOXEL), crop=crop)
    assert 0 < len(volumes) - all_cubes < 0.3 * all_cubes
    wanted = surface._cropped(whole, crop)
    assert len(cut.faces) == len(wanted.faces) > 100
    ends = [np.sort(m.vertices.round(5), axis=0) for m in (cut, wanted)]
    np.testing.assert_allclose(*ends, atol=2e-5)
    monkeypatch.setattr(surface, "MAX_CUBES", len(volumes) - all_cubes)
    fused_surface(scene, DepthFilters(voxel=VOXEL), crop=crop)  # cubes outside do not count


def test_a_wall_that_is_seen_from_both_sides_keeps_its_thickness(tmp_path):
    """12 cm, from 4 m: exact depth is not cut off by a worse one's uncertainty."""
    K = np.array([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
    writer = StoreWriter(tmp_path)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    image, depth = np.zeros((60, 80, 3), np.uint8), np.full((60, 80), 4.0, np.float32)
    for stamp in range(12):
        T = np.eye(4)
        if stamp % 2:
            T[:3, :3], T[2, 3] = np.diag([-1.0, 1, -1]), 8.12
        T[0, 3] = 0.05 * stamp
        pose = FramePose(stamp, "", 0, T, K, (80, 60), True)
        writer.add_keyframe(Keyframe(pose, depth, np.ones_like(depth), image))
    writer.journal.close()
    with StoredScene.open(tmp_path) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=0.04))
    middle = mesh.vertices[np.abs(mesh.vertices[:, :2]).max(axis=1) < 0.5]
    near, far = middle[middle[:, 2] < 4.06, 2], middle[middle[:, 2] > 4.06, 2]
    assert min(len(near), len(far)) > 100
    assert np.median(near) == pytest.approx(4.0, abs=0.012)
    assert np.median(far) == pytest.approx(4.12, abs=0.012)


def two_sheets(folder, confidences, distances, colours=(50, 150)):
    """Looks of one camera at walls at some distances; returns the middle of the surface."""
    K = np.array([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
    writer = StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    for stamp, z in enumerate(distances):
        pose = FramePose(stamp, "", 0, np.eye(4), K, (80, 60), True)
        depth = np.full((60, 80), z, np.float32)
        depth[:, 30:] = 4.0  # in which all agree
        confidence = np.ones_like(depth)
        confidence[:, :30] = confidences[stamp]
        image = np.full((60, 80, 3), colours[stamp % 2], np.uint8)
        writer.add_keyframe(Keyframe(pose, depth, confidence, image))
    writer.journal.close()
    with StoredScene.open(folder) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=0.04, remove_movers=False))
    xyz = mesh.vertices
    middle = (np.abs(xyz[:, 1]) < 0.5) & (xyz[:, 0] > -1.3) & (xyz[:, 0] < -0.6)
    return np.median(xyz[middle, 2]), mesh.rgb[middle]


def test_sure_pixels_count_more(tmp_path):
    even, _ = two_sheets(tmp_path / "even", [1, 1, 1, 1], [4.0, 4.06] * 2)
    first, _ = two_sheets(tmp_path / "first", [9, 0.5, 9, 0.5], [4.0, 4.06] * 2)
    assert even == pytest.approx(4.03, abs=0.01)
    assert first == pytest.approx(4.0, abs=0.012)


def test_colours_are_the_mean_of_all_looks(tmp_path):
    _, rgb = two_sheets(tmp_path, [1, 1, 1, 1], [4.0] * 4)
    assert np.abs(np.median(rgb, axis=0) - 100).max() < 3


def test_one_look_makes_no_surface(tmp_path):
    for looks, some in (([np.nan, np.nan, 5.0], False), ([np.nan, 5.0, 5.0], True)):
        z, _ = two_sheets(tmp_path / str(some), [1, 1, 1], looks)
        assert np.isfinite(z) == some


def test_nothing_that_was_seen_well_is_one_line(tmp_path, frames, capsys):
    write(tmp_path, frames[:1])
    path = tmp_path / "out" / "room.mesh.ply"
    assert main(["export", str(tmp_path), str(path), "--max-depth", "0.01"]) == 1
    assert "no surface" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("suffix", long_after(1, ["glb", "ply", "obj"]))
def test_the_command_writes_each_format(scene, frames, tmp_path, suffix):
    folder = scene.reader.path.parent
    path = tmp_path / f"room.mesh.{suffix}"
    assert main(["export", str(folder), str(path), "--voxel", str(VOXEL)]) == 0
    loaded = trimesh.load(path, force="mesh")
    expected = fused_surface(scene, DepthFilters(voxel=VOXEL))
    assert len(loaded.faces) == len(expected.faces)
    low, high = loaded.bounds
    if suffix == "glb":  # y up: x right, y up, z backward
        low, high = np.array([-high[2], -high[0], low[1]]), np.array([-low[2], -low[0], high[1]])
    np.testing.assert_allclose(low, expected.vertices.min(axis=0), atol=1e-4)
    np.testing.assert_allclose(high, expected.vertices.max(axis=0), atol=1e-4)


def test_another_suffix_is_refused_in_one_line(scene, tmp_path, capsys):
    folder = scene.reader.path.parent
    assert main(["export", str(folder), str(tmp_path / "room.mesh.stl")]) == 1
    assert "name it NAME.mesh.glb, NAME.mesh.ply, NAME.mesh.obj" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_the_library_one_line_names_the_remedy(scene, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("skimage"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ExportError, match="pip install scikit-image"):
        fused_surface(scene, DepthFilters(voxel=VOXEL))


def test_an_abort_ends_the_work(scene):
    def stop(step, share):
        raise ExportError(step)

    with pytest.raises(ExportError, match="checking keyframes"):
        fused_surface(scene, DepthFilters(voxel=VOXEL), stop)


def walls(folder, errors):
    """A wall at 4 m, seen by cameras beside each other with these relative errors of depth."""
    K = np.array([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
    writer = StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, 0, Similarity(1.0, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    image = np.zeros((60, 80, 3), np.uint8)
    for stamp, error in enumerate(errors):
        T = np.eye(4)
        T[0, 3] = 0.05 * stamp
        pose = FramePose(stamp, "", 0, T, K, (80, 60), True)
        depth = np.full((60, 80), 4 * (1 + error), np.float32)
        writer.add_keyframe(Keyframe(pose, depth, np.ones_like(depth), image))
    writer.journal.close()


@pytest.mark.parametrize("error", long_after(1, [0.06, 0.02]))
def test_keyframes_that_disagree_make_one_sheet(tmp_path, error):
    """Apart by 16 and 48 cm, with voxels of 4 cm: what is cut off behind grows with it."""
    walls(tmp_path, [error, -error] * 4)
    with StoredScene.open(tmp_path) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=0.04))
    middle = mesh.vertices[np.abs(mesh.vertices[:, :2] - (0.2, 0)).max(axis=1) < 0.5]
    assert len(middle) > 100
    assert np.ptp(middle[:, 2]) < 0.05
    assert middle[:, 2].mean() == pytest.approx(4, abs=0.1)


def test_the_uncertainty_is_what_depths_disagree_by(tmp_path):
    found = []
    for error in (0.0, 0.01, 0.1):
        folder = tmp_path / str(error)
        walls(folder, [error, -error] * 4)
        with StoredScene.open(folder) as stored:
            readable = readable_keyframes(stored, DepthFilters())
            found.append(surface._Looks(readable, VOXEL)[0][0].sigma)
    assert found[0] == surface.DEPTH_SIGMA[0]
    assert surface.DEPTH_SIGMA[0] < found[1] < found[2] == surface.DEPTH_SIGMA[1]
