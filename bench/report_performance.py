"""Makers of the tables and plots of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from report_plots import Axis, Panel, Series, picture
from report_tables import (
    UNRUN,
    Column,
    Maker,
    Result,
    Row,
    cited,
    joined,
    listing,
    number,
    pivot,
    provenance,
    table,
)

BACKENDS = {"torch": "PyTorch", "openvino": "OpenVINO"}


# Speed


def network_table(unit: str, times: float) -> Maker:
    """Returns a maker for bench_network.py: our network beside the reference's."""
    return listing(
        "model", Column("size", "Window"), "variant",
        Column("median_s", f"Median, {unit}", times), Column("p95_s", f"95 %, {unit}", times),
        Column("p99_s", f"99 %, {unit}", times),
        Column("std_s", f"Standard deviation, {unit}", times),
        Column("ratio", "Times as fast as the reference"), "backbone_tflops",
        Column("share_of_peak", "Share of the measured peak, %", 100.0),
        Column("peak_mb", "Memory of a pass, MB"),
    )  # fmt: skip


backends = joined(
    lambda result: result.rows,
    "model", Column("size", "Image"), "views", "variant", "median_s",
    Column("times_torch_fp32", "Times as fast as PyTorch in fp32"),
    Column("times_reference", "As the reference"),
    Column("first_window_s", "First window, s"), "compiling_s",
)  # fmt: skip


MATRIX = (
    "mode", "precision", "compile", "backend", "runs", "mean_s", "std_s", "median_s", "p95_s",
    "p99_s", "images_per_s", "frames_per_s", "stability", "peak_gib",
    Column("load_s", "Making random weights and opening, s"), "cold_start_s",
    Column("load_before", "System's load before"),
)  # fmt: skip
SETTINGS = {"unseen": "all views new", "gib": "budget in GiB", "repeats": "runs"}


def matrix(results: Sequence[Result]) -> str:
    """Returns a table of modes, precisions and compiler for each file, with its averages."""
    parts = []
    for result in results:
        versions = _versions(result)
        rows = table(result.rows, (*MATRIX, "commit") if versions else MATRIX)
        about = f"{provenance([result])}{_setting(result)}{versions}"
        parts.append(f"{about}\n{rows}{_summary(result)}")
    return "\n".join(parts)


def _versions(result: Result) -> str:
    """Returns which commits the rows are of, if they are of several."""
    commits = dict.fromkeys(row["commit"] for row in result.rows if "commit" in row)
    if len(commits) < 2:
        return ""
    named = ", ".join(commits)
    return f"* The rows are of commits {named}: compare those of one.\n"


def _setting(result: Result) -> str:
    named = {**result.data.get("setting", {})}
    if isinstance(named.get("image"), list):
        named["image"] = "x".join(map(str, named["image"]))
    words = ((SETTINGS.get(k, k.replace("_", " ")), number(v)) for k, v in named.items())
    text = ", ".join(f"{name} {value}" for name, value in words)
    return f"* Setting: {text}.\n" if text else ""


def _summary(result: Result) -> str:
    summary = result.data.get("summary", {})
    lines = []
    if "success" in summary:
        planned = f", {summary['planned']} were planned" if "planned" in summary else ""
        lines.append("rows: {} of {} ran{}".format(*summary["success"], planned))
    for key, means in summary.items():
        if key.startswith("by_") and means:
            listed = ", ".join(f"{name} {number(v)}" for name, v in means.items())
            lines.append(f"mean images/s {key.replace('_', ' ')}: {listed}")
    for key in ("best", "slowest"):
        row = summary.get(key) or {}
        names = ", ".join(str(row[k]) for k in MATRIX[:4] if k in row)
        lines += [f"{key}: {names}: {number(row['images_per_s'])} images/s"] if names else []
    text = "".join(f"* {line[:1].upper()}{line[1:]}.\n" for line in lines)
    return f"\n{text}" if text else ""


def documents(result: Result) -> bool:
    """Returns whether a matrix has the setting of the published report."""
    setting = result.data.get("setting", {})
    square = setting.get("image") in ([504, 504], "504x504")
    model, views = setting.get("model"), setting.get("views")
    return model == "da3-large" and views == 5 and square and setting.get("unseen") is True


