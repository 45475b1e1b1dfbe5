"""Exports whose depth is measured by the images of stored keyframes."""

import re

import numpy as np
import pytest
import trimesh

from da3_ros.cli import main
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import cloud_errors, fit_poses
from da3_ros.synthetic.rooms import make_room

SEED, FRAMES = 77, 30


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """A replay of a rendered walk with the network that ships."""
    folder = tmp_path_factory.mktemp("measured")
    size = ["--width", "168", "--height", "126"]
    walk = ["--seed", str(SEED), "--walk", "loop", "--frames", str(FRAMES), *size]
    assert main(["synth-bag", str(folder / "bag"), *walk]) == 0
    values = [f"-p{name}" for name in ("model:=da3-tiny", "process_res:=168", "device:=cpu",
                                      "backend:=torch", "map.voxel_m:=0.03")]  # fmt: skip
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


@pytest.mark.slow
def test_measured_depth_brings_the_cloud_to_the_rooms_surfaces(replayed, caplog):
    caplog.set_level("INFO")
    errors = [
        cloud_errors(make_room(SEED), cloud(replayed, name, *options))
        for name, options in (("network", ["--edge-filter"]), ("measured", ["--measure-depth"]))
    ]
    (share,) = re.findall(r"measured by the images: (\d+) %", caplog.text)
    assert int(share) > 40
    network, measured = errors
    assert measured.points > network.points / 3
    assert measured.median_m < network.median_m / 1.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.npz", "a.mesh.glb", "a.colmap"])
def test_formats_are_written_with_measured_depth(replayed, tmp_path, name, capsys):
    assert main(["export", str(replayed / "out"), str(tmp_path / name), "--measure-depth"]) == 0
    assert (tmp_path / name).exists()


def test_a_scene_without_keyframes_says_why(tmp_path, capsys):
    from support.scenes import full_store

    from da3_ros.export.scene_file import save_scene

    save_scene(full_store().snapshot(metric=True), tmp_path / "scene")
    arguments = [str(tmp_path / "scene"), str(tmp_path / "a.ply"), "--measure-depth"]
    assert main(["export", *arguments]) == 1
    assert "--measure-depth" in capsys.readouterr().err
