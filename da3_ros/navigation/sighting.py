"""What a frame says of where a robot can drive: obstacles that mark, floor and free rays that
clear.

A level frame (z up) of the robot or of the floor tells heights; each frame is judged by its own,
so that errors of poses do not lift the floor. No network, no ROS.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.config import ObstacleConfig, PipelineConfig
from da3_ros.types import Array, FloatImage

COLUMNS = 168  # pixels along the longer side that are judged, each by the median around it
BESIDE = 0.012  # tangent between judged columns, at most: less than a cell at most ranges
SLOPE = 0.02  # height per distance that may be an error of level and depth: still floor
SAME = 0.1  # logarithm of depths, by which neighbours are of one surface
FEWEST = 2  # neighbours of eight that a marking pixel needs on its surface
BEYOND = 0.3  # metres that rays clear beyond the range: costmaps end them some cells early
STEEPER = 0.05  # height per distance that may be an error, below the floor
EDGE = 0.05  # height over the floor at which the edge of a way down marks, metres
# Of the rows of judged pixels, clearing ones. Of all columns: else rays pass a cell on both sides,
# and a camera that stands never clears what has gone between two of them.
CLEARING_ROWS = 2
LEAST_HEIGHT = 0.02  # of a camera over the floor, metres
UPWARDS = np.cos(np.radians(30.0))  # cosine to up, from which on a camera looks at the ceiling


@dataclass(frozen=True, eq=False)
class Sighting:
    """Finite points [N, 3] float32 in the camera's optical frame, metres."""

    marks: FloatImage  # surfaces of obstacles, and edges of ways down
    floor: FloatImage  # surfaces that are floor
    rays: FloatImage  # ends of free rays
    # Those of rays that pass the range lower than what marks, and end on floor farther away.
    low_rays: FloatImage

    @property
    def clearing(self) -> FloatImage:
        """What rays clear up to: floor, and ends of free rays [N, 3]."""
        return np.concatenate((self.floor, self.rays))


