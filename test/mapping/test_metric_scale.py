"""What a scene's unit is in metres, by each source, against the truth."""

import dataclasses

import numpy as np
import pytest
from support.robot_ways import DEPTH, at, drive
from support.submaps import adjust, local_frame

from da3_ros.config import ScaleConfig
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.frames import PoseInSubmap
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.metric_scale import MapScale, OdomFrame, ScaleFilter
from da3_ros.mapping.submap_spill import Submap
from da3_ros.scale_sources import SCALE_SOURCES
from da3_ros.scale_sources.estimates import MeasurementFilter
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import Scale, ScaleMeasurement, View, Window, WindowEstimate


def follow(config, values, windows_each=1):
    keeper = ScaleFilter(config)
    scales = []
    for value in values:
        for _ in range(windows_each):
            keeper.estimator.add(ScaleMeasurement(value, 0.02), 1.0)
            scales.append(keeper.update())
    return scales


def test_scale_is_not_metric_early_and_steps_within_bounds():
    """The answer is not metric before it is known and never steps farther than allowed."""
    config = ScaleConfig(source="metric_model", max_step=0.01)
    scales = follow(config, [2.0] * 10 + [3.0] * 80)
    assert not scales[0].metric
    assert np.isnan(scales[0].value)
    values = np.array([s.value for s in scales if s.metric])
    assert values[0] == pytest.approx(2.0)
    assert np.abs(np.log(values[1:] / values[:-1])).max() <= np.log(1.01) + 1e-12
    assert values[-1] == pytest.approx(3.0, rel=0.01)
    way = [s for s in scales if s.metric and s.value < 2.7 and s.value > 2.2]
    assert way
    for scale in way:  # the rest of the way is part of its stated uncertainty
        assert abs(np.log(3.0 / scale.value)) < 3 * scale.sigma


def test_measures_without_agreement_are_no_knowledge():
    config = ScaleConfig(source="metric_model")
    keeper = ScaleFilter(config)
    for _ in range(10):
        keeper.estimator.add(ScaleMeasurement(2.0, 0.9), 1.0)
        assert not keeper.update().metric


@pytest.mark.parametrize(("source", "value"), [("none", None), ("fixed", 1.0)])
def test_declared_sources_ignore_measurements(source, value):
    keeper = ScaleFilter(ScaleConfig(source=source, factor=2.0))
    keeper.estimator.add(ScaleMeasurement(5.0, 0.01), 1.0)
    scale = keeper.update()
    assert scale.metric == (value is not None)
    assert scale.value == value or np.isnan(scale.value)


def test_odometry_goes_on_smoothly_while_the_scale_is_corrected():
    continuity = OdomFrame()
    scales = np.where(np.arange(60) < 30, 2.0, 2.1)
    places = []
    for i, metres in enumerate(scales):
        T = at(100.0 + 0.1 * i)
        T_odom_local = continuity.add(T, metres, metric=True)
        places.append(T_odom_local[0, 3] + metres * T[0, 3])
    steps = np.diff(places)
    np.testing.assert_allclose(steps, 0.1 * scales[1:], atol=1e-9)


def test_a_new_unit_leaves_the_beginning_of_the_chain_where_it_was():
    """In the map, and in the published odometry."""
    submaps = MapTable()
    scale = MapScale(ScaleConfig(), submaps)
    scale.restart(at(10.0))
    for unit in (5.0, 2.0):
        scale._set_unit(unit)
        assert submaps.T_map_local.points(at(10.0)[:3, 3])[0] == pytest.approx(10.0)
        for x in (10.0, 10.3):
            published = scale.shifted(at(x), Scale())[0, 3] * scale.published_unit(Scale())
            assert published == pytest.approx(10.0 + unit * (x - 10.0))


def view_with(T_prior_camera):
    return View(0, 0, np.zeros((2, 2, 3), np.uint8), T_prior_camera=T_prior_camera)


