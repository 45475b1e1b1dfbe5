"""Stored keyframes with the network's depth and with measured depth, side by side.

For the tables of ``bench_dense.py``; knows no table and no truth of a data set.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from da3_ros.config import config_from_parameters
from da3_ros.drawing.colormaps import colorize_depth
from da3_ros.export.stored_depth import (
    DepthFilters,
    Readable,
    readable_keyframes,
    submap_poses_of,
)
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import open_networks
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.types import Array, FloatImage, Frame, Image

TIMES = "dense.json"  # beside a recorded scene
NO_ERRORS = "points", "covered"
WRONG = 0.05  # relative error of what is called measured and is not


@dataclass(frozen=True, eq=False)
class Shown:
    """A stored keyframe; depth in units of the scene."""

    key: int
    stamp_ns: int
    image: Image  # [H, W, 3] RGB, at the camera's size
    network: FloatImage  # [h, w] depth; NaN unknown, +Inf sky
    measured: FloatImage  # [h, w] depth: measured, and corrected where it is not
    sigma: FloatImage  # [h, w] relative standard deviation of ``measured``
    mask: Array  # bool [h, w] which pixels are measured
    K: Array  # [3, 3] corner rule, pixels of the depth
    T_ros_camera: Array  # [4, 4]


@dataclass(frozen=True, eq=False)
class OffAndOn:
    """A stored scene, which has the network's and measured depth."""

    keyframes: list[Shown]
    stored: StoredScene
    seconds: float  # per keyframe, while it was recorded


@contextlib.contextmanager
def off_and_on(folder: Path) -> Iterator[OffAndOn]:
    """Yields a stored scene with the depth that the pipeline has measured."""
    with StoredScene.open(folder) as stored:
        ones = readable_keyframes(stored, DepthFilters())
        seconds = json.loads((folder / TIMES).read_text())["seconds_per_keyframe"]
        yield OffAndOn([_shown(one) for one in ones], stored, seconds)


def _shown(one: Readable) -> Shown:
    keyframe, dense = one.stored.load(one.key), one.load_dense()
    unit, network = np.float32(one.T_map_submap.scale), keyframe.depth
    nothing = np.full(network.shape, np.nan, np.float32), np.zeros(network.shape, bool)
    sigma, mask = nothing if dense is None else (dense.sigma, dense.measured)
    return Shown(
        one.key, keyframe.pose.stamp_ns, keyframe.image, network * unit,
        (network if dense is None else dense.depth) * unit, sigma, mask, keyframe.pose.K,
        one.T_ros_camera,
    )  # fmt: skip


