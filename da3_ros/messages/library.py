"""Message classes, from rclpy or from ``rosbags``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

PACKAGE = "da3_ros"


OWN_MESSAGES = ("FramePose", "Window", "Status")


class MessageLibrary(Protocol):
    """Provides message classes, and values in the form of their large fields."""

    def type(self, name: str) -> Any:
        """Class of ``pkg/msg/Name``; its constructor takes every field as a keyword."""

    def bytes(self, values: np.ndarray[Any, Any]) -> Any:
        """Returns the memory of ``values`` for a ``uint8[]`` field, in one copy."""

    def sequence(self, values: Iterable[float], code: str) -> Any:
        """Returns numbers for an unbounded numeric field; ``code``: type code of module array."""


class RosbagsLibrary:
    """Messages as ``rosbags`` makes them, with da3_ros' own ones; no installed ROS is needed.

    Also serialises them (CDR, little endian) and tells their definitions, for writing bags.
    """

    def __init__(self) -> None:
        self.store = get_typestore(Stores.ROS2_JAZZY)
        for name in OWN_MESSAGES:
            text = _own_definition(name)
            self.store.register(get_types_from_msg(text, f"{PACKAGE}/msg/{name}"))

    def type(self, name: str) -> Any:
        """Class of ``pkg/msg/Name``. Raises KeyError for an unknown one."""
        return self.store.types[name]

    def bytes(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """``values``' memory in C order as uint8 [n]."""
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    def sequence(self, values: Iterable[float], code: str) -> np.ndarray[Any, Any]:
        """Numbers as an array of ``code``'s type."""
        return np.array(list(values), dtype=code)

    def serialize(self, message: Any, name: str) -> memoryview:
        """CDR bytes of a message."""
        return self.store.serialize_cdr(message, name, little_endian=True)

    def definition(self, name: str) -> str:
        """Text of a type with all it contains, as MCAP's ``ros2msg`` schemas want it."""
        return self.store.generate_msgdef(name, ros_version=2)[0]

    def type_hash(self, name: str) -> str:
        """REP-2016 type hash (``RIHS01_...``)."""
        return self.store.hash_rihs01(name)


def _own_definition(name: str) -> str:
    """Text of one of our .msg files: installed inside the package, or at the root of a clone."""
    package = Path(__file__).parents[1]
    for folder in (package / "interfaces" / "msg", package.parent / "msg"):
        file = folder / f"{name}.msg"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(
        f"{name}.msg is in neither {package / 'interfaces' / 'msg'} nor {package.parent / 'msg'}: "
        "the installation is incomplete, install da3_ros again"
    )
