"""Poses that the robot knows by itself: at the stamp of a frame, checked, and in what unit.

Odometry and TF come in at their own times. A frame gets the pose at its own stamp, interpolated,
or carried on for a moment where the odometry is late, or none. Knows no ROS and no network.
"""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry import backproject, invert_pose, project
from da3_ros.mapping.alignment import Alignment, Similarity
from da3_ros.transforms import JUMP_S, TransformError, TransformTree, interpolate
from da3_ros.types import Array, Measure, Prediction, View, Window

Item = TypeVar("Item")

SHORTEST_M = 0.1  # way within a window below which it carries no scale (network/conditioning.py)
CARRY_NS = 100_000_000  # of motion that a late prior is carried on by
POINTS = 600  # pixels of a pair of views that are compared
TRIALS = np.linspace(-0.25, 0.25, 51)  # logarithms of the factors that are tried on the baselines'
CLIP = 0.1  # relative disagreement of two depths that counts as any other
FLOOR = 0.003


class PriorError(LookupError):
    """No pose for a frame; one line says why."""


class PoseHistory:
    """Poses of a base in its odometry's world, in the order of their stamps.

    Of a recording that is read as a whole (``keep_s`` infinite) all are kept; live, a stamp that
    jumps back starts a new history.
    """

    def __init__(self, keep_s: float = 30.0) -> None:
        live = math.isfinite(keep_s)
        self.keep_ns = int(keep_s * 1e9) if live else 2**62
        self._jump_ns = int(JUMP_S * 1e9) if live else 2**62
        self._poses: list[tuple[int, Array]] = []

    def add(self, stamp_ns: int, T: Array) -> None:
        """One pose [4, 4]. Raises PriorError for what is no pose."""
        if not is_pose(T):
            raise PriorError("a pose of the odometry is not finite or no rigid motion")
        if self._poses and stamp_ns < self._poses[-1][0] - self._jump_ns:
            self._poses.clear()  # the future that is held never comes
        at = bisect_left(self._poses, stamp_ns, key=lambda item: item[0])
        repeated = at < len(self._poses) and self._poses[at][0] == stamp_ns
        self._poses[at : at + repeated] = [(stamp_ns, T)]  # repeated stamps fill no memory
        while self._poses[0][0] < self._poses[-1][0] - self.keep_ns:
            self._poses.pop(0)

    def at(self, stamp_ns: int, max_age_ns: int) -> Array:
        """The pose [4, 4] at a stamp. Raises PriorError where none is near enough."""
        if not self._poses:
            raise PriorError("no odometry yet")
        after = bisect_left(self._poses, stamp_ns, key=lambda item: item[0])
        if after < len(self._poses) and self._poses[after][0] == stamp_ns:
            return self._poses[after][1]
        if after == 0:
            raise PriorError("the frame is older than the odometry")
        if after == len(self._poses):
            return self._carried(stamp_ns, max_age_ns)
        (t0, T0), (t1, T1) = self._poses[after - 1 : after + 1]
        if t1 - t0 > max_age_ns:
            raise PriorError(f"the odometry has a gap of {(t1 - t0) / 1e9:.2f} s here")
        return interpolate(T0, T1, (stamp_ns - t0) / (t1 - t0))

    def _carried(self, stamp_ns: int, max_age_ns: int) -> Array:
        newest, T = self._poses[-1]
        late = stamp_ns - newest
        if late > max_age_ns:
            raise PriorError(f"the odometry is {late / 1e9:.2f} s old")
        before = bisect_left(self._poses, newest - CARRY_NS, key=lambda item: item[0])
        first, T_first = self._poses[min(before, len(self._poses) - 1)]
        if first == newest:
            return T
        return carry_on(T_first, T, late / (newest - first))


