"""A synthetic camera and the live node: `ros2 launch da3_ros demo.launch.py rviz:=true`.

It uses da3-tiny, the shipped weights for trials; `model:=da3-small` selects an official model
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
ANSWER = "/da3/depth/camera_info"  # published with each result
# Arguments of the same name and type as the synthetic camera's parameter.
CAMERA = {"walk": str, "rate_hz": float, "seed": int}
ARGUMENTS = [
    DeclareLaunchArgument(
        "model",
        default_value="da3-tiny",
        description="any-view model; da3-tiny is a small one that ships for trials",
    ),
    DeclareLaunchArgument(
        "checkpoint",
        default_value="",
        description="weights: folder or hub name; empty: shipped ones, or the local hub cache",
    ),
    DeclareLaunchArgument(
        "process_res",
        default_value="224",
        description="longest image side in the network, pixels; da3-tiny was trained at 224",
    ),
    DeclareLaunchArgument(
        "walk",
        default_value="loop",
        choices=["loop", "straight", "spot", "handheld", "still", "strafe", "carried", "drone"],
        description="path of the synthetic camera",
    ),
    DeclareLaunchArgument(
        "rate_hz",
        default_value="4.0",
        description="largest frame rate of the synthetic camera, which waits for each result",
    ),
    DeclareLaunchArgument(
        "seed",
        default_value="42",
        description="seed of room and walk; 42 as in `make demo`",
    ),
    DeclareLaunchArgument(
        "rviz",
        default_value="false",
        choices=["true", "false", "True", "False"],
        description="start RViz too",
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
    """Returns the synthetic camera's action for the given arguments."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    parameters = {
        name: ParameterValue(LaunchConfiguration(name), value_type=kind)
        for name, kind in CAMERA.items()
    }
    # No frame is lost before the node subscribes, nor on a machine slower than rate_hz:
    # windows could not be aligned across gaps in the walk.
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
