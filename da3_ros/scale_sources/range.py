"""Metres per network unit of one window, from returns of range sensors.

Each return is compared with the network's depth at its pixel; the window's scale is the median
ratio, without an offset. Returns count once they have shown, at different distances, that the
depth follows them: a wrong mount gives distances that have nothing to do with the depth.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass

import cv2
import numpy as np

from da3_ros.geometry.projection import backproject, project
from da3_ros.geometry.visible_returns import visible_returns
from da3_ros.scale_sources.estimates import Estimate, MeasurementFilter, best_average, inliers
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import (
    Array,
    FloatImage,
    RangeCone,
    ScaleMeasurement,
    View,
    Window,
    WindowEstimate,
)

log = logging.getLogger(__name__)

EDGE_PX, EDGE = 5, 0.1  # depth that differs by more (log) within so many pixels is an edge
MOST = 4000  # returns of an image that are compared: more say no more
ROWS, COLUMNS = 4, 6  # blocks of an image: errors of the network are alike in one
SINGLE = 0.05  # relative standard deviation of the network's depth in one block, at least
FLOOR = 0.003  # smallest relative standard deviation
# Of the blocks of the newest windows, log distance:
WINDOWS = 60
FEWEST = 20  # blocks that say something
LEAST = 10  # windows: what is seen from one place may fit a wrong mount by chance
CORRELATED = 0.5  # least correlation of distance and depth
SPREAD = 0.1  # robust deviation, below which a wrong mount cannot be told from a right one
FOLLOWS = 0.65  # share of it that the ratio may have: more, and the depth does not follow
NEAR, AGREEING = 0.15, 0.6  # of the median ratio; share of the blocks that must be so near
CHECKED = 12  # blocks of one window that are judged for themselves
RIM, TRIALS = 12, 4  # points of a cone's rim that must be in the image; steps of its fit
NEAREST = 5.0  # percentile of the distances in a cone that is its nearest surface
WRONG, SAME = "wrong", "same"  # what the blocks may show


@dataclass(frozen=True, eq=False)
class RangeMeasurement(ScaleMeasurement):
    """A window's measurement with its blocks. sigma: inf if the window contradicts it."""

    logs: Array  # [B] log ratio of distance and depth, over ``value``
    distances: Array  # [B] log distance, metres


def fit_ranges(window: Window, estimate: WindowEstimate) -> RangeMeasurement | None:
    """Returns the measurement by the returns of the window's new views; None if none is seen."""
    views = range(len(window.views) - window.new, len(window.views))
    found = [
        _blocks(view, estimate.depth[i], estimate.K[i])
        for i in views if (view := window.views[i]).returns is not None
    ]  # fmt: skip
    found = [one for one in found if len(one[0])]
    if not found:
        return None
    logs, distances = (np.concatenate(parts) for parts in zip(*found, strict=True))
    middle = float(np.median(logs))
    # Errors of the views of a window are alike.
    noise = max(float(np.std(logs[inliers(logs)])), SINGLE)
    sigma = math.hypot(noise / math.sqrt(len(logs) / len(found)), FLOOR)
    contradicts = len(logs) >= CHECKED and judged(logs, distances) == WRONG
    return RangeMeasurement(
        math.exp(middle), math.inf if contradicts else sigma, logs - middle, distances
    )


def judged(logs: Array, distances: Array) -> str:
    """Returns what blocks show of the mount: ``WRONG``, ``SAME`` if all are at about the same
    distance, or "" if the depth follows them.

    logs: [B] log ratio of distance and depth. distances: [B] log distance.
    """
    near = float(np.mean(np.abs(logs - np.median(logs)) < NEAR))
    if near < AGREEING:
        return WRONG
    spread = _deviation(distances)
    if spread < SPREAD:
        return SAME
    with np.errstate(invalid="ignore"):
        correlation = np.corrcoef(distances, distances - logs)[0, 1]
    follows = _deviation(logs) <= FOLLOWS * spread and correlation >= CORRELATED
    return "" if follows else WRONG


