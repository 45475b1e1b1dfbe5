"""Exports whose depth is measured by the images of stored keyframes."""

import dataclasses
import json
import re
import shutil

import cv2
import numpy as np
import pytest
import trimesh
from support.journals import rewritten

from da3_ros.cli import main
from da3_ros.derived.dense_depth import Search
from da3_ros.drawing.dense_sheet import TITLE_HEIGHT
from da3_ros.export import measured_depth as exported_depth
from da3_ros.export.measured_depth import MeasuredDepth, measured_depth
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import cloud_errors, fit_poses
from da3_ros.synthetic.rooms import make_room
from da3_ros.types import DenseDepth

SEED, FRAMES = 77, 20


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """A replay of a rendered walk with the network that ships."""
    folder = tmp_path_factory.mktemp("measured")
    size = ["--width", "168", "--height", "126"]
    walk = ["--seed", str(SEED), "--walk", "loop", "--frames", str(FRAMES), *size]
    assert main(["synth-bag", str(folder / "bag"), *walk]) == 0
    values = [f"-p{name}" for name in ("model:=da3-tiny", "process_res:=168", "device:=cpu",
                                      "backend:=torch", "map.voxel_m:=0.03")]  # fmt: skip
    values.append("--no-report")
    assert main(["replay", str(folder / "bag"), "--output", str(folder / "out"), *values]) == 0
    return folder


def cloud(folder, name, *options):
    """The points that an export writes, in the frame of the room."""
    path = folder / f"{name}.ply"
    assert main(["export", str(folder / "out"), str(path), *options]) == 0
    rows = np.loadtxt(folder / "out" / "trajectory.tum")
    camera = SyntheticCamera(seed=SEED, size=(56, 42), walk="loop", frames=FRAMES, rate_hz=10.0)
    true = {f.stamp_ns: f.T_room_camera for f in camera}
    near = [min(true, key=lambda s, t=row[0]: abs(s - t * 1e9)) for row in rows]
    ours = np.tile(np.eye(4), (len(rows), 1, 1))
    ours[:, :3, 3] = rows[:, 1:4]
    ours[:, :3, :3] = [matrix_from_quaternion(q) for q in rows[:, 4:]]
    fit = fit_poses(ours, np.array([true[s] for s in near]))
    return fit.points(np.asarray(trimesh.load(path).vertices))


@pytest.mark.long
@pytest.mark.slow
def test_measured_depth_brings_the_cloud_to_the_rooms_surfaces(replayed, caplog):
    caplog.set_level("INFO")
    errors = [
        cloud_errors(make_room(SEED), cloud(replayed, name, *options))
        for name, options in (("network", ["--network-depth"]), ("measured", ["--measure-depth"]))
    ]
    (share,) = re.findall(r"measured by the images: (\d+) %", caplog.text)
    assert int(share) > 30
    network, measured = errors
    assert measured.points > network.points / 3
    assert measured.median_m < network.median_m / 1.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.npz", "a.mesh.glb", "a.colmap"])
def test_formats_are_written_with_measured_depth(replayed, tmp_path, name, capsys):
    assert main(["export", str(replayed / "out"), str(tmp_path / name), "--measure-depth"]) == 0
    assert (tmp_path / name).exists()


class Stored:
    """A keyframe in a submap of another unit; of another size, cropped."""

    def __init__(self, one, scale=1.0, cut=0):
        self.key, self.T_ros_camera, self._one, self._cut = one.key, one.T_ros_camera, one, cut
        self.T_map_submap = Similarity(scale * one.T_map_submap.scale, np.eye(3), np.zeros(3))
        self._scale = scale

    def load(self):
        keyframe = self._one.load()
        rows = keyframe.depth.shape[0] - self._cut
        whole = keyframe.image.shape[0] * rows // keyframe.depth.shape[0]
        return dataclasses.replace(
            keyframe, depth=keyframe.depth[:rows] / np.float32(self._scale),
            confidence=keyframe.confidence[:rows], image=keyframe.image[:whole],
        )  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
