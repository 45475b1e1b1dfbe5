"""Message classes of the installed ROS, for the builders in ``messages``."""

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
        """Class of ``pkg/msg/Name``. Raises ImportError or AttributeError if unknown."""
        package, kind, cls = name.split("/")
        return getattr(importlib.import_module(f"{package}.{kind}"), cls)

    def bytes(self, values: np.ndarray[Any, Any]) -> array.array[int]:
        """Returns the memory of ``values`` in C order.

        rclpy checks any other sequence byte by byte in Python, which takes seconds for an image.
        """
        return self._memory(values, "B")

    def signed_bytes(self, values: np.ndarray[Any, Any]) -> array.array[int]:
        """Returns int8 ``values`` in C order, as ``bytes`` does."""
        return self._memory(values, "b")

    def _memory(self, values: np.ndarray[Any, Any], code: str) -> array.array[int]:
        out = array.array(code)
        if values.size:  # memoryview cannot cast an empty array
            out.frombytes(np.ascontiguousarray(values).data.cast("B"))
        return out

    def sequence(self, values: Iterable[float], code: str) -> array.array[Any]:
        """Returns the numbers as an array with type code ``code``."""
        return array.array(code, values)
