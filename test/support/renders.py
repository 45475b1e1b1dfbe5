"""Renders the same frames once in a process: tests go through the same walks again and again."""

import dataclasses
import hashlib
from collections import OrderedDict

import torch

from da3_ros.synthetic.renderer import Rendering
from da3_ros.synthetic.rooms import RoomBatch, stack_rooms

MOST_BYTES = 256 * 2**20


class Renders:
    """Stands in for ``render_batch``; what it keeps is known by all that it was rendered from."""

    def __init__(self, render):
        self.render, self._kept, self._bytes = render, OrderedDict(), 0

    def __call__(self, rooms, T_room_camera, K, size, **options):
        batch = rooms if isinstance(rooms, RoomBatch) else stack_rooms(rooms)
        key = content_key(batch, T_room_camera, K, size, options)
        if key not in self._kept:
            self._keep(key, self.render(batch, T_room_camera, K, size, **options))
        self._kept.move_to_end(key)
        return Rendering(*(tensor.clone() for tensor in tensors(self._kept[key])))

    def _keep(self, key, rendering):
        self._kept[key] = rendering
        self._bytes += sum(tensor.nbytes for tensor in tensors(rendering))
        while self._bytes > MOST_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= sum(tensor.nbytes for tensor in tensors(oldest))


def tensors(rendering):
    return [getattr(rendering, field.name) for field in dataclasses.fields(rendering)]


def content_key(*values):
    found = hashlib.sha256()
    for value in values:
        add(found, value)
    return found.digest()


def add(found, value):
    """Add a value with its kind and shape, and with all that is in it."""
    found.update(type(value).__name__.encode())
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            add(found, getattr(value, field.name))
    elif isinstance(value, dict):
        found.update(str(len(value)).encode())
        for name in sorted(value):
            add(found, name)
            add(found, value[name])
    elif isinstance(value, list | tuple):
        found.update(str(len(value)).encode())
        for one in value:
            add(found, one)
    elif isinstance(value, torch.Tensor):
        found.update(f"{value.dtype} {tuple(value.shape)} {value.device}".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    elif hasattr(value, "tobytes"):
        found.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    else:
        found.update(repr(value).encode())
