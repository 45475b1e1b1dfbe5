"""Replay of a bag with two cameras: the same groups as live, the same bytes every run."""

import json
from pathlib import Path

import numpy as np
import pytest

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.geometry.poses import invert_pose
from da3_ros.recordings import RecordingError, open_recording
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import TruthSession

SIZE = (140, 112)
FRAMES = 6
NAMES = ("front", "left")
QUICK = ("model:=da3-tiny", "checkpoint:=random", "process_res:=140", "window.size:=5",
         "mixed_precision:=off", "backend:=torch", "dense.enabled:=false")  # fmt: skip


@pytest.fixture(scope="module")
def rig():
    walk = {"seed": 2, "size": SIZE, "walk": "straight", "frames": FRAMES}
    return {n: SyntheticCamera(mount=rig_mount(i, 0.2, -30), **walk) for i, n in enumerate(NAMES)}


@pytest.fixture(scope="module")
def bag(rig, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "rig"
    write_synthetic_bag(path, rig)
    return path


def settings(*assignments):
    return load_config(None, [*QUICK, "cameras:=[front, left]", *assignments])


def run(bag, output, *assignments, session=None, **options):
    return replay(ReplayOptions(bag, output, **options), settings(*assignments), session)


def messages(output, topic):
    with open_recording(output / "output.mcap", camera="/da3/front/rgb") as recording:
        return [message for _, message in recording.messages(topic)]


def topics(output):
    with open_recording(output / "output.mcap", camera="/da3/front/rgb") as recording:
        return {t.name for t in recording._bag.topics}


def stamps(found):
    return [m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in found]


@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.long
@pytest.mark.slow
def test_two_replays_of_two_cameras_give_the_same_bytes(bag, tmp_path):
    summaries = [run(bag, tmp_path / name, "dense.enabled:=true") for name in ("a", "b")]
    assert summaries[0].counts["processed"] == 2 * FRAMES
    a, b = (
        {p.relative_to(tmp_path / run): p.read_bytes() for p in (tmp_path / run).rglob("*.*")}
        for run in "ab"
    )
    assert len(a) > 5
    assert set(a) == set(b)
    for name in set(a) - {Path("measured.json")}:
        assert a[name] == b[name], name


@pytest.mark.slow
def test_both_cameras_come_out_as_one_scene(rig, bag, tmp_path):
    session = TruthSession(rig)
    run(bag, tmp_path / "out", session=session)
    for name in NAMES:
        found = messages(tmp_path / "out", f"/da3/{name}/depth/image")
        assert stamps(found) == [f.stamp_ns for f in rig[name]]
        assert {m.header.frame_id for m in found} == {f"{name}_optical"}
    windows = messages(tmp_path / "out", "/da3/window")
    assert [w.new_frames for w in windows] == [2] * FRAMES
    assert [f.camera for f in windows[-1].frames][-2:] == list(NAMES)
    # The path is the first camera's; its unit is the first window's.
    lines = (tmp_path / "out" / "trajectory.tum").read_text().splitlines()
    assert len(lines) == FRAMES
    first = next(iter(rig["front"])).T_room_camera
    ours = np.array([[float(v) for v in line.split()[1:4]] for line in lines])
    true = np.array([(invert_pose(first) @ f.T_room_camera)[:3, 3] for f in rig["front"]])
    true = np.stack((true[:, 2], -true[:, 0], -true[:, 1]), axis=1)
    unit = np.linalg.norm(ours[-1]) / np.linalg.norm(true[-1])
    np.testing.assert_allclose(ours / unit, true, atol=5e-3)


@pytest.mark.long
@pytest.mark.slow
def test_independent_cameras_have_files_and_topics_of_their_own(rig, bag, tmp_path):
    session = TruthSession(rig)
    summary = run(bag, tmp_path / "out", "window.mode:=independent", session=session)
    pairs = (("scene", "ply"), ("trajectory", "tum"), ("tracks", "npz"))
    for name, kind in pairs:
        assert {f"{name}.{kind}", f"{name}_left.{kind}"} <= set(summary.files)
    assert summary.counts["processed"] == 2 * FRAMES
    assert json.loads((tmp_path / "out" / "report.json").read_text())["scenes"] == ["", "_left"]
    for name in NAMES:
        windows = messages(tmp_path / "out", f"/da3/{name}/window")
        assert {f.camera for w in windows for f in w.frames} == {name}
        assert len(windows) == FRAMES
    assert "/da3/window" not in topics(tmp_path / "out")


@pytest.mark.long
@pytest.mark.slow
def test_every_counts_framesets(bag, rig, tmp_path):
    summary = run(bag, tmp_path / "out", session=TruthSession(rig), every=2)
    assert summary.counts["processed"] == 2 * FRAMES // 2
    for name in NAMES:
        found = stamps(messages(tmp_path / "out", f"/da3/{name}/depth/image"))
        assert found == [f.stamp_ns for f in rig[name]][::2]


@pytest.mark.long
@pytest.mark.slow
def test_topics_may_have_other_names_than_cameras(bag, tmp_path, capsys):
    arguments = ["replay", str(bag), "--output", str(tmp_path / "out"), "--no-report"]
    arguments += ["-p", "cameras:=[a, b]"]
    arguments += [part for value in QUICK for part in ("-p", value)]
    with pytest.raises(ReplayError, match=r"camera a: give its topic with --camera a:=TOPIC"):
        replay(ReplayOptions(bag, tmp_path / "x"), load_config(None, [*QUICK, "cameras:=[a, b]"]))
    topics = ["--camera", "a:=/left/image_raw", "--camera", "b:=/front"]
    assert main([*arguments, *topics]) == 0
    with open_recording(tmp_path / "out" / "output.mcap", camera="/da3/a/rgb") as recording:
        (first, *_) = (m for _, m in recording.messages("/da3/a/depth/image"))
    assert first.header.frame_id == "left_optical"
    assert main([*arguments, "--camera", "/front/image_raw"]) == 1
    assert "give NAME:=TOPIC" in capsys.readouterr().err


def test_two_names_of_one_topic_are_refused(bag):
    with pytest.raises(RecordingError, match="cameras a and b have the same topic"):
        open_recording(bag, cameras={"a": "/front", "b": "/front/image_raw"})


def test_frames_of_a_bag_name_their_camera_and_are_in_order(bag):
    with open_recording(bag, cameras={"left": "left", "front": "front"}) as recording:
        frames = list(recording)
        assert recording.length == 2 * FRAMES
    assert {f.camera for f in frames} == set(NAMES)
    assert all(f.frame_id == f"{f.camera}_optical" for f in frames)
    assert all(f.calibration is not None for f in frames)
    assert [f.stamp_ns for f in frames] == sorted(f.stamp_ns for f in frames)
