"""Switches between a map that grows and one that is read-only (the parameter ``mode``)."""

from __future__ import annotations

from da3_ros.mapping.metric_scale import SceneScale
from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.submaps import SubmapStore
from da3_ros.pipeline.loop_scheduler import LoopScheduler


def set_read_only(on: bool, submaps: SubmapStore, loops: LoopScheduler, scale: SceneScale) -> None:
    """Makes the map read-only, or lets it grow again, for new frames."""
    if on == (submaps.localized is not None):
        return
    if on and not submaps.place_known:  # a guessed place would become part of the map
        submaps.begin_part()
        loops.start_segment(lost=False)
    submaps.localize(on)
    scale.fix(on)
    known = frozenset(s.id for s in submaps.submaps.values() if s.part == REFERENCE)
    loops.localize(submaps.next_id if on else 0, known if on else None)
