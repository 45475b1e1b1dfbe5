"""Metres from global poses (tags, GNSS, docks): distances between them over those of the camera.

A similarity transform fits each stretch of the way to the positions that were given along it, so
that their noise averages out, and heading and place may drift from stretch to stretch. A stretch
that does not have the shape of the way does not count. Where most fit worse than the positions
state, these are as uncertain as that shows. The scales of stretches are averaged as those of
windows are. Orientations are not used.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation
from scipy.special import chdtrc, chdtri  # scipy.stats takes 0.4 s to import

from da3_ros.geometry.poses import best_rotation, cross_matrices, interpolate, invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.followed_camera import FollowedCamera
from da3_ros.scale_sources.estimates import Estimate, MeasurementFilter
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import (
    UNKNOWN_M2,
    Array,
    GlobalPose,
    ScaleMeasurement,
    View,
    Window,
    WindowEstimate,
)

log = logging.getLogger(__name__)

CERTAIN = 0.05  # relative standard deviation of a stretch's scale that ends the stretch,
JUDGED = 0.2  # and from which on one that does not fit ends
PARALLAX = 0.1  # its way over the depth at least: the network's noise is as large as less
APART = 0.02  # way over depth between two positions that count: errors of one place are alike
FEWEST, MOST = 3, 64  # positions of a stretch: two have no shape; more than the most are thinned
DRIFT = 0.02  # of the camera's path over the distance, within a stretch
WRONG = 1e-4  # probability of a misfit as large by chance, from which on a stretch does not count
NEWEST = 9  # stretches that say how well positions fit
BEST = 0.25  # share of them that fits best: with wrong covariances none fits, with wrong ones some
WORSE = 3.0  # factor from which on positions fit far worse than they state
MOST_GAP_S = 2.0  # between the frames before and after a position
STEPS, SMALL = 20, 1e-6  # of a fit: the most, and the change of the logarithm that ends it,
LARGE = 2.0  # and from which on positions are so noisy that they show none
RANK = 1e-9  # relative size of a direction in which a solution is free
PATIENCE = 100  # frames without global poses before they are missed
NO_DATA = (
    "no global poses: give topic `~/global_pose` (geometry_msgs/PoseWithCovarianceStamped: the "
    "pose of base_frame in map_frame)"
)
FEW = "drive farther: global poses along the way show it"
MISFIT = (
    "global poses do not have the shape of the camera's way: some are wrong, or their covariances "
    "are too small"
)


@dataclass(frozen=True, eq=False)
class Fix:
    """A position of the robot's base that was given, and where the camera was then."""

    position: Array  # [3] metres
    covariance: Array  # [3, 3] of it
    camera: Array  # [3] in ``local``
    arm: Array  # [3] from the camera to the base, in the axes of ``local``, metres


@dataclass(frozen=True)
class Stretch:
    """How a stretch fits its positions."""

    scale: Estimate
    misfit: float  # square of the residuals, over that which ``BEST`` of right stretches has
    chance: float  # probability of a misfit as large


def fit_stretch(fixes: Sequence[Fix], factor: float = 1.0) -> Stretch | None:
    """Returns the scale, metres per unit of ``local``, that fits fixes best; None: they show none.

    factor: on the covariances.

    Gauss-Newton over log scale, rotation and translation. The standard deviation is what the
    stated errors of the positions make it.
    """
    if len(fixes) < FEWEST:
        return None
    p, q, arm, covariance = (
        np.array([getattr(fix, name) for fix in fixes])
        for name in ("position", "camera", "arm", "covariance")
    )
    covariance = factor * covariance
    q, known = q - q.mean(axis=0), _known(p - p[0], covariance)
    drifts = DRIFT * np.linalg.norm(known, axis=1)
    W = _whitening(covariance + drifts[:, None, None] ** 2 * np.eye(3))
    ways = [float(np.linalg.norm(x - x[0], axis=1).max()) for x in (known, q)]
    if min(ways) <= 0:
        return None
    log_scale = math.log(ways[0] / ways[1])
    bases = math.exp(log_scale) * q + arm
    R = best_rotation((known - known.mean(axis=0)).T @ (bases - bases.mean(axis=0)))
    t = p.mean(axis=0) - R @ bases.mean(axis=0)
    for _ in range(STEPS):
        J, r = _linear(W, p, q, arm, Similarity(math.exp(log_scale), R, t))
        # A straight way does not show a turn about it: the smallest step, where it is free.
        step = np.linalg.lstsq(J, r, rcond=RANK)[0]
        if abs(step[0]) > LARGE:
            break
        log_scale, t = log_scale + float(step[0]), t + step[4:]
        R = Rotation.from_rotvec(step[1:4]).as_matrix() @ R
        if abs(step[0]) < SMALL:
            return _judged(J, r, log_scale)
    return None


def _whitening(covariance: Array) -> Array:
    """Returns square roots [N, 3, 3] of the inverse covariances; zero along what is unknown."""
    values, axes = np.linalg.eigh(covariance)
    roots = np.where(values < UNKNOWN_M2 / 2, values, np.inf) ** -0.5
    return np.asarray(roots[..., None] * np.swapaxes(axes, 1, 2))


def _known(p: Array, covariance: Array) -> Array:
    """Returns positions [N, 3], smaller along axes of which less is known."""
    values, axes = np.linalg.eigh(np.linalg.inv(covariance).mean(axis=0))
    return np.asarray(p @ (axes * np.sqrt(values / values[-1])) @ axes.T)


