"""Poses of a run held against true ones: which camera's, of which recording, and if none fit."""

import json

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.sequence_writers import write_euroc, write_seven_scenes

from da3_ros.cli import main
from da3_ros.export.tum import tum_line
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.recordings.true_poses import TruePoses
from da3_ros.reporting import truth as module
from da3_ros.reporting.advice import Evidence, advices_of
from da3_ros.reporting.figures import Figures
from da3_ros.reporting.gathered import Gathered, ShownScene, gathered
from da3_ros.reporting.run_files import KeptScene, Run
from da3_ros.reporting.sections_of_scene import scene_sections
from da3_ros.reporting.timeline import ROW
from da3_ros.reporting.truth import FILE, MAP, compared, read_trajectory
from da3_ros.synthetic import SyntheticCamera

S = 1_000_000_000
COUNT = 12
STAMPS = S + np.arange(COUNT) * S // 10


def poses(seed=0):
    """Poses of a curved path."""
    rng = np.random.default_rng(seed)
    T = np.tile(np.eye(4), (COUNT, 1, 1))
    T[:, :3, 3] = np.cumsum(rng.uniform(0.1, 0.3, (COUNT, 3)), axis=0)
    return T


def kept_of(stamps, T, components=1, **more):
    table = Poses.of([
        Pose(int(stamp), pose, np.eye(3), (2, 2), keyframe=True)
        for stamp, pose in zip(stamps, T, strict=True)
    ])  # fmt: skip
    table.rows["submap"] = np.repeat(np.arange(components), len(stamps) // components)
    scene = Scene((), table, component_of={id: id for id in range(components)})
    return KeptScene("", scene, metric=True, **more)


def timeline(stamps):
    rows = np.zeros(len(stamps), ROW)
    rows["first_ns"] = rows["last_ns"] = stamps
    return rows


def test_stamps_that_were_rounded_are_met():
    """As other programs write them: with the digits of a float."""
    found = compared(kept_of(STAMPS, poses()), TruePoses(STAMPS + 400, poses()))
    assert found.errors[MAP].poses == COUNT
    assert found.unmet == ""


def test_true_poses_of_another_clock_say_both_times_and_a_remedy():
    truth = TruePoses(STAMPS + 10**12, poses(), source="poses.tum")
    found = compared(kept_of(STAMPS, poses()), truth)
    assert not found.errors
    assert found.unmet == (
        "Poses of the map, with all corrections: 0 poses have a true one: at least 3 are needed. "
        "Stamps of the poses: 1.000 to 2.100 s; of 12 true poses (poses.tum): 1001.000 to "
        "1002.100 s. Give the true poses of this recording, in the clock of its stamps."
    )


def test_a_scene_whose_poses_are_all_unknown_is_said():
    scene = Scene((), kept_of(STAMPS, poses()).scene.poses, component_of={0: 3})
    found = compared(KeptScene("", scene, metric=True), TruePoses(STAMPS, poses()))
    assert found.unmet.endswith(
        "0 poses have a true one: at least 3 are needed. There are no poses."
    )


def test_of_a_resumed_scene_only_this_recording_is_compared():
    """Stamps of recordings without times begin anew, so that both have the same."""
    stamps, T = np.tile(STAMPS, 2), np.concatenate((poses(seed=5), poses()))
    T[:COUNT, 0, 3] += 5
    kept = kept_of(stamps, T, timeline=timeline(STAMPS))
    assert compared(kept, TruePoses(STAMPS, poses())).errors[MAP].sim3.ate_m > 0.5
    found = compared(kept, TruePoses(STAMPS, poses()), resumed=True).errors[MAP]
    assert found.poses == COUNT
    assert found.sim3.ate_m == pytest.approx(0, abs=1e-9)


def test_of_a_resumed_scene_whose_new_component_is_not_placed_nothing_is_compared():
    kept = kept_of(np.tile(STAMPS, 2), np.tile(poses(), (2, 1, 1)), 2, timeline=timeline(STAMPS))
    found = compared(kept, TruePoses(STAMPS, poses()), resumed=True)
    assert not found.errors
    assert found.problems[-1] == "No pose of the new recording is known in the map."


def test_of_a_resumed_scene_with_times_the_earlier_recording_is_left_out():
    stamps = np.concatenate((STAMPS - S, STAMPS + S))
    kept = kept_of(stamps, np.concatenate((poses(), poses())), timeline=timeline(STAMPS + S))
    truth = TruePoses(stamps, np.concatenate((poses(), poses())))
    assert compared(kept, truth, resumed=True).errors[MAP].poses == COUNT


def test_poses_of_components_without_a_known_pose_are_left_out():
    T = poses()
    T[COUNT // 2 :, 0, 3] += 9
    kept = kept_of(STAMPS, T, components=2)
    found = compared(kept, TruePoses(STAMPS, poses()))
    assert found.errors[MAP].poses == COUNT // 2
    assert found.errors[MAP].sim3.ate_m == pytest.approx(0, abs=1e-9)
    assert found.problems == ["6 poses of components without a known pose are left out."]


def test_of_a_trajectory_file_the_first_component_is_compared(tmp_path):
    file = tmp_path / "trajectory.tum"
    lines = [tum_line(int(s), T) for s, T in zip(STAMPS, poses(), strict=True)]
    file.write_text("".join([*lines[:5], "# component 1\n", *lines[5:]]))
    stamps, found = read_trajectory(file)
    np.testing.assert_array_equal(stamps, STAMPS[:5])
    np.testing.assert_allclose(found, poses()[:5], atol=1e-6)


def test_the_true_path_is_drawn_in_the_map_within_the_time_of_the_poses():
    away = Similarity(2.0, Rotation.from_rotvec([0, 0.4, 1]).as_matrix(), np.array([5.0, 0, 1]))
    before = STAMPS[0] + np.arange(-5, 0) * S // 10
    T = np.array([away.pose(one) for one in np.concatenate((poses()[:5], poses()))])
    found = compared(kept_of(STAMPS, poses()), TruePoses(np.concatenate((before, STAMPS)), T))
    (line,) = found.true_lines(int(STAMPS[0]) - S)
    assert line.points.shape == (COUNT, 3)
    assert line.seconds[0] == pytest.approx(1)
    fit = found.errors[MAP].se3.T_truth_map
    np.testing.assert_allclose(fit.points(line.points), T[5:, :3, 3], atol=1e-9)


def test_a_trajectory_file_that_is_too_large_is_named(tmp_path, monkeypatch):
    file = tmp_path / "trajectory.tum"
    file.write_text("".join(tum_line(int(s), T) for s, T in zip(STAMPS, poses(), strict=True)))
    kept, truth = kept_of(STAMPS, poses(), trajectory=file), TruePoses(STAMPS, poses())
    assert compared(kept, truth).errors[FILE].poses == COUNT
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 9)
    found = compared(kept, truth)
    assert FILE not in found.errors
    assert found.problems == ["trajectory.tum is not compared: it is larger than 0 MiB."]


@pytest.fixture(scope="module")
def two_cameras(tmp_path_factory):
    """A data set of two cameras."""
    folder = tmp_path_factory.mktemp("truth")
    camera = SyntheticCamera(seed=3, size=(56, 42), frames=COUNT)
    frames = list(camera)
    write_euroc(folder / "euroc", camera, frames)
    write_euroc(folder / "euroc", camera, frames, name="cam1")
    return folder / "euroc"


def replayed(folder, report):
    """The output of a replay that has nothing but its report."""
    (folder / "out").mkdir()
    (folder / "out" / "report.json").write_text(json.dumps(report))
    return folder / "out"


@pytest.mark.parametrize("rate_hz", [20.0, None])
def test_the_truth_has_the_rate_of_the_replay_and_is_of_the_first_scene(tmp_path, rate_hz):
    camera = SyntheticCamera(seed=3, size=(56, 42), frames=4)
    write_seven_scenes(tmp_path / "seq-01", camera, list(camera))
    report = {"camera": "color", "options": {"rate_hz": rate_hz}, "scenes": ["", "_right"]}
    out = replayed(tmp_path, report)
    for name in ("timeline.json", "timeline_right.json"):
        (out / name).write_text("{}")
    first, second = (one.compared for one in gathered(out, tmp_path / "seq-01").scenes)
    assert np.diff(first.truth.stamps_ns).tolist() == [S // (rate_hz or 10)] * 3
    assert second is None


@pytest.mark.parametrize(
    ("recorded", "more", "camera"),
    [
        ("cam1, cam0", [], "cam1"),  # a rig, whose first camera is cam1
        ("/cam1/image_raw", [], "cam1"),  # a bag of the data set
        ("cam0", [], "cam0"),
        ("/camera/image_raw", ["--truth-camera", "cam1"], "cam1"),
    ],
)
def test_the_truth_is_that_of_the_recorded_camera(two_cameras, tmp_path, recorded, more, camera):
    out = replayed(tmp_path, {"camera": recorded, "counts": {"processed": 3}})
    (out / "timeline.json").write_text("{}")  # of a scene without poses
    words = ["report", str(out), "--truth", str(two_cameras), *more]
    assert main(words) == 3
    page = (out / "report.html").read_text()
    assert f"True poses: EuRoC (ASL) in euroc, camera {camera}." in page


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        ([], 1, "give --truth-camera cam0 | cam1"),
        (["--truth-camera", "left"], 1, "no camera left"),
        (["--truth-camera", "cam0"], 3, "There are no poses to compare"),
    ],
)
def test_what_cannot_be_compared_is_one_line(two_cameras, tmp_path, capsys, more, code, why):
    out = replayed(tmp_path, {"camera": "/camera/image_raw", "counts": {"processed": 3}})
    words = ["report", str(out), "--truth", str(two_cameras), *more]
    assert main(words) == code
    said = capsys.readouterr()
    assert why in said.err
    assert said.err.count("\n") == 1
    assert (out / "report.html").exists() == (code == 3)


def test_of_a_camera_that_stands_neither_drift_nor_scale_is_said():
    """A page whose truth does not move."""
    standing = np.tile(np.eye(4), (COUNT, 1, 1))
    found = compared(kept_of(STAMPS, poses()), TruePoses(STAMPS, standing))
    one = ShownScene(kept_of(STAMPS, poses()), [], [], found, int(STAMPS[0]), 1)
    run = Run("run", Figures({}), Figures({}), [one.kept])
    evidence = Evidence(run, [])
    page = Gathered(run, [one], evidence, advices_of(evidence), draws=False)
    (content,) = [list(c) for name, _, c in scene_sections(page, one) if name == "truth"]
    said = " ".join(content)
    assert "The true camera stands: neither drift nor the scale of the fit is known." in said
    assert "drift over" not in said
    assert "scale of the fit<" not in said
    assert "on a line" not in said
