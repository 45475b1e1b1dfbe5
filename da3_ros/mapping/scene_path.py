"""The path of a scene, as it is displayed and written: poses with their submaps' places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Poses
from da3_ros.types import Array


@dataclass(frozen=True, eq=False)
class ScenePath:
    """Poses in the frames of their submaps, and place and part of these, by id."""

    poses: Poses
    places: Mapping[int, Similarity]
    part_of: Mapping[int, int]

    def leading(self, most: int = 0, part: int | None = None) -> Poses:
        """Returns the poses of the leading camera in the world, of one part or of all; an even
        choice of at most ``most`` (0: all)."""
        poses = self.poses.leading()
        if part is not None:
            ids = [id for id, own in self.part_of.items() if own == part]
            poses = poses.take(np.isin(poses.rows["submap"], ids))
        stride = max(1, -(-len(poses) // most)) if most else 1
        return poses.take(slice(None, None, stride)).moved(self.places)

    def scene(self, T_map_world: Array) -> Scene:
        """Returns the poses of all cameras as a scene without points."""
        return Scene((), self.poses.moved(self.places), T_map_world, part_of=self.part_of)
