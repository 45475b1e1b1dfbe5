"""An engine: the compiled parts of one network at one image size, on OpenVINO's CPU device."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from da3_ros.backends.openvino_import import openvino
from da3_ros.network.backbone import Prefix
from da3_ros.network.monocular import MonocularOutput
from da3_ros.types import Array

log = logging.getLogger(__name__)

PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
# Of OpenVINO's CPU device; without one it computes in another type, and says nothing.
CAPABILITIES = {torch.bfloat16: "BF16", torch.float16: "FP16"}
BF16_PAYS = 1.25  # least speed-up over fp32 for which bfloat16 is used


class EngineError(RuntimeError):
    """An engine cannot be used; the text is one line."""


class OpenVinoEngine:
    """The parts of one network, compiled. Not thread-safe: one worker owns it."""

    def __init__(
        self, folder: Path, names: Sequence[str], precision: torch.dtype, threads: int
    ) -> None:
        """``folder``: see engine_builder. Raises EngineError."""
        self._hint = PRECISIONS[precision]
        config = {
            "INFERENCE_PRECISION_HINT": self._hint,
            "EXECUTION_MODE_HINT": "ACCURACY" if self._hint == "f32" else "PERFORMANCE",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        }
        core = openvino().Core()
        try:
            self._programs = {
                name: core.compile_model(str(folder / f"{name}.xml"), "CPU", config)
                for name in names
            }
        except RuntimeError as error:
            raise EngineError(f"OpenVINO cannot compile it: {first_line(error)}") from error

    def release(self) -> None:
        """Free the intermediate results that the parts keep for their next run."""
        for program in self._programs.values():
            program.release_memory()

    def encode(self, images: Tensor) -> Prefix:
        """Images [F, 3, H, W], normalised -> tokens [F, T, D], descriptors [F, D]."""
        return Prefix(*self._one_by_one("encode", images.numpy()))

    def image(self, images: Tensor) -> MonocularOutput:
        """Images [F, 3, H, W], normalised -> depth and sky [F, H, W] of a single-image network."""
        return MonocularOutput(*self._one_by_one("image", images.numpy()))

    def window(
        self, tokens: Tensor, slots: Tensor, frames: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Depth and confidence [M, H, W] of the wanted views, camera features [N, 2D] of all.

        tokens: [N, T, D]. slots: camera tokens [N, D]. frames: int64 [M].
        """
        *taps, camera = self._run("window", tokens.numpy(), slots.numpy(), frames.numpy())
        depth, confidence = self.head(*taps)
        return depth, confidence, torch.from_numpy(camera.copy())

    def head(self, *taps: Array) -> list[Tensor]:
        """Projected taps [M, P, c_k] -> depth and confidence [M, H, W]."""
        return self._one_by_one("head", *taps)

    def _one_by_one(self, name: str, *inputs: Array) -> list[Tensor]:
        """Run a part for one view after another: [F, ...] in, tensors [F, ...] out.

        Two views at once are not faster on a CPU, and need twice the memory.
        """
        found: list[Tensor] = []
        for i in range(len(inputs[0])):
            outputs = self._run(name, *(x[i : i + 1] for x in inputs))
            found = found or [torch.empty(len(inputs[0]), *x.shape[1:]) for x in outputs]
            for whole, one in zip(found, outputs, strict=True):
                whole[i] = torch.from_numpy(one[0])
        return found

    def _run(self, name: str, *inputs: Array) -> list[Array]:
        """The outputs of a part; the engine overwrites them when the part runs again."""
        contiguous = [np.ascontiguousarray(x) for x in inputs]
        found = self._programs[name](contiguous, share_inputs=True, share_outputs=True)
        return [found[i] for i in range(len(found))]


@functools.cache
def has_precision(precision: torch.dtype) -> bool:
    """Whether OpenVINO computes in this type on this CPU."""
    if precision not in CAPABILITIES:
        return precision in PRECISIONS
    capabilities = openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return CAPABILITIES[precision] in capabilities


@functools.cache
def bf16_pays(width: int) -> bool:
    """Whether a feed-forward layer of ``width`` channels is faster in bfloat16 on this CPU."""
    ov = openvino()
    core = ov.Core()
    if not has_precision(torch.bfloat16):
        return False
    tokens = np.ones((1024, width), np.float32)
    x = ov.opset13.parameter(tokens.shape, np.float32)
    hidden = ov.opset13.matmul(x, np.ones((width, 4 * width), np.float32), False, False)
    y = ov.opset13.matmul(hidden, np.ones((4 * width, width), np.float32), False, False)
    model = ov.Model([y], [x])
    times = {"f32": float("inf"), "bf16": float("inf")}
    programs = {
        hint: core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})
        for hint in times
    }
    for _ in range(8):
        for hint, program in programs.items():
            start = time.perf_counter()
            program([tokens], share_inputs=True, share_outputs=True)
            times[hint] = min(times[hint], time.perf_counter() - start)
    ratio = times["f32"] / times["bf16"]
    log.info("bfloat16 is %.2g times as fast as float32 in OpenVINO on this CPU", ratio)
    return ratio > BF16_PAYS


def first_line(error: BaseException) -> str:
    """First line of an error's text that is not empty."""
    return next((x for x in str(error).splitlines() if x.strip()), type(error).__name__)
