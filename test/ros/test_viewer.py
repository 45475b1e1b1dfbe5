"""The viewer of a live node: it gets the map, and its commands go through the services."""

import urllib.error
import urllib.request

import pytest
from lifecycle_msgs.msg import Transition
from support.browser import CHROMIUM, Browser
from support.live_node import LiveNode
from support.viewers import Client, free_port

pytest.importorskip("viser")

from da3_ros.ros import status_report as report
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.process
CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE
DEACTIVATE, CLEANUP = Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP


LABEL = "[...document.querySelectorAll('label')].find(e => e.innerText.startsWith('Yes'))"

RESET = "[...document.querySelectorAll('button')].find(e => e.innerText.trim() === 'Reset')"


def camera_of(frames=12):
    return SyntheticCamera(frames=frames, size=(64, 48), seed=3)


def test_the_viewer_of_a_node_gets_frames_and_map_and_its_commands_are_answered(
    monkeypatch, tmp_path
):
    camera = camera_of()
    values = {
        "viewer.port": free_port(), "viewer.control": True, "export_dir": str(tmp_path),
        "hold_when_blind": False,
    }  # fmt: skip
    with LiveNode(monkeypatch, camera, list(camera), TruthSession, **values) as live:
        assert live.change(CONFIGURE, ACTIVATE)
        stream = live.da3.runner.stream
        feed = stream.view.feed
        live.until(lambda: feed.url)
        kinds, send = [], feed._process.send
        monkeypatch.setattr(
            feed._process, "send", lambda m: kinds.append(m.kind) or send(m), raising=True
        )
        client = Client(int(feed.url.rpartition(":")[2]))
        live.until(lambda: feed.watched)
        for n in range(8):
            live.show()
            live.until(lambda n=n: stream.frame_counts.processed > n - 4)
        live.until(lambda: len(stream.pipeline.map) > 0)
        live.until(lambda: feed.sent_bytes > 9 * len(stream.pipeline.map))
        live.until(lambda: {"map", "frame", "state"} <= set(kinds))
        stated = report.diagnostics(live.da3._facts(), stream).status[0].values
        assert [one.value for one in stated if one.key == "viewer"] == [feed.url]

        success, text = feed.commands("export", {"path": "room.ply"})
        assert success, text
        assert (tmp_path / "room.ply").stat().st_size > 1000
        success, text = feed.commands("export", {"path": "../room.ply"})
        assert not success
        assert "export_dir" in text or "outside" in text
        assert feed.commands("save", {"path": "saved"})[0]
        assert (tmp_path / "saved").is_dir()

        assert feed.commands("enable", {"data": False})[0]
        assert not live.da3.enabled
        assert feed.commands("set", {"name": "depth.min_confidence", "value": 2})[0]
        assert live.da3.get_parameter("depth.min_confidence").value == 2.0
        live.until(lambda: "settings" in kinds)
        wish = {"name": "depth.color_range_m", "value": [1, 2.5]}
        assert feed.commands("set", wish)[0]
        live.until(lambda: stream.view.feed._settings_sent["parameters"][wish["name"]] == [1, 2.5])
        success, text = feed.commands("set", wish | {"value": [2, 1]})
        assert not success
        assert "depth.color_range_m" in text
        success, text = feed.commands("set", {"name": "window.size", "value": 5})
        assert not success
        assert "cannot change while the node is configured" in text
        assert not feed.commands("shutdown", {})[0]
        kinds.clear()
        assert feed.commands("reset", {})[0]
        live.until(lambda: len(stream.pipeline.map) == 0)
        live.until(lambda: "anew" in kinds)

        client.close()
        assert live.change(DEACTIVATE, CLEANUP)
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(feed.url)


@pytest.mark.long
def test_a_node_without_the_library_says_so(monkeypatch):
    camera = camera_of()
    monkeypatch.setattr("da3_ros.live.live_view.missing", lambda: "the viewer needs viser")
    values = {"viewer.port": free_port()}
    with LiveNode(monkeypatch, camera, list(camera), TruthSession, **values) as live:
        assert not live.change(CONFIGURE)
        assert "the viewer needs viser" in live.da3.log.failure


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")
def test_the_buttons_of_the_page_make_a_file_and_reset_the_map(monkeypatch, tmp_path):
    camera = camera_of()
    values = {
        "viewer.port": free_port(), "viewer.control": True, "export_dir": str(tmp_path),
        "hold_when_blind": False,
    }  # fmt: skip
    with LiveNode(monkeypatch, camera, list(camera), TruthSession, **values) as live:
        assert live.change(CONFIGURE, ACTIVATE)
        stream = live.da3.runner.stream
        for n in range(8):
            live.show()
            live.until(lambda n=n: stream.frame_counts.processed > n - 4)
        live.until(lambda: len(stream.pipeline.map) > 0)
        live.until(lambda: stream.view.feed.url)
        with Browser() as browser:
            browser.open(stream.view.feed.url)
            browser.click("Control", "[role=tab]", until="Export")
            browser.click("Export")
            live.until((tmp_path / "room.glb").exists)
            browser.click("Reset")  # not confirmed
            browser.run(f"document.getElementById({LABEL}.htmlFor).click()")
            live.until(lambda: browser.run(f"{RESET}.disabled") is False)
            assert len(stream.pipeline.map) > 0
            browser.click("Reset")
            live.until(lambda: len(stream.pipeline.map) == 0)
            assert not browser.errors
