"""Makers of the tables and plots of docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

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
        Column("std_s", f"Standard deviation, {unit}", times),
        Column("ratio", "Times as fast as the reference"), "backbone_tflops",
        Column("peak_mb", "Memory of a pass, MB"),
    )  # fmt: skip


backends = joined(
    lambda result: result.rows,
    "model", Column("size", "Image"), "views", "variant", "median_s",
    Column("times_torch_fp32", "Times as fast as PyTorch in fp32"),
    Column("times_reference", "As the reference"),
    Column("first_window_s", "First window, s"),
)  # fmt: skip


def _option(result: Result, name: str) -> str:
    """Returns a node's parameter from the command of a result; empty if it has none."""
    found = re.search(rf"-p {re.escape(name)}:=(\S+)", result.command)
    return found[1] if found else ""


def _latency_row(result: Result) -> Row:
    return {
        **result.data,
        "model": _option(result, "model"),
        "pixels": _option(result, "process_res"),
        "ran": BACKENDS.get(result.data.get("backend", ""), result.data.get("backend")),
    }


latency = joined(
    _latency_row,
    "model", Column("pixels", "Longer side"), Column("ran", "Backend"), "windows_per_s",
    Column("stamp_to_publication_median_s", "Stamp to publication, ms: median", 1e3),
    Column("stamp_to_publication_p95_s", "95 %", 1e3),
    Column("stage_wait_median_s", "Of these (medians): waiting", 1e3),
    Column("stage_decode_median_s", "Decoding", 1e3),
    Column("stage_network_median_s", "Network", 1e3),
    Column("stage_window_median_s", "Network, alignment and filters", 1e3),
    Column("stage_publish_median_s", "Messages", 1e3),
)  # fmt: skip

MATRIX = (
    "mode", "precision", "compile", "backend", Column("runs", "What ran"), "mean_s", "std_s",
    "median_s", "p95_s", "p99_s", "images_per_s", "frames_per_s", "stability", "peak_gib",
    "load_s", "cold_start_s",
)  # fmt: skip


def matrix(results: Sequence[Result]) -> str:
    """Returns a table of modes, precisions and compiler for each file, with its averages."""
    parts = []
    for result in results:
        rows = table(result.rows, MATRIX)
        parts.append(f"{provenance([result])}{_setting(result)}\n{rows}{_summary(result)}")
    return "\n".join(parts)


def _setting(result: Result) -> str:
    setting = result.data.get("setting", {})
    named = {k: "x".join(map(str, v)) if k == "image" else v for k, v in setting.items()}
    text = ", ".join(f"{k.replace('_', ' ')} {number(v)}" for k, v in named.items())
    return f"* Setting: {text}.\n" if text else ""


def _summary(result: Result) -> str:
    summary = result.data.get("summary", {})
    lines = []
    if "success" in summary:
        lines.append("ran: {} of {}".format(*summary["success"]))
    for key in ("by_mode", "by_precision"):
        means = ", ".join(f"{name} {number(v)}" for name, v in summary.get(key, {}).items())
        lines += [f"images/s {key.replace('_', ' ')}, mean: {means}"] if means else []
    for key in ("best", "slowest"):
        row = summary.get(key) or {}
        names = ", ".join(
            str(row[k]) for k in ("mode", "precision", "compile", "backend") if k in row
        )
        lines += [f"{key}: {names}, {number(row['images_per_s'])} images/s"] if names else []
    return (
        "".join(["\n", *(f"* {line[:1].upper()}{line[1:]}.\n" for line in lines)]) if lines else ""
    )


def _documents(result: Result) -> bool:
    """Whether a matrix has the setting of the published report."""
    setting = result.data.get("setting", {})
    image = setting.get("image")
    square = image in ([504, 504], "504x504")
    return setting.get("model") == "da3-large" and setting.get("views") == 5 and square


def _ours(result: Result) -> Iterator[Row]:
    """Yields the best and the slowest row of a matrix."""
    ran = sorted((r for r in result.rows if "images_per_s" in r), key=lambda r: r["images_per_s"])
    machine = result.machine
    device = str(machine.get("device", "cpu"))
    hardware = device if not device.startswith("cpu") else (
        f"{machine.get('cpu', 'CPU')}, {machine.get('cores', '?')} cores"
    )  # fmt: skip
    kind = "cpu" if device.startswith("cpu") else "mps" if "mps" in device.lower() else "cuda"
    for what, row in (("best", ran[-1:]), ("slowest", ran[:1])):
        for found in row:
            same = {"by": "ours", "what": what, "hardware": hardware, "device": kind}
            yield {**same, **{k: v for k, v in found.items() if k not in same}}


