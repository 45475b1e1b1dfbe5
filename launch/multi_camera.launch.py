"""Several cameras, one node: `ros2 launch da3_ros multi_camera.launch.py cameras:=front,left`.

The cameras' images are `<camera>/image` by default; `image_topic:=/{camera}/image_raw` says where
they are instead. With `synthetic:=true` a rendered rig stands in for real cameras. As in
da3.launch.py the command line wins over the parameter file, and what is empty is left to it.
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from da3_ros.ros import launch_helpers
from da3_ros.ros.launch_helpers import is_on
from launch import LaunchDescription

SHARE = get_package_share_directory("da3_ros")
SWITCH = ["true", "false", "True", "False"]
# Arguments and the parameters of the node that they set, with their types.
PARAMETERS = {
    "window_mode": ("window.mode", str),
    "window_size": ("window.size", int),
    "scale_source": ("scale.source", str),
    "image_transport": ("image_transport", str),
    "model": ("model", str),
    "checkpoint": ("checkpoint", str),
    "process_res": ("process_res", int),
    "base_frame": ("base_frame", str),
    "use_sim_time": ("use_sim_time", bool),
}
# What rviz/da3.rviz shows of frames: here of the first camera. Relative: it follows `namespace`.
DISPLAYED = ["rgb/image", "depth/image_color", "confidence/image_color", "points", "odom"]
ARGUMENTS = [
    DeclareLaunchArgument(
        "params_file",
        default_value=os.path.join(SHARE, "config", "da3.yaml"),
        description="YAML file with parameters of the node; arguments that are given win over it",
    ),
    DeclareLaunchArgument(
        "cameras",
        default_value="front,left",
        description="names of the cameras, with commas between them; the first one leads",
    ),
    DeclareLaunchArgument(
        "image_topic",
        default_value="",
        description="images to subscribe to, without /compressed, {camera} stands for the name, "
        "for example /{camera}/image_raw; empty: `<camera>/image` in the namespace",
    ),
    DeclareLaunchArgument(
        "window_mode",
        default_value="",
        choices=["", "joint", "independent"],
        description="one window of all cameras, or of each alone; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "window_size",
        default_value="",
        description="views per pass, at least two per camera; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "scale_source",
        default_value="",
        choices=["", "none", "fixed", "metric_model", "odometry", "rig"],
        description="where metres come from; rig: from the distances between the cameras, which "
        "/tf_static or rig.poses says; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "image_transport",
        default_value="",
        choices=["", "raw", "compressed"],
        description="which image topics: themselves, or their /compressed; empty: as in "
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
        description="weights: folder, hub name, or random (no meaning, for tests); "
        "empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "process_res",
        default_value="",
        description="longest side in the network, pixels; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "base_frame",
        default_value="",
        description="the robot's base, for transforms; empty: as in params_file",
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
        "synthetic",
        default_value="false",
        choices=SWITCH,
        description="whether a rendered rig publishes `<camera>/image_raw` of all cameras, for "
        "trying; image_topic is set to it",
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
        description="Python that runs the nodes, for example that of a virtual environment with "
        "PyTorch; empty: python3 of the path",
    ),
]


def generate_launch_description():
    """Node and, on request, a rendered rig and RViz."""
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=make_nodes)])


def make_nodes(context):
    """The actions, once the arguments are known."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    cameras = [name.strip() for name in values["cameras"].split(",") if name.strip()]
    if not cameras:
        raise RuntimeError("cameras: give names with commas between them, as in front,left")
    given = {
        parameter: ParameterValue(LaunchConfiguration(argument), value_type=kind)
        for argument, (parameter, kind) in PARAMETERS.items()
        if values[argument]
    }
    nodes = [da3_node(values, cameras, given)]
    if is_on(values["synthetic"]):
        nodes.append(synthetic_rig(values, cameras))
    if is_on(values["rviz"]):
        nodes.append(rviz(values, cameras[0], given))
    return nodes


def da3_node(values, cameras, given):
    """The live node; raises RuntimeError if there is no such parameter file."""
    params_file = launch_helpers.parameter_file(values)
    topic = "{camera}/image_raw" if is_on(values["synthetic"]) else values["image_topic"]
    return Node(
        parameters=[params_file, {"cameras": cameras, **given}],
        remappings=[(f"{c}/image", topic.replace("{camera}", c)) for c in cameras if topic],
        **launch_helpers.node_options(values),
    )


def synthetic_rig(values, cameras):
    """Rendered cameras beside each other, and their transforms."""
    return Node(
        executable="da3_synthetic_camera",
        name="synthetic_camera",
        namespace=values["namespace"],
        parameters=[
            {
                "cameras": cameras,
                "camera_baseline_m": 0.3,
                "width": 504,
                "height": 378,
                "rate_hz": 2.0,
                "max_speed_m_s": 0.4,
                "wait_for_subscribers": 1,
            }
        ],
        **launch_helpers.process_options(values),
    )


def rviz(values, first, given):
    """RViz with our displays of the first camera."""
    alone = values["window_mode"] == "independent"
    scene = ["map/points", "path"]
    own = [*DISPLAYED, *(scene if alone else [])]
    return Node(
        remappings=[
            *((f"/da3/{topic}", f"da3/{first}/{topic}") for topic in own),
            *((f"/da3/{topic}", f"da3/{topic}") for topic in scene if not alone),
        ],
        **launch_helpers.rviz_options(values, SHARE, given),
    )
