"""Notices places that are seen again, and says how the scene must move to be one there.

Keyframes are remembered with a descriptor that the network makes anyway (the mean of its patch
features before frames are mixed). A new keyframe that looks like an old one, where drift allows
both to be one place, is looked at again: one window of both and their neighbours goes through the
network, and each side of it is joined to what the scene knows. Between the two joins is the
drift. One such loop is never enough: a network that is shown two look-alikes may make one room of
them. Two loops of different keyframes must agree, within four standard deviations, with each other
and with how far the scene can have drifted. Then a graph of submaps (``pose_graph``) is solved.

Everything is in the scene as odometry sees it: there the newest submap never moves, and the older
ones are moved. Knows predictions and poses; no network, no ROS. Not thread-safe, but ``solve`` may
run on another thread than the rest.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.transform import Rotation

from da3_ros.geometry import backproject, invert_pose, project
from da3_ros.mapping.alignment import Alignment, Anchor, Joiner, Similarity, sample
from da3_ros.mapping.pose_graph import Edge, marginal, optimize, parts
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.scene import IDENTITY
from da3_ros.types import Array, FloatImage, Prediction, Window

MOST = 300  # keyframes remembered, each an image and a thousand numbers
SAMPLES = 1024  # pixels of each that keep their depth
GROUP = 3  # views of each side in the window that verifies
APART = 3  # submaps between two keyframes that can make a loop; nearer ones share windows
WAITING = 4  # loops that wait for a second one
SAME = 0.25  # of the drift (variance) between the two sides of loops that are of one place
CANDIDATES = 5  # most alike ones that are considered
ALIKE = 0.35  # cosine of whitened descriptors below which a look would be wasted
SIGMAS = 4.0
REACH = 1.0  # distance over depth from which two keyframes can see the same
VIEW_DEG = 60.0  # and the turn
DIMENSIONS = 64  # of descriptors after whitening
INSIDE, AGREEING = 0.15, 0.6  # shares of points both see, and of those that agree, of a true loop
CLOSE = 0.1  # relative depth difference of points that agree
DOUBT = 2.0  # views of two visits disagree by so much more than views of one window
LOST = np.array([0.7, 0.5, 1.0]) ** 2  # that a new segment adds; place over the depth seen last


@dataclass(frozen=True, eq=False)
class Place:
    """A remembered keyframe."""

    anchor: Anchor
    descriptor: Array  # [D]
    submap: int
    own: Array  # [3] variance since its submap's first keyframe: log scale, rotation, place

    @property
    def depth(self) -> float:
        """Median, scene units."""
        return float(np.median(self.anchor.depth))

    @property
    def nbytes(self) -> int:
        """Memory."""
        a = self.anchor
        parts = (a.view.image, a.pixels, a.depth, a.confidence, self.descriptor)
        return sum(part.nbytes for part in parts)

    @property
    def centre(self) -> Array:
        """The camera's place [3]."""
        return np.asarray(self.anchor.T_world_camera[:3, 3])


@dataclass(frozen=True, eq=False)
class Loop:
    """An old and a new keyframe that a window saw together.

    ``seen`` maps the scene as it is around the new one to where the old one says that it is.
    """

    old: Place
    new: Place
    seen: Similarity
    variance: Array  # [3] of log scale, rotation, and place of the new camera


@dataclass(frozen=True, eq=False)
class Correction:
    """How older parts of the scene must move, as odometry sees it."""

    moves: dict[int, Similarity]  # by submap; those not named stay
    T_map_odometry: Array  # [4, 4] keeps the first submap where the map has it
    # (older, newer) submap of every loop in the graph: what it ties is one scene from now on
    joined: tuple[tuple[int, int], ...] = ()
    # [7, 7] of the newest submap's place relative to the first one that edges tie it to: (log
    # scale; rotation, rad; place, scene units), in the axes of the scene as odometry sees it
    covariance: Array | None = None


class Steps:
    """Variance of the joins of windows along a stretch of the way."""

    def __init__(self) -> None:
        self._own = np.zeros((0, 3))
        self._at = np.zeros((0, 3))

    def add(self, variance: Array, camera: Array) -> None:
        """A window's place varies by [3] (log scale, rotation, place) at its camera [3]."""
        self._own = np.vstack((self._own, variance))
        self._at = np.vstack((self._at, camera))

    def about(self, point: Array) -> Array:
        """Variance [3] at a point of the scene: turns and scales move what is far away."""
        way = ((self._at - point) ** 2).sum(axis=1)
        place = self._own[:, 2] + way * (self._own[:, 0] + self._own[:, 1])
        return np.array([self._own[:, 0].sum(), self._own[:, 1].sum(), place.sum()])


