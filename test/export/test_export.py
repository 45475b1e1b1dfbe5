"""Exported files, read back by other means than those that wrote them."""

import json
import os
import shutil
import stat
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import trimesh
from scipy.spatial.transform import Rotation
from support.file_readers import read_colmap, read_ply

from da3_ros.drawing.scene_picture import render_scene
from da3_ros.drawing.scene_renderer import CAMERA_COLOR, PATH_COLOR
from da3_ros.export import selection as selecting
from da3_ros.export.atomic_files import atomic_folder, atomic_path
from da3_ros.export.export import ExportError, Selection, export_scene
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.scene import Scene, SubmapCloud
from da3_ros.mapping.submap_points import jpeg
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.mapping.voxel_map import PointCloud

K = np.array([[300.0, 0, 160], [0, 310, 120], [0, 0, 1]])
BUILD = Path(__file__).parents[2] / "build" / "gltf-validator"
VALIDATE = """
const validator = require(process.argv[1]);
const bytes = new Uint8Array(require("fs").readFileSync(process.argv[2]));
validator.validateBytes(bytes).then((report) => console.log(JSON.stringify(report)));
"""


def make_cloud(n=500, seed=0):
    """Points about 3 m ahead of the first camera, one marked point above it."""
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-1, 1, (n, 3)).astype(np.float32) + [0, 0, 3]
    xyz[0] = [0, -2, 3]  # up is -y in optical axes
    rgb = rng.integers(0, 256, (n, 3)).astype(np.uint8)
    rgb[0] = [255, 0, 0]
    confidence = rng.uniform(1, 4, n).astype(np.float16)
    count = rng.integers(1, 5, n).astype(np.uint16)
    return PointCloud(xyz.astype(np.float32), rgb, confidence, count)


def make_poses():
    """A straight path whose every second pose is a keyframe."""
    poses = []
    for i in range(5):
        T = np.eye(4)
        T[2, 3] = 0.1 * i
        poses.append(Pose(1_700_000_000_123_456_789 + i, T, K, (320, 240), i % 2 == 0))
    return poses


def make_scene(n=500):
    return Scene((SubmapCloud(make_cloud(n)),), Poses.of(make_poses()))


def places(path):
    rows = read_ply(path)
    return np.stack([rows[axis] for axis in "xyz"], axis=1)


def test_ply_holds_position_colour_and_confidence_in_map_axes(tmp_path):
    scene = make_scene()
    cloud = scene.clouds[0].cloud
    done = export_scene(scene, tmp_path / "scene.ply")
    rows = read_ply(done.path)
    assert done.points == len(rows) == len(cloud)
    assert done.bytes == done.path.stat().st_size
    x, y, z = cloud.xyz.T
    np.testing.assert_allclose(rows["x"], z, atol=1e-6)
    np.testing.assert_allclose(rows["y"], -x, atol=1e-6)
    np.testing.assert_allclose(rows["z"], -y, atol=1e-6)
    np.testing.assert_array_equal(rows["red"], cloud.rgb[:, 0])
    np.testing.assert_array_equal(rows["confidence"], cloud.confidence)


def test_ply_is_read_by_another_library(tmp_path):
    scene = make_scene()
    loaded = trimesh.load(export_scene(scene, tmp_path / "scene.ply").path)
    assert len(loaded.vertices) == len(scene)
    np.testing.assert_array_equal(np.asarray(loaded.colors)[:, :3], scene.clouds[0].cloud.rgb)


def test_parts_lie_where_their_similarity_puts_them(tmp_path):
    R = Rotation.from_euler("xyz", [20, -40, 70], degrees=True).as_matrix()
    S = Similarity(2.5, R, np.array([1.0, 2, 3]))
    cloud = make_cloud()
    scene = Scene((SubmapCloud(cloud, S), SubmapCloud(cloud)), Poses.of([]), np.eye(4))
    xyz = places(export_scene(scene, tmp_path / "scene.ply").path)
    np.testing.assert_allclose(xyz[:500], 2.5 * cloud.xyz @ R.T + [1, 2, 3], atol=1e-5)
    np.testing.assert_allclose(xyz[500:], cloud.xyz, atol=1e-6)


