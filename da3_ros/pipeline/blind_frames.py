"""Views that show nothing: which windows are trusted, and the frames of views that are not.

A view that carries no information moves nothing: its frame has no depth and the held pose of its
camera. After a gap the camera must be found among its own keyframes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import invert_pose, turned
from da3_ros.inertial.gyro_turns import GyroTurns
from da3_ros.mapping.covariance import motion
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.loop_candidates import see_same_surface
from da3_ros.mapping.map_table import OverlapView
from da3_ros.pipeline.delivery import NO_WINDOW, PlacedWindow, tracked_frame
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.pipeline.window_inference import without_invalid_depth
from da3_ros.pipeline.window_odometry import WindowOdometry
from da3_ros.pipeline.window_refinement import WindowRefinement
from da3_ros.types import Array, Prediction, TrackedFrame, View, Window, WindowEstimate

log = logging.getLogger(__name__)


# A gap is bridged by the gyro if the camera has moved by no more than this share of the depth.
MOST_UNSEEN = 0.25
# Metres, and m/s^2: more acceleration in a gap is a camera that was carried away.
MOST_CARRIED = 0.15
UNIT_SIGMA = 0.1  # relative, of the unit of a window that shares no view with the one before
LOST = "lost"  # the cause of views that show something, but nothing known
BLURRED = "blurred"  # of images with less detail than usual, as of plain walls
UNCERTAIN = "uncertain"  # of views of which the network is far less certain than usual
REFUSED = "refused"  # of views whose window fits neither the scene nor its tracks


class BlindFrames:
    """Judges windows before they change anything, and makes the frames of blind views."""

    def __init__(
        self, config: PipelineConfig, odometry: WindowOdometry, refinement: WindowRefinement,
        scene_map: SceneMap, gyro: GyroTurns, counters: Counter[str],
    ) -> None:  # fmt: skip
        self.config, self.counters, self._gyro = config, counters, gyro
        self._odometry, self._refinement, self._map = odometry, refinement, scene_map
        self._lost_because = ""  # why the newest gap could not be followed
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
        estimate: WindowEstimate,
    ) -> tuple[WindowEstimate, str]:  # fmt: skip
        """Returns the estimate, and why the new views of a window cannot be trusted, or an
        empty text.

        Views that may show too little, and all new views after a gap, must be connected to the
        others: by tracks where these are usual, else by surfaces that both see. After a gap the
        poses are those of the tracks.
        """
        if not self.config.hold_when_blind or not shared:
            return estimate, ""
        suspects = self.sight.suspects(new, window, estimate)
        gap = self._has_gap(window)
        if self.sight.expects_tracks and not gap:
            suspects = self._doubtful(suspects, window, shared, new, estimate)
        if not suspects and not gap:
            return estimate, ""
        # An image that shows enough, and of which the network is uncertain, may show other things.
        cause = next((p.suspect for p in new if p.suspect), LOST if gap else UNCERTAIN)
        if self.sight.expects_tracks:
            joined = self._joined(window, len(shared), suspects, estimate, gap=gap)
            if joined is None:
                return estimate, cause
            estimate = joined if gap else estimate
        elif not self._agrees(window, shared, suspects, estimate, gap=gap):
            return estimate, cause
        known = without_invalid_depth(window, estimate)
        if gap and not self._odometry.would_fit(shared, known):
            return estimate, cause
        return estimate, ""

    def _doubtful(
        self, suspects: Sequence[int], window: Window, shared: Sequence[OverlapView],
        new: Sequence[PreparedView], estimate: WindowEstimate,
    ) -> list[int]:  # fmt: skip
        """Returns the suspects without those whose full images show what earlier views do.

        Where only the network doubts, features match earlier ones: most of them, since something
        else may cover a part; where the network's depth usually means nothing, and so its doubt
        little, some. An image with little detail may show a plain wall near by: refinement would
        join it to earlier views.
        """
        first, ids = len(window.views) - len(new), [one.view.id for one in shared]
        causes = {i: new[i - first].suspect for i in suspects}
        plain = [i for i, cause in causes.items() if cause == BLURRED]
        known = {
            i
            for i, cause in causes.items()
            if not cause and self._refinement.shows_known(new[i - first], estimate.depth[i], ids)
        }
        if plain:
            estimate = without_invalid_depth(window, estimate)
            S = self._odometry.would_place(list(shared), estimate)
            known |= self._refinement.would_join(window, new, plain, estimate, S, self._map.table)
        return [i for i in suspects if i not in known]

    def is_contradicted(self, placed: PlacedWindow) -> bool:
        """Whether a window must not move the camera: it does not fit the scene, and no tracks say
        how the camera has moved although they usually do (or there was no time to look for them).
        Only the network's motion is left."""
        return (
            self.config.hold_when_blind
            and self.sight.expects_tracks
            and placed.refined is None
            and not placed.alignment.accepted
        )

    def is_unrelated(self, window: Window, shared: Sequence[OverlapView]) -> bool:
        """Whether a window after a gap shares no view, so that a new chain must begin."""
        if shared or not self.config.hold_when_blind or not self.sight.has_placed:
            return False
        if not self._has_gap(window):
            return False
        self._lost_because = "has no earlier view to compare with"
        return True

    def report_lost(self) -> None:
        """Logs and counts that a new chain begins."""
        log.warning("the camera sees again, but %s: a new chain begins", self._lost_because)
        self.counters["sight_not_found"] += 1

    def bridge(self, view: View) -> Bridge | None:
        """Returns what is known of the gap from the last placed view of a camera to a new one that
        shows nothing known; None: too little, so that its pose is unknown.

        The gyro knows the rotation; the position is the held one, which must be nearly right.
        """
        last = self.sight.last(view.camera)
        turn = None if last is None else self._gyro.turn(last.id, view.id)
        source = self._map.scale.source
        if last is None or turn is None or source.declared_by or self._map.table.read_only:
            return None
        seconds = (view.stamp_ns - last.stamp_ns) / 1e9
        share = self.sight.unseen_share(view.camera, seconds)
        if not 0 < seconds <= self.config.imu.bridge_s or share > MOST_UNSEEN:
            return None
        if self._gyro.carried_m(last.id, view.id) > MOST_CARRIED * (1 + seconds**2):
            return None
        return Bridge(seconds, np.square([UNIT_SIGMA, turn[1], share]))

    def _has_gap(self, window: Window) -> bool:
        return self.sight.has_gap and not self._odometry.prior.leads_poses(window)

    def _joined(
        self, window: Window, shared: int, suspects: Sequence[int], estimate: WindowEstimate, *,
        gap: bool,
    ) -> WindowEstimate | None:  # fmt: skip
        """Returns the estimate with poses by tracks; None if they do not connect the views."""
        views = range(len(window.views))
        sides: list[tuple[Sequence[int], Sequence[int]]] = [
            ([i for i in views if i != index], [index]) for index in suspects
        ]
        if gap:
            sides.append((views[:shared], views[shared:]))
        return self._refinement.joined(window, sides, estimate)

    def _agrees(
        self, window: Window, shared: list[OverlapView], suspects: Sequence[int],
        estimate: WindowEstimate, *, gap: bool,
    ) -> bool:  # fmt: skip
        """Whether the network itself trusts its views, and sees a known surface after a gap."""
        newest = len(window.views) - 1
        if gap and not any(see_same_surface(estimate, newest, i) for i in range(len(shared))):
            return False
        return all(self.sight.is_confident(window.views[i].camera, estimate, i) for i in suspects)

    def gives_up(self, cause: str, prediction: Prediction) -> bool:
        """Notes a window that cannot be trusted; returns whether the camera was looked for so
        often that a new chain must begin."""
        if cause != LOST:  # it may still be blind
            return False
        newest = None if prediction.descriptor is None else prediction.descriptor[-1]
        if not self.sight.note_failure(newest):
            return False
        self._lost_because = "none of its keyframes"
        return True

    def keep_odometry(self, frame: LocalFrame) -> None:
        """Keeps odometry from jumping at the first frame after a gap, if ``Sight.was_blind``; call
        before the frame's pose is noted."""
        if not frame.is_reference:
            return
        held = self._held(frame.camera, frame.id)
        if held is None:
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
            T = self._held(view.camera, view.id)
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
            is_reference=prepared.is_reference,
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

    def _held(self, camera: str, id: int) -> Array | None:
        """Returns ``T_local_camera`` [4, 4] of a camera that sees nothing, at its view ``id``: its
        last pose, moved as another camera of the rig, else turned as the gyro says."""
        poses, last = self._odometry.newest, self.sight.last(camera)
        T = self.sight.held_pose(camera, poses)
        if T is None or last is None or T is not poses[camera]:
            return T
        turn = self._gyro.turn(last.id, id)
        return T if turn is None else turned(T, turn[0])


