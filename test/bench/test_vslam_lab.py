"""The baseline for VSLAM-LAB on a sequence in its format: rgb.csv and calibration.yaml."""

import csv

import numpy as np
import pytest
import vslam_lab
from support import programs
from support.sequence_writers import focal_and_centre, write_image

from da3_ros.recordings import open_recording
from da3_ros.synthetic import SyntheticCamera

FRAMES = 4
CAMERA = """%YAML 1.2
---
cameras:
  - {{cam_name: rgb_0,
     cam_type: rgb,
     cam_model: {model},
     distortion_type: {distortion},
     focal_length: [{0}, {1}],
     principal_point: [{2}, {3}],
     distortion_coefficients: [0.1, 0.02, 0.003, 0.004],
     image_dimension: [84, 70],
     fps: 10.0,
     T_BS: [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1] # a comment
    }}
"""


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=3, size=(84, 70), frames=FRAMES)


@pytest.fixture
def sequence(camera, tmp_path):
    """Stamps begin at 0, as VSLAM-LAB gives them to images without times."""
    folder = tmp_path / "VSLAM-LAB-Benchmark" / "ROOM" / "walk"
    rows = ["ts_rgb_0 (ns),path_rgb_0,ts_rgb_1 (ns),path_rgb_1"]
    for i, frame in enumerate(camera):
        write_image(folder / "rgb_0" / f"{i:05d}.png", frame.image)
        rows.append(f"{i * 100_000_000},rgb_0/{i:05d}.png,7,rgb_1/{i:05d}.png")
    (folder / "rgb.csv").write_text("\n".join(rows) + "\n")
    write_calibration(folder, camera)
    return folder


def write_calibration(folder, camera, model="pinhole", distortion="radtan4"):
    numbers = focal_and_centre(camera.calibration.K)
    text = CAMERA.format(*numbers, model=model, distortion=distortion)
    (folder / "calibration.yaml").write_text(text)


def converted(sequence, folder):
    files = (sequence / "rgb.csv", sequence / "calibration.yaml")
    vslam_lab.write_data_set(sequence, *files, folder)
    with open_recording(folder) as recording:
        return list(recording)


@pytest.mark.parametrize(
    ("distortion", "model"), [("radtan4", "plumb_bob"), ("equid4", "equidistant")]
)
def test_images_and_calibration_are_those_of_the_harness(
    sequence, camera, tmp_path, distortion, model
):
    write_calibration(sequence, camera, distortion=distortion)
    frames = converted(sequence, tmp_path / "images")
    for i, (frame, true) in enumerate(zip(frames, camera, strict=True)):
        np.testing.assert_array_equal(frame.image, true.image)
        assert frame.stamp_ns == 1_000_000_000 + i * 100_000_000
        np.testing.assert_allclose(frame.calibration.K, camera.calibration.K)
        assert frame.calibration.distortion_model == model
        assert frame.calibration.D.tolist() == [0.1, 0.02, 0.003, 0.004]


def test_an_unknown_camera_model_leaves_k_to_the_network(sequence, camera, tmp_path):
    write_calibration(sequence, camera, model="unknown")
    assert converted(sequence, tmp_path / "images")[0].calibration is None


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("rgb.csv", "time,file\n1,a.png\n", "lacks the columns"),
        ("rgb.csv", "ts_rgb_0 (ns),path_rgb_0\nx,a.png\n", "line 2"),
        ("rgb.csv", "", "lacks the columns"),
        ("calibration.yaml", "cameras: [{cam_name: rgb_1}]\n", "no calibration of rgb_0"),
        ("calibration.yaml", "{", "no calibration of rgb_0"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(sequence, tmp_path, file, text, line):
    (sequence / file).write_text(text)
    with pytest.raises(vslam_lab.InputError, match=line) as error:
        converted(sequence, tmp_path / "images")
    assert "\n" not in str(error.value)


def test_poses_have_the_stamps_that_the_harness_gave(tmp_path):
    lines = ["# component 1 of the scene, unconnected\n", "1.000000000 1 2 3 0 0 0 1\n",
             "1.100000000 4 5 6 0 0 1 0\n"]  # fmt: skip
    vslam_lab.write_poses(lines, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["ts (ns)", "tx (m)", "ty (m)", "tz (m)", "qx", "qy", "qz", "qw"]
    assert [row[:2] for row in rows] == [["0", "1"], ["100000000", "4"]]


@pytest.mark.process
def test_a_run_of_the_harness_gets_its_trajectory(sequence, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("{checkpoint: random, process_res: 84, window.size: 4, backend: torch, "
                        "device: cpu, refinement.enabled: false}")  # fmt: skip
    done = programs.run(
        vslam_lab.__file__, "--sequence_path", sequence, "--calibration_yaml",
        sequence / "calibration.yaml", "--rgb_csv", sequence / "rgb.csv", "--exp_folder",
        tmp_path / "exp", "--exp_it", "3", "--settings_yaml", settings, "--verbose", "1",
        "--mode", "mono", "--model", "da3-tiny",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / "exp" / "00003_KeyFrameTrajectory.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(i * 100_000_000) for i in range(FRAMES)]
