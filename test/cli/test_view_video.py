"""`da3_ros view --video`: what a video shows, and what is refused."""

import os
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest
from support.processes import PATIENCE_S
from support.scenes import full_store

from da3_ros.cli.command_line import main
from da3_ros.drawing.scene_renderer import BACKGROUND
from da3_ros.export.export import export_scene
from da3_ros.export.scene_file import save_scene

pytest.importorskip("av", reason="needs PyAV: pip install av")
SHORT = ["--size", "160x120", "--seconds", "1", "--fps", "12"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A saved scene whose camera moves, and an export of it."""
    folder = tmp_path_factory.mktemp("scene")
    snapshot = full_store().snapshot(metric=True)
    save_scene(snapshot, folder / "scene")
    export_scene(snapshot.scene(), folder / "scene.glb")
    return folder


def frames(path):
    video, found = cv2.VideoCapture(str(path)), []
    while (read := video.read())[0]:
        found.append(read[1].astype(int))
    return np.array(found)


@pytest.mark.parametrize("way", [[], ["--orbit"]])
def test_a_video_shows_the_scene_moving(scene, tmp_path, capsys, way):
    target = tmp_path / "new" / "a.mp4"
    assert main(["view", str(scene), "--video", str(target), *SHORT, *way]) == 0
    assert str(target) in capsys.readouterr().out
    shown = frames(target)
    assert shown.shape == (12, 120, 160, 3)
    assert ((shown > BACKGROUND + 40).any(axis=3).mean(axis=(1, 2)) > 0.01).all()
    steps = np.abs(np.diff(shown, axis=0)).mean(axis=(1, 2, 3))
    assert (steps > 0.05).all()
    assert [p.name for p in target.parent.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(
    ("source", "arguments", "code", "words"),
    [
        ("", ["--video", "a.avi"], 1, "must end with .mp4"),
        ("", ["--video", "a.mp4", "--size", "161x120"], 2, "even sides"),
        ("", ["--video", "a.mp4", "--size", "9000x120"], 2, "at most 4096"),
        ("", ["--video", "a.mp4", "--fps", "0"], 2, "give 1 to"),
        ("", ["--video", "a.mp4", "--seconds", "nan"], 2, "to 3600"),
        ("", ["--video", "a.mp4", "--from", "top"], 2, "give --orbit"),
        ("", ["--video", "a.mp4", "--tracks"], 2, "--tracks: --video is for scenes"),
        ("", ["--output", "a.png", "--orbit"], 2, "give --video"),
        ("", ["--output", "a.png", "--seconds", "2"], 2, "give --video"),
        ("scene.glb", ["--video", "a.mp4"], 1, "no path with poses"),
        ("", ["--video", f"{__file__}/a.mp4"], 1, "cannot be written"),
    ],
)
def test_videos_that_cannot_be_made(scene, tmp_path, capsys, source, arguments, code, words):
    os.chdir(tmp_path)
    assert main(["view", str(scene / source), *arguments]) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_an_interruption_leaves_no_file(scene, tmp_path):
    command = [sys.executable, "-m", "da3_ros", "view", str(scene), "--video", "a.mp4"]
    process = subprocess.Popen(
        [*command, "--seconds", "600"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE_S
    while not list(tmp_path.iterdir()):  # the hidden file is there
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert err.endswith("da3_ros: interrupted, nothing was written\n")
    assert not list(tmp_path.iterdir())
