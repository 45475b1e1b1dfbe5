"""Normalises known camera poses for the camera encoder, as DA3's own API does.

The encoder was trained on poses relative to the first frame and in a normalised unit
(architecture notes, 14). The unit is returned with the poses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from da3_ros.network.camera import invert_rigid

SHORTEST_UNIT = 0.1  # in the unit of the given poses; the reference divides by no less


class Conditioning(NamedTuple):
    """Normalised poses for the camera encoder, and the divisor of their translations."""

    extrinsics: Tensor  # [B, N, 4, 4] window to camera; the first frame is the window's
    unit: Tensor  # [B] length of one unit of ``extrinsics`` in that of the given poses
    rotation_only: Tensor  # [B] bool: the translations determine no scale for the network


def normalize_poses(T_window_camera: Tensor) -> Conditioning:
    """Make camera-to-window poses [B, N, 4, 4] relative to the first one, in the encoder's unit.

    The unit is the lower median over all frames, including the first, of the distance to the
    first camera, but at least 0.1. With one or two views, or if at least half of the cameras are
    at the first one's position, the median is zero and the limit applies: then ``rotation_only``
    is true, and the output determines no scale. Straight paths are valid like any other.

    Computes in the type of the input: float64 keeps poses far from their origin exact, whereas
    the reference, in float32, loses a centimetre at 100 km. The results are float32.
    """
    T_first_window = _homogeneous(invert_rigid(T_window_camera[:, :1]))
    T = T_first_window @ T_window_camera
    median = T[..., :3, 3].norm(dim=-1).median(dim=1).values
    unit = median.clamp_min(SHORTEST_UNIT)
    T = torch.cat((T[..., :3], T[..., 3:] / _with_last_one(unit)), dim=-1)
    extrinsics = _homogeneous(invert_rigid(T)).float()
    return Conditioning(extrinsics, unit.float(), median < SHORTEST_UNIT)


def _with_last_one(unit: Tensor) -> Tensor:
    """[B] -> divisors [B, 1, 4, 1] of a homogeneous translation column, 1 for its last entry."""
    column = unit[:, None].repeat(1, 4)
    column[:, 3] = 1
    return column[:, None, :, None]


def _homogeneous(T: Tensor) -> Tensor:
    """[..., 3, 4] -> [..., 4, 4]."""
    last = torch.zeros_like(T[..., :1, :])
    last[..., 3] = 1
    return torch.cat((T, last), dim=-2)
