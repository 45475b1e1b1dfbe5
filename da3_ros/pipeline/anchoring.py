"""Global poses of the robot hold the map: by tags, GNSS or docks (topic ``~/global_pose``).

Each one becomes an anchor: a global pose, and where the camera was in its submap at that time, by
a frame of the path. The graph of submaps is solved with them, and the map moves. No ROS.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.anchors import (
    KNOWN_RAD,
    Anchor,
    Anchored,
    HeldAnchor,
    placement,
    solve_anchored,
)
from da3_ros.mapping.following import OwnPoses, correction_to, largest_move
from da3_ros.mapping.graph_solution import Correction, Problem
from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.trajectory import Poses, Trajectory
from da3_ros.pipeline.line_kinds import kind_of
from da3_ros.types import Array, GlobalPose, View

log = logging.getLogger(__name__)

MOST_WAITING = 1000  # global poses that wait for a frame
MOST, NEWEST = 256, 16  # anchors that are kept; the newest of them are never thinned out
THINNED = 192  # that are left of them when there are more
MOST_SOLVED = 64  # anchors that a graph is solved with
EVERY, RARELY = 5, 30  # windows between two solutions; the latter while new anchors fit
FITS = 0.5  # standard deviations of its position, up to which the map need not move for an anchor
MOVE_M, MOVE_RAD = 0.01, 0.002  # the map does not move for less,
GROWN_M = 0.05  # motion by a new scale, after which the map moves back
MOVE_SIGMAS = 0.3  # nor for less of its standard deviation
# Deviations that a place has more while no two anchors agree on it: one alone may be wrong.
ALONE_M, ALONE_RAD = 2.0, 0.2
REPORTED = 10  # wrong anchors that are logged


class Anchoring:
    """The anchors of one scene. Not thread-safe."""

    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self.restart()

    def restart(self) -> None:
        """Begins a new scene."""
        # By camera, the leading one first: each has got all. One that sees nothing has no poses.
        self._waiting: dict[str, deque[GlobalPose]] = {}
        self.has_begun = False  # whether the scene has got any
        self._come: Counter[str] = Counter()  # number that each has got
        # The newest ones that became anchors: a camera may get them later than another one.
        self._taken: deque[tuple[float, ...]] = deque(maxlen=MOST_WAITING)
        self._held: list[HeldAnchor] = []
        self._wrong: set[tuple[float, ...]] = set()  # anchors that do not fit now,
        self._named: set[tuple[float, ...]] = set()  # and those that were logged
        self._windows = 0  # since the last solution
        self._due = False
        self._metres = float("nan")  # per map unit, at the last solution,
        self._shifted_at = float("nan")  # and when the map was last moved for a new scale
        self._least_m = GROWN_M  # motion by a new scale for which the map is moved
        self._fits = True  # whether the anchors since the last solution lie where the map has them
        self._told = ""
        # [3] the place that a new scale does not move, in the published map, metres; None: it is
        # the map's origin
        self.centre: Array | None = None
        self.placed = False  # whether the map lies where the anchors have it
        self._confirmed = False  # whether two of them agree on that
        self.says_up = False  # whether an anchor has an orientation

    def restore(self, held: Sequence[HeldAnchor]) -> None:
        """Begins with a saved map, which lies where its anchors have it, if it has some."""
        self.restart()
        self._held, self.placed = list(held), bool(held)
        self.has_begun = bool(held)

    def held(self, submaps: Collection[int]) -> tuple[HeldAnchor, ...]:
        """Returns what ``restore`` takes, of a map with these submaps: the anchors that fit."""
        if not self.placed:
            return ()
        fitting = (a for a in self._held if _key(a.given) not in self._wrong)
        return tuple(a for a in fitting if a.submap in submaps)

    def add(self, view: View) -> None:
        """Adds the global poses that came with a view, which has some."""
        self.has_begun = True
        waiting = self._waiting.setdefault(view.camera, deque(maxlen=MOST_WAITING))
        waiting.extend(given for given in view.anchors if _key(given) not in self._taken)
        before = max(self._come.values(), default=0)
        self._come[view.camera] += len(view.anchors)
        self.counters["anchors"] += max(0, self._come[view.camera] - before)

    def forget_waiting(self) -> None:
        """Forgets the global poses that wait for a frame: stamps jump, and a frame of their stamp
        would be one of another time."""
        stamps = {given.stamp_ns for waiting in self._waiting.values() for given in waiting}
        if stamps:
            self.counters["anchors_without_frame"] += len(stamps)
        self._waiting.clear()
        self._taken.clear()

    def is_due(self, why_not: str) -> bool:
        """Returns whether there are anchors to be used; says once why not, if there is a cause."""
        self._windows += 1
        if not any(self._waiting.values()) and not self._held:
            return False
        if why_not and self._come:  # else those of a loaded map wait for others
            self.tell(f"not used: {why_not}")
        return not why_not

    def ask(self) -> None:
        """Asks for another solution soon: submaps do not agree about what is up."""
        self._due, self._fits = True, False

    def tell(self, text: str) -> None:
        """Logs a line, once until there is another one, whatever its numbers."""
        kind = kind_of(text)
        if kind != self._told:
            log.warning("global_pose: %s", text)
        self._told = kind

    def correction(
        self, submaps: Mapping[int, Submap], path: Trajectory, problem: Problem,
        T_ros_map: Similarity, *, level: bool, scale_sigma: float = 0.0, by_gravity: bool = False,
        ends: bool = False,
    ) -> Correction | None:  # fmt: skip
        """Returns the correction that brings the map to its anchors; None if it lies there.

        path: of the map. problem: the graph. T_ros_map: with metres per map unit. level: whether
        the map's z is up, by_gravity: by an IMU. scale_sigma: relative standard deviation of the
        metres. ends: no window follows.
        """
        for camera in [camera for camera, waiting in self._waiting.items() if waiting]:
            oldest = min((given.stamp_ns for given in self._waiting[camera]), default=None)
            if oldest is not None:  # else an earlier camera has taken them
                self._take(submaps, path.poses(camera, oldest), camera, T_ros_map)
        grown = self._grown_m(submaps, T_ros_map) > self._least_m
        wait = (RARELY if self._fits and not grown else EVERY) if self._confirmed else 0
        early = self._windows < wait and not ends
        if not (self._due or grown) or not problem.nodes or early:
            return self.shifted(submaps, problem.T_map_local, T_ros_map)
        T_ros_submap = {id: T_ros_map @ s.T_map_submap for id, s in submaps.items()}
        anchors = self._chosen(T_ros_submap, path, problem)
        if not anchors:
            return None
        found = self._solved(
            problem, T_ros_map, T_ros_submap, anchors, level=level, scale_sigma=scale_sigma,
            by_gravity=by_gravity,
        )  # fmt: skip
        if found is None:
            return None
        self._windows, self._due, self._fits = 0, False, True
        self._metres = self._shifted_at = T_ros_map.scale
        self.centre = found.centre
        self._least_m = max(
            GROWN_M, MOVE_SIGMAS * math.sqrt(found.covariance.diagonal()[4:].max())
        )
        if _is_confirmed(found):  # else the right one may be taken for wrong
            self._report(anchors, found)
        first = [node.first for node in problem.nodes]
        back, after = T_ros_map.inverse(), {}
        for id, s in submaps.items():
            k = max(int(np.searchsorted(first, id, "right")) - 1, 0)
            moved = replace(back @ found.moves[k] @ T_ros_submap[id], scale=s.T_map_submap.scale)
            after[id] = moved
        return self._worth_it(submaps, after, problem, T_ros_map, found, anchors)

    def _grown_m(self, submaps: Mapping[int, Submap], T_ros_map: Similarity) -> float:
        """Returns how far the newest submap has moved from where anchors hold the map, by a new
        scale since the last solution."""
        if not submaps or self.centre is None:
            return 0.0
        newest = T_ros_map @ submaps[max(submaps)].T_map_submap
        far = float(np.linalg.norm(newest.t - self.centre))
        return abs(T_ros_map.scale / self._metres - 1.0) * far

    def shifted(
        self, submaps: Mapping[int, Submap], T_map_local: Similarity, T_ros_map: Similarity
    ) -> Correction | None:
        """Returns the correction that brings the place where anchors hold the map back to where
        it was before a new scale, which moves it from the map's origin; None: it is near."""
        if self.centre is None or not submaps:
            return None
        before = T_ros_map.scale / self._shifted_at
        back = (1.0 - before) * (self.centre - T_ros_map.t)
        if float(np.linalg.norm(back)) < self._least_m:
            return None
        self._shifted_at = T_ros_map.scale
        self.counters["anchor_corrections"] += 1
        shift = T_ros_map.inverse() @ Similarity(1.0, np.eye(3), back) @ T_ros_map
        old = {id: s.T_map_submap for id, s in submaps.items()}
        out = correction_to(old, {id: shift @ T for id, T in old.items()}, T_map_local)
        return replace(out, followed=False, anchored=True)

    def _take(
        self, submaps: Mapping[int, Submap], poses: Poses, camera: str, T_ros_map: Similarity
    ) -> None:
        """Makes anchors of the global poses at whose time the camera's pose is known by now."""
        if camera not in poses.cameras:
            return
        metres = T_ros_map.scale
        lengths = {id: s.T_map_submap.scale * metres for id, s in submaps.items()}
        rows = poses.rows[poses.rows["camera"] == poses.cameras.index(camera)]
        own = OwnPoses.of(rows, lengths)
        if not len(own.stamps):
            return
        given = list(self._waiting[camera])
        stamps = np.array([g.stamp_ns for g in given], np.int64)
        rigid = {id: _rigid(s.T_map_submap, metres) for id, s in submaps.items()}
        chain = {id: s.chain for id, s in submaps.items()}
        found, submap, T_submap_camera = own.at(stamps, rigid, chain)
        for i, id, T in zip(found.tolist(), submap.tolist(), T_submap_camera, strict=True):
            k = own.beside(given[i].stamp_ns, id)
            T_frame_camera = invert_pose(own.T_submap_camera[k]) @ T
            for pose in (T, T_frame_camera):  # from metres
                pose[:3, 3] /= lengths[id]
            anchor = Anchor(given[i], id, T)
            frame = int(own.stamps[k]), camera
            self._held.append(HeldAnchor(given[i], id, frame, T_frame_camera))
            base = anchor.base(T_ros_map @ submaps[id].T_map_submap)
            off = float(np.linalg.norm((base - anchor.given.T_ros_base)[:2, 3]))
            self._fits &= off < FITS * anchor.sigma_m
        self._due |= bool(len(found))
        waits = set(stamps[stamps > own.stamps[-1]].tolist())
        self._keep(camera, lambda given: given.stamp_ns in waits)
        taken = set(stamps[found].tolist())
        self._taken.extend(_key(given[i]) for i in found)
        for other in self._waiting:
            self._keep(other, lambda given: given.stamp_ns not in taken)
        elsewhere = {g.stamp_ns for waiting in self._waiting.values() for g in waiting}
        lost = set(stamps.tolist()) - taken - elsewhere
        self.counters["anchors_without_frame"] += len(lost)
        if len(self._held) > MOST:
            old, new = self._held[:-NEWEST], self._held[-NEWEST:]
            self._held = _spread(old, THINNED - NEWEST) + new

    def _keep(self, camera: str, wanted: Callable[[GlobalPose], bool]) -> None:
        """Keeps those of a camera's global poses that wait which are wanted."""
        self._waiting[camera] = deque(filter(wanted, self._waiting[camera]), MOST_WAITING)

    def _chosen(
        self, T_ros_submap: Mapping[int, Similarity], path: Trajectory, problem: Problem
    ) -> list[Anchor]:
        """Returns the newest anchors whose submaps the graph knows, and of the others as many of
        each submap, with the poses that the path has now."""
        nodes = {id for n in problem.nodes for id in range(n.first, n.last + 1)}
        self._held = [a for a in self._held if a.submap in T_ros_submap]
        known = [a for a in self._held if a.submap in nodes]
        old, new = known[:-NEWEST], known[-NEWEST:]
        chosen = _spread(old, MOST_SOLVED - NEWEST) + new
        poses = path.poses_in([(*held.frame, held.submap) for held in chosen])
        # A path that is full has dropped some of its frames.
        return [
            Anchor(held.given, held.submap, T @ held.T_frame_camera)
            for held, T in zip(chosen, poses, strict=True)
            if T is not None
        ]

    def _solved(
        self, problem: Problem, T_ros_map: Similarity, T_ros_submap: Mapping[int, Similarity],
        anchors: Sequence[Anchor], *, level: bool, scale_sigma: float, by_gravity: bool,
    ) -> Anchored | None:  # fmt: skip
        """Returns the solution, from another place if most anchors do not fit where it lies."""
        T_ros_local, here = T_ros_map @ problem.T_map_local, np.eye(4)

        def solved(at: Array) -> Anchored:
            return solve_anchored(
                problem, T_ros_local, T_ros_submap, anchors, at, scale_sigma, by_gravity=by_gravity
            )

        try:
            found = solved(here) if self.placed else None
            if found is None or 2 * sum(found.wrong) > len(anchors):
                bases = [a.base(T_ros_submap[a.submap]) for a in anchors]
                at = placement(bases, anchors, level=level)
                if at is None:
                    if not self.placed:
                        self.tell("they do not say yet how the map is turned: drive farther")
                    return found
                other = solved(at)
                if found is None or sum(other.wrong) < sum(found.wrong):
                    found = other
        except (ValueError, np.linalg.LinAlgError) as error:  # the map stays as it is
            self.counters["anchors_failed"] += 1
            self.tell(f"the graph could not be solved: {type(error).__name__}: {error}")
            return None
        if not self.placed:
            log.info("global_pose: the map lies where %d of %d have it", found.wrong.count(False),
                     len(anchors))  # fmt: skip
        self.placed = True
        self.says_up |= any((a.rotation_sigmas < KNOWN_RAD).all() for a in anchors)
        return found

    def _report(self, anchors: Sequence[Anchor], found: Anchored) -> None:
        """Counts anchors that do not fit now, and logs each once: with later ones it may fit."""
        for anchor, wrong, metres in zip(anchors, found.wrong, found.metres, strict=True):
            key, stamp = _key(anchor.given), anchor.given.stamp_ns
            if wrong == (key in self._wrong):
                continue
            self._wrong ^= {key}
            self.counters["anchors_wrong"] += 1 if wrong else -1
            if wrong and key not in self._named and len(self._named) < REPORTED:
                self._named.add(key)
                log.warning(
                    "global_pose: that of %.3f s is %.2f m from where the others and odometry "
                    "have the robot: it is not followed", stamp / 1e9, metres,
                )  # fmt: skip
        self._wrong &= {_key(held.given) for held in self._held}

    def _worth_it(
        self, submaps: Mapping[int, Submap], after: dict[int, Similarity], problem: Problem,
        T_ros_map: Similarity, found: Anchored, anchors: Sequence[Anchor],
    ) -> Correction | None:  # fmt: skip
        """Returns the correction; None if it moves the map by less than it is known."""
        before = {id: s.T_map_submap for id, s in submaps.items()}
        metres, turn = largest_move(
            *({id: _rigid(T, T_ros_map.scale) for id, T in all.items()} for all in (before, after))
        )
        sigmas = np.sqrt(np.diag(found.covariance))
        ties = {(-1, a.submap) for a in anchors if submaps[a.submap].component != REFERENCE}
        least_m = max(MOVE_M, MOVE_SIGMAS * float(sigmas[4:].max()))
        least_rad = max(MOVE_RAD, MOVE_SIGMAS * float(sigmas[1:4].max()))
        confirmed = _is_confirmed(found)
        news, self._confirmed = confirmed != self._confirmed, confirmed
        if metres < least_m and turn < least_rad and not ties and not news:
            return None
        self.counters["anchor_corrections"] += 1
        out = correction_to(before, after, problem.T_map_local, tuple(sorted(ties)))
        T = T_ros_map @ problem.T_map_local
        J = np.zeros((7, 7))
        J[0, 0], J[1:4, 1:4], J[4:, 4:] = 1.0, T.R.T, T.R.T / T.scale
        alone = np.zeros(7) if confirmed else np.repeat([0.0, ALONE_RAD, ALONE_M], [1, 3, 3])
        covariance = J @ (found.covariance + np.diag(alone**2)) @ J.T
        return replace(out, followed=False, anchored=True, covariance=covariance)


