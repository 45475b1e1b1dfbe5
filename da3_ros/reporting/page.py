"""One HTML page about a run, with everything in it: see ``docs/recordings.md``, "Read the
report"."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from da3_ros.export.atomic_files import atomic_path, check_file_target
from da3_ros.reporting import html, plots
from da3_ros.reporting.course import path_length
from da3_ros.reporting.gathered import Gathered, gathered
from da3_ros.reporting.run_files import Run
from da3_ros.reporting.sections_of_run import better, cost, loops, recorded, settings
from da3_ros.reporting.sections_of_scene import scene_sections
from da3_ros.reporting.style import STYLE
from da3_ros.reporting.timeline import CAUSES

log = logging.getLogger(__name__)

NAME = "report.html"


@dataclass(frozen=True)
class WrittenPage:
    """What the terminal says of a page."""

    text: str
    unmet: str  # why it lacks the errors that were asked for, in a line; empty: it does not


def write_page(
    source: Path, target: Path, true_poses: Path | None = None, true_name: str | None = None
) -> WrittenPage:
    """Writes the page of a replay's output folder, or of a saved scene.

    true_poses, true_name: as for ``gathered``. Without matplotlib the page has no plots, with a
    warning. The same files give the same bytes. Raises ReportError, ExportError, RecordingError.
    """
    check_file_target(target)
    g = gathered(source, true_poses, true_name)
    if not g.draws:
        log.warning("the report has no plots: %s", plots.MISSING)
    content = _page(g).encode("utf-8", errors="replace")
    with atomic_path(target) as temporary:
        temporary.write_bytes(content)
    count = len(g.advices.found)
    text = (
        f"{target}: {len(content) / 1e6:.1f} MB{'' if g.draws else ', without plots'}; figures "
        f"beyond their limits: {count or 'none'}\n"
    )
    found = [one.compared for one in g.scenes if one.compared is not None]
    no_scene = "There are no poses to compare." if true_poses is not None and not found else ""
    return WrittenPage(text, found[0].unmet if found else no_scene)


def _page(g: Gathered) -> str:
    """Returns the whole page."""
    sections = [
        ("better", "What to do better next time", better(g.advices)),
        ("recorded", "What was recorded, and what was lost", recorded(g)),
    ]
    for number, one in enumerate(g.scenes):
        where = "" if one.is_only else f": {one.kept.camera or 'first camera'}"
        for name, title, content in scene_sections(g, one):
            sections.append((f"{name}{number or ''}", title + where, content))
    sections += [
        ("loops", "Loops and components", loops(g)),
        ("cost", "Time and memory of this run", cost(g)),
        ("settings", "Settings", settings(g.run)),
    ]
    filled = [(name, title, list(content)) for name, title, content in sections]
    filled = [(name, title, content) for name, title, content in filled if content]
    links = (f'<a href="#{name}">{html.text(title)}</a>' for name, title, _ in filled)
    body = [
        f"<h1>{html.text(g.run.name)}</h1>",
        html.paragraph(_subtitle(g.run), "dim"),
        html.tiles(_tiles(g)),
        *(html.paragraph(f"Cannot be read: {problem}", "note") for problem in g.run.problems),
        "" if g.draws else html.paragraph(f"There are no plots: {plots.MISSING}.", "note"),
        "<nav>" + " ".join(links) + "</nav>",
        *(html.section(name, title, content) for name, title, content in filled),
    ]
    return html.page(f"{g.run.name} - da3_ros report", STYLE, "\n".join(body))


def _subtitle(run: Run) -> str:
    report = run.report
    if not report:
        return "Report of a saved scene: what a replay knows of its recording is not there."
    model, camera = report.text("parameters", "model"), report.text("camera")
    return (
        f"Report of a replay by da3_ros {report.text('da3_ros') or html.UNKNOWN}. "
        f"Camera: {camera or html.UNKNOWN}. Network: {model or html.UNKNOWN}."
    )


def _tiles(g: Gathered) -> Iterator[tuple[str, str]]:
    """Yields the most important values with their names."""
    report = g.run.report
    if report:
        blind = sum(g.evidence.count(f"blind_{cause}") for cause in CAUSES)
        yield html.number(report.number("counts", "processed")), "frames processed"
        yield html.number(blind), "of them without depth"
    lines = [kept.timeline for kept in g.run.scenes if kept.timeline is not None]
    spans = [(rows["last_ns"][-1] - rows["first_ns"][0]) / 1e9 for rows in lines if len(rows)]
    if spans:
        yield html.duration(max(spans)), "recorded"
    placed = [one for one in g.scenes if one.kept.scene is not None]
    for one in placed:
        assert one.kept.scene is not None
        yield html.number(path_length(one.kept.scene), one.kept.unit), f"path{one.of}"
    if stored := report.count("counts", "keyframes_stored"):
        yield html.number(stored), "keyframes"
    if placed:
        known = all(one.kept.metric for one in placed)
        yield ("known" if known else html.UNKNOWN), "scale in metres"
