"""Replays of a robot with two cameras, an IMU, a LiDAR and global poses in one bag."""

import contextlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.cases import long_after
from support.interrupted import InterruptedTruth

from da3_ros.cli.arguments import load_config
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.recordings import open_recording
from da3_ros.recordings.bag_files import Bag
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay import checkpoint
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.rig import rig_mount

SIZE, FRAMES, NAMES = (112, 84), 36, ("front", "left")
QUICK = (
    "model:=da3-tiny", "checkpoint:=random", "process_res:=112", "window.size:=6",
    "mixed_precision:=off", "backend:=torch", "refinement.enabled:=false",
    "cameras:=[front, left]", "odom_frame:=map", "loop.every:=1000",
)  # fmt: skip
SENSORS = ("scale.source:=[imu, range]", "level.source:=imu", "base_frame:=front_optical")
POSES = "/global_pose"


@pytest.fixture(scope="module")
def rig():
    walk = {"seed": 3, "size": SIZE, "walk": "carried", "frames": FRAMES}
    return {n: SyntheticCamera(mount=rig_mount(i, 0.4, -30), **walk) for i, n in enumerate(NAMES)}


@pytest.fixture(scope="module")
def bag(rig, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "robot"
    write_synthetic_bag(path, rig, tf=True, imu=True, lidar_hz=10.0, global_pose=True)
    return path


def run(bag, rig, output, *assignments, at=-1, **options):
    config = load_config(None, [*QUICK, *SENSORS, *assignments])
    given = {"global_pose": POSES, **options}
    with contextlib.suppress(KeyboardInterrupt):
        replay(
            ReplayOptions(bag, output, report=False, **given), config, InterruptedTruth(rig, at)
        )
    report = output / "report.json"
    return json.loads(report.read_text())["counts"] if report.exists() else None


def off(rig, output, camera="front", name="trajectory.tum"):
    """Distances of the poses in a file from the true ones, metres, frame by frame."""
    found = np.loadtxt(output / name)
    true = np.array([f.T_room_camera[:3, 3] for f in rig[camera]])
    stamps = np.array([f.stamp_ns for f in rig[camera]]) / 1e9
    at = np.abs(found[:, :1] - stamps).argmin(axis=1)
    return np.linalg.norm(found[:, 1:4] - true[at], axis=1)


def warnings(caplog):
    """But that global poses wait for metres, which take a while."""
    lines = [r.message for r in caplog.records if r.levelname == "WARNING"]
    return [line for line in lines if line != "global_pose: not used: they wait for metres"]


@pytest.mark.long
@pytest.mark.slow
def test_all_sensors_of_a_rig_count_together(rig, bag, tmp_path, caplog):
    counts = run(bag, rig, tmp_path / "out", "range_topics:=[/lidar/points]")
    assert counts["processed"] == 2 * FRAMES
    assert counts.get("frames_without_imu", 0) == counts.get("gyro_contradicted", 0) == 0
    assert counts["frames_with_returns"] > 1.5 * FRAMES
    assert counts["anchors"] == 4
    assert counts.get("anchors_wrong", 0) == counts.get("anchors_without_frame", 0) == 0
    assert np.median(off(rig, tmp_path / "out")) < 0.06
    with open_recording(tmp_path / "out" / "output.mcap", camera="/da3/front/rgb") as recording:
        windows = [m for _, m in recording.messages("/da3/window")]
    assert windows[-1].scale_source == "imu+range"
    assert not [w for w in warnings(caplog) if "imu:" in w or "global_pose" in w]


@pytest.mark.long
@pytest.mark.slow
def test_independent_cameras_have_metres_and_their_place_each(rig, bag, tmp_path, caplog):
    counts = run(bag, rig, tmp_path / "out", "window.mode:=independent")
    assert counts["processed"] == 2 * FRAMES
    assert counts["anchors"] == 8
    assert np.median(off(rig, tmp_path / "out")) < 0.08
    assert np.median(off(rig, tmp_path / "out", "left", "trajectory_left.tum")) < 0.08


@pytest.mark.long
@pytest.mark.slow
def test_without_a_base_a_global_pose_is_not_that_of_the_second_camera(rig, bag, tmp_path, caplog):
    counts = run(bag, rig, tmp_path / "out", "window.mode:=independent", "base_frame:=")
    assert counts["anchors"] == 4
    assert np.median(off(rig, tmp_path / "out")) < 0.08
    said = [w for w in warnings(caplog) if w.startswith("global_pose: not used")]
    assert len(said) == 1
    assert "it is the pose of camera front, and not that of left: set base_frame" in said[0]


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "end_s", "ats"),
    long_after(
        1, [("joint", 1.7, (8, 4)), ("joint", 2.6, (13, 6)), ("independent", 2.6, (13, 6))]
    ),
)
def test_a_continued_replay_with_all_sensors_writes_the_same_bytes(
    rig, bag, tmp_path, monkeypatch, checkpoints_are_saved, mode, end_s, ats
):
    monkeypatch.setattr(checkpoint, "PERIOD_S", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1.0)
    mode, end = f"window.mode:={mode}", {"end_s": end_s}
    counts = run(bag, rig, tmp_path / "whole", mode, **end)
    assert counts["frames_with_returns"] > 0
    assert counts["anchors"] > 0  # for which metres must be known
    for at in (*ats, -1):
        run(bag, rig, tmp_path / "parts", mode, at=at, go_on=True, **end)
    ours, theirs = (
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()}
        for f in (tmp_path / "whole", tmp_path / "parts")
    )
    for files in (ours, theirs):
        del files[Path("measured.json")]
    assert set(ours) == set(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.long
@pytest.mark.slow
def test_a_mask_and_a_covered_camera_leave_the_sensors_right(rig, bag, tmp_path):
    """The robot's own part of the front image has no depth, so that returns there do not count."""
    mask = np.full((SIZE[1], SIZE[0]), 255, np.uint8)
    mask[50:, 30:80] = 0
    cv2.imwrite(str(tmp_path / "front.png"), mask)
    cv2.imwrite(str(tmp_path / "left.png"), np.full_like(mask, 255))
    covered = tmp_path / "covered"
    lib, black = RosbagsLibrary(), np.zeros((SIZE[1], SIZE[0], 3), np.uint8)

    def cover(topic, stamp_ns, message):
        late = stamp_ns - rig["front"].start_ns > 1.5e9
        if topic == "/front/image_raw" and late and stamp_ns - rig["front"].start_ns < 2.5e9:
            return build.image(lib, stamp_ns, "front_optical", black)
        return message

    copied(bag, covered, lib, cover)
    counts = run(covered, rig, tmp_path / "out", f"mask:={tmp_path}/{{camera}}.png")
    assert counts["blind_dark_front"] >= 8
    assert counts.get("anchors_without_frame", 0) == 0
    assert np.median(off(rig, tmp_path / "out")) < 0.08


def copied(bag, path, lib, changed, passes=1, late_ns=0):
    """Writes a bag again. changed: returns a message in place of another one. passes: how often;
    each is recorded after the one before, with the same stamps. late_ns: time between them."""
    from da3_ros.recordings.writer import BagFolderWriter

    source = Bag(bag)
    try:
        kinds = {t.name: t.type for t in source.topics}
        with BagFolderWriter(path, lib) as out:
            for k in range(passes):
                for log_ns, topic, kind, data in source.messages(set(kinds)):
                    message = changed(topic, log_ns, source.types.deserialize(kind, data))
                    out.write(topic, kind, message, log_ns + k * late_ns)
    finally:
        source.close()


@pytest.mark.long
@pytest.mark.slow
def test_stamps_that_jump_back_begin_all_sensors_anew(rig, bag, tmp_path, caplog):
    """A bag of a player that loops: what belongs to the second pass is not used in the first."""
    twice, lib = tmp_path / "twice", RosbagsLibrary()
    copied(bag, twice, lib, lambda topic, log_ns, message: message, 2, 10**10)
    counts = run(twice, rig, tmp_path / "out")
    assert counts["processed"] == 4 * FRAMES
    assert counts["time_jumps"] == 1
    assert counts["anchors"] + counts.get("anchors_without_frame", 0) >= 4
    assert counts.get("anchors_wrong", 0) == 0
    assert counts.get("gyro_contradicted", 0) == 0
    assert counts.get("frames_without_imu", 0) <= 2
    found = off(rig, tmp_path / "out")
    assert np.median(found[:FRAMES]) < 0.08
