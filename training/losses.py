"""Losses of training. All terms are zero at the truth, except when weighted by confidence.

The truth is in scene units (see ``data.Batch``); predictions are not normalised. Terms follow the
DA3 paper (arXiv 2511.10647, section 3) where it defines them; probes and the supervision of
attention exist in training only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from da3_ros.network.camera import quaternion_from_matrix
from da3_ros.network.head import Dense
from da3_ros.network.specs import PATCH
from training.data import Batch, project_between_views
from training.model import Cameras, TrainingOutput

CONFIDENCE_REWARD = 0.2  # of log confidence
GRADIENT_STRIDES = (1, 2, 4)


@dataclass(frozen=True)
class Weights:
    """Weights of the terms; ``trust``: 0 for unweighted errors to 1 for weights by confidence."""

    depth: float = 1.0
    gradient: float = 0.5
    ray: float = 0.5
    camera: float = 4.0  # its errors are by far the smallest of all terms, and hard to reduce
    quaternion: float = 5.0  # within the camera term
    fov: float = 0.25  # within the camera term: an image hardly determines it
    probe: float = 0.5
    flow: float = 5.0
    attention: float = 0.3
    trust: float = 0.0


def total_loss(
    output: TrainingOutput, truth: Batch, weights: Weights
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the weighted sum, and its terms before weighting."""
    terms = camera_losses(output.cameras, truth)
    terms["probe"] = probe_loss(output.probes, truth)
    if truth.depth.shape[1] > 1:
        terms["flow"] = flow_loss(output.probes, truth)
    if output.attention and truth.depth.shape[1] > 1:
        matches = patch_matches(truth.depth, truth.T_window_camera, truth.K)
        terms["attention"] = attention_loss(output.attention, matches, truth.depth.shape[1])
    if output.dense is not None:
        terms |= dense_losses(output.dense, truth, weights.trust)
    factor = {
        "centre": weights.camera,
        "quaternion": weights.camera * weights.quaternion,
        "fov": weights.camera * weights.fov,
        "probe": weights.probe,
        "flow": weights.flow,
        "attention": weights.attention,
        "depth": weights.depth,
        "gradient": weights.gradient,
        "ray": weights.ray,
        "sky": CONFIDENCE_REWARD,
    }
    return torch.stack([factor[k] * v for k, v in terms.items()]).sum(), terms


# Cameras ----------------------------------------------------------------------------------------


def camera_losses(cameras: Cameras, truth: Batch) -> dict[str, Tensor]:
    """Returns Huber losses of the centre, of the quaternion up to its sign, and of the FOV."""
    q = quaternion_from_matrix(truth.T_window_camera[..., :3, :3])
    same = (cameras.quaternion * q).sum(-1, keepdim=True) >= 0
    q = torch.where(same, q, -q)
    centre = truth.T_window_camera[..., :3, 3]
    return {
        "centre": F.smooth_l1_loss(cameras.centre, centre, beta=0.05),
        "quaternion": F.smooth_l1_loss(cameras.quaternion, q, beta=0.01),
        "fov": F.smooth_l1_loss(cameras.fov, field_of_view(truth.K, truth.size), beta=0.05),
    }


def field_of_view(K: Tensor, size: tuple[int, int]) -> Tensor:
    """Returns the vertical and horizontal field of view [..., 2] in radians."""
    H, W = size
    half = torch.stack((H / 2 / K[..., 1, 1], W / 2 / K[..., 0, 0]), dim=-1)
    return 2 * half.atan()


# Dense maps -------------------------------------------------------------------------------------


def dense_losses(dense: Dense, truth: Batch, trust: float) -> dict[str, Tensor]:
    """Returns log-depth L1, its gradient loss, ray L1, and the log confidence of sky."""
    known = truth.depth.isfinite()
    log_truth = torch.where(known, truth.depth, 1.0).log()
    error = torch.where(known, dense.depth.float().log() - log_truth, 0.0)
    confidence = dense.confidence.float()
    terms = {
        "depth": _mean(_confidence_weighted(error.abs(), confidence, trust), known),
        "gradient": gradient_loss(error, known),
        "sky": trust * _mean(confidence.log(), ~known),
    }
    if dense.ray is not None and dense.ray_confidence is not None:
        rays = ray_map(truth.T_window_camera, truth.K, truth.size, dense.ray.shape[2:4])
        residual = (dense.ray.float() - rays).abs().mean(-1)
        terms["ray"] = _confidence_weighted(residual, dense.ray_confidence.float(), trust).mean()
    return terms


