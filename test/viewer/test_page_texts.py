"""Texts and pictures of the page."""

import html.parser

import numpy as np

from da3_ros.viewer.camera_pictures import pictures_of
from da3_ros.viewer.page_texts import ROWS, note, state_table, unconnected_text
from da3_ros.viewer.wire import ViewerMessage

EVIL = "<img src=x onerror=alert(1)>&{}`|"


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.data = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.data.append(data)


def test_the_state_names_units_drops_and_what_is_unknown():
    values = {
        "state": "active", "latency_median_s": "0.254321", "scale": "nan", "dropped_busy": "7",
        "map_points": "123456", "dense_keyframes": "0", "dense_share": "0",
        "blind_dark": "2", "refined": "yes", "last_error": "",
    }  # fmt: skip
    text = " ".join(Tags(state_table(values, "1 component is not shown")).data)
    assert "Latency, median 0.254 s" in text
    assert "Points in the map 123456" in text
    assert "Measured depth of keyframes unknown" in text
    assert "Scale unknown" in text
    assert "Dropped: busy 7" in text
    assert "Without depth: dark 2" in text
    assert "All diagnostics refined yes" in text
    assert "Last error" not in text
    assert "1 component is not shown" in text


def test_nothing_from_outside_becomes_part_of_the_page():
    values = dict.fromkeys(ROWS, EVIL) | {EVIL: EVIL, f"dropped_{EVIL}": EVIL}
    found = Tags(state_table(values, EVIL) + note(EVIL))
    assert found.tags <= {"table", "tr", "td", "div", "details", "summary", "br"}
    assert sum(EVIL in data for data in found.data) == len(ROWS) + 2 + 2 + 2


def test_unconnected_components_are_counted():
    assert unconnected_text(0) == ""
    assert unconnected_text(1).startswith("1 component is")
    assert unconnected_text(3).startswith("3 components are")


def frame(depth, metric=False, pose=True, tracks=False):
    arrays = {
        "image": np.full((*depth.shape, 3), 200, np.uint8), "depth": depth,
        "confidence": np.full(depth.shape, 2.0, np.float32), "K": np.eye(3),
        "T_ros_camera": np.eye(4) if pose else np.full((4, 4), np.nan),
    }  # fmt: skip
    if tracks:
        arrays["track_position"] = np.full((1, 8, 2), 0.5, np.float32)
        arrays["track_error_px"] = np.zeros(1, np.float32)
    values = {"scene": "map", "camera": "", "stamp_ns": 1_500_000_000, "note": "<b>",
              "metric": metric, "range": [0.5, 4.0] if metric else None}  # fmt: skip
    return ViewerMessage("frame", values, arrays)


def test_pictures_say_what_their_colours_mean():
    depth = np.linspace(1, 3, 48, dtype=np.float32).reshape(6, 8)
    depth[0, 0], depth[0, 1] = np.nan, np.inf
    pictures = pictures_of(frame(depth), tracks=True)
    assert "1.5" in pictures.caption
    assert "scene units" in pictures.caption
    assert "&lt;b&gt;" in pictures.caption
    assert (pictures.depth[0, 0] == 0).all()
    assert pictures.image.shape == pictures.depth.shape == pictures.confidence.shape
    metric = pictures_of(frame(depth, metric=True), tracks=True).caption
    assert "0.50 (red) to 4.00 (blue) m" in metric
    assert "not known" in pictures_of(frame(depth, pose=False), tracks=True).caption


def test_pictures_without_any_depth_and_large_ones():
    nothing = np.full((6, 8), np.nan, np.float32)
    assert not pictures_of(frame(nothing), tracks=True).depth.any()
    large = pictures_of(frame(np.ones((756, 1008), np.float32), tracks=True), tracks=True)
    assert large.image.shape == large.depth.shape == (315, 420, 3)


def test_tracks_are_drawn_if_they_are_asked_for():
    depth = np.ones((60, 80), np.float32)
    plain = pictures_of(frame(depth, tracks=True), tracks=False)
    drawn = pictures_of(frame(depth, tracks=True), tracks=True)
    assert (plain.image == 200).all()
    assert (drawn.image[157, 210] != drawn.image[0, 0]).any()
