"""Replays of recordings with an IMU: its samples are read along with the frames."""

import json

import numpy as np
import pytest

from da3_ros.cli.arguments import load_config
from da3_ros.messages.imu import read_imu
from da3_ros.recordings import open_recording
from da3_ros.recordings.synthetic_bag import T_CAMERA_IMU, write_synthetic_bag
from da3_ros.replay import run
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES = (140, 112), 14
VALUES = [
    "model:=da3-tiny", "checkpoint:=random", "process_res:=140", "window.size:=4",
    "mixed_precision:=off", "backend:=torch",
]  # fmt: skip


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=SIZE, walk="carried", frames=FRAMES)


@pytest.fixture(scope="module")
def bag(camera, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "room"
    write_synthetic_bag(path, camera, imu=True)
    return path


def replayed(bag, output, camera, *values, **options):
    settings = load_config(None, [*VALUES, *values])
    replay(ReplayOptions(bag, output, **options), settings, TruthSession(list(camera)))
    return json.loads((output / "report.json").read_text())["counts"]


def test_the_bag_holds_what_an_imu_measures_and_its_mount(bag, camera):
    with open_recording(bag) as recording:
        samples = [read_imu(m) for _, m in recording.messages("/imu")]
        [(_, tf)] = recording.messages("/tf_static")
    assert len(samples) > 200 * (FRAMES - 1) / camera.rate_hz
    stamps = np.array([s.stamp_ns for s in samples])
    assert (np.diff(stamps) > 0).all()
    forces = np.array([s.values[3:] for s in samples])
    np.testing.assert_allclose(forces.mean(axis=0), [0, 0, 9.81], atol=2.5)  # z is up
    assert tf.transforms[0].child_frame_id == samples[0].frame_id
    t = tf.transforms[0].transform.translation
    np.testing.assert_allclose((t.x, t.y, t.z), T_CAMERA_IMU[:3, 3])


def test_every_frame_gets_its_samples(bag, camera, tmp_path, caplog):
    counts = replayed(bag, tmp_path / "out", camera, "imu.enabled:=true")
    assert counts.get("frames_without_imu", 0) == 0
    assert counts.get("gyro_contradicted", 0) == 0
    assert not [r for r in caplog.records if "imu:" in r.message and r.levelname == "WARNING"]


def test_a_recording_whose_mount_is_unknown_says_so_once(
    bag, camera, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(run, "transforms_of", lambda recording: TransformTree())
    counts = replayed(bag, tmp_path / "out", camera, "imu.enabled:=true")
    assert counts["frames_without_imu"] == FRAMES - 1
    named = [m for m in caplog.messages if m.startswith("imu: not used")]
    assert len(named) == 1
    assert "imu_link" in named[0]


def test_a_recording_without_an_imu_is_named(camera, tmp_path):
    write_synthetic_bag(tmp_path / "room", camera)
    with pytest.raises(ReplayError, match="has no Imu"):
        replayed(tmp_path / "room", tmp_path / "out", camera, "imu.enabled:=true")


def test_the_topic_can_be_chosen(bag, camera, tmp_path):
    with pytest.raises(ReplayError, match="no topic /other"):
        replayed(bag, tmp_path / "out", camera, "imu.enabled:=true", imu="/other")
    replayed(bag, tmp_path / "out2", camera, "imu.enabled:=true", imu="/imu")