def _confidence_weighted(error: Tensor, confidence: Tensor, trust: float) -> Tensor:
    """Returns (1 - trust) error + trust (c error - 0.2 log c), with c the confidence."""
    if not trust:
        return error
    weighted = confidence * error - CONFIDENCE_REWARD * confidence.log()
    return (1 - trust) * error + trust * weighted


def _mean(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, 0.0).sum() / where.sum().clamp_min(1)


def gradient_loss(error: Tensor, known: Tensor) -> Tensor:
    """Returns the mean change of the log-depth error [..., H, W] between pixels at a distance.

    The distances are ``GRADIENT_STRIDES``; both pixels must be known.
    """
    total = error.new_zeros(())
    for s in GRADIENT_STRIDES:
        for axis in (-1, -2):
            n = error.shape[axis] - s
            a, b = error.narrow(axis, 0, n), error.narrow(axis, s, n)
            both = known.narrow(axis, 0, n) & known.narrow(axis, s, n)
            total = total + _mean((a - b).abs(), both)
    return total / (2 * len(GRADIENT_STRIDES))


def ray_map(T: Tensor, K: Tensor, size: tuple[int, int], grid: tuple[int, ...]) -> Tensor:
    """Returns rays [B, N, h, w, 6] of the cell centres of a grid: direction R K^-1 p, then origin.

    Depth times direction plus origin is the point in the reference frame. size: (H, W) of the
    image in pixels; grid: (h, w).
    """
    (H, W), (h, w) = size, grid
    v, u = torch.meshgrid(
        (torch.arange(h, device=K.device) + 0.5) * H / h,
        (torch.arange(w, device=K.device) + 0.5) * W / w,
        indexing="ij",
    )
    x = (u - K[..., 0, 2, None, None]) / K[..., 0, 0, None, None]
    y = (v - K[..., 1, 2, None, None]) / K[..., 1, 1, None, None]
    in_camera = torch.stack((x, y, torch.ones_like(x)), dim=-1)  # [B, N, h, w, 3]
    direction = torch.einsum("bnij,bnhwj->bnhwi", T[..., :3, :3], in_camera)
    origin = T[..., None, None, :3, 3].expand_as(direction)
    return torch.cat((direction, origin), dim=-1)


# Probes -----------------------------------------------------------------------------------------


