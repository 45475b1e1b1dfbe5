"""Evaluation on held-out rooms: ``python -m training.evaluate [--run DIR | --checkpoint DIR]``.

Prints tables in markdown, and writes them and the same numbers in JSON. All rows use the same
frames: windows of eight views, split into windows of 1, 2, 4 or 8. Each figure is followed by that
of a blind baseline, which does not use the images: the mean depth map of other rooms for depth,
and no motion for poses.
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
BLIND_SEED = FIRST_TRAINING_SEED - 1_000_000  # first room of the mean depth map
MIN_SHARE = 0.3  # smallest overlap of pairs whose relative pose is evaluated
MIN_BASELINE = 0.1  # of the median depth, for pairs whose translation is evaluated
# Largest noise of given poses: degrees, and share of the distance from the reference.
POSE_NOISE = (1.0, 0.03)
NOISE_CURVE = ((0.0, 0.0), POSE_NOISE, (2.0, 0.06), (4.0, 0.12), (8.0, 0.24), (16.0, 0.48))
NOISE_VIEWS = 4
AUC_DEG = (5, 15, 30)
KINDS = {"rooms as trained on": False, "narrow rooms, a kind never trained on": True}


@dataclass(frozen=True, eq=False)
class Estimate:
    """Depth and poses that a method estimates for B windows of N views."""

    depth: Tensor  # [B, N, H, W]
    T_window_camera: Tensor  # [B, N, 4, 4], lengths in any unit


# Windows ----------------------------------------------------------------------------------------


def held_out_windows(
    rooms: int, size: tuple[int, int], narrow: bool, device: torch.device
) -> tuple[Batch, Tensor]:
    """Returns one window of eight views per room, in order of time, and their overlap [B, 8, 8].

    size: (height, width). The overlap of two views is the smaller one of both directions.
    """
    clips = draw_clips(HELD_OUT_SEED, rooms, narrow=narrow, clips=1)
    pool = render_pool(clips, size, device, supersample=True)
    generator = torch.Generator(device).manual_seed(1)
    clip = torch.arange(rooms, device=device)
    frames = draw_frames(pool, clip, LARGEST, 0.3, generator).sort(1).values
    batch = make_batch(*take(pool, clip, frames))
    share = pool.share[clip[:, None, None], frames[:, :, None], frames[:, None]]
    return batch, torch.minimum(share, share.mT)


def split(batch: Batch, views: int) -> list[tuple[slice, Batch]]:
    """Returns windows of ``views`` consecutive views, with their places in the larger window.

    Together they cover all views; the first view of each is its reference.
    """
    parts = []
    for first in range(0, LARGEST, views):
        keep = slice(first, first + views)
        part = batch.views(keep)
        T = torch.linalg.inv(part.T_window_camera[:, :1]) @ part.T_window_camera
        parts.append((keep, replace(part, T_window_camera=T)))
    return parts


# Methods ----------------------------------------------------------------------------------------


@torch.no_grad()
def run_network(
    network: DepthAnything3, batch: Batch, poses_given: Tensor | None = None, chunk: int = 4
) -> Estimate:
    """Returns the network's estimate, computed for ``chunk`` windows at a time.

    poses_given: T_window_camera [B, N, 4, 4] in metres, or None for images only.
    """
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
    return Estimate(torch.cat(depth), torch.cat(poses))


def as_odometry(batch: Batch, noise: tuple[float, float]) -> Tensor:
    """Returns noisy poses [B, N, 4, 4] in metres; all noise levels use the same random draw."""
    return noisy_poses(batch, *noise, seed=2)


def mean_depth_map(pool: Pool) -> Tensor:
    """Returns the geometric mean depth [H, W] of all frames, each normalised by its own mean.

    This is the depth of the blind baseline.
    """
    flat = pool.depth.flatten(0, 1).float()
    known = flat.isfinite()
    log = torch.where(known, flat.clamp_max(1e3), 1.0).log()
    mean = log.flatten(1).sum(1) / known.flatten(1).sum(1).clamp_min(1)
    log = torch.where(known, log - mean[:, None, None], 0.0)
    return (log.sum(0) / known.sum(0).clamp_min(1)).exp()


def blind_baseline(batch: Batch, mean_map: Tensor) -> Estimate:
    """Returns the blind baseline: ``mean_map`` [H, W] as depth, and no motion."""
    B, N = batch.depth.shape[:2]
    still = torch.eye(4, device=mean_map.device).expand(B, N, 4, 4)
    return Estimate(mean_map.expand(B, N, -1, -1), still)


# Measures ---------------------------------------------------------------------------------------


def depth_errors(estimate: Estimate, truth: Batch, per_frame: bool) -> tuple[Tensor, Tensor]:
    """Returns AbsRel and delta-1 [B N] of frames after a median scale per window or per frame."""
    known = truth.depth.isfinite()
    ratio = torch.where(known, truth.depth / estimate.depth, torch.nan)
    if per_frame:
        scale = ratio.flatten(2).nanmedian(-1).values[..., None, None]
    else:
        scale = window_scale(estimate, truth)[:, None, None, None]
    ratio = ratio / scale
    count = known.flatten(2).sum(-1).clamp_min(1)
    abs_rel = torch.where(known, (1 / ratio - 1).abs(), 0.0).flatten(2).sum(-1) / count
    good = torch.where(known, torch.maximum(ratio, 1 / ratio) < 1.25, False)
    return abs_rel.flatten(), (good.flatten(2).sum(-1) / count).flatten()


def window_scale(estimate: Estimate, truth: Batch) -> Tensor:
    """Returns the median ratio [B] of true to estimated depth."""
    known = truth.depth.isfinite()
    ratio = torch.where(known, truth.depth / estimate.depth, torch.nan)
    return ratio.flatten(1).nanmedian(-1).values


@dataclass(frozen=True, eq=False)
class PoseErrors:
    """Errors of the relative poses of pairs of views."""

    rotation: Tensor  # [P] degrees, all pairs
    direction: Tensor  # [Q] of the translation, degrees, pairs with a baseline
    both: Tensor  # [Q] the larger of rotation and direction
    translation: Tensor  # [Q] over the baseline, after the scale that fits the depth


def pose_errors(estimate: Estimate, truth: Batch, share: Tensor) -> PoseErrors:
    """Returns the errors of relative poses between all pairs of views of each window.

    share: overlap of the views [B, N, N]; pairs below ``MIN_SHARE`` are left out, and pairs below
    ``MIN_BASELINE`` for the translation.
    """
    N = truth.depth.shape[1]
    i, j = torch.triu_indices(N, N, 1, device=share.device)

    def relative(T: Tensor) -> Tensor:
        return torch.linalg.inv(T[:, i].double()) @ T[:, j].double()

    ours, true = relative(estimate.T_window_camera), relative(truth.T_window_camera)
    rotation = angle_between(ours[..., :3, :3], true[..., :3, :3])
    direction = direction_error(ours[..., :3, 3], true[..., :3, 3])
    known = torch.where(truth.depth.isfinite(), truth.depth, torch.nan)
    median = known.flatten(1).nanmedian(-1).values
    overlapping = share[:, i, j] >= MIN_SHARE
    moved = overlapping & (true[..., :3, 3].norm(dim=-1) >= MIN_BASELINE * median[:, None])
    both = torch.maximum(rotation, direction)
    true_t, our_t = true[..., :3, 3], ours[..., :3, 3]
    error = (window_scale(estimate, truth)[:, None, None] * our_t - true_t).norm(dim=-1)
    translation = error / true_t.norm(dim=-1).clamp_min(1e-12)
    return PoseErrors(rotation[overlapping], direction[moved], both[moved], translation[moved])


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """Returns the angle [...] between rotations [..., 3, 3] in degrees, also exact if small."""
    chord = torch.linalg.matrix_norm(a - b) / 8**0.5
    return torch.rad2deg(2 * chord.clamp(0, 1).asin())


def direction_error(a: Tensor, b: Tensor) -> Tensor:
    """Returns the angle [...] between translations [..., 3] in degrees.

    It is 90, the mean of random directions, where ``a`` is zero.
    """
    unit_a, unit_b = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (a, b))
    angle = torch.rad2deg(2 * ((unit_a - unit_b).norm(dim=-1) / 2).clamp(0, 1).asin())
    return torch.where(a.norm(dim=-1) < 1e-6, 90.0, angle)


def auc(errors: Tensor, limit: int) -> float:
    """Returns the area under the curve of the share of ``errors`` below a threshold, 0..1.

    The threshold goes from 0 to ``limit``. NaN without errors.
    """
    if not len(errors):
        return float("nan")
    return float((1 - errors / limit).clamp_min(0).mean())


def median(values: Tensor) -> float:
    """Returns the median, NaN without values."""
    return float(values.median()) if len(values) else float("nan")


def summarize(estimates: list[tuple[slice, Estimate, Batch]], share: Tensor) -> dict[str, float]:
    """Returns all figures of a method.

    estimates: views of a part within its window, estimate and truth of the part; share: overlap of
    all views of the windows [B, 8, 8].
    """
    window = [depth_errors(e, t, per_frame=False) for _, e, t in estimates]
    frame = [depth_errors(e, t, per_frame=True) for _, e, t in estimates]
    poses = [pose_errors(e, t, share[:, k, k]) for k, e, t in estimates]
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
    """Results of an evaluation."""

    rows: list[Row]  # scenes x views x (images, images and poses, blind)
    noise: list[Row]  # errors with given poses, by their noise


def evaluate(
    network: DepthAnything3, rooms: int, size: tuple[int, int], device: torch.device
) -> Report:
    """Runs the whole evaluation; ``size``: (height, width)."""
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
    """Returns a row per method for one kind of scenes and one number of views."""
    methods = {
        "images": [run_network(network, p) for _, p in parts],
        "images and poses": [
            run_network(network, p, as_odometry(p, POSE_NOISE)) for _, p in parts
        ],
        "blind": [blind_baseline(p, mean_map) for _, p in parts],
    }
    rows = []
    for method, estimates in methods.items():
        with_truth = [(k, e, p) for (k, p), e in zip(parts, estimates, strict=True)]
        figures = summarize(with_truth, share)
        rows.append({"scenes": kind, "views": views, "given": method, **figures})
    return rows


def noise_curve(
    network: DepthAnything3, parts: list[tuple[slice, Batch]], share: Tensor
) -> list[Row]:
    """Returns rows without poses and with given poses of growing noise.

    Each row also has the errors of the given poses.
    """
    wanted = ("AbsRel", "rotation, deg", "direction, deg", "AUC@30")
    rows: list[Row] = []
    for noise in tqdm((None, *NOISE_CURVE), "noise of poses", leave=False):
        estimated, given = [], []
        for k, p in parts:
            poses = None if noise is None else as_odometry(p, noise)
            estimated.append((k, run_network(network, p, poses), p))
            if poses is not None:
                given.append((k, Estimate(p.depth * p.scale_m[:, None, None, None], poses), p))
        figures = summarize(estimated, share)
        own = summarize(given, share) if given else dict.fromkeys(figures, float("nan"))
        label = "no poses" if noise is None else f"{noise[0]:g} deg, {100 * noise[1]:g} %"
        row: Row = {"noise up to": label, **{name: figures[name] for name in wanted}}
        rows.append(row | {f"{name} of the poses": own[name] for name in wanted[1:]})
    return rows


def to_markdown(report: Report) -> str:
    """Returns the tables (pose errors are medians if not stated) and comparisons of their rows."""
    return (
        "Every figure is followed by that of the blind baseline (mean depth map, no motion).\n\n"
        + _table(_beside_blind(report.rows))
        + "\n"
        + "".join(f"- {line}\n" for line in compare_rows(report.rows))
        + f"\nWindows of {NOISE_VIEWS} views, given poses of growing noise:\n\n"
        + _table(report.noise)
    )


def _beside_blind(rows: list[Row]) -> list[Row]:
    """Returns rows whose figures are ``ours / blind``."""
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
    """Returns sentences: one view against several, rotation against blind, poses against none."""
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
            images, posed, blind = (
                at[kind, n, given] for given in ("images", "images and poses", "blind")
            )
            share = _share(images["rotation, deg"], blind["rotation, deg"])
            mean = _share(images["rotation mean, deg"], blind["rotation mean, deg"])
            depth = _share(posed["AbsRel"], images["AbsRel"])
            rotation = _share(posed["rotation, deg"], images["rotation, deg"])
            lines.append(
                f"{kind}, {n} views: rotation error {share} of the blind one (mean: {mean}); "
                f"with poses given, AbsRel is {depth} and rotation error {rotation} of the values "
                "without poses"
            )
    return lines


def _share(a: object, b: object) -> str:
    assert isinstance(a, float)
    assert isinstance(b, float)
    return f"{100 * a / b:.0f} %" if b and a == a and b == b else "–"


def _table(rows: list[Row]) -> str:
    """Returns rows as a markdown table; figures that do not apply are a dash."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(_cell(v) for v in row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.3f}"
    return str(value)


# Command ----------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="evaluate a run's averaged weights")
    parser.add_argument("--checkpoint", default="", help="a folder; default: the included weights")
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
