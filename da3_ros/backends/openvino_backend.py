"""The network on OpenVINO: its large parts in an engine, the small camera parts in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from da3_ros.backends.interface import Backend
from da3_ros.backends.openvino_engine import OpenVinoEngine
from da3_ros.network import Network
from da3_ros.network.backbone import Prefix
from da3_ros.network.build import parts
from da3_ros.network.model import DepthAnything3, Output
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.network.nested import NestedDepthAnything3, NestedPrefix
from da3_ros.network.stages import BACKBONE, CAMERA, HEAD, StageCall, stage_calls


class OpenVinoBackend(Backend):
    """Runs an engine. ``module`` gives the camera slots and decodes the cameras."""

    name = "openvino"
    keeps_memory = True

    def __init__(self, module: Network, engine: OpenVinoEngine) -> None:
        self._module, self._engine = module, engine

    def release(self) -> None:
        self._engine.release()

    def stage_calls(self) -> list[StageCall]:
        """The heads' first layers count as backbone: they are in one program with it."""
        names = {"encode": BACKBONE, "window": BACKBONE, "head": HEAD, "image": BACKBONE}
        calls = [StageCall(stage, self._engine, name) for name, stage in names.items()]
        cameras = (c for c in stage_calls(self._module) if c.stage == CAMERA)
        return [*calls, *cameras]

    def encode(self, images: Tensor) -> Any:
        batch = images[0].float()
        if isinstance(self._module, MonocularDepth):
            return MonocularOutput(*(x[None] for x in self._engine.image(batch)))
        prefix = [x[None] for x in self._engine.encode(batch)]
        if not isinstance(self._module, NestedDepthAnything3):
            return Prefix(*prefix)
        return NestedPrefix(*prefix, *(x[None] for x in self._engine.image(batch)))

    def decode(
        self,
        prefix: Any,
        size: tuple[int, int],
        camera_tokens: Tensor | None,
        frames: Tensor | None,
    ) -> Output:
        network = self._multi_view
        count = prefix.tokens.shape[1]
        slots = camera_tokens
        if slots is None:
            slots = network.backbone.pretrained.role_tokens(1, count)
        wanted = torch.arange(count) if frames is None else frames
        depth, confidence, features = self._engine.window(
            prefix.tokens[0].float(), slots[0].float(), wanted
        )
        w2c, K = network.cam_dec(features[None], size)
        return Output(depth[None], confidence[None], w2c, K)

    @property
    def _multi_view(self) -> DepthAnything3:
        (found,) = (p for p in parts(self._module) if isinstance(p, DepthAnything3))
        return found
