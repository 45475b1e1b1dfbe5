"""Makers of those tables of docs/figures.md whose files have exactly their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from report_tables import Column, Result, Row, joined, listing, number, pivot, provenance

standing = listing(
    "windows", Column("refined", "Refinement"), "held",
    Column("position_of_depth", "Position, % of the depth", 100.0), "rotation_deg",
    Column("unit_change", "Unit, %", 100.0), "keyframes",
    Column("seconds_per_frame", "s/frame"),
)  # fmt: skip
following = listing(
    Column("network", "Windows"), "output", "corrections",
    Column("median_m", "Points to surfaces, cm: median", 100.0), Column("p95_m", "95 %", 100.0),
    Column("off", "Farther than 10 cm, %", 100.0), Column("pose_m", "Newest pose, cm", 100.0),
)  # fmt: skip
range_scale = listing(
    "room", "sensor", Column("metric_from", "Metric from frame"),
    Column("depth_error", "Depth error, %", 100.0), Column("way_error", "Way error, %", 100.0),
    Column("sigma", "Sigma, %", 100.0), Column("error_in_sigmas", "Way error in sigmas"),
)  # fmt: skip
range_cost = listing(
    Column("points", "Points of a cloud"), Column("returns", "Returns in the image"),
    "decode_ms", "place_ms", "scale_ms", Column("keyframe_ms", "Keyframe's depth, ms"),
)  # fmt: skip


def _range_depth_rows(result: Result) -> list[Row]:
    walls = "bare" if "--plain" in result.command else "textured"
    return [{**row, "walls": walls} for row in result.rows]


RETURNS = ("64", "500", "5000")
range_depth = joined(
    _range_depth_rows,
    "room", "walls", Column("share", "Measured by images, %", 100.0),
    Column("off", "RMSE, m: off"), *(Column(f"on_{n}", n) for n in RETURNS),
    Column("in_sigmas_off", "In sigmas: off"), *(Column(f"in_sigmas_{n}", n) for n in RETURNS),
)  # fmt: skip


def prior(results: Sequence[Result]) -> str:
    """Returns errors of poses with a prior: given to the network, refined, as it is."""
    columns = [Column("error_deg", "Error of the prior, degrees")]
    for kind in ("given", "refined", "prior"):
        columns.append(Column(f"{kind} rotation", f"{kind.capitalize()}: rotation, degrees"))
        columns.append(Column(f"{kind} direction", "Direction, degrees"))
        columns.append(Column(f"{kind} depth", "Depth, %"))
    return joined(_without_nan, *columns)(results)


def _without_nan(result: Result) -> list[Row]:
    """Returns the rows without what is no number: such a prior gives no metres."""
    return [{k: v for k, v in row.items() if v == v} for row in result.rows]


JOBS = {
    "ply": "`.ply`", "glb": "`.glb`", "colmap": "`.colmap`, without pictures",
    "ply:0.05": "`.ply`, averaged in 5 cm", "ply:0.5": "`.ply`, averaged in 50 cm",
    "save": "saving", "load": "loading (the map itself, once more)",
}  # fmt: skip


def _export_rows(result: Result) -> list[Row]:
    return [{**row, "what": JOBS.get(row["job"], row["job"])} for row in result.data["exports"]]


exports = joined(
    _export_rows,
    Column("what", "Export"), Column("extra_peak_mb", "Peak above the map, MiB"),
    Column("cpu_s", "Processor time, s"), Column("file_mb", "Written, MiB"),
)  # fmt: skip

rings = listing(
    Column("seed", "Corridor"), Column("path_m", "Way, m"),
    Column("end_m before", "Error at the end, m: without"), Column("end_m", "With"),
    Column("ate_m before", "ATE, m: without"), Column("ate_m", "With"),
    Column("looks", "Attempts"), Column("found", "Loops found"),
)  # fmt: skip

GROWING = {
    "straight": "the whole pipeline, straight on", "ring": "the whole pipeline, in circles",
    "": "loop closure alone, memory filled before",
}  # fmt: skip


def _growth_rows(result: Result) -> list[Row]:
    """Returns how much a keyframe costs more with many submaps than with the hundred at first."""
    return [
        {**row, "what": GROWING[row.get("way", "")], "from": 100}
        for row in result.rows
        if row["submaps"] > 100
    ]


growth = joined(
    _growth_rows,
    Column("what", "What grows"), Column("from", "Submaps, from"), Column("submaps", "To"),
    Column("closed", "Loops closed"), Column("mean_ratio", "Mean cost of a keyframe, times"),
)  # fmt: skip

WALKS = {
    "straight": "straight", "spot": "turning on the spot", "loop": "loop",
    "handheld": "hand-held", "still": "standing still",
}  # fmt: skip
METHODS = {
    "ours": "ours", "oracle": "oracle", "least squares": "least squares over points",
    "chain": "chain of windows", "centres": "camera centres",
}  # fmt: skip


def _errors(row: Row) -> str:
    """Returns position in mm, rotation in degrees and scale in %; "lost" where it has none."""
    values = (row.get("place_m"), row.get("turn_deg"), row.get("scale"))
    if not all(isinstance(v, float) and math.isfinite(v) for v in values):
        return "lost"
    place, turn, scale = values
    return f"{number(1e3 * place)} / {number(turn, 2)} / {number(100 * scale, 2)}"


def _way(row: Row) -> str:
    return f", {number(row['path_m'], 2)} m" if row["path_m"] > 0.1 else ""


def drift(results: Sequence[Result]) -> str:
    """Returns errors on walks with all noise, by method of alignment."""
    rows = [
        {**row, "Walk": f"{WALKS[row['walk']]}{_way(row)}", "by": METHODS[row["method"]]}
        for result in results
        for row in result.rows
        if row["noise"] == "all" and row["method"] in METHODS
    ]
    return f"{provenance(results)}\n{pivot(rows, 'Walk', 'by', _errors)}"


def keyframes(results: Sequence[Result]) -> str:
    """Returns errors on walks, by number of keyframes in a window."""
    rows = [
        {**row, "Walk": WALKS[row["walk"]], "count": row["keyframes"] or "none"}
        for result in results
        for row in result.rows
    ]
    return f"{provenance(results)}\n{pivot(rows, 'Walk', 'count', _errors)}"


SWEEPS = {
    "sgbm": "OpenCV's SGBM", "sweep 1": "one neighbour", "sweep 2": "two", "sweep 4": "four",
    "sweep 6": "six",
}  # fmt: skip


def _sweep_rows(result: Result) -> list[Row]:
    return [
        {**row, "what": SWEEPS[row["by"]]} for row in result.data["table"] if row["by"] in SWEEPS
    ]


sweeps = joined(
    _sweep_rows,
    Column("what", "By"), Column("share", "Pixels with depth, %", 100.0),
    Column("median", "Median error"), Column("bad1", "More than 1 pixel wrong, %", 100.0),
    Column("seconds", "s"),
)  # fmt: skip

scene_file = listing(
    Column("kind", "File"), Column("add_ms", "Adding a keyframe, ms: median"),
    Column("add_p99_ms", "99 %"), Column("sync_ms", "Sync, ms"), Column("open_s", "Open, s"),
    Column("read_ms", "Reading a keyframe, ms"), Column("overhead_bytes", "Overhead, bytes"),
)  # fmt: skip

FAULTS = {
    "none": "nothing", "hand": "a hand over the lens", "exposure": "exposure jumps",
    "mover": "half of the image moves, for a third of the walk",
    "10 % wrong matches": "10 % of the matches are wrong",
}  # fmt: skip


def _fault_rows(result: Result) -> list[Row]:
    return [
        {**row, "what": FAULTS.get(row["fault"], row["fault"])} for row in result.data["table"]
    ]


dense_faults = joined(
    _fault_rows,
    Column("what", "Fault"), Column("absrel_off", "AbsRel of all pixels: off"),
    Column("absrel_on", "On"), Column("share", "Measured, %", 100.0),
    Column("measured_off", "AbsRel of measured pixels: off"), Column("measured_on", "On"),
    Column("nees", "NEES", digits=2),
)  # fmt: skip
