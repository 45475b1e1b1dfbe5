"""Pieces of HTML. Every text is escaped here, and nowhere else."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from da3_ros.reporting.keyframes import Picture

UNKNOWN = "unknown"
NARROW, WIDE = "\N{NARROW NO-BREAK SPACE}", "\N{NO-BREAK SPACE}"  # in numbers, before units
SPACES, REPLACED = f"\n{NARROW}{WIDE}", "\N{REPLACEMENT CHARACTER}"
SHORT = 16  # characters of a cell that is kept on one line
LONGEST = 500  # characters of a cell or an entry, whatever a foreign recording says
# Nothing is loaded, nothing runs: what a page of a foreign recording shows is text and pictures.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)


def text(value: object) -> str:
    """Returns a text for the page; characters that cannot be printed are replaced."""
    shown = (c if c.isprintable() or c in SPACES else REPLACED for c in str(value))
    return html.escape("".join(shown))


def number(value: float, unit: str = "", digits: int = 3) -> str:
    """Returns a number with its unit as a plain text."""
    if not math.isfinite(value):
        return UNKNOWN
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value
    if float(value).is_integer() and abs(value) < 1e15:
        shown = f"{value:,.0f}"
    elif -4 <= exponent < 15:
        shown = f"{value:,.{max(digits - 1 - exponent, 0)}f}"
        shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    else:
        shown = f"{value:.{digits}g}"
    shown = shown.replace(",", NARROW)
    return f"{shown}{WIDE}{unit}" if unit else shown


def percent(share: float) -> str:
    """Returns a share 0..1 in percent."""
    return number(100 * share, "%")


def duration(seconds: float) -> str:
    """Returns a time as a plain text."""
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 120:
        return number(seconds, "s")
    minutes, hours = seconds / 60, seconds / 3600
    return number(minutes, "min") if minutes < 120 else number(hours, "h")


def paragraph(plain: str, kind: str = "") -> str:
    """Returns a paragraph of a plain text."""
    return f"<p{_kind(kind)}>{text(plain)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of plain texts; columns after the first one hold numbers if they look so."""
    out = ["<div class=scroll><table>"]
    if head:
        out.append("<tr>" + "".join(f"<th>{text(cell)}</th>" for cell in head) + "</tr>")
    for row in rows:
        cells = [
            f"<td{_kind(_cell_kind(cell) if column else '')}>{text(_cut(cell))}</td>"
            for column, cell in enumerate(row)
        ]
        out.append("<tr>" + "".join(cells) + "</tr>")
    return "\n".join([*out, "</table></div>"])


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Returns the most important values, each with its name, as plain texts."""
    found = (f"<div class=tile><b>{text(v)}</b><span>{text(n)}</span></div>" for v, n in values)
    return "<div class=tiles>" + "\n".join(found) + "</div>"


def plots(drawn: Iterable[tuple[str, str, str]]) -> str:
    """Returns plots side by side, where the page is wide: of each its SVG, which is no foreign
    text; a description for those who do not see it; and a caption."""
    out = []
    for svg, description, caption in drawn:
        opened = svg.replace("<svg", f'<svg role="img" aria-label="{text(description)}"', 1)
        out.append(f"<figure>{opened}<figcaption>{text(caption)}</figcaption></figure>")
    return "<div class=plots>" + "\n".join(out) + "</div>"


def details(title: str, entries: Iterable[str]) -> str:
    """Returns a list of plain texts that a reader opens."""
    items = "".join(f"<li>{text(_cut(one))}</li>" for one in entries)
    return f"<details><summary>{text(title)}</summary><ul>{items}</ul></details>"


def unfolding(title: str, plain: str) -> str:
    """Returns a plain text that a reader opens; its lines stay lines."""
    return f"<details><summary>{text(title)}</summary><pre>{text(plain)}</pre></details>"


def image(picture: Picture, description: str) -> str:
    """Returns a picture."""
    width, height = picture.size
    return (
        f'<img src="{picture.url}" width="{width}" height="{height}" loading="lazy" '
        f'alt="{text(description)}">'
    )


def section(name: str, title: str, content: Iterable[str]) -> str:
    """Returns a part of the page with a heading. name: its anchor."""
    body = "\n".join(content)
    return f'<section id="{name}">\n<h2>{text(title)}</h2>\n{body}\n</section>'


def page(title: str, style: str, body: str) -> str:
    """Returns a page that loads nothing and runs nothing."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def _cut(plain: str) -> str:
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]} ..."


def _cell_kind(cell: str) -> str:
    return "number" if cell[:1].isdigit() and len(cell) <= SHORT else ""


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""
