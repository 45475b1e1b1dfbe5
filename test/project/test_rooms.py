"""Which room of the package may import which: everything lies in one, and arrows point down."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "da3_ros"
SHARED = {"config", "parameter_schema", "types"}
# What ``config`` imports to list the choices of parameters: tables that import nothing themselves.
TABLES = {"da3_ros.backends", "da3_ros.scale_sources"}
# Rooms that are below ``config`` for that, and may not import it.
BELOW_CONFIG = {"backends", "network", "scale_sources", "splats", "geometry", "inertial"}
# A room, and the rooms that it may import; all others than those below it may import config, and
# all what else is shared.
ROOMS = {
    "cli": {
        "backends", "derived", "drawing", "export", "fleet", "inference", "keyframe_store",
        "mapping", "merging", "navigation", "network", "recordings", "replay", "reporting",
        "scale_sources", "synthetic", "viewer",
    },
    "ros": {
        "drawing", "export", "geometry", "inference", "live", "mapping", "messages", "network",
        "sensors", "synthetic", "viewer",
    },
    "fleet": {"export", "inference", "merging", "recordings", "replay"},
    "replay": {
        "drawing", "export", "inference", "keyframe_store", "live", "mapping", "messages",
        "network", "pipeline", "recordings", "refinement", "reporting", "sensors",
    },
    "reporting": {
        "drawing", "export", "geometry", "keyframe_store", "mapping", "recordings",
    },
    "merging": {
        "export", "geometry", "inference", "keyframe_store", "mapping", "pipeline", "refinement",
    },
    "live": {
        "export", "geometry", "inference", "keyframe_store", "mapping", "messages", "navigation",
        "pipeline", "refinement", "sensors", "viewer",
    },
    "viewer": {
        "drawing", "export", "geometry", "keyframe_store", "mapping", "refinement",
    },
    "recordings": {"geometry", "inertial", "messages", "sensors", "synthetic"},
    "messages": {"drawing", "geometry", "mapping", "navigation", "sensors"},
    "drawing": {"export", "keyframe_store", "mapping", "refinement"},
    "pipeline": {
        "derived", "export", "geometry", "inertial", "inference", "keyframe_store", "mapping",
        "navigation", "refinement", "scale_sources", "sensors", "splats",
    },
    "navigation": {"geometry", "mapping"},
    "export": {"derived", "geometry", "keyframe_store", "mapping", "navigation", "splats"},
    "derived": {"geometry"},
    "synthetic": {"geometry", "inertial", "inference", "mapping", "sensors"},
    "inference": {"backends", "derived", "geometry", "network", "scale_sources"},
    "backends": {"network"},
    "sensors": {"geometry", "inertial", "scale_sources"},
    "mapping": {"geometry", "keyframe_store", "scale_sources"},
    "scale_sources": {"geometry", "inertial"},
    "refinement": {"geometry", "inertial"},
    "keyframe_store": {"geometry", "splats"},
    "inertial": {"geometry"},
    "geometry": set(),
    "network": {"splats"},
    "splats": {"geometry"},
    "config": {"backends", "scale_sources"},
    "parameter_schema": set(),
    "types": set(),
}  # fmt: skip
GENERATED = {"msg", "srv"}  # by ROS, from our own message files
ROS = {
    "ament_index_python", "builtin_interfaces", "cv_bridge", "launch", "launch_ros",
    "message_filters", "rosidl_runtime_py", "sensor_msgs_py",
}  # fmt: skip
ROS_NAMES = re.compile(r"rcl\w*|rosidl\w*|tf2\w*|\w+_(msgs|srvs|interfaces)")
BY_NAME = ("import_module", "__import__")  # imports that the table could not see
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): f
    for f in FILES
}


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text())


def classes_of(file: Path) -> list[str]:
    """Names of the classes at the top of a file, without its syntax tree, which takes longer."""
    return re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE)


def room_of(name: str) -> str:
    """Room of a module of the package by its full name."""
    return name.split(".")[1] if "." in name else ""


def imported(file: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            assert node.module is not None
            found.add(node.module)
            if node.module == "da3_ros":
                found.update(f"da3_ros.{alias.name}" for alias in node.names)
    return found


def imported_modules(file: Path) -> set[str]:
    """Full names of the package's modules that importing a file imports, not calling it."""
    found: set[str] = set()
    for node in at_import(tree_of(file)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = names & MODULES.keys()
            found.update(modules)
            if names - modules:
                found.add(node.module)
    return found & MODULES.keys()


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from at_import(node)


def own_room(file: Path) -> str:
    """The room that a file of the package is in; empty for the package's own two files."""
    name = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if name in ("__init__", "__main__") else name


def shared_by(room: str) -> set[str]:
    """What a room may import of what is shared."""
    if room == "config":
        return {"parameter_schema"}
    return set() if room in SHARED else SHARED - ({"config"} if room in BELOW_CONFIG else set())


@pytest.mark.parametrize("table", sorted(TABLES))
def test_a_table_of_choices_imports_nothing_to_be_listed(table):
    assert all(
        isinstance(node, ast.If) or node.module in ("__future__", "collections.abc", "typing")
        for node in tree_of(MODULES[table]).body
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.If))
    )


