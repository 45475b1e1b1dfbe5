"""The accuracy tool on rendered walks written as public data sets, with the truth as network."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from support import programs
from support.sequence_writers import write_euroc, write_scannet, write_seven_scenes, write_tum

from da3_ros.cli import main
from da3_ros.config import config_from_parameters
from da3_ros.recordings import RecordingError
from da3_ros.recordings.folder import CALIBRATION_FILE
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession

pytest.importorskip("evo")
TOOL = Path(__file__).parents[2] / "bench" / "accuracy.py"
SIZE = (140, 112)
CONFIG = config_from_parameters(
    {"process_res": 140, "window.size": 5, "map.voxel_m": 0.02, "refinement.enabled": False}
)
WRITERS = {
    "tum": write_tum, "7-scenes": write_seven_scenes, "euroc": write_euroc,
    "scannet": write_scannet,
}  # fmt: skip


@pytest.fixture(scope="module")
def accuracy():
    spec = importlib.util.spec_from_file_location("accuracy", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=SIZE, walk="handheld", frames=16)
    return camera, list(camera)


@pytest.fixture(params=list(WRITERS))
def folder(request, walk, tmp_path):
    WRITERS[request.param](tmp_path / request.param, *walk)
    return tmp_path / request.param


def session_for(sequence, frames, noise=None):
    """The truth, under the stamps that the sequence gives its images."""
    stamped = [
        dataclasses.replace(frame, stamp_ns=stamp_ns)
        for frame, stamp_ns in zip(frames, sequence.images, strict=True)
    ]
    return TruthSession(stamped, noise=noise)


def test_true_depth_of_a_written_sequence_is_read_back(accuracy, folder, walk):
    sequence = accuracy.Sequence.open(folder)
    for stamp_ns, frame in zip(sequence.images, walk[1], strict=True):
        depth = sequence.depth(stamp_ns)
        if folder.name == "euroc":
            assert depth is None
        else:
            np.testing.assert_allclose(depth, frame.depth, atol=6e-4)


def test_true_depth_is_rectified_as_its_image_is(accuracy, tmp_path):
    """The rendered room seen by a lens with distortion and by one without."""
    bent, straight = (
        SyntheticCamera(seed=3, size=SIZE, frames=1, D=D) for D in ([-0.3, 0.1, 0, 0, 0], [])
    )
    write_tum(tmp_path / "tum", bent, list(bent))
    sequence = accuracy.Sequence.open(tmp_path / "tum")
    write_distortion(tmp_path / "tum", bent.calibration)
    rectified = accuracy.Sequence.open(tmp_path / "tum").depth(next(iter(sequence.images)))
    true = next(iter(straight)).depth
    error, untouched = (
        np.nanmedian(np.abs(depth - true) / true)
        for depth in (rectified, sequence.depth(next(iter(sequence.images))))
    )
    assert error < 0.005
    assert untouched > 2 * error


def write_distortion(folder, calibration):
    """Adds D to camera_info.yaml."""
    content = yaml.safe_load((folder / CALIBRATION_FILE).read_text())
    content["distortion_coefficients"]["data"] = calibration.D.tolist()
    (folder / CALIBRATION_FILE).write_text(yaml.safe_dump(content))


@pytest.mark.long
@pytest.mark.process
def test_a_bag_with_truth_becomes_a_sequence(accuracy, tmp_path):
    bag, folder = tmp_path / "bag", tmp_path / "tum"
    size = ["--width", "140", "--height", "112", "--frames", "4", "--seed", "3"]
    assert main(["synth-bag", str(bag), *size]) == 0
    done = programs.run(
        TOOL.with_name("bag_to_tum.py"), bag, folder, "--truth", "/truth/odom",
        "--depth", "/truth/depth/image",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sequence = accuracy.Sequence.open(folder)
    true = list(SyntheticCamera(3, SIZE, frames=4))
    assert len(sequence.images) == 4
    known, poses = sequence.poses.at(list(sequence.images))
    assert known.all()
    start = np.linalg.inv(poses[0])
    for stamp_ns, T, frame in zip(sequence.images, poses, true, strict=True):
        inside = np.linalg.inv(true[0].T_room_camera) @ frame.T_room_camera
        np.testing.assert_allclose(start @ T, inside, atol=1e-5)
        np.testing.assert_allclose(sequence.depth(stamp_ns), frame.depth, atol=6e-4)


@pytest.mark.long
@pytest.mark.process
def test_the_kitchen_can_be_measured(accuracy, recordings, tmp_path):
    done = programs.run(
        TOOL.with_name("bag_to_tum.py"), recordings / "redkitchen_24", tmp_path,
        "--camera", "/camera/image_raw/compressed", "--truth", "/ground_truth/odom",
        "--depth", "/camera/depth/image_raw",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sequence = accuracy.Sequence.open(tmp_path)
    assert len(sequence.images) == 24
    first, image = next(iter(sequence.images.items()))
    assert image.calibration.K[0, 0] == pytest.approx(525)
    depth = sequence.depth(first)
    assert depth.shape == (480, 640)
    assert 0.5 < np.nanmedian(depth) < 4


@pytest.mark.slow
def test_exact_windows_have_no_error_and_a_known_scale(accuracy, folder, walk):
    sequence = accuracy.Sequence.open(folder)
    session = session_for(sequence, walk[1])
    found = accuracy.measure(sequence, CONFIG, session=session)
    assert found.frames == len(walk[1])
    assert found.ate_sim3_m < 2e-3
    assert found.rpe_m < 2e-3
    assert found.rpe_deg < 0.1
    unit = float(np.exp(np.random.default_rng(0).normal(0, 0.5)))
    assert found.scale == pytest.approx(1 / unit, rel=5e-3)
    assert found.ate_se3_m > 5 * found.ate_sim3_m  # the scale is wrong, and SE(3) shows it
    if folder.name == "euroc":
        assert np.isnan(found.abs_rel)
    else:
        assert found.abs_rel < 2e-3
        assert found.delta1 == 1
        assert found.cloud_accuracy_m < 0.02
        assert found.cloud_completeness_m < 0.1


@pytest.mark.long
@pytest.mark.slow
def test_noise_is_measured(accuracy, walk, tmp_path):
    write_tum(tmp_path / "tum", *walk)
    sequence = accuracy.Sequence.open(tmp_path / "tum")
    noise = Noise(smooth=0.04, translation=0.01)
    found = accuracy.measure(sequence, CONFIG, session=session_for(sequence, walk[1], noise))
    assert found.abs_rel == pytest.approx(0.032, rel=0.3)  # mean size of normal errors
    assert 0.01 < found.ate_sim3_m < 0.1


@pytest.mark.process
def test_the_tool_prints_a_table_and_writes_json(walk, tmp_path):
    write_seven_scenes(tmp_path / "seq-01", *walk)
    done = programs.run(
        TOOL, tmp_path / "seq-01", "--every", "4", "--out", tmp_path / "out.json",
        "-p", "model:=da3-tiny", "-p", "checkpoint:=random", "-p", "process_res:=84",
        "-p", "device:=cpu", "-p", "backend:=torch",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ATE SE(3) m" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    (found,) = written["rows"]
    assert written["machine"]["cores"] >= 1
    assert written["command"].startswith("python bench/accuracy.py ")
    assert found["frames"] == 4
    assert 0 < found["ate_sim3_m"] < found["path_m"]
    assert "NaN" not in (tmp_path / "out.json").read_text()
    assert found["measured_abs_rel"] is None  # no pixel of random weights is measured


def test_a_folder_of_unknown_layout_is_named_with_known_layouts(accuracy, tmp_path):
    with pytest.raises(RecordingError, match=r"EuRoC \(ASL\), KITTI"):
        accuracy.Sequence.open(tmp_path)


def test_a_sequence_without_enough_true_poses_is_refused(accuracy, walk, tmp_path):
    write_tum(tmp_path / "tum", *walk)
    file = tmp_path / "tum" / "groundtruth.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    sequence = accuracy.Sequence.open(tmp_path / "tum")
    with pytest.raises(accuracy.TruthError, match="2 frames have a true pose"):
        accuracy.measure(sequence, CONFIG, session=session_for(sequence, walk[1]))


@pytest.mark.long
def test_depth_measured_by_images_is_compared_with_the_networks(accuracy, tmp_path):
    """With a network that errs by several percent, and the truth of a folder in TUM's layout."""
    camera = SyntheticCamera(77, (126, 98), walk="loop", frames=52, rate_hz=6)
    frames = [camera[2 * k] for k in range(14)]
    write_tum(tmp_path, camera, frames)
    noise, found = Noise(smooth=0.08, per_frame=0.02), {}
    for (setting,) in accuracy.switched("dense.enabled", ["off", "on"]):
        name, value = setting.split(":=")
        config = config_from_parameters(
            {"process_res": 126, "window.size": 5, name: value == "true"}
        )
        sequence = accuracy.Sequence.open(tmp_path)
        session = session_for(sequence, frames, noise)
        found[value] = accuracy.measure(sequence, config, session=session)
    off, on = found["false"], found["true"]
    assert off.measured_share == 0
    assert np.isnan(off.measured_abs_rel)
    assert off.keyframe_abs_rel > 0.02
    assert on.measured_share > 0.4
    assert on.keyframe_abs_rel < 0.75 * off.keyframe_abs_rel
    assert on.measured_abs_rel < on.keyframe_abs_rel
    text = accuracy.row(on).split("|")
    columns = list(accuracy.COLUMNS)
    assert float(text[1 + columns.index("measured_share")]) == pytest.approx(
        on.measured_share, abs=1e-4
    )
