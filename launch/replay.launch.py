"""Plays a bag to the live node: `ros2 launch da3_ros replay.launch.py bag:=FOLDER`.

The node uses the bag's clock and drops frames if it is too slow, as on a robot. The command
`da3_ros replay` reads a bag without a player and drops no frame.
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

from da3_ros.ros import launch_helpers
from launch import LaunchDescription

SHARE = get_package_share_directory("da3_ros")
SWITCH = ["true", "false", "True", "False"]
# Arguments that are passed on to da3.launch.py.
PASSED_ON = [
    *("image_topic", "camera_info_topic", "image_transport", "preset", "model", "checkpoint"),
    *("rviz", "rviz_config", "python"),
]
ARGUMENTS = [
    DeclareLaunchArgument(
        "bag",
        default_value="",
        description="the recording: a bag folder, .mcap or .db3; required",
    ),
    DeclareLaunchArgument(
        "rate",
        default_value="1.0",
        description="speed of the playback",
    ),
    DeclareLaunchArgument(
        "loop",
        default_value="false",
        choices=SWITCH,
        description="repeat the bag; window and odometry are reset at its end",
    ),
    DeclareLaunchArgument(
        "start_offset",
        default_value="0.0",
        description="seconds of the recording to skip",
    ),
    DeclareLaunchArgument(
        "delay",
        default_value="8.0",
        description="seconds before the playback begins, for loading the network",
    ),
    DeclareLaunchArgument(
        "image_topic",
        default_value="",
        description="image topic of the bag, without /compressed; empty: `image`",
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
        description="raw: image topic; compressed: image topic with /compressed; empty: raw",
    ),
    DeclareLaunchArgument(
        "preset",
        default_value="",
        choices=["", *launch_helpers.PRESETS],
        description="preset of parameters from config/",
    ),
    DeclareLaunchArgument(
        "model",
        default_value="",
        description="any-view model, for example da3-small; empty: the default",
    ),
    DeclareLaunchArgument(
        "checkpoint",
        default_value="",
        description="weights: folder or hub name; empty: shipped ones, or the local hub cache",
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
        "python",
        default_value="",
        description="Python that runs the node, for example that of a virtual environment with "
        "PyTorch; empty: python3 of the path",
    ),
]


def generate_launch_description():
    """Node, player and, on request, RViz."""
    da3 = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(os.path.join(SHARE, "launch", "da3.launch.py")),
        launch_arguments=[
            ("use_sim_time", "true"),
            *((name, LaunchConfiguration(name)) for name in PASSED_ON),
        ],
    )
    return LaunchDescription([*ARGUMENTS, da3, OpaqueFunction(function=make_player)])


def make_player(context):
    """Returns `ros2 bag play` for the given arguments. Raises RuntimeError without a bag."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    bag = os.path.expanduser(values["bag"])
    if not os.path.exists(bag):
        raise RuntimeError(f"bag: {bag or 'none given'} does not exist; give bag:=FOLDER")
    command = ["ros2", "bag", "play", bag, "--clock", "100"]
    for name in ("rate", "delay", "start_offset"):
        command += [f"--{name.replace('_', '-')}", values[name]]
    if launch_helpers.is_on(values["loop"]):
        command.append("--loop")
    environment = launch_helpers.image_profile(os.environ)
    return [ExecuteProcess(cmd=command, additional_env=environment, output="screen")]
