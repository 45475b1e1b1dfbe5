"""What Nav2's costmap makes of a camera's outputs in a rendered room, against the exact room.

Frames go through pipeline, messages and costmap as on a robot: nothing is handed past them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import yaml
from support.costmap import LETHAL, UNKNOWN, Costmap

from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import invert_pose
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import Outputs
from da3_ros.navigation.floor_grid import FREE, OCCUPIED, OccupancyGrid
from da3_ros.navigation.nav2_config import RESOLUTION_M, CostmapRequest, costmap_text
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.camera import SyntheticFrame
from da3_ros.synthetic.odometry import base_below
from da3_ros.synthetic.rooms import Room, clearance
from da3_ros.types import Array, Frame, TrackedFrame

NODE = "/da3"
SUB = 2  # samples along each side of a cell
PIXELS = 8  # of an obstacle's cell over the whole way, so that it counts as seen
MARGIN_M = 0.03  # above the dead band and below the ceiling of what counts


def level(frame: SyntheticFrame) -> Array:
    """T_level_camera [4, 4] of the exact base below a camera."""
    return np.asarray(invert_pose(base_below(frame.T_room_camera)) @ frame.T_room_camera)


def robots_frames(camera, frames: Iterable[SyntheticFrame]) -> Iterator[Frame]:
    """Frames with exact calibration and level."""
    for f in frames:
        yield Frame(
            f.stamp_ns, f.image, "camera_optical", calibration=camera.calibration,
            T_level_camera=level(f),
        )  # fmt: skip


@dataclass
class Driven:
    """Counts of cells after a way. Shares are of what is named first."""

    seen: int = 0  # cells of obstacles that the camera saw near by
    missed: int = 0  # of these, without a mark within one cell
    marked: int = 0
    false: int = 0  # of these, without an obstacle within one cell
    known: int = 0  # marked or free
    costs: Array = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    occupied: Array = field(default_factory=lambda: np.zeros((0, 0), bool))

    def shares(self) -> dict[str, float]:
        return {
            "missed": self.missed / max(self.seen, 1),
            "false_of_marked": self.false / max(self.marked, 1),
            "false_of_known": self.false / max(self.known, 1),
        }


class DrivenRoom:
    """A room with its exact cells and the costmap of a robot in it; heights from the floor."""

    def __init__(self, room: Room, config: PipelineConfig, camera_height_m: float) -> None:
        self.room, self.config = room, config
        band = config.obstacles
        side = np.ceil(room.size[:2] / RESOLUTION_M).astype(int) + 2 * round(1 / RESOLUTION_M)
        low = room.centre[0].numpy()[:2] - side * RESOLUTION_M / 2
        self.origin = np.floor(low / RESOLUTION_M) * RESOLUTION_M
        self.shape = int(side[1]), int(side[0])
        # What may be marked: a wall beside the band's edge is no false cell.
        self.occupied = self._occupied(0.5 * band.min_height, min(band.max_height, room.size[2]))
        # A cell inside of an obstacle's outline, such as a table's top, is not driven into.
        self.outline = self.occupied & _grown(~self.occupied)
        self._seen = np.zeros(self.shape, np.int64)
        text = costmap_text(CostmapRequest(camera_height_m, max_range_m=band.max_range, node=NODE))
        values = yaml.safe_load(text)["local_costmap"]["local_costmap"]["ros__parameters"]
        values |= {
            "rolling_window": False, "track_unknown_space": True,
            "width": round(side[0] * RESOLUTION_M) + 1,
            "height": round(side[1] * RESOLUTION_M) + 1,
            "origin_x": float(self.origin[0]), "origin_y": float(self.origin[1]),
        }  # fmt: skip
        self.costmap = Costmap.from_parameters(values)
        self.lib = RosbagsLibrary()
        self.outputs = Outputs(self.lib, config, base_frame="base_link", tf=lambda frame: [])

    def _occupied(self, low: float, high: float) -> Array:
        """Cells [ny, nx] with a solid between two heights."""
        ny, nx = (SUB * n for n in self.shape)
        x = self.origin[0] + (np.arange(nx) + 0.5) * RESOLUTION_M / SUB
        y = self.origin[1] + (np.arange(ny) + 0.5) * RESOLUTION_M / SUB
        out = np.zeros((ny, nx), bool)
        for z in np.arange(low, high, RESOLUTION_M):
            points = np.stack(np.broadcast_arrays(x[None], y[:, None], z), -1)
            out |= clearance(self.room, points) <= 0
        return out.reshape(self.shape[0], SUB, self.shape[1], SUB).any((1, 3))

    def see(self, frame: SyntheticFrame, within_m: float) -> None:
        """Counts the obstacles that a frame truly shows."""
        height, width = frame.depth.shape
        v, u = np.mgrid[:height, :width] + 0.5
        rays = np.stack(((u - frame.K[0, 2]) / frame.K[0, 0], (v - frame.K[1, 2]) / frame.K[1, 1],
                         np.ones_like(u)), -1)  # fmt: skip
        finite = np.isfinite(frame.depth)
        points = rays[finite] * frame.depth[finite][:, None]
        points = points @ frame.T_room_camera[:3, :3].T + frame.T_room_camera[:3, 3]
        far = np.linalg.norm(points[:, :2] - frame.T_room_camera[:2, 3], axis=1)
        band = self.config.obstacles
        low = band.min_height + 0.02 * far + MARGIN_M
        counts = (points[:, 2] > low) & (points[:, 2] < band.max_height - MARGIN_M)
        self._add(points[counts & (far < within_m), :2])

    def _add(self, xy: Array) -> None:
        cells = np.floor((xy - self.origin) / RESOLUTION_M).astype(int)
        cells = cells[((cells >= 0) & (cells < self.shape[::-1])).all(1)]
        np.add.at(self._seen, (cells[:, 1], cells[:, 0]), 1)

    def receive(self, frame: TrackedFrame, T_room_camera: Array) -> None:
        """Publishes a frame's clouds and gives them to the costmap, which updates."""
        stamp_s = frame.stamp_ns / 1e9
        for topic, kind, message in self.outputs.frame(frame, lambda t: t.startswith("points/")):
            if not topic.endswith(("obstacles", "clearing")):
                continue
            sent = self.lib.store.deserialize_cdr(self.lib.serialize(message, kind), kind)
            assert sent.header.frame_id == frame.frame_id
            points = np.frombuffer(bytes(sent.data), "<f4").reshape(-1, 3)
            assert self.costmap.receive(f"{NODE}/{topic}", points, T_room_camera, stamp_s)
        self.costmap.update(stamp_s)

    def result(self) -> Driven:
        """Returns the counts so far."""
        return self._counted(self.costmap.costs[: self.shape[0], : self.shape[1]])

    def result_of(self, grid: OccupancyGrid, T_room_map: Array) -> Driven:
        """Returns the counts of a grid of the map instead, whose pose in the room is [4, 4]."""
        rows, columns = np.indices(self.shape)
        xy = self.origin + (np.stack((columns, rows), -1) + 0.5) * RESOLUTION_M
        T = invert_pose(T_room_map)
        cell = np.floor((xy @ T[:2, :2].T + T[:2, 3] - grid.origin) / grid.resolution).astype(int)
        inside = ((cell >= 0) & (cell < grid.cells.shape[::-1])).all(-1)
        costs = np.full(self.shape, UNKNOWN, np.uint8)
        values = grid.cells[cell[inside][:, 1], cell[inside][:, 0]]
        costs[inside] = np.select([values == OCCUPIED, values == FREE], [LETHAL, 0], UNKNOWN)
        return self._counted(costs)

    def _counted(self, costs: Array) -> Driven:
        marked, wanted = costs == LETHAL, self.outline & (self._seen >= PIXELS)
        return Driven(
            seen=int(wanted.sum()), missed=int((wanted & ~_grown(marked)).sum()),
            marked=int(marked.sum()), false=int((marked & ~_grown(self.occupied)).sum()),
            known=int((costs != UNKNOWN).sum()), costs=costs, occupied=self.occupied,
        )  # fmt: skip


