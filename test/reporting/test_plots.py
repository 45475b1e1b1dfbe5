"""What plots show of long runs, of many components, and of times without frames."""

import re

import numpy as np
import pytest

from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.reporting.course import MOST_COMPONENTS, lines_of
from da3_ros.reporting.gathered import ShownScene
from da3_ros.reporting.plots import Line, frames_plot, thinned
from da3_ros.reporting.run_files import KeptScene
from da3_ros.reporting.timeline import MOST_BINS, ROW

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


@pytest.mark.parametrize(("scenes", "most"), [(1, 2000), (8, 250), (100, 100)])
def test_scenes_share_the_size_of_a_page(scenes, most):
    rows = np.zeros(MOST_BINS, ROW)
    rows["frames"] = 1
    one = ShownScene(KeptScene("", timeline=rows), [], [], None, 0, scenes)
    assert one.most_points == most
    assert most / 2 < len(one.drawn_timeline) <= most
    assert one.drawn_timeline["frames"].sum() == MOST_BINS


def test_one_bin_is_no_timeline_to_draw():
    one = ShownScene(KeptScene("", timeline=np.zeros(1, ROW)), [], [], None, 0, 1)
    assert one.drawn_timeline is None
