"""Rendered walks written as public data sets, and read as recordings with their true poses."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from support.sequence_writers import (
    KITTI_OFFSET_M,
    focal_and_centre,
    write_calibration,
    write_colmap,
    write_euroc,
    write_image,
    write_kitti,
    write_scannet,
    write_seven_scenes,
    write_tum,
)
from support.toys import Diary

from da3_ros.recordings import RecordingError, open_recording
from da3_ros.recordings.base import FIRST_STAMP_NS
from da3_ros.recordings.layouts import LAYOUTS, layout_of
from da3_ros.recordings.search import find_recordings, is_recording
from da3_ros.recordings.true_poses import read_true_poses
from da3_ros.synthetic import SyntheticCamera

SIZE, FRAMES, S = (56, 42), 5, 1_000_000_000
WRITERS = {
    "tum": write_tum,
    "euroc": write_euroc,
    "kitti": write_kitti,
    "7-scenes": write_seven_scenes,
    "scannet": write_scannet,
    "colmap": write_colmap,
}
OWN_STAMPS = ("tum", "euroc")  # those of the frames; the others have numbers or times from 0 on


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=SIZE, walk="handheld", frames=FRAMES)
    return camera, list(camera)


def written(root, kind, walk):
    """The folder of a data set, below ``root``."""
    folder = root / "sequences" / "00"
    folder.mkdir(parents=True)
    WRITERS[kind](folder, *walk)
    return folder


@pytest.fixture(scope="module")
def kept(walk, tmp_path_factory):
    """A data set of each layout, which no test changes."""
    return {kind: written(tmp_path_factory.mktemp(kind), kind, walk) for kind in WRITERS}


def opened(folder, camera=None, **options):
    with open_recording(folder, camera, **options) as recording:
        return recording, list(recording)


def refused(folder, *args, **options):
    """The line that says why a folder cannot be used."""
    with pytest.raises(RecordingError) as error:
        opened(folder, *args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def relative(poses):
    return [np.linalg.inv(poses[0]) @ T for T in poses]


# What was written is read


def test_every_layout_has_a_writer():
    assert set(WRITERS) == set(LAYOUTS)


@pytest.mark.parametrize("kind", WRITERS)
def test_images_stamps_and_calibration_are_those_written(kept, walk, kind):
    recording, frames = opened(kept[kind])
    camera, true = walk
    assert f"{LAYOUTS[kind].title}; {FRAMES} images of " in recording.describe()
    assert recording.length == FRAMES
    assert recording.bad_images == []
    assert recording.stopped_at is None
    first = true[0].stamp_ns - (0 if kind in OWN_STAMPS else FIRST_STAMP_NS)
    for frame, truth in zip(frames, true, strict=True):
        np.testing.assert_array_equal(frame.image, truth.image)
        assert frame.stamp_ns == truth.stamp_ns - (0 if kind in OWN_STAMPS else first)
        assert frame.frame_id == "camera_optical"
        assert frame.rectified == (kind == "kitti")
        np.testing.assert_allclose(frame.calibration.K, camera.calibration.K, atol=1e-6)
        assert (frame.calibration.width, frame.calibration.height) == SIZE
        assert not frame.calibration.D.any()


@pytest.mark.parametrize("kind", WRITERS)
def test_true_poses_are_those_of_the_camera_at_the_frames(kept, walk, kind):
    truth = read_true_poses(kept[kind])
    _, frames = opened(kept[kind])
    _, found = truth.at([frame.stamp_ns for frame in frames])
    true = [frame.T_room_camera for frame in walk[1]]
    np.testing.assert_allclose(relative(found), relative(true), atol=1e-5)
    if kind == "kitti":  # in the frame of the first camera 0
        np.testing.assert_allclose(found[0][:3, 3], KITTI_OFFSET_M, atol=1e-6)
    else:
        np.testing.assert_allclose(found, true, atol=1e-5)
    assert truth.metric == (kind != "colmap")
    (between,), _ = truth.at([(frames[0].stamp_ns + frames[1].stamp_ns) // 2])
    assert between == (not truth.per_image)


@pytest.mark.parametrize("kind", WRITERS)
def test_nothing_of_the_truth_is_in_a_frame(kept, kind):
    _, frames = opened(kept[kind])
    assert all(f.T_prior_camera is f.T_rig_camera is f.slam is f.prior_variance is None
               for f in frames)  # fmt: skip


@pytest.mark.parametrize("kind", WRITERS)
def test_a_selection_counts_as_in_other_recordings(kept, kind):
    recording, frames = opened(kept[kind], start_s=0.1, end_s=0.3, every=2)
    stamps = [frame.stamp_ns for frame in opened(kept[kind])[1]]
    assert [frame.stamp_ns for frame in frames] == stamps[1:4:2]
    assert recording.length == len(frames) == 2


@pytest.mark.parametrize("kind", ["7-scenes", "scannet", "colmap"])
def test_the_rate_gives_stamps_and_those_of_the_truth(kept, kind):
    _, frames = opened(kept[kind], rate_hz=20)
    assert [f.stamp_ns for f in frames] == [S + i * S // 20 for i in range(FRAMES)]
    truth = read_true_poses(kept[kind], rate_hz=20)
    assert truth.stamps_ns.tolist() == [f.stamp_ns for f in frames]
    assert not truth.at([frames[0].stamp_ns + S // 40])[0].any()  # of images: none between them
    assert "rate is 0 Hz" in refused(kept[kind], rate_hz=0)
    assert "after the year 2038" in refused(kept[kind], rate_hz=1e-10)


def test_binary_models_of_colmap_equal_those_in_text(kept):
    texts, binaries = (opened(f)[1] for f in (kept["colmap"], kept["colmap"] / "binary"))
    for one, other in zip(texts, binaries, strict=True):
        np.testing.assert_array_equal(one.image, other.image)
        np.testing.assert_array_equal(one.calibration.K, other.calibration.K)
    poses = [
        read_true_poses(f).T_truth_camera for f in (kept["colmap"], kept["colmap"] / "binary")
    ]
    np.testing.assert_array_equal(*poses)


def test_images_of_colmap_may_lack_the_lines_of_their_points(tmp_path, walk):
    write_colmap(tmp_path, *walk)
    (file,) = tmp_path.glob("sparse/0/images.txt")
    lines = file.read_text().splitlines()
    true = read_true_poses(tmp_path).T_truth_camera
    for kept_lines in (
        [one for one in lines if one.endswith("png")],  # none has
        [one for i, one in enumerate(lines) if i != 2],  # all but one
    ):
        file.write_text("\n".join(kept_lines) + "\n")
        recording, frames = opened(tmp_path)
        assert len(frames) == FRAMES
        assert recording.counters["bad_images"] == 0
        np.testing.assert_array_equal(read_true_poses(tmp_path).T_truth_camera, true)
    file.write_text("\n".join([*lines[:3], lines[2] * 3, *lines[3:]]) + "\n")
    assert "images.txt, line 4: " in refused(tmp_path)


def test_unknown_or_damaged_points_of_colmap_are_no_images(tmp_path, walk):
    write_colmap(tmp_path, *walk)
    (file,) = tmp_path.glob("sparse/0/images.txt")
    lines = [one for one in file.read_text().splitlines() if one.endswith("png")]
    points = "1.5 2.5 -1 3.5 4.5 7 5.5 6.5 8"
    file.write_text("\n".join([lines[0], f"{points} nan nan -1", *lines[1:]]) + "\n")
    assert len(opened(tmp_path)[1]) == FRAMES
    file.write_text("\n".join([lines[0], f"{points} 7.5", *lines[1:]]) + "\n")
    assert "images.txt, line 2: " in refused(tmp_path)


def test_names_with_spaces_and_without_letters_are_no_points(tmp_path, walk):
    write_colmap(tmp_path, *walk)
    (file,) = tmp_path.glob("sparse/0/images.txt")
    lines = [one for one in file.read_text().splitlines() if one.endswith("png")]
    names = ["1 2 3.png", "17", "a 4 5", "6 7", "8.png"]
    for i, name in enumerate(names):
        (tmp_path / "images" / f"{i + 8}.png").rename(tmp_path / "images" / name)
        lines[i] = lines[i].replace(f"{i + 8}.png", name)
    file.write_text("\n".join(lines))
    assert len(read_true_poses(tmp_path).stamps_ns) == FRAMES


# Calibrations


LENSES = {
    ("SIMPLE_PINHOLE", 0): ([50.0, 28.5, 21.5], [50, 50, 28, 21], "plumb_bob", []),
    ("SIMPLE_RADIAL", 2): ([50.0, 28.5, 21.5, 0.1], [50, 50, 28, 21], "plumb_bob",
                           [0.1, 0, 0, 0, 0]),
    ("RADIAL", 3): ([50.0, 28.5, 21.5, 0.1, 0.2], [50, 50, 28, 21], "plumb_bob",
                    [0.1, 0.2, 0, 0, 0]),
    ("OPENCV", 4): ([50.0, 51.0, 28.5, 21.5, 0.1, 0.2, 0.3, 0.4], [50, 51, 28, 21], "plumb_bob",
                    [0.1, 0.2, 0.3, 0.4, 0]),
    ("OPENCV_FISHEYE", 5): ([50.0, 51.0, 28.5, 21.5, 0.1, 0.2, 0.3, 0.4], [50, 51, 28, 21],
                            "equidistant", [0.1, 0.2, 0.3, 0.4]),
}  # fmt: skip


@pytest.mark.parametrize("lens", LENSES, ids=lambda one: one[0])
@pytest.mark.parametrize("inner", [".", "binary"])
def test_camera_models_of_colmap(tmp_path, walk, lens, inner):
    parameters, K, model, D = LENSES[lens]
    write_colmap(tmp_path, walk[0], walk[1][:1], lens, parameters)
    c = opened(tmp_path / inner)[1][0].calibration
    assert focal_and_centre(c.K) == K
    assert c.distortion_model == model
    assert c.D.tolist() == D


@pytest.mark.parametrize("inner", [".", "binary"])
def test_other_camera_models_of_colmap_are_refused(tmp_path, walk, inner):
    parameters = [50.0, 51.0, 28.5, 21.5, *[0.0] * 8]
    write_colmap(tmp_path, walk[0], walk[1][:1], ("FULL_OPENCV", 6), parameters)
    assert "image_undistorter" in refused(tmp_path / inner)


@pytest.mark.parametrize(
    ("model", "D"),
    [("plumb_bob", (-0.3, 0.1, 0.001, -0.002)), ("equidistant", (0.01, -0.02, 0.003, 0.001))],
)
def test_lenses_of_euroc_and_tum_vi(tmp_path, model, D):
    camera = SyntheticCamera(3, SIZE, frames=1, distortion_model=model, D=D)
    write_euroc(tmp_path, camera, list(camera))
    (frame,) = opened(tmp_path)[1]
    assert frame.calibration.distortion_model == model
    assert frame.calibration.D.tolist() == list(D)


def test_kalibrs_file_of_tum_vi_replaces_sensor_yaml(tmp_path, walk):
    write_euroc(tmp_path, *walk)
    expected = read_true_poses(tmp_path).T_truth_camera
    (tmp_path / "mav0" / "state_groundtruth_estimate0").rename(tmp_path / "mav0" / "mocap0")
    (tmp_path / "mav0" / "cam0" / "sensor.yaml").unlink()
    recording, (frame, *_) = opened(tmp_path)
    assert frame.calibration is None
    assert "no calibration" in recording.describe()
    with pytest.raises(RecordingError, match="T_BS"):
        read_true_poses(tmp_path)
    (tmp_path / "dso").mkdir()
    (tmp_path / "dso" / "camchain.yaml").write_text(
        "cam0:\n  T_cam_imu:\n  - [0, -1, 0, 0.02]\n  - [0, 0, -1, -0.05]\n  - [1, 0, 0, -0.1]\n"
        "  - [0, 0, 0, 1]\n  camera_model: pinhole\n  distortion_model: equidistant\n"
        "  distortion_coeffs: [0.1, 0.2, 0.3, 0.4]\n  intrinsics: [50, 51, 27, 20]\n"
        "  resolution: [56, 42]\n"
    )
    frame = opened(tmp_path)[1][0]
    assert focal_and_centre(frame.calibration.K) == [50, 51, 27, 20]
    assert frame.calibration.distortion_model == "equidistant"
    np.testing.assert_allclose(read_true_poses(tmp_path).T_truth_camera, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("key", "value"),
    [("resolution", [float("inf"), 42]), ("resolution", "x"), ("camera_model", "omni"),
     ("distortion_model", "fov"), ("T_BS", None), ("intrinsics", [1, 2]),
     ("intrinsics", [50, 50, 400, 20])],
)  # fmt: skip
def test_calibrations_that_cannot_be_used_are_refused(tmp_path, walk, key, value):
    write_euroc(tmp_path, walk[0], walk[1][:1])
    file = tmp_path / "mav0" / "cam0" / "sensor.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), key: value}))
    assert "sensor.yaml" in refused(tmp_path)


def vga(folder, name="rgb/1.png"):
    """A folder of TUM RGB-D with one image of 640x480."""
    write_image(folder / name, np.zeros((480, 640, 3), np.uint8))
    (folder / "rgb.txt").write_text(f"1.0 {name}\n")
    return folder


def test_tums_known_k_is_that_of_the_folders_name(tmp_path):
    recording, (frame,) = opened(vga(tmp_path / "rgbd_dataset_freiburg1_xyz"))
    assert "TUM's calibration of freiburg1" in recording.describe()
    assert focal_and_centre(frame.calibration.K) == [517.3, 516.5, 318.6, 255.3]
    assert frame.calibration.D.tolist() == [0.2624, -0.9531, -0.0054, 0.0026, 1.1633]
    (frame,) = opened(vga(tmp_path / "freiburg3_desk"))[1]
    assert frame.calibration.K[0, 0] == 535.4
    assert not frame.calibration.D.any()


def test_the_name_of_the_folder_counts_from_within(tmp_path, monkeypatch):
    monkeypatch.chdir(vga(tmp_path / "freiburg3_desk"))
    assert opened(".")[1][0].calibration.K[0, 0] == 535.4


def test_without_a_known_camera_k_is_unknown(tmp_path, walk):
    recording, (frame,) = opened(vga(tmp_path / "my_room"))
    assert frame.calibration is None
    assert "no calibration" in recording.describe()
    small = tmp_path / "freiburg1_small"
    write_tum(small, *walk)
    (small / "camera_info.yaml").unlink()
    assert opened(small)[1][0].calibration is None


def test_files_of_k_come_before_the_folders_name(tmp_path, walk):
    folder = vga(tmp_path / "freiburg2_x")
    (folder / "calibration.txt").write_text("\ufeff# fx fy cx cy\r\n600 601 310 250\r\n")
    assert focal_and_centre(opened(folder)[1][0].calibration.K) == [600, 601, 310, 250]
    write_calibration(folder, walk[0].calibration)
    assert opened(folder)[1][0].calibration.width == SIZE[0]
    (folder / "camera_info.yaml").unlink()
    (folder / "calibration.txt").write_text("pinhole 1 2\n")
    assert "fx fy cx cy" in refused(folder)


def test_the_kinects_default_is_said_to_be_one(tmp_path, walk):
    folder = tmp_path / "seq-01"
    write_image(folder / "frame-000007.color.png", np.zeros((480, 640, 3), np.uint8))
    recording, (frame,) = opened(folder, rate_hz=7)
    assert "the Kinect's default, fx = fy = 525" in recording.describe()
    assert focal_and_centre(frame.calibration.K) == [525, 525, 320, 240]
    assert frame.stamp_ns == 2 * S  # by its number
    write_image(folder / "frame-000007.color.png", walk[1][0].image)
    assert opened(folder)[1][0].calibration is None


def test_info_of_the_same_layout_has_a_k_of_its_own(tmp_path):
    write_image(tmp_path / "frame-000000.color.jpg", np.zeros((480, 640, 3), np.uint8))
    file = tmp_path / "info.txt"
    file.write_text("m_versionNumber = 4\nm_calibrationColorIntrinsic = 583 0 321 0 0 582 241 0 "
                    "0 0 1 0 0 0 0 1 \n")  # fmt: skip
    assert focal_and_centre(opened(tmp_path)[1][0].calibration.K) == [583, 582, 321, 241]
    file.write_text("m_calibrationColorIntrinsic = 583\n")
    assert "info.txt, line 1" in refused(tmp_path)
    file.write_text("m_versionNumber = 4\n")
    assert "remove it" in refused(tmp_path)


def test_k_of_other_images_is_refused(tmp_path, walk):
    write_scannet(tmp_path, *walk)
    file = tmp_path / "intrinsic" / "intrinsic_color.txt"
    file.write_text("1170 0 648 0\n0 1170 484 0\n0 0 1 0\n0 0 0 1\n")
    assert "cannot be those of 56x42 pixels" in refused(tmp_path)
    file.write_text("1 2 3")
    assert "3x3 or 4x4" in refused(tmp_path)
    file.unlink()
    assert opened(tmp_path)[1][0].calibration is None


def test_a_given_calibration_replaces_that_of_the_data_set(kept, walk):
    given = SyntheticCamera(1, SIZE, fov_deg=90, frames=1).calibration
    recording, frames = opened(kept["euroc"], calibration=given)
    assert all(frame.calibration is given for frame in frames)
    assert "calibration: given" in recording.describe()


def test_pixels_are_as_they_were_stored_whatever_exif_says(tmp_path, walk):
    """K is that of the stored pixels."""
    write_colmap(tmp_path, walk[0], walk[1][:1])
    file = tmp_path / "images" / "8.png"
    done, jpeg = cv2.imencode(".jpg", walk[1][0].image)
    assert done
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # turned
    data = jpeg.tobytes()
    file.write_bytes(data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:])
    assert opened(tmp_path)[1][0].image.shape == (SIZE[1], SIZE[0], 3)


# Cameras


def test_cameras_of_a_data_set_are_chosen_by_name(kept, walk):
    recording, frames = opened(kept["kitti"])
    assert recording.camera == "image_2"  # colour before grey
    assert "not used: image_0" in recording.describe()
    for name in ("image_0", "/image_0"):
        recording, others = opened(kept["kitti"], name)
        np.testing.assert_array_equal(others[0].image, 255 - frames[0].image)
    true = [f.T_room_camera for f in walk[1]]
    found = read_true_poses(kept["kitti"], "image_0").T_truth_camera
    np.testing.assert_allclose(found[0], np.eye(4), atol=1e-6)
    assert np.abs(np.array(relative(found)) - relative(true)).max() > 1e-3  # it lies elsewhere
    assert "has image_2 | image_0" in refused(kept["kitti"], "left")


def test_blank_lines_are_neither_poses_nor_times(kept, tmp_path):
    again = tmp_path / "dataset"
    shutil.copytree(kept["kitti"].parent.parent, again)
    for file in (*again.glob("poses/*.txt"), *again.glob("sequences/*/times.txt")):
        first, *others = file.read_text().splitlines()
        file.write_text("\n".join([first, "", *others, ""]))
    true = read_true_poses(kept["kitti"], "image_2")
    found = read_true_poses(again / "sequences" / kept["kitti"].name, "image_2")
    np.testing.assert_array_equal(found.T_truth_camera, true.T_truth_camera)
    np.testing.assert_array_equal(found.stamps_ns, true.stamps_ns)


def test_several_cameras_come_by_stamps_under_their_names(tmp_path, walk):
    write_euroc(tmp_path, *walk)
    write_euroc(tmp_path, *walk, name="cam1")
    recording, frames = opened(tmp_path, cameras={"left": "cam0", "right": "/cam1"})
    assert recording.length == len(frames) == 2 * FRAMES
    assert [f.camera for f in frames] == ["left", "right"] * FRAMES
    assert frames[1].frame_id == "right_optical"
    assert [f.stamp_ns for f in frames] == sorted(f.stamp_ns for f in frames)
    assert "both cam0" in refused(tmp_path, cameras={"a": "cam0", "b": "/cam0"})
    assert "--camera left:=NAME" in refused(tmp_path, cameras={"left": "left"})


def test_mounts_are_those_of_the_calibration_if_all_are_known(tmp_path, walk, kept):
    T_0_1 = np.eye(4)
    T_0_1[:3, 3] = [0.11, 0, 0]
    write_euroc(tmp_path, *walk)
    write_euroc(tmp_path, *walk, name="cam1", mount=T_0_1)
    names = {"left": "cam0", "right": "cam1"}
    mounts = opened(tmp_path, cameras=names)[0].mounts()
    np.testing.assert_allclose(np.linalg.inv(mounts["left"]) @ mounts["right"], T_0_1, atol=1e-12)
    (tmp_path / "mav0" / "cam1" / "sensor.yaml").unlink()
    assert opened(tmp_path, cameras=names)[0].mounts() == {}
    mounts = opened(kept["kitti"], cameras={"grey": "image_0", "colour": "image_2"})[0].mounts()
    np.testing.assert_allclose(mounts["grey"], np.eye(4))
    np.testing.assert_allclose(mounts["colour"][:3, 3], KITTI_OFFSET_M, atol=1e-9)
    assert opened(kept["tum"])[0].mounts() == {}


def test_folders_of_a_models_images_are_cameras(tmp_path, walk):
    write_colmap(tmp_path, *walk)
    for name in ("b", "a"):
        (tmp_path / "images" / name).mkdir()
    text = (tmp_path / "sparse" / "0" / "images.txt").read_text()
    for i in range(FRAMES):
        camera = "a" if i > 1 else "b"
        (tmp_path / "images" / f"{i + 8}.png").rename(tmp_path / "images" / camera / f"{i}.png")
        text = text.replace(f" 1 {i + 8}.png", f" 1 {camera}/{i}.png")
    (tmp_path / "sparse" / "0" / "images.txt").write_text(text)
    assert len(opened(tmp_path)[1]) == FRAMES - 2
    _, frames = opened(tmp_path, "b")
    np.testing.assert_array_equal(frames[1].image, walk[1][1].image)
    assert len(read_true_poses(tmp_path, "b").stamps_ns) == 2


# What is damaged or missing


def test_images_that_are_missing_or_damaged_are_skipped_and_counted(tmp_path, walk):
    write_tum(tmp_path, *walk)
    files = sorted((tmp_path / "rgb").iterdir())
    files[0].unlink()
    files[2].write_bytes(files[2].read_bytes()[:50])
    recording, frames = opened(tmp_path)
    assert [f.stamp_ns for f in frames] == [walk[1][i].stamp_ns for i in (1, 3, 4)]
    assert recording.counters["bad_images"] == 2
    first, second = recording.bad_images
    assert first == f"rgb/{files[0].name}: the file is missing"
    assert second.startswith(f"rgb/{files[2].name}: ")
    assert len(list(recording)) == 3
    assert recording.counters["bad_images"] == 2  # counted anew


@pytest.mark.parametrize(
    "line",
    ["", "x rgb/1.png", "9", "nan rgb/1.png", "-1 rgb/1.png", "1e40 rgb/1.png",
     "1305031102175 rgb/1.png", "9 /etc/1.png", "9 ../1.png", "9 rgb/\0.png"],
)  # fmt: skip
def test_lines_that_name_no_image_are_counted(tmp_path, walk, line):
    write_tum(tmp_path, *walk)
    list_file = tmp_path / "rgb.txt"
    text = list_file.read_text() + line + "\n"
    list_file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    recording, frames = opened(tmp_path)
    assert len(frames) == FRAMES
    assert len(recording.bad_images) == bool(line)
    assert not line or "rgb.txt, line 7: " in recording.bad_images[0]


def test_images_with_the_stamp_of_another_one_are_counted(tmp_path, walk):
    write_euroc(tmp_path, *walk)
    table = tmp_path / "mav0" / "cam0" / "data.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[1], "x,1.png"]))
    recording, frames = opened(tmp_path)
    assert len(frames) == FRAMES
    assert [text.split(": ")[1] for text in recording.bad_images] == [
        "'x' is not a time in ns", f"has the stamp of {walk[1][0].stamp_ns}.png",
    ]  # fmt: skip


def test_images_come_by_their_stamps_in_whatever_order_they_are_listed(tmp_path, walk):
    write_euroc(tmp_path, *walk)
    write_tum(tmp_path / "tum", *walk)
    for file in (tmp_path / "mav0" / "cam0" / "data.csv", tmp_path / "tum" / "rgb.txt"):
        header, *lines = file.read_text().splitlines()
        file.write_text("\n".join([header, *lines[::-1]]))
    for folder in (tmp_path, tmp_path / "tum"):
        frames, layout = opened(folder)[1], layout_of(folder)
        listed = layout.images(folder, layout.cameras(folder)[0], 10.0).images
        stamps = [frame.stamp_ns for frame in walk[1]]
        assert [f.stamp_ns for f in frames] == [one.stamp_ns for one in listed] == stamps
        np.testing.assert_array_equal(frames[0].image, walk[1][0].image)


def test_images_without_a_time_are_counted(tmp_path, walk):
    folder = written(tmp_path, "kitti", walk)
    lines = (folder / "times.txt").read_text().splitlines()
    (folder / "times.txt").write_text("\n".join(lines[:3]))
    recording, frames = opened(folder)
    assert len(frames) == 3
    assert recording.bad_images == [f"00000{i}.png: times.txt has no line {i + 1}" for i in (3, 4)]
    (folder / "times.txt").unlink()
    assert len(opened(folder, rate_hz=5)[1]) == FRAMES
    (folder / "times.txt").write_text("0\nnan\n")
    assert "times.txt, line 2" in refused(folder)


@pytest.mark.parametrize(
    ("kind", "emptied"),
    [("tum", "rgb.txt"), ("euroc", "mav0/cam0/data.csv"), ("kitti", "image_2/*.png"),
     ("scannet", "color/*.png"), ("colmap", "sparse/0/images.txt")],
)  # fmt: skip
def test_a_data_set_without_images_says_so(tmp_path, walk, kind, emptied):
    folder = written(tmp_path, kind, walk)
    for file in folder.glob(emptied):
        file.unlink() if file.suffix == ".png" else file.write_text("# empty\n")
    assert "no" in refused(folder).split()


@pytest.mark.parametrize("kind", ["7-scenes", "scannet"])
@pytest.mark.parametrize(
    "content",
    [None, "", "-inf " * 16, "nan " * 16, "1 2 3", "1 " * 16, "1 0 0 0 0 1 0 0 0 0 -1 0 0 0 0 1"],
)
def test_an_image_whose_pose_is_not_known_has_none(tmp_path, walk, caplog, kind, content):
    folder = written(tmp_path, kind, walk)
    file = folder / {"7-scenes": "frame-000002.pose.txt", "scannet": "pose/2.txt"}[kind]
    file.unlink() if content is None else file.write_text(content)
    _, frames = opened(folder, rate_hz=60)
    truth = read_true_poses(folder, rate_hz=60)
    known, _ = truth.at([frame.stamp_ns for frame in frames])
    assert known.tolist() == [True, True, False, True, True]
    assert "1 images without a true pose" in caplog.text


@pytest.mark.parametrize(
    ("kind", "file"),
    [("tum", "groundtruth.txt"), ("euroc", "mav0/state_groundtruth_estimate0/data.csv"),
     ("kitti", "../../poses/00.txt")],
)  # fmt: skip
def test_a_data_set_without_truth_is_a_recording_still(tmp_path, walk, kind, file):
    folder = written(tmp_path, kind, walk)
    (folder / file).unlink()
    assert len(opened(folder)[1]) == FRAMES
    with pytest.raises(RecordingError) as error:
        read_true_poses(folder)
    assert "\n" not in str(error.value)
    assert file.rpartition("/")[2].split(".")[0] in str(error.value).replace("data", file)


@pytest.mark.parametrize("cut", [4, 20, 30, 75, 100])
@pytest.mark.parametrize("name", ["cameras.bin", "images.bin"])
def test_damaged_binary_models_are_refused(tmp_path, walk, cut, name):
    write_colmap(tmp_path, walk[0], walk[1][:2])
    file = tmp_path / "binary" / "sparse" / "0" / name
    data = file.read_bytes()
    if cut < len(data):
        file.write_bytes(data[:cut])
        assert name in refused(tmp_path / "binary")
    file.write_bytes(b"\xff" * 5000)
    assert name in refused(tmp_path / "binary")
    if name == "images.bin":
        file.write_bytes(data[:78] + b"\xff" * 8)  # its 2D points end beyond any file
        assert name in refused(tmp_path / "binary")


def test_images_of_another_model_nearby_are_not_taken(tmp_path, walk):
    write_colmap(tmp_path / "a", *walk, model=".")
    for file in (tmp_path / "a" / "images").iterdir():
        shutil.move(file, tmp_path / "a" / file.name)
    (tmp_path / "a" / "images").rmdir()
    (tmp_path / "images").mkdir()
    assert len(opened(tmp_path / "a")[1]) == FRAMES


def test_a_model_without_images_beside_it_says_where_to_put_them(tmp_path, walk):
    write_colmap(tmp_path / "a", *walk, model=".")
    assert len(opened(tmp_path / "a")[1]) == FRAMES
    for file in (tmp_path / "a" / "images").iterdir():
        shutil.move(file, tmp_path / "a" / file.name)
    (tmp_path / "a" / "images").rmdir()
    assert len(opened(tmp_path / "a")[1]) == FRAMES  # beside the model's files
    for file in (tmp_path / "a").glob("*.png"):
        file.unlink()
    assert "put them into images/" in refused(tmp_path / "a")


# What is a data set


@pytest.mark.parametrize("kind", WRITERS)
def test_each_layout_is_recognised_as_itself_alone(kept, kind):
    assert [name for name, one in LAYOUTS.items() if one.matches(kept[kind])] == [kind]


def test_plain_folders_of_images_stay_what_they_are(tmp_path, walk):
    for i, frame in enumerate(walk[1]):
        write_image(tmp_path / f"frame-{i:06d}.png", frame.image)
    write_tum(tmp_path / "inner", *walk)
    recording, frames = opened(tmp_path)
    assert layout_of(tmp_path) is None
    assert "images, no calibration" in recording.describe()
    assert len(frames) == FRAMES


def test_the_only_data_set_in_a_folder_is_meant(tmp_path, walk):
    write_seven_scenes(tmp_path / "seq-01", *walk)
    (tmp_path / "notes").mkdir()
    recording, _ = opened(tmp_path)
    assert recording.path == tmp_path / "seq-01"
    assert len(read_true_poses(tmp_path).stamps_ns) == FRAMES
    write_seven_scenes(tmp_path / "seq-02", *walk)
    assert "give one of seq-01 | seq-02" in refused(tmp_path)


def test_a_data_set_further_below_is_named(tmp_path, walk):
    folder = written(tmp_path, "kitti", walk)
    assert f"{folder} is a data set of KITTI odometry" in refused(tmp_path)


def test_a_fleet_finds_each_data_set_once(tmp_path, walk, kept):
    for kind, folder in kept.items():
        if kind != "kitti":
            (tmp_path / kind).symlink_to(folder, target_is_directory=True)
    write_kitti(tmp_path / "drive" / "sequences" / "03", *walk)
    found = [str(p.relative_to(tmp_path)) for p in find_recordings(tmp_path, lambda _: False)]
    names = ["7-scenes", "colmap", "drive/sequences/03", "euroc", "scannet", "tum"]
    assert found == names


def test_a_data_set_is_named_from_within_its_folder(tmp_path, walk, monkeypatch):
    folder = written(tmp_path / "walk-01", "euroc", walk)
    monkeypatch.chdir(folder)
    assert opened(Path())[0].describe().startswith(f"{folder.name}: EuRoC (ASL)")


def test_an_image_of_a_model_without_a_pose_is_named(tmp_path, walk, caplog):
    folder = written(tmp_path, "colmap", walk)
    (file,) = folder.rglob("images.txt")
    lines = file.read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line[:1].isdigit())
    number, *_, camera, name = lines[at].split()
    lines[at] = f"{number} 0 0 0 0 0 0 0 {camera} {name}"
    file.write_text("\n".join(lines) + "\n")
    assert len(read_true_poses(folder).stamps_ns) == FRAMES - 1
    said = f"images.txt: 1 images without a pose are left out (image {name}: the quaternion is"
    assert said in caplog.text


# A layout from outside


def test_a_layout_from_outside_is_a_row(tmp_path, walk, monkeypatch):
    monkeypatch.setitem(LAYOUTS, "diary", Diary())
    (tmp_path / "diary.txt").write_text("2.5 a.png 1 2 3\n0.5 b.png 0 0 0\n")
    write_image(tmp_path / "a.png", walk[1][0].image)
    write_image(tmp_path / "b.png", walk[1][1].image)
    recording, frames = opened(tmp_path)
    assert "diary; 2 images of eye" in recording.describe()
    assert [f.stamp_ns for f in frames] == [S // 2, 5 * S // 2]
    assert is_recording(tmp_path)
    _, poses = read_true_poses(tmp_path).at([5 * S // 2])
    np.testing.assert_array_equal(poses[0, :3, 3], [1, 2, 3])


# Real images


def test_real_images_in_the_layout_of_tum(recordings, tmp_path):
    source = recordings / "rgbd_5" / "data"
    shutil.copytree(source / "color", tmp_path / "rgb")
    poses = (source / "pose.txt").read_text().splitlines()
    (tmp_path / "rgb.txt").write_text("".join(f"{i}.5 rgb/{i}.png\n" for i in range(1, 6)))
    truth = "".join(f"{i}.5 {line}\n" for i, line in enumerate(poses, 1))
    (tmp_path / "groundtruth.txt").write_text(truth)
    (tmp_path / "calibration.txt").write_text("518 519 325.5 253.5\n")
    _, frames = opened(tmp_path)
    assert [f.image.shape for f in frames] == [(480, 640, 3)] * 5
    assert frames[0].calibration.K[1, 1] == 519
    found = read_true_poses(tmp_path)
    _, poses = found.at([frames[4].stamp_ns])
    np.testing.assert_allclose(poses[0, :3, 3], [-1.55819, -0.301094, 1.6215])
