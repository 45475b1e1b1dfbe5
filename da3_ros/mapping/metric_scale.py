"""What a unit of the scene is in metres: measures from one declared source, and a steady answer.

The scene keeps one unit, that of its first window, so that nothing in it ever tears; metres are
made of it at the moment of publication. docs/scale.md says which source is good when. Knows poses
and numbers; no network, no ROS.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque

import numpy as np

from da3_ros.config import ScaleConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import SegmentFrame
from da3_ros.types import Array, FloatImage, Prediction, Scale, ScaleMeasurement, Window

PARALLAX = 0.05  # way over depth that makes a stretch: less is lost in the network's own noise
STANDING_M = 0.01  # odometry that says less than this says that the robot stands
SIDEWAYS = 0.8  # cosine between both directions of motion, below which one of them is wrong
STRETCHES = 40  # the sliding baseline
FEWEST_STRETCHES = 5  # fewer have no spread to judge by
MEASURES = 15
FEWEST_MEASURES = 3  # so that one bad answer never decides
OUTLIER = 3.0  # robust standard deviations
AGREEMENT = 0.03  # relative difference that is never called an outlier
FLOOR = 0.003  # relative; below it the joins of windows decide, not the measures
KNOWN = 0.15  # a larger relative standard deviation is not yet knowledge


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Metres per segment unit."""

    log: float  # natural logarithm of the value
    sigma: float  # its standard deviation, which is the value's relative one


class OdometryRatio:
    """Ratio of travelled ways: the robot's odometry over the segment's camera, stretch by stretch.

    A stretch ends when the segment's camera has moved by a share of the depth before it. So
    standing still makes none, and wheels that spin on the spot make one, which the others outvote.
    """

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=STRETCHES)
        self._ways: deque[tuple[float, float]] = deque(maxlen=STRETCHES)
        self.lift()

    def lift(self) -> None:
        """The stretch under way is not to be trusted: start a new one with the next frame."""
        self._start: tuple[Array, Array] | None = None

    def add(self, T_segment_camera: Array, T_prior_camera: Array | None, depth: float) -> None:
        """One frame: its camera in the segment, by odometry (metres), and its depth."""
        if T_prior_camera is None or not np.isfinite(T_prior_camera).all() or not depth > 0:
            self.lift()
            return
        here = (T_segment_camera, T_prior_camera)
        if self._start is None:
            self._start = here
            return
        ours, theirs = (_motion(a, b) for a, b in zip(self._start, here, strict=True))
        way, way_m = float(np.linalg.norm(ours)), float(np.linalg.norm(theirs))
        if way < PARALLAX * depth:
            return
        self._start = here
        if way_m > STANDING_M and ours @ theirs > SIDEWAYS * way * way_m:
            self._logs.append(math.log(way_m / way))
            self._ways.append((way_m, way))

    def estimate(self) -> Estimate | None:
        """From all stretches that agree; None while they are too few."""
        if len(self._logs) < FEWEST_STRETCHES:
            return None
        logs = np.array(self._logs)
        good = _agreeing(logs)
        count = int(good.sum())
        if count < FEWEST_STRETCHES or 2 * count < len(logs):
            return None
        newest, sigma = _newest_that_count(logs[good], 0.0, FEWEST_STRETCHES)
        way_m, way = np.array(self._ways)[good][-newest:].sum(axis=0)
        return Estimate(math.log(way_m / way), sigma)


class MeasureFilter:
    """Mean of the last measures that came with windows and agree: of a model, a rig, odometry."""

    def __init__(self) -> None:
        self._measures: deque[Estimate] = deque(maxlen=MEASURES)

    def __len__(self) -> int:
        return len(self._measures)

    def add(self, measure: ScaleMeasurement, unit: float) -> None:
        """One window's measure, metres per network unit, and segment units per network unit."""
        value = measure.value / unit
        if math.isfinite(value) and value > 0 and math.isfinite(measure.sigma):
            self._measures.append(Estimate(math.log(value), measure.sigma))

    def estimate(self) -> Estimate | None:
        """None while they are too few."""
        if len(self) < FEWEST_MEASURES:
            return None
        logs = np.array([m.log for m in self._measures])
        good = logs[_agreeing(logs)]
        own = float(np.median([m.sigma for m in self._measures]))
        newest, sigma = _newest_that_count(good, own, FEWEST_MEASURES)
        return Estimate(float(good[-newest:].mean()), sigma)


