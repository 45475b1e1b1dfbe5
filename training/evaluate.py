"""Figures on held-out rooms: ``python -m training.evaluate [--run DIR | --checkpoint DIR]``.

Prints a table in markdown and writes it beside the same numbers in JSON. Every row sees the same
frames: windows of eight, split into windows of 1, 2, 4 or 8.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from da3_ros.network import build_network, load_checkpoint
from da3_ros.network.model import DepthAnything3
from training.data import (
    FIRST_TRAINING_SEED,
    Batch,
    Pool,
    conditioning_extrinsics,
    draw_clips,
    draw_frames,
    make_batch,
    noisy_poses,
    render_pool,
    take,
)
from training.export import averaged_network
from training.train import pick_device

VIEWS = (1, 2, 4, 8)
LARGEST = max(VIEWS)
HELD_OUT_SEED = 5_000_000  # below the training rooms, beyond those of demo and tests
BLIND_SEED = FIRST_TRAINING_SEED - 1_000_000  # rooms that the mean depth map is taken from
MIN_SHARE = 0.3  # of their picture, for pairs whose pose counts
MIN_BASELINE = 0.1  # of the median depth, for pairs whose direction of translation counts
POSE_NOISE = (1.0, 0.03)  # of the poses given: up to so many degrees, and share of the distance
AUC_DEG = (5, 15, 30)
KINDS = {"rooms as trained on": False, "narrow rooms, a kind never trained on": True}


@dataclass(frozen=True, eq=False)
class Answer:
    """What a method says of a window."""

    depth: Tensor  # [B, N, H, W]
    T_ref_camera: Tensor  # [B, N, 4, 4], lengths in any unit


# Windows ----------------------------------------------------------------------------------------


def held_out_windows(
    rooms: int, size: tuple[int, int], narrow: bool, device: torch.device
) -> tuple[Batch, Tensor]:
    """One window of eight views per room, in order of time, and their mutual share [B, 8, 8]."""
    clips = draw_clips(HELD_OUT_SEED, rooms, narrow=narrow, clips=1)
    pool = render_pool(clips, size, device, supersample=True)
    generator = torch.Generator(device).manual_seed(1)
    clip = torch.arange(rooms, device=device)
    frames = draw_frames(pool, clip, LARGEST, 0.3, generator).sort(1).values
    batch = make_batch(*take(pool, clip, frames))
    share = pool.share[clip[:, None, None], frames[:, :, None], frames[:, None]]
    return batch, torch.minimum(share, share.mT)


def split(batch: Batch, views: int) -> list[tuple[slice, Batch]]:
    """Windows of ``views`` neighbours that cover all views; the first of each is its reference."""
    parts = []
    for first in range(0, LARGEST, views):
        keep = slice(first, first + views)
        part = batch.views(keep)
        T = torch.linalg.inv(part.T_ref_camera[:, :1]) @ part.T_ref_camera
        parts.append((keep, replace(part, T_ref_camera=T)))
    return parts


# Methods ----------------------------------------------------------------------------------------


@torch.no_grad()
def ask(network: DepthAnything3, batch: Batch, conditioned: bool, chunk: int = 4) -> Answer:
    """The network's answer, ``chunk`` windows at a time."""
    given = conditioning_extrinsics(noisy_poses(batch, *POSE_NOISE, seed=2))
    depth, poses = [], []
    for i in range(0, len(batch.depth), chunk):
        part = slice(i, i + chunk)
        known = (given[part], batch.K[part]) if conditioned else ()
        out = network(batch.images[part], *known, ref_view="first")
        depth.append(out.depth)
        T = torch.eye(4, device=out.depth.device).repeat(*out.depth.shape[:2], 1, 1)
        T[..., :3, :] = out.extrinsics
        poses.append(torch.linalg.inv(T))
    return Answer(torch.cat(depth), torch.cat(poses))


def mean_depth_map(pool: Pool) -> Tensor:
    """Geometric mean depth [H, W] of rooms in their own units: what one knows without looking."""
    flat = pool.depth.flatten(0, 1).float()
    known = flat.isfinite()
    log = torch.where(known, flat.clamp_max(1e3), 1.0).log()
    middle = log.flatten(1).sum(1) / known.flatten(1).sum(1).clamp_min(1)
    log = torch.where(known, log - middle[:, None, None], 0.0)
    return (log.sum(0) / known.sum(0).clamp_min(1)).exp()


def guess_blindly(batch: Batch, mean_map: Tensor) -> Answer:
    """Mean depth and no motion."""
    B, N = batch.depth.shape[:2]
    still = torch.eye(4, device=mean_map.device).expand(B, N, 4, 4)
    return Answer(mean_map.expand(B, N, -1, -1), still)


# Measures ---------------------------------------------------------------------------------------


def depth_errors(answer: Answer, truth: Batch, per_frame: bool) -> tuple[Tensor, Tensor]:
    """AbsRel and delta-1 [B N] of frames, after one median ratio per window, or per frame."""
    known = truth.depth.isfinite()
    ratio = torch.where(known, truth.depth / answer.depth, torch.nan)
    if per_frame:
        scale = ratio.flatten(2).nanmedian(-1).values[..., None, None]
    else:
        scale = ratio.flatten(1).nanmedian(-1).values[:, None, None, None]
    ratio = ratio / scale
    count = known.flatten(2).sum(-1).clamp_min(1)
    off = torch.where(known, (1 / ratio - 1).abs(), 0.0).flatten(2).sum(-1) / count
    good = torch.where(known, torch.maximum(ratio, 1 / ratio) < 1.25, False)
    return off.flatten(), (good.flatten(2).sum(-1) / count).flatten()


