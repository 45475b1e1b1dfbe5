"""What is displayed and written of a scene: the points of one part, and the path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.submap_points import SubmapPoints
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.trajectory import Poses
from da3_ros.types import Array


@dataclass(frozen=True, eq=False)
class SceneView:
    """A scene as it is displayed; shares memory with its store."""

    part: int  # to display: points of another one would be at a guessed place in the same frame
    submaps: Sequence[Submap]  # with points
    points: SubmapPoints
    poses: Poses  # of the path, in the frames of their submaps
    places: Mapping[int, Similarity]  # of submaps in the world, by id
    part_of: Mapping[int, int]  # part of each submap

    def thinned(self, most: int, T_map_world: Array) -> Scene:
        """Returns an even choice of at most ``most`` points of the part that are in memory.

        The cost is proportional to the chosen points.
        """
        shown = [s for s in self.submaps if s.part == self.part]
        clouds = self.points.thinned(shown, self.places, most)
        return Scene(clouds, Poses.of([]), T_map_world)

    def path(self, most: int = 0, *, all_parts: bool = False) -> Poses:
        """Returns the poses of the leading camera in the world, of the part or of all; an even
        choice of at most ``most`` (0: all)."""
        poses = self.poses.leading()
        if not all_parts:
            ids = [id for id, own in self.part_of.items() if own == self.part]
            poses = poses.take(np.isin(poses.rows["submap"], ids))
        stride = max(1, -(-len(poses) // most)) if most else 1
        return poses.take(slice(None, None, stride)).moved(self.places)

    def path_scene(self, T_map_world: Array) -> Scene:
        """Returns the poses of all cameras and parts as a scene without points."""
        return Scene((), self.poses.moved(self.places), T_map_world, part_of=self.part_of)
