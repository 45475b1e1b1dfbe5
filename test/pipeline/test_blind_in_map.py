"""Cameras that see nothing for a while, in a map with loops: loaded, read-only, or its own."""

import dataclasses

import cv2
import numpy as np
import pytest
from support.cases import long_after
from support.ring import SIZE, STEP_NS, walked
from support.sessions import LATER, errors, later, opened, push, resumed, saved

from da3_ros.types import Calibration, Frame

FRAMES = 160
SIGHT = {"hold_when_blind": True}
DARK = 4


@pytest.fixture(scope="module")
def ring():
    """One round; the last frame is beside the first one."""
    return walked(FRAMES, 1.0)


@pytest.fixture(scope="module")
def folder(ring, tmp_path_factory):
    pipeline = opened(ring, metric=True)
    push(pipeline, ring)
    return saved(pipeline, tmp_path_factory.mktemp("map"))


def textured(number):
    """An image that shows something; another one for each number."""
    values = np.random.default_rng(number).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    return cv2.resize(values, SIZE, interpolation=cv2.INTER_CUBIC)


def push_images(pipeline, truth, dark=()):
    """Frames of the truth, black at these numbers."""
    K = truth[0].K.copy()
    K[:2, 2] -= 0.5
    results = []
    for i, f in enumerate(truth):
        image = np.zeros((*SIZE[::-1], 3), np.uint8) if i in dark else textured(i)
        results += pipeline.push(Frame(f.stamp_ns, image, calibration=Calibration(*SIZE, K)))
    return results


def blind(results):
    return [i for i, r in enumerate(results) if r.blind]


@pytest.mark.long
@pytest.mark.parametrize("mode", long_after(1, ["mapping", "localization"]))
def test_a_place_in_a_loaded_map_is_kept_through_the_dark(folder, ring, mode):
    walk = later(ring)[30:80]
    dark = range(30, 30 + DARK)
    pipeline = resumed(folder, ring, walk, metric=True, mode=mode, **SIGHT)
    results = push_images(pipeline, walk, dark)
    assert blind(results) == [*dark]
    assert pipeline.map.pose_known
    error = errors(results, walk, ring[0].T_room_camera)
    seen = [i for i, r in enumerate(results) if r.covariance_map is not None and not r.blind]
    assert set(range(dark.stop, len(walk))) <= set(seen)
    before = [i for i in seen if i < dark.start]
    assert error[dark.stop :, 0].max() < 1.3 * error[before, 0].max() + 0.05
    for i in dark:
        np.testing.assert_allclose(results[i].T_map_camera, results[dark.start - 1].T_map_camera)
        assert np.trace(results[i].covariance_map) > np.trace(results[i - 1].covariance_map)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["mapping", "localization"])
def test_a_camera_carried_in_the_dark_is_found_again_in_the_map(folder, ring, mode):
    """To the other side of the building."""
    there, here = later(ring)[30:60], later(ring)[115:145]
    walk = [*there, *here]
    stamps = [LATER + STEP_NS * (i + 1) for i in range(len(walk))]
    walk = [dataclasses.replace(f, stamp_ns=s) for f, s in zip(walk, stamps, strict=True)]
    dark = range(len(there) - DARK, len(there))
    pipeline = resumed(folder, ring, walk, metric=True, mode=mode, **SIGHT)
    results = push_images(pipeline, walk, dark)
    assert pipeline.map.pose_known
    error = errors(results, walk, ring[0].T_room_camera)
    lost = [i for i, r in enumerate(results) if r.blind == "lost"]
    assert lost == [dark.stop, dark.stop + 1]
    known = [r.covariance_map is not None for r in results[lost[-1] + 1 :]]
    found = known.index(True)
    assert found < 10
    assert all(known[found:])
    before = [r.covariance_map is not None for r in results].index(True)
    drift = error[before : dark.start, 0].max()  # of the map itself
    assert error[lost[-1] + 1 + found :, 0].max() < 1.3 * drift + 0.05


def test_a_map_that_begins_in_the_dark_finds_its_place(folder, ring):
    walk = later(ring)[30:70]
    pipeline = resumed(folder, ring, walk, metric=True, **SIGHT)
    results = push_images(pipeline, walk, range(DARK))
    assert blind(results) == [*range(DARK)]
    assert not pipeline.counters["sight_not_found"]
    assert not any(r.posed for r in results[:DARK])
    assert pipeline.map.pose_known
    assert errors(results[-20:], walk, ring[0].T_room_camera)[:, 0].max() < 0.4


@pytest.mark.long
@pytest.mark.slow
def test_a_loop_is_closed_after_the_dark(ring):
    walk = walked(190, 1.2)
    pipeline = opened(walk, metric=True, **SIGHT)
    dark = range(70, 70 + DARK)
    results = push_images(pipeline, walk, dark)
    assert blind(results) == [*dark]
    assert pipeline.loops.closed
    assert len(pipeline.map.components) == 1
    error = errors(results, walk, walk[0].T_room_camera)
    assert error[-10:, 0].max() < 0.4
