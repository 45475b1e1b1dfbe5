"""Procedural rooms: geometry, surface materials, lights, and exact distances to the surfaces.

A room is a list of blocks. Block 0 is the room itself, seen from inside; the others are boxes,
seen from outside and rotated about the vertical. Face ``2 * axis + side`` of a block (side 0 is
the negative one) has coordinates (u, v): the two other local axes, in metres from the block's
centre. Metres, z up, floor at z = 0; the room is [0, X] x [0, Y] x [0, Z].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from da3_ros.types import Array

OTHER_AXES = ((1, 2), (0, 2), (0, 1))  # (u, v) axes of the faces across axis 0, 1, 2
COLUMNS = (
    # linear base colour; strength of each of the two noises
    *("red", "green", "blue"),
    *("even_r", "even_g", "even_b", "odd_r", "odd_g", "odd_b"),
    # noise: cells per metre of the coarsest octave, amplitude ratio of octaves
    *("frequency", "gain"),
    *("tile_frequency", "tile_tone", "joint_tone"),
    *("patch_frequency", "patch_share", "patch_strength"),
    # both lamps: position (u, v) and height above the face
    *("light0_u", "light0_v", "light0_n", "light1_u", "light1_v", "light1_n"),
    # darker towards |u - corner_u| = corner_hu, likewise v
    *("corner_u", "corner_hu", "corner_v", "corner_hv", "corner_strength"),
    *("window_u", "window_v", "window_hu", "window_hv"),
    "ambient",
)
COLUMN = {name: i for i, name in enumerate(COLUMNS)}
NO_WINDOW = (0.0, 0.0, -100.0, -100.0)


@dataclass(frozen=True, eq=False)
class Room:
    """A room with B boxes: 1 + B blocks, F = 6 (1 + B) faces."""

    seed: int
    centre: Tensor  # [1 + B, 3] float64 metres
    half: Tensor  # [1 + B, 3] float64 half extents along the local axes
    yaw: Tensor  # [1 + B] float64 radians about z; 0 for the room itself
    material: Tensor  # [F, len(COLUMNS)] float32
    texture_seed: Tensor  # [F] int32
    sky: Tensor  # [2, 3] float32 linear colours at the horizon and at the zenith

    @property
    def size(self) -> Array:
        """Room extents [3] in metres."""
        return 2.0 * self.half[0].cpu().numpy()

    @property
    def boxes(self) -> int:
        """Number of boxes."""
        return len(self.yaw) - 1


@dataclass(frozen=True, eq=False)
class RoomBatch:
    """S rooms stacked for rendering: Room with a leading axis S, padded with distant boxes."""

    centre: Tensor  # [S, 1 + B, 3]
    half: Tensor
    yaw: Tensor
    material: Tensor
    texture_seed: Tensor
    sky: Tensor

    def __len__(self) -> int:
        return len(self.yaw)

    def to(self, device: torch.device | str) -> RoomBatch:
        """The same rooms on another device."""
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def stack_rooms(rooms: Sequence[Room], device: torch.device | str = "cpu") -> RoomBatch:
    """Stack rooms so that cameras in different rooms are rendered together."""
    blocks = max(len(room.yaw) for room in rooms)

    def stack(name: str, per_block: int, value: float) -> Tensor:
        padded = []
        for room in rooms:
            tensor = getattr(room, name)
            missing = per_block * blocks - len(tensor)
            padded.append(
                torch.cat([tensor, tensor.new_full((missing, *tensor.shape[1:]), value)])
            )
        return torch.stack(padded).to(device)

    return RoomBatch(
        centre=stack("centre", 1, 1e6),
        half=stack("half", 1, 1e-3),
        yaw=stack("yaw", 1, 0.0),
        material=stack("material", 6, 1.0),
        texture_seed=stack("texture_seed", 6, 0),
        sky=torch.stack([room.sky for room in rooms]).to(device),
    )


# Making -----------------------------------------------------------------------------------------


def make_room(seed: int) -> Room:
    """Make a furnished room: boxes on floor, boxes and walls; windows, lights, textures.

    Equal seeds give equal rooms on all machines; seeds differ in size, furniture and appearance.
    """
    rng = np.random.default_rng([seed, 0x600D])
    size = np.array([rng.uniform(3.2, 8.0), rng.uniform(3.2, 8.0), rng.uniform(2.4, 3.6)])
    windows = _place_windows(rng, size)
    boxes = _place_boxes(rng, size, windows)
    return _finish(seed, rng, size, boxes, windows)


def make_ring(seed: int, width: float = 2.2) -> Room:
    """Make a closed rectangular corridor of ``width`` metres around a solid core.

    Walls, windows and furniture are random as in ``make_room``; see ``walks.ring_walk``.
    """
    rng = np.random.default_rng([seed, 0x21A6])
    size = np.array([rng.uniform(9.0, 12.0), rng.uniform(9.0, 12.0), rng.uniform(2.4, 3.0)])
    windows = _place_windows(rng, size)
    windows.pop(5, None)  # the core reaches the ceiling
    core = _Box(size / 2, np.array([*(size[:2] / 2 - width), size[2] / 2]), 0.0)
    boxes = [core]
    openings = [_opening(face, window, size) for face, window in windows.items()]
    for _ in range(60):
        box = _wall_box(rng, size) if rng.random() < 0.5 else _ring_box(rng, size, core)
        if not any(box.meets(other, 0.02) for other in boxes + openings):
            boxes.append(box)
    return _finish(seed, rng, size, boxes, windows)


def without_texture(room: Room) -> Room:
    """Returns a room with plain surfaces: edges, shading, and tiles on one surface of four."""
    material = room.material.clone()
    noise = [COLUMN[f"{parity}_{c}"] for parity in ("even", "odd") for c in "rgb"]
    material[:, [*noise, COLUMN["patch_share"]]] = 0.0
    plain = torch.from_numpy(np.random.default_rng(room.seed).random(len(material)) < 0.75)
    tiles = [COLUMN["tile_tone"], COLUMN["joint_tone"]]
    material[:, tiles] *= ~plain[:, None]
    return replace(room, material=material)


def _ring_box(rng: np.random.Generator, size: Array, core: _Box) -> _Box:
    """A flat box on a wall of the core that leaves the corridor free."""
    axis, side = rng.integers(2), 2 * rng.integers(2) - 1
    half = np.empty(3)
    half[axis] = rng.uniform(0.03, 0.2)
    half[1 - axis] = rng.uniform(0.15, 0.7)
    half[2] = rng.uniform(0.1, 0.6)
    centre = core.centre.copy()
    centre[axis] += side * (core.half[axis] + half[axis] + 0.021)
    centre[1 - axis] += rng.uniform(-1, 1) * (core.half[1 - axis] - half[1 - axis])
    centre[2] = rng.uniform(half[2], size[2] - half[2] - 0.1)
    return _Box(centre, half, 0.0)


def _finish(
    seed: int,
    rng: np.random.Generator,
    size: Array,
    boxes: list[_Box],
    windows: dict[int, tuple[float, ...]],
) -> Room:
    """Make the room from its boxes, with random materials, lights and sky."""
    centre = np.array([size / 2, *(b.centre for b in boxes)])
    half = np.array([size / 2, *(b.half for b in boxes)])
    yaw = np.array([0.0, *(b.yaw for b in boxes)])
    material = np.concatenate([_block_material(rng, block == 0) for block in range(len(yaw))])
    for face, window in windows.items():
        _set(material[face], "window", window)
    _light(rng, material, centre, half, yaw)
    _darken_corners(material, half)
    return Room(
        seed=seed,
        centre=torch.from_numpy(centre),
        half=torch.from_numpy(half),
        yaw=torch.from_numpy(yaw),
        material=torch.from_numpy(material.astype(np.float32)),
        texture_seed=torch.from_numpy(
            rng.integers(-(2**31), 2**31, len(material)).astype(np.int32)
        ),
        sky=torch.from_numpy(_sky_colours(rng)),
    )


@dataclass(frozen=True, eq=False)
class _Box:
    centre: Array
    half: Array
    yaw: float

    @property
    def reach(self) -> Array:
        """Half extents [3] of the axis-aligned box around it."""
        c, s = abs(np.cos(self.yaw)), abs(np.sin(self.yaw))
        x, y, z = self.half
        return np.array([c * x + s * y, s * x + c * y, z])

    def meets(self, other: _Box, gap: float) -> bool:
        """Whether the axis-aligned hulls of the boxes are nearer than ``gap``."""
        apart = np.abs(self.centre - other.centre) - self.reach - other.reach
        return bool((apart < gap).all())


def _place_windows(rng: np.random.Generator, size: Array) -> dict[int, tuple[float, ...]]:
    """Openings (u, v, half width, half height) by room face, at most one per face."""
    windows: dict[int, tuple[float, ...]] = {}
    for face in range(4):
        if rng.random() < 0.25:
            wide, high = size[OTHER_AXES[face // 2][0]], size[2]
            hu, hv = rng.uniform(0.12, 0.3) * wide, rng.uniform(0.15, 0.28) * high
            shift = rng.uniform(-1, 1) * (wide / 2 - hu - 0.2)
            windows[face] = (shift, rng.uniform(0.0, 0.12) * high, hu, hv)
    if rng.random() < 0.1:
        windows[5] = (0.0, 0.0, 0.2 * size[0], 0.2 * size[1])
    return windows


def _place_boxes(
    rng: np.random.Generator, size: Array, windows: dict[int, tuple[float, ...]]
) -> list[_Box]:
    openings = [_opening(face, window, size) for face, window in windows.items()]
    boxes: list[_Box] = []
    floor_left = 0.3 * size[0] * size[1]  # the rest stays free for walks
    for _ in range(rng.integers(4, 12)):
        box = _floor_box(rng, size)
        area = 4.0 * box.reach[0] * box.reach[1]
        if area < floor_left and not any(box.meets(other, 0.06) for other in boxes):
            floor_left -= area
            boxes.append(box)
            if rng.random() < 0.35:
                boxes.append(_box_on_top(rng, box))
    boxes = [b for b in boxes if b.centre[2] + b.half[2] < size[2] - 0.1]
    for _ in range(rng.integers(1, 7)):
        box = _wall_box(rng, size)
        if not any(box.meets(other, 0.02) for other in boxes + openings):
            boxes.append(box)
    return boxes


def _opening(face: int, window: tuple[float, ...], size: Array) -> _Box:
    """A window as a thin box, so that wall boxes do not cover it."""
    axis, (u, v) = face // 2, OTHER_AXES[face // 2]
    centre, half = size / 2, np.full(3, 0.5)
    centre[axis] = size[axis] * (face % 2)
    centre[[u, v]] += window[:2]
    half[[u, v]] = window[2:]
    return _Box(centre, half, 0.0)


def _floor_box(rng: np.random.Generator, size: Array) -> _Box:
    low, high = [(0.12, 0.35), (0.25, 0.8), (0.5, 1.1)][rng.integers(3)]  # crate, table, cupboard
    half = np.array([rng.uniform(0.12, 0.65), rng.uniform(0.12, 0.5), rng.uniform(low, high)])
    yaw = 0.0 if rng.random() < 0.35 else rng.uniform(-np.pi, np.pi)
    box = _Box(np.zeros(3), half, yaw)
    room_left = np.maximum(size[:2] / 2 - box.reach[:2] - 0.02, 0.0)
    position = rng.uniform(-1, 1, 2)
    if rng.random() < 0.6:  # most furniture stands at a wall
        position[rng.integers(2)] = rng.choice([-1.0, 1.0])
    return replace(box, centre=np.array([*(size[:2] / 2 + position * room_left), half[2]]))


def _box_on_top(rng: np.random.Generator, below: _Box) -> _Box:
    # At most 0.6 of the smaller side: with any rotation and shift it still stands on the box.
    half = min(below.half[:2]) * rng.uniform(0.3, 0.6, 3)
    half[2] = rng.uniform(0.06, 0.22)
    shift = rng.uniform(-0.15, 0.15, 2) * below.half[:2]
    c, s = np.cos(below.yaw), np.sin(below.yaw)
    offset = np.array([c * shift[0] - s * shift[1], s * shift[0] + c * shift[1], 0.0])
    offset[2] = below.half[2] + half[2]
    return _Box(below.centre + offset, half, below.yaw + rng.uniform(-np.pi, np.pi))


def _wall_box(rng: np.random.Generator, size: Array) -> _Box:
    """A shelf, cabinet or panel on one of the four walls."""
    axis, side = rng.integers(2), rng.integers(2)
    half = np.empty(3)
    half[axis] = rng.uniform(0.015, 0.16)
    half[1 - axis] = rng.uniform(0.15, 0.6)
    half[2] = rng.uniform(0.05, 0.4)
    centre = np.empty(3)
    centre[axis] = half[axis] if side == 0 else size[axis] - half[axis]
    centre[1 - axis] = rng.uniform(half[1 - axis] + 0.05, size[1 - axis] - half[1 - axis] - 0.05)
    centre[2] = rng.uniform(0.9 + half[2], size[2] - half[2] - 0.1)
    return _Box(centre, half, 0.0)


# Appearance -------------------------------------------------------------------------------------


def _set(row: NDArray[np.float64], prefix: str, values: tuple[float, ...]) -> None:
    """Fill the consecutive columns that start with ``prefix``."""
    first = next(i for i, name in enumerate(COLUMNS) if name.startswith(prefix))
    row[first : first + len(values)] = values


def _block_material(rng: np.random.Generator, is_room: bool) -> NDArray[np.float64]:
    """Materials [6, columns]: different for each face of a room, similar for those of a box."""
    rows = [_material(rng, is_room)]
    for _ in range(5):
        if is_room:
            rows.append(_material(rng, is_room))
        else:
            row = rows[0].copy()
            row[:3] *= rng.uniform(0.8, 1.2)
            rows.append(row)
    return np.array(rows)


def _material(rng: np.random.Generator, is_room: bool) -> NDArray[np.float64]:
    """A random material, from nearly uniform to richly textured."""
    row = np.zeros(len(COLUMNS))
    brightness = rng.uniform(0.25, 0.75) if is_room else rng.uniform(0.06, 0.8)
    tint = rng.uniform(-1, 1, 3) * rng.uniform(0.05, 0.3 if is_room else 0.7)
    _set(row, "red", tuple(brightness * np.exp(tint - tint.mean())))
    strength = rng.choice([rng.uniform(0.04, 0.1), rng.uniform(0.2, 0.4), rng.uniform(0.4, 0.75)])
    _set(row, "even_r", tuple(strength * (1.0 + rng.normal(0, 0.25, 3))))
    _set(row, "odd_r", tuple(strength * (0.8 + rng.normal(0, 0.35, 3))))
    row[COLUMN["frequency"]] = 1.0 / np.exp(rng.uniform(np.log(0.2), np.log(0.9)))
    row[COLUMN["gain"]] = rng.uniform(0.7, 0.98)
    if rng.random() < 0.5:
        tile = np.exp(rng.uniform(np.log(1.5), np.log(6.0)))
        _set(row, "tile_frequency", (tile, rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.6)))
    if rng.random() < 0.7:
        patch = np.exp(rng.uniform(np.log(0.9), np.log(4.0)))
        _set(row, "patch_frequency", (patch, rng.uniform(0.15, 0.7), rng.uniform(0.5, 1.0)))
    row[COLUMN["tile_frequency"]] = max(
        row[COLUMN["tile_frequency"]], 1.0
    )  # avoids a division by zero
    row[COLUMN["patch_frequency"]] = max(row[COLUMN["patch_frequency"]], 1.0)
    _set(row, "window", NO_WINDOW)
    return row


def _sky_colours(rng: np.random.Generator) -> NDArray[np.float32]:
    horizon = rng.uniform(0.6, 0.95) * np.array([1.0, 1.0, 1.0]) + rng.uniform(-0.08, 0.05, 3)
    zenith = np.array([0.18, 0.38, 0.8]) * rng.uniform(0.7, 1.2)
    return np.array([horizon, zenith], np.float32)


def _light(
    rng: np.random.Generator, material: NDArray[np.float64], centre: Array, half: Array, yaw: Array
) -> None:
    """Add two lamps below the ceiling, in the coordinates of each face."""
    size = 2.0 * half[0]
    ambient = rng.uniform(0.3, 0.5)
    for k in (0, 1):
        lamp = size * np.array([rng.uniform(0.15, 0.85), rng.uniform(0.15, 0.85), 0.93])
        for block in range(len(yaw)):
            c, s = np.cos(yaw[block]), np.sin(yaw[block])
            local = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) @ (lamp - centre[block])
            for face in range(6):
                axis, sign = face // 2, 2 * (face % 2) - 1
                above = sign * local[axis] - half[block, axis]
                above = max(0.0, -above if block == 0 else above)
                u, v = OTHER_AXES[axis]
                _set(material[6 * block + face], f"light{k}_u", (local[u], local[v], above))
    material[:, COLUMN["ambient"]] = ambient


def _darken_corners(material: NDArray[np.float64], half: Array) -> None:
    """Darken surfaces near edges of the room, and boxes near their lower edge."""
    far = 50.0  # metres; an edge this far away has no effect
    for block in range(len(half)):
        for face in range(6):
            u, v = OTHER_AXES[face // 2]
            hu, hv = half[block, u], half[block, v]
            if block == 0:
                values = (0.0, hu, 0.0, hv, 0.4)
            elif face // 2 < 2:
                values = (0.0, far, far, hv + far, 0.45)  # only the lower edge is near
            else:
                values = (0.0, far, 0.0, far, 0.0)
            _set(material[6 * block + face], "corner_u", values)


# Distances --------------------------------------------------------------------------------------


def _local(room: Room, block: int, points: Array) -> Array:
    """Convert points [N, 3] to a block's local axes, relative to its centre."""
    c, s = np.cos(float(room.yaw[block])), np.sin(float(room.yaw[block]))
    to_local = np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])
    return np.asarray((points - room.centre[block].numpy()) @ to_local.T)