@dataclass(frozen=True, eq=False)
class PoseErrors:
    """Of pairs of views, in degrees."""

    rotation: Tensor  # [pairs that share enough]
    direction: Tensor  # [those of them with a baseline]
    both: Tensor  # the larger one, of pairs with a baseline


def pose_errors(answer: Answer, truth: Batch, share: Tensor) -> PoseErrors:
    """Relative poses between all pairs of views of a window; ``share`` [B, N, N]."""
    N = truth.depth.shape[1]
    i, j = torch.triu_indices(N, N, 1, device=share.device)

    def relative(T: Tensor) -> Tensor:
        return torch.linalg.inv(T[:, i].double()) @ T[:, j].double()

    said, true = relative(answer.T_ref_camera), relative(truth.T_ref_camera)
    rotation = angle_between(said[..., :3, :3], true[..., :3, :3])
    direction = direction_error(said[..., :3, 3], true[..., :3, 3])
    known = torch.where(truth.depth.isfinite(), truth.depth, torch.nan)
    median = known.flatten(1).nanmedian(-1).values
    counts = share[:, i, j] >= MIN_SHARE
    moved = counts & (true[..., :3, 3].norm(dim=-1) >= MIN_BASELINE * median[:, None])
    both = torch.maximum(rotation, direction)
    return PoseErrors(rotation[counts], direction[moved], both[moved])


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """Degrees [...] between rotations [..., 3, 3], exact for small ones too."""
    chord = torch.linalg.matrix_norm(a - b) / 8**0.5
    return torch.rad2deg(2 * chord.clamp(0, 1).asin())


def direction_error(a: Tensor, b: Tensor) -> Tensor:
    """Degrees [...] between translations [..., 3]; 90, as if at random, where one is zero."""
    unit_a, unit_b = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (a, b))
    angle = torch.rad2deg(2 * ((unit_a - unit_b).norm(dim=-1) / 2).clamp(0, 1).asin())
    return torch.where(a.norm(dim=-1) < 1e-6, 90.0, angle)


def auc(errors: Tensor, limit: int) -> float:
    """Area under the share of ``errors`` below a threshold that goes from 0 to ``limit``."""
    if not len(errors):
        return float("nan")
    return float((1 - errors / limit).clamp_min(0).mean())


def median(values: Tensor) -> float:
    """NaN where there is none."""
    return float(values.median()) if len(values) else float("nan")


def summarize(answers: list[tuple[slice, Answer, Batch]], share: Tensor) -> dict[str, float]:
    """All figures of a method on the parts of the windows."""
    window = [depth_errors(a, t, per_frame=False) for _, a, t in answers]
    frame = [depth_errors(a, t, per_frame=True) for _, a, t in answers]
    poses = [pose_errors(a, t, share[:, k, k]) for k, a, t in answers]
    rotation = torch.cat([p.rotation for p in poses])
    direction, both = (torch.cat([getattr(p, n) for p in poses]) for n in ("direction", "both"))
    return {
        "AbsRel": float(torch.cat([w[0] for w in window]).mean()),
        "delta1": float(torch.cat([w[1] for w in window]).mean()),
        "AbsRel, scale per frame": float(torch.cat([f[0] for f in frame]).mean()),
        "rotation, deg": median(rotation),
        "direction, deg": median(direction),
        **{f"AUC@{d}": auc(both, d) for d in AUC_DEG},
        "pairs": len(rotation),
        "pairs with baseline": len(both),
    }


# Command ----------------------------------------------------------------------------------------


def evaluate(
    network: DepthAnything3, rooms: int, size: tuple[int, int], device: torch.device
) -> list[dict[str, object]]:
    """Rows of the table."""
    blind_pool = render_pool(draw_clips(BLIND_SEED, rooms, clips=1), size, device)
    mean_map = mean_depth_map(blind_pool)
    rows: list[dict[str, object]] = []
    for kind, narrow in KINDS.items():
        batch, share = held_out_windows(rooms, size, narrow, device)
        for views in tqdm(VIEWS, kind, leave=False):
            parts = split(batch, views)
            methods = {
                "images": [ask(network, p, False) for _, p in parts],
                "images and poses": [ask(network, p, True) for _, p in parts],
                "blind": [guess_blindly(p, mean_map) for _, p in parts],
            }
            for method, answers in methods.items():
                known = [(k, a, p) for (k, p), a in zip(parts, answers, strict=True)]
                figures = summarize(known, share)
                rows.append({"scenes": kind, "views": views, "given": method, **figures})
    return rows


def to_markdown(rows: list[dict[str, object]]) -> str:
    """A table of the rows; a dash where there is nothing to measure."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    for row in rows:
        cells = [_cell(v) for v in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3f}"
    return str(value)


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run's averaged weights")
    parser.add_argument("--checkpoint", default="", help="a folder; default: what is shipped")
    parser.add_argument("--rooms", type=int, default=100, help="held-out rooms of each kind")
    parser.add_argument("--size", type=int, nargs=2, default=(168, 224), metavar=("H", "W"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("evaluation"), help="without suffix")
    args = parser.parse_args(argv)
    device = pick_device(args.device)
    if args.run:
        network = averaged_network(args.run)
    else:
        network = build_network("da3-tiny")
        load_checkpoint(network, args.checkpoint)
    rows = evaluate(network.to(device), args.rooms, tuple(args.size), device)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".md").write_text(to_markdown(rows))
    args.out.with_suffix(".json").write_text(json.dumps(rows, indent=1))
    print(to_markdown(rows), end="")


if __name__ == "__main__":
    main()
