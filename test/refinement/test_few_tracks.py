"""Edge points, and views with few tracks of features."""

import numpy as np
import pytest

from da3_ros.refinement.bundle import Bundle, Observations, PosePriors, adjust
from da3_ros.refinement.direct_alignment import AlignmentImage
from da3_ros.refinement.edge_points import EdgePoints, followed, new_edge_points
from da3_ros.refinement.features import Features
from da3_ros.refinement.few_tracks import _show_pose, align_directly, has_few_tracks
from da3_ros.refinement.sliding_graph import SlidingGraph
from da3_ros.refinement.tracked_view import TrackedView
from da3_ros.synthetic import Pace, SyntheticCamera

SIZE = (256, 192)


@pytest.fixture(scope="module")
def frames():
    """A walk sideways along plain walls."""
    camera = SyntheticCamera(
        104, SIZE, walk="loop", frames=30, pace=Pace(6.0, 0.3, 15.0), plain=True
    )
    return [camera[k] for k in range(8, 18)]


def small(frame):
    return AlignmentImage.of(frame.image, None, frame.depth)


def motion(a, b):
    return np.linalg.inv(a.T_room_camera) @ b.T_room_camera


def edges_of(image):
    pixel, normal = new_edge_points(image, np.zeros((0, 2)))
    return EdgePoints(pixel, normal, image.log_depth_at(pixel), np.arange(len(pixel)))


def view_of(id, frame, T, count=0):
    """A view without features, or with some all over its image."""
    pixel = np.random.default_rng(id).uniform((0, 0), SIZE, (count, 2))
    features = Features(SIZE[::-1], pixel, np.zeros((count, 128), np.uint8))
    return TrackedView(
        id, "", features, frame.K, T, np.zeros(count), image=small(frame)
    )  # fmt: skip


def test_edge_points_are_followed_across_their_edge(frames):
    known, view, K = small(frames[0]), small(frames[6]), frames[0].K
    edges = edges_of(known)
    assert len(edges) > 30
    T = motion(frames[0], frames[6])
    pixel, normal, good = followed(known, view, edges, np.exp(edges.log_depth), K, K, T)
    assert good.mean() > 0.8
    ray = np.column_stack((edges.pixel, np.ones(len(edges)))) @ np.linalg.inv(K).T
    x = (ray * np.exp(edges.log_depth)[:, None] - T[:3, 3]) @ T[:3, :3]
    wanted = x[:, :2] / x[:, 2:] * np.diag(K)[:2] + K[:2, 2]
    across = np.abs(((pixel - wanted) * normal).sum(1))[good]
    assert np.median(across) < 0.1
    assert np.quantile(across, 0.9) < 0.3


def test_edge_points_of_another_image_are_not_found(frames):
    known, K = small(frames[0]), frames[0].K
    noise = np.random.default_rng(0).integers(0, 256, frames[0].image.shape, np.uint8)
    view = AlignmentImage.of(noise, None, frames[0].depth)
    edges = edges_of(known)
    *_, good = followed(known, view, edges, np.exp(edges.log_depth), K, K, np.eye(4))
    assert good.mean() < 0.1


def test_new_edge_points_keep_away_from_known_ones(frames):
    image = small(frames[0])
    first, _ = new_edge_points(image, np.zeros((0, 2)))
    again, _ = new_edge_points(image, first)
    both = np.linalg.norm(first[:, None] - again[None], axis=2)
    assert len(again) < len(first)
    assert both.size == 0 or both.min() >= 2


def test_an_image_may_have_edges_everywhere():
    """More than OpenCV samples in a column."""
    noise = np.random.default_rng(0).integers(0, 256, (*SIZE[::-1], 3), np.uint8)
    image = AlignmentImage.of(noise, None, np.ones(SIZE[::-1], np.float32))
    pixel, _ = new_edge_points(image, np.zeros((0, 2)))
    assert 100 < len(pixel) <= 216


def test_few_tracks_and_tracks_in_one_corner_need_edges():
    rng = np.random.default_rng(0)
    for count, size, few in ((300, (640, 480), False), (60, (640, 480), True),
                             (300, (200, 150), True)):  # fmt: skip
        features = Features((480, 640), rng.uniform((0, 0), size, (count, 2)),
                            np.zeros((count, 128), np.uint8))  # fmt: skip
        view = TrackedView(0, "", features, np.eye(3), np.eye(4), np.zeros(count))
        view.track = np.arange(count)
        assert has_few_tracks(view, 300) is few


def chain(frames, wrong=0.0):
    """A graph that gets views without features, at starts that are ``wrong`` off in metres."""
    graph = SlidingGraph(300, 8)
    for k, frame in enumerate(frames):
        T = motion(frames[0], frame)
        if k:
            T[:3, 3] += np.random.default_rng(k).normal(0, wrong, 3)
        graph.add(view_of(k, frame, T), list(graph.views))
        if k:
            done = graph.refine([k], PosePriors.none())
            assert done is not None
    return graph


