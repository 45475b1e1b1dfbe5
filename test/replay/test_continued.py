"""A replay that was interrupted goes on, and ends with the same bytes."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import programs
from support.cases import long_after
from support.interrupted import InterruptedTruth
from support.processes import PATIENCE_S
from support.ring import SIZE as RING_SIZE
from support.ring import descriptor_at, walked

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.export.scene_file import load_scene
from da3_ros.keyframe_store.store import JOURNAL
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay import checkpoint, work_folder
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera, make_ring
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import Noise
from da3_ros.types import Calibration

SIZE = (112, 84)
QUICK = ("model:=da3-tiny", "checkpoint:=random", "process_res:=112", "window.size:=5",
         "mixed_precision:=off", "backend:=torch")  # fmt: skip
NAMES = ("front", "left")
# Runs a replay that saves a checkpoint after every frame.
OFTEN = (
    "import sys; from da3_ros.replay import checkpoint; checkpoint.PERIOD_S = 0.0; "
    "checkpoint.SHARE = 1.0; from da3_ros.cli import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def often(checkpoints_are_saved, monkeypatch):
    """A checkpoint after every frame."""
    monkeypatch.setattr(checkpoint, "PERIOD_S", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1.0)


@pytest.fixture
def seldom(often, monkeypatch):
    """A checkpoint after every fifth frame, so that files hold more than it knows."""
    save, calls = checkpoint.Checkpoints.save_if_due, []

    def save_if_due(self):
        calls.append(True)
        if len(calls) % 5 == 0:
            save(self)

    monkeypatch.setattr(checkpoint.Checkpoints, "save_if_due", save_if_due)


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=24, rate_hz=4.0)


@pytest.fixture(scope="module")
def bag(camera, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "room"
    write_synthetic_bag(path, camera, tf=True, imu=True, lidar_hz=5.0, global_pose=True)
    return path


@pytest.fixture(scope="module")
def rig():
    walk = {"seed": 2, "size": SIZE, "walk": "straight", "frames": 7}
    return {n: SyntheticCamera(mount=rig_mount(i, 0.2, -30), **walk) for i, n in enumerate(NAMES)}


@pytest.fixture(scope="module")
def rig_bag(rig, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "rig"
    write_synthetic_bag(path, rig)
    return path


class Interrupted(InterruptedTruth):
    """With noise."""

    def __init__(self, truth, at=-1):
        super().__init__(truth, at, Noise(0.01, 0.02, 0.02, 0.5, 0.02))


class Described(Interrupted):
    """With descriptors, so that places are recognised."""

    def infer(self, window):
        found = super().infer(window)
        described = [
            np.random.default_rng(view.stamp_ns % 10**9).normal(size=16) for view in window.views
        ]
        return dataclasses.replace(found, descriptor=np.array(described, np.float32))


def run(bag, output, truth, *assignments, at=-1, **options):
    config = load_config(None, [*QUICK, *assignments])
    session = Interrupted(truth, at)
    with contextlib.suppress(KeyboardInterrupt):
        replay(ReplayOptions(bag, output, **options), config, session)
    return session.ran


def contents(folder):
    found = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del found[Path("measured.json")]
    return found


def assert_same(a, b):
    ours, theirs = contents(a), contents(b)
    assert set(ours) == set(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []


CASES = {
    "short": ("loop.every:=1", "imu.enabled:=true"),
    "loops": ("loop.every:=1", "imu.enabled:=true"),
    "imu": ("scale.source:=imu", "level.source:=imu", "imu.enabled:=true"),
    "global_pose": ("scale.source:=fixed", "level.source:=imu", "imu.enabled:=true"),
    "odometry": ("pose_prior.source:=odometry", "scale.source:=odometry"),
    "ranges": ("scale.source:=range", "odom_frame:=map"),
    "floor": ("scale.source:=fixed", "level.source:=ground", "keyframe.parallax:=0.02"),
    "spilled": ("map.max_points:=20000", "keyframe.parallax:=0.02", "refinement.enabled:=false"),
    "full_disk": ("map.disk_gb:=0.0001", "refinement.enabled:=false"),
}


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
@pytest.mark.parametrize("case", long_after(1, CASES))
def test_a_continued_replay_writes_the_same_bytes(seldom, camera, bag, tmp_path, case):
    arguments = CASES[case]
    end_s, first, more = (2.5, 6, (4,)) if case == "short" else (3.5, 7, (4, 7))
    options = {"camera": "/camera/image_raw", "pictures": True, "end_s": end_s}
    if case == "global_pose":
        options["global_pose"] = "/global_pose"
    windows = run(bag, tmp_path / "whole", camera, *arguments, **options)
    output = tmp_path / "parts"
    ran = run(bag, output, camera, *arguments, at=first, **options)
    assert [p.name for p in output.iterdir()] == ["unfinished"]
    for at in (*more, -1):
        ran += run(bag, output, camera, *arguments, at=at, go_on=True, **options)
    assert windows < ran <= windows + 3 * 8  # what came after a checkpoint is repeated
    assert_same(tmp_path / "whole", output)
    scene = load_scene(output / "scene")
    assert bool(scene.floor.views) == (case in ("floor", "imu", "global_pose"))
    assert bool(scene.anchors) == (case == "global_pose")


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
def test_a_replay_that_corrects_a_camera_info_is_continued(often, tmp_path):
    """Interrupted before that and after it."""
    camera = SyntheticCamera(42, (320, 240), walk="loop", frames=30, rate_hz=4.0)
    camera.calibration = dataclasses.replace(
        camera.calibration, K=camera.calibration.K * [[1.08, 1, 1], [1, 1.08, 1], [1, 1, 1]]
    )
    write_synthetic_bag(tmp_path / "bag", camera)
    values = ("process_res:=168", "window.size:=6", "dense.enabled:=false")
    run(tmp_path / "bag", tmp_path / "whole", camera, *values)
    for at in (10, 9, -1):
        run(tmp_path / "bag", tmp_path / "parts", camera, *values, at=at, go_on=True)
    report = json.loads((tmp_path / "whole" / "report.json").read_text())
    assert report["refinement"]["focal_source"] == {"": "corrected"}
    assert_same(tmp_path / "whole", tmp_path / "parts")


class AlongRing(Interrupted):
    """With descriptors of places: the camera comes back to the first one."""

    def infer(self, window):
        found = super().infer(window)
        true = [self._frames["", view.stamp_ns] for view in window.views]
        described = [descriptor_at(frame.T_room_camera) for frame in true]
        return dataclasses.replace(found, descriptor=np.array(described, np.float32))


class RingCamera(list):
    """The frames of a walk round a ring, with black images."""

    def __init__(self):
        black = np.zeros((RING_SIZE[1], RING_SIZE[0], 3), np.uint8)
        super().__init__(SimpleNamespace(**vars(f), image=black) for f in walked(112, 1.04))
        K = self[0].K.copy()
        K[:2, 2] -= 0.5
        self.start_ns, self.calibration = self[0].stamp_ns, Calibration(*RING_SIZE, K)
        self.room = make_ring(0)  # that of the walk


@pytest.mark.long
def test_a_replay_that_has_closed_a_loop_is_continued(seldom, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Interrupted", AlongRing)
    solved, solve = [], LoopClosure.solve
    monkeypatch.setattr(LoopClosure, "solve", lambda *of: solved.append(1) or solve(*of))
    camera, bag = RingCamera(), tmp_path / "ring"
    write_synthetic_bag(bag, camera, tf=True)
    values = (
        "loop.every:=1", "refinement.enabled:=false", "hold_when_blind:=false",
        "map.voxel_m:=0.1", "process_res:=84",
    )  # fmt: skip
    one = {"camera": "/camera/image_raw"}
    windows = run(bag, tmp_path / "whole", camera, *values, **one)
    assert solved
    solved.clear()
    run(bag, tmp_path / "parts", camera, *values, at=windows - 2, **one)
    assert solved  # before the interruption
    assert run(bag, tmp_path / "parts", camera, *values, go_on=True, **one) < 20
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["joint", "independent"])
def test_a_continued_replay_of_two_cameras_writes_the_same_bytes(
    often, rig, rig_bag, tmp_path, mode
):
    arguments = ("cameras:=[front, left]", f"window.mode:={mode}")
    run(rig_bag, tmp_path / "whole", rig, *arguments)
    for at in (3, -1):
        run(rig_bag, tmp_path / "parts", rig, *arguments, at=at, go_on=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["localization", "mapping"])
def test_a_continued_replay_in_a_saved_scene_writes_the_same_bytes(
    often, camera, bag, tmp_path, monkeypatch, mode
):
    """Keyframes of the saved scene stay in its file."""
    monkeypatch.setattr(sys.modules[__name__], "Interrupted", Described)
    values, one = ("loop.every:=1", "refinement.enabled:=false"), {"camera": "/camera/image_raw"}
    run(bag, tmp_path / "monday", camera, *values, end_s=4.0, **one)
    values = (*values, f"mode:={mode}")
    assert load_scene(tmp_path / "monday" / "scene").recognition.keyframes
    saved = {"resume": tmp_path / "monday", "start_s": 3.0, **one}
    run(bag, tmp_path / "whole", camera, *values, **saved)
    output = tmp_path / "parts"
    run(bag, output, camera, *values, at=4, **saved)
    state = output / "unfinished" / checkpoint_name()
    assert state.stat().st_size < 8e6
    run(bag, output, camera, *values, at=3, go_on=True, start_s=3.0, **one)
    run(bag, output, camera, *values, go_on=True, start_s=3.0, **one)
    assert_same(tmp_path / "whole", output)
    if mode == "localization":  # the map is as it was; the trajectory is the new one
        before, after = (load_scene(tmp_path / name / "scene") for name in ("monday", "whole"))
        np.testing.assert_array_equal(before.poses.rows, after.poses.rows)
        for old, new in zip(before.submaps, after.submaps, strict=True):
            np.testing.assert_array_equal(old.cloud.xyz, new.cloud.xyz)
        lines = (output / "trajectory.tum").read_text().splitlines()
        stamps = [float(line.split()[0]) for line in lines if not line.startswith("#")]
        assert min(stamps) > before.poses.rows["stamp_ns"].max() / 1e9 - 1.1
        assert (
            len(stamps) == json.loads((output / "report.json").read_text())["counts"]["processed"]
        )


@pytest.mark.long
def test_a_saved_scene_that_has_changed_is_not_continued(often, camera, bag, tmp_path):
    one, quick = {"camera": "/camera/image_raw"}, "refinement.enabled:=false"
    run(bag, tmp_path / "monday", camera, quick, end_s=2.0, **one)
    saved = {"resume": tmp_path / "monday", "start_s": 2.0, **one}
    run(bag, tmp_path / "out", camera, quick, at=3, **saved)
    shutil.copytree(tmp_path / "monday", tmp_path / "tuesday")
    other = {**saved, "resume": tmp_path / "tuesday"}
    with pytest.raises(ReplayError, match="had --resume /"):
        run(bag, tmp_path / "out", camera, quick, go_on=True, **other)
    (tmp_path / "monday" / "scene" / JOURNAL).write_bytes(b"other")
    with pytest.raises(ReplayError, match="had --resume with contents"):
        run(bag, tmp_path / "out", camera, quick, go_on=True, start_s=2.0, **one)


@pytest.mark.long
def test_nothing_to_go_on_with_is_said_and_begins_anew(camera, bag, tmp_path, caplog):
    with caplog.at_level("INFO"):
        run(bag, tmp_path / "out", camera, go_on=True, end_s=1.0, camera="/camera/image_raw")
    assert "has no unfinished replay: it begins at the first frame" in caplog.text
    assert (tmp_path / "out" / "trajectory.tum").exists()


def test_another_run_is_not_continued(often, camera, bag, tmp_path):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw"}
    run(bag, output, camera, at=3, **one)
    before = contents_of_checkpoint(output)
    with pytest.raises(ReplayError, match=r"had parameter window.size 5, not 6: repeat it, or"):
        run(bag, output, camera, "window.size:=6", go_on=True, **one)
    with pytest.raises(ReplayError, match=r"had option end_s None, not 2\.0"):
        run(bag, output, camera, go_on=True, end_s=2.0, **one)
    assert contents_of_checkpoint(output) == before
    # Without --resume the old one is kept beside the new one.
    run(bag, output, camera, "window.size:=6", at=3, **one)
    assert contents_of_checkpoint(output) == before
    assert (output / "unfinished-2" / checkpoint_name()).exists()


def checkpoint_name():
    return "checkpoint.da3k"


def contents_of_checkpoint(output):
    return (output / "unfinished" / checkpoint_name()).read_bytes()


def test_a_damaged_checkpoint_is_named(often, camera, bag, tmp_path):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw"}
    run(bag, output, camera, at=3, **one)
    file = output / "unfinished" / checkpoint_name()
    whole = file.read_bytes()
    for at in (10, len(whole) // 3, len(whole) // 2, len(whole) - 10):
        file.write_bytes(whole[:at])
        with pytest.raises(ReplayError, match=r"checkpoint\.da3k"):
            run(bag, output, camera, go_on=True, **one)
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with contextlib.suppress(ReplayError):  # a bit that no record needs
            run(bag, output, camera, go_on=True, at=0, **one)
        assert file.exists()


def test_files_that_are_missing_are_named(often, camera, bag, tmp_path):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw"}
    run(bag, output, camera, at=3, **one)
    journal = output / "unfinished" / "scene" / JOURNAL
    journal.write_bytes(journal.read_bytes()[:200])
    with pytest.raises(ReplayError, match=f"{JOURNAL} ends at byte"):
        run(bag, output, camera, go_on=True, **one)
    (output / "unfinished" / ".output.mcap.part").unlink()
    with pytest.raises(ReplayError, match=r"output\.mcap"):
        run(bag, output, camera, go_on=True, **one)


def test_a_running_replay_is_left_alone(often, camera, bag, tmp_path):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw"}
    run(bag, output, camera, at=3, **one)
    other = subprocess.Popen(
        ["flock", str(output / "unfinished"), "sleep", "600"], stdout=subprocess.PIPE
    )
    try:
        wait_for_lock(output / "unfinished")
        with pytest.raises(ReplayError, match="another process works in"):
            run(bag, output, camera, go_on=True, at=0, **one)
    finally:
        other.kill()
        other.wait()


def wait_for_lock(folder):
    end = time.monotonic() + PATIENCE_S
    while not subprocess.run(["flock", "--nonblock", str(folder), "true"]).returncode:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_checkpoint_that_cannot_be_written_costs_nothing_else(
    camera, bag, tmp_path, monkeypatch, caplog
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "PERIOD_S", 0.0)
    monkeypatch.setattr(checkpoint, "save_state", full)
    run(bag, tmp_path / "out", camera, camera="/camera/image_raw", end_s=1.0)
    assert "no checkpoint could be saved" in caplog.text
    assert (tmp_path / "out" / "trajectory.tum").exists()


class InterruptedMove:
    """``os.replace`` and ``os.link`` of which the one at a number is interrupted."""

    def __init__(self, monkeypatch, at):
        self.at, self.calls = at, 0
        self._patch = monkeypatch

    def __enter__(self):
        self._context = self._patch.context()
        patch = self._context.__enter__()
        for module, name in ((os, "replace"), (os, "link"), (os, "rename"), (shutil, "rmtree")):
            patch.setattr(module, name, self._interrupted(getattr(module, name)))
        return self

    def __exit__(self, *error):
        self._context.__exit__(*error)

    def _interrupted(self, move):
        def call(*args, **kwargs):
            mine = not any(str(a).endswith((checkpoint_name(), ".part")) for a in args)
            self.calls += mine
            if mine and self.calls == self.at:
                raise KeyboardInterrupt
            return move(*args, **kwargs)

        return call


@pytest.mark.long
def test_an_interrupted_move_of_the_results_is_repeated(often, camera, bag, tmp_path, monkeypatch):
    one = {"camera": "/camera/image_raw", "end_s": 2.0}
    quick = "refinement.enabled:=false"
    with InterruptedMove(monkeypatch, 0) as all_moves:
        windows = run(bag, tmp_path / "whole", camera, quick, **one)
    assert all_moves.calls > 8
    for at in range(1, all_moves.calls + 1, 3):
        output = tmp_path / f"out{at}"
        with InterruptedMove(monkeypatch, at):
            run(bag, output, camera, quick, **one)
        with InterruptedMove(monkeypatch, 2):
            run(bag, output, camera, quick, go_on=True, **one)
        if (output / "unfinished").exists():
            assert run(bag, output, camera, quick, go_on=True, **one) < windows
        assert_same(tmp_path / "whole", output)
        assert not list(output.glob("unfinished*")), at


@pytest.mark.parametrize("at", long_after(1, range(1, 4)))
def test_an_interrupted_removal_of_the_work_is_repeated(
    often, camera, bag, tmp_path, monkeypatch, at
):
    """Whatever file is the first that stays."""
    one, remove, calls = {"camera": "/camera/image_raw", "end_s": 1.0}, work_folder._remove, []

    def interrupted(*args):
        unlink = os.unlink

        def counted(*names, **options):
            calls.append(names)
            if len(calls) == at:
                raise KeyboardInterrupt
            unlink(*names, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", counted)
            remove(*args)

    with monkeypatch.context() as patch:
        patch.setattr(work_folder, "_remove", interrupted)
        run(bag, tmp_path / "out", camera, **one)
    files = contents_without(tmp_path / "out", "unfinished")
    assert run(bag, tmp_path / "out", camera, go_on=True, **one) == 0
    assert contents_without(tmp_path / "out", "unfinished") == files
    assert not (tmp_path / "out" / "unfinished").exists()
    assert len(calls) == at


def contents_without(folder, name):
    found = contents(folder)
    return {path: data for path, data in found.items() if path.parts[0] != name}


def test_finished_results_of_another_run_are_not_taken(often, camera, bag, tmp_path, monkeypatch):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw", "end_s": 1.0}
    with InterruptedMove(monkeypatch, 8):
        run(bag, output, camera, **one)
    assert (output / "unfinished" / "finished.json").exists()
    with pytest.raises(ReplayError, match=r"had parameter map\.voxel_m 0\.02, not 0\.1"):
        run(bag, output, camera, "map.voxel_m:=0.1", go_on=True, **one)
    with pytest.raises(ReplayError, match=r"had option end_s 1\.0, not 2\.0"):
        run(bag, output, camera, go_on=True, **one | {"end_s": 2.0})
    assert run(bag, output, camera, go_on=True, **one) == 0


def test_an_output_in_the_recordings_folder_is_continued(often, camera, bag, tmp_path):
    copy, one = tmp_path / "bag", {"camera": "/camera/image_raw", "end_s": 1.5}
    shutil.copytree(bag, copy)
    quick = "refinement.enabled:=false"
    windows = run(copy, tmp_path / "whole", camera, quick, **one)
    run(copy, copy / "out", camera, quick, at=3, **one)
    assert run(copy, copy / "out", camera, quick, go_on=True, **one) < windows
    assert contents(tmp_path / "whole").keys() == contents(copy / "out").keys()


@pytest.mark.long
def test_results_of_an_older_replay_are_replaced_by_a_repeated_move(
    camera, bag, tmp_path, monkeypatch
):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw", "end_s": 1.0}
    run(bag, output, camera, pictures=True, **one)
    with (
        InterruptedMove(monkeypatch, 8),
        pytest.raises(KeyboardInterrupt, match="the same command with --resume moves the results"),
    ):
        replay(ReplayOptions(bag, output, **one), load_config(None, [*QUICK]), Interrupted(camera))
    summary = output / "unfinished" / "finished.json"
    files = json.loads(summary.read_text())["files"]
    assert run(bag, output, camera, go_on=True, **one) == 0  # no window is inferred again
    assert sorted(p.name for p in output.iterdir()) == sorted(files)
    assert "contact_sheet.png" not in files


def test_a_damaged_note_of_finished_results_is_named(camera, bag, tmp_path, monkeypatch):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw", "end_s": 1.0}
    run(bag, output, camera, **one)
    (output / "unfinished").mkdir()
    for text in ("{", "[]", '{"counts": {}}', '{"files": 3}'):
        (output / "unfinished" / "finished.json").write_text(text)
        with pytest.raises(ReplayError, match=r"finished\.json is damaged"):
            run(bag, output, camera, go_on=True, **one)


@pytest.mark.parametrize("name", ["scene.ply", "output.mcap", "trajectory.tum"])
def test_a_folder_in_the_place_of_a_result_is_refused_at_the_start(camera, bag, tmp_path, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(ReplayError, match=f"{name} is a folder"):
        run(bag, tmp_path / "out", camera, at=0)


def test_another_recording_of_the_same_size_is_not_continued(often, camera, bag, tmp_path):
    copy, one = tmp_path / "bag", {"camera": "/camera/image_raw"}
    shutil.copytree(bag, copy)
    run(copy, tmp_path / "out", camera, at=3, **one)
    file = next(f for f in copy.iterdir() if f.suffix in (".mcap", ".db3"))
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    with pytest.raises(ReplayError, match="had recording with contents"):
        run(copy, tmp_path / "out", camera, go_on=True, **one)


def test_a_change_at_either_end_of_a_recording_is_seen(tmp_path):
    file, output = tmp_path / "a.mcap", tmp_path / "out"
    data = bytearray(np.random.default_rng(0).bytes(3_000_000))
    file.write_bytes(data)
    before = checkpoint.fingerprint(tmp_path, output)
    for at in (0, len(data) - 1):
        data[at] ^= 1
        file.write_bytes(data)
        assert checkpoint.fingerprint(tmp_path, output) != before
        data[at] ^= 1
    file.write_bytes(data)
    output.mkdir()
    (output / "b.mcap").write_bytes(b"ours")
    assert checkpoint.fingerprint(tmp_path, output) == before
    (tmp_path / "b.mcap").write_bytes(b"theirs")
    assert checkpoint.fingerprint(tmp_path, output) != before


@pytest.mark.long
def test_a_replay_that_goes_on_from_a_scene_is_continued_without_naming_it(
    often, camera, bag, tmp_path
):
    one = {"camera": "/camera/image_raw"}
    run(bag, tmp_path / "first", camera, end_s=2.0, **one)
    begun = {"resume": tmp_path / "first" / "scene", "start_s": 2.0, **one}
    run(bag, tmp_path / "whole", camera, **begun)
    output = tmp_path / "parts"
    run(bag, output, camera, at=3, **begun)
    run(bag, output, camera, go_on=True, **{**begun, "resume": None})
    assert_same(tmp_path / "whole", output)


@pytest.mark.long
def test_a_damaged_spill_is_named(often, camera, bag, tmp_path):
    output, one = tmp_path / "out", {"camera": "/camera/image_raw"}
    run(bag, output, camera, *CASES["spilled"], at=9, **one)
    spill = output / "unfinished" / "points.spill"
    data = bytearray(spill.read_bytes())
    data[1000] ^= 1
    spill.write_bytes(data)
    with pytest.raises(ReplayError, match=r"points\.spill is damaged"):
        run(bag, output, camera, *CASES["spilled"], go_on=True, **one)


def test_a_checkpoint_is_on_the_disk_with_all_that_it_counts(
    often, camera, bag, tmp_path, monkeypatch
):
    """Else a pulled plug leaves a checkpoint of files that are shorter."""
    synced, replace = set(), os.replace
    order = []

    def fsync(file):
        synced.add(Path(os.readlink(f"/proc/self/fd/{file}")).name)

    def replaced(old, new):
        if Path(new).name == checkpoint_name():
            order.append(set(synced))
            synced.clear()
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    run(bag, tmp_path / "out", camera, *CASES["spilled"], at=4, camera="/camera/image_raw")
    wanted = {"scene.da3k", "points.spill", "trajectory.tum", ".checkpoint.da3k.part"}
    assert order
    assert all(wanted <= names for names in order)
    assert all(any(name.endswith(".mcap.part") for name in names) for names in order)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kill", long_after(1, [signal.SIGKILL, signal.SIGINT]))
def test_a_killed_replay_goes_on(bag, tmp_path, kill):
    output = tmp_path / "out"
    arguments = [
        "replay",
        str(bag),
        "--no-report",
        "--camera",
        "/camera/image_raw",
        "--end",
        "2.0",
    ]
    values = ("model:=da3-tiny", "process_res:=84", "backend:=torch", "mixed_precision:=off")
    arguments += [x for a in (*values, "window.size:=5") for x in ("-p", a)]
    program, told = tmp_path / "often.py", tmp_path / "told"
    program.write_text(OFTEN)
    told.touch()
    killed = programs.start(
        [str(program), *arguments, "--output", str(output)], os.environ, str(told), str(told)
    )
    stored = output / "unfinished" / "scene"
    end = time.monotonic() + PATIENCE_S
    while not size_of(stored / JOURNAL) > 100_000:
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(killed.pid, kill)
    killed.join(PATIENCE_S)
    errors = told.read_text()
    assert "Traceback" not in errors
    if kill == signal.SIGINT:
        assert killed.exitcode == 130
        assert "the same command with --resume goes on" in errors
        assert f"keyframes are kept: da3_ros export {stored}" in errors
    assert [p.name for p in output.iterdir()] == ["unfinished"]
    assert main(["export", str(stored), str(tmp_path / "x.ply")]) == 0
    assert main([*arguments, "--output", str(tmp_path / "whole")]) == 0
    assert main([*arguments, "--output", str(output), "--resume"]) == 0
    assert_same(tmp_path / "whole", output)
    assert json.loads((output / "measured.json").read_text())["wall_s"] > 0


def size_of(file):
    return file.stat().st_size if file.exists() else 0


def test_options_of_results_name_no_place():
    names = ReplayOptions(Path("a"), Path("b")).of_results()
    assert not {"input", "output", "plan", "resume", "go_on", "report"} & set(names)
    assert {"every", "start_s", "pictures"} <= set(names)
    assert set(names) | {"input", "output", "plan", "resume", "go_on", "report"} == {
        f.name for f in dataclasses.fields(ReplayOptions)
    }