def sight(
    depth_m: FloatImage, K: Array, T_level_camera: Array, config: ObstacleConfig,
    floor_z: float = 0.0,
) -> Sighting:  # fmt: skip
    """Returns what depth [H, W] (metres; NaN unknown, +Inf sky) says of obstacles and free space.

    T_level_camera: [4, 4] camera in a level frame, in which the floor is at ``floor_z``.
    """
    judged = _ChosenPixels.of(depth_m, K)
    with np.errstate(invalid="ignore"):
        rise, run = _rise_and_run(judged.rays, T_level_camera)
        camera = np.float32(T_level_camera[2, 3] - floor_z)
        height, far = camera + rise * judged.z, run * judged.z
        most = np.float32(config.max_range + BEYOND)
        floor = np.float32(config.min_height) + np.float32(SLOPE) * np.minimum(far, most)
        near = far <= config.max_range
        is_mark = near & (height > floor) & (height < config.max_height) & judged.is_supported()
        is_floor = near & (np.abs(height) <= floor)
        # A ray that ends farther away, or above all that counts, is free to the range.
        passes = ~near | (height >= config.max_height) | np.isposinf(judged.z)
        end = np.minimum(judged.z, most / np.maximum(run, np.float32(1e-6)))
        # Below the floor it has ended: what is there is an error, or a way down.
        ends_over = passes & (camera + rise * end > -floor) & np.isfinite(end)
        at_range = camera + rise * np.float32(config.max_range) / np.maximum(run, np.float32(1e-6))
        dead = np.float32(config.min_height + SLOPE * config.max_range)
        is_low = ends_over & ~near & (np.abs(height) <= floor) & (at_range <= dead)
        marks = judged.points(is_mark, judged.z)
        if config.drop:
            # Where the ray passes the floor that is not there, a little over it.
            edge = (camera - np.float32(EDGE)) / np.maximum(-rise, np.float32(1e-6))
            deep = height < -config.drop - np.float32(STEEPER) * np.minimum(far, most)
            # All pixels around it: a glint is no way down.
            whole = cv2.erode(deep.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
            is_drop = whole & (run * edge <= config.max_range)
            marks = np.concatenate((marks, judged.points(is_drop, edge)))
    few = np.zeros(judged.z.shape, bool)
    few[::CLEARING_ROWS] = True
    floor_points = judged.points(few & is_floor, judged.z)
    return Sighting(
        marks, floor_points, judged.points(few & ends_over, end), judged.points(few & is_low, end)
    )


def why_not_sighted(T_level_camera: Array, config: PipelineConfig) -> str:
    """Returns why heights by a camera's place in its level frame [4, 4], metres, are not to be
    believed; empty: they are.

    Both are what a wrong mount looks like, and then obstacles would not mark.
    """
    height = float(T_level_camera[2, 3]) - floor_height(config)
    if height < LEAST_HEIGHT:
        return (
            f"the camera is {height:.2f} m above the floor by the transforms: correct its mount "
            "on base_frame, or level.floor_z"
        )
    if T_level_camera[2, 2] > UPWARDS:
        return (
            "the camera looks at the ceiling by the transforms: the images' frame_id must be an "
            "optical frame, whose z is ahead"
        )
    return ""


def floor_height(config: PipelineConfig) -> float:
    """Returns the height of the floor in the level frame, metres."""
    return config.level.floor_z if config.level.source == "base" else 0.0


@dataclass(frozen=True, eq=False)
class _ChosenPixels:
    """An even choice of pixels."""

    z: FloatImage  # [h, w] median depth; NaN unknown, +Inf sky
    rays: FloatImage  # [h, w, 3] at depth 1

    @classmethod
    def of(cls, depth: FloatImage, K: Array) -> _ChosenPixels:
        step = max(1, max(depth.shape) // (3 * COLUMNS))  # of large images, for their time
        depth, K = depth[step // 2 :: step, step // 2 :: step], _thinned(K, step)
        step = max(1, round(max(depth.shape) / COLUMNS))
        columns = max(1, int(min(step, BESIDE * K[0, 0])))  # more of them of a wide field of view
        # Unknown is nearest and sky farthest, so that a median is never between the two.
        filled = np.where(np.isnan(depth), np.float32(-1), np.minimum(depth, np.float32(1e9)))
        middle = cv2.medianBlur(filled, 5)[step // 2 :: step, columns // 2 :: columns]
        z = np.where(middle <= 0, np.float32(np.nan), middle).astype(np.float32)
        z[middle >= 1e9] = np.inf
        return cls(z, _rays(depth.shape, (step, columns), K))

    def points(self, chosen: NDArray[np.bool_], z: FloatImage) -> FloatImage:
        """Returns the points [N, 3] of the ``chosen`` [h, w] at depths ``z`` [h, w]."""
        return np.asarray(self.rays[chosen] * z[chosen][:, None], np.float32)

    def is_supported(self) -> NDArray[np.bool_]:
        """Returns the mask [h, w] of pixels with enough neighbours on their surface."""
        logs = np.pad(np.log(self.z), 1, constant_values=np.nan)
        height, width = self.z.shape
        middle = logs[1:-1, 1:-1]
        count = np.zeros(self.z.shape, np.int8)
        for row in range(3):
            for column in range(3):
                if (row, column) != (1, 1):
                    beside = logs[row : row + height, column : column + width]
                    count += np.abs(beside - middle) < SAME
        return np.asarray(count >= FEWEST)


def _thinned(K: Array, step: int) -> Array:
    """Returns K [3, 3] of every ``step``-th pixel, the first of which is ``step // 2``."""
    out = np.array(K, np.float64)
    out[:2, 2] += 0.5 * step - (step // 2 + 0.5)  # centres: step (i + 1/2), not step i + ...
    out[:2] /= step
    return out


def _rays(shape: tuple[int, ...], steps: tuple[int, int], K: Array) -> FloatImage:
    """Returns the rays [h, w, 3] of pixels at depth 1, camera axes; steps: of rows and columns."""
    v, u = (np.arange(step // 2, n, step) + 0.5 for step, n in zip(steps, shape, strict=True))
    x = (u - K[0, 2]) / K[0, 0]
    y = (v - K[1, 2]) / K[1, 1]
    rays = np.ones((len(v), len(u), 3), np.float32)
    rays[..., 0], rays[..., 1] = x[None], y[:, None]
    return rays


def _rise_and_run(rays: FloatImage, T_level_camera: Array) -> tuple[FloatImage, FloatImage]:
    """Returns how far each ray [h, w, 3] goes up, and along the floor, per depth."""
    level = rays @ T_level_camera[:3, :3].T.astype(np.float32)
    return level[..., 2], np.hypot(level[..., 0], level[..., 1])