def test_glb_is_upright_and_has_points_cameras_and_path(tmp_path):
    loaded = trimesh.load(export_scene(make_scene(), tmp_path / "scene.glb").path)
    assert set(loaded.geometry) == {"points", "cameras", "path"}
    points = loaded.geometry["points"]
    srgb = make_cloud().rgb / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    np.testing.assert_allclose(np.asarray(points.colors)[:, :3], 255 * linear, atol=1)
    marked = np.flatnonzero((np.asarray(points.colors)[:, :3] == [255, 0, 0]).all(axis=1))
    # glTF: y is up, and what the first camera sees lies along -z.
    np.testing.assert_allclose(points.vertices[marked[0]], [0, 2, -3], atol=1e-6)
    np.testing.assert_allclose(loaded.geometry["path"].bounds[:, 2], [-0.4, 0], atol=1e-6)
    bare = export_scene(make_scene(), tmp_path / "bare.glb", Selection(cameras=False))
    assert isinstance(trimesh.load(bare.path).geometry["points"], trimesh.PointCloud)
    assert len(trimesh.load(bare.path).geometry) == 1


def test_glb_colours_are_linear_light_as_gltf_asks(tmp_path):
    cloud = make_cloud(3)
    cloud.rgb[:] = [[255, 188, 0], [188, 188, 188], [10, 10, 10]]
    scene = Scene((SubmapCloud(cloud),), Poses.of([]))
    head, binary = read_glb(export_scene(scene, tmp_path / "scene.glb").path)
    accessor = head["accessors"][head["meshes"][0]["primitives"][0]["attributes"]["COLOR_0"]]
    assert (accessor["componentType"], accessor["byteOffset"]) == (5126, 12)
    rows = np.frombuffer(binary, [("xyz", "<f4", 3), ("rgb", "<f4", 3)], 3)
    # 188 of sRGB is half the light: 0.5029; 10 is on the curve's straight beginning.
    np.testing.assert_allclose(rows["rgb"][0], [1, 0.5029, 0], atol=1e-4)
    np.testing.assert_allclose(rows["rgb"][2, 0], 10 / 255 / 12.92, atol=1e-7)


def read_glb(path):
    """JSON and binary part, by the format's description."""
    data = path.read_bytes()
    magic, version, length = struct.unpack_from("<4sII", data)
    assert (magic, version, length) == (b"glTF", 2, len(data))
    size, kind = struct.unpack_from("<I4s", data, 12)
    assert kind == b"JSON"
    rest, kind = struct.unpack_from("<I4s", data, 20 + size)
    assert (kind, 28 + size + rest) == (b"BIN\0", len(data))
    return json.loads(data[20 : 20 + size]), data[28 + size :]


