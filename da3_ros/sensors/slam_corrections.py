"""What another SLAM says about the prior's frame, at the stamp of a frame: jumps of a transform,
or its corrected path.

The same live and in a replay. No ROS, no network.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence

from da3_ros.sensors.pose_prior import PosePrior
from da3_ros.sensors.transform_tree import TransformError, TransformTree
from da3_ros.types import SlamPath, SlamPose


class SlamCorrections:
    """The corrections of another SLAM: by transforms (``tf``), or by its paths (``path``)."""

    def __init__(
        self, kind: str, map_frame: str, transforms: TransformTree, prior: PosePrior, base: str
    ) -> None:
        """map_frame: of the other SLAM. base: whose poses a path has, unless the prior says it."""
        self.kind, self.map_frame = kind, map_frame
        self._transforms, self._prior, self._base = transforms, prior, base
        self._paths: list[SlamPath] = []  # in the order of their stamps
        self._live = True  # whether only the newest path is held
        self._lock = threading.Lock()  # callbacks add while a worker reads

    def add_path(self, path: SlamPath) -> None:
        """Takes the newest path; it holds from now on."""
        with self._lock:
            self._paths, self._live = [path], True

    def set_paths(self, paths: Sequence[SlamPath]) -> None:
        """Takes all paths of a recording; each holds from its stamp on."""
        with self._lock:
            self._paths, self._live = sorted(paths, key=lambda path: path.stamp_ns), False

    def at(self, frame_id: str, stamp_ns: int) -> SlamPose:
        """Returns what holds for an optical frame at a stamp. Raises TransformError."""
        if self.kind == "tf":
            frame = self._prior.prior_frame
            return SlamPose(self._transforms.held(self.map_frame, frame, stamp_ns))
        base = (self._prior.source == "odometry" and self._prior.base_frame) or self._base
        if not base:
            raise TransformError("no odometry yet, whose child_frame_id a path's poses are of")
        T_base_camera = self._transforms.lookup(base, frame_id, stamp_ns)
        return SlamPose(path=self._path(stamp_ns), T_base_camera=T_base_camera)

    def _path(self, stamp_ns: int) -> SlamPath | None:
        with self._lock:
            if self._live:
                return self._paths[-1] if self._paths else None
            at = bisect_right(self._paths, stamp_ns, key=lambda path: path.stamp_ns)
            return self._paths[at - 1] if at else None
