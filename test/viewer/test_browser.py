"""The viewer in a browser: what is really shown."""

import dataclasses

import numpy as np
import pytest
from support.browser import CHROMIUM, Browser, wait_for
from support.scenes import frame, store
from support.viewers import OFFERED, Running, tracked

from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.graph_solution import Correction
from da3_ros.viewer.encode import frame_message
from da3_ros.viewer.feed import Offered

pytest.importorskip("viser")
pytestmark = [
    pytest.mark.process, pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium"),
]  # fmt: skip
FIELD = "[...document.querySelectorAll('input')].find(e => e.value.startsWith('2'))"
VALUES = "[...document.querySelectorAll('input')].map(e => e.value).join()"
PANEL = 480  # pixels at the right that the panel may cover


def drawn(browser):
    """Returns a mask [h, w] of pixels on which something of the scene is drawn."""
    picture = browser.picture()[:, : -PANEL or None]
    picture = picture[220:]  # below what the browser says about software rendering
    return (np.abs(picture.astype(int) - 255) > 12).any(axis=2)


def show(running, held):
    running.feed.take_map("map", held, T_ROS_MAP, at_once=True)


def test_a_map_appears_grows_and_moves_with_a_loop():
    held = store()
    for i in range(4):
        held.add_frame(frame(i, np.eye(4), seed=i))
    with Running() as running, Browser() as browser:
        browser.open(running.feed.url)
        running.until(lambda: running.feed.watched)
        wait_for(lambda: "Cameras" in browser.text(), "the panel")
        show(running, held)
        wait_for(lambda: drawn(browser).mean() > 0.02, "points")
        before = drawn(browser).sum()
        for i in range(4, 40):
            T = np.eye(4)
            T[0, 3] = 0.2 * i
            held.add_frame(frame(i, T, seed=i))
        show(running, held)
        wait_for(lambda: abs(drawn(browser).sum() - before) > 0.2 * before, "more points")
        wait_for(lambda: running.feed._scenes["map"].update is None, "all sent")
        sent, picture = running.feed.sent_bytes, drawn(browser)
        moved = Similarity(1.0, np.eye(3), np.array([0.0, -2.0, 1.0]))
        here = held.table.T_map_local
        held.table.correct(Correction({0: moved}, here, here))
        show(running, held)
        wait_for(lambda: (drawn(browser) != picture).mean() > 0.02, "the loop's correction")
        assert running.feed.sent_bytes - sent < 50_000, "points were sent again"
        running.feed.clear("map")
        show(running, store())
        wait_for(lambda: drawn(browser).mean() < 0.01, "an empty map")
        assert not browser.errors


