"""The trajectory: a bounded table of camera poses.

Poses are stored in the frames of their submaps, so that they move with the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import SceneFrame
from da3_ros.types import Array

MAX_POSES = 100_000
NEWEST = 1024  # poses that may still be corrected
# K is fx fy cx cy by the corner rule; T is [R t]; size is (width, height) that K belongs to.
ROW = np.dtype(
    [("stamp_ns", "<i8"), ("T", "<f8", (3, 4)), ("K", "<f8", (4,)), ("size", "<i4", (2,)),
     ("submap", "<i4"), ("camera", "<i2"), ("keyframe", "?")]
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pose:
    """One camera pose in the world."""

    stamp_ns: int
    T_world_camera: Array  # [4, 4]
    K: Array  # [3, 3] corner rule
    size: tuple[int, int]  # (width, height) that K belongs to
    keyframe: bool
    camera: str = ""  # name within a rig; empty for a single camera


@dataclass(frozen=True, eq=False)
class Poses:
    """Camera poses as one table, in the order in which they were added."""

    rows: NDArray[np.void]  # [N] of ROW
    cameras: tuple[str, ...]  # names that the column ``camera`` indexes
    leaders: tuple[int, ...] = (0,)  # cameras whose poses are the path; several if scenes merged

    @staticmethod
    def of(poses: list[Pose]) -> Poses:
        """Returns the table of single poses."""
        cameras = tuple(dict.fromkeys(p.camera for p in poses))
        rows = np.zeros(len(poses), ROW)
        for row, p in zip(rows, poses, strict=True):
            row["stamp_ns"], row["keyframe"], row["size"] = p.stamp_ns, p.keyframe, p.size
            row["T"], row["camera"] = p.T_world_camera[:3], cameras.index(p.camera)
            row["K"] = p.K[0, 0], p.K[1, 1], p.K[0, 2], p.K[1, 2]
        return Poses(rows, cameras)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Pose]:
        for row in self.rows:
            T, K = np.eye(4), np.eye(3)
            T[:3] = row["T"]
            K[0, 0], K[1, 1], K[0, 2], K[1, 2] = row["K"]
            stamp, (width, height) = int(row["stamp_ns"]), row["size"].tolist()
            camera = self.cameras[row["camera"]]
            yield Pose(stamp, T, K, (width, height), bool(row["keyframe"]), camera)

    def leading(self) -> Poses:
        """Returns the poses of the leading cameras: a rig's path, or those of several sessions."""
        return self.take(np.isin(self.rows["camera"], self.leaders))

    def newest(self) -> dict[str, Array]:
        """Returns the last pose [4, 4] of each camera."""
        last = {int(c): i for i, c in enumerate(self.rows["camera"])}
        return {p.camera: p.T_world_camera for p in self.take(sorted(last.values()))}

    def take(self, index: Array | list[int] | slice) -> Poses:
        """Returns the poses at ``index``."""
        return replace(self, rows=self.rows[index])

    def moved(self, T: Mapping[int, Similarity]) -> Poses:
        """Returns the poses in the frame of ``T``, where submap ``i`` has the place ``T[i]``."""
        rows = self.rows.copy()
        if not len(rows):
            return replace(self, rows=rows)
        ids = np.array(sorted(T))
        at = np.searchsorted(ids, rows["submap"])
        R = np.array([T[i].R for i in ids])[at]
        scale = np.array([T[i].scale for i in ids])[at]
        t = np.array([T[i].t for i in ids])[at]
        local = self.rows["T"]
        rows["T"][:, :, :3] = R @ local[:, :, :3]
        rows["T"][:, :, 3] = scale[:, None] * np.einsum("nij,nj->ni", R, local[:, :, 3]) + t
        return replace(self, rows=rows)


class Trajectory:
    """Poses in the order of stamps; when full, every second one is dropped, keyframes last."""

    def __init__(self, max_poses: int = MAX_POSES) -> None:
        self.max_poses = max_poses
        self._rows = np.zeros(64, ROW)
        self._size = 0
        self._cameras: list[str] = []
        self._leaders: tuple[int, ...] = (0,)  # indices of cameras

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return self._rows.nbytes

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras, the first one that had a pose first."""
        return tuple(self._cameras)

    @property
    def newest_stamp_ns(self) -> int:
        """Stamp of the newest pose. Raises IndexError if there is none."""
        if not self._size:
            raise IndexError("no pose yet")
        return int(self._rows["stamp_ns"][self._size - 1])

    def poses(self) -> Poses:
        """Returns a copy of all poses, in the frames of their submaps."""
        rows = self._rows[: self._size].copy()
        return Poses(rows, tuple(self._cameras), self._leaders)

    def add(self, frame: SceneFrame, T_submap_camera: Array, submap: int) -> None:
        """Appends the pose of a frame, in the frame of its submap."""
        if frame.camera not in self._cameras:
            self._cameras.append(frame.camera)
        height, width = frame.depth.shape
        if self._size == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        K = (frame.K[0, 0], frame.K[1, 1], frame.K[0, 2], frame.K[1, 2])
        camera = self._cameras.index(frame.camera)
        row = (frame.stamp_ns, T_submap_camera[:3], K, (width, height))
        self._rows[self._size] = (*row, submap, camera, frame.keyframe)
        self._size += 1
        if self._size > self.max_poses:
            self._thin()

    def correct(self, stamp_ns: int, camera: str, T_submap_camera: Array) -> None:
        """Replaces the pose of one of the newest frames; a pose that was thinned out stays so."""
        rows = self._rows[max(0, self._size - NEWEST) : self._size]
        if camera in self._cameras:
            same = rows["camera"] == self._cameras.index(camera)
            rows["T"][(rows["stamp_ns"] == stamp_ns) & same] = T_submap_camera[:3]

    def settle(self, submap: int, place: Similarity, into: int) -> None:
        """Gives the poses of a submap in the frame of its ``place`` from now on, with ``into`` as
        their submap."""
        rows = self._rows[: self._size]
        here = np.flatnonzero(rows["submap"] == submap)
        moved = Poses(rows[here], tuple(self._cameras)).moved({submap: place}).rows
        moved["submap"] = into
        rows[here] = moved

    def forget(self, submap: int) -> None:
        """Removes the poses of a submap."""
        kept = self._rows[: self._size]
        kept = kept[kept["submap"] != submap]
        self._size = len(kept)
        self._rows[: self._size] = kept

    def extend(self, poses: Poses) -> None:
        """Appends the poses of a saved scene, in the frames of their submaps."""
        names = self._cameras + [c for c in poses.cameras if c not in self._cameras]
        rows = poses.rows.copy()
        at = np.array([names.index(c) for c in poses.cameras], np.int16)
        rows["camera"] = at[rows["camera"]] if len(rows) else 0
        self._rows = np.concatenate((self._rows[: self._size], rows, np.zeros(64, ROW)))
        self._size, self._cameras = self._size + len(rows), names
        if len(rows):
            self._leaders = tuple(sorted({*self._leaders, *(int(at[i]) for i in poses.leaders)}))
        while self._size > self.max_poses:
            self._thin()

    def _thin(self) -> None:
        rows = self._rows[: self._size]
        thinned = rows[rows["keyframe"] | (np.arange(len(rows)) % 2 == 0)]
        if len(thinned) > self.max_poses:
            thinned = rows[::2]
        self._size = len(thinned)
        self._rows[: self._size] = thinned
