"""Notices places that are seen again, and says how the scene must move to be one there.

Keyframes are remembered with a descriptor that the network makes anyway (the mean of its patch
features before frames are mixed). A new keyframe that looks like an old one, where drift allows
both to be one place, is looked at again: one window of both and their neighbours goes through the
network, and each side of it is joined to what the scene knows. Between the two joins is the
drift. One such loop is never enough: a network that is shown two look-alikes may make one room of
them. Two loops of different keyframes must agree, within four standard deviations, with each other
and with how far the scene can have drifted. Then a graph of submaps (``pose_graph``) is solved.

All poses (``ref`` of shared views too) are in the ``vo`` frame, the scene as odometry has it:
there the newest submap never moves, and the older ones are moved. ``T_scene_vo`` leads to the
scene. Knows predictions and poses; no network, no ROS. Not thread-safe, but ``solve`` may run on
another thread than the rest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.mapping.alignment import Alignment, WindowAligner
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.shared_view import SharedView, sample
from da3_ros.mapping.submap_graph import (
    Absorbed,
    Correction,
    Problem,
    SubmapGraph,
    added,
)
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

    anchor: SharedView
    descriptor: Array  # [D]
    submap: int
    own: Array  # [3] variance since its submap's first keyframe: log scale, rotation, place

    @property
    def T_vo_camera(self) -> Array:
        """The camera's pose [4, 4]."""
        return self.anchor.T_ref_camera

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
        return np.asarray(self.T_vo_camera[:3, 3])


@dataclass(frozen=True, eq=False)
class Loop:
    """An old and a new keyframe that a window saw together.

    ``seen`` maps, in ``vo``, the scene around the new one to where the old one says that it is.
    """

    old: Place
    new: Place
    seen: Similarity
    variance: Array  # [3] of log scale, rotation, and place of the new camera


class Steps:
    """Variance of the joins of windows along a stretch of the way, in sums: a camera that stands
    still for a month takes no more memory than one window does."""

    def __init__(self) -> None:
        self._own = np.zeros(3)
        self._arms = 0.0  # variance of scales and turns, of which there are
        self._middle = np.zeros(3)  # mean and spread of where they happened, by variance
        self._spread = 0.0

    def add(self, variance: Array, camera: Array) -> None:
        """A window's place varies by [3] (log scale, rotation, place) at its camera [3]."""
        self._own = self._own + variance
        weight = float(variance[0] + variance[1])
        if not weight > 0:
            return
        self._arms += weight
        off = camera - self._middle
        self._middle = self._middle + weight / self._arms * off
        self._spread += weight * float(off @ (camera - self._middle))

    def about(self, point: Array) -> Array:
        """Variance [3] at a point of the scene: turns and scales move what is far away."""
        way = self._spread + self._arms * float(((self._middle - point) ** 2).sum())
        return np.asarray(self._own + [0, 0, way])