def _published(results: Sequence[Result], *keys: str) -> list[Row]:
    """Returns rows of bench/published.json below a path of keys; none if it is not there."""
    for result in results:
        if result.name == "published.json":
            value = result.data
            for key in keys:
                value = value.get(key, {})
            return list(value)
    return []


def devices(results: Sequence[Result]) -> str:
    """Returns the published best and slowest rows of each device, with ours beside them."""
    ours = [r for r in results if r.name != "published.json" and _documents(r)]
    rows = [
        {"by": "published", **row}
        for row in _published(results, "benchmark", "rows")
        if row.get("what") in ("best", "slowest")
    ]
    rows += [row for result in ours for row in _ours(result)]
    rows.sort(key=lambda r: ("cpu", "mps", "cuda").index(r["device"]))
    if not rows:
        return UNRUN
    source = "".join(cited(r) for r in results if r.name == "published.json")
    columns = (
        "device", Column("by", "Measured by"), "hardware", "what", "mode", "precision", "backend",
        Column("mean_s", "Seconds for the five images"), "images_per_s",
    )  # fmt: skip
    missing = "" if ours else "\nOur rows are unrun here.\n"
    return f"{source}{provenance(ours)}\n{table(rows, columns)}{missing}"


def published_images(results: Sequence[Result]) -> str:
    """Returns what others published of one image and of many."""
    rows = _published(results, "one_image") + _published(results, "many_images")
    columns = (
        "model", "size", Column("views", "Images at once"), "hardware", "runtime", "images_per_s",
        Column("ms_per_image", "ms per image"), "mb_per_image", "source",
    )  # fmt: skip
    return f"{cited(results[0])}\n{table(rows, columns)}"


def published_memory(results: Sequence[Result]) -> str:
    """Returns what others published of a hundred images on one card, and by number of images."""
    card = _published(results, "memory", "rtx_3090_100_frames", "rows")
    rows = [{"frames": 100, "hardware": "RTX 3090", **row} for row in card]
    rows += _published(results, "memory", "rule_of_thumb")
    columns = (
        Column("frames", "Images"), "model", Column("process_res", "Longer side"),
        Column("chunk", "Images at once"), Column("gb", "GB"), "seconds",
        Column("quality_percent", "Quality, % (theirs)"), "hardware",
    )  # fmt: skip
    return f"{cited(results[0])}\n{table(rows, columns)}"


windows = listing(
    "views", Column("runs", "What ran"), "median_s", "p95_s", "frames_per_s", "cold_start_s",
    "planned_gib", Column("peak_gib", "Measured, GiB"),
)  # fmt: skip


def windows_plot(results: Sequence[Result]) -> str:
    """Returns time and memory against the number of views as SVG."""
    panels = []
    for key, title in (("median_s", "seconds per window"), ("peak_gib", "memory, GiB")):
        series = [
            Series(_label(r), [(row["views"], row[key]) for row in r.rows if key in row])
            for r in results
        ]
        panels.append(Panel(Axis("views of the window, one of them new"), Axis(title), series))
    return picture(panels, "Time and memory of a window by its number of views")


def _label(result: Result) -> str:
    return result.note.label or result.name.removesuffix(".json")


def windows_figure(results: Sequence[Result]) -> str:
    """Returns the reference to the plot of windows."""
    return "![Time and memory of a window by its number of views](images/windows.svg)\n"


QUALITY = (
    "model", Column("size", "Image"), "views", "precision", "backend", "frames_per_s", "peak_gib",
    Column("absrel", "AbsRel"), Column("ate_m", "ATE, m"), Column("way_m", "Way, m"),
)  # fmt: skip


def quality(results: Sequence[Result]) -> str:
    """Returns speed beside accuracy, as plot and table."""
    plot = "![Speed against accuracy](images/speed_accuracy.svg)\n"
    return f"{plot}\n{listing(*QUALITY)(results)}"


def quality_plot(results: Sequence[Result]) -> str:
    """Returns the error of depth and the error of the way against new frames/s as SVG."""
    rows = [row for result in results for row in result.rows if "frames_per_s" in row]
    kinds = {f"{row['model']}, {row['precision']}, {row['backend']}": None for row in rows}
    panels = []
    errors: tuple[tuple[str, Callable[[Row], float]], ...] = (
        ("AbsRel of depth", lambda row: row["absrel"]),
        ("ATE over the way, %", lambda row: 100 * row["ate_m"] / row["way_m"]),
    )
    for title, error in errors:
        series = []
        for kind in kinds:
            own = [r for r in rows if f"{r['model']}, {r['precision']}, {r['backend']}" == kind]
            points = [(row["frames_per_s"], error(row)) for row in own]
            series.append(Series(kind, points, [row["size"] for row in own], line=False))
        panels.append(Panel(Axis("new frames per second"), Axis(title, log=False), series))
    return picture(panels, "Speed against accuracy")


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