def test_no_two_classes_have_one_name():
    """So that a search for a name finds one class; an underscore before it is no other name."""
    found: dict[str, list[str]] = {}
    for name, file in MODULES.items():
        for one in classes_of(file):
            found.setdefault(one.lstrip("_"), []).append(name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_every_module_is_in_a_room():
    assert {own_room(f) for f in FILES} - {""} == set(ROOMS)


def test_no_room_imports_itself_by_way_of_others():
    graph = {name: ROOMS[name] | shared_by(name) for name in ROOMS}
    assert list(TopologicalSorter(graph).static_order())


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imported_modules(file) for name, file in MODULES.items()}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("file", sorted((PACKAGE / "pipeline").glob("*.py")), ids=lambda f: f.name)
def test_no_object_of_the_pipeline_sets_anothers_attribute(file):
    foreign = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id == "self"):
                foreign.append(ast.unparse(node))
    assert foreign == []


@pytest.mark.slow
def test_no_module_imports_by_a_computed_name():
    named = {}
    for file in FILES:
        if not any(word in file.read_text() for word in BY_NAME):
            continue
        nodes = list(ast.walk(tree_of(file)))
        words = {n.id for n in nodes if isinstance(n, ast.Name)}
        words |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        if words.intersection(BY_NAME):
            named[str(file.relative_to(PACKAGE))] = words.intersection(BY_NAME)
    assert set(named) <= {"ros/rclpy_library.py"}  # message classes by their type's name


def assert_imports_point_down(file, room):
    """In a failure, ``file`` is shown with the line that it breaks."""
    names = imported(file)
    ours = {room_of(n) for n in names if n.startswith("da3_ros.")} - {room, "__version__"}
    if room in ("types", "parameter_schema"):
        assert not ours
    elif room == "config":
        assert {n for n in names if n.startswith("da3_ros.")} - TABLES <= {
            "da3_ros.parameter_schema"
        }
    elif room:
        allowed = ROOMS[room] | shared_by(room) | (GENERATED if room == "ros" else set())
        assert ours <= allowed
    outside = {n.split(".")[0] for n in names}
    assert "support" not in outside
    if room != "ros":
        assert not outside & ROS
        assert not [name for name in outside if ROS_NAMES.fullmatch(name)]
    if not room:  # the package's own two files
        assert ours <= {"cli"}
    if room not in ("messages", "recordings"):
        assert "rosbags" not in {n.split(".")[0] for n in names}


@pytest.mark.parametrize("room", sorted({own_room(file) for file in FILES}))
def test_imports_point_to_rooms_below(room):
    for file in FILES:
        if own_room(file) == room:
            assert_imports_point_down(file, room)


def test_shapes_and_holders_in_the_page_are_classes():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    tables = re.findall(r"^\| (?:Shape|Holder) \|.*\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    named = {
        name.partition(".")[0]
        for table in tables
        for row in table.splitlines()
        for name in re.findall(r"`(\w+(?:\.\w+)?)`", row.split("|")[1])
    }
    classes = {one for file in FILES for one in classes_of(file)}
    assert len(named) > 30
    assert named - classes == set()
