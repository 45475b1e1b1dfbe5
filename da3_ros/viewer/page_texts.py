"""Texts of the page, as HTML; all values that came from outside are escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

# Label and unit of the values that the page's table begins with, by their names in /diagnostics.
ROWS: dict[str, tuple[str, str]] = {
    "state": ("State", ""),
    "health": ("Health", ""),
    "model": ("Model", ""),
    "device": ("Device", ""),
    "input_hz": ("Images received", "per second"),
    "output_hz": ("Frames published", "per second"),
    "latency_median_s": ("Latency, median", "s"),
    "latency_p95_s": ("Latency, 95 %", "s"),
    "memory_peak_gb": ("Device memory, peak", "GiB"),
    "memory_budget_gb": ("Device memory, budget", "GiB"),
    "scale_source": ("Scale from", ""),
    "scale": ("Scale", "m per unit"),
    "scale_sigma": ("Scale, relative deviation", ""),
    "map_points": ("Points in the map", ""),
    "map_memory_mb": ("Memory of the map", "MiB"),
    "frames_processed": ("Frames processed", ""),
    "keyframes": ("Keyframes", ""),
    "dense_keyframes": ("Keyframes with measured depth", ""),
    "dense_share": ("Measured depth of keyframes", "share of pixels"),
    "tracks": ("Feature tracks", ""),
    "reprojection_px": ("Reprojection error", "px"),
    "loops_closed": ("Loops closed", ""),
    "parts": ("Components", ""),
    "last_error": ("Last error", ""),
}
DROPPED = "dropped_"  # begins the names of counters of images that were dropped
BLIND = "blind_"  # of images that showed nothing

LEGEND = """
<div style='font-size:0.85em;padding:0 0.7em'>
<b>Axes</b>: red x, green y, blue z, up. Lengths are metres where a scale is known (see State),
else units of the scene.<br>
<b>Orange</b>: the camera with its newest image.<br>
<b>Red line</b>: its path; interrupted where the motion was not seen.<br>
<b>Grey</b>: keyframes (at most 200).<br>
<b>Blue lines</b>: loops, places that were recognised; they connect submaps.<br>
<b>Points</b>: the map. Far from the camera fewer of them are shown, and none of components whose
pose in the map is not known.<br>
<b>Depth</b>: red is near, blue is far; black is unknown, light grey is sky.<br>
<b>Confidence</b>: red is low, blue is high.<br>
<b>Feature tracks</b>: a line is where the last views saw the feature; green has no reprojection
error, red two pixels or more, grey no point.</div>
"""


def state_table(values: Mapping[str, Any], below: str) -> str:
    """Returns a table of the main values, then of dropped images, then of all others.

    values: texts by name, as in ``/diagnostics``; unknown ones are NaN. below: a line of text.
    """
    if str(values.get("dense_keyframes")) == "0":
        values = {**values, "dense_share": "nan"}  # nothing was measured
    rows = [
        (label, f"{_short(values[name])} {unit}" if _known(values[name]) else "unknown")
        for name, (label, unit) in ROWS.items()
        if name in values and str(values[name]) != ""
    ]
    rows += [(f"Dropped: {name.removeprefix(DROPPED)}", text) for name, text in values.items()
             if name.startswith(DROPPED)]  # fmt: skip
    rows += [(f"Without depth: {name.removeprefix(BLIND)}", text) for name, text in values.items()
             if name.startswith(BLIND)]  # fmt: skip
    others = [(name, text) for name, text in values.items()
              if name not in ROWS and not name.startswith((DROPPED, BLIND))]  # fmt: skip
    more = (
        f"<details><summary>All diagnostics</summary>{_table(others)}</details>" if others else ""
    )
    return _table(rows) + (note(below) if below else "") + more


def note(*lines: str) -> str:
    """Returns small lines of text."""
    text = "<br>".join(map(html.escape, lines))
    return f"<div style='font-size:0.85em;padding:0 0.7em 0.5em'>{text}</div>"


def unconnected_text(count: int) -> str:
    """Returns what is to be said about components that are not shown; empty: nothing."""
    if not count:
        return ""
    more = "1 component is" if count == 1 else f"{count} components are"
    return f"{more} not shown: the pose relative to the shown one is not known."


def _short(value: Any) -> str:
    """Returns a number with three digits; other texts as they are."""
    text = str(value)
    try:
        return text if float(text).is_integer() else f"{float(text):.3g}"
    except (ValueError, OverflowError):
        return text


def _known(value: Any) -> bool:
    return str(value) not in ("nan", "NaN")


def _table(rows: list[tuple[str, Any]]) -> str:
    cells = "".join(
        f"<tr><td style='padding-right:1em;vertical-align:top'>{html.escape(label)}</td>"
        f"<td style='overflow-wrap:anywhere'>{html.escape(str(text))}</td></tr>"
        for label, text in rows
    )
    return f"<table style='font-size:0.85em;margin:0 0.7em'>{cells}</table>"
