"""Views that show nothing: which windows are trusted, and the frames of views that are not.

A view that carries no information moves nothing: its frame has no depth and the held pose of its
camera. After a gap the camera must be found among its own keyframes.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.loop_verification import see_same_surface
from da3_ros.mapping.overlap_view import OverlapView
from da3_ros.pipeline.delivery import NO_WINDOW, tracked_frame
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.pipeline.sight import Sight
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.pipeline.window_inference import without_invalid_depth
from da3_ros.pipeline.window_odometry import WindowOdometry
from da3_ros.pipeline.window_refinement import WindowRefinement
from da3_ros.types import Array, Prediction, TrackedFrame, View, Window

log = logging.getLogger(__name__)

LOST = "lost"  # the cause of views that show something, but nothing known
UNCERTAIN = "uncertain"  # of views of which the network is far less certain than usual


class BlindFrames:
    """Judges windows before they change anything, and makes the frames of blind views."""

    def __init__(
        self, config: PipelineConfig, odometry: WindowOdometry, refinement: WindowRefinement,
        scene_map: SceneMap, counters: Counter[str],
    ) -> None:  # fmt: skip
        self.config, self.counters = config, counters
        self._odometry, self._refinement, self._map = odometry, refinement, scene_map
        self.sight = Sight(counters)

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config

    def choose(self, room: int, new: Sequence[PreparedView]) -> list[OverlapView]:
        """Returns at most ``room`` views that the next window shares: those of odometry, or
        keyframes that look like a view that was not found."""
        if self.sight.attempts:
            return self._odometry.overlap_views.choose_like(room, self.sight.descriptor)
        return self._odometry.choose(room, new)

    def judge(
        self, window: Window, shared: list[OverlapView], new: Sequence[PreparedView],
        prediction: Prediction,
    ) -> tuple[Prediction, str]:  # fmt: skip
        """Returns the prediction, and why the new views of a window cannot be trusted, or an
        empty text.

        Views that may show too little, and all new views after a gap, must be connected to the
        others: by tracks where these are usual, else by surfaces that both see. After a gap the
        poses are those of the tracks.
        """
        if not self.config.hold_when_blind or not shared:
            return prediction, ""
        suspects = self.sight.suspects(new, window, prediction)
        gap = self._has_gap(window)
        if not suspects and not gap:
            return prediction, ""
        # An image that shows enough, and of which the network is uncertain, may show other things.
        cause = next((p.suspect for p in new if p.suspect), LOST if gap else UNCERTAIN)
        if self.sight.expects_tracks:
            joined = self._joined(window, len(shared), suspects, prediction, gap=gap)
            if joined is None:
                return prediction, cause
            prediction = joined if gap else prediction
        elif not self._agrees(window, shared, suspects, prediction, gap=gap):
            return prediction, cause
        known = without_invalid_depth(window, prediction)
        if gap and not self._odometry.would_fit(shared, known):
            return prediction, cause
        return prediction, ""

    def is_unrelated(self, window: Window, shared: Sequence[OverlapView]) -> bool:
        """Whether a window after a gap shares no view, so that a new segment must begin."""
        if shared or not self.sight.has_placed or not self.config.hold_when_blind:
            return False
        if not self._has_gap(window):
            return False
        self._note_lost("has no earlier view to compare with")
        return True

    def _note_lost(self, why: str) -> None:
        log.warning("the camera sees again, but %s: a new segment begins", why)
        self.counters["sight_not_found"] += 1

    def _has_gap(self, window: Window) -> bool:
        return self.sight.has_gap and not self._odometry.prior.leads_poses(window)

    def _joined(
        self, window: Window, shared: int, suspects: Sequence[int], prediction: Prediction, *,
        gap: bool,
    ) -> Prediction | None:  # fmt: skip
        """Returns the prediction with poses by tracks; None if they do not connect the views."""
        views = range(len(window.views))
        sides: list[tuple[Sequence[int], Sequence[int]]] = [
            ([i for i in views if i != index], [index]) for index in suspects
        ]
        if gap:
            sides.append((views[:shared], views[shared:]))
        return self._refinement.joined(window, sides, prediction)

    def _agrees(
        self, window: Window, shared: list[OverlapView], suspects: Sequence[int],
        prediction: Prediction, *, gap: bool,
    ) -> bool:  # fmt: skip
        """Whether the network itself trusts its views, and sees a known surface after a gap."""
        newest = len(window.views) - 1
        if gap and not any(see_same_surface(prediction, newest, i) for i in range(len(shared))):
            return False
        return all(
            self.sight.is_confident(window.views[i].camera, prediction, i) for i in suspects
        )

    def gives_up(self, cause: str, prediction: Prediction) -> bool:
        """Notes a window that cannot be trusted; returns whether the camera was looked for so
        often that a new segment must begin."""
        if cause != LOST:  # it may still be blind
            return False
        newest = None if prediction.descriptor is None else prediction.descriptor[-1]
        if not self.sight.note_failure(newest):
            return False
        self._note_lost("none of its keyframes")
        return True

    def keep_odometry(self, frame: LocalFrame) -> None:
        """Keeps odometry from jumping at the first frame after a gap; call before the frame's pose
        is noted."""
        held = self._odometry.newest.get(frame.camera)
        if held is None or not frame.leads or not self.sight.was_blind:
            return
        if self._odometry.prior.replaces_poses:  # the robot knows how it has moved
            return
        scale = self._map.scale
        unit = scale.published_unit(frame.scale)
        held, found = (scale.shifted(T, frame.scale) for T in (held, frame.T_local_camera))
        stepped = self.sight.step_after_gap(frame.camera, held, found, unit)
        self._map.odom.refined(stepped, found, unit)

    def frame(self, prepared: PreparedView) -> TrackedFrame:
        """Returns the frame of a blind view: without depth, at the held pose of its camera, with
        a covariance that grows; without a pose if the camera was not placed since the start."""
        view = prepared.view
        self.sight.note_blind(prepared)
        self.counters["processed"] += 1
        poses, last = self._odometry.newest, self.sight.last(view.camera)
        T_prior = self._odometry.prior.pose(view)
        T = T_prior
        if T is None and last is not None:  # else a loaded scene has a pose, of another time
            T = self.sight.held_pose(view.camera, poses)
        unknown = np.full(view.image.shape[:2], np.nan, np.float32)
        frame = LocalFrame(
            # A held pose is that of the last frame, also where a window refines it later.
            id=view.id if last is None else last.id,
            stamp_ns=view.stamp_ns,
            frame_id=view.frame_id,
            camera=view.camera,
            image=view.image,
            depth=unknown,
            confidence=unknown,
            K=_known_K(view, last),
            T_local_camera=np.full((4, 4), np.nan) if T is None else T,
            scale=self._map.scale.scale,
            window=NO_WINDOW if last is None else last.window,
            leads=prepared.leads,
        )
        if T is None or last is None:
            out = tracked_frame(frame, unknown, frame.T_local_camera, np.eye(4))
        else:
            out = self._map.published(frame, self._odometry.uncertainty)
            in_odom, in_map = self.sight.held_covariances(view.camera, view.stamp_ns, poses)
            if T_prior is not None:  # its errors are unknown, as in the windows before
                in_odom = in_map = None
            out = dataclasses.replace(out, covariance_odom=in_odom, covariance_map=in_map)
        return dataclasses.replace(out, id=view.id, blind=prepared.blind)


def _known_K(view: View, last: TrackedFrame | None) -> Array:
    """Returns the K [3, 3] of a blind view: its calibration, else that of its last frame, else
    NaN."""
    if view.K is not None:
        return view.K
    return np.full((3, 3), np.nan) if last is None else last.K
