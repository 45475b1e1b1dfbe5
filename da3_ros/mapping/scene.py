"""What is shown, exported and saved: points and poses as they are at one moment.

A scene shares its arrays with the map and stays as it is while the map goes on: another thread
may take its time with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import T_MAP_WORLD
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.trajectory import Poses
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

CHUNK = 1 << 18  # points that are worked on at once
Shot = tuple[str, int]  # camera's name and stamp, ns: which image
REFERENCE = 0  # the part of a scene that says where the map is


@dataclass(frozen=True, eq=False)
class SubmapCloud:
    """Points in the frame of their submap."""

    cloud: PointCloud
    T_world_submap: Similarity = IDENTITY
    part: int = REFERENCE


@dataclass(frozen=True, eq=False)
class Scene:
    """Points in submaps, poses in world coordinates, and where the map lies.

    A scene has parts: what lies within one is measured, how one lies to another is a guess. The
    part ``REFERENCE`` is where the map is; all others have guessed places.
    """

    clouds: tuple[SubmapCloud, ...]
    poses: Poses
    T_map_world: Array = field(default_factory=lambda: T_MAP_WORLD)
    images: Mapping[Shot, bytes] = field(default_factory=dict)  # JPEG, of keyframes
    part_of: Mapping[int, int] = field(default_factory=dict)  # of each submap by its id

    def __len__(self) -> int:
        return sum(len(one.cloud) for one in self.clouds)

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that have points or poses."""
        found = {one.part for one in self.clouds if len(one.cloud)} | set(self.part_of_poses())
        return tuple(sorted(found))

    @property
    def guessed(self) -> int:
        """How many parts have a guessed place."""
        return sum(part != REFERENCE for part in self.parts)

    def part_of_poses(self) -> list[int]:
        """Of each pose the part that it belongs to."""
        return [self.part_of.get(int(id), REFERENCE) for id in self.poses.rows["submap"]]

    def of_part(self, part: int) -> Scene:
        """One part of the scene alone."""
        chosen = np.array(self.part_of_poses(), int) == part
        clouds = tuple(one for one in self.clouds if one.part == part)
        return replace(self, clouds=clouds, poses=self.poses.take(chosen))

    def chunks(self) -> Iterator[PointCloud]:
        """The points in the map frame, at most ``CHUNK`` at once."""
        for one in self.clouds:
            to_map = Similarity.from_pose(self.T_map_world) @ one.T_world_submap
            for start in range(0, len(one.cloud), CHUNK):
                cloud = one.cloud.take(slice(start, start + CHUNK))
                yield replace(cloud, xyz=to_map.points(cloud.xyz).astype(np.float32))

    def cloud(self, most: int = 0) -> PointCloud:
        """All points at once in the map frame, or an even choice of at most ``most``."""
        stride = max(1, -(-len(self) // most)) if most else 1
        clouds, before = [], 0
        for one in self.clouds:
            chosen = one.cloud.take(slice(-before % stride, None, stride))
            clouds.append(replace(one, cloud=chosen))
            before += len(one.cloud)
        return join(list(replace(self, clouds=tuple(clouds)).chunks()))

    def map_points(self) -> NDArray[np.float32]:
        """All points [M, 3] in the map frame."""
        return self.cloud().xyz


def join(clouds: list[PointCloud]) -> PointCloud:
    """One cloud of many."""
    if not clouds:
        zero = np.zeros((0, 3), np.float32)
        return PointCloud(zero, zero.astype(np.uint8), zero[:, 0], zero[:, 0].astype(np.uint16))
    return PointCloud(
        np.concatenate([c.xyz for c in clouds]),
        np.concatenate([c.rgb for c in clouds]),
        np.concatenate([c.confidence for c in clouds]),
        np.concatenate([c.count for c in clouds]),
    )
