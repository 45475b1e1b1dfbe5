"""Where submaps lie by the poses of another SLAM, also those that it has no poses of."""

import numpy as np
import pytest

from da3_ros.mapping.following import (
    OwnPoses,
    completed,
    kept,
    largest_move,
    measured_poses_of,
)
from da3_ros.mapping.trajectory import ROW


def at(x):
    T = np.eye(4)
    T[0, 3] = x
    return T


POSES = {i: at(10.0 * i) for i in range(5)}
CHAIN = dict.fromkeys(POSES, 0)


def moves(measured, stays=(), chain=CHAIN, component=CHAIN):
    moved = {i: at(POSES[i][0, 3] + x) for i, x in measured.items()}
    after = completed(moved, POSES, chain, component, stays)
    return [round(after[i][0, 3] - POSES[i][0, 3], 9) for i in POSES]


CASES = [
    ({1: 1.0, 3: 3.0}, (), [1, 1, 2, 3, 3]),  # between, and rigidly at both ends
    ({1: 1.0, 3: 3.0}, {0}, [0, 1, 2, 3, 3]),  # it was placed before and has no pose now
    ({}, (), [0, 0, 0, 0, 0]),
]


@pytest.mark.parametrize(("measured", "stays", "expected"), CASES)
def test_submaps_without_poses_follow_their_neighbours(measured, stays, expected):
    assert moves(measured, stays) == expected


def test_nothing_is_interpolated_across_chains():
    chain = {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}
    assert moves({1: 1.0, 4: 3.0}, chain=chain, component=chain) == [1, 1, 3, 3, 3]
    assert moves({4: 3.0}, chain=chain, component=chain) == [0, 0, 3, 3, 3]
    assert moves({4: 3.0}, chain=chain) == [3, 3, 3, 3, 3]  # one component, by a loop


def own(stamps_s, submaps, x):
    rows = np.zeros(len(stamps_s), ROW)
    rows["stamp_ns"] = (np.array(stamps_s) * 1e9).astype(np.int64)
    rows["submap"] = submaps
    rows["T"][:, :3, :3] = np.eye(3)
    rows["T"][:, 0, 3] = x
    return OwnPoses.of(rows, dict.fromkeys(POSES, 2.0))


def found(poses, stamps_s, chain=CHAIN):
    stamps = (np.array(stamps_s) * 1e9).astype(np.int64)
    index, submap, T = poses.at(stamps, POSES, chain)
    return index.tolist(), submap.tolist(), np.round(T[:, 0, 3], 9).tolist()


def test_own_poses_are_interpolated_in_the_frame_of_the_nearer_ones_submap():
    """Two metres per unit: 5 units of submap 0 are its neighbour's origin."""
    poses = own([1, 2, 3], [0, 0, 1], [0.0, 1.0, 0.0])
    assert found(poses, [0.5, 1, 1.5, 2.9, 3, 4]) == (
        [1, 2, 3, 4], [0, 0, 1, 1], [0.0, 1.0, -0.8, 0.0]
    )  # fmt: skip


def test_long_gaps_and_chains_are_not_bridged():
    poses = own([1, 4, 5], [0, 0, 1], [0.0, 1.0, 0.0])
    assert found(poses, [2, 4.5])[0] == [1]
    assert found(poses, [2, 4.5], {**CHAIN, 1: 1})[0] == []


def test_only_what_came_after_the_last_time_jump_counts():
    poses = own([1, 2, 3, 1, 2], [0, 0, 0, 1, 1], [0.0, 1.0, 2.0, 0.0, 0.0])
    assert found(poses, [1, 2, 3])[1] == [1, 1]


def test_too_few_poses_place_no_submap():
    T = np.array([at(1.0)] * 5)
    submap = np.array([0, 0, 0, 1, 1])
    assert list(measured_poses_of(submap, T, T, 3)) == [0]
    assert measured_poses_of(submap[:0], T[:0], T[:0], 3) == {}


def test_a_submap_that_hardly_moves_stays():
    after = {i: at(10.0 * i + 0.001 * i) for i in POSES}
    found = kept(POSES, after, 0.0015, 0.1)
    stays = [found[i] is POSES[i] for i in POSES]
    assert stays == [True, True, False, False, False]
    assert largest_move(POSES, found)[0] == pytest.approx(0.004)
