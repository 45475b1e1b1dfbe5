"""The RViz configs against what RViz reads: any other key is a setting without effect.

The tables below are facts from RViz's sources (ros2/rviz, branches humble, jazzy and rolling of
October 2024); a name stands here only if all three read it. Where they come from:

* rviz_common, src: visualization_frame.cpp, visualization_manager.cpp, panel.cpp,
  displays_panel.cpp, panel_dock_widget.cpp, display.cpp, display_group.cpp, tool.cpp,
  tool_manager.cpp, view_manager.cpp, view_controller.cpp,
  frame_position_tracking_view_controller.cpp, transformation/transformation_manager.cpp;
  properties/: property.cpp, property_tree_widget.cpp, property_tree_with_help.cpp,
  qos_profile_property.cpp, vector_property.cpp, covariance_property.cpp;
  include: ros_topic_display.hpp, message_filter_display.hpp.
* rviz_default_plugins, src: displays/ grid/grid_display.cpp, tf/tf_display.cpp,
  image/image_display.cpp, map/map_display.cpp, pointcloud/point_cloud_common.cpp and
  transformers/*.cpp, path/path_display.cpp, odometry/odometry_display.cpp; tools/
  interaction/interaction_tool.cpp, measure/measure_tool.cpp,
  pose_estimate/initial_pose_tool.cpp; view_controllers/
  orbit/orbit_view_controller.cpp, ortho/fixed_orientation_ortho_view_controller.cpp.
"""

import copy
import re
from pathlib import Path

import pytest
import yaml

from da3_ros.config import MapConfig

FILES = sorted((Path(__file__).resolve().parents[2] / "rviz").glob("*.rviz"))
CONFIGS = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
CONFIG = CONFIGS["da3"]
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))

