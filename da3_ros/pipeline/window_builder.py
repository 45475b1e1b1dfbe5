"""Collects views for windows: checks stamps, keeps one image size, waits for enough new views."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.config import PipelineConfig
from da3_ros.geometry.lens import Lens
from da3_ros.inference.interfaces import Session
from da3_ros.inference.preprocess import resize_for_network
from da3_ros.mapping.resizing import Cut
from da3_ros.sensors.calibration import CalibrationError, calibration_key, image_size
from da3_ros.sensors.calibration_check import check_calibration
from da3_ros.sensors.corrected_calibration import corrected_calibration
from da3_ros.sensors.ego_mask import EgoMask
from da3_ros.sensors.image_check import ImageCheck, covered_pixels
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Calibration, Frame, Image, PreparedImage, ResizeRule, View

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PreparedView:
    """A view with the data that its delivery needs."""

    view: View
    full: Image  # the rectified image at camera resolution
    full_valid: NDArray[np.bool_] | None = None  # [H, W] as in PreparedImage
    is_reference: bool = True  # whether it is the first view of its frameset that shows something
    blind: str = ""  # why it shows nothing (image_check.CAUSES), or was not placed; empty: it does
    suspect: str = ""  # why it may show too little; empty: it shows enough
    calibration: Calibration | None = None  # as in Frame
    rectified: bool = False  # as in Frame


@dataclass(frozen=True, eq=False)
class CorrectedCalibration:
    """A calibration that replaces the stated one of a camera."""

    stated: tuple[object, ...]  # the key of the one that it replaces, and whether it was rectified
    calibration: Calibration


@dataclass(frozen=True)
class ImageFormat:
    """The image size of all views of a window, and the camera that determined it."""

    camera: str
    shape: tuple[int, ...]
    rule: ResizeRule  # of the memory plan at that time


class WindowBuilder:
    """Collects the views of the next window. Owns stamps, image format, window limits, view ids.

    Not thread-safe, except for ``prepare``.
    """

    def __init__(self, config: PipelineConfig, counters: Counter[str]) -> None:
        self.config, self.counters = config, counters
        self.image_format: ImageFormat | None = None
        self._prepare = FramePreparation(config)
        self._check = ImageCheck()
        self._last_stamp: dict[str, int] = {}  # newest stamp of each camera, ns
        self._pending: list[list[PreparedView]] = []  # waiting views, per frameset
        self._uncalibrated: dict[str, tuple[int, ...]] = {}  # cameras, and shapes of their images
        # By camera, and how many there were; never changed in place: other threads read it.
        self._lenses: tuple[dict[str, CorrectedCalibration], int] = {}, 0
        self._stated: dict[str, tuple[Calibration, bool]] = {}  # by camera, as of its last frame
        self._recalibrated: dict[str, int] = {}  # by camera, first view with another one
        self._next_view = 0
        self._next_frameset = 0
        self._image_size: tuple[int, int] | None = None  # (width, height) of camera images
        self.rule = _asked_rule(config)
        self.window_size, self._new = config.window.size, config.window.new

    def reconfigure(self, config: PipelineConfig) -> None:
        """Sets the parameters that may change between windows."""
        self.config = config

    @property
    def network_size(self) -> tuple[int, int]:
        """(width, height) of the network's images; (0, 0) before the first."""
        shape = (0, 0) if self.image_format is None else self.image_format.shape
        return shape[1], shape[0]

    @property
    def waiting(self) -> int:
        """Number of views that wait for a full window."""
        return sum(map(len, self._pending))

    @property
    def is_full(self) -> bool:
        """Whether enough new framesets wait for a window."""
        return len(self._pending) >= self._new

    def restart(self) -> None:
        """Drops waiting views; the next frame may have any stamp and any image size."""
        self._pending, self._last_stamp, self.image_format = [], {}, None
        self._check = ImageCheck()
        self._uncalibrated = {}

    def forget_format(self) -> None:
        """Lets the next frame have any image size."""
        self.image_format = None
        self._check = ImageCheck()

    def fit(self, session: Session) -> None:
        """Sets resolution and window limits to those that the memory budget allows."""
        window, cameras = self.config.window, max(1, len(self.config.cameras))
        self.rule = _asked_rule(self.config)
        self.window_size, self._new = window.size, window.new
        if self._image_size is None:
            return
        limits = session.memory.fit(self._image_size, window.size, window.new * cameras)
        if limits is not None:
            self.rule, self.window_size = limits.rule, limits.window
            self._new = max(1, limits.new // cameras)  # framesets, each with a view per camera

    def jumps_back(self, frame: Frame) -> bool:
        """True if a stamp is more than ``max_late_s`` back: a time jump."""
        last = self._last_stamp.get(frame.camera)
        back_s = 0.0 if last is None else (last - frame.stamp_ns) / 1e9
        if back_s <= self.config.max_late_s:
            return False
        log.warning("stamps jump back %.3f s: window and odometry start anew", back_s)
        self.counters["time_jumps"] += 1
        self.counters["dropped_time_jump"] += self.waiting
        return True

    def in_time(self, frame: Frame) -> bool:
        """True if a frame is newer than its camera's last one; else counts it as late."""
        last = self._last_stamp.get(frame.camera)
        if last is None or frame.stamp_ns > last:
            return True
        self.counters["dropped_late"] += 1
        return False

    def prepare(self, frame: Frame) -> Frame:
        """Returns the frame rectified and resized; any thread may call this.

        An unusable frame is returned unchanged: ``views`` reports the cause.
        """
        try:
            return dataclasses.replace(frame, ready=self._prepared(frame))
        except (CalibrationError, ValueError):
            return frame

    def _prepared(self, frame: Frame) -> PreparedImage:
        lenses, number = self._lenses
        ready = self._prepare(_with_lens(frame, lenses), self.rule)
        return dataclasses.replace(ready, lenses=number)

    def correct(self, camera: str, lens: Lens) -> bool:
        """Rectifies all later frames of a camera by what its images show: that rectified ones
        were taken by ``lens``. Returns False, and changes nothing, if no calibration says so.
        """
        if camera not in self._stated:
            return False
        lenses, number = self._lenses
        key = _calibration_of(*self._stated[camera])
        calibration = self.calibration(camera)
        rectified = self._stated[camera][1] and calibration is self._stated[camera][0]
        found = corrected_calibration(calibration, lens, rectified=rectified)
        if found is None or not _is_usable(found):
            return False
        self._lenses = lenses | {camera: CorrectedCalibration(key, found)}, number + 1
        return True

    def calibration(self, camera: str) -> Calibration:
        """Returns what the newest frame of a camera is rectified by. Raises KeyError if it has no
        calibration."""
        stated, rectified = self._stated[camera]
        known = self._lenses[0].get(camera)
        replaced = known is not None and known.stated == _calibration_of(stated, rectified)
        return known.calibration if known is not None and replaced else stated

    def plan_for(self, frames: Sequence[Frame], session: Session) -> None:
        """Updates the memory plan for the image size of the camera that determined the format."""
        camera = None if self.image_format is None else self.image_format.camera
        frame = next((f for f in frames if camera in (None, f.camera)), None)
        if frame is not None:
            self._image_size = (frame.image.shape[1], frame.image.shape[0])
        self.fit(session)  # also for the same size: a measured window changes the plan

    def views(self, frames: Sequence[Frame]) -> list[PreparedView]:
        """Returns views of the usable frames of one frameset."""
        found = [p for frame in frames if (p := self._view(frame)) is not None]
        self._next_frameset += 1
        first = next((i for i, p in enumerate(found) if not p.blind), 0)
        return [dataclasses.replace(p, is_reference=i == first) for i, p in enumerate(found)]

    def calibrated_late(self, views: Sequence[PreparedView]) -> list[PreparedView]:
        """Returns the views of cameras that have a calibration only now."""
        return [
            p for p in views
            if p.calibration is not None
            and self._uncalibrated.get(p.view.camera) == p.full.shape
        ]  # fmt: skip

    def changed_format(self, views: Sequence[PreparedView]) -> ImageFormat | None:
        """Returns the new format if the camera that determined it has another size, else None."""
        old = self.image_format
        for view in (p.view for p in views):
            same_plan = old is not None and old.rule == self.rule
            if old is None or (same_plan and old.camera != view.camera):
                continue
            if old.shape != view.image.shape:
                log.warning(
                    "image size in the network changed from %s to %s",
                    old.shape[1::-1], view.image.shape[1::-1],
                )  # fmt: skip
                return ImageFormat(view.camera, view.image.shape, self.rule)
        return None

    def resize(self, cut: Cut, new: ImageFormat) -> None:
        """Brings the waiting views to a new format."""
        self._pending = [[_resized(p, cut) for p in frameset] for frameset in self._pending]
        self.image_format = new
        self._check = ImageCheck()

    def add(self, views: Sequence[PreparedView]) -> list[PreparedView]:
        """Adds the views of one frameset that have the window's format; returns these."""
        if self.image_format is None and views:
            first = views[0].view
            self.image_format = ImageFormat(first.camera, first.image.shape, self.rule)
        frameset = [p for p in views if self._has_format(p.view)]
        for p in frameset:
            self._last_stamp[p.view.camera] = p.view.stamp_ns
            self._uncalibrated.pop(p.view.camera, None)
            if p.calibration is None:
                self._uncalibrated[p.view.camera] = p.full.shape
        if frameset:
            self._pending.append(frameset)
        return frameset

    def take(self) -> list[PreparedView]:
        """Removes and returns all waiting views, in stamp order."""
        taken, self._pending = [p for frameset in self._pending for p in frameset], []
        return taken

    def _view(self, frame: Frame) -> PreparedView | None:
        if frame.calibration is not None:
            self._note_stated(frame.camera, frame.calibration, frame.rectified)
        frame = _with_lens(frame, self._lenses[0])
        try:
            ready = frame.ready
            if ready is None or not self.fits(ready):
                ready = self._prepared(frame)
        except (CalibrationError, ValueError) as error:
            self.counters["dropped_bad_input"] += 1
            log.warning("frame %d of %s dropped: %s", frame.stamp_ns, frame.frame_id, error)
            return None
        view = View(
            self._next_view, frame.stamp_ns, ready.image, ready.K, frame.frame_id, frame.camera,
            frame.T_prior_camera, frame.T_rig_camera, self._next_frameset, ready.valid,
            frame.prior_variance, frame.slam, frame.T_level_camera, frame.imu,
            frame.returns, frame.anchors,
        )  # fmt: skip
        self._next_view += 1
        prepared = PreparedView(
            view, ready.full, ready.full_valid, calibration=frame.calibration,
            rectified=frame.rectified,
        )  # fmt: skip
        return self._checked(prepared) if self.config.hold_when_blind else prepared

    def _note_stated(self, camera: str, calibration: Calibration, rectified: bool) -> None:
        before = self._stated.get(camera)
        self._stated[camera] = calibration, rectified
        if before is None or (before[0] is calibration and before[1] == rectified):
            return
        if _calibration_of(*before) != _calibration_of(calibration, rectified):
            self._recalibrated[camera] = self._next_view

    def take_recalibrated(self) -> dict[str, int]:
        """Returns the cameras that state another calibration than before, each with the id of its
        first view by that; once."""
        found, self._recalibrated = self._recalibrated, {}
        return found

    def _checked(self, prepared: PreparedView) -> PreparedView:
        """Returns the view with what its image shows; without pixels that something covers."""
        view = prepared.view
        verdict = self._check(
            view.camera, view.image, prepared.full, view.valid, view.T_prior_camera
        )
        if verdict.suspect:
            self.counters[f"suspect_{verdict.suspect}"] += 1
        if verdict.covered is not None:
            seen, full = (
                ~covered_pixels(verdict.covered, image.shape)
                for image in (view.image, prepared.full)
            )
            view = dataclasses.replace(
                view, valid=seen if view.valid is None else view.valid & seen
            )
            if prepared.full_valid is not None:
                full &= prepared.full_valid
            prepared = dataclasses.replace(prepared, view=view, full_valid=full)
        return dataclasses.replace(prepared, blind=verdict.blind, suspect=verdict.suspect)

    def fits(self, ready: PreparedImage) -> bool:
        """Whether an image was prepared by the present plan and calibration."""
        return ready.rule == self.rule and ready.lenses == self._lenses[1]

    def _has_format(self, view: View) -> bool:
        assert self.image_format is not None
        if view.image.shape == self.image_format.shape:
            return True
        self.counters["dropped_other_size"] += 1
        log.log(
            logging.WARNING if self.counters["dropped_other_size"] == 1 else logging.DEBUG,
            "%s: network images are %s, those of %s are %s: cameras of one window need the same "
            "image size; crop them alike, or set window.mode to independent",
            view.camera, view.image.shape[1::-1], self.image_format.camera,
            self.image_format.shape[1::-1],
        )  # fmt: skip
        return False


def _with_lens(frame: Frame, lenses: dict[str, CorrectedCalibration]) -> Frame:
    """Returns a frame with the calibration that replaces its own, if there is one."""
    known = lenses.get(frame.camera)
    if known is None or frame.calibration is None:
        return frame
    if known.stated != _calibration_of(frame.calibration, frame.rectified):
        return frame
    return dataclasses.replace(frame, calibration=known.calibration, rectified=False)


def _is_usable(calibration: Calibration) -> bool:
    try:
        check_calibration(calibration, image_size(calibration))
    except CalibrationError:
        return False
    return True


def _calibration_of(calibration: Calibration, rectified: bool) -> tuple[object, ...]:
    return *calibration_key(calibration), rectified


def _asked_rule(config: PipelineConfig) -> ResizeRule:
    """Returns the rule by the parameters, if memory admits it."""
    return ResizeRule(config.inference.process_res, config.inference.process_res_method)


def _resized(p: PreparedView, cut: Cut) -> PreparedView:
    full = cut.full(p.full)
    full_valid = None if p.full_valid is None else cut.full(p.full_valid)
    return dataclasses.replace(p, view=cut.view(p.view), full=full, full_valid=full_valid)


# Prepares frames for the network: when they are needed, or earlier in another thread.
#
# The result is the same in either case.

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _ValidPixels:
    """The pixels that show the surroundings, the same in all frames of a camera; read-only."""

    full: Mask  # [H, W] at the camera's size
    small: Mask  # [h, w] at the network's size


class FramePreparation:
    """Rectifies, masks and resizes frames. Any thread may call it."""

    def __init__(self, config: PipelineConfig) -> None:
        """Raises ConfigError if the files of the parameter ``mask`` cannot be used."""
        self._kept = len(config.cameras) + 2
        self._rectifier = Rectifier(self._kept)
        self._ego_mask = EgoMask(config.mask, config.cameras) if config.mask else None
        self._valid: OrderedDict[tuple[object, ...], _ValidPixels] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, frame: Frame, rule: ResizeRule) -> PreparedImage:
        """Returns the prepared images, K and masks.

        Raises CalibrationError or ValueError, one line, for an unusable frame.
        """
        full, K, hole_free = frame.image, None, None
        if frame.calibration is not None:
            done = self._rectifier(full, frame.calibration, frame.rectified)
            full, K, hole_free = done.image, done.K, done.valid
        image, K = resize_for_network(full, K, rule.process_res, rule.process_res_method)
        if hole_free is None and self._ego_mask is None:
            return PreparedImage(rule, image, full, K, None)
        valid = self._valid_pixels(frame, hole_free, image.shape[:2])
        return PreparedImage(rule, image, full, K, valid.small, valid.full)

    def _valid_pixels(
        self, frame: Frame, hole_free: Mask | None, shape: tuple[int, ...]
    ) -> _ValidPixels:
        """Returns the masks at the camera's size and at ``shape`` (h, w).

        They are cached by the same values as the tables of the rectifier.
        """
        calibration = None if frame.calibration is None else calibration_key(frame.calibration)
        key = (frame.camera, frame.image.shape, calibration, frame.rectified, shape)
        with self._lock:
            found = self._valid.get(key)
            if found is None:
                full = self._at_camera_size(frame, hole_free)
                found = self._valid[key] = _ValidPixels(full, _shrink_mask(full, shape))
                while len(self._valid) > self._kept:
                    self._valid.popitem(last=False)
            self._valid.move_to_end(key)
        return found

    def _at_camera_size(self, frame: Frame, hole_free: Mask | None) -> Mask:
        """Returns the mask [H, W] of pixels of the rectified image that have a source and of
        which no source shows the robot."""
        if self._ego_mask is None:
            assert hole_free is not None
            return hole_free
        seen = self._ego_mask.at(frame.camera, (frame.image.shape[1], frame.image.shape[0]))
        if frame.calibration is not None:
            seen = self._rectifier(seen, frame.calibration, frame.rectified).image
        valid = seen == 255  # less is interpolated from a pixel of the robot
        return valid if hole_free is None else valid & hole_free


def _shrink_mask(valid: Mask, shape: tuple[int, ...]) -> Mask:
    """Returns the mask at the network's size; a pixel is valid if all its source pixels are."""
    area = cv2.resize(valid.astype(np.float32), (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    return np.asarray(area > 0.999)
