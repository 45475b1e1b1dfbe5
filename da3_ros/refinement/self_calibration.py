"""Focal lengths of cameras without calibration, by the tracks of many views.

Works on the sliding graph; no network, no images.

A wrong focal length bends a turning camera's path and squeezes its scene; a camera that only moves
sideways or ahead shows little of that. So an estimate counts only if its standard deviation is
small, if the earlier and the later half of the views agree with it, and if a lens with radial
distortion would have it too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.lens import Lens
from da3_ros.geometry.poses import spread
from da3_ros.geometry.projection import resize_K
from da3_ros.refinement.bundle import Adjusted, Bundle, PosePriors, adjust
from da3_ros.refinement.edge_points import EdgePoints
from da3_ros.refinement.sliding_graph import FEWEST_TRACKS, SlidingGraph, gather, is_sane
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.types import Array, Window, WindowEstimate

log = logging.getLogger(__name__)

FIRST, SHARE, MOST_WINDOWS = 4, 4, 32  # windows between attempts: least; their number over; most
FEWEST_VIEWS, MOST_VIEWS = 8, 12  # of an estimate
MOVED_VIEWS = 24  # newest views that get new poses with a new focal length; others are forgotten
TRACKS, STEPS = 300, 30  # limits of a solution
SIGMA, HALF_SIGMA = 0.01, 0.02  # of the logarithm, from all views and from half of them
AGREEMENT = 0.02  # largest difference of the logarithms of the three estimates
LEAST_MOTION = 0.02  # spread of a camera's positions over depth, below which it shows no unit
K1 = 0.03  # radial distortion that is tried, to either side
MAX_FACTOR = 2.0  # on the network's focal length
PRIOR_SIGMA = 1.0  # of the logarithm of the focal length
DEPTH_SIGMA, SCALE_SIGMA = 2.0, 0.1  # depths only keep the unit, and points without parallax
OUTLIER, MIN_OUTLIER_PX = 4.0, 1.5  # standard deviations and pixels beyond which a match is wrong
MIN_PX, MAX_PX = 0.1, 1.0  # limits of the noise; with more, the camera is no pinhole camera
USUAL_PX = 0.2  # noise of a feature; what exceeds it does not average out, as of a lens
RAYLEIGH = 1.1774  # median over the standard deviation of an axis, of distances in a plane


@dataclass(frozen=True)
class FocalEstimate:
    """A focal length by the tracks of some views."""

    factor: float  # on the present one
    sigma: float  # standard deviation of its logarithm
    solved: Adjusted  # without outliers


@dataclass(frozen=True)
class LengthChange:
    """Factors on lengths in local by a new focal length, which changes depths and the distances
    between cameras differently."""

    depth: float = 1.0
    motion: float = 1.0


NO_CHANGE = LengthChange()


class SelfCalibration:
    """Determines the focal length of each camera without calibration once, if tracks can."""

    def __init__(self) -> None:
        # By camera: K [3, 3] by tracks, and the size (width, height) of its image.
        self.known: dict[str, tuple[Array, tuple[int, int]]] = {}
        self._windows, self._next = 0, FIRST
        self._corrected: dict[str, Lens] = {}  # by camera; not in the graph yet

    def correct(self, camera: str, lens: Lens) -> None:
        """Notes the lens of a camera whose calibration is corrected in all later views."""
        self._corrected[camera] = lens

    def take_over(self, graph: SlidingGraph) -> None:
        """Brings a graph's views to corrected calibrations, before later views are added.

        Their poses stay: later windows hold on to them, so that the unit goes on. The metre of a
        rig is measured anew.
        """
        views = [v for v in graph.views.values() if v.camera in self._corrected]
        for view in views:
            lens = self._corrected[view.camera]
            pixel = lens.undistorted(view.K, view.features.pixel)
            view.features, view.K = replace(view.features, pixel=pixel), lens.K(view.K)
            view.image, view.edges = None, EdgePoints.none()  # of the image as it was rectified
        if views:
            graph.points = graph.points.without_positions()
            graph.forget_metre()
        self._corrected = {}

    def run(self, graph: SlidingGraph) -> LengthChange | None:
        """Tries to determine unknown focal lengths of a graph, every few windows.

        Returns the factors on lengths in local; None if no K and no pose of its views has
        changed.
        """
        cameras = sorted({v.camera for v in graph.views.values() if v.own_K} - set(self.known))
        if not cameras:
            return None
        self._windows += 1
        if self._windows < self._next:
            return None
        self._next += min(max(FIRST, self._windows // SHARE), MOST_WINDOWS)
        found = [self._determine(graph, camera) for camera in cameras]
        changes = [change for change in found if change is not None]
        if not changes:
            return None
        return LengthChange(
            math.prod(c.depth for c in changes), math.prod(c.motion for c in changes)
        )

    def calibrated(self, window: Window, estimate: WindowEstimate) -> WindowEstimate:
        """Returns the estimate with the known K of views without calibration."""
        K = estimate.K.copy()
        for k, view in enumerate(window.views):
            if view.K is None and view.camera in self.known:
                known, size = self.known[view.camera]
                K[k] = resize_K(known, size, view.image.shape[1::-1])
        return replace(estimate, K=K) if self.known else estimate

    def source(self, camera: str) -> str:
        """Returns where the K of a camera without calibration is from."""
        return "tracks" if camera in self.known else "network"

    def _determine(self, graph: SlidingGraph, camera: str) -> LengthChange | None:
        """Sets the focal length of a camera if tracks determine it; returns the factors on lengths
        in local, None if they do not."""
        mine = [v for v in graph.views.values() if v.camera == camera]
        factor = determined_factor(graph, mine)
        change = None if factor is None else _change(graph, camera, factor)
        if factor is None or change is None:
            return None
        newest = [v for v in graph.views.values() if v.camera == camera][-1]
        focal = newest.K[0, 0]
        self.known[camera] = newest.K, newest.features.shape[::-1]
        log.info(
            "focal length of camera %s by tracks: %.0f px at %d x %d (network: %.0f)",
            camera or "(the only one)", focal, *newest.features.shape[::-1], focal / factor,
        )  # fmt: skip
        return change


def determined_factor(graph: SlidingGraph, views: Sequence[TrackedView]) -> float | None:
    """Returns the factor on the focal length of one camera's views; None: not determined."""
    recent = list(views)[-2 * MOST_VIEWS :]
    at = np.linspace(0, len(recent) - 1, min(MOST_VIEWS, len(recent))).round().astype(int)
    some = [recent[i] for i in at]
    if len(some) < FEWEST_VIEWS:
        return None
    whole = estimate(graph, some)
    if whole is None or not whole.sigma < SIGMA:
        return None
    half = len(some) // 2
    halves = [estimate(graph, some[: len(some) - half]), estimate(graph, some[half:])]
    if not all(one is not None and one.sigma < HALF_SIGMA for one in halves):
        return None
    logs = [math.log(one.factor) for one in (whole, *halves) if one is not None]
    if max(logs) - min(logs) > AGREEMENT or not abs(by_lens(whole.solved)) < AGREEMENT:
        return None
    return math.exp(float(np.median(logs)))