def _box_signed_distance(local: Array, half: Array) -> Array:
    """Signed distance [N] to a box, negative inside."""
    # By columns: a third of the time of numpy's reductions over three values.
    x, y, z = (np.abs(local) - half).T
    nearest_face = np.maximum(np.maximum(x, y), z)
    x, y, z = (np.maximum(outside, 0.0) for outside in (x, y, z))
    return np.sqrt(x * x + y * y + z * z) + np.minimum(nearest_face, 0.0)


def _wall_distance(local: Array, half: Array, face: int, window: Array) -> Array:
    """Unsigned distance [N] to a face of the room: a rectangle, with a hole for a window."""
    axis, (u, v) = face // 2, OTHER_AXES[face // 2]
    normal = local[:, axis] - half[axis] * (2 * (face % 2) - 1)
    plane = local[:, [u, v]]
    beside = np.linalg.norm(np.maximum(np.abs(plane) - half[[u, v]], 0.0), axis=-1)
    in_hole = (window[2:] - np.abs(plane - window[:2])).min(-1)
    return np.hypot(normal, np.maximum(beside, in_hole))


def distance_to_surface(room: Room, points: Array) -> Array:
    """Exact unsigned distances, float64 [...] in metres, of points [..., 3] to surfaces.

    Surfaces are the walls without windows, the floor, the ceiling and all six faces of each box,
    also hidden ones such as the floor below a box.
    """
    points = np.asarray(points, np.float64)
    flat = points.reshape(-1, 3)
    windows = room.material[:6, COLUMN["window_u"] : COLUMN["window_hv"] + 1].double().numpy()
    local = _local(room, 0, flat)
    nearest = np.full(len(flat), np.inf)
    for face in range(6):
        wall = _wall_distance(local, room.half[0].numpy(), face, windows[face])
        np.minimum(nearest, wall, out=nearest)
    for block in range(1, len(room.yaw)):
        signed = _box_signed_distance(_local(room, block, flat), room.half[block].numpy())
        np.minimum(nearest, np.abs(signed), out=nearest)
    return nearest.reshape(points.shape[:-1])


