"""How far off published poses may be: covariances carried through every join of a window.

The scene's estimator is linear in small errors: a window's place is a weighted mean of what the
shared views measure (``Alignment.gains``), a new view lies where its window puts it, and a shared
view moves towards each new observation. So the joint covariance of the errors of all views that
windows may share follows exactly from the noise of one window. Views that share their past have
correlated errors, which a chain of independent steps would miss. The noise is learned from how far
the views of one window disagree (``window_noise``).

What a network does wrong in the same way in every window shows in no disagreement: its bound is a
property of the network (``MotionError``) and is added.

An error is (log scale; rotation, rad; place): estimate minus truth, rotation and place in the axes
and the unit of the segment. Knows no network and no ROS.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from da3_ros.mapping.window_noise import KINDS, SIZE, WindowNoise, window_covariance
from da3_ros.types import Array, MotionError

MOST = 128  # views whose errors are held together
# Loops at one place share views, which a graph takes for independent: its variance times this.
LOOPS_SHARE = 2.0
STANDING = 0.01  # rad, or way over depth: less motion than this shows the same picture
LAYERS = KINDS + 1  # per unit of each kind of noise, and what is known from elsewhere


# Measured on da3-tiny, the weakest model (bench/bench_covariance.py); taken for every network that
# does not tell its own.
UNMEASURED = MotionError(rotation=0.35, way=0.5, least=0.05)
EXACT = MotionError()


@dataclass(frozen=True, eq=False)
class Observed:
    """A window that was placed in its segment; shared views come first."""

    ids: Sequence[int]  # [N] of the views
    poses: Array  # [N, 4, 4] in the segment
    depth: float  # typical one, segment units; places are as uncertain as it is large
    about: Array  # [3] the point of the segment that the fit is about
    gains: Array  # [S, 7, 7] of the shared views (Alignment.gains)
    residuals: Array  # [S, 7] of the shared views (Alignment.residuals)
    taken: Array  # [S, 7] share by which each shared view moves towards this observation

    @property
    def centres(self) -> Array:
        """[N, 3] of the cameras."""
        return np.asarray(self.poses[:, :3, 3])


class JointCovariance:
    """Joint covariance of the errors of the views that windows may share."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}  # of each view, by its id
        self._loose: set[int] = set()  # views whose error is that of the newest one
        self._P = np.zeros((LAYERS, 0, 0))

    def __contains__(self, id: int) -> bool:
        return id in self._slots

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return self._P.nbytes

    def of(self, id: int, variances: Array) -> Array:
        """Covariance [7, 7] of a view's error. Raises KeyError for one that is not held."""
        rows = self._rows([id])
        layers = self._P[:, rows[:, None], rows]
        return np.asarray(np.tensordot(np.append(variances, 1.0), layers, 1))

    def begin(self, seen: Observed, reference: int) -> None:
        """Take the first window of a segment.

        The view at index ``reference`` defines where the segment is, the window its unit.
        """
        self._slots.clear()
        B = np.eye(SIZE * len(seen.ids))
        lift = np.concatenate(list(lifted(seen.centres - seen.centres[reference])))
        B[:, SIZE * reference + 1 : SIZE * (reference + 1)] -= lift[:, 1:]
        spread = _layers(window_covariance(len(seen.ids), seen.depth))
        self._write(seen.ids, np.zeros((len(B), 0)), [], B @ spread @ B.T)

    def join(self, seen: Observed, noise: WindowNoise | None = None) -> None:
        """Take a window that was joined by its shared views; ``noise`` learns from it.

        Where one of these is not held, nothing is known of the new ones either.
        """
        ids, shared = seen.ids[: len(seen.gains)], SIZE * len(seen.gains)
        self._adopt(ids, seen.centres)
        if not all(id in self._slots for id in ids):
            return  # of what it was joined by, not everything is known
        rows = self._rows(ids)
        before = self._P[:, rows[:, None], rows]
        lift = np.concatenate(list(lifted(seen.centres - seen.about)))  # [7 N, 7]
        gain = np.concatenate(list(seen.gains), axis=1)  # [7, 7 S]
        spread = _layers(window_covariance(len(seen.ids), seen.depth))
        if noise is not None:
            doubt = (before + spread[:, :shared, :shared])[:KINDS]
            noise.add(seen.residuals, lift[:shared] @ gain, doubt, seen.depth)
        share = np.ones(len(lift))
        share[:shared] = seen.taken.ravel()
        L, stay = share[:, None] * lift, 1 - share[:shared]
        own = carried(L, gain, stay, before)
        back = np.concatenate((-gain, np.zeros((SIZE, len(lift) - shared))), axis=1)
        own += carried(L, back, share, spread)
        A = L @ gain
        A[:shared] += np.diag(stay)
        self._write(seen.ids, A, ids, own)

    def keep(self, ids: Collection[int]) -> None:
        """Forget all views but these; of too many the oldest go."""
        wanted = [id for id in self._slots if id in ids]
        self._loose = (self._loose & set(ids)) | set(wanted[:-MOST])
        self._slots = {id: self._slots[id] for id in wanted[-MOST:]}

    def forget(self, ids: Collection[int]) -> None:
        """These views lie elsewhere now: what is next said of them is tied to the newest one."""
        self._loose |= self._slots.keys() & set(ids)
        self._slots = {id: slot for id, slot in self._slots.items() if id not in ids}

    def rebased(
        self, known: Array, reference: int, centres: Mapping[int, Array]
    ) -> JointCovariance:
        """The same views where the error of one, ``reference``, has the covariance ``known``
        [7, 7]. Views without a place in ``centres`` are left out."""
        ids = [id for id in self._slots if id in centres]
        rows = self._rows(ids)
        lift = np.concatenate(
            list(lifted(np.array([centres[i] for i in ids]) - centres[reference]))
        )
        at = SIZE * ids.index(reference)
        R = np.eye(len(rows))
        R[:, at : at + SIZE] -= lift
        P = R @ self._P[:, rows[:, None], rows] @ R.T
        P[-1] += lift @ known @ lift.T
        out = JointCovariance()
        out._loose = set(self._loose)
        out._write(ids, np.zeros((len(rows), 0)), [], P)
        return out

    def _adopt(self, ids: Sequence[int], centres: Array) -> None:
        """Shared views that a loop has moved, or that were too many, get the error of the newest
        one that is held."""
        strange = [i for i, id in enumerate(ids) if id in self._loose]
        held = [i for i, id in enumerate(ids) if id in self._slots]
        if not strange or not held:
            return
        source = held[-1]
        A = np.concatenate(list(lifted(centres[strange] - centres[source])))
        rows = self._rows([ids[source]])
        own = A @ self._P[:, rows[:, None], rows] @ A.T
        self._write([ids[i] for i in strange], A, [ids[source]], own)
        self._loose -= set(ids)

    def _write(self, ids: Sequence[int], A: Array, old: Sequence[int], own: Array) -> None:
        """The views ``ids`` become A times those of ``old``, and noise; ``own`` is what their
        covariance [6, 7 N, 7 N] then is."""
        cross = A @ self._P[:, self._rows(old)]
        self._reserve(ids)
        rows = self._rows(ids)
        self._P[:, rows] = 0
        self._P[:, rows, : cross.shape[2]] = cross
        self._P[:, :, rows] = self._P[:, rows].transpose(0, 2, 1)
        self._P[:, rows[:, None], rows] = (own + own.transpose(0, 2, 1)) / 2

    def _reserve(self, ids: Sequence[int]) -> None:
        """A slot for each view; room doubles when it is full."""
        taken = set(self._slots.values())
        free = (i for i in range(len(taken) + len(ids)) if i not in taken)
        for id in ids:
            if id not in self._slots:
                self._slots[id] = next(free)
        needed, size = SIZE * (1 + max(self._slots.values())), self._P.shape[2]
        if needed > size:
            needed += SIZE * max(8, needed // (4 * SIZE))
            grown = np.zeros((LAYERS, needed, needed))
            grown[:, :size, :size] = self._P
            self._P = grown

    def _rows(self, ids: Sequence[int]) -> Array:
        slots = np.array([self._slots[id] for id in ids], int)
        return np.asarray((SIZE * slots[:, None] + np.arange(SIZE)).ravel())


class SystematicError:
    """How far off views may be by errors that all windows have in common.

    A view takes the surest way: from the shared view with the least error so far, and the motion
    since. Motions add up as if all errors pointed one way; what each link has at the least does
    not.
    """

    def __init__(self, error: MotionError) -> None:
        self.error = error
        # [2] of each view, rad and place: sums, and sums of squares.
        self._held: dict[int, tuple[Array, Array]] = {}

    def __contains__(self, id: int) -> bool:
        return id in self._held

    def begin(self, id: int, known: Array | None = None) -> None:
        """A view that defines where its segment is, or one that is off by ``known`` [2]."""
        at = np.zeros(2) if known is None else np.asarray(known, float)
        self._held[id] = (at, np.zeros(2))

    def add(self, seen: Observed, index: int, shared: Sequence[int]) -> None:
        """The view at ``index`` of a window, linked to those at ``shared`` that are held."""
        depth = seen.depth
        links = [
            self._linked(self._held[seen.ids[i]], seen.poses[i], seen.poses[index], depth)
            for i in shared
            if seen.ids[i] in self._held
        ]
        if links:
            self._held[seen.ids[index]] = min(links, key=lambda one: _size(one) @ [depth, 1.0])

    def of(self, id: int) -> Array:
        """Standard deviations [2] of the lengths of the errors: rotation (rad) and place.

        Raises KeyError for a view that is not held.
        """
        return _size(self._held[id])

    def keep(self, ids: Collection[int]) -> None:
        """Forget all views but these."""
        self._held = {id: held for id, held in self._held.items() if id in ids}

    def _linked(
        self, held: tuple[Array, Array], T_known: Array, T: Array, depth: float
    ) -> tuple[Array, Array]:
        way = float(np.linalg.norm(T[:3, 3] - T_known[:3, 3]))
        cosine = (np.einsum("ij,ij->", T[:3, :3], T_known[:3, :3]) - 1) / 2
        grown = self.error.rotation * float(np.arccos(np.clip(cosine, -1, 1)))
        grown += self.error.way * way / depth
        least = self.error.least
        place = grown * depth + _size(held)[0] * way
        return held[0] + [grown, place], held[1] + np.square([least, least * depth])


class PoseUncertainty:
    """Covariances of published poses, in odometry and in the map: the one place they come from.

    Both begin at the first view of a segment, which is exact. A loop tells the map's anew and
    leaves odometry's as it is. After a stretch in which the motion is not known, neither is.
    """

    def __init__(self, error: MotionError = UNMEASURED) -> None:
        self._error = error
        self.start_segment(known=True)

    def start_segment(self, *, known: bool) -> None:
        """A new segment; known: odometry begins with it too, rather than before a gap."""
        self._known = known
        self.noise = WindowNoise()
        self._odometry = self._map = (JointCovariance(), SystematicError(self._error))
        self._submaps: dict[int, Array] = {}  # systematic error at the beginning of each
        self._learned_at: Array | None = None  # [4, 4] of the newest view that noise learned from

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        both = {id(joint): joint for joint, _ in (self._odometry, self._map)}
        return sum(joint.nbytes for joint in both.values())

    def begin(self, seen: Observed, reference: int) -> None:
        """Take the first window of a segment; the view at ``reference`` defines where it is."""
        joint, systematic = self._odometry
        joint.begin(seen, reference)
        systematic.begin(seen.ids[reference])
        for index in (i for i in range(len(seen.ids)) if i != reference):
            systematic.add(seen, index, [reference])

    def join(self, seen: Observed) -> None:
        """Take a window that was joined by its shared views."""
        shared = range(len(seen.gains))
        learns = self._moved(seen)
        for joint, systematic in self._trackers():
            joint.join(seen, self.noise if learns and joint is self._odometry[0] else None)
            for index in range(len(shared), len(seen.ids)):
                systematic.add(seen, index, shared)

    def _moved(self, seen: Observed) -> bool:
        """Whether the camera has moved since noise was learned last.

        A standing camera shows a network the same picture, and it makes the same error: windows
        that agree then say nothing about how far off they are.
        """
        here, last = seen.poses[-1], self._learned_at
        if last is not None:
            cosine = (np.einsum("ij,ij->", here[:3, :3], last[:3, :3]) - 1) / 2
            turn = float(np.arccos(np.clip(cosine, -1, 1)))
            way = float(np.linalg.norm(here[:3, 3] - last[:3, 3])) / seen.depth
            if turn < STANDING and way < STANDING:
                return False
        self._learned_at = here
        return True

    def keep(self, ids: Collection[int]) -> None:
        """Forget all views but these, which windows may share."""
        for joint, systematic in self._trackers():
            joint.keep(ids)
            systematic.keep(ids)

    def enter_submap(self, submap: int, id: int) -> None:
        """A view is in a submap; of the first one the error is remembered."""
        if submap not in self._submaps and id in self._map[1]:
            self._submaps[submap] = self._map[1].of(id)
            while len(self._submaps) > MOST:
                del self._submaps[next(iter(self._submaps))]

    def close_loop(
        self, known: Array, newest: int, old: Collection[int], views: Mapping[int, Array],
        moved: Collection[int],
    ) -> None:  # fmt: skip
        """The map says anew where the newest view is.

        known: covariance [7, 7] of its error. old: the submaps that loops led to. views: centres
        [3] of all views that windows may share. moved: those that the loop has moved.
        """
        for joint, systematic in self._trackers():
            joint.forget(moved)
            systematic.keep(set(views) - set(moved))
        if newest not in self._odometry[0]:
            return
        joint = self._map[0].rebased(LOOPS_SHARE * known, newest, views)
        said = [self._submaps[submap] for submap in old if submap in self._submaps]
        systematic = SystematicError(self._error)
        systematic.begin(newest, min(said, key=float_sum) if said else self._map[1].of(newest))
        self._map = (joint, systematic)

    def odometry(self, id: int) -> Array | None:
        """[6, 6] of (place, rotation) of a view's error since odometry began; None: not known."""
        return self._of(self._odometry, id) if self._known else None

    def in_map(self, id: int) -> Array | None:
        """[6, 6] of (place, rotation) of a view's error in its part of the map."""
        return self._of(self._map, id)

    def _trackers(self) -> list[tuple[JointCovariance, SystematicError]]:
        return [self._odometry] if self._map is self._odometry else [self._odometry, self._map]

    def _of(self, tracker: tuple[JointCovariance, SystematicError], id: int) -> Array | None:
        joint, systematic = tracker
        if id not in joint or id not in systematic:
            return None
        covariance = joint.of(id, self.noise.variances)[1:, 1:]
        rotation, place = systematic.of(id) ** 2 / 3  # per axis
        covariance += np.diag([*[rotation] * 3, *[place] * 3])
        order = [3, 4, 5, 0, 1, 2]
        return np.asarray(covariance[np.ix_(order, order)] + FLOOR * np.eye(6))


FLOOR = 1e-12  # of variances: a covariance has an inverse


def turned(covariance: Array, R: Array) -> Array:
    """A covariance [6, 6] of (place, rotation) in axes turned by ``R`` [3, 3]."""
    both = np.kron(np.eye(2), R)
    return np.asarray(both @ covariance @ both.T)


def in_metres(covariance: Array, metres: float, sigma: float, place: Array) -> Array:
    """A covariance [6, 6] of (place, rotation) with places in metres.

    metres: per unit. sigma: the relative standard deviation of that (NaN: not stated), which moves
    a camera at ``place`` [3] (metres) along its way from the origin.
    """
    units = np.array([metres, metres, metres, 1, 1, 1])
    out = covariance * np.outer(units, units)
    if np.isfinite(sigma):
        out[:3, :3] += sigma**2 * np.outer(place, place)
    return np.asarray(out)


def lifted(arms: Array) -> Array:
    """[N, 7, 7] how an error of a similarity about a point moves what lies at ``arms`` from it."""
    out = np.tile(np.eye(SIZE), (len(arms), 1, 1))
    out[:, 4:, 0] = arms
    out[:, 4:, 1:4] = np.cross(np.eye(3), arms[:, None]).transpose(0, 2, 1)
    return out


def carried(L: Array, G: Array, stay: Array, P: Array) -> Array:
    """A P A' [K, n, n] of covariances P [K, m, m], for A = L G + diag(stay), n at least m.

    With seven columns of L that costs as n squared, where the plain product costs as its cube.
    """
    m = P.shape[1]
    GP = G @ P
    own = L @ (GP @ G.T) @ L.T
    cross = (L @ GP) * stay
    own[:, :, :m] += cross
    own[:, :m] += cross.transpose(0, 2, 1)
    own[:, :m, :m] += stay[:, None] * P * stay
    return np.asarray(own)


def float_sum(values: Array) -> float:
    """Of an array; a key to sort by."""
    return float(values.sum())


def _layers(per_kind: Array) -> Array:
    """With a layer for what is known from elsewhere: nothing."""
    return np.concatenate((per_kind, np.zeros((1, *per_kind.shape[1:]))))


def _size(held: tuple[Array, Array]) -> Array:
    return np.asarray(np.sqrt(held[0] ** 2 + held[1]))