class LoopClosure:
    """Remembers keyframes and how submaps hang together."""

    def __init__(self) -> None:
        self.most_bytes = 0  # of keyframes that are remembered; 0: no limit but MOST
        self.T_scene_vo = np.eye(4)
        self.found = self.refused = 0  # loops that were verified; looks that found none
        self._places: list[Place] = []
        self._looks = Looks()  # of the places
        self._graph = SubmapGraph()
        self._waiting: list[Loop] = []
        self._steps: Steps | None = None  # since the newest submap began; None: nothing joins it
        self._guessed = False  # whether a part of these steps was no join
        self._fresh = False  # whether the newest place may still find an old one
        self._looked: set[int] = set()  # submaps that the newest place was compared with

    # What happens on the way

    def add_window(self, placed: Alignment, camera: Array, lag: float = 1.0) -> None:
        """A window was aligned with its camera at this place [3]. One that did not fit adds
        nothing: the next window is aligned to the views before it.

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
        self._guessed = True

    def add_keyframe(self, anchor: SharedView, descriptor: Array | None, submap: int) -> None:
        """A keyframe of the submap ``submap``; ``anchor`` is in the ``vo`` frame."""
        centre = anchor.T_ref_camera[:3, 3]
        if not self._graph.nodes or self._graph.nodes[-1].last != submap:
            self._start_submap(submap, anchor.T_ref_camera)
        if descriptor is None or len(anchor.depth) == 0:
            return
        assert self._steps is not None
        own = self._steps.about(centre)
        self._places.append(Place(thinned(anchor), np.array(descriptor), submap, own))
        self._looks.add([place.descriptor for place in self._places])
        self._fresh = True
        self._looked.clear()
        while len(self._places) > 2 and self._too_many():
            self._forget_one()

    def resize(self, cut: Cut) -> None:
        """The network's images have another size now. Keyframes of yet another size stay as they
        are, and meet no window."""
        self._places = [
            replace(p, anchor=cut.anchor(p.anchor)) if cut.fits(p.anchor) else p
            for p in self._places
        ]

    @property
    def nbytes(self) -> int:
        """Memory of what is remembered; all keyframes take about the same."""
        return len(self._places) * self._places[-1].nbytes if self._places else 0

    def _too_many(self) -> bool:
        return len(self._places) > MOST or 0 < self.most_bytes < self.nbytes

    def _start_submap(self, id: int, T: Array) -> None:
        place = Similarity.from_pose(T.copy())
        variance = None if self._steps is None else self._steps.about(place.t)
        self._graph.add(id, place, variance, self._guessed)
        self._steps, self._guessed = Steps(), False
        for absorbed in self._graph.bound():
            self._absorb(absorbed)

    def _absorb(self, absorbed: Absorbed) -> None:
        """Places of a node that is part of another one now, or that is forgotten."""
        if absorbed.variance is None:
            here = [absorbed.first <= p.submap <= absorbed.last for p in self._places]
            self._waiting = [w for w in self._waiting if w.old.submap > absorbed.last]
            for i in reversed([i for i, inside in enumerate(here) if inside]):
                self._drop(i)
            self._fresh = self._fresh and bool(self._places)
            return
        self._places = [absorbed_into(p, absorbed) for p in self._places]
        self._waiting = [
            replace(w, old=absorbed_into(w.old, absorbed), new=absorbed_into(w.new, absorbed))
            for w in self._waiting
        ]

    def _forget_one(self) -> None:
        """Of neighbours in time, of which one goes, the pair that is most alike."""
        self._drop(int(np.argmax(self._looks.neighbours()[:-1])) + 1)

    def _drop(self, index: int) -> None:
        del self._places[index]
        self._looks.remove(index)

    # Looking for a loop

    def candidate(self) -> Place | None:
        """The old keyframe that the newest one should be compared with, if there is one."""
        if not self._fresh or self._graph.index(self._places[-1].submap) < APART:
            return None
        new, alike = self._places[-1], self._looks.like_newest()
        newest = self._graph.index(new.submap)
        tied = self._graph.looped(new.submap)  # no use in finding these again
        seen = 0
        for i in np.argsort(-alike, kind="stable"):
            old, at = self._places[i], self._graph.index(self._places[i].submap)
            if alike[i] <= ALIKE or seen == CANDIDATES:
                break
            if newest - at < APART or at in tied:
                continue
            seen += 1
            if old.submap not in self._looked and self._can_meet(old, new):
                self._looked.add(old.submap)
                return old
        self._fresh = False  # nothing to find until something is new
        return None

    def _can_meet(self, old: Place, new: Place) -> bool:
        """Whether two keyframes can see the same, for all that drift may have done."""
        if old.anchor.view.image.shape != new.anchor.view.image.shape:
            return False
        drift = np.sqrt(self._drift(old, new))
        away = float(np.linalg.norm(old.centre - new.centre))
        R = old.T_vo_camera[:3, :3].T @ new.T_vo_camera[:3, :3]
        turn = Rotation.from_matrix(R).magnitude()
        near = away - SIGMAS * math.sqrt(3) * drift[2] < REACH * old.depth
        return near and turn - SIGMAS * math.sqrt(3) * drift[1] < math.radians(VIEW_DEG)

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
        return abs(place.submap - other.submap) <= 1

    def judge(
        self, old: Place, places: Sequence[Place], prediction: Prediction, joiner: WindowAligner
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
                    self._tie(one)
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
        joiner: WindowAligner,
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
        seen = fits[0].T_ref_window @ fits[1].T_ref_window.inverse()
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
        return steps.about(fit.T_ref_window.scale * arm)

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

    def _tie(self, loop: Loop) -> None:
        """Put a loop into the graph: between the submaps of its keyframes."""
        place = self._graph.node(loop.new.submap).place
        arm = float(np.linalg.norm(loop.new.centre - place.t))
        variance = added(loop.variance, arm) + loop.old.own + loop.new.own
        self._graph.tie(loop.old.submap, loop.new.submap, loop.seen, variance)

    def _drift(self, old: Place, new: Place) -> Array:
        """Variance [3] of the new place as seen from the old one, along the surest way."""
        first, second = (self._graph.index(p.submap) for p in (old, new))
        return np.asarray(old.own + new.own + self._graph.drift(first, second, new.centre))

    # Closing it

    def problem(self, metric: bool) -> Problem:
        """What is to be solved (``submap_graph.solve``), on whatever thread."""
        return self._graph.problem(self.T_scene_vo, metric)

    def apply(self, correction: Correction) -> None:
        """Move what is remembered."""
        self.T_scene_vo = correction.T_scene_vo
        self._graph.apply(correction.moves)
        self._places = [
            replace(p, anchor=p.anchor.moved(correction.moves[p.submap]))
            if p.submap in correction.moves
            else p
            for p in self._places
        ]
        self._waiting.clear()
        self._fresh = bool(self._places)


def absorbed_into(place: Place, absorbed: Absorbed) -> Place:
    """A place whose submap may be part of another node now; how sure it is counts from there."""
    if absorbed.variance is None or not absorbed.first <= place.submap <= absorbed.last:
        return place
    arm = float(np.linalg.norm(absorbed.at - place.centre))
    return replace(place, own=place.own + added(absorbed.variance, arm))


# Parts ------------------------------------------------------------------------------------------


def thinned(anchor: SharedView) -> SharedView:
    """With fewer pixels: many of them are remembered for long."""
    keep = sample(np.ones(len(anchor.pixels), bool), SAMPLES)
    return replace(
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


class Looks:
    """How alike the descriptors of remembered places are, in their order.

    Descriptors are whitened by those that there are. What that is changes slowly: it is found anew
    when an eighth of them has changed, and in between new ones are seen in the same way.
    """

    def __init__(self) -> None:
        self._white = np.zeros((0, 0))
        self._way: tuple[Array, Array] | None = None
        self._since = 0  # descriptors added

    def add(self, descriptors: Sequence[Array]) -> None:
        """There is one more, the last of all ``descriptors``."""
        self._since += 1
        if self._way is None or 8 * self._since >= len(descriptors):
            x = np.array(descriptors)
            self._way, self._since = whitening(x), 0
            self._white = seen_through(x, self._way)
        else:
            newest = seen_through(descriptors[-1][None], self._way)
            self._white = np.concatenate((self._white, newest))

    def remove(self, index: int) -> None:
        """One is forgotten."""
        self._white = np.delete(self._white, index, axis=0)

    def like_newest(self) -> Array:
        """Cosines [M] of each with the last."""
        return np.asarray(self._white @ self._white[-1])

    def neighbours(self) -> Array:
        """Cosines [M - 1] of each with the next."""
        return np.asarray((self._white[:-1] * self._white[1:]).sum(axis=1))


def whitening(descriptors: Array) -> tuple[Array, Array]:
    """Mean [D] and axes [D, d], scaled, in which descriptors [M, D] vary alike."""
    x = np.asarray(descriptors, dtype=np.float64)
    mean = x.mean(axis=0)
    if len(x) <= 8:
        return mean, np.eye(x.shape[1])
    x = x - mean
    # Principal axes from the smaller one of the two products: M is some hundred, D up to 1 536.
    most = min(DIMENSIONS, len(x) // 2)
    squares, left = (part[..., -most:] for part in np.linalg.eigh(x @ x.T))
    size = np.sqrt(np.maximum(squares, 1e-12 * max(squares[-1], 1e-12)))
    # What hardly varies among few is noise, and must not be blown up to full size.
    return mean, x.T @ (left / (size * (size + 0.1 * size[-1])))


def seen_through(descriptors: Array, way: tuple[Array, Array]) -> Array:
    """Unit rows [M, d] of descriptors [M, D] in a ``whitening``."""
    x = (descriptors - way[0]) @ way[1]
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
