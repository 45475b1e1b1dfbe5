"""A transform tree without ROS, with the semantics of tf2, for the live node and for replay.

Frames are connected by edges parent -> child. A static edge always holds; a moving one from its
first to its last stamp, interpolated. It is never extrapolated: a guess is worse than an error.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from da3_ros.geometry.poses import interpolate, invert_pose
from da3_ros.types import Array

JUMP_S = 1.0  # a stamp this far behind the previous one is a time jump, not a late message
MAX_FRAMES = 10_000  # a faulty publisher may send ever new names
MAX_TIMEOUT_FACTOR = 32  # longest over first timeout of an owner that stops and returns


class TransformError(LookupError):
    """An unavailable transform; one line that names the frames and the cause."""


@dataclass(eq=False)
class _TransformHistory:
    """History of one child under its parent, in stamp order."""

    parent: str
    static: bool
    stamps: list[int] = field(default_factory=list)
    poses: list[Array] = field(default_factory=list)  # T_parent_child
    owner: str = ""  # the node that published it last; empty if unknown
    received_s: float = 0.0  # time of the last message, on the steady clock
    timeout_s: float = math.inf  # silence after which the owner is considered gone


class TransformTree:
    """Transforms of the last ``keep_s`` seconds per edge.

    An edge whose stamps jump back by more than ``jump_s`` (a simulator or a bag restarts) starts a
    new history: its old stamps are in the future.
    """

    def __init__(
        self,
        keep_s: float = 10.0,
        jump_s: float = JUMP_S,
        gone_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """gone_s: silence, by ``clock`` and by the stamps, after which an owner is considered
        gone.

        Each time that such an owner returns, its timeout doubles.
        """
        self.keep_ns, self._jump_ns = int(keep_s * 1e9), int(jump_s * 1e9)
        self._gone_s, self._clock = gone_s, clock
        self._edges: dict[str, _TransformHistory] = {}
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
        """Adds a transform [4, 4]; a child under a new parent starts a new history, as in tf2.

        owner: the node that published it; empty if unknown.
        Raises TransformError for a frame under itself, an empty name, a number that is not finite,
        or too many frames.
        """
        parent, child = parent.lstrip("/"), child.lstrip("/")
        if not parent or not child or parent == child:
            raise TransformError(
                f"transform from {parent!r} to {child!r}: two different names are needed"
            )
        if not np.isfinite(T_parent_child).all():
            raise TransformError(f"transform from {parent!r} to {child!r} has NaN or Inf")
        with self._lock:
            edge = self._edges.get(child)
            if edge is None and len(self._edges) >= MAX_FRAMES:
                raise TransformError(
                    f"transform to {child!r}: {MAX_FRAMES} frames are known already"
                )
            timeout_s = self._gone_s if edge is None else self._next_timeout_s(edge)
            if edge is None or edge.parent != parent or edge.static != static:
                edge = self._edges[child] = _TransformHistory(parent, static)
            edge.owner, edge.received_s, edge.timeout_s = owner, self._clock(), timeout_s
            if static:
                edge.stamps, edge.poses = [stamp_ns], [T_parent_child]
                return
            self._insert(edge, stamp_ns, T_parent_child)

    def parent(self, child: str) -> str | None:
        """Returns the parent frame of ``child``, or None."""
        edge = self._edges.get(child.lstrip("/"))
        return None if edge is None else edge.parent

    def owner(self, child: str) -> str:
        """Returns the node that published the transform to ``child`` last; empty if unknown."""
        edge = self._edges.get(child.lstrip("/"))
        return "" if edge is None else edge.owner

    def abandoned(self, child: str, stamp_ns: int) -> bool:
        """True if the owner of the moving edge to ``child`` is considered gone.

        It must be silent by the clock, and by its newest stamp relative to ``stamp_ns``: owners in
        a paused recording or simulator are silent too, but return with it.
        """
        with self._lock:
            edge = self._edges.get(child.lstrip("/"))
            if edge is None or edge.static or not self._silent(edge):
                return False
            return abs(stamp_ns - edge.stamps[-1]) > edge.timeout_s * 1e9

    def frames(self) -> set[str]:
        """Returns all known frame names."""
        with self._lock:
            return set(self._edges) | {edge.parent for edge in self._edges.values()}

    def connected(self, a: str, b: str) -> bool:
        """True if two frames are known and in one tree, at any time."""
        a, b = a.lstrip("/"), b.lstrip("/")
        with self._lock:
            known = {a, b} <= self.frames()
            return known and self._ancestors(a)[-1] == self._ancestors(b)[-1]

    def newest(self, target: str, source: str) -> int | None:
        """Returns the newest stamp for ``lookup``; None if all edges between are static.

        Raises TransformError for frames that are not connected.
        """
        target, source = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            up_target, up_source, common = self._paths_to_common(target, source)
            path = up_source[: up_source.index(common)] + up_target[: up_target.index(common)]
            moving = [self._edges[f].stamps[-1] for f in path if not self._edges[f].static]
        return min(moving, default=None)

    def lookup(self, target: str, source: str, stamp_ns: int) -> Array:
        """Returns ``T_target_source`` [4, 4] at ``stamp_ns``.

        Raises TransformError for an unknown frame, frames in two separate trees, or a time outside
        the history.
        """
        target, source = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            up_target, up_source, common = self._paths_to_common(target, source)
            T_common_source = self._climb(up_source, common, stamp_ns)
            T_common_target = self._climb(up_target, common, stamp_ns)
        return invert_pose(T_common_target) @ T_common_source

    def held(self, target: str, source: str, stamp_ns: int) -> Array:
        """Returns ``T_target_source`` [4, 4] as it holds at a stamp, for transforms that jump.

        Each moving transform is the newest one at or before the stamp, however old, or the first
        one if all are later; none is interpolated. Raises TransformError for frames that are not
        connected.
        """
        target, source = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            up_target, up_source, common = self._paths_to_common(target, source)
            T_common_source = self._climb(up_source, common, stamp_ns, self._held)
            T_common_target = self._climb(up_target, common, stamp_ns, self._held)
        return invert_pose(T_common_target) @ T_common_source

    def _held(self, child: str, stamp_ns: int) -> Array:
        edge = self._edges[child]
        return edge.poses[max(0, bisect_right(edge.stamps, stamp_ns) - 1)]

    def _paths_to_common(self, target: str, source: str) -> tuple[list[str], list[str], str]:
        """Returns the ancestors of both frames, and their nearest common one.

        The caller holds the lock. Raises TransformError for frames that are not connected.
        """
        up_target, up_source = self._ancestors(target), self._ancestors(source)
        common = next((frame for frame in up_source if frame in up_target), None)
        if common is None:
            raise TransformError(self._unconnected_reason(target, source))
        return up_target, up_source, common

    def _silent(self, edge: _TransformHistory) -> bool:
        return self._clock() - edge.received_s > edge.timeout_s

    def _next_timeout_s(self, edge: _TransformHistory) -> float:
        """Returns the timeout after the owner has published again: twice the last one if it was
        silent for that long."""
        twice = 2 * edge.timeout_s if self._silent(edge) else edge.timeout_s
        return min(twice, MAX_TIMEOUT_FACTOR * self._gone_s)

    def _insert(self, edge: _TransformHistory, stamp_ns: int, T: Array) -> None:
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
        """Returns ``frame`` and its ancestors, nearest first."""
        chain = [frame]
        while chain[-1] in self._edges:
            above = self._edges[chain[-1]].parent
            if above in chain:
                raise TransformError(f"the frames {' -> '.join([*chain, above])} form a cycle")
            chain.append(above)
        return chain

    def _climb(
        self, chain: list[str], top: str, stamp_ns: int,
        at: Callable[[str, int], Array] | None = None,
    ) -> Array:  # fmt: skip
        """Returns ``T_top_frame`` of the first frame of ``chain``. at: default: interpolated."""
        at, T = at or self._at, np.eye(4)
        for child in chain[: chain.index(top)]:
            T = at(child, stamp_ns) @ T
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
                f"{distance / 1e9:.3f} s {side} the known history"
            )
        at = bisect_left(edge.stamps, stamp_ns)
        if edge.stamps[at] == stamp_ns:
            return edge.poses[at]
        share = (stamp_ns - edge.stamps[at - 1]) / (edge.stamps[at] - edge.stamps[at - 1])
        return interpolate(edge.poses[at - 1], edge.poses[at], share)

    def _unconnected_reason(self, target: str, source: str) -> str:
        unknown = [frame for frame in (target, source) if frame not in self.frames()]
        if unknown and target != source:
            known = ", ".join(sorted(self.frames())) or "none"
            return f"frame {unknown[0]!r} is not in the transform tree; known: {known}"
        return f"frames {target!r} and {source!r} are in two separate trees"
