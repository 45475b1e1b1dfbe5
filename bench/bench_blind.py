#!/usr/bin/env python3
"""A camera that sees nothing for a while: what odometry, covariance and map make of it.

Usage: bench_blind.py truth|da3-tiny [--refine] [--faults ...] [--lengths ...] [--laps N] [...]

A fault changes the images of some frames of a walk.

step: largest step of ``~/odom`` from a frame before the fault to the end, over that without fault.
sigma: largest stated standard deviation of the position in the fault, over the depth; before: the
last one before. nees: largest normalised squared error over its six degrees of freedom, from the
fault on. found: images after the fault until one is placed. components: of the scene. ate_m: error
of placed poses in the map. truth: the network makes noise of faulty images that show less than a
part of the scene (``shows_scene``), all else is exact up to noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import results_file
import torch
from bench_covariance import NOISES, errors, frames_of, nees, run, there_and_back

from da3_ros.config import config_from_parameters
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticFrame
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Array, Image, Prediction, TrackedFrame, Window

SIZE = (224, 168)
WALKS = ("loop", "straight", "strafe", "spot", "handheld")
Fault = Callable[[Image, int, Image], Image]  # of an image, number in the fault, last good image
# Of an image that shows the scene: contrast over that of the true image, and correlation with it.
LEAST_CONTRAST, LEAST_LIKENESS = 0.1, 0.95
SKIN = np.array([90.0, 45.0, 35.0])


def plain(value: int) -> Fault:
    """Every pixel has one value."""
    return lambda image, k, last: np.full_like(image, value)


def noise(image: Image, k: int, last: Image) -> Image:
    """Every pixel is random."""
    return np.random.default_rng(k).integers(0, 256, image.shape, dtype=np.uint8)


def shaded_noise(image: Image, k: int, last: Image) -> Image:
    """A dark room at a high gain: the sensor's noise, darker towards the corners."""
    shape = image.shape[:2]
    grey = vignette(shape) * np.random.default_rng(k).normal(80, 40, shape)
    return np.dstack([grey.clip(0, 255).astype(np.uint8)] * 3)


def banded_noise(image: Image, k: int, last: Image) -> Image:
    """As shaded noise, with offsets of rows and columns, and a glow in one corner."""
    rng, (h, w) = np.random.default_rng(k), image.shape[:2]
    fixed = np.random.default_rng(0)  # the same in each image
    grey = rng.normal(40, 20, (h, w)) + rng.normal(0, 6, (h, 1)) + fixed.normal(0, 8, (1, w))
    y, x = np.arange(h) / h, np.arange(w) / w
    grey += 80 * np.exp(-10 * np.hypot(y[:, None], x[None]))
    return np.dstack([grey.clip(0, 255).astype(np.uint8)] * 3)


def vignette(shape: tuple[int, int]) -> Array:
    """Returns the share [h, w] of light that a lens leaves: 1 in the middle, 0.2 in corners."""
    y, x = (np.linspace(-1, 1, n) for n in shape)
    return np.asarray(1 - 0.4 * (y[:, None] ** 2 + x[None] ** 2))