@pytest.fixture(scope="module")
def validator():
    """Folder of Khronos's validator; fetched once into build/, skipped without npm or network."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm")
    folder = BUILD / "node_modules" / "gltf-validator"
    if not folder.is_dir():
        BUILD.mkdir(parents=True, exist_ok=True)
        get = ["npm", "install", "--no-audit", "--no-fund", "gltf-validator@2.0.0-dev.3.10"]
        done = subprocess.run([*get, "--prefix", BUILD], capture_output=True, timeout=120)
        if done.returncode:
            pytest.skip("npm cannot fetch gltf-validator")
    return folder


@pytest.mark.process
@pytest.mark.parametrize("most", [0, 77])
def test_the_khronos_validator_finds_nothing_in_a_glb(tmp_path, validator, most):
    path = export_scene(make_scene(), tmp_path / "scene.glb", Selection(max_points=most)).path
    done = subprocess.run(
        ["node", "-e", VALIDATE, validator, path], capture_output=True, check=True, timeout=60
    )
    issues = json.loads(done.stdout)["issues"]
    counts = {name: issues[name] for name in ("numErrors", "numWarnings", "numInfos")}
    assert not any(counts.values()), issues["messages"]


def test_tum_keeps_every_nanosecond_and_map_axes(tmp_path):
    lines = export_scene(make_scene(), tmp_path / "t.tum").path.read_text().splitlines()
    assert len(lines) == 5
    stamp, x, y, z, *q = lines[4].split()
    assert stamp == "1700000000.123456793"
    np.testing.assert_allclose([float(x), float(y), float(z)], [0.4, 0, 0], atol=1e-9)
    np.testing.assert_allclose([float(v) for v in q], [-0.5, 0.5, -0.5, 0.5], atol=1e-9)


def test_tum_is_the_leading_cameras_path(tmp_path):
    """The TUM file is the leading camera's path and is there without cameras too."""
    poses = make_poses()
    rig = [replace(p, camera=name) for p in poses for name in ("front", "left")]
    scene = Scene((), Poses.of(rig))
    path = export_scene(scene, tmp_path / "t.tum", Selection(cameras=False)).path
    assert len(path.read_text().splitlines()) == 5


def test_colmap_cameras_face_the_points_that_they_saw(tmp_path):
    scene = make_scene()
    shot = np.zeros((240, 320, 3), np.uint8)
    shot[:, :160] = [200, 30, 30]
    images = {("", p.stamp_ns): jpeg(shot) for p in make_poses() if p.keyframe}
    done = export_scene(replace(scene, images=images), tmp_path / "model", form="colmap")
    cameras, shots, points = read_colmap(done.path)
    assert cameras == {1: ("PINHOLE", 320, 240, [300.0, 310.0, 160.0, 120.0])}
    assert [s[0] for s in shots] == [1, 2, 3]
    assert [s[3] for s in shots] == [f"{1_700_000_000_123_456_789 + i}.jpg" for i in (0, 2, 4)]
    assert done.points == len(points) == 500
    np.testing.assert_array_equal(points[:, 0], np.arange(1, 501))
    np.testing.assert_array_equal(points[:, 4:7], scene.clouds[0].cloud.rgb)
    for (_, T, camera, name), pose in zip(shots, make_poses()[::2], strict=True):
        fx, fy, cx, cy = cameras[camera][3]
        seen = points[:, 1:4] @ T[:3, :3].T + T[:3, 3]
        expected = scene.clouds[0].cloud.xyz - pose.T_map_camera[:3, 3]
        np.testing.assert_allclose(seen, expected, atol=1e-5)
        assert abs(fx * seen[0, 0] / seen[0, 2] + cx - 160) < 1e-3  # the marked point: above
        assert fy * seen[0, 1] / seen[0, 2] + cy < 0
        picture = cv2.imread(str(done.path / "images" / name))
        assert picture.shape == (240, 320, 3)
        np.testing.assert_allclose(picture[120, 40], [30, 30, 200], atol=6)  # BGR


def test_colmap_without_images_has_all_keyframes_with_stamps(tmp_path):
    poses = [replace(p, camera=name) for p in make_poses() for name in ("front", "left")]
    scene = replace(make_scene(), poses=Poses.of(poses))
    cameras, shots, _ = read_colmap(export_scene(scene, tmp_path / "x.colmap").path)
    assert len(cameras) == 2  # two of a rig stay two, however alike
    assert shots[1][3] == "left_1700000000123456789.png"
    assert len(shots) == 6
    assert not (tmp_path / "x.colmap" / "images").exists()


def test_colmap_needs_a_camera(tmp_path):
    with pytest.raises(ExportError, match="no keyframe"):
        export_scene(Scene((SubmapCloud(make_cloud()),), Poses.of([])), tmp_path / "x.colmap")
    assert not list(tmp_path.iterdir())


