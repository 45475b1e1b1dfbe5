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

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.config import PipelineConfig
from da3_ros.depth_filter import filter_depth, sky_mask
from da3_ros.enlarge import at_size_of
from da3_ros.geometry import T_MAP_WORLD, backproject
from da3_ros.inference import (
    WindowTooLargeError,
    budget_beside,
    open_networks,
    resize_for_network,
)
from da3_ros.mapping.alignment import MOST_DEPTHS, Alignment, Anchor, Joiner, Similarity
from da3_ros.mapping.export import Scene, export_scene
from da3_ros.mapping.keyframes import ViewMemory
from da3_ros.mapping.scale import SceneScale, scaled_pose
from da3_ros.mapping.trajectory import Pose, Trajectory
from da3_ros.mapping.voxel_map import VoxelMap
from da3_ros.pose_prior import Given, PriorFollower, choose, with_poses
from da3_ros.rectify import CalibrationError, Rectifier
from da3_ros.types import (
    Array,
    Frame,
    Image,
    Prediction,
    TrackedFrame,
    View,
    Window,
    WindowReport,
)

log = logging.getLogger(__name__)

FOCAL = (0.05, 50.0)  # focal lengths over the image's width that a camera may have
REFUSALS = 5  # windows in a row that do not fit, after which the scene goes on in a new segment


class Network(Protocol):
    """What the pipeline needs of an inference session."""

    def fit(self, image: tuple[int, int], window: int, new: int) -> Limits | None:
        """What the memory budget allows for images of (width, height); None: anything."""

    def prefetch(self, view: View) -> None:
        """Begin with a view that waits for its window."""

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


