"""The subscriber of `~/window` prints what a running node says of each window."""

import math
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

import numpy as np
from support import ros_testing as rt

from da3_ros.messages import build
from da3_ros.ros.rclpy_library import RclpyLibrary

PROGRAM = Path(__file__).parents[2] / "examples" / "window_subscriber.py"
LIB = RclpyLibrary()
WINDOW, FRAME = (LIB.type(f"da3_ros/msg/{name}") for name in ("Window", "FramePose"))
TURNED = np.array([[0, 0, 1, 5], [-1, 0, 0, 6], [0, -1, 0, 7], [0, 0, 0, 1.0]])  # looks along x


def window(number, positions, new, scale):
    """Views that look along x in the map."""
    frames = []
    for position in positions:
        T = TURNED.copy()
        T[:3, 3] += position
        frames.append(FRAME(pose=build.pose(LIB, T)))
    return WINDOW(id=number, frames=frames, new_frames=new, scale=scale, aligned=number != 2)


@pytest.mark.process
def test_the_motion_since_the_newest_shared_view_is_printed():
    domain = rt.domain()
    program = rt.start(str(PROGRAM), env=rt.environment(domain))
    with program, rt.session(domain) as node:
        publisher = node.create_publisher(WINDOW, "/da3/window", rt.RELIABLE)

        def until_printed(message):
            """Sends it again: a subscriber sees its publisher later than the other way round."""

            def printed():
                publisher.publish(message)
                return f"window {message.id}:" in program.output()

            assert rt.spin_until(node, printed), program.output()

        until_printed(
            window(1, [(9, 9, 9), (0, 0, 0), (0.1, 0, 0), (0.3, 0.2, 0)], new=2, scale=1.5)
        )
        until_printed(window(2, [(0, 0, 0)], new=1, scale=math.nan))
        lines = re.findall(r"window \d.*", program.output())
        time.sleep(1.0)  # an interruption while rclpy takes a message ends in its RuntimeError
        assert program.stop() == 0, program.output()
    assert lines[0] == "window 1: moved (-0.200, +0.000, +0.300) m, aligned"
    still = "window 2: moved (+0.000, +0.000, +0.000) units"
    assert lines[-1] == f"{still}, NOT aligned: the motion is extrapolated"
