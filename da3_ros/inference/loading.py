"""Loads a network onto a device, in the requested precision if its results stay close to fp32."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from da3_ros.backends import BACKENDS
from da3_ros.backends.factory import preferred_backend as backend_for
from da3_ros.backends.interface import BackendError
from da3_ros.backends.self_check import SelfCheck
from da3_ros.config import InferenceConfig
from da3_ros.inference.devices import Device, DeviceError
from da3_ros.network import MODELS, Network, empty_network, initialize_randomly, load_checkpoint
from da3_ros.network.int8 import pair_sums_clip, weight_bits
from da3_ros.network.precision import channels_last, convert

log = logging.getLogger(__name__)

RANDOM = "random"


def load_network(
    model: str, checkpoint: str, *, meaning: str = "numbers", gaussians: bool = False
) -> Network:
    """Load a network with fp32 weights on the host, for inference only.

    ``checkpoint``: as in InferenceConfig. ``meaning``: the outputs that random weights make
    meaningless, for the warning. ``gaussians``: with the Gaussian head. Raises CheckpointError.
    """
    network = empty_network(model, gaussians=gaussians)
    if checkpoint == RANDOM:
        log.warning("checkpoint `random`: the %s of %s are meaningless", meaning, model)
        initialize_randomly(network)
    else:
        folder = load_checkpoint(network, checkpoint)
        log.info("%s loaded from %s", model, folder)
    network.requires_grad_(False)
    return network


def backend_and_precision(config: InferenceConfig, hardware: Device) -> tuple[str, torch.dtype]:
    """The backend and the type of matrix products on this device, if memory admits them.

    Raises DeviceError if the parameters ask for what the device cannot do.
    """
    precision = hardware.precision(config.mixed_precision)
    backend = backend_in(config, hardware, precision)
    if config.mixed_precision == "auto":
        width = MODELS[config.model].width
        precision = BACKENDS[backend]().usual_precision(width, precision)
    return backend, precision


def backend_in(config: InferenceConfig, hardware: Device, precision: torch.dtype) -> str:
    """The backend for ``precision`` on this device, if memory admits it. Raises DeviceError."""
    try:
        return backend_for(config.backend, hardware.kind, precision)
    except BackendError as error:
        raise DeviceError(str(error)) from error


def precision_text(name: str, int8_bits: int | None) -> str:
    """The type of matrix products ``name`` for people, of int8 with the bits of its weights."""
    return name if int8_bits is None else f"{name} ({int8_bits}-bit weights)"


def int8_weight_bits(precision: torch.dtype) -> int | None:
    """Bits of the weights of linear layers in int8 on this CPU; None: another type."""
    return weight_bits(clips=pair_sums_clip()) if precision == torch.int8 else None


def put_on(network: Network, hardware: Device) -> Network:
    """Move the network to a device, in the memory layout that is fastest there."""
    if hardware.device.type != "cpu":
        channels_last(network)
    return network.to(hardware.device)


def load_checked(
    load: Callable[[], Network],
    hardware: Device,
    precision: torch.dtype,
    loaded: Network | None = None,
) -> tuple[Network, torch.dtype]:
    """Put the network on the device in ``precision``, or in fp32 if the self-check fails.

    Returns the network and its precision. ``loaded``: the network in fp32 if it is loaded
    already, modified in place; else ``load()`` is called. Only one copy stays in memory.
    """
    network = loaded if loaded is not None else load()
    if precision == torch.float32:
        return put_on(network, hardware), precision
    check = SelfCheck(network)
    convert(network, precision)
    network = put_on(network, hardware)
    fault = check.fault(network)
    if not fault:
        if int8_weight_bits(precision) == 7:
            log.info("int8: weights take 7 bits, as this CPU's kernels clip sums of products")
        return network, precision
    log.warning(
        "%s in %s is not close to fp32 here (%s): running in fp32",
        network.spec.name,
        str(precision).removeprefix("torch."),
        fault,
    )
    del network, loaded
    return put_on(load(), hardware), torch.float32
