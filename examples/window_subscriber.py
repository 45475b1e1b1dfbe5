"""A subscriber of `~/window`: how far the camera moved, for a SLAM or an odometry of your own.

ROS_DOMAIN_ID=7 make demo       # or any launch file of da3_ros
ROS_DOMAIN_ID=7 python examples/window_subscriber.py       # first, in another shell

Prints a line per window: the motion from the last view that it shares with earlier windows to its
newest one, in the axes of the former's camera (x right, y down, z forward). Both poses are those
of the map after the window: a loop that moves the map between two windows is in no motion.
"""

import math

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from da3_ros.geometry.poses import invert_pose, matrix_from_quaternion
from da3_ros.msg import FramePose, Window


def T_map_camera(frame: FramePose) -> np.ndarray:
    """The pose [4, 4]; metres if the window has a scale, else the scene's own unit."""
    p, q = frame.pose.position, frame.pose.orientation
    T = np.eye(4)
    T[:3, :3] = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
    T[:3, 3] = p.x, p.y, p.z
    return T


def line(window: Window) -> str:
    """What a window says in one line."""
    shared = max(len(window.frames) - window.new_frames - 1, 0)
    motion = invert_pose(T_map_camera(window.frames[shared])) @ T_map_camera(window.frames[-1])
    unit = "units" if math.isnan(window.scale) else "m"
    x, y, z = motion[:3, 3]
    placed = "aligned" if window.aligned else "NOT aligned: the motion is extrapolated"
    return f"window {window.id}: moved ({x:+.3f}, {y:+.3f}, {z:+.3f}) {unit}, {placed}"


class Windows(Node):
    def __init__(self) -> None:
        super().__init__("window_subscriber")
        self.create_subscription(Window, "/da3/window", lambda w: print(line(w), flush=True), 10)


if __name__ == "__main__":
    rclpy.init()
    try:
        rclpy.spin(Windows())
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        rclpy.try_shutdown()
