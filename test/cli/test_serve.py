"""`da3_ros view SCENE --serve` as a process."""

import signal
import subprocess
import sys
import urllib.request

import pytest
from support.scenes import full_store
from support.viewers import free_port

from da3_ros.export.scene_file import save_scene

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
