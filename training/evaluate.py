"""Figures on held-out rooms: ``python -m training.evaluate [--run DIR | --checkpoint DIR]``.

Prints tables in markdown and writes them beside the same numbers in JSON. Every row sees the same
frames: windows of eight, split into windows of 1, 2, 4 or 8. Beside each figure stands that of two
baselines that see no image: the mean depth map of other rooms, and no motion.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
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
# Of the poses given: up to so many degrees, and up to that share of the distance.
POSE_NOISE = (1.0, 0.03)
NOISE_CURVE = ((0.0, 0.0), POSE_NOISE, (2.0, 0.06), (4.0, 0.12), (8.0, 0.24), (16.0, 0.48))
NOISE_VIEWS = 4
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
def ask(
    network: DepthAnything3, batch: Batch, poses_given: Tensor | None = None, chunk: int = 4
) -> Answer:
    """The network's answer, ``chunk`` windows at a time; poses [B, N, 4, 4] in metres if given."""
    given = None if poses_given is None else conditioning_extrinsics(poses_given)
    depth, poses = [], []
    for i in range(0, len(batch.depth), chunk):
        part = slice(i, i + chunk)
        known = () if given is None else (given[part], batch.K[part])
        out = network(batch.images[part], *known, ref_view="first")
        depth.append(out.depth)
        T = torch.eye(4, device=out.depth.device).repeat(*out.depth.shape[:2], 1, 1)
        T[..., :3, :] = out.extrinsics
        poses.append(torch.linalg.inv(T))
    return Answer(torch.cat(depth), torch.cat(poses))


def as_odometry(batch: Batch, noise: tuple[float, float]) -> Tensor:
    """Noisy poses [B, N, 4, 4] in metres; the same draw for every amount of noise."""
    return noisy_poses(batch, *noise, seed=2)


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
        scale = window_scale(answer, truth)[:, None, None, None]
    ratio = ratio / scale
    count = known.flatten(2).sum(-1).clamp_min(1)
    off = torch.where(known, (1 / ratio - 1).abs(), 0.0).flatten(2).sum(-1) / count
    good = torch.where(known, torch.maximum(ratio, 1 / ratio) < 1.25, False)
    return off.flatten(), (good.flatten(2).sum(-1) / count).flatten()


def window_scale(answer: Answer, truth: Batch) -> Tensor:
    """Median ratio [B] of true depth to the answer's."""
    known = truth.depth.isfinite()
    ratio = torch.where(known, truth.depth / answer.depth, torch.nan)
    return ratio.flatten(1).nanmedian(-1).values


@dataclass(frozen=True, eq=False)
class PoseErrors:
    """Of pairs of views; the last three of those with a baseline."""

    rotation: Tensor  # degrees
    direction: Tensor  # of the translation, degrees
    both: Tensor  # the larger one
    translation: Tensor  # over the baseline, after the scale that fits the depth


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
    there, here = true[..., :3, 3], said[..., :3, 3]
    off = (window_scale(answer, truth)[:, None, None] * here - there).norm(dim=-1)
    translation = off / there.norm(dim=-1).clamp_min(1e-12)
    return PoseErrors(rotation[counts], direction[moved], both[moved], translation[moved])


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
    rotation, direction, both, translation = (
        torch.cat([getattr(p, name) for p in poses])
        for name in ("rotation", "direction", "both", "translation")
    )
    return {
        "AbsRel": float(torch.cat([w[0] for w in window]).mean()),
        "delta1": float(torch.cat([w[1] for w in window]).mean()),
        "AbsRel, scale per frame": float(torch.cat([f[0] for f in frame]).mean()),
        "rotation, deg": median(rotation),
        "rotation mean, deg": float(rotation.mean()) if len(rotation) else float("nan"),
        "direction, deg": median(direction),
        "translation, share": median(translation),
        **{f"AUC@{d}": auc(both, d) for d in AUC_DEG},
        "pairs": len(rotation),
        "pairs with baseline": len(both),
    }


# Tables -----------------------------------------------------------------------------------------

Row = dict[str, object]


@dataclass(frozen=True, eq=False)
class Report:
    """What an evaluation found."""

    rows: list[Row]  # scenes x views x (images, images and poses, blind)
    noise: list[Row]  # what poses of growing noise are worth


def evaluate(
    network: DepthAnything3, rooms: int, size: tuple[int, int], device: torch.device
) -> Report:
    """Everything that the command prints."""
    blind_pool = render_pool(draw_clips(BLIND_SEED, rooms, clips=1), size, device)
    mean_map = mean_depth_map(blind_pool)
    scenes = {
        kind: held_out_windows(rooms, size, narrow, device) for kind, narrow in KINDS.items()
    }
    rows: list[Row] = []
    for kind, (batch, share) in scenes.items():
        for views in tqdm(VIEWS, kind, leave=False):
            rows += compare_methods(network, split(batch, views), share, mean_map, kind, views)
    batch, share = next(iter(scenes.values()))
    return Report(rows, noise_curve(network, split(batch, NOISE_VIEWS), share))