def estimate(graph: SlidingGraph, views: Sequence[TrackedView]) -> FocalEstimate | None:
    """Returns the focal length that fits the tracks of views best, with free poses; None: there
    are too few tracks, or no pinhole camera fits them."""
    gathered = _bundle(graph, list(views), TRACKS)
    if gathered is None:
        return None
    pixel = 1.0
    bundle = replace(gathered[1], lens=np.zeros(len(views), int), lens_sigma=(PRIOR_SIGMA,))
    done = adjust(_weighted(bundle, pixel), STEPS)
    for _ in range(2):
        pixel = max(MIN_PX, _noise_px(done))
        rest = _without_outliers(done, max(MIN_OUTLIER_PX, OUTLIER * pixel))
        if (np.bincount(rest.observations.view, minlength=len(views)) < FEWEST_TRACKS).any():
            return None
        done = adjust(_weighted(rest, pixel), STEPS)
    found, factor = _noise_px(done), float(done.bundle.K[0, 0, 0] / views[0].K[0, 0])
    if not (found < MAX_PX and 1 / MAX_FACTOR < factor < MAX_FACTOR and is_sane(done.bundle)):
        return None
    excess = max(1.0, found / pixel) * max(1.0, found / USUAL_PX)
    return FocalEstimate(factor, float(done.focal_sigma()[0]) * excess, done)


def by_lens(done: Adjusted) -> float:
    """Returns by how much the logarithm of the focal length would be another one if the lens had
    the radial distortion that fits the tracks best; inf: that is not determined.

    The best distortion is where a parabola through the costs of three has its minimum.
    """
    ends = [adjust(_distorted(done.bundle, k1), STEPS) for k1 in (-K1, K1)]
    less, more = (end.cost - done.cost for end in ends)
    bend = less + more
    if not bend > 0:
        return math.inf
    best, sigma = K1 * (less - more) / (2 * bend), K1 * math.sqrt(2 / bend)
    slope = math.log(ends[1].bundle.K[0, 0, 0] / ends[0].bundle.K[0, 0, 0]) / (2 * K1)
    return math.inf if abs(slope) * sigma > SIGMA else slope * best