def _deviation(values: Array) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _blocks(view: View, depth: FloatImage, K: Array) -> tuple[Array, Array]:
    """Returns the log ratio of distance and depth, and the log distance [B], of the blocks of an
    image in which returns are, and of cones."""
    assert view.returns is not None
    points = view.returns.points
    points = points[:: max(1, len(points) // MOST)]
    pixels, z = visible_returns(points, K, depth)
    seen = _smooth_depth(depth, pixels)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(z / seen)
    good = np.isfinite(ratio)
    block = np.floor(pixels[good] * (COLUMNS / depth.shape[1], ROWS / depth.shape[0])).astype(int)
    number = block @ (1, COLUMNS)
    of = [number == k for k in np.unique(number)]
    logs = [float(np.median(ratio[good][one])) for one in of]
    distances = [float(np.median(np.log(z[good][one]))) for one in of]
    for cone in view.returns.cones:
        factor = _cone_ratio(cone, depth, K)
        if math.isfinite(factor):
            logs.append(math.log(factor))
            distances.append(math.log(cone.range_m))
    return np.array(logs), np.array(distances)


def _smooth_depth(depth: FloatImage, pixels: Array) -> Array:
    """Returns the depth [M] at pixels [M, 2], between those of its image; NaN beside edges."""
    if not len(pixels):
        return np.zeros(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        level = np.log(np.where(np.isfinite(depth), depth, np.nan)).astype(np.float32)
    kernel = np.ones((EDGE_PX, EDGE_PX), np.uint8)
    low = cv2.erode(np.where(np.isnan(level), -np.inf, level), kernel)  # unknown: an edge
    high = cv2.dilate(np.where(np.isnan(level), -np.inf, level), kernel)
    with np.errstate(invalid="ignore"):
        flat = np.where(high - low <= EDGE, depth, np.float32(np.nan))
    x, y = (pixels - 0.5).astype(np.float32).T
    there = cv2.remap(flat, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(there, np.float64).reshape(-1)


def _cone_ratio(cone: RangeCone, depth: FloatImage, K: Array) -> float:
    """Returns metres per unit of depth by which the nearest surface in a cone is as far from the
    sensor as it says; NaN if the cone leaves the image, or its depth is unknown.

    The sensor is beside the camera, so that which pixels are in its cone depends on the ratio.
    """
    half = max(cone.half_angle, 1.0 / K[0, 0])
    if not _inside(cone, half, K, depth.shape):
        return math.nan
    points = backproject(depth, K).reshape(-1, 3).astype(np.float64)
    ratio = cone.range_m / float(np.nanmedian(np.linalg.norm(points, axis=1)))
    for _ in range(TRIALS):
        away = ratio * points - cone.origin
        distance = np.linalg.norm(away, axis=1)
        with np.errstate(invalid="ignore"):
            there = distance[away @ cone.axis >= math.cos(half) * distance]
        if not len(there):
            return math.nan
        ratio *= cone.range_m / float(np.percentile(there, NEAREST))
    return ratio


def _inside(cone: RangeCone, half: float, K: Array, shape: tuple[int, ...]) -> bool:
    """Whether the rim of a cone, at the distance that was measured, is in the image."""
    across = np.linalg.svd(cone.axis[None])[2][1:]
    turn = np.linspace(0, 2 * math.pi, RIM, endpoint=False)
    rim = np.column_stack([np.cos(turn), np.sin(turn)]) @ across * math.tan(half)
    at = project(cone.origin + cone.range_m * (cone.axis + rim), K)
    with np.errstate(invalid="ignore"):
        return bool(((at >= 0) & (at < shape[1::-1])).all())


class RangeFilter(MeasurementFilter):
    """Averages what the newest windows say, once their returns have shown that they fit."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: deque[tuple[float, RangeMeasurement]] = deque(maxlen=WINDOWS)

    def add(self, measure: ScaleMeasurement, unit: float) -> None:
        if isinstance(measure, RangeMeasurement):
            self._windows.append((math.log(measure.value / unit), measure))

    @property
    def shows(self) -> str | None:
        """What the blocks of the newest windows show together, as ``judged``; None: too few."""
        blocks = sum(len(m.logs) for _, m in self._windows)
        if blocks < FEWEST or len(self._windows) < LEAST:
            return None
        logs = np.concatenate([log + m.logs for log, m in self._windows])
        return judged(logs, np.concatenate([m.distances for _, m in self._windows]))

    def estimate(self) -> Estimate | None:
        if self.shows != "":
            return None
        fitting = [(log, m.sigma) for log, m in self._windows if math.isfinite(m.sigma)]
        if len(fitting) < 3:
            return None
        logs, sigmas = np.array(fitting).T
        good = logs[inliers(logs)]
        newest, sigma = best_average(good, float(np.median(sigmas)), 3)
        return Estimate(float(good[-newest:].mean()), sigma)


class RangeDepth(ScaleSource):
    """Distances that range sensors measure, over the network's depth."""

    by_depth = True
    needs_ranges = True

    def __init__(self) -> None:
        self._filter = RangeFilter()
        self._seen = True  # whether the newest window showed a return
        self._reported: set[str] = set()

    def measure(
        self, window: Window, estimate: WindowEstimate, by_prior: ScaleMeasurement | None
    ) -> ScaleMeasurement | None:
        found = fit_ranges(window, estimate)
        self._seen = found is not None
        return found

    def estimator(self) -> MeasurementFilter:
        self._filter = RangeFilter()
        return self._filter

    def report_missing(self) -> None:
        shows = self._filter.shows
        if shows == WRONG:
            self._report(
                "most returns do not fit the depth of the image: they give no metres; check the "
                "transform from the sensor to the camera (optical frame, z forward), the stamps "
                "of both, and whether the sensor sees rain or dust"
            )
        elif shows == SAME:
            self._report(
                "all returns are at about the same distance, which does not show that the sensor "
                "is mounted as declared: the scale is held until they are not"
            )
        elif not self._seen:
            self._report("no return is in the image, or the depth there is unknown or an edge")

    def _report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            log.warning("scale.source range: %s", text)
