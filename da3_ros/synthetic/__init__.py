"""Rendered rooms with exact depth, poses and intrinsics: demo camera, truth, training data.

Independent of ROS, the network and the pipeline.
"""

from da3_ros.synthetic.camera import SyntheticCamera, SyntheticFrame, intrinsics
from da3_ros.synthetic.renderer import SKY, Rendering, render, render_batch
from da3_ros.synthetic.rooms import (
    Room,
    RoomBatch,
    clearance,
    distance_to_surface,
    make_ring,
    make_room,
    stack_rooms,
    view_distance,
)
from da3_ros.synthetic.walks import WALKS, Pace, make_walk, ring_walk

__all__ = [
    "SKY",
    "WALKS",
    "Pace",
    "Rendering",
    "Room",
    "RoomBatch",
    "SyntheticCamera",
    "SyntheticFrame",
    "clearance",
    "distance_to_surface",
    "intrinsics",
    "make_ring",
    "make_room",
    "make_walk",
    "render",
    "render_batch",
    "ring_walk",
    "stack_rooms",
    "view_distance",
]