def _ours(result: Result) -> Iterator[Row]:
    """Yields the best and the slowest row of a matrix, and its means."""
    machine = result.machine
    name = str(machine.get("device", "cpu"))
    kind = "cpu" if name.startswith("cpu") else "mps" if "mps" in name.lower() else "cuda"
    host = f"{machine.get('cpu', 'CPU')}, {machine.get('cores', '?')} cores"
    same = {"by": "ours", "device": kind, "hardware": host if kind == "cpu" else name}
    whole = (r for r in result.rows if "images_per_s" in r and not r.get("reduced"))
    ran = sorted(whole, key=lambda r: r["images_per_s"])
    for what, row in (("best", ran[-1:]), ("slowest", ran[:1])):
        yield from ({**found, **same, "what": what} for found in row)
    for by in ("precision", "mode"):
        for value, mean in result.data.get("summary", {}).get(f"by_{by}", {}).items():
            yield {**same, "what": f"average by {by}", by: value, "images_per_s": mean}


def _published(results: Sequence[Result], *keys: str) -> list[Row]:
    """Returns rows of bench/published.json below a path of keys; none if it is not there.

    Numbers are texts as they were published, not rounded.
    """
    for result in results:
        if result.name == "published.json":
            value = result.data
            for key in keys:
                value = value.get(key, {})
            return [
                {k: f"{v:g}" if isinstance(v, float) else v for k, v in row.items()}
                for row in value
            ]
    return []


DEVICES = ("cpu", "mps", "cuda")
WHAT = ("best", "slowest", "average by precision", "average by mode")


def devices(results: Sequence[Result]) -> str:
    """Returns the published rows of each device, with ours of the same setting beside them."""
    ours = [r for r in results if r.name != "published.json" and documents(r)]
    rows = [{"by": "published", **row} for row in _published(results, "benchmark", "rows")]
    rows += [row for result in ours for row in _ours(result)]
    rows.sort(key=lambda r: (DEVICES.index(r["device"]), WHAT.index(r["what"]), r["by"]))
    if not rows:
        return UNRUN
    source = "".join(cited(r) for r in results if r.name == "published.json")
    columns = (
        "device", "what", "mode", "precision", Column("by", "Measured by"), "hardware", "backend",
        Column("mean_s", "Seconds for the five images"), "images_per_s",
    )  # fmt: skip
    missing = "" if ours else "\nOur rows are unrun here.\n"
    return f"{source}{provenance(ours)}\n{table(rows, columns)}{missing}"


def documents_fact(results: Sequence[Result]) -> str:
    """Returns a sentence on our best row of the published setting; empty if there is none."""
    ours = [row for r in results if documents(r) for row in _ours(r) if row["what"] == "best"]
    if not ours:
        return ""
    best = max(ours, key=lambda row: row["images_per_s"])
    names = ", ".join(str(best[k]) for k in ("backend", "precision", "mode") if k in best)
    return (
        f"**Five images of 504x504 with da3-large**, all new, the setting of a published report: "
        f"{number(best['images_per_s'])} images/s ({names}) on {best['hardware']}. "
        "What others measured stands beside it ([table](#beside-published-figures))."
    )


def quality_fact(results: Sequence[Result]) -> str:
    """Returns a sentence on the fastest and the most exact setting; empty if there is none."""
    rows = [
        row
        for r in results
        if r.name == "quality.json"
        for row in r.rows
        if {"frames_per_s", "abs_rel"} <= row.keys()
    ]
    if not rows:
        return ""
    fastest = max(rows, key=lambda row: row["frames_per_s"])
    exact = min(rows, key=lambda row: row["abs_rel"])
    return (
        f"**Speed against accuracy**: da3-tiny at {fastest['size']} processes "
        f"{_rate_and_error(fastest)}, at {exact['size']} {_rate_and_error(exact)} "
        "([plot](#speed-against-accuracy))."
    )


def _rate_and_error(row: Row) -> str:
    kind = f"{row['backend']}, {row['precision']}"
    error = number(100 * row["abs_rel"], 2)
    return f"{number(row['frames_per_s'])} new frames/s ({kind}) with an AbsRel of {error} %"


