"""Message classes of an installed ROS for the builders in ``messages``."""

from __future__ import annotations

import array
import functools
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np


class RclpyLibrary:
    """Generated classes, imported when first used; large fields are filled in one copy."""

    @functools.cache  # noqa: B019 (one library lives as long as the process)
    def type(self, name: str) -> Any:
        """Class of ``pkg/msg/Name``. Raises ImportError or AttributeError for an unknown one."""
        package, kind, cls = name.split("/")
        return getattr(importlib.import_module(f"{package}.{kind}"), cls)

    def bytes(self, values: np.ndarray[Any, Any]) -> array.array[int]:
        """``values``' memory in C order.

        rclpy checks any other sequence byte by byte in Python, which takes seconds for an image.
        """
        out = array.array("B")
        if values.size:  # of nothing, memoryview makes no bytes
            out.frombytes(np.ascontiguousarray(values).data.cast("B"))
        return out

    def sequence(self, values: Iterable[float], code: str) -> array.array[Any]:
        """Numbers as an array of ``code``'s type."""
        return array.array(code, values)