@dataclass(eq=False)
class _Node:
    """A submap: where it lies as odometry sees it."""

    id: int
    place: Similarity


@dataclass(frozen=True, eq=False)
class _Problem:
    """A graph to be solved, and what its answer is about."""

    ids: list[int]
    nodes: list[Similarity]
    edges: list[Edge]
    T_map_odometry: Array
    metric: bool


class LoopCloser:
    """Remembers keyframes and how submaps hang together."""

    def __init__(self) -> None:
        self.most_bytes = 0  # of keyframes that are remembered; 0: no limit but MOST
        self.T_map_odometry = np.eye(4)
        self.found = self.refused = 0  # loops that were verified; looks that found none
        self._places: list[Place] = []
        self._nodes: list[_Node] = []
        self._edges: list[Edge] = []
        self._waiting: list[Loop] = []
        self._steps: Steps | None = None  # since the newest submap began; None: nothing joins it
        self._fresh = False  # whether the newest place may still find an old one
        self._looked: set[tuple[int, int]] = set()  # keyframe and submap, by id

    # What happens on the way

    def add_window(self, placed: Alignment, camera: Array, lag: float = 1.0) -> None:
        """A window was joined at this camera [3]. One that did not fit adds nothing: the next one
        hangs on what was before it.

        lag: how many windows ago the views that it shares were new, on average. Hanging on what
        was ``lag`` windows ago, one step in ``lag`` adds its error: a sum of N moving averages of
        mean lag m grows as N / m^2 steps do.
        """
        if self._steps is None or placed.covariance is None:
            return
        spread = np.diag(placed.covariance) / max(lag, 1.0) ** 2
        self._steps.add(np.array([spread[0], spread[1:4].mean(), spread[4:].mean()]), camera)

    def start_segment(self, *, lost: bool) -> None:
        """What comes has a unit of its own; lost: it begins about where the last one ended, else
        nothing joins it to what was."""
        if not lost or self._steps is None or not self._places:
            self._steps = None
            return
        last = self._places[-1]
        self._steps.add(LOST * [1, 1, last.depth**2], last.centre)

    def add_keyframe(self, anchor: Anchor, descriptor: Array | None, submap: int) -> None:
        """A keyframe of the submap ``submap``, with its pose and depth as odometry has them."""
        centre = anchor.T_world_camera[:3, 3]
        if not self._nodes or self._nodes[-1].id != submap:
            self._start_submap(submap, anchor.T_world_camera)
        if descriptor is None or len(anchor.depth) == 0:
            return
        assert self._steps is not None
        place = Place(thinned(anchor), descriptor, submap, self._steps.about(centre))
        self._places.append(place)
        self._fresh = True
        while len(self._places) > 2 and self._too_many():
            self._forget_one()

    def resize(self, cut: Cut) -> None:
        """The images of all keyframes have another size now."""
        self._places = [dataclasses.replace(p, anchor=cut.anchor(p.anchor)) for p in self._places]

    @property
    def nbytes(self) -> int:
        """Memory of what is remembered; all keyframes take about the same."""
        return len(self._places) * self._places[-1].nbytes if self._places else 0

    def _too_many(self) -> bool:
        return len(self._places) > MOST or 0 < self.most_bytes < self.nbytes

    def _start_submap(self, id: int, T: Array) -> None:
        node = _Node(id, Similarity(1.0, T[:3, :3], T[:3, 3].copy()))
        if self._steps is not None and self._nodes:
            last = self._nodes[-1]
            sigma = np.sqrt(self._steps.about(node.place.t)) + 1e-6
            first, second = len(self._nodes) - 1, len(self._nodes)
            seen = Edge.seen(last.place, node.place)
            sigma[2] /= last.place.scale
            self._edges.append(Edge(first, second, seen, sigma))
        self._nodes.append(node)
        self._steps = Steps()

    def _forget_one(self) -> None:
        """Of neighbours in time, of which one goes, the pair that is most alike."""
        x = self._white()
        alike = (x[:-1] * x[1:]).sum(axis=1)
        del self._places[int(np.argmax(alike[:-1])) + 1]

    # Looking for a loop

    def candidate(self) -> Place | None:
        """The old keyframe that the newest one should be compared with, if there is one."""
        if not self._fresh or self._index(self._places[-1].submap) < APART:
            return None
        new, white = self._places[-1], self._white()
        alike, old_enough = white @ white[-1], self._old_submaps()
        order = [
            i
            for i in np.argsort(-alike, kind="stable")
            if alike[i] > ALIKE and self._places[i].submap in old_enough
        ]
        for i in order[:CANDIDATES]:
            old = self._places[i]
            if (new.anchor.view.id, old.submap) not in self._looked and self._can_meet(old, new):
                self._looked.add((new.anchor.view.id, old.submap))
                return old
        self._fresh = False  # nothing to find until something is new
        return None

    def _old_submaps(self) -> set[int]:
        """Submaps that no window and no loop ties to the newest place."""
        newest = self._index(self._places[-1].submap)
        tied = {e.first for e in self._edges if e.loop and e.second == newest}
        return {n.id for k, n in enumerate(self._nodes) if newest - k >= APART and k not in tied}

    def _index(self, submap: int) -> int:
        """Of the node of a submap; nodes are in the order of their ids."""
        ids = [node.id for node in self._nodes]
        return ids.index(submap)

    def _can_meet(self, old: Place, new: Place) -> bool:
        """Whether two keyframes can see the same, for all that drift may have done."""
        if old.anchor.view.image.shape != new.anchor.view.image.shape:
            return False
        drift = np.sqrt(self._drift(old, new))
        away = float(np.linalg.norm(old.centre - new.centre))
        R = old.anchor.T_world_camera[:3, :3].T @ new.anchor.T_world_camera[:3, :3]
        turn = Rotation.from_matrix(R).magnitude()
        near = away - SIGMAS * math.sqrt(3) * drift[2] < REACH * old.depth
        return near and turn - SIGMAS * math.sqrt(3) * drift[1] < math.radians(VIEW_DEG)

    def _white(self) -> Array:
        """Descriptors [M, d] of all places, made equally telling in all directions, length 1."""
        return whitened(np.array([p.descriptor for p in self._places]))

    def window(self, old: Place, id: int, each: int) -> tuple[Window, list[Place]]:
        """Both keyframes among their neighbours, ``each`` at most, and whose views these are."""
        new = self._places[-1]
        places = self._group(old, each) + self._group(new, each)
        views = tuple(p.anchor.view for p in places)
        return Window(id, views, 0), places

    def _group(self, place: Place, most: int) -> list[Place]:
        """A place first, then those nearest to it in time, of what its neighbours remember."""
        at = self._places.index(place)
        around = sorted(
            (i for i in range(len(self._places)) if self._beside(place, self._places[i])),
            key=lambda i: (abs(i - at), i),
        )
        return [self._places[i] for i in around[: min(GROUP, most)]]

    def _beside(self, place: Place, other: Place) -> bool:
        """Whether both are of one image size, and of one submap or two that follow each other."""
        if place.anchor.view.image.shape != other.anchor.view.image.shape:
            return False  # a window has one size
        return 0 <= abs(self._index(place.submap) - self._index(other.submap)) <= 1

    def judge(
        self, old: Place, places: Sequence[Place], prediction: Prediction, joiner: Joiner
    ) -> bool:
        """Take what the window of ``places`` says. Returns whether the scene can be closed now.

        joiner: of the stream; says how far views of one window disagree, and learns nothing.
        """
        new = self._places[-1]
        split = places.index(new)
        loop = self._verified(old, new, places, split, prediction, joiner)
        if loop is None or not self._within_drift(loop):
            self.refused += 1
            return False
        self.found += 1
        for other in self._waiting:
            if other.new is not new and self._agree(other, loop):
                for one in (other, loop):
                    self._edges.append(self._edge(one))
                self._waiting.clear()
                return True
        self._waiting = [*self._waiting[1 - WAITING :], loop]
        return False

    def _verified(
        self,
        old: Place,
        new: Place,
        places: Sequence[Place],
        split: int,
        prediction: Prediction,
        joiner: Joiner,
    ) -> Loop | None:
        """What both sides of a window say, if it fits both and sees both in one place."""
        fits = []
        for indices in (range(split), range(split, len(places))):
            own = copy.deepcopy(joiner)  # which shall learn nothing here
            own.lift()
            fit = own.join([places[i].anchor for i in indices], prediction, indices)
            if fit is None or not fit.accepted:
                return None
            fits.append(fit)
        if not sees_the_same(prediction, split, 0):
            return None
        seen = after(fits[0].T_scene_window, inverse(fits[1].T_scene_window))
        variance = DOUBT**2 * sum(self._variance(f, prediction, split) for f in fits)
        return Loop(old, new, seen, np.asarray(variance))

    @staticmethod
    def _variance(fit: Alignment, prediction: Prediction, index: int) -> Array:
        """[3] of a join, at the camera of one of its views."""
        assert fit.covariance is not None
        assert fit.about is not None
        spread = np.diag(fit.covariance)
        arm = prediction.T_window_camera[index, :3, 3] - fit.about
        steps = Steps()
        steps.add(np.array([spread[0], spread[1:4].mean(), spread[4:].mean()]), np.zeros(3))
        return steps.about(fit.T_scene_window.scale * arm)

    def _within_drift(self, loop: Loop) -> bool:
        """Whether the scene can have drifted as a loop says."""
        drift = self._drift(loop.old, loop.new) + loop.variance
        return near(loop.seen, IDENTITY, loop.new.centre, drift)

    def _agree(self, first: Loop, second: Loop) -> bool:
        """Whether two loops are of one place, seen by different keyframes, and say the same."""
        apart = self._drift(first.new, second.new) + self._drift(first.old, second.old)
        if not apart[2] < SAME * self._drift(second.old, second.new)[2]:
            return False
        point = second.new.centre
        way = float(((first.new.centre - point) ** 2).sum())
        moved = first.variance + [0, 0, way * (first.variance[0] + first.variance[1])]
        return near(first.seen, second.seen, point, moved + second.variance + apart)

    def _edge(self, loop: Loop) -> Edge:
        """A loop as the graph takes it: between the submaps of its keyframes."""
        first, second = (self._index(p.submap) for p in (loop.old, loop.new))
        old, new = self._nodes[first].place, self._nodes[second].place
        arm = float(((loop.new.centre - new.t) ** 2).sum())
        variance = loop.variance + loop.old.own + loop.new.own
        variance = variance + [0, 0, arm * (loop.variance[0] + loop.variance[1])]
        sigma = np.sqrt(variance) / [1, 1, old.scale]
        return Edge(first, second, Edge.seen(old, after(loop.seen, new)), sigma, loop=True)

    def _drift(self, old: Place, new: Place) -> Array:
        """Variance [3] of the new place as seen from the old one, along the surest way."""
        first, second = (self._index(p.submap) for p in (old, new))
        total = old.own + new.own
        for edge in self._surest(first, second):
            here = self._nodes[edge.second].place
            own = np.square(edge.sigma) * [1, 1, self._nodes[edge.first].place.scale ** 2]
            if not math.isfinite(own.sum()):
                return np.full(3, np.inf)
            way = float(((here.t - new.centre) ** 2).sum())
            total = total + own + [0, 0, way * (own[0] + own[1])]
        return np.asarray(total)

    def _surest(self, first: int, second: int) -> Iterable[Edge]:
        """Edges from one node to another with the least variance together."""
        if first == second:
            return []
        best: dict[tuple[int, int], Edge] = {}
        for edge in self._edges:
            key = (min(edge.first, edge.second), max(edge.first, edge.second))
            if key not in best or edge.sigma.sum() < best[key].sigma.sum():
                best[key] = edge
        size = len(self._nodes)
        rows, columns = zip(*best, strict=True) if best else ((), ())
        cost = [float((e.sigma**2).sum()) for e in best.values()]
        graph = coo_matrix((cost, (rows, columns)), shape=(size, size)).tocsr()
        _, before = dijkstra(graph, directed=False, indices=first, return_predecessors=True)
        way, here = [], second
        while here != first:
            last = int(before[here])
            if last < 0:  # two segments that nothing joins: anything is possible
                return [Edge(first, second, IDENTITY, np.full(3, np.inf))]
            way.append(best[min(last, here), max(last, here)])
            here = last
        return way

    # Closing it

    def problem(self, metric: bool) -> _Problem:
        """What ``solve`` needs; a copy, so that it may take its time on another thread."""
        return _Problem(
            [node.id for node in self._nodes],
            [node.place for node in self._nodes],
            list(self._edges),
            self.T_map_odometry.copy(),
            metric,
        )

    @staticmethod
    def solve(problem: _Problem) -> Correction:
        """Places of all submaps that agree best; the newest stays where odometry has it."""
        nodes, edges = problem.nodes, problem.edges
        newest = len(nodes) - 1
        found = optimize(nodes, edges, fixed=newest, metric=problem.metric).nodes
        moves = {
            id: after(now, inverse(before))
            for id, now, before in zip(problem.ids[:-1], found, nodes, strict=False)
        }
        # The map keeps its origin: the first submap lies and looks as before, odometry moves.
        T = problem.T_map_odometry
        place = T[:3, :3] @ nodes[0].t + T[:3, 3]
        out = np.eye(4)
        out[:3, :3] = T[:3, :3] @ nodes[0].R @ found[0].R.T
        out[:3, 3] = place - out[:3, :3] @ found[0].t
        joined = tuple((problem.ids[e.first], problem.ids[e.second]) for e in edges if e.loop)
        part = parts(len(nodes), edges)
        oldest = int(np.argmax(part == part[newest]))
        sure = marginal(found, edges, fixed=oldest, of=newest, metric=problem.metric)
        return Correction(moves, out, joined, sure)

    def apply(self, correction: Correction) -> None:
        """Move what is remembered."""
        self.T_map_odometry = correction.T_map_odometry
        for node in self._nodes:
            if node.id in correction.moves:
                node.place = after(correction.moves[node.id], node.place)
        self._places = [
            dataclasses.replace(p, anchor=p.anchor.moved(correction.moves[p.submap]))
            if p.submap in correction.moves
            else p
            for p in self._places
        ]
        self._waiting.clear()
        self._fresh = bool(self._places)


