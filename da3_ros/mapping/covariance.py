"""Covariances of published poses, propagated through the alignment of every window.

The estimator is linear in small errors: a window's similarity is a weighted mean of the
measurements of its overlap views (``Alignment.gains``), a new view takes the pose that its window
gives it, and an overlap view moves towards each new observation. So the joint covariance of the
errors of all views that windows may share follows exactly from the noise of one window. Views with
a common past have correlated errors, which a sum of independent steps would miss. The noise is
learned from the disagreement of the views of a window (``WindowNoise``).

An error that a network repeats in every window causes no disagreement. Its size is a property of
the network (``MotionError``) and is added.

An error is (log scale; rotation, rad; position): estimate minus truth, rotation and position in
the axes and the unit of the chain. No network, no ROS.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls
from scipy.spatial.transform import Rotation

from da3_ros.types import Array, MotionError

# The noise of a window, learned from the residuals of its overlap views after the fit.
#
# Kinds of noise: independent noise of each view (log scale, rotation, position), and errors of
# rotation and position that grow along the window, as when its poses bend. Residuals are linear in
# the noise, so their expected covariance is linear in the variances of the kinds: sums over
# windows of expected and found values give the variances (method of moments).

SIZE = 7  # components of an error: log scale, rotation, position
SCALE, ROTATION, POSITION = slice(0, 1), slice(1, 4), slice(4, 7)
_KINDS = ((SCALE, False), (ROTATION, False), (POSITION, False), (ROTATION, True), (POSITION, True))
KINDS = len(_KINDS)
FADE = 0.98  # factor on a window's weight per later window
PRIOR_WINDOWS = 1.0  # weight of the prior noise, in windows
MAX_WINDOW_VIEWS = 8  # views of a window that are compared
OUTLIER = 9.0  # limit of one window's contribution over its expected value


class WindowNoise:
    """Variances of all kinds of noise of one stream."""

    PRIOR = np.array([0.01, 0.005, 0.01, 0.0025, 0.005]) ** 2
    FLOOR = 1e-12

    def __init__(self) -> None:
        self.variances = self.PRIOR  # [5]; those of positions over the squared depth
        self._expected = np.zeros((KINDS, KINDS))  # value of each form per unit of each kind
        self._found = np.zeros(KINDS)

    def add(self, residuals: Array, fitted: Array, covariance: Array, depth: float) -> None:
        """Learns from the residuals of a window's overlap views; of many, from an even choice.

        residuals: [S, 7], 0 where nothing was measured. fitted: [7 S, 7 S] derivative of the
        fitted values by the errors of scene and window. covariance: [5, 7 S, 7 S] of those errors,
        per unit of each kind.
        """
        count = min(len(residuals), MAX_WINDOW_VIEWS)
        if count < 2:
            return
        chosen = np.linspace(0, len(residuals) - 1, count).round().astype(int)
        rows = (SIZE * chosen[:, None] + np.arange(SIZE)).ravel()
        scale = np.tile([1, 1, 1, 1, *[1 / depth] * 3], count)
        values = scale * residuals[chosen].ravel()
        if not np.isfinite(values).all():
            return
        R = -fitted[rows]
        R[np.arange(len(rows)), rows] += 1
        R = np.where((values != 0)[:, None], scale[:, None] * R, 0.0)
        forms = _forms(count)
        expected = np.einsum("fij,kij->fk", forms, R @ covariance @ R.T)
        found = np.einsum("fij,i,j->f", forms, values, values)
        if not self._expected.any():
            self._expected, self._found = (
                PRIOR_WINDOWS * expected,
                PRIOR_WINDOWS * expected @ self.PRIOR,
            )
        most = OUTLIER * (expected @ self.variances) + self.FLOOR
        self._expected = FADE * self._expected + expected
        self._found = FADE * self._found + np.minimum(found, most)
        self.variances = np.maximum(self._solved(), self.FLOOR)

    def _solved(self) -> Array:
        """Returns the non-negative variances that explain the sums best."""
        size = np.maximum(self._found, 1e-30)  # every form counts alike
        design = self._expected * self.PRIOR / size[:, None]
        try:
            return np.asarray(nnls(design, self._found / size)[0] * self.PRIOR)
        except RuntimeError:  # no solution within the allowed iterations
            return self.variances


def window_covariance(views: int, depth: float) -> Array:
    """Returns the covariance [5, 7 N, 7 N] of a window's measurements, per unit of each kind."""
    along = np.linspace(0, 1, views)
    out = []
    for part, grows in _KINDS:
        one = np.zeros(SIZE)
        one[part] = depth**2 if part == POSITION else 1.0
        out.append(np.kron(np.outer(along, along) if grows else np.eye(views), np.diag(one)))
    return np.stack(out)


