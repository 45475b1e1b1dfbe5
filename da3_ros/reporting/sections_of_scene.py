"""Sections of the page about one scene of the run. Each yields HTML; none if nothing is known."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from da3_ros.drawing.colormaps import CONFIDENCE_EXCESS, color_table
from da3_ros.reporting import html, plots
from da3_ros.reporting.course import lines_of, path_length, spread_of
from da3_ros.reporting.figures import Figures
from da3_ros.reporting.gathered import Gathered, ShownScene
from da3_ros.reporting.keyframes import ShownKeyframe
from da3_ros.reporting.run_files import KeptScene
from da3_ros.reporting.trajectory_errors import Fitted, TrajectoryErrors


def scene_sections(g: Gathered, one: ShownScene) -> Iterator[tuple[str, str, Iterator[str]]]:
    """Yields name, title and content of each section."""
    yield "path", "Trajectory", _trajectory(g, one)
    if one.compared is not None:
        yield "truth", "Against the true poses", _truth(g, one)
    yield "keyframes", "Keyframes", _keyframes(g, one)
    yield "tracks", "Tracks and reprojection error", _tracks(g, one)
    yield "scale", "Scale", _scale(g, one)


def _trajectory(g: Gathered, one: ShownScene) -> Iterator[str]:
    kept, scene = one.kept, one.kept.scene
    if scene is None or not len(scene.poses):
        yield html.paragraph("There are no poses.")
        return
    if not kept.metric:
        yield html.paragraph(
            "Lengths are in the unit of the first window: no source of metres was known.", "dim"
        )
    lines, spread = lines_of(scene, one.begin_ns), spread_of(kept, one.begin_ns)
    if g.draws and len(scene.poses) > 1:
        true = one.compared.true_lines(one.begin_ns) if one.compared is not None else []
        uncertain = "" if spread else " Its uncertainty is not known."
        few = [plots.thinned(line, one.most_points) for line in (*lines, *true)]
        drawn = plots.thinned_spread(spread, one.most_points) if spread else None
        yield html.plots([
            (plots.top_view(few, drawn, kept.unit),
             f"Path of the camera{one.of} from above",
             f"From above, in the axes of the map.{uncertain}"),
            (plots.height_plot(few, drawn, kept.unit),
             f"Height of the camera{one.of} over time", "Height over time."),
        ])  # fmt: skip
    known = [line for line in lines if not line.dashed] or lines
    points = np.concatenate([line.points for line in known])
    extent = np.nanmax(points, axis=0) - np.nanmin(points, axis=0)
    length = html.number(path_length(scene), kept.unit)
    rows = [("length of the path, where motion was measured", length)]
    for axis, size in zip("xyz", extent, strict=True):
        rows.append((f"extent of the path along {axis}", html.number(float(size), kept.unit)))
    if spread is not None:
        last = ", ".join(html.number(float(v), kept.unit, 2) for v in spread.sigma[-1])
        rows.append(("last position, standard deviation of x, y, z as it was published", last))
    yield html.table((), rows)


def _truth(g: Gathered, one: ShownScene) -> Iterator[str]:
    found = one.compared
    assert found is not None
    of = f", held against the poses of {one.kept.camera}" if one.of else ""
    yield html.paragraph(f"True poses: {found.truth.source}{of}.")
    for problem in found.problems:
        yield html.paragraph(problem)
    unit = "m" if found.truth.metric else "units of the truth"
    for name, errors in found.errors.items():
        yield f"<h3>{html.text(name)}</h3>"
        yield html.table(*_error_table(errors, unit))
        line = "Positions on a line leave the turn about it open: orientations gave the fit."
        stands = "The true camera stands: neither drift nor the scale of the fit is known."
        note = line if errors.sim3.by_orientation else ""
        yield html.paragraph(
            f"Poses with a true one: {errors.poses}; their path: "
            f"{html.number(errors.path_m, unit)}. {note if errors.moves else stands}",
            "dim",
        )
    if g.draws and found.errors:
        yield html.plots([(
            plots.error_plot(found.error_lines(), unit),
            "Error of the position over time, against the true poses",
            "Error of the position over time, after the fit.",
        )])  # fmt: skip


def _error_table(
    errors: TrajectoryErrors, unit: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns head and rows of the table of errors."""
    fits = [("Sim(3): with scale", errors.sim3)]
    fits += [("SE(3): without scale", errors.se3)] if errors.se3 is not None else []

    def row(title: str, values: list[float], of: str) -> tuple[str, ...]:
        return title, *(html.number(value, of) for value in values)

    every: list[Fitted] = [fit for _, fit in fits]
    rows = [
        row("ATE (root mean square)", [f.ate_m for f in every], unit),
        row("largest error of a position", [float(f.error_m.max()) for f in every], unit),
        row("RPE from pose to pose, position (root mean square)", [f.rpe_m for f in every], unit),
        row("RPE from pose to pose, rotation (root mean square)", [f.rpe_deg for f in every],
            "deg"),
    ]  # fmt: skip
    if not errors.moves:
        return ("After a fit", *(title for title, _ in fits)), rows
    for k, drift in enumerate(errors.sim3.drift):
        over = f"drift over {html.number(drift.distance_m, unit)}"
        rows.append(row(f"{over}, position", [f.drift[k].percent for f in every], "%"))
        rows.append(row(f"{over}, rotation", [f.drift[k].deg_per_m for f in every], f"deg/{unit}"))
    rows.append(row("scale of the fit", [f.T_truth_map.scale for f in every], ""))
    return ("After a fit", *(title for title, _ in fits)), rows


