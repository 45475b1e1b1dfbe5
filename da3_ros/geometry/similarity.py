"""Similarity transforms: a scale, a rotation and a translation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.poses import mean_rotation
from da3_ros.types import Array

RANK = 1e-12  # of singular values: less counts as zero, relative to the largest one


@dataclass(frozen=True, eq=False)
class Similarity:
    """x -> scale * R @ x + t."""

    scale: float
    R: Array  # [3, 3]
    t: Array  # [3]

    def __matmul__(self, first: Similarity) -> Similarity:
        """The composition: ``first`` is applied first, then this transform.

        The rotation is made orthonormal: each loop closure multiplies the submaps' poses, and
        after thirty of them rounding errors would otherwise have destroyed the rotation.
        """
        R = orthonormal(self.R @ first.R)
        return Similarity(self.scale * first.scale, R, self.points(first.t))

    def inverse(self) -> Similarity:
        """The inverse transform."""
        return Similarity(1 / self.scale, self.R.T, -self.R.T @ self.t / self.scale)

    def is_same(self, other: Similarity) -> bool:
        """Whether both are equal to the last bit."""
        pairs = ((self.scale, other.scale), (self.R, other.R), (self.t, other.t))
        return all(np.array_equal(a, b) for a, b in pairs)

    def scaled(self, factor: float) -> Similarity:
        """The transform with results ``factor`` times as long."""
        return Similarity(factor * self.scale, self.R, factor * self.t)

    def points(self, x: Array) -> Array:
        """Transform points [..., 3]."""
        return self.scale * x @ self.R.T + self.t

    def pose(self, T: Array) -> Array:
        """Transform a rigid pose [4, 4]: its translation is scaled, its rotation is not."""
        out = np.eye(4)
        out[:3, :3] = self.R @ T[:3, :3]
        out[:3, 3] = self.points(T[:3, 3])
        return out

    @staticmethod
    def between(T_target: Array, T_source: Array, scale: float) -> Similarity:
        """The similarity with a given scale that maps pose ``T_source`` to ``T_target``."""
        R = T_target[:3, :3] @ T_source[:3, :3].T
        return Similarity(scale, R, T_target[:3, 3] - scale * R @ T_source[:3, 3])

    @staticmethod
    def aligning(
        T_target: Array, T_source: Array, scale: float | None = None, *, unmoved: float = 1.0
    ) -> Similarity:
        """The similarity that maps poses [N, 4, 4] to others: mean rotation, then least squares.

        The rotation is that of the orientations: camera centres on a line leave the rotation about
        this line open. scale: None: that of the centres, ``unmoved`` if they show none.
        """
        R = mean_rotation(T_target, T_source)
        source, target = (T[:, :3, 3].mean(0) for T in (T_source, T_target))
        if scale is None:
            moved, wanted = (T_source[:, :3, 3] - source) @ R.T, T_target[:, :3, 3] - target
            extent = float((moved**2).sum())
            scale = float((moved * wanted).sum()) / extent if extent > 1e-12 else unmoved
            scale = scale if scale > 0 else unmoved
        return Similarity(scale, R, target - scale * R @ source)

    @staticmethod
    def of_points(target: Array, source: Array, scale: float | None = None) -> Similarity:
        """The similarity that maps points [N, 3] to others with the least squared distances.

        scale: None: the best one (Umeyama, PAMI 1991). Raises ValueError if the points leave the
        rotation open: less than three, all in one location, or all on a line.
        """
        if not len(source):
            raise ValueError("there are no points")
        middle, wanted = source.mean(axis=0), target.mean(axis=0)
        U, size, V = np.linalg.svd((target - wanted).T @ (source - middle))
        if not size[1] > RANK * size[0]:
            raise ValueError("the points are on a line, or all in one location")
        signs = np.array([1.0, 1.0, np.sign(np.linalg.det(U) * np.linalg.det(V))])
        R = U @ np.diag(signs) @ V
        if scale is None:
            scale = float((size * signs).sum() / ((source - middle) ** 2).sum())
        return Similarity(scale, R, wanted - scale * R @ middle)

    @staticmethod
    def from_pose(T: Array) -> Similarity:
        """Convert a rigid transform [4, 4] to a similarity of scale 1."""
        return Similarity(1.0, T[:3, :3], T[:3, 3])


IDENTITY = Similarity(1.0, np.eye(3), np.zeros(3))


def orthonormal(R: Array) -> Array:
    """The rotation [3, 3] nearest to ``R``, which is a rotation with rounding errors.

    One Newton step of the polar decomposition.
    """
    return np.asarray(1.5 * R - 0.5 * R @ R.T @ R)
