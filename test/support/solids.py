"""Exact depth of a floor with a few solids on it, without images: metres, z up, floor at z = 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from da3_ros.synthetic.camera import intrinsics
from da3_ros.types import Array, FloatImage

SIZE = (504, 378)
K = intrinsics(SIZE, 65.0)


@dataclass(frozen=True)
class Solid:
    """A box: lowest and highest corner; tilted about its near edge (y), degrees, rising with x."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    tilt_deg: float = 0.0

    def entered(self, origin: Array, rays: Array) -> Array:
        """Returns how far rays [..., 3] go until they meet it; inf: they do not."""
        c, s = np.cos(np.radians(self.tilt_deg)), np.sin(np.radians(self.tilt_deg))
        to_local = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
        low, high = np.array(self.low), np.array(self.high)
        start = to_local @ (origin - low)
        step = rays @ to_local.T
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.stack((-start / step, (high - low - start) / step))
        enter, leave = ends.min(0).max(-1), ends.max(0).min(-1)
        return np.where((enter < leave) & (enter > 0), enter, np.inf)


def camera_at(height: float, pitch_deg: float = 0.0, x: float = 0.0) -> Array:
    """T_level_camera [4, 4] of a camera that looks along x; pitch: downwards."""
    c, s = np.cos(np.radians(pitch_deg)), np.sin(np.radians(pitch_deg))
    T = np.eye(4)
    T[:3, :3] = np.array([[0, -s, c], [-1, 0, 0], [0, -c, -s]])
    T[:3, 3] = x, 0, height
    return T


def depth_of(
    T_level_camera: Array, solids: Sequence[Solid] = (), *, floor: bool = True,
    ceiling: float = np.inf, size: tuple[int, int] = SIZE, K: Array = K,
) -> FloatImage:  # fmt: skip
    """Returns z-depth [H, W]; +Inf where rays meet nothing."""
    v, u = np.mgrid[: size[1], : size[0]] + 0.5
    rays = np.stack(((u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], np.ones_like(u)), -1)
    rays = rays @ T_level_camera[:3, :3].T
    origin = T_level_camera[:3, 3]
    out = np.full(u.shape, np.inf)
    with np.errstate(divide="ignore"):
        if floor:
            out = np.where(rays[..., 2] < 0, -origin[2] / rays[..., 2], out)
        out = np.where(rays[..., 2] > 0, (ceiling - origin[2]) / rays[..., 2], out)
    for solid in solids:
        out = np.minimum(out, solid.entered(origin, rays))
    return out.astype(np.float32)


def in_level(points: Array, T_level_camera: Array) -> Array:
    """Returns points [N, 3] of the camera in the level frame."""
    return np.asarray(points @ T_level_camera[:3, :3].T + T_level_camera[:3, 3])
