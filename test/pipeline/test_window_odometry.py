"""What a correction of the map changes in odometry."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from support.submaps import table_of

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.covariance import UNMEASURED
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.map_table import OverlapView
from da3_ros.pipeline.window_odometry import WindowOdometry
from da3_ros.types import View

K = np.array([[60.0, 0, 40], [0, 60, 30], [0, 0, 1]])
METRES = 2.0  # per unit of odometry


def pose(x):
    T = np.eye(4)
    T[0, 3] = x
    return T


@pytest.fixture
def odometry():
    """A view in each of two submaps; the prior's frame is 5 m beside odometry's."""
    table = table_of([Similarity.from_pose(pose(n)) for n in range(2)])
    odometry = WindowOdometry(config_from_parameters({}), UNMEASURED, Counter(), table)
    for n in range(2):
        view = View(n, n, np.zeros((60, 80, 3), np.uint8), K, T_prior_camera=pose(METRES * n + 5))
        depth = np.full(10, 2.0)
        one = OverlapView(view, K, pose(n), np.arange(10), depth, np.ones(10), submap=n)
        odometry.share(one, keyframe=True)
    return odometry


def correct(odometry, metres):
    """The older submap moves by one unit of odometry."""
    moves = Moves((Node(0, 0),), (Similarity.from_pose(pose(-1)),))
    correction = Correction(moves, IDENTITY, IDENTITY)
    odometry._table.correct(correction)
    odometry.apply_correction(correction, metres)


def test_the_priors_poses_move_as_the_views_do(odometry):
    """Else the next window would have the motion that the correction took out."""
    correct(odometry, METRES)
    old, new = odometry.overlap_views.all()
    assert new.view.T_prior_camera[0, 3] == METRES + 5
    ours = invert_pose(new.T_local_camera) @ old.T_local_camera
    theirs = invert_pose(new.view.T_prior_camera) @ old.view.T_prior_camera
    np.testing.assert_allclose(theirs[:3, 3], METRES * ours[:3, 3])
    assert ours[0, 3] == pytest.approx(-2.0)


@pytest.mark.parametrize("metres", [np.nan, 0.0])
def test_where_the_unit_is_unknown_they_stay(odometry, metres):
    correct(odometry, metres)
    old, _ = odometry.overlap_views.all()
    assert old.view.T_prior_camera[0, 3] == 5
    assert old.T_local_camera[0, 3] == pytest.approx(-1.0)


def test_without_a_prior_there_is_nothing_to_move(odometry):
    table = odometry._table
    for id in range(2):
        row = table.shared[id]
        view = dataclasses.replace(row.view, T_prior_camera=None)
        table.set_row(dataclasses.replace(row, view=view))
    correct(odometry, METRES)
    assert all(a.view.T_prior_camera is None for a in odometry.overlap_views.all())
