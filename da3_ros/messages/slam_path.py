"""Reads the corrected path of another SLAM, live or recorded. No middleware."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.messages.decode import stamp_ns
from da3_ros.types import Array, SlamPath

PATH = "nav_msgs/msg/Path"
TOPIC = "slam_path"
MOST_LATE_NS = 600 * 10**9  # a header that is later than the path by more has another clock


class SlamPathError(ValueError):
    """A path cannot be followed; one line with the cause and a remedy."""


class PathReader:
    """Turns messages nav_msgs/Path of one topic into paths in one frame."""

    def __init__(self, map_frame: str = "") -> None:
        """map_frame: of all paths; empty: that of the first one."""
        self._frame = map_frame.lstrip("/")
        self._count = 0

    def read(self, message: Any) -> tuple[SlamPath, str]:
        """Returns the path, and a line about poses that are left out (empty: none are).

        Raises SlamPathError.
        """
        self._check_frames(message)
        stamps = np.array([stamp_ns(p.header.stamp) for p in message.poses], np.int64)
        numbers = np.array([_numbers(p.pose) for p in message.poses], np.float64).reshape(-1, 7)
        if not len(stamps):
            raise SlamPathError("it has no poses yet")
        usable = np.isfinite(numbers).all(axis=1) & (numbers[:, 3:] != 0).any(axis=1)
        note = _note(int((~usable).sum()), len(usable), "are not finite")
        stamps, numbers = stamps[usable], numbers[usable]
        if not len(stamps):
            raise SlamPathError(f"none of its {len(usable)} poses is finite")
        _check_order(stamps)
        last = np.append(np.diff(stamps) > 0, True)
        note = note or _note(int((~last).sum()), len(last), "have the stamp of a later one")
        stamps, numbers = stamps[last], numbers[last]
        self._frame = self._frame or message.header.frame_id.lstrip("/")
        self._count += 1
        sent, newest = stamp_ns(message.header.stamp), int(stamps[-1])
        sent = sent if 0 <= sent - newest < MOST_LATE_NS else newest
        return SlamPath(self._count, sent, stamps, _poses(numbers)), note

    def _check_frames(self, message: Any) -> None:
        frame = message.header.frame_id.lstrip("/")
        expected = self._frame or frame
        own = {pose.header.frame_id.lstrip("/") for pose in message.poses} - {""}
        wrong = sorted(({frame} | own) - {expected})
        if wrong or not expected:
            raise SlamPathError(
                f"it is in the frame '{wrong[0] if wrong else ''}', not in "
                f"'{expected or 'any map'}': all paths must be in one frame, which "
                "pose_prior.map_frame can name"
            )


def _check_order(stamps: Array) -> None:
    """Raises SlamPathError if the stamps do not tell when the poses were."""
    if (np.diff(stamps) < 0).any():
        raise SlamPathError("its stamps go back: the stamps of its poses must ascend")
    if stamps[-1] <= 0 or (len(stamps) > 1 and stamps[0] == stamps[-1]):
        raise SlamPathError(
            f"its {len(stamps)} poses all have the stamp {stamps[0] / 1e9:.3f} s: each needs its "
            "own, that of the image or scan"
        )


def _numbers(pose: Any) -> tuple[float, ...]:
    p, q = pose.position, pose.orientation
    return p.x, p.y, p.z, q.x, q.y, q.z, q.w


def _poses(numbers: Array) -> Array:
    """Returns poses [N, 4, 4] of positions and quaternions [N, 7]."""
    out = np.tile(np.eye(4), (len(numbers), 1, 1))
    out[:, :3, 3] = numbers[:, :3]
    out[:, :3, :3] = Rotation.from_quat(numbers[:, 3:]).as_matrix()
    return out


def _note(count: int, of: int, what: str) -> str:
    return f"{count} of its {of} poses {what} and are left out" if count else ""
