"""The stages of a network, and the methods that run them: for measuring each by itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from da3_ros.network.build import Network, parts
from da3_ros.network.model import DepthAnything3

PREPARE, BACKBONE, HEAD, CAMERA, GAUSSIANS = (
    "pre-processing", "backbone", "head", "camera", "Gaussians",
)  # fmt: skip


class StageCall(NamedTuple):
    """A method that belongs to a stage."""

    stage: str
    owner: Any
    method: str


def stage_calls(network: Network) -> list[StageCall]:
    """The methods of ``network`` by stage; one may call another, whose time is then its own."""
    return [call for part in parts(network) for call in _of_part(part)]


def _of_part(part: Any) -> list[StageCall]:
    transformer = part.backbone.pretrained
    calls = [StageCall(HEAD, part.head, "project")]
    if not isinstance(part, DepthAnything3):
        calls.append(StageCall(BACKBONE, transformer, "local_taps"))
        return [*calls, StageCall(HEAD, part.head, "forward")]
    calls += [StageCall(BACKBONE, transformer, name) for name in ("prefix", "fuse")]
    calls += [StageCall(HEAD, part.head, "decode"), StageCall(CAMERA, part.cam_dec, "forward")]
    if hasattr(part, "cam_enc"):
        calls.append(StageCall(CAMERA, part.cam_enc, "forward"))
    if part.gs_head is not None:
        calls += [StageCall(GAUSSIANS, part.gs_head, name) for name in ("project", "decode")]
    return calls
