"""What `make demo`, its picture in the README and their measurements share. Knows no ROS.

The room is held out: the weights that ship were trained on rooms of other seeds
(`training/data.py`). The network's size is the largest that they were trained at.
"""

from __future__ import annotations

from typing import Any

from da3_ros.synthetic import Pace, SyntheticCamera

SEED, FRAMES = 42, 30
WALK, SIZE = "loop", (504, 378)
RATE_HZ = 1.5  # slow enough that two cores keep up: the demo wants to show every frame
PACE = Pace(RATE_HZ, 0.3, 9.0)  # round a small loop, always looking at one side of the room
NETWORK_SIZE = (224, 168)
PARAMETERS: dict[str, Any] = {
    "model": "da3-tiny",
    "process_res": NETWORK_SIZE[0],
    "window.size": 6,
    "map.voxel_m": 0.01,  # of the first window's unit: the mean distance of what its view sees
}


def demo_camera(size: tuple[int, int] = SIZE) -> SyntheticCamera:
    """The camera of the demo, without ROS around it."""
    return SyntheticCamera(SEED, size, walk=WALK, frames=FRAMES, rate_hz=RATE_HZ, pace=PACE)
