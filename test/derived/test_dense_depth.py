"""Depth measured by images: where they decide it is right, and elsewhere it is not called so."""

import dataclasses
import functools

import cv2
import numpy as np
import pytest
from support import painted_walls
from support.cases import long_after

from da3_ros.derived.dense_depth import (
    MOST,
    agreement,
    choose_neighbours,
    dense_depth,
    differences,
)
from da3_ros.derived.plane_sweep import SweepView, sweep
from da3_ros.synthetic import SyntheticCamera

SIZE = (168, 126)
MIDDLE = 3


def grey(image):
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32) / 255


def wrong(depth, seed):
    """Depth as of a small network: blurred, and up to 20 % off, smoothly."""
    known = np.isfinite(depth)
    noise = np.random.default_rng(seed).standard_normal(depth.shape).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), 25)
    full = np.where(known, depth, depth[known].mean())
    blurred = cv2.GaussianBlur(np.log(full), (0, 0), 2)
    return np.exp(blurred + 0.08 * noise / noise.std()).astype(np.float32)


@functools.cache
def room(seed=91, walk="loop"):
    camera = SyntheticCamera(seed=seed, size=SIZE, walk=walk, frames=40)
    frames = [camera[i] for i in range(0, 40, 6)]
    views = tuple(SweepView(grey(f.image), f.K, f.T_room_camera) for f in frames)
    given = tuple(wrong(f.depth, i) for i, f in enumerate(frames))
    return frames, views, given


def measured(views, given, indices=None):
    """The measured depth of views, by index."""
    return painted_walls.measured(views, given)


@functools.cache
def of_room(seed=91, walk="loop"):
    return measured(*room(seed, walk)[1:])


def errors(depth, truth):
    return np.abs(np.log(depth / truth))


def test_measured_depth_is_several_times_better_on_most_pixels():
    frames, _, given = room()
    shares, ratios, all_ratios = [], [], []
    for k, dense in of_room().items():
        truth = frames[k].depth
        known = np.isfinite(truth)
        at = dense.measured & known
        before, after = errors(given[k], truth), errors(dense.depth, truth)
        shares.append(at.sum() / known.sum())
        ratios.append(before[at].mean() / after[at].mean())
        all_ratios.append(before[known].mean() / after[known].mean())
    assert len(shares) == len(frames)
    off = [
        (errors(dense.depth, frames[k].depth) > 0.05)[dense.measured]
        for k, dense in of_room().items()
    ]
    assert np.concatenate(off).mean() < 0.015  # most of what is off is beside edges of depth
    assert np.mean(shares) > 0.5
    assert np.mean(ratios) > 4
    assert min(all_ratios) > 1.3


@pytest.mark.parametrize("apart_usually", [0.0, 0.006])
def test_neighbours_that_contradict_a_depth_make_it_uncertain(apart_usually):
    """One that looks through a point counts four times as much as one that sees something before
    it; where views usually differ by more, all of it counts more."""
    shape = (40, 40)
    network, apart = np.full(shape, 2.0, np.float32), np.full((4, *shape), apart_usually)
    apart[3, :20, :20], apart[3, 20:, 20:] = 0.3, -0.3
    dense = dense_depth(network, network, apart, np.full((4, *shape), 100.0))
    assert dense.measured.all()
    parts = dense.sigma[20:, :20], dense.sigma[:20, :20], dense.sigma[20:, 20:]
    plain, through, before = (float(np.median(part)) for part in parts)
    wider = max(1.0, 4 * apart_usually / 0.01)
    assert plain >= 0.004 * wider
    if not apart_usually:
        assert plain < 0.005
    added = [np.sqrt(s**2 - plain**2) for s in (through, before)]
    np.testing.assert_allclose(added, [wider * 0.06 / 2, wider * 0.06 / 4], rtol=0.05)


@pytest.mark.parametrize("where", ["measured", "elsewhere"])
@pytest.mark.parametrize(("seed", "walk"), long_after(1, [(91, "loop"), (78, "handheld")]))
def test_the_stated_deviation_is_that_of_the_error(where, seed, walk):
    frames = room(seed, walk)[0]
    squares = [
        errors(dense.depth, frames[k].depth)[at] ** 2 / dense.sigma[at] ** 2
        for k, dense in of_room(seed, walk).items()
        for at in [(dense.measured == (where == "measured")) & np.isfinite(frames[k].depth)]
    ]
    print("NEES", where, seed, np.mean(np.concatenate(squares)))
    assert 0.3 < np.mean(np.concatenate(squares)) < 3


