"""Replay of a data set: its own stamps and calibration, and nothing of its truth."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.sequence_writers import write_euroc, write_euroc_imu

from da3_ros.cli.arguments import load_config
from da3_ros.recordings.true_poses import read_true_poses
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES = (84, 70), 6
QUICK = ("process_res:=84", "window.size:=4", "refinement.enabled:=false")


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=3, size=SIZE, walk="straight", frames=FRAMES)


@pytest.fixture
def replayed(camera, tmp_path):
    """Replays a data set of the camera with exact windows."""

    def run(name, with_truth):
        folder = tmp_path / name / "V1_01"
        write_euroc(folder, camera, list(camera))
        if not with_truth:
            (folder / "mav0" / "state_groundtruth_estimate0" / "data.csv").unlink()
        options = ReplayOptions(folder, tmp_path / name / "out")
        replay(options, load_config(None, QUICK), TruthSession(camera))
        return folder, options.output

    return run


def test_the_folder_that_one_is_in_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "V1_01" / "mav0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "V1_01" / "mav0")
    names = [ReplayOptions(Path(path), tmp_path).name for path in (".", "..", "../../V1_01")]
    assert names == ["mav0", "V1_01", "V1_01"]


@pytest.mark.long
def test_the_imu_of_the_body_turns_with_the_camera(tmp_path):
    """Without a transform: the calibration of the camera says where it is on the IMU."""
    camera = SyntheticCamera(seed=3, size=SIZE, walk="spot", frames=18)
    frames, folder = list(camera), tmp_path / "V1"
    write_euroc(folder, camera, frames)
    body = np.eye(4)
    body[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
    body[:3, 3] = [0.1, 0.02, -0.05]  # as the writer has it
    stamps = np.array([f.stamp_ns for f in frames])
    mount = np.linalg.inv(body)
    write_euroc_imu(folder, imu_samples(camera.T_room_camera, stamps, T_camera_imu=mount))
    values = ["process_res:=84", "window.size:=4", "imu.enabled:=true", "level.source:=imu"]
    replay(
        ReplayOptions(folder, tmp_path / "out"), load_config(None, values), TruthSession(frames)
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["counts"].get("frames_without_imu", 0) == 0
    assert report["counts"].get("gyro_contradicted", 0) == 0


@pytest.mark.slow
def test_the_mounts_of_its_cameras_give_metres(tmp_path):
    walk = {"seed": 2, "size": SIZE, "walk": "straight", "frames": 5}
    mounts = {name: rig_mount(i, 0.2, -30) for i, name in enumerate(("cam0", "cam1"))}
    rig = {name: SyntheticCamera(mount=mount, **walk) for name, mount in mounts.items()}
    for name, camera in rig.items():
        write_euroc(tmp_path / "V1", camera, list(camera), name, mounts[name])
    settings = load_config(None, [*QUICK, "cameras:=[cam0, cam1]", "scale.source:=rig"])
    replay(ReplayOptions(tmp_path / "V1", tmp_path / "out"), settings, TruthSession(rig))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["scale"]["source"] == "rig", report["scale"]
    ours = positions(tmp_path / "out")
    true = np.array([frame.T_room_camera[:3, 3] for frame in rig["cam0"]])
    lengths = [np.linalg.norm(points[-1] - points[0]) for points in (ours, true)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05)


def positions(output):
    rows = [line.split() for line in (output / "trajectory.tum").read_text().splitlines()]
    return np.array([[float(v) for v in row[1:4]] for row in rows])


@pytest.mark.slow
def test_truth_changes_no_byte_of_a_replay(replayed):
    (_, with_truth), (_, without) = replayed("a", True), replayed("b", False)
    for name in ("trajectory.tum", "scene.ply", "output.mcap"):
        assert (with_truth / name).read_bytes() == (without / name).read_bytes()


@pytest.mark.slow
def test_poses_of_a_replay_meet_true_poses_at_their_stamps(replayed, camera):
    folder, output = replayed("a", True)
    rows = [line.split() for line in (output / "trajectory.tum").read_text().splitlines()]
    stamps = [int(row[0].replace(".", "")) for row in rows]
    assert stamps == [frame.stamp_ns for frame in camera]
    true = read_true_poses(folder).at(stamps)[1][:, :3, 3]
    pairs = (positions(output), true)
    ours, true = (np.linalg.norm(points - points[0], axis=1)[1:] for points in pairs)
    np.testing.assert_allclose(ours / true, (ours / true)[0], rtol=1e-3)  # one unknown scale
