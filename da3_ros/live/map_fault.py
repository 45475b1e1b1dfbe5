"""Why a camera cannot be localized in a read-only map."""

from __future__ import annotations

from da3_ros.pipeline.pipeline import Pipeline

REMEDY = "load one (map.load, ~/load_scene), or set mode to mapping"


def map_fault(pipeline: Pipeline) -> str:
    """Returns why no pose can be found in a read-only map, and the remedy; empty if it can."""
    if not pipeline.map.table.read_only:
        return ""
    if not pipeline.map.submaps:
        return f"mode is localization, but there is no map: {REMEDY}"
    if not pipeline.loops.recognises_map:
        return (
            "mode is localization, but the map has no keyframes that recognise its locations: "
            f"poses are those of odometry; {REMEDY}"
        )
    return ""
