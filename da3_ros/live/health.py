"""How a running stream is: times of its stages, what went wrong of late, and what that means.

Plain numbers and texts; knows no messages and no middleware.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

KEPT = 100  # times per stage
RECENT_S = 10.0  # how long something counts as going wrong now
STALE_S = 5.0  # without images, or without results while images come
PAST_S, FUTURE_S = 5.0, 1.0  # how far stamps may lie from the clock when an image comes
OK, WARN, ERROR = 0, 1, 2
# Drops that a working stream has: a network slower than the camera, and what was asked for.
EXPECTED = ("busy", "paused", "cleared", "too_old", "late", "stray", "other_size", "time_jump")


class Stages:
    """The newest times of each stage of a frame's way, seconds."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def add(self, stage: str, seconds: float) -> None:
        """One time of a stage."""
        self._times[stage].append(seconds)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Measures what happens inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    def summary(self) -> dict[str, float]:
        """``STAGE_median_s`` and ``STAGE_p95_s`` of each stage that has happened."""
        out: dict[str, float] = {}
        for stage, times in list(self._times.items()):
            out[f"{stage}_median_s"], out[f"{stage}_p95_s"] = median_and_p95(list(times))
        return out


class Events:
    """When something happened of late, on two clocks.

    Whether it still happens is told by the steady clock, which goes on when a simulator stops; how
    often and how long ago by the ROS clock, as the stamps.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._ros_ns: deque[int] = deque(maxlen=kept)
        self._first_s = self._last_s = -math.inf  # steady

    def add(self, ros_ns: int, now_s: float | None = None) -> None:
        """It happened now: ``ros_ns`` of the ROS clock, ``now_s`` steady seconds."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._ros_ns and ros_ns < self._ros_ns[-1]:
            self._ros_ns.clear()  # a bag or a simulator has begun again
        self._ros_ns.append(ros_ns)
        self._first_s = now_s if self._first_s == -math.inf else self._first_s
        self._last_s = now_s

    def silent_s(self, now_s: float | None = None) -> float | None:
        """Steady seconds since the newest; None if it never happened."""
        return self._since(self._last_s, now_s)

    def since_first_s(self, now_s: float | None = None) -> float | None:
        """Steady seconds since the very first; None if it never happened."""
        return self._since(self._first_s, now_s)

    def rate_hz(self, now_s: float | None = None) -> float:
        """How often per second of the ROS clock; 0 where it has stopped or no clock has come."""
        silent, held = self.silent_s(now_s), list(self._ros_ns)
        if silent is None or silent > STALE_S or len(held) < 2 or held[-1] == held[0]:
            return 0.0
        return (len(held) - 1) * 1e9 / (held[-1] - held[0])

    def age_s(self, ros_ns: int) -> float:
        """Seconds of the ROS clock since the newest; NaN if it never happened."""
        return max(0, ros_ns - self._ros_ns[-1]) / 1e9 if self._ros_ns else math.nan

    @staticmethod
    def _since(then_s: float, now_s: float | None) -> float | None:
        now_s = time.monotonic() if now_s is None else now_s
        return None if then_s == -math.inf else now_s - then_s


def median_and_p95(values: list[float]) -> tuple[float, float]:
    """Of any numbers; NaN of none."""
    if not values:
        return float("nan"), float("nan")
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle, ordered[min(count - 1, int(0.95 * count))]


class Growth:
    """Which of some counters grew within the last ``RECENT_S``."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._grown_at: dict[str, float] = {}

    def update(self, counts: Mapping[str, int], now_s: float) -> list[str]:
        """Take the counters as they are now; returns the names of those that grew of late."""
        for name, count in counts.items():
            if count > self._last.get(name, 0):
                self._grown_at[name] = now_s
            self._last[name] = count
        return sorted(n for n, t in self._grown_at.items() if now_s - t <= RECENT_S)


@dataclass(frozen=True)
class Facts:
    """What a judgement needs to know."""

    state: str  # of the lifecycle
    configured: bool = True
    enabled: bool = True
    last_error: str = ""
    failure: str = ""  # why the last transition did not come about
    input_age_s: float | None = None  # since the newest image; None: none has come
    output_age_s: float | None = None  # since the newest result, or since images come without one
    growing: tuple[str, ...] = ()  # causes of drops
    refused: bool = False  # windows that did not fit the scene, of late
    unpublished: bool = False  # frames that did not all go out, of late
    degraded: tuple[str, ...] = ()
    scale: str = ""  # what is wrong with the scale
    stamp_age_s: float = math.nan  # of the newest image when it came, by the node's clock
    silent: tuple[str, ...] = ()  # image topics of some cameras, while others' images come


def judge(facts: Facts) -> tuple[int, str]:
    """Level (OK, WARN, ERROR) and one line: the worst first, then all else that is wrong."""
    if not facts.configured:
        return (ERROR, facts.failure) if facts.failure else (OK, facts.state)
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
    elif facts.enabled and _flows(facts) and (facts.output_age_s or 0.0) > 2 * STALE_S:
        yield f"images arrive, but nothing has come out for {facts.output_age_s:.0f} s"
    if facts.unpublished:
        yield f"frames are not published: {facts.last_error}"


def _warnings(facts: Facts) -> Iterator[str]:
    if facts.state == "active" and not _flows(facts):
        yield "no images arrive"
    elif facts.state == "active" and facts.silent:
        yield f"no images arrive on {', '.join(facts.silent)}"
    elif facts.state == "active" and _astray(facts.stamp_age_s):
        side = "ahead of" if facts.stamp_age_s < 0 else "behind"
        yield (
            f"image stamps are {abs(facts.stamp_age_s):.3g} s {side} the node's clock "
            "(use_sim_time and /clock? two machines' clocks?)"
        )
    if not facts.enabled:
        yield "paused by ~/enable"
    quiet = (*EXPECTED, "failed", "out_of_memory", "unusable")
    causes = [cause for cause in facts.growing if cause not in quiet]
    if causes:
        yield f"images are lost ({', '.join(causes)})"
    if facts.refused:
        yield "windows do not fit the scene"
    if facts.degraded:
        yield f"memory is short: {', '.join(facts.degraded)}"
    if facts.scale:
        yield facts.scale


def _astray(stamp_age_s: float) -> bool:
    return stamp_age_s > PAST_S or stamp_age_s < -FUTURE_S


def _flows(facts: Facts) -> bool:
    return facts.input_age_s is not None and facts.input_age_s <= STALE_S
