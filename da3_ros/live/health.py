"""Health of a running stream: times of its stages, recent faults, and the diagnostics level.

Plain numbers and texts; no ROS messages, no middleware.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from da3_ros.sensors.stamp_check import FUTURE_S, PAST_S

KEPT = 100  # times per stage
RECENT_S = 10.0  # time for which a fault counts as recent
STALE_S = 5.0  # longest normal time without images, or without results while images arrive
OK, WARN, ERROR = 0, 1, 2
# Drops of a healthy stream: the network is slower than the camera, or the user asked for them.
EXPECTED = ("busy", "paused", "cleared", "too_old", "late", "stray", "other_size", "time_jump")


class Stages:
    """The newest durations of each processing stage, seconds."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def add(self, stage: str, seconds: float) -> None:
        """Add a duration of a stage."""
        self._times[stage].append(seconds)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Context manager that measures a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    def summary(self) -> dict[str, float]:
        """Returns ``STAGE_median_s`` and ``STAGE_p95_s`` of each measured stage."""
        out: dict[str, float] = {}
        for stage, times in list(self._times.items()):
            out[f"{stage}_median_s"], out[f"{stage}_p95_s"] = median_and_p95(list(times))
        return out


class Events:
    """Times of the newest events of one kind, on two clocks.

    The steady clock tells whether events still occur, since it continues when a simulator stops.
    The ROS clock gives their rate and age, as for stamps.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._ros_ns: deque[int] = deque(maxlen=kept)
        self._first_s = self._last_s = -math.inf  # steady

    def add(self, ros_ns: int, now_s: float | None = None) -> None:
        """Record an event at ``ros_ns`` of the ROS clock and ``now_s`` steady seconds."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._ros_ns and ros_ns < self._ros_ns[-1]:
            self._ros_ns.clear()  # a bag or a simulator has restarted
        self._ros_ns.append(ros_ns)
        self._first_s = now_s if self._first_s == -math.inf else self._first_s
        self._last_s = now_s

    def silent_s(self, now_s: float | None = None) -> float | None:
        """Returns the steady seconds since the newest event; None if there was none."""
        return self._since(self._last_s, now_s)

    def since_first_s(self, now_s: float | None = None) -> float | None:
        """Returns the steady seconds since the first event ever; None if there was none."""
        return self._since(self._first_s, now_s)

    def rate_hz(self, now_s: float | None = None) -> float:
        """Returns the events per second of ROS time; 0 if they stopped or the clock stands."""
        silent, held = self.silent_s(now_s), list(self._ros_ns)
        if silent is None or silent > STALE_S or len(held) < 2 or held[-1] == held[0]:
            return 0.0
        return (len(held) - 1) * 1e9 / (held[-1] - held[0])

    def age_s(self, ros_ns: int) -> float:
        """Returns the seconds of the ROS clock since the newest event; NaN if there was none."""
        return max(0, ros_ns - self._ros_ns[-1]) / 1e9 if self._ros_ns else math.nan

    @staticmethod
    def _since(then_s: float, now_s: float | None) -> float | None:
        now_s = time.monotonic() if now_s is None else now_s
        return None if then_s == -math.inf else now_s - then_s


def median_and_p95(values: list[float]) -> tuple[float, float]:
    """Returns median and 95th percentile; NaN for an empty list."""
    if not values:
        return float("nan"), float("nan")
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle, ordered[min(count - 1, int(0.95 * count))]


