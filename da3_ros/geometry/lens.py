"""What a lens is beside its stated calibration, and what images of it show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from da3_ros.types import Array

# Components of a lens's error: the logarithm of its focal length, its principal point in focal
# lengths, and radial distortion.
FOCAL, CENTRE_X, CENTRE_Y, K1, K2 = range(5)

_STEPS, _SMALL = 20, 1e-12  # of the search for an undistorted radius
_REACH = 1.1  # seen radius over that of the image's corner, up to which a lens must be invertible
_FARTHEST = 3.0  # undistorted radius over that


def with_lens(K: Array, errors: Array) -> Array:
    """Returns K [V, 3, 3] with the errors [V, 5] of focal lengths and principal points."""
    K = K.copy()
    for row, centre in ((0, CENTRE_X), (1, CENTRE_Y)):
        K[:, row, 2] += K[:, row, row] * errors[:, centre]
        K[:, row, row] *= np.exp(errors[:, FOCAL])
    return K


@dataclass(frozen=True)
class Lens:
    """A pinhole camera with radial distortion, beside a stated pinhole camera."""

    focal: float = 0.0  # logarithm of the factor on both focal lengths
    centre_x: float = 0.0  # shift of the principal point, in stated focal lengths
    centre_y: float = 0.0
    k1: float = 0.0  # radial distortion, as in plumb_bob
    k2: float = 0.0

    @staticmethod
    def from_errors(errors: Array) -> Lens:
        """errors: [5], from ``FOCAL`` to ``K2``."""
        return Lens(*errors.tolist())

    @property
    def errors(self) -> Array:
        """[5], from ``FOCAL`` to ``K2``."""
        return np.array([self.focal, self.centre_x, self.centre_y, self.k1, self.k2])

    @property
    def is_radial(self) -> bool:
        """Whether only the distortion is not as stated."""
        return not self.errors[:K1].any()

    def K(self, stated: Array) -> Array:
        """Returns K [3, 3] without the distortion, of a stated K."""
        return np.asarray(with_lens(stated[None], self.errors[None])[0])

    def seen(self, directions: Array) -> Array:
        """Returns the directions [..., 2] (x/z, y/z) in which the stated camera would see what
        lies in ``directions``."""
        square = (directions**2).sum(-1, keepdims=True)
        bent = 1 + square * (self.k1 + square * self.k2)
        return np.asarray(np.exp(self.focal) * bent * directions + [self.centre_x, self.centre_y])

    def undistorted(self, K: Array, pixel: Array) -> Array:
        """Returns where a camera ``self.K(K)`` without distortion sees what the lens shows at
        pixels [N, 2] of a stated K; NaN where it shows nothing."""
        K = self.K(K)
        f, centre = np.diag(K)[:2], K[:2, 2]
        bent = (pixel - centre) / f
        wanted = np.linalg.norm(bent, axis=1)
        radius = wanted.copy()
        for _ in range(_STEPS):
            square = radius**2
            error = radius * (1 + square * (self.k1 + square * self.k2)) - wanted
            slope = 1 + square * (3 * self.k1 + square * 5 * self.k2)
            radius -= error / np.where(slope > 0, slope, np.nan)
            if not np.nanmax(np.abs(error), initial=0.0) > _SMALL:
                break
        return np.asarray(centre + f * bent * (radius / np.maximum(wanted, _SMALL))[:, None])

    def is_lens(self, K: Array, shape: tuple[int, int]) -> bool:
        """Whether radii grow outwards until beyond the corners of an image of (height, width)
        pixels of a stated K."""
        corners = np.array([[x, y] for x in (0, shape[1]) for y in (0, shape[0])], float)
        own = self.K(K)
        farthest = np.linalg.norm((corners - own[:2, 2]) / np.diag(own)[:2], axis=1).max()
        radius = np.linspace(0.0, _FARTHEST * farthest, 200)
        seen = radius * (1 + radius**2 * (self.k1 + radius**2 * self.k2))
        folds = np.flatnonzero(np.diff(seen) <= 0)
        return bool(seen[folds[0] if len(folds) else -1] > _REACH * farthest)

    def shift_px(self, K: Array, shape: tuple[int, int]) -> Array:
        """Returns by how much [N, 2] pixels all over an image of (height, width) are elsewhere
        than a stated K says."""
        height, width = shape
        at = np.stack(np.meshgrid(np.linspace(0, width, 9), np.linspace(0, height, 7)), -1)
        pixel = at.reshape(-1, 2)
        stated = (pixel - K[:2, 2]) / np.diag(K)[:2]
        return np.asarray((self.seen(stated) - stated) * np.diag(K)[:2])


KNOWN = Lens()