class ScaleFilter:
    """The scale of one stretch of odometry, window by window.

    Before the source knows enough the answer is ``Scale()``, which is not metric. From then on it
    follows the source by at most ``scale.max_step`` per window, and is held where nothing comes.
    """

    def __init__(self, config: ScaleConfig) -> None:
        self.config = config
        self.restart(declared=True)

    def restart(self, *, declared: bool) -> None:
        """A new stretch has a unit of its own, of which nothing is known.

        declared: it begins with the window that ``scale.factor`` was given for.
        """
        self._declared = declared
        self._ratio = OdometryRatio()
        self._filter = MeasureFilter()
        self._value: float | None = None
        self._sigma = math.nan

    @property
    def learns(self) -> bool:
        """Whether the scale is found out on the way, rather than declared."""
        return self.config.source not in ("none", "fixed")

    @property
    def declared(self) -> bool:
        """Whether a fixed factor holds for this stretch: it was given for its first window."""
        return self.config.source == "fixed" and self._declared

    def wants_measure(self, window_id: int) -> bool:
        """Whether a metric model shall look: at the first windows, then now and then."""
        if self.config.source != "metric_model":
            return False
        return len(self._filter) < FEWEST_MEASURES or window_id % self.config.metric_every == 0

    def add_measure(self, measure: ScaleMeasurement, unit: float) -> None:
        """A window's measure; ``unit`` is segment units per network unit."""
        self._filter.add(measure, unit)

    def add_motion(
        self, T_segment_camera: Array, T_prior_camera: Array | None, depth: float
    ) -> None:
        """A frame of a window that fits its segment."""
        self._ratio.add(T_segment_camera, T_prior_camera, depth)

    def lift(self) -> None:
        """A window did not fit: what the camera did in it is not known."""
        self._ratio.lift()

    def update(self) -> Scale:
        """The scale to publish with the window at hand; call once per window."""
        source = self.config.source
        if not self.learns:
            return Scale(source, 1.0) if self.declared else Scale()
        # Odometry speaks twice where the network was given its poses: the surer answer counts.
        said = [self._filter.estimate()]
        if source == "odometry":
            said.append(self._ratio.estimate())
        self._follow(min(filter(None, said), key=lambda e: e.sigma, default=None))
        return Scale() if self._value is None else Scale(source, self._value, self._sigma)

    def _follow(self, target: Estimate | None) -> None:
        if target is None or (self._value is None and target.sigma > KNOWN):
            return
        if self._value is None:
            self._value, self._sigma = math.exp(target.log), target.sigma
            return
        away = target.log - math.log(self._value)
        most = math.log1p(self.config.max_step)
        step = min(max(away, -most), most)
        self._value *= math.exp(step)
        # What is still to go is an error that is known of.
        self._sigma = math.hypot(target.sigma, away - step)


