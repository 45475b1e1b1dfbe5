"""Keyframes that a replay stores: what is derived from them, and what an interruption leaves."""

import dataclasses
import shutil

import cv2
import numpy as np
import pytest
import trimesh
from scipy.spatial import cKDTree
from support import journals

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.export.scene_file import load_scene
from da3_ros.keyframe_store.store import JOURNAL, KINDS, StoredScene
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.replay.work_folder import WorkFolder
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES = (280, 210), 12


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=SIZE, walk="loop", frames=FRAMES, rate_hz=2)


@pytest.fixture(scope="module")
def bag(camera, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "room"
    write_synthetic_bag(path, camera)
    return path


@pytest.fixture(scope="module")
def output(camera, bag, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "out"
    settings = load_config(None, ["process_res:=140", "window.size:=4", "model:=da3-tiny"])
    replay(ReplayOptions(bag, folder), settings, TruthSession(camera))
    return folder


def points(path):
    loaded = trimesh.load(path)  # without points it is an empty scene
    return np.asarray(getattr(loaded, "vertices", np.zeros((0, 3))))


def exported(output, name, *options):
    assert main(["export", str(output), str(output / name), *options]) == 0
    return output / name


def without_keyframes(output, scene):
    """A copy of the scene as ``~/save_scene`` writes it."""
    return journals.without_keyframes(shutil.copytree(output / "scene", scene))


def test_the_store_has_the_poses_of_the_saved_scene(output):
    saved = load_scene(output / "scene")
    with StoredScene.open(output / "scene") as stored:
        assert len(stored.frames) == FRAMES
        for row in saved.poses.rows:
            found = stored.frames[stored.newest["", int(row["stamp_ns"])]]
            np.testing.assert_array_equal(found.T_submap_camera[:3], row["T"])
            assert (found.submap, found.keyframe) == (row["submap"], row["keyframe"])
        keyframes = [f.stamp_ns for f in stored.frames if f.keyframe]
        assert [stored.frames[k].stamp_ns for k in stored.images] == keyframes
        for place in saved.submaps:
            np.testing.assert_array_equal(
                stored.submaps[place.id].T_map_submap.t, place.T_map_submap.t
            )
        np.testing.assert_array_equal(stored.map.T_ros_map, saved.T_ros_map)
        assert (stored.map.metric, stored.map.unit) == (saved.metric, pytest.approx(saved.unit))
        assert stored.images[stored.newest["", keyframes[-1]]].image_size == SIZE  # of the camera
        assert len(stored.load(stored.newest["", keyframes[-1]]).tracks.ids) > 20


class SingleImage(TruthSession):
    def infer(self, window):
        return dataclasses.replace(super().infer(window), posed=False)


def test_a_network_without_poses_stores_nothing(camera, bag, tmp_path):
    settings = load_config(None, ["process_res:=140", "model:=da3-tiny"])
    replay(ReplayOptions(bag, tmp_path), settings, SingleImage(camera))
    assert (tmp_path / "output.mcap").exists()
    assert not list(tmp_path.rglob(JOURNAL))
    assert not (tmp_path / "scene").exists()


def test_what_a_killed_replay_has_left_half_written_is_no_result(output, tmp_path):
    for name in (".scene-da3_ros-abcdefgh", "scene_left"):
        shutil.copytree(output / "scene", tmp_path / name)
    (tmp_path / "scene").mkdir()  # keyframes alone
    shutil.copy(output / "scene" / JOURNAL, tmp_path / "scene")
    journals.rewritten(tmp_path / "scene", lambda d, data: (
        (d, data) if d["kind"] in (*KINDS, "scene") else None
    ))  # fmt: skip
    (tmp_path / "points_left.spill").touch()
    assert WorkFolder(tmp_path, continued=False).finish({"run": {}}) == ["scene_left"]


def test_derived_points_are_those_of_the_map(output):
    derived = points(exported(output, "derived.ply", "--edge-filter"))
    mapped = points(output / "scene.ply")
    far, _ = cKDTree(mapped).query(derived)
    assert np.quantile(far, 0.99) < 0.02
    assert len(derived) == pytest.approx(len(mapped), rel=0.02)


def test_filters_are_chosen_afterwards(output):
    everything = points(exported(output, "all.ply", "--no-edge-filter"))
    with StoredScene.open(output / "scene") as stored:
        middle = str(np.nanmedian(stored.load(next(iter(stored.images))).depth))
    near = points(exported(output, "near.ply", "--max-depth", middle))
    certain = points(exported(output, "certain.ply", "--min-confidence", "1e9"))
    assert len(points(output / "scene.ply")) < len(everything)
    assert 0 < len(near) < 0.7 * len(everything)
    assert len(certain) == 0


@pytest.mark.parametrize("option", [["--voxel", "0.05"], ["--min-confidence", "1.5"]])
def test_a_voxel_and_a_least_confidence_alone_filter_depth(output, option):
    """As with any other filter of depth beside them, which is one by default."""
    alone = exported(output, "alone.ply", *option).read_bytes()
    assert alone == exported(output, "beside.ply", *option, "--edge-filter").read_bytes()


def test_without_a_filter_of_depth_the_saved_points_are_exported(output):
    saved = (output / "scene.ply").read_bytes()
    assert exported(output, "saved.ply").read_bytes() == saved
    box = ["--crop", "-99", "-99", "-99", "99", "99", "99"]
    assert exported(output, "boxed.ply", *box, "--max-points", "999999").read_bytes() == saved


def test_a_scene_without_keyframes_selects_from_its_points(output, tmp_path):
    scene = without_keyframes(output, tmp_path / "scene")
    assert main(["export", str(scene), str(tmp_path / "x.ply"), "--voxel", "0.1"]) == 0
    coarse, mapped = points(tmp_path / "x.ply"), points(output / "scene.ply")
    assert 0 < len(coarse) < len(mapped) / 4
    assert main(["export", str(scene), str(tmp_path / "x.ply"), "--min-confidence", "1e9"]) == 0
    assert len(points(tmp_path / "x.ply")) == 0


def test_npz_has_each_keyframe_in_the_map(output, camera):
    folder = exported(output, "frames.npz")
    files = sorted(folder.glob("*.npz"))
    with StoredScene.open(output / "scene") as stored:
        assert [int(f.stem) for f in files] == [stored.frames[k].stamp_ns for k in stored.images]
    one = np.load(files[-1])
    assert one["image"].shape == (*SIZE[::-1], 3)
    assert one["depth"].shape == one["confidence"].shape
    known = np.isfinite(one["depth"])
    rows, columns = np.nonzero(known)
    z = one["depth"][known]
    rays = (
        np.column_stack((columns + 0.5, rows + 0.5, np.ones(len(z)))) @ np.linalg.inv(one["K"]).T
    )
    xyz = z[:, None] * rays @ one["T_map_camera"][:3, :3].T + one["T_map_camera"][:3, 3]
    far, _ = cKDTree(points(output / "scene.ply")).query(xyz)
    assert np.median(far) < 0.03


def test_a_colmap_model_has_images_at_the_cameras_size(output, camera):
    folder = exported(output, "model.colmap")
    line = (folder / "sparse" / "0" / "cameras.txt").read_text().splitlines()[1].split()
    assert line[:4] == ["1", "PINHOLE", *map(str, SIZE)]
    K = next(iter(camera)).K
    np.testing.assert_allclose(
        [float(v) for v in line[4:8]], [K[0, 0], K[1, 1], K[0, 2], K[1, 2]], rtol=1e-3
    )
    assert len(list((folder / "images").glob("*.jpg"))) > 2


@pytest.mark.long
def test_what_is_not_stored_is_exported_from_the_saved_points(camera, bag, tmp_path, caplog):
    """A resumed scene, or one whose disk was full, knows more than its journal."""
    settings = load_config(None, ["process_res:=140", "model:=da3-tiny", "map.disk_gb:=0"])
    replay(ReplayOptions(bag, tmp_path), settings, TruthSession(camera))
    with StoredScene.open(tmp_path / "scene") as stored:
        assert not stored.images
        assert [f.keyframe for f in stored.frames] == FRAMES * [False]
    whole = points(exported(tmp_path, "all.ply"))
    np.testing.assert_array_equal(whole, points(tmp_path / "scene.ply"))
    assert "not all" not in caplog.text
    assert 0 < len(points(exported(tmp_path, "coarse.ply", "--voxel", "0.1"))) < len(whole)
    assert "not all of its keyframes are stored; its points are filtered" in caplog.text
    lines = (exported(tmp_path, "all.tum")).read_text().splitlines()
    assert sum(not line.startswith("#") for line in lines) == FRAMES


@pytest.mark.long
def test_a_replay_in_a_saved_scene_names_where_its_keyframes_are(
    output, camera, bag, tmp_path, caplog
):
    settings = load_config(None, ["process_res:=140", "window.size:=4", "model:=da3-tiny"])
    second, third = tmp_path / "second", tmp_path / "third"
    for out, resume in ((second, output), (third, second)):
        replay(ReplayOptions(bag, out, resume=resume), settings, TruthSession(camera))
    exported(third, "all.npz")
    remedy = "those of the scene that it began in are in"
    assert f"{remedy} {second} and {output}: export that too); the others are left" in caplog.text
    caplog.clear()
    exported(third, "coarse.ply", "--voxel", "0.1")
    assert f"{remedy} {second} and {output}: export that too); its points" in caplog.text
    caplog.clear()
    (second / "scene" / JOURNAL).unlink()
    (second / "measured.json").unlink()
    exported(third, "all.npz")
    assert f"the scene that it began in, {second}, has none either, or is gone" in caplog.text
    caplog.clear()
    exported(output, "own.npz")
    assert "began in" not in caplog.text


@pytest.mark.long
def test_a_scene_that_was_continued_in_its_folder_is_not_named(
    output, camera, bag, tmp_path, caplog
):
    """Its keyframes were replaced by those of the second replay."""
    same = tmp_path / "same"
    shutil.copytree(output / "scene", same / "scene")
    settings = load_config(None, ["process_res:=140", "window.size:=4", "model:=da3-tiny"])
    replay(ReplayOptions(bag, same, resume=same), settings, TruthSession(camera))
    exported(same, "all.npz")
    assert "not all of its keyframes are stored; the others" in caplog.text


def test_nobodys_files_are_replaced(output, tmp_path, capsys):
    (tmp_path / "mine.npz").mkdir()
    np.savez(tmp_path / "mine.npz" / "training.npz", x=np.zeros(3))
    assert main(["export", str(output), str(tmp_path / "mine.npz")]) == 1
    assert (tmp_path / "mine.npz" / "training.npz").exists()
    assert "other contents" in capsys.readouterr().err
    assert main(["export", str(output), str(tmp_path / "x.npz"), "--voxel", "0.1"]) == 1
    assert "NPZ files have no points" in capsys.readouterr().err
    for _ in range(2):  # an own folder is
        assert main(["export", str(output), str(tmp_path / "own.npz")]) == 0


@pytest.mark.parametrize("options", [["--max-depth", "2"], ["--format", "npz"]])
def test_a_scene_without_keyframes_names_the_remedy(output, tmp_path, capsys, options):
    scene = without_keyframes(output, tmp_path / "scene")
    assert main(["export", str(scene), str(tmp_path / "x.ply"), *options]) == 1
    said = capsys.readouterr().err
    assert "has no stored keyframes" in said
    assert said.count("\n") == 1


# Metres, a mask, and two cameras


@pytest.fixture(scope="module")
def metric(tmp_path_factory):
    """A scene in metres by the robot's odometry, seen past a mask, at twice the network's size."""
    folder = tmp_path_factory.mktemp("metric")
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=16, rate_hz=4.0)
    write_synthetic_bag(folder / "bag", camera, tf=True)
    drawn = np.full(SIZE[::-1], 255, np.uint8)
    drawn[150:] = 0
    cv2.imwrite(str(folder / "mask.png"), drawn)
    assignments = [
        "process_res:=140", "window.size:=5", "model:=da3-tiny", "map.voxel_m:=0.03",
        "pose_prior.source:=odometry", "scale.source:=odometry", f"mask:={folder / 'mask.png'}",
    ]  # fmt: skip
    options = ReplayOptions(folder / "bag", folder / "out", camera="/camera/image_raw")
    replay(options, load_config(None, assignments), TruthSession(camera, seed=4))
    return folder / "out", camera


@pytest.mark.long
def test_points_derived_in_metres_are_those_of_the_map(metric, tmp_path):
    output, _ = metric
    with StoredScene.open(output / "scene") as stored:
        assert stored.map.metric
        units = {p.T_map_submap.scale for p in stored.submaps.values()}
        assert abs(stored.map.scene_scale - 1) > 0.05 or units != {1.0}  # units are not metres
    path = tmp_path / "derived.ply"
    assert main(["export", str(output), str(path), "--edge-filter", "--voxel", "0.03"]) == 0
    derived, mapped = points(path), points(output / "scene.ply")
    far, _ = cKDTree(mapped).query(derived)
    back, _ = cKDTree(derived).query(mapped)
    assert max(np.quantile(far, 0.95), np.quantile(back, 0.95)) < 0.04


@pytest.mark.long
def test_npz_depth_is_in_metres_without_what_the_mask_hides(metric, tmp_path):
    output, camera = metric
    assert main(["export", str(output), str(tmp_path / "x.npz")]) == 0
    truth = {f.stamp_ns: f for f in camera}
    for file in sorted((tmp_path / "x.npz").glob("*.npz")):
        one = np.load(file)
        assert bool(one["metric"])
        frame, height = truth[int(one["stamp_ns"])], one["depth"].shape[0]
        small = cv2.resize(frame.depth, one["depth"].shape[::-1], interpolation=cv2.INTER_NEAREST)
        known = np.isfinite(one["depth"])
        assert not known[int(152 / SIZE[1] * height) :].any()
        assert known.mean() > 0.5
        ratio = np.median(one["depth"][known] / small[known])
        assert ratio == pytest.approx(1, abs=0.03)  # metres
        factor = one["depth"].shape[1] / SIZE[0]
        assert one["K"][0, 0] == pytest.approx(factor * frame.K[0, 0], rel=1e-3)


def test_sky_is_kept_as_sky(tmp_path):
    """Some networks tell sky; depth without an end is stored as such."""
    camera = SyntheticCamera(seed=2, size=(140, 112), walk="loop", frames=6, rate_hz=2)
    write_synthetic_bag(tmp_path / "bag", camera)

    class Open(TruthSession):
        def infer(self, window):
            found = super().infer(window)
            found.depth[:, :20] = np.inf
            sky = np.zeros_like(found.depth)
            sky[:, :20] = 1.0
            return dataclasses.replace(found, sky=sky)

    settings = load_config(None, ["process_res:=140", "window.size:=4", "model:=da3-tiny"])
    replay(ReplayOptions(tmp_path / "bag", tmp_path / "out"), settings, Open(camera))
    with StoredScene.open(tmp_path / "out" / "scene") as stored:
        for key in stored.images:
            assert np.isposinf(stored.load(key).depth[2:18]).all()
            assert np.isfinite(stored.load(key).depth[22:]).any()


@pytest.mark.long
def test_a_rig_is_one_store_and_independent_cameras_are_two(tmp_path):
    walk = {"seed": 2, "size": (140, 112), "walk": "straight", "frames": 6}
    rig = {n: SyntheticCamera(mount=rig_mount(i, 0.2, -30), **walk)
           for i, n in enumerate(("front", "left"))}  # fmt: skip
    write_synthetic_bag(tmp_path / "bag", rig)
    quick = ["process_res:=140", "window.size:=4", "model:=da3-tiny", "cameras:=[front, left]",
             "dense.enabled:=false"]  # fmt: skip
    both, each = {"scene": {"front", "left"}}, {"scene": {"front"}, "scene_left": {"left"}}
    for mode, scenes in (("joint", both), ("independent", each)):
        output = tmp_path / mode
        settings = load_config(None, [*quick, f"window.mode:={mode}"])
        replay(ReplayOptions(tmp_path / "bag", output), settings, TruthSession(rig))
        assert {p.parent.name for p in output.rglob(JOURNAL)} == set(scenes)
        for name, cameras in scenes.items():
            with StoredScene.open(output / name) as stored:
                assert {f.camera for f in stored.frames} == cameras
                assert len(stored.frames) == (12 if mode == "joint" else 6)
            assert main(["export", str(output / name), str(output / f"{name}_new.ply"),
                         "--edge-filter"]) == 0  # fmt: skip
            # The replay's own file of that scene, with its cameras' common or own frame.
            derived, mapped = (points(output / f"{name}{kind}.ply") for kind in ("_new", ""))
            far, _ = cKDTree(mapped).query(derived)
            assert np.quantile(far, 0.95) < 0.1
            assert len(derived) > 1000
