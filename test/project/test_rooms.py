"""Which room of the package may import which: everything lies in one, and arrows point down."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "da3_ros"
SHARED = {"config", "parameter_schema", "types"}
# A room, and the rooms that it may import; all may import what is shared.
ROOMS = {
    "cli": {"drawing", "export", "inference", "network", "recordings", "replay", "synthetic"},
    "ros": {
        "drawing", "export", "geometry", "inference", "live", "mapping", "messages", "network",
        "pipeline", "sensors", "synthetic",
    },
    "replay": {
        "drawing", "export", "inference", "live", "mapping", "messages", "network", "pipeline",
        "recordings", "sensors",
    },
    "live": {"geometry", "inference", "mapping", "messages", "pipeline", "sensors"},
    "recordings": {"geometry", "messages", "sensors", "synthetic"},
    "messages": {"drawing", "geometry", "mapping", "sensors"},
    "drawing": {"export", "mapping"},
    "pipeline": {"export", "geometry", "inference", "mapping", "sensors"},
    "export": {"geometry", "mapping"},
    "synthetic": {"geometry", "inference", "mapping", "sensors"},
    "inference": {"geometry", "network"},
    "sensors": {"geometry"},
    "mapping": {"geometry"},
    "geometry": set(),
    "network": set(),
    "config": set(),
    "parameter_schema": set(),
    "types": set(),
}  # fmt: skip
GENERATED = {"msg", "srv"}  # by ROS, from our own message files
ROS = {
    "ament_index_python", "builtin_interfaces", "cv_bridge", "diagnostic_msgs", "geometry_msgs",
    "launch", "launch_ros", "lifecycle_msgs", "message_filters", "nav_msgs", "rcl_interfaces",
    "rclpy", "rosidl_runtime_py", "sensor_msgs", "sensor_msgs_py", "std_msgs", "std_srvs",
    "tf2_msgs", "tf2_ros",
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(name: str) -> str:
    """Room of a module of the package by its full name."""
    return name.split(".")[1] if "." in name else ""


def imported(file: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            if node.module == "da3_ros":
                found.update(f"da3_ros.{alias.name}" for alias in node.names)
    return found


def own_room(file: Path) -> str:
    """The room that a file of the package is in; empty for the package's own two files."""
    name = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if name in ("__init__", "__main__") else name


def test_every_module_is_in_a_room():
    assert {own_room(f) for f in FILES} - {""} == set(ROOMS)


def test_no_room_imports_itself_by_way_of_others():
    shared = {name: SHARED - {name} for name in set(ROOMS) - SHARED}
    graph = {name: ROOMS[name] | shared.get(name, set()) for name in ROOMS}
    graph["config"] = {"parameter_schema"}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_to_rooms_below(file):
    room, names = own_room(file), imported(file)
    ours = {room_of(n) for n in names if n.startswith("da3_ros.")} - {room, "__version__"}
    if room in ("types", "parameter_schema"):
        assert not ours
    elif room == "config":
        assert ours <= {"parameter_schema"}
    elif room:
        allowed = ROOMS[room] | SHARED | (GENERATED if room == "ros" else set())
        assert ours <= allowed
    if room != "ros":
        assert not {n.split(".")[0] for n in names} & ROS
    if room not in ("messages", "recordings"):
        assert "rosbags" not in {n.split(".")[0] for n in names}
