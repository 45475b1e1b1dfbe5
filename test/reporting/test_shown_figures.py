"""Figures of a report are those of the run: in plots, tables and captions."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from da3_ros.reporting import plots
from da3_ros.reporting.figures import Figures
from da3_ros.reporting.keyframes import ShownKeyframe, _one
from da3_ros.reporting.plots import Line, Spread
from da3_ros.reporting.run_files import KeptScene
from da3_ros.reporting.sections_of_run import cost
from da3_ros.reporting.sections_of_scene import _keyframe_caption, _tracks
from da3_ros.reporting.timeline import NEWEST, ROW

T = np.array([0.0, 1.0, 2.0])
POINTS = np.array([[0.0, 1.0, 10.0], [2.0, 4.0, 11.0], [8.0, 5.0, 13.0]])
LINE = Line("path", POINTS, T, plots.SERIES[0])


@pytest.fixture
def figures(monkeypatch):
    """The figures of matplotlib that were drawn."""
    matplotlib = pytest.importorskip("matplotlib.figure")
    drawn, save = [], matplotlib.Figure.savefig

    def savefig(figure, *arguments, **options):
        drawn.append(figure)
        return save(figure, *arguments, **options)

    monkeypatch.setattr(matplotlib.Figure, "savefig", savefig)
    return drawn


def timeline():
    rows = np.zeros(3, ROW)
    for name in NEWEST:
        rows[name] = np.nan
    rows["first_ns"] = rows["last_ns"] = (1e9 * (T + 5)).astype(np.int64)
    rows["frames"] = 1
    rows["windows"], rows["refined"] = (2, 4, 5), (1, 2, 4)
    rows["tracks"], rows["reprojection_px"] = (200, 600, 1000), (0.5, 2.0, 1.0)
    return rows


def band(axes):
    """Lower and upper edge of a band at each of ``T``."""
    (area,) = axes.collections
    (path,) = area.get_paths()
    at = {t: path.vertices[path.vertices[:, 0] == t, 1] for t in T}
    return np.array([[y.min(), y.max()] for y in at.values()]).T


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_path_from_above_is_x_to_the_right_and_y_up_with_ellipses_at_its_poses(figures):
    sigma = np.array([[0.1, 0.2, 9.0], [0.3, 0.4, 9.0], [0.5, 0.6, 9.0]])
    plots.top_view([LINE], Spread(POINTS, T, sigma), "m")
    (axes,) = figures[0].axes
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), POINTS[:, :2])
    np.testing.assert_array_equal(axes.lines[1].get_xydata(), POINTS[:1, :2])
    assert axes.get_xlabel() == "x, forward at the start (m)"
    assert axes.get_ylabel() == "y, left at the start (m)"
    np.testing.assert_array_equal([one.center for one in axes.patches], POINTS[:, :2])
    sizes = [(one.width, one.height) for one in axes.patches]
    np.testing.assert_allclose(sizes, 2 * sigma[:, :2])
    assert legend(axes) == ["path", "± 1 standard deviation", "start"]


def test_ellipses_beyond_the_path_are_cut_and_their_size_is_said(figures):
    plots.top_view([LINE], Spread(POINTS, T, np.full((3, 3), 36.0)), "units")
    (axes,) = figures[0].axes
    assert np.ptp(axes.get_xlim()) < 2 * 8
    assert legend(axes)[1] == "± 1 standard deviation, cut (up to 36 units)"
    assert all(one.get_facecolor()[3] == 0 for one in axes.patches)  # they cover the path
    assert axes.patches[0].width == 72


def test_ellipses_of_a_camera_that_stands_are_whole(figures):
    stands = Line("path", np.ones((3, 3)), T, plots.SERIES[0])
    plots.top_view([stands], Spread(stands.points, T, np.full((3, 3), 36.0)), "units")
    (axes,) = figures[0].axes
    assert np.ptp(axes.get_xlim()) > 72
    assert legend(axes)[1] == "± 1 standard deviation"


def test_the_height_is_z_over_time_with_a_band_of_its_deviation(figures):
    sigma = np.array([[9.0, 9.0, 0.1], [9.0, 9.0, 0.2], [9.0, 9.0, 0.3]])
    plots.height_plot([LINE], Spread(POINTS, T, sigma), "m")
    (axes,) = figures[0].axes
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), np.column_stack((T, POINTS[:, 2])))
    expected = [POINTS[:, 2] - sigma[:, 2], POINTS[:, 2] + sigma[:, 2]]
    np.testing.assert_allclose(band(axes), expected)
    assert legend(axes)[1] == "± 1 standard deviation"


def test_a_band_beyond_the_path_is_cut_and_its_size_is_said(figures):
    plots.height_plot([LINE], Spread(POINTS, T, np.full((3, 3), 36.0)), "units")
    (axes,) = figures[0].axes
    assert axes.get_ylim() == (10 - 2, 13 + 2)  # a quarter of the path's 8 units
    assert legend(axes)[1] == "± 1 standard deviation, cut (up to 36 units)"


def test_tracks_are_those_of_a_window_and_errors_those_of_a_refined_one(figures):
    plots.tracks_plot(timeline())
    above, below = figures[0].axes
    np.testing.assert_allclose(above.lines[0].get_xydata().T, [T, [100, 150, 200]])
    np.testing.assert_allclose(below.lines[0].get_xydata().T, [T, [0.5, 1.0, 0.25]])
    assert above.get_ylabel() == "tracks per window"
    assert below.get_ylabel() == "reprojection error (px)"


def test_the_scale_has_a_band_of_its_relative_deviation(figures):
    rows = timeline()
    rows["scale"], rows["scale_sigma"] = (2.0, 2.5, 4.0), (0.1, 0.2, 0.05)
    plots.scale_plot(rows)
    (axes,) = figures[0].axes
    np.testing.assert_allclose(axes.lines[0].get_xydata().T, [T, rows["scale"]])
    np.testing.assert_allclose(band(axes), [[1.8, 2.0, 3.8], [2.2, 3.0, 4.2]])


def test_times_are_those_of_a_window(figures):
    rows = timeline()
    rows["window_s"], rows["inference_s"], rows["refinement_s"] = (2, 8, 20), (1, 4, 10), 1
    rows["memory_mb"] = 100, 200, 300
    plots.memory_plot(rows)
    above, below = figures[0].axes
    shown = {line.get_label(): line.get_ydata() for line in above.lines}
    np.testing.assert_allclose(shown["whole window"], [1, 2, 4])
    np.testing.assert_allclose(shown["network"], [0.5, 1, 2])
    np.testing.assert_allclose(shown["refinement"], [0.5, 0.25, 0.2])
    np.testing.assert_allclose(below.lines[0].get_ydata(), rows["memory_mb"])


def cells(parts):
    """The rows of tables as names and values."""
    rows = re.findall(r"<tr>(.*?)</tr>", "".join(parts), re.S)
    found = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    return {row[0]: row[1].replace("\N{NO-BREAK SPACE}", " ") for row in found if row}


def test_all_else_is_the_time_without_windows():
    seconds = {"wall_s": 100.0, "window_s": 70.0, "inference_s": 40.0, "refinement_s": 20.0}
    run = SimpleNamespace(measured=Figures(seconds | {"dense_s": 5.0}))
    shown = cells(cost(SimpleNamespace(run=run, scenes=[], draws=False)))
    assert [value for name, value in shown.items() if name.startswith("all else")] == ["30 s"]
    assert shown["the whole replay"] == "100 s"
    assert shown["all windows with depth"] == "70 s"
    assert shown["the network, in windows"] == "40 s"
    assert shown["refinement by tracks, in windows"] == "20 s"


def test_tracks_and_their_error_are_told_apart():
    refinement = {"windows": 9, "tracks": 250.0, "reprojection_px": 0.3, "focal_source": {}}
    one = SimpleNamespace(drawn_timeline=None, is_only=True, tracked=[])
    run = SimpleNamespace(report=Figures({"refinement": refinement}))
    shown = cells(_tracks(SimpleNamespace(run=run, scenes=[one], draws=False), one))
    assert shown["refined windows"] == "9"
    assert shown["tracks of such a window, mean"] == "250"
    assert shown["reprojection error, mean"] == "0.3 px"


@pytest.mark.parametrize(("metric", "unit"), [(True, "m"), (False, "units")])
def test_a_caption_names_range_known_and_measured_share(metric, unit):
    shown = ShownKeyframe(0, "left", 1.5, 4.0, 0.9, 0.25, 0.1, ())
    text = _keyframe_caption(shown, KeptScene("", metric=metric), "2 s")
    said = text.replace("\N{NO-BREAK SPACE}", " ")
    assert said == f"At 2 s, left; depth 1.5 to 4 {unit}; 90 % with depth; 25 % measured"


@pytest.mark.parametrize(("metric", "unit"), [(True, 6.0), (False, 3.0)])
def test_depth_of_a_keyframe_is_in_the_unit_of_the_scene(metric, unit):
    """unit: of the scene, a unit of the keyframe's depth."""
    depth = np.linspace(0, 100, 101 * 8, dtype=np.float32).reshape(8, 101)
    measured = np.zeros(depth.shape, bool)
    measured[:2] = True
    blank = np.where(np.arange(101) == 50, np.float32(np.nan), depth)  # a column of 101
    pose = SimpleNamespace(submap=0, stamp_ns=7, camera="")
    keyframe = SimpleNamespace(
        pose=pose, depth=blank, confidence=depth + 1, image=np.zeros((8, 101, 3), np.uint8)
    )
    stored = SimpleNamespace(
        load=lambda key: keyframe,
        load_measured=lambda key: SimpleNamespace(measured=measured, depth=depth),
        submaps={0: SimpleNamespace(T_map_submap=SimpleNamespace(scale=3.0))},
        map=SimpleNamespace(scene_scale=2.0, metric=metric), frames={0: pose},
    )  # fmt: skip
    shown = _one(stored, [0], 0)
    assert shown.near == pytest.approx(2 * unit, rel=0.05)
    assert shown.far == pytest.approx(98 * unit, rel=0.01)
    assert shown.known == pytest.approx(100 / 101)
    assert shown.measured == pytest.approx(0.25)
