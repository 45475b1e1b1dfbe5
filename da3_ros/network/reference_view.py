"""Selects the reference view, whose camera defines the world (architecture notes, 6)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

STRATEGIES = ("first", "middle", "saddle_balanced", "saddle_sim_range")


def select_reference(descriptor: Tensor, strategy: str) -> Tensor | None:
    """Frame order [B, N] with the reference first; None: the order is unchanged.

    ``descriptor`` [B, N, D] holds the class slots. Scores are computed in fp32 for any precision
    of the model: in bf16 rounding would decide between almost identical frames.

    Raises ValueError for an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown ref_view {strategy!r}: must be one of {', '.join(STRATEGIES)}")
    B, N, _ = descriptor.shape
    if N < 3 or strategy == "first":
        return None
    if strategy == "middle":
        index = torch.full((B,), N // 2, device=descriptor.device)
    else:
        index = _saddle(descriptor.float(), strategy)
    frames = torch.arange(N, device=descriptor.device).expand(B, N)
    # A stable sort by "is not the reference" moves it to the front and keeps the others in order.
    return torch.argsort((frames != index[:, None]).int(), dim=1, stable=True)


def _saddle(c: Tensor, strategy: str) -> Tensor:
    """Index [B] of the most typical frame (balanced) or of the most distinct one (sim_range)."""
    N = c.shape[1]
    u = F.normalize(c, dim=-1)
    similarity = u @ u.transpose(1, 2)
    if strategy == "saddle_sim_range":
        off = similarity - torch.eye(N, device=c.device)
        return (off.amax(dim=2) - off.amin(dim=2)).argmax(dim=1)
    mean_similarity = (similarity.sum(dim=2) - 1) / (N - 1)
    measures = torch.stack((mean_similarity, c.norm(dim=-1), u.var(dim=-1)))  # [3, B, N]
    low, high = measures.amin(dim=2, keepdim=True), measures.amax(dim=2, keepdim=True)
    scaled = (measures - low) / (high - low + 1e-8)
    return (scaled - 0.5).abs().sum(dim=0).argmin(dim=1)
