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
range_combined = listing(
    "room", Column("sensor", "Sources"), Column("metric_from", "Metric from frame"),
    Column("depth_error", "Depth error, %", 100.0), Column("way_error", "Way error, %", 100.0),
    Column("sigma", "Sigma, %", 100.0), Column("error_in_sigmas", "Way error in sigmas"),
)  # fmt: skip
_TIMES = ("2 s", "5 s", "10 s", "15 s")


def _imu_rows(result: Result) -> list[Row]:
    rows = ({"poses": "of da3-tiny, refined", **row} for row in result.rows)
    return [{k: v for k, v in row.items() if v != math.inf} for row in rows]  # inf: never known


imu_scale = joined(
    _imu_rows, "walk", "poses", Column("known_s", "Known after, s"),
    *(column for time in _TIMES for column in (
        Column(f"{time}.error_median", f"After {time}, %: median", digits=2),
        Column(f"{time}.error_largest", "largest", digits=2),
        Column(f"{time}.sigma", "stated", digits=2), Column(f"{time}.nees", "NEES", digits=2),
    )),
)  # fmt: skip
imu_up = joined(
    _imu_rows, "walk", "poses",
    *(column for time in _TIMES for column in (
        Column(f"{time}.tilt_deg", f"After {time}, degrees: median", digits=2),
        Column(f"{time}.tilt_95_deg", "95 %", digits=2),
        Column(f"{time}.tilt_sigma_deg", "stated", digits=2),
        Column(f"{time}.tilt_nees", "NEES", digits=2),
    )),
)  # fmt: skip
imu_gyro = listing(
    "walk", Column("runs", "Rooms"), Column("imu", "Rotations of the IMU"),
    Column("ate_mm", "ATE, mm"),
    Column("rotation_deg", "Rotation, degrees: mean"), Column("rotation_largest_deg", "largest"),
)  # fmt: skip
imu_level = listing(
    "walk", Column("runs", "Rooms"), Column("bend_deg", "The network bends the way by, degrees"),
    Column("imu", "IMU"), Column("end_deg", "Tilt, degrees: map's end", digits=2),
    Column("largest_deg", "largest", digits=2),
    Column("published_deg", "newest published", digits=2), Column("ate_mm", "ATE, mm", digits=2),
)  # fmt: skip
anchors = joined(
    lambda result: result.rows,
    "windows", Column("walks", "Rooms"), Column("kind", "Global poses"),
    Column("live_m", "Live poses, m: RMS"), Column("live_largest_m", "largest"),
    Column("nees", "NEES", digits=2), Column("live_deg", "Heading, degrees: RMS"),
    Column("heading_nees", "NEES", digits=2),
    Column("path_m", "Path at the end, m: RMS"), Column("path_largest_m", "largest"),
    Column("path_deg", "Heading, degrees"),
    Column("way_error", "Way, %", 100.0), "come", "used", Column("wrong", "Called wrong"),
)  # fmt: skip
anchors_scale = joined(
    lambda result: result.rows,
    "windows", Column("walks", "Rooms"), Column("kind", "Global poses"),
    Column("metric_walks", "With metres"), Column("known_s", "Known after, s: at most"),
    Column("way_error", "Way, %: RMS", 100.0), Column("scale_sigma", "stated, %", 100.0),
    Column("live_m", "Live poses, m: RMS"), Column("nees", "NEES", digits=2),
    Column("path_m", "Path at the end, m: RMS"), "come", "used", Column("wrong", "Called wrong"),
)  # fmt: skip
metres_cost = listing(
    "source", Column("extra_ms", "Per frame, ms: mean"), Column("largest_ms", "largest"),
    Column("share", "Of a frame without it, %", 100.0),
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


NOISES = {
    "all": "nothing", "outliers 20 %": "20 % outliers", "outliers 40 %": "40 % outliers",
    "lies 10 %": "10 % confident errors",
}  # fmt: skip
DISTURBED = {
    "ours": "ours", "ours, told": "ours, each window's unit given to 1 %", "oracle": "oracle",
    "least squares": "least squares",
}  # fmt: skip


def drift_worst(results: Sequence[Result]) -> str:
    """Returns the largest errors of all walks, by what is wrong in addition and by method."""
    worst: dict[tuple[str, str], Row] = {}
    for row in (row for result in results for row in result.rows):
        if row["noise"] in NOISES and row["method"] in DISTURBED:
            at = worst.setdefault((row["noise"], row["method"]), {})
            for key in ("place_m", "turn_deg", "scale"):
                at[key] = max(at.get(key, 0.0), row[key])
    rows = [
        {**worst[noise, method], "In addition": NOISES[noise], "by": DISTURBED[method]}
        for noise in NOISES
        for method in DISTURBED
        if (noise, method) in worst
    ]
    return f"{provenance(results)}\n{pivot(rows, 'In addition', 'by', _errors)}"


def _nees_rows(result: Result) -> list[Row]:
    """Returns rows of noise, walk and NEES; of laps that of the last one."""
    laps = "--laps" in result.command
    tiny = "da3-tiny, rooms without texture" if "--plain" in result.command else "da3-tiny"
    rows = []
    for row in result.rows:
        if "worst room" in row:
            rows += [{**row, "noise": tiny}]
            rows += [{**row, "noise": f"{tiny}, worst room", "nees": row["worst room"]}]
        elif laps:
            end = f"{row['noise']}, the last way"
            rows += [{**row, "noise": end, "nees": row["last lap"]}]
        else:
            rows.append(row)
    return rows


def nees(results: Sequence[Result]) -> str:
    """Returns the NEES of refined poses, by noise and walk."""
    rows = [row for result in results for row in _nees_rows(result)]
    for row in rows:
        row["walk"] = WALKS.get(row["walk"], row["walk"])
    table_of = pivot(rows, "noise", "walk", lambda row: number(row["nees"], 2))
    return f"{provenance(results)}\n{table_of}"


real = listing(
    Column("data", "Recording"), Column("refined", "Windows refined"),
    Column("adjusted", "Keyframes adjusted"), Column("camera_info", "`camera_info`"),
    Column("way_m", "Way, m"), Column("ate_m", "ATE, m"),
    Column("focal_px", "Focal length, px, first and last", digits=4),
    Column("blind", "Held frames"),
)  # fmt: skip


def _lens_rows(result: Result) -> list[Row]:
    names = {"truth": "exact windows with noise", "da3-tiny": "da3-tiny"}
    rows = result.data["table"]
    off, on = ([r for r in rows if r["corrected"] == c] for c in (False, True))
    return [
        {**a, "windows": names[a["network"]], "on": b["ate_percent"],
         "found": f"{b['corrections']} of {b['walks']}"}
        for a, b in zip(off, on, strict=True)
    ]  # fmt: skip


lenses = joined(
    _lens_rows,
    Column("fault", "`camera_info`"), Column("windows", "Windows"),
    Column("ate_percent", "ATE, % of the way: as stated", digits=2),
    Column("on", "Corrected", digits=2), Column("found", "Walks with a correction"),
)  # fmt: skip


def _dense_rows(result: Result) -> list[Row]:
    return result.data["table"]


dense_rooms = joined(
    _dense_rows,
    "walk", Column("absrel_off", "AbsRel of all pixels: off"), Column("absrel_on", "On"),
    Column("share", "Measured, %", 100.0), Column("measured_off", "Of measured pixels: off"),
    Column("measured_on", "On"), Column("nees", "NEES of measured", digits=2),
    Column("nees_rest", "Of the others", digits=2),
    Column("cloud_median_m_off", "Cloud to room, median, mm: off", 1e3),
    Column("cloud_median_m_on", "On", 1e3),
    Column("chamfer_voxels_off", "Mesh, Chamfer in voxels: off"),
    Column("chamfer_voxels_on", "On"), Column("covered_off", "Room covered, %: off", 100.0),
    Column("covered_on", "On", 100.0), Column("seconds", "s per keyframe", digits=2),
)  # fmt: skip

DEPTHS = {
    "exact": "none", "pixels 2 %": "2 % of each pixel",
    "smooth 2 %": "2 %, common to neighbouring pixels",
    "frames 2 %": "2 % of all pixels of a frame",
    "network": "da3-tiny, metres by exact odometry",
    "network, frames scaled": "da3-tiny, metres of each frame known",
    "network, grid": "da3-tiny in the grid of the map: refined poses, dense depth",
}  # fmt: skip


def _navigation_rows(result: Result) -> list[Row]:
    return [{**row, "what": DEPTHS.get(row["depth"], row["depth"])} for row in result.rows]


navigation = joined(
    _navigation_rows,
    Column("what", "Errors of depth"), Column("missed", "Missed, %", 100.0, 2),
    Column("false_of_known", "False, % of the known cells", 100.0, 2),
    Column("false_of_marked", "False, % of the marked cells", 100.0, 2),
)  # fmt: skip

FLEETS = {
    "shell_loop_s": "shell loop of `da3_ros replay`, 2 threads each",
    "shell_loop_one_thread_s": "the same, 1 thread each",
    "one_worker_s": "fleet of one worker with 2 threads",
    "fleet_s": "fleet of two workers with 1 thread",
    "killed_s": "the same, one worker killed in the longest recording",
}  # fmt: skip


def _fleet_rows(result: Result) -> list[Row]:
    (row,) = result.rows
    return [
        {
            "what": what,
            "s": row[key],
            "frames_per_s": row["frames"] / row[key],
            "times": row["shell_loop_s"] / row[key],
        }
        for key, what in FLEETS.items()
    ]


fleet = joined(
    _fleet_rows,
    Column("what", "How"), Column("s", "Seconds"), Column("frames_per_s", digits=2),
    Column("times", "Times as fast as the shell loop"),
)  # fmt: skip
