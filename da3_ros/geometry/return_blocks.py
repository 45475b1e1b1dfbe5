"""Returns of range sensors against the depth of an image, in blocks; and whether the sensor is
mounted as declared.

The network's errors are alike within a block, so a block is one observation: the log ratio of
distance and depth. A wrong mount changes this ratio with distance, place in the image and slant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from da3_ros.geometry.visible_returns import visible_returns
from da3_ros.types import Array, FloatImage

EDGE_PX, EDGE = 5, 0.1  # depth that differs by more (log) within so many pixels is an edge
MOST = 4000  # returns of an image that are compared: more say no more
ROWS, COLUMNS = 4, 6  # blocks of an image
SINGLE = 0.05  # relative standard deviation of the network's depth in one block, at least
# Of the blocks of the newest images, log distance:
SPREAD = 0.1  # robust deviation, below which a wrong mount cannot be told from a right one
FOLLOWS = 0.65  # share of it that the ratio may have: more, and the depth does not follow
CORRELATED = 0.5  # least correlation of distance and depth
NEAR, AGREEING = 0.15, 0.6  # of the median ratio; share of the blocks that must be so near
WRONG, SAME = "wrong", "same"  # what the blocks may show
FREE = np.repeat([0.8, 1.0], 3)  # errors of a mount that are possible at all: rad, m
# Images that have the same error of the network, where many blocks are seen; where one beam is.
ALIKE, ALIKE_SINGLE = 10, 3
# Standard deviations of an error that is no chance, but may be one of the network, with what it
# adds to the scale's deviation.
SIGNIFICANT, DOUBT = 4.0, 0.05
STEPS, FAR = 4, 2.0  # of a robust fit; deviations from which on a block counts less
ROUND = 1e-5  # variance of places that few returns have at least: those in a line give no plane


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of an image that returns are in."""

    logs: Array  # [B] log ratio of distance and depth
    distances: Array  # [B] log distance, metres
    # [B, 6] change of ``logs`` per error of the mount: rotation, rad, and translation, m, in the
    # camera's optical axes, which the declared transform to the camera has too much.
    slopes: Array

    def __len__(self) -> int:
        return len(self.logs)

    @classmethod
    def joined(cls, parts: Sequence[Blocks]) -> Blocks:
        """Returns the blocks of several images."""
        fields = ("logs", "distances", "slopes")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


@dataclass(frozen=True, eq=False)
class MountErrors:
    """How far a mount is from the declared one, by many blocks."""

    values: Array  # [6] as in ``Blocks.slopes``
    covariance: Array  # [6, 6]
    noise: float  # relative standard deviation of the blocks that they do not explain

    @property
    def sigmas(self) -> float:
        """The largest of the errors, in standard deviations."""
        return float((np.abs(self.values) / np.sqrt(np.diag(self.covariance))).max())

    def effect(self, slopes: Array) -> float:
        """Returns the relative deviation that the mount gives the scale by blocks with the mean
        slopes [6]: by what it seems to be wrong, by what remains unknown of it, and by what no
        error of a network or a mount explains."""
        seen, unknown = slopes @ self.values, slopes @ self.covariance @ slopes
        doubt = DOUBT * min(1.0, (self.sigmas / SIGNIFICANT) ** 2)
        unexplained = max(0.0, self.noise - SINGLE)
        return math.hypot(float(seen), math.sqrt(float(unknown)), doubt, unexplained)


