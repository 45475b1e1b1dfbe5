"""Several cameras, one node: `ros2 launch da3_ros multi_camera.launch.py cameras:=front,left`.

The image topics are `<camera>/image` by default; `image_topic:=/{camera}/image_raw` sets others.
With `synthetic:=true` a rendered rig replaces real cameras. As in da3.launch.py, given arguments
override the parameter file, and empty ones keep its values.
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
# Topics in rviz/several_cameras.rviz: of the cameras that are called front and left there, and of
# the scene. Relative names follow `namespace`.
DISPLAYED = ["rgb/image", "depth/image_color"]
OF_SCENE = ["map/points", "path"]
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
        "cameras",
        default_value="front,left",
        description="names of the cameras, separated by commas; the first one leads",
    ),
    DeclareLaunchArgument(
        "image_topic",
        default_value="",
        description="image topics, without /compressed, with {camera} for the camera's name, "
        "for example /{camera}/image_raw; empty: `<camera>/image` in the namespace",
    ),
    DeclareLaunchArgument(
        "window_mode",
        default_value="",
        choices=["", "joint", "independent"],
        description="joint: one window of all cameras; independent: one per camera; empty: as in "
        "params_file",
    ),
    DeclareLaunchArgument(
        "window_size",
        default_value="",
        description="views per window, at least two per camera; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "scale_source",
        default_value="",
        description="source of the metric scale; rig: distances between the cameras, from "
        "/tf_static or rig.poses; several: rig+odometry; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "image_transport",
        default_value="",
        choices=["", "raw", "compressed"],
        description="raw: image topics; compressed: image topics with /compressed; empty: as in "
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
        "process_res",
        default_value="",
        description="image side in the network, pixels; empty: as in params_file",
    ),
    DeclareLaunchArgument(
        "base_frame",
        default_value="",
        description="frame of the robot's base, for transforms; empty: as in params_file",
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
        "synthetic",
        default_value="false",
        choices=SWITCH,
        description="start a rendered rig that publishes `<camera>/image_raw` of all cameras, for "
        "trials; sets image_topic",
    ),
    DeclareLaunchArgument(
        "rviz",
        default_value="false",
        choices=SWITCH,
        description="start RViz too",
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
    """Returns the actions for the given arguments."""
    values = launch_helpers.values_of(context, ARGUMENTS)
    cameras = [name.strip() for name in values["cameras"].split(",") if name.strip()]
    if not cameras:
        raise RuntimeError("cameras: give names separated by commas, as in front,left")
    given = {
        parameter: ParameterValue(LaunchConfiguration(argument), value_type=kind)
        for argument, (parameter, kind) in PARAMETERS.items()
        if values[argument]
    }
    nodes = [da3_node(values, cameras, given)]
    if is_on(values["synthetic"]):
        nodes.append(synthetic_rig(values, cameras))
    if is_on(values["rviz"]):
        nodes.append(rviz(values, cameras, given))
    return nodes


def da3_node(values, cameras, given):
    """Returns the live node. Raises RuntimeError if the parameter file does not exist."""
    files = launch_helpers.parameter_files(values, SHARE)
    topic = "{camera}/image_raw" if is_on(values["synthetic"]) else values["image_topic"]
    return Node(
        parameters=[*files, {"cameras": cameras, **given}],
        remappings=[(f"{c}/image", topic.replace("{camera}", c)) for c in cameras if topic],
        **launch_helpers.node_options(values),
    )


def synthetic_rig(values, cameras):
    """Returns the rendered cameras, side by side, and their transforms."""
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


def rviz(values, cameras, given):
    """Returns RViz with the displays of the first two cameras."""
    pairs = list(zip(("front", "left"), cameras))  # noqa: B905 (Python 3.10; one camera is enough)
    scene = f"{cameras[0]}/" if values["window_mode"] == "independent" else ""
    return Node(
        remappings=[
            *((f"/da3/{a}/{topic}", f"da3/{b}/{topic}") for a, b in pairs for topic in DISPLAYED),
            ("/da3/front/odom", f"da3/{cameras[0]}/odom"),
            *((f"/da3/{topic}", f"da3/{scene}{topic}") for topic in OF_SCENE),
        ],
        **launch_helpers.rviz_options(values, SHARE, given, "several_cameras.rviz"),
    )
