"""Replay from a recording to files, read back by others than those that wrote them."""

import dataclasses
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import trimesh
from support import programs
from support.cases import long_after
from support.file_readers import messages, pose_matrix
from support.processes import PATIENCE_S

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.export.scene_file import load_scene
from da3_ros.geometry.poses import T_ROS_MAP, invert_pose
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE = (140, 112)
FRAMES = 9
QUICK = ["-p", "model:=da3-tiny", "-p", "checkpoint:=random", "-p", "process_res:=140",
         "-p", "window.size:=4", "-p", "window.new:=2", "-p", "mixed_precision:=off",
         "-p", "backend:=torch", "--no-report"]  # fmt: skip
VALUES = [word for word in QUICK if ":=" in word]
RESULTS = {"output.mcap", "scene.glb", "scene.ply", "trajectory.tum", "report.json",
           "measured.json", "timeline.json", "scene"}  # fmt: skip


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=SIZE, walk="straight", frames=FRAMES)


@pytest.fixture(scope="module")
def bag(camera, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "room"
    write_synthetic_bag(path, camera)
    return path


@pytest.fixture(scope="module")
def true_run(camera, bag, tmp_path_factory):
    """A replay with exact windows instead of a network: the files can be held against the room."""
    output = tmp_path_factory.mktemp("replay") / "out"
    settings = load_config(None, [*VALUES, "map.voxel_m:=0.03", "refinement.enabled:=false"])
    summary = replay(ReplayOptions(bag, output), settings, TruthSession(camera))
    return output, summary


def run_cli(*arguments):
    return programs.run("-m", "da3_ros", *arguments)


def run_anew(*arguments):
    """In an interpreter of its own, with a hash seed of its own."""
    return programs.run_alone("-m", "da3_ros", *arguments)


def test_replay_writes_every_documented_file_and_no_other(true_run):
    output, summary = true_run
    assert {p.name for p in output.iterdir()} == RESULTS == set(summary.files)
    assert summary.counts["processed"] == FRAMES


@pytest.mark.slow
def test_every_frame_has_every_topic_with_its_exact_stamp(true_run, camera):
    output, _ = true_run
    stamps = [f.stamp_ns for f in camera]
    for topic in ("depth/image", "depth/camera_info", "rgb/image", "depth/image_color",
                  "confidence/image", "confidence/image_color", "points", "pose",
                  "odom"):  # fmt: skip
        found = [m.header.stamp for m in messages(output, f"/da3/{topic}")]
        assert [s.sec * 10**9 + s.nanosec for s in found] == stamps, topic
    windows = messages(output, "/da3/window")
    assert sum(w.new_frames for w in windows) == FRAMES
    assert len(windows[-1].frames) == 4
    assert windows[-1].new_frames == FRAMES % 2
    assert windows[-1].frames[-1].header.frame_id == "camera_optical"
    assert np.isnan(windows[0].scale)


def cloud_points(message):
    data = np.frombuffer(bytes(message.data), "<f4").reshape(message.height, message.width, 4)
    return data[..., :3]


@pytest.mark.slow
def test_cloud_is_depth_by_camera_info_and_depth_is_the_rooms(true_run, camera):
    output, _ = true_run
    depths = messages(output, "/da3/depth/image")
    infos = messages(output, "/da3/depth/camera_info")
    clouds = messages(output, "/da3/points")
    unit = None
    for depth, info, cloud, frame in zip(depths, infos, clouds, camera, strict=True):
        assert (info.width, info.height) == (depth.width, depth.height) == SIZE
        assert depth.encoding == "32FC1"
        z = np.frombuffer(bytes(depth.data), "<f4").reshape(depth.height, depth.width)
        points = cloud_points(cloud)
        np.testing.assert_array_equal(np.isnan(points[..., 2]), ~np.isfinite(z))
        P = np.asarray(info.p).reshape(3, 4)
        known = np.isfinite(z)
        pixels = points[known] @ P[:, :3].T
        rows, columns = np.nonzero(known)
        # ROS pixel rule: the point of pixel (row, column) projects to exactly (column, row).
        np.testing.assert_allclose(pixels[:, 0] / pixels[:, 2], columns, atol=2e-3)
        np.testing.assert_allclose(pixels[:, 1] / pixels[:, 2], rows, atol=2e-3)
        unit = unit or float(np.median(z[known] / frame.depth[known]))
        np.testing.assert_allclose(z[known] / unit, frame.depth[known], rtol=3e-3)


def test_poses_trajectory_and_tf_agree_with_the_walk(true_run, camera):
    output, _ = true_run
    frames = list(camera)
    poses = [pose_matrix(m.pose.pose) for m in messages(output, "/da3/pose")]
    lines = (output / "trajectory.tum").read_text().splitlines()
    transforms = messages(output, "/tf")
    true = [T_ROS_MAP @ invert_pose(frames[0].T_room_camera) @ f.T_room_camera for f in frames]
    unit = np.linalg.norm(poses[-1][:3, 3]) / np.linalg.norm(true[-1][:3, 3])
    for T, line, tf, expected, frame in zip(poses, lines, transforms, true, frames, strict=True):
        np.testing.assert_allclose(T[:3, :3], expected[:3, :3], atol=1e-3)
        np.testing.assert_allclose(T[:3, 3] / unit, expected[:3, 3], atol=5e-3)
        stamp, *numbers = line.split()
        assert stamp.replace(".", "") == str(frame.stamp_ns)
        np.testing.assert_allclose([float(v) for v in numbers[:3]], T[:3, 3], atol=1e-8)
        by_child = {t.child_frame_id: t for t in tf.transforms}
        move = by_child["camera_optical"].transform.translation
        np.testing.assert_allclose([move.x, move.y, move.z], T[:3, 3], atol=1e-9)
        assert by_child["odom"].header.frame_id == "map"


def test_scene_files_hold_the_same_points_in_their_own_axes(true_run):
    output, _ = true_run
    report = json.loads((output / "report.json").read_text())
    ply = trimesh.load(output / "scene.ply")
    glb = trimesh.load(output / "scene.glb").geometry["points"]
    assert len(ply.vertices) == len(glb.vertices) == report["map_points"]
    x, y, z = np.asarray(ply.vertices).T
    np.testing.assert_allclose(np.asarray(glb.vertices), np.stack((-y, z, -x), axis=1), atol=1e-5)


def test_unknown_scale_is_in_the_report(true_run):
    report = json.loads((true_run[0] / "report.json").read_text())
    assert report["metric"] is False
    assert report["license"] == "Apache-2.0"
    assert report["parameters"]["window.new"] == 2
    assert report["refinement"]["focal_source"] == {"": "camera_info"}
    assert report["loops"].keys() == {"looked_at", "verified", "closed", "joins_undone"}
    assert report["loops"]["looked_at"] >= report["loops"]["verified"] >= 0


def same_bytes(a, b, but):
    """Two outputs are alike, file by file."""
    names = [{p.relative_to(x) for p in x.rglob("*") if p.is_file()} for x in (a, b)]
    assert names[0] == names[1]
    assert Path("scene/scene.da3k") in names[0]
    for name in names[0] - {Path(name) for name in but}:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.mark.long
@pytest.mark.process
def test_two_runs_give_the_same_bytes_but_for_the_measurements(bag, tmp_path):
    with_report = [word for word in QUICK if word != "--no-report"]
    for name in ("a", "b"):
        done = run_anew("replay", bag, "--output", tmp_path / name, "--pictures", *with_report)
        assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    more = {"cloud.png", "contact_sheet.png", "tracks.npz", "report.html"}
    assert set(names) == RESULTS | more
    same_bytes(tmp_path / "a", tmp_path / "b", {"measured.json", "report.html"})
    pages = [(tmp_path / name / "report.html").read_text() for name in ("a", "b")]
    first, second = (re.sub(r'<section id="cost">.*?</section>', "", p, flags=re.S) for p in pages)
    assert first == second
    assert len(first) < len(pages[0])


@pytest.mark.long
@pytest.mark.process
def test_a_plan_is_run_again_whatever_memory_there_is(bag, tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    short = ("--end", "0.45", *QUICK)
    assert run_cli("replay", bag, "--output", first, *short).returncode == 0
    small = ("-p", "memory_budget_gb:=0.01")
    refused = run_cli("replay", bag, "--output", again, *short, *small)
    assert refused.returncode == 1
    assert "raise memory_budget_gb" in refused.stderr
    plan = ("--plan", first / "report.json")
    fast = ("-p", "refinement.max_ms:=1.0")  # would choose the least limits
    done = run_cli("replay", bag, "--output", again, *short, *small, *fast, *plan)
    assert done.returncode == 0, done.stderr
    same_bytes(first, again, {"measured.json", "report.json"})
    plans = [json.loads((x / "report.json").read_text())["plan"] for x in (first, again)]
    assert plans[0] == plans[1]
    assert plans[0]["refinement"] == dataclasses.asdict(SolverLimits.full(400))
    assert plans[0]["refinement"] == {
        "features": 400, "pixels": 800_000, "tracks": 300, "steps": 8
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.process
def test_a_plan_brings_its_method_of_resizing(bag, tmp_path):
    """Also for frames that are read, and prepared by the parameters, before the plan is used."""
    first, again = tmp_path / "first", tmp_path / "again"
    short = ("--end", "0.35", *QUICK, "-p", "depth.size:=input")
    lower = ("-p", "process_res:=84", "-p", "process_res_method:=lower_bound_resize")
    done = run_cli("replay", bag, "--output", first, *short, *lower)
    assert done.returncode == 0, done.stderr
    plan = json.loads((first / "report.json").read_text())["plan"]
    assert plan["process_res_method"] == "lower_bound_resize"
    assert (plan["width"], plan["height"]) == (112, 84)
    done = run_cli(
        "replay", bag, "--output", again, *short, "--plan", first / "report.json"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    same_bytes(first, again, {"measured.json", "report.json"})


@pytest.mark.process
def test_what_is_no_plan_is_refused_in_one_line(bag, tmp_path):
    wrong = tmp_path / "plan.json"
    for text in ("{}", "[]", '{"plan": {"refinement": {"features": 1}}}'):
        wrong.write_text(text)
        done = run_cli("replay", bag, "--output", tmp_path / "out", *QUICK, "--plan", wrong)
        assert done.returncode == 1
        assert "not a plan" in done.stderr.splitlines()[-1]


@pytest.mark.process
def test_start_end_and_every_choose_frames(bag, tmp_path, camera):
    done = run_cli(
        "replay", bag, "--output", tmp_path, "--start", "0.2", "--end", "0.7", "--every", "2",
        *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stamps = [line.split()[0] for line in (tmp_path / "trajectory.tum").read_text().splitlines()]
    expected = [f.stamp_ns for f in camera][2:8:2]
    assert [int(s.replace(".", "")) for s in stamps] == expected


@pytest.mark.process
def test_a_missing_topic_lists_what_there_is_and_writes_nothing(bag, tmp_path):
    output = tmp_path / "out"
    done = run_cli("replay", bag, "--output", output, "--camera", "/nowhere", *QUICK)
    assert done.returncode == 1
    assert "/camera/image_raw" in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()


def mcap_file(bag):
    (file,) = bag.glob("*.mcap")
    return file


@pytest.mark.process
def test_readable_part_of_a_truncated_recording_is_processed(bag, tmp_path):
    whole = mcap_file(bag).read_bytes()
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(whole[: int(len(whole) * 0.6)])
    done = run_cli("replay", cut, "--output", tmp_path / "out", *QUICK)
    assert done.returncode == 3, done.stderr
    lines = (tmp_path / "out" / "trajectory.tum").read_text().splitlines()
    assert 0 < len(lines) < FRAMES
    assert "damaged" in done.stdout
    assert json.loads((tmp_path / "out" / "report.json").read_text())["stopped_at"]


@pytest.mark.long
@pytest.mark.process
def test_a_folder_with_broken_images_is_damaged_and_names_them(camera, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for i, frame in enumerate(camera):
        cv2.imwrite(str(images / f"{i}.png"), frame.image)
    (images / "3.png").write_bytes((images / "3.png").read_bytes()[:200])
    (images / "5.png").write_bytes(b"")
    done = run_cli("replay", images, "--output", tmp_path / "out", *QUICK)
    assert done.returncode == 3, done.stderr
    assert "the recording is damaged: 2 images cannot be read: 3.png: " in done.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [line.partition(":")[0] for line in report["bad_images"]] == ["3.png", "5.png"]
    assert report["stopped_at"] is None
    assert report["counts"]["processed"] == FRAMES - 2


@pytest.mark.process
def test_a_truncated_database_is_one_error_and_no_file(camera, tmp_path):
    write_synthetic_bag(tmp_path / "db", camera, storage="sqlite3")
    (file,) = (tmp_path / "db").glob("*.db3")
    file.write_bytes(file.read_bytes()[:20000])
    output = tmp_path / "out"
    done = run_cli("replay", tmp_path / "db", "--output", output, *QUICK)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert not output.exists()


@pytest.mark.process
@pytest.mark.parametrize("kill", long_after(1, [signal.SIGTERM, signal.SIGINT]))
def test_an_interrupted_replay_leaves_nothing_and_no_traceback(bag, tmp_path, kill):
    output = tmp_path / "out"
    told = tmp_path / "told"
    told.touch()
    process = programs.start(
        ["-m", "da3_ros", "replay", str(bag), "--output", str(output),
         "-p", "model:=da3-small", "-p", "checkpoint:=random"],
        os.environ, str(told), str(told),
    )  # fmt: skip
    end = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob("out/unfinished/*")):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, kill)
    process.join(PATIENCE_S)
    errors = told.read_text()
    assert process.exitcode == 130
    assert "Traceback" not in errors
    if "keyframes are kept" in errors:  # it was quick
        assert [p.name for p in output.iterdir()] == ["unfinished"]
    else:
        assert "nothing was written" in errors
        assert not output.exists()


@pytest.mark.process
def test_results_of_an_earlier_run_survive_a_failed_one(bag, tmp_path):
    (tmp_path / "scene.glb").write_text("earlier")
    done = run_cli("replay", bag, "--output", tmp_path, "-p", "checkpoint:=/no/such/folder")
    assert done.returncode == 1
    assert "/no/such/folder lacks" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["scene.glb"]
    assert (tmp_path / "scene.glb").read_text() == "earlier"


@pytest.mark.long
@pytest.mark.process
def test_a_mask_keeps_pixels_out_of_all_files(bag, tmp_path):
    drawn = np.full(SIZE[::-1], 255, np.uint8)
    drawn[:80] = 0
    cv2.imwrite(str(tmp_path / "mask.png"), drawn)
    output, mask = tmp_path / "out", f"mask:={tmp_path}/mask.png"
    done = run_cli("replay", bag, "--output", output, "--every", "3", *QUICK, "-p", mask)
    assert done.returncode == 0, done.stderr
    depths = messages(output, "/da3/depth/image")
    clouds = messages(output, "/da3/points")
    assert len(depths) == len(clouds) == 3
    for depth, cloud in zip(depths, clouds, strict=True):
        metres = np.frombuffer(bytes(depth.data), "<f4").reshape(SIZE[::-1])
        assert np.isnan(metres[:80]).all()
        assert not np.isnan(metres[80:]).all()
        assert np.isnan(cloud_points(cloud)[:80]).all()


def test_a_replay_without_its_mask_ends_in_one_line(bag, tmp_path, capsys):
    mask = f"mask:={tmp_path}/none.png"
    code = main(["replay", str(bag), "--output", str(tmp_path / "out"), *QUICK, "-p", mask])
    assert code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"da3_ros: mask is '{tmp_path}/none.png': No such file")
    assert not (tmp_path / "out").exists()


def test_a_wrong_parameter_is_a_usage_error_that_names_it(bag, tmp_path, capsys):
    code = main(["replay", str(bag), "--output", str(tmp_path / "out"), "-p", "window.sise:=2"])
    assert code == 2
    said = capsys.readouterr().err
    assert "window.sise' (did you mean window.size?)" in said
    assert said.count("\n") == 1


def test_output_that_is_a_file_is_refused(bag, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ReplayError, match="is a file"):
        replay(ReplayOptions(bag, tmp_path / "out"), load_config(None, VALUES))


@pytest.mark.process
def test_help_lists_every_parameter():
    done = run_cli("replay", "--help")
    for name in ("window.size", "checkpoint", "map.voxel_m", "input_rectified"):
        assert name in done.stdout


@pytest.mark.long
@pytest.mark.process
def test_a_real_recording_goes_through_to_exported_files(recordings, tmp_path):
    done = run_cli("replay", recordings / "redkitchen_raw_4", "--output", tmp_path, *QUICK)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "trajectory.tum").read_text().splitlines()) == 4
    assert len(trimesh.load(tmp_path / "scene.ply").vertices) > 100


@pytest.mark.process
def test_a_folder_of_images_goes_through(camera, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for i, frame in enumerate(camera):
        cv2.imwrite(str(folder / f"frame_{i}.png"), frame.image[..., ::-1])
    done = run_cli("replay", folder, "--output", tmp_path / "out", *QUICK)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out" / "trajectory.tum").read_text().splitlines()) == FRAMES
    shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.process
def test_peak_memory_does_not_grow_with_the_recording(tmp_path):
    """Five times the frames: what is held at the end stays within a few frames' worth."""
    film = list(SyntheticCamera(seed=2, size=(640, 480), walk="straight", frames=4))
    peaks = []
    for frames in (12, 60):
        folder = tmp_path / str(frames)
        folder.mkdir()
        for n in range(frames):  # forward and backward
            cv2.imwrite(str(folder / f"{n:04d}.png"), film[min(n % 6, 6 - n % 6)].image)
        done = run_cli(
            "replay", folder, "--output", tmp_path / f"out{frames}", *QUICK,
            "-p", "process_res:=56",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        measured = json.loads((tmp_path / f"out{frames}" / "measured.json").read_text())
        peaks.append(measured["peak_rss_mb"])
    one = film[0].image.nbytes / 2**20
    assert peaks[1] < peaks[0] + 20 * one


@pytest.mark.slow
def test_a_recording_in_two_parts_is_one_scene(camera, bag, tmp_path):
    settings = load_config(None, [*VALUES, "map.voxel_m:=0.03", "refinement.enabled:=false"])
    first = ReplayOptions(bag, tmp_path / "one", end_s=0.45)
    replay(first, settings, TruthSession(camera))
    second = ReplayOptions(bag, tmp_path / "two", start_s=0.45, resume=tmp_path / "one")
    replay(second, settings, TruthSession(camera, seed=1))
    lines = [(tmp_path / x / "trajectory.tum").read_text().splitlines() for x in ("one", "two")]
    assert len(lines[1]) == FRAMES + 1
    assert lines[1][len(lines[0])] == "# component 1 of the scene, unconnected"
    # As published, and as later windows and the scene file have it.
    before, after = (
        [line.split() for line in some] for some in (lines[0], lines[1][: len(lines[0])])
    )
    assert [line[0] for line in before] == [line[0] for line in after]
    np.testing.assert_allclose(
        *(np.array(some, float)[:, 1:] for some in (before, after)), atol=1e-6
    )
    scenes = [load_scene(tmp_path / x / "scene") for x in ("one", "two")]
    assert {s.chain for s in scenes[1].submaps} == {0, 1}
    points = [sum(len(s.cloud) for s in scene.submaps) for scene in scenes]
    assert points[1] > points[0] > 1000
    assert json.loads((tmp_path / "two" / "report.json").read_text())["resumed"] == "one"
    # On in place: the old scene is read whole before the new one takes its place.
    third = ReplayOptions(bag, tmp_path / "two", start_s=0.65, resume=tmp_path / "two")
    replay(third, settings, TruthSession(camera))
    assert len(load_scene(tmp_path / "two" / "scene").submaps) == 3


@pytest.mark.process
def test_a_scene_that_cannot_be_resumed_is_reported_and_kept(bag, tmp_path):
    done = run_cli(
        "replay", bag, "--output", tmp_path / "out", "--resume", tmp_path / "none", *QUICK
    )
    assert done.returncode == 1
    assert "scene.da3k is missing" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    (tmp_path / "out" / "scene").mkdir(parents=True)
    (tmp_path / "out" / "scene" / "thesis.txt").write_text("mine")
    done = run_cli("replay", bag, "--output", tmp_path / "out", *QUICK)
    assert done.returncode == 1
    assert "exists and is not a saved scene" in done.stderr.splitlines()[-1]
    assert [p.name for p in (tmp_path / "out").rglob("*")] == ["scene", "thesis.txt"]
