"""A robot that stands: its pose is held, so that nothing drifts.

Each image is compared with that from which on its camera has not moved, so that slow motion adds
up. Odometry and IMU have a say where the robot has them. What windows measure must not contradict:
an image may show what comes along with the camera. A held view gets depth, but changes neither
odometry nor map: what it would add is the noise of its window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.covariance import motion
from da3_ros.pipeline.delivery import PlacedWindow
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.refinement.still_image import ImageMotion, StillImage
from da3_ros.types import Array, FloatImage, ImuStretch, Prediction, View, Window, WindowEstimate

STILL_PX = 0.15  # common motion of an image, pixels (``still_image.WIDTH``), below which it stands
# Share of what has corners that stays, from which on a camera stands by its images; the same of
# near corners; and of all of the image.
CLEAR, CLEAR_NEAR, AREA = 0.8, 0.6, 0.3
# The first one with a witness more, as when a conveyor fills a part of the image: with odometry;
# with an IMU, to which a constant speed is rest; with both.
BY_ODOMETRY, BY_IMU, BY_BOTH = 0.3, 0.6, 0.1
STANDS_NS = 10**9  # how long a camera must have stood before its pose is held
# Motion by the robot's odometry up to which it stands, and from which on it moves: m, rad.
STILL_M, STILL_RAD = 0.002, 0.002
MOVES_M, MOVES_RAD = 0.02, 0.02
# Spread of an IMU's values about their mean up to which it stands, rad/s and m/s^2. A mean rate
# that is no bias, and a change of the mean force that is none; and the deviations of these means.
STILL_GYRO, STILL_ACCELERATION = 0.02, 0.2
MOVES_GYRO, MOVES_ACCELERATION, SHAKEN = 0.05, 0.3, 3.0
EXACT_M, EXACT_RAD = 1e-9, 1e-9  # odometry that has moved by less repeats its pose
# Standard deviations of what a window measures of a standing camera, from which on it moves, and
# the least of them: of a rotation (rad), and of a position over the depth.
CONTRADICTS, LEAST = 5.0, 0.002
FEWEST_SAME = 0.3  # share of pixels with the same depth, below which the scene has changed
SAME_DEPTH = 0.1  # log ratio


@dataclass(frozen=True, eq=False)
class _Stand:
    """From when on a camera has not moved, and the newest frame that was placed since."""

    image: StillImage
    since: View
    T_local_camera: Array  # [4, 4] of that, as its window has placed it
    id: int  # of the newest placed view
    depth: FloatImage  # [h, w] of that, units of odometry
    # [h, w] on the network's depth of that view, up to its unit: what tracks have corrected.
    factors: FloatImage
    imu: ImuStretch | None = None  # what the IMU has measured first since then


class Standing:
    """What each camera of a pipeline saw when it began to stand. Not thread-safe."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begins a new chain."""
        self._cameras: dict[str, _Stand] = {}
        self._moves: set[int] = set()  # ids of views that are not where their camera stood
        self._measured: set[int] = set()  # ids of views at which odometry has measured rest
        self._by_odometry: set[int] = set()  # ids of views at which it says so

    def holds(self, new: Sequence[PreparedView]) -> bool:
        """Returns whether all cameras stand in the new views of a window, and have done so for a
        while; notes which of them have moved."""
        self._measured.clear()
        self._by_odometry.clear()
        still = [self._stands(prepared.view) for prepared in new]
        self._moves = {p.view.id for p, stands in zip(new, still, strict=True) if not stands}
        return all(still) and all(
            p.view.stamp_ns - self._cameras[p.view.camera].since.stamp_ns >= STANDS_NS for p in new
        )

    def _stands(self, view: View) -> bool:
        stand = self._cameras.get(view.camera)
        if stand is None or stand.since.image.shape != view.image.shape:
            return False
        if not np.array_equal(
            np.zeros(0) if view.K is None else view.K,
            np.zeros(0) if stand.since.K is None else stand.since.K,
        ):
            return False
        odometry = by_odometry(stand.since, view)
        if odometry:
            self._by_odometry.add(view.id)
            if not _repeats(stand.since, view):
                self._measured.add(view.id)
        if stand.imu is None:
            stand = self._cameras[view.camera] = replace(stand, imu=view.imu)
        imu = None if view.imu is None or stand.imu is None else by_imu(stand.imu, view.imu)
        return stands(stand.image.motion_to(view.image), odometry, imu)

    def note(
        self, prepared: PreparedView, placed: PlacedWindow, index: int, deviations: Array
    ) -> None:
        """Notes a view that was placed, view ``index`` of its window.

        deviations: ``PoseUncertainty.at_rest``. A camera that windows have moved by several of
        them begins to stand anew.
        """
        view, S = prepared.view, placed.alignment.T_local_window
        unit, T = np.float32(S.scale), S.pose(placed.estimate.T_window_camera[index])
        depth = unit * placed.depth[index]
        with np.errstate(invalid="ignore", divide="ignore"):  # sky, and what is masked
            factors = depth / (unit * placed.prediction.depth[index])
        factors = np.where(np.isfinite(factors), factors, np.float32(1.0))
        stand = self._cameras.get(view.camera)
        if (
            stand is not None
            and view.id not in self._measured
            and _moved(stand.T_local_camera, T, depth, deviations)
        ):
            self._moves.add(view.id)
        if stand is None or view.id in self._moves:
            image = StillImage(view.image, view.valid, depth)
            self._cameras[view.camera] = _Stand(image, view, T, view.id, depth, factors)
        else:
            self._cameras[view.camera] = replace(stand, id=view.id, depth=depth, factors=factors)

    @property
    def ids(self) -> list[int]:
        """The ids of the views whose poses cameras have that stand, or that may soon."""
        return [stand.id for stand in self._cameras.values()]

    def id_of(self, camera: str) -> int:
        """Returns the id of the view whose pose a camera has."""
        return self._cameras[camera].id

    def unseen(self, camera: str, id: int, deviations: Array) -> Array:
        """Returns the variances [6] of (position, rotation) that a held pose of a camera has more
        than the one that is held, units of odometry and rad: a motion that windows would not
        notice. Zero if odometry says at view ``id`` that the robot stands.

        deviations: ``PoseUncertainty.at_rest``.
        """
        if id in self._by_odometry:
            return np.zeros(6)
        depth = _typical(self._cameras[camera].depth)
        position, rotation = (np.maximum(deviations, LEAST) * [depth, 1.0]) ** 2
        return np.repeat([position, rotation], 3)

    def placed(
        self, window: Window, prediction: Prediction, T_local_camera: dict[str, Array],
        deviations: Array,
    ) -> PlacedWindow | None:  # fmt: skip
        """Returns a window whose new views are where their cameras stand; None if its depth has
        nothing to do with what these saw, or if the network says that a camera has moved.

        T_local_camera: newest poses [4, 4] of all cameras. The depth is corrected as that of the
        camera's last placed frame was, in the unit of which most of both are the same.
        deviations: ``PoseUncertainty.at_rest``.
        """
        fresh = range(len(window.views) - window.new, len(window.views))
        if moved := {window.views[i].id for i in fresh
                     if self._contradicts(window, prediction, i, deviations)}:  # fmt: skip
            self._moves |= moved
            return None
        depth, units = prediction.depth.copy(), []
        for i in fresh:
            stand = self._cameras[window.views[i].camera]
            depth[i] *= stand.factors
            unit = _unit(depth[i], stand.depth)
            if math.isnan(unit):
                return None
            depth[i] *= np.float32(unit)
            units.append(unit)
        S = Similarity(float(np.median(units)), np.eye(3), np.zeros(3))
        depth[fresh.start :] /= np.float32(S.scale)
        estimate = WindowEstimate.of(prediction)
        poses, back = estimate.T_window_camera.copy(), S.inverse()
        for i in fresh:
            poses[i] = back.pose(T_local_camera[window.views[i].camera])
        estimate = replace(estimate, T_window_camera=poses)
        return PlacedWindow(
            window, prediction, estimate, Alignment(S, True, math.nan, math.nan), depth
        )

    def _contradicts(
        self, window: Window, prediction: Prediction, index: int, deviations: Array
    ) -> bool:
        """Whether the network says that view ``index`` of a window is not where its camera
        stands. Odometry that has measured the rest knows better."""
        view = window.views[index]
        id = self._cameras[view.camera].id
        before = next((k for k, v in enumerate(window.views) if v.id == id), None)
        if before is None or view.id in self._measured:
            return False
        poses = WindowEstimate.of(prediction).T_window_camera
        return _moved(poses[before], poses[index], prediction.depth[index], deviations)


