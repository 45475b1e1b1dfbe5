"""Decides whether a network runs on OpenVINO, and opens its engines."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from da3_ros.backends.engine_cache import EngineCache
from da3_ros.backends.engine_folder import FORMAT, MANIFEST, RANDOM, sha256
from da3_ros.backends.engine_store import EngineSource, EngineStore
from da3_ros.backends.golden import golden_fault
from da3_ros.backends.openvino_backend import OpenVinoBackend
from da3_ros.backends.openvino_engine import (
    PRECISIONS,
    EngineError,
    OpenVinoEngine,
    has_precision,
)
from da3_ros.backends.openvino_import import OpenVinoMissingError, openvino
from da3_ros.network import Network
from da3_ros.network.checkpoint import WEIGHTS, find_checkpoint
from da3_ros.network.monocular import MonocularDepth

log = logging.getLogger(__name__)

CODE = ("network/*.py", "backends/network_parts.py", "backends/golden.py")


class BackendError(RuntimeError):
    """The wanted backend cannot be used; the text is one line with the remedy."""


def preferred_backend(wanted: str, device: str, precision: torch.dtype) -> str:
    """The backend for parameter `backend` on this kind of device, if memory admits it.

    Raises BackendError if ``wanted`` cannot be used; ``auto`` warns if OpenVINO is missing.
    """
    fault = ""
    if device != "cpu":
        fault = f"it runs on CPUs only, and device is {device}"
    elif precision not in PRECISIONS:
        fault = f"it does not support mixed_precision {_name(precision)}"
    if wanted == "torch" or (wanted == "auto" and fault):
        return "torch"
    if fault:
        raise BackendError(f"backend openvino: {fault}; set backend to auto")
    try:
        openvino()
    except OpenVinoMissingError as error:
        if wanted == OpenVinoBackend.name:
            raise BackendError(str(error)) from error
        log.warning("running on torch, at half the speed: %s", error)
        return "torch"
    if has_precision(precision):
        return OpenVinoBackend.name
    fault = f"on this CPU it has no {_name(precision)}"
    if wanted == OpenVinoBackend.name:
        raise BackendError(f"backend openvino: {fault}; set mixed_precision to auto")
    log.warning("running on torch: backend openvino: %s", fault)
    return "torch"


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def open_store(
    module: Network,
    checkpoint: str,
    precision: torch.dtype,
    threads: int,
    cache: Path | None,
    *,
    wait: bool,
    most_sizes: int = 1,
    release: Callable[[], None],
) -> EngineStore:
    """The engines of ``module``, whose weights came from ``checkpoint`` (as the parameter).

    wait, most_sizes: as in ``EngineStore``. release: returns freed memory to the system; called
    after each engine that was loaded.
    """
    source, weights = RANDOM, RANDOM
    if checkpoint != RANDOM:
        folder = find_checkpoint(module.spec, checkpoint)
        source, weights = str(folder), sha256(folder / WEIGHTS)
    facts = {
        "format": FORMAT,
        "model": module.spec.name,
        "weights": weights,
        "code": code_hash(),
        "openvino": openvino().__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }

    def open_engine(folder: Path) -> OpenVinoBackend:
        try:
            return open_checked(module, folder, precision, threads)
        finally:
            release()  # what compiling it took; where image sizes alternate, the heap would grow

    engines = EngineSource(module.spec.name, source, facts, EngineCache(cache), open_engine)
    return EngineStore(engines, wait=wait, most_sizes=most_sizes)


def open_checked(
    module: Network, folder: Path, precision: torch.dtype, threads: int
) -> OpenVinoBackend:
    """A backend with the engine in ``folder``, compared with its golden run.

    Raises EngineError if the results differ.
    """
    names = json.loads((folder / MANIFEST).read_text())["parts"]
    backend = OpenVinoBackend(module, OpenVinoEngine(folder, names, precision, threads))

    def decode(prefix: Any, size: tuple[int, int]) -> Any:
        return backend.decode(prefix, size, None, None)

    with torch.inference_mode():
        fault = golden_fault(
            folder,
            backend.encode,
            None if isinstance(module, MonocularDepth) else decode,
            precision,
        )
    if fault:
        raise EngineError(f"its results are not PyTorch's: {fault}")
    backend.release()  # so that the first windows' memory can be measured
    return backend


@functools.cache
def code_hash() -> str:
    """A hash of the code that an engine is made of: a new version of it makes new engines."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(f for pattern in CODE for f in root.glob(pattern)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
