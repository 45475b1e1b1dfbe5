"""Detects places that the camera visits again, and measures how far the scene has drifted there.

Each keyframe is kept with a descriptor that the network computes anyway (the mean of its patch
features before frames are mixed). If a new keyframe is similar to an old one, and drift allows
both to show one place, the pair is verified: a window of both and their neighbours goes through
the network, and each side of the window is aligned to the scene. The similarity between the two
alignments is the drift. One such loop is never enough: a network may fuse two look-alike places
into one. Two loops of different keyframes must agree, within four standard deviations, with each
other and with the drift that is possible. Then a graph of submaps (``pose_graph``) is solved.

All poses (``ref`` of shared views too) are in the ``vo`` frame, in which the newest submap never
moves and corrections move the older ones. ``T_scene_vo`` maps to the scene. Works on predictions
and poses; no network, no ROS. Not thread-safe, but ``solve`` may run on another thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.drift_model import DriftModel
from da3_ros.mapping.graph_solution import Correction, Joint, Problem
from da3_ros.mapping.loop_agreement import agree, is_possible
from da3_ros.mapping.loop_candidates import LoopCandidates
from da3_ros.mapping.loop_keyframes import (
    KeyframeFile,
    LoopKeyframe,
    LoopKeyframes,
    merged_keyframe,
    with_fewer_pixels,
)
from da3_ros.mapping.loop_verification import Loop, measured_loop
from da3_ros.mapping.loop_window import loop_window
from da3_ros.mapping.place_hint import PlaceHint
from da3_ros.mapping.pose_graph import Metric
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.shared_view import SharedView
from da3_ros.mapping.submap_graph import Absorbed, SubmapGraph, with_lever_arm
from da3_ros.types import Array, Prediction, Window

MAX_UNCONFIRMED = 4  # verified loops kept until a second one confirms them
LIVE_SUBMAPS = 2  # newest submaps of which a localized camera's keyframes are kept
# Variance [3] that the start of a segment adds; position over the depth seen last.
LOST_VARIANCE = np.array([0.7, 0.5, 1.0]) ** 2


class LoopClosure:
    """Keeps keyframes and the graph of submaps; finds and verifies loops."""

    def __init__(self, before: LoopClosure | None = None, spill: ArraySpill | None = None) -> None:
        """before: keeps the corrections and counts of this object, not its keyframes.

        spill: where keyframes go that memory cannot hold; None: they are forgotten.
        """
        self.T_scene_vo: Array = before.T_scene_vo if before else np.eye(4)
        self.found: int = before.found if before else 0  # verified loops
        self.refused: int = before.refused if before else 0  # windows that verified none
        self._keyframes = LoopKeyframes(spill)
        self._graph = SubmapGraph()
        self._unconfirmed: list[Loop] = []
        # Drift since the newest submap began; None: no edge to the submap before it.
        self._drift_model: DriftModel | None = None
        self._guessed = False  # whether a part of this drift is guessed rather than measured
        self._candidates = LoopCandidates(self._keyframes, self._graph)
        self._joined: Joint | None = None  # parts that the newest loop has joined
        # Whether the oldest submap keeps its size in the scene: if loops connect parts, and in a
        # loaded scene.
        self._keeps_unit = False

    # Adding windows and keyframes

    def add_window(self, placed: Alignment, camera: Array, lag: float = 1.0) -> None:
        """Adds the variance of an aligned window with its camera's centre [3].

        A refused window must not be added: the next window is aligned to the views before it.

        lag: mean age of the shared views, in windows. A window that is aligned to views ``lag``
        windows back adds its error to one in ``lag`` windows: a sum of N moving averages of mean
        lag m grows as N / m^2 steps do.
        """
        if self._drift_model is None or placed.covariance is None:
            return
        spread = np.diag(placed.covariance) / max(lag, 1.0) ** 2
        self._drift_model.add(np.array([spread[0], spread[1:4].mean(), spread[4:].mean()]), camera)

    def start_segment(self, *, lost: bool) -> None:
        """Begins a segment with a unit of its own.

        lost: it begins near the end of the last segment; else its position is unknown.
        """
        if not lost or self._drift_model is None or not self._keyframes:
            self._drift_model = None
            return
        last = self._keyframes[-1]
        self._drift_model.add(LOST_VARIANCE * [1, 1, last.depth**2], last.centre)
        self._guessed = True

    def add_keyframe(
        self, shared_view: SharedView, descriptor: Array | None, submap: int, max_bytes: int = 0
    ) -> None:
        """Adds a keyframe of the submap ``submap``; ``shared_view`` is in the ``vo`` frame.

        max_bytes: of all keyframes in memory; 0: no limit but their number.
        """
        centre = shared_view.T_ref_camera[:3, 3]
        if self._is_localized:
            self._forget_keyframes(self._graph.first_live, submap - LIVE_SUBMAPS)
        if not self._graph.nodes or self._graph.nodes[-1].last != submap:
            self._start_submap(submap, shared_view.T_ref_camera)
        if descriptor is None or len(shared_view.depth) == 0:
            return
        assert self._drift_model is not None
        own = self._drift_model.variance_at(centre)
        self._keyframes.add(
            LoopKeyframe(
                with_fewer_pixels(shared_view), np.array(descriptor), submap, own,
                float(np.median(shared_view.depth)),
            ),
            max_bytes,
            keep_all=self._is_localized,
        )  # fmt: skip
        self._candidates.restart()

    def localize(self, first_live: int, searched: frozenset[int]) -> bool:
        """Makes the map of all submaps before ``first_live`` read-only. From now on loops are
        found to keyframes of the submaps ``searched`` only, and move the map as one body.

        Returns whether there are such keyframes.
        """
        self._graph.first_live = first_live
        self._candidates.limit_to(searched)
        self._keeps_unit = True
        self._unconfirmed.clear()
        return any(one.submap in searched for one in self._keyframes)

    @property
    def recognises_map(self) -> bool:
        """Whether a read-only map has keyframes that recognise its places."""
        return any(one.submap < self._graph.first_live for one in self._keyframes)

    def end_localization(self) -> bool:
        """Lets the map grow again: what was only localized is no part of it. Returns whether new
        submaps are measured from its last one."""
        drift = self._drift_from_map()
        self.forget_place()
        self._graph.first_live = 0
        self._candidates.limit_to(None)
        self._drift_model, self._guessed = drift, False
        return drift is not None

    def _drift_from_map(self) -> DriftModel | None:
        """Returns the drift since the map's last submap; None: they are not connected."""
        last, newest = self._graph.map_size - 1, len(self._graph.nodes) - 1
        if last < 0 or self._drift_model is None:
            return None
        at = self._graph.nodes[newest].place.t
        variance = self._graph.drift_variance(last, newest, at)
        if not np.isfinite(variance).all():
            return None
        drift = DriftModel()
        drift.add(variance + self._drift_model.variance_at(at), at)
        return drift

    @property
    def _is_localized(self) -> bool:
        return self._candidates.searched is not None

    def forget_place(self) -> None:
        """Forgets where the camera is in a read-only map."""
        self._graph.forget_live()
        self._forget_keyframes(self._graph.first_live, math.inf)
        self._unconfirmed.clear()
        self._drift_model = None
        self.wait_for_keyframe()

    def _forget_keyframes(self, first: int, last: float) -> None:
        """Forgets the keyframes of the submaps from ``first`` to ``last``, of the newest ones."""
        for index in range(len(self._keyframes) - 1, -1, -1):
            submap = self._keyframes[index].submap
            if submap < first:
                break
            if submap <= last:
                self._keyframes.remove(index)

    def wait_for_keyframe(self) -> None:
        """Looks for no loop before the next keyframe: images have another size now."""
        self._candidates.wait()

    def forget(self, keyframe: LoopKeyframe) -> None:
        """Forgets a keyframe that cannot be read."""
        self._keyframes.remove(self._keyframes.index(keyframe))

    def restore(self, saved: Recognition) -> None:
        """Takes over what recognises saved scenes; this has no keyframes yet."""
        self._graph.restore(saved.nodes, saved.edges)
        self._keyframes.restore(saved.keyframes)
        for absorbed in self._graph.enforce_limits():  # of several scenes together
            self._absorb(absorbed)

    def look_from(self, view_id: int, among: Callable[[int], bool]) -> bool:
        """Compares a keyframe instead of the newest one; see ``LoopCandidates.look_from``."""
        return self._candidates.look_from(view_id, among)

    @property
    def saved_keyframes(self) -> KeyframeFile | None:
        """The file of a loaded scene in which keyframes are; None: there is none."""
        return next((one.file for one in self._keyframes if one.file is not None), None)

    def recognition(self, scale: float) -> Recognition:
        """Returns what recognises the places of this scene, in units of 1 / ``scale`` scene
        units."""
        T = Similarity(scale, self.T_scene_vo[:3, :3], scale * self.T_scene_vo[:3, 3])
        nodes, edges = self._graph.of_map()
        keyframes = tuple(self._keyframes)
        if self._is_localized:
            keyframes = tuple(k for k in keyframes if k.submap < self._graph.first_live)
        return Recognition(nodes, edges, keyframes, T)

    @property
    def nbytes(self) -> int:
        """Memory of the keyframes, bytes."""
        return self._keyframes.nbytes

    def spill_to(self, spill: ArraySpill) -> None:
        """Sets where keyframes go from now on that memory cannot hold."""
        self._keyframes.spill_to(spill)

    def _start_submap(self, id: int, T: Array) -> None:
        place = Similarity.from_pose(T.copy())
        variance = None if self._drift_model is None else self._drift_model.variance_at(place.t)
        self._graph.add(id, place, variance, self._guessed)
        self._drift_model, self._guessed = DriftModel(), False
        for absorbed in self._graph.enforce_limits():
            self._absorb(absorbed)

    def _absorb(self, absorbed: Absorbed) -> None:
        """Updates keyframes and loops of a node that was merged into another one, or forgotten."""
        if absorbed.variance is None:
            here = [absorbed.first <= p.submap <= absorbed.last for p in self._keyframes]
            self._unconfirmed = [
                w for w in self._unconfirmed
                if not any(absorbed.first <= p.submap <= absorbed.last for p in (w.old, w.new))
            ]  # fmt: skip
            for i in reversed([i for i, inside in enumerate(here) if inside]):
                self._keyframes.remove(i)
            if not len(self._keyframes):
                self._candidates.wait()
            return
        self._keyframes.change(lambda p: merged_keyframe(p, absorbed))
        self._unconfirmed = [
            replace(w, old=merged_keyframe(w.old, absorbed), new=merged_keyframe(w.new, absorbed))
            for w in self._unconfirmed
        ]

    # Finding a loop

    def candidate(self, hint: PlaceHint | None = None) -> LoopKeyframe | None:
        """Returns the old keyframe to compare the new one with, or None; see
        ``LoopCandidates.next``."""
        return self._candidates.next(hint)

    def window(
        self, old: LoopKeyframe, id: int, each: int
    ) -> tuple[Window, list[LoopKeyframe], int]:
        """Returns a window of both keyframes and their neighbours, its views' keyframes, and the
        index of the first one of the new side.

        All images have the size of the new one. each: most views per side. Raises OSError.
        """
        return loop_window(self._keyframes, self._graph, old, self._candidates.new, id, each)

    def verify(
        self,
        old: LoopKeyframe,
        keyframes: Sequence[LoopKeyframe],
        prediction: Prediction | None,
        aligner: WindowAligner,
    ) -> bool:
        """Verifies a candidate by the prediction of its window of ``keyframes``; None: refused.

        Returns True if two loops agree, so that the graph should be solved now.

        aligner: the stream's, for the noise of views within a window; it is not changed.
        """
        new = self._candidates.new
        split = [k.shared_view.view.id for k in keyframes].index(new.shared_view.view.id)
        loop = None
        if prediction is not None:
            loop = measured_loop(old, new, keyframes, split, prediction, aligner)
        if loop is None or not is_possible(self._graph, loop):
            self.refused += 1
            return False
        self.found += 1
        if self._graph.index(old.submap) in self._graph.loop_partners(new.submap):
            self._add_to_graph(loop)  # two have agreed before, and it agrees with these
            return False
        for other in self._unconfirmed:
            if other.new is not new and agree(self._graph, other, loop):
                self._keeps_unit |= not self._graph.connected(old.submap, new.submap)
                nodes = self._graph.unmeasured(old.submap, new.submap)
                self._joined = Joint(loop.drift, new.centre, nodes)
                for one in (other, loop):
                    self._add_to_graph(one)
                self._unconfirmed.clear()
                return True
        self._unconfirmed = [*self._unconfirmed[1 - MAX_UNCONFIRMED :], loop]
        return False

    def _add_to_graph(self, loop: Loop) -> None:
        """Adds a loop to the graph, between the submaps of its keyframes."""
        place = self._graph.node(loop.new.submap).place
        arm = float(np.linalg.norm(loop.new.centre - place.t))
        variance = with_lever_arm(loop.variance, arm) + loop.old.own + loop.new.own
        self._graph.add_loop(loop.old.submap, loop.new.submap, loop.drift, variance)

    # Closing a loop

    def problem(self, metric: Metric) -> Problem:
        """Returns the problem for ``submap_graph.solve``, which may run on another thread."""
        joined, self._joined = self._joined, None
        return self._graph.problem(
            self.T_scene_vo, metric, self._keeps_unit, joined, all_parts=self._candidates.is_asked
        )

    def apply(self, correction: Correction) -> None:
        """Moves the keyframes and the graph's nodes as a correction has moved their submaps."""
        self.T_scene_vo = correction.T_scene_vo
        self._graph.apply(correction.moves)
        if correction.followed:
            self._graph.measure_anew()
        self._keyframes.move(correction.moves)
        self._unconfirmed.clear()
        self._rescale(correction.unit)
        self._candidates.restart()

    def _rescale(self, factor: float) -> None:
        """Takes over that lengths in ``vo`` are ``factor`` times what they were."""
        if factor == 1.0:
            return
        self._graph.rescale(factor)
        by = Similarity(factor, np.eye(3), np.zeros(3))
        self._keyframes.move({one.submap: by for one in self._keyframes})
        if self._drift_model is not None:
            self._drift_model.rescale(factor)