@dataclasses.dataclass(frozen=True, eq=False)
class Bridge:
    """A gap after which a camera shows nothing known, and what is known of its motion."""

    seconds: float
    variance: Array  # [3] of log scale, rotation, and position over the depth


def _known_K(view: View, last: TrackedFrame | None) -> Array:
    """Returns the K [3, 3] of a blind view: its calibration, else that of its last frame, else
    NaN."""
    if view.K is not None:
        return view.K
    return np.full((3, 3), np.nan) if last is None else last.K


# What the cameras see: which views show too little, and where a camera is while it sees nothing.
#
# Works on published frames and predictions; knows neither network nor odometry.

SHORT_GAP = 2  # blind framesets after which motion is still small: as when frames are dropped
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
    "refused": "; the network's depth fits neither the scene nor the images",
}


@dataclasses.dataclass(eq=False)
class SeenCamera:
    """What was seen of one camera: the newest placed frame, and what is usual."""

    last: TrackedFrame | None = None  # the newest one that was placed, without images
    depth: float = 1.0  # its median depth, published units
    # ``T_local_camera`` [4, 4] of the cameras that were placed in its frameset.
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

    def note_frameset(self, poses: dict[str, Array]) -> None:
        """Notes ``T_local_camera`` [4, 4] of the cameras that see in its newest frameset."""
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
        self._frameset, self._poses = -1, dict[str, Array]()  # of the newest placed frameset
        self.start_chain()

    def start_chain(self) -> None:
        """Begins a chain: what was usual at the last location need not be so here."""
        self._refined: deque[bool] = deque(maxlen=PAST)
        for one in self._cameras.values():
            one.confidence.clear()
        self.end_gap()

    def end_gap(self) -> None:
        """Notes that the cameras are placed, or that a new chain begins."""
        self._blind_framesets = 0  # in which no camera was placed, since the last one that was
        self.was_blind = False  # whether the newest frameset could not be placed
        # Windows in which the camera was looked for in vain. Blind images between them do not
        # count anew: a camera that repeats or flickers would never give up.
        self.attempts = 0
        self.descriptor: Array | None = None  # [D] of the newest view that was not found

    @property
    def has_gap(self) -> bool:
        """Whether the cameras may be anywhere: they have not been placed for a while."""
        return self._blind_framesets > SHORT_GAP

    @property
    def has_placed(self) -> bool:
        """Whether any camera was placed since the start."""
        return any(one.last is not None for one in self._cameras.values())

    @property
    def expects_tracks(self) -> bool:
        """Whether windows usually have enough tracks, so that a window without is unusual."""
        refined = self._refined
        return len(refined) >= FEWEST and sum(refined) >= USUAL_SHARE * len(refined)

    @property
    def last_views(self) -> list[int]:
        """The ids of the newest placed view of each camera."""
        return [one.last.id for one in self._cameras.values() if one.last is not None]

    def unseen_share(self, camera: str, seconds: float) -> float:
        """Returns how far a camera may have moved unseen, over the depth (standard deviation)."""
        one = self._camera(camera)
        return math.sqrt(float(one.unseen_motion(seconds)[0, 0])) / one.depth

    def last(self, camera: str) -> TrackedFrame | None:
        """Returns the newest placed frame of a camera, without its images; None: none yet."""
        return self._camera(camera).last

    def suspects(
        self, new: Sequence[PreparedView], window: Window, estimate: WindowEstimate
    ) -> list[int]:
        """Returns the indices in the window of new views that may show too little: by their
        images, or because the network is less certain than usual."""
        return [
            index
            for index, prepared in enumerate(new, len(window.views) - len(new))
            if prepared.suspect
            or self._camera(prepared.view.camera).excess(estimate.confidence[index])
            < SUSPECT_CONFIDENCE
        ]

    def is_confident(self, camera: str, estimate: WindowEstimate, index: int) -> bool:
        """Whether the network is not far less confident of a view than usual."""
        return self._camera(camera).excess(estimate.confidence[index]) >= BLIND_CONFIDENCE

    def see(self, frame: TrackedFrame, frameset: int, T_local_camera: Array) -> None:
        """Notes a placed frame of a frameset, with its pose [4, 4]."""
        one = self._camera(frame.camera)
        one.see(frame)
        if frameset != self._frameset:
            self._frameset, self._poses = frameset, {}
        self._poses[frame.camera] = T_local_camera
        for name in self._poses:
            self._camera(name).note_frameset(self._poses)
        if frame.is_reference:
            self._blind_framesets, self.was_blind = 0, False

    def note_window(self, *, refined: bool | None) -> None:
        """Notes a window that was placed, and whether it has enough tracks; None: there was no
        time to look for them."""
        if refined is not None:
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
        if prepared.is_reference:  # no camera of its frameset sees
            self.was_blind = True
            # A refused view shows something: the next window that fits says where.
            self._blind_framesets += prepared.blind != REFUSED
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
    return np.asarray(frame.T_odom_map @ frame.T_map_camera)


def _part(T: Array, share: float) -> Array:
    """Returns a share of a motion [4, 4]."""
    out = np.eye(4)
    rotvec = Rotation.from_matrix(T[:3, :3]).as_rotvec()
    out[:3, :3] = Rotation.from_rotvec(share * rotvec).as_matrix()
    out[:3, 3] = share * T[:3, 3]
    return out


def _without_images(frame: TrackedFrame) -> TrackedFrame:
    nothing = np.zeros((0, 0), np.float32)
    window = dataclasses.replace(frame.window, T_map_camera=np.zeros((0, 4, 4)))
    return dataclasses.replace(
        frame, image=np.zeros((0, 0, 3), np.uint8), depth_m=nothing, confidence=nothing,
        window=window,
    )  # fmt: skip