def _keyframes(g: Gathered, one: ShownScene) -> Iterator[str]:
    if not one.keyframes:
        yield html.paragraph("No keyframes are stored.")
        return
    total = g.run.report.count("counts", "keyframes_stored") if one.is_only else 0
    of = f" of {total}, evenly chosen" if total > len(one.keyframes) else ""
    yield html.paragraph(f"Keyframes shown: {len(one.keyframes)}{of}.")
    if one is g.scenes[0]:
        low, high = (1 + value for value in CONFIDENCE_EXCESS)
        yield _color_bar()
        yield html.paragraph(
            "Depth: near (red) to far (blue), over the range below each keyframe. Black: unknown; "
            f"light grey: sky. Confidence: {low:g} (red) to {high:g} (blue). Measured depth: "
            "where the images of other keyframes agree; black elsewhere.", "dim",
        )  # fmt: skip
        if g.run.report.mapping("dense"):
            yield html.table((), _dense_rows(g.run.report))
    yield "<div class=rows>"
    for shown in one.keyframes:
        when = _seconds(shown.stamp_ns, one.begin_ns)
        yield "<figure><div class=keyframe>"
        for picture in shown.pictures:
            described = f"{picture.title} of the keyframe at {when}"
            caption = f"<span>{html.text(picture.title)}</span>"
            yield f"<div>{html.image(picture, described)}{caption}</div>"
        caption = html.text(_keyframe_caption(shown, one.kept, when))
        yield f"</div><figcaption>{caption}</figcaption></figure>"
    yield "</div>"


def _keyframe_caption(shown: ShownKeyframe, kept: KeptScene, when: str) -> str:
    words = [f"At {when}" + (f", {shown.camera}" if shown.camera else "")]
    if math.isfinite(shown.near):
        near, far = html.number(shown.near, "", 2), html.number(shown.far, kept.unit, 2)
        words.append(f"depth {near} to {far}")
    words.append(f"{html.percent(shown.known)} with depth")
    if math.isfinite(shown.measured):
        words.append(f"{html.percent(shown.measured)} measured")
    return "; ".join(words)