@pytest.mark.parametrize("source", ["metric_model", "odometry"])
def test_a_new_unit_of_the_chain_keeps_metres(source):
    """Lengths that a new focal length has made 1.2 times as long are still as many metres. What
    was measured before had the error of the old focal length; the scale need not creep."""
    keeper = ScaleFilter(ScaleConfig(source=source, max_step=0.01))
    unit, wrong, values = 1.0, 1.1, []
    for k, (ours, theirs) in enumerate(drive(2.0, steps=150)):
        if k == 100:
            keeper.change_unit(1.2)
            unit, wrong = 1.2, 1.0
        if source == "metric_model":
            keeper.estimator.add(ScaleMeasurement(2.0 * wrong, 0.02), unit)
        else:
            ours[:3, 3] *= unit / wrong
            keeper.estimator.add_motion(view_with(theirs), ours, unit * DEPTH / 2.0)
        values.append(keeper.update().value * unit / 2.0)
    assert values[99] == pytest.approx(1.1, abs=0.001)
    assert values[100] == pytest.approx(1.1, abs=0.001)  # held until measured anew
    assert values[-1] == pytest.approx(1.0, abs=0.005)
    jumps = np.abs(np.diff(values[100:])) > 0.02
    assert jumps.sum() == 1


def test_only_measurements_that_are_certain_enough_replace_a_held_scale():
    keeper = ScaleFilter(ScaleConfig(source="metric_model", max_step=0.01))
    for _ in range(3):
        keeper.estimator.add(ScaleMeasurement(2.0, 0.02), 1.0)
    assert keeper.update().value == pytest.approx(2.0)
    keeper.change_unit(1.0001)
    assert keeper.update().sigma >= 0.15  # as long as nothing is measured
    for value in (3.0, 3.1, 2.9):
        keeper.estimator.add(ScaleMeasurement(value, 0.3), 1.0)
        assert keeper.update().value == pytest.approx(2.0, rel=0.001)
    for _ in range(15):
        keeper.estimator.add(ScaleMeasurement(2.4, 0.02), 1.0)
        found = keeper.update()
    assert found.value == pytest.approx(2.4, rel=0.01)
    assert found.sigma < 0.15


def test_a_scale_without_news_is_less_certain_with_the_way():
    """The unit of the chain drifts, whether the source is gone or says nothing new."""
    scale = MapScale(ScaleConfig(source="metric_model"))
    keeper = scale.filter
    for value in (1.96, 2.0, 2.04):
        keeper.estimator.add(ScaleMeasurement(value, 0.02), 1.0)
    known = keeper.update()

    def go(metres, depth):
        for x in np.linspace(0, metres, 5):
            keeper.note_way(at(x), depth)
        return keeper.update()

    assert go(0.0, 1.0) == known  # a robot that stands
    found = go(100.0, 2.0)
    assert found.value == known.value
    assert found.sigma == pytest.approx(np.hypot(known.sigma, 0.007 * np.sqrt(50)))
    keeper.estimator.add(ScaleMeasurement(2.0, 0.02), 1.0)
    assert keeper.update().sigma < 0.5 * found.sigma


def test_a_unit_that_changes_before_the_first_value_leaves_the_limit():
    keeper = ScaleFilter(ScaleConfig(source="metric_model", max_step=0.01))
    keeper.change_unit(1.2)
    values = []
    for value in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0):
        keeper.estimator.add(ScaleMeasurement(value, 0.05), 1.0)
        values.append(keeper.update().value)
    steps = np.abs(np.diff(np.log(values[2:])))
    assert steps.max() < 0.0101


@pytest.mark.parametrize(
    ("source", "value"), [("metric_model", 2.0), ("odometry", 1.0), ("rig", 1.0), ("fixed", 1.0)]
)
def test_the_factor_of_what_a_source_measures_counts(source, value):
    """A focal length changes depths and distances differently."""
    scale = MapScale(ScaleConfig(source=source, factor=4.0))
    window = Window(0, (View(0, 0, "", np.zeros((2, 2, 3), np.uint8)),), 1)
    measure = ScaleMeasurement(4.0, 0.02)
    ones = np.ones((1, 2, 2), np.float32)
    estimate = WindowEstimate(ones, ones, np.eye(4)[None], np.eye(3)[None], measures=(measure,))
    for _ in range(3):
        found = scale.update(window, estimate, Similarity(1.0, np.eye(3), np.zeros(3)))
    assert found.value == pytest.approx(1.0 if source == "fixed" else 4.0)
    before = scale._submaps.metres
    scale.change_unit(depth=2.0, motion=4.0)
    estimate = dataclasses.replace(estimate, measures=(None,))
    again = scale.update(window, estimate, Similarity(1.0, np.eye(3), np.zeros(3)))
    assert again.value == pytest.approx(value)
    assert scale._submaps.metres == pytest.approx(
        before
    )  # older parts of the map stay as they are
    longer = 4.0 / value if source != "fixed" else 1.0  # one map unit, in the new unit
    assert longer * scale.unit == pytest.approx(1.0)


