"""Chooses the keyframes that may show the place of a new one, the most similar first."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.mapping.loop_agreement import drift_between
from da3_ros.mapping.loop_keyframes import LoopKeyframes, PlacedKeyframe
from da3_ros.mapping.loop_verification import SIGMAS
from da3_ros.mapping.loop_window import cut_to
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.overlap_view import ViewRow
from da3_ros.mapping.place_hint import PlaceHint
from da3_ros.mapping.submap_graph import SubmapGraph

MIN_SUBMAPS_APART = 3  # submaps between the keyframes of a loop; nearer ones share windows
MAX_CANDIDATES = 5  # most similar keyframes that are considered
MIN_SIMILARITY = 0.35  # cosine of whitened descriptors of a candidate
MAX_DISTANCE = 1.0  # distance over depth at which two keyframes can see the same surface
MAX_ROTATION_DEG = 60.0  # rotation at which they can


class LoopCandidates:
    """The search for candidates: of the newest keyframe, or of another that is asked for."""

    def __init__(self, keyframes: LoopKeyframes, graph: SubmapGraph, submaps: MapTable) -> None:
        self._keyframes, self._graph, self._submaps = keyframes, graph, submaps
        self._active = False  # whether there may be a candidate
        self._compared: set[int] = set()  # submaps that the new keyframe was compared with
        # Submaps of a read-only map in which places are looked for; None: in all keyframes.
        self.searched: frozenset[int] | None = None
        self._from: tuple[int, Callable[[int], bool]] | None = None  # see ``look_from``

    def restart(self) -> None:
        """Searches anew: there is a new keyframe, or keyframes have moved."""
        self._active = len(self._keyframes) > 0
        self._compared.clear()

    def wait(self) -> None:
        """Searches nothing before ``restart``."""
        self._active = False

    def limit_to(self, submaps: frozenset[int] | None) -> None:
        """Searches in the keyframes of these submaps only; None: in all."""
        self.searched = submaps

    @property
    def is_asked(self) -> bool:
        """Whether ``look_from`` named a keyframe."""
        return self._from is not None

    def look_from(self, view_id: int, among: Callable[[int], bool]) -> bool:
        """Compares a keyframe, by its view's id, instead of the newest one, with those of submaps
        that ``among`` allows, similar or not, tied or not; False: it was forgotten."""
        self._from = view_id, among
        self.restart()
        return any(k.id == view_id for k in self._keyframes)

    @property
    def new(self) -> ViewRow:
        """The keyframe that is compared: the newest one, unless ``look_from`` named another."""
        if self._from is None:
            return self._keyframes[-1]
        return next(k for k in self._keyframes if k.id == self._from[0])

    def next(self, hint: PlaceHint | None) -> ViewRow | None:
        """Returns the keyframe to compare the new one with; None if there is none.

        hint: where the camera may be, in ``local``: keyframes there need not look similar.
        """
        if not self._active:
            return None
        new, seen = self.new, 0
        similarity = self._keyframes.similarity(self._keyframes.index(new.id))
        least = MIN_SIMILARITY if hint is None and self._from is None else 0.0
        similar = np.flatnonzero(similarity > least)
        allowed = self._allowed(new, hint)
        for i in similar[np.argsort(-similarity[similar], kind="stable")]:
            old = self._keyframes[i]
            if seen == MAX_CANDIDATES:
                break
            if not allowed(old):
                continue
            seen += 1
            if old.submap not in self._compared and self._can_overlap(old, new):
                self._compared.add(old.submap)
                return old
        self._active = False  # until there is a new keyframe
        return None

    def _allowed(self, new: ViewRow, hint: PlaceHint | None) -> Callable[[ViewRow], bool]:
        """Returns what tells whether a keyframe may be compared, however similar it is."""
        graph, newest = self._graph, self._graph.index(new.submap)
        tied = graph.loop_partners(new.submap) if self._from is None else set()

        def allowed(old: ViewRow) -> bool:
            if self.searched is not None and old.submap not in self.searched:
                return False
            if self._from is not None and not self._from[1](old.submap):
                return False
            at = graph.index(old.submap)
            near = newest - at < MIN_SUBMAPS_APART
            if at in tied or (near and graph.in_one_segment(old.submap, new.submap)):
                return False
            there = PlacedKeyframe.of(old, self._submaps)
            return hint is None or hint.allows(there.centre, MAX_DISTANCE * there.depth)

        return allowed

    def _can_overlap(self, old: ViewRow, new: ViewRow) -> bool:
        """True if two keyframes can see the same surface, given the possible drift."""
        if cut_to(old, new) is None:
            return False
        there, here = (PlacedKeyframe.of(k, self._submaps) for k in (old, new))
        drift = np.sqrt(drift_between(self._graph, there, here))
        away = float(np.linalg.norm(there.centre - here.centre))
        R = there.T_local_camera[:3, :3].T @ here.T_local_camera[:3, :3]
        rotation = Rotation.from_matrix(R).magnitude()
        near = away - SIGMAS * math.sqrt(3) * drift[2] < MAX_DISTANCE * there.depth
        most = math.radians(MAX_ROTATION_DEG)
        return near and rotation - SIGMAS * math.sqrt(3) * drift[1] < most
