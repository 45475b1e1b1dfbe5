"""Camera encoder (known poses to tokens) and decoder (tokens to poses), architecture notes 8.

A pose is encoded as nine numbers of the camera-to-window transform: centre (3), quaternion x y z w
(4), vertical and horizontal field of view in radians (2). The principal point is not encoded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from da3_ros.network.backbone import Block, Mlp
from da3_ros.network.specs import ModelSpec

ENCODER_HEADS = 16
ENCODER_BLOCKS = 4
NARROWEST = 2e-6  # radians; smallest valid field of view, as in the reference


def matrix_from_quaternion(q: Tensor) -> Tensor:
    """Convert non-zero quaternions [..., 4] (x, y, z, w) to rotations [..., 3, 3]."""
    x, y, z, w = (q * (2**0.5 / q.norm(dim=-1, keepdim=True))).unbind(-1)
    rows = (
        (1 - y * y - z * z, x * y - z * w, x * z + y * w),
        (x * y + z * w, 1 - x * x - z * z, y * z - x * w),
        (x * z - y * w, y * z + x * w, 1 - x * x - y * y),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def quaternion_from_matrix(R: Tensor) -> Tensor:
    """Convert rotations [..., 3, 3] to unit quaternions [..., 4] (x, y, z, w) with w >= 0.

    The four squared components come from the diagonal, and the largest one is the divisor: exact
    for all rotations, also by 180 degrees (Shepperd, 1978).
    """
    r = R.flatten(-2)
    xx, yy, zz = r[..., 0], r[..., 4], r[..., 8]
    squared = torch.stack(
        (1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz, 1 + xx + yy + zz), dim=-1
    )
    xy, xz, yz = r[..., 1] + r[..., 3], r[..., 2] + r[..., 6], r[..., 5] + r[..., 7]
    wx, wy, wz = r[..., 7] - r[..., 5], r[..., 2] - r[..., 6], r[..., 3] - r[..., 1]
    candidates = torch.stack(
        (
            torch.stack((squared[..., 0], xy, xz, wx), dim=-1),
            torch.stack((xy, squared[..., 1], yz, wy), dim=-1),
            torch.stack((xz, yz, squared[..., 2], wz), dim=-1),
            torch.stack((wx, wy, wz, squared[..., 3]), dim=-1),
        ),
        dim=-2,
    )
    best = squared.argmax(dim=-1)[..., None, None].expand(*squared.shape[:-1], 1, 4)
    q = F.normalize(candidates.gather(-2, best).squeeze(-2), dim=-1)
    return torch.where(q[..., 3:] < 0, -q, q)


def invert_rigid(T: Tensor) -> Tensor:
    """Inverse [..., 3, 4] of rigid transforms [..., 3 or 4, 4]."""
    R, t = T[..., :3, :3].transpose(-1, -2), T[..., :3, 3:]
    return torch.cat((R, -R @ t), dim=-1)


class CameraEncoder(nn.Module):
    """One token per frame from its known pose and intrinsics; frames attend to each other."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        D = spec.width
        self.pose_branch = Mlp(9, D // 2, D)
        self.token_norm = nn.LayerNorm(D, eps=1e-5)
        self.trunk = nn.ModuleList(
            Block(D, ENCODER_HEADS, Mlp(D, 4 * D), eps=1e-5) for _ in range(ENCODER_BLOCKS)
        )
        self.trunk_norm = nn.LayerNorm(D, eps=1e-5)

    def forward(self, extrinsics: Tensor, intrinsics: Tensor, size: tuple[int, int]) -> Tensor:
        """Window-to-camera [B, N, 3 or 4, 4] and K [B, N, 3, 3] for (H, W) -> [B, N, D]."""
        x = self._encode(extrinsics.float(), intrinsics.float(), size)
        x = self.token_norm(self.pose_branch(x))
        for block in self.trunk:
            x = block(x)
        return self.trunk_norm(x)

    @staticmethod
    def _encode(extrinsics: Tensor, K: Tensor, size: tuple[int, int]) -> Tensor:
        T = invert_rigid(extrinsics)
        H, W = size
        fov_h = 2 * torch.atan(H / 2 / K[..., 1, 1])
        fov_w = 2 * torch.atan(W / 2 / K[..., 0, 0])
        q = quaternion_from_matrix(T[..., :3])
        return torch.cat((T[..., 3], q, fov_h[..., None], fov_w[..., None]), dim=-1)


class CameraDecoder(nn.Module):
    """Pose and intrinsics of each frame from the class slot of the last tap."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        G = 2 * spec.width
        self.backbone = nn.Sequential(nn.Linear(G, G), nn.ReLU(), nn.Linear(G, G), nn.ReLU())
        self.fc_t = nn.Linear(G, 3)
        self.fc_qvec = nn.Linear(G, 4)
        self.fc_fov = nn.Sequential(nn.Linear(G, 2), nn.ReLU())

    def forward(self, slot: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Class slots [B, N, 2D] -> window-to-camera [B, N, 3, 4], K [B, N, 3, 3] (corner rule).

        A field of view that is impossible for a pinhole camera, such as 0, gives a NaN focal
        length.
        """
        x = self.backbone(slot.float())
        R = matrix_from_quaternion(self.fc_qvec(x))
        T_window_camera = torch.cat((R, self.fc_t(x)[..., None]), dim=-1)
        return invert_rigid(T_window_camera), self._intrinsics(self.fc_fov(x), size)

    @staticmethod
    def _intrinsics(fov: Tensor, size: tuple[int, int]) -> Tensor:
        H, W = size
        possible = (fov > NARROWEST) & (fov < torch.pi)
        f = torch.where(possible, (fov / 2).tan().reciprocal(), torch.nan)  # vertical, horizontal
        x, y = W / 2 * f[..., 1], H / 2 * f[..., 0]
        zero, one = torch.zeros_like(x), torch.ones_like(x)
        # Stacked, not written into a matrix: exported, every write would become a scatter.
        rows = ((x, zero, one * (W / 2)), (zero, y, one * (H / 2)), (zero, zero, one))
        return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
