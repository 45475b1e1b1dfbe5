"""A synthetic camera and the live node: `ros2 launch da3_ros demo.launch.py rviz:=true`.

It runs on da3-tiny, the weights that ship for trying; `model:=da3-small` takes an official model
(`da3_ros models --get da3-small`). `make demo` compares with the truth and needs no launch.
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from da3_ros.ros import launch_helpers
from launch import LaunchDescription

SHARE = get_package_share_directory("da3_ros")
IMAGE = "/demo/image_raw"
ANSWER = "/da3/depth/camera_info"  # comes with each result
# Arguments of the same name and type as the synthetic camera's parameter.
CAMERA = {"walk": str, "rate_hz": float, "seed": int}
ARGUMENTS = [
    DeclareLaunchArgument(
        "model",
        default_value="da3-tiny",
        description="any-view model; da3-tiny is our own, for trying",
    ),
    DeclareLaunchArgument(
        "checkpoint",
        default_value="",
        description="weights: folder or hub name; empty: those that ship, or the local hub cache",
    ),
    DeclareLaunchArgument(
        "process_res",
        default_value="224",
        description="longest side in the network, pixels; what da3-tiny was trained at",
    ),
    DeclareLaunchArgument(
        "walk",
        default_value="loop",
        choices=["loop", "straight", "spot", "handheld", "still", "strafe"],
        description="how the synthetic camera moves",
    ),
    DeclareLaunchArgument(
        "rate_hz",
        default_value="4.0",
        description="most frames per second of the synthetic camera, which waits for each result",
    ),
    DeclareLaunchArgument(
        "seed",
        default_value="42",
        description="of room and walk; 42 is that of `make demo`",
    ),
    DeclareLaunchArgument(
        "rviz",
        default_value="false",
        choices=["true", "false", "True", "False"],
        description="whether RViz starts too",
    ),
    DeclareLaunchArgument(
        "python",
        default_value="",
        description="Python that runs both nodes, for example that of a virtual environment with "
        "PyTorch; empty: python3 of the path",
    ),
]


def generate_launch_description():
    """Camera, node and, on request, RViz."""
    passed_on = ("model", "checkpoint", "process_res", "rviz", "python")
    da3 = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(os.path.join(SHARE, "launch", "da3.launch.py")),
        launch_arguments=[
            ("image_topic", IMAGE),
            *((name, LaunchConfiguration(name)) for name in passed_on),
        ],
    )
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=make_camera), da3])


def make_camera(context):
    """The synthetic camera's action, once the arguments are known."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    parameters = {
        name: ParameterValue(LaunchConfiguration(name), value_type=kind)
        for name, kind in CAMERA.items()
    }
    # Nothing is lost before the node listens, nor later on a machine that is slower than rate_hz:
    # with holes in the walk windows would not fit.
    parameters.update(
        width=504, height=378, max_speed_m_s=0.4, wait_for_subscribers=1, pace_topic=ANSWER
    )
    camera = Node(
        executable="da3_synthetic_camera",
        name="synthetic_camera",
        parameters=[parameters],
        remappings=[("image_raw", IMAGE)],
        **launch_helpers.process_options(values),
    )
    return [camera]