NUMBER, SWITCH, TEXT, COLOR = "number", "true or false", "text", "three numbers with semicolons"
VECTOR = {"X": NUMBER, "Y": NUMBER, "Z": NUMBER}
DISPLAY = {"Class": TEXT, "Name": TEXT, "Enabled": SWITCH, "Value": SWITCH}
TOPIC = {
    "Value": TEXT,
    "Depth": NUMBER,
    "History Policy": {"System Default", "Keep Last", "Keep All"},
    "Reliability Policy": {"System Default", "Reliable", "Best Effort"},
    "Durability Policy": {"System Default", "Transient Local", "Volatile"},
}
# Of displays that wait for transforms in a message filter. From Jazzy on point clouds have none:
# they derive from point_cloud_transport_display.hpp there.
FILTERED = {**TOPIC, "Filter size": NUMBER}
# "Axis Color", "Flat Color" and "Intensity" have their properties beside the display's own.
TRANSFORMERS = {
    "Axis": {"X", "Y", "Z"}, "Autocompute Value Bounds": {
        "Value": SWITCH, "Min Value": NUMBER, "Max Value": NUMBER},
    "Use Fixed Frame": SWITCH, "Color": COLOR, "Channel Name": TEXT, "Use rainbow": SWITCH,
    "Invert Rainbow": SWITCH, "Min Color": COLOR, "Max Color": COLOR,
    "Autocompute Intensity Bounds": SWITCH, "Min Intensity": NUMBER, "Max Intensity": NUMBER,
}  # fmt: skip
DISPLAYS = {
    "Grid": {
        "Reference Frame": TEXT, "Plane Cell Count": NUMBER, "Normal Cell Count": NUMBER,
        "Cell Size": NUMBER, "Color": COLOR, "Alpha": NUMBER, "Plane": {"XY", "XZ", "YZ"},
        "Line Style": {"Value": {"Lines", "Billboards"}, "Line Width": NUMBER}, "Offset": VECTOR,
    },
    "TF": {
        "Show Names": SWITCH, "Show Axes": SWITCH, "Show Arrows": SWITCH, "Marker Scale": NUMBER,
        "Update Interval": NUMBER, "Frame Timeout": NUMBER, "Tree": {},
        "Frames": {"All Enabled": SWITCH, "*": {"Value": SWITCH}},  # frames by their names
    },
    "Image": {
        "Topic": TOPIC, "Normalize Range": SWITCH, "Min Value": NUMBER, "Max Value": NUMBER,
        "Median window": NUMBER,
    },
    "PointCloud2": {
        "Topic": TOPIC, "Selectable": SWITCH, "Size (m)": NUMBER, "Size (Pixels)": NUMBER,
        "Style": {"Points", "Squares", "Flat Squares", "Spheres", "Boxes", "Tiles"},
        "Alpha": NUMBER, "Decay Time": NUMBER, "Position Transformer": {"XYZ"},
        "Color Transformer": {"RGB8", "RGBF32", "Intensity", "AxisColor", "FlatColor"},
        **TRANSFORMERS,
    },
    "Map": {
        "Topic": FILTERED, "Update Topic": TOPIC, "Alpha": NUMBER,
        "Color Scheme": {"map", "costmap", "raw"}, "Draw Behind": SWITCH, "Use Timestamp": SWITCH,
    },
    "Path": {
        "Topic": FILTERED, "Line Style": {"Lines", "Billboards"}, "Line Width": NUMBER,
        "Color": COLOR, "Alpha": NUMBER, "Buffer Length": NUMBER, "Offset": VECTOR,
        "Pose Style": {"None", "Axes", "Arrows"}, "Length": NUMBER, "Radius": NUMBER,
        "Pose Color": COLOR, "Shaft Length": NUMBER, "Head Length": NUMBER,
        "Shaft Diameter": NUMBER, "Head Diameter": NUMBER,
    },
    "Odometry": {
        "Topic": FILTERED, "Position Tolerance": NUMBER, "Angle Tolerance": NUMBER,
        "Keep": NUMBER,
        "Shape": {
            "Value": {"Arrow", "Axes"}, "Color": COLOR, "Alpha": NUMBER, "Shaft Length": NUMBER,
            "Shaft Radius": NUMBER, "Head Length": NUMBER, "Head Radius": NUMBER,
            "Axes Length": NUMBER, "Axes Radius": NUMBER,
        },
        "Covariance": {
            "Value": SWITCH,
            "Position": {"Value": SWITCH, "Color": COLOR, "Alpha": NUMBER, "Scale": NUMBER},
            "Orientation": {
                "Value": SWITCH, "Frame": {"Local", "Fixed"}, "Color Style": {"Unique", "RGB"},
                "Color": COLOR, "Alpha": NUMBER, "Offset": NUMBER, "Scale": NUMBER,
            },
        },
    },
}  # fmt: skip
TOOLS = {
    "Interact": {"Hide Inactive Objects": SWITCH},
    "MoveCamera": {},
    "Select": {},
    "FocusCamera": {},
    "Measure": {"Line color": COLOR},
    "SetInitialPose": {
        "Topic": TOPIC, "Covariance x": NUMBER, "Covariance y": NUMBER, "Covariance yaw": NUMBER,
    },
}  # fmt: skip
PANELS = {
    "Displays": {
        "Help Height": NUMBER,
        "Tree Height": NUMBER,
        "Property Tree Widget": {"Expanded": [TEXT], "Splitter Ratio": NUMBER},
    }
}
ORBIT = {
    "Name": TEXT, "Value": TEXT, "Target Frame": TEXT, "Distance": NUMBER, "Yaw": NUMBER,
    "Pitch": NUMBER, "Focal Point": VECTOR, "Focal Shape Size": NUMBER,
    "Focal Shape Fixed Size": SWITCH, "Near Clip Distance": NUMBER, "Invert Z Axis": SWITCH,
    "Enable Stereo Rendering": {
        "Value": SWITCH, "Swap Stereo Eyes": SWITCH, "Stereo Eye Separation": NUMBER,
        "Stereo Focal Distance": NUMBER,
    },
}  # fmt: skip
COMMON = ("Name", "Value", "Target Frame", "Near Clip Distance", "Invert Z Axis",
          "Enable Stereo Rendering")  # fmt: skip
TOP_DOWN = {name: ORBIT[name] for name in COMMON} | {
    "Angle": NUMBER, "Scale": NUMBER, "X": NUMBER, "Y": NUMBER,
}  # fmt: skip
VIEWS = {"Orbit": ORBIT, "TopDownOrtho": TOP_DOWN}
GLOBAL = {"Fixed Frame": TEXT, "Background Color": COLOR, "Frame Rate": NUMBER}
GEOMETRY = {
    "X": NUMBER, "Y": NUMBER, "Width": NUMBER, "Height": NUMBER, "QMainWindow State": TEXT,
    "Hide Left Dock": SWITCH, "Hide Right Dock": SWITCH,
}  # fmt: skip


def of_class(tables, package):
    """A check of something with a class: its table by the class, and what all of them have."""
    base = {"Class": TEXT} if package == "tool" else {"Class": TEXT, "Name": TEXT}
    base = DISPLAY if package == "display" else base
    library = "rviz_common" if package == "panel" else "rviz_default_plugins"

    def table(value):
        given, _, name = str(value.get("Class")).partition("/")
        return {**base, **tables[name]} if given == library and name in tables else None

    return table