def test_selection_by_confidence_observations_box_and_number(tmp_path):
    scene = make_scene()
    cloud = scene.clouds[0].cloud
    map_xyz = cloud.xyz @ scene.T_ros_map[:3, :3].T.astype(np.float32)
    box = (2.5, -0.5, -0.5, 3.5, 0.5, 0.5)
    inside = ((map_xyz >= box[:3]) & (map_xyz <= box[3:])).all(axis=1)
    for selection, keep in (
        (Selection(min_confidence=2.0), cloud.confidence >= 2),
        (Selection(min_observations=3), cloud.count >= 3),
        (Selection(crop=box), inside),
    ):
        xyz = places(export_scene(scene, tmp_path / "s.ply", selection).path)
        np.testing.assert_allclose(xyz, map_xyz[keep], atol=1e-6)
    thinned = places(export_scene(scene, tmp_path / "s.ply", Selection(max_points=200)).path)
    np.testing.assert_allclose(thinned, map_xyz[::3], atol=1e-6)


def test_chunks_and_passes_do_not_show(tmp_path, monkeypatch):
    scene = Scene(
        (SubmapCloud(make_cloud(500)), SubmapCloud(make_cloud(300, seed=1))), Poses.of([])
    )
    whole = [Selection(max_points=250), Selection(voxel=0.2), Selection(voxel=0.2, max_points=99)]
    before = [export_scene(scene, tmp_path / f"a{i}.ply", s).path for i, s in enumerate(whole)]
    monkeypatch.setattr(selecting, "CHUNK", 64)
    monkeypatch.setattr("da3_ros.mapping.scene.CHUNK", 64)
    monkeypatch.setattr(selecting, "SHARE", 100)
    after = [export_scene(scene, tmp_path / f"b{i}.ply", s).path for i, s in enumerate(whole)]
    assert before[0].read_bytes() == after[0].read_bytes()
    ordered = [np.sort(read_ply(p).copy(), order=["x", "y", "z"]) for p in (before[1], after[1])]
    assert len(ordered[0]) == len(ordered[1]) < 700
    for name in ("x", "y", "z", "confidence"):
        np.testing.assert_allclose(ordered[0][name], ordered[1][name], atol=1e-5)
    assert len(read_ply(before[2])) == len(read_ply(after[2])) <= 99


