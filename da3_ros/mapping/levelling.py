"""What is up in the graph of submaps: of a submap, of all, and how far edges bend from it.

A network may bend the way steadily while its windows fit each other exactly: then edges between
submaps state far too little. Gravity shows it, but an IMU may be wrong too. Bends add up from
submap to submap, errors of an IMU do not: by that ``bend_of`` tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.poses import turn_between
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.pose_graph import TILT, Edge
from da3_ros.types import Array

LEAST_SIGMA = math.radians(0.3)  # of what is up: mounts are not declared better
BENT_RAD = math.radians(0.5)  # by which ups of one submap differ before it ends
BENT_SIGMAS = 2.0  # and by how many standard deviations
MOST_RATE = math.radians(0.3)  # by which up turns per second where a network bends; else it slips
FEWEST = 4  # keyframes of a submap that ends early
# What is tried: of edges, the deviation that they do not state, rad; of ups, the factor on theirs.
BENDS = np.concatenate(([0.0], np.geomspace(math.radians(0.02), math.radians(0.7), 13)))
FACTORS = np.geomspace(1.0, 30.0, 9)
FACTOR_SIGMA = 1.0  # of the logarithm of that factor, before ups are compared
FEWEST_UPS = 6  # nodes that tell whether edges bend
EVIDENCE = 4.0  # log of how much more likely it must be that edges bend
FREEDOM = 4.0  # degrees of freedom of Student's distribution: one wrong up must not bend edges


@dataclass(frozen=True, eq=False)
class Up:
    """What is up, as an IMU has measured it at a node."""

    direction: Array  # [3] unit vector in the axes of the node
    sigma: float  # of its direction, rad, in each of two axes
    stamp_ns: int = 0  # when it was measured last


@dataclass(frozen=True)
class Bend:
    """What edges and ups do not state."""

    sigma: float = 0.0  # of each edge's rotation about each axis, rad
    factor: float = 1.0  # on the deviations of ups


def mean_up(ups: Sequence[Up]) -> Up:
    """Returns the mean of ups in the same axes, weighted by their information; as certain as the
    most certain one, since the errors of one stretch are those of its neighbours."""
    total = np.sum([up.direction / up.sigma**2 for up in ups], axis=0)
    sigma = max(min(up.sigma for up in ups), LEAST_SIGMA)
    return Up(total / np.linalg.norm(total), sigma, max(up.stamp_ns for up in ups))


def common_up(nodes: Sequence[Similarity], ups: Mapping[int, Up]) -> Array:
    """Returns the mean direction [3] of what nodes call up, in the frame of their poses."""
    turned = [Up(nodes[k].R @ up.direction, up.sigma) for k, up in ups.items()]
    return mean_up(turned).direction


class SubmapUp:
    """What is up in one submap, by its keyframes."""

    def __init__(self, submap: int) -> None:
        self.submap = submap
        self.ups: list[Up] = []  # at its keyframes, in the axes of the submap

    def forget(self, since_ns: int) -> bool:
        """Forgets what was measured since a stamp; returns whether something is left."""
        self.ups = [up for up in self.ups if up.stamp_ns < since_ns]
        return bool(self.ups)

    @property
    def mean(self) -> Up:
        """What is up in it, in the middle of its keyframes."""
        return mean_up(self.ups)

    @property
    def bends(self) -> bool:
        """Whether it is bent so far that it should end."""
        last = self.ups[-1]
        return len(self.ups) >= FEWEST and any(
            angle(last.direction, up.direction)
            > max(BENT_RAD, BENT_SIGMAS * math.hypot(last.sigma, up.sigma))
            for up in self.ups
        )

    @property
    def slips(self) -> bool:
        """Whether up has turned faster than any network bends: then it is wrong."""
        last = self.ups[-1]
        return any(
            angle(last.direction, up.direction)
            > MOST_RATE * abs(last.stamp_ns - up.stamp_ns) / 1e9
            + BENT_SIGMAS * math.hypot(last.sigma, up.sigma)
            for up in self.ups
        )


def angle(a: Array, b: Array) -> float:
    """Returns the angle, rad, between two unit vectors [3]."""
    return float(np.arctan2(np.linalg.norm(np.cross(a, b)), a @ b))


def with_level(
    nodes: Sequence[Similarity], edges: Sequence[Edge], ups: Mapping[int, Up]
) -> tuple[list[Similarity], list[Edge], int]:
    """Returns a graph with one more node, whose z is up, edges of tilt to it, and its index; edges
    of odometry are as uncertain as they bend."""
    bend = bend_of(edges, ups)
    level, tilts = level_node(nodes, ups, bend)
    return [*nodes, level], [*(bent(e, bend) for e in edges), *tilts], len(nodes)


def level_node(
    nodes: Sequence[Similarity], ups: Mapping[int, Up], bend: Bend
) -> tuple[Similarity, list[Edge]]:
    """Returns a node behind all others whose z is up, and edges of tilt to it from those that know
    up."""
    R_level = turn_between(np.array([0.0, 0.0, 1.0]), common_up(nodes, ups))
    out = []
    for k, up in ups.items():
        # Where the node is now but for its tilt, so that the residual is one of tilt.
        R = nodes[k].R.T @ R_level
        R = turn_between(R[:, 2], up.direction) @ R
        out.append(_tilt(k, len(nodes), R, bend.factor * up.sigma))
    return Similarity(1.0, R_level, np.zeros(3)), out


def z_is_up(k: int, level: int) -> Edge:
    """Returns the edge of tilt from a node whose z is up to a level node."""
    return _tilt(k, level, np.eye(3), LEAST_SIGMA)


def _tilt(k: int, level: int, R: Array, sigma: float) -> Edge:
    """Returns an edge that measures the tilt alone."""
    only_tilt = np.diag(TILT / sigma)
    return Edge(k, level, Similarity(1.0, R, np.zeros(3)), np.full(3, np.inf), whitening=only_tilt)


def bent(e: Edge, bend: Bend) -> Edge:
    """Returns an edge that states how far it may be bent."""
    if e.loop or not bend.sigma:
        return e
    # A way that bends evenly ends beside where it would by half of the angle.
    aside = bend.sigma / 2 * float(np.linalg.norm(e.measured.t))
    more = np.array([0.0, bend.sigma, aside])
    return replace(e, sigma=np.hypot(e.sigma, more))


def bend_of(edges: Sequence[Edge], ups: Mapping[int, Up]) -> Bend:
    """Returns how far edges of odometry between consecutive nodes bend by more than they state,
    and how much larger the errors of ups are than stated: whatever makes the ups most likely.

    ups: by node. Along a chain of edges tilt is a random walk, which ups measure: a Kalman filter
    gives the likelihood of each pair of both. No bend without ``EVIDENCE``.
    """
    prior = -np.square(np.log(FACTORS) / FACTOR_SIGMA) / 2
    walks = list(_walks(edges, ups))
    # Both ways, so that a wrong up at an end is one that does not fit, and not what others miss.
    both = [prior + sum(map(_likelihood, ways)) for ways in (walks, [w.back() for w in walks])]
    mean = np.mean(both, axis=0)
    evidence = min(float(likely.max() - likely[0].max()) for likely in both)
    if len(ups) < FEWEST_UPS or evidence < EVIDENCE:
        return Bend(0.0, float(FACTORS[np.argmax(mean[0])]))
    bend, factor = np.unravel_index(int(np.argmax(mean)), mean.shape)
    return Bend(float(BENDS[bend]), float(FACTORS[factor]))


@dataclass(frozen=True)
class _Walk:
    """What consecutive nodes of a chain call up, and the edges between them."""

    tilts: Array  # [N, 2] rad
    sigmas: Array  # [N] of ups
    stated: Array  # [N - 1] variance of rotation that edges between two nodes state
    counts: Array  # [N - 1] and how many edges there are

    def back(self) -> _Walk:
        """Returns it from its end to its beginning."""
        return _Walk(self.tilts[::-1], self.sigmas[::-1], self.stated[::-1], self.counts[::-1])


def _likelihood(walk: _Walk) -> Array:
    """Returns the log likelihood of a walk by bend and factor, [B, F]."""
    variance, factor = np.square(BENDS)[:, None], np.square(FACTORS)[None, :]
    likely = np.zeros((len(BENDS), len(FACTORS)))
    mean, P = walk.tilts[0], factor * walk.sigmas[0] ** 2 + 0 * variance
    for k, (stated, count) in enumerate(zip(walk.stated, walk.counts, strict=True), 1):
        P = P + stated + count * variance
        noise = factor * walk.sigmas[k] ** 2
        away, S = walk.tilts[k] - mean, P + noise
        d = (away**2).sum(axis=-1) / S
        likely -= np.log(S) + (FREEDOM + 2) / 2 * np.log1p(d / FREEDOM)
        gain = P / (P + noise * (FREEDOM + d) / (FREEDOM + 2))
        mean, P = mean + gain[..., None] * away, (1 - gain) * P
    return likely


def _walks(edges: Sequence[Edge], ups: Mapping[int, Up]) -> Iterator[_Walk]:
    """Yields what is up along each chain of edges of odometry, as these have measured it."""
    after = {e.first: e for e in edges if not e.loop and e.second == e.first + 1}
    for first in sorted(after.keys() - {e.second for e in after.values()}):
        k, R, stated, count = first, np.eye(3), 0.0, 0
        found = list[tuple[Array, float, float, int]]()
        while True:
            if k in ups:
                found.append((R @ ups[k].direction, ups[k].sigma, stated, count))
                stated, count = 0.0, 0
            if k not in after:
                break
            edge = after[k]
            R, k = R @ edge.measured.R, edge.second
            stated, count = stated + float(edge.sigma[1]) ** 2, count + 1
        if len(found) > 1:
            directions, sigmas, variances, counts = (np.array(x) for x in zip(*found, strict=True))
            mean = directions.mean(axis=0)
            to_z = turn_between(mean / np.linalg.norm(mean), np.array([0.0, 0.0, 1.0]))
            yield _Walk((directions @ to_z.T)[:, :2], sigmas, variances[1:], counts[1:])