@functools.lru_cache(maxsize=64)
def _forms(views: int) -> Array:
    """Returns quadratic forms [5, 7 S, 7 S] of residuals, one per kind: sums of squares, and
    squared slopes along the window."""
    away = np.linspace(-1, 1, views)
    slope = np.outer(away, away) / float(away @ away)
    out = []
    for part, grows in _KINDS:
        one = np.zeros(SIZE)
        one[part] = 1.0
        out.append(np.kron(slope if grows else np.eye(views), np.diag(one)))
    return np.stack(out)


MAX_VIEWS = 128  # views in the joint covariance
# Factor on the variance of a solved graph, which treats loops at one location as independent,
# although they share views.
LOOP_CORRELATION = 2.0
MIN_MOTION = 0.01  # rad, or distance over depth; after less motion the image is the same
LAYERS = KINDS + 1  # covariance per unit of each kind of noise, and one of known size


# Measured on da3-tiny, the weakest model (bench/bench_covariance.py); the default for networks
# without a measured error.
UNMEASURED = MotionError(rotation=0.35, distance=0.5, least=0.05)
EXACT = MotionError()
# Factor on the covariance of a bundle: one view's features count in several windows, which are
# treated as independent.
REFINED_CORRELATION = 4.0
# Systematic errors of refined views: calibration, and a share of the network's. The share is such
# that da3-tiny's covariances are not too small.
REFINED_ERROR = MotionError(rotation=0.005, distance=0.005, least=0.0005)
REFINED_SHARE = 0.1
# Factor on the network's error in windows that refinement leaves as they are. It finds too few
# tracks there: such images show little, and the bound is that of images with texture
# (bench/bench_covariance.py --plain).
WITHOUT_TRACKS = 2.0
# Error by a focal length that the network guesses, often 10 to 20 % off.
GUESSED_FOCAL = MotionError(rotation=0.2, distance=0.3)


@dataclass(frozen=True, eq=False)
class WindowObservation:
    """A placed window; overlap views come first."""

    ids: Sequence[int]  # [N] of the views
    poses: Array  # [N, 4, 4] in ``local``
    depth: float  # typical depth, units of odometry; position errors are proportional to it
    pivot: Array  # [3] Alignment.pivot, in ``local``
    gains: Array  # [S, 7, 7] of the overlap views (Alignment.gains)
    residuals: Array  # [S, 7] of the overlap views (Alignment.residuals)
    update_weights: Array  # [S, 7] share by which each overlap view moves towards this observation
    # Whether refinement follows. Views that it refines get other errors; the others are those of
    # which too few tracks are found, or for which there is no time.
    refined_later: bool = False

    @property
    def centres(self) -> Array:
        """Camera centres [N, 3]."""
        return np.asarray(self.poses[:, :3, 3])


@dataclass(frozen=True, eq=False)
class RefinedObservation:
    """Views that feature tracks have refined, and the views that held them.

    Errors: (log scale; rotation, rad; position), in the axes of the chain.
    """

    ids: Sequence[int]  # [F] of the refined views
    held: Sequence[int]  # [H] of the held views, oldest first
    poses: Mapping[int, Array]  # [4, 4] of all of them in the chain
    depth: float  # typical depth, units of odometry
    covariance: Array  # [7 F, 7 F] of the errors with the held views exact
    by_held: Array  # [7 F, 7 H] derivatives of the errors by those of the held views
    by_network: Array  # [7 F, 7 F] by the error that the network has in all windows
    guessed_focal: bool = False  # whether the network guesses the focal length of a camera

    def transport(self, ids: Sequence[int], base: int) -> Array:
        """Returns the errors [7 N, 7] of views that move with the view ``base``."""
        arms = np.array([self.poses[i][:3, 3] for i in ids]) - self.poses[base][:3, 3]
        return np.concatenate(list(error_transport(arms)))

    def of_network(self, base: int, error: MotionError) -> Array:
        """Returns the covariance [7 F, 7 F] that the network's systematic error causes.

        The errors of all views' motions since the held view ``base`` have one direction.
        """
        size = np.zeros((len(self.ids), SIZE))
        for k, id in enumerate(self.ids):
            angle, distance = motion(self.poses[base], self.poses[id])
            size[k, 1:4] = error.rotation * angle + error.least
            size[k, 4:] = error.distance * distance + error.least * self.depth
        size /= np.sqrt(3)
        shared = np.einsum("jc,kc,cd->jckd", size, size, np.eye(SIZE))
        shared = shared.reshape(2 * [SIZE * len(self.ids)])
        return np.asarray(self.by_network @ shared @ self.by_network.T)


