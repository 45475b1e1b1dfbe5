"""Health of a running stream: recent faults, and the diagnostics level.

Plain numbers and texts; no ROS messages, no middleware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from da3_ros.live.metrics import STALE_S
from da3_ros.sensors.stamp_check import FUTURE_S, PAST_S

OK, WARN, ERROR = 0, 1, 2
# Drops of a healthy stream: the network is slower than the camera, or the user asked for them.
EXPECTED = ("busy", "paused", "cleared", "too_old", "late", "stray", "other_size", "time_jump")


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
