"""From a model's name to a network without weights."""

from __future__ import annotations

import torch

from da3_ros.network.model import DepthAnything3
from da3_ros.network.monocular import MonocularDepth
from da3_ros.network.nested import NestedDepthAnything3
from da3_ros.network.specs import MODELS, ModelSpec

Network = DepthAnything3 | MonocularDepth | NestedDepthAnything3


def build_network(name: str) -> Network:
    """A network of MODELS with PyTorch's initial weights, in eval mode, on the CPU.

    Raises ValueError for an unknown name.
    """
    return network_of(_spec(name)).eval()


def empty_network(name: str) -> Network:
    """The same with uninitialised parameters, all of which the caller must set: saves seconds.

    Networks have no buffers, and make their tables when they run.
    """
    with torch.device("meta"):
        network = network_of(_spec(name))
    return network.to_empty(device="cpu").eval()


def _spec(name: str) -> ModelSpec:
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: one of {', '.join(MODELS)}")
    return MODELS[name]


def network_of(spec: ModelSpec) -> Network:
    """The network with the sizes of ``spec``."""
    if spec.metric_branch is not None:
        return NestedDepthAnything3(spec)
    return DepthAnything3(spec) if spec.multi_view else MonocularDepth(spec)


def parts(network: Network) -> tuple[DepthAnything3 | MonocularDepth, ...]:
    """The networks that have a backbone and a head of their own: one, or a nested one's two."""
    if isinstance(network, NestedDepthAnything3):
        return network.da3, network.da3_metric
    return (network,)
