"""3D Gaussians: places relative ones by a camera's pose and depth, and moves them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import Similarity
from da3_ros.splats.harmonics import rotate
from da3_ros.splats.relative import CHANNELS, SH, RelativeSplats
from da3_ros.types import Array, FloatImage


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Gaussians in one frame and unit. Covariance: R diag(scales)^2 R^T."""

    means: Array  # [N, 3]
    scales: Array  # [N, 3] standard deviations along the axes
    rotations: Array  # [N, 4] of the axes, unit quaternions w, x, y, z
    opacities: Array  # [N] 0 to 1
    sh: Array  # [N, 3, 9] coefficients of each colour, ``harmonics``

    def __len__(self) -> int:
        return len(self.means)

    def take(self, rows: Array) -> Gaussians:
        """Returns some of them, by index or mask."""
        return Gaussians(
            self.means[rows], self.scales[rows], self.rotations[rows], self.opacities[rows],
            self.sh[rows],
        )  # fmt: skip

    def moved(self, S: Similarity) -> Gaussians:
        """Returns them after a similarity: turned, moved and scaled, their colours too."""
        turned = Rotation.from_matrix(S.R) * Rotation.from_quat(self.rotations[:, [1, 2, 3, 0]])
        return replace(
            self, means=S.points(self.means), scales=self.scales * S.scale,
            rotations=turned.as_quat()[:, [3, 0, 1, 2]], sh=rotate(self.sh, S.R),
        )  # fmt: skip


def in_camera(splats: RelativeSplats, depth: FloatImage, K: Array) -> Gaussians:
    """Returns Gaussians in the camera's axes and the depth's unit.

    depth: [h, w] z-depth. K: [3, 3] corner rule, pixels of the depth.
    """
    values = splats.values.astype(np.float64)
    rays, distance = _rays(splats, K), _distance(splats, depth)
    rotations = values[:, CHANNELS["rotation"]]
    return Gaussians(
        means=rays * distance,
        scales=values[:, CHANNELS["scale"]] * distance * (1 / K[0, 0] + 1 / K[1, 1]),
        rotations=rotations / np.linalg.norm(rotations, axis=1, keepdims=True),
        opacities=values[:, CHANNELS["opacity"]][:, 0],
        sh=values[:, CHANNELS["sh"]].reshape(-1, 3, SH),
    )


def mean_depth(splats: RelativeSplats, depth: FloatImage, K: Array) -> FloatImage:
    """Returns the z-depth [h, w] of the Gaussians' means, NaN where there is none; arguments as
    ``in_camera``."""
    out = np.full(depth.shape, np.nan, np.float32)
    out[splats.kept] = _rays(splats, K)[:, 2] * _distance(splats, depth)[:, 0]
    return out


def _rays(splats: RelativeSplats, K: Array) -> Array:
    """Returns unit vectors [N, 3] from the camera to the means."""
    rows, columns = np.nonzero(splats.kept)
    offset = splats.values[:, CHANNELS["offset"]].astype(np.float64)
    points = np.stack((columns, rows), axis=1) + 0.5 + offset
    rays = np.ones((len(points), 3))
    rays[:, :2] = (points - K[:2, 2]) / np.array([K[0, 0], K[1, 1]])
    return np.asarray(rays / np.linalg.norm(rays, axis=1, keepdims=True))


def _distance(splats: RelativeSplats, depth: FloatImage) -> Array:
    """Returns distances [N, 1] of the means: as in training, along the ray."""
    stretch = splats.values[:, CHANNELS["stretch"]].astype(np.float64)
    return np.asarray(depth[splats.kept].astype(np.float64)[:, None] * (1 + stretch))