def _color_bar() -> str:
    """Returns the colours from near to far, as a bar."""
    colors = color_table("spectral")[np.linspace(0, 255, 11).astype(int)]
    stops = ", ".join(f"rgb({r} {g} {b})" for r, g, b in colors.tolist())
    return (
        '<div class=bar role="img" aria-label="colours from near to far" '
        f'style="background: linear-gradient(90deg, {stops})"></div>'
    )


def _dense_rows(report: Figures) -> Iterator[tuple[str, str]]:
    count, measured = (report.number("dense", k) for k in ("keyframes", "keyframes_measured"))
    yield "keyframes with measured depth", f"{html.number(measured)} of {html.number(count)}"
    if measured > 0:
        share, agreement = (report.number("dense", k) for k in ("share_measured", "agreement"))
        yield "share of all their pixels that is measured", html.percent(share)
        yield "share of what was found that other keyframes confirm", html.percent(agreement)


def _tracks(g: Gathered, one: ShownScene) -> Iterator[str]:
    report, rows = g.run.report, one.drawn_timeline
    if one is g.scenes[0] and report.mapping("refinement"):
        number = report.number
        sources = report.mapping("refinement", "focal_source")
        if not one.is_only:
            yield html.paragraph("Of all cameras together:", "dim")
        yield html.table((), [
            ("refined windows", html.number(number("refinement", "windows"))),
            ("tracks of such a window, mean", html.number(number("refinement", "tracks"))),
            ("reprojection error, mean",
             html.number(number("refinement", "reprojection_px"), "px")),
            *((f"focal length{f' of {camera}' if camera else ''} from", str(source))
              for camera, source in sources.items()),
        ])  # fmt: skip
    if g.draws and rows is not None and rows["tracks"].any():
        yield html.plots([(
            plots.tracks_plot(rows),
            f"Tracks per window{one.of}, and their reprojection error, over time",
            "Feature tracks over time.",
        )])  # fmt: skip
    if not one.tracked:
        return
    yield html.paragraph(
        "A dot is a feature with a track; its line shows where the last views saw it. Green: no "
        "reprojection error; red: two pixels or more; grey: a track without a point.", "dim",
    )  # fmt: skip
    yield "<div class=tracked>"
    for frame in one.tracked:
        when = _seconds(frame.stamp_ns, one.begin_ns)
        caption = f"At {when}: {frame.tracks} tracks, error {html.number(frame.rms_px, 'px')}"
        drawn = html.image(frame.picture, f"feature tracks at {when}")
        yield f"<figure>{drawn}<figcaption>{html.text(caption)}</figcaption></figure>"
    yield "</div>"


def _scale(g: Gathered, one: ShownScene) -> Iterator[str]:
    report, rows = g.run.report, one.drawn_timeline
    if one is g.scenes[0] and report.mapping("scale"):
        metres = html.number(report.number("scale", "metres_per_unit"))
        source = report.text("scale", "source") or html.UNKNOWN
        factor = html.number(report.number("parameters", "scale.factor"))
        yield html.table((), [
            ("source of metres", source),
            *([("scale.factor: metres per unit of the first window", factor)]
              if report.number("parameters", "scale.factor") != 1.0 else []),
            ("metres per unit of the scene, last window", metres),
            ("its standard deviation", html.percent(report.number("scale", "sigma"))),
        ])  # fmt: skip
    elif one.kept.scene is not None:
        known = "in metres" if one.kept.metric else "in an unknown unit"
        yield html.paragraph(f"Lengths of the scene are {known}.")
    if g.draws and rows is not None and np.isfinite(rows["scale"]).sum() > 1:
        yield html.plots([(
            plots.scale_plot(rows), f"Scale{one.of} over time",
            "Scale over time, as it was published.",
        )])  # fmt: skip


def _seconds(stamp_ns: int, begin_ns: int) -> str:
    """Returns a time since the beginning as text."""
    return html.number(round((stamp_ns - begin_ns) / 1e9, 2), "s", 7)
