"""What recognises the places of a scene: its graph of submaps, and keyframes of loop closure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.graph_solution import Node
from da3_ros.mapping.loop_keyframes import LoopKeyframe
from da3_ros.mapping.pose_graph import Edge
from da3_ros.types import Array


@dataclass(frozen=True, eq=False)
class Recognition:
    """Graph and keyframes of a scene; shares memory with the loop closure that made it.

    ``T_scene_ref`` maps their lengths and poses to the scene: metres if the scene is metric.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]  # between nodes, by their first submaps
    keyframes: tuple[LoopKeyframe, ...]
    T_scene_ref: Similarity = IDENTITY
    model: str = ""  # whose descriptors these are

    def nodes_in_scene(self) -> tuple[Node, ...]:
        """Returns the nodes with their places in the scene."""
        return tuple(replace(n, place=self.T_scene_ref @ n.place) for n in self.nodes)

    def place_of(self, keyframe: LoopKeyframe) -> tuple[Similarity, Array]:
        """Returns the move of a keyframe from the frame of its arrays to the scene, and its
        variance [3] in the scene."""
        T = self.T_scene_ref
        return T @ keyframe.move, keyframe.own * [1, 1, T.scale**2]