def test_units_sizes_and_lone_keyframes_of_one_component(replayed):
    path = replayed / "out" / "scene" / "scene.da3k"
    with StoredScene(path) as stored:
        ones = readable_keyframes(stored, DepthFilters(network=True))[:6]
        plain = measured_depth([ones])
        scaled = measured_depth([[Stored(one, 8.0) for one in ones]])  # exact in floats
        for one in ones:
            a, b = plain.load(one.key), scaled.load(one.key)
            np.testing.assert_allclose(b.depth * 8, a.depth, rtol=1e-6)
        cut = [Stored(one, cut=14 * (k % 2)) for k, one in enumerate(ones)]
        mixed = measured_depth([cut])
        for one in cut:
            found = mixed.load(one.key)
            assert found is None or found.depth.shape == one.load().depth.shape
        alone = measured_depth([ones, *([one] for one in ones)])
        assert alone.share == pytest.approx(plain.share / 2, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("another", "compared"), [("K", 3), ("camera", 6)])
def test_keyframes_of_another_calibration_of_their_camera_are_not_compared(
    replayed, monkeypatch, another, compared
):
    searched = []

    def search(view, others, depth):
        searched.append([view, *others])
        nothing = np.full(depth.shape, np.nan, np.float32)
        return Search(nothing, nothing > 0, np.zeros((len(others), *depth.shape), np.float16))

    monkeypatch.setattr(exported_depth, "search_depth", search)
    with StoredScene(replayed / "out" / "scene" / "scene.da3k") as stored:
        ones = [
            Recalibrated(one, k % 2 > 0, another)
            for k, one in enumerate(readable_keyframes(stored, DepthFilters(network=True))[:6])
        ]
        measured_depth([ones])
    assert len(searched) == 6
    assert max(len(views) for views in searched) == compared
    if another == "K":
        assert all(len({view.K[0, 0] for view in views}) == 1 for views in searched)


class Recalibrated(Stored):
    """A keyframe with another calibration, also of another camera."""

    def __init__(self, one, changed, another):
        super().__init__(one)
        self._changed, self._another = changed, another

    def load(self):
        keyframe = super().load()
        if not self._changed:
            return keyframe
        camera = "other" if self._another == "camera" else keyframe.pose.camera
        pose = dataclasses.replace(keyframe.pose, K=1.02 * keyframe.pose.K, camera=camera)
        return dataclasses.replace(keyframe, pose=pose)


@pytest.mark.long
@pytest.mark.slow
def test_the_deviation_and_what_is_measured_can_be_read(replayed):
    with StoredScene.open(replayed / "out" / "scene") as stored:
        ones = readable_keyframes(stored, DepthFilters())
        found = measured_depth([ones])
        dense = [found.load(one.key) for one in ones]
    some = next(one for one in dense if one is not None and one.measured.any())
    assert (some.sigma[some.measured] > 0).all()
    assert some.sigma[some.measured].max() < np.inf
    assert found.load(10**6) is None


