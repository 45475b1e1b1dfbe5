"""Which files and folders are a recording each."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from da3_ros.recordings.search import find_recordings, is_recording, name_of

NONE = frozenset()


def made(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def found(folder, skip=NONE):
    paths = find_recordings(folder, lambda path: path.name in skip)
    return [str(path.relative_to(folder)) for path in paths]


def test_bags_videos_and_image_folders_at_any_depth(tmp_path):
    made(
        tmp_path, "site/bag/metadata.yaml", "site/bag/bag_0.mcap", "site/drive.MP4",
        "site/notes.txt", "shots/0001.png", "shots/0002.png", "deep/er/run.db3.zstd",
    )  # fmt: skip
    assert found(tmp_path) == ["deep/er/run.db3.zstd", "shots", "site/bag", "site/drive.MP4"]


def test_loose_bag_files_are_a_recording_each(tmp_path):
    made(tmp_path, "bags/run_1.mcap", "bags/run_2.mcap")
    assert not is_recording(tmp_path / "bags")
    assert found(tmp_path) == ["bags/run_1.mcap", "bags/run_2.mcap"]


def test_parts_of_one_bag_without_metadata_are_one(tmp_path):
    made(tmp_path, "run/run_0.mcap", "run/run_1.mcap.zstd")
    assert found(tmp_path) == ["run"]


@pytest.mark.parametrize("other", ["a.mcap", "clip.mp4", "inner/x.txt"])
def test_pictures_beside_recordings_are_none(tmp_path, other):
    made(tmp_path, "all/1.png", "all/2.png", f"all/{other}")
    assert not is_recording(tmp_path / "all")
    assert found(tmp_path) == ([] if "inner" in other else [f"all/{other}"])


def test_images_beside_folders_are_said_to_be_left_out(tmp_path, caplog):
    made(tmp_path, "walk/0001.png", "walk/0002.png", "walk/thumbs/a.txt", "b.mcap")
    assert found(tmp_path) == ["b.mcap"]
    assert "2 images beside other folders or recordings are left out" in caplog.text


def test_hidden_and_skipped_folders_are_not_searched(tmp_path):
    made(tmp_path, ".trash/a.mcap", "results/b.mcap", "c.mcap")
    assert found(tmp_path, {"results"}) == ["c.mcap"]


def test_one_picture_is_no_recording(tmp_path):
    folder = tmp_path / "shots"
    folder.mkdir()
    cv2.imwrite(str(folder / "plan.png"), np.zeros((8, 8, 3), np.uint8))
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a.mcap", "a"), ("a.b.db3.zstd", "a.b"), ("a.mp4", "a"), ("run.1", "run.1")],
)
def test_names_lose_the_suffixes_of_files(tmp_path, name, stem):
    path = tmp_path / name
    path.mkdir() if name == "run.1" else path.touch()
    assert name_of(path) == stem


def test_a_folder_that_cannot_be_read_is_left_out(tmp_path, monkeypatch, caplog):
    made(tmp_path, "a/x.mcap", "lost+found/y.mcap")
    listed = Path.iterdir

    def refused(self):
        if self.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(self))
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", refused)
    assert found(tmp_path) == ["a/x.mcap"]
    assert "lost+found is left out" in caplog.text
