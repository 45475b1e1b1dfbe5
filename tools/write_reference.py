#!/usr/bin/env python3
"""Writes docs/reference.md from the code: topics, services, parameters and messages.

Usage: write_reference.py [FILE]; prints the page if FILE is not given. Requires da3_ros on the
path; ROS is not needed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from da3_ros.config import NodeConfig
from da3_ros.messages.decode import DEPTH_ENCODINGS, ENCODINGS
from da3_ros.messages.outputs import Topic, output_topics
from da3_ros.parameter_schema import parameters

ROOT = Path(__file__).resolve().parents[1]
HEADER = """\
# Which topics, services, messages and parameters are there?

For looking up a name, a type, a default or a QoS. Generated from the code by
`python tools/write_reference.py docs/reference.md`; a test keeps it current.

`~` is the node's name, `/da3` by default. With several cameras (`cameras: [front, left]`) inputs
become `front/image` ..., and outputs of single frames `~/front/depth/image` ...
([several cameras](cameras.md)).
"""
INPUTS = (
    ("image", "sensor_msgs/msg/Image", "or `image/compressed`, a CompressedImage, with "
     "`image_transport: compressed`; depth 5, reliable if and only if every publisher offers it"),
    ("camera_info", "sensor_msgs/msg/CameraInfo", "beside `image` unless remapped; best effort"),
    ("imu", "sensor_msgs/msg/Imu", "only with `imu.enabled`, or `level.source` or `scale.source` "
     "`imu`; in m/s² with gravity and rad/s (REP-145); best effort, depth 1000"),
    ("odometry", "nav_msgs/msg/Odometry", "only with `pose_prior.source` or `scale.source` "
     "`odometry`; best effort, depth 50"),
    ("slam_path", "nav_msgs/msg/Path", "only with `pose_prior.corrections: path`: the whole "
     "corrected path of another SLAM; reliable, depth 1"),
    ("`range_topics`", "sensor_msgs/msg/PointCloud2, LaserScan or Range", "returns of range "
     "sensors; best effort, depth 5"),
    ("~/global_pose", "geometry_msgs/msg/PoseWithCovarianceStamped", "pose of "
     "`base_frame` (empty: of the camera) in `map_frame`, or in a frame that TF places there; "
     "best effort, depth 50"),
    ("initialpose", "geometry_msgs/msg/PoseWithCovarianceStamped", "in `map_frame`: where to look "
     "first for the camera in the map, for 30 s; reliable, depth 1"),
    ("/tf, /tf_static", "tf2_msgs/msg/TFMessage", "reliable; static latched"),
)  # fmt: skip
OUTPUTS = output_topics() | {
    "status": Topic(
        type="da3_ros/msg/Status", latched=True,
        text="once a second: state, device, memory, rates, drops, scale, map",
    ),
    "/diagnostics": Topic(
        type="diagnostic_msgs/msg/DiagnosticArray", depth=10,
        text="once a second: the same with stage times, and a level OK, WARN or ERROR",
    ),
}  # fmt: skip
SERVICES = {
    "export_scene": ("da3_ros/srv/ExportScene", "writes the scene to a file below `export_dir`"),
    "save_scene": ("da3_ros/srv/SceneFile", "saves the scene to a folder below `export_dir`"),
    "load_scene": ("da3_ros/srv/SceneFile", "loads a saved scene and continues in it"),
    "reset": ("std_srvs/srv/Trigger", "restarts window, odometry and map"),
    "enable": ("std_srvs/srv/SetBool", "false: images are received and dropped; the scene is "
               "kept"),
}  # fmt: skip
COMMANDS = (
    "With `autostart: false`, configure, activate, deactivate and clean up by "
    "`ros2 lifecycle set /da3 ...`. Under nav2's lifecycle manager also set `bond_timeout: 0.0`, "
    "because rclpy has no bonds."
)


def reference_text() -> str:
    """Returns the contents of the page."""
    parts = [HEADER, "## Topics\n", *_topics(), "\n## Services\n", *_services()]
    parts += ["\n## Parameters\n", *_parameters(), "\n## Messages and services in full\n"]
    return "\n".join([*parts, *_interfaces()]).rstrip() + "\n"


def _topics() -> Iterator[str]:
    yield "| In | Type | |\n|---|---|---|"
    for name, kind, text in INPUTS:
        yield f"| `{name}` | `{kind}` | {text} |"
    names = ", ".join(f"`{name}`" for name in ENCODINGS if name not in DEPTH_ENCODINGS)
    yield (
        f"\nEncodings of `image`: {names}. "
        "16-bit values count by their full range: 12 bits not shifted to the top are dark. "
        "Other transports: argument `republish` of `da3.launch.py`."
    )
    yield "\n| Out | Type | QoS | |\n|---|---|---|---|"
    for name, row in OUTPUTS.items():
        shown = name if name.startswith("/") else f"~/{name}"
        durable = ", transient local" if row.latched else ""
        yield f"| `{shown}` | `{row.type}` | reliable{durable}, {row.depth} | {row.text} |"
    yield (
        "\nThe QoS of each can be overridden: `-p qos_overrides./da3/points.publisher."
        "reliability:=best_effort`, or `.subscription.` for an input (and `history`, "
        "`depth`, `durability`). A warning names peers with incompatible QoS, with both settings."
    )


def _services() -> Iterator[str]:
    yield "| Service | Type | |\n|---|---|---|"
    for name, (kind, text) in SERVICES.items():
        yield f"| `~/{name}` | `{kind}` | {text} |"
    queue = constant("da3_ros/ros/services.py", "QUEUE")
    yield (
        f"\n{queue} requests of each service can wait. The client has a queue of its own, 10 by "
        "default: to send more at once, give it a deeper one (`qos_profile`) or wait for answers. "
        "Requests that exceed a queue are lost, without an answer."
    )
    yield f"\n{COMMANDS}"


def _parameters() -> Iterator[str]:
    yield "`live`: can change at any time. The others are fixed while the node is configured.\n"
    yield "| Name | Default | Allowed | | |\n|---|---|---|---|---|"
    for p in parameters(NodeConfig()):
        live = "live" if p.live else ""
        yield f"| `{p.name}` | `{_value(p.value)}` | {_allowed(p)} | {live} | {p.text} |"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(list(value) if isinstance(value, tuple) else value)


def _allowed(p: Any) -> str:
    if p.choices:
        several = "; or a list of them" if p.several else ""
        return ", ".join(f"`{choice}`" for choice in p.choices) + several
    ends = [f"{end:g}" if end is not None else "" for end in (p.low, p.high)]
    return f"{ends[0] or '...'} to {ends[1] or '...'}" if any(ends) else ""


def _interfaces() -> Iterator[str]:
    for file in sorted([*(ROOT / "msg").glob("*.msg"), *(ROOT / "srv").glob("*.srv")]):
        yield f"### {file.stem}\n\n```\n{file.read_text().strip()}\n```\n"


def constant(path: str, name: str) -> Any:
    """Returns a constant of a module without importing it, because the import may need ROS."""
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} has no {name}")


def main(arguments: list[str]) -> int:
    """Writes or prints the page. Returns the exit code."""
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        sys.stderr.write(f"{__doc__}")
        return 2
    if arguments:
        Path(arguments[0]).write_text(reference_text())
    else:
        sys.stdout.write(reference_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
