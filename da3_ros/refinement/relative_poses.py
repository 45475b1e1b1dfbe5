"""Measured relative poses of views: priors of a bundle, by network, robot and rig."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.types import Array

NETWORK, ROBOT, RIG = range(3)  # who has measured a relative pose


@dataclass(frozen=True, eq=False)
class PosePriors:
    """Measured relative poses of pairs of views. P rows.

    The error of a pose is (rotation, rad, in the axes of the second view; position in those of the
    first one).
    """

    first: Array  # [P] id or index of a view, int
    second: Array  # [P] the same of another view, int
    T_first_second: Array  # [P, 4, 4], units of local
    root: Array  # [P, 6, 6] root of the inverse covariance of the errors; 0: unknown
    source: Array  # [P] NETWORK, ROBOT or RIG

    @staticmethod
    def isotropic(
        first: Array, second: Array, T: Array, rotation: Array, place: Array, source: int
    ) -> PosePriors:
        """Returns priors with standard deviations [P] that are equal in all axes; inf: unknown."""
        sigma = np.repeat(np.stack((rotation, place), axis=1), 3, axis=1)
        root = np.eye(6) / sigma[:, None, :]
        return PosePriors(first, second, T, root, np.full(len(first), source))

    @staticmethod
    def none() -> PosePriors:
        """Returns an empty set."""
        i = np.zeros(0, int)
        return PosePriors(i, i, np.zeros((0, 4, 4)), np.zeros((0, 6, 6)), i)

    @staticmethod
    def joined(parts: Sequence[PosePriors]) -> PosePriors:
        """Returns the priors of all parts."""
        return PosePriors(
            np.concatenate([p.first for p in parts]),
            np.concatenate([p.second for p in parts]),
            np.concatenate([p.T_first_second for p in parts]),
            np.concatenate([p.root for p in parts]),
            np.concatenate([p.source for p in parts]),
        )

    def indexed(self, used: Sequence[int]) -> PosePriors:
        """Returns the priors between used views, by their indices in place of their ids."""
        at = {id: k for k, id in enumerate(used)}
        ends = zip(self.first.tolist(), self.second.tolist(), strict=True)
        kept = np.array([a in at and b in at for a, b in ends], bool)
        first, second = (
            np.array([at[i] for i in ids[kept].tolist()], int) for ids in (self.first, self.second)
        )
        return PosePriors(
            first, second, self.T_first_second[kept], self.root[kept], self.source[kept]
        )


def pose_prior_terms(
    Ri: Array, ci: Array, Rj: Array, cj: Array, T_ij: Array
) -> tuple[Array, Array, Array]:
    """Returns residuals [P, 6] (rotation, place) of relative poses, and their derivatives
    [P, 6, 6] by (rotation, place) of the first and of the second view."""
    count = len(ci)
    RiT = Ri.transpose(0, 2, 1)
    Rij = RiT @ Rj
    rotation = Rotation.from_matrix(T_ij[:, :3, :3].transpose(0, 2, 1) @ Rij).as_rotvec()
    place = np.einsum("pij,pj->pi", RiT, cj - ci)
    r = np.concatenate((rotation, place - T_ij[:, :3, 3]), axis=1)
    Jr = _inverse_right_jacobian(rotation)
    Ji, Jj = np.zeros((count, 6, 6)), np.zeros((count, 6, 6))
    Jj[:, :3, :3], Ji[:, :3, :3] = Jr, -Jr @ Rij.transpose(0, 2, 1)
    Ji[:, 3:, :3] = cross_matrices(place)
    Ji[:, 3:, 3:], Jj[:, 3:, 3:] = -RiT, RiT
    return r, Ji, Jj


def _inverse_right_jacobian(v: Array) -> Array:
    """Returns the inverse right Jacobians [P, 3, 3] of SO(3) at rotation vectors [P, 3]."""
    angle = np.linalg.norm(v, axis=1)
    small = angle < 1e-4
    a = np.where(small, 1.0, angle)
    k = np.where(small, 1 / 12, 1 / a**2 - (1 + np.cos(a)) / (2 * a * np.sin(a) + 1e-300))
    S = cross_matrices(v)
    return np.asarray(np.eye(3) + S / 2 + k[:, None, None] * (S @ S))


def cross_matrices(v: Array) -> Array:
    """Returns the matrices [M, 3, 3] of the cross products with vectors [M, 3]."""
    out = np.zeros((len(v), 3, 3))
    out[:, 0, 1], out[:, 0, 2], out[:, 1, 2] = -v[:, 2], v[:, 1], -v[:, 0]
    out[:, 1, 0], out[:, 2, 0], out[:, 2, 1] = v[:, 2], -v[:, 1], v[:, 0]
    return out
