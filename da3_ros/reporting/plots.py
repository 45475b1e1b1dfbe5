"""Plots of a report as SVG texts, whose colours are those of the page. Needs matplotlib.

Colours are written as variables of the page's style, so that a plot is readable on dark and on
light ground; its texts stay texts, in the page's font.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from da3_ros.reporting.timeline import CAUSES
from da3_ros.types import Array

MISSING = (
    "plots need matplotlib, which is missing: pip install 'da3_ros[report]', or apt install "
    "python3-matplotlib"
)
MOST_POINTS, MOST_PIECES = 2000, 400  # of a line, and of its uninterrupted pieces
WIDTH, HEIGHT = 5.4, 3.1  # of a plot, inches of 72 points
MOST_BREAKS, LONGEST_STEP_S = 60, 0.5  # in a plot of shares: times without frames
ELLIPSES = 10  # of uncertainty, along a path
ROOM = 0.25  # of the paths' size: so far beyond them deviations are shown
# Colours as matplotlib gets them, and as the page's style names them (``page.STYLE``).
INK, GRID = "#010101", "#020202"
SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"} | {
    color: f"var(--series{number})" for number, color in enumerate(SERIES, 1)
}
OTHER = GRID  # of what is beyond the series
RC: dict[str, Any] = {
    "font.size": 10.0, "font.family": "sans-serif", "svg.fonttype": "none",
    "svg.hashsalt": "da3_ros",
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": GRID,
    "xtick.color": INK, "ytick.color": INK, "grid.color": GRID, "grid.linewidth": 0.5,
    "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "axes.facecolor": "none", "figure.facecolor": "none",
    "legend.frameon": False, "legend.fontsize": 9.0, "lines.linewidth": 1.3,
    "savefig.facecolor": "none", "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-6, 7),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Line:
    """A path to draw."""

    name: str
    points: Array  # [N, 3] in the axes of ROS; rows of NaN interrupt it
    seconds: Array  # [N] since the beginning
    color: str
    dashed: bool = False


@dataclass(frozen=True, eq=False)
class Spread:
    """Standard deviations of the position along a path."""

    points: Array  # [N, 3]
    seconds: Array  # [N]
    sigma: Array  # [N, 3]


def top_view(lines: Sequence[Line], spread: Spread | None, unit: str) -> str:
    """Returns paths from above, with ellipses of one standard deviation, which are cut where they
    would make the paths too small to be seen."""
    with _figure(1.25 * HEIGHT) as (figure, done):
        axes = figure.subplots()
        for line in lines:
            axes.plot(
                *line.points[:, :2].T,
                "--" if line.dashed else "-",
                color=line.color,
                label=line.name,
            )
        if spread is not None and len(spread.points):
            _add_ellipses(axes, lines, spread, unit)
        start = lines[0].points[np.isfinite(lines[0].points).all(axis=1)][:1]
        axes.plot(start[:, 0], start[:, 1], "o", color=INK, markersize=4, label="start")
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel(f"x, forward at the start ({unit})")
        axes.set_ylabel(f"y, left at the start ({unit})")
        _legend(axes)
        figure.draw_without_rendering()  # else the layout knows the labels of other limits
    return done()


def _add_ellipses(axes: Any, lines: Sequence[Line], spread: Spread, unit: str) -> None:
    from matplotlib.colors import to_rgba  # (color, alpha) needs version 3.8
    from matplotlib.patches import Ellipse

    chosen = _even(len(spread.points), ELLIPSES)
    at, sigma = spread.points[chosen, :2], spread.sigma[chosen, :2]
    low, high, is_cut = _shown_range(lines, at - sigma, at + sigma, (0, 1))
    for k, (centre, size) in enumerate(zip(at, 2 * sigma, strict=True)):
        # Many that cover the plot would hide the path: these have no area.
        axes.add_artist(Ellipse(
            tuple(centre), *size, facecolor="none" if is_cut else to_rgba(SERIES[0], 0.1),
            edgecolor=to_rgba(SERIES[0], 0.4 if is_cut else 0.1), linewidth=0.8,
            label=_deviation_label(sigma, unit, is_cut=is_cut) if k == 0 else None,
        ))  # fmt: skip
    axes.update_datalim([low, high])


def _shown_range(
    lines: Sequence[Line], low: Array, high: Array, axes: Sequence[int]
) -> tuple[Array, Array, bool]:
    """Returns the lowest and the highest values [A] of some axes to show of deviations that are
    between ``low`` and ``high`` [N, A], and whether they are cut: ``ROOM`` beyond the paths."""
    points = np.concatenate([line.points for line in lines])
    points = points[np.isfinite(points).all(axis=1)]
    low, high = np.fmin.reduce(low), np.fmax.reduce(high)
    room = ROOM * float(np.ptp(points, axis=0).max()) if len(points) else 0.0
    if room == 0.0:  # a camera that stands has no path to be seen
        return low, high, False
    least, most = points[:, axes].min(axis=0) - room, points[:, axes].max(axis=0) + room
    is_cut = bool((low < least).any() or (high > most).any())
    return np.maximum(low, least), np.minimum(high, most), is_cut


def _deviation_label(sigma: Array, unit: str, *, is_cut: bool) -> str:
    more = f", cut (up to {np.fmax.reduce(sigma, axis=None):.2g} {unit})" if is_cut else ""
    return f"± 1 standard deviation{more}"


def height_plot(lines: Sequence[Line], spread: Spread | None, unit: str) -> str:
    """Returns the height of paths over time, with a band of one standard deviation, which is cut
    where it would make the paths too flat to be seen."""
    with _figure() as (figure, done):
        axes = figure.subplots()
        scale, name = time_unit(max((_last(line.seconds) for line in lines), default=0.0))
        for line in lines:
            style = "--" if line.dashed else "-"
            axes.plot(line.seconds / scale, line.points[:, 2], style, color=line.color,
                      label=line.name)  # fmt: skip
        if spread is not None and len(spread.points):
            z, sigma = spread.points[:, 2], spread.sigma[:, 2]
            low, high, is_cut = _shown_range(
                lines, (z - sigma)[:, None], (z + sigma)[:, None], [2]
            )
            t = spread.seconds / scale
            axes.fill_between(t, z - sigma, z + sigma, color=SERIES[0], alpha=0.25, linewidth=0,
                              label=_deviation_label(sigma, unit, is_cut=is_cut))  # fmt: skip
            if is_cut:
                axes.set_ylim(low[0], high[0])
        axes.set_xlabel(f"time ({name})")
        axes.set_ylabel(f"z, height above the start ({unit})")
        _legend(axes)
    return done()


def frames_plot(rows: NDArray[np.void]) -> str:
    """Returns the share of frames over time that have depth, and that have none, by cause."""
    with _figure(0.8 * HEIGHT) as (figure, done):
        axes = figure.subplots()
        seconds, scale, name = _times(rows)
        groups = _groups(rows)
        total = np.maximum(groups["frames"], 1)
        lost = [(cause, groups[f"blind_{cause}"]) for cause in CAUSES]
        lost = [(cause, count) for cause, count in lost if count.any()]
        seen = total - sum((count for _, count in lost), np.zeros(len(total)))
        shares = [100 * seen / total, *(100 * count / total for _, count in lost)]
        colors = [SERIES[0], *(SERIES[1 + k % (len(SERIES) - 1)] for k in range(len(lost)))]
        ends, empty = _group_ends(rows, seconds)
        shares = [np.insert(share, empty, np.nan) for share in shares]
        labels = ["with depth", *(f"no depth: {cause}" for cause, _ in lost)]
        base = np.zeros(len(ends) - 1)
        for share, color, label in zip(shares, colors, labels, strict=True):
            axes.stairs(base + share, ends / scale, baseline=base, fill=True, color=color,
                        alpha=0.75, label=label)  # fmt: skip
            base = base + share
        axes.set_ylim(0, 100)
        axes.set_xlabel(f"time ({name})")
        axes.set_ylabel("frames (%)")
        _legend(axes)
    return done()


def tracks_plot(rows: NDArray[np.void]) -> str:
    """Returns the tracks per window and their reprojection error over time."""
    with _figure(1.25 * HEIGHT) as (figure, done):
        above, below = figure.subplots(2, sharex=True)
        seconds, scale, name = _times(rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            tracks = rows["tracks"] / rows["windows"]
            error = rows["reprojection_px"] / rows["refined"]
        for axes, values, label in (
            (above, tracks, "tracks per window"), (below, error, "reprojection error (px)")
        ):  # fmt: skip
            known = np.isfinite(values)
            axes.plot(seconds[known] / scale, values[known], color=SERIES[0], label=label)
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        closed = seconds[rows["loops"] > 0] / scale
        if len(closed):
            below.vlines(
                closed, 0, 1, color=SERIES[2], linewidth=0.8, label="a loop corrects the map",
                transform=below.get_xaxis_transform(),
            )  # fmt: skip
            _legend(below)
        below.set_xlabel(f"time ({name})")
    return done()


def scale_plot(rows: NDArray[np.void]) -> str:
    """Returns the scale over time, with a band of one standard deviation."""
    with _figure(0.8 * HEIGHT) as (figure, done):
        axes = figure.subplots()
        known = np.isfinite(rows["scale"])
        seconds, scale, name = _times(rows)
        t, value = seconds[known] / scale, rows["scale"][known]
        axes.plot(t, value, color=SERIES[0], label="scale")
        sigma = value * rows["scale_sigma"][known]
        if np.isfinite(sigma).any():
            axes.fill_between(t, value - sigma, value + sigma, color=SERIES[0], alpha=0.25,
                              linewidth=0, label="± 1 standard deviation")  # fmt: skip
        axes.set_xlabel(f"time ({name})")
        axes.set_ylabel("metres per unit of the scene")
        _legend(axes)
    return done()


def memory_plot(rows: NDArray[np.void]) -> str:
    """Returns the time per window and the memory of the process along the recording."""
    with _figure(1.25 * HEIGHT) as (figure, done):
        above, below = figure.subplots(2, sharex=True)
        seconds, scale, name = _times(rows)
        some = rows["windows"] > 0
        at, count = seconds[some] / scale, rows["windows"][some]
        for column, label, color in (
            ("window_s", "whole window", SERIES[0]), ("inference_s", "network", SERIES[1]),
            ("refinement_s", "refinement", SERIES[2]),
        ):  # fmt: skip
            above.plot(at, rows[column][some] / count, color=color, label=label)
        above.set_ylabel("time per window (s)")
        above.set_ylim(bottom=0)
        _legend(above)
        below.plot(at, rows["memory_mb"][some], color=SERIES[0])
        below.set_ylabel("memory (MiB)")
        below.set_ylim(bottom=0)
        below.set_xlabel(f"time in the recording ({name})")
    return done()


def error_plot(lines: Sequence[tuple[str, Array, Array]], unit: str) -> str:
    """Returns errors of the position over time: of each line its name, seconds [N], lengths
    [N]."""
    with _figure(0.9 * HEIGHT) as (figure, done):
        axes = figure.subplots()
        scale, name = time_unit(max((_last(seconds) for _, seconds, _ in lines), default=0.0))
        for (label, seconds, error), color in zip(lines, SERIES, strict=False):
            chosen = _even(len(seconds), MOST_POINTS)
            axes.plot(seconds[chosen] / scale, error[chosen], color=color, label=label)
        axes.set_xlabel(f"time ({name})")
        axes.set_ylabel(f"error of the position ({unit})")
        axes.set_ylim(bottom=0)
        _legend(axes)
    return done()


def time_unit(seconds: float) -> tuple[float, str]:
    """Returns the seconds of a unit that suits a duration, and its name."""
    if seconds >= 3 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if seconds >= 600 else (1.0, "s")


@contextmanager
def _figure(height: float = HEIGHT) -> Iterator[tuple[Any, Callable[[], str]]]:
    """Yields an empty figure, and what returns its SVG afterwards. Nobody's settings count, and
    none stay."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn: list[str] = []
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(RC)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, lambda: drawn[0]
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        drawn.append(_for_page(file.getvalue()))


