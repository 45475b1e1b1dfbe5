"""What recognises the locations of a map: its graph of submaps, and keyframes of loop closure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.graph_solution import Node
from da3_ros.mapping.map_table import ViewRow
from da3_ros.mapping.pose_graph import Edge


@dataclass(frozen=True, eq=False)
class Recognition:
    """Graph and keyframes of a map; shares memory with the loop closure that made it."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]  # between nodes, by their first submaps
    keyframes: tuple[ViewRow, ...]
    # Poses of the nodes' first submaps and of the keyframes' submaps: metres if the map is metric.
    T_map_submap: Mapping[int, Similarity]
    model: str = ""  # whose descriptors these are
