#!/usr/bin/env python3
"""Follows one camera image through the code: functions, files and switches between files.

Usage: walk.py [live|replay ...] [--order] [--forwarders]

Runs da3-tiny on a rendered walk with windows of four views; depth images and poses are wanted. Of
one frame it counts the functions that run (with a name, of da3_ros without ``ros/``), their files,
and how often the call after a call is in another file or another room. ``--order`` prints the
calls in order, ``--forwarders`` lists the methods that only forward. Requires da3_ros on the path;
ROS is not needed.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cv2

PACKAGE = Path(__file__).resolve().parents[1] / "da3_ros"
FRAME = 9  # the frame that is followed: by then windows are full, and refined
FRAMES = 12
SIZE = (112, 84)
VALUES = {
    "model": "da3-tiny", "device": "cpu", "process_res": 112, "window.size": 4, "backend": "torch",
    "mixed_precision": "off", "tf.publish": "none",
}  # fmt: skip
WANTED = ("depth/image", "pose")


@dataclass
class Walk:
    """The calls of one frame, in order, of all threads: file in the package, line, and name."""

    calls: list[tuple[str, int, str]] = field(default_factory=list)
    following: bool = False
    _by_thread: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _files: dict[CodeType, str] = field(default_factory=dict)

    def __enter__(self) -> Walk:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def functions(self) -> int:
        """Number of functions that ran."""
        return len(set(self.calls))

    @property
    def files(self) -> int:
        """Number of their files."""
        return len({file for file, *_ in self.calls})

    @property
    def switches(self) -> int:
        """Number of calls in another file than the call before in the same thread."""
        return self._changes(str)

    @property
    def room_switches(self) -> int:
        """Number of calls in another room than the call before in the same thread."""
        return self._changes(_room)

    def _changes(self, of: Callable[[str], str]) -> int:
        pairs = (p for files in self._by_thread.values() for p in itertools.pairwise(files))
        return sum(of(a) != of(b) for a, b in pairs)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.following or event != "call":
            return
        code = frame.f_code
        file = self._files.get(code)
        if file is None:
            file = self._files[code] = _counted(code)
        if file:
            self.calls.append((file, code.co_firstlineno, code.co_name))
            self._by_thread[threading.get_ident()].append(file)


def _counted(code: CodeType) -> str:
    """The file of a function in the package; "" if the function is not counted."""
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(PACKAGE):
        return ""
    file = path.relative_to(PACKAGE).as_posix()
    return "" if file.startswith("ros/") else file


def _room(file: str) -> str:
    return file.partition("/")[0]


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


def live() -> Walk:
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
    config = config_from_parameters(VALUES, NodeConfig)
    stream = Stream(config, lib, Host(), TransformTree())
    with Walk() as walk:
        for n, frame in enumerate(camera):
            message = build.image(lib, frame.stamp_ns, "camera", frame.image)
            raw = RawFrame(frame.stamp_ns, message, "camera", camera.calibration, True, "image")
            walk.following = n == FRAME
            stream.put(raw)
            while stream.step():
                pass
            walk.following = False
    return walk


def replay() -> Walk:
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
            walk.following = done == FRAME

        values = config_from_parameters(VALUES, NodeConfig)
        run(ReplayOptions(images, Path(folder, "out")), values, on_frame=on_frame)
    return walk


WALKS: dict[str, Callable[[], Walk]] = {"live": live, "replay": replay}


def forwarders() -> Iterator[str]:
    """Yields the methods of the package that only forward: ``file:line class.name``.

    Without those that an abstract class of the package asks for.
    """
    wanted = set(_abstract())
    for path in sorted(PACKAGE.rglob("*.py")):
        for owner in (n for n in ast.walk(ast.parse(path.read_text())) if _is_class(n)):
            for method in (n for n in owner.body if isinstance(n, ast.FunctionDef)):
                if method.name not in wanted and _only_forwards(method):
                    file = path.relative_to(PACKAGE)
                    yield f"{file}:{method.lineno} {owner.name}.{method.name}"


def _abstract() -> Iterator[str]:
    """Yields the names of the package's abstract methods."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(d, ast.Name) and d.id == "abstractmethod" for d in node.decorator_list
            ):
                yield node.name


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


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


def main(arguments: list[str] | None = None) -> int:
    """Prints the walks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="live|replay", help="default: both")
    parser.add_argument("--order", action="store_true", help="print the calls in order")
    parser.add_argument("--forwarders", action="store_true", help="list methods that forward")
    options = parser.parse_args(arguments)
    if unknown := set(options.what) - set(WALKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.forwarders:
        found = list(forwarders())
        print("\n".join([*found, f"{len(found)} methods only forward"]))
        return 0
    for name in options.what or WALKS:
        walk = WALKS[name]()
        if options.order:
            print("\n".join(f"{file}:{line} {function}" for file, line, function in walk.calls))
        print(
            f"{name}: {walk.functions} functions in {walk.files} files, {walk.switches} switches "
            f"of file, {walk.room_switches} of room"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