def _distorted(bundle: Bundle, k1: float) -> Bundle:
    """Returns the bundle with positions as a lens with the radial distortion ``k1`` sees them."""
    o, K = bundle.observations, bundle.K[bundle.observations.view]
    offset = o.pixel - K[:, :2, 2]
    square = ((offset / K[:, [0, 1], [0, 1]]) ** 2).sum(axis=1, keepdims=True)
    magnified = 1 + 2 * k1 * square[:, 0]  # noise too, between along and across the radius
    return replace(
        bundle,
        observations=replace(o, pixel=o.pixel + k1 * square * offset, sigma=magnified * o.sigma),
    )


def _change(graph: SlidingGraph, camera: str, factor: float) -> LengthChange | None:
    """Changes a camera's focal length in the graph, and solves its newest views for poses, depth
    scales and points anew.

    Returns the factors on lengths in local. Returns None, and changes nothing, if that fails.
    """
    kept = list(graph.views.values())[-MOVED_VIEWS:]
    before = [v.K for v in kept]
    for view in kept:
        if view.camera == camera:
            view.K = view.K * np.array([[factor, 1, 1], [1, factor, 1], [1, 1, 1]])
    gathered = _bundle(graph, kept, 2 * TRACKS)
    solved = None if gathered is None else adjust(gathered[1], STEPS).bundle
    if gathered is None or solved is None or not is_sane(solved):
        for view, K in zip(kept, before, strict=True):
            view.K = K
        return None
    depth = float(np.exp(np.median(solved.log_scale - [v.log_scale for v in kept])))
    change = LengthChange(depth, _by_positions(kept, solved) or depth)
    graph.points = graph.points.without_positions()
    graph.keep([v.id for v in kept])
    graph.take_over(kept, gathered[0], solved)
    return change


def _by_positions(views: Sequence[TrackedView], solved: Bundle) -> float | None:
    """Returns the factor on the spread of each camera's positions; None: they have not moved."""
    names = np.array([v.camera for v in views])
    before = spread(np.array([v.T_local_camera[:3, 3] for v in views]), names)
    after = spread(solved.T_local_camera[:, :3, 3], names)
    least = LEAST_MOTION * float(np.exp(np.median(solved.typical_log_depth())))
    sizes = [math.sqrt(float((x**2).sum()) / len(views)) for x in (before, after)]
    return None if min(sizes) < least else sizes[1] / sizes[0]


def _bundle(
    graph: SlidingGraph, views: list[TrackedView], most: int
) -> tuple[Array, Bundle] | None:
    """Returns the ids of at most ``most`` tracks, and their bundle with views that are all free
    but the first; None: too few tracks."""
    free = np.arange(len(views)) > 0
    gathered = gather(views, free, most, np.array([len(views) - 1]), with_edges=False)
    if gathered is None:
        return None
    bundle = graph.bundle(views, free, *gathered, PosePriors.none())
    return gathered[0], _weighted(bundle, graph.noise.pixel)


def _weighted(bundle: Bundle, pixel: float) -> Bundle:
    """Returns the bundle with standard deviations: nearly only positions count."""
    count = len(bundle.observations.view)
    o = replace(
        bundle.observations, sigma=np.full(count, pixel), depth_sigma=np.full(count, DEPTH_SIGMA)
    )
    return replace(bundle, observations=o, scale_sigma=np.full(len(bundle.free), SCALE_SIGMA))


def _noise_px(done: Adjusted) -> float:
    """Returns the standard deviation of one axis of a position, pixels, by the median residual."""
    b, count = done.bundle, 2 * len(done.reprojection)
    spare = max(1, count - 3 * len(b.points) - 6 * int(b.free.sum()) - 1)
    return float(np.median(done.reprojection)) / RAYLEIGH / math.sqrt(spare / count)


def _without_outliers(done: Adjusted, limit_px: float) -> Bundle:
    """Returns the bundle without observations that are further than a limit from their points,
    and without points that fewer than two views then see."""
    b, o = done.bundle, done.bundle.observations
    good = done.reprojection < limit_px
    good &= (np.bincount(o.point[good], minlength=len(b.points)) >= 2)[o.point]
    points, number = np.unique(o.point[good], return_inverse=True)
    return replace(b, points=b.points[points], observations=replace(o.where(good), point=number))
