"""The metric scale of the map: estimates of one source, followed in small steps.

The map keeps one unit, that of its first window, so that it stays consistent; lengths are
converted to metres when they are published. docs/scale.md compares the sources. Works on poses and
numbers; no network, no ROS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from da3_ros.config import ScaleConfig
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.map_table import NO_SUBMAP, MapListener, MapTable
from da3_ros.scale_sources import scale_source
from da3_ros.scale_sources.estimates import AGES, FLOOR, Estimate
from da3_ros.types import (
    Array,
    FloatImage,
    Scale,
    ScaleMeasurement,
    View,
    Window,
    WindowEstimate,
)

MOST_FRAMES = 1024  # newest frames of a chain whose poses in the map are followed
MAX_SIGMA = 0.15  # relative standard deviation above which the scale is still unknown


class ScaleFilter:
    """The scale of one chain, window by window.

    Until the source is certain enough the scale is ``Scale()``, which is not metric. From then on
    it follows the source by at most ``scale.max_step`` per window. Without news it is held, and
    becomes less certain with the way, since the unit of a chain drifts.
    """

    def __init__(self, config: ScaleConfig) -> None:
        self.config, self.source = config, scale_source(config.source)
        self.restart(declared=True)

    def restart(self, *, declared: bool) -> None:
        """Begins a new chain, which has a unit of its own.

        declared: it begins with the window that a declared scale is given for.
        """
        self._declared = declared
        self._forget_measurements()
        self._value: float | None = None
        self._sigma = math.nan
        self._limited = True  # whether ``scale.max_step`` limits the next change

    @property
    def declared(self) -> bool:
        """Whether a declared scale holds for this chain: it is given for the first window."""
        return bool(self.source.declared_by) and self._declared

    def wants_metric_model(self, window_id: int) -> bool:
        """True if the metric model should run: for the first windows, then for every nth one."""
        both = zip(self.source.members, self.estimator.members, strict=True)
        asking = [estimator for source, estimator in both if source.needs_metric_model]
        few = any(estimator.few for estimator in asking)
        return bool(asking) and (few or window_id % self.config.metric_every == 0)

    def change_unit(self, factor: float) -> None:
        """Takes over that lengths in the chain are now ``factor`` times what they were.

        The scale is held, and is uncertain, until new measurements are as certain as a first
        value must be; they may change it by any amount, because the earlier ones had the error
        that has just been found.
        """
        self._forget_measurements()
        if self._value is not None:
            self._limited = False
            self._value /= factor
            self._sigma = max(self._sigma, MAX_SIGMA)

    def _forget_measurements(self) -> None:
        self.estimator = self.source.estimator()
        self._newest: Estimate | None = None  # that differs from the one before
        self._here: Array | None = None  # [3] the newest frame's camera in ``local``
        self._way = 0.0  # over the depth, since ``_newest``

    def note_way(self, T_local_camera: Array, depth: float) -> None:
        """Notes the pose [4, 4] of each frame in ``local``, and its typical depth in the same
        unit."""
        self.estimator.note_way(T_local_camera, depth)
        here = T_local_camera[:3, 3]
        if self._here is not None and depth > 0:
            self._way += float(np.linalg.norm(here - self._here)) / depth
        self._here = here

    def update(self) -> Scale:
        """Returns the scale to publish with the current window. Call once per window."""
        name = self.config.source
        if not self.source.learns:
            return Scale(name, 1.0) if self.declared else Scale()
        self._follow(self._aged(self.estimator.estimate()))
        name = self.estimator.counted or name
        return Scale() if self._value is None else Scale(name, self._value, self._sigma)

    def _aged(self, found: Estimate | None) -> Estimate | None:
        """Returns the newest estimate of the source, as uncertain as it has become by now."""
        if found is not None and found != self._newest:
            self._newest, self._way = found, 0.0
        if self._newest is None:
            return None
        age = AGES * math.sqrt(self._way)
        return replace(self._newest, sigma=math.hypot(self._newest.deviation, age))

    def _follow(self, target: Estimate | None) -> None:
        if target is None:
            return
        if (self._value is None or not self._limited) and target.sigma > MAX_SIGMA:
            return
        if self._value is None:
            self._value, self._sigma = math.exp(target.log), target.sigma
            return
        difference = target.log - math.log(self._value)
        most = math.log1p(self.config.max_step) if self._limited else math.inf
        self._limited = True
        step = min(max(difference, -most), most)
        self._value *= math.exp(step)
        # The remaining difference is a known error.
        self._sigma = math.hypot(target.sigma, difference - step)


class MapScale(MapListener):
    """Relates the unit of odometry to that of the map, and the latter to metres.

    A chain has the unit of its first window. The first chain's unit is the map's. A later
    chain gets a pose in the map when its scale is known; until then its frames are not metric
    and not in the map.
    """

    def __init__(self, config: ScaleConfig, submaps: MapTable | None = None) -> None:
        self.filter = ScaleFilter(config)
        self.source = self.filter.source  # what measures or declares the scale
        self._submaps = submaps or MapTable()
        self._submaps.listeners.append(self)
        self.forget()

    def forget(self) -> None:
        """Begins a new map; a declared scale is for its first window."""
        self._submaps.known_metres = None
        # Metres per map unit of a loaded map, where no source measures: holds for chains that
        # are joined to it.
        self._map_scale: float | None = None
        self._map_sigma: float | None = None  # of the current chain, once it is joined
        self._begun = False
        # Added to positions of odometry before they are published, so that the unit's changes
        # leave the beginning of the chain where it is.
        self.shift = np.zeros(3)
        self.restart(np.eye(4))

    def on_clear(self) -> None:
        """Begins a new map."""
        self.forget()

    def resume(self, metric: bool) -> None:
        """Begins in a saved map: in metres, or in an unknown unit.

        Without a source the scale is known as soon as new frames are joined to a metric map.
        """
        if metric and self.source.gives_metres:
            self._submaps.known_metres = 1.0
        elif metric:
            self._map_scale = 1.0

    def take_from_map(self, covariance: Array | None) -> None:
        """Takes over the scale of the loaded map, which the current chain was joined to.

        covariance: [7, 7] of the newest submap's pose, log scale first; None: unknown.
        """
        if self._map_scale is not None and covariance is not None:
            self._submaps.known_metres = self._map_scale
            self._map_sigma = math.hypot(math.sqrt(max(float(covariance[0, 0]), 0.0)), FLOOR)

    def restart(self, T_local_camera: Array) -> None:
        """Begins a new chain at this pose of odometry, with an unknown unit."""
        self.begin = T_local_camera[:3, 3].copy()  # what stays in the map when the unit changes
        # View ids, by stamp and camera, of the frames whose poses sources of metres may remember.
        self._frames: dict[tuple[int, str], int] = {}
        self.scale = Scale()  # of the newest window; metres per unit of odometry
        self.filter.restart(declared=not self._begun)
        if self._map_scale is not None:  # until the new chain is joined to the map
            self._submaps.known_metres = self._map_sigma = None

    def set_unplaced(self, scale: Scale) -> None:
        """Takes the scale of a window without poses, which has no pose in the map."""
        self.scale = scale

    @property
    def known(self) -> bool:
        """Whether the map's scale is known."""
        return self._submaps.known_metres is not None

    @property
    def measured(self) -> bool:
        """Whether the map's scale is known by measurements, and not by a loaded map."""
        return self.known and self._map_scale is None and not self._submaps.read_only

    @property
    def unit(self) -> float:
        """Map units per unit of odometry."""
        return self._submaps.T_map_local.scale

    def published_unit(self, scale: Scale) -> float:
        """Published units (metres if the scale is known) per unit of odometry, of a window with
        this scale; a window without a pose in the map is published as it is."""
        if not self.has_pose(scale):
            return 1.0
        return self.unit * (self._submaps.metres if scale.metric else 1.0)

    def unit_of(self, estimate: WindowEstimate) -> tuple[float, float] | None:
        """Returns units of odometry per network unit, by a window's own measurement, and the
        relative standard deviation; None without a measurement.

        The measurement and the chain's scale are both uncertain. Together with the overlap
        views, this estimate keeps the unit of a long chain from drifting.
        """
        if not self.scale.metric or not self.source.learns:
            return None
        found = []
        for one, known in zip(estimate.measures, self._scales_by_member(), strict=True):
            if one is None or known is None:
                continue
            value, sigma = one.value / known.value, math.hypot(one.sigma, known.sigma)
            if value > 0 and math.isfinite(value + sigma):
                found.append((value, sigma))
        return min(found, key=lambda unit: unit[1], default=None)

    def _scales_by_member(self) -> list[ScaleMeasurement | None]:
        """Returns metres per unit of odometry by each source; of one alone, as published."""
        if len(self.source.members) == 1:
            return [ScaleMeasurement(self.scale.value, self.scale.sigma)]
        found = [member.estimate() for member in self.filter.estimator.members]
        return [
            None if e is None else ScaleMeasurement(math.exp(e.log), e.deviation) for e in found
        ]

    def change_unit(self, *, depth: float, motion: float) -> None:
        """Takes over by which factors depths and motions of odometry are longer now, because a
        new focal length has moved the newest views.

        The factor of what the source measures counts. A declared scale stays.
        """
        factor = depth if self.source.by_depth else motion
        if factor == 1.0 or not (self.source.learns or self._map_sigma is not None):
            return
        self.filter.change_unit(factor)
        if self.scale.metric:  # what is in the map stays
            self._set_unit(self.unit / factor)

    def doubt(self) -> None:
        """Holds the scale until there are new measurements: those so far had the error of a
        focal length that was only guessed."""
        if self.source.learns:
            self.filter.change_unit(1.0)

    def doubt_rig(self) -> None:
        """Holds the scale as far as a rig gave it, which tracks contradict."""
        by_rig = [source.needs_rig for source in self.source.members]
        if all(by_rig):
            self.doubt()
        else:
            self.filter.estimator.restart_members(by_rig)

    def note_imu(self, state: str) -> None:
        """Notes whether rotations of the camera confirm the IMU: agrees, unknown, or no."""
        for source in self.source.members:
            source.note_imu(state)

    def on_correction(self, correction: Correction, _before: Mapping[int, Similarity]) -> None:
        """Moves the earlier frames that sources of metres remember, with their submaps."""
        table, submap = self._submaps, NO_SUBMAP
        moves = {}
        rows = table.live_path.rows_of(list(self._frames))
        for id, row in zip(self._frames.values(), rows, strict=True):
            submap = submap if row is None else row[0]  # not stored: the camera stood
            move = correction.local_move(submap)
            if move is not None:
                moves[id] = move
        self.filter.estimator.move(moves)

    def on_refinement(self, frames: Sequence[PoseInSubmap]) -> None:
        """Gives sources of metres the poses that earlier frames have now."""
        ids = self._frames
        self.filter.estimator.refine({
            ids[key]: self._submaps.T_local_submap(f.submap).pose(f.T_submap_camera)
            for f in frames if (key := (f.stamp_ns, f.camera)) in ids
        })  # fmt: skip

    def update(
        self, window: Window, estimate: WindowEstimate, T_local_window: Similarity | None,
        *, own_motion: bool = True,
    ) -> Scale:  # fmt: skip
        """Returns the scale at a window; ``T_local_window`` is None for a refused one.

        own_motion: False if the poses are those of the odometry itself: compared with these, any
        odometry would be right, unless the window's measurement confirms them.
        """
        self._begun = True
        if T_local_window is None:
            self.filter.estimator.interrupt_motion()
        else:
            self._add_measurements(window, estimate, T_local_window, own_motion)
        before, self.scale = self.scale, self.filter.update()
        if self._map_sigma is not None:
            self.scale = Scale("map", self.unit * self._submaps.metres, self._map_sigma)
        if self.scale.metric:
            if self._submaps.known_metres is not None and not before.metric:
                self._set_unit(self.scale.value / self._submaps.known_metres)
            if self._submaps.read_only and self._submaps.known_metres is not None:  # it stays
                self.scale = self._scale_in_map(self.unit * self._submaps.known_metres)
            else:
                self._submaps.known_metres = self.scale.value / self.unit
        return self.scale

    def _set_unit(self, unit: float) -> None:
        """Sets map units per unit of odometry; the beginning of the chain stays in the map."""
        T, factor = self._submaps.T_map_local, unit / self.unit
        grown = Similarity(factor, np.eye(3), (1 - factor) * self.begin)
        self._submaps.set_poses({}, T @ grown)
        self.shift = (self.begin + self.shift) / factor - self.begin

    def to_origin(self) -> None:
        """Places the next chain at the map's origin, not at the end of the last one."""
        self._submaps.set_poses({}, IDENTITY)
        self.shift = np.zeros(3)

    def shifted(self, T_local_camera: Array, scale: Scale) -> Array:
        """Returns a pose [4, 4] of odometry as it is published, but for the unit, in a window with
        this scale; without a pose in the map it stays."""
        out = T_local_camera.copy()
        if self.has_pose(scale):
            out[:3, 3] += self.shift
        return out

    def _scale_in_map(self, value: float) -> Scale:
        """Returns the scale with the value that the map gives; that of the source differs by a
        known error."""
        error = math.log(self.scale.value / value)
        return Scale(self.scale.source, value, math.hypot(self.scale.sigma, error))

    def has_pose(self, scale: Scale) -> bool:
        """True if windows with this scale have a known pose in the map."""
        return self._submaps.known_metres is None or scale.metric

    def _add_measurements(
        self, window: Window, estimate: WindowEstimate, T_local_window: Similarity,
        own_motion: bool,
    ) -> None:  # fmt: skip
        """Adds a window's measurements and motions to the estimators."""
        witnesses = []  # of the camera's motion
        members = zip(
            self.source.members, self.filter.estimator.members, estimate.measures, strict=True
        )
        for source, estimator, measure in members:
            if measure is not None:
                estimator.add(measure, T_local_window.scale)
            if own_motion or measure is not None or not source.needs_prior:
                witnesses.append(estimator)
            else:
                estimator.interrupt_motion()
        for view, T_local_camera, depth in _motions(window, estimate, T_local_window):
            self._frames[view.stamp_ns, view.camera] = view.id
            if len(self._frames) > MOST_FRAMES:
                del self._frames[next(iter(self._frames))]
            for estimator in witnesses:
                estimator.add_motion(view, T_local_camera, depth)
            self.filter.note_way(T_local_camera, depth)


