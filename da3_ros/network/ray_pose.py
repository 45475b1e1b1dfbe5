"""Computes poses and intrinsics from ray maps, an alternative to the camera decoder.

Cell p of a frame's grid holds the direction d = R K^-1 p of its ray and the ray's origin, both in
the reference frame. So all directions of a frame are one linear map A = R K^-1 of the cells, up
to lengths: a homography, fitted robustly (Hartley and Zisserman, 4.1) and decomposed into rotation
and intrinsics. Follows the architecture notes, section 9; docs/deviations.md lists differences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from da3_ros.network.camera import invert_rigid

TRIALS, SAMPLES = 100, 8  # RANSAC: trials, cells per trial
TOP_SHARE = 0.3  # share of the most confident cells, from which samples are drawn
INLIER = 0.2  # largest distance between unit directions
SCORED = 4096  # approximate number of evenly spaced cells that score a trial
SHORTEST = 1e-4  # shorter directions are ignored
PATCH_CELLS = 64  # cells of one patch, which have a common error
PRINCIPAL_POINT_SIGMA = 0.05  # of its distance from the image centre, in half widths or heights
FRAMES = 4  # frames at a time: limits memory to about 200 bytes per cell of each
_COSINE = 1 - INLIER**2 / 2  # of the angle between unit vectors with distance INLIER


class DirectionMap(NamedTuple):
    """A [..., 3, 3] with A p parallel to the direction of cell p; unit norm, det A >= 0."""

    A: Tensor
    errors: Tensor  # [..., 8, 3, 3] independent one-sigma errors of A


@torch.no_grad()
def cameras_from_rays(
    ray: Tensor, confidence: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Fit cameras to ray maps [B, N, h, w, 6] with weights [B, N, h, w]; ``size``: (H, W) pixels.

    Returns window-to-camera [B, N, 3, 4] and K [B, N, 3, 3] (pixel i covers [i, i + 1)), NaN for
    frames to whose rays no camera fits. Deterministic: independent of earlier calls.
    """
    B, N, h, w, _ = ray.shape
    device = torch.device("cpu") if ray.device.type == "mps" else ray.device  # MPS lacks float64
    rays = ray.to(device).flatten(2, 3).flatten(0, 1).split(FRAMES)
    weights = confidence.to(device).flatten(2).flatten(0, 1).split(FRAMES)
    cells = cell_grid(h, w, device)
    parts = [_cameras(r.double(), c.double(), cells) for r, c in zip(rays, weights, strict=True)]
    pair = (torch.cat(part).to(ray).unflatten(0, (B, N)) for part in zip(*parts, strict=True))
    extrinsics, K = pair
    return extrinsics, _in_pixels(K, size)


def cell_grid(h: int, w: int, device: torch.device | None = None) -> Tensor:
    """Cells [h w, 3], row-major, of an image plane from -1 to 1 in both directions."""
    y = (2 * torch.arange(h, dtype=torch.float64, device=device) + 1) / h - 1
    x = (2 * torch.arange(w, dtype=torch.float64, device=device) + 1) / w - 1
    yy, xx = torch.meshgrid(y, x, indexing="ij")
    return torch.stack((xx, yy, torch.ones_like(xx)), dim=-1).flatten(0, 1)


def fit_direction_map(d: Tensor, weights: Tensor, cells: Tensor) -> DirectionMap:
    """The map with the largest weight of inliers.

    d: directions [F, M, 3]; weights [F, M]; cells [M, 3].
    """
    best = _consensus(d, weights, cells)
    cosine = F.cosine_similarity(cells @ best.mT, d, dim=-1)
    return _least_squares(d, weights * (cosine > _COSINE), cells)


def split_direction_map(found: DirectionMap) -> tuple[Tensor, Tensor]:
    """Decompose A ~ R K^-1 into R and K [F, 3, 3]; K in the cells' units, without skew.

    In a narrow view, principal point and rotation are hard to distinguish. So the principal point
    from A is combined with the prior that it is near the image centre, weighted by their
    uncertainties. Given the principal point, the columns of A are orthogonal, and the third one,
    which is most accurate, is the optical axis: a QL decomposition with positive diagonal.
    """
    A = found.A
    point = _principal_point(A)
    variance = ((_principal_point(A[:, None] + found.errors) - point[:, None]) ** 2).sum(1)
    point = point * PRINCIPAL_POINT_SIGMA**2 / (PRINCIPAL_POINT_SIGMA**2 + variance)
    axis = A[..., 2] + (A[..., :2] * point[:, None]).sum(-1)
    Q, U = torch.linalg.qr(torch.stack((axis, A[..., 1], A[..., 0]), dim=-1))
    lengths = U.diagonal(dim1=-2, dim2=-1)
    R = (Q * torch.where(lengths < 0, -1.0, 1.0)[:, None]).flip(-1)
    K = torch.zeros_like(A)
    K[:, 0, 0], K[:, 1, 1] = (lengths[:, :1] / lengths).abs().flip(-1)[:, :2].unbind(-1)
    K[:, :2, 2], K[:, 2, 2] = point, 1
    return R, K


