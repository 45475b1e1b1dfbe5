"""What the cameras see: which views show too little, and where a camera is while it sees nothing.

Works on published frames and predictions; knows neither network nor odometry.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping.covariance import motion
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.types import Array, Prediction, TrackedFrame, View, Window

log = logging.getLogger(__name__)

SHORT_GAP = 2  # blind instants after which motion is still small: as when frames are dropped
ATTEMPTS = 2  # windows in which the camera is looked for among its own keyframes
STRIDE = 4  # of rows and columns whose values give a median
PAST = 30  # newest frames that tell what is usual
FEWEST = 5  # frames that tell what is usual; with fewer, nothing is unusual
USUAL_SHARE = 0.5  # share of windows with tracks, from which on tracks are expected
# Confidence above its least value, 1, over the usual one: below the first, a view is suspect;
# below the second, it is blind where tracks cannot tell.
SUSPECT_CONFIDENCE, BLIND_CONFIDENCE = 0.5, 0.1
MOST_STEP = 1.9  # step of odometry after a gap, over the usual step
# Speeds that a camera may have reached unseen: rad/s, and depths per second.
LEAST_TURN, LEAST_SPEED = 0.1, 0.05
LOGGED = 3  # blind frames in a row, from which on they are logged
LOG_EVERY_NS = 10 * 10**9
REMEDIES = {
    "frozen": "; a simulated camera without noise that stands: set hold_when_blind to false",
    "lost": "; it sees nothing that its keyframes show",
    "uncertain": "; the network is far less certain than usual",
}


@dataclasses.dataclass(eq=False)
class SeenCamera:
    """What was seen of one camera: the newest placed frame, and what is usual."""

    last: TrackedFrame | None = None  # the newest one that was placed, without images
    depth: float = 1.0  # its median depth, published units
    # ``T_local_camera`` [4, 4] of the cameras that were placed in its instant.
    others: dict[str, Array] = dataclasses.field(default_factory=dict)
    blind: int = 0  # frames since
    logged_ns: int | None = None  # stamp at which blindness was last logged
    # Rotation, rad, and distance, published units, of consecutive frames; and seconds between.
    steps: deque[tuple[float, float, float]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=PAST)
    )
    confidence: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=PAST))

    def see(self, frame: TrackedFrame) -> None:
        """Notes a placed frame."""
        if self.blind >= LOGGED:
            log.info("%s sees again, after %d frames", _name(frame), self.blind)
        before = self.last
        if before is not None and before.scale.metric != frame.scale.metric:
            self.steps.clear()  # the unit has changed
        elif before is not None and not self.blind:
            step = motion(_in_odom(before), _in_odom(frame))
            self.steps.append((*step, (frame.stamp_ns - before.stamp_ns) / 1e9))
        self.depth = _median(frame.depth_m, self.depth)
        if np.isfinite(confidence := _median(frame.confidence)):
            self.confidence.append(confidence - 1.0)
        self.last, self.blind = _without_images(frame), 0

    def note_blind(self, prepared: PreparedView) -> None:
        """Notes a view that shows nothing, and logs it if that lasts."""
        self.blind += 1
        view = prepared.view
        since = None if self.logged_ns is None else view.stamp_ns - self.logged_ns
        if self.blind < LOGGED or (since is not None and 0 <= since < LOG_EVERY_NS):
            return
        self.logged_ns = view.stamp_ns
        log.warning(
            "%s shows nothing (%s%s): no depth, and its pose is held", _name(view),
            prepared.blind, REMEDIES.get(prepared.blind, ""),
        )  # fmt: skip

    def note_instant(self, poses: dict[str, Array]) -> None:
        """Notes ``T_local_camera`` [4, 4] of the cameras that see in its newest instant."""
        self.others = poses

    def guide(self, camera: str, poses: dict[str, Array]) -> str | None:
        """Returns the camera of a rig that has moved since this one, ``camera``, saw; None: none
        has. poses: newest ``T_local_camera`` [4, 4] of all cameras."""
        others = (name for name in self.others if name != camera and name in poses)
        return next((name for name in others if poses[name] is not self.others[name]), None)

    def excess(self, confidence: Array) -> float:
        """Returns the confidence above 1 of a map [h, w] over the usual one; 1 if none is
        usual."""
        usual = float(np.median(self.confidence)) if len(self.confidence) >= FEWEST else 0.0
        return (_median(confidence, 1.0) - 1.0) / usual if usual > 0 else 1.0

    def unseen_motion(self, seconds: float) -> Array:
        """Returns the covariance [6, 6] of (position, rotation) of an unseen motion."""
        steps = np.array([s for s in self.steps if s[2] > 0]).reshape(-1, 3)
        speeds = steps[:, :2] / steps[:, 2:]
        turn, speed = np.sqrt((speeds**2).mean(axis=0)) if len(speeds) else (0.0, 0.0)
        turn, speed = max(turn, LEAST_TURN), max(speed, LEAST_SPEED * self.depth)
        return np.diag(np.repeat(np.square([speed * seconds, turn * seconds]), 3))

    def usual_step(self) -> Array:
        """Returns the median [2] rotation, rad, and distance, published units, of a step."""
        steps = np.array(self.steps).reshape(-1, 3)
        return np.median(steps[:, :2], axis=0) if len(steps) else np.zeros(2)


class Sight:
    """What the cameras of one pipeline have seen. Not thread-safe."""

    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self.restart()

    def restart(self) -> None:
        """Begins a new stream: nothing was seen."""
        self._cameras: dict[str, SeenCamera] = {}
        self._instant, self._poses = -1, dict[str, Array]()  # of the newest placed instant
        self.start_segment()

    def start_segment(self) -> None:
        """Begins a segment: what was usual at the last place need not be so here."""
        self._refined: deque[bool] = deque(maxlen=PAST)
        for one in self._cameras.values():
            one.confidence.clear()
        self.end_gap()

    def end_gap(self) -> None:
        """Notes that the cameras are placed, or that a new segment begins."""
        self._blind_instants = 0  # in which no camera was placed, since the last one that was
        # Windows in which the camera was looked for in vain. Blind images between them do not
        # count anew: a camera that repeats or flickers would never give up.
        self.attempts = 0
        self.descriptor: Array | None = None  # [D] of the newest view that was not found

    @property
    def has_gap(self) -> bool:
        """Whether the cameras may be anywhere: they have not been placed for a while."""
        return self._blind_instants > SHORT_GAP

    @property
    def has_placed(self) -> bool:
        """Whether any camera was placed since the start."""
        return any(one.last is not None for one in self._cameras.values())

    @property
    def was_blind(self) -> bool:
        """Whether the newest instant could not be placed."""
        return self._blind_instants > 0

    @property
    def expects_tracks(self) -> bool:
        """Whether windows usually have enough tracks, so that a window without is unusual."""
        refined = self._refined
        return len(refined) >= FEWEST and sum(refined) >= USUAL_SHARE * len(refined)

    def last(self, camera: str) -> TrackedFrame | None:
        """Returns the newest placed frame of a camera, without its images; None: none yet."""
        return self._camera(camera).last

    def suspects(
        self, new: Sequence[PreparedView], window: Window, prediction: Prediction
    ) -> list[int]:
        """Returns the indices in the window of new views that may show too little: by their
        images, or because the network is less certain than usual."""
        return [
            index
            for index, prepared in enumerate(new, len(window.views) - len(new))
            if prepared.suspect
            or self._camera(prepared.view.camera).excess(prediction.confidence[index])
            < SUSPECT_CONFIDENCE
        ]

    def is_confident(self, camera: str, prediction: Prediction, index: int) -> bool:
        """Whether the network is not far less confident of a view than usual."""
        return self._camera(camera).excess(prediction.confidence[index]) >= BLIND_CONFIDENCE

    def see(self, frame: TrackedFrame, instant: int, T_local_camera: Array) -> None:
        """Notes a placed frame of an instant, with its pose [4, 4]."""
        one = self._camera(frame.camera)
        one.see(frame)
        if instant != self._instant:
            self._instant, self._poses = instant, {}
        self._poses[frame.camera] = T_local_camera
        for name in self._poses:
            self._camera(name).note_instant(self._poses)
        if frame.leads:
            self._blind_instants = 0

    def note_window(self, *, refined: bool) -> None:
        """Notes a window that was placed, and whether it has enough tracks."""
        self._refined.append(refined)
        self.end_gap()

    def note_failure(self, descriptor: Array | None) -> bool:
        """Notes a window in which the camera was not found; returns whether to give up.

        descriptor: [D] of its newest view; None: unknown.
        """
        self.attempts += 1
        self.descriptor = descriptor
        return self.attempts >= ATTEMPTS

    def note_blind(self, prepared: PreparedView) -> None:
        """Notes and counts a view that shows nothing, or was not placed."""
        camera = prepared.view.camera
        if prepared.leads:  # no camera of its instant sees
            self._blind_instants += 1
        self._camera(camera).note_blind(prepared)
        self.counters[f"blind_{prepared.blind}" + (f"_{camera}" if camera else "")] += 1

    def held_pose(self, camera: str, poses: dict[str, Array]) -> Array | None:
        """Returns ``T_local_camera`` [4, 4] of a blind camera: its last one, moved as another
        camera of the rig has moved; None: it was never placed.

        poses: newest ``T_local_camera`` [4, 4] of all cameras.
        """
        one, T = self._camera(camera), poses.get(camera)
        guide = one.guide(camera, poses)
        if T is None or guide is None:
            return T
        return np.asarray(poses[guide] @ invert_pose(one.others[guide]) @ T)

    def held_covariances(
        self, camera: str, stamp_ns: int, poses: dict[str, Array]
    ) -> tuple[Array | None, Array | None]:
        """Returns the covariances [6, 6], in odometry and map, of a held pose at a time: those of
        the last frame, and what the camera may have moved since. None: unknown.

        A camera that is held as another one of the rig moves has its own error of then, and those
        of the other one's two poses.
        """
        one = self._camera(camera)
        guide = one.guide(camera, poses)
        source = one if guide is None else self._camera(guide)
        if one.last is None or source.last is None:
            return None, None
        grown = source.unseen_motion(max(0, stamp_ns - source.last.stamp_ns) / 1e9)

        def held(own: Array | None, guides: Array | None) -> Array | None:
            if own is None or guides is None:
                return None
            return own + grown if guide is None else own + 2 * guides + grown

        return (
            held(one.last.covariance_odom, source.last.covariance_odom),
            held(one.last.covariance_map, source.last.covariance_map),
        )

    def step_after_gap(self, camera: str, T_held: Array, T_found: Array, unit: float) -> Array:
        """Returns the pose [4, 4] that odometry takes where a held camera was found again: not
        farther from the held pose than ``MOST_STEP`` usual steps.

        T_held, T_found: [4, 4] in one frame. unit: published units per unit of theirs.
        """
        size = np.array(motion(T_held, T_found)) * [1.0, unit]
        usual = self._camera(camera).usual_step()
        share = float(np.min(MOST_STEP * usual / np.maximum(size, 1e-12)))
        return np.asarray(T_held @ _part(invert_pose(T_held) @ T_found, min(share, 1.0)))

    def _camera(self, name: str) -> SeenCamera:
        return self._cameras.setdefault(name, SeenCamera())


def _name(frame: TrackedFrame | View) -> str:
    return f"camera {frame.camera or frame.frame_id}"


def _median(values: Array, otherwise: float = np.nan) -> float:
    """Returns the median of a map [h, w], of every fourth row and column; ``otherwise`` if nothing
    is known."""
    some = values[::STRIDE, ::STRIDE]
    known = some[np.isfinite(some)]
    return float(np.median(known)) if len(known) else otherwise


def _in_odom(frame: TrackedFrame) -> Array:
    return np.asarray(frame.T_odom_world @ frame.T_world_camera)


def _part(T: Array, share: float) -> Array:
    """Returns a share of a motion [4, 4]."""
    out = np.eye(4)
    rotvec = Rotation.from_matrix(T[:3, :3]).as_rotvec()
    out[:3, :3] = Rotation.from_rotvec(share * rotvec).as_matrix()
    out[:3, 3] = share * T[:3, 3]
    return out


def _without_images(frame: TrackedFrame) -> TrackedFrame:
    nothing = np.zeros((0, 0), np.float32)
    return dataclasses.replace(
        frame, image=np.zeros((0, 0, 3), np.uint8), depth_m=nothing, confidence=nothing
    )
