"""Where the camera has been: a bounded list of poses, and the TUM trajectory format."""

from __future__ import annotations

from dataclasses import dataclass

from da3_ros.geometry import quaternion_from_matrix
from da3_ros.types import Array, TrackedFrame

MAX_POSES = 100_000


@dataclass(frozen=True, eq=False)
class Pose:
    """One camera pose in the scene."""

    stamp_ns: int
    T_world_camera: Array  # [4, 4]
    K: Array  # [3, 3] corner rule
    size: tuple[int, int]  # (width, height) that K belongs to
    keyframe: bool


class Trajectory:
    """Poses in stamp order; when full, every second one that is no keyframe goes, then any."""

    def __init__(self, max_poses: int = MAX_POSES) -> None:
        self.max_poses = max_poses
        self.poses: list[Pose] = []

    def add(self, frame: TrackedFrame) -> None:
        """Append the pose of a delivered frame."""
        height, width = frame.depth_m.shape
        self.poses.append(
            Pose(frame.stamp_ns, frame.T_world_camera, frame.K, (width, height), frame.keyframe)
        )
        if len(self.poses) > self.max_poses:
            thinned = [p for i, p in enumerate(self.poses) if p.keyframe or i % 2 == 0]
            self.poses = thinned if len(thinned) <= self.max_poses else self.poses[::2]


def tum_line(stamp_ns: int, T_map_camera: Array) -> str:
    """``timestamp tx ty tz qx qy qz qw`` of the optical camera in the map frame, stamps exact.

    Format: TUM RGB-D benchmark. Seconds are written from the integer nanoseconds.
    """
    q = quaternion_from_matrix(T_map_camera[:3, :3])
    numbers = " ".join(f"{v:.9f}" for v in (*T_map_camera[:3, 3], *q))
    return f"{stamp_ns // 10**9}.{stamp_ns % 10**9:09d} {numbers}\n"