class SceneScale:
    """Brings the segments of a scene to one unit, and tells that unit in metres.

    A segment of odometry has a unit of its own, that of its first window. The first segment's is
    the scene's. A later one finds its place in the scene when its scale is known; until then its
    frames are not metric and have no place in the scene's map. All segments beside each other, in
    the scene's unit, are the frame ``vo``; loops, which correct it, are none of this class.
    """

    def __init__(self, config: ScaleConfig) -> None:
        self._keeper = ScaleFilter(config)
        self.forget()

    def forget(self) -> None:
        """Begin a new scene; a fixed factor is for its first window."""
        self._scene: float | None = None  # metres per scene unit, once known
        self._begun = False
        self.to_origin()
        self.restart(np.eye(4))

    def resume(self, metric: bool) -> None:
        """Begin in a scene that was saved: in metres, or in an unknown unit."""
        self.forget()
        self._scene = 1.0 if metric else None

    def to_origin(self) -> None:
        """The next segment begins where the scene does, wherever the last one ended."""
        self._continuity = OdomCorrection()
        self._factor = 1.0  # scene units per unit of the segment
        self._from, self._to = np.zeros(3), np.zeros(3)  # one point, in the segment and in vo

    def restart(self, T_segment_camera: Array) -> None:
        """A new segment begins at this pose of the last one, with an unknown unit."""
        begin = T_segment_camera[:3, 3]
        self._to = self._place(begin)
        self._from, self._factor = begin.copy(), 1.0
        self.scale = Scale()  # of the newest window; metres per unit of its segment
        self._keeper.restart(declared=not self._begun)

    @property
    def learns(self) -> bool:
        """Whether the scale is found out on the way, rather than declared."""
        return self._keeper.learns

    @property
    def declared(self) -> bool:
        """Whether a fixed factor holds for the segment at hand."""
        return self._keeper.declared

    @property
    def known(self) -> bool:
        """Whether the scene can be told in metres."""
        return self._scene is not None

    @property
    def metres(self) -> float:
        """Metres per unit of the scene; 1 where that is not known."""
        return 1.0 if self._scene is None else self._scene

    @property
    def unit(self) -> float:
        """Scene units per unit of the segment."""
        return self._factor

    def wants_measure(self, window_id: int) -> bool:
        """Whether a metric model shall look at this window."""
        return self._keeper.wants_measure(window_id)

    def unit_of(self, prediction: Prediction) -> tuple[float, float] | None:
        """Segment units per network unit, and how sure (relative), where a window was measured.

        Both what a window says of itself and what is known of the segment are uncertain; joined
        to all that the shared frames say, this keeps the unit of a long segment from wandering.
        """
        said, known = prediction.measure, self.scale
        if said is None or not known.metric or not self.learns:
            return None
        value, sigma = said.value / known.value, math.hypot(said.sigma, known.sigma)
        return (value, sigma) if value > 0 and math.isfinite(value + sigma) else None

    def update(
        self, window: Window, prediction: Prediction, T_segment_window: Similarity | None
    ) -> Scale:
        """The scale of a window that was placed in its segment; None: it did not fit."""
        self._begun = True
        if T_segment_window is None:
            self._keeper.lift()
        else:
            self._hear(window, prediction, T_segment_window)
        before, self.scale = self.scale, self._keeper.update()
        if self.scale.metric:
            if self._scene is not None and not before.metric:
                self._factor = self.scale.value / self._scene
            self._scene = self.scale.value / self._factor
        return self.scale

    @property
    def T_vo_segment(self) -> Similarity:
        """Where the segment lies among the others, and in which unit."""
        return Similarity(self._factor, np.eye(3), self._place(np.zeros(3)))

    def has_place(self, frame: SegmentFrame) -> bool:
        """Whether the frame's segment can be told in the scene's unit."""
        return self._scene is None or frame.scale.metric

    def T_vo_camera(self, frame: SegmentFrame) -> Array:
        """A frame's pose [4, 4] in scene units; without a place, as it is in its segment."""
        T = frame.T_segment_camera.copy()
        if self.has_place(frame):
            T[:3, 3] = self._place(T[:3, 3])
        return T

    def scene_depth(self, frame: SegmentFrame) -> FloatImage:
        """A frame's depth [h, w] in scene units; without a place, as it is in its segment."""
        return scaled_depth(frame.depth, self._factor) if self.has_place(frame) else frame.depth

    def T_odom_vo(self, T_vo_camera: Array, *, metric: bool, leads: bool) -> Array:
        """[4, 4] what keeps odometry continuous at a frame that goes out now; see OdomCorrection.

        Call once per frame.
        """
        return self._continuity.add(T_vo_camera, self.metres if metric else None, leads)

    def _hear(self, window: Window, prediction: Prediction, T_segment_window: Similarity) -> None:
        """Hand on what a window says of its own scale."""
        unit = T_segment_window.scale
        if prediction.measure is not None:
            self._keeper.add_measure(prediction.measure, unit)
        fresh = range(len(window.views) - window.new, len(window.views))
        camera = window.views[fresh.start].camera  # of several one says how the rig moved
        for index in (i for i in fresh if window.views[i].camera == camera):
            depth = prediction.depth[index]
            known = depth[np.isfinite(depth)]
            typical = float(np.median(known)) * unit if known.size else math.nan
            T_segment_camera = T_segment_window.pose(prediction.T_window_camera[index])
            self._keeper.add_motion(T_segment_camera, window.views[index].T_prior_camera, typical)

    def _place(self, x: Array) -> Array:
        """A point [3] of the segment in vo."""
        return np.asarray(self._factor * (x - self._from) + self._to)