@pytest.mark.parametrize("measured", [False, True])
def test_poses_of_the_odometry_itself_are_no_witness_of_its_metres(measured, monkeypatch):
    """Unless the network's motion confirms them. To a source that needs no odometry they are."""

    class Seen(MeasurementFilter):
        def __init__(self):
            super().__init__()
            self.views, self.interrupted = [], 0

        def add_motion(self, view, T_local_camera, depth):
            self.views.append(view)

        def interrupt_motion(self):
            self.interrupted += 1

    class Own(ScaleSource):
        def estimator(self):
            return Seen()

    class Needy(Own):
        needs_prior = True

    monkeypatch.setitem(SCALE_SOURCES, "own", Own)
    monkeypatch.setitem(SCALE_SOURCES, "needy", Needy)
    scale = MapScale(ScaleConfig(source="own+needy"))
    own, needy = scale.filter.estimator.members
    ones = np.ones((1, 2, 2), np.float32)
    measure = ScaleMeasurement(2.0, 0.01) if measured else None
    estimate = WindowEstimate(
        ones, ones, np.eye(4)[None], np.eye(3)[None], measures=(None, measure)
    )
    window = Window(0, (view_with(None),), 1)
    scale.update(window, estimate, Similarity(1.0, np.eye(3), np.zeros(3)), own_motion=False)
    assert len(own.views) == 1
    assert own.interrupted == 0
    assert (len(needy.views), needy.interrupted) == ((1, 0) if measured else (0, 1))


class Remembering(MeasurementFilter):
    """Has the poses of all frames, by what it is told."""

    def __init__(self):
        super().__init__()
        self.poses = {}

    def add_motion(self, view, T_local_camera, depth):
        self.poses[view.id] = T_local_camera

    def refine(self, poses):
        self.poses |= poses

    def move(self, moves):
        self.poses |= {id: S.pose(self.poses[id]) for id, S in moves.items()}


def test_sources_of_metres_are_told_where_earlier_frames_are_now():
    """Also of one that is in no row, since its camera stood."""
    table = MapTable(
        Submap(i, 0, Similarity(1.0, np.eye(3), at(x)[:3, 3])) for i, x in ((0, 0.0), (1, 1.0))
    )
    scale = MapScale(ScaleConfig(), table)
    told = scale.filter.estimator = Remembering()
    picture, depth = np.zeros((2, 2, 3), np.uint8), np.ones((2, 2), np.float32)
    for id, (x, submap, stored) in enumerate([(0.5, 0, True), (0.5, 0, False), (1.2, 1, True)]):
        window = Window(id, (View(10 + id, id, picture),), 1)
        estimate = WindowEstimate(
            depth[None], depth[None], at(x)[None], np.eye(3)[None], measures=(None,)
        )
        scale.update(window, estimate, IDENTITY)
        if stored:
            frame = local_frame(id, "", picture, depth, depth, np.eye(3), at(x))
            table.path.add_pose(frame, at(x - submap), submap)
    up = Similarity(2.0, np.eye(3), np.array([0.0, 0.0, 3.0]))
    table.correct(Correction(Moves((Node(0, 0),), (up,)), IDENTITY, IDENTITY))
    right = {10: up.pose(at(0.5)), 11: up.pose(at(0.5)), 12: at(1.2)}
    assert told.poses.keys() == right.keys()
    for id, T in right.items():
        np.testing.assert_array_equal(told.poses[id], T)
    adjust(table, [PoseInSubmap(0, "", 0, at(0.7)), PoseInSubmap(2, "", 1, at(0.3))])
    np.testing.assert_allclose(told.poses[10], up.pose(at(0.7)), atol=1e-12)
    np.testing.assert_allclose(told.poses[12], at(1.3), atol=1e-12)
    np.testing.assert_array_equal(told.poses[11], right[11])
    scale.restart(np.eye(4))  # frames of an earlier chain
    adjust(table, [PoseInSubmap(0, "", 0, at(0.9))])
    np.testing.assert_allclose(told.poses[10], up.pose(at(0.7)), atol=1e-12)
