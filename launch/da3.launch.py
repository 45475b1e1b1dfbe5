"""The live node, with RViz on request: `ros2 launch da3_ros da3.launch.py --show-args`.

Arguments override the parameter file. Two rules ensure this:

* Only given arguments are passed to the node; an empty argument keeps the file's value.
* They are passed after the file and under the node's full name. In ROS a later value overrides
  only within one name: a file with `/**:` and then `/da3:` would override a later `-p model:=x`,
  which stands for `/**`. launch_ros writes our values under `/da3`.

A plain Node action, not a LifecycleNode: da3_node configures and activates itself (`autostart`) on
every ROS distribution in the same way, and nothing here reacts to its transitions. With
`autostart:=false` a lifecycle manager or `ros2 lifecycle set` controls the node.
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
VIEWER_PORT = 8080
REMAPPINGS = {"image": "image_topic", "camera_info": "camera_info_topic"}
# Topics in rviz/da3.rviz and navigation.rviz. Relative names on the right follow `namespace`.
DISPLAYED = [
    ("/da3/rgb/image", "da3/rgb/image"),
    ("/da3/depth/image_color", "da3/depth/image_color"),
    ("/da3/confidence/image_color", "da3/confidence/image_color"),
    ("/da3/points", "da3/points"),
    ("/da3/points/obstacles", "da3/points/obstacles"),
    ("/da3/points/clearing", "da3/points/clearing"),
    ("/da3/map/points", "da3/map/points"),
    ("/da3/map/occupancy", "da3/map/occupancy"),
    ("/da3/map/occupancy_updates", "da3/map/occupancy_updates"),
    ("/da3/path", "da3/path"),
    ("/da3/odom", "da3/odom"),
]
ARGUMENTS = [
    DeclareLaunchArgument(
        "params_file",
        default_value=os.path.join(SHARE, "config", "da3.yaml"),
        description="YAML file with parameters of the node; given arguments override it",
    ),
    DeclareLaunchArgument(
        "preset",
        default_value="",
        choices=["", *launch_helpers.PRESETS],
        description="preset of parameters in config/; params_file and arguments override it",
    ),
    DeclareLaunchArgument(
        "image_topic",
        default_value="",
        description="image topic, without /compressed; empty: `image` in the namespace",
    ),
    DeclareLaunchArgument(
        "camera_info_topic",
        default_value="",
        description="calibration topic; empty: `camera_info` in the namespace of the image",
    ),
    DeclareLaunchArgument(
        "image_transport",
        default_value="",
        choices=["", "raw", "compressed"],
        description="raw: image topic; compressed: the same with /compressed; empty: as in "
        "params_file",
    ),
    DeclareLaunchArgument(
        "model",
        default_value="",
        description="any-view model, for example da3-small; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "checkpoint",
        default_value="",
        description="weights: folder, hub name, or random (for tests: results have no meaning); "
        "empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "device",
        default_value="",
        description="where the network runs: auto, cuda, cuda:1 (the second GPU), mps or cpu; "
        "empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "process_res",
        default_value="",
        description="image side in the network, pixels; empty: as in params_file",
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
        description="use time from /clock (simulation, ros2 bag play --clock), for RViz too; "
        "empty: as in params_file, else false",
    ),
    DeclareLaunchArgument(
        "log_level",
        default_value="info",
        choices=["debug", "info", "warn", "error", "fatal"],
        description="lowest severity of the node's log messages",
    ),
    DeclareLaunchArgument(
        "autostart",
        default_value="",
        choices=["", *SWITCH],
        description="the node configures and activates itself; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "base_frame",
        default_value="",
        description="frame of the robot's base, for transforms; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "export_dir",
        default_value="",
        description="folder of exported scenes; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "republish",
        default_value="",
        description="image transport that `image_transport republish` decodes for the node, for "
        "example theora or ffmpeg; empty: none",
    ),
    DeclareLaunchArgument(
        "rviz",
        default_value="false",
        choices=SWITCH,
        description="start RViz too",
    ),
    DeclareLaunchArgument(
        "rviz_config",
        default_value="da3.rviz",
        description="what RViz shows: da3.rviz, navigation.rviz (the map from above), or the "
        "absolute path of a config",
    ),
    DeclareLaunchArgument(
        "viewer",
        default_value="false",
        choices=SWITCH,
        description="show images, map and state in a browser: http://localhost:8080",
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
    """Returns the actions for the given arguments."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    given = {
        name: ParameterValue(LaunchConfiguration(name), value_type=kind)
        for name, kind in PARAMETERS.items()
        if values[name]
    }
    if launch_helpers.is_on(values["viewer"]):
        given["viewer.port"] = VIEWER_PORT
    nodes = [republish(values)] if values["republish"] else []
    nodes.append(da3_node(values, given))
    if launch_helpers.is_on(values["rviz"]):
        nodes.append(
            Node(
                remappings=DISPLAYED,
                **launch_helpers.rviz_options(values, SHARE, given, values["rviz_config"]),
            )
        )
    return nodes


def da3_node(values, given):
    """Returns the live node. Raises RuntimeError if the parameter file does not exist."""
    files = launch_helpers.parameter_files(values, SHARE)
    if values["republish"]:
        values = {**values, "image_topic": decoded(values)}
    return Node(
        parameters=[*files, *([given] if given else [])],
        remappings=[(ours, values[a]) for ours, a in REMAPPINGS.items() if values[a]],
        **launch_helpers.node_options(values),
    )


def decoded(values):
    """Returns the topic of the decoded images, in the namespace of the original."""
    return f"{values['image_topic'] or 'image'}_decoded"


def republish(values):
    """Returns the decoder of an image transport that the node does not read itself."""
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