def _motions(
    window: Window, estimate: WindowEstimate, T_local_window: Similarity
) -> list[tuple[View, Array, float]]:
    """Returns the new views of the first camera, whose motion is the rig's, with their poses
    [4, 4] in ``local`` and typical depths in the same unit; NaN: unknown."""
    fresh = range(len(window.views) - window.new, len(window.views))
    camera = window.views[fresh.start].camera
    found = []
    for index in (i for i in fresh if window.views[i].camera == camera):
        depth = estimate.depth[index]
        known = depth[np.isfinite(depth)]
        typical = float(np.median(known)) * T_local_window.scale if known.size else math.nan
        T_local_camera = T_local_window.pose(estimate.T_window_camera[index])
        found.append((window.views[index], T_local_camera, typical))
    return found


class OdomFrame:
    """The published frame ``odom``: keeps odometry continuous when lengths are corrected.

    A new scale moves every point, also the camera, in proportion to its distance from the origin
    of ``local``. Odometry takes the new scale for new motion only; ``T_odom_local`` is the
    difference, with ``local`` in published units.
    """

    def __init__(self) -> None:
        self.T_odom_local = np.eye(4)
        self._unit = 1.0  # published units per unit of odometry
        self._metric: bool | None = None  # None: no frame yet
        self._last = np.zeros(3)  # the last camera in ``local``

    def add(
        self, T_local_camera: Array, unit: float, *, metric: bool, is_reference: bool = True
    ) -> Array:
        """Returns ``T_odom_local`` [4, 4] at a frame, in published units.

        unit: published units per unit of odometry. When the scale becomes known or is lost, all
        lengths change their unit, and odometry starts anew. is_reference: whether the frame is of
        the first camera, whose motion is continuous.
        """
        if metric != self._metric:
            self.T_odom_local = np.eye(4)
        elif unit != self._unit:
            T = self.T_odom_local.copy()
            T[:3, 3] += (self._unit - unit) * T[:3, :3] @ self._last
            self.T_odom_local = T
        self._unit, self._metric = unit, metric
        if is_reference:
            self._last = T_local_camera[:3, 3]
        return self.T_odom_local

    def refined(self, before: Array, after: Array, unit: float) -> None:
        """Takes over that the last camera's pose [4, 4] in ``local`` was refined, with other
        published units per unit of odometry; odometry stays."""
        moved = scaled_pose(before, self._unit) @ invert_pose(scaled_pose(after, unit))
        self.T_odom_local = self.T_odom_local @ moved
        self._unit, self._last = unit, after[:3, 3]


def scaled_depth(depth: FloatImage, factor: float) -> FloatImage:
    """Returns depth [h, w] times ``factor``."""
    return depth if factor == 1.0 else depth * np.float32(factor)


def scaled_pose(T: Array, factor: float) -> Array:
    """Returns a rigid pose [4, 4] with its translation times ``factor``."""
    out = np.array(T)
    out[:3, 3] *= factor
    return out