def _for_page(svg: str) -> str:
    """Returns an SVG to be put into a page: without head, style and metadata of a file."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg,
                 flags=re.S)  # fmt: skip
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    for _ in ("width", "height"):  # the page decides
        svg = re.sub(r'(<svg\b[^>]*?) (?:width|height)="[^"]*"', r"\1", svg)
    own = f"p{zlib.crc32(svg.encode()):08x}-"  # other plots of the page may have the same names
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{own}", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, variable)
    return re.sub(r"\n\s*", "\n", svg).strip()


def _legend(axes: Any) -> None:
    """Puts a legend above the plot, where it hides nothing."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, borderaxespad=0)


def _times(rows: NDArray[np.void]) -> tuple[Array, float, str]:
    """Returns the time [B] of bins since the first one, s, over which stamps that jump back do
    not go; seconds of the unit to draw it in, and that unit."""
    steps = np.diff(rows["last_ns"], prepend=rows["first_ns"][:1]) / 1e9
    seconds = np.cumsum(np.maximum(steps, 0.0))
    return seconds, *time_unit(float(seconds[-1]))


MOST_GROUPS = 120  # of bins, which are drawn as one step


def _group_edges(rows: NDArray[np.void]) -> Array:
    even = np.linspace(0, len(rows), min(len(rows), MOST_GROUPS) + 1).round().astype(int)
    return np.unique(np.concatenate((even, _breaks(rows))))


