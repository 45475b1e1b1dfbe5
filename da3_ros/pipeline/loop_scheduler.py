"""Schedules loop closure: when a candidate is verified, and when the scene is corrected.

Verification costs one more window, after a window whose results are already
delivered. The graph is solved on another thread; its correction is applied between two windows.
No ROS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from da3_ros.config import LoopConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import WindowTooLargeError
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.graph_solution import Correction, Moves, solve
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.loop_keyframes import KeyframeFile
from da3_ros.mapping.place_hint import PlaceHint
from da3_ros.mapping.pose_graph import Metric
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.shared_view import SharedView
from da3_ros.types import Array, Prediction, Window

log = logging.getLogger(__name__)

EAGER_LOOKS = 30  # windows in a row that are spent on looking for an unknown place


class LoopScheduler:
    """Finds, verifies and closes the loops of a pipeline, in the ``vo`` frame.

    wait_for_solver: wait for the solved graph, so that a recording always gives the same scene; a
    live node does not wait.
    """

    def __init__(self, *, wait_for_solver: bool = True) -> None:
        self.wait_for_solver = wait_for_solver
        self.enabled = True
        self.closed = 0
        self.corrected = False  # whether submaps were ever moved
        self._solver: ThreadPoolExecutor | None = None
        self._max_bytes = 0  # of keyframes in memory; 0: no limit
        self._spill: ArraySpill | None = None  # where the others go; None: they are forgotten
        self.restart()

    def spill_to(self, spill: ArraySpill) -> None:
        """Sets where keyframes go from now on that memory cannot hold."""
        self._spill = spill
        self._closure.spill_to(spill)

    def restart(self) -> None:
        """Begins a new scene."""
        self._closure = LoopClosure(spill=self._spill)
        self._solving: Future[Correction] | None = None
        self._last_try = -1  # id of the last window after which a candidate was verified
        self._looks = 0  # since the place became unknown

    def restore(self, saved: Recognition) -> None:
        """Begins a new scene in which the places of a saved one are recognised."""
        self.restart()
        self._closure.restore(saved)

    def recognition(self, scale: float) -> Recognition:
        """Returns what recognises the places of this scene; see ``LoopClosure.recognition``."""
        return self._closure.recognition(scale)

    def begin_search(self) -> None:
        """Begins to look for an unknown place: at first after each window."""
        self._looks = 0

    def look_from(self, view_id: int, among: Callable[[int], bool]) -> bool:
        """Compares a keyframe as if it were the newest one; see ``LoopClosure.look_from``."""
        return self._closure.look_from(view_id, among)

    @property
    def saved_keyframes(self) -> KeyframeFile | None:
        """The file of a loaded scene in which keyframes are; None: there is none."""
        return self._closure.saved_keyframes

    def wait_for_keyframe(self) -> None:
        """Looks for no loop before the next keyframe: images have another size now."""
        self._closure.wait_for_keyframe()

    def set_enabled(self, enabled: bool) -> None:
        """Switches loop closure on or off; off, keyframes are forgotten and corrections stay."""
        if self.enabled and not enabled:
            self._closure = LoopClosure(self._closure, self._spill)
        self.enabled = enabled

    def start_segment(self, *, lost: bool) -> None:
        """Begins a segment; lost: near the end of the last one, else at an unknown position."""
        self._closure.start_segment(lost=lost)

    def localize(self, first_live: int, searched: frozenset[int]) -> bool:
        """Makes the map read-only; see ``LoopClosure.localize``."""
        return self._closure.localize(first_live, searched)

    @property
    def recognises_map(self) -> bool:
        """Whether a read-only map has keyframes that recognise its places."""
        return self._closure.recognises_map

    def end_localization(self) -> bool:
        """Lets the map grow again; see ``LoopClosure.end_localization``."""
        return self._closure.end_localization()

    def forget_place(self) -> None:
        """Forgets where the camera is in a read-only map."""
        self._solving = None
        self._closure.forget_place()

    @property
    def refused(self) -> int:
        """Number of loop candidates whose verification failed."""
        return self._closure.refused

    @property
    def found(self) -> int:
        """Number of loop candidates whose verification succeeded."""
        return self._closure.found

    @property
    def T_scene_vo(self) -> Array:
        """Correction [4, 4] of the newest submap by loops or another SLAM, scene units."""
        return self._closure.T_scene_vo

    def add_window(self, placed: Alignment, camera: Array, lag: float) -> None:
        """Adds an aligned window (``ref`` is ``vo``), with its newest camera's centre [3].

        lag: mean age of the shared views, in windows.
        """
        if self.enabled:
            self._closure.add_window(placed, camera, lag)

    @property
    def nbytes(self) -> int:
        """Memory of the keyframes, bytes."""
        return self._closure.nbytes

    def limit_memory(self, memory_mb: int) -> int:
        """Limits keyframes to a quarter of the map's memory. Returns the MiB left for the rest."""
        self._max_bytes = memory_mb * 2**18
        return max(1, memory_mb - -(-self.nbytes // 2**20)) if memory_mb else 0

    def add_keyframe(self, shared_view: SharedView, descriptor: Array | None) -> None:
        """Adds a keyframe in the ``vo`` frame, with its submap."""
        if self.enabled:
            self._closure.add_keyframe(
                shared_view, descriptor, shared_view.submap, self._max_bytes
            )

    def try_close_loop(
        self,
        window_id: int,
        config: LoopConfig,
        views: int,
        infer: Callable[[Window], Prediction],
        aligner: WindowAligner,
        metric: Metric,
        refine: Callable[[Window, int, Prediction], Prediction | None] | None = None,
        place_known: bool = True,
        hint: PlaceHint | None = None,
    ) -> None:
        """Verifies a candidate for a loop with the newest keyframe, every ``loop.every`` windows,
        or after each one for a while if the place in the map is unknown.

        Starts the solver when two loops agree. views: most views of a window. metric: the scale is
        known, so that the graph does not change it. refine: returns the prediction of a window
        with poses by tracks, or None if too few tracks connect its parts before and after an
        index; not given: the network's poses count. hint: where the camera may be, in ``vo``,
        while its place is unknown.
        """
        if not self.enabled or self._solving is not None or views < 2:
            return
        self._looks = 0 if place_known or hint is not None else self._looks
        eager = not place_known and self._looks < EAGER_LOOKS
        if 0 <= window_id - self._last_try < (1 if eager else config.every):
            return
        old = self._closure.candidate(None if place_known else hint)
        if old is None:
            return
        self._last_try, self._looks = window_id, self._looks + 1
        try:
            window, keyframes, split = self._closure.window(old, window_id, views // 2)
        except OSError as error:  # the file of a loaded scene
            log.warning("a keyframe of the loaded scene cannot be read: %s", error)
            self._closure.forget(old)
            return
        try:
            prediction: Prediction | None = infer(window)
        except WindowTooLargeError as error:
            log.warning("loop-closure check skipped (out of memory): %s", error)
            return
        if refine is not None and prediction is not None:
            prediction = refine(window, split, prediction)
        if self._closure.verify(old, keyframes, prediction, aligner):
            self.solve(metric)

    def solve(self, metric: Metric) -> None:
        """Starts the solver; ``collect`` returns its correction."""
        problem = self._closure.problem(metric)
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
        if error is not None:  # the scene stays as it is, and processing continues
            log.error("a loop could not be closed: %s: %s", type(error).__name__, error)
            return None
        return solving.result()

    def apply(
        self, correction: Correction, places: dict[int, Similarity]
    ) -> dict[int, Similarity]:
        """Applies a correction, by a loop or by another SLAM.

        Returns the new places of the submaps ``places`` in the scene. Submaps that are older than
        the graph stay.
        """
        T_vo_scene = Similarity.from_pose(np.linalg.inv(self.T_scene_vo))
        self._closure.apply(correction)
        self.corrected = True
        self.closed += not correction.followed
        unit = Similarity(correction.unit, np.eye(3), np.zeros(3))
        T_scene_vo = Similarity.from_pose(self.T_scene_vo) @ unit
        out = {}
        oldest = next(iter(correction.moves), 0)
        for id, place in places.items():
            if id < oldest:
                out[id] = place
                continue
            T_vo_submap = T_vo_scene @ place
            if id in correction.moves:
                T_vo_submap = correction.moves[id] @ T_vo_submap
            out[id] = T_scene_vo @ T_vo_submap
        what = "another SLAM is followed" if correction.followed else "loop closed"
        # A path may come each second.
        level = logging.DEBUG if correction.followed else logging.INFO
        if places:
            far = max(float(np.linalg.norm(out[i].t - p.t)) for i, p in places.items())
            log.log(level, "%s: submaps move by up to %.3g (scene units)", what, far)
        return out


def conjugated(moves: Moves, P: Similarity) -> Moves:
    """Returns the moves in other coordinates, which ``P`` maps to those of ``moves``."""
    return moves.transformed(lambda move: P.inverse() @ move @ P)
