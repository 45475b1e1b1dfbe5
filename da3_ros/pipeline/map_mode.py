"""Switches between a map that grows and one that is read-only (the parameter ``mode``)."""

from __future__ import annotations

import logging

from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.metric_scale import MapScale
from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.submaps import SubmapStore

log = logging.getLogger(__name__)


def set_read_only(on: bool, submaps: SubmapStore, loops: LoopClosure, scale: MapScale) -> None:
    """Makes the map read-only, or lets it grow again, for new frames."""
    if on == (submaps.localized is not None):
        return
    scale.fix(on)
    if on:
        _begin(submaps, loops)
        return
    connected = loops.end_localization()
    submaps.localize(False)
    if submaps.place_known and not connected and submaps.submaps:
        submaps.begin_part()  # what is mapped from now on has no measured place in the map


def _begin(submaps: SubmapStore, loops: LoopClosure) -> None:
    if not submaps.place_known:  # a guessed place would become part of the map
        submaps.begin_part()
        loops.start_segment(lost=False)
    submaps.localize(True)
    known = frozenset(s.id for s in submaps.submaps.values() if s.part == REFERENCE)
    if not loops.localize(submaps.next_id, known) and len(submaps.table.path):
        log.warning(
            "mode is localization, but the map has no keyframes that recognise its places: poses "
            "are those of odometry"
        )
