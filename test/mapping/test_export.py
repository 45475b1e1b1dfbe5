"""Exported files, read back by other means than those that wrote them."""

import numpy as np
import pytest
import trimesh

from da3_ros.mapping.export import ExportError, Scene, atomic_path, export_scene
from da3_ros.mapping.picture import CAMERA_COLOR, PATH_COLOR, render_scene
from da3_ros.mapping.trajectory import Pose
from da3_ros.mapping.voxel_map import PointCloud

K = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])


def make_scene(n=500):
    """Points 2 m ahead of the first camera, one marked point above it, and a straight path."""
    rng = np.random.default_rng(0)
    xyz = rng.uniform(-1, 1, (n, 3)).astype(np.float32) + [0, 0, 3]
    xyz[0] = [0, -2, 3]  # up is -y in optical axes
    rgb = rng.integers(0, 256, (n, 3)).astype(np.uint8)
    rgb[0] = [255, 0, 0]
    cloud = PointCloud(
        xyz.astype(np.float32), rgb, np.ones(n, np.float32) * 2, np.ones(n, np.int32)
    )
    poses = []
    for i in range(5):
        T = np.eye(4)
        T[2, 3] = 0.1 * i
        poses.append(Pose(1_700_000_000_123_456_789 + i, T, K, (320, 240), i % 2 == 0))
    return Scene(cloud, poses)


def read_ply(path):
    """A reader of our own flavour, written from the format's description."""
    data = path.read_bytes()
    header, body = data.split(b"end_header\n", 1)
    lines = header.decode().splitlines()
    assert lines[0] == "ply"
    assert "format binary_little_endian 1.0" in lines
    kinds = {"float": "<f4", "uchar": "u1"}
    fields = [line.split()[1:] for line in lines if line.startswith("property")]
    return np.frombuffer(body, dtype=[(name, kinds[kind]) for kind, name in fields])


def test_ply_holds_position_colour_and_confidence_in_map_axes(tmp_path):
    scene = make_scene()
    rows = read_ply(export_scene(scene, tmp_path / "scene.ply"))
    assert len(rows) == len(scene.cloud)
    x, y, z = scene.cloud.xyz.T
    np.testing.assert_allclose(rows["x"], z)
    np.testing.assert_allclose(rows["y"], -x)
    np.testing.assert_allclose(rows["z"], -y)
    np.testing.assert_array_equal(rows["red"], scene.cloud.rgb[:, 0])
    np.testing.assert_array_equal(rows["confidence"], scene.cloud.confidence)


def test_ply_is_read_by_another_library(tmp_path):
    scene = make_scene()
    loaded = trimesh.load(export_scene(scene, tmp_path / "scene.ply"))
    assert len(loaded.vertices) == len(scene.cloud)
    np.testing.assert_array_equal(np.asarray(loaded.colors)[:, :3], scene.cloud.rgb)


def test_glb_is_upright_and_has_points_cameras_and_path(tmp_path):
    scene = make_scene()
    loaded = trimesh.load(export_scene(scene, tmp_path / "scene.glb"))
    assert set(loaded.geometry) == {"points", "cameras", "path"}
    points = loaded.geometry["points"]
    marked = np.flatnonzero((np.asarray(points.colors)[:, :3] == [255, 0, 0]).all(axis=1))
    # glTF: y is up, and what the first camera sees lies along -z.
    np.testing.assert_allclose(points.vertices[marked[0]], [0, 2, -3], atol=1e-6)
    np.testing.assert_allclose(loaded.geometry["path"].bounds[:, 2], [-0.4, 0], atol=1e-6)


def test_tum_keeps_every_nanosecond_and_map_axes(tmp_path):
    lines = export_scene(make_scene(), tmp_path / "t.tum").read_text().splitlines()
    assert len(lines) == 5
    stamp, x, y, z, *q = lines[4].split()
    assert stamp == "1700000000.123456793"
    np.testing.assert_allclose([float(x), float(y), float(z)], [0.4, 0, 0], atol=1e-9)
    np.testing.assert_allclose([float(v) for v in q], [-0.5, 0.5, -0.5, 0.5], atol=1e-9)


def test_same_scene_gives_the_same_bytes(tmp_path):
    for suffix in ("glb", "ply", "tum"):
        a = export_scene(make_scene(), tmp_path / f"a.{suffix}").read_bytes()
        assert a == export_scene(make_scene(), tmp_path / f"b.{suffix}").read_bytes()


def test_unknown_suffix_lists_the_known_ones(tmp_path):
    with pytest.raises(ExportError, match=r"\.glb, \.ply, \.tum"):
        export_scene(make_scene(), tmp_path / "scene.obj")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path):
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


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=r"file.*scene\.glb cannot be written"):
        export_scene(make_scene(), tmp_path / "file" / "scene.glb")


def test_an_empty_scene_has_no_glb(tmp_path):
    empty = PointCloud(*(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0), np.zeros(0)))
    with pytest.raises(ExportError, match="empty"):
        export_scene(Scene(empty, []), tmp_path / "scene.glb")


def test_picture_shows_points_cameras_and_path():
    picture = render_scene(make_scene(5000), (320, 240))
    assert picture.shape == (240, 320, 3)
    background = (picture == picture[0, 0]).all(axis=2).mean()
    assert 0.2 < background < 0.98
    for color in (CAMERA_COLOR, PATH_COLOR):
        assert (np.abs(picture.astype(int) - color).max(axis=2) < 60).any()