class Growth:
    """Finds counters that grew within the last ``RECENT_S`` seconds."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._grown_at: dict[str, float] = {}

    def update(self, counts: Mapping[str, int], now_s: float) -> list[str]:
        """Record the current counts; returns the names of counters that grew recently."""
        for name, count in counts.items():
            if count > self._last.get(name, 0):
                self._grown_at[name] = now_s
            self._last[name] = count
        return sorted(n for n, t in self._grown_at.items() if now_s - t <= RECENT_S)


@dataclass(frozen=True)
class Facts:
    """Input of ``assess``."""

    state: str  # lifecycle state
    configured: bool = True
    enabled: bool = True
    last_error: str = ""
    failure: str = ""  # why the last transition failed
    input_age_s: float | None = None  # since the newest image; None: no image yet
    output_age_s: float | None = None  # since the newest result, else since the first image
    growing: tuple[str, ...] = ()  # causes of drops
    blind: tuple[str, ...] = ()  # why cameras recently showed nothing, with their names
    refused: bool = False  # True if windows recently failed to align with the scene
    unrefined: bool = False  # True if the refinement of windows recently failed
    unpublished: bool = False  # True if publishing of frames recently failed
    degraded: tuple[str, ...] = ()  # reductions by the memory budget
    scale: str = ""  # fault of the scale; empty if there is none
    stamp_age_s: float = math.nan  # newest image's age on arrival, by the node's clock
    map_fault: str = ""  # why no pose can be found in a read-only map; empty if it can
    silent: tuple[str, ...] = ()  # image topics without images, while others have some
    conflicts: tuple[str, ...] = ()  # other nodes that disturb this one


def assess(facts: Facts) -> tuple[int, str]:
    """Returns the level (OK, WARN, ERROR) and one line with all faults, errors first."""
    if not facts.configured:
        if facts.failure:
            return ERROR, facts.failure
        return (WARN, "; ".join(facts.conflicts)) if facts.conflicts else (OK, facts.state)
    errors, warnings = list(_errors(facts)), list(_warnings(facts))
    level = ERROR if errors else WARN if warnings else OK
    return level, "; ".join(errors + warnings) or facts.state


def _errors(facts: Facts) -> Iterator[str]:
    if facts.failure:
        yield facts.failure
    if facts.state != "active":
        return
    bad = [cause for cause in facts.growing if cause in ("failed", "out_of_memory", "unusable")]
    if bad:
        yield f"windows are lost ({', '.join(bad)}): {facts.last_error}"
    elif facts.enabled and _images_arrive(facts) and (facts.output_age_s or 0.0) > 2 * STALE_S:
        yield f"images arrive, but there has been no result for {facts.output_age_s:.0f} s"
    if facts.unpublished:
        yield f"frames are not published: {facts.last_error}"


def _warnings(facts: Facts) -> Iterator[str]:
    unusable = set(facts.growing) & {"bad_image", "bad_stamp"}
    if facts.state == "active" and not _images_arrive(facts) and not unusable:
        yield "no images arrive"
    elif facts.state == "active" and facts.silent:
        yield f"no images arrive on {', '.join(facts.silent)}"
    elif facts.state == "active" and _is_implausible(facts.stamp_age_s):
        side = "ahead of" if facts.stamp_age_s < 0 else "behind"
        yield (
            f"image stamps are {abs(facts.stamp_age_s):.3g} s {side} the node's clock "
            "(check use_sim_time and /clock, or the clocks of both machines)"
        )
    if not facts.enabled:
        yield "paused by ~/enable"
    quiet = (*EXPECTED, "failed", "out_of_memory", "unusable")
    causes = [cause for cause in facts.growing if cause not in quiet]
    if causes:
        yield f"images are lost ({', '.join(causes)})"
    if facts.blind:
        blind = ", ".join(facts.blind)
        yield f"images show nothing ({blind}): their poses are held, without depth"
    if "bad_stamp" in causes:
        yield "image stamps are wrong (0, standing still, or single jumps): see the log"
    if facts.refused:
        yield "windows cannot be aligned with the scene"
    if facts.unrefined:
        yield "the refinement of windows fails: see the log, or set refinement.enabled to false"
    if facts.degraded:
        yield f"memory is short: {', '.join(facts.degraded)}"
    yield from facts.conflicts
    if facts.map_fault:
        yield facts.map_fault
    if facts.scale:
        yield facts.scale


def _is_implausible(stamp_age_s: float) -> bool:
    return stamp_age_s > PAST_S or stamp_age_s < -FUTURE_S


def _images_arrive(facts: Facts) -> bool:
    return facts.input_age_s is not None and facts.input_age_s <= STALE_S
