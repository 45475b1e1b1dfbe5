"""From a model's name and a checkpoint to a network on a device, as fast as it is still right."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from da3_ros.inference.devices import Device
from da3_ros.inference.self_check import SelfCheck
from da3_ros.network import Network, empty_network, initialize_randomly, load_checkpoint
from da3_ros.network.precision import channels_last, convert

log = logging.getLogger(__name__)

RANDOM = "random"


def load_network(model: str, checkpoint: str, *, meaning: str = "numbers") -> Network:
    """The network with its weights in fp32 on the host, for inference only.

    ``checkpoint`` is as in InferenceConfig; ``meaning`` is what random weights leave without one.
    Raises CheckpointError.
    """
    network = empty_network(model)
    if checkpoint == RANDOM:
        log.warning("checkpoint `random`: %s gives %s without meaning", model, meaning)
        initialize_randomly(network)
    else:
        folder = load_checkpoint(network, checkpoint)
        log.info("%s loaded from %s", model, folder)
    network.requires_grad_(False)
    return network


def put_on(network: Network, on: Device) -> Network:
    """The network on a device, laid out as the device likes it."""
    if on.device.type != "cpu":
        channels_last(network)
    return network.to(on.device)


def load_checked(
    load: Callable[[], Network],
    on: Device,
    precision: torch.dtype,
    loaded: Network | None = None,
) -> tuple[Network, torch.dtype]:
    """What ``load`` gives, on the device in ``precision``, or in fp32 if that is not close to it.

    Returns the type too. Only one copy stays. ``loaded``: what is there already, in fp32; it is
    changed.
    """
    network = loaded if loaded is not None else load()
    if precision == torch.float32:
        return put_on(network, on), precision
    check = SelfCheck(network)
    convert(network, precision)
    network = put_on(network, on)
    fault = check.fault(network)
    if not fault:
        return network, precision
    log.warning(
        "%s in %s is not close to fp32 here (%s): running in fp32",
        network.spec.name,
        str(precision).removeprefix("torch."),
        fault,
    )
    del network, loaded
    return put_on(load(), on), torch.float32