def blocks_of(points: FloatImage, K: Array, depth: FloatImage) -> Blocks:
    """Returns the blocks of an image.

    points: [N, 3] returns in the camera's optical axes, metres. K: [3, 3] corner rule. depth:
    [h, w] in any unit.
    """
    points = points[:: max(1, len(points) // MOST)]
    pixels, z = visible_returns(points, K, depth)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(z / _smooth_depth(depth, pixels))
    good = np.isfinite(ratio)
    pixels, z, ratio = pixels[good], z[good], ratio[good]
    cell = np.floor(pixels * (COLUMNS / depth.shape[1], ROWS / depth.shape[0])).astype(int)
    _, block = np.unique(cell @ (1, COLUMNS), return_inverse=True)
    of = [block == k for k in range(block.max(initial=-1) + 1)]
    return Blocks(
        np.array([np.median(ratio[one]) for one in of]),
        np.array([np.median(np.log(z[one])) for one in of]),
        _slopes(pixels, z, K, block),
    )


def _smooth_depth(depth: FloatImage, pixels: Array) -> Array:
    """Returns the depth [M] at pixels [M, 2], between those of its image; NaN beside edges."""
    if not len(pixels):
        return np.zeros(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        level = np.log(np.where(np.isfinite(depth), depth, np.nan)).astype(np.float32)
    kernel = np.ones((EDGE_PX, EDGE_PX), np.uint8)
    low = cv2.erode(np.where(np.isnan(level), -np.inf, level), kernel)  # unknown: an edge
    high = cv2.dilate(np.where(np.isnan(level), -np.inf, level), kernel)
    with np.errstate(invalid="ignore"):
        flat = np.where(high - low <= EDGE, depth, np.float32(np.nan))
    x, y = (pixels - 0.5).astype(np.float32).T
    there = cv2.remap(flat, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(there, np.float64).reshape(-1)


def _slopes(pixels: Array, z: Array, K: Array, block: Array) -> Array:
    """Returns the change [B, 6] of blocks' log ratios per error of the mount.

    A return that is moved has another distance, and the depth there is another one too. The plane
    through a block's returns tells that: the network's noise would make the errors seem smaller.

    block: [M] the number of each return's block, from 0 on.
    """
    x, y = ((pixels - K[:2, 2]) / np.diag(K)[:2]).T
    one, none = np.ones(len(z)), np.zeros(len(z))
    across, down = _planes(np.column_stack((x, y)), 1 / z, block)[block].T * -z
    moved = (  # of a return over its z
        (none, -one, y), (one, none, -x), (-y, x, none),
        (1 / z, none, none), (none, 1 / z, none), (none, none, 1 / z),
    )  # fmt: skip
    changes = [dz - across * (dx - x * dz) - down * (dy - y * dz) for dx, dy, dz in moved]
    return np.column_stack([_means(change, block) for change in changes])


def _planes(at: Array, inverse: Array, block: Array) -> Array:
    """Returns the slopes [B, 2] of the inverse z [M], which is linear in the image where a surface
    is plane, by the place [M, 2] on the plane z = 1."""
    x, y = (at - np.column_stack([_means(a, block) for a in at.T])[block]).T
    value = inverse - _means(inverse, block)[block]
    xx, xy, yy = (_means(a, block) for a in (x * x, x * y, y * y))
    normal = np.array([[xx + ROUND, xy], [xy, yy + ROUND]]).transpose(2, 0, 1)
    right = np.column_stack([_means(a, block) for a in (x * value, y * value)])
    return np.asarray(np.linalg.solve(normal, right[..., None])[..., 0])


def _means(values: Array, block: Array) -> Array:
    return np.bincount(block, values) / np.bincount(block)


def judged(logs: Array, distances: Array) -> str:
    """Returns what blocks show of the mount: ``WRONG``, ``SAME`` if all are at about the same
    distance, or "" if the depth follows them.

    logs: [B] log ratio of distance and depth. distances: [B] log distance.
    """
    near = float(np.mean(np.abs(logs - np.median(logs)) < NEAR))
    if near < AGREEING:
        return WRONG
    spread = _deviation(distances)
    if spread < SPREAD:
        return SAME
    with np.errstate(invalid="ignore"):
        correlation = np.corrcoef(distances, distances - logs)[0, 1]
    follows = _deviation(logs) <= FOLLOWS * spread and correlation >= CORRELATED
    return "" if follows else WRONG


def _deviation(values: Array) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def mount_errors(images: Sequence[Blocks]) -> MountErrors:
    """Returns how far the mount seems to be from the declared one.

    Each image has a scale of its own, but those with one block have the same one. What the blocks
    of an image leave open is as uncertain as a mount can be.
    """
    several = [one for one in images if len(one) > 1]
    single = [one for one in images if len(one) == 1]
    groups = several + ([Blocks.joined(single)] if single else [])
    logs = np.concatenate([one.logs - one.logs.mean() for one in groups])
    slopes = np.concatenate([one.slopes - one.slopes.mean(axis=0) for one in groups])
    alike = np.full(len(logs), float(min(len(several), ALIKE)))
    if single:
        alike[-len(single) :] = min(len(single), ALIKE_SINGLE)
    values, noise = np.zeros(6), SINGLE
    for _ in range(STEPS):
        rest = logs - slopes @ values
        noise = max(_deviation(rest), SINGLE)
        weights = 1 / (1 + (rest / (FAR * noise)) ** 2) / (noise**2 * alike)
        weighted = (slopes * weights[:, None]).T
        covariance = np.linalg.inv(weighted @ slopes + np.diag(FREE**-2.0))
        values = covariance @ (weighted @ logs)
    return MountErrors(values, covariance, noise)