def stands(image: ImageMotion, odometry: bool | None, imu: bool | None) -> bool:
    """Returns whether a camera stands.

    odometry, imu: whether they say that the robot stands; None: unknown. One that says no decides.
    Images alone must be clear, in much of their area, and also near the camera: what is far stays
    where it is if the robot moves. Where things move in front of a robot, less suffices with a
    witness. An image that shows nothing needs both; one in which all moves is not overruled.
    """
    if odometry is False or imu is False:
        return False
    if odometry and imu and math.isnan(image.share):
        return True
    if image.share < BY_BOTH or not (image.pixels < STILL_PX or (odometry and imu)):
        return False
    if odometry and imu:
        return image.pixels < STILL_PX or image.share <= BY_ODOMETRY
    if (odometry and image.share >= BY_ODOMETRY) or (imu and image.share >= BY_IMU):
        return True
    clear = image.share >= CLEAR and image.near_share >= CLEAR_NEAR
    return clear and image.area >= AREA


def by_odometry(since: View, view: View) -> bool | None:
    """Returns whether the robot's odometry says that it has not moved since an earlier view; None:
    it does not tell."""
    a, b = since.T_prior_camera, view.T_prior_camera
    if a is None or b is None or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    T = invert_pose(a) @ b
    way, turn = float(np.linalg.norm(T[:3, 3])), Rotation.from_matrix(T[:3, :3]).magnitude()
    if way > MOVES_M or turn > MOVES_RAD:
        return False
    return True if way < STILL_M and turn < STILL_RAD else None


