"""The scene to show and export: points and poses at one moment.

A scene shares its arrays with the map but does not change with it, so that another thread may
process it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.floor_view import FloorViews
from da3_ros.mapping.trajectory import Poses
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

CHUNK = 1 << 18  # points that are processed at once
Shot = tuple[str, int]  # key of an image: camera's name and stamp, ns
Jpeg = bytes | NDArray[np.uint8]  # in memory, or on its way to the disk and there
REFERENCE = 0  # the component of a scene that defines the map's frame


def jpeg_bytes(data: Jpeg) -> bytes:
    """Returns an image's bytes, in memory."""
    return data if isinstance(data, bytes) else data.tobytes()


@dataclass(frozen=True, eq=False)
class SubmapCloud:
    """Points in the frame of their submap."""

    cloud: PointCloud
    T_map_submap: Similarity = IDENTITY
    component: int = REFERENCE


@dataclass(frozen=True, eq=False)
class Scene:
    """Points in submaps, poses in the map, and the axes in which ROS has it.

    A scene has components: connected ones of the graph of submaps. Poses within a component are
    measured, relative to others they are not. ``REFERENCE`` is the component with a known pose in
    the map; all others are unconnected.
    """

    clouds: tuple[SubmapCloud, ...]
    poses: Poses
    T_ros_map: Array = field(default_factory=lambda: T_ROS_MAP)
    images: Mapping[Shot, Jpeg] = field(default_factory=dict)  # JPEG, of keyframes
    component_of: Mapping[int, int] = field(default_factory=dict)  # by the submap's id
    chain_of: Mapping[int, int] = field(default_factory=dict)  # its chain likewise
    floor: FloorViews = field(default_factory=FloorViews)
    # Lengths of the scene per unit of a submap, by its id; of those with views of the floor.
    unit_of: Mapping[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(one.cloud) for one in self.clouds)

    @property
    def components(self) -> tuple[int, ...]:
        """The components that have points or poses."""
        found = {one.component for one in self.clouds if len(one.cloud)} | set(
            self.component_of_poses()
        )
        return tuple(sorted(found))

    @property
    def unconnected(self) -> int:
        """Number of components whose pose in the map is unknown."""
        return sum(component != REFERENCE for component in self.components)

    def component_of_poses(self) -> list[int]:
        """Returns the component of each pose."""
        return [self.component_of.get(int(id), REFERENCE) for id in self.poses.rows["submap"]]

    def of_component(self, component: int) -> Scene:
        """Returns one component of the scene as a scene."""
        chosen = np.array(self.component_of_poses(), int) == component
        clouds = tuple(one for one in self.clouds if one.component == component)
        return replace(self, clouds=clouds, poses=self.poses.take(chosen))

    def chunks(self) -> Iterator[PointCloud]:
        """Yields the points in the map frame, at most ``CHUNK`` at once."""
        for one in self.clouds:
            to_map = Similarity.from_pose(self.T_ros_map) @ one.T_map_submap
            for start in range(0, len(one.cloud), CHUNK):
                cloud = one.cloud.take(slice(start, start + CHUNK))
                yield replace(cloud, xyz=to_map.points(cloud.xyz).astype(np.float32))

    def cloud(self, most: int = 0) -> PointCloud:
        """Returns all points in the map frame, or an even choice of at most ``most``."""
        stride = max(1, -(-len(self) // most)) if most else 1
        clouds, before = [], 0
        for one in self.clouds:
            chosen = one.cloud.take(slice(-before % stride, None, stride))
            clouds.append(replace(one, cloud=chosen))
            before += len(one.cloud)
        return join(list(replace(self, clouds=tuple(clouds)).chunks()))

    def map_points(self) -> NDArray[np.float32]:
        """Returns all points [M, 3] in the map frame."""
        return self.cloud().xyz


def join(clouds: list[PointCloud]) -> PointCloud:
    """Concatenates clouds."""
    if not clouds:
        zero = np.zeros((0, 3), np.float32)
        return PointCloud(zero, zero.astype(np.uint8), zero[:, 0], zero[:, 0].astype(np.uint16))
    return PointCloud(
        np.concatenate([c.xyz for c in clouds]),
        np.concatenate([c.rgb for c in clouds]),
        np.concatenate([c.confidence for c in clouds]),
        np.concatenate([c.count for c in clouds]),
    )
