"""What tests compute once in a process is known by all of its arguments, and nobody changes it."""

import dataclasses

import numpy as np
from support.kept_results import KeptResults
from support.renders import content_key

from da3_ros.derived.plane_sweep import SweepView


def view(**changes):
    one = SweepView(np.zeros((4, 6), np.float32), np.eye(3), np.eye(4))
    return dataclasses.replace(one, **changes)


def test_every_value_counts_however_deep_it_is():
    moved = np.eye(4)
    moved[0, 3] = 1e-12
    masked = np.ones((4, 6), bool)
    masked[2, 3] = False
    several = [
        [view()], [view(), view()], [view(T_frame_camera=moved)], [view(valid=masked)],
        [view(grey=np.zeros((6, 4), np.float32))], [view(grey=np.zeros((4, 6)))],
    ]  # fmt: skip
    keys = {content_key((views, 3), {"device": "cpu"}) for views in several}
    assert len(keys) == len(several)
    assert content_key(([view()], 3), {"device": "cpu"}) in keys
    assert content_key(([view()], 4), {"device": "cpu"}) not in keys
    assert content_key(([view()], 3), {"device": "cuda"}) not in keys


def test_callers_get_copies_and_a_paused_one_computes():
    calls = []

    def doubled(x):
        calls.append(1)
        return [2 * x]

    kept = KeptResults(doubled)
    first = kept(np.arange(3))
    first[0][:] = 9
    again = kept(np.arange(3))
    np.testing.assert_array_equal(again[0], [0, 2, 4])
    assert len(calls) == 1
    kept.paused = True
    kept(np.arange(3))
    assert len(calls) == 2


def test_what_was_not_wanted_for_long_leaves():
    calls = []
    kept = KeptResults(lambda x: calls.append(x) or np.full(1000, x), most_bytes=20_000)
    for x in (*range(5), 0, 4, 0):
        kept(x)
    assert calls == [0, 1, 2, 3, 4, 0]
    assert kept._bytes <= 20_000