def test_averaging_merges_what_two_submaps_saw_and_counts_both(tmp_path):
    cloud = make_cloud()
    once = replace(cloud, count=np.ones(500, np.uint16))
    both = Scene((SubmapCloud(once), SubmapCloud(once)), Poses.of([]))
    apart = export_scene(both, tmp_path / "a.ply", Selection(min_observations=2))
    merged = export_scene(both, tmp_path / "b.ply", Selection(voxel=1e-4, min_observations=2))
    assert (apart.points, merged.points) == (0, 500)


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (Selection(crop=(1, 0, 0, 0, 1, 1)), "crop is .*min x y z must be below"),
        (Selection(voxel=float("nan")), "voxel is nan"),
        (Selection(voxel=1e-30), "voxel is 1e-30: must be 0 .none., or at least 1e-06"),
        (Selection(voxel=float("inf")), "voxel is inf"),
        (Selection(min_confidence=-1.0), "min_confidence is -1.0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(tmp_path, selection, words):
    with pytest.raises(ExportError, match=words):
        export_scene(make_scene(), tmp_path / "s.ply", selection)
    assert not list(tmp_path.iterdir())


def test_voxels_too_fine_for_far_points_lose_none_in_silence(tmp_path):
    cloud = make_cloud()
    far = Scene((SubmapCloud(replace(cloud, xyz=cloud.xyz + np.float32(5000))),), Poses.of([]))
    with pytest.raises(ExportError, match="voxel is 1e-06: too fine for points at 500"):
        export_scene(far, tmp_path / "s.ply", Selection(voxel=1e-6))
    assert export_scene(far, tmp_path / "s.ply", Selection(voxel=1e-5)).points > 0


def test_same_scene_gives_the_same_bytes(tmp_path):
    for suffix in ("glb", "ply", "tum"):
        a = export_scene(make_scene(), tmp_path / f"a.{suffix}").path.read_bytes()
        assert a == export_scene(make_scene(), tmp_path / f"b.{suffix}").path.read_bytes()


def test_unknown_suffix_lists_the_known_ones(tmp_path):
    with pytest.raises(ExportError, match=r"\.glb, \.ply, \.colmap, \.tum"):
        export_scene(make_scene(), tmp_path / "scene.obj")
    with pytest.raises(ExportError, match="unknown format 'obj': one of glb, ply, colmap, tum"):
        export_scene(make_scene(), tmp_path / "scene.ply", form="obj")
    assert not list(tmp_path.iterdir())


def test_progress_is_reported_and_may_end_the_export(tmp_path):
    told = []
    export_scene(make_scene(), tmp_path / "a.ply", progress=lambda *what: told.append(what))
    assert {step for step, _ in told} == {"selecting", "writing"}
    assert all(0 <= share < 1 for _, share in told)

    def stop(step, share):
        raise ExportError("the node is shutting down")

    for form in ("glb", "colmap"):
        with pytest.raises(ExportError, match="shutting down"):
            export_scene(make_scene(), tmp_path / "b", form=form, progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["a.ply"]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    """A failed write leaves the old file and no temporary one."""
    target = tmp_path / "scene.ply"
    target.write_text("old")

    def fail():
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["scene.ply"]


def test_a_folder_is_replaced_whole_and_only_if_it_is_ours(tmp_path):
    first = export_scene(make_scene(), tmp_path / "m", form="colmap")
    assert export_scene(make_scene(50), tmp_path / "m", form="colmap").points == 50
    assert len(read_colmap(first.path)[2]) == 50
    (tmp_path / "m" / "thesis.txt").write_text("mine")
    with pytest.raises(ExportError, match="with other contents"):
        export_scene(make_scene(), tmp_path / "m", form="colmap")

    def fail():
        with atomic_folder(tmp_path / "n", lambda folder: True) as temporary:
            (temporary / "half").write_text("")
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m" / "thesis.txt").exists()


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=r"file.*scene\.glb cannot be written"):
        export_scene(make_scene(), tmp_path / "file" / "scene.glb")


@pytest.mark.parametrize("form", ["ply", "colmap"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path, form):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for target in (pipe, link):
        with pytest.raises(ExportError, match="cannot be written: it is not a regular file"):
            export_scene(make_scene(), target, form=form)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe"]


def test_what_comes_to_lie_there_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "scene.ply"
    with pytest.raises(ExportError, match="it is not a regular file"), atomic_path(target):
        os.mkfifo(target)
    assert [p.name for p in tmp_path.iterdir()] == ["scene.ply"]


@pytest.mark.parametrize("form", ["ply", "colmap"])
@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_one_line(tmp_path, form, name):
    with pytest.raises(ExportError, match="cannot be written") as caught:
        export_scene(make_scene(), tmp_path / name, form=form)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["glb", "ply", "colmap", "tum"])
def test_an_empty_scene_is_not_written(tmp_path, suffix):
    with pytest.raises(ExportError, match="empty"):
        export_scene(Scene((), Poses.of([])), tmp_path / f"scene.{suffix}")
    assert not list(tmp_path.iterdir())


def test_an_even_choice_for_display_is_never_more_than_asked():
    cloud = make_cloud(333)
    scene = Scene(tuple(SubmapCloud(cloud) for _ in range(7)), Poses.of([]), np.eye(4))
    for most in (10, 100, 1000, 2331, 9999):
        assert 0.5 * min(most, 2331) < len(scene.cloud(most)) <= most


def test_picture_shows_points_cameras_and_path():
    picture = render_scene(make_scene(5000), (320, 240))
    assert picture.shape == (240, 320, 3)
    background = (picture == picture[0, 0]).all(axis=2).mean()
    assert 0.2 < background < 0.98
    for color in (CAMERA_COLOR, PATH_COLOR):
        assert (np.abs(picture.astype(int) - color).max(axis=2) < 60).any()