def published_images(results: Sequence[Result]) -> str:
    """Returns what others published of one image and of many."""
    rows = _published(results, "one_image") + _published(results, "many_images")
    columns = (
        "model", "size", Column("views", "Images at once"), "hardware", "runtime", "images_per_s",
        Column("ms_per_image", "ms per image"), Column("mb_per_image", "MB per image"), "source",
    )  # fmt: skip
    return f"{cited(results[0])}\n{table(rows, columns)}"


def published_memory(results: Sequence[Result]) -> str:
    """Returns what others published of memory: presets, by number of images, on one card."""
    card = _published(results, "memory", "rtx_3090_100_frames", "rows")
    rows = [
        *(
            {"what": f"preset {r.get('name')}", **r}
            for r in _published(results, "memory", "presets")
        ),
        *({"what": "rule", **row} for row in _published(results, "memory", "rule_of_thumb")),
        *({"what": "measured on an RTX 3090", "frames": 100, **row} for row in card),
    ]
    rows = [
        {k: _span(v) if k in ("frames", "gb", "chunk") else v for k, v in r.items()} for r in rows
    ]
    columns = (
        "what", "model", Column("frames", "Images"), Column("process_res", "Longer side"),
        Column("chunk", "Images at once"), Column("gb", "GB"), "seconds",
        Column("quality_percent", "Quality, % (theirs)"),
    )  # fmt: skip
    return f"{cited(results[0])}\n{table(rows, columns)}"


def _span(value: object) -> object:
    """Returns a pair of numbers as a span; what has no end as "and more"."""
    if not isinstance(value, list) or len(value) != 2:
        return value[0] if isinstance(value, list) and value else value
    low, high = value
    return f"more than {low}" if high is None else f"{low} to {high}"


windows = listing(
    "views", Column("runs", "What ran"), "median_s", "p95_s", "frames_per_s", "cold_start_s",
    Column("peak_gib", "Measured, GiB"),
)  # fmt: skip


many = listing(
    "model", "views", Column("new", "New ones"), Column("runs", "What ran"), "median_s", "p95_s",
    "frames_per_s", "cold_start_s", "planned_gib", Column("peak_gib", "Measured, GiB"),
)  # fmt: skip


def windows_plot(results: Sequence[Result]) -> str:
    """Returns time and memory against the number of views as SVG."""
    panels = []
    for key, title in (("median_s", "seconds per window"), ("peak_gib", "memory, GiB")):
        series = [
            Series(_label(r), [(row["views"], row[key]) for row in r.rows if key in row])
            for r in results
        ]
        panels.append(Panel(Axis("views of the window"), Axis(title), series))
    return picture(panels, "Time and memory of a window by its number of views")


def _label(result: Result) -> str:
    return result.note.label or result.name.removesuffix(".json")


def windows_figure(results: Sequence[Result]) -> str:
    """Returns the reference to the plot of windows."""
    return "![Time and memory of a window by its number of views](images/windows.svg)\n"


QUALITY = (
    "model", Column("process_res", "Longer side"), Column("size", "Image"), "views", "precision",
    "backend", "frames_per_s", "peak_gib", "planned_gib", "abs_rel",
    Column("abs_rel_refined", "Refined"), Column("way_m", "Way, m"), Column("ate_m", "ATE, m"),
    Column("ate_refined_m", "Refined"),
)  # fmt: skip
# Titles, and the errors and what they are shares of.
ERRORS = (
    ("AbsRel of depth, %", "abs_rel", ""),
    ("ATE over the way, %", "ate_m", "way_m"),
    ("ATE over the way with refinement, %", "ate_refined_m", "way_m"),
)


def quality(results: Sequence[Result]) -> str:
    """Returns speed beside accuracy, as plot and table."""
    plot = "![Speed against accuracy](images/speed_accuracy.svg)\n"
    return f"{plot}\n{listing(*QUALITY)(results)}"


def quality_plot(results: Sequence[Result]) -> str:
    """Returns errors of depth and of the way against new frames/s as SVG."""
    rows = [row for result in results for row in result.rows if "frames_per_s" in row]
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(f"{row['model']}, {row['precision']}, {row['backend']}", []).append(row)
    usual = max((row["views"] for row in rows), key=[row["views"] for row in rows].count)
    x = Axis("new frames per second of the network")
    panels = []
    for title, error, over in ERRORS:
        series = []
        for kind, all_own in kinds.items():
            own = [row for row in all_own if error in row]
            points = [(r["frames_per_s"], 100 * r[error] / (r[over] if over else 1)) for r in own]
            series.append(Series(kind, points, [_named(row, usual) for row in own], line=False))
        if any(s.points for s in series):
            panels.append(Panel(x, Axis(title, log=False), series))
    return picture(panels, "Speed against accuracy")


