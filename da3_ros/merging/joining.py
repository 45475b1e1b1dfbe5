"""Scenes recognise each other's locations, as the live node finds its pose in a saved scene.

All scenes are in one graph of submaps, each in a frame of its own until loops connect it. Every
keyframe of one scene is compared with those of the others as if it were the newest one of a live
run: the same search, windows, checks and solver. Components that loops connect become one group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.export.selection import Progress, silent
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference.interfaces import Session
from da3_ros.mapping.alignment import WindowAligner
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.loop_keyframes import MAX_STORED, PlacedKeyframe, numbered
from da3_ros.mapping.map_table import MapTable, ViewRow
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.recognition import Recognition
from da3_ros.merging.alignment import MeasuredCamera, SceneGraph, SeenTogether, aligned
from da3_ros.merging.inputs import InputScene
from da3_ros.merging.scene_components import JoinedComponents
from da3_ros.merging.stored_alignment import NodePoses, StoredAlignment
from da3_ros.pipeline.window_inference import without_invalid_depth
from da3_ros.types import RefinedLoop, Window, WindowEstimate

Group = frozenset[int]  # components of all scenes that loops connect, or one component alone


@dataclass(frozen=True, eq=False)
class LoopNetwork:
    """What verifies loops: the network, and the refinement of its windows, if any."""

    config: PipelineConfig
    session: Session
    refine: Callable[[Window, int, WindowEstimate], RefinedLoop | None] | None

    def infer(self, window: Window) -> WindowEstimate:
        """Returns the estimate of a loop's window."""
        found = WindowEstimate.of(self.session.infer(window))
        return without_invalid_depth(window, found)


@dataclass(frozen=True, eq=False)
class Joined:
    """What was recognised: groups of components, and how each node of the graph moves.

    Each group is in the frame and the unit of its oldest metric component, or of its oldest
    component.
    """

    groups: tuple[Group, ...]  # the oldest component's first
    moves: Mapping[int, Similarity]  # by a node's first submap, from the frame of its scene
    recognition: Recognition  # of all scenes; edges are within groups
    loops: tuple[tuple[int, int], ...] = ()  # components that loops between scenes connect
    looks: int = 0  # windows that were verified


