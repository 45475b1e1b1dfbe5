"""Measured depth beside semi-global matching (OpenCV's SGBM) of rectified pairs."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from dense_scenes import (
    OffAndOn,
    Shown,
    fit_way,
    means,
    off_and_on,
    ratios,
    recorded,
    save_pictures,
)
from refinement_recordings import WINDOW, projection, true_poses

from da3_ros.derived.dense_depth import agreement, confirmed_depth, differences, search_depth
from da3_ros.derived.plane_sweep import SweepView
from da3_ros.recordings import open_recording
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.types import Array, FloatImage, Image

BLOCK = 5  # edge of SGBM's windows, pixels
DISPARITIES = 128
BAD_PX = 3.0
STEPS = (1, -1, 2, -2, 3, -3)  # places of neighbours beside a camera, baselines


def sgbm(left: Image, right: Image, disparities: int) -> tuple[FloatImage, float]:
    """Returns disparity [H, W] of grey images, NaN unknown, and the seconds it took.

    With OpenCV's check of left against right (one pixel).
    """
    matcher = cv2.StereoSGBM.create(
        0, disparities, BLOCK, P1=8 * BLOCK**2, P2=32 * BLOCK**2, disp12MaxDiff=1,
        uniquenessRatio=8, speckleWindowSize=100, speckleRange=2,
        mode=cv2.STEREO_SGBM_MODE_SGBM_3WAY,
    )  # fmt: skip
    start = time.perf_counter()
    found = matcher.compute(left, right).astype(np.float32) / 16
    seconds = time.perf_counter() - start
    return np.where(found > 0.5, found, np.nan).astype(np.float32), seconds


# A car, left images only -------------------------------------------------------------------------


def kitti(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per keyframe of the left images: off, on and SGBM of the pair."""
    with open_recording(options.folder, camera="/left") as bag:
        lefts, poses = list(bag)[: options.frames], true_poses(bag)
    with open_recording(options.folder, camera="/right") as bag:
        rights = {f.stamp_ns: f for f in bag}
    P = projection(next(iter(rights.values())).calibration)
    values = {
        "model": "da3-tiny", "backend": options.backend, "process_res": options.process_res,
        "window.size": WINDOW,
    }  # fmt: skip
    true = {f.stamp_ns: T for f, T in zip(lefts, poses, strict=False)}
    with (
        recorded(lefts, values, options.keep, options.folder.name) as folder,
        off_and_on(folder) as both,
    ):
        pairs = [(one.image[..., 0], rights[one.stamp_ns].image[..., 0]) for one in both.keyframes]
        yield from beside_sgbm(both, pairs, -P[0, 3], true, options)