# Parts ------------------------------------------------------------------------------------------


def after(second: Similarity, first: Similarity) -> Similarity:
    """First the one, then the other."""
    return Similarity(second.scale * first.scale, second.R @ first.R, second.points(first.t))


def inverse(S: Similarity) -> Similarity:
    """The way back."""
    return Similarity(1 / S.scale, S.R.T, -S.R.T @ S.t / S.scale)


def thinned(anchor: Anchor) -> Anchor:
    """With fewer pixels: many of them are remembered for long."""
    keep = sample(np.ones(len(anchor.pixels), bool), SAMPLES)
    return dataclasses.replace(
        anchor,
        pixels=anchor.pixels[keep],
        depth=anchor.depth[keep],
        confidence=anchor.confidence[keep],
    )


def near(a: Similarity, b: Similarity, point: Array, variance: Array) -> bool:
    """Whether two similarities differ at a point by no more than the variance [3] explains."""
    off = np.array([
        abs(math.log(a.scale / b.scale)),
        float(Rotation.from_matrix(a.R.T @ b.R).magnitude()) / math.sqrt(3),
        float(np.linalg.norm(a.points(point) - b.points(point))) / math.sqrt(3),
    ])  # fmt: skip
    return bool((off <= SIGMAS * np.sqrt(variance)).all())