@pytest.mark.long
def test_pictures_state_and_legend_are_on_the_page_of_a_phone_too():
    with Running() as running, Browser(390, 844) as browser:
        browser.open(running.feed.url)
        running.until(lambda: running.feed.watched)
        running.feed.take_frame("map", tracked(10**9, np.eye(4)), T_ROS_MAP, lambda: None)
        running.feed.take_state({"state": "active", "dropped_busy": "3", "health": "<b>ok"})
        wait_for(lambda: "scene units" in browser.text(), "the frame")
        tabs = "[...document.querySelectorAll('[role=tab]')].map(e => e.getBoundingClientRect())"
        inside = "0 <= box.left && box.left < box.right && box.right <= 390 && box.bottom < 844"
        wait_for(lambda: browser.run(f"{tabs}.filter(box => {inside}).length === 4"), "the tabs")
        wide = browser.run("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
        assert not browser.errors


@pytest.mark.long
def test_a_frame_is_shown_with_its_texts_and_hidden_without_a_pose():
    with Running() as running, Browser() as browser:
        browser.open(running.feed.url)
        running.until(lambda: running.feed.watched)
        running.feed.take_frame("map", tracked(10**9, np.eye(4)), T_ROS_MAP, lambda: None)
        wait_for(lambda: "scene units" in browser.text(), "the depth's unit")
        assert "Stamp 1.000 s" in browser.text()

        def red():
            picture = browser.picture().astype(int)
            return ((picture[..., 0] > 150) & (picture[..., 1:] < 60).all(axis=2)).sum()

        wait_for(lambda: red() > 1500, "the picture")
        running.feed.clear("map")
        wait_for(lambda: "no frame yet" in browser.text(), "a page without frames")
        assert red() < 1500
        lost = np.full((4, 4), np.nan)
        running.feed.take_frame("map", tracked(2 * 10**9, lost), T_ROS_MAP, lambda: None)
        wait_for(lambda: "The pose is not known" in browser.text(), "that the pose is unknown")
        running.feed.take_state({"state": "active", "dropped_busy": "3", "health": "<b>ok"})
        browser.click("State", "[role=tab]", until="Dropped")
        assert "Dropped: busy\t3" in browser.text()
        assert "<b>ok" in browser.text()
        browser.click("Legend", "[role=tab]", until="Blue lines")
        wait_for(lambda: "red is near, blue is far" in browser.text(), "the legend")
        assert "Control" not in browser.text()
        assert not browser.errors


@pytest.mark.long
def test_controls_ask_the_node_and_show_its_answers():
    settings = [
        {"name": "depth.min_confidence", "value": 0.0, "text": "a bound", "low": 0.0,
         "high": None, "choices": []},
        {"name": "mode", "value": "mapping", "text": "", "low": None, "high": None,
         "choices": ["mapping", "localization"]},
        {"name": "depth.edge_filter", "value": True, "text": "", "low": None, "high": None,
         "choices": []},
    ]  # fmt: skip
    offered = dataclasses.replace(OFFERED, controls={"suffixes": [".glb"], "settings": settings})
    asked = []

    def answer(name, values):
        asked.append((name, dict(values)))
        return name != "save", f"{name} was asked"

    with Running(offered=offered, control=True) as running, Browser() as browser:
        running.feed.commands = answer
        browser.open(running.feed.url)
        running.until(lambda: running.feed.watched)
        browser.click("Control", "[role=tab]", until="Export")
        browser.click("Export")
        wait_for(lambda: "export was asked" in browser.text(), "the answer")
        browser.click("Save the scene")
        wait_for(lambda: "save was asked" in browser.text(), "the answer")
        assert asked == [("export", {"path": "room.glb"}), ("save", {"path": "room"})]
        browser.click("Reset")
        in_force = {"depth.min_confidence": 1.5, "mode": "localization"}

        def is_shown():
            running.feed.take_settings({"enabled": False, "parameters": in_force})
            return "1.5" in browser.run(VALUES)

        wait_for(is_shown, "the value in force")
        assert "localization" in browser.run(VALUES)
        assert len(asked) == 2, "values in force, or a reset that nobody confirmed, were sent"
        assert not browser.errors


@pytest.mark.long
def test_a_value_that_the_node_refuses_leaves_the_page():
    """Also pages that are opened later."""
    setting = {"name": "obstacles.max_height", "value": 2.0, "text": "", "low": 0.01,
               "high": None, "choices": []}  # fmt: skip
    offered = dataclasses.replace(OFFERED, controls={"suffixes": [".glb"], "settings": [setting]})
    in_force = {"enabled": True, "parameters": {"obstacles.max_height": 2.0}}
    asked = []
    with Running(offered=offered, control=True) as running:
        running.feed.commands = lambda name, values: (asked.append(values), (False, "no"))[1]
        running.feed.take_settings(in_force)
        with Browser() as browser:
            browser.open(running.feed.url)
            browser.click("Control", "[role=tab]", until="Export")
            browser.run(f"(() => {{const e = {FIELD}; e.focus(); e.select()}})()")
            browser.call("Input.insertText", text="0.05")
            browser.run("document.activeElement.blur()")
            wait_for(lambda: asked, "the wish")
            assert "0.05" in browser.run(VALUES)

            def is_back():
                running.feed.take_settings(in_force)  # as the node does each second
                return "0.05" not in browser.run(VALUES)

            wait_for(is_back, "the value in force")
        with Browser() as browser:
            browser.open(running.feed.url)
            browser.click("Control", "[role=tab]", until="Export")
            wait_for(lambda: "room" in browser.run(VALUES), "the fields")
            assert "0.05" not in browser.run(VALUES)
            assert browser.run(f"{FIELD} !== undefined")


def test_offered_names_are_those_of_messages():
    one = Offered("title", ["a"], ["left", "right"], (0.1, 10.0), keyframes=3).message()
    assert one.values["cameras"] == ["left", "right"]
    frame_of = frame_message("a", tracked(1, np.eye(4), "left"), np.eye(4), None, (0.1, 10.0))
    assert frame_of.values["camera"] in one.values["cameras"]