def _principal_point(A: Tensor) -> Tensor:
    """The cell [..., 2] whose direction is perpendicular to the first two columns of A."""
    columns = A[..., :2]
    right_angles = torch.linalg.inv_ex(columns.mT @ columns).inverse  # singular: inf, no error
    return -(right_angles @ (columns.mT @ A[..., 2:]))[..., 0]


def _cameras(rays: Tensor, weights: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Window-to-camera [F, 3, 4] and K [F, 3, 3] in the cells' units from rays [F, M, 6]."""
    d, origin = rays.split(3, dim=-1)
    good = rays.isfinite().all(-1) & weights.isfinite() & (d.norm(dim=-1) > SHORTEST)
    d, origin = (x.where(good[..., None], 0) for x in (d, origin))
    weights = weights.where(good, 0).clamp_min(0)
    found = fit_direction_map(d, weights, cells)
    R, K = split_direction_map(found)
    centre = (weights[..., None] * origin).sum(1) / weights.sum(1)[:, None]
    T = invert_rigid(torch.cat((R, centre[..., None]), dim=-1))
    right = T.isfinite().all(2).all(1) & K.isfinite().all(2).all(1)
    right &= torch.linalg.det(found.A) > 1e-9  # otherwise all rays are coplanar or parallel
    wrong = ~right[:, None, None]
    return T.masked_fill(wrong, torch.nan), K.masked_fill(wrong, torch.nan)


def _consensus(d: Tensor, weights: Tensor, cells: Tensor) -> Tensor:
    """The map [F, 3, 3] of the trial with the largest weight of inliers."""
    M = len(cells)
    top = max(SAMPLES, int(TOP_SHARE * M))
    # A generator with its own seed: the global one is not used and not changed.
    generator = torch.Generator().manual_seed(0)
    ranks = torch.randint(top, (TRIALS, SAMPLES), generator=generator).to(d.device)
    drawn = weights.argsort(dim=1, descending=True, stable=True)[:, ranks]  # [F, trials, 8]
    frame = torch.arange(len(d), device=d.device)[:, None, None]
    A = _least_squares(d[frame, drawn], weights[frame, drawn], cells[drawn]).A
    step = -(-M // SCORED)
    seen, score = F.normalize(d[:, ::step], dim=-1), []
    for trial in A.unbind(1):
        cosine = (F.normalize(cells[::step] @ trial.mT, dim=-1) * seen).sum(-1)
        score.append(((cosine > _COSINE) * weights[:, ::step]).sum(1))
    return A[frame[:, 0, 0], torch.stack(score, dim=1).argmax(1)]


def _least_squares(d: Tensor, weights: Tensor, cells: Tensor) -> DirectionMap:
    """The A that minimises the sum of w |d x A p|^2 over directions d and cells p [..., M, 3].

    The normal matrix is a sum of Kronecker products p p^T (x) (d^T d I - d d^T), so it is one
    product of [9, M] and [M, 9] matrices for any number of cells.
    """
    pp = (cells[..., :, None] * cells[..., None, :]).flatten(-2)  # [..., M, 9]
    square = (d * d).sum(-1)[..., None, None] * torch.eye(3, dtype=d.dtype, device=d.device)
    dd = (square - d[..., :, None] * d[..., None, :]).flatten(-2)  # [..., M, 9]
    normal = pp.mT @ (weights[..., None] * dd)  # [..., (j, k), (a, b)]
    normal = normal.unflatten(-1, (3, 3)).unflatten(-3, (3, 3)).transpose(-3, -2).flatten(-2)
    values, vectors = torch.linalg.eigh(normal.flatten(-3, -2))  # [..., (j, a), (k, b)]
    maps = vectors.mT.unflatten(-1, (3, 3)).mT  # [..., 9, 3, 3]; column j of A stood in row j
    A = maps[..., 0, :, :]
    seen = ((weights > 0).sum(-1, keepdim=True) / PATCH_CELLS).clamp_min(1)
    variance = values[..., :1].clamp_min(0) / (seen * values[..., 1:])
    errors = maps[..., 1:, :, :] * variance.sqrt()[..., None, None]
    return DirectionMap(torch.where(torch.linalg.det(A)[..., None, None] < 0, -A, A), errors)


def _in_pixels(K: Tensor, size: tuple[int, int]) -> Tensor:
    """Convert K from cells, -1 to 1, to pixels of an image of ``size`` (H, W)."""
    half = K.new_tensor([[size[1] / 2], [size[0] / 2], [1]])
    middle = torch.zeros_like(K)
    middle[..., 0, 2], middle[..., 1, 2] = 1, 1
    return (K + middle) * half
