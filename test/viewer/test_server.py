"""The viewer's server: who may talk to it, and on which port it is."""

import dataclasses
import json
import os
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support.scenes import frame, store
from support.viewers import OFFERED, Client, Running, tracked

pytest.importorskip("viser")

from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.viewer.feed import MOST_COMMANDS, SETTLE_S, Offered
from da3_ros.viewer.guard import is_of_page, is_own_page
from da3_ros.viewer.map_reader import MapReader
from da3_ros.viewer.wire import ViewerMessage

pytestmark = pytest.mark.process


def test_pages_of_other_sites_are_told_by_their_headers():
    own = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
    assert is_own_page(own, local=True)
    assert is_own_page({"Host": "127.0.0.1:8080"}, local=True)
    assert is_own_page({"Host": "[::1]:8080", "Origin": "http://[::1]:8080"}, local=True)
    assert not is_own_page(own | {"Origin": "http://evil.example"}, local=True)
    assert not is_own_page(own | {"Origin": "null"}, local=True)
    rebound = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
    assert not is_own_page(rebound, local=True)
    assert is_own_page({"Host": "robot:80", "Origin": "http://robot:80"}, local=False)
    assert not is_own_page({"Host": "robot:80", "Origin": "http://evil.example"}, local=False)
    assert not is_own_page({"Host": "["}, local=True)
    assert not is_own_page({"Host": "robot", "Origin": "http://["}, local=False)


def test_only_what_the_page_sends_comes_in():
    import msgspec

    def sent(**message):
        return is_of_page(msgspec.msgpack.encode(message))

    assert sent(type="ViewerCameraMessage", position=(1.0, 2, 3), fov=0.8)
    assert not sent(type="ViewerCameraMessage", position=(1.0, float("nan"), 3.0))
    assert not sent(type="ViewerCameraMessage", fov=float("inf"))
    assert sent(type="GuiUpdateMessage", uuid="a", updates={"value": 3})
    assert not sent(type="GuiUpdateMessage", uuid="a", updates={"update_cb": [1]})
    assert not sent(type="GuiUpdateMessage", uuid="a", updates={"value": float("inf")})
    assert not sent(type="GuiUpdateMessage", uuid="a", updates={"value": [1.0, float("nan")]})
    assert not sent(type="GuiUpdateMessage", uuid="a", updates=[])
    for kind in ("FileTransferStartUpload", "FileTransferPart", "ShareUrlRequest", "x", 3):
        assert not sent(type=kind)
    assert not is_of_page(b"\xc1nonsense")
    assert not is_of_page("text")
    assert not is_of_page(msgspec.msgpack.encode([1, 2]))


def test_only_its_own_page_is_served_and_it_ends_with_its_feed():
    with Running() as running:
        assert running.get()[0] == 200
        assert running.get(Origin="http://evil.example")[0] == 403
        assert running.get(Host="evil.example")[0] == 403
        port = running.port
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.1", port)) == 0
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", port)) != 0
    assert not running.warnings


def test_a_port_in_use_is_said_or_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Running(port) as running:
            assert running.port != port
            assert running.warnings == [f"port {port} is in use: the viewer is on {running.port}"]
        with Running(port, exact=True) as refused:
            assert not refused.feed.url
            assert refused.feed.failure == f"port {port} is in use by another program"
            assert refused.warnings == [f"there is no viewer: {refused.feed.failure}"]


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux only")
def test_only_the_address_that_is_given_is_listened_on():
    """127.0.0.2 is this machine too: a server on all addresses answers there."""
    for host, elsewhere in (({}, False), ({"host": "0.0.0.0"}, True)):
        with Running(**host) as running:
            answers = []
            for address in ("127.0.0.1", "127.0.0.2"):
                with socket.socket() as other:
                    answers.append(other.connect_ex((address, running.port)) == 0)
            assert answers == [True, elsewhere]


def test_an_address_for_the_network_is_warned_of():
    for control, more in ((False, ""), (True, "and may change the node, ")):
        with Running(host="0.0.0.0", control=control) as running:
            assert running.get()[0] == 200
            assert running.get(Host="robot.local", Origin="http://evil.example")[0] == 403
            [text] = running.warnings
            assert text == (
                "the viewer is on 0.0.0.0: everyone in the network sees the images and the map, "
                f"{more}without a password"
            )


def test_an_address_that_is_not_of_this_machine_is_refused_in_a_line():
    with Running(host="203.0.113.7") as running:
        assert running.feed.failure.startswith("203.0.113.7: ")
        assert "\n" not in running.feed.failure