def test_a_full_disk_is_one_line(replayed, tmp_path, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("da3_ros.export.measured_depth.np.savez", full)
    arguments = [str(replayed / "out"), str(tmp_path / "a.ply"), "--measure-depth"]
    assert main(["export", *arguments]) == 1
    assert "No space left on device; set TMPDIR" in capsys.readouterr().err


def test_a_scene_without_keyframes_says_why(tmp_path, capsys):
    from support.scenes import full_store

    from da3_ros.export.scene_file import save_scene

    save_scene(full_store().snapshot(metric=True), tmp_path / "scene")
    arguments = [str(tmp_path / "scene"), str(tmp_path / "a.ply"), "--measure-depth"]
    assert main(["export", *arguments]) == 1
    assert "--measure-depth" in capsys.readouterr().err


@pytest.mark.slow
def test_a_replay_has_measured_and_stored_depth(replayed):
    report = json.loads((replayed / "out" / "report.json").read_text())["dense"]
    assert report["keyframes_measured"] == report["keyframes"] > 3
    assert report["share_measured"] > 0.3
    assert 0.4 < report["agreement"] <= 1
    times = json.loads((replayed / "out" / "measured.json").read_text())
    assert times["dense_s_per_keyframe"] > 0
    with StoredScene.open(replayed / "out" / "scene") as stored:
        assert len(stored.measured) == report["keyframes"]
        for key in stored.measured:
            one = next(o for o in readable_keyframes(stored, DepthFilters()) if o.key == key)
            dense = stored.load_measured(key)
            np.testing.assert_array_equal(one.load().depth, dense.depth)
            np.testing.assert_array_equal(one.load_network_depth(), stored.load(key).depth)


@pytest.mark.slow
def test_npz_files_have_both_depths(replayed, tmp_path):
    assert main(["export", str(replayed / "out"), str(tmp_path / "a.npz")]) == 0
    assert main(["export", str(replayed / "out"), str(tmp_path / "b.npz"), "--network-depth"]) == 0
    files = sorted((tmp_path / "a.npz").glob("*.npz"))
    assert len(files) > 3
    for file in files:
        with np.load(file) as both, np.load(tmp_path / "b.npz" / file.name) as network:
            np.testing.assert_array_equal(both["network_depth"], network["depth"])
            assert "measured" not in network
            known = np.isfinite(both["depth"])
            assert both["measured"].any()
            assert (both["sigma"][known] > 0).all()
            ratio = both["depth"][known] / network["depth"][known]
            assert np.abs(ratio - 1).max() > 0.01


@pytest.mark.slow
def test_a_picture_of_measured_depth(replayed, tmp_path, capsys):
    arguments = ["view", str(replayed / "out"), "--dense", "--output", str(tmp_path / "a.png")]
    assert main([*arguments, "--size", "80x60"]) == 0
    text = capsys.readouterr().out
    share = int(re.search(r"\d keyframes, (\d+) % of their pixels measured", text)[1])
    agreement = int(re.search(r"(\d+) % of what was found in them confirmed", text)[1])
    assert 0 < share < agreement <= 100
    picture = cv2.imread(str(tmp_path / "a.png"))
    assert picture.shape[1] == 4 * 84
    assert picture.shape[0] % 64 == TITLE_HEIGHT
    assert (picture[TITLE_HEIGHT:, 3 * 84 :] > 0).any()
    with pytest.raises(SystemExit):
        main([*arguments, "--tracks"])
    for broken, code in ((1, 0), (100, 1)):  # a damaged keyframe is left out, not all are
        copied = shutil.copytree(replayed / "out", tmp_path / str(broken))
        left = iter(range(broken))

        def change(description, data, left=left):
            if description["kind"] == "measured depth" and next(left, None) is not None:
                data = data[:8] + bytes(16) + data[24:]
            return description, data

        rewritten(copied / "scene", change)
        out = str(tmp_path / f"{broken}.png")
        again = ["view", str(copied), "--dense", "--output", out, "--size", "80x60"]
        assert main(again) == code
        if code == 0:
            assert cv2.imread(out).shape[0] == picture.shape[0] - 64
    assert "all keyframes that were chosen are damaged" in capsys.readouterr().err
    assert main([*arguments, "--from", "top"]) != 0
    assert "--dense: --from is for scenes" in capsys.readouterr().err


def test_the_stated_range_is_that_of_the_depth_that_is_read():
    depth = np.float32([[2, 4, np.nan], [8, np.inf, 3]])
    measured = MeasuredDepth()
    measured.add(7, DenseDepth(depth, depth, np.isfinite(depth)), unit=2.0)
    measured.add(8, DenseDepth(np.full_like(depth, np.nan), depth, depth > 9), unit=2.0)
    inverse = 1 / measured.load(7).depth[np.isfinite(depth)]
    assert measured.inverse_depths[7] == pytest.approx((inverse.min(), inverse.max()))
    assert measured.inverse_depths[8] == (1.0, 1.0)
    assert 9 not in measured.inverse_depths
