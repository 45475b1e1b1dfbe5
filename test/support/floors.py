"""Floors of rendered rooms: what is free and what is not, exactly; and views of a square room."""

import cv2
import numpy as np

from da3_ros.config import ObstacleConfig, config_from_parameters
from da3_ros.mapping.floor_view import floor_view
from da3_ros.navigation.floor_grid import FREE, OCCUPIED
from da3_ros.navigation.sighting import sight
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import intrinsics, make_room, make_walk, render
from da3_ros.synthetic.truth import Truth, TruthSession
from da3_ros.types import Calibration, Frame

from .sessions import MetricModel

RES = 0.05
FINE = 5  # samples along each side of a cell
SIZE = (252, 189)
BAND = ObstacleConfig()
AROUND = np.ones((3, 3), np.uint8)  # one cell of tolerance


def level_of(T_room_camera):
    """The camera in the level frame below it, with the room's axes."""
    L = T_room_camera.copy()
    L[:2, 3] = 0
    return L


def room_and_frames(seed, count=24, size=SIZE):
    """A room, poses [N, 4, 4] of a walk in it, exact depth [N, h, w], and K."""
    room = make_room(seed)
    poses = make_walk(room, "loop", 4 * count, seed)[::4]
    K = intrinsics(size, 70.0)
    return room, poses, np.asarray(render(room, poses, K, size, supersample=False).depth), K


def solid_cells(room, origin, shape):
    """Mask [rows, columns] of cells with any part of an obstacle in the height band."""
    rows, columns = shape
    x, y = np.meshgrid(
        origin[0] + (np.arange(columns * FINE) + 0.5) * RES / FINE,
        origin[1] + (np.arange(rows * FINE) + 0.5) * RES / FINE,
    )
    width, depth, _ = room.size
    solid = (x < 0) | (x > width) | (y < 0) | (y > depth)
    for centre, half, yaw in zip(
        room.centre[1:].numpy(), room.half[1:].numpy(), room.yaw[1:].numpy(), strict=True
    ):
        if centre[2] + half[2] > BAND.min_height and centre[2] - half[2] < BAND.max_height:
            u, v = x - centre[0], y - centre[1]
            c, s = np.cos(yaw), np.sin(yaw)
            solid |= (abs(c * u + s * v) < half[0]) & (abs(c * v - s * u) < half[1])
    return solid.reshape(rows, FINE, columns, FINE).any(axis=(1, 3))


def seen_cells(poses, depths, K, origin, shape, reach=3.0, least=20):
    """Mask [rows, columns] of cells with obstacles that exact depth shows within ``reach``."""
    count = np.zeros(shape, int)
    height, width = depths[0].shape
    v, u = np.mgrid[:height, :width] + 0.5
    for T, z in zip(poses, depths, strict=True):
        known = np.isfinite(z)
        rays = np.stack(((u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], np.ones_like(u)), -1)
        xyz = (rays[known] * z[known][:, None]) @ T[:3, :3].T + T[:3, 3]
        near = np.hypot(*(xyz[:, :2] - T[:2, 3]).T) < reach
        # Clear of the limits of the band, at which noise decides.
        inside = (xyz[:, 2] > BAND.min_height + 0.1) & (xyz[:, 2] < BAND.max_height - 0.1)
        cell = np.floor((xyz[near & inside, :2] - origin) / RES).astype(int)
        cell = cell[((cell >= 0) & (cell < shape[::-1])).all(axis=1)]
        np.add.at(count, (cell[:, 1], cell[:, 0]), 1)
    return count >= least


def errors(grid, solid, seen):
    """Shares: of seen obstacle cells that the grid misses; of its known cells that are occupied
    without an obstacle. With one cell of tolerance."""
    occupied, known = grid.cells == OCCUPIED, np.isin(grid.cells, (FREE, OCCUPIED))
    near_occupied = cv2.dilate(occupied.astype(np.uint8), AROUND) > 0
    near_solid = cv2.dilate(solid.astype(np.uint8), AROUND) > 0
    return (seen & ~near_occupied).sum() / seen.sum(), (occupied & ~near_solid).sum() / known.sum()


