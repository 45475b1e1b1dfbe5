"""A box that crosses the view of a synthetic camera: a rendered box, with its exact positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from da3_ros.synthetic.camera import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.renderer import render_batch
from da3_ros.synthetic.rooms import Room, distance_to_surface
from da3_ros.types import Array

HALF = (0.22, 0.22, 0.8)  # half extents of the box, metres: a person's
AHEAD_M = 1.8  # distance at which it crosses the view
FACES = slice(6, 12)  # faces of a room's first box, whose material it has


@dataclass(frozen=True, eq=False)
class Crossing:
    """Frames in which a box moves for a while, and where it was."""

    frames: list[SyntheticFrame]
    room: Room  # without the box
    rooms: Sequence[Room]  # with it, one per frame in which it moved
    sees: Array  # [N] share of each frame's pixels that show it

    def distance_to_box(self, points: Array) -> Array:
        """Returns distances [M], metres, of points [M, 3] of the room to the box's surface at
        the nearest of its positions."""
        nearest = np.full(len(points), np.inf)
        for room in self.rooms:
            alone = replace(
                room,
                centre=_ends(room.centre),
                half=_ends(room.half) * torch.tensor([[1000.0], [1.0]]),  # walls: out of reach
                yaw=_ends(room.yaw),
            )
            np.minimum(nearest, distance_to_surface(alone, points), out=nearest)
        return nearest


def crossing(camera: SyntheticCamera, first: int, last: int, sweeps: float = 1.0) -> Crossing:
    """Returns the camera's frames with a box that crosses its view, there and back for 2 sweeps.

    first, last: frames in which it is in the room.
    """
    frames, rooms, sees = list(camera), [], np.zeros(len(camera))
    middle = camera.T_room_camera[(first + last) // 2]
    ahead = middle[:3, 2] * (1, 1, 0)
    ahead /= np.linalg.norm(ahead)
    aside = np.cross(ahead, (0, 0, 1))
    for i in range(first, last + 1):
        phase = sweeps * (i - first) / max(last - first, 1)
        across = 1 - 4 * abs(0.5 * phase - round(0.5 * phase))  # 1 to -1 and back
        centre = middle[:3, 3] + AHEAD_M * ahead + 1.6 * across * aside
        room = _with_box(camera.room, centre[:2])
        seen = render_batch([room], frames[i].T_room_camera[None], camera.K, camera.size)
        box = (seen.surface // 6 == room.boxes).numpy()[0]
        image, depth = frames[i].image.copy(), frames[i].depth.copy()
        image[box], depth[box] = seen.image.numpy()[0][box], seen.depth.numpy()[0][box]
        frames[i] = replace(frames[i], image=image, depth=depth)
        rooms.append(room)
        sees[i] = box.mean()
    return Crossing(frames, camera.room, rooms, sees)


def _ends(blocks: torch.Tensor) -> torch.Tensor:
    """Returns the values of the room itself and of its last box."""
    return torch.cat([blocks[:1], blocks[-1:]])


def _with_box(room: Room, position: Array) -> Room:
    """Returns the room with one more box, which stands on the floor at ``position`` [2]."""
    centre = torch.tensor([[*position, HALF[2]]], dtype=torch.float64)
    return replace(
        room,
        centre=torch.cat([room.centre, centre]),
        half=torch.cat([room.half, torch.tensor([HALF], dtype=torch.float64)]),
        yaw=torch.cat([room.yaw, torch.zeros(1, dtype=torch.float64)]),
        material=torch.cat([room.material, room.material[FACES]]),
        texture_seed=torch.cat([room.texture_seed, room.texture_seed[FACES]]),
    )
