"""Known camera poses, made ready for the camera encoder as DA3's own API does it.

The encoder was trained on poses relative to the first frame, in a unit of their own (architecture
notes, 14). What that unit was is returned: it is needed to judge what the poses can be asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from da3_ros.network.camera import invert_rigid

SHORTEST_UNIT = 0.1  # in the unit of the given poses; the reference divides by no less


class Conditioning(NamedTuple):
    """Poses as the camera encoder takes them, and what they were divided by."""

    extrinsics: Tensor  # [B, N, 4, 4] world-to-camera; the first frame is the world
    unit: Tensor  # [B] length of one unit of ``extrinsics`` in that of the given poses
    rotation_only: Tensor  # [B] bool: the translations carry no scale that the network could use


def normalize_poses(T_world_camera: Tensor) -> Conditioning:
    """Camera-to-world poses [B, N, 4, 4] relative to the first and in the encoder's unit.

    The unit is the lower median over all frames, the first included, of the distance to the first
    frame's camera, but at least 0.1. With one or two views, or while at least half of the views
    stand at the first, that median is zero and the limit decides: then ``rotation_only`` is true,
    and no scale must be read from the answer. Straight lines are as good as any other path.

    Arithmetic is in the type of the input: float64 keeps poses far from their origin exact, where
    the reference, in float32, loses a centimetre at a hundred kilometres. The results are float32.
    """
    T_first_world = _homogeneous(invert_rigid(T_world_camera[:, :1]))
    T = T_first_world @ T_world_camera
    median = T[..., :3, 3].norm(dim=-1).median(dim=1).values
    unit = median.clamp_min(SHORTEST_UNIT)
    T = torch.cat((T[..., :3], T[..., 3:] / _with_last_one(unit)), dim=-1)
    extrinsics = _homogeneous(invert_rigid(T)).float()
    return Conditioning(extrinsics, unit.float(), median < SHORTEST_UNIT)


def _with_last_one(unit: Tensor) -> Tensor:
    """[B] -> [B, 1, 4, 1] that divides a translation column and leaves its 1."""
    column = unit[:, None].repeat(1, 4)
    column[:, 3] = 1
    return column[:, None, :, None]


def _homogeneous(T: Tensor) -> Tensor:
    """[..., 3, 4] -> [..., 4, 4]."""
    last = torch.zeros_like(T[..., :1, :])
    last[..., 3] = 1
    return torch.cat((T, last), dim=-2)