def _named(row: Row, usual: int) -> str:
    return row["size"] if row["views"] == usual else f"{row['size']}, {row['views']} views"


node = listing(
    "model", Column("process_res", "Longer side"), "backend",
    Column("extras", "Beside the network"), Column("rate_hz", "Camera, Hz"), "windows_per_s",
    Column("latency_median_s", "Stamp to arrival, ms: median", 1e3),
    Column("latency_p95_s", "95 %", 1e3),
    Column("network_s", "Of these (medians): network", 1e3),
    Column("placing_s", "Alignment, refinement, filters", 1e3),
    Column("rest_s", "Waiting, decoding, map, messages", 1e3),
    Column("frames_corrected", "Frames corrected by measured depth"),
)  # fmt: skip
_node_reference = joined(
    lambda result: result.data["reference"],
    "model", "image", Column("what", "The reference's package"), "views",
    Column("new", "New ones"), Column("call_s", "A call, s"),
    Column("new_frames_per_s", "New frames/s"),
    Column("node_frames_per_s", "New frames/s of the node"), Column("times", "Times as many"),
)  # fmt: skip


def node_reference(results: Sequence[Result]) -> str:
    """Returns the table of the reference's calls, of the files that have some."""
    found = [result for result in results if result.data.get("reference")]
    return _node_reference(found) if found else UNRUN


window_stages = listing(
    "model", Column("process_res", "Longer side"), "backend", "precision", "stage",
    Column("ms", "ms per window"), Column("mib", "Memory, MiB"),
    Column("load_s", "Making random weights and opening, s"),
)  # fmt: skip
postprocessing = listing(
    "variant", "rooms", "abs_rel", Column("abs_rel_edges", "AbsRel at edges"), "rotation_deg",
    Column("place_percent", "Place, % of the way"),
    Column("rooms_better", "Rooms with better depth"),
)  # fmt: skip
_chunks = listing(
    "method", Column("seconds", "Seconds of all"), "frames_per_s", "peak_gib", "abs_rel",
    Column("abs_rel_own", "With a scale for each window"), Column("posed", "Share with a pose"),
    Column("ate_m", "ATE, m"),
)  # fmt: skip


def chunks(results: Sequence[Result]) -> str:
    """Returns a table of all frames at once, in chunks and in our windows for each file."""
    return "\n".join(_setting(result) + _chunks([_with_paths(result)]) for result in results)


def _with_paths(result: Result) -> Result:
    """Returns a result whose frames have a pose only where the windows have a common frame."""
    rows = [{**row, "posed": row.get("posed") if row.get("ate_m") is not None else None}
            for row in result.rows]  # fmt: skip
    return replace(result, rows=rows)


lengths = listing(
    Column("window", "Views/new at size"), Column("window_s", "Window, s"),
    Column("frame_s", "New frame, s"), Column("times_first", "Times the first row"),
)  # fmt: skip
attention = listing(
    "model", Column("size", "Window"), "precision", "what", "kernel", "median_ms",
    Column("times_chosen", "Times that of the chosen one"), "tflops",
    Column("error", "Largest error"), "peak_mib",
)  # fmt: skip
pieces = listing(
    "model", Column("size", "Window"), "precision", Column("pieces", "In pieces"), "median_s",
    Column("overhead", "Overhead, %", 100.0), Column("difference", "Difference of depth"),
    "peak_mib",
)  # fmt: skip
loading = listing(
    "model", "precision", Column("state", "Read from"), Column("gb", "File, GB"), "build_s",
    "read_s", "convert_s", "move_s", Column("sum_s", "Together, s"),
    Column("session_s", "Opening a session, s"), "read_gb_per_s",
)  # fmt: skip
yardstick = listing(
    "model", "image", "variant", "median_ms", "p95_ms",
    Column("times_the_first", "Times the first"), "load_s", "peak_mib",
    Column("seconds_for_1000", "Seconds for 1,000 images"), "extrapolated",
    Column("alone", "Not measured, because"),
)  # fmt: skip