class JointCovariance:
    """Joint covariance of the errors of the views that windows may share."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}  # position in ``P`` of each view, by its id
        # Views that a window may still share, whose error is no longer in ``P``.
        self._unknown: set[int] = set()
        self.P = np.zeros((LAYERS, 0, 0))

    def __contains__(self, id: int) -> bool:
        return id in self._slots

    def of(self, id: int, variances: Array) -> Array:
        """Returns the covariance [7, 7] of a view's error. Raises KeyError for an unknown view."""
        rows = self._rows([id])
        layers = self.P[:, rows[:, None], rows]
        return np.asarray(np.tensordot(np.append(variances, 1.0), layers, 1))

    def begin_chain(self, window: WindowObservation, reference: int) -> None:
        """Starts with the first window of a chain.

        The view at index ``reference`` defines the chain's position, the window its unit.
        """
        self._slots.clear()
        B = np.eye(SIZE * len(window.ids))
        transport = np.concatenate(
            list(error_transport(window.centres - window.centres[reference]))
        )
        B[:, SIZE * reference + 1 : SIZE * (reference + 1)] -= transport[:, 1:]
        window_covariances = _layers(window_covariance(len(window.ids), window.depth))
        self._write(window.ids, np.zeros((len(B), 0)), [], B @ window_covariances @ B.T)

    def add_window(self, window: WindowObservation, noise: WindowNoise | None = None) -> None:
        """Adds a window that was aligned by its overlap views; ``noise`` learns from it.

        Does nothing if the error of an overlap view is unknown: then those of new views are too.
        """
        ids, shared = window.ids[: len(window.gains)], SIZE * len(window.gains)
        self._assign_newest_error(ids, window.centres)
        if not all(id in self._slots for id in ids):
            return
        rows = self._rows(ids)
        before = self.P[:, rows[:, None], rows]
        transport = np.concatenate(
            list(error_transport(window.centres - window.pivot))
        )  # [7 N, 7]
        gain = np.concatenate(list(window.gains), axis=1)  # [7, 7 S]
        window_covariances = _layers(window_covariance(len(window.ids), window.depth))
        if noise is not None:
            covariance = (before + window_covariances[:, :shared, :shared])[:KINDS]
            noise.add(window.residuals, transport[:shared] @ gain, covariance, window.depth)
        share = np.ones(len(transport))
        share[:shared] = window.update_weights.ravel()
        L, stay = share[:, None] * transport, 1 - share[:shared]
        own = propagated_covariance(L, gain, stay, before)
        back = np.concatenate((-gain, np.zeros((SIZE, len(transport) - shared))), axis=1)
        own += propagated_covariance(L, back, share, window_covariances)
        A = L @ gain
        A[:shared] += np.diag(stay)
        self._write(window.ids, A, ids, own)

    def add_refined(self, refined: RefinedObservation, error: MotionError) -> None:
        """Sets the errors of refined views: by those of the held views, and their own.

        Does nothing if the error of no held view is known. What is not known of the others is that
        of the newest known one. error: of the network.
        """
        held = refined.held
        centres = np.array([refined.poses[i][:3, 3] for i in held]).reshape(-1, 3)
        self._assign_newest_error(held, centres)
        at = [k for k, i in enumerate(held) if i in self._slots]
        if not at:
            return
        known = [held[k] for k in at]
        A = np.concatenate([refined.by_held[:, SIZE * k : SIZE * (k + 1)] for k in at], axis=1)
        # Where the held views do not determine something, it moves with the newest one.
        newest = known[-1]
        rest = refined.transport(refined.ids, newest) - A @ refined.transport(known, newest)
        A[:, -SIZE:] += rest
        rows = self._rows(known)
        own = A @ self.P[:, rows[:, None], rows] @ A.T
        own[-1] += REFINED_CORRELATION * refined.covariance + refined.of_network(newest, error)
        self._write(refined.ids, A, known, own)
        self._unknown -= set(refined.ids)

    def keep(self, ids: Collection[int]) -> None:
        """Forgets all views but these, and the oldest of too many."""
        wanted = [id for id in self._slots if id in ids]
        self._unknown = (self._unknown & set(ids)) | set(wanted[:-MAX_VIEWS])
        self._slots = {id: self._slots[id] for id in wanted[-MAX_VIEWS:]}

    def forget(self, ids: Collection[int]) -> None:
        """Forgets the errors of views that a loop has moved; they get the newest view's error when
        a window shares them again."""
        self._unknown |= self._slots.keys() & set(ids)
        self._slots = {id: slot for id, slot in self._slots.items() if id not in ids}

    def rebased(
        self, known: Array, reference: int, centres: Mapping[int, Array]
    ) -> JointCovariance:
        """Returns the covariance relative to the view ``reference``, plus that view's own.

        known: covariance [7, 7] of the error of ``reference``. centres: camera centres [3] by
        view; views that are not in it are left out.
        """
        ids = [id for id in self._slots if id in centres]
        rows = self._rows(ids)
        transport = np.concatenate(
            list(error_transport(np.array([centres[i] for i in ids]) - centres[reference]))
        )
        at = SIZE * ids.index(reference)
        R = np.eye(len(rows))
        R[:, at : at + SIZE] -= transport
        P = R @ self.P[:, rows[:, None], rows] @ R.T
        P[-1] += transport @ known @ transport.T
        out = JointCovariance()
        out._unknown = set(self._unknown)
        out._write(ids, np.zeros((len(rows), 0)), [], P)
        return out

    @staticmethod
    def of_one(id: int, known: Array, others: Collection[int]) -> JointCovariance:
        """Returns the covariance ``known`` [7, 7] of one view's error; ``others`` take it over
        when a window shares them with it."""
        own = np.zeros((LAYERS, SIZE, SIZE))
        own[-1] = known
        out = JointCovariance()
        out._unknown = set(others) - {id}
        out._write([id], np.zeros((SIZE, 0)), [], own)
        return out

    def _assign_newest_error(self, ids: Sequence[int], centres: Array) -> None:
        """Gives overlap views whose error was forgotten the error of the newest known view."""
        unknown = [i for i, id in enumerate(ids) if id in self._unknown]
        held = [i for i, id in enumerate(ids) if id in self._slots]
        if not unknown or not held:
            return
        source = held[-1]
        A = np.concatenate(list(error_transport(centres[unknown] - centres[source])))
        rows = self._rows([ids[source]])
        own = A @ self.P[:, rows[:, None], rows] @ A.T
        self._write([ids[i] for i in unknown], A, [ids[source]], own)
        self._unknown -= set(ids)

    def _write(self, ids: Sequence[int], A: Array, old: Sequence[int], own: Array) -> None:
        """Sets the errors of the views ``ids`` to A times those of ``old``, plus noise.

        own: the resulting covariance [6, 7 N, 7 N] of ``ids``.
        """
        cross = A @ self.P[:, self._rows(old)]
        self._reserve(ids)
        rows = self._rows(ids)
        self.P[:, rows] = 0
        self.P[:, rows, : cross.shape[2]] = cross
        self.P[:, :, rows] = self.P[:, rows].transpose(0, 2, 1)
        self.P[:, rows[:, None], rows] = (own + own.transpose(0, 2, 1)) / 2

    def _reserve(self, ids: Sequence[int]) -> None:
        """Gives each view a slot; the matrix grows when it is full."""
        used = set(self._slots.values())
        free = (i for i in range(len(used) + len(ids)) if i not in used)
        for id in ids:
            if id not in self._slots:
                self._slots[id] = next(free)
        needed, size = SIZE * (1 + max(self._slots.values())), self.P.shape[2]
        if needed > size:
            needed += SIZE * max(8, needed // (4 * SIZE))
            grown = np.zeros((LAYERS, needed, needed))
            grown[:, :size, :size] = self.P
            self.P = grown

    def _rows(self, ids: Sequence[int]) -> Array:
        slots = np.array([self._slots[id] for id in ids], int)
        return np.asarray((SIZE * slots[:, None] + np.arange(SIZE)).ravel())


class SystematicError:
    """Standard deviations of the errors that all windows have in common.

    The error of a view is that of the overlap view with the least error, and that of the motion
    since. Errors of motions add up as if they all had one direction; the least error of each
    motion adds up as independent noise.
    """

    def __init__(self, error: MotionError) -> None:
        self.error = error
        # Of each view [2] (rad, position): sums, and sums of squares.
        self._errors: dict[int, tuple[Array, Array]] = {}

    def __contains__(self, id: int) -> bool:
        return id in self._errors

    def begin(self, id: int, known: Array | None = None) -> None:
        """Sets a view's error: ``known`` [2], or zero for the view that defines the chain."""
        at = np.zeros(2) if known is None else np.asarray(known, float)
        self._errors[id] = (at, np.zeros(2))

    def add(self, window: WindowObservation, index: int, shared: Sequence[int]) -> None:
        """Adds the view at ``index`` of a window, by its motion from the known ones of
        ``shared``."""
        depth, error = window.depth, self.error
        if window.refined_later:
            error = MotionError().plus(error, WITHOUT_TRACKS)
        links = [
            self._linked(
                self._errors[window.ids[i]],
                window.poses[i],
                window.poses[index],
                depth,
                error,
            )
            for i in shared
            if window.ids[i] in self._errors
        ]
        if links:
            self._errors[window.ids[index]] = min(links, key=lambda one: _size(one) @ [depth, 1.0])

    def add_refined(self, refined: RefinedObservation) -> None:
        """Sets the errors of refined views by their motion from the held ones."""
        known, poses = [h for h in refined.held if h in self._errors], refined.poses
        error = REFINED_ERROR.plus(self.error, REFINED_SHARE)
        if refined.guessed_focal:
            error = error.plus(GUESSED_FOCAL, 1.0)
        for id in refined.ids:
            links = [
                self._linked(self._errors[h], poses[h], poses[id], refined.depth, error)
                for h in known
            ]
            if links:
                self._errors[id] = min(links, key=lambda one: _size(one) @ [refined.depth, 1.0])

    def of(self, id: int) -> Array:
        """Returns standard deviations [2] of the errors' lengths: rotation (rad), position.

        Raises KeyError for an unknown view.
        """
        return _size(self._errors[id])

    def keep(self, ids: Collection[int]) -> None:
        """Forgets all views but these."""
        self._errors = {id: held for id, held in self._errors.items() if id in ids}

    def _linked(
        self, held: tuple[Array, Array], T_known: Array, T: Array, depth: float, error: MotionError
    ) -> tuple[Array, Array]:
        angle, distance = motion(T_known, T)
        grown = error.rotation * angle + error.distance * distance / depth
        least = error.least
        position = grown * depth + _size(held)[0] * distance
        return held[0] + [grown, position], held[1] + np.square([least, least * depth])


class PoseUncertainty:
    """Covariances of published poses, in odometry and in the map.

    Both start at the first view of a chain, which is exact. A loop replaces the map's and leaves
    odometry's as it is. After motion that was not measured, odometry's is unknown.
    """

    def __init__(self, error: MotionError = UNMEASURED) -> None:
        self._error = error
        self.start_chain(known=True)

    def start_chain(self, *, known: bool) -> None:
        """Begins a chain; known: odometry begins with it, so that no motion is missing."""
        self._known = known
        self.noise = WindowNoise()
        self._odometry = self._map = (JointCovariance(), SystematicError(self._error))
        self._submaps: dict[int, Array] = {}  # systematic error of each submap's first view
        self._learned_at: Array | None = None  # [4, 4] pose at which noise was last learned
        self._measured = True  # whether windows have measured all motion of the chain

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        both = {id(joint): joint for joint, _ in (self._odometry, self._map)}
        return sum(joint.P.nbytes for joint in both.values())

    def begin_chain(self, window: WindowObservation, reference: int) -> None:
        """Starts with the first window of a chain; the view at ``reference`` is its origin."""
        joint, systematic = self._odometry
        joint.begin_chain(window, reference)
        systematic.begin(window.ids[reference])
        for index in (i for i in range(len(window.ids)) if i != reference):
            systematic.add(window, index, [reference])

    def note_unmeasured(self) -> None:
        """Notes a window whose errors of motion are not stated: the graph does not know them
        either."""
        self._measured = False

    def add_window(self, window: WindowObservation) -> None:
        """Adds a window that was aligned by its overlap views."""
        shared = range(len(window.gains))
        learns = self._moved(window)
        for joint, systematic in self._trackers():
            joint.add_window(window, self.noise if learns and joint is self._odometry[0] else None)
            for index in range(len(shared), len(window.ids)):
                systematic.add(window, index, shared)

    def add_refined(self, refined: RefinedObservation) -> None:
        """Sets the errors of views that were refined against held ones."""
        for joint, systematic in self._trackers():
            joint.add_refined(refined, self._error)
            systematic.add_refined(refined)

    def _moved(self, window: WindowObservation) -> bool:
        """True if the camera has moved since noise was last learned; then notes the pose.

        A network repeats its error on the images of a standing camera: the agreement of such
        windows does not measure the noise.
        """
        here, last = window.poses[-1], self._learned_at
        if last is not None:
            rotation, distance = motion(last, here)
            if rotation < MIN_MOTION and distance < MIN_MOTION * window.depth:
                return False
        self._learned_at = here
        return True

    def keep(self, ids: Collection[int]) -> None:
        """Forgets all views but these, which windows may share."""
        for joint, systematic in self._trackers():
            joint.keep(ids)
            systematic.keep(ids)

    def enter_submap(self, submap: int, id: int) -> None:
        """Keeps the systematic error of a submap's first view."""
        if submap not in self._submaps and id in self._map[1]:
            self._submaps[submap] = self._map[1].of(id)
            while len(self._submaps) > MAX_VIEWS:
                del self._submaps[next(iter(self._submaps))]

    def close_loop(
        self, known: Array, newest: int, old: Collection[int], views: Mapping[int, Array],
        moved: Collection[int],
    ) -> None:  # fmt: skip
        """Replaces the map's covariances after a loop closure; also where a gap, after which only
        views were shared that an earlier loop had moved, has left them unknown.

        known: covariance [7, 7] of the newest view's error. old: the older submaps of the loops.
        views: centres [3] of all views that windows may share. moved: views that the loop moved.
        """
        for joint, systematic in self._trackers():
            joint.forget(moved)
            systematic.keep(set(views) - set(moved))
        joint, before = self._map
        candidates = [self._submaps[submap] for submap in old if submap in self._submaps]
        if newest in before:
            candidates = candidates or [before.of(newest)]
        if not candidates or (newest not in joint and not self._measured):
            return
        known = LOOP_CORRELATION * known
        if newest in joint:
            joint = joint.rebased(known, newest, views)
        else:  # a gap has left it unknown: the loop says where it is
            joint = JointCovariance.of_one(newest, known, views)
        systematic = SystematicError(self._error)
        systematic.begin(newest, min(candidates, key=total))
        self._map = (joint, systematic)

    def move_in_odometry(self, moved: Collection[int], newest: int) -> None:
        """Takes over that views have moved in the frame of odometry, which goes on from its newest
        one: the error of odometry is no longer theirs. In the map they are as well known as
        before, at least."""
        if self._map is self._odometry:
            self._map = copy.deepcopy(self._odometry)
        joint, systematic = self._odometry
        joint.forget(moved)
        systematic.keep({newest})

    @property
    def at_rest(self) -> Array:
        """Standard deviations [2] of the motion that a window measures between two views of a
        standing camera: position over depth, in each axis, and rotation, rad."""
        _, rotation, position, turning, moving = self.noise.variances
        least = self._error.least**2 / 3
        both = np.array([2 * position + moving, 2 * rotation + turning])
        return np.asarray(np.sqrt(both + least))

    def odometry(self, id: int) -> Array | None:
        """Returns the covariance [6, 6] of (position, rotation) since odometry began; None:
        unknown."""
        return self._of(self._odometry, id) if self._known else None

    def in_map(self, id: int) -> Array | None:
        """Returns the covariance [6, 6] of (position, rotation) in the view's component of the
        map; None: unknown."""
        return self._of(self._map, id)

    def _trackers(self) -> list[tuple[JointCovariance, SystematicError]]:
        return [self._odometry] if self._map is self._odometry else [self._odometry, self._map]

    def _of(self, tracker: tuple[JointCovariance, SystematicError], id: int) -> Array | None:
        joint, systematic = tracker
        if id not in joint or id not in systematic:
            return None
        covariance = joint.of(id, self.noise.variances)[1:, 1:]
        rotation, position = systematic.of(id) ** 2 / 3  # per axis
        covariance += np.diag([*[rotation] * 3, *[position] * 3])
        order = [3, 4, 5, 0, 1, 2]
        return np.asarray(covariance[np.ix_(order, order)] + FLOOR * np.eye(6))


FLOOR = 1e-12  # added to variances, so that a covariance has an inverse


def rotated_covariance(covariance: Array, R: Array) -> Array:
    """Returns a covariance [6, 6] of (position, rotation) in axes rotated by ``R`` [3, 3]."""
    both = np.kron(np.eye(2), R)
    return np.asarray(both @ covariance @ both.T)


def in_metres(covariance: Array, scale: float, sigma: float, position: Array) -> Array:
    """Returns a covariance [6, 6] of (position, rotation) with positions in metres.

    scale: metres per unit. sigma: its relative standard deviation (NaN: not stated), which moves a
    camera at ``position`` [3] (metres from the place that it does not move) along its direction.
    """
    units = np.array([scale, scale, scale, 1, 1, 1])
    out = covariance * np.outer(units, units)
    if np.isfinite(sigma):
        out[:3, :3] += sigma**2 * np.outer(position, position)
    return np.asarray(out)


def kept_error(T_odom_local: Array, T_local_camera: Array) -> Array:
    """Returns the second moment [6, 6] of (position, rotation) of the error that a camera's pose
    in odometry has because odometry did not take over later corrections."""
    position = T_local_camera[:3, 3]
    moved = T_odom_local[:3, :3] @ position + T_odom_local[:3, 3] - position
    turned = Rotation.from_matrix(T_odom_local[:3, :3]).as_rotvec()
    error = np.concatenate((moved, turned))
    return np.outer(error, error)


def motion(T_first: Array, T_second: Array) -> tuple[float, float]:
    """Returns the angle, rad, and the distance between two poses [4, 4]."""
    cosine = (np.einsum("ij,ij->", T_first[:3, :3], T_second[:3, :3]) - 1) / 2
    angle = float(np.arccos(np.clip(cosine, -1, 1)))
    return angle, float(np.linalg.norm(T_second[:3, 3] - T_first[:3, 3]))


def error_transport(arms: Array) -> Array:
    """Returns [N, 7, 7]: maps the error of a similarity about a pivot to the error at ``arms``
    [N, 3] from the pivot."""
    out = np.tile(np.eye(SIZE), (len(arms), 1, 1))
    out[:, 4:, 0] = arms
    out[:, 4:, 1:4] = np.cross(np.eye(3), arms[:, None]).transpose(0, 2, 1)
    return out


def propagated_covariance(L: Array, G: Array, stay: Array, P: Array) -> Array:
    """Returns A P A' [K, n, n] for covariances P [K, m, m] and A = L G + diag(stay), n >= m.

    L has seven columns: the cost is of order n squared, that of the plain product n cubed.
    """
    m = P.shape[1]
    GP = G @ P
    own = L @ (GP @ G.T) @ L.T
    cross = (L @ GP) * stay
    own[:, :, :m] += cross
    own[:, :m] += cross.transpose(0, 2, 1)
    own[:, :m, :m] += stay[:, None] * P * stay
    return np.asarray(own)


def total(values: Array) -> float:
    """Returns the sum of an array; a key to sort by."""
    return float(values.sum())


def _layers(per_kind: Array) -> Array:
    """Returns the layers of all kinds of noise, with an empty layer of known size."""
    return np.concatenate((per_kind, np.zeros((1, *per_kind.shape[1:]))))


def _size(held: tuple[Array, Array]) -> Array:
    return np.asarray(np.sqrt(held[0] ** 2 + held[1]))
