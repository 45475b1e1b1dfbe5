"""Global poses of the robot (tags, GNSS, docks), as the frames get them.

The same live and in a replay. No ROS, no network.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import Array, GlobalPose

MOST = 1000  # that wait for frames


@dataclass(frozen=True, eq=False)
class GivenPose:
    """A pose of the robot's base in a frame, as a message says it."""

    stamp_ns: int
    frame: str
    T_frame_base: Array  # [4, 4] metres
    covariance: Array  # [6, 6] as in ``GlobalPose``, in the axes of the frame


class GlobalPoses:
    """Global poses in the order of their stamps; each camera gets each one once."""

    def __init__(
        self, transforms: TransformTree, map_frame: str, odom_frame: str, base_frame: str
    ) -> None:
        """base_frame: whose poses they are; empty: those of the camera."""
        self._transforms = transforms
        self._map, self._odom, self._base = (
            name.lstrip("/") for name in (map_frame, odom_frame, base_frame)
        )
        self._given: list[GivenPose] = []  # before the first frame
        self._waiting: dict[str, deque[GivenPose]] = {}  # by camera, in the order of their stamps
        self._lock = threading.Lock()  # callbacks add while a worker reads

    def add(self, given: GivenPose) -> None:
        """Adds one that has come."""
        with self._lock:
            self._given = [*self._given[1 - MOST :], given]
            for camera, waiting in self._waiting.items():
                self._waiting[camera] = in_order((*waiting, given), MOST)

    def set_all(self, given: Iterable[GivenPose]) -> None:
        """Takes those of a whole recording."""
        with self._lock:
            self._given = list(given)

    def until(
        self, camera: str, frame_id: str, stamp_ns: int
    ) -> tuple[tuple[GlobalPose, ...], str]:
        """Returns those up to the stamp of a camera's frame that it has not got yet, and why
        others cannot be used ("": all can).

        frame_id: its optical frame.
        """
        due, found, why = [], [], ""
        with self._lock:
            if camera not in self._waiting:
                self._waiting[camera] = in_order(self._given)
            waiting = self._waiting[camera]
            while waiting and waiting[0].stamp_ns <= stamp_ns:
                due.append(waiting.popleft())
        for given in due:
            try:
                found.append(self._placed(given, frame_id))
            except TransformError as error:
                why = str(error)
        return tuple(found), why

    def _placed(self, given: GivenPose, frame_id: str) -> GlobalPose:
        """Returns a pose in the map. Raises TransformError."""
        if given.frame == self._odom:
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


def in_order(given: Iterable[GivenPose], most: int | None = None) -> deque[GivenPose]:
    """Returns poses in the order of their stamps; the newest ones, if there are too many."""
    return deque(sorted(given, key=lambda one: one.stamp_ns), most)