class SceneJoiner:
    """Looks for locations that scenes have in common, and solves for the poses of their
    submaps."""

    def __init__(
        self, inputs: Sequence[InputScene], network: LoopNetwork | None,
        progress: Progress = silent, hint: PoseHint | None = None,
    ) -> None:  # fmt: skip
        """network: None if no two scenes can recognise each other. hint: which keyframes are
        compared also if they do not look similar."""
        self.components = JoinedComponents(inputs)
        self.network, self._progress, self._hint = network, progress, hint
        self._submaps = MapTable()
        self.loop_closure = LoopClosure(self._submaps, doubts_joins=False)
        self._aligner = WindowAligner()
        self._window = 0  # number of the next window
        self._refined: SeenTogether | None = None  # the newest window, if tracks refined it
        self._together: list[SeenTogether] = []  # windows that were verified
        self._loops: tuple[tuple[int, int], ...] = ()  # pairs of nodes, when last solved
        known = [r for one in inputs if (r := one.recognition()) is not None]
        self._model = known[0].model if known else ""
        metric = [one.saved.metric for one in inputs if one.recognition() is not None]
        together = _together(known, metric)
        self.loop_closure.restore(together)
        # Nodes may have been merged to as many as a graph may have.
        nodes = self.loop_closure.recognition().nodes
        self._metric = np.array(
            [self.components.is_metric(self.components.component(n.first)) for n in nodes]
        )
        own = {id: T for r in known for id, T in r.T_map_submap.items()}
        self._before = {n.first: own[n.first] for n in nodes}
        self._firsts = [n.first for n in nodes]

    def join(self) -> Joined:
        """Compares all scenes with each other, until nothing new is found."""
        compared: set[tuple[Group, Group]] = set()
        while (pair := self._next_pair(compared)) is not None:
            compared.add(pair)
            self._compare(*pair)
        if self._together:
            self._align()
        return self._result()

    def _next_pair(self, compared: set[tuple[Group, Group]]) -> tuple[Group, Group] | None:
        """Returns two groups that were not compared since they became what they are.

        Components of one scene alone had their chance when it was recorded.
        """
        groups = self._groups()
        for i, new in enumerate(groups):
            for old in groups[:i]:
                scenes = {
                    self.components.scene_of_component(component) for component in (*old, *new)
                }
                if (old, new) not in compared and len(scenes) > 1 and self.network is not None:
                    return old, new
        return None

    def _compare(self, old: Group, new: Group) -> None:
        """Looks from the keyframes of one group, in their order, at those of another."""
        ids = [self._ids_in(group) for group in (old, new)]
        asked, answering = (ids[1], old) if len(ids[1]) <= len(ids[0]) else (ids[0], new)
        self.loop_closure.begin_search()
        solved = self.loop_closure.closed
        for number, id in enumerate(asked):
            self._progress("comparing keyframes", number / len(asked))
            if self.loop_closure.candidates.look_from(
                id, lambda s: self.components.component(s) in answering
            ):
                self._look(joined=self.loop_closure.closed > solved)
        if self.loop_closure.closed > solved:  # with the loops since then
            self.loop_closure.solve(self._metric)
            self._correct()

    def _look(self, *, joined: bool) -> None:
        """Verifies the candidates of a keyframe, which counts as ``loop.every`` windows."""
        assert self.network is not None
        config = self.network.config
        for _ in range(config.loop.every):
            found, self._refined = self.loop_closure.found, None
            self.loop_closure.try_close_loop(
                self._window, config.loop, config.window.size, self.network.infer, self._aligner,
                self._metric, None if self.network.refine is None else self._refine, joined,
                self._hint,
            )  # fmt: skip
            if self._refined is not None and self.loop_closure.found > found:
                self._together.append(self._refined)
            self._window += 1
            self._correct()

    def _refine(self, window: Window, split: int, estimate: WindowEstimate) -> RefinedLoop | None:
        """Refines a loop's window, and notes its cameras."""
        assert self.network is not None
        assert self.network.refine is not None
        refined = self.network.refine(window, split, estimate)
        if refined is not None:
            ids = tuple(view.id for view in window.views)
            self._refined = SeenTogether(ids, refined.estimate.T_window_camera)
        return refined

    def _align(self) -> None:
        """Moves all nodes so that the cameras of all windows that saw two scenes fit; then by
        stored keyframes, for scenes that have some."""
        submap_of = {id: k.keyframe.submap for id, k in self._placed_keyframes().items()}
        group = self._group_of()
        windows = [
            w for w in self._together
            if len({group(submap_of[id]) for id in w.views if id in submap_of}) == 1
            and set(w.views) <= submap_of.keys()
        ]  # fmt: skip
        if not windows:
            return
        self._move_to_fit(windows, ())
        cameras = self._measured_cameras()
        if cameras:
            scene = {id: self.components.scene(submap) for id, submap in submap_of.items()}
            rest = [w for w in windows if frozenset(scene[id] for id in w.views) not in cameras]
            self._move_to_fit(rest, [one for found in cameras.values() for one in found])

    def _move_to_fit(
        self, windows: Sequence[SeenTogether], cameras: Sequence[MeasuredCamera]
    ) -> None:
        known, keyframes = self.loop_closure.recognition(), self._placed_keyframes()
        nodes, at = known.nodes, {n.first: k for k, n in enumerate(known.nodes)}
        poses = [self._submaps.T_local_submap(n.first) for n in nodes]
        node_of = {id: self._node_of(k.keyframe.submap) for id, k in keyframes.items()}
        edges = [replace(e, first=at[e.first], second=at[e.second]) for e in known.edges]
        graph = SceneGraph(
            poses, [self._before[n.first] for n in nodes],
            [self.components.component(n.first) for n in nodes], edges,
            [e.loop and self._is_across(e) for e in known.edges], self._metric,
        )  # fmt: skip
        solved = aligned(graph, windows, keyframes, node_of, cameras)
        moves = tuple(new @ old.inverse() for new, old in zip(solved, poses, strict=True))
        T = self._submaps.T_map_local
        correction = Correction(Moves(nodes, moves), T, T, self._loops)
        self._submaps.correct(correction)

    def _measured_cameras(self) -> dict[frozenset[int], list[MeasuredCamera]]:
        """Returns what stored keyframes measure, by pairs of scenes that loops connect."""
        assert self.network is not None
        known = self.loop_closure.recognition()
        pairs = {
            frozenset(map(self.components.scene, (e.first, e.second)))
            for e in known.edges if e.loop and self._is_across(e)
        }  # fmt: skip
        poses = NodePoses(
            [self._before[n.first] for n in known.nodes],
            [self._submaps.T_local_submap(n.first) for n in known.nodes],
            self._node_of, self.components.component, self._group_of(),
        )  # fmt: skip
        features = self.network.config.refinement.max_features
        depth = float(np.median([k.depth for k in self._placed_keyframes().values()]))
        with StoredAlignment(
            self.components.inputs, poses, features, depth, self._progress
        ) as stored:
            return stored.measure(sorted(pairs, key=sorted))

    def _node_of(self, submap: int) -> int:
        """Returns the index of the node that a submap is in, of older ones the next; -1: its
        component has none."""
        component, at = self.components.component(submap), bisect_right(self._firsts, submap) - 1
        near = (k for k in (at, at + 1) if 0 <= k < len(self._firsts))
        return next(
            (k for k in near if self.components.component(self._firsts[k]) == component), -1
        )

    def _group_of(self) -> Callable[[int], int]:
        """Returns what gives the number of the group that a submap is in."""
        number = {component: i for i, one in enumerate(self._groups()) for component in one}
        return lambda submap: number[self.components.component(submap)]

    def _is_across(self, edge: Edge) -> bool:
        """Whether an edge is between two scenes."""
        return self.components.scene(edge.first) != self.components.scene(edge.second)

    def _correct(self) -> None:
        """Moves all nodes as a solved graph asks for, if there is one."""
        correction = self.loop_closure.collect()
        if correction is not None:
            self._submaps.correct(correction)
            self._loops = correction.loops

    def _ids_in(self, group: Group) -> list[int]:
        """Returns the ids of the views of a group's keyframes."""
        keyframes = self.loop_closure.recognition().keyframes
        return [k.view.id for k in keyframes if self.components.component(k.submap) in group]

    def _placed_keyframes(self) -> dict[int, PlacedKeyframe]:
        """Returns all keyframes where they are now, by the ids of their views."""
        keyframes = self.loop_closure.recognition().keyframes
        return {k.view.id: PlacedKeyframe.of(k, self._submaps) for k in keyframes}

    def _groups(self) -> list[Group]:
        """Returns the components that loops connect, those with the oldest component first."""
        group = {component: {component} for component in self.components.all}
        for pair in self._loops:
            first, second = (group[self.components.component(id)] for id in pair)
            if first is not second:
                first |= second
                group.update(dict.fromkeys(second, first))
        return sorted(map(frozenset, {id(one): one for one in group.values()}.values()), key=min)

    def _result(self) -> Joined:
        groups, known = self._groups(), self.loop_closure.recognition()
        group_of = {component: number for number, one in enumerate(groups) for component in one}
        of_node = {n.first: group_of[self.components.component(n.first)] for n in known.nodes}
        back = self._gauges(known.nodes, of_node)
        poses = {
            id: back[group_of[self.components.component(id)]] @ self._submaps.T_local_submap(id)
            for id in known.T_map_submap
        }
        moves = {n.first: poses[n.first] @ self._before[n.first].inverse() for n in known.nodes}
        edges = [e for e in known.edges if self._holds(e, groups, of_node)]
        # What joins scenes measures them as they were aligned.
        edges = [
            replace(e, measured=poses[e.first].inverse() @ poses[e.second])
            if self._is_across(e) else e
            for e in edges
        ]  # fmt: skip
        together = replace(known, edges=tuple(edges), T_map_submap=poses, model=self._model)
        across = [(e.first, e.second) for e in edges if self._is_across(e)]
        loops = tuple(
            (self.components.component(a), self.components.component(b)) for a, b in across
        )
        return Joined(tuple(groups), moves, together, loops, self.loop_closure.looked_at)

    def _holds(self, edge: Edge, groups: Sequence[Group], of_node: Mapping[int, int]) -> bool:
        """Whether an edge is of one group, or the guess between two whose poses stay."""
        first, second = of_node[edge.first], of_node[edge.second]
        stay = all(
            self.components.scene_of_component(min(groups[i])) == 0 for i in (first, second)
        )
        return first == second or (stay and not edge.loop)

    def _gauges(self, nodes: Sequence[Node], of_node: Mapping[int, int]) -> dict[int, Similarity]:
        """Returns what brings each group to the frame and the unit of its oldest metric node, or
        of its oldest node."""
        out: dict[int, Similarity] = {}
        for metric_only in (True, False):
            for node, metric in zip(nodes, self._metric, strict=True):
                if of_node[node.first] not in out and (metric or not metric_only):
                    now = self._submaps.T_local_submap(node.first)
                    out[of_node[node.first]] = self._before[node.first] @ now.inverse()
        return out


def _together(known: Sequence[Recognition], metric: Sequence[bool]) -> Recognition:
    """Returns what recognises several scenes, each in its own frame.

    Lengths without metres are made about as large as those of the first scene, by the median
    depth of keyframes: the solver refuses sizes that change by a large factor.
    """
    nodes: list[Node] = []
    edges: list[Edge] = []
    keyframes: list[ViewRow] = []
    poses: dict[int, Similarity] = {}
    for one, is_metric in zip(known, metric, strict=True):
        factor = 1.0 if is_metric or not keyframes else _depth(known[0]) / _depth(one)
        poses |= {id: T.scaled(factor) for id, T in one.T_map_submap.items()}
        nodes += one.nodes
        edges += one.edges
        keyframes += one.keyframes
    count = min(len(keyframes), MAX_STORED)
    even = [keyframes[i * len(keyframes) // count] for i in range(count)]
    return Recognition(tuple(nodes), tuple(edges), tuple(numbered(even)), poses)


def _depth(known: Recognition) -> float:
    return float(
        np.median([PlacedKeyframe(k, known.T_map_submap[k.submap]).depth for k in known.keyframes])
    )