def _breaks(rows: NDArray[np.void]) -> Array:
    """Returns the bins before which there is a long time without frames: five usual ones, and
    longer than ``LONGEST_STEP_S``."""
    steps = np.diff(rows["last_ns"]) / 1e9
    if not len(steps):
        return np.zeros(0, int)
    limit = max(5 * float(np.median(steps)), LONGEST_STEP_S)
    longest = np.argsort(-steps, kind="stable")[:MOST_BREAKS]
    return np.sort(longest[steps[longest] > limit]) + 1


def _groups(rows: NDArray[np.void]) -> dict[str, Array]:
    """Returns the number of frames, and of those without depth by cause, of groups of bins."""
    names = ("frames", *(f"blind_{cause}" for cause in CAUSES))
    return {name: np.add.reduceat(rows[name], _group_edges(rows)[:-1]) for name in names}


def _group_ends(rows: NDArray[np.void], seconds: Array) -> tuple[Array, Array]:
    """Returns the times [G + E + 1] between which groups, and times without frames, are drawn; and
    the groups before which these E times are."""
    edges, breaks = _group_edges(rows), _breaks(rows)
    steps = np.diff(seconds)
    step = float(np.median(steps)) if len(steps) else 1.0
    ends = np.append(seconds[edges[:-1]], seconds[-1] + step)
    empty = np.searchsorted(edges, breaks)
    return np.insert(ends, empty, np.minimum(seconds[breaks - 1] + step, seconds[breaks])), empty


def thinned(line: Line, most: int) -> Line:
    """Returns a line with an even choice of its points, about ``most``, that keeps the ends of its
    pieces; of very many pieces it has an even choice."""
    if len(line.points) <= most:
        return line
    starts = np.flatnonzero(np.isnan(line.points).any(axis=1))
    pieces = np.split(np.arange(len(line.points)), starts)
    pieces = [pieces[k] for k in _even(len(pieces), MOST_PIECES)]
    share = most / sum(map(len, pieces))
    keep = np.concatenate([p[_even(len(p), max(3, round(share * len(p))))] for p in pieces])
    return replace(line, points=line.points[keep], seconds=line.seconds[keep])


def thinned_spread(spread: Spread, most: int) -> Spread:
    """Returns an even choice of at most ``most`` deviations."""
    keep = _even(len(spread.points), most)
    return Spread(spread.points[keep], spread.seconds[keep], spread.sigma[keep])


def _even(count: int, most: int) -> Array:
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(int))


def _last(seconds: Array) -> float:
    known = seconds[np.isfinite(seconds)]
    return float(known.max()) if len(known) else 0.0
