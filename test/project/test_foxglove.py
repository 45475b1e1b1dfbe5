"""The Foxglove layouts against our topics and messages: of a replay's file, and of a live node.

What a layout is made of is in Foxglove's documentation (docs.foxglove.dev, pages on layouts and on
each panel); it was not opened in the program here.
"""

import json
import re
from pathlib import Path

import mcap.reader
import pytest

from da3_ros.cli.arguments import load_config
from da3_ros.config import NodeConfig
from da3_ros.messages.outputs import output_topics
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

ROOT = Path(__file__).resolve().parents[2]
LAYOUT, LIVE = (
    json.loads((ROOT / "foxglove" / name).read_text())
    for name in ("da3_ros.json", "da3_ros_live.json")
)
MESSAGE = "RawMessages!message"  # the panel in which the two differ
PANELS = LAYOUT["configById"]
KINDS = {f"/da3/{name}": row.type for name, row in output_topics().items()}
LIVE_KINDS = KINDS | {"/da3/status": "da3_ros/msg/Status"}  # a replay has none
IN_SPACE = {"sensor_msgs/msg/PointCloud2", "nav_msgs/msg/Path", "nav_msgs/msg/OccupancyGrid",
            "geometry_msgs/msg/PoseWithCovarianceStamped"}  # fmt: skip


def placed(node):
    """Panels in the layout, each split in two or a panel."""
    if isinstance(node, str):
        return [node]
    assert set(node) == {"direction", "first", "second", "splitPercentage"}
    assert node["direction"] in ("row", "column")
    return placed(node["first"]) + placed(node["second"])


def of_kind(kind):
    return [panel for name, panel in PANELS.items() if name.startswith(f"{kind}!")]


def fields_of(kind):
    package, _, name = kind.split("/")
    assert package == "da3_ros"
    text = (ROOT / "msg" / f"{name}.msg").read_text()
    return set(re.findall(r"^[\w/]+(?:\[\d*\])? (\w+)", text, re.MULTILINE))


def test_every_panel_has_a_place_and_every_place_a_panel():
    assert sorted(placed(LAYOUT["layout"])) == sorted(PANELS)
    assert {"configById", "globalVariables", "userNodes", "playbackConfig", "layout"} == set(
        LAYOUT
    )


def test_images_are_our_coloured_ones():
    shown = [panel["imageMode"]["imageTopic"] for panel in of_kind("Image")]
    assert len(set(shown)) == 3
    assert {KINDS[topic] for topic in shown} == {"sensor_msgs/msg/Image"}


def test_the_map_shows_our_topics_in_our_frame():
    assert len(of_kind("3D")) == 2
    for panel in of_kind("3D"):
        assert panel["followTf"] == NodeConfig().map_frame
        assert {KINDS[topic] for topic in panel["topics"]} == IN_SPACE
        assert {layer["frameId"] for layer in panel["layers"].values()} == {panel["followTf"]}
        assert panel["publish"]["poseEstimateTopic"] == "/initialpose"
    assert sorted(panel["cameraState"]["perspective"] for panel in of_kind("3D")) == [False, True]


def test_plots_and_messages_are_of_fields_that_exist():
    paths = [path["value"] for panel in of_kind("Plot") for path in panel["paths"]]
    assert len(paths) == 4
    for path in paths:
        topic, field = path.split(".")
        assert field in fields_of(KINDS[topic])
    for layout, kinds in ((LAYOUT, KINDS), (LIVE, LIVE_KINDS)):
        assert layout["configById"][MESSAGE]["topicPath"] in kinds


def test_the_live_layout_is_that_of_a_replay_with_the_status():
    assert LIVE["configById"][MESSAGE]["topicPath"] == "/da3/status"
    panels = LIVE["configById"] | {MESSAGE: PANELS[MESSAGE]}
    assert LIVE | {"configById": panels} == LAYOUT


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The topics with messages in the output.mcap of a replay with metres and a floor."""
    folder = tmp_path_factory.mktemp("foxglove")
    camera = SyntheticCamera(seed=2, size=(140, 112), walk="loop", frames=6)
    write_synthetic_bag(folder / "room", camera)
    values = ("model:=da3-tiny", "checkpoint:=random", "process_res:=140", "window.size:=4",
              "scale.source:=fixed", "level.source:=ground", "backend:=torch")  # fmt: skip
    options = ReplayOptions(folder / "room", folder / "out")
    replay(options, load_config(None, values), TruthSession(camera))
    with (folder / "out" / "output.mcap").open("rb") as file:
        return {channel.topic for _, channel, _ in mcap.reader.make_reader(file).iter_messages()}


def test_every_topic_of_the_layout_is_in_the_file_of_a_replay(recorded):
    shown = {topic for panel in of_kind("3D") for topic in panel["topics"]}
    shown |= {panel["imageMode"]["imageTopic"] for panel in of_kind("Image")}
    shown |= {path["value"].split(".")[0] for panel in of_kind("Plot") for path in panel["paths"]}
    shown.add(PANELS[MESSAGE]["topicPath"])
    assert shown <= recorded