def _linear(W: Array, p: Array, q: Array, arm: Array, S: Similarity) -> tuple[Array, Array]:
    """Returns the weighted derivatives [3 N, 7] of bases by log scale, rotation and translation,
    and what is left of the positions [3 N]."""
    longer = S.scale * q @ S.R.T
    bases = longer + arm @ S.R.T
    move = np.broadcast_to(np.eye(3), (len(p), 3, 3))
    J = W @ np.concatenate((longer[..., None], -cross_matrices(bases), move), axis=2)
    return J.reshape(-1, 7), (W @ (p - bases - S.t)[..., None]).ravel()


def _judged(J: Array, r: Array, log_scale: float) -> Stretch | None:
    """Returns a solution with its certainty; None: the scale is free."""
    own = J[:, 0] - J[:, 1:] @ np.linalg.lstsq(J[:, 1:], J[:, 0], rcond=RANK)[0]
    information = float(own @ own)
    if not information > 0:
        return None
    free, square = max(np.count_nonzero(r) - 7, 1), float(r @ r)
    chance = float(chdtrc(free, square))
    misfit = square / float(chdtri(free, 1 - BEST))
    return Stretch(Estimate(log_scale, 1 / math.sqrt(information)), misfit, chance)


class GlobalPoseFilter(MeasurementFilter):
    """The scale of a chain by stretches between global poses.

    Frames stay where odometry had them: the map's corrections by global poses would make any scale
    the right one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.without_data = 0  # frames before the first one with a global pose
        self._has_data = False
        # Of the newest stretches, and the factor on the variances that they show.
        self._misfits: deque[float] = deque(maxlen=NEWEST)
        self._factor = 1.0
        self._camera = FollowedCamera()  # whose path it is
        self.interrupt_motion()

    @property
    def misfits(self) -> bool:
        """Whether positions fit far worse than they state."""
        return self._factor > WORSE

    def interrupt_motion(self) -> None:
        self._last: tuple[int, Array] | None = None  # stamp and pose of the last frame
        self._stretch: list[Fix] = []

    def add_motion(self, view: View, T_local_camera: Array, depth: float) -> None:
        """Adds a frame and the global poses that came with it; of a rig, those of one camera
        count."""
        if not self._camera.admits(view.camera, view.stamp_ns):
            return
        self._has_data |= bool(view.anchors)  # they may come seldom, as tags do
        self.without_data = 0 if self._has_data else self.without_data + 1
        last, self._last = self._last, (view.stamp_ns, T_local_camera)
        if last is None or not depth > 0 or view.stamp_ns - last[0] > 1e9 * MOST_GAP_S:
            return
        for given in view.anchors if view.stamp_ns > last[0] else ():
            share = (given.stamp_ns - last[0]) / (view.stamp_ns - last[0])
            if 0 <= share <= 1:
                self._add(given, interpolate(last[1], T_local_camera, share), depth)

    def _add(self, given: GlobalPose, T_local_camera: Array, depth: float) -> None:
        """Adds a global pose with the camera's pose at its time. Ends a stretch that is certain or
        does not fit; the next one begins there."""
        here, stretch = _fix(given, T_local_camera), self._stretch
        if stretch and np.linalg.norm(here.camera - stretch[-1].camera) < APART * depth:
            return
        stretch.append(here)
        found = fit_stretch(stretch, self._factor)
        way = float(np.linalg.norm(here.camera - stretch[0].camera))
        if found is not None and way > PARALLAX * depth and self._ends(found):
            self._stretch = [here]
            self._judge(found)
        elif len(stretch) >= MOST:
            del stretch[1::2]

    @staticmethod
    def _ends(found: Stretch) -> bool:
        sigma = found.scale.sigma
        return sigma < CERTAIN or (sigma < JUDGED and found.chance < WRONG)

    def _judge(self, found: Stretch) -> None:
        """Takes over an ended stretch, and learns by how much larger errors are than stated."""
        if found.chance > WRONG:
            self._measurements.append(found.scale)
        self._misfits.append(found.misfit * self._factor)
        self._factor = max(1.0, float(np.quantile(self._misfits, BEST)))


def _fix(given: GlobalPose, T_local_camera: Array) -> Fix:
    arm = T_local_camera[:3, :3] @ invert_pose(given.T_base_camera)[:3, 3]
    return Fix(given.T_ros_base[:3, 3], given.covariance[:3, :3], T_local_camera[:3, 3], arm)


class GlobalPoseMotion(ScaleSource):
    """Distances between global poses, over those that the camera went between them."""

    needs_global_poses = True

    def __init__(self) -> None:
        self._filter = GlobalPoseFilter()
        self._reported = False

    def measure(
        self, window: Window, estimate: WindowEstimate, by_prior: ScaleMeasurement | None
    ) -> ScaleMeasurement | None:
        return None

    def estimator(self) -> MeasurementFilter:
        self._filter = GlobalPoseFilter()
        return self._filter

    def report_missing(self) -> None:
        if self._filter.without_data >= PATIENCE and not self._reported:
            self._reported = True
            log.warning("scale.source global_pose: %s", NO_DATA)

    def why_unknown(self, name: str) -> str:
        missing = self._filter.without_data >= PATIENCE
        why = NO_DATA if missing else MISFIT if self._filter.misfits else FEW
        return f"the scale is unknown yet ({name}: {why})"
