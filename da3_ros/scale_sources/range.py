"""Metres per network unit of one window, from returns of range sensors.

Each return is compared with the network's depth at its pixel; the window's scale is the median
ratio, without an offset. Returns count once they have shown, at different distances, that the
depth follows them: a wrong mount gives distances that have nothing to do with the depth, or that
differ from it as an error of the mount makes them.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.projection import backproject, project
from da3_ros.geometry.return_blocks import (
    SAME,
    SINGLE,
    WRONG,
    Blocks,
    blocks_of,
    judged,
    mount_errors,
)
from da3_ros.scale_sources.estimates import (
    Estimate,
    MeasurementFilter,
    best_average,
    contradicted,
    inliers,
)
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

FLOOR = 0.003  # smallest relative standard deviation
WINDOWS = 60  # newest ones that count
FEWEST = 20  # blocks that say something
LEAST = 10  # windows: what is seen from one place may fit a wrong mount by chance
CHECKED = 12  # blocks of one window that are judged for themselves
RIM, TRIALS = 12, 4  # points of a cone's rim that must be in the image; steps of its fit
NEAREST = 5.0  # percentile of the distances in a cone that is its nearest surface


@dataclass(frozen=True, eq=False)
class RangeMeasurement(ScaleMeasurement):
    """A window's measurement with its blocks. sigma: inf if the window contradicts it."""

    blocks: Blocks  # with logs over ``value``
    # The same by camera: an error of the mount is another one in the axes of each.
    by_camera: Mapping[str, Blocks]


def fit_ranges(window: Window, estimate: WindowEstimate) -> RangeMeasurement | None:
    """Returns the measurement by the returns of the window's new views; None if none is seen."""
    views = range(len(window.views) - window.new, len(window.views))
    seen = [
        (view.camera, _blocks(view, estimate.depth[i], estimate.K[i]))
        for i in views if (view := window.views[i]).returns is not None
    ]  # fmt: skip
    seen = [(camera, one) for camera, one in seen if len(one)]
    if not seen:
        return None
    found = [one for _, one in seen]
    blocks = Blocks.joined(found)
    logs, middle = blocks.logs, float(np.median(blocks.logs))
    by_camera = {
        camera: _shifted(Blocks.joined([one for name, one in seen if name == camera]), -middle)
        for camera, _ in seen
    }
    # Errors of the views of a window are alike.
    noise = max(float(np.std(logs[inliers(logs)])), SINGLE)
    sigma = math.hypot(noise / math.sqrt(len(logs) / len(found)), FLOOR)
    contradicts = len(logs) >= CHECKED and judged(logs, blocks.distances) == WRONG
    return RangeMeasurement(
        math.exp(middle), math.inf if contradicts else sigma, _shifted(blocks, -middle), by_camera
    )


def _shifted(blocks: Blocks, log: float) -> Blocks:
    return replace(blocks, logs=blocks.logs + log)


def _blocks(view: View, depth: FloatImage, K: Array) -> Blocks:
    """Returns the blocks of an image in which returns are, and its cones, which are one each."""
    assert view.returns is not None
    parts = [blocks_of(view.returns.points, K, depth)]
    for cone in view.returns.cones:
        factor = _cone_ratio(cone, depth, K)
        if math.isfinite(factor):
            slopes = np.concatenate((np.zeros(3), cone.axis / cone.range_m))
            logs = np.array([math.log(factor)]), np.array([math.log(cone.range_m)])
            parts.append(Blocks(*logs, slopes[None]))
    return Blocks.joined(parts)


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
            cameras = {camera: None for _, m in self._windows for camera in m.by_camera}
            self._errors = {camera: mount_errors(self._blocks_of(camera)) for camera in cameras}

    def _blocks(self) -> list[Blocks]:
        return [_shifted(m.blocks, log) for log, m in self._windows]

    def _blocks_of(self, camera: str) -> list[Blocks]:
        return [
            _shifted(m.by_camera[camera], log) for log, m in self._windows if camera in m.by_camera
        ]

    def _mount_effect(self) -> float:
        """Returns the relative deviation that the mount gives the scale: of each camera by its
        share of the blocks, since all have the sensor's error in common."""
        total, effect = sum(len(m.blocks) for _, m in self._windows), 0.0
        for camera, errors in self._errors.items():
            blocks = self._blocks_of(camera)
            slopes = np.mean([one.slopes.mean(axis=0) for one in blocks], axis=0)
            effect += sum(map(len, blocks)) / total * errors.effect(slopes)
        return effect

    @property
    def shows(self) -> str | None:
        """What the blocks of the newest windows show together, as ``judged``; None: too few."""
        few = sum(len(m.blocks) for _, m in self._windows) < FEWEST
        if few or len(self._windows) < LEAST:
            return None
        blocks = Blocks.joined(self._blocks())
        return judged(blocks.logs, blocks.distances)

    def estimate(self) -> Estimate | None:
        if self.shows != "":
            return None
        fitting = [(log, m.sigma) for log, m in self._windows if math.isfinite(m.sigma)]
        if len(fitting) < 3:
            return None
        logs, sigmas = np.array(fitting).T
        good = logs[inliers(logs)]
        newest, sigma = best_average(good, float(np.median(sigmas)), 3)
        sigma = math.hypot(sigma, self._mount_effect())
        return contradicted(Estimate(float(good[-newest:].mean()), sigma), logs)


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