class OdomCorrection:
    """Keeps odometry continuous while the scale is corrected.

    A new scale moves every point of the map in proportion to its distance from the origin, the
    camera too. Odometry takes the new scale for new motion only; the difference is a transform
    between the frame ``vo``, in metres, and ``odom``.
    """

    def __init__(self) -> None:
        self.T_odom_vo = np.eye(4)
        self._metres: float | None = None
        self._last = np.zeros(3)  # the last camera, scene units

    def add(self, T_vo_camera: Array, metres: float | None, leads: bool = True) -> Array:
        """``T_odom_vo`` [4, 4] of this frame, in metres; ``metres`` per scene unit or None.

        When metres become known, or are lost, all lengths change their unit: odometry begins anew.
        Of several cameras it is the motion of the one that ``leads`` that goes on without a jump.
        """
        if metres is None or self._metres is None:
            self.T_odom_vo = np.eye(4)
        elif metres != self._metres:
            T = self.T_odom_vo.copy()
            T[:3, 3] += (self._metres - metres) * self._last
            self.T_odom_vo = T
        self._metres = metres
        if leads:
            self._last = T_vo_camera[:3, 3]
        return self.T_odom_vo


def scaled_depth(depth: FloatImage, factor: float) -> FloatImage:
    """Depth [h, w] times ``factor``."""
    return depth if factor == 1.0 else depth * np.float32(factor)


def scaled_pose(T: Array, factor: float) -> Array:
    """A rigid pose [4, 4] with its translation times ``factor``."""
    out = np.array(T)
    out[:3, 3] *= factor
    return out


def _motion(T_start: Array, T_end: Array) -> Array:
    """Translation [3] from start to end in the axes of the camera at the start."""
    return np.asarray(T_start[:3, :3].T @ (T_end[:3, 3] - T_start[:3, 3]))


def _agreeing(logs: Array) -> Array:
    """Mask [M] of the logarithms near their median."""
    away = np.abs(logs - np.median(logs))
    return np.asarray(away <= max(OUTLIER * 1.4826 * float(np.median(away)), AGREEMENT))


def _newest_that_count(logs: Array, own: float, fewest: int) -> tuple[int, float]:
    """How many of the newest measures [M] make the surest mean, and its standard deviation.

    More of them average noise out, but are older, and the scene has drifted since. ``own``: what
    a measure says of its own standard deviation. What measures do not disagree about although
    they might, windows have in common (the same motions, the same views): it does not average out.
    """
    count = len(logs)
    noise, drift = _noise_and_drift(logs)
    newest = min(max(round(math.sqrt(3 * noise / drift)), fewest), count) if drift else count
    # Student's t: a noise that was itself measured by few is worth less.
    few = (count - 1) / max(count - 3, 0.7)
    by_chance = 1 + 2 / math.sqrt(count)  # how much larger the noise may really be
    common = max(own**2 - noise * by_chance, 0.0)
    variance = common + few * noise / newest + drift * newest / 3
    return newest, math.hypot(math.sqrt(variance), FLOOR)


def _noise_and_drift(logs: Array) -> tuple[float, float]:
    """Variances of the noise of measures [M], and of the drift from each to the next.

    A random walk with steps of variance d adds d / 2 to half the mean square of what neighbours
    differ by, and (M + 1) / 6 d to the variance of all.
    """
    spread = float(np.var(logs, ddof=1))
    near = float(np.mean(np.square(np.diff(logs)))) / 2
    if len(logs) < 4:
        return max(near, spread), 0.0
    drift = max(0.0, 6 * (spread - near) / (len(logs) - 2))
    return max(near - drift / 2, 0.0), drift
