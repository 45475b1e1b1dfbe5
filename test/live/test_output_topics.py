"""Topics from outside: a row with its builder is published, if somebody has subscribed."""

import numpy as np
import pytest
from support.streams import as_messages, stream_of

from da3_ros.messages.outputs import FRAME_TOPICS, SCENE_TOPICS, FrameTopic, SceneTopic, topics
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

FLOAT, COUNT = "std_msgs/msg/Float32", "std_msgs/msg/UInt32"
FRAMES = 4


class Toys:
    """A topic of frames and two of the scene; counts what was built."""

    def __init__(self):
        self.built = {"nearest": 0, "length": 0, "map/size": 0}

    def nearest(self, stream, frame):
        return self._made("nearest", stream, FLOAT, float(np.nanmin(frame.depth_m)))

    def length(self, stream, views, stamp_ns):
        return self._made("length", stream, COUNT, len(views.path()))

    def size(self, stream, views, stamp_ns):
        return self._made("map/size", stream, COUNT, len(views.scene()))

    def _made(self, name, stream, kind, value):
        self.built[name] += 1
        return stream.lib.type(kind)(data=value)


@pytest.fixture
def toys(monkeypatch):
    toys = Toys()
    row = FrameTopic(type=FLOAT, text="nearest depth", build=toys.nearest)
    monkeypatch.setitem(FRAME_TOPICS, "nearest", row)
    for name, build, on_change in (("length", toys.length, False), ("map/size", toys.size, True)):
        row = SceneTopic(type=COUNT, text="", build=build, period_s=0.0, on_change=on_change)
        monkeypatch.setitem(SCENE_TOPICS, name, row)
    return toys


def shown(wanted):
    """What a stream of a few frames publishes while these topics have subscribers."""
    camera = SyntheticCamera(seed=2, size=(112, 84), walk="straight", frames=FRAMES)
    stream, host = stream_of(TruthSession(camera), **{"window.size": 3})
    host.has_subscribers = lambda topic: topic in wanted
    for raw in as_messages(camera, host.lib):
        stream.put(raw)
        while stream.step():
            pass
    stream.publish_map()
    return host


def values(host, name, kind):
    return [
        host.lib.store.deserialize_cdr(m, kind).data for topic, m in host.sent if topic == name
    ]


def test_toy_topics_are_published_to_subscribers(toys):
    host = shown(toys.built)
    assert {topic for topic, _ in host.sent} == set(toys.built)
    nearest = values(host, "nearest", FLOAT)
    assert len(nearest) == FRAMES
    assert all(0 < depth < 20 for depth in nearest)
    assert values(host, "length", COUNT)[-1] == FRAMES
    assert values(host, "map/size", COUNT)[-1] > 100


@pytest.mark.parametrize("name", ["nearest", "length", "map/size"])
def test_a_toy_topic_without_a_subscriber_is_not_built(toys, name):
    others = set(toys.built) - {name}
    assert {topic for topic, _ in shown(others).sent} == others
    assert toys.built[name] == 0


def test_toy_topics_have_prefixes_as_others_do(toys):
    rows = dict(topics(["front", "left"], [""]))
    assert rows["front/nearest"].type == rows["left/nearest"].type == FLOAT
    assert {"length", "map/size"} <= set(rows)
    rows = dict(topics(["front"], ["front"]))
    assert {"front/length", "front/map/size", "front/window"} <= set(rows)