@pytest.mark.parametrize("seen", [0, 300])
def test_far_from_what_is_measured_the_network_may_err_more(seen):
    """It errs by up to 20 % where images decide, and by 40 % in a bare wall beside it. Pixels that
    nobody confirms, near measured ones, say nothing of the wall."""
    shape = (96, 128)
    truth = np.full(shape, 2.0, np.float32)
    error = 0.2 * np.sin(np.arange(128) / 8).astype(np.float32)
    error[64:] = 0.4
    network = truth * np.exp(error)
    swept, apart = truth.copy(), np.zeros((3, *shape), np.float32)
    swept[:, 64:] = np.nan
    apart[:, : seen // 64, :64] = np.nan  # nobody confirms these
    dense = dense_depth(network, swept, apart, np.full((3, *shape), 100.0))
    assert dense.measured[4:, :64].all()
    assert not dense.measured[:, 64:].any()
    wall = np.s_[:, 64:]
    nees = np.mean((errors(dense.depth, truth) / dense.sigma)[wall] ** 2)
    assert 0.3 < nees < 3
    assert dense.sigma[50, 120] > 2 * dense.sigma[50, 65]  # more at a distance
    np.testing.assert_allclose(dense.sigma[dense.measured], 0.004, atol=0.001)


def test_exact_depth_stays_exact():
    frames, views, _ = room()
    exact = [np.where(np.isfinite(f.depth), f.depth, 30).astype(np.float32) for f in frames]
    found = measured(views, exact)
    off = [errors(dense.depth, exact[k])[dense.measured] for k, dense in found.items()]
    assert np.mean([dense.measured.mean() for dense in found.values()]) > 0.5
    assert np.median(np.concatenate(off)) < 0.003  # a twentieth of a pixel


def test_sky_is_not_measured():
    frames = room(78, "handheld")[0]
    found = of_room(78, "handheld")
    sky = [dense.measured[np.isinf(frames[k].depth)] for k, dense in found.items()]
    assert sum(map(len, sky)) > 1000
    assert np.concatenate(sky).mean() < 0.05  # the pixels of window frames' edges


@pytest.mark.long
def test_exposure_changes_nothing():
    _, views, given = room()
    darker = tuple(
        dataclasses.replace(v, grey=v.grey * (0.6 + 0.1 * k)) for k, v in enumerate(views)
    )
    before, after = of_room()[MIDDLE], measured(darker, given)[MIDDLE]
    both = before.measured & after.measured
    assert both.sum() > 0.8 * before.measured.sum()
    assert np.median(errors(after.depth, before.depth)[both]) < 0.005


def blank(views):
    return [dataclasses.replace(v, grey=np.full_like(v.grey, 0.5)) for v in views]


def noise(views):
    rng = np.random.default_rng(0)
    return [
        dataclasses.replace(v, grey=rng.uniform(0, 1, v.grey.shape).astype(np.float32))
        for v in views
    ]


def other_rooms(views):
    """Each image is of another room: nothing in them belongs together."""
    return [
        dataclasses.replace(v, grey=grey(SyntheticCamera(seed=k, size=SIZE, frames=1)[0].image))
        for k, v in enumerate(views)
    ]


@pytest.mark.parametrize("images", long_after(1, [blank, other_rooms, noise]))
def test_nothing_is_measured_where_images_say_nothing(images):
    _, views, given = room()
    found = measured(images(views), given)
    assert len(found) == len(views)
    for k, dense in found.items():
        assert not dense.measured.any()
        np.testing.assert_array_equal(dense.depth, given[k])


def test_a_few_pixels_that_agree_by_chance_change_nothing():
    given = room()[2][MIDDLE]
    apart = np.full((2, *given.shape), np.nan)
    apart[:, 50, 50:60] = 0
    dense = dense_depth(given, 1.2 * given, apart, np.full(apart.shape, 20.0))
    np.testing.assert_array_equal(dense.depth, given)
    assert not dense.measured.any()


def agreeing(share):
    """Depth of 2 found where the network has 1.8; two neighbours agree on a share of the rows."""
    network = np.full((60, 80), 1.8, np.float32)
    apart = np.full((2, 60, 80), np.nan, np.float32)
    apart[:, : int(60 * share)] = 0
    return network, np.full_like(network, 2.0), apart, np.full(apart.shape, 20.0, np.float32)


def test_a_speckle_of_another_depth_is_not_measured():
    network, swept, apart, disparity = agreeing(0.8)
    swept[10:14, 10:14] = 1.5
    dense = dense_depth(network, swept, apart, disparity)
    assert dense.measured[:48].sum() == 48 * 80 - 16
    assert not dense.measured[10:14, 10:14].any()


def test_what_one_neighbour_confirms_is_not_called_measured_but_taken():
    network, swept, apart, disparity = agreeing(0.5)
    apart[0, 40:50], swept[40:50] = 0, 2.1
    dense = dense_depth(network, swept, apart, disparity)
    assert not dense.measured[40:].any()
    np.testing.assert_array_equal(dense.depth[40:50], swept[40:50])
    np.testing.assert_allclose(dense.depth[50:], 2.0, rtol=1e-5)  # as corrected


def test_depth_that_few_of_those_who_could_confirm_is_not_measured():
    network, swept, apart, disparity = agreeing(0.08)
    assert not dense_depth(network, swept, apart, disparity).measured.any()
    swept[8:] = np.nan  # nothing to confirm there
    assert dense_depth(network, swept, apart, disparity).measured.any()


def test_measured_depth_is_the_mean_of_what_those_that_agree_have_found():
    network, swept, apart, _ = agreeing(1.0)
    apart = np.concatenate([apart, np.full_like(apart[:1], 0.05)])  # one that does not
    apart[0], apart[1, :, 40:] = 0.009, -0.006
    dense = dense_depth(network, swept, apart, np.full(apart.shape, 20.0))
    assert dense.measured.all()
    np.testing.assert_allclose(dense.depth[:, :40], 2 * np.exp(0.003), rtol=1e-6)
    np.testing.assert_allclose(dense.depth[:, 40:], 2 * np.exp(0.001), rtol=1e-6)


def test_larger_images_of_the_same_views_are_measured_alike():
    """Poses that are a little wrong move more of their smaller pixels."""
    shares = []
    for size in (252, 504):
        network = np.full((size * 3 // 4, size), 1.8, np.float32)
        swept = np.full_like(network, 2.0)
        apart = 0.022 * np.random.default_rng(0).standard_normal((4, *network.shape))
        disparity = np.full(apart.shape, 15.0 * size / 252)
        shares.append(dense_depth(network, swept, apart, disparity).measured.mean())
    small, large = shares
    assert small > 0.9
    assert large > 0.9


def test_what_is_hardly_known_is_not_called_measured():
    """Neighbours agree within a tolerance that wrong poses have made wide."""
    network, swept, _, _ = agreeing(1.0)
    apart = np.random.default_rng(0).standard_normal((2, 60, 80))
    disparity = np.full(apart.shape, 8.0)
    for noise, expected in ((0.02, 0.98), (0.045, 0)):
        dense = dense_depth(network, swept, noise * apart, disparity)
        assert dense.measured.mean() == pytest.approx(expected, abs=0.03)


def test_views_that_differ_by_more_than_matches_do_confirm_nothing():
    """Their poses are wrong: what agrees then agrees by chance."""
    network, swept, _, _ = agreeing(1.0)
    apart = np.random.default_rng(0).standard_normal((2, 60, 80))
    disparity = np.full(apart.shape, 20.0)
    for noise, least, most in ((0.018, 0.9, 1.0), (0.03, 0.0, 0.1)):
        share = dense_depth(network, swept, noise * apart, disparity).measured.mean()
        assert least <= share <= most


def test_the_deviation_is_larger_at_edges_if_depth_errs_there():
    network = np.full((96, 128), 2.0, np.float32)
    network[:, 64:] = 3.0
    swept, apart = network.copy(), np.zeros((3, *network.shape), np.float32)
    apart[:, :, 60:68] = apart[:, :24] = np.nan  # nobody confirms these
    swept[:, 60:68] *= np.exp(np.float32(0.3))
    swept[:24] *= np.exp(np.float32(0.02))
    dense = dense_depth(network, swept, apart, np.full(apart.shape, 100.0))
    edge, wall = dense.sigma[30:, 62:66], dense.sigma[:12, :40]
    assert edge.min() > 0.1
    assert wall.max() < 0.05


def test_whole_surfaces_may_be_farther_off_than_the_search_reaches():
    views, truth, _, _ = painted_walls.scene()
    given = [(d * np.exp(np.float32(0.65))).astype(np.float32) for d in truth]
    found = painted_walls.measured(views, given, painted_walls.all_others(views))
    assert np.mean([dense.measured.mean() for dense in found.values()]) > 0.5
    for k, dense in found.items():
        assert np.median(errors(dense.depth, truth[k])[dense.measured]) < 0.005


def test_neighbours_that_hardly_move_a_pixel_confirm_nothing():
    _, views, given = room()
    depth = given[MIDDLE]
    others = [(views[MIDDLE], depth)] * 2
    for disparity, expected in ((3.0, 0), (10.0, 1)):
        apart = differences(views[MIDDLE], depth, others)
        agree = agreement(apart, np.full(apart.shape, disparity))
        np.testing.assert_allclose(agree[:, 1:-1, 1:-1], expected, atol=1e-3)


@pytest.mark.long
def test_wrong_poses_are_in_the_stated_deviation():
    """By half a per cent of the depth: neighbours differ by more than matches do."""
    frames, views, given = room()
    rng, moved = np.random.default_rng(0), []
    for view in views:
        T, move = view.T_frame_camera.copy(), rng.standard_normal(3)
        T[:3, 3] += 0.015 * move / np.linalg.norm(move)
        moved.append(dataclasses.replace(view, T_frame_camera=T))
    squares = [
        (errors(dense.depth, frames[k].depth)[at] / dense.sigma[at]) ** 2
        for k, dense in measured(moved, given).items()
        for at in [dense.measured & np.isfinite(frames[k].depth)]
    ]
    print("NEES", np.mean(np.concatenate(squares)), len(np.concatenate(squares)))
    assert 0.3 < np.mean(np.concatenate(squares)) < 3


def test_views_of_several_sizes_are_refused():
    _, views, given = room()
    small = dataclasses.replace(views[2], grey=views[2].grey[:-14])
    with pytest.raises(ValueError, match="one size"):
        sweep(views[MIDDLE], [small, views[4]], given[MIDDLE])


def test_a_camera_that_only_turns_or_stands_has_no_neighbours():
    _, views, _ = room()
    T = np.array([views[0].T_frame_camera] * 4)
    for k, angle in enumerate((0.0, 0.0, 0.1, 0.2)):
        T[k, :3, :3] = T[k, :3, :3] @ cv2.Rodrigues(np.array([0.0, angle, 0.0]))[0]
    K, shapes = np.array([v.K for v in views[:4]]), [SIZE[::-1]] * 4
    assert [choose_neighbours(T, K, [3.0] * 4, shapes, [""] * 4, k) for k in range(4)] == [[]] * 4


def test_neighbours_have_depth_and_one_size():
    """The best of them, however many there are of another size in between."""
    T = np.array([np.eye(4)] * 24)
    T[:, 0, 3] = 0.05 * np.arange(24)  # metres
    K = np.array([room()[1][0].K] * 24)
    shapes = [(SIZE[1] + 14 * (k % 2), SIZE[0]) for k in range(24)]
    depths, names = [3.0] * 24, [""] * 24
    for k in (11, 12):
        chosen = choose_neighbours(T, K, depths, shapes, names, k)
        assert len(chosen) == MOST
        assert {j % 2 for j in chosen} == {k % 2}
    best = choose_neighbours(T, K, depths, shapes, names, 12)[0]
    depths[best] = 0.0
    chosen = choose_neighbours(T, K, depths, shapes, names, 12)
    assert len(chosen) == MOST
    assert best not in chosen


@pytest.mark.parametrize(
    ("shape", "enough"), [((56, 84), True), ((56, 64), False), ((42, 168), False)]
)
def test_small_images_are_not_compared(shape, enough):
    T = np.array([np.eye(4)] * 3)
    T[:, 0, 3] = 0.3 * np.arange(3)
    K = np.array([[[80.0, 0, shape[1] / 2], [0, 80, shape[0] / 2], [0, 0, 1]]] * 3)
    assert bool(choose_neighbours(T, K, [3.0] * 3, [shape] * 3, [""] * 3, 1)) == enough


def test_pixels_without_depth_stay_without_it():
    _, views, given = room()
    holes = [g.copy() for g in given]
    for hole in holes:
        hole[20:40, 20:60], hole[60:80, 20:60] = np.nan, np.inf
    full = [np.where(np.isfinite(h), h, 3.0).astype(np.float32) for h in holes]
    found = sweep(views[MIDDLE], [views[2], views[4]], full[MIDDLE])
    apart = np.zeros((2, *SIZE[::-1]))
    swept = np.full(SIZE[::-1], 2.0, np.float32)
    dense = dense_depth(holes[MIDDLE], swept, apart, found.disparity.numpy())
    assert np.isnan(dense.depth[20:40, 20:60]).all()
    assert np.isposinf(dense.depth[60:80, 20:60]).all()
    assert not dense.measured[20:40, 20:60].any()
    assert not dense.measured[60:80, 20:60].any()


def test_it_gives_the_same_twice():
    _, views, given = room()
    a, b = (sweep(views[3], [views[2], views[4]], given[3]) for _ in range(2))
    np.testing.assert_array_equal(a.log_factor, b.log_factor)
