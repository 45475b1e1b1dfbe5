"""A bag played to the live node: `ros2 launch da3_ros replay.launch.py bag:=FOLDER`.

The node lives by the bag's clock. It drops what it has no time for, as on a robot; the command
`da3_ros replay` reads a bag without a player and drops nothing.
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
# Arguments of da3.launch.py that are handed on as they are.
PASSED_ON = [
    *("image_topic", "camera_info_topic", "image_transport", "preset", "model", "checkpoint"),
    *("rviz", "python"),
]
ARGUMENTS = [
    DeclareLaunchArgument(
        "bag",
        default_value="",
        description="the recording: a bag folder, .mcap or .db3; must be given",
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
        description="whether the bag begins anew at its end; window and odometry then do too",
    ),
    DeclareLaunchArgument(
        "start_offset",
        default_value="0.0",
        description="seconds of the recording to skip",
    ),
    DeclareLaunchArgument(
        "delay",
        default_value="8.0",
        description="seconds before the playback begins, in which the network is loaded",
    ),
    DeclareLaunchArgument(
        "image_topic",
        default_value="",
        description="image topic of the bag, without /compressed; empty: `image`",
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
        description="which image topic: itself, or its /compressed; empty: raw",
    ),
    DeclareLaunchArgument(
        "preset",
        default_value="",
        choices=["", "realtime", "quality", "low_memory", "budget_12gb", "jetson", "replay"],
        description="settings for a purpose, from config/",
    ),
    DeclareLaunchArgument(
        "model",
        default_value="",
        description="any-view model, for example da3-small; empty: the default",
    ),
    DeclareLaunchArgument(
        "checkpoint",
        default_value="",
        description="weights: folder or hub name; empty: those that ship, or the local hub cache",
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
    """`ros2 bag play`, once the arguments are known; raises RuntimeError without a bag."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    bag = os.path.expanduser(values["bag"])
    if not os.path.exists(bag):
        raise RuntimeError(f"bag: {bag or 'none given'} does not exist, give bag:=FOLDER")
    command = ["ros2", "bag", "play", bag, "--clock", "100"]
    for name in ("rate", "delay", "start_offset"):
        command += [f"--{name.replace('_', '-')}", values[name]]
    if launch_helpers.is_on(values["loop"]):
        command.append("--loop")
    environment = launch_helpers.image_profile(os.environ)
    return [ExecuteProcess(cmd=command, additional_env=environment, output="screen")]
