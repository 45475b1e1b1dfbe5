"""Returns of range sensors (LiDAR, laser scanner, range finder) as a camera sees them at a frame's
stamp.

Each return is moved by what the robot has moved between its own stamp and the frame's. The same
live and in a replay. No ROS, no network.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import invert_pose
from da3_ros.sensors.pose_prior import PosePrior, PriorError
from da3_ros.sensors.transform_tree import JUMP_S, TransformError, TransformTree
from da3_ros.types import Array, FloatImage, Frame, RangeCone, RangeReturns

MOST_APART_NS = 250_000_000  # between a message and a frame that it is used for
# The robot's motion is ignored for so long: while its poses are late, or where nothing tells them.
HELD_NS = 50_000_000
STEP_NS = 2_000_000  # returns of so long a time get one pose
KEEP_S = 5.0  # messages of a topic that are kept
KEEP_BYTES = 128 << 20  # of them
MOST_RETURNS = 20_000  # of a frame, spread evenly
NEAREST_M = 0.05  # to the camera's plane
MARGIN = 0.5  # of an image's size, by which a return may be beside it before its motion is known
WIDEST = 3.0  # tangent of the angle from the optical axis, where the image's K is unknown
WARNING_PERIOD_S = 5.0


class RangeError(ValueError):
    """A message of a range sensor that cannot be used; one line with the cause."""


@dataclass(frozen=True, eq=False)
class RangeScan:
    """The returns of one message."""

    frame_id: str  # of the sensor
    stamp_ns: int
    points: FloatImage  # [N, 3] sensor's axes, metres
    stamps_ns: NDArray[np.int64] | None = None  # [N] of each return; None: all that of the message
    half_angle: float = 0.0  # of the cone around each return, rad; 0: they are points
    note: str = ""  # what was wrong with it; empty: nothing


Read = Callable[[], RangeScan]  # raises RangeError


class RangeHistory:
    """The newest messages of one topic, by stamp; they are read when a frame asks for them."""

    def __init__(self, keep_s: float = KEEP_S, keep_bytes: int = KEEP_BYTES) -> None:
        self._keep_ns, self._keep_bytes = int(keep_s * 1e9), keep_bytes
        self._messages: list[tuple[int, Read, int]] = []
        self._bytes = 0
        self._newest: tuple[int, RangeScan] | None = None  # read last, by stamp
        self._lock = threading.Lock()  # callbacks add while a worker reads

    def add(self, stamp_ns: int, read: Read, nbytes: int) -> None:
        """Adds a message of a size; the oldest are forgotten. A jump back begins anew."""
        with self._lock:
            if self._messages and stamp_ns < self._messages[-1][0] - JUMP_S * 1e9:
                self._messages, self._bytes, self._newest = [], 0, None
            at = bisect_left(self._messages, stamp_ns, key=lambda item: item[0])
            self._messages.insert(at, (stamp_ns, read, nbytes))
            self._bytes += nbytes
            while len(self._messages) > 1 and (
                self._bytes > self._keep_bytes
                or self._messages[0][0] < self._messages[-1][0] - self._keep_ns
            ):
                self._bytes -= self._messages.pop(0)[2]

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest message; None without any."""
        with self._lock:
            return self._messages[-1][0] if self._messages else None

    def nearest(self, stamp_ns: int) -> RangeScan | None:
        """Returns what the message nearest to a stamp says; None if none is near.

        Raises RangeError.
        """
        with self._lock:
            near = min(self._messages, key=lambda m: abs(m[0] - stamp_ns), default=None)
        if near is None or abs(near[0] - stamp_ns) > MOST_APART_NS:
            return None
        if self._newest is None or self._newest[0] != near[0]:
            self._newest = near[0], near[1]()
        return self._newest[1]


