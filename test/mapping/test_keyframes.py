"""Which views windows share: what becomes a keyframe, which are chosen, and how much is held."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.config import KeyframeConfig
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.keyframes import KeyframeSelector, sharpness
from da3_ros.mapping.map_table import MapTable, OverlapView
from da3_ros.types import Prediction, View

SIZE = (60, 80)
K = np.array([[60.0, 0, 40], [0, 60, 30], [0, 0, 1]])
NOISE = np.random.default_rng(0).integers(0, 256, (*SIZE, 3)).astype(np.uint8)


def overlap_view(number, yaw_deg=0.0, x=0.0, image=NOISE, depth=2.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", yaw_deg, degrees=True).as_matrix()
    T[0, 3] = x
    pixels = np.arange(0, 4800, 7)
    known = np.full(len(pixels), depth)
    return OverlapView(View(number, number, image, K), K, T, pixels, known, np.ones(len(pixels)))


def remember(memory, *overlap_views):
    for one in overlap_views:
        memory.add_view(one, memory.is_new(one))
    return memory


def ids(chosen):
    return [a.view.id for a in chosen]


def memory(newest=3, **values):
    return KeyframeSelector(KeyframeConfig(), newest, MapTable(), **values)


def test_a_standing_camera_makes_one_keyframe_and_no_growth():
    held = remember(memory(), *(overlap_view(i, yaw_deg=0.5 * (i % 2)) for i in range(200)))
    assert [k.id for k in held._keyframes] == [0]
    assert len(held) == 4  # three newest and the keyframe


@pytest.mark.parametrize(("yaw_deg", "x", "new"), [(9, 0, False), (11, 0, True), (0, 0.11, True)])
def test_rotation_or_parallax_makes_a_keyframe(yaw_deg, x, new):
    held = remember(memory(), overlap_view(0))
    assert held.is_new(overlap_view(1, yaw_deg, x)) is new


def test_a_place_that_is_seen_again_makes_no_keyframe():
    held = remember(memory(), *(overlap_view(i, yaw_deg=12 * i) for i in range(6)))
    assert len(held._keyframes) == 6
    assert not held.is_new(overlap_view(9, yaw_deg=3))


def test_a_blurred_view_waits_for_a_better_one():
    blurred = np.full((*SIZE, 3), 128, np.uint8)
    held = remember(memory(), *(overlap_view(i) for i in range(5)))
    assert not held.is_new(overlap_view(6, yaw_deg=15, image=blurred))
    assert held.is_new(overlap_view(7, yaw_deg=15))
    assert held.is_new(overlap_view(8, yaw_deg=25, image=blurred))  # but not for ever


def test_sharpness_does_not_depend_on_brightness():
    assert sharpness(NOISE) == pytest.approx(sharpness(NOISE // 2), rel=0.05)


def test_shared_views_come_in_order():
    """The oldest keyframe in view and the nearest come first, then the newest views."""
    held = remember(memory(newest=5), *(overlap_view(i, x=0.11 * i) for i in range(10)))
    # A fifth of the depth is 0.4 m: number 6 is the last one within it.
    chosen = held.choose(4, 2)
    assert ids(chosen) == [6, 7, 8, 9]
    assert [a.keyframe for a in chosen] == [True, True, False, False]
    assert ids(held.choose(3, 1)) == [6, 8, 9]


def test_coming_back_the_first_keyframe_is_shared_again():
    there_and_back = [*range(10), *range(9, -1, -1)]
    held = memory()
    for i, place in enumerate(there_and_back):
        remember(held, overlap_view(i, yaw_deg=12 * place))
    assert ids(held.choose(5, 2))[0] == 0


def test_without_keyframes_the_newest_views_are_shared():
    held = remember(memory(newest=5), *(overlap_view(i, yaw_deg=3 * i) for i in range(9)))
    assert ids(held.choose(4, 0)) == [5, 6, 7, 8]
    assert ids(held.choose(1, 2)) == [8]


def test_no_view_is_shared_twice_and_never_more_than_asked_for():
    held = memory(newest=7)
    for i in range(60):
        remember(held, overlap_view(i, yaw_deg=4 * i))
        for views in (1, 2, 5, 7):
            chosen = ids(held.choose(views, 2))
            assert len(chosen) == len(set(chosen)) == min(views, i + 1)
            assert chosen[-1] == i


def test_full_memory_drops_the_most_alike_and_keeps_the_oldest():
    held = memory(most=5)
    for i, yaw in enumerate([0, 30, 60, 90, 101, 130, 160]):
        remember(held, overlap_view(i, yaw_deg=yaw))
    kept = [k.id for k in held._keyframes]
    assert len(kept) == 5
    assert kept[0] == 0
    assert 4 not in kept


def test_estimates_of_a_view_are_averaged():
    rng = np.random.default_rng(1)
    held, one = memory(), overlap_view(0)
    remember(held, one)
    for _ in range(200):
        T = one.T_local_camera.copy()
        T[:3, 3] += rng.normal(0, 0.01, 3)
        T[:3, :3] = Rotation.from_rotvec(rng.normal(0, 0.01, 3)).as_matrix()
        depth = np.full((1, *SIZE), 2.1 * np.exp(rng.normal(0, 0.02)), np.float32)
        seen = Prediction(depth, np.ones_like(depth), T[None], K[None])
        placed = Alignment(Similarity(1.0, np.eye(3), np.zeros(3)), True, 0.0, 1.0)
        held.observe(held.choose(1, 0), seen, placed)
    now = held.newest
    assert now.observations == 201
    assert np.abs(now.T_local_camera - one.T_local_camera).max() < 0.003
    np.testing.assert_allclose(now.depth, 2.1, rtol=0.005)
    assert held._keyframes[0].id == now.view.id


def test_pixels_that_show_something_else_leave_the_mean_alone():
    held = remember(memory(), overlap_view(0))
    depth = np.full((1, *SIZE), 0.8, np.float32)
    seen = Prediction(depth, np.ones_like(depth), np.eye(4)[None], K[None])
    placed = Alignment(Similarity(1.0, np.eye(3), np.zeros(3)), True, 0.0, 1.0)
    held.observe(held.choose(1, 0), seen, placed)
    np.testing.assert_allclose(held.newest.depth, 2.0)


def test_a_view_without_any_depth_is_no_trouble():
    empty = dataclasses.replace(
        overlap_view(0), pixels=np.zeros(0, int), depth=np.zeros(0), confidence=np.zeros(0)
    )
    held = remember(memory(), empty)
    assert ids(held.choose(3, 2)) == [0]
    remember(held, overlap_view(1, 20))
    assert ids(held.choose(3, 2))[-1] == 1


def test_keyframes_that_look_alike_are_chosen_oldest_first():
    held = memory()
    for n, descriptor in enumerate(np.eye(4)):
        held.add_view(overlap_view(n, yaw_deg=30 * n), True, descriptor)
    chosen = held.choose_like(2, np.array([0.1, 0.0, 0.7, 0.7]))
    assert ids(chosen) == [2, 3]
    assert all(one.keyframe for one in chosen)


def test_without_descriptors_keyframes_of_all_places_are_chosen():
    held = memory()
    for n in range(5):
        held.add_view(overlap_view(n, yaw_deg=30 * n), True)
    assert ids(held.choose_like(3, np.ones(4))) == [0, 2, 4]
    assert ids(memory().choose_like(3, np.ones(4))) == []


def test_only_keyframes_stay_when_the_camera_is_elsewhere():
    held = remember(memory(), overlap_view(0), overlap_view(1), overlap_view(2, yaw_deg=30))
    held.forget_newest()
    assert held.newest is None
    assert ids(held.all()) == [0, 2]