def test_views_without_features_are_refined(frames):
    graph = chain(frames, wrong=0.02)
    for k, frame in enumerate(frames):
        T, wanted = graph.views[k].T_local_camera, motion(frames[0], frame)
        np.testing.assert_allclose(T[:3, 3], wanted[:3, 3], atol=0.006)
        np.testing.assert_allclose(T[:3, :3], wanted[:3, :3], atol=2e-3)
    assert len(np.intersect1d(graph.views[2].edges.track, graph.views[8].edges.track)) > 5


def test_lengths_of_edges_are_in_the_unit_of_the_predicted_depth(frames):
    """A submap has its own unit, and a view its scale."""
    views = [view_of(k, f, motion(frames[0], f)) for k, f in enumerate(frames[:2])]
    views[0].grown, views[0].log_scale = np.log(2.0), np.log(1.5)
    views[1].T_local_camera[:3, 3] = 3 * views[1].T_local_camera[:3, 3] + 0.03
    graph = SlidingGraph(300, 8)
    align_directly(views[1], views[:1], graph.points, graph.noise)
    wanted = 3 * motion(*frames[:2])[:3, 3]
    np.testing.assert_allclose(views[1].T_local_camera[:3, 3], wanted, atol=0.015)
    assert len(np.intersect1d(views[0].edges.track, views[1].edges.track)) > 20


def test_undo_brings_edges_back(frames):
    graph = chain(frames[:4])
    saved = graph.saved()
    before = graph.views[3].edges.track.copy()
    graph.views[3].edges.track[:] = -1
    graph.add(view_of(9, frames[4], motion(frames[0], frames[4])), list(graph.views))
    graph.restore(saved)
    assert list(graph.views) == [0, 1, 2, 3]
    np.testing.assert_array_equal(graph.views[3].edges.track, before)


def test_a_bare_image_has_no_pose(frames):
    graph = chain(frames[:3])
    blank = view_of(3, frames[3], motion(frames[0], frames[3]))
    blank.image = AlignmentImage.of(np.full_like(frames[3].image, 90), None, frames[3].depth)
    graph.add(blank, list(graph.views))
    assert not len(blank.edges)
    assert graph.refine([3], PosePriors.none()) is None


def test_positions_on_an_edge_count_only_across_it():
    """Along it they are wrong by many pixels."""
    rng = np.random.default_rng(0)
    X = rng.uniform((-2, -1.5, 3), (2, 1.5, 6), (60, 3))
    K = np.array([[400.0, 0, 320], [0, 400, 240], [0, 0, 1]])
    T = np.tile(np.eye(4), (4, 1, 1))
    T[:, 0, 3] = 0.1 * np.arange(4)
    view, point = np.tile(np.arange(4), len(X)), np.repeat(np.arange(len(X)), 4)
    x = X[point] - T[view, :3, 3]
    pixel = 400 * x[:, :2] / x[:, 2:] + (320, 240)
    angle = rng.uniform(0, np.pi, len(X))[point]
    normal = np.column_stack((np.cos(angle), np.sin(angle)))
    along = np.column_stack((-normal[:, 1], normal[:, 0]))
    pixel += rng.normal(0, 8, len(view))[:, None] * along * (view > 0)[:, None]
    normal[view == 0] = np.nan
    start = T.copy()
    start[2:, :3, 3] += 0.02
    ones = np.ones(len(view))
    seen = Observations(view, point, pixel, 0.5 * ones, np.log(x[:, 2]), ones, normal)
    bundle = Bundle(
        start, np.zeros(4), np.tile(K, (4, 1, 1)), X, np.arange(4) >= 2, seen, np.zeros(4),
        np.full(4, 0.05),
    )  # fmt: skip
    done = adjust(bundle, 20)
    np.testing.assert_allclose(done.bundle.T_local_camera, T, atol=1e-3)
    assert done.reprojection.max() < 0.2
    kept = seen.where(view != 1)
    assert len(kept.normal) == (view != 1).sum()


@pytest.mark.parametrize(("count", "spread", "shown"), [(40, 1.0, True), (20, 1.0, False),
                                                        (40, 0.1, False)])  # fmt: skip
def test_few_or_parallel_edges_show_no_pose(count, spread, shown):
    angle = np.random.default_rng(0).uniform(0, np.pi * spread, count)
    normal = np.column_stack((np.cos(angle), np.sin(angle)))
    edges = EdgePoints(np.zeros((count, 2)), normal, np.zeros(count), np.arange(count))
    assert _show_pose(edges) is shown
