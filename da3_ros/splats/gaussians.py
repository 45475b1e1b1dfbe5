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
    rows, columns = np.nonzero(splats.kept)
    focal, centre = np.array([K[0, 0], K[1, 1]]), K[:2, 2]
    points = np.stack((columns, rows), axis=1) + 0.5 + values[:, CHANNELS["offset"]]
    rays = np.concatenate(((points - centre) / focal, np.ones((len(values), 1))), axis=1)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    # As in training: what is called depth counts along the ray.
    distance = depth[splats.kept].astype(np.float64)[:, None]
    distance = distance * (1 + values[:, CHANNELS["stretch"]])
    rotations = values[:, CHANNELS["rotation"]]
    return Gaussians(
        means=rays * distance,
        scales=values[:, CHANNELS["scale"]] * distance * (1 / focal).sum(),
        rotations=rotations / np.linalg.norm(rotations, axis=1, keepdims=True),
        opacities=values[:, CHANNELS["opacity"]][:, 0],
        sh=values[:, CHANNELS["sh"]].reshape(-1, 3, SH),
    )
