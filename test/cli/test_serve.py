"""`da3_ros view SCENE --serve` as a process."""

import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.scenes import full_store
from support.viewers import free_port

from da3_ros.cli import scene_server
from da3_ros.export.scene_file import save_scene
from da3_ros.viewer.feed import ViewerFeed
from da3_ros.viewer.map_reader import MOST_OF_SUBMAP

pytest.importorskip("viser")
pytestmark = pytest.mark.process


def test_a_scene_is_served_until_an_interruption(tmp_path):
    save_scene(full_store().snapshot(), tmp_path / "scene")
    port = free_port()
    command = [sys.executable, "-m", "da3_ros", "view", str(tmp_path / "scene"), "--serve"]
    with subprocess.Popen(
        [*command, "--port", str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        url = process.stdout.readline().strip()
        assert url == f"http://localhost:{port}"
        assert urllib.request.urlopen(url).status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""
    with pytest.raises(OSError, match=r"refused|urlopen"):
        urllib.request.urlopen(url)


def test_no_frame_waits_so_that_submaps_are_sent_whole(tmp_path, monkeypatch):
    save_scene(full_store().snapshot(), tmp_path / "scene")
    readers = []

    def feed(config, offered, *_, **__):
        for live in (offered.live, True):
            one = SimpleNamespace(_config=config, _offered=replace(offered, live=live))
            readers.append(ViewerFeed._reader(one))
        raise RuntimeError

    monkeypatch.setattr(scene_server, "ViewerFeed", feed)
    with pytest.raises(RuntimeError):
        scene_server.serve(tmp_path / "scene", "127.0.0.1", None, 8080)
    saved, live = readers
    assert saved.most_of_submap == saved.most == live.most > live.most_of_submap
    assert live.most_of_submap == MOST_OF_SUBMAP