def test_nothing_is_read_while_nobody_looks_and_all_is_sent_to_who_comes():
    held = store()
    for i in range(20):
        held.add_frame(frame(i, np.eye(4), seed=i))
    with Running() as running:
        feed = running.feed
        feed.take_map("map", held, T_ROS_MAP)
        feed.take_state({"state": "active"})
        time.sleep(0.3)
        assert feed.sent_bytes == 0
        client = Client(running.port)
        running.until(lambda: feed.watched == 1)
        feed.take_map("map", held, T_ROS_MAP)
        running.until(lambda: feed.sent_bytes > 9 * len(held))
        client.close()
        running.until(lambda: feed.watched == 0)


def test_a_viewer_that_hangs_delays_nothing():
    """What it does not read in time is more than its pipe holds."""
    with Running(offered=Offered("a scene", ["map"], [""], (0.1, 10.0))) as running:
        feed = running.feed
        client = Client(running.port)
        running.until(lambda: feed.watched == 1)
        os.kill(feed._process._child.pid, signal.SIGSTOP)

        def feeds():
            for n in range(100):
                feed.take_frame("map", tracked(n, np.eye(4), ""), T_ROS_MAP, lambda: None)
                feed.take_map("map", held, T_ROS_MAP)
                feed.take_state({"state": "active"})

        held = store()
        for i in range(20):
            held.add_frame(frame(i, np.eye(4), seed=i))
        worker = threading.Thread(target=feeds, daemon=True)
        worker.start()
        worker.join(60)
        alive = worker.is_alive()
        os.kill(feed._process._child.pid, signal.SIGCONT)
        assert not alive
        client.close()


def test_a_large_submap_that_grows_is_sent_the_less_often(monkeypatch):
    """It is sent as a whole, which takes the time of the thread that owns the maps."""
    now, at_once = [100.0], 40
    monkeypatch.setattr("da3_ros.viewer.feed.MAX_POINTS_AT_ONCE", at_once)
    monkeypatch.setattr("da3_ros.viewer.feed.time", SimpleNamespace(monotonic=lambda: now[0]))
    read, update = [], MapReader.update

    def counted(*arguments):
        out = update(*arguments)
        read.append(out.count)
        return out

    monkeypatch.setattr(MapReader, "update", counted)
    held = store()
    with Running() as running:
        feed = running.feed
        client = Client(running.port)
        running.until(lambda: feed.watched)
        for i in range(60):
            held.add_frame(frame(i, np.eye(4), seed=i))
            feed.take_map("map", held, T_ROS_MAP)
            running.until(lambda: feed._scenes["map"].update is None)
            now[0] += 1.0
        client.close()
    assert max(read) > 10 * at_once
    assert sum(read) <= 60 * at_once + max(read)


def test_a_page_that_is_opened_later_gets_the_newest_frame_of_each_camera():
    offered = Offered("a scene", ["map"], ["left", "right"], (0.1, 10.0))
    with Running(offered=offered) as running:
        feed = running.feed
        for n, camera in enumerate(["left", "right", "left"]):
            feed.take_frame("map", tracked(n, np.eye(4), camera), T_ROS_MAP, lambda: None)
        client = Client(running.port)
        running.until(lambda: feed.watched)
        feed.take_frame("map", tracked(4, np.eye(4), "left"), T_ROS_MAP, lambda: None)
        feed.take_map("map", store(), T_ROS_MAP)
        running.until(lambda: feed.sent_bytes > 2 * 48 * 64 * 11)
        sent = feed.sent_bytes
        feed.take_map("map", store(), T_ROS_MAP, at_once=True)
        running.until(lambda: feed.sent_bytes > sent)
        assert feed.sent_bytes - sent < 48 * 64 * 11, "the same frames were sent again"
        client.close()


def test_a_viewer_that_ended_begins_again_and_gets_the_whole_map(monkeypatch):
    monkeypatch.setattr("da3_ros.viewer.feed.FIRST_RESTART_S", 0.1)
    held = store()
    held.add_frame(frame(0, np.eye(4)))
    with Running() as running:
        feed = running.feed
        client = Client(running.port)
        running.until(lambda: feed.watched)
        feed.take_map("map", held, T_ROS_MAP)
        running.until(lambda: feed.sent_bytes)
        first, sent = feed._process, feed.sent_bytes
        first._child.kill()
        running.until(lambda: feed.url and feed._process is not first)
        assert any("begins again" in text for text in running.warnings)
        client = Client(running.port)
        running.until(lambda: feed.watched)
        feed.take_map("map", held, T_ROS_MAP)
        running.until(lambda: feed.sent_bytes >= 1.9 * sent)
        client.close()


