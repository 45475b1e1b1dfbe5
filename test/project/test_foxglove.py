"""The Foxglove layout against our topics and messages.

What a layout is made of is in Foxglove's documentation (docs.foxglove.dev, pages on layouts and on
each panel); it was not opened in the program here.
"""

import json
import re
from pathlib import Path

from da3_ros.config import NodeConfig
from da3_ros.messages.outputs import output_topics

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = json.loads((ROOT / "foxglove" / "da3_ros.json").read_text())
PANELS = LAYOUT["configById"]
KINDS = {f"/da3/{name}": row.type for name, row in output_topics().items()}
KINDS |= {"/da3/status": "da3_ros/msg/Status"}
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
    (status,) = of_kind("RawMessages")
    assert status["topicPath"] in KINDS
