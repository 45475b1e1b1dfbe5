"""Files and folders appear complete or not at all; what killed processes leave is removed."""

import os
import signal
import subprocess
import sys

import pytest

from da3_ros.export import atomic_files as module
from da3_ros.export.atomic_files import atomic_folder, atomic_path, replace_folder

WRITER = """
import os, signal, sys
from pathlib import Path
from da3_ros.export.atomic_files import atomic_folder, atomic_path

with atomic_path(Path(sys.argv[1], "room.glb")) as file, \\
        atomic_folder(Path(sys.argv[1], "scene"), lambda folder: None) as folder:
    (folder / "points").write_text("half")
    file.write_text("half")
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("ready", flush=True)
    sys.stdin.read()
"""


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def write_both(folder):
    with atomic_path(folder / "room.glb") as file:
        file.write_text("whole")
    with atomic_folder(folder / "scene", lambda folder: None) as scene:
        (scene / "points").write_text("whole")


def writer(folder, what):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_what_a_killed_process_has_left_is_removed(tmp_path, monkeypatch):
    assert writer(tmp_path, "killed").wait() == -signal.SIGKILL
    left = names(tmp_path)
    assert len(left) == 2
    write_both(tmp_path)
    assert len(names(tmp_path)) == 4  # just made: it may be another one's
    monkeypatch.setattr(module, "LOCKED_AFTER_S", 0.0)
    others = [".scene-backup", ".scene-da3_ros-mine", ".room-da3_ros-abcdefgh.ply"]
    for name in others:
        (tmp_path / name).mkdir()
    write_both(tmp_path)
    assert names(tmp_path) == sorted([*others, "room.glb", "scene"])


def test_what_another_process_writes_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOCKED_AFTER_S", 0.0)
    with writer(tmp_path, "alive") as process:
        assert process.stdout.readline() == "ready\n"
        before = names(tmp_path)
        write_both(tmp_path)
        assert names(tmp_path) == sorted([*before, "room.glb", "scene"])
        process.stdin.close()
        assert process.wait() == 0
    assert names(tmp_path) == ["room.glb", "scene"]
    assert (tmp_path / "room.glb").read_text() == "half"  # of the last one


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupted_replacement_keeps_the_old_folder(tmp_path, monkeypatch, step, error):
    new, old = tmp_path / "new", tmp_path / "scene"
    for folder in (new, old):
        folder.mkdir()
        (folder / "points").write_text(folder.name)
    calls, name = [], ("replace", "rename")[step - 1]
    move = getattr(os, name)

    def broken(*paths):
        calls.append(paths)
        if len(calls) == 1:
            raise error
        move(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, broken)
        with pytest.raises(error):
            replace_folder(new, old)
    assert (old / "points").read_text() == "scene"
    assert names(tmp_path) == ["new", "scene"]


def test_a_folder_that_was_being_replaced_returns(tmp_path, monkeypatch):
    """The process was killed after it had moved the old one away."""
    monkeypatch.setattr(module, "LOCKED_AFTER_S", 0.0)
    away = tmp_path / ".scene-da3_ros-old-abcdefgh"
    away.mkdir()
    (away / "points").write_text("old")
    with (
        pytest.raises(RuntimeError),
        atomic_folder(tmp_path / "scene", lambda folder: None),
    ):
        raise RuntimeError
    assert names(tmp_path) == ["scene"]
    assert (tmp_path / "scene" / "points").read_text() == "old"
