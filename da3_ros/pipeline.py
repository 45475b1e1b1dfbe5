"""Frame in, results out: the one path that the live node, bag replay and the tests share.

Rectify, resize, gather a window, run the network, place the window in the scene by what it shares
with it, deliver each new frame once, grow the map. Knows no ROS.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from da3_ros.config import DepthConfig, PipelineConfig
from da3_ros.depth_filter import filter_depth, sky_mask, without_smears
from da3_ros.enlarge import at_size_of
from da3_ros.geometry import T_MAP_WORLD, invert_pose
from da3_ros.inference import WindowTooLargeError, open_networks
from da3_ros.loop_stage import LoopStage, conjugated
from da3_ros.mapping.alignment import MOST_DEPTHS, Alignment, Anchor, Joiner, Similarity
from da3_ros.mapping.covariance import UNMEASURED, Observed, PoseUncertainty, in_metres, turned
from da3_ros.mapping.export import export_scene
from da3_ros.mapping.keyframes import ViewMemory, shares_taken
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.rig_scale import RigRuler
from da3_ros.mapping.scale import SceneScale
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.scene_file import SceneFileError
from da3_ros.mapping.submap_graph import Correction
from da3_ros.mapping.submaps import Snapshot, SubmapStore
from da3_ros.mapping.trajectory import Poses
from da3_ros.pose_prior import Given, PriorFollower, choose, with_poses
from da3_ros.prepare import Preparer
from da3_ros.rectify import CalibrationError
from da3_ros.types import (
    Array,
    FloatImage,
    Frame,
    Image,
    Prediction,
    Scale,
    TrackedFrame,
    View,
    Window,
    WindowReport,
)

log = logging.getLogger(__name__)

FOCAL = (0.05, 50.0)  # focal lengths over the image's width that a camera may have
REFUSALS = 5  # windows in a row that do not fit, after which the scene goes on in a new segment


# Where a window lies whose views nobody put in relation to each other.
UNPLACED = Alignment(Similarity(1.0, np.eye(3), np.zeros(3)), False, float("nan"), float("nan"))


class Network(Protocol):
    """What the pipeline needs of an inference session."""

    def fit(self, image: tuple[int, int], window: int, new: int) -> Limits | None:
        """What the memory budget allows for images of (width, height); None: anything."""

    def prefetch(self, image: Image) -> None:
        """Begin with the image of a view that waits for its window."""

    def infer(self, window: Window) -> Prediction: ...


class Ruler(Protocol):
    """A metric model that looks at a window now and then."""

    def measure(self, window: Window, prediction: Prediction) -> Prediction:
        """``prediction`` with its ``measure``, and with ``sky`` where the ruler looked."""


class Limits(Protocol):
    """What a budget allows; never more than was asked for."""

    @property
    def process_res(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def new(self) -> int: ...


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A view and what the network must not see."""

    view: View
    valid: NDArray[np.bool_] | None  # [h, w] pixels with a source in the camera image
    full: Image | None = None  # the rectified image at its own size, if it is to be published
    leads: bool = True  # as in TrackedFrame


@dataclass(frozen=True)
class _Format:
    """The size that all views of a window have, and whose image decided it."""

    camera: str
    shape: tuple[int, ...]
    process_res: int  # as the memory budget allowed it then


