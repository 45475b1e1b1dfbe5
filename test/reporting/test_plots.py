"""What plots show of long runs, of many components, and of times without frames."""

import re

import numpy as np
import pytest

from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.reporting.course import MOST_COMPONENTS, lines_of
from da3_ros.reporting.plots import Line, Spread, frames_plot, thinned, top_view
from da3_ros.reporting.timeline import ROW

S = 1_000_000_000


def scene_of(components, poses=4):
    """A scene of components with a chain each."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(components * poses):
        T = np.eye(4)
        T[:3, 3] = rng.normal(size=3)
        found.append(Pose(S + number * S // 10, T, np.eye(3), (2, 2), keyframe=True))
    table = Poses.of(found)
    table.rows["submap"] = np.repeat(np.arange(components), poses)
    of = {number: number for number in range(components)}
    return Scene((), table, component_of=of, chain_of=of)


def test_components_beyond_the_colours_are_one_line():
    lines = lines_of(scene_of(12), S)
    assert len(lines) == MOST_COMPONENTS + 1
    assert lines[0].name == "path"
    assert lines[1].name == "component 1, pose unknown"
    assert lines[-1].name == "7 more, pose unknown"
    pieces = np.split(lines[-1].points, np.flatnonzero(np.isnan(lines[-1].seconds)))
    assert [np.isfinite(piece).all(axis=1).sum() for piece in pieces] == [4] * 7
    np.testing.assert_array_equal(np.isnan(lines[-1].points[:, 0]), np.isnan(lines[-1].seconds))


def test_as_many_components_as_colours_have_names():
    assert [line.name for line in lines_of(scene_of(6), S)][-1] == "component 5, pose unknown"


def test_a_line_of_very_many_pieces_keeps_lines_to_draw():
    points = np.random.default_rng(0).normal(size=(120_000, 3))
    points[3::4] = np.nan
    few = thinned(Line("path", points, np.arange(len(points)) / 10, ""), 2000)
    assert len(few.points) < 3000
    drawn = np.isfinite(few.points).all(axis=1)
    assert (drawn[1:] & drawn[:-1]).sum() > 300


def test_a_long_line_keeps_its_ends_and_gaps():
    points = np.cumsum(np.ones((9000, 3)), axis=0)
    points[4000] = np.nan
    few = thinned(Line("path", points, points[:, 0], ""), 500)
    assert len(few.points) == pytest.approx(500, abs=5)
    assert (few.points[0, 0], few.points[-1, 0]) == (1, 9000)
    assert np.isnan(few.points).all(axis=1).sum() == 1
    (gap,) = np.flatnonzero(np.isnan(few.points[:, 0]))
    assert few.points[gap - 1, 0] == 4000


@pytest.mark.slow
def test_labels_of_the_view_from_above_are_inside():
    """A path far from square, whose limits the equal axes widen."""
    points = np.column_stack((np.linspace(0, 50_000, 50), np.linspace(0, 8, 50), np.zeros(50)))
    line = Line("path", points, points[:, 0], "#030301")
    svg = top_view([line], Spread(points[:3], points[:3, 0], np.ones((3, 3))), "units")
    label = re.search(r' x="([\d.-]+)"[^>]*>y, left at the start', svg)
    assert float(label[1]) > 8  # its height
    assert "± 1 standard deviation" in svg


@pytest.mark.slow
def test_times_without_frames_stay_empty():
    rows = np.zeros(60, ROW)
    rows["first_ns"] = rows["last_ns"] = S + np.arange(60) * S // 10
    rows["frames"] = 1

    def pieces():
        """Areas of frames with depth."""
        return max(path.count("M") for path in re.findall(r' d="([^"]*)"', frames_plot(rows)))

    assert pieces() == 1
    for name in ("first_ns", "last_ns"):
        rows[name][20:] += 30 * S
        rows[name][40:] += S
    assert pieces() == 3
