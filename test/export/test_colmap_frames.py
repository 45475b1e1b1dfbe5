"""COLMAP models of stored keyframes, as splat trainers and COLMAP itself read them."""

import dataclasses
import errno
import json
import shutil

import cv2
import numpy as np
import pytest
from support.file_readers import read_colmap
from support.pipelines import to_frame
from support.scenes import full_store

from da3_ros.cli import main
from da3_ros.config import config_from_parameters
from da3_ros.export import colmap_frames
from da3_ros.export.colmap import foreign_to_model
from da3_ros.export.scene_file import save_scene
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe, MeasuredKeyframe, Tracks
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import MapState, StoredScene, StoredSubmap, StoreWriter
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import DenseDepth

SIZE, FRAMES = (280, 210), 10
DEPTH_SIZE = (56, 42)  # of the scenes that are written here
UNIT = 1.5  # of their map per unit of their submap


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A walk with exact windows; features, tracks and their refinement are real."""
    folder = tmp_path_factory.mktemp("recorded")
    camera = SyntheticCamera(seed=2, size=SIZE, walk="loop", frames=FRAMES, rate_hz=5)
    pipeline = Pipeline(
        config_from_parameters({
            "process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
            "keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0, "dense.enabled": False,
        }),
        TruthSession(camera),
    )  # fmt: skip
    recorder = KeyframeRecorder(folder, counters=pipeline.counters, wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    for f in camera:
        list(pipeline.push(to_frame(camera, f)))
    list(pipeline.flush())
    assert pipeline.scene_map.finish_recording()
    return folder


@pytest.fixture(scope="module")
def model(recorded, tmp_path_factory):
    return exported(recorded, tmp_path_factory.mktemp("model") / "room.colmap", "--voxel", "0.1")


def exported(scene, target, *options):
    assert main(["export", str(scene), str(target), *options]) == 0
    return target


def tracks_of(model):
    """Errors [N] of all observations, px, and of each point with a track the number of images."""
    cameras, images, points = read_colmap(model)
    lines = (model / "sparse" / "0" / "images.txt").read_text().split("\n")
    lines = [line for line in lines if not line.startswith("#")]
    seen, tracks, errors = {}, {}, []
    for (number, T, camera, _), line in zip(images, lines[1::2], strict=False):
        rows = np.array(line.split(), float).reshape(-1, 3)
        fx, fy, cx, cy = cameras[camera][3]
        for index, (u, v, point) in enumerate(rows):
            if point < 0:
                continue
            seen[number, index] = int(point)
            x, y, z = T[:3, :3] @ points[int(point) - 1, 1:4] + T[:3, 3]
            errors.append(np.hypot(fx * x / z + cx - u, fy * y / z + cy - v))
    for line in (model / "sparse" / "0" / "points3D.txt").read_text().splitlines():
        values = line.split()
        if line[0] != "#" and values[8:]:
            pairs = np.array(values[8:], int).reshape(-1, 2).tolist()
            tracks[int(values[0])] = [n for n, _ in pairs]
            assert all(seen.pop((n, i)) == int(values[0]) for n, i in pairs)
    assert not seen
    return np.array(errors), tracks


@pytest.mark.long
def test_tracks_reproject_within_a_pixel(model):
    errors, tracks = tracks_of(model)
    views = np.array([len(set(images)) for images in tracks.values()])
    assert views.min() >= 2
    assert (views >= 3).sum() > 300
    assert errors.mean() < 0.5
    assert np.quantile(errors, 0.95) < 1
    *_, points = read_colmap(model)
    stated = points[: len(tracks), 7]
    assert np.average(stated, weights=views) == pytest.approx(errors.mean(), abs=0.01)
    assert (points[len(tracks) :, 7] == -1).all()
    assert len(points) > len(tracks) + 1000


def test_points_with_tracks_lie_on_the_surface(model):
    """A tracked point is where the dense ones are, which come from exact depth."""
    from scipy.spatial import cKDTree

    _, tracks = tracks_of(model)
    *_, points = read_colmap(model)
    far, _ = cKDTree(points[len(tracks) :, 1:4]).query(points[: len(tracks), 1:4])
    assert np.median(far) < 0.06  # voxels of 0.1
    assert np.quantile(far, 0.95) < 0.15


def test_images_are_the_stored_ones_of_one_camera(model, recorded):
    cameras, images, _ = read_colmap(model)
    with StoredScene.open(recorded) as stored:
        assert len(images) == len(stored.images) >= FRAMES - 2
        K = next(iter(SyntheticCamera(seed=2, size=SIZE, frames=1))).K
        assert list(cameras) == [1]
        assert cameras[1][:3] == ("PINHOLE", *SIZE)
        expected = [K[0, 0], K[1, 1], K[0, 2], K[1, 2]]
        np.testing.assert_allclose(cameras[1][3], expected, rtol=1e-6)
        for (*_, name), key in zip(images, stored.images, strict=True):
            assert (model / "images" / name).read_bytes() == stored.image_data(key)


def test_pycolmap_opens_the_model(model):
    pycolmap = pytest.importorskip("pycolmap", reason="needs pycolmap: pip install pycolmap")
    found = pycolmap.Reconstruction(str(model / "sparse" / "0"))
    _, images, points = read_colmap(model)
    assert (len(found.images), len(found.points3D)) == (len(images), len(points))
    assert found.compute_num_observations() == len(tracks_of(model)[0])
    assert found.compute_mean_reprojection_error() < 1
    errors = [
        np.linalg.norm(image.project_point(found.points3D[p.point3D_id].xyz) - p.xy)
        for image in found.images.values()
        for p in image.points2D
        if p.has_point3D()
    ]
    assert np.mean(errors) == pytest.approx(tracks_of(model)[0].mean(), abs=0.01)


def inverse_depth(model, name):
    """Inverse depth as the trainer reads it."""
    about = json.loads((model / "sparse" / "0" / "depth_params.json").read_text())
    scales = np.array([one["scale"] for one in about.values()])
    middle, one = np.median(scales[scales > 0]), about[name]
    if not 0.2 * middle <= one["scale"] <= 5 * middle:
        return None
    codes = cv2.imread(str(model / "depths" / f"{name}.png"), cv2.IMREAD_UNCHANGED)
    assert codes.dtype == np.uint16
    return codes.astype(np.float32) / 2**16 * one["scale"] + one["offset"]


def test_depth_maps_are_read_as_the_trainer_does(model, recorded):
    with StoredScene.open(recorded) as stored:
        for key in stored.images:
            keyframe, dense = stored.load(key), stored.load_measured(key)
            depth = keyframe.depth if dense is None else dense.depth
            unit = stored.submaps[keyframe.pose.submap].T_map_submap.scale
            found = inverse_depth(model, str(keyframe.pose.stamp_ns))
            np.testing.assert_allclose(1 / found, depth * unit, rtol=2e-3)
        assert stored.map.scene_scale == 1.0


def test_centred_images_have_their_principal_point_in_the_middle(tmp_path):
    """A trainer takes it there; cropped, not warped: what was at a pixel still is, and tracks."""
    K = np.array([[40.0, 0, 34.7], [0, 41, 24.1], [0, 0, 1]])  # middle: 28, 21
    rng = np.random.default_rng(0)
    image = cv2.resize(rng.integers(0, 256, (14, 14, 3), np.uint8), (112, 84))
    depth = np.linspace(2, 3, DEPTH_SIZE[1], dtype=np.float32)[:, None].repeat(DEPTH_SIZE[0], 1)
    frames = [with_tracks(keyframe(stamp=stamp, K=K, depth=depth), image) for stamp in range(3)]
    scene = written(tmp_path / "s", *frames)
    whole = exported(scene, tmp_path / "whole.colmap")
    model = exported(scene, tmp_path / "m.colmap", "--centred")
    (kind, width, height, (fx, fy, cx, cy)), *_ = read_colmap(model)[0].values()
    assert (kind, width, height) == ("PINHOLE", 85, 72)
    assert (cx, cy) == pytest.approx((width / 2, height / 2), abs=0.25)
    assert (fx, fy) == (80, 82)
    for name in "012":
        picture, before = (cv2.imread(str(m / "images" / f"{name}.jpg")) for m in (model, whole))
        assert picture.shape == (height, width, 3)
        assert np.abs(picture.astype(int) - before[12:, 27:]).mean() < 4
        found, before = inverse_depth(model, name), inverse_depth(whole, name)
        np.testing.assert_allclose(found, before[6:, -found.shape[1] :], rtol=1e-3)
        assert found.shape == pytest.approx((36, 42.5), abs=0.5)
    errors, tracks = tracks_of(model)
    assert errors.max() < 0.2
    assert 20 < len(tracks) < len(tracks_of(whole)[1])


def with_tracks(one, image):
    """A keyframe with the features of points on a surface that all keyframes of a scene see."""
    first = np.random.default_rng(1).uniform((0, 0), (150, 84), (90, 2)) / 2
    z = np.interp(first[:, 1] - 0.5, np.arange(DEPTH_SIZE[1]), one.depth[:, 0])[:, None]
    xyz = z * np.column_stack((first, np.ones(90))) @ np.linalg.inv(one.pose.K).T
    seen = (xyz - one.pose.T_submap_camera[:3, 3]) @ one.pose.K.T
    pixels = 2 * seen[:, :2] / seen[:, 2:]
    inside = ((pixels >= 0) & (pixels < (112, 84))).all(axis=1)
    tracks = Tracks(np.flatnonzero(inside), pixels[inside].astype(np.float32))
    return dataclasses.replace(one, image=image, tracks=tracks)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("x.ply", [], "--centred is for the images of a COLMAP model"),
        ("x.colmap", ["--no-journal"], "has no stored keyframes"),
    ],
)
def test_only_models_of_stored_keyframes_are_centred(tmp_path, capsys, name, options, words):
    scene = tmp_path / "s"
    if options:
        save_scene(full_store().snapshot(metric=True), scene)
    else:
        written(scene, keyframe())
    assert main(["export", str(scene), str(tmp_path / name), "--centred"]) == 1
    assert words in capsys.readouterr().err


def test_a_principal_point_outside_the_image_cannot_be_centred(tmp_path, capsys):
    K = np.array([[40.0, 0, -2], [0, 40, 21], [0, 0, 1]])
    scene = written(tmp_path / "s", keyframe(K=K))
    assert main(["export", str(scene), str(tmp_path / "x.colmap"), "--centred"]) == 1
    assert "principal point is outside its image" in capsys.readouterr().err


def keyframe(camera="", stamp=0, depth=None, **values):
    """A keyframe that looks along z, half a unit beside the last one for each stamp."""
    T, K = np.eye(4), np.array([[40.0, 0, 28], [0, 40, 21], [0, 0, 1]])
    T[0, 3] = 0.5 * stamp
    depth = np.full(DEPTH_SIZE[::-1], 2, np.float32) if depth is None else depth
    pose = FramePose(stamp, camera, 0, T, K, DEPTH_SIZE, True)
    image = np.full((84, 112, 3), 90, np.uint8)
    one = Keyframe(dataclasses.replace(pose, **values), depth, np.ones_like(depth), image)
    u = 2 * (40 * (1 - 0.5 * stamp) / 2 + 28)  # of the point (1, 0, 2)
    return dataclasses.replace(one, tracks=Tracks(np.array([5]), np.float32([[u, 42]])))


def written(folder, *keyframes):
    writer = StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, 0, Similarity(UNIT, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    for one in keyframes:
        writer.add_keyframe(one)
    writer.journal.close()
    return folder


def test_images_of_a_rig_have_names_of_their_own_in_one_folder(tmp_path):
    """Some trainers read the last part of a name only: neither folders nor stamps tell cameras."""
    rig = [keyframe(name, stamp) for stamp in (0, 1) for name in ("front/left", "front_left")]
    model = exported(written(tmp_path / "s", *rig), tmp_path / "m.colmap")
    cameras, images, points = read_colmap(model)
    names = ["front_left_0", "front_left_0_", "front_left_1", "front_left_1_"]
    assert [name for *_, name in images] == [f"{name}.jpg" for name in names]
    assert [camera for _, _, camera, _ in images] == [1, 2, 1, 2]
    assert cameras[1] == cameras[2]
    for name in names:
        assert (model / "images" / f"{name}.jpg").is_file()
        assert inverse_depth(model, name) is not None
    np.testing.assert_allclose(points[0, 1:], [UNIT, 0, 2 * UNIT, 90, 90, 90, 0], atol=1e-3)


def test_images_with_another_K_or_size_have_cameras_of_their_own(tmp_path):
    K = np.array([[41.0, 0, 28], [0, 41, 21], [0, 0, 1]])
    scene = written(tmp_path / "s", keyframe(), keyframe(stamp=1, K=K), keyframe(stamp=2))
    cameras, images, _ = read_colmap(exported(scene, tmp_path / "m.colmap"))
    assert [camera for _, _, camera, _ in images] == [1, 2, 1]
    assert cameras[2][3] == [82.0, 82.0, 56.0, 42.0]


def test_a_recording_that_was_played_again_keeps_both_images(tmp_path):
    model = exported(written(tmp_path / "s", keyframe(), keyframe()), tmp_path / "m.colmap")
    _, images, _ = read_colmap(model)
    assert [name for *_, name in images] == ["0.jpg", "0_1.jpg"]
    assert sorted(p.name for p in (model / "depths").iterdir()) == ["0.png", "0_1.png"]


def test_unknown_depth_is_that_of_the_nearest_pixel_and_sky_is_far(tmp_path):
    depth = np.full(DEPTH_SIZE[::-1], 2, np.float32)
    depth[:, 30:] = 4
    depth[10:20, 10:20] = np.nan
    depth[:5] = np.inf
    blind = np.full_like(depth, np.nan)
    frames = [keyframe(depth=depth), keyframe(stamp=1), keyframe(stamp=2, depth=blind)]
    model = exported(written(tmp_path / "s", *frames), tmp_path / "m.colmap")
    found = inverse_depth(model, "0")
    np.testing.assert_allclose(found[5:, :30], 0.5 / UNIT, rtol=1e-3)
    np.testing.assert_allclose(found[5:, 30:], 0.25 / UNIT, rtol=1e-3)
    assert (found[:5] == 0).all()
    assert inverse_depth(model, "2") is None  # the trainer leaves it out, but needs its file
    assert (model / "depths" / "2.png").is_file()


def test_a_wrong_pixel_costs_the_others_no_precision(tmp_path):
    depth = np.full(DEPTH_SIZE[::-1], 2, np.float32)
    depth[:, 30:] = 4
    wrong = depth.copy()
    wrong[0, 0] = 1e-6
    frames = [keyframe(stamp=i, depth=depth) for i in range(3)]
    scene = written(tmp_path / "s", *frames, keyframe(stamp=3, depth=wrong))
    model = exported(scene, tmp_path / "m.colmap")
    for name in "012":
        np.testing.assert_allclose(inverse_depth(model, name)[1:, :30], 0.5 / UNIT, rtol=1e-3)


@pytest.mark.parametrize("network", [True, False])
def test_measured_depth_nearer_than_the_networks_is_whole(tmp_path, network):
    """The codes reach to the nearest depth that is written: none is cut off."""
    near = np.full(DEPTH_SIZE[::-1], 2, np.float32)
    near[:, 30:] = 4
    far = np.float32(1.3) * near  # as a network says it that is 1.3 times too far
    scene = tmp_path / "s"
    written(scene, *(keyframe(stamp=k, depth=far) for k in range(3)))
    writer = StoreWriter(scene)
    for k in range(3):
        dense = DenseDepth(near, np.full_like(near, 0.01), np.ones(near.shape, bool))
        writer.measure(MeasuredKeyframe("", k, 0, dense))
    writer.journal.close()
    options = ["--network-depth"] if network else []
    model = exported(scene, tmp_path / "m.colmap", *options)
    for k in range(3):
        expected = 1 / (UNIT * (far if network else near))
        np.testing.assert_allclose(inverse_depth(model, str(k)), expected, rtol=1e-3)


@pytest.mark.long
def test_the_box_and_known_components_choose_points_and_images(tmp_path, recorded):
    writer = StoreWriter(shutil.copytree(recorded, tmp_path / "scene"))
    writer.place([StoredSubmap(99, 9, 9, IDENTITY)])  # an unconnected component
    writer.add_keyframe(keyframe(submap=99))
    writer.journal.close()
    box = ["--crop", "-1", "-9", "-9", "3", "9", "9"]
    known = exported(tmp_path / "scene", tmp_path / "known.colmap", "--known-only", *box)
    everything = exported(tmp_path / "scene", tmp_path / "all.colmap")
    assert len(read_colmap(everything)[1]) == len(read_colmap(known)[1]) + 1
    *_, points = read_colmap(known)
    assert points[:, 1].min() >= -1
    assert points[:, 1].max() <= 3
    tracked = len(tracks_of(known)[1])
    assert 0 < tracked < len(tracks_of(everything)[1])
    np.testing.assert_array_equal(points[:, 0], np.arange(1, len(points) + 1))


@pytest.mark.long
def test_an_export_that_fails_leaves_the_old_model(tmp_path, recorded, monkeypatch, capsys):
    target = exported(recorded, tmp_path / "m.colmap")
    before = sorted(p.name for p in target.rglob("*"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(colmap_frames, "_write_depth", full)
    assert main(["export", str(recorded), str(target)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(p.name for p in target.rglob("*")) == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.colmap"]


@pytest.mark.long
def test_a_model_that_a_trainer_has_used_is_replaced(tmp_path, recorded):
    target = exported(recorded, tmp_path / "m.colmap")
    (target / "sparse" / "0" / "points3D.ply").write_text("")  # the trainer's
    exported(recorded, target)
    assert not (target / "sparse" / "0" / "points3D.ply").exists()


@pytest.mark.parametrize(
    "file",
    ["mine.txt", "images/mine.jpg", "images/left/0.jpg", "depths/mine.png", "sparse/1/cameras.txt",
     "sparse/0/mine.ply", "sparse/0/points3D.bin", "images/17/mine.jpg"],
)  # fmt: skip
def test_a_model_with_a_file_of_the_users_stays(tmp_path, capsys, file):
    scene = written(tmp_path / "s", keyframe(), keyframe(stamp=1))
    target = exported(scene, tmp_path / "m.colmap")
    (target / file).parent.mkdir(parents=True, exist_ok=True)
    (target / file).write_text("mine")
    assert main(["export", str(scene), str(target)]) == 1
    said = capsys.readouterr().err
    assert f"with other contents ({file})" in said
    assert said.count("\n") == 1
    assert (target / file).read_text() == "mine"


def test_a_link_of_the_users_stays(tmp_path, capsys):
    scene = written(tmp_path / "s", keyframe(), keyframe(stamp=1))
    target = exported(scene, tmp_path / "m.colmap")
    (target / "masks").symlink_to(tmp_path / "s")
    assert main(["export", str(scene), str(target)]) == 1
    assert "with other contents (masks)" in capsys.readouterr().err
    assert (target / "masks").is_symlink()


def test_a_model_of_an_earlier_version_is_replaced(tmp_path):
    """Its files were not in sparse/0, and its images had no features."""
    old = tmp_path / "model"
    (old / "images").mkdir(parents=True)
    (old / "images" / "1.jpg").write_bytes(b"")
    header = "# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, then POINTS2D[] (none)\n"
    (old / "images.txt").write_text(header + "1 1 0 0 0 0 0 0 1 1.jpg\n\n")
    for name in ("cameras.txt", "points3D.txt"):
        (old / name).write_text("")
    assert foreign_to_model(old) is None
    (old / "images" / "2.jpg").write_bytes(b"")
    assert foreign_to_model(old) == old / "images" / "2.jpg"


def test_a_model_that_colmap_made_is_not_ours(tmp_path, capsys):
    scene = written(tmp_path / "s", keyframe(), keyframe(stamp=1))
    target = exported(scene, tmp_path / "m.colmap")
    text = target / "sparse" / "0" / "images.txt"
    _, rows = text.read_text().split("\n", 1)
    text.write_text("# Image list with two lines of data per image:\n" + rows)
    assert main(["export", str(scene), str(target)]) == 1
    assert "with other contents" in capsys.readouterr().err
