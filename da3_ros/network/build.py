"""Builds a network without weights from a model's name."""

from __future__ import annotations

import torch

from da3_ros.network.model import DepthAnything3
from da3_ros.network.monocular import MonocularDepth
from da3_ros.network.nested import NestedDepthAnything3
from da3_ros.network.specs import MODELS, ModelSpec

Network = DepthAnything3 | MonocularDepth | NestedDepthAnything3


def build_network(name: str, *, gaussians: bool = False) -> Network:
    """Build a network of MODELS with PyTorch's initial weights, in eval mode, on the CPU.

    gaussians: with its Gaussian head. Raises ValueError for an unknown name, or without one.
    """
    return network_of(_spec(name), gaussians=gaussians).eval()


def empty_network(name: str, *, gaussians: bool = False) -> Network:
    """Build it with uninitialised parameters, which the caller must set: seconds faster.

    Networks have no buffers; their tables are computed when they run.
    """
    with torch.device("meta"):
        network = network_of(_spec(name), gaussians=gaussians)
    return network.to_empty(device="cpu").eval()


def _spec(name: str) -> ModelSpec:
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: must be one of {', '.join(MODELS)}")
    return MODELS[name]


def network_of(spec: ModelSpec, *, gaussians: bool = False) -> Network:
    """Build a network with the sizes of ``spec``; as ``build_network``."""
    if gaussians and not spec.gaussians:
        raise ValueError(f"{spec.name} has no Gaussian head")
    if spec.metric_branch is not None:
        return NestedDepthAnything3(spec, gaussians=gaussians)
    return DepthAnything3(spec, gaussians=gaussians) if spec.multi_view else MonocularDepth(spec)


def parts(network: Network) -> tuple[DepthAnything3 | MonocularDepth, ...]:
    """The parts with a backbone and a head: the network itself, or both parts of a nested one."""
    if isinstance(network, NestedDepthAnything3):
        return network.da3, network.da3_metric
    return (network,)
