"""Runtimes of the network: PyTorch everywhere, OpenVINO on CPUs; their engines and cache.

The table is light, so that parameters can list it: a runtime is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from da3_ros.backends.interface import Runtime

AUTO = "auto"


def _torch() -> Runtime:
    from da3_ros.backends.torch_backend import TorchRuntime

    return TorchRuntime()


def _openvino() -> Runtime:
    from da3_ros.backends.openvino_runtime import OpenVinoRuntime

    return OpenVinoRuntime()


# By the value of parameter `backend`; `auto` tries them in this order.
BACKENDS: dict[str, Callable[[], Runtime]] = {"torch": _torch, "openvino": _openvino}


def backend_choices() -> tuple[str, ...]:
    """Returns the values of parameter `backend`."""
    return (AUTO, *BACKENDS)
