"""Statistics of descriptors that a thread computes are taken over at a fixed keyframe."""

import threading

import numpy as np
import pytest

from da3_ros.mapping import descriptor_index
from da3_ros.mapping.descriptor_index import DescriptorIndex, whitened, whitening


def descriptors(count):
    rng = np.random.default_rng(1)
    basis = rng.normal(size=(5, 48))
    return list(rng.normal(size=(count, 5)) @ basis + 0.3 * rng.normal(size=(count, 48)))


def filled(all, held, removed_at=()):
    """The index after adding all descriptors; some are removed on the way."""
    index = DescriptorIndex()
    for k, one in enumerate(all):
        held.append(one)
        index.add(one, lambda: held)
        for place in removed_at if k % 7 == 6 else ():
            del held[place]
            index.remove(place)
    return index


@pytest.mark.parametrize("removed_at", [(), (0, 5)])
def test_rows_are_those_of_the_kept_descriptors(removed_at):
    held = []
    index = filled(descriptors(400), held, removed_at)
    found = whitened(np.array(held), index._whitening)
    np.testing.assert_allclose(index.like(), found @ found[-1], atol=1e-12)
    assert len(held) == len(index.like())
    neighbours = (found[:-1] * found[1:]).sum(axis=1)
    np.testing.assert_allclose(index.neighbours(), neighbours, atol=1e-12)


def test_a_slow_thread_changes_nothing(monkeypatch):
    quick = filled(descriptors(300), []).like()
    statistics, release = descriptor_index.statistics, threading.Event()

    def slow(values):
        if threading.current_thread() is not threading.main_thread():
            release.wait(0.02)
        return statistics(values)

    monkeypatch.setattr(descriptor_index, "statistics", slow)
    np.testing.assert_array_equal(filled(descriptors(300), []).like(), quick)


def test_statistics_follow_what_is_added():
    """Those of the first half are not kept: the second half is of another kind."""
    all, held = descriptors(400), []
    all[200:] = [one + 40 for one in all[200:]]
    index = filled(all, held)
    newest = whitened(np.array(all), whitening(np.array(all[:370])))
    assert np.corrcoef(index.like(), newest @ newest[-1])[0, 1] > 0.99


def test_fixed_statistics_stay_and_hold_nothing_back():
    all, held = descriptors(400), []
    index = filled(all[:200], held)
    before = None
    for k, one in enumerate(all[200:]):
        held.append(one)
        index.add(one, lambda: held, fixed=True)
        if k == 0:
            before = index._whitening
        index.remove(len(held) - 1)
        held.pop()
    assert index._whitening is before
    assert len(index._since) == 0
    assert len(index.neighbours()) == len(held) - 1
