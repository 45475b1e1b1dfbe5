"""Sections of the page about the whole run. Each yields HTML; none if nothing is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from da3_ros.reporting import html, plots
from da3_ros.reporting.advice import Advices
from da3_ros.reporting.gathered import Gathered
from da3_ros.reporting.guide import guide
from da3_ros.reporting.run_files import Run

MOST_NAMED, MOST_PARAMETERS = 50, 500  # entries of a list, and of the settings
# What counts of report.json mean; others are left to that file.
COUNTS = {
    "received": "images read",
    "processed": "frames processed, with and without depth",
    "bad_images": "images that cannot be read",
    "foreign_frames": "images with another frame_id, left out",
    "time_jumps": "jumps of stamps, at which a new chain begins",
    "frames_without_prior": "frames without a pose of the robot",
    "frames_without_imu": "frames without what the IMU measured since the one before",
    "gaps_bridged": "gaps without a known view, which the gyro bridged",
    "windows_turned_by_gyro": "windows in which the gyro has replaced the network's rotation",
    "gyro_contradicted": "windows whose rotations the gyro contradicts",
    "level_doubted": "times that the IMU was found to be wrong about what is up",
    "late_calibrations": "cameras whose camera_info came after their first image",
    "size_changes": "changes of the image size",
    "poses_held": "times that motion was lost at a change of the image size",
    "windows_refused": "windows that did not fit the scene",
    "windows_few_tracks": "windows with too few tracks",
    "keyframes_stored": "keyframes stored",
    "keyframes_not_stored": "keyframes that the disk had no room for",
}
BLIND = {
    "dark": "too dark", "overexposed": "overexposed", "blurred": "blurred", "noise": "only noise",
    "frozen": "equal to the one before", "lost": "the camera was lost",
    "uncertain": "the network was uncertain", "refused": "contradicts the scene",
}  # fmt: skip
LOOPS = {
    "looked_at": "pairs of keyframes that were compared",
    "verified": "windows that verified a loop",
    "closed": "corrections of the map by loops",
    "joins_undone": "joins that later loops have undone",
}
STAGES = {
    "wall_s": "the whole replay",
    "window_s": "all windows with depth",
    "inference_s": "the network, in windows",
    "refinement_s": "refinement by tracks, in windows",
    "rest": "all else: reading, messages, files, waiting, windows without depth",
    "dense_s": "measuring depth, in a thread beside",
}
MEASURED = {
    "frames_per_s": ("frames per second", ""),
    "inference_s_per_window": ("the network in a window", "s"),
    "peak_rss_mb": ("largest memory of the process", "MiB"),
    "map_mb": ("memory of the map at the end", "MiB"),
}


def better(advices: Advices) -> Iterator[str]:
    """What to do better next time."""
    if advices.found:
        yield "<ul class=advice>"
        for advice in advices.found:
            check = advice.check
            more = f"{check.section} (docs/{check.page})"
            yield (
                f"<li><b>{html.text(check.problem)}.</b> {html.text(check.remedy)}<br>"
                f"<span class=dim>{html.text(advice.evidence)}.</span>"
            )
            if section := guide(check.page, check.section):
                yield html.unfolding(f"More: {more}", section)
            else:
                yield html.paragraph(f"More: {more}", "dim")
            yield "</li>"
        yield "</ul>"
    elif advices.are_enough:
        yield html.paragraph(
            f"All is well: none of the {advices.known} known figures is beyond its limit.", "well"
        )
    elif advices.known:
        count = advices.known + len(advices.unknown)
        yield html.paragraph(
            f"Figures that are known: {advices.known} of {count}. None of these is beyond its "
            "limit."
        )
    else:
        yield html.paragraph("No figure is known, so there is no advice.")
    if advices.unknown and advices.known:
        yield html.details(f"Unknown figures: {len(advices.unknown)}", advices.unknown)


def recorded(g: Gathered) -> Iterator[str]:
    """What was recorded and lost, and why."""
    report = g.run.report
    for line in report.texts("recording")[:MOST_NAMED]:
        yield html.paragraph(line[: html.LONGEST], "dim")
    if stopped := report.text("stopped_at"):
        yield html.paragraph(f"Reading stopped early: {stopped}")
    if rows := list(_counts(g.run)):
        yield html.table((), rows)
    if bad := report.texts("bad_images"):
        more = [f"and {len(bad) - MOST_NAMED} more, in report.json"]
        named = bad[:MOST_NAMED] + (more if len(bad) > MOST_NAMED else [])
        yield html.details(f"Images that cannot be read: {len(bad)}", named)
    for one in g.scenes:
        timeline = one.drawn_timeline
        if g.draws and timeline is not None:
            yield html.plots([(
                plots.frames_plot(timeline),
                f"Share of frames{one.of} over time with depth, and without, by cause",
                f"Frames{one.of} over time.",
            )])  # fmt: skip


def _counts(run: Run) -> Iterator[tuple[str, str]]:
    counts = run.report.mapping("counts")
    for key in [*(k for k in COUNTS if k in counts), *sorted(set(counts) - set(COUNTS))]:
        count = html.number(run.report.count("counts", key))
        if key in COUNTS:
            yield COUNTS[key], count
        elif key.startswith("dropped_"):
            yield f"dropped: {key[len('dropped_') :].replace('_', ' ')}", count
        elif key.startswith("suspect_"):
            cause = key[len("suspect_") :]
            yield f"looked at twice: {BLIND.get(cause, cause)}", count
        elif key.startswith("blind_"):
            cause, _, camera = key[len("blind_") :].partition("_")
            of = f" ({camera})" if camera else ""
            yield f"without depth: {BLIND.get(cause, cause)}{of}", count


def loops(g: Gathered) -> Iterator[str]:
    """Loops and components."""
    if g.run.report.mapping("loops"):
        number = g.run.report.number
        yield html.table(
            (), [(title, html.number(number("loops", name))) for name, title in LOOPS.items()]
        )
    for one in g.scenes:
        scene, timeline = one.kept.scene, one.kept.timeline
        if scene is None:
            continue
        count, apart = len(scene.components), scene.unconnected
        which = f"{one.kept.camera}: " if one.of else ""
        unknown = f"; the pose in the map is unknown of {apart}" if apart else ""
        yield html.paragraph(f"{which}components of the scene: {count}{unknown}.")
        if timeline is not None and timeline["loops"].any():
            stamps = timeline["last_ns"][timeline["loops"] > 0]
            when = [html.duration((int(stamp) - one.begin_ns) / 1e9) for stamp in stamps]
            more = f" and {len(when) - MOST_NAMED} more" if len(when) > MOST_NAMED else ""
            named = ", ".join(when[:MOST_NAMED])
            yield html.paragraph(f"{which}loops corrected the map at {named}{more}.")


def cost(g: Gathered) -> Iterator[str]:
    """Time and memory: what differs between two runs."""
    measured = g.run.measured
    if not measured:
        return
    yield html.paragraph("Only this section differs between two replays of a recording.", "dim")
    times = {key: measured.number(key) for key in STAGES if key != "rest"}
    times["rest"] = times["wall_s"] - times["window_s"]
    yield html.table(
        ("Stage", "Time"), [(title, html.number(times[key], "s")) for key, title in STAGES.items()]
    )
    yield html.table(
        (), [(title, html.number(measured.number(k), unit)) for k, (title, unit) in
             MEASURED.items()],
    )  # fmt: skip
    for one in g.scenes:
        rows = one.drawn_timeline
        if g.draws and rows is not None and np.isfinite(rows["window_s"]).any():
            yield html.plots([(
                plots.memory_plot(rows),
                f"Time per window{one.of}, and memory of the process, along the recording",
                f"Time per window{one.of}, and memory.",
            )])  # fmt: skip


def settings(run: Run) -> Iterator[str]:
    """Options and parameters."""
    options = {
        k: v for k, v in run.report.mapping("options").items() if v not in (None, False, {})
    }
    if options:
        yield html.table(("Option", "Value"), [(k, str(v)) for k, v in sorted(options.items())])
    if values := run.report.mapping("parameters"):
        rows = [(name, str(value)) for name, value in sorted(values.items())[:MOST_PARAMETERS]]
        opened = f"<details class=settings><summary>Parameters: {len(rows)}</summary>"
        yield opened + html.table(("Parameter", "Value"), rows) + "</details>"
