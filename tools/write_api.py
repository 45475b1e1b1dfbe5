#!/usr/bin/env python3
"""Writes docs/api.md from the docstrings of what other programs may use.

Usage: write_api.py [FILE]; prints the page if FILE is not given. Reads the source and imports
nothing of it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = """\
# Which classes and functions may my program use?

For looking up an argument, a shape or a unit. What is on this page changes only with a line in
[the changes](../CHANGELOG.md); everything else may change with any version. The package has types
(PEP 561). [Examples](../examples/README.md) show how the parts go together.

Generated from the code by `python tools/write_api.py docs/api.md`; a test keeps it current.
"""
# By topic: what it is for, the module to import from, and names; of a class, also its methods.
TOPICS: tuple[tuple[str, str, dict[str, dict[str, tuple[str, ...]]]], ...] = (
    ("Images to depth and poses", "The network alone: no map, no scale. `InferenceConfig`, in "
     "`da3_ros.inference`, has the network's [parameters](reference.md#parameters) as fields: "
     '`InferenceConfig(model="da3-small", process_res=504)`.', {
        "da3_ros.inference": {
            "InferenceSession": ("__init__", "infer", "status"),
            "window_of_images": (),
        },
        "da3_ros.messages.decode": {"decode_file": (), "decode": ()},
        "da3_ros.network": {"CheckpointError": ()},
    }),
    ("Frames to a map", "What the live node runs, without ROS. `PipelineConfig` and `NodeConfig`, "
     "in `da3_ros.config`, hold all [parameters](reference.md#parameters).", {
        "da3_ros.config": {"config_from_parameters": ()},
        "da3_ros.pipeline": {
            "Pipeline": ("__init__", "push", "flush", "scene", "poses", "export", "reset"),
        },
    }),
    ("Recordings", "What `da3_ros replay` runs.", {
        "da3_ros.recordings": {"open_recording": ()},
        "da3_ros.replay": {"ReplayOptions": (), "replay": (), "ReplayError": ()},
    }),
    ("Saved scenes and exports", "What `da3_ros export` runs.", {
        "da3_ros.cli.conversion": {"convert": ()},
        "da3_ros.export.export": {
            "export_scene": (), "Selection": (), "Exported": (), "ExportError": (),
        },
        "da3_ros.export.stored_depth": {"DepthFilters": ()},
    }),
    ("Data", "What goes in and comes out.", {
        "da3_ros.types": dict.fromkeys(
            ("Calibration", "Frame", "View", "Window", "Prediction", "WindowEstimate",
             "ScaleMeasurement", "Scale", "TrackedFrame", "WindowReport"), (),
        ),
    }),
    ("Geometry and pictures", "Small helpers that the examples use too. `DepthConfig`, in "
     "`da3_ros.config`, has the colours of pictures.", {
        "da3_ros.geometry.poses": {"invert_pose": (), "matrix_from_quaternion": ()},
        "da3_ros.geometry.projection": {"backproject": (), "project": ()},
        "da3_ros.drawing.contact_sheet": {"ContactSheet": ("add", "picture")},
        "da3_ros.drawing.scene_picture": {"write_png": ()},
    }),
    ("Parts of your own", "Each is a class and a row in a table, from outside the package too: "
     "[what a row needs](../CONTRIBUTING.md#where-things-go).", {
        "da3_ros.scale_sources.interface": {
            "ScaleSource": ("unsuited", "measure", "report_missing", "estimator"),
        },
        "da3_ros.export.formats": {
            "SceneFormat": ("write",), "StoredFormat": ("write",), "NamedFormat": (),
        },
        "da3_ros.sensors.camera_models": {"CameraModel": ("distort", "ray_limit")},
        "da3_ros.backends.interface": {
            "Runtime": ("open",), "Backend": ("encode", "decode"), "OneBackend": (),
        },
        "da3_ros.messages.outputs": {"FrameTopic": (), "SceneTopic": ()},
    }),
)  # fmt: skip
TABLES = (
    ("network", "MODELS", "ModelSpec"),
    ("scale_sources", "SCALE_SOURCES", "ScaleSource"),
    ("export.formats", "FORMATS", "SceneFormat"),
    ("sensors.camera_models", "CAMERA_MODELS", "CameraModel"),
    ("backends", "BACKENDS", "Runtime"),
    ("messages.outputs", "FRAME_TOPICS", "FrameTopic"),
    ("messages.outputs", "SCENE_TOPICS", "SceneTopic"),
)
Definition = ast.ClassDef | ast.FunctionDef


def api_text() -> str:
    """Returns the contents of the page."""
    return "\n".join([HEADER, "## Conventions\n", conventions(), *_topics()]).rstrip() + "\n"


def conventions() -> str:
    """Returns the list of conventions in the docstring of ``da3_ros.types``."""
    text = ast.get_docstring(ast.parse((ROOT / "da3_ros" / "types.py").read_text())) or ""
    (items,) = re.findall(r"^-{5,}\n(.+?)\n\n", text, re.M | re.S)
    return _markdown(items) + "\n"


def _topics() -> Iterator[str]:
    for title, purpose, modules in TOPICS:
        yield f"## {title}\n\n{purpose}\n"
        for module, names in modules.items():
            for name, methods in names.items():
                yield from _entry(module, name, methods)
    yield "### Tables\n\n| Table | Holds |\n|---|---|"
    for module, name, kind in TABLES:
        yield f"| `da3_ros.{module}.{name}` | `{kind}`, by name |"


def _entry(module: str, name: str, methods: tuple[str, ...]) -> Iterator[str]:
    """Yields the text of a class or function."""
    source, node = find(module, name)
    yield f"### {name}\n\n```python\nfrom {module} import {name}\n```\n"
    if isinstance(node, ast.FunctionDef):
        yield _function(source, node)
        return
    yield f"{_docstring(node)}\n"
    if fields := _fields(source, node):
        yield f"```python\n{fields}\n```\n"
    known = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    for method in methods:
        yield _function(source, known[method])


def find(module: str, name: str) -> tuple[str, Definition]:
    """Returns the source file's text and the definition of a name, also if it is imported there.

    Raises ValueError if there is none.
    """
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = file.read_text()
    for node in ast.parse(source).body:
        if isinstance(node, Definition) and node.name == name:
            return source, node
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            return find(str(node.module), name)
    raise ValueError(f"{module} has no {name}")


def _function(source: str, node: ast.FunctionDef) -> str:
    """Returns signature and docstring; the signature is that of the source."""
    first = node.body[0]
    lines = source.splitlines()[node.lineno - 1 : first.lineno - 1]
    signature = re.sub(r":\s*(#.*)?$", "", inspect.cleandoc("\n".join(lines)))
    return f"```python\n{signature}\n```\n\n{_docstring(node)}\n"


def _fields(source: str, node: ast.ClassDef) -> str:
    """Returns the lines of a class that declare its fields, with their comments."""
    declared = [n for n in node.body if isinstance(n, ast.Assign | ast.AnnAssign)]
    if not declared:
        return ""
    lines = source.splitlines()
    start, end = declared[0].lineno - 1, declared[-1].end_lineno
    while lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return inspect.cleandoc("\n" + "\n".join(lines[start:end]))


def _docstring(node: Definition) -> str:
    text = ast.get_docstring(node)
    if text is None:
        raise ValueError(f"{node.name} has no docstring")
    return _markdown(text)


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("<", "&lt;")


def main(arguments: list[str]) -> int:
    """Writes or prints the page. Returns the exit code."""
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        sys.stderr.write(f"{__doc__}")
        return 2
    if arguments:
        Path(arguments[0]).write_text(api_text())
    else:
        sys.stdout.write(api_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
