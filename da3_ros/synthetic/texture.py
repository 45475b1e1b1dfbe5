"""Procedural textures, evaluated analytically at hit points: noise, tiles, patches.

All values come from an integer hash, so textures are aperiodic, seeded, equal on all devices, and
need no memory. Details fade before they get smaller than a pixel, which prevents aliasing.
Coordinates are metres on a surface; ``foot`` is the length that a pixel covers there. Selections
are written as minima, maxima and clamps: ``torch.where`` is thirty times slower on CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OCTAVES = 6
LACUNARITY = 2.17  # not an integer, so that the lattices of two octaves never coincide
_A, _B = 0x27D4EB2F, 0x165667B1  # odd, so that hashes of neighbouring cells are far apart


def _mix(h: Tensor) -> Tensor:
    """Scramble int32 in place (two multiply and xor-shift rounds; overflow wraps)."""
    h = h.bitwise_xor_(h >> 15).mul_(0x2C1B3C6D)
    return h.bitwise_xor_(h >> 12).mul_(0x297A2D39)


def _signed(h: Tensor) -> Tensor:
    """Uniform float32 in [-1, 1) from scrambled int32; uses the top bits, the most random ones."""
    return h.float().mul_(2.0**-31)


def _pair(h: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent uniform float32 in [0, 1) from scrambled int32."""
    high = ((h >> 16) & 0xFFFF).float().mul_(2.0**-16)
    low = ((h ^ (h >> 13)) & 0xFFFF).float().mul_(2.0**-16)
    return high, low


def value_noise(u: Tensor, v: Tensor, seed: Tensor | int) -> Tensor:
    """Smooth noise in [-1, 1] over a unit lattice: float32 like ``u``; seed int32 like ``u``."""
    cell_u, cell_v = u.floor(), v.floor()
    fu, fv = u - cell_u, v - cell_v
    h = cell_u.int().mul_(_A).add_(cell_v.int().mul_(_B)).add_(seed)
    h10, h01, h11 = h + _A, h + _B, h + (_A + _B)
    fu, fv = fu * fu * (3.0 - 2.0 * fu), fv * fv * (3.0 - 2.0 * fv)
    low = torch.lerp(_signed(_mix(h)), _signed(_mix(h10)), fu)
    high = torch.lerp(_signed(_mix(h01)), _signed(_mix(h11)), fu)
    return torch.lerp(low, high, fv)


def fade(cells_per_pixel: Tensor) -> Tensor:
    """1 if a lattice cell covers at least two pixels, falling to 0 at one pixel.

    The shortest wave of a lattice is two cells, so no wave shorter than two pixels remains.
    """
    return (2.0 - 2.0 * cells_per_pixel).clamp_(0.0, 1.0)


def octaves(
    u: Tensor,
    v: Tensor,
    foot: Tensor,
    frequency: Tensor,
    gain: Tensor,
    seed: Tensor,
    finest: float,
) -> tuple[Tensor, Tensor]:
    """Two independent multi-octave noises (even and odd octaves), each about [-1, 1].

    ``frequency``: of the coarsest octave, cells per metre. ``gain``: amplitude ratio of an octave
    to the next coarser one. ``finest``: lower bound of foot * frequency; octaves too fine for all
    pixels are skipped.
    """
    u, v, cells = u * frequency, v * frequency, foot * frequency
    sums = [torch.zeros_like(u), torch.zeros_like(u)]
    amplitude = torch.ones_like(gain)
    for k in range(OCTAVES):
        scale = LACUNARITY**k
        if finest * scale >= 1.0:
            break
        c, s = scale * math.cos(1.3 + 2.4 * k), scale * math.sin(1.3 + 2.4 * k)
        noise = value_noise(
            (u * c).add_(v, alpha=s), (v * c).sub_(u, alpha=s), seed + 0x3C6EF35 * k
        )
        sums[k % 2].addcmul_(noise, fade(cells * scale).mul_(amplitude))
        amplitude = amplitude * gain
    return sums[0], sums[1]


def _interval(x: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """The number of the random interval around x, and the distance to its nearer end.

    Edge i of the partition is at i + 0.7 r(i) with r uniform: lengths vary from 0.3 to 1.7.
    """
    n = x.floor()
    h = n.int().mul_(_A).add_(seed)
    below, here, above = (
        (_signed(_mix(h + step)) * 0.35).add_(0.35 + offset).add_(n)
        for step, offset in ((-_A, -1.0), (0, 0.0), (_A, 1.0))
    )
    right = (x >= here).float()
    left_end, right_end = torch.lerp(below, here, right), torch.lerp(here, above, right)
    return n.add_(right).sub_(1.0).int(), torch.minimum(x - left_end, right_end - x)


def tiles(
    u: Tensor, v: Tensor, foot: Tensor, frequency: Tensor, seed: Tensor
) -> tuple[Tensor, Tensor]:
    """Tiles of random sizes: the tile's tone in [-1, 1] and the coverage by joints in [0, 1].

    Tiles form columns of random width, each divided at random heights; ``frequency``: mean number
    of tiles per metre. Joints are 3 % of a tile wide.
    """
    column, du = _interval(u * frequency, seed)
    column.mul_(_B).add_(seed)
    row, dv = _interval((v * frequency).add_(_signed(_mix(column ^ 0x5BD1E99)), alpha=3.0), column)
    tone = _signed(_mix(row.mul_(_A).add_(column)))
    distance, cells = torch.minimum(du, dv), foot * frequency
    pixels = distance / cells
    joint = ((0.015 / cells).sub_(pixels).add_(0.5)).clamp_(0.0, 1.0)
    joint.mul_((0.03 / cells).clamp_(max=1.0))  # thinner than a pixel: covers part of it
    # Tones fade to 0 within a pixel of the edge: a cheap, symmetric box filter.
    tone.mul_((2.0 * pixels).clamp_(max=1.0)).mul_(fade(cells * 3.0))
    return tone, joint


def patches(
    u: Tensor, v: Tensor, foot: Tensor, frequency: Tensor, share: Tensor, seed: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Random rectangles: coverage in [0, 1] and three colour channels in [0, 1].

    ``share`` of the cells of a lattice with ``frequency`` cells per metre contain a rectangle of
    random position, size, rotation and colour. It lies inside its cell: one look-up is enough.
    """
    u, v, cells = u * frequency, v * frequency, foot * frequency
    cell_u, cell_v = u.floor(), v.floor()
    h = cell_u.int().mul_(_A).add_(cell_v.int().mul_(_B)).add_(seed)
    place_u, place_v = _pair(_mix(h + 0x1F123BB5))
    size_u, size_v = _pair(_mix(h + 0x3A8F05C1))
    turn, present = _pair(_mix(h + 0x51ED270B))
    red, green = _pair(_mix(h + 0x68E31DA4))
    blue, _ = _pair(_mix(h + 0x12345679))
    du = (u - cell_u).sub_(0.4).sub_(place_u, alpha=0.2)
    dv = (v - cell_v).sub_(0.4).sub_(place_v, alpha=0.2)
    turn = turn * math.pi
    c, s = turn.cos(), turn.sin()
    across = (du * c).addcmul_(dv, s).abs_().sub_(0.08).sub_(size_u, alpha=0.2)
    along = (dv * c).addcmul_(du, s, value=-1.0).abs_().sub_(0.08).sub_(size_v, alpha=0.2)
    softness = cells.clamp(min=0.012)
    cover = (0.5 - torch.maximum(across, along) / softness).clamp_(0.0, 1.0)
    cover.mul_((present < share).float()).mul_(fade(cells * 3.0))
    return cover, [red, green, blue]
