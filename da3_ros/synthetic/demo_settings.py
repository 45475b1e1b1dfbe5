"""Settings shared by `make demo`, its image in the README and their measurements; no ROS.

The room is held out: the shipped weights were trained on rooms with other seeds
(`training/data.py`). The network's image size is the largest size used in training.
"""

from __future__ import annotations

from typing import Any

from da3_ros.synthetic import Pace, SyntheticCamera

SEED, FRAMES = 42, 30
WALK, SIZE = "loop", (504, 378)
RATE_HZ = 1.5  # slow enough for two cores: the demo processes every frame
PACE = Pace(RATE_HZ, 0.3, 9.0)  # a small loop, always looking at one side of the room
NETWORK_SIZE = (224, 168)
PARAMETERS: dict[str, Any] = {
    "model": "da3-tiny",
    "process_res": NETWORK_SIZE[0],
    "window.size": 6,
    "map.voxel_m": 0.01,  # in the first window's unit, the mean depth of its view
}


def demo_camera(size: tuple[int, int] = SIZE) -> SyntheticCamera:
    """The camera of the demo, without ROS."""
    return SyntheticCamera(SEED, size, walk=WALK, frames=FRAMES, rate_hz=RATE_HZ, pace=PACE)
