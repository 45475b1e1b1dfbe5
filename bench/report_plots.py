"""Plots of results as SVG texts: the same bytes for the same numbers, on every computer.

Drawn here, because what a drawing library writes changes with its version, and `report.py --check`
compares bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
WIDTH, HEIGHT = 720, 300  # of a panel, pixels
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 46  # margins
INK, GRID = "#222222", "#dddddd"
FONT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True)
class Series:
    """Points of one name and colour; ``labels`` stand beside them."""

    name: str
    points: Sequence[tuple[float, float]]
    labels: Sequence[str] = ()
    line: bool = True


@dataclass(frozen=True)
class Axis:
    """A title and a scale; logarithmic ones have only values above 0."""

    title: str
    log: bool = True

    def limits(self, values: Sequence[float]) -> tuple[float, float]:
        """Returns the first and the last tick around values."""
        low, high = min(values), max(values)
        if not self.log:
            high *= 1.05  # the topmost points have room for their labels
            step = _round_up(high / 5 or 1.0)
            return 0.0, step * max(1, math.ceil(high / step - 1e-9))
        if low <= 0:
            raise ValueError(f"{self.title}: {low} has no place on a logarithmic axis")
        first, last = _round_down(low), _round_up(high)
        return first, last if last > first else _round_up(1.5 * first)

    def ticks(self, low: float, high: float) -> list[float]:
        """Returns the ticks from ``low`` to ``high``."""
        if self.log:
            powers = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high)) + 1)
            near = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
            return [t for t in near if low * 0.999 <= t <= high * 1.001]
        step = _round_up(high / 5)
        return [step * k for k in range(round(high / step) + 1)]

    def share(self, value: float, low: float, high: float) -> float:
        """Returns where a value lies between the limits, 0 to 1."""
        if self.log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


@dataclass(frozen=True)
class Panel:
    """One pair of axes with its series."""

    x: Axis
    y: Axis
    series: Sequence[Series]

    def drawn(self, top: float) -> list[str]:
        """Returns the elements, ``top`` pixels below the picture's upper edge."""
        xs, ys = ([p[k] for s in self.series for p in s.points] for k in (0, 1))
        x_range, y_range = self.x.limits(xs), self.y.limits(ys)

        def at(x: float, y: float) -> tuple[float, float]:
            right = LEFT + self.x.share(x, *x_range) * (WIDTH - LEFT - RIGHT)
            down = HEIGHT - BOTTOM - self.y.share(y, *y_range) * (HEIGHT - TOP - BOTTOM)
            return right, top + down

        parts = []
        for x in self.x.ticks(*x_range):
            (left, low), (_, high) = at(x, y_range[0]), at(x, y_range[1])
            parts += [_line(left, low, left, high), _text(left, low + 18, _short(x), "middle")]
        for y in self.y.ticks(*y_range):
            (left, low), (right, _) = at(x_range[0], y), at(x_range[1], y)
            parts += [_line(left, low, right, low), _text(left - 8, low + 4, _short(y), "end")]
        middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
        parts.append(_text(middle, top + HEIGHT - 8, self.x.title, "middle"))
        turned = f'transform="rotate(-90 14 {top + HEIGHT / 2:.1f})"'
        parts.append(_text(14, top + HEIGHT / 2, self.y.title, "middle", turned))
        for number, series in enumerate(self.series):
            parts += _drawn(series, COLORS[number % len(COLORS)], at)
        return parts


def picture(panels: Sequence[Panel], title: str) -> str:
    """Returns panels below each other as SVG, with one legend above them."""
    names = [s.name for s in panels[0].series]
    above = 20 * len(names) + 8
    height = above + HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" {FONT} fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, name in enumerate(names):
        down = 20 * number + 16
        parts.append(_dot(LEFT + 8, down - 4, COLORS[number % len(COLORS)]))
        parts.append(_text(LEFT + 20, down, name))
    for number, panel in enumerate(panels):
        parts += panel.drawn(above + number * HEIGHT)
    return "\n".join([*parts, "</svg>", ""])


def _drawn(
    series: Series, color: str, at: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    places = [at(*point) for point in series.points]
    parts = []
    if series.line:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        )
    parts += [_dot(x, y, color) for x, y in places]
    for (x, y), label in zip(places, series.labels, strict=False):
        inside = x < 0.8 * WIDTH
        parts.append(_text(x + 6 if inside else x - 6, y - 6, label, "start" if inside else "end"))
    return parts


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    ends = f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
    return f'<line {ends} stroke="{GRID}"/>'


def _dot(x: float, y: float, color: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}{' ' + more if more else ''}>{escape(text)}</text>"


def _short(value: float) -> str:
    return f"{value:.6g}"


def _round_up(value: float) -> float:
    """Returns the next of 1, 2, 5 and their tenfolds that is at least ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(d * power for d in (1, 2, 5, 10) if d * power >= value * (1 - 1e-9))


def _round_down(value: float) -> float:
    """Returns the last of 1, 2, 5 and their tenfolds that is at most ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(d * power for d in (5, 2, 1) if d * power <= value * (1 + 1e-9))
