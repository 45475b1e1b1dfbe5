"""Loops in the stream: when the network looks twice at a place, and when the scene moves.

The look costs one more pass of the network after a window whose results are out already; the graph
is solved on another thread, and its answer is taken between two windows. Knows no ROS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from da3_ros.config import LoopConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import WindowTooLargeError
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.shared_view import SharedView
from da3_ros.mapping.submap_graph import Correction, Moves, solve
from da3_ros.types import Array, Prediction, Window

log = logging.getLogger(__name__)


class LoopScheduler:
    """What a pipeline does about loops. All of it in the vo frame.

    patient: wait for the graph, so that the same recording gives the same scene; a live node does
    not wait.
    """

    def __init__(self, *, patient: bool = True) -> None:
        self.patient = patient
        self.enabled = True
        self.closed = 0
        self._solver: ThreadPoolExecutor | None = None
        self.restart()

    def restart(self) -> None:
        """A new scene."""
        self._closer = LoopClosure()
        self._solving: Future[Correction] | None = None
        self._looked = -1  # window

    def resize(self, cut: Cut) -> None:
        """The network's images have another size now."""
        self._closer.resize(cut)

    def switch(self, enabled: bool) -> None:
        """Notice places or not: off, nothing is remembered, and the map stays as corrected."""
        if self.enabled and not enabled:
            before, self._closer = self._closer, LoopClosure()
            self._closer.T_scene_vo = before.T_scene_vo
            self._closer.found, self._closer.refused = before.found, before.refused
        self.enabled = enabled

    def start_segment(self, *, lost: bool) -> None:
        """What comes is not joined to what was; lost: but begins about where that ended."""
        self._closer.start_segment(lost=lost)

    @property
    def refused(self) -> int:
        """Looks at two places that found no loop."""
        return self._closer.refused

    @property
    def T_scene_vo(self) -> Array:
        """[4, 4] in scene units: how loops have moved the newest submap."""
        return self._closer.T_scene_vo

    def add_window(self, placed: Alignment, camera: Array, lag: float) -> None:
        """A window that was aligned (``ref`` is vo), its newest camera's place [3], and how many
        windows ago what it shares was new."""
        if self.enabled:
            self._closer.add_window(placed, camera, lag)

    @property
    def nbytes(self) -> int:
        """Memory of the keyframes that are remembered."""
        return self._closer.nbytes

    def bound(self, memory_mb: int) -> int:
        """Keep keyframes in a quarter of the map's memory. Returns the MiB left for the rest."""
        self._closer.most_bytes = memory_mb * 2**18
        return max(1, memory_mb - -(-self.nbytes // 2**20)) if memory_mb else 0

    def add_keyframe(self, anchor: SharedView, descriptor: Array | None) -> None:
        """A keyframe in the vo frame, with its submap."""
        if self.enabled:
            self._closer.add_keyframe(anchor, descriptor, anchor.submap)

    def look(
        self,
        window_id: int,
        config: LoopConfig,
        views: int,
        infer: Callable[[Window], Prediction],
        joiner: WindowAligner,
        metric: bool,
    ) -> None:
        """Compare the newest keyframe with an old one that it looks like, if it is time to.

        views: that a window may have. metric: the scale is known, the graph leaves it alone.
        """
        if not self.enabled or self._solving is not None or views < 2:
            return
        if 0 <= window_id - self._looked < config.every:
            return
        old = self._closer.candidate()
        if old is None:
            return
        self._looked = window_id
        window, places = self._closer.window(old, window_id, views // 2)
        try:
            prediction = infer(window)
        except WindowTooLargeError as error:
            log.warning("a place that may be seen again was not looked at: %s", error)
            return
        if self._closer.judge(old, places, prediction, joiner):
            self._solve(metric)

    def _solve(self, metric: bool) -> None:
        problem = self._closer.problem(metric)
        if self._solver is None:
            self._solver = ThreadPoolExecutor(1, "da3_loops")
        self._solving = self._solver.submit(solve, problem)

    def collect(self) -> Correction | None:
        """A correction that is ready to be made; it is what ``apply`` takes."""
        if self._solving is None or not (self.patient or self._solving.done()):
            return None
        solving, self._solving = self._solving, None
        error = solving.exception()
        if error is not None:  # the scene stays as it was, and frames go on
            log.error("a loop could not be closed: %s: %s", type(error).__name__, error)
            return None
        return solving.result()

    def apply(
        self, correction: Correction, places: dict[int, Similarity]
    ) -> dict[int, Similarity]:
        """Take a correction. Returns where in the scene the submaps ``places`` lie from now on.

        Those of a scene that was loaded are older than all that loops know, and stay.
        """
        T_vo_scene = Similarity.from_pose(np.linalg.inv(self.T_scene_vo))
        self._closer.apply(correction)
        self.closed += 1
        T_scene_vo = Similarity.from_pose(self.T_scene_vo)
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
        far = max((float(np.linalg.norm(out[i].t - p.t)) for i, p in places.items()), default=0.0)
        log.info("a loop is closed: submaps move by up to %.3g (scene units)", far)
        return out


def conjugated(moves: Moves, P: Similarity) -> Moves:
    """Moves of a space as they are in coordinates that ``P`` maps into it."""
    return moves.each(lambda move: P.inverse() @ move @ P)
