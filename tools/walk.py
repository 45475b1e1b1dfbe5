#!/usr/bin/env python3
"""Follows one camera image through the code: functions, files and switches between files.

Usage: walk.py [live|replay ...] [--off] [--order] [--json] [--forwarders]

Runs da3-tiny on a rendered walk with windows of four views; depth images and poses are wanted. Of
one frame it counts the functions that run (with a name, of da3_ros without ``ros/``), their files,
and how often the call after a call is in another file or another room. It counts those of the
frame's own thread, by room too, and those of all threads: the others detect features, measure
depth, adjust keyframes and solve loops while the frame passes, and do not always come equally far.
``--off`` turns off what can be (`OFF`). ``--order`` prints the calls in order, ``--json`` the
numbers for programs, ``--forwarders`` lists the methods that only forward. Requires da3_ros on the
path; ROS is not needed.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeGuard

import cv2

PACKAGE = Path(__file__).resolve().parents[1] / "da3_ros"
FRAME = 9  # the frame that is followed: by then windows are full, and refined
FRAMES = 11
SIZE = (112, 84)
VALUES = {
    "model": "da3-tiny", "device": "cpu", "process_res": 112, "window.size": 4, "backend": "torch",
    "mixed_precision": "off", "tf.publish": "none",
}  # fmt: skip
# What is on by default and is not needed to place a frame and to add it to the map.
OFF = {
    "refinement.enabled": False, "refinement.map": False, "loop.enabled": False,
    "dense.enabled": False, "map.remove_movers": False, "depth.edge_filter": False,
    "hold_when_blind": False,
}  # fmt: skip
WANTED = ("depth/image", "pose")
Call = tuple[str, int, str]  # file in the package, line, and name


class Walk:
    """The calls of one frame, in order, by thread."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._by_thread: dict[int, list[Call]] = {}
        self._own = threading.get_ident()
        self._following = False
        self._files: dict[CodeType, str] = {}

    def __enter__(self) -> Walk:
        threading.setprofile(self._note)  # of threads that begin from now on
        return self

    def __exit__(self, *_: object) -> None:
        self.follow(False)
        threading.setprofile(None)

    def follow(self, on: bool) -> None:
        """Begins or ends noting calls. Of this thread, which takes the frame, and of others."""
        self._following = on
        sys.setprofile(self._note if on else None)

    def own(self) -> Counts:
        """Returns the counts of the frame's own thread."""
        return counts([self._by_thread.get(self._own, [])])

    def all(self) -> Counts:
        """Returns the counts of all threads."""
        return counts(list(self._by_thread.values()))

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._following or event != "call":
            return
        code = frame.f_code
        file = self._files.get(code)
        if file is None:
            file = self._files[code] = _counted(code)
        if file:
            call = file, code.co_firstlineno, code.co_name
            self.calls.append(call)
            self._by_thread.setdefault(threading.get_ident(), []).append(call)


@dataclass(frozen=True)
class Counts:
    """What calls cross."""

    functions: int
    files: int
    switches: int  # of file: calls in another one than the call before in the same thread
    room_switches: int
    rooms: Mapping[str, int] = field(default_factory=dict)  # functions of each room


def counts(threads: list[list[Call]]) -> Counts:
    """Returns what the calls of threads cross."""
    functions = {call for calls in threads for call in calls}
    pairs = [pair for calls in threads for pair in itertools.pairwise(f for f, *_ in calls)]
    rooms = Counter(_room(file) for file, *_ in functions)
    return Counts(
        len(functions),
        len({file for file, *_ in functions}),
        sum(a != b for a, b in pairs),
        sum(_room(a) != _room(b) for a, b in pairs),
        dict(rooms.most_common()),
    )


