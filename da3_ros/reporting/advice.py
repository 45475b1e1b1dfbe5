"""What to do better next time: figures of a run beyond their limits, with a remedy each.

Every entry has a figure of this run; an unknown figure gives none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from da3_ros.reporting.html import number
from da3_ros.reporting.keyframes import ShownKeyframe
from da3_ros.reporting.run_files import Run
from da3_ros.types import Array

DIGITS = (3, 4, 6, 9)  # of a value: the fewest that show its difference from the limit
Figure = Callable[["Evidence"], float]  # NaN: unknown


@dataclass(frozen=True)
class Evidence:
    """What the figures are computed from."""

    run: Run
    keyframes: list[ShownKeyframe]

    def count(self, name: str) -> int:
        """Returns a count of report.json; with several cameras, those of all."""
        counts = self.run.report.mapping("counts")
        return sum(
            self.run.report.count("counts", key)
            for key in counts
            if key == name or (name.startswith("blind_") and key.startswith(f"{name}_"))
        )

    def column(self, name: str) -> Array:
        """Returns a column of all timelines."""
        found = [kept.timeline[name] for kept in self.run.scenes if kept.timeline is not None]
        return np.concatenate(found) if found else np.zeros(0)


@dataclass(frozen=True)
class Check:
    """A figure and its limit."""

    problem: str  # what it means to be beyond the limit
    figure: str  # its name
    value: Figure
    limit: float
    remedy: str
    page: str  # of docs/
    section: str  # heading of that page
    kind: str = "count"  # how it is written: count, share, number
    least: bool = False  # True: it must not be below the limit; False: not above

    def is_beyond(self, value: float) -> bool:
        """Whether a known value is beyond the limit."""
        return value < self.limit if self.least else value > self.limit

    def written(self, value: float, digits: int = 3) -> str:
        """Returns a value as text."""
        if self.kind == "share":
            return f"{number(100 * value, digits=digits)} %"
        return number(value if self.kind == "number" else round(value), digits=digits)


@dataclass(frozen=True)
class Advice:
    """A check whose figure is beyond its limit."""

    check: Check
    value: float

    @property
    def evidence(self) -> str:
        """Figure and limit in words."""
        check, side = self.check, "at least" if self.check.least else "at most"
        both = [(check.written(self.value, d), check.written(check.limit, d)) for d in DIGITS]
        value, limit = next((pair for pair in both if pair[0] != pair[1]), both[-1])
        return f"{check.figure}: {value} (limit: {side} {limit})"


@dataclass(frozen=True)
class Advices:
    """Results of all checks."""

    found: list[Advice]
    known: int  # checks whose figure is known
    unknown: list[str]  # names of the other figures

    @property
    def are_enough(self) -> bool:
        """Whether so many figures are known that none beyond its limit means that all is well."""
        return self.known > len(self.unknown)


def advices_of(evidence: Evidence) -> Advices:
    """Returns which figures of a run are beyond their limits."""
    values = [(check, check.value(evidence)) for check in CHECKS]
    known = [(check, value) for check, value in values if not math.isnan(value)]
    found = [Advice(check, value) for check, value in known if check.is_beyond(value)]
    return Advices(found, len(known), [c.figure for c, v in values if math.isnan(v)])


# Figures ---------------------------------------------------------------------------------------


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _counted(name: str) -> Figure:
    """Returns a count of report.json; unknown without that file."""
    return lambda e: e.count(name) if e.run.report else math.nan


def _blind(cause: str) -> Figure:
    return lambda e: _ratio(e.count(f"blind_{cause}"), e.count("processed"))


def _dropped(e: Evidence) -> float:
    counts = e.run.report.mapping("counts")
    names = [n for n in counts if n.startswith("dropped_")]
    return _ratio(sum(e.count(name) for name in names), e.count("received"))


def _longest_gap(e: Evidence) -> float:
    """Returns the longest time between two frames over the usual one."""
    gaps, frames = e.column("gap_s"), e.column("frames")
    spans = (e.column("last_ns") - e.column("first_ns")) / 1e9
    usual = [gaps[frames == 1], spans[frames > 1] / (frames[frames > 1] - 1)]
    steps = np.concatenate(usual)
    steps = steps[steps > 0]
    if len(steps) < 3 or gaps.max() < SHORTEST_GAP_S:
        return 1.0 if len(steps) else math.nan
    return float(gaps.max() / np.median(steps))


MOST_GAP = 5  # in times the usual time between two frames
SHORTEST_GAP_S = 0.5  # time between two frames that is no gap, however short it usually is


def _missing(e: Evidence) -> float:
    """Returns the share of frames that lack by the stamps: so many as fit into the time between
    two. Gaps that are long by ``_longest_gap`` are left to it."""
    missing = frames = 0.0
    for kept in e.run.scenes:
        rows = kept.timeline
        if rows is None or len(rows) < 4:
            continue
        steps = np.diff(rows["last_ns"]) / 1e9  # a step per frame, in bins of several
        each, count = steps / rows["frames"][1:], rows["frames"][1:]
        if (each > 0).any():
            usual, gaps = np.median(each[each > 0]), rows["gap_s"][1:]
            long = gaps > max(MOST_GAP * usual, SHORTEST_GAP_S)
            wanted = np.round(np.where(long, steps - gaps + usual, steps) / usual)
            missing += float(np.maximum(wanted - count, 0).sum())
            frames += float(count.sum())
    return _ratio(missing, missing + frames)


def _few_tracks(e: Evidence) -> float:
    few = e.count("windows_few_tracks")
    return _ratio(few, few + e.count("windows_refined"))


def _refused(e: Evidence) -> float:
    refused = e.count("windows_refused")
    held = min(refused, e.count("blind_refused"))  # windows of held frames are in no timeline
    windows = float(e.column("windows").sum())
    return _ratio(refused, windows + held) if e.run.report else math.nan


def _guessed_focal(e: Evidence) -> float:
    sources = e.run.report.value("refinement", "focal_source")
    if not isinstance(sources, dict) or not sources:
        return math.nan
    return sum(source not in ("camera_info", "corrected") for source in sources.values())


def _corrected_lenses(e: Evidence) -> float:
    sources = e.run.report.value("refinement", "focal_source")
    if not isinstance(sources, dict) or not sources:
        return math.nan
    return sum(source == "corrected" for source in sources.values())


def _focal_deviation(e: Evidence) -> float:
    ratio = e.column("focal_ratio")
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    return float(np.exp(abs(np.log(np.median(ratio)))) - 1) if len(ratio) else math.nan


def _without_metres(e: Evidence) -> float:
    placed = [kept for kept in e.run.scenes if kept.scene is not None]
    return sum(not kept.metric for kept in placed) if placed else math.nan


def _dense(name: str, of: str) -> Figure:
    """Returns a share of measured depth; unknown if there is nothing ``of`` which it is."""

    def share(e: Evidence) -> float:
        dense = e.run.report
        return dense.number("dense", name) if dense.count("dense", of) else math.nan

    return share


def _baseline(e: Evidence) -> float:
    known = [k.baseline for k in e.keyframes if math.isfinite(k.baseline)]
    return float(np.median(known)) if known else math.nan


def _unconnected(e: Evidence) -> float:
    scenes = [kept.scene for kept in e.run.scenes if kept.scene is not None]
    return sum(scene.unconnected for scene in scenes) if scenes else math.nan


def _is_tiny(e: Evidence) -> float:
    name = e.run.report.text("parameters", "model")
    return float(name == "da3-tiny") if name else math.nan


# Checks ----------------------------------------------------------------------------------------

BLIND = "alignment.md", "When a camera sees nothing"
DROPS = "troubleshooting.md", "Dropped images, by cause"
REFINING = "alignment.md", "Refining a window by feature tracks"
MEASURED = "map.md", "Measured depth"
SYMPTOMS = "troubleshooting.md", "By symptom"
MOST_BLIND = 0.01

CHECKS = (
    Check("The recording is damaged", "places where reading stopped early",
          lambda e: float(bool(e.run.report.text("stopped_at"))) if e.run.report else math.nan, 0,
          "Stop the recorder with Ctrl-C and wait until it ends; check the disk.",
          "recordings.md", "Process a recording"),
    Check("Images cannot be read", "images that cannot be read", _counted("bad_images"), 0,
          "Look at the reasons listed in report.json: encoding, size, data or stamps are wrong.",
          *DROPS),
    Check("Frames were dropped", "share of frames that were dropped", _dropped, 0,
          "Look up the causes below.", *DROPS, kind="share"),
    Check("Two cameras share one topic", "images with another frame_id",
          _counted("foreign_frames"), 0, "Give each camera a topic of its own.", *DROPS),
    Check("Frames are missing in the recording",
          "longest time between two frames, in times the usual one", _longest_gap, MOST_GAP,
          "Record on a faster disk, in compressed images, or at a lower rate that holds.",
          *SYMPTOMS, kind="number"),
    Check("Frames are missing now and then", "share of frames that are missing, by the stamps",
          _missing, 0.04,
          "Record on a faster disk, in compressed images, or at a lower rate that holds.",
          *SYMPTOMS, kind="share"),
    Check("Time jumps in the recording", "jumps of stamps", _counted("time_jumps"), 0,
          "Record one run at a time, with one clock.", *DROPS),
    Check("There are few frames", "frames", lambda e: e.count("processed") or math.nan, 8,
          "Record longer: depth needs at least a window of views.",
          "tuning.md", "Quality", least=True),
    # Not those with little detail (``suspect_blurred``), which plainer walls in view have too.
    Check("Images are blurred", "share of frames that are so blurred that they have no depth",
          _blind("blurred"), MOST_BLIND,
          "Move and turn slower, use more light, or a shorter exposure.", *BLIND, kind="share"),
    Check("Images are dark", "share of frames that are dark", _blind("dark"), MOST_BLIND,
          "Use more light or a longer exposure; look for a covered lens.", *BLIND, kind="share"),
    Check("Images are overexposed", "share of frames that are overexposed",
          _blind("overexposed"), MOST_BLIND, "Shorten the exposure, or switch it to automatic.",
          *BLIND, kind="share"),
    Check("Images are noise", "share of frames that are noise", _blind("noise"), MOST_BLIND,
          "Use more light, so that the camera lowers its gain.", *BLIND, kind="share"),
    Check("Images are frozen", "share of frames that repeat the one before", _blind("frozen"),
          MOST_BLIND, "Look at the driver of the camera: it sends the same image again.", *BLIND,
          kind="share"),
    Check("The camera was lost", "share of frames that fit nothing seen before", _blind("lost"),
          MOST_BLIND, "Move slower, and come back to what the camera has seen.", *BLIND,
          kind="share"),
    Check("The network was uncertain", "share of frames held as uncertain", _blind("uncertain"),
          MOST_BLIND, "Use a larger model; keep texture in view.", *BLIND, kind="share"),
    Check("Windows contradict the scene", "share of frames held as refused", _blind("refused"),
          MOST_BLIND, "Move slower, raise window.size, or give the robot's poses.",
          "alignment.md", "When a window is refused", kind="share"),
    Check("Windows do not fit the scene", "share of windows that were refused", _refused, 0.05,
          "Move slower, raise window.size, or give the robot's poses.",
          "alignment.md", "When a window is refused", kind="share"),
    Check("Walls are bare, or images have no detail", "share of windows with too few tracks",
          _few_tracks, 0.1, "Keep edges and texture in view: turn to the room, not to the wall.",
          *REFINING, kind="share"),
    Check("There are few tracks", "tracks of a refined window, in the mean",
          lambda e: e.run.report.number("refinement", "tracks"), 60,
          "Use larger images with detail, and less compression.", *REFINING, least=True),
    Check("Tracks do not fit one camera", "reprojection error of the tracks in the mean (px)",
          lambda e: e.run.report.number("refinement", "reprojection_px"), 1,
          "Calibrate the camera again; avoid a rolling shutter in fast motion; mask the robot.",
          *SYMPTOMS, kind="number"),
    Check("The focal length is a guess", "cameras without a usable camera_info", _guessed_focal, 0,
          "Calibrate the camera and publish its camera_info; beside the images of a folder, put "
          "camera_info.yaml.", *SYMPTOMS),
    Check("The camera_info does not fit the images",
          "cameras whose focal length or distortion was corrected by keyframes", _corrected_lenses,
          0, "Calibrate the camera again: `lenses` in report.json says how far it is off.",
          *SYMPTOMS),
    Check("The calibration may be wrong",
          "deviation of the network's focal length from the calibrated one", _focal_deviation, 0.3,
          "Check the camera_info: is it of this camera, at this resolution?", *SYMPTOMS,
          kind="share"),
    Check("The declared rig contradicts the images", "windows that contradict the rig",
          _counted("rig_contradicted"), 2, "Measure the poses of the cameras again.",
          "cameras.md", "Give the poses of the cameras"),
    Check("There are no metres", "scenes without a known scale", _without_metres, 0,
          "Choose a source of metres (scale.source) that the robot has.",
          "scale.md", "Choose a source"),
    Check("The scale is uncertain", "standard deviation of the scale",
          lambda e: e.run.report.number("scale", "sigma"), 0.05,
          "Give the source more motion, or choose a better one.", "scale.md", "Check it",
          kind="share"),
    Check("The robot's poses are missing for some frames", "share of frames without such a pose",
          lambda e: _ratio(e.count("frames_without_prior"), e.count("received")), 0.05,
          "Record odometry or TF as long as the images, with the same clock.",
          "scale.md", "Give the network the robot's poses", kind="share"),
    Check("The IMU is missing for some frames", "share of frames without its measurements",
          lambda e: _ratio(e.count("frames_without_imu"), e.count("received")), 0.05,
          "Record the IMU as fast as it measures, with the images' clock, and its transform.",
          "scale.md", "An IMU for rotation and what is up", kind="share"),
    Check("The IMU contradicts the camera", "windows with other rotations than the gyro's",
          _counted("gyro_contradicted"), 0,
          "Check the transform from the camera to the IMU, and imu.time_offset_s.",
          "scale.md", "An IMU for rotation and what is up"),
    Check("Views have little baseline",
          "distance between keyframes over their depth, in the median", _baseline, 0.02,
          "Move the camera sideways, do not only turn it.", *MEASURED, kind="number", least=True),
    Check("Little depth could be measured", "share of keyframes' pixels with measured depth",
          _dense("share_measured", "keyframes"), 0.25,
          "Look at things from several sides, with texture in view.", *MEASURED, kind="share",
          least=True),
    Check("Measured depth is not confirmed", "share of it that other keyframes confirm",
          _dense("agreement", "keyframes_measured"), 0.5,
          "Avoid blur and moving things; check the calibration.", *MEASURED, kind="share",
          least=True),
    Check("The scene is in pieces", "components whose pose is not known",
          _unconnected, 0, "Come back to what was seen before a gap: a loop connects the pieces.",
          "map_internals.md", "Components"),
    Check("Places look alike", "joins that later loops have undone",
          lambda e: e.run.report.number("loops", "joins_undone"), 0,
          "Give the robot's poses, or look at what differs between these places.",
          "alignment.md", "Places that look alike"),
    Check("Keyframes could not be stored", "keyframes that are not stored",
          _counted("keyframes_not_stored"), 0, "Free the disk, or raise map.disk_gb.",
          "keyframes.md", "Store them live"),
    Check("Motion was lost when the images changed their size",
          "times that a pose was held", _counted("poses_held"), 0, "Record with one image size.",
          *SYMPTOMS),
    Check("The network is the small one for trying", "networks that are only for trying",
          _is_tiny, 0,
          "Use an official model on real cameras: da3-tiny knows rendered rooms only.",
          "models.md", "What each gives"),
)  # fmt: skip