def view_of(depth, K, T_level_camera, frame=(1, "", 0), unit=1.0):
    """The floor view of a frame with depth in metres."""
    seen = sight(depth, K, T_level_camera, BAND)
    return floor_view(frame, seen.marks, seen.floor, T_level_camera, unit, RES / 2)


# A pipeline that sees a room from a level base; its windows are exact.

SETTINGS = {
    "process_res": SIZE[0], "window.size": 5, "refinement.enabled": False, "map.voxel_m": 0.1,
    "hold_when_blind": False,  # images are black
    "map.remove_movers": False, "scale.source": "metric_model", "scale.metric_every": 1,
}  # fmt: skip


def true_frames(poses, depths, K):
    """The truth of a walk."""
    return [
        Truth(10**8 * (i + 1), d, T, K) for i, (d, T) in enumerate(zip(depths, poses, strict=True))
    ]


def pipeline_of(frames, **values):
    """A pipeline that knows the truth of these frames."""
    session = TruthSession(frames)
    metric = MetricModel(session) if values.get("scale.source") != "none" else None
    return Pipeline(config_from_parameters({**SETTINGS, **values}), session, metric)


def push(pipeline, frames, level=level_of, size=SIZE):
    """Gives it the frames with black images; level: returns the camera on the base."""
    K = frames[0].K.copy()
    K[:2, 2] -= 0.5
    black, lens = np.zeros((*size[::-1], 3), np.uint8), Calibration(*size, K)
    for f in frames:
        T = None if level is None else level(f.T_room_camera)
        list(pipeline.push(Frame(f.stamp_ns, black, calibration=lens, T_level_camera=T)))


# A square room of 6 m around the origin, seen by a camera that looks level, 1 m over the floor.

HALF = 3.0
FORWARD = np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]])  # camera to level axes


def pose_at(x, y, yaw):
    """Pose [4, 4] of the camera in the level room."""
    T = np.eye(4)
    c, s = np.cos(yaw), np.sin(yaw)
    T[:3, :3] = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ FORWARD
    T[:3, 3] = x, y, 1.0
    return T


def square_view(x, y, yaw, frame, unit=1.0, pillar=None):
    """View of the square room; pillar: x, y and radius of what stands in it."""
    turn = np.linspace(-0.7, 0.7, 300)
    dx, dy = np.cos(yaw + turn), np.sin(yaw + turn)
    with np.errstate(divide="ignore"):
        ends = [np.where(d > 0, (HALF - p) / d, (-HALF - p) / d) for d, p in ((dx, x), (dy, y))]
    end = np.minimum(*ends)
    if pillar is not None:
        px, py, radius = pillar
        along = (px - x) * dx + (py - y) * dy
        off = (px - x) ** 2 + (py - y) ** 2 - along**2
        hit = (off < radius**2) & (along > 0)
        end = np.where(hit, along - np.sqrt(np.maximum(radius**2 - off, 0)), end)
    steps = np.arange(1.0, 2 * HALF, 0.1)
    azimuth, distance = np.repeat(turn, len(steps)), np.tile(steps, len(turn))
    seen = distance < np.repeat(end, len(steps))
    floor = _points(azimuth[seen], distance[seen], 0.0)
    return floor_view(frame, _points(turn, end, 0.5), floor, pose_at(0, 0, 0), unit, RES / 2)


def _points(azimuth, distance, z):
    """Points in the optical frame of a camera that looks level along azimuth 0."""
    level = np.stack((distance * np.cos(azimuth), distance * np.sin(azimuth),
                      np.full(len(azimuth), z - 1.0)), axis=1)  # fmt: skip
    return (level @ FORWARD).astype(np.float32)
