"""Keyframes that a replay stores: what is derived from them, and what an interruption leaves."""

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import trimesh
from scipy.spatial import cKDTree

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.export.scene_file import load_scene
from da3_ros.keyframe_store.store import JOURNAL, StoredScene
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES = (280, 210), 12
ROOT = Path(__file__).parents[2]


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
                stored.places[place.id].T_scene_submap.t, place.T_scene_submap.t
            )
        np.testing.assert_array_equal(stored.map.T_map_world, saved.T_map_world)
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
    assert not (tmp_path / "keyframes").exists()


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


def test_a_colmap_model_has_images_at_the_cameras_size(output):
    folder = exported(output, "model.colmap")
    line = (folder / "sparse" / "0" / "cameras.txt").read_text().splitlines()[1].split()
    assert line[:4] == ["1", "PINHOLE", *map(str, SIZE)]
    assert len(list((folder / "images").glob("*.jpg"))) > 2


def test_what_is_not_stored_is_exported_from_the_saved_points(camera, bag, tmp_path):
    """A resumed scene, or one whose disk was full, knows more than its journal."""
    settings = load_config(None, ["process_res:=140", "model:=da3-tiny", "map.disk_gb:=0"])
    replay(ReplayOptions(bag, tmp_path), settings, TruthSession(camera))
    with StoredScene.open(tmp_path / "scene") as stored:
        assert not stored.images
        assert len(stored.frames) < FRAMES
    whole = points(exported(tmp_path, "all.ply"))
    np.testing.assert_array_equal(whole, points(tmp_path / "scene.ply"))
    lines = (exported(tmp_path, "all.tum")).read_text().splitlines()
    assert sum(not line.startswith("#") for line in lines) == FRAMES


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
    scene = tmp_path / "scene"
    scene.mkdir()
    for file in (output / "scene").iterdir():
        if file.name != JOURNAL:
            (scene / file.name).symlink_to(file)
    assert main(["export", str(scene), str(tmp_path / "x.ply"), *options]) == 1
    said = capsys.readouterr().err
    assert "has no stored keyframes" in said
    assert said.count("\n") == 1


@pytest.mark.process
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_replay_keeps_its_keyframes(bag, tmp_path, kill):
    output = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "da3_ros", "replay", str(bag), "--output", str(output),
         "-p", "model:=da3-small", "-p", "checkpoint:=random", "-p", "backend:=torch"],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not stored_bytes(output) > 50_000:
        time.sleep(0.05)
    process.send_signal(kill)
    _, errors = process.communicate(timeout=60)
    if kill == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in errors
        assert f"keyframes are kept: da3_ros export {output}/unfinished" in errors
        kept = output / "unfinished"
        assert [p.name for p in output.iterdir()] == ["unfinished"]
    else:
        (kept,) = output.glob(".replay-*/keyframes")
    assert main(["export", str(kept), str(tmp_path / "x.ply")]) == 0


def stored_bytes(output):
    return sum(f.stat().st_size for f in output.glob(f".replay-*/keyframes/{JOURNAL}"))
