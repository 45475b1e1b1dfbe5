"""Real spherical harmonics of degree 0 to 2: the colour of a Gaussian by the direction of view.

Order and signs are those of 3D Gaussian splatting (Kerbl et al., arXiv 2308.04079), with the
Condon-Shortley phase; so is the constant 0.5 that is added to colours.
"""

from __future__ import annotations

import numpy as np

from da3_ros.types import Array

C0 = 0.28209479177387814
C1 = 0.4886025119029199
C2 = (1.0925484305920792, 0.31539156525252005, 0.5462742152960396)
DEGREES = (slice(0, 1), slice(1, 4), slice(4, 9))


def basis(directions: Array) -> Array:
    """Returns the harmonics [..., 9] of unit directions [..., 3]."""
    x, y, z = np.moveaxis(np.asarray(directions, float), -1, 0)
    values = (
        np.full_like(x, C0),
        -C1 * y, C1 * z, -C1 * x,
        C2[0] * x * y, -C2[0] * y * z, C2[1] * (2 * z * z - x * x - y * y), -C2[0] * x * z,
        C2[2] * (x * x - y * y),
    )  # fmt: skip
    return np.stack(values, axis=-1)


def rotate(sh: Array, R: Array) -> Array:
    """Returns coefficients [..., 9], turned by a rotation [3, 3]: seen along R d, the colour is
    what it was along d."""
    out = np.empty_like(sh)
    for degree in DEGREES:
        out[..., degree] = sh[..., degree] @ _matrix(degree, R).T.astype(sh.dtype)
    return out


def base_colour(sh: Array) -> Array:
    """Returns the colour [N, 3] of coefficients [N, 3, 9] without the direction of view, 0..1."""
    return np.asarray(np.clip(0.5 + C0 * sh[..., 0], 0.0, 1.0))


def _matrix(degree: slice, R: Array) -> Array:
    """Returns how a rotation mixes the coefficients of a degree.

    A degree's harmonics span the same functions after a rotation, so that enough directions
    determine the matrix exactly.
    """
    before = basis(_DIRECTIONS @ R)[:, degree]
    return np.linalg.lstsq(basis(_DIRECTIONS)[:, degree], before, rcond=None)[0]


def _spiral(count: int) -> Array:
    """Returns unit vectors [count, 3], evenly spread over the sphere."""
    z = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (3 - 5**0.5) * np.arange(count)
    r = np.sqrt(1 - z * z)
    return np.stack((r * np.cos(angle), r * np.sin(angle), z), axis=-1)


_DIRECTIONS = _spiral(16)