@contextlib.contextmanager
def recorded(
    frames: Iterable[Frame], values: Mapping[str, Any], kept: Path | None, name: str
) -> Iterator[Path]:
    """Yields the folder of a scene: that of an earlier run in ``kept``, or a new one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (kept or Path(temporary)) / name
        if not folder.exists():
            unfinished = folder.with_name(f"{name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            record(frames, values, unfinished)
            unfinished.rename(folder)
        yield folder


def record(frames: Iterable[Frame], values: Mapping[str, Any], folder: Path) -> None:
    """Runs a pipeline that stores keyframes in ``folder``."""
    config = config_from_parameters(dict(values))
    pipeline = Pipeline(config, *open_networks(config))
    recorder = KeyframeRecorder(folder, counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    for frame in frames:
        for _ in pipeline.push(frame):
            pass
    for _ in pipeline.flush():
        pass
    pipeline.scene_map.finish_recording()
    found = pipeline.scene_map.dense.so_far
    (folder / TIMES).write_text(json.dumps({"seconds_per_keyframe": found.seconds_per_keyframe}))


def fit_way(
    stored: StoredScene, true: Mapping[int, Array],
    fit: Callable[[Array, Array], Similarity] = fit_poses,
) -> tuple[Similarity, float]:  # fmt: skip
    """Returns the pose of the map in the room by the keyframes' places, and their RMS error there.

    true: ``T_room_camera`` [4, 4] by stamp. fit: of poses [N, 4, 4] to true ones. The unit of
    depth is that of the way: an error of the depth's own unit counts as error. Other frames are
    left out: their window may be refused.
    """
    submaps = submap_poses_of(stored)
    placed = stored.placed_frames
    frames = [placed[key] for key in stored.images if placed[key].stamp_ns in true]
    poses = np.array([
        stored.map.T_ros_map @ submaps[f.submap].pose(f.T_submap_camera) for f in frames
    ])  # fmt: skip
    exact = np.array([true[f.stamp_ns] for f in frames])
    T_room_ros = fit(poses, exact)
    off = T_room_ros.points(poses[:, :3, 3]) - exact[:, :3, 3]
    return T_room_ros, float(np.sqrt((off**2).sum(axis=1).mean()))


def fit_centres(poses: Array, true: Array) -> Similarity:
    """Returns the similarity of camera centres alone, for cameras whose orientations have errors
    of their own; as ``fit_poses`` if they are on a line."""
    try:
        return Similarity.of_points(true[:, :3, 3], poses[:, :3, 3])
    except ValueError:
        return fit_poses(poses, true)


def depth_errors(one: Shown, truth: FloatImage, unit: float) -> dict[str, float]:
    """Returns errors of a keyframe's depth; NaN where nothing is measured.

    truth: [h, w] metres, NaN unknown, +Inf sky. unit: metres per unit of the scene. ``nees`` is
    the mean of the squared error over its stated variance, 1 if that is right; ``nees_typical``
    its median, over that of a normal distribution: a few wrong pixels do not change it.
    """
    known = np.isfinite(truth) & np.isfinite(one.network) & np.isfinite(one.measured)
    at, rest = one.mask & known, ~one.mask & known
    off, on = (
        np.abs(d * unit / np.where(known, truth, 1) - 1) for d in (one.network, one.measured)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        square = (np.log(one.measured * unit / truth) / one.sigma) ** 2
    sky = np.isposinf(truth)
    return {
        "absrel_off": _mean(off[known]), "absrel_on": _mean(on[known]),
        "median_off": _median(off[known]), "median_on": _median(on[known]),
        "share": _mean(at[known]),
        "measured_off": _mean(off[at]), "measured_on": _mean(on[at]),
        "measured_median_on": _median(on[at]), "rest_off": _mean(off[rest]),
        "rest_on": _mean(on[rest]), "wrong": _mean(on[at] > WRONG),
        "nees": _mean(square[at]), "nees_typical": _median(square[at]) / 0.455,
        "nees_rest": _mean(square[rest]), "nees_all": _mean(square[known]),
        "sky_measured": _mean(one.mask[sky]),
    }  # fmt: skip


def shape_errors(
    keyframes: Sequence[Shown], truth: Mapping[int, FloatImage], unit: float
) -> dict[str, float]:
    """Returns errors of depth in the unit that fits all keyframes best, off and on each in its
    own, and that of measured depth over ``unit``: they tell a wrong way from wrong matches.

    local: each keyframe in its own unit, which drift does not change either; means over keyframes.
    """
    pixels = [_ratios(one, truth[one.key]) for one in keyframes]
    off, on, mask, sigma = (np.concatenate(parts) for parts in zip(*pixels, strict=True))
    if not mask.any():
        return {}
    fitted = float(np.median(on[mask]))
    errors_off, errors_on = np.abs(np.median(off) / off - 1), np.abs(fitted / on - 1)
    some = [(a[m], b[m]) for a, b, m, _ in pixels if m.any()]
    squares = (np.log(on / fitted) / sigma) ** 2
    return {
        "unit_by_depth": fitted / unit, "shape_on": _mean(errors_on[mask]),
        "shape_median_on": _median(errors_on[mask]), "shape_off": _mean(errors_off[mask]),
        "shape_all_off": _mean(errors_off), "shape_all_on": _mean(errors_on),
        "local_off": float(np.mean([_mean(np.abs(np.median(a) / a - 1)) for a, _ in some])),
        "local_on": float(np.mean([_mean(np.abs(np.median(b) / b - 1)) for _, b in some])),
        "shape_nees": _mean(squares[mask]), "shape_nees_rest": _mean(squares[~mask]),
        "unit_spread": float(np.std([np.log(np.median(b)) for _, b in some])),
    }  # fmt: skip


def _ratios(one: Shown, truth: FloatImage) -> tuple[Array, Array, Array, Array]:
    """Returns truth over network's and measured depth of pixels that have all, which are
    measured, and their stated deviation."""
    known = np.isfinite(truth) & np.isfinite(one.network) & np.isfinite(one.measured)
    ratios = (truth / one.network)[known], (truth / one.measured)[known]
    return *ratios, one.mask[known], one.sigma[known]


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else float("nan")


def _median(values: Array) -> float:
    return float(np.median(values)) if values.size else float("nan")


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the means of all numbers; NaN values are left out."""
    out = {}
    for name in dict.fromkeys(k for row in rows for k, v in row.items() if isinstance(v, float)):
        values = np.array([row[name] for row in rows if name in row])
        values = values[np.isfinite(values)]
        out[name] = float(values.mean()) if values.size else float("nan")
    return out


def ratios(row: Mapping[str, float]) -> dict[str, float]:
    """Returns errors off over on, of names that end so."""
    names = [k[:-4] for k in row if k.endswith("_off") and k[:-4] + "_on" in row]
    names = [n for n in names if n not in NO_ERRORS]
    return {f"{n}_ratio": row[f"{n}_off"] / row[f"{n}_on"] for n in names if row[f"{n}_on"]}


def save_pictures(
    folder: Path, name: str, keyframes: Sequence[Shown], truth: Mapping[int, FloatImage],
    unit: float,
) -> None:  # fmt: skip
    """Writes a PNG per keyframe: image and network's depth; measured depth, and with what is not
    measured in black; truth, and error in red from 0 (black) to 20 %.

    truth: depth [h, w] in metres, by key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for one in keyframes:
        true = truth.get(one.key, np.full_like(one.network, np.nan))
        network, depth = (np.float32(unit) * d for d in (one.network, one.measured))
        known = true if np.isfinite(true).any() else network
        span = tuple(np.percentile(known[np.isfinite(known)], (1, 97)).tolist())
        only = np.where(one.mask, depth, np.float32(np.nan))
        cells = [colorize_depth(d, span) for d in (network, depth, only, true)]
        size = network.shape[1], network.shape[0]
        cells.insert(0, cv2.resize(one.image, size, interpolation=cv2.INTER_AREA))
        cells.append(_error_picture(only, true))
        rows = [np.hstack(cells[k : k + 2]) for k in (0, 2, 4)]
        picture = cv2.cvtColor(np.vstack(rows), cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(folder / f"{name}-{one.key:04d}.png"), picture)


def _error_picture(depth: FloatImage, true: FloatImage) -> Image:
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(depth / true - 1)
    out = np.zeros((*depth.shape, 3), np.uint8)
    known = np.isfinite(error)
    red = (np.clip(error[known] / 0.2, 0, 1) * 255).astype(np.uint8)
    out[known] = np.stack([red, 90 - red // 3, 90 - red // 3], axis=1)
    return out
