"""Detects locations that the camera visits again, measures how far the map has drifted there, and
corrects it.

Each keyframe is kept with a descriptor that the network computes anyway (the mean of its patch
features before frames are mixed). If a new keyframe is similar to an old one, and drift allows
both to show one location, the pair is verified: a window of both and their neighbours goes through
the network, and each side of the window is aligned to the map. The similarity between the two
alignments is the drift. One such loop is never enough: a network may fuse two look-alike locations
into one. Two loops of different keyframes must agree, within four standard deviations, with each
other and with the drift that is possible. Then a graph of submaps (``pose_graph``) is solved on
another thread; its correction is applied between two windows.

Verification costs one more window, after a window whose results are already delivered. Poses and
lengths are in the frame of odometry (``local``, see ``MapTable``) unless said otherwise. No
network and no ROS. Not thread-safe.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from da3_ros.config import LoopConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.graph_solution import Correction, Joint, Problem, solve
from da3_ros.mapping.levelling import SubmapUp, Up
from da3_ros.mapping.loop_candidates import (
    DriftModel,
    Loop,
    LoopAgreement,
    LoopCandidates,
    Matching,
    Placing,
    drift_around,
    keyframes_around,
    loop_by_tracks,
    loop_window,
    measured_loop,
    placed_ends,
    see_same_surface,
    sharing_no_view,
)
from da3_ros.mapping.loop_keyframes import (
    LoopKeyframes,
    PlacedKeyframe,
    merged_keyframe,
    numbered,
)
from da3_ros.mapping.map_table import KeyframeFile, MapListener, MapTable, ViewRow
from da3_ros.mapping.pose_graph import Metric
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.submap_graph import Absorbed, SubmapGraph
from da3_ros.mapping.submap_spill import Submap
from da3_ros.types import Array, RefinedLoop, Window, WindowEstimate

log = logging.getLogger(__name__)

EAGER_LOOKS = 30  # windows in a row that are spent on looking for an unknown pose
MAX_UNCONFIRMED = 4  # verified loops kept until a second one confirms them
# Loops that must agree with each other to undo what has joined a chain to others: as many as have
# joined it, within these limits. And of those that share no view, as many as have joined it.
FEWEST_AGAINST, MOST_AGAINST = 2, 4
MAX_APART = 16  # of loops that share no view, how many count
MIN_TOGETHER = 2  # loops that confirm another one, if all compare the same views
LIVE_SUBMAPS = 2  # newest submaps of which a localized camera's keyframes are kept
DOUBT_LASTS_NS = 10 * 10**9  # after an IMU was found to be wrong about what is up
BELIEVED_RAD = math.radians(2.0)  # between it and the map, up to which it is believed again
MOST_TILT = 1.5  # standard deviations by which submaps may disagree about what is up
# Variance [3] that the start of a chain adds; position over the depth seen last.
LOST_VARIANCE = np.array([0.7, 0.5, 1.0]) ** 2

Infer = Callable[[Window], WindowEstimate | None]
Refine = Callable[[Window, int, WindowEstimate], RefinedLoop | None]


class LoopClosure(MapListener):
    """Keeps keyframes and the graph of submaps; finds, verifies and closes loops.

    wait_for_solver: wait for the solved graph, so that a recording always gives the same map; a
    live node does not wait. doubts_joins: what joins the newest chain to others is undone if later
    loops contradict it; else the caller judges joins.
    """

    def __init__(
        self, submaps: MapTable | None = None, *, wait_for_solver: bool = True,
        doubts_joins: bool = True,
    ) -> None:  # fmt: skip
        self.wait_for_solver, self.doubts_joins = wait_for_solver, doubts_joins
        self.enabled = True
        self.closed = 0  # corrections by loops
        self.found, self.refused = 0, 0  # windows that verified a loop, and that verified none
        self.undone = 0  # joins of chains that later loops have contradicted
        self._solver: ThreadPoolExecutor | None = None
        self._max_bytes = 0  # of keyframes in memory; 0: no limit
        self._spill: ArraySpill | None = None  # where the others go; None: they are forgotten
        self._submaps = submaps or MapTable()
        self._submaps.listeners.append(self)
        self.restart()

    @property
    def looked_at(self) -> int:
        """Number of windows that have looked for a loop."""
        return self.found + self.refused

    def restart(self) -> None:
        """Begins a new map."""
        self.found = self.refused = self.undone = 0
        self._solving: Future[Correction] | None = None
        self._last_try = -1  # id of the last window after which a candidate was verified
        self._looks = 0  # since the pose in the map became unknown
        self._forget_all()

    def on_clear(self) -> None:
        """Begins a new map."""
        self.restart()

    def _forget_all(self) -> None:
        self.keyframes = LoopKeyframes(self._submaps, self._spill)
        self._graph = SubmapGraph(self._submaps)
        self._agreement = LoopAgreement(self._graph, self._submaps)
        self.candidates = LoopCandidates(self.keyframes, self._graph, self._submaps)
        self._unconfirmed: list[Loop] = []
        self._against: list[Loop] = []  # that contradict what has joined the newest chain
        # Loops that share no view and fit what has joined the newest chain to others, each with
        # a submap of the chain.
        self._joined_by: list[tuple[int, Loop]] = []
        # Drift since the newest submap began; None: no edge to the submap before it.
        self._drift_model: DriftModel | None = None
        self._guessed = False  # whether a part of this drift is guessed rather than measured
        self._joined: Joint | None = None  # components that the newest loop has joined
        self._up: SubmapUp | None = None  # in the newest submap that knows it
        self._up_is_new = False  # whether it has changed since all were compared
        # Whether the IMU was wrong, and has not agreed since with what was up before.
        self.up_is_doubted, self._doubted_ns = False, 0  # the latter: when it was wrong last
        self._left = 0.0  # tilt that the last solution for what is up has left
        self._levelled_at = 0  # number of nodes at that
        self._up_map: Array | None = None  # [3] up in the map then
        # Whether the oldest submap keeps its size in the map: if loops connect components, and in
        # a loaded map.
        self._keeps_unit = False

    def spill_to(self, spill: ArraySpill) -> None:
        """Sets where keyframes go from now on that memory cannot hold."""
        self._spill = spill
        self.keyframes.spill_to(spill)

    def set_enabled(self, enabled: bool) -> None:
        """Switches loop closure on or off; off, keyframes are forgotten and corrections stay."""
        if self.enabled and not enabled:
            self._forget_all()
        self.enabled = enabled

    def limit_memory(self, memory_mb: int) -> int:
        """Limits keyframes to a quarter of the map's memory. Returns the MiB left for the rest."""
        self._max_bytes = memory_mb * 2**18
        return max(1, memory_mb - -(-self.keyframes.nbytes // 2**20)) if memory_mb else 0

    @property
    def is_solving(self) -> bool:
        """Whether a correction is being solved, for the map as it is."""
        return self._solving is not None

    @property
    def submaps_in_use(self) -> set[int]:
        """The submaps whose poses it needs."""
        return self._graph.submaps_of_nodes() | {k.submap for k in self.keyframes}

    # Adding windows and keyframes

    def add_window(self, placed: Alignment, camera: Array, lag: float = 1.0) -> None:
        """Adds the variance of an aligned window with its newest camera's centre [3].

        A refused window must not be added: the next window is aligned to the views before it.

        lag: mean age of the overlap views, in windows. A window that is aligned to views ``lag``
        windows back adds its error to one in ``lag`` windows: a sum of N moving averages of mean
        lag m grows as N / m^2 steps do.
        """
        if not self.enabled or self._drift_model is None or placed.covariance is None:
            return
        spread = np.diag(placed.covariance) / max(lag, 1.0) ** 2
        self._drift_model.add(np.array([spread[0], spread[1:4].mean(), spread[4:].mean()]), camera)

    def change_unit(self, factor: float, about: Array) -> None:
        """Takes over that lengths of odometry are ``factor`` times what they were, seen from the
        point ``about`` [3]."""
        if self._drift_model is not None:
            self._drift_model.rescale(factor, about)

    def start_chain(self, *, lost: bool) -> None:
        """Begins a chain with a unit of its own.

        lost: it begins near the end of the last chain; else its position is unknown.
        """
        if not lost or self._drift_model is None or not self.keyframes:
            self._drift_model = None
            return
        last = PlacedKeyframe.of(self.keyframes[-1], self._submaps)
        self._drift_model.add(LOST_VARIANCE * [1, 1, last.depth**2], last.centre)
        self._guessed = True

    def add_gap(self, variance: Array) -> None:
        """Adds a motion in which the camera saw nothing known.

        variance: [3] of log scale, rotation, and position over the depth.
        """
        if self._drift_model is not None and self.keyframes:
            last = PlacedKeyframe.of(self.keyframes[-1], self._submaps)
            self._drift_model.add(variance * [1, 1, last.depth**2], last.centre)

    def add_keyframe(self, id: int, descriptor: Array | None) -> None:
        """Adds a keyframe: a view of the map's table, by its id."""
        if not self.enabled:
            return
        row = self._submaps.shared[id]
        submap = row.submap
        if self._submaps.read_only:
            self._forget_keyframes(self._submaps.first_live, submap - LIVE_SUBMAPS)
        if not self._graph.nodes or self._graph.nodes[-1].last != submap:
            self._start_submap(submap)
        if descriptor is None or len(row.depth) == 0:
            return
        assert self._drift_model is not None
        T, unit = self._submaps.poses([id])
        own = self._drift_model.variance_at(T[0, :3, 3])
        keyframe = replace(
            row, descriptor=np.array(descriptor), typical_depth=float(np.median(row.depth)),
            variance_in_submap=own / [1, 1, unit[0] ** 2],
        )  # fmt: skip
        self.keyframes.add_keyframe(keyframe, self._max_bytes, keep_all=self._submaps.read_only)
        self.candidates.restart()

    def add_up(
        self, submap: int, up: Up, up_map: Array | None = None
    ) -> SubmapUp | None:  # fmt: skip
        """Takes what is up in the axes of a submap, as a keyframe of it has measured it. Returns
        what is up in the submap; None if that one does not count.

        Of an IMU that was wrong it counts from when it agrees with the map, and with ``up_map``
        [3], up in the map, where no submap knows it; or once it has not been wrong for a while.
        """
        if not self.enabled or self._submaps.read_only:
            return None
        recent = up.stamp_ns < self._doubted_ns + DOUBT_LASTS_NS
        doubted = self.up_is_doubted and recent
        if doubted and self._graph.off_level(submap, up, up_map) > BELIEVED_RAD:
            return None
        self.up_is_doubted = False
        if self._up is None or self._up.submap != submap:
            self._up = SubmapUp(submap)
        self._up.ups.append(up)
        if not self._up.slips:
            self._up_is_new = True
            self._graph.set_up(submap, self._up.mean)
        return self._up

    def doubt_up(self, stamp_ns: int, since_ns: int, *, level: bool = False) -> None:
        """Forgets what is up by an IMU that has turned out to be wrong at a stamp, and may have
        been so since some time before. level: whether up in the map is known from before that."""
        self._graph.forget_ups(stamp_ns - since_ns)
        if self._up is not None and self._up.forget(stamp_ns - since_ns):
            self._graph.set_up(self._up.submap, self._up.mean)
        else:
            self._up = None
        self.up_is_doubted = level or self._graph.knows_up  # else nothing can be agreed with
        self._doubted_ns = stamp_ns
        self._up_is_new = True
        self._levelled_at = 0

    def is_tilted(self, up_map: Array | None = None, *, ends: bool = False) -> bool:
        """Returns whether the graph should be solved because submaps do not agree about what is
        up, or with ``up_map`` [3], up in the map, if that is known.

        Again once there is another submap, or the tilt that was left has grown, or the recording
        ends.
        """
        if self._solving is not None or not (self._up_is_new or ends):
            return False
        self._up_is_new = False
        tilt, newest = self._graph.tilt(up_map), len(self._graph.nodes)
        left = self._left if newest == self._levelled_at and not ends else 0.0
        if not tilt > left + MOST_TILT:
            return False
        self._levelled_at, self._up_map = newest, up_map
        return True

    def _start_submap(self, id: int) -> None:
        begin = self._submaps.T_local_submap(id).t
        variance = None if self._drift_model is None else self._drift_model.variance_at(begin)
        self._graph.add(id, variance, self._guessed)
        self._drift_model, self._guessed = DriftModel(), False
        for absorbed in self._graph.enforce_limits():
            self._absorb(absorbed)

    def _absorb(self, absorbed: Absorbed) -> None:
        """Updates keyframes and loops of a node that was merged into another one, or forgotten."""
        if absorbed.variance is None:
            for one in [k for k in self.keyframes if absorbed.first <= k.submap <= absorbed.last]:
                self.keyframes.remove(one.view.id)
            if not len(self.keyframes):
                self.candidates.wait()
            return

        self.keyframes.change(
            lambda k: merged_keyframe(PlacedKeyframe.of(k, self._submaps), absorbed)
        )

    # Read-only maps

    def localize(self, searched: frozenset[int]) -> bool:
        """Begins in a map that is read-only now: loops are found to keyframes of the submaps
        ``searched`` only, and move the map as one body.

        Returns whether there are such keyframes.
        """
        self.candidates.limit_to(searched)
        self._keeps_unit = True
        self._unconfirmed.clear()
        self._against.clear()
        self._joined_by.clear()
        return any(one.submap in searched for one in self.keyframes)

    @property
    def recognises_map(self) -> bool:
        """Whether a read-only map has keyframes that recognise its locations."""
        return any(one.submap < self._submaps.first_live for one in self.keyframes)

    def end_localization(self) -> bool:
        """Forgets what was only localized, before the map grows again. Returns whether new submaps
        are measured from its last one."""
        drift = self._drift_from_map()
        self.forget_pose()
        self.candidates.limit_to(None)
        self._drift_model, self._guessed = drift, False
        return drift is not None

    def _drift_from_map(self) -> DriftModel | None:
        """Returns the drift since the map's last submap; None: they are not connected."""
        last, newest = self._graph.map_size - 1, len(self._graph.nodes) - 1
        if last < 0 or self._drift_model is None:
            return None
        at = self._graph.pose(self._graph.nodes[newest]).t
        variance = self._graph.drift_variance(last, newest, at)
        if not np.isfinite(variance).all():
            return None
        drift = DriftModel()
        drift.add(variance + self._drift_model.variance_at(at), at)
        return drift

    def forget_pose(self) -> None:
        """Forgets where the camera is in a read-only map."""
        self._solving = None
        self._graph.forget_live()
        self._forget_keyframes(self._submaps.first_live, math.inf)
        self._unconfirmed.clear()
        self._against.clear()
        self._joined_by.clear()
        self._drift_model = None
        self.candidates.wait()

    def _forget_keyframes(self, first: int, last: float) -> None:
        """Forgets the keyframes of the submaps from ``first`` to ``last``, of the newest ones."""
        for one in reversed(list(self.keyframes)):
            if one.submap < first:
                break
            if one.submap <= last:
                self.keyframes.remove(one.view.id)

    # Saved maps

    def restore(self, saved: Recognition) -> None:
        """Takes over what recognises saved maps, after their submaps; it has nothing yet."""
        for id, T_map_submap in saved.T_map_submap.items():
            if id not in self._submaps.submaps:  # without points and poses
                self._submaps.add_submap(Submap(id, 0, T_map_submap))
        self._graph.restore(saved.nodes, saved.edges)
        self.keyframes.restore(numbered(saved.keyframes))
        for absorbed in self._graph.enforce_limits():  # of several scenes together
            self._absorb(absorbed)

    def recognition(self, scale: float = 1.0) -> Recognition:
        """Returns what recognises the locations of this map, with lengths times ``scale``."""
        nodes, edges = self._graph.of_map()
        keyframes = tuple(self.keyframes)
        if self._submaps.read_only:
            keyframes = tuple(k for k in keyframes if k.submap < self._submaps.first_live)
        ids = {n.first for n in nodes} | {k.submap for k in keyframes}
        poses = {id: self._submaps.submaps[id].T_map_submap.scaled(scale) for id in sorted(ids)}
        return Recognition(nodes, edges, keyframes, poses)

    @property
    def saved_keyframes(self) -> KeyframeFile | None:
        """The file of a loaded scene in which keyframes are; None: there is none."""
        return next((one.file for one in self.keyframes if one.file is not None), None)

    # Finding a loop

    def begin_search(self) -> None:
        """Begins to look for an unknown pose: at first after each window."""
        self._looks = 0

    def try_close_loop(
        self,
        window_id: int,
        config: LoopConfig,
        views: int,
        infer: Infer,
        aligner: WindowAligner,
        metric: Metric,
        refine: Refine | None = None,
        pose_known: bool = True,
        hint: PoseHint | None = None,
        matching: Matching | None = None,
        placing: Placing | None = None,
    ) -> None:
        """Verifies a candidate for a loop with the newest keyframe, every ``loop.every`` windows,
        or after each one for a while if the pose in the map is unknown.

        Starts the solver when two loops agree. views: most views of a window. infer: returns None
        for a window that cannot be verified. metric: the scale is known, so that the graph does
        not change it. refine: returns the estimate of a window with poses by tracks, or None if
        too few tracks connect its parts before and after an index; not given: the network's poses
        count. hint: where the camera may be: keyframes there are compared after each window, also
        if its pose is known. matching: finds keyframes by their images. placing: places a keyframe
        among others by tracks.
        """
        if not self.enabled or self._solving is not None or views < 2:
            return
        self._looks = 0 if pose_known or hint is not None else self._looks
        eager = not pose_known and self._looks < EAGER_LOOKS
        due = not 0 <= window_id - self._last_try < (1 if eager else config.every)
        old = None
        if due and (pose_known or hint is None):
            old = self.candidates.next(None, matching)
        usual = old is not None or not pose_known
        if old is None and hint is not None and (pose_known or due):
            old = self.candidates.next(hint, matching)  # beside the usual looks, if it is known
        if old is None:
            return
        self._last_try = window_id if usual else self._last_try
        self._looks += 1
        try:
            window, keyframes, split = loop_window(
                self.keyframes, self._graph, old, self.candidates.new, window_id, views // 2
            )
        except OSError as error:  # the file of a loaded scene
            log.warning("a keyframe of the loaded scene cannot be read: %s", error)
            self.keyframes.remove(old.view.id)
            return
        estimate = infer(window)
        if estimate is None:
            return
        refined: RefinedLoop | None = RefinedLoop(estimate, np.zeros(3))
        if refine is not None:
            refined = refine(window, split, estimate)
        if self._verify(old, keyframes, refined, aligner, placing):
            self.solve(metric)

    def _verify(
        self, old: ViewRow, keyframes: Sequence[ViewRow], seen: RefinedLoop | None,
        aligner: WindowAligner, placing: Placing | None = None,
    ) -> bool:  # fmt: skip
        """Verifies a candidate by what its window of ``keyframes`` has seen; None: refused.

        Returns True if two loops agree, so that the graph should be solved now. aligner: the
        stream's, for the noise of views within a window; it is not changed. placing: as in
        ``try_close_loop``.
        """
        new = self.candidates.new
        loop = (
            None if seen is None else self._measured(old, new, keyframes, seen, aligner, placing)
        )
        strict = self.doubts_joins and self._is_by_join(old.submap, new.submap)
        if loop is None or not self._agreement.is_possible(loop, strict=strict):
            self.refused += 1
            return loop is not None and self.doubts_joins and self._undoes_join(loop)
        self.found += 1
        if strict:  # also if no other confirms it
            self._note_support(loop, old.submap, new.submap)
        if self._graph.index(old.submap) in self._graph.loop_partners(new.submap):
            self._add_to_graph(loop)  # two have agreed before, and it agrees with these
            return self.doubts_joins and not self._graph.in_one_chain(old.submap, new.submap)
        self._unconfirmed = self._still_there(self._unconfirmed)
        confirming = self._confirming(loop)
        if confirming:
            self._join(loop)
            for one in (*confirming, loop):
                self._add_to_graph(one)
            self._unconfirmed.clear()
            return True
        self._unconfirmed = [*self._unconfirmed[1 - MAX_UNCONFIRMED :], loop]
        return False

    def _measured(
        self, old: ViewRow, new: ViewRow, keyframes: Sequence[ViewRow], seen: RefinedLoop,
        aligner: WindowAligner, placing: Placing | None,
    ) -> Loop | None:  # fmt: skip
        """Returns the loop that a window of ``keyframes`` has seen, as tracks measure it among the
        old keyframes, else as the network does; None if both sides see no surface in common."""
        split = [k.view.id for k in keyframes].index(new.view.id)
        views = [PlacedKeyframe.of(k, self._submaps).view for k in keyframes]
        there, here = (PlacedKeyframe.of(k, self._submaps) for k in (old, new))
        loop = measured_loop(there, here, views, split, seen, aligner)
        if loop is None:
            return None
        same_surface = see_same_surface(seen.estimate, split, 0)
        if placing is not None:
            try:
                some = keyframes_around(self.keyframes, self._graph, old, new)
            except OSError as error:
                log.warning("a keyframe of the loaded scene cannot be read: %s", error)
                some = []
            around = [PlacedKeyframe.of(k, self._submaps) for k in some]
            if around:
                spread = drift_around(self._graph, there, around)
                by_tracks = loop_by_tracks(
                    loop, there, here, around, spread, placing, same_surface=same_surface
                )
                if by_tracks is not None:
                    return by_tracks
        return loop if same_surface else None

    def _is_by_join(self, old: int, new: int) -> bool:
        """Whether only what has joined the chain of the submap ``new`` to others tells where it
        is, seen from ``old``."""
        return bool(self._graph.ties(new)) and not self._graph.is_measured(old, new, untied=new)

    def _still_there(self, loops: Sequence[Loop]) -> list[Loop]:
        """Returns those loops whose keyframes are still there."""
        there = self.keyframes
        return [w for w in loops if w.old in there and w.new in there]

    def _undoes_join(self, loop: Loop) -> bool:
        """Weighs an impossible loop against what has joined its chain to that of the old keyframe;
        returns whether it has undone that."""
        old, new = placed_ends(loop, self._submaps)
        chain = new.keyframe.submap
        if self._graph.is_measured(old.keyframe.submap, chain, untied=chain):
            return False  # other measurements contradict it too
        self._against = self._still_there(self._against)
        agreeing = [
            one
            for one in self._against
            if one.is_apart(loop) and self._agreement.agree(one, loop, chain, strict=True)
        ]
        joined_by = len(self._graph.ties(chain))
        joined_apart = len(self._joined_apart(chain))
        enough = len(agreeing) + 1 >= min(max(joined_by, FEWEST_AGAINST), MOST_AGAINST)
        if not enough or len(sharing_no_view((*agreeing, loop))) < joined_apart:
            kept = max(joined_apart, MAX_UNCONFIRMED)
            self._against = [*self._against[1 - kept :], loop]
            return False
        log.warning(
            "the camera's place in the map was wrong: %d later looks agree on another one",
            len(agreeing) + 1,
        )
        self.undone += 1
        self._graph.untie(chain)
        self._joined_by.clear()
        self._join(loop)
        for one in (*agreeing, loop):
            self._add_to_graph(one)
        self._against.clear()
        self._unconfirmed.clear()
        return True

    def _joined_apart(self, chain: int) -> list[Loop]:
        """Returns loops that share no view and fit what has joined the chain of a submap to
        others."""
        if not self._graph.ties(chain):
            return []
        return [one for new, one in self._joined_by if self._graph.in_one_chain(new, chain)]

    def _note_support(self, loop: Loop, old: int, new: int) -> None:
        """Notes a loop between two submaps that fits what has joined the newest one's chain."""
        if not self._graph.in_one_chain(old, new):
            found = sharing_no_view((*self._joined_apart(new), loop))[:MAX_APART]
            self._joined_by = [(new, one) for one in found]

    def _confirming(self, loop: Loop) -> list[Loop]:
        """Returns the waiting loops that confirm another one; empty: it waits too.

        One that agrees is enough, unless they would join chains and compare the same views, whose
        error they may repeat: then there must be two. And as many must not agree on another place.
        """
        ends = (self._submaps.keyframes[id].submap for id in (loop.old, loop.new))
        joins = self.doubts_joins and not self._graph.is_measured(*ends)
        agree = self._agreeing(loop, strict=joins)
        if not agree or not joins:
            return agree[:1]
        apart = [one for one in agree if one.is_apart(loop)]
        confirming = apart[:1] or (agree if len(agree) >= MIN_TOGETHER else [])
        against = [
            one for one in self._unconfirmed if self._agreement.contradict(one, loop, strict=True)
        ]
        rivals = (1 + len(self._agreeing(one, against, strict=True)) for one in against)
        return confirming if 1 + len(agree) > max(rivals, default=0) else []

    def _agreeing(
        self, loop: Loop, among: Sequence[Loop] | None = None, *, strict: bool
    ) -> list[Loop]:
        """Returns the waiting loops of other keyframes that agree with one. strict: see
        ``within_sigmas``."""
        return [
            one
            for one in (self._unconfirmed if among is None else among)
            if one.new != loop.new and self._agreement.agree(one, loop, strict=strict)
        ]

    def _join(self, loop: Loop) -> None:
        """Notes what a confirmed loop joins."""
        old, new = placed_ends(loop, self._submaps)
        self._keeps_unit |= not self._graph.connected(old.keyframe.submap, new.keyframe.submap)
        nodes = self._graph.unmeasured(old.keyframe.submap, new.keyframe.submap)
        drift = loop.drift(old.T_local_submap, new.T_local_submap)
        self._joined = Joint(drift, new.centre, nodes)

    def _add_to_graph(self, loop: Loop) -> None:
        """Adds a loop to the graph, between the submaps of its keyframes."""
        old, new = placed_ends(loop, self._submaps)
        own = loop.variance * [1, 1, new.T_local_submap.scale**2]
        variance = own + old.variance + new.variance
        drift = loop.drift(old.T_local_submap, new.T_local_submap)
        self._graph.add_loop(old.keyframe.submap, new.keyframe.submap, drift, variance, new.centre)
        self.candidates.note_loop(loop.new)
        self._note_support(loop, old.keyframe.submap, new.keyframe.submap)

    # Closing a loop

    def problem(self) -> Problem:
        """Returns the graph as it is, with known sizes, for what else asks the map to move."""
        return self._graph.problem(metric=True, all_components=True)

    def solve(
        self, metric: Metric, *, levelled: bool = False, up_map: Array | None = None
    ) -> None:
        """Starts the solver; ``collect`` returns its correction. levelled: only what is up asks
        for it. up_map: [3] up in the map; None: its oldest submap keeps its tilt."""
        joined, self._joined = self._joined, None
        problem = self._graph.problem(
            metric, self._keeps_unit, joined, all_components=self.candidates.is_asked,
            levelled=levelled, up_map=up_map,
        )  # fmt: skip
        if self._solver is None:
            self._solver = ThreadPoolExecutor(1, "da3_loops")
        self._solving = self._solver.submit(solve, problem)

    def collect(self, *, wait: bool = False) -> Correction | None:
        """Returns the solver's correction for ``apply``; None if there is none yet.

        wait: until it is there, if it is being solved.
        """
        wait |= self.wait_for_solver
        if self._solving is None or not (wait or self._solving.done()):
            return None
        solving, self._solving = self._solving, None
        error = solving.exception()
        if error is not None:  # the map stays as it is, and processing continues
            log.error("a loop could not be closed: %s: %s", type(error).__name__, error)
            return None
        return solving.result()

    def on_correction(self, correction: Correction, _before: Mapping[int, Similarity]) -> None:
        """Notes that submaps have moved, by a loop or by another SLAM."""
        c = correction
        self.closed += not (c.followed or c.adjusted or c.levelled or c.anchored)
        if c.levelled or c.anchored:
            self._left = self._graph.tilt(self._up_map)
        if correction.followed:
            self._graph.measure_anew()
        elif correction.adjusted:  # what loops have measured stays: it had a say
            self._graph.measure_anew(correction.adjusted)
        # What waits is compared by where its ends are then, and these move by little. Global poses
        # move the map so often that else no two loops would agree.
        if not (c.adjusted or c.levelled or c.anchored):
            self._unconfirmed.clear()
        self.candidates.restart()
