"""Imports of the reference package that need libraries which it hardly uses."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator

import numpy as np
import torch


class ToTensor:
    """As torchvision's: an image [H, W, 3] uint8 as a tensor [3, H, W] from 0 to 1."""

    def __call__(self, image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


class Normalize:
    """As torchvision's: a tensor [3, H, W] less the mean of each channel, over its deviation."""

    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(v)[:, None, None] for v in (mean, std))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.std


def torchvision() -> dict[str, types.ModuleType]:
    """Returns modules with all that the reference's input processor wants of torchvision."""
    transforms = types.ModuleType("torchvision.transforms")
    transforms.ToTensor, transforms.Normalize = ToTensor, Normalize
    parent = types.ModuleType("torchvision")
    parent.transforms = transforms
    return {"torchvision": parent, "torchvision.transforms": transforms}


@contextlib.contextmanager
def stand_ins(unused: tuple[str, ...]) -> Iterator[None]:
    """Lets the reference be imported without torchvision and without the ``unused`` modules.

    Only what cannot be imported gets a stand-in, which is gone again at the end. A torchvision of
    another PyTorch is one that cannot be imported.
    """
    added = {name: types.ModuleType(name) for name in unused if not _imports(name)}
    if not _imports("torchvision.transforms"):
        added |= torchvision()
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


def _imports(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):  # the second: its operators are those of another PyTorch
        return False
    return True