class RangeSensors:
    """The range sensors of a robot, by topic. ``counts``: frames and messages by what became of
    them; ``returns`` and ``age_s``: of the newest frame."""

    def __init__(
        self,
        topics: Sequence[str],
        transforms: TransformTree,
        fixed_frame: str,
        warn: Callable[..., None],
        prior: PosePrior | None = None,
    ) -> None:
        """fixed_frame: in which the robot's motion is known by ``transforms``, if it is. prior:
        the robot's own poses, where transforms do not tell them. warn: as in ``FrameAnnotator``.
        """
        self.topics = {name: RangeHistory() for name in topics}
        self.counts = Counter[str]()
        self.returns, self.age_s = 0, float("nan")
        self._transforms, self._fixed, self._prior = transforms, fixed_frame, prior
        self._warn = warn
        self._frames_ns: dict[str, int] = {}  # stamp of the newest frame, by camera
        # Jumps back of the stamps in a recording: by topic, and the number of all that the newest
        # frame of each camera is behind.
        self._jumps: dict[str, int] = {}
        self._passed: dict[str, int] = {}
        # Called before the messages of a frame are looked for: a recording reads on. Gets its
        # stamp, from where that has jumped back or None, and ``_jumps``; returns ``_jumps``.
        self.feed: Callable[[int, int | None, dict[str, int]], dict[str, int]] = (
            lambda stamp_ns, before_ns, jumps: jumps
        )

    def at(self, frame: Frame) -> RangeReturns | None:
        """Returns what the sensors measured around a frame, from its camera; None: nothing."""
        self._read_on(frame.camera, frame.stamp_ns)
        found = [r for topic in self.topics if (r := self._of_topic(topic, frame)) is not None]
        points = [r.points for r in found]
        kept = _evenly(np.concatenate(points)) if points else np.zeros((0, 3), np.float32)
        cones = tuple(cone for r in found for cone in r.cones)
        self.returns = len(kept) + len(cones)
        self.counts["frames_with_returns"] += self.returns > 0
        return RangeReturns(kept, cones) if self.returns else None

    def _read_on(self, camera: str, stamp_ns: int) -> None:
        before, jumps = self._frames_ns.get(camera), sum(self._jumps.values())
        self._frames_ns[camera] = stamp_ns
        if before is None or stamp_ns >= before - JUMP_S * 1e9:
            before = None
        if self._passed.get(camera, jumps) != jumps:  # by frames of another camera
            there = [self._frames_ns[name] for name, n in self._passed.items() if n == jumps]
            if before is None and stamp_ns > max(there, default=stamp_ns) + JUMP_S * 1e9:
                return  # of before the jump
            before = None
        self._jumps = self.feed(stamp_ns, before, self._jumps)
        self._passed[camera] = sum(self._jumps.values())

    def _of_topic(self, topic: str, frame: Frame) -> RangeReturns | None:
        """Returns what a topic's nearest message says; None, counted and warned of, for none."""
        history = self.topics[topic]
        try:
            scan = history.nearest(frame.stamp_ns)
            if scan is None:
                self._drop(topic, frame, "late", _why_late(history, frame.stamp_ns))
                return None
            if scan.note:
                self._warn(f"{topic}: {scan.note}", every_s=WARNING_PERIOD_S)
            if not len(scan.points):
                return None  # nothing is in reach
            found = self._seen(scan, frame)
        except RangeError as error:
            self._drop(topic, frame, "unreadable", f"a message is not used: {error}")
            return None
        except TransformError as error:
            self._drop(topic, frame, "no_transform", f"where its returns are is unknown: {error}")
            return None
        self.age_s = (frame.stamp_ns - scan.stamp_ns) / 1e9
        if not len(found.points) and not found.cones:
            self._drop(topic, frame, "unseen", "none of its returns is in the image")
            return None
        return found

    def _drop(self, topic: str, frame: Frame, cause: str, text: str) -> None:
        """Counts a message that gives nothing, and warns of it."""
        self.counts[f"ranges_{cause}"] += 1
        where = f" for camera {frame.camera}" if frame.camera else ""
        self._warn(f"no returns of {topic}{where}: {text}", every_s=WARNING_PERIOD_S)

    def _seen(self, scan: RangeScan, frame: Frame) -> RangeReturns:
        """Returns what of a scan is before the camera. Raises TransformError."""
        if scan.half_angle:
            cones = [self._cone(scan, i, frame) for i in range(len(scan.points))]
            before = tuple(c for c in cones if c.axis[2] > 0)
            return RangeReturns(np.zeros((0, 3), np.float32), before)
        points = self._placed(self._thinned(scan, frame), frame)
        return RangeReturns(points[_before(points, frame)])

    def _cone(self, scan: RangeScan, index: int, frame: Frame) -> RangeCone:
        T, distance = self._pose(scan, scan.stamp_ns, frame), scan.points[index].astype(np.float64)
        metres = float(np.linalg.norm(distance))
        return RangeCone(T[:3, 3], T[:3, :3] @ distance / metres, scan.half_angle, metres)

    def _thinned(self, scan: RangeScan, frame: Frame) -> RangeScan:
        """Returns those of many returns that may be in the image, spread evenly, before each gets
        a pose of its own, which takes time."""
        if scan.stamps_ns is None or len(scan.points) <= 2 * MOST_RETURNS:
            return scan
        try:
            T = self._pose(scan, int(np.median(scan.stamps_ns)), frame).astype(np.float32)
        except TransformError:  # others may have theirs
            return scan
        near = _before(scan.points @ T[:3, :3].T + T[:3, 3], frame, MARGIN)
        kept = _evenly(np.flatnonzero(near), 2 * MOST_RETURNS)
        return replace(scan, points=scan.points[kept], stamps_ns=scan.stamps_ns[kept])

    def _placed(self, scan: RangeScan, frame: Frame) -> FloatImage:
        """Returns the points [N, 3] in the camera's axes at the frame's stamp."""
        if scan.stamps_ns is None:
            T = self._pose(scan, scan.stamp_ns, frame)
            return (scan.points @ T[:3, :3].T + T[:3, 3]).astype(np.float32)
        steps, which = np.unique(scan.stamps_ns // STEP_NS, return_inverse=True)
        poses = np.full((len(steps), 4, 4), np.nan)
        missing: TransformError | None = None
        for i, step in enumerate(steps.tolist()):
            try:
                poses[i] = self._pose(scan, step * STEP_NS + STEP_NS // 2, frame)
            except TransformError as error:  # the others may have theirs
                missing = error
        if missing is not None and not np.isfinite(poses).any():
            raise missing
        T = poses[which]
        points = np.einsum("nij,nj->ni", T[:, :3, :3], scan.points) + T[:, :3, 3]
        return points[np.isfinite(points).all(axis=1)].astype(np.float32)

    def _pose(self, scan: RangeScan, stamp_ns: int, frame: Frame) -> Array:
        """Returns the sensor's pose [4, 4] at a stamp in the camera at the frame's stamp.

        By transforms, else by the robot's own poses; by the mount alone where both stamps are
        near. Raises TransformError.
        """
        try:
            T_fixed_camera = self._lookup(self._fixed, frame.frame_id, frame.stamp_ns)
            return invert_pose(T_fixed_camera) @ self._lookup(self._fixed, scan.frame_id, stamp_ns)
        except TransformError:
            pass  # nothing tells the motion, or not the mount
        mount = self._lookup(frame.frame_id, scan.frame_id, stamp_ns)
        apart_ns = abs(stamp_ns - frame.stamp_ns)
        if self._prior is not None:
            try:
                T = self._prior.camera(frame.frame_id, stamp_ns)
                return invert_pose(self._prior.camera(frame.frame_id, frame.stamp_ns)) @ T @ mount
            except PriorError:
                pass
        if apart_ns > HELD_NS:
            raise TransformError(
                f"they are {apart_ns / 1e9:.3f} s from the image, and no transform from "
                f"{self._fixed!r} (odom_frame) tells how the robot moved meanwhile"
            )
        return mount

    def _lookup(self, target: str, source: str, stamp_ns: int) -> Array:
        """Returns ``T_target_source`` [4, 4]; the newest where it is a little late."""
        newest = self._transforms.newest(target, source)
        if newest is not None and 0 < stamp_ns - newest <= HELD_NS:
            stamp_ns = newest
        return self._transforms.lookup(target, source, stamp_ns)


def _why_late(history: RangeHistory, stamp_ns: int) -> str:
    newest = history.newest_ns
    if newest is None:
        return "nothing was received yet"
    return (
        f"none is within {MOST_APART_NS / 1e9:.2f} s of the image; the newest is "
        f"{(stamp_ns - newest) / 1e9:.2f} s older"
    )


def _before(points: FloatImage, frame: Frame, margin: float = 0.0) -> NDArray[np.bool_]:
    """Returns which points [N] are in the image, as far as its K is known. margin: of its size,
    by which they may be beside it."""
    z = np.maximum(points[:, 2], NEAREST_M)
    at, ready = points[:, :2] / z[:, None], frame.ready
    if ready is None or ready.K is None:
        inside = (np.abs(at) < WIDEST).all(axis=1)
    else:
        size = np.array(ready.image.shape[1::-1])
        pixel = (np.concatenate([at, np.ones_like(at[:, :1])], axis=1) @ ready.K.T)[:, :2]
        inside = ((pixel >= -margin * size) & (pixel < (1 + margin) * size)).all(axis=1)
    return np.asarray(inside & (points[:, 2] > NEAREST_M))


def _evenly(values: NDArray[Any], most: int = MOST_RETURNS) -> NDArray[Any]:
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(int)]