class Pipeline:
    """A stream of frames of one camera, turned into one scene. Not thread-safe.

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
        self.prior_fault = ""  # why the newest window got no poses, or no scale from them
        self.session, self.ruler = open_networks(config) if session is None else (session, ruler)
        self.counters: Counter[str] = Counter()
        self.map = VoxelMap(config.map.voxel_m, config.map.max_points)
        self.trajectory = Trajectory()
        self.T_map_world = T_MAP_WORLD  # of exports; a robot's base may level it
        self._rectifier = Rectifier()
        self._last_stamp: int | None = None
        self._next_view = 0
        self._next_window = 0
        self._segment = -1
        self._image_size: tuple[int, int] | None = None
        self.network_size = (0, 0)  # (width, height) of the images that the network sees
        self._refit()
        self._start_segment()

    def push(self, frame: Frame) -> Iterator[TrackedFrame]:
        """Take one frame; yields the frames that became ready, in stamp order.

        A stamp up to ``max_late_s`` back, or repeated, is dropped and counted; one farther back is
        a time jump, which resets window and odometry and keeps the map. A frame that cannot be
        rectified is dropped with a warning. The work happens while the result is iterated.
        """
        self.counters["received"] += 1
        if not self._in_time(frame):
            return
        size = (frame.image.shape[1], frame.image.shape[0])
        self._image_size = size
        self._refit()  # a measured window may have changed the plan
        prepared = self._prepare(frame)
        if prepared is None:
            return
        if self._size_changed(prepared.view):
            yield from self.flush()
            self._start_segment()
        self._last_stamp = frame.stamp_ns
        self._pending.append(prepared)
        if len(self._pending) >= self._new:
            yield from self._run_window()
        else:
            self.session.prefetch(prepared.view)

    def flush(self) -> Iterator[TrackedFrame]:
        """Process what waits for a full window; call at the end of a recording."""
        if self._pending:
            yield from self._run_window()

    @property
    def window_size(self) -> int:
        """Views per pass, as the memory budget allows."""
        return self._window

    def set_budget(self, memory_budget_gb: float) -> None:
        """Take a new memory budget between two windows. Raises BudgetError if nothing fits."""
        set_budget = getattr(self.session, "set_budget", None)
        if set_budget is not None:
            set_budget(budget_beside(self.ruler, memory_budget_gb))
        self._refit()

    def reset(self) -> None:
        """Forget window, odometry and map; keep the loaded network and the counters."""
        self._forget_scene()
        self.T_map_world = T_MAP_WORLD
        self._start_segment()

    def scene(self) -> Scene:
        """The points and poses gathered so far, in metres where the scale is known."""
        cloud = self.map.cloud()
        cloud = dataclasses.replace(cloud, xyz=cloud.xyz * np.float32(self.metres.metres))
        return Scene(cloud, self.poses(), self.T_map_world)

    def poses(self) -> list[Pose]:
        """Where the camera has been, by what is known of the scale now."""
        metres = self.metres.metres
        return [
            dataclasses.replace(p, T_world_camera=scaled_pose(p.T_world_camera, metres))
            for p in self.trajectory.poses
        ]

    def export(self, path: str | Path) -> Path:
        """Write the scene; the suffix chooses .glb, .ply or .tum. Returns the path written."""
        return export_scene(self.scene(), Path(path))

    def _refit(self) -> None:
        """Ask what the memory budget allows for the camera's images."""
        window = self.config.window
        self._process_res = self.config.inference.process_res
        self._window, self._new = window.size, window.new
        if self._image_size is None:
            return
        limits = self.session.fit(self._image_size, window.size, window.new)
        if limits is not None:
            self._process_res, self._window, self._new = (
                limits.process_res,
                limits.window,
                limits.new,
            )

    def _start_segment(self) -> None:
        """A new stretch of odometry, starting at the world's origin with nothing shared."""
        self._pending: list[_Prepared] = []
        self._last_stamp = None
        factor = self.config.scale.factor if self.config.scale.source == "fixed" else 1.0
        self._unit = factor  # scene units per network unit, of the newest window
        self.metres.to_origin()
        self._forget(np.eye(4))

    def _forget(self, T_world_camera: Array) -> None:
        """Share nothing with what was before; the next window begins at this pose."""
        if self.metres.learns and not self.metres.known and self.trajectory.poses:
            log.warning("the scale of the scene so far stays unknown: it leaves the map")
            self._forget_scene()
        self.metres.restart(T_world_camera)
        self.prior.restart()
        self._segment += 1
        self._views = ViewMemory(self.config.keyframe, self.config.window.size - 1)
        self._joiner = Joiner()
        self._refused = 0
        self._newest = T_world_camera

    def _in_time(self, frame: Frame) -> bool:
        if self._last_stamp is None or frame.stamp_ns > self._last_stamp:
            return True
        back_s = (self._last_stamp - frame.stamp_ns) / 1e9
        if back_s <= self.config.max_late_s:
            self.counters["dropped_late"] += 1
            return False
        log.warning("stamps jump back %.3f s: window and odometry start anew", back_s)
        self.counters["time_jumps"] += 1
        self.counters["dropped_time_jump"] += len(self._pending)
        self._start_segment()
        return True

    def _prepare(self, frame: Frame) -> _Prepared | None:
        try:
            image, K, valid = frame.image, None, None
            if frame.calibration is not None:
                done = self._rectifier(image, frame.calibration, frame.rectified)
                image, K, valid = done.image, done.K, done.valid
            full = image if self.config.depth.size == "input" else None
            image, K = resize_for_network(image, K, self._process_res)
        except (CalibrationError, ValueError) as error:
            self.counters["dropped_bad_input"] += 1
            log.warning("frame %d of %s dropped: %s", frame.stamp_ns, frame.frame_id, error)
            return None
        name, prior = (frame.frame_id, frame.camera), frame.T_prior_camera
        view = View(self._next_view, frame.stamp_ns, image, K, *name, prior)
        self._next_view += 1
        self.network_size = (image.shape[1], image.shape[0])
        small = None if valid is None else _shrink_mask(valid, image.shape[:2])
        return _Prepared(view, small, full)

    def _size_changed(self, view: View) -> bool:
        last = self._pending[-1].view if self._pending else None
        newest = self._views.newest
        last = newest.view if last is None and newest is not None else last
        if last is None or last.image.shape == view.image.shape:
            return False
        log.warning(
            "image size in the network changed from %s to %s: window and odometry start anew",
            last.image.shape[1::-1],
            view.image.shape[1::-1],
        )
        return True

    def _run_window(self) -> Iterator[TrackedFrame]:
        start = time.perf_counter()
        new, self._pending = self._pending, []
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
        if self.ruler is not None and self.metres.wants_measure(window.id):
            prediction = self.ruler.measure(window, prediction)
        prediction = self._use_prior(window, prediction)
        placed = self._place(shared, prediction)
        prediction, placed = self.prior.place(window, prediction, placed)
        fits = placed.accepted or not shared
        self._update_scale(window, prediction, placed.T_scene_window if fits else None)
        report = self._report(window, prediction, placed, time.perf_counter() - start)
        for offset, prepared in enumerate(new):
            index = len(shared) + offset
            yield self._deliver(prepared, index, prediction, placed.T_scene_window, report)
        if self._refused >= REFUSALS:
            log.warning("%d windows in a row do not fit: a new segment starts", self._refused)
            self._forget(self._newest)

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

    def _place(self, shared: list[Anchor], prediction: Prediction) -> Alignment:
        """Where the window lies in the scene; where it does not fit, motion goes on from there."""
        if not shared:
            at = Similarity.between(self._newest, prediction.T_window_camera[0], self._unit)
            return Alignment(at, self.counters["processed"] == 0, float("nan"), float("nan"))
        fit = self._joiner.join(shared, prediction, range(len(shared)))
        if fit is not None and fit.accepted:
            self._refused = 0
            self._views.observe(shared, prediction, fit)
            return fit
        self.counters["windows_refused"] += 1
        self._refused += 1
        reason = "no depth in common" if fit is None else fit.reason
        log.warning("window %d does not fit the scene: %s", self._next_window - 1, reason)
        newest = prediction.T_window_camera[len(shared) - 1]
        held = Similarity.between(shared[-1].T_world_camera, newest, self._unit)
        return Alignment(held, False, float("nan"), fit.inliers if fit is not None else 0.0)

    def _report(
        self, window: Window, prediction: Prediction, placed: Alignment, total_s: float
    ) -> WindowReport:
        unit = placed.T_scene_window.scale
        self._unit = unit
        return WindowReport(
            id=window.id,
            stamp_ns=window.views[-1].stamp_ns,
            view_ids=tuple(view.id for view in window.views),
            new_frames=window.new,
            aligned=placed.accepted,
            alignment_rms=placed.rms,
            alignment_inliers=placed.inliers,
            unit=unit,
            scale=self.metres.scale,
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
        """Learn the window's unit from the poses it was given, and put them in, if asked to."""
        if window.T_prior_camera is not None:
            self.counters["windows_with_prior"] += 1
        return self.prior.apply(window, prediction, self.config.scale.source == "odometry")

    def _update_scale(self, window: Window, prediction: Prediction, T: Similarity | None) -> None:
        before = self.metres.known
        scale = self.metres.update(window, prediction, T)
        if self.metres.known and not before and self.metres.learns:
            log.info("the scale is known (%s): %.4g metres per unit", scale.source, scale.value)
            self.map = self.map.regridded(self.config.map.voxel_m / scale.value)

    def _forget_scene(self) -> None:
        self.map = VoxelMap(self.config.map.voxel_m, self.config.map.max_points)
        self.trajectory = Trajectory()
        self.metres.forget()

    def _deliver(
        self,
        prepared: _Prepared,
        index: int,
        prediction: Prediction,
        placed: Similarity,
        report: WindowReport,
    ) -> TrackedFrame:
        view, confidence = prepared.view, prediction.confidence[index]
        depth = prediction.depth[index] * np.float32(placed.scale)
        sky = None if prediction.sky is None else sky_mask(prediction.sky[index])
        frame = TrackedFrame(
            id=view.id,
            stamp_ns=view.stamp_ns,
            frame_id=view.frame_id,
            camera=view.camera,
            image=view.image,
            depth_m=filter_depth(depth, confidence, self.config.depth, prepared.valid, sky),
            confidence=confidence,
            K=prediction.K[index] if view.K is None else view.K,
            T_world_camera=placed.pose(prediction.T_window_camera[index]),
            keyframe=False,
            scale=report.scale,
            window=report,
        )
        frame = self._remember(view, frame)
        frame = self.metres.published(frame)
        return frame if prepared.full is None else at_size_of(frame, prepared.full)

    def _remember(self, view: View, frame: TrackedFrame) -> TrackedFrame:
        """Make it a keyframe if it shows something new, grow the map, keep it for later windows.

        Of a window that did not fit nothing is kept: it would spoil what was right so far.
        """
        self._newest = frame.T_world_camera
        if not self._refused:
            anchor = Anchor.of(view, frame)
            self._views.limits = self.config.keyframe  # may have changed since
            frame = dataclasses.replace(frame, keyframe=self._views.is_new(anchor))
            self._views.add(anchor, frame.keyframe)
        of_scene = self.metres.of_scene(frame)
        if of_scene is not None:
            self.trajectory.add(of_scene)
            if frame.keyframe:
                self._grow_map(of_scene)
        self.counters["processed"] += 1
        return frame

    def _grow_map(self, frame: TrackedFrame) -> None:
        if not self.config.map.enabled:
            return
        known = np.isfinite(frame.depth_m)
        points = backproject(frame.depth_m, frame.K)[known].astype(np.float64)
        T = frame.T_world_camera
        self.map.insert(
            points @ T[:3, :3].T + T[:3, 3], frame.image[known], frame.confidence[known]
        )


def _joining(shared: list[Anchor]) -> list[int]:
    """Whose depth places a window: keyframes and the newest view, then first and middle."""
    last = len(shared) - 1
    keyframes = [i for i, anchor in enumerate(shared) if anchor.keyframe]
    order = [*keyframes[: MOST_DEPTHS - 1], last, 0, last // 2] if shared else []
    return sorted(list(dict.fromkeys(order))[:MOST_DEPTHS])


def _focal_ratio(window: Window, prediction: Prediction) -> float:
    """Focal length as the network sees it over the calibrated one; NaN without calibration."""
    views = zip(window.views, prediction.K, strict=True)
    ratios = [K[0, 0] / view.K[0, 0] for view, K in views if view.K is not None]
    return float(np.median(ratios)) if ratios else float("nan")


def _fault(prediction: Prediction, window: Window) -> str:
    """Why nothing of a prediction may be published, or an empty text."""
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


def _shrink_mask(valid: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Mask at the network's size; a pixel is valid only where all that it averages is."""
    area = cv2.resize(valid.astype(np.float32), (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(area > 0.999)