class PosePrior:
    """Where the robot says the camera is: by odometry and the mount, or by its transforms."""

    def __init__(
        self,
        source: str,
        max_age_s: float,
        transforms: TransformTree,
        odom_frame: str,
        keep_s: float = 30.0,
    ) -> None:
        """``source``: odometry or tf. ``transforms``: others' transforms, for the mount or all."""
        self.source, self.odom_frame = source, odom_frame
        self.max_age_ns = int(max_age_s * 1e9)
        self.transforms = transforms
        self.base_frame = ""
        self._history = PoseHistory(keep_s)
        self._lock = threading.Lock()  # callbacks add while a worker asks

    def add_odometry(self, base_frame: str, T_odom_base: Array, stamp_ns: int) -> None:
        """One message. Raises PriorError for what is no pose."""
        with self._lock:
            self.base_frame = base_frame
            self._history.add(stamp_ns, T_odom_base)

    def camera(self, frame_id: str, stamp_ns: int) -> Array:
        """``T_prior_camera`` [4, 4] of an optical frame at a stamp. Raises PriorError."""
        try:
            if self.source == "tf":
                return self._by_tf(frame_id, stamp_ns)
            with self._lock:
                T_odom_base = self._history.at(stamp_ns, self.max_age_ns)
            mount = self.transforms.lookup(self.base_frame, frame_id, stamp_ns)
        except TransformError as error:
            raise PriorError(str(error)) from error
        return T_odom_base @ mount

    def _by_tf(self, frame_id: str, stamp_ns: int) -> Array:
        newest = self.transforms.newest(self.odom_frame, frame_id)
        if newest is None or stamp_ns <= newest:
            return self.transforms.lookup(self.odom_frame, frame_id, stamp_ns)
        late = stamp_ns - newest
        if late > self.max_age_ns:
            raise PriorError(f"{self.odom_frame} to {frame_id} is {late / 1e9:.2f} s old")
        T = self.transforms.lookup(self.odom_frame, frame_id, newest)
        try:
            T_first = self.transforms.lookup(self.odom_frame, frame_id, newest - CARRY_NS)
        except TransformError:
            return T
        return carry_on(T_first, T, late / CARRY_NS)


@dataclass(frozen=True, eq=False)
class Given:
    """What a window gives to the network."""

    T_prior_camera: Array | None  # [N, 4, 4]; None: nothing
    scale: bool  # whether the translations carry a scale
    why: str = ""  # nothing, or no scale