def whitened(descriptors: Array) -> Array:
    """Unit rows [M, d]: less of what all have in common, more of what tells them apart."""
    x = descriptors - descriptors.mean(axis=0)
    if len(x) > 8:
        _, size, axes = np.linalg.svd(x, full_matrices=False)
        most = min(DIMENSIONS, len(x) // 2)
        # What hardly varies among few is noise, and must not be blown up to full size.
        x = x @ axes[:most].T / (size[:most] + 0.1 * size[0])
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))


def sees_the_same(prediction: Prediction, source: int, target: int) -> bool:
    """Whether one view of a window sees a fair part of another's surfaces where these are."""
    depth, other = prediction.depth[source], prediction.depth[target]
    points = backproject(depth, prediction.K[source]).reshape(-1, 3)
    points = points[np.isfinite(points).all(axis=1)].astype(np.float64)
    if not len(points):
        return False
    T = invert_pose(prediction.T_window_camera[target]) @ prediction.T_window_camera[source]
    there = points @ T[:3, :3].T + T[:3, 3]
    inside, seen = looked_up(there, prediction.K[target], other)
    agree = np.abs(np.log(seen / there[inside, 2])) < CLOSE
    return bool(inside.mean() > INSIDE and agree.mean() > AGREEING)


def looked_up(points: Array, K: Array, depth: FloatImage) -> tuple[Array, Array]:
    """Which camera points [M, 3] lie in a picture of known depth, and the depth seen there."""
    height, width = depth.shape
    with np.errstate(invalid="ignore", divide="ignore"):
        column, row = np.floor(project(points, K)).T
    inside = (points[:, 2] > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    seen = np.full(len(points), np.nan)
    seen[inside] = depth[row[inside].astype(int), column[inside].astype(int)]
    inside &= np.isfinite(seen) & (seen > 0)
    return inside, seen[inside]