def probe_loss(probes: list[Tensor], truth: Batch) -> Tensor:
    """Returns the mean L1 of probes [B, N, P, 9] for the patches' log-depth and centre rays."""
    H, W = truth.size
    depth = truth.depth.unflatten(3, (W // PATCH, PATCH)).unflatten(2, (H // PATCH, PATCH))
    depth = depth.transpose(3, 4).flatten(4).flatten(2, 3)  # [B, N, P, 196]
    known = depth.isfinite()
    log_depth = torch.where(known, depth, 1.0).log()
    log_depth = log_depth.sum(-1) / known.sum(-1).clamp_min(1)
    mostly = known.float().mean(-1) > 0.5
    rays = ray_map(truth.T_window_camera, truth.K, truth.size, (H // PATCH, W // PATCH))
    rays = rays.flatten(2, 3)
    losses = [
        _mean((p[..., 0] - log_depth).abs(), mostly) + (p[..., 1:7] - rays).abs().mean()
        for p in probes
    ]
    return torch.stack(losses).mean()


def flow_loss(probes: list[Tensor], truth: Batch) -> Tensor:
    """Returns the mean L1 of the probes for the displacement of patches into the reference view.

    Attention to the right patch is not enough: the values must contain the position of that patch.
    The unit is the image width; only patches that are visible in the reference view count.
    """
    moved, visible = flow_to_reference(truth.depth, truth.T_window_camera, truth.K)
    losses = [_mean((p[:, 1:, :, 7:] - moved).abs().mean(-1), visible) for p in probes]
    return torch.stack(losses).mean()


@torch.no_grad()
def flow_to_reference(depth: Tensor, T: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the displacement of patch centres into view 0, and whether they are visible there.

    Shapes: [B, N - 1, P, 2] in image widths, zero if not visible, and bool [B, N - 1, P].
    """
    W = depth.shape[-1]
    rows, columns = patch_centres(depth)
    projected = project_between_views(depth, T, K, rows, columns)
    u, v, visible = (x[:, 1:, :, 0] for x in (projected.u, projected.v, projected.visible))
    moved = torch.stack((u - columns - 0.5, v - rows - 0.5), dim=-1) / W
    return torch.where(visible[..., None], moved, 0.0), visible


def patch_centres(depth: Tensor) -> tuple[Tensor, Tensor]:
    """Returns rows and columns [P] of the centre pixels of the patches of [..., H, W]."""
    H, W = depth.shape[-2:]
    rows = torch.arange(PATCH // 2, H, PATCH, device=depth.device)
    columns = torch.arange(PATCH // 2, W, PATCH, device=depth.device)
    return rows.repeat_interleave(len(columns)), columns.repeat(len(rows))


# Attention --------------------------------------------------------------------------------------


@torch.no_grad()
def patch_matches(depth: Tensor, T: Tensor, K: Tensor) -> Tensor:
    """Returns the true matches of patch centres: [B, N P, N P] for N views of P patches.

    A row is a distribution over the patches of the other views in which the point is visible, with
    bilinear weights in each; it is zero if no other view sees the point. A point is visible if it
    is inside the image and has the depth of the surface there.
    """
    B, N, H, W = depth.shape
    h, w = H // PATCH, W // PATCH
    projected = project_between_views(depth, T, K, *patch_centres(depth))
    other = ~torch.eye(N, dtype=torch.bool, device=depth.device)[:, None]  # [N, 1, N]
    visible = (projected.visible & other).float()  # [B, N, P, N]
    x = (projected.u / PATCH - 0.5).clamp(0, w - 1)
    y = (projected.v / PATCH - 0.5).clamp(0, h - 1)
    x0, y0 = x.floor().clamp(0, max(w - 2, 0)), y.floor().clamp(0, max(h - 2, 0))
    target = depth.new_zeros(B, N, h * w, N, h * w)
    for dy in (0, 1):
        for dx in (0, 1):
            share = (1 - (x - x0 - dx).abs()) * (1 - (y - y0 - dy).abs()) * visible
            column, row = (x0 + dx).clamp_max(w - 1), (y0 + dy).clamp_max(h - 1)
            at = (row * w + column).long()
            target.scatter_add_(-1, at[..., None], share[..., None])
    target = target.flatten(3).flatten(1, 2)
    return target / target.sum(-1, keepdim=True).clamp_min(1e-6)


def attention_loss(logits: list[Tensor], matches: Tensor, N: int) -> Tensor:
    """Returns the cross-entropy of attention across frames and ``matches``, minus its minimum.

    logits: [B, N P, N P] of each block. The softmax is over the patches of all other frames.
    Attention within a frame is not supervised: tokens do not encode which of several frames they
    belong to, so a patch could not avoid attending to itself.
    """
    P = matches.shape[-1] // N
    frame = torch.arange(N, device=matches.device).repeat_interleave(P)
    own = frame[:, None] == frame[None]
    matched = matches.sum(-1) > 0.5
    least = -torch.where(matches > 0, matches * matches.clamp_min(1e-12).log(), 0.0).sum(-1)
    losses = []
    for one in logits:
        log_share = one.masked_fill(own, -torch.inf).log_softmax(-1)
        entropy = -torch.where(matches > 0, matches * log_share, 0.0).sum(-1)
        losses.append(_mean(entropy - least, matched))
    return torch.stack(losses).mean()