def whole(config):
    """The table of a whole config; windows with images are docks of their own names."""
    displays = config["Visualization Manager"]["Displays"]
    docks = [p["Name"] for p in config["Panels"]]
    docks += [d["Name"] for d in displays if d["Class"].endswith("/Image")]
    return {
        "Panels": [of_class(PANELS, "panel")],
        "Visualization Manager": {
            "Name": TEXT,
            "Enabled": SWITCH,
            "Value": SWITCH,
            "Global Options": GLOBAL,
            "Displays": [of_class(DISPLAYS, "display")],
            "Tools": [of_class(TOOLS, "tool")],
            "Transformation": {"Current": {"Class": {"rviz_default_plugins/TF"}}},
            "Views": {"Current": of_class(VIEWS, "view"), "Saved": [of_class(VIEWS, "view")]},
        },
        "Window Geometry": {**GEOMETRY, **{name: {"collapsed": SWITCH} for name in docks}},
    }


def fits(value, table):
    """Whether a plain value is of the kind that RViz reads there."""
    if isinstance(table, dict):  # a property with children may be given by its value alone
        return "Value" in table and fits(value, table["Value"])
    if isinstance(table, set):
        return value in table
    if table == NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if table == SWITCH:
        return isinstance(value, bool)
    return isinstance(value, str) and (
        table == TEXT or re.fullmatch(r"\d+; \d+; \d+", value) is not None
    )


def unread(value, table, path=""):
    """Paths of keys, or of values, that RViz does not read."""
    if callable(table):
        table = table(value)
        if table is None:
            return [f"{path}: Class {value.get('Class')}"]
    if isinstance(value, dict):
        found = []
        for key, child in value.items():
            below = table.get(key, table.get("*")) if isinstance(table, dict) else None
            here = f"{path}/{key}"
            found += [here] if below is None else unread(child, below, here)
        return found
    if isinstance(value, list):
        (item,) = table
        return [p for i, child in enumerate(value) for p in unread(child, item, f"{path}/{i}")]
    if value is None:  # what `~` stands for: an empty list
        return [] if isinstance(table, list) else [path]
    return [] if fits(value, table) else [f"{path}: {value}"]


@each_config
def test_rviz_reads_every_key_and_value_of_the_config(config):
    assert unread(config, whole(config)) == []


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (("Visualization Manager", "Displays", 0), "Alfa", 1),
        (("Visualization Manager", "Displays", 0, "Line Style"), "Line width", 1),
        (("Visualization Manager", "Displays", 0), "Plane", "YX"),
        (("Visualization Manager", "Displays", 1), "Show Names", 1),
        (("Visualization Manager", "Displays", 5), "Class", "rviz_default_plugins/Cloud"),
        (("Visualization Manager", "Displays", 5, "Topic"), "Filter size", 10),
        (("Visualization Manager",), "Class", ""),
        (("Visualization Manager", "Tools", 0), "Name", "Interact"),
        (("Visualization Manager", "Views", "Current", "Focal Point"), "x", 0),
        (("Panels", 0), "Expanded", []),
        (("Window Geometry",), "Views", {"collapsed": True}),
        ((), "Panel", []),
    ],
)
def test_a_key_or_value_that_rviz_does_not_read_is_found(place, key, value):
    config = copy.deepcopy(CONFIG)
    part = config
    for step in place:
        part = part[step]
    part[key] = value
    (found,) = unread(config, whole(config))
    assert found.startswith("/" + "/".join(map(str, place))[:10])


def docks_in(state):
    """Names of docks and tool bars in the hex text of QMainWindow::saveState: UTF-16 behind their
    length."""
    data, found = bytes.fromhex(state), set()
    for match in re.finditer(rb"(?:\xfb|\0\0\0\x01(?=\0\0\0\x0a))\0\0\0(.)", data, re.DOTALL):
        found.add(data[match.end() : match.end() + match[1][0]].decode("utf-16-be"))
    return found


@each_config
def test_window_state_places_every_dock_of_the_config(config):
    displays = config["Visualization Manager"]["Displays"]
    images = {d["Name"] for d in displays if d["Class"].endswith("/Image")}
    panels = {p["Name"] for p in config["Panels"]}
    assert docks_in(config["Window Geometry"]["QMainWindow State"]) == images | panels | {"Tools"}


@each_config
def test_both_docks_are_set_visible(config):
    """Where they are missing, visualization_frame.cpp reads a bool that was never set."""
    geometry = config["Window Geometry"]
    assert geometry["Hide Left Dock"] is geometry["Hide Right Dock"] is False


@each_config
def test_expanded_entries_are_rows_of_the_tree(config):
    (panel,) = config["Panels"]
    rows = {d["Name"] for d in config["Visualization Manager"]["Displays"]}
    # The global status appears by both names: see rviz/da3.rviz.
    rows |= {"Global Options", "Global Status", "Status"}
    for entry in panel["Property Tree Widget"]["Expanded"]:
        assert re.fullmatch(r"/(.+)1", entry)[1] in rows


@each_config
def test_map_squares_are_as_large_as_its_voxels(config):
    (shown,) = [d for d in config["Visualization Manager"]["Displays"] if d["Name"] == "Map"]
    assert (shown["Style"], shown["Size (m)"]) == ("Flat Squares", MapConfig().voxel_m)
