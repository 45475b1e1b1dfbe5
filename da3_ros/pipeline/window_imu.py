"""What the IMU says of the views of windows, and what their poses say of the IMU."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence

from da3_ros.inertial.gyro_turns import GyroTurns
from da3_ros.mapping.frames import LocalFrame
from da3_ros.pipeline.delivery import PlacedWindow
from da3_ros.pipeline.line_kinds import kind_of
from da3_ros.pipeline.pose_conditioning import turned_by_gyro
from da3_ros.pipeline.scene_map import SceneMap
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.types import ImuStretch, View, Window, WindowEstimate

log = logging.getLogger(__name__)

GYRO_CONTRADICTS = (
    "its rotations are not those of the camera: check the transform from the camera to the IMU "
    "(camera frames: z forward, x right), imu.time_offset_s, and its unit (rad/s)"
)


class WindowImu:
    """The IMU in the steps of each window, from the first view on that has data of it.

    Of its own it has the data of the newest window, and the faults that were logged. Not
    thread-safe.
    """

    def __init__(self, gyro: GyroTurns, scene_map: SceneMap, counters: Counter[str]) -> None:
        self._gyro, self._map, self._counters = gyro, scene_map, counters
        self._faults = set[tuple[str, str]]()  # that were logged: cameras and kinds
        self._is_late = False  # whether that was logged
        self._measured: dict[int, ImuStretch] = {}  # of the newest window, by view

    def take(self, views: Sequence[PreparedView]) -> list[PreparedView]:
        """Takes the new views of a window; returns them without data of an IMU that their camera
        contradicts."""
        self._measured.clear()
        return [self._with_sound_imu(prepared) for prepared in views]

    def _with_sound_imu(self, prepared: PreparedView) -> PreparedView:
        view = prepared.view
        self._gyro.add(view)
        if view.imu is not None:
            self._measured[view.id] = view.imu
        if view.imu is None or self._is_sound(view.camera):
            return prepared
        return dataclasses.replace(prepared, view=dataclasses.replace(view, imu=None))

    def turned(self, window: Window, estimate: WindowEstimate) -> WindowEstimate:
        """Returns the estimate with rotations as the gyro says; see ``turned_by_gyro``."""
        turned = turned_by_gyro(window, estimate, self._gyro)
        if turned is not estimate:
            self._counters["windows_turned_by_gyro"] += 1
        return turned

    def learn(self, placed: PlacedWindow, *, by_network: bool) -> None:
        """Compares the gyro with the poses of a window, and tells the sources of metres what is
        known of the IMU. by_network: whether poses count that no tracks have refined."""
        window, poses = placed.window, None
        if placed.refined is not None:
            poses = placed.refined.views.poses
        elif placed.alignment.accepted and by_network:
            T, at = placed.estimate.T_window_camera, placed.alignment.T_local_window
            poses = {view.id: at.pose(T[k]) for k, view in enumerate(window.views)}
        if poses is not None:
            self._gyro.learn(window.views, poses, by_tracks=placed.refined is not None)
        # Of the camera whose motion counts.
        self._map.scale.note_imu(self._trust(window.views[-window.new].camera))

    def levelled(self, frame: LocalFrame, view: View, *, still: bool) -> LocalFrame:
        """Returns a frame with what is up; see ``LevelFinder.follow``."""
        # Also of an IMU that is not used: it may be mended.
        measured, camera = self._measured.get(view.id), view.camera
        out = self._map.levelled(frame, measured, self._trust(camera), still=still)
        if (late := self._gyro.mount.late) and not self._is_late:
            self._is_late = True
            log.warning("imu: %s", late)
        return out

    def _trust(self, camera: str) -> str:
        """Returns whether a camera's rotations confirm the IMU: agrees, unknown, or no."""
        return self._gyro.state(camera) if self._is_sound(camera) else "no"

    def _is_sound(self, camera: str) -> bool:
        """Whether the camera's rotations do not contradict the IMU; else says so once for each
        camera and each fault that is known of it, whatever its numbers."""
        state, fault = self._gyro.state(camera), self._gyro.mount.fault
        if state != "contradicts" and not fault:
            return True
        self._counters["gyro_contradicted"] += 1
        camera = self._map.level_finder.camera if fault else camera
        fault = fault or GYRO_CONTRADICTS
        kind = camera, kind_of(fault)
        if kind not in self._faults:
            self._faults.add(kind)
            log.warning("imu: not used%s: %s", f" by camera {camera}" if camera else "", fault)
        return False