def _grown(cells: Array) -> Array:
    """Cells and their eight neighbours."""
    return np.asarray(cv2.dilate(cells.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0)


def drive(
    room: DrivenRoom, pipeline: Pipeline, given: Sequence[Frame],
    truth: Sequence[SyntheticFrame], within_m: float = 3.0,
    change: Callable[[TrackedFrame, SyntheticFrame], TrackedFrame] = lambda frame, true: frame,
) -> Driven:  # fmt: skip
    """Drives a way; transforms are exact, as a robot's own odometry gives them.

    change: returns what is published instead of a frame, by the true one.
    """
    true = {f.stamp_ns: f for f in truth}
    for frame in given:
        for tracked in pipeline.push(frame):
            shown = change(tracked, true[tracked.stamp_ns])
            room.receive(shown, true[tracked.stamp_ns].T_room_camera)
            if tracked.scale.metric:
                room.see(true[tracked.stamp_ns], within_m)
    return room.result()


def total(found: Iterable[Driven]) -> Driven:
    """Returns the sums of counts."""
    out = Driven()
    for one in found:
        out = dataclasses.replace(
            out, seen=out.seen + one.seen, missed=out.missed + one.missed,
            marked=out.marked + one.marked, false=out.false + one.false,
            known=out.known + one.known,
        )  # fmt: skip
    return out
