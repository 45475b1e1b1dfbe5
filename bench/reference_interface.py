"""The reference package's own call on a list of images, as its users make it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence

import numpy as np
import torch

# Imported by its writers of videos, which are not called here.
OF_WRITERS = ("moviepy", "moviepy.editor")


def reference_call(network: torch.nn.Module, images: Sequence[np.ndarray]) -> Callable[[], object]:
    """Returns a function that runs the reference's interface on its ``network`` and images.

    images: [H, W, 3] uint8 of one size, multiples of 14: the interface keeps it. Its work: images
    to tensors, upload, the network in 16 bits, download, depth and poses as arrays.
    Raises ImportError if the package, or something that it imports, is missing.
    """
    with _without_writers():
        from depth_anything_3.api import DepthAnything3
    interface = DepthAnything3("da3-small")
    interface.model = network
    size = max(images[0].shape[:2])
    return lambda: interface.inference(list(images), process_res=size, ref_view_strategy="first")


@contextlib.contextmanager
def _without_writers():
    """Lets the interface be imported without the libraries of ``OF_WRITERS``."""
    missing = [name for name in OF_WRITERS if importlib.util.find_spec(name.split(".")[0]) is None]
    for name in missing:
        sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