def _spread(held: Sequence[HeldAnchor], most: int) -> list[HeldAnchor]:
    """Returns at most so many anchors, in their order: as many of each submap, or all that it has,
    so that a session with many leaves older ones theirs; of too many submaps an even choice."""
    by_submap: dict[int, list[HeldAnchor]] = {}
    for one in held:
        by_submap.setdefault(one.submap, []).append(one)
    groups = _evenly(list(by_submap.values()), most)
    each, largest = 1, max(map(len, groups), default=0)
    while each < largest and sum(min(len(group), each + 1) for group in groups) <= most:
        each += 1
    wanted = {id(one) for group in groups for one in _evenly(group, each)}
    return [one for one in held if id(one) in wanted]


def _evenly(items: list[Any], most: int) -> list[Any]:
    """Returns at most so many of the items, evenly spread over them."""
    count = min(len(items), most)
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def _key(given: GlobalPose) -> tuple[float, ...]:
    """Returns what tells a global pose from others, for all cameras that get it."""
    return given.stamp_ns, *given.T_ros_base[:3, 3].tolist()


def _is_confirmed(found: Anchored) -> bool:
    """Whether two anchors agree on where the map lies, and are not outnumbered."""
    return found.wrong.count(False) > max(1, sum(found.wrong))


def _rigid(S: Similarity, scale: float) -> Array:
    """Returns the pose [4, 4] of a submap in the map, metres; scale: metres per map unit."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = S.R, scale * S.t
    return T
