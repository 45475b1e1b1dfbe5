"""Global poses of the robot (tags, GNSS, docks), as the frames get them.

The same live and in a replay. No ROS, no network.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from da3_ros.sensors.transform_tree import JUMP_S, TransformError, TransformTree
from da3_ros.types import Array, GlobalPose

MOST = 1000  # that wait for frames
GOES_ON_S = 10.0  # time of poses before a jump of all stamps that may come after the last frame
AHEAD_S = 60.0  # of the newest frame, live: later stamps are of another clock


@dataclass(frozen=True, eq=False)
class GivenPose:
    """A pose of the robot's base in a frame, as a message says it."""

    stamp_ns: int
    frame: str
    T_frame_base: Array  # [4, 4] metres
    covariance: Array  # [6, 6] as in ``GlobalPose``, in the axes of the frame


@dataclass
class _Waiting:
    """What a camera has not got yet."""

    # In the order of their stamps, between jumps of these; the first ones are of the frames now.
    runs: list[deque[GivenPose]]
    last_ns: int  # stamp of the camera's newest frame

    def note_frame(self, stamp_ns: int) -> None:
        """Notes a frame. If its stamp jumps back, those that wait for a later frame do so in
        vain; live, some of the time after the jump may be there already. If a recording goes on
        for long, the stamp is wrong."""
        newest_ns = self.runs[0][-1].stamp_ns if self.runs[0] else 0
        goes_on = newest_ns > self.last_ns + GOES_ON_S * 1e9
        if stamp_ns < self.last_ns - JUMP_S * 1e9 and not goes_on:
            old, self.runs = self.runs[0], self.runs[1:]
            if not self.runs:
                self.runs = [in_order(g for g in old if g.stamp_ns <= self.last_ns)]
        self.last_ns = stamp_ns


class GlobalPoses:
    """Global poses in the order of their stamps; each camera gets each one once."""

    def __init__(
        self, transforms: TransformTree, map_frame: str, odom_frame: str, base_frame: str, *,
        leading: str = "", shared: bool = False,
    ) -> None:  # fmt: skip
        """base_frame: whose poses they are; empty: those of the leading camera. leading: name of
        the first of several cameras. shared: whether all cameras have one scene."""
        self._transforms = transforms
        self._map, self._odom, self._base = (
            name.lstrip("/") for name in (map_frame, odom_frame, base_frame)
        )
        self._leading, self._shared = leading, shared
        self._given: list[list[GivenPose]] = [[]]  # before the first frame; as ``_Waiting.runs``
        self._live = False  # whether they come one by one
        self._waiting: dict[str, _Waiting] = {}  # by camera
        self._lock = threading.Lock()  # callbacks add while a worker reads

    def add(self, given: GivenPose) -> None:
        """Adds one that has come."""
        with self._lock:
            self._given[-1] = [*self._given[-1][1 - MOST :], given]
            self._live = True
            for waiting in self._waiting.values():
                waiting.runs[-1] = in_order((*waiting.runs[-1], given), MOST)

    def set_all(self, given: Sequence[GivenPose], recorded_ns: Sequence[int] = ()) -> None:
        """Takes those of a whole recording, in its order. recorded_ns: when they were recorded,
        which shows whether the stamps of all jump back; none: they do not."""
        with self._lock:
            self._given = runs_of(given, recorded_ns or [g.stamp_ns for g in given])

    def until(
        self, camera: str, frame_id: str, stamp_ns: int
    ) -> tuple[tuple[GlobalPose, ...], str]:
        """Returns those up to the stamp of a camera's frame that it has not got yet, and why
        others cannot be used ("": all can).

        frame_id: its optical frame.
        """
        due, found, why = [], [], ""
        if self._shared and not self._base and camera != self._leading:
            return (), ""  # that of the leading camera says where the scene is
        with self._lock:
            if camera not in self._waiting:
                self._waiting[camera] = _Waiting(list(map(in_order, self._given)), stamp_ns)
            self._waiting[camera].note_frame(stamp_ns)
            waiting = self._waiting[camera].runs[0]
            while waiting and waiting[0].stamp_ns <= stamp_ns:
                due.append(waiting.popleft())
            ahead_s = (waiting[0].stamp_ns - stamp_ns) / 1e9 if self._live and waiting else 0.0
        if ahead_s > AHEAD_S:
            why = (
                f"its stamp is {ahead_s:.0f} s later than that of the image: the clocks of both "
                "must be the same"
            )
        for given in due:
            try:
                found.append(self._placed(given, camera, frame_id))
            except TransformError as error:
                why = str(error)
        return tuple(found), why

    def _placed(self, given: GivenPose, camera: str, frame_id: str) -> GlobalPose:
        """Returns a pose in the map. Raises TransformError."""
        if not self._base and camera != self._leading:
            raise TransformError(
                f"without base_frame it is the pose of camera {self._leading}, and not that of "
                f"{camera}: set base_frame"
            )
        if given.frame == self._odom != self._map:
            raise TransformError(
                f"it is in '{given.frame}', which drifts: it must be in '{self._map}', or in a "
                "frame that a transform places there"
            )
        T_map_frame, T_base_camera = np.eye(4), np.eye(4)
        if given.frame != self._map:
            T_map_frame = self._transforms.lookup(self._map, given.frame, given.stamp_ns)
        if self._base:
            T_base_camera = self._transforms.lookup(self._base, frame_id, given.stamp_ns)
        turn = np.kron(np.eye(2), T_map_frame[:3, :3])
        covariance = turn @ given.covariance @ turn.T
        return GlobalPose(
            given.stamp_ns, T_map_frame @ given.T_frame_base, covariance, T_base_camera
        )


def runs_of(given: Sequence[GivenPose], recorded_ns: Sequence[int]) -> list[list[GivenPose]]:
    """Returns the poses of a recording, divided where stamps go back, and all from there on are
    farther behind the time of recording: a clock was set, or a player began anew. Some may come
    late, and all from some pose on, if what measures them becomes slower."""
    if not given:
        return [[]]
    stamps = np.array([g.stamp_ns for g in given], np.int64)
    late = np.array(recorded_ns, np.int64) - stamps
    least = np.minimum.accumulate(late[::-1])[::-1]  # of each and those after it
    # The last one alone may be late.
    goes_back = stamps[1:] < np.maximum.accumulate(stamps)[:-1]
    begins = 1 + np.flatnonzero(goes_back[:-1] & (least[1:-1] > late[:-2] + JUMP_S * 1e9))
    bounds = [0, *begins.tolist(), len(given)]
    return [list(given[a:b]) for a, b in itertools.pairwise(bounds)]


def in_order(given: Iterable[GivenPose], most: int | None = None) -> deque[GivenPose]:
    """Returns poses in the order of their stamps; the newest ones, if there are too many."""
    return deque(sorted(given, key=lambda one: one.stamp_ns), most)