def _repeats(since: View, view: View) -> bool:
    """Whether odometry repeats its pose without any noise, as it does where it is stuck."""
    if since.T_prior_camera is None or view.T_prior_camera is None:
        return False
    angle, distance = motion(since.T_prior_camera, view.T_prior_camera)
    return distance < EXACT_M and angle < EXACT_RAD


def by_imu(first: ImuStretch, stretch: ImuStretch) -> bool | None:
    """Returns whether an IMU says that it stands; None: it does not tell.

    One that shakes does not: an engine may idle. What moves a robot stays in the mean of its
    values: a turn, or another force than in the first stretch, in which it stood.
    """
    (rate, turning), (force, shaking) = _means(stretch)
    _, (before, shaken) = _means(first)
    changed = float(np.linalg.norm(force - before))
    noise = math.hypot(_deviation(shaking, stretch), _deviation(shaken, first))
    turned = float(np.linalg.norm(rate)) - SHAKEN * _deviation(turning, stretch)
    if turned > MOVES_GYRO or changed - SHAKEN * noise > MOVES_ACCELERATION:
        return False
    return True if turning < STILL_GYRO and shaking < STILL_ACCELERATION else None


def _means(stretch: ImuStretch) -> list[tuple[Array, float]]:
    """Returns the means [3] of gyro (rad/s) and accelerometer (m/s^2), and the spreads about
    them."""
    return [
        (values.mean(axis=0), float(np.sqrt(values.var(axis=0).sum())))
        for values in (stretch.gyro, stretch.acceleration)
    ]


def _deviation(spread: float, stretch: ImuStretch) -> float:
    """Returns the standard deviation of a mean, if what shakes is faster than the stretch."""
    return spread / math.sqrt(len(stretch.stamps_ns))


def _moved(T_before: Array, T_after: Array, depth: FloatImage, deviations: Array) -> bool:
    """Whether two measured poses [4, 4] of a camera are apart by several of their ``deviations``.

    depth: [h, w] z-depth in the unit of the poses.
    """
    angle, distance = motion(T_before, T_after)
    over = np.array([distance / _typical(depth), angle]) / np.maximum(deviations, LEAST)
    return bool(over.max() > CONTRADICTS)


def _typical(depth: FloatImage) -> float:
    """Returns the median of a z-depth [h, w]; 1 if none is known."""
    known = depth[np.isfinite(depth) & (depth > 0)]
    return float(np.median(known)) if known.size else 1.0


def _unit(depth: FloatImage, known: FloatImage) -> float:
    """Returns the factor with which a depth [h, w] is mostly that of another one; NaN if it is
    not."""
    both = np.isfinite(depth) & np.isfinite(known) & (depth > 0) & (known > 0)
    logs = np.log(known[both] / depth[both])
    if not logs.size:
        return math.nan
    middle = float(np.median(logs))
    same = np.abs(logs - middle) < SAME_DEPTH
    return math.exp(middle) if same.mean() >= FEWEST_SAME else math.nan
