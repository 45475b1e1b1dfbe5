"""What the worker leaves for the page: tracks, the share of measured depth, colours of depth."""

import dataclasses
import queue
from types import SimpleNamespace

import numpy as np
import pytest
from support.scenes import store
from support.viewers import tracked

from da3_ros.config import DepthConfig, NodeConfig, config_from_parameters
from da3_ros.drawing.colormaps import color_table
from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.live import live_view
from da3_ros.live.live_view import LiveView
from da3_ros.refinement.track_history import TrackHistory
from da3_ros.types import Scale
from da3_ros.viewer import feed
from da3_ros.viewer.camera_pictures import pictures_of

TRACKS = TrackHistory(
    np.array([[[0.2, 0.5], [0.5, 0.5]], [[0.7, 0.2], [0.8, 0.3]]]), np.array([0.0, 0.0])
)
RANGE_M = (0.5, 4.0)


class Process:
    """Takes messages as the viewer's process does."""

    last_words = ""

    def __init__(self, host, port, on_event, *, exact):
        self.frames = queue.Queue()

    def send(self, message):
        if message.kind == "frame":
            self.frames.put(message)
        return 0

    def close(self):
        pass


@pytest.fixture
def view(monkeypatch):
    monkeypatch.setattr(feed, "ViewerProcess", Process)
    monkeypatch.setattr(feed, "FRAME_PERIOD_S", 0.0)
    monkeypatch.setattr(live_view, "missing", lambda: "")
    config = config_from_parameters({"depth.color_range_m": list(RANGE_M)}, NodeConfig)
    view = LiveView(config, ["map"], print)
    view.feed.watched = 1
    yield view
    view.feed.close()


def stream_of(*, keyframes=4, share=0.25, range_m=RANGE_M):
    """A stream whose refiner knows tracks of every frame."""
    scene_map = SimpleNamespace(
        T_ros_map=T_ROS_MAP,
        dense=SimpleNamespace(so_far=SimpleNamespace(keyframes=keyframes, share=share)),
    )
    refiner = SimpleNamespace(track_history=lambda id: TRACKS)
    refinement = SimpleNamespace(refiner=refiner)
    return SimpleNamespace(
        pipeline=SimpleNamespace(
            map=store(),
            scene_map=scene_map,
            refinement=refinement,
            config=SimpleNamespace(depth=DepthConfig(color_range_m=range_m)),
        )
    )


def frame(*, refined=True, blind="", depth=None):
    one = tracked(1, np.eye(4))
    window = dataclasses.replace(one.window, refined=refined)
    depth_m = one.depth_m if depth is None else np.full_like(one.depth_m, depth)
    return dataclasses.replace(
        one, window=window, blind=blind, depth_m=depth_m, scale=Scale("fixed", 1.0, 0.0)
    )


def shown(view, one, stream=None):
    view.show("map", stream or stream_of(), one)
    return view.feed._process.frames.get(timeout=60)


def test_tracks_of_a_refined_frame_are_drawn_and_of_no_other(view):
    message = shown(view, frame())
    np.testing.assert_array_equal(
        message.arrays["track_position"], TRACKS.position.astype(np.float32)
    )
    image = pictures_of(message, tracks=True).image.astype(int)
    green = (image[..., 1] > 150) & (image[..., 0] < 100)
    assert green[image.shape[0] // 2, image.shape[1] * 35 // 100]  # on the first one's line
    for other in (frame(refined=False), frame(blind="dark")):
        assert "track_position" not in shown(view, other).arrays


def test_the_share_of_measured_depth_is_told_once_there_is_a_keyframe(view):
    caption = pictures_of(shown(view, frame()), tracks=False).caption
    assert "Measured depth: 25 % of the pixels of keyframes" in caption
    none = shown(view, frame(), stream_of(keyframes=0, share=float("nan")))
    assert "Measured" not in pictures_of(none, tracks=False).caption


def test_metric_depth_has_the_colours_of_its_range(view):
    table = color_table("spectral")
    for depth_m, color in ((RANGE_M[0], table[0]), (sum(RANGE_M) / 2, table[128]),
                           (RANGE_M[1], table[255])):  # fmt: skip
        pictures = pictures_of(shown(view, frame(depth=depth_m)), tracks=False)
        np.testing.assert_allclose(pictures.depth[0, 0].astype(int), color.astype(int), atol=8)
        assert "Depth: 0.50 (red) to 4.00 (blue) m" in pictures.caption
    other = shown(view, frame(depth=2.0), stream_of(range_m=(2.0, 3.0)))  # it has changed
    assert "Depth: 2.00 (red) to 3.00 (blue) m" in pictures_of(other, tracks=False).caption
