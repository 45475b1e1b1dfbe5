"""A transform tree without ROS: what tf2 answers, for the live node and for replay alike.

Frames are joined by edges parent -> child. A static edge holds always; a moving one between its
first and last stamp, interpolated, and never beyond: a guess is worse than an error.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from da3_ros.geometry.poses import interpolate, invert_pose
from da3_ros.types import Array

JUMP_S = 1.0  # a stamp this far behind its forerunner is a jump of time, no late message
MOST = 10_000  # frames: a publisher gone mad may invent names for ever
MOST_PATIENCE = 32  # times as long as at first an owner that comes and goes may be silent


class TransformError(LookupError):
    """A transform that cannot be had; one line that names the frames and why."""


@dataclass(eq=False)
class _Edge:
    """History of one child under its parent, in stamp order."""

    parent: str
    static: bool
    stamps: list[int] = field(default_factory=list)
    poses: list[Array] = field(default_factory=list)  # T_parent_child
    owner: str = ""  # the node that published it last, if that is known
    heard_s: float = 0.0  # when that was, on the steady clock
    patience_s: float = math.inf  # silence after which the owner counts as gone


class TransformTree:
    """Transforms of the last ``keep_s`` seconds per edge.

    An edge whose stamps jump back by more than ``jump_s`` (a simulator or a bag begins again)
    starts a new history: what is held is of a future that never comes.
    """

    def __init__(
        self,
        keep_s: float = 10.0,
        jump_s: float = JUMP_S,
        gone_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``gone_s`` seconds of silence, by ``clock`` and by the stamps, end an ownership.

        Each time that such an owner comes back, its next silence may last twice as long.
        """
        self.keep_ns, self._jump_ns = int(keep_s * 1e9), int(jump_s * 1e9)
        self._gone_s, self._clock = gone_s, clock
        self._edges: dict[str, _Edge] = {}
        self._lock = threading.RLock()  # callbacks add while a worker looks up

    def add(
        self,
        parent: str,
        child: str,
        T_parent_child: Array,
        stamp_ns: int,
        *,
        static: bool = False,
        owner: str = "",
    ) -> None:
        """Add one transform [4, 4]; a child under a new parent starts a new history, as in tf2.

        ``owner`` is the node that published it, empty if that is not known.
        Raises TransformError for a frame under itself, an empty name, a non-finite number or a
        frame too many.
        """
        parent, child = parent.lstrip("/"), child.lstrip("/")
        if not parent or not child or parent == child:
            raise TransformError(f"transform from {parent!r} to {child!r}: two names are needed")
        if not np.isfinite(T_parent_child).all():
            raise TransformError(f"transform from {parent!r} to {child!r} has NaN or Inf")
        with self._lock:
            edge = self._edges.get(child)
            if edge is None and len(self._edges) >= MOST:
                raise TransformError(f"transform to {child!r}: {MOST} frames are known already")
            patience_s = self._gone_s if edge is None else self._patience_s(edge)
            if edge is None or edge.parent != parent or edge.static != static:
                edge = self._edges[child] = _Edge(parent, static)
            edge.owner, edge.heard_s, edge.patience_s = owner, self._clock(), patience_s
            if static:
                edge.stamps, edge.poses = [stamp_ns], [T_parent_child]
                return
            self._insert(edge, stamp_ns, T_parent_child)

    def parent(self, child: str) -> str | None:
        """The parent frame of ``child``, or None."""
        edge = self._edges.get(child.lstrip("/"))
        return None if edge is None else edge.parent

    def owner(self, child: str) -> str:
        """The node that published the transform to ``child`` last; empty if that is not known."""
        edge = self._edges.get(child.lstrip("/"))
        return "" if edge is None else edge.owner

    def abandoned(self, child: str, stamp_ns: int) -> bool:
        """Whether the owner of the moving edge to ``child`` has been silent for long.

        Both by the clock and by its newest stamp, seen from ``stamp_ns``: a paused recording or
        simulator is silent too, and its owners come back with it.
        """
        with self._lock:
            edge = self._edges.get(child.lstrip("/"))
            if edge is None or edge.static or not self._silent(edge):
                return False
            return abs(stamp_ns - edge.stamps[-1]) > edge.patience_s * 1e9

    def frames(self) -> set[str]:
        """All frame names known."""
        with self._lock:
            return set(self._edges) | {edge.parent for edge in self._edges.values()}

    def connected(self, a: str, b: str) -> bool:
        """Whether two frames are known and hang in one tree, at whatever time."""
        a, b = a.lstrip("/"), b.lstrip("/")
        with self._lock:
            known = {a, b} <= self.frames()
            return known and self._ancestors(a)[-1] == self._ancestors(b)[-1]

    def newest(self, target: str, source: str) -> int | None:
        """The newest stamp at which ``lookup`` can answer; None: all edges between are static.

        Raises TransformError for frames that are not connected.
        """
        target, source = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            up_target, up_source, common = self._ways_up(target, source)
            path = up_source[: up_source.index(common)] + up_target[: up_target.index(common)]
            moving = [self._edges[f].stamps[-1] for f in path if not self._edges[f].static]
        return min(moving, default=None)

    def lookup(self, target: str, source: str, stamp_ns: int) -> Array:
        """``T_target_source`` [4, 4] at ``stamp_ns``.

        Raises TransformError: unknown frame, two trees that do not touch, or a time that the
        history does not reach.
        """
        target, source = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            up_target, up_source, common = self._ways_up(target, source)
            T_common_source = self._climb(up_source, common, stamp_ns)
            T_common_target = self._climb(up_target, common, stamp_ns)
        return invert_pose(T_common_target) @ T_common_source

    def _ways_up(self, target: str, source: str) -> tuple[list[str], list[str], str]:
        """The ancestors of both frames, and the nearest that they share; holds the lock.

        Raises TransformError for frames that are not connected.
        """
        up_target, up_source = self._ancestors(target), self._ancestors(source)
        common = next((frame for frame in up_source if frame in up_target), None)
        if common is None:
            raise TransformError(self._apart(target, source))
        return up_target, up_source, common

    def _silent(self, edge: _Edge) -> bool:
        return self._clock() - edge.heard_s > edge.patience_s

    def _patience_s(self, edge: _Edge) -> float:
        """Of the silences to come, now that something has come again."""
        twice = 2 * edge.patience_s if self._silent(edge) else edge.patience_s
        return min(twice, MOST_PATIENCE * self._gone_s)

    def _insert(self, edge: _Edge, stamp_ns: int, T: Array) -> None:
        if edge.stamps and stamp_ns < edge.stamps[-1] - self._jump_ns:
            edge.stamps, edge.poses = [], []
        at = bisect_left(edge.stamps, stamp_ns)
        if at < len(edge.stamps) and edge.stamps[at] == stamp_ns:
            edge.poses[at] = T
            return
        edge.stamps.insert(at, stamp_ns)
        edge.poses.insert(at, T)
        old = bisect_left(edge.stamps, edge.stamps[-1] - self.keep_ns)
        del edge.stamps[:old], edge.poses[:old]

    def _ancestors(self, frame: str) -> list[str]:
        """``frame`` and everything above it, nearest first."""
        chain = [frame]
        while chain[-1] in self._edges:
            above = self._edges[chain[-1]].parent
            if above in chain:
                raise TransformError(f"the frames {' -> '.join([*chain, above])} form a circle")
            chain.append(above)
        return chain

    def _climb(self, chain: list[str], top: str, stamp_ns: int) -> Array:
        """``T_top_frame`` of the first frame of ``chain``."""
        T = np.eye(4)
        for child in chain[: chain.index(top)]:
            T = self._at(child, stamp_ns) @ T
        return T

    def _at(self, child: str, stamp_ns: int) -> Array:
        edge = self._edges[child]
        if edge.static:
            return edge.poses[0]
        first, last = edge.stamps[0], edge.stamps[-1]
        if not first <= stamp_ns <= last:
            side, distance = ("before", first - stamp_ns) if stamp_ns < first else (
                "after", stamp_ns - last
            )  # fmt: skip
            raise TransformError(
                f"transform {edge.parent} -> {child} at {stamp_ns / 1e9:.3f} s: that is "
                f"{distance / 1e9:.3f} s {side} what is known"
            )
        at = bisect_left(edge.stamps, stamp_ns)
        if edge.stamps[at] == stamp_ns:
            return edge.poses[at]
        share = (stamp_ns - edge.stamps[at - 1]) / (edge.stamps[at] - edge.stamps[at - 1])
        return interpolate(edge.poses[at - 1], edge.poses[at], share)

    def _apart(self, target: str, source: str) -> str:
        unknown = [frame for frame in (target, source) if frame not in self.frames()]
        if unknown and target != source:
            known = ", ".join(sorted(self.frames())) or "none"
            return f"frame {unknown[0]!r} is not in the transform tree; known: {known}"
        return f"frames {target!r} and {source!r} are in trees that do not touch"
