"""OpenVINO as a runtime: where it can run, and its engines of a network."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from da3_ros.backends.engine_cache import EngineCache
from da3_ros.backends.engine_folder import FORMAT, MANIFEST, RANDOM, sha256
from da3_ros.backends.engine_memory import engine_memory
from da3_ros.backends.engine_store import EngineSource, EngineStore
from da3_ros.backends.golden import golden_fault
from da3_ros.backends.interface import (
    BackendError,
    EngineMemory,
    Opening,
    Runtime,
    precision_name,
)
from da3_ros.backends.openvino_backend import OpenVinoBackend
from da3_ros.backends.openvino_engine import (
    PRECISIONS,
    EngineError,
    OpenVinoEngine,
    bf16_pays,
    has_precision,
)
from da3_ros.backends.openvino_import import OpenVinoMissingError, openvino
from da3_ros.network import ModelSpec, Network
from da3_ros.network.checkpoint import WEIGHTS, find_checkpoint
from da3_ros.network.monocular import MonocularDepth

CODE = ("network/*.py", "backends/network_parts.py", "backends/golden.py")


class OpenVinoRuntime(Runtime):
    """Engines on a CPU: twice as fast as PyTorch there."""

    automatic = True
    precisions = PRECISIONS

    def unsuited(self, device: str, precision: torch.dtype) -> str:
        if device != "cpu":
            return f"it runs on CPUs only, and device is {device}"
        return super().unsuited(device, precision)

    def check(self, precision: torch.dtype) -> None:
        try:
            openvino()
        except OpenVinoMissingError as error:
            raise BackendError(str(error), cost="at half the speed") from error
        if not has_precision(precision):
            fault = f"on this CPU it has no {precision_name(precision)}"
            raise BackendError(f"backend openvino: {fault}", "set mixed_precision to auto")

    def usual_precision(self, width: int, precision: torch.dtype) -> torch.dtype:
        return torch.bfloat16 if bf16_pays(width) else torch.float32

    def memory(
        self, spec: ModelSpec, weights: int, views: int, size: tuple[int, int],
        precision: torch.dtype,
    ) -> EngineMemory:  # fmt: skip
        return engine_memory(spec, weights, views, size, precision)

    def open(self, opening: Opening) -> EngineStore:
        return open_store(opening)


def open_store(opening: Opening) -> EngineStore:
    """The engines of a network."""
    module, release = opening.module, opening.release
    source, weights = RANDOM, RANDOM
    if opening.checkpoint != RANDOM:
        folder = find_checkpoint(module.spec, opening.checkpoint)
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
            return open_checked(module, folder, opening.precision, opening.threads)
        finally:
            release()  # what compiling it took; where image sizes alternate, the heap would grow

    cache = EngineCache(opening.cache)
    engines = EngineSource(module.spec.name, source, facts, cache, open_engine)
    return EngineStore(engines, wait=opening.wait, most_sizes=opening.most_sizes)


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