def _counted(code: CodeType) -> str:
    """The file of a function in the package; "" if the function is not counted."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(PACKAGE):
        return ""
    file = path.relative_to(PACKAGE).as_posix()
    return "" if file.startswith("ros/") else file


def _room(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


class Host:
    """Takes what the live stream publishes."""

    def publish(self, published: Any) -> None:
        """Drops a message."""

    def has_subscribers(self, topic: str) -> bool:
        """Whether a topic has a subscriber."""
        return topic in WANTED

    def now_ns(self) -> int:
        """The time of simulated clocks."""
        return 0

    def warn(self, text: str, every_s: float = 0.0) -> None:
        """Prints a warning."""
        print(text, file=sys.stderr)

    def stopping(self) -> bool:
        """Whether the node is being shut down."""
        return False


def live(values: Mapping[str, Any]) -> Walk:
    """Follows a frame from the callback to its messages."""
    from da3_ros.config import NodeConfig, config_from_parameters
    from da3_ros.live.scene_stream import RawFrame
    from da3_ros.live.stream import Stream
    from da3_ros.messages import build
    from da3_ros.messages.build import RosbagsLibrary
    from da3_ros.sensors.transform_tree import TransformTree
    from da3_ros.synthetic import SyntheticCamera

    camera = SyntheticCamera(3, SIZE, walk="loop", frames=FRAMES, rate_hz=5.0)
    lib = RosbagsLibrary()
    config = config_from_parameters(values, NodeConfig)
    with Walk() as walk:
        stream = Stream(config, lib, Host(), TransformTree())
        for n, frame in enumerate(camera):
            message = build.image(lib, frame.stamp_ns, "camera", frame.image)
            raw = RawFrame(frame.stamp_ns, message, "camera", camera.calibration, True, "image")
            walk.follow(n == FRAME)
            stream.put(raw)
            while stream.step():
                pass
            walk.follow(False)
    return walk


def replay(values: Mapping[str, Any]) -> Walk:
    """Follows a frame of a replay, from one progress report to the next."""
    from da3_ros.config import NodeConfig, config_from_parameters
    from da3_ros.replay.results import ReplayOptions
    from da3_ros.replay.run import replay as run
    from da3_ros.synthetic import SyntheticCamera

    with tempfile.TemporaryDirectory() as folder, Walk() as walk:
        images = Path(folder, "images")
        images.mkdir()
        for n, frame in enumerate(SyntheticCamera(3, SIZE, walk="loop", frames=FRAMES)):
            cv2.imwrite(str(images / f"{n:04d}.png"), frame.image[:, :, ::-1])

        def on_frame(done: int, total: int) -> None:
            walk.follow(done == FRAME)

        config = config_from_parameters(values, NodeConfig)
        run(ReplayOptions(images, Path(folder, "out")), config, on_frame=on_frame)
    return walk


WALKS: dict[str, Callable[[Mapping[str, Any]], Walk]] = {"live": live, "replay": replay}


def forwarders() -> Iterator[str]:
    """Yields the methods of the package that only forward: ``file:line class.name``.

    Without those that an abstract class of the package asks for.
    """
    wanted, found = set[str](), list[tuple[str, str]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if _is_abstract(node):
                wanted.add(node.name)
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and _only_forwards(method):
                    line = f"{path.relative_to(PACKAGE)}:{method.lineno}"
                    found.append((method.name, f"{line} {node.name}.{method.name}"))
    yield from (text for name, text in found if name not in wanted)


def _is_abstract(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(d, ast.Name) and d.id == "abstractmethod" for d in node.decorator_list
    )


def _only_forwards(method: ast.FunctionDef) -> bool:
    """Whether a method only calls, or returns, the same of an object that its own one holds.

    Its arguments are passed on as they are. Methods of the language (``__len__``) do not count.
    """
    body = [n for n in method.body if not _is_docstring(n)]
    if method.name.startswith("__") or len(body) != 1:
        return False
    (only,) = body
    if not isinstance(only, ast.Return | ast.Expr) or only.value is None:
        return False
    value, names = only.value, {a.arg for a in (*method.args.args, *method.args.kwonlyargs)}
    if isinstance(value, ast.Call):
        passed = [*value.args, *(k.value for k in value.keywords)]
        if not all(isinstance(a, ast.Name) and a.id in names for a in passed):
            return False
        value = value.func
    # self.part.name, and not self.name
    return (
        isinstance(value, ast.Attribute)
        and isinstance(value.value, ast.Attribute)
        and isinstance(value.value.value, ast.Name)
        and value.value.value.id == "self"
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def lines_of(name: str, own: Counts, everything: Counts) -> Iterator[str]:
    """Yields the lines about a walk."""
    rooms = ", ".join(f"{room} {functions}" for room, functions in own.rooms.items())
    for what, found in ((name, own), ("  with all threads", everything)):
        yield (
            f"{what}: {found.functions} functions in {found.files} files, {found.switches} "
            f"switches of file, {found.room_switches} of room"
        )
    yield f"  functions by room: {rooms}"


def main(arguments: list[str] | None = None) -> int:
    """Prints the walks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="live|replay", help="default: both")
    parser.add_argument("--off", action="store_true", help="without what can be turned off")
    parser.add_argument("--order", action="store_true", help="print the calls in order")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON alone")
    parser.add_argument("--forwarders", action="store_true", help="list methods that forward")
    options = parser.parse_args(arguments)
    if unknown := set(options.what) - set(WALKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.forwarders:
        found = list(forwarders())
        print("\n".join([*found, f"{len(found)} methods only forward"]))
        return 0
    for name in options.what or WALKS:
        walk = WALKS[name](VALUES | (OFF if options.off else {}))
        own, everything = walk.own(), walk.all()
        if options.order:
            print("\n".join(f"{file}:{line} {function}" for file, line, function in walk.calls))
        if options.json:
            print(json.dumps({"walk": name, "own": vars(own), "all": vars(everything)}))
        else:
            print("\n".join(lines_of(name, own, everything)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
