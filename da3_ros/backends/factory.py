"""Decides which runtime a network runs on."""

from __future__ import annotations

import logging

import torch

from da3_ros.backends import AUTO, BACKENDS
from da3_ros.backends.interface import BackendError

log = logging.getLogger(__name__)


def preferred_backend(wanted: str, device: str, precision: torch.dtype) -> str:
    """The backend for parameter `backend` on this kind of device, if memory admits it.

    Raises BackendError if ``wanted`` cannot be used; ``auto`` warns if one that is meant for this
    device cannot.
    """
    if wanted == AUTO:
        return _automatic(device, precision)
    runtime = BACKENDS[wanted]()
    if fault := runtime.unsuited(device, precision):
        raise BackendError(f"backend {wanted}: {fault}", "set backend to auto")
    runtime.check(precision)
    return wanted


def _automatic(device: str, precision: torch.dtype) -> str:
    for name, make in BACKENDS.items():
        runtime = make()
        if not runtime.automatic or runtime.unsuited(device, precision):
            continue
        try:
            runtime.check(precision)
        except BackendError as error:
            cost = f", {error.cost}" if error.cost else ""
            log.warning("running on torch%s: %s", cost, error.fault)
        else:
            return name
    return "torch"
