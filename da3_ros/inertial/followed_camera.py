"""Which camera of a rig the samples of an IMU are compared with.

What an IMU measures is given in the axes of each camera, with the arm to it. A path of one camera
and the stretches of another one do not belong together.
"""

from __future__ import annotations

UNSEEN_NS = 3 * 10**9  # after which another camera is followed


class FollowedCamera:
    """The camera that was there first; another one if that has not been seen for a while."""

    def __init__(self) -> None:
        self.name: str | None = None  # None: there was none yet
        self._seen_ns = 0

    def admits(self, camera: str, stamp_ns: int) -> bool:
        """Adds a frame of a camera; returns whether it counts. A new ``name`` begins a new
        path."""
        if camera != self.name:
            if self.name is not None and abs(stamp_ns - self._seen_ns) < UNSEEN_NS:
                return False
            self.name = camera
        self._seen_ns = stamp_ns
        return True