def compare_methods(
    network: DepthAnything3,
    parts: list[tuple[slice, Batch]],
    share: Tensor,
    mean_map: Tensor,
    kind: str,
    views: int,
) -> list[Row]:
    """Rows of one kind of scenes and one number of views."""
    methods = {
        "images": [ask(network, p) for _, p in parts],
        "images and poses": [ask(network, p, as_odometry(p, POSE_NOISE)) for _, p in parts],
        "blind": [guess_blindly(p, mean_map) for _, p in parts],
    }
    rows = []
    for method, answers in methods.items():
        known = [(k, a, p) for (k, p), a in zip(parts, answers, strict=True)]
        figures = summarize(known, share)
        rows.append({"scenes": kind, "views": views, "given": method, **figures})
    return rows


def noise_curve(
    network: DepthAnything3, parts: list[tuple[slice, Batch]], share: Tensor
) -> list[Row]:
    """Errors without poses, and with poses of growing noise, beside the errors of those poses."""
    wanted = ("AbsRel", "rotation, deg", "direction, deg", "AUC@30")
    rows: list[Row] = []
    for noise in tqdm((None, *NOISE_CURVE), "noise of poses", leave=False):
        said, given = [], []
        for k, p in parts:
            poses = None if noise is None else as_odometry(p, noise)
            said.append((k, ask(network, p, poses), p))
            if poses is not None:
                given.append((k, Answer(p.depth * p.scale_m[:, None, None, None], poses), p))
        figures = summarize(said, share)
        own = summarize(given, share) if given else dict.fromkeys(figures, float("nan"))
        label = "no poses" if noise is None else f"{noise[0]:g} deg, {100 * noise[1]:g} %"
        row: Row = {"noise up to": label, **{name: figures[name] for name in wanted}}
        rows.append(row | {f"{name} of the poses": own[name] for name in wanted[1:]})
    return rows


def to_markdown(report: Report) -> str:
    """Tables (medians unless said otherwise) and the sentences that compare their rows."""
    return (
        "Every figure is followed by that of the blind baseline (mean depth map, no motion).\n\n"
        + _table(_beside_blind(report.rows))
        + "\n"
        + "".join(f"- {line}\n" for line in compare_rows(report.rows))
        + f"\nWindows of {NOISE_VIEWS} views, given poses of growing noise:\n\n"
        + _table(report.noise)
    )


def _beside_blind(rows: list[Row]) -> list[Row]:
    """Rows whose figures are ``ours / blind``."""
    blind = {(r["scenes"], r["views"]): r for r in rows if r["given"] == "blind"}
    shown = []
    for row in (r for r in rows if r["given"] != "blind"):
        other = blind[row["scenes"], row["views"]]
        both = {
            k: f"{_cell(v)} / {_cell(other[k])}"
            for k, v in row.items()
            if isinstance(v, float) and v == v
        }
        shown.append({**row, **both})
    return shown


def compare_rows(rows: list[Row]) -> list[str]:
    """One view against several, rotation against not looking, poses against none."""
    at = {(r["scenes"], r["views"], r["given"]): r for r in rows}
    lines = []
    for kind in KINDS:
        one = at[kind, 1, "images"]["AbsRel, scale per frame"]
        several = ", ".join(
            f"{_cell(at[kind, n, 'images']['AbsRel, scale per frame'])} from {n}"
            for n in VIEWS[1:]
        )
        lines.append(
            f"{kind}: the same frames, one scale per frame, AbsRel {_cell(one)} from one view, "
            f"{several}"
        )
        for n in VIEWS[1:]:
            seen, posed, blind = (
                at[kind, n, given] for given in ("images", "images and poses", "blind")
            )
            share = _share(seen["rotation, deg"], blind["rotation, deg"])
            mean = _share(seen["rotation mean, deg"], blind["rotation mean, deg"])
            depth = _share(posed["AbsRel"], seen["AbsRel"])
            turn = _share(posed["rotation, deg"], seen["rotation, deg"])
            lines.append(
                f"{kind}, {n} views: rotation error {share} of the blind one (mean: {mean}); "
                f"poses given, AbsRel becomes {depth} and rotation {turn} of what they are without"
            )
    return lines


def _share(a: object, b: object) -> str:
    assert isinstance(a, float)
    assert isinstance(b, float)
    return f"{100 * a / b:.0f} %" if b and a == a and b == b else "–"


def _table(rows: list[Row]) -> str:
    """Markdown of rows; a dash where there is nothing to measure."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(_cell(v) for v in row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3f}"
    return str(value)


# Command ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run's averaged weights")
    parser.add_argument("--checkpoint", default="", help="a folder; default: what is shipped")
    parser.add_argument("--rooms", type=int, default=60, help="held-out rooms of each kind")
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
    report = evaluate(network.eval().to(device), args.rooms, tuple(args.size), device)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".md").write_text(to_markdown(report))
    args.out.with_suffix(".json").write_text(json.dumps(asdict(report), indent=1))
    print(to_markdown(report), end="")


if __name__ == "__main__":
    main()
