"""The live node, with RViz on request: `ros2 launch da3_ros da3.launch.py --show-args`.

The command line wins over the parameter file. Two things see to that:

* Only what was given is handed to the node; an argument left empty leaves the file's value alone.
* It is handed over behind the file and under the node's full name. In ROS a later value wins only
  within one name: a file with `/**:` and then `/da3:` would beat a later `-p model:=x`, because
  that one stands for `/**`, which came first. launch_ros writes our values under `/da3`.

A plain Node action, not a LifecycleNode: da3_node configures and activates itself (`autostart`) on
every ROS distribution in the same way, and nothing here reacts to its transitions. With
`autostart:=false` a lifecycle manager or `ros2 lifecycle set` leads it through its services.
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from da3_ros.ros import launch_helpers
from launch import LaunchDescription

SHARE = get_package_share_directory("da3_ros")
SWITCH = ["true", "false", "True", "False"]
# Arguments of the same name and type as the node's parameter.
PARAMETERS = {
    "image_transport": str,
    "model": str,
    "checkpoint": str,
    "device": str,
    "process_res": int,
    "base_frame": str,
    "export_dir": str,
    "autostart": bool,
    "use_sim_time": bool,
}
PRESETS = ["realtime", "quality", "low_memory", "budget_12gb", "jetson", "replay"]
DEFAULTS = os.path.join(SHARE, "config", "da3.yaml")
REMAPPINGS = {"image": "image_topic", "camera_info": "camera_info_topic"}
# What rviz/da3.rviz shows. Relative on the right: it follows `namespace`.
DISPLAYED = [
    ("/da3/rgb/image", "da3/rgb/image"),
    ("/da3/depth/image_color", "da3/depth/image_color"),
    ("/da3/confidence/image_color", "da3/confidence/image_color"),
    ("/da3/points", "da3/points"),
    ("/da3/map/points", "da3/map/points"),
    ("/da3/path", "da3/path"),
    ("/da3/odom", "da3/odom"),
]
ARGUMENTS = [
    DeclareLaunchArgument(
        "params_file",
        default_value=DEFAULTS,
        description="YAML file with parameters of the node; arguments that are given win over it",
    ),
    DeclareLaunchArgument(
        "preset",
        default_value="",
        choices=["", *PRESETS],
        description="settings for a purpose, from config/; params_file and arguments win over it",
    ),
    DeclareLaunchArgument(
        "image_topic",
        default_value="",
        description="image to subscribe to, without /compressed; empty: `image` in the namespace",
    ),
    DeclareLaunchArgument(
        "camera_info_topic",
        default_value="",
        description="calibration of the image; empty: `camera_info` beside the image",
    ),
    DeclareLaunchArgument(
        "image_transport",
        default_value="",
        choices=["", "raw", "compressed"],
        description="which image topic: itself, or its /compressed; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "model",
        default_value="",
        description="any-view model, for example da3-small; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "checkpoint",
        default_value="",
        description="weights: folder, hub name, or random (no meaning, for tests); "
        "empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "device",
        default_value="",
        choices=["", "auto", "cuda", "mps", "cpu"],
        description="where the network runs; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "process_res",
        default_value="",
        description="longest side in the network, pixels; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "namespace",
        default_value="",
        description="namespace of the node, and of RViz's topics; empty: none",
    ),
    DeclareLaunchArgument(
        "use_sim_time",
        default_value="",
        choices=["", *SWITCH],
        description="whether time comes from /clock (simulation, ros2 bag play --clock), for RViz "
        "too; empty: as in params_file, else false",
    ),
    DeclareLaunchArgument(
        "log_level",
        default_value="info",
        choices=["debug", "info", "warn", "error", "fatal"],
        description="least severe messages that the node logs",
    ),
    DeclareLaunchArgument(
        "autostart",
        default_value="",
        choices=["", *SWITCH],
        description="whether the node configures and activates itself; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "base_frame",
        default_value="",
        description="the robot's base, for transforms; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "export_dir",
        default_value="",
        description="folder that scenes are exported to; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "republish",
        default_value="",
        description="image_transport that only `image_transport republish` reads, for example "
        "theora or ffmpeg: it decodes image_topic for the node; empty: none",
    ),
    DeclareLaunchArgument(
        "rviz",
        default_value="false",
        choices=SWITCH,
        description="whether RViz starts too",
    ),
    DeclareLaunchArgument(
        "python",
        default_value="",
        description="Python that runs the node, for example that of a virtual environment with "
        "PyTorch; empty: python3 of the path",
    ),
]


def generate_launch_description():
    """Node and, on request, RViz."""
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=make_nodes)])


def make_nodes(context):
    """The actions, once the arguments are known."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    given = {
        name: ParameterValue(LaunchConfiguration(name), value_type=kind)
        for name, kind in PARAMETERS.items()
        if values[name]
    }
    nodes = [republish(values)] if values["republish"] else []
    nodes.append(da3_node(values, given))
    if launch_helpers.is_on(values["rviz"]):
        nodes.append(
            Node(remappings=DISPLAYED, **launch_helpers.rviz_options(values, SHARE, given))
        )
    return nodes


def da3_node(values, given):
    """The live node; raises RuntimeError if there is no such parameter file."""
    params_file = launch_helpers.parameter_file(values)
    preset = os.path.join(SHARE, "config", f"{values['preset']}.yaml")
    files = [preset, params_file] if values["preset"] else [params_file]
    if params_file == DEFAULTS:
        files.reverse()  # the defaults come first: they name every parameter
    if values["republish"]:
        values = {**values, "image_topic": decoded(values)}
    return Node(
        parameters=[*files, *([given] if given else [])],
        remappings=[(ours, values[a]) for ours, a in REMAPPINGS.items() if values[a]],
        **launch_helpers.node_options(values),
    )


def decoded(values):
    """Topic of the images that republish makes, beside the original and its camera_info."""
    return f"{values['image_topic'] or 'image'}_decoded"


def republish(values):
    """A decoder of a transport that the node does not read itself."""
    kind, topic = values["republish"], values["image_topic"] or "image"
    return Node(
        package="image_transport",
        executable="republish",
        namespace=values["namespace"],
        # By position for Humble, as parameters for Jazzy and later.
        arguments=[kind, "raw"],
        parameters=[{"in_transport": kind, "out_transport": "raw"}],
        remappings=[(f"in/{kind}", f"{topic}/{kind}"), ("out", decoded(values))],
        output="screen",
    )