def choose(views: Sequence[View]) -> Given:
    """All poses of a window, if all are there and good."""
    poses = [view.T_prior_camera for view in views]
    missing = sum(pose is None for pose in poses)
    if missing:
        return Given(None, False, "frames without a pose")
    if any(view.K is None for view in views):
        return Given(None, False, "known poses need a camera_info")
    T = np.stack([pose for pose in poses if pose is not None])
    if not all(is_pose(pose) for pose in T):
        return Given(None, False, "a pose of the prior is not finite or no rigid motion")
    way = np.sort(np.linalg.norm(T[:, :3, 3] - T[0, :3, 3], axis=1))
    if way[(len(way) - 1) // 2] < SHORTEST_M:
        return Given(T, False, "two views or a standing camera: the poses carry no scale")
    return Given(T, True)


def with_poses(
    shared: list[Item], view_of: Callable[[Item], View], new: Sequence[View]
) -> list[Item]:
    """Of the shared frames those with a pose, where new ones have poses and enough remain.

    One frame without a pose would else keep all windows that it is in from having any.
    """
    known = [item for item in shared if view_of(item).T_prior_camera is not None]
    whole = all(view.T_prior_camera is not None for view in new)
    return known if whole and 2 * len(known) >= len(shared) > 0 else shared


def fit_unit(T_prior_camera: Array, prediction: Prediction) -> Measure:
    """Metres per network unit of one window, from its baselines and its depths.

    The network does not promise the unit of the poses that it was given. The ratios of all long
    baselines give one answer. The depths give another, for which no pose of the network is needed:
    seen from the prior's poses, the surfaces of two views must coincide. NaN where neither can.
    """
    answers = [a for a in (_by_baselines(T_prior_camera, prediction),) if a is not None]
    if not answers:
        return Measure(math.nan, math.nan)
    depths = _by_depths(T_prior_camera, prediction, answers[0].value)
    if depths is not None:
        answers.append(depths)
    logs = np.log([a.value for a in answers])
    weights = 1 / np.square([a.sigma for a in answers])
    mean = float((weights * logs).sum() / weights.sum())
    # Two answers that disagree by more than they admit are both less sure.
    excess = float((weights * (logs - mean) ** 2).sum()) / max(1, len(logs) - 1)
    return Measure(math.exp(mean), math.sqrt(max(1.0, excess) / weights.sum()))


def with_prior_poses(prediction: Prediction, T_prior_camera: Array, unit: float) -> Prediction:
    """``prediction`` with the prior's own poses, in the window's unit (``unit`` metres)."""
    T = T_prior_camera.copy()
    T[:, :3, 3] /= unit
    return replace(prediction, T_window_camera=T)


def is_pose(T: Array) -> bool:
    """Whether [4, 4] is a finite rigid motion."""
    R = T[:3, :3]
    return bool(
        np.isfinite(T).all() and np.abs(R @ R.T - np.eye(3)).max() < 1e-3 and np.linalg.det(R) > 0
    )


def carry_on(a: Array, b: Array, share: float) -> Array:
    """The pose [4, 4] that comes ``share`` of the motion from ``a`` to ``b`` after ``b``."""
    step = invert_pose(a) @ b
    out = np.eye(4)
    turn = Rotation.from_matrix(step[:3, :3]).as_rotvec() * share
    out[:3, :3] = Rotation.from_rotvec(turn).as_matrix()
    out[:3, 3] = step[:3, 3] * share
    return b @ out


def _by_baselines(T_prior: Array, prediction: Prediction) -> Measure | None:
    first, second = np.triu_indices(len(T_prior), 1)
    theirs, ours = (
        np.linalg.norm(T[first, :3, 3] - T[second, :3, 3], axis=1)
        for T in (T_prior, prediction.T_window_camera)
    )
    moved = (theirs > 0.1 * theirs.max()) & (ours > 0.1 * ours.max())
    long = moved & (theirs > max(SHORTEST_M, 0.3 * theirs.max()))
    # Long baselines share their motions: how sure they are, the single motions say.
    single = moved & (second == first + 1)
    count = int(single.sum())
    if count < 3 or long.sum() < 2:
        return None
    logs = np.log(theirs[moved] / ours[moved])
    spread = float(np.std(logs[single[moved]], ddof=1)) / math.sqrt(count)
    few = math.sqrt((count - 1) / max(count - 3, 0.5))
    return Measure(math.exp(float(np.median(logs[long[moved]]))), math.hypot(spread * few, FLOOR))


def _by_depths(T_prior: Array, prediction: Prediction, start: float) -> Measure | None:
    """The factor, near ``start``, with which depths agree best between the prior's poses."""
    seen = [i for i, depth in enumerate(prediction.depth) if np.isfinite(depth).any()]
    logs = where_depths_agree(T_prior, prediction, list(itertools.pairwise(seen)), start, TRIALS)
    if len(logs) < 2:
        return None
    sigma = float(np.std(logs, ddof=1)) / math.sqrt(len(logs)) * math.sqrt(3)
    return Measure(start * math.exp(float(np.median(logs))), math.hypot(sigma, FLOOR))


def where_depths_agree(
    T_prior: Array,
    prediction: Prediction,
    pairs: Sequence[tuple[int, int]],
    start: float,
    trials: Array,
) -> Array:
    """Logarithms of the unit (metres) over ``start`` at which both depths of a pair coincide.

    One for each pair of views that says anything within ``trials`` [F], evenly spaced.
    """
    factors = start * np.exp(trials)
    found = []
    for i, j in pairs:
        cost = _disagreement(T_prior, prediction, i, j, factors)
        best = None if cost is None else _lowest(cost, trials)
        if best is not None:
            found.append(best)
    return np.array(found)


def _disagreement(
    T_prior: Array, prediction: Prediction, i: int, j: int, factors: Array
) -> Array | None:
    """Mean clipped difference [F] of the depths of views i and j for each unit; None: too few."""
    depth, other = prediction.depth[i], prediction.depth[j]
    points = backproject(depth, prediction.K[i]).reshape(-1, 3)
    points = points[np.isfinite(points).all(axis=1)]
    points = points[:: max(1, len(points) // POINTS)].astype(np.float64)
    T = invert_pose(T_prior[j]) @ T_prior[i]
    moved = factors[:, None, None] * (points @ T[:3, :3].T) + T[:3, 3]
    pixels = project(moved, prediction.K[j]).astype(np.float32)
    there = cv2.remap(
        other, pixels[..., 0] - 0.5, pixels[..., 1] - 0.5, cv2.INTER_NEAREST,
        borderMode=cv2.BORDER_CONSTANT, borderValue=float("nan"),
    )  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(np.log(moved[..., 2] / (factors[:, None] * there)))
    valid = np.isfinite(off).all(axis=0)
    if valid.sum() < POINTS // 10:
        return None
    return np.minimum(off[:, valid], CLIP).mean(axis=1)


def _lowest(cost: Array, trials: Array) -> float | None:
    """Where the cost over ``trials`` is lowest, by a parabola; None at an end, or where flat."""
    k = int(np.argmin(cost))
    if k in (0, len(cost) - 1) or cost.min() > 0.8 * cost.max():
        return None
    a, b, c = cost[k - 1], cost[k], cost[k + 1]
    bend = a - 2 * b + c
    shift = 0.5 * (a - c) / bend if bend > 0 else 0.0
    return float(trials[k] + shift * (trials[1] - trials[0]))


class PriorFollower:
    """Puts the prior's own poses in place of the network's, where that is asked for.

    A stretch of windows with a prior hangs on the scene at one place, where the first of them was
    joined to it; from there on the scene's cameras are where the prior says.
    """

    def __init__(self, output: str) -> None:
        self.output = output
        self.restart()

    def restart(self) -> None:
        """The scene begins anew, or goes on without a prior."""
        self._T_scene_prior: Similarity | None = None
        self._unit = math.nan

    def leads(self, window: Window) -> bool:
        """Whether the prior says where a window lies in the scene."""
        return self.in_place and self.output == "prior" and window.T_prior_camera is not None

    @property
    def in_place(self) -> bool:
        """Whether the newest window's poses are the prior's own."""
        return self._T_scene_prior is not None

    def apply(self, window: Window, prediction: Prediction, metric: bool) -> Prediction:
        """``prediction`` with the unit that the prior gives, and with its poses if they go out.

        ``metric``: whether odometry is the source of metres.
        """
        T = window.T_prior_camera
        self._unit = math.nan
        if T is None or not choose(window.views).scale:
            return prediction
        measure = fit_unit(T, prediction)
        if not math.isfinite(measure.value):
            return prediction
        if metric:
            prediction = replace(prediction, measure=measure)
        if self.output == "prior":
            self._unit = measure.value
            prediction = with_prior_poses(prediction, T, measure.value)
        return prediction

    def place(
        self, window: Window, prediction: Prediction, joined: Alignment
    ) -> tuple[Prediction, Alignment]:
        """Where a window that was ``joined`` to the scene lies by the prior, with its poses."""
        T, hung = window.T_prior_camera, self._T_scene_prior
        if T is None or self.output != "prior":
            self._T_scene_prior = None
            return prediction, joined
        S = joined.T_scene_window
        if hung is None:
            if math.isfinite(self._unit):
                self._T_scene_prior = Similarity(S.scale / self._unit, S.R, S.t)
            return prediction, joined
        if not math.isfinite(
            self._unit
        ):  # it stands: the scene knows its unit, the prior its pose
            prediction = with_prior_poses(prediction, T, S.scale / hung.scale)
            return prediction, replace(joined, T_scene_window=Similarity(S.scale, hung.R, hung.t))
        at = Similarity(hung.scale * self._unit, hung.R, hung.t)
        return prediction, replace(joined, T_scene_window=at)
