"""Scenes in a graph are aligned by cameras: they keep their shape if that fits, else they bend."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.pose_graph import Edge
from da3_ros.merging.alignment import MeasuredCamera, SceneGraph, aligned

COUNT = 6  # nodes of each scene
SIGMA = np.array([1e-3, 2e-3])


def way(bend=0.0):
    """Poses along a line, or along an arc that turns by ``bend`` radians from one to the next."""
    out = [IDENTITY]
    for _ in range(COUNT - 1):
        step = Similarity(
            1.0, Rotation.from_rotvec([0, bend, 0]).as_matrix(), np.array([0, 0, 1.0])
        )
        out.append(out[-1] @ step)
    return out


def graph_of(second, odometry_sigma=0.02):
    """Two scenes; the second has the shape ``second`` and lies beside the first, by a guess."""
    guess = Similarity(1.2, Rotation.from_rotvec([0, 0.3, 0]).as_matrix(), np.array([0.5, 0, 1]))
    before = [*way(), *second]
    poses = [*way(), *(guess @ S for S in second)]
    edges = [
        Edge(k, k + 1, before[k].inverse() @ before[k + 1], np.full(3, odometry_sigma))
        for k in range(2 * COUNT - 1)
        if k != COUNT - 1
    ]
    across = Edge(0, COUNT, IDENTITY, np.array([0.3, 0.3, 1.0]), loop=True)
    component = [0] * COUNT + [1] * COUNT
    metric = np.zeros(2 * COUNT, bool)
    flags = [False] * len(edges) + [True]
    return SceneGraph(poses, before, component, [*edges, across], flags, metric)


def cameras(true, sigma=SIGMA):
    """A camera of each node of the second scene, where the first one truly sees it."""
    out = []
    for k in range(COUNT):
        for offset in ([0, 0, 0], [0.2, 0.1, 0]):
            own = Similarity(1.0, np.eye(3), np.array(offset, float))
            seen = way()[k].inverse() @ true[k] @ own
            out.append(MeasuredCamera(COUNT + k, own, k, seen, sigma, 2.0))
    return out


def errors(poses, true):
    return [float(np.linalg.norm(p.t - S.t)) for p, S in zip(poses[COUNT:], true, strict=True)]


def apart(poses, true):
    """The largest error of a node of the second scene, seen from the first one's beside it."""
    seen = [(poses[k].inverse() @ poses[COUNT + k]).t for k in range(COUNT)]
    wanted = [(S.inverse() @ true[k]).t for k, S in enumerate(way())]
    return float(np.linalg.norm(np.subtract(seen, wanted), axis=1).max())


def shape_of(poses):
    return np.array([(poses[0].inverse() @ S).t / 1.0 for S in poses])


def test_scenes_keep_their_shape_where_cameras_agree_with_it():
    beside = Similarity(1.0, np.eye(3), np.array([0.3, 0.0, 0.0]))
    true = [beside @ S for S in way()]
    poses = aligned(graph_of(way()), [], {}, {}, cameras(true))
    assert max(errors(poses, true)) < 1e-3
    second = shape_of(poses[COUNT:])
    np.testing.assert_allclose(second / np.linalg.norm(second[-1]), shape_of(way()) / (COUNT - 1),
                               atol=1e-6)  # fmt: skip


@pytest.mark.parametrize("bend", [0.02, 0.05])
def test_scenes_bend_where_cameras_contradict_their_shape(bend):
    """Both were saved straight, but the second truly lies on an arc beside the first: walls that
    both saw lie on each other only if they bend, each by about a half."""
    beside = Similarity(1.0, np.eye(3), np.array([0.3, 0.0, 0.0]))
    true = [beside @ S for S in way(bend)]
    poses = aligned(graph_of(way()), [], {}, {}, cameras(true))
    off = apart(poses, true)
    assert off < 0.01
    assert off < 0.1 * apart([*way(), *(beside @ S for S in way())], true)


def test_certain_cameras_count_more():
    near, far = (
        [Similarity(1.0, np.eye(3), np.array([x, 0.0, 0.0])) @ S for S in way()]
        for x in (0.3, 0.34)
    )
    poses = aligned(graph_of(way()), [], {}, {}, [*cameras(near), *cameras(far, 10 * SIGMA)])
    assert max(errors(poses, near)) < 0.004