class Pipeline:
    """Frames of one camera, or of a rig of several, turned into one scene. Not thread-safe.

    ``counters`` holds frames received and processed, and drops by cause.
    """

    def __init__(
        self,
        config: PipelineConfig,
        session: Network | None = None,
        ruler: Ruler | None = None,
    ) -> None:
        self.config = config
        self.metres = SceneScale(config.scale)
        self.prior = PriorFollower(config.pose_prior.output)
        self.rig = RigRuler()
        self.prior_fault = ""  # why the newest window got no poses, or no scale from them
        self.session, self.ruler = open_networks(config) if session is None else (session, ruler)
        self.counters: Counter[str] = Counter()
        self.map = SubmapStore(config.map)
        self.loops = LoopStage()
        self.uncertainty = PoseUncertainty(getattr(self.session, "motion_error", UNMEASURED))
        self.T_map_world = T_MAP_WORLD  # of exports; a robot's base may level it
        self._preparer = Preparer(len(config.cameras))
        self._last_stamp: dict[str, int] = {}  # of each camera
        self._next_view = 0
        self._next_instant = 0
        self._next_window = 0
        self._segment = -1
        self._image_size: tuple[int, int] | None = None
        self.network_size = (0, 0)  # (width, height) of the images that the network sees
        self._refit()
        self._start_segment()

    def push(self, *frames: Frame) -> Iterator[TrackedFrame]:
        """Take one frame, or those of one instant of several cameras (see ``rig_sync``).

        Yields the frames that became ready, in stamp order of each camera. A stamp up to
        ``max_late_s`` back, or repeated, is dropped and counted; one farther back is a time jump,
        which resets window and odometry and keeps the map. A frame that cannot be rectified is
        dropped with a warning. Where the size of the network's images changes, shared views follow
        and odometry goes on. The work happens while the result is iterated.
        """
        self.counters["received"] += len(frames)
        timely = [frame for frame in frames if self._in_time(frame)]
        if not timely:
            return
        self._look_at_size(timely)
        self._refit()  # a measured window may have changed the plan
        prepared = self._prepare_all(timely)
        changed = self._size_changed(prepared)
        if changed is not None and not self._resize(changed):
            yield from self.flush()
            self._hold_pose()
        instant = self._of_one_size(prepared)
        if not instant:
            return
        for view in (p.view for p in instant):
            self._last_stamp[view.camera] = view.stamp_ns
        self._pending.append(instant)
        if len(self._pending) >= self._new:
            yield from self._run_window()
        else:
            for p in instant:
                self.session.prefetch(p.view.image)

    def prepare(self, frame: Frame) -> Frame:
        """The frame with what can be done before it is pushed; any thread may call this.

        What cannot be used comes back as it is: ``push`` says what is wrong with it.
        """
        try:
            return dataclasses.replace(frame, ready=self._preparer(frame, self._process_res))
        except (CalibrationError, ValueError):
            return frame

    def begin(self, frame: Frame) -> None:
        """Give the network a prepared frame that will be pushed next; only saves time."""
        if frame.ready is not None and frame.ready.process_res == self._process_res:
            self.session.prefetch(frame.ready.image)

    def flush(self) -> Iterator[TrackedFrame]:
        """Process what waits for a full window; call at the end of a recording."""
        if self._pending:
            yield from self._run_window()

    @property
    def window_size(self) -> int:
        """Views per pass, as the memory budget allows."""
        return self._window

    @property
    def waiting(self) -> int:
        """Images that wait for a full window."""
        return sum(map(len, self._pending))

    def set_budget(self, memory_budget_gb: float) -> None:
        """Take a new memory budget between two windows. Raises BudgetError if nothing fits."""
        set_budget = getattr(self.session, "set_budget", None)
        if set_budget is not None:
            set_budget(memory_budget_gb)
        self._refit()

    def reset(self) -> None:
        """Forget window, odometry and map; keep the loaded network and the counters."""
        self._forget_scene()
        self.T_map_world = T_MAP_WORLD
        self._start_segment()

    def scene(self) -> Scene:
        """The points and poses gathered so far, in metres where the scale is known."""
        return self.map.scene(self.T_map_world)

    def snapshot(self) -> Snapshot:
        """The whole scene as it is now, to be saved; cheap, and it does not change later."""
        return self.map.snapshot(self.T_map_world, self.metres.known, self._unit)

    def check_unit(self, saved: Snapshot) -> None:
        """Raise SceneFileError if nobody could say how large the scene is in the unit of what
        comes."""
        source = self.config.scale.source
        if source != "none" and not saved.metric:
            raise SceneFileError(
                f"the saved scene is not in metres, but scale.source is {source}: set it to none"
            )

    def resume(self, saved: Snapshot) -> str:
        """Go on in a saved scene, in place of this one, with a new segment; says where it begins.

        Raises SceneFileError, and changes nothing, as ``check_unit``.
        """
        self.check_unit(saved)
        source = self.config.scale.source
        self._forget_scene()
        self.metres.resume(saved.metric and source != "none")
        self.map.restore(saved)
        self.T_map_world = saved.T_map_world
        self._start_segment()
        if source != "fixed":  # whose factor is for the first window that comes
            self._unit = saved.unit
        self._forget(self.map.poses().newest())
        self.uncertainty.start_segment(known=True)  # odometry begins with what comes
        where = "new windows begin a segment of their own where the last one ended"
        if saved.metric and source == "none":
            where += "; the scene is in metres, their unit is a guess: set scale.source"
        return where

    def poses(self, most: int = 0) -> Poses:
        """Where the leading camera has been, in metres where the scale is known; ``most`` thins
        them."""
        return self.map.path(most)

    def path(self, most: int = 0) -> Poses:
        """The same of the part of the scene that is shown."""
        return self.map.path(most, shown=True)

    def export(self, path: str | Path) -> Path:
        """Write the scene; the suffix chooses the format. Returns the path written."""
        return export_scene(self.scene(), Path(path)).path

    def _refit(self) -> None:
        """Ask what the memory budget allows for the cameras' images."""
        window, cameras = self.config.window, max(1, len(self.config.cameras))
        self._process_res = self.config.inference.process_res
        self._window, self._new = window.size, window.new
        if self._image_size is None:
            return
        limits = self.session.fit(self._image_size, window.size, window.new * cameras)
        if limits is not None:
            self._process_res, self._window = limits.process_res, limits.window
            self._new = max(1, limits.new // cameras)  # instants, each with a view per camera

    def _start_segment(self) -> None:
        """A new stretch of odometry, starting at its origin with nothing shared."""
        self._pending: list[list[_Prepared]] = []  # instants
        self._last_stamp = {}
        self._format: _Format | None = None
        self.metres.to_origin()
        self._forget({})
        # Scene units per network unit, of the newest window.
        self._unit = self.config.scale.factor if self.metres.declared else 1.0

    def _hold_pose(self) -> None:
        """Go on where the cameras were last; how they have moved since is not known."""
        log.warning("the shared views cannot be had at the new size: the pose is held")
        self.counters["poses_held"] += 1
        self._format = None
        self._forget(self._newest)

    def _forget(self, newest: dict[str, Array]) -> None:
        """Share nothing with what was before; the next window begins at these cameras' poses."""
        if self.metres.learns and not self.metres.known and len(self.map.trajectory):
            log.warning("the scale of the scene so far stays unknown: it leaves the map")
            self._forget_scene()
            if newest:  # what comes begins at a guess, as it would beside what has left
                self.map.begin_guessed()
        metric = self.metres.scale.metric
        self.metres.restart(next(iter(newest.values()), np.eye(4)))
        if metric and self.config.scale.source == "fixed" and not self.metres.declared:
            log.warning(
                "scale.factor holds for the first segment only: lengths are no metres from here; "
                "~/reset begins a scene that it holds for again"
            )
        self.prior.restart()
        self.map.start_segment()
        self.loops.start_segment(lost=bool(newest))
        self.uncertainty.start_segment(known=not newest)
        self._segment += 1
        self._views = ViewMemory(self.config.keyframe, self.config.window.size - 1)
        self._joiner = Joiner()
        self._refused = 0
        self._newest = newest  # T_world_camera of each camera's last frame

    def _in_time(self, frame: Frame) -> bool:
        last = self._last_stamp.get(frame.camera)
        if last is None or frame.stamp_ns > last:
            return True
        back_s = (last - frame.stamp_ns) / 1e9
        if back_s <= self.config.max_late_s:
            self.counters["dropped_late"] += 1
            return False
        log.warning("stamps jump back %.3f s: window and odometry start anew", back_s)
        self.counters["time_jumps"] += 1
        self.counters["dropped_time_jump"] += sum(map(len, self._pending))
        self._start_segment()
        return True

    def _look_at_size(self, frames: list[Frame]) -> None:
        """Whose images the memory plan is made for: the camera's that decided the format."""
        by = None if self._format is None else self._format.camera
        frame = next((f for f in frames if by in (None, f.camera)), None)
        if frame is not None:
            self._image_size = (frame.image.shape[1], frame.image.shape[0])

    def _prepare_all(self, frames: list[Frame]) -> list[_Prepared]:
        """The usable frames of one instant."""
        found = [p for frame in frames if (p := self._prepare(frame)) is not None]
        self._next_instant += 1
        return [dataclasses.replace(p, leads=i == 0) for i, p in enumerate(found)]

    def _prepare(self, frame: Frame) -> _Prepared | None:
        try:
            ready = frame.ready
            if ready is None or ready.process_res != self._process_res:  # the plan has changed
                ready = self._preparer(frame, self._process_res)
        except (CalibrationError, ValueError) as error:
            self.counters["dropped_bad_input"] += 1
            log.warning("frame %d of %s dropped: %s", frame.stamp_ns, frame.frame_id, error)
            return None
        view = View(
            self._next_view, frame.stamp_ns, ready.image, ready.K, frame.frame_id, frame.camera,
            frame.T_prior_camera, frame.T_rig_camera, self._next_instant,
        )  # fmt: skip
        self._next_view += 1
        full = ready.full if self.config.depth.size == "input" else None
        return _Prepared(view, ready.valid, full)

    def _size_changed(self, instant: list[_Prepared]) -> _Format | None:
        """The new format, where the camera that decided the windows' size has another one."""
        old = self._format
        for view in (p.view for p in instant):
            same_plan = old is not None and old.process_res == self._process_res
            if old is None or (same_plan and old.camera != view.camera):
                continue
            if old.shape != view.image.shape:
                log.warning(
                    "image size in the network changed from %s to %s",
                    old.shape[1::-1], view.image.shape[1::-1],
                )  # fmt: skip
                return _Format(view.camera, view.image.shape, self._process_res)
        return None

    def _resize(self, new: _Format) -> bool:
        """Bring all that windows may share to the new size; False, and nothing changes, where too
        little of the old images would be left."""
        assert self._format is not None
        cut, newest = Cut.of(self._format.shape, new.shape), self._views.newest
        if cut is None or (newest is not None and not cut.fits(newest)):
            return False
        self._views.resize(cut)
        self.loops.resize(cut)
        self._pending = [[_resized(p, cut) for p in instant] for instant in self._pending]
        self._format = new
        self.counters["size_changes"] += 1
        return True

    def _of_one_size(self, instant: list[_Prepared]) -> list[_Prepared]:
        """The views that fit into one window."""
        if self._format is None and instant:
            first = instant[0].view
            self._format = _Format(first.camera, first.image.shape, self._process_res)
        good = []
        for p in instant:
            assert self._format is not None
            self.network_size = (self._format.shape[1], self._format.shape[0])
            if p.view.image.shape == self._format.shape:
                good.append(p)
                continue
            self.counters["dropped_other_size"] += 1
            log.log(
                logging.WARNING if self.counters["dropped_other_size"] == 1 else logging.DEBUG,
                "%s: images are %s in the network, those of %s %s: cameras of one window need one "
                "shape of image; crop them alike, or set window.mode to independent",
                p.view.camera, p.view.image.shape[1::-1], self._format.camera,
                self._format.shape[1::-1],
            )  # fmt: skip
        return good

    def _run_window(self) -> Iterator[TrackedFrame]:
        start = time.perf_counter()
        closed = self._close_loop()
        new, self._pending = [p for instant in self._pending for p in instant], []
        room = max(1, self._window - len(new))
        shared = self._views.choose(room, self.config.window.keyframes)
        if self.config.pose_prior.source != "none":
            shared = with_poses(shared, lambda a: a.view, [p.view for p in new])
        done = self._infer(shared, new)
        if done is None:
            return
        window, shared, prediction = done
        fault = _fault(prediction, window)
        if fault:
            self.counters["dropped_unusable"] += len(new)
            log.error("window %d dropped: %s", window.id, fault)
            return
        if not prediction.posed:
            yield from self._deliver_alone(new, window, prediction, time.perf_counter() - start)
            return
        if self.ruler is not None and self.metres.wants_measure(window.id):
            prediction = self.ruler.measure(window, prediction)
        prediction = self._use_prior(window, prediction)
        placed = self._place(window, shared, prediction)
        prediction, placed = self.prior.place(window, prediction, placed)
        fits = placed.accepted or not shared
        self._update_scale(window, prediction, placed.T_scene_window if fits else None)
        self._note_join(window, prediction, placed)
        self._observe(window, shared, prediction, placed)
        report = self._report(window, prediction, placed, time.perf_counter() - start, closed)
        for offset, prepared in enumerate(new):
            index = len(shared) + offset
            yield self._deliver(prepared, index, prediction, placed.T_scene_window, report)
        self.uncertainty.keep({anchor.view.id for anchor in self._views.all()})
        if self._refused >= REFUSALS:
            log.warning("%d windows in a row do not fit: a new segment starts", self._refused)
            self._forget(self._newest)
        elif not self._refused:
            self._look_for_loop(window.id)

    def _close_loop(self) -> bool:
        """Move the scene as a loop says, if one has been found; what is newest stays."""
        correction = self.loops.collect()
        if correction is None:
            return False
        places = {id: s.T_scene_submap for id, s in self.map.submaps.items()}
        self.map.move(self.loops.apply(correction, places))
        self.map.join_parts(correction.joined)
        self._views.move(conjugated(correction.moves, self.metres.T_scene_segment))
        self._retell_uncertainty(correction)
        return True

    def _retell_uncertainty(self, correction: Correction) -> None:
        """A loop says anew how sure the newest view's place in the map is."""
        views = {a.view.id: a for a in self._views.all()}
        if correction.covariance is None or self._views.newest is None:
            return
        units = np.array([1, 1, 1, 1, *[1 / self.metres.T_scene_segment.scale] * 3])
        self.uncertainty.close_loop(
            correction.covariance * np.outer(units, units),
            self._views.newest.view.id,
            [old for old, _ in correction.joined],
            {id: anchor.T_world_camera[:3, 3] for id, anchor in views.items()},
            [id for id, anchor in views.items() if anchor.submap in correction.moves],
        )

    def _look_for_loop(self, window_id: int) -> None:
        self.loops.look(
            window_id,
            self.config.loop,
            self._window,
            self.session.infer,
            self._joiner,
            self.metres.known,
        )

    def _note_join(self, window: Window, prediction: Prediction, placed: Alignment) -> None:
        """How sure a window's place is adds to how far the scene may drift."""
        if not placed.accepted or placed.covariance is None:
            return
        ids = [view.id for view in window.views]
        lag = (ids[-window.new] - float(np.mean(ids[: -window.new] or ids))) / window.new
        to_scene = self.metres.T_scene_segment
        units = np.array([1, 1, 1, 1, *[to_scene.scale] * 3])
        joined = dataclasses.replace(placed, covariance=placed.covariance * np.outer(units, units))
        camera = placed.T_scene_window.points(prediction.T_window_camera[-1, :3, 3])
        self.loops.add_window(joined, to_scene.points(camera), lag)

    def _observe(
        self, window: Window, shared: list[Anchor], prediction: Prediction, placed: Alignment
    ) -> None:
        """Carry the covariance of poses through a window; of one that did not fit it is unknown.

        The prior's own poses, where those go out, are as sure as the robot knows and we do not.
        """
        if self._refused or (placed.gains is None and shared) or self.prior.in_place:
            return
        S = placed.T_scene_window
        depths = [np.median(a.depth) for a in shared if len(a.depth)]
        known = prediction.depth[np.isfinite(prediction.depth)]
        depth = np.median(depths) if depths else S.scale * np.median(known) if len(known) else 1.0
        seen = Observed(
            ids=[view.id for view in window.views],
            poses=np.stack([S.pose(T) for T in prediction.T_window_camera]),
            depth=float(depth),
            about=S.points(placed.about) if placed.about is not None else np.zeros(3),
            gains=placed.gains if placed.gains is not None else np.zeros((0, 7, 7)),
            residuals=placed.residuals if placed.residuals is not None else np.zeros((0, 7)),
            taken=shares_taken(shared, prediction),
        )
        if shared:
            self.uncertainty.join(seen)
        else:
            self.uncertainty.begin(seen, self._begins_at(window))

    def _infer(
        self, shared: list[Anchor], new: list[_Prepared]
    ) -> tuple[Window, list[Anchor], Prediction] | None:
        """Run a window; while memory does not do, with half of the shared views.

        The newest shared view stays: without one the window could not be joined to the scene.
        """
        window_id = self._next_window
        self._next_window += 1
        while True:
            views = tuple(anchor.view for anchor in shared) + tuple(p.view for p in new)
            joining = _joining(shared)
            wanted = (*joining, *range(len(shared), len(views)))
            window = Window(window_id, views, len(new), wanted, self._given(views).T_prior_camera)
            try:
                return window, shared, self.session.infer(window)
            except WindowTooLargeError as error:
                if len(shared) < 2:
                    self.counters["dropped_out_of_memory"] += len(new)
                    log.error("window %d dropped: %s", window_id, error)
                    return None
            shared = shared[-(len(shared) // 2) :]
            log.warning("window %d again with %d shared views", window_id, len(shared))

    def _place(self, window: Window, shared: list[Anchor], prediction: Prediction) -> Alignment:
        """Where the window lies in the scene; where it does not fit, motion goes on from there."""
        if not shared:
            index = self._begins_at(window)
            begin = self._newest.get(window.views[index].camera, np.eye(4))
            at = Similarity.between(begin, prediction.T_window_camera[index], self._unit)
            return Alignment(at, self.counters["processed"] == 0, float("nan"), float("nan"))
        fit = self._join(shared, prediction)
        if fit is not None and fit.accepted:
            self._refused = 0
            self._views.observe(shared, prediction, fit)
            return fit
        inliers = fit.inliers if fit is not None else 0.0
        newest = prediction.T_window_camera[len(shared) - 1]
        held = Similarity.between(shared[-1].T_world_camera, newest, self._unit)
        if self.prior.leads(window):  # which says where it lies, whatever its depths are worth
            self._refused = 0
            return Alignment(held, True, float("nan"), inliers)
        self.counters["windows_refused"] += 1
        self._refused += 1
        reason = "no depth in common" if fit is None else fit.reason
        log.warning("window %d does not fit the scene: %s", self._next_window - 1, reason)
        return Alignment(held, False, float("nan"), inliers)

    def _begins_at(self, window: Window) -> int:
        """Which view of a segment's first window says where it lies: of a camera seen before."""
        known = [i for i, view in enumerate(window.views) if view.camera in self._newest]
        return known[0] if known else 0

    def _join(self, shared: list[Anchor], prediction: Prediction) -> Alignment | None:
        """With what a window says of its own unit; without it, where that would spoil the fit."""
        indices = range(len(shared))
        unit = self.metres.unit_of(prediction)
        if unit is not None:
            fit = self._joiner.join(shared, prediction, indices, unit)
            if fit is not None and fit.accepted:
                return fit
        return self._joiner.join(shared, prediction, indices)

    def _report(
        self,
        window: Window,
        prediction: Prediction,
        placed: Alignment,
        total_s: float,
        loop_closed: bool,
    ) -> WindowReport:
        unit = placed.T_scene_window.scale
        self._unit = unit
        return WindowReport(
            id=window.id,
            stamp_ns=max(view.stamp_ns for view in window.views[-window.new :]),
            view_ids=tuple(view.id for view in window.views),
            new_frames=window.new,
            aligned=placed.accepted,
            alignment_rms=placed.rms,
            alignment_inliers=placed.inliers,
            unit=unit,
            scale=self.metres.scale,
            loop_closed=loop_closed,
            segment=self._segment,
            focal_ratio=_focal_ratio(window, prediction),
            inference_s=prediction.inference_s,
            total_s=total_s,
        )

    def _given(self, views: tuple[View, ...]) -> Given:
        """The robot's own poses for the network, if they are good; says so when that changes."""
        if self.config.pose_prior.source == "none":
            return Given(None, False)
        given = choose(views)
        if given.why != self.prior_fault:
            self.prior_fault = given.why
            if given.why:
                without = "poses without scale" if given.T_prior_camera is not None else "no poses"
                log.warning("pose_prior: %s; the network gets %s", given.why, without)
            else:
                log.info("pose_prior: the network gets poses")
        return given

    def _use_prior(self, window: Window, prediction: Prediction) -> Prediction:
        """Learn the window's unit from what is known of its cameras; put poses in, if asked to."""
        if window.T_prior_camera is not None:
            self.counters["windows_with_prior"] += 1
        source = self.config.scale.source
        if source == "rig":
            measure = self.rig.measure(window, prediction)
            prediction = dataclasses.replace(prediction, measure=measure)
        return self.prior.apply(window, prediction, source == "odometry")

    def _update_scale(self, window: Window, prediction: Prediction, T: Similarity | None) -> None:
        before = self.metres.known
        scale = self.metres.update(window, prediction, T)
        self.loops.switch(self.config.loop.enabled)
        room = self.loops.bound(self.config.map.memory_mb)
        self.map.limits = dataclasses.replace(self.config.map, memory_mb=room)
        self.map.metres = self.metres.metres
        if self.metres.known and not before and self.metres.learns:
            log.info("the scale is known (%s): %.4g metres per unit", scale.source, scale.value)
            self.map.regrid()

    def _forget_scene(self) -> None:
        self.map = SubmapStore(self.config.map)
        self.loops.restart()
        self.metres.forget()

    def _deliver(
        self,
        prepared: _Prepared,
        index: int,
        prediction: Prediction,
        placed: Similarity,
        report: WindowReport,
    ) -> TrackedFrame:
        frame = _tracked(prepared, index, prediction, placed, report, self.config.depth)
        told = prediction.descriptor
        frame = self._remember(prepared.view, frame, None if told is None else told[index])
        frame = self._on_map(self.metres.published(frame))
        frame = self._with_covariance(frame)
        return frame if prepared.full is None else at_size_of(frame, prepared.full)

    def _with_covariance(self, frame: TrackedFrame) -> TrackedFrame:
        """The frame with how far off it may be, in the world's axes and the published unit."""
        unit = self.metres.T_scene_segment.scale
        unit *= self.metres.metres if frame.scale.metric else 1.0
        sigma, T = frame.scale.sigma, frame.T_world_camera
        in_odom = self.uncertainty.odometry(frame.id)
        if in_odom is not None:
            in_odom = in_metres(in_odom, unit, sigma, (frame.T_odom_world @ T)[:3, 3])
        in_map = self.uncertainty.in_map(frame.id) if self.map.place_known else None
        if in_map is not None:
            in_map = turned(in_map, self.loops.T_map_odometry[:3, :3])
            in_map = in_metres(in_map, unit, sigma, T[:3, 3])
        return dataclasses.replace(frame, covariance_odom=in_odom, covariance_map=in_map)

    def _deliver_alone(
        self, new: list[_Prepared], window: Window, prediction: Prediction, total_s: float
    ) -> Iterator[TrackedFrame]:
        """Frames that the network saw each alone: depth, and no place in any scene."""
        report = dataclasses.replace(
            self._report(window, prediction, UNPLACED, total_s, False),
            scale=Scale() if prediction.measure is None else Scale("metric_model", 1.0),
        )
        self.metres.scale = report.scale
        for index, prepared in enumerate(new, len(window.views) - len(new)):
            depth = self.config.depth
            frame = _tracked(prepared, index, prediction, UNPLACED.T_scene_window, report, depth)
            self.counters["processed"] += 1
            yield frame if prepared.full is None else at_size_of(frame, prepared.full)

    def _on_map(self, frame: TrackedFrame) -> TrackedFrame:
        """A published frame where loops have it; odometry takes no part in that."""
        if not self.loops.closed:
            return frame
        T = self.loops.T_map_odometry.copy()
        T[:3, 3] *= self.metres.metres if frame.scale.metric else 1.0
        return dataclasses.replace(
            frame,
            T_world_camera=T @ frame.T_world_camera,
            T_odom_world=frame.T_odom_world @ invert_pose(T),
        )

    def _remember(
        self, view: View, frame: TrackedFrame, descriptor: FloatImage | None
    ) -> TrackedFrame:
        """Make it a keyframe if it shows something new, grow the map, keep it for later windows.

        Of a window that did not fit nothing is kept: it would spoil what was right so far.
        """
        self._newest[view.camera] = frame.T_world_camera
        anchor = None if self._refused else Anchor.of(view, frame)
        if anchor is not None:
            self._views.limits = self.config.keyframe  # may have changed since
            frame = dataclasses.replace(frame, keyframe=self._views.is_new(anchor))
        submap = self._map(frame, anchor, descriptor)
        if anchor is not None:
            self._views.add(dataclasses.replace(anchor, submap=submap), frame.keyframe)
            self.uncertainty.enter_submap(submap, view.id)
        self.counters["processed"] += 1
        return frame

    def _map(
        self, frame: TrackedFrame, anchor: Anchor | None, descriptor: FloatImage | None
    ) -> int:
        """Take a frame into the map. Returns its submap, or -1 where it has no place yet."""
        of_scene = self.metres.of_scene(frame)
        if of_scene is None:
            return -1
        T = self.loops.T_map_odometry @ of_scene.T_world_camera
        of_map = dataclasses.replace(of_scene, T_world_camera=T)
        if frame.keyframe and self.config.map.enabled and self.config.depth.edge_filter:
            of_map = dataclasses.replace(of_map, depth_m=without_smears(of_map.depth_m))
        submap = self.map.add(of_map)
        if anchor is not None and frame.keyframe:
            seen = anchor.moved(self.metres.T_scene_segment)
            self.loops.add_keyframe(dataclasses.replace(seen, submap=submap), descriptor)
        return submap


def _resized(p: _Prepared, cut: Cut) -> _Prepared:
    """A view that waits for its window, at another size."""
    valid = None if p.valid is None else cut.mask(p.valid)
    full = None if p.full is None else cut.full(p.full)
    return dataclasses.replace(p, view=cut.view(p.view), valid=valid, full=full)


def _tracked(
    prepared: _Prepared,
    index: int,
    prediction: Prediction,
    placed: Similarity,
    report: WindowReport,
    config: DepthConfig,
) -> TrackedFrame:
    """One view of a window that lies at ``placed`` in its segment, its depth filtered."""
    view, confidence = prepared.view, prediction.confidence[index]
    depth = prediction.depth[index] * np.float32(placed.scale)
    sky = None if prediction.sky is None else sky_mask(prediction.sky[index])
    # Who sees a view alone says nothing of confidence: that is no reason to doubt it.
    believed = confidence if prediction.posed else np.full_like(confidence, 1e30)
    return TrackedFrame(
        id=view.id,
        stamp_ns=view.stamp_ns,
        frame_id=view.frame_id,
        camera=view.camera,
        image=view.image,
        depth_m=filter_depth(depth, believed, config, prepared.valid, sky),
        confidence=confidence,
        K=prediction.K[index] if view.K is None else view.K,
        T_world_camera=placed.pose(prediction.T_window_camera[index]),
        keyframe=False,
        scale=report.scale,
        window=report,
        leads=prepared.leads,
    )


def _joining(shared: list[Anchor]) -> list[int]:
    """Whose depth places a window: keyframes and the newest view, then those of other cameras,
    first and middle."""
    last = len(shared) - 1
    keyframes = [i for i, anchor in enumerate(shared) if anchor.keyframe]
    newest = {anchor.view.camera: i for i, anchor in enumerate(shared)}  # of each camera
    others = sorted(set(newest.values()) - {last}, reverse=True)
    order = [*keyframes[: MOST_DEPTHS - 1], last, *others, 0, last // 2] if shared else []
    return sorted(list(dict.fromkeys(order))[:MOST_DEPTHS])


def _focal_ratio(window: Window, prediction: Prediction) -> float:
    """Focal length as the network sees it over the calibrated one; NaN without calibration."""
    views = zip(window.views, prediction.K, strict=True)
    ratios = [K[0, 0] / view.K[0, 0] for view, K in views if view.K is not None]
    return float(np.median(ratios)) if ratios else float("nan")


def _fault(prediction: Prediction, window: Window) -> str:
    """Why nothing of a prediction may be published, or an empty text."""
    if not prediction.posed:
        return ""
    if not np.isfinite(prediction.T_window_camera).all():
        return "the network gave poses that are no numbers"
    width = prediction.depth.shape[-1]
    for view, K in zip(window.views, prediction.K, strict=True):
        # A field of view that the decoder clips to zero becomes a focal length of 5e5 widths.
        if view.K is None and not FOCAL[0] * width < K[0, 0] < FOCAL[1] * width:
            return (
                f"the network's focal length ({K[0, 0]:.3g} pixels at a width of {width}) cannot "
                "be right: publish a camera_info"
            )
    return ""