def shares(results: Sequence[Result]) -> str:
    """Returns the shares of a window's time by kind of work, for each model and precision."""
    kinds = {kind: None for result in results for row in result.rows for kind in row["shares"]}
    columns = [Column(f"shares.{k}", f"{k[:1].upper()}{k[1:]}, %", 100.0) for k in kinds]
    return listing("model", Column("size", "Window"), "precision", *columns)(results)


precision = listing(
    Column("mixed_precision", "`mixed_precision`"),
    Column("depth_median_percent", "Depth, median, %"), Column("depth_p95_percent", "95 %, %"),
    "rotation_deg", Column("place_percent", "Position, %"), "abs_rel",
)  # fmt: skip


def refinement_cost(results: Sequence[Result]) -> str:
    """Returns the steps of the refinement of a new frame."""
    columns = (
        "tracks", Column("features", "Features, ms"),
        Column("matching", "Matching and start poses, ms"),
        Column("solving", "Solving and covariance, ms"), Column("all", "All, ms"),
        Column("network", "A window of the network, ms"),
        Column("share", "Share of both, %", 100.0),
    )  # fmt: skip
    return listing(*columns)(results)


refinement_ahead = listing(
    Column("wait_ms", "A window of the network, ms"),
    Column("off_ms", "A frame, one after the other, ms"),
    Column("on_ms", "With features ahead, ms"), Column("times", "Times as fast"),
)  # fmt: skip


def _overlap_rows(result: Result) -> list[Row]:
    """Returns the share of preparation and publishing that ran while a window did."""
    return [
        {"part": part, "model": result.data.get("model"), **{
            name: 100.0 * share for name, share in result.data[part]["overlapped"].items()
        }}
        for part in ("live", "replay") if part in result.data
    ]  # fmt: skip


overlap = joined(
    _overlap_rows,
    "model", "part", Column("prepare", "Preparation beside a window, %"),
    Column("publish", "Publishing beside a window, %"),
)  # fmt: skip

PAGES_OPEN = {
    "none": "no viewer", "unwatched": "none", "one": "one", "ten": "ten",
    "stuck": "one that does not read", "restless": "one that comes and goes twice a second",
}  # fmt: skip


def _viewer_rows(result: Result) -> list[Row]:
    return [{**row, "pages": PAGES_OPEN.get(row["name"], row["name"])} for row in result.rows]


viewer = joined(
    _viewer_rows,
    Column("pages", "Open pages"), Column("frames", "Frames", digits=1),
    Column("lost", "Lost", digits=1), Column("worker_ms_mean", "Worker, ms per frame: mean"),
    Column("worker_ms_p95", "95 %"), Column("worker_ms_max", "Largest"),
    Column("cpu_percent", "CPU of the stream, %"),
    Column("viewer_cpu_percent", "CPU of the viewer, %"),
    Column("sent_mb_per_s", "MB/s to the viewer"), Column("page_mb_per_s", "MB/s to a page"),
)  # fmt: skip


# Memory

memory = listing(
    "model", Column("size", "Image"), "views", "backend", "precision", "predicted_mib",
    "measured_mib", Column("predicted_to_measured", "Predicted over measured"),
)  # fmt: skip
budgets = listing(
    "model", "budget_gib", Column("runs", "What ran"), "predicted_gib",
    Column("peak_gib", "Measured, GiB"), "frames_per_s",
)  # fmt: skip


def plan(results: Sequence[Result]) -> str:
    """Returns what fits into each budget, a row for each model and window."""
    rows = [
        {
            **row,
            "window": f"{row['model']}, {row['views']} views, {row['new']} new",
            "budget": f"{number(float(row['budget_gib']), 1)} GiB",
        }
        for result in results
        for row in result.rows
    ]

    def cell(row: Row) -> str:
        if "refused" in row:
            return "does not fit"
        views, _, size, *_ = row["runs"].split()
        fewer = "" if int(views) == row["views"] else f"{views} views, "
        return f"{fewer}{size}, {number(row['predicted_gib'])}"

    return f"{provenance(results)}\n{pivot(rows, 'window', 'budget', cell)}"