@pytest.mark.long
def test_what_cannot_be_shown_is_said_once_and_the_others_are_shown(monkeypatch):
    monkeypatch.setattr("da3_ros.viewer.feed.SETTLE_S", 0.0)
    held = store()
    held.add_frame(frame(0, np.eye(4)))
    with Running() as running:
        feed, process = running.feed, running.feed._process
        client = Client(running.port)
        running.until(lambda: feed.watched)
        feed.take_map("map", held, T_ROS_MAP)
        feed._answer(ViewerMessage("map", {"scene": "unknown"}))
        feed._answer(ViewerMessage("map", {"scene": "unknown"}))
        running.until(lambda: running.warnings)
        feed.take_settings({"parameters": {"a": object()}})  # JSON has no such thing
        running.until(lambda: feed._process is not process)
        running.until(lambda: feed.url)
        assert len(running.warnings) == 3, running.warnings
        assert running.warnings[0] == "viewer: map is not shown: KeyError: 'unknown'"
        assert "TypeError" in running.warnings[1]
        client.close()


def test_of_many_wishes_for_a_keyframe_the_newest_counts():
    offered = dataclasses.replace(OFFERED, keyframes=50)
    with Running(offered=offered) as running:
        feed, asked, go = running.feed, [], threading.Event()

        def keyframe(index):
            asked.append(index)
            go.wait(20)
            return "there is none"

        feed.keyframe = keyframe
        for index in range(50):
            event = {"event": "command", "name": "keyframe", "values": {"index": index}}
            feed._on_event(event)
            running.until(lambda: asked)
        go.set()
        running.until(lambda: asked == [0, 49])


def test_a_scene_that_begins_anew_is_sent_from_the_beginning(monkeypatch):
    """Ids of submaps begin at 0 again; of those on the disk nothing is sent."""
    held = store()
    held.add_frame(frame(0, np.eye(4)))
    with Running() as running:
        feed = running.feed
        client = Client(running.port)
        running.until(lambda: feed.watched)
        feed.take_map("map", held, T_ROS_MAP)
        running.until(lambda: feed.sent_bytes > 9 * len(held))
        kinds = []
        send = feed._process.send
        monkeypatch.setattr(
            feed._process, "send", lambda m: kinds.append((m.kind, dict(m.values))) or send(m)
        )
        feed.clear("map")
        other = store()
        other.add_frame(frame(1, np.eye(4), seed=1))
        monkeypatch.setattr(other.points, "is_in_memory", lambda submap: False)
        feed.take_map("map", other, T_ROS_MAP, at_once=True)
        running.until(lambda: len(kinds) == 2)
        assert [kind for kind, _ in kinds] == ["anew", "map"]
        assert kinds[1][1]["submaps"] == []
        client.close()


def test_a_viewer_that_does_not_answer_is_ended_at_once():
    with Running() as running:
        running.feed._process._child.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        running.feed.close()
        assert running.feed._process._child.poll() is not None
        assert time.monotonic() - begin < 3.0  # it took its whole patience, over four seconds


def test_commands_are_refused_unless_the_node_allows_them():
    with Running() as running:
        asked = []
        running.feed.commands = lambda name, values: asked.append(name) or (True, "")
        event = {"event": "command", "name": "reset", "values": {}}
        running.feed._on_event(json.loads(json.dumps(event)))
        time.sleep(0.2)
        assert not asked
    with Running(control=True) as running:
        running.feed.commands = lambda name, values: asked.append(name) or (True, "")
        running.feed._on_event(event)
        running.until(lambda: asked == ["reset"])


def test_values_in_force_are_shown_again_after_a_command_that_is_refused(monkeypatch):
    """The page shows what its user wished; the node goes on with the same values."""
    now = [100.0]
    monkeypatch.setattr("da3_ros.viewer.feed.time", SimpleNamespace(monotonic=lambda: now[0]))
    values = {"enabled": True, "parameters": {"obstacles.max_height": 2.0}}
    wish = {"name": "obstacles.max_height", "value": 0.05}
    with Running(control=True) as running:
        feed, sent = running.feed, []
        send = feed._process.send
        monkeypatch.setattr(feed._process, "send", lambda m: sent.append(m.kind) or send(m))
        feed.commands = lambda name, values: (False, "must be above obstacles.min_height")

        def settings_after(count):
            for _ in range(3):
                feed.take_settings(values)
            feed.take_state({})
            running.until(lambda: sent.count("state") == count)
            return sent.count("settings")

        feed.watched = 1
        assert settings_after(1) == 1
        feed._on_event({"event": "command", "name": "set", "values": wish})
        running.until(lambda: "answer" in sent)
        assert settings_after(2) == 1, "its user may still be typing"
        now[0] += SETTLE_S
        assert settings_after(3) == 2
        feed._busy = MOST_COMMANDS
        feed._on_event({"event": "command", "name": "set", "values": wish})
        now[0] += SETTLE_S
        assert settings_after(4) == 3