def blocks(image: Image, k: int, last: Image) -> Image:
    """Every block of 4 x 4 pixels is random."""
    size = -(-image.shape[0] // 4), -(-image.shape[1] // 4)
    values = np.random.default_rng(k).integers(0, 256, size, dtype=np.uint8)
    grey = np.repeat(np.repeat(values, 4, axis=0), 4, axis=1)
    return np.dstack([grey[: image.shape[0], : image.shape[1]]] * 3)


def frozen(image: Image, k: int, last: Image) -> Image:
    """The last good image repeats."""
    return last


def half_black(image: Image, k: int, last: Image) -> Image:
    """The left half is black."""
    out = image.copy()
    out[:, : image.shape[1] // 2] = 0
    return out


def mostly_black(image: Image, k: int, last: Image) -> Image:
    """All but the right fifth is black."""
    out = image.copy()
    out[:, : image.shape[1] * 4 // 5] = 0
    return out


def flicker(image: Image, k: int, last: Image) -> Image:
    """One image in three is black."""
    return np.zeros_like(image) if k % 3 == 0 else image


def defocus(image: Image, k: int, last: Image) -> Image:
    """Blurred by a twentieth of the width."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), image.shape[1] / 20))


def hand(image: Image, k: int, last: Image) -> Image:
    """Skin right before the lens, with the sensor's noise."""
    rng = np.random.default_rng(k)
    light = cv2.GaussianBlur(image, (0, 0), image.shape[1] / 8) * 0.05
    return np.clip(SKIN + light + rng.normal(0, 2, image.shape), 0, 255).astype(np.uint8)


def lens_cap(image: Image, k: int, last: Image) -> Image:
    """Black, with the sensor's noise."""
    rng = np.random.default_rng(k)
    return np.clip(rng.normal(4, 4, image.shape), 0, 255).astype(np.uint8)


def fading(length: int) -> Fault:
    """Light fades to nothing and comes back."""

    def dimmed(image: Image, k: int, last: Image) -> Image:
        share = abs(2 * (k + 1) / (length + 1) - 1)
        return (image * share**2).astype(np.uint8)

    return dimmed


def fault_of(name: str, length: int) -> Fault | None:
    """Returns a fault by its name; None: no fault."""
    return {
        "none": None, "black": plain(0), "white": plain(255), "noise": noise,
        "shaded noise": shaded_noise, "banded noise": banded_noise, "blocks": blocks,
        "frozen": frozen, "half black": half_black, "mostly black": mostly_black,
        "flicker": flicker, "fading": fading(length), "defocus": defocus, "hand": hand,
        "lens cap": lens_cap,
    }[name]  # fmt: skip


FAULTS = (
    "black", "white", "noise", "shaded noise", "banded noise", "blocks", "frozen", "half black",
    "mostly black", "flicker", "fading", "defocus", "hand", "lens cap",
)  # fmt: skip


def without_repetition(frames: Sequence[SyntheticFrame]) -> list[SyntheticFrame]:
    """Returns the frames without those that repeat the image before."""
    return [f for i, f in enumerate(frames) if not i or f.image is not frames[i - 1].image]


def with_fault(
    frames: Sequence[SyntheticFrame], name: str, start: int, length: int
) -> list[SyntheticFrame]:
    """Returns the frames of which ``length`` from ``start`` on have a fault."""
    fault, out = fault_of(name, length), list(frames)
    last = frames[max(start - 1, 0)].image
    for k in range(length if fault is not None else 0):
        f = frames[start + k]
        assert fault is not None
        out[start + k] = dataclasses.replace(f, image=fault(f.image, k, last))
    return out


def shows_scene(faulty: Image, image: Image) -> bool:
    """Whether a faulty image is the true one, but for brightness and some of its contrast."""
    seen, true = (np.asarray(x, float).ravel() for x in (faulty, image))
    if seen.std() < LEAST_CONTRAST * true.std():
        return False
    return float(np.corrcoef(seen, true)[0, 1]) > LEAST_LIKENESS


class BlindTruth(TruthSession):
    """Predicts nonsense for some frames: depth, and a motion that did not happen."""

    def __init__(self, frames: Sequence[SyntheticFrame], blind: set[int], **options: Any) -> None:
        super().__init__(frames, **options)
        self._blind = blind

    def infer(self, window: Window) -> Prediction:
        """Predicts the window."""
        out = super().infer(window)
        rng = np.random.default_rng(window.id)
        for i in (i for i, view in enumerate(window.views) if view.stamp_ns in self._blind):
            out.depth[i] = rng.uniform(0.2, 5, out.depth[i].shape)
            out.confidence[i] = 1.0
            out.T_window_camera[i, :3, 3] += rng.normal(0, 0.5, 3)
        return out


def measured(
    frames: Sequence[SyntheticFrame], results: Sequence[TrackedFrame], pipeline: Pipeline,
    start: int, length: int,
) -> dict[str, Any]:  # fmt: skip
    """Returns the figures of a run; "step" is in units of the scene."""
    placed = [i for i, r in enumerate(results) if not r.blind]
    first, posed = results[placed[0]], [i for i, r in enumerate(results) if r.posed]
    unit = float(np.nanmedian(first.depth_m / frames[placed[0]].depth))
    error = errors([results[i] for i in posed], [frames[i] for i in posed], unit)
    values = nees([results[i] for i in posed], error)
    after = np.array([i >= max(start - 1, 0) for i in posed])
    odom = np.array([(r.T_odom_map @ r.T_map_camera)[:3, 3] for r in results])
    steps = np.linalg.norm(np.diff(odom, axis=0), axis=1)[max(start - 1, 0) :]
    end = start + length
    later = [i for i in placed if i >= end]
    depth = float(np.nanmedian(first.depth_m))
    found = np.array([results[i].T_map_camera for i in placed])
    blind = [r for r in results if r.blind]
    return {
        "blind": len(blind),
        "with depth": sum(bool(np.isfinite(r.depth_m).any()) for r in blind),
        "step": float(np.nanmax(steps)),
        "sigma before": _sigma(results[max(start - 1, 0)]) / depth,
        "sigma": max((_sigma(r) / depth for r in results[start:end]), default=float("nan")),
        "nees": float(np.nanmax(values[after])) if after.any() else float("nan"),
        "found": later[0] - end + 1 if later else -1,
        "components": len(pipeline.map.components),
        "place": "known" if pipeline.map.pose_known else "guessed",
        "ate_m": trajectory_error(found, np.array([frames[i].T_room_camera for i in placed])),
    }


def _sigma(frame: TrackedFrame) -> float:
    P = frame.covariance_odom
    return float("nan") if P is None else float(np.sqrt(np.trace(P[:3, :3])))


def settings(options: argparse.Namespace):
    """Returns the configuration of all runs."""
    return config_from_parameters({
        "model": "da3-tiny", "window.size": 6, "process_res": SIZE[0], "map.voxel_m": 0.02,
        "refinement.enabled": options.refine,
    })  # fmt: skip


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, fault and length, each after the walk without a fault."""
    config = settings(options)
    networks = open_networks(config) if options.network == "da3-tiny" else None
    for walk in options.walks:
        camera, frames = frames_of(walk, options.room, SIZE, options.frames)
        frames = without_repetition(there_and_back(frames, options.laps))

        def figures(name: str, start: int, length: int) -> dict[str, Any]:
            faulty = with_fault(frames, name, start, length)  # noqa: B023
            blind = {f.stamp_ns for f, g in zip(faulty, frames, strict=True)  # noqa: B023
                     if f.image is not g.image and not shows_scene(f.image, g.image)}  # fmt: skip
            truth = BlindTruth(frames, blind, seed=1, noise=NOISES["of each view"])  # noqa: B023
            pipeline = Pipeline(config, *(networks or (truth,)))
            results = run(pipeline, camera, faulty)  # noqa: B023
            return measured(frames, results, pipeline, start, length)  # noqa: B023

        for start in options.starts:
            clean = figures("none", start, 0)
            for name in options.faults:
                for length in options.lengths:
                    row = figures(name, start, length)
                    row["step"] /= clean["step"]
                    row |= {"ate_clean_m": clean["ate_m"], "nees_clean": clean["nees"]}
                    yield {"walk": walk, "fault": name, "start": start, "length": length} | row


def main(arguments: list[str] | None = None) -> int:
    """Prints a table, and writes it with ``--out``. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=("truth", "da3-tiny"), nargs="?", default="truth")
    parser.add_argument("--refine", action="store_true", help="refine windows by feature tracks")
    parser.add_argument("--walks", nargs="+", default=["loop"], choices=WALKS)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1, 10], help="frames")
    parser.add_argument("--starts", nargs="+", type=int, default=[20], help="first faulty frame")
    parser.add_argument("--frames", type=int, default=40, help="per lap")
    parser.add_argument("--laps", type=int, default=2, help="the camera goes there and back")
    parser.add_argument("--room", type=int, default=100, help="seed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    most = options.frames * options.laps
    if max(options.starts) + max(options.lengths) > most:
        parser.error(f"faults must end within the walk: --frames times --laps is {most}")
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    found = []
    for row in rows(options):
        found.append(row)
        results_file.show(row)
    results_file.write(options.out, {"rows": found}, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