def beside_sgbm(
    both: OffAndOn, pairs: Sequence[tuple[Image, Image]], focal_times_baseline: float,
    true: Mapping[int, Array], options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yields two rows per keyframe: in the unit of the way; and off and on each in the unit that
    fits SGBM best in all keyframes, which is blind to errors of the way's length."""
    T_room_ros, way_m = fit_way(both.stored, true)
    matched = [sgbm(*pair, DISPARITIES) for pair in pairs]
    truth = {
        one.key: focal_times_baseline / _Grid(one, pair).at(found)
        for one, pair, (found, _) in zip(both.keyframes, pairs, matched, strict=True)
    }
    units = {"way": (T_room_ros.scale, T_room_ros.scale),
             "fitted": fitted_units(both.keyframes, truth)}  # fmt: skip
    for one, pair, (found, seconds) in zip(both.keyframes, pairs, matched, strict=True):
        for name, unit in units.items():
            row = _Grid(one, pair).compared(found, focal_times_baseline, unit)
            yield {"keyframe": one.key, "unit": name, "way_error_m": way_m} | row | {
                "unit_fitted_over_way": units["fitted"][1] / T_room_ros.scale,
                "sgbm_seconds": seconds, "seconds": both.seconds,
            }  # fmt: skip
    if options.pictures:
        save_pictures(
            options.pictures, options.folder.name, both.keyframes, truth, units["fitted"][1]
        )


def fitted_units(
    keyframes: Sequence[Shown], truth: Mapping[int, FloatImage]
) -> tuple[float, float]:
    """Returns metres per unit of the network's depth, and of measured depth where it is measured:
    medians over all pixels with truth."""
    off = [truth[one.key] / one.network for one in keyframes]
    on = [(truth[one.key] / one.measured)[one.mask] for one in keyframes]
    units = [float(np.nanmedian(np.concatenate([a.ravel() for a in w]))) for w in (off, on)]
    return units[0], units[1] if np.isfinite(units[1]) else units[0]


def by_unit(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the means over keyframes in each unit, and errors off over on."""
    out = []
    for name in dict.fromkeys(row["unit"] for row in found):
        mean = means([row for row in found if row["unit"] == name])
        out.append({"unit": name} | mean | ratios(mean))
    return out


class _Grid:
    """The pixels of a keyframe's depth in the full images of a pair."""

    def __init__(self, one: Shown, pair: tuple[Image, Image]) -> None:
        self.one, self.pair = one, pair
        (height, width), (h, w) = pair[0].shape, one.network.shape
        v, u = np.mgrid[0:h, 0:w].astype(np.float32) + np.float32(0.5)
        self.u, self.v = u * width / w - 0.5, v * height / h - 0.5  # OpenCV's rule

    def at(self, image: FloatImage) -> FloatImage:
        """Returns the nearest values of a full image."""
        return cv2.remap(image, self.u, self.v, cv2.INTER_NEAREST)

    def compared(
        self, full: FloatImage, focal_times_baseline: float, units: tuple[float, float]
    ) -> dict[str, float]:
        """Returns shares, agreement with SGBM's disparity [H, W], and errors of prediction.

        units: metres per unit of the network's depth and of measured depth.
        """
        ours = {
            name: np.where(np.isfinite(depth), focal_times_baseline / (depth * unit), np.nan)
            for name, depth, unit in zip(
                ("off", "on"), (self.one.network, self.one.measured), units, strict=True
            )
        }
        theirs = self.at(full)
        known, mask = np.isfinite(theirs), self.one.mask
        out = {
            "share_sgbm": known.mean(),
            "share": mask.mean(),
            "share_both": (known & mask).mean(),
        }
        for name, disparity in ours.items():
            for where, at in (("", known & np.isfinite(disparity)), ("measured_", known & mask)):
                off = np.abs(disparity - theirs)[at]
                out |= {f"{where}apart_{name}": float(np.median(off / theirs[at])) if off.size
                        else math.nan,
                        f"{where}bad3_{name}": float((off > BAD_PX).mean()) if off.size
                        else math.nan}  # fmt: skip
        return {k: float(v) for k, v in out.items()} | self._predicted(ours, theirs)

    def _predicted(self, ours: Mapping[str, Array], theirs: FloatImage) -> dict[str, float]:
        """Returns the mean absolute grey difference (of 255) of the right image at the place of
        each left pixel: where all have a value, where ours is measured and SGBM has a value, and
        where ours is measured and SGBM has none."""
        errors = {k: self._warped(d) for k, d in (*ours.items(), ("sgbm", theirs))}
        both = np.isfinite(errors["off"]) & np.isfinite(errors["on"])
        every, mask = both & np.isfinite(errors["sgbm"]), self.one.mask
        out = {}
        for where, at in (("warp", every), ("warp_measured", every & mask),
                          ("warp_ours_only", both & mask & ~np.isfinite(theirs))):  # fmt: skip
            for name, error in errors.items():
                if name != "sgbm" or where != "warp_ours_only":
                    out[f"{where}_{name}"] = float(error[at].mean()) if at.any() else math.nan
        return out

    def _warped(self, disparity: Array) -> FloatImage:
        """Returns the grey difference [h, w] at the disparity of each pixel; NaN outside."""
        left, right = (image.astype(np.float32) for image in self.pair)
        x = np.nan_to_num(self.u - disparity, nan=-2).astype(np.float32)
        seen = cv2.remap(
            right, x, self.v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT,
            borderValue=float("nan"),
        )  # fmt: skip
        return np.abs(cv2.remap(left, self.u, self.v, cv2.INTER_LINEAR) - seen)


# A rendered pair, with exact depth --------------------------------------------------------------


def rectified(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per room, view and method: SGBM, and plane sweeps with one and more neighbours
    from a blurred guess."""
    for seed in options.seeds:
        for index in range(0, options.frames, options.every):
            frames = beside(seed, index, options)
            truth, given = frames[0].depth, [wrong(f.depth, k) for k, f in enumerate(frames)]
            known = np.isfinite(truth)
            found = {"sgbm": sgbm_of(frames, truth)}
            for count in options.neighbours:
                ones = frames[: count + 1], given[: count + 1]
                found[f"sweep {count}"] = swept(*ones, options.device)
            common = known & np.all([m for _, m, _ in found.values()], axis=0)
            disparity = _disparity(frames, truth)
            guess = {"guess": (given[0], known, 0.0)}
            for name, (depth, mask, seconds) in (guess | found).items():
                yield {"room": seed, "view": index, "by": name} | _errors(
                    depth, mask & known, common, truth, disparity, known
                ) | {"seconds": seconds}  # fmt: skip


def beside(seed: int, index: int, options: argparse.Namespace) -> list[SyntheticFrame]:
    """Returns a view of a room and views from beside it, at multiples of a baseline; the first of
    them is the right one of a rectified pair."""

    def view(step: float) -> SyntheticFrame:
        mount = np.eye(4)
        mount[0, 3] = step
        return SyntheticCamera(
            seed, options.size, walk="handheld", frames=options.frames, mount=mount
        )[index]  # fmt: skip

    first = view(0)
    baseline = options.baseline * float(np.median(first.depth[np.isfinite(first.depth)]))
    return [first, *(view(step * baseline) for step in STEPS[: max(options.neighbours)])]


def wrong(depth: FloatImage, seed: int) -> FloatImage:
    """Returns depth as of a small network: blurred, and up to 20 % off, smoothly."""
    known = np.isfinite(depth)
    noise = np.random.default_rng(seed).standard_normal(depth.shape).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), 25 * depth.shape[1] / 168)
    full = np.where(known, depth, depth[known].mean())
    blurred = cv2.GaussianBlur(np.log(full), (0, 0), 2 * depth.shape[1] / 168)
    return np.asarray(np.exp(blurred + 0.08 * noise / noise.std()), np.float32)


def sgbm_of(frames: Sequence[SyntheticFrame], truth: FloatImage) -> tuple[Array, Array, float]:
    """Returns SGBM's depth [h, w], where it has a value, and seconds; disparities up to the true
    ones."""
    left, right = (_grey(f.image) for f in frames[:2])
    most = float(np.nanmax(_disparity(frames, truth)))
    disparity, seconds = sgbm(left, right, 16 * math.ceil((most + 2) / 16))
    return _focal_times_baseline(frames) / disparity, np.isfinite(disparity), seconds


def _focal_times_baseline(frames: Sequence[SyntheticFrame]) -> float:
    a, b = (f.T_room_camera[:3, 3] for f in frames[:2])
    return float(frames[0].K[0, 0] * np.linalg.norm(a - b))


def _disparity(frames: Sequence[SyntheticFrame], depth: FloatImage) -> Array:
    return np.asarray(_focal_times_baseline(frames) / depth)


def _grey(image: Image) -> Image:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def swept(
    frames: Sequence[SyntheticFrame], given: Sequence[FloatImage], device: str
) -> tuple[Array, Array, float]:
    """Returns the measured depth [h, w] of the first view, which pixels are measured, and the
    seconds that a view takes. With one neighbour, its agreement is enough: the check of left
    against right."""
    views = [SweepView(_grey(f.image).astype(np.float32) / 255, f.K, f.T_room_camera)
             for f in frames]  # fmt: skip
    start, found = time.perf_counter(), []
    for k, view in enumerate(views):
        others = [v for j, v in enumerate(views) if j != k]
        found.append(search_depth(view, others, given[k], device))
    seconds, start = (time.perf_counter() - start) / len(views), time.perf_counter()
    neighbours = dict(enumerate(zip(views[1:], found[1:], strict=True)))
    dense = confirmed_depth(views[0], given[0], found[0], neighbours)
    seconds += time.perf_counter() - start
    if len(views) > 2:
        return dense.depth, dense.measured, seconds
    swept = np.where(found[0].decided, found[0].depth, np.float32(np.nan))
    disparity = found[0].disparity.astype(np.float32)
    agree = agreement(differences(views[0], swept, [(views[1], found[1].depth)]), disparity)
    return swept, agree[0] > 0, seconds


def _errors(
    depth: Array, mask: Array, common: Array, truth: FloatImage, disparity: Array, known: Array
) -> dict[str, float]:  # fmt: skip
    off = np.abs(depth / np.where(known, truth, 1) - 1)
    pixels = off * disparity / (1 + off)

    def over(at: Array) -> dict[str, float]:
        if not at.any():
            return dict.fromkeys(("absrel", "median", "median_px", "bad1"), math.nan)
        return {"absrel": float(off[at].mean()), "median": float(np.median(off[at])),
                "median_px": float(np.median(pixels[at])),
                "bad1": float((pixels[at] > 1).mean())}  # fmt: skip

    there = {f"common_{k}": v for k, v in over(common).items()}
    return {"share": float(mask.sum() / known.sum())} | over(mask) | there


def by_method(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the means of each method."""
    names = dict.fromkeys(row["by"] for row in found)
    return [{"by": n} | means([row for row in found if row["by"] == n]) for n in names]