def clearance(room: Room, points: Array) -> Array:
    """Distances, float64 [...] in metres, of points [..., 3] to solids; negative inside."""
    points = np.asarray(points, np.float64)
    flat = points.reshape(-1, 3)
    free = -_box_signed_distance(_local(room, 0, flat), room.half[0].numpy())
    for block in range(1, len(room.yaw)):
        signed = _box_signed_distance(_local(room, block, flat), room.half[block].numpy())
        np.minimum(free, signed, out=free)
    return free.reshape(points.shape[:-1])


def view_distance(room: Room, origins: Array, directions: Array) -> Array:
    """Distances, float64 [...], along rays [..., 3] to the first surface.

    Unit: length of the direction. Windows count as walls.
    """
    shape = np.broadcast_shapes(origins.shape, directions.shape)
    origin = np.broadcast_to(origins, shape).reshape(-1, 3)
    ahead = origin + np.broadcast_to(directions, shape).reshape(-1, 3)
    nearest = np.full(len(origin), np.inf)
    for block in range(len(room.yaw)):
        start = _local(room, block, origin)
        step = _local(room, block, ahead) - start
        step = np.where(np.abs(step) < 1e-12, 1e-12, step)
        half = room.half[block].numpy()
        ends = (-half - start) / step, (half - start) / step
        (x, y, z), (far_x, far_y, far_z) = np.minimum(*ends).T, np.maximum(*ends).T
        enter = np.maximum(np.maximum(x, y), z)
        leave = np.minimum(np.minimum(far_x, far_y), far_z)
        hit = leave if block == 0 else np.where((enter < leave) & (enter > 0), enter, np.inf)
        np.minimum(nearest, hit, out=nearest)
    return nearest.reshape(shape[:-1])
