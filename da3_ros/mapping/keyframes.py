"""Which views windows share: the newest ones, and keyframes of the places that are seen again.

Every join adds its error to the last one's. A keyframe that stays in the windows as long as it is
in view takes many joins out of the chain, as do all that are seen again on coming back. Motion
decides what becomes a keyframe; a camera that stands still makes none. Memory is bounded.

All poses and lengths (``ref``) are those of one segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.config import KeyframeConfig
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.shared_view import SharedView
from da3_ros.types import Array, Image, Prediction, View

MOST = 64  # keyframes held, each an image and some thousand numbers
OVERLAP = 0.6  # share of what the camera sees that a keyframe must see too
# Rotation, and way over depth, beyond which a network says less of a keyframe than newer views do.
NEARBY_DEG, NEARBY = 25.0, 0.2
SEEN = 64  # points that overlap is judged by
MOST_OBSERVATIONS = 1000.0  # fewer would let the keyframes of a parked robot wander
SAME = 0.1  # log ratio of two depths of one pixel beyond which they are of different things
BLURRED = 0.5  # sharpness over the usual below which a keyframe waits for a better view
PATIENT = 2.0  # by how much more motion it waits at most


@dataclass(frozen=True)
class _Entry:
    """A keyframe, and how fine its picture is."""

    anchor: SharedView
    depth: float  # median


class KeyframeSelector:
    """Views that the next windows may share, of one segment."""

    def __init__(self, limits: KeyframeConfig, newest: int, most: int = MOST) -> None:
        self.limits, self.most = limits, most
        self._newest: deque[SharedView] = deque(maxlen=newest)
        self._keyframes: list[_Entry] = []
        self._sharpness: dict[str, deque[float]] = {}  # of each camera

    def __len__(self) -> int:
        return len({a.view.id for a in self._newest} | {k.anchor.view.id for k in self._keyframes})

    @property
    def newest(self) -> SharedView | None:
        """The view delivered last."""
        return self._newest[-1] if self._newest else None

    def choose(self, views: int, keyframes: int) -> list[SharedView]:
        """At most ``views`` to share: up to ``keyframes`` that see the same, oldest first; then
        the newest, oldest first. The newest one is always among them, and that of every other
        camera goes before older views."""
        last = [a.view.id for a in self._last_of_cameras()]
        keyframes = max(0, min(keyframes, views - max(1, len(last))))
        recent = {a.view.id for a in self._youngest(views - keyframes, last)}
        old = self._nearby(recent, keyframes)
        taken = {a.view.id for a in old}
        rest = self._youngest(views - len(old), last, taken)
        return [replace(a, keyframe=True) for a in old] + rest

    def is_new(self, anchor: SharedView) -> bool:
        """Whether a view shows the scene as no keyframe does, and sharply enough to be one."""
        blurred = self._is_blurred(anchor.view)
        if not self._keyframes:
            return True
        turn, parallax = self._apart(anchor.T_ref_camera)
        wait = PATIENT if blurred else 1.0
        near = (turn <= wait * self.limits.rotation_deg) & (
            parallax <= wait * self.limits.parallax
        )
        return not near.any()

    def add(self, anchor: SharedView, keyframe: bool) -> None:
        """Remember a delivered view among the newest, and for good if it is a keyframe."""
        self._newest.append(anchor)
        if not keyframe:
            return
        depth = float(np.median(anchor.depth)) if len(anchor.depth) else float("inf")
        self._keyframes.append(_Entry(anchor, depth))
        if len(self._keyframes) > self.most:
            del self._keyframes[self._most_redundant()]

    def observe(self, shared: list[SharedView], prediction: Prediction, placed: Alignment) -> None:
        """Take what a window that fits says of the views it shared into their means."""
        seen = {a.view.id: observed(a, prediction, i, placed) for i, a in enumerate(shared)}
        self._newest = deque(
            (seen.get(a.view.id, a) for a in self._newest), maxlen=self._newest.maxlen
        )
        self._keyframes = [
            replace(k, anchor=seen.get(k.anchor.view.id, k.anchor)) for k in self._keyframes
        ]

    def all(self) -> list[SharedView]:
        """Every view that is remembered, once."""
        held = {a.view.id: a for a in [*(k.anchor for k in self._keyframes), *self._newest]}
        return list(held.values())

    def resize(self, cut: Cut) -> None:
        """The images of all views have another size now; those of which too little is left go."""
        new = {a.view.id: cut.anchor(a) for a in self.all() if cut.fits(a)}
        self._newest = deque(
            (new[a.view.id] for a in self._newest if a.view.id in new), maxlen=self._newest.maxlen
        )
        self._keyframes = [
            replace(k, anchor=new[k.anchor.view.id])
            for k in self._keyframes
            if k.anchor.view.id in new
        ]
        self._sharpness.clear()  # it depends on the size

    def move(self, moves: Mapping[int, Similarity]) -> None:
        """The submaps named lie elsewhere now, and what was seen in them too."""

        def moved(anchor: SharedView) -> SharedView:
            return anchor.moved(moves[anchor.submap]) if anchor.submap in moves else anchor

        self._newest = deque(map(moved, self._newest), maxlen=self._newest.maxlen)
        self._keyframes = [
            _Entry(moved(k.anchor), k.depth * moves[k.anchor.submap].scale)
            if k.anchor.submap in moves
            else k
            for k in self._keyframes
        ]

    def _last_of_cameras(self) -> list[SharedView]:
        """The newest view of each camera, the oldest of them first."""
        last: dict[str, SharedView] = {}
        for anchor in self._newest:
            last.pop(anchor.view.camera, None)
            last[anchor.view.camera] = anchor
        return list(last.values())

    def _youngest(
        self, count: int, first: list[int], without: Collection[int] = ()
    ) -> list[SharedView]:
        """``count`` of the newest views, in order; the last ones of the ids ``first`` go first."""
        left = [a.view.id for a in self._newest if a.view.id not in without]
        ranked = [i for i in left if i not in first] + [i for i in left if i in first]
        chosen = set(ranked[-count:])
        return [a for a in self._newest if a.view.id in chosen]

    def _nearby(self, recent: set[int], most: int) -> list[SharedView]:
        """Keyframes that see much of what a camera sees now, but none of ``recent``.

        The oldest of them, which has come by the fewest joins, and those that see most; in order.
        """
        now = [a for a in self._last_of_cameras() if len(a.depth)]
        if not now or not self._keyframes:
            return []
        known = np.array([k.anchor.view.id in recent for k in self._keyframes])
        near, overlap = np.zeros(len(known), bool), np.zeros(len(known))
        for anchor in now:
            turn, parallax = self._apart(anchor.T_ref_camera)
            seen = self._overlap(anchor)
            here = (turn < NEARBY_DEG) & (parallax < NEARBY) & (seen >= OVERLAP) & ~known
            overlap = np.where(here, np.maximum(overlap, seen), overlap)
            near |= here
        found = [int(i) for i in np.flatnonzero(near)]
        best = sorted(found[1:], key=lambda i: -float(overlap[i]))[: max(0, most - 1)]
        return [self._keyframes[i].anchor for i in sorted([*found[:1], *best])[:most]]

    def _apart(self, T_ref_camera: Array) -> tuple[Array, Array]:
        """Of each keyframe [N]: rotation (degrees) to a pose, and way over its own depth."""
        T = np.array([k.anchor.T_ref_camera for k in self._keyframes])
        depth = np.array([k.depth for k in self._keyframes])
        return _turn_deg(T, T_ref_camera), _way(T, T_ref_camera) / depth

    def _overlap(self, newest: SharedView) -> Array:
        """Share [N] of the points that ``newest`` sees which lie in each keyframe's picture."""
        step = max(1, len(newest.depth) // SEEN)
        T = newest.T_ref_camera
        points = newest.depth[::step, None] * newest.rays()[::step] @ T[:3, :3].T + T[:3, 3]
        back = np.array([invert_pose(k.anchor.T_ref_camera) for k in self._keyframes])
        inside = np.einsum("nij,mj->nmi", back[:, :3, :3], points) + back[:, None, :3, 3]
        K = np.array([k.anchor.K for k in self._keyframes])
        pixel = np.einsum("nij,nmj->nmi", K, inside)
        height, width = newest.view.image.shape[:2]
        ahead = np.maximum(pixel[..., 2:], 1e-9)
        u, v = np.moveaxis(pixel[..., :2] / ahead, -1, 0)
        good = (pixel[..., 2] > 1e-9) & (u > 0) & (u < width) & (v > 0) & (v < height)
        return np.asarray(good.mean(axis=1))

    def _is_blurred(self, view: View) -> bool:
        """Whether a picture is much softer than its camera's before; notes how sharp it is."""
        before = self._sharpness.setdefault(view.camera, deque(maxlen=15))
        usual = float(np.median(before)) if before else 0.0
        here = sharpness(view.image)
        before.append(here)
        return here < BLURRED * usual

    def _most_redundant(self) -> int:
        """Index of the later one of the two keyframes that are most alike."""
        T = np.array([k.anchor.T_ref_camera for k in self._keyframes])
        depth = np.array([k.depth for k in self._keyframes])
        turn = np.stack([_turn_deg(T, one) for one in T]) / max(self.limits.rotation_deg, 1e-9)
        way = np.stack([_way(T, one) for one in T]) / depth / max(self.limits.parallax, 1e-9)
        apart = np.where(np.tri(len(T), k=-1, dtype=bool), turn + way, np.inf)
        return int(np.unravel_index(np.argmin(apart), apart.shape)[0])


def _turn_deg(T: Array, one: Array) -> Array:
    """Angles [N], degrees, between the rotations of poses [N, 4, 4] and one."""
    trace = np.einsum("nij,ij->n", T[:, :3, :3], one[:3, :3])
    return np.degrees(np.arccos(np.clip((trace - 1) / 2, -1, 1)))


def _way(T: Array, one: Array) -> Array:
    """Distances [N] between the centres of poses [N, 4, 4] and one."""
    return np.asarray(np.linalg.norm(T[:, :3, 3] - one[:3, 3], axis=1))


def sharpness(image: Image) -> float:
    """How fine the detail of a picture is: variance of its Laplacian over that of its grey."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return float(cv2.Laplacian(small, cv2.CV_32F).var() / (small.var() + 1.0))


def shares_taken(shared: Sequence[SharedView], prediction: Prediction) -> Array:
    """[S, 7] by how much ``observed`` moves each shared view's scale, rotation and place."""
    share = np.array([1 / (min(a.observations, MOST_OBSERVATIONS) + 1) for a in shared])
    seen = [bool(np.isfinite(prediction.depth[i]).any()) for i in range(len(shared))]
    out = np.tile(share.reshape(-1, 1), (1, 7))
    out[~np.array(seen, bool), 0] = 0.0
    return out


def observed(
    anchor: SharedView, prediction: Prediction, index: int, placed: Alignment
) -> SharedView:
    """The anchor with one more window's word on its pose, and on its depth where there is one."""
    count = min(anchor.observations, MOST_OBSERVATIONS)
    say = 1 / (count + 1)
    there = placed.T_ref_window.pose(prediction.T_window_camera[index])
    T = anchor.T_ref_camera.copy()
    turn = Rotation.from_matrix(T[:3, :3].T @ there[:3, :3]).as_rotvec()
    T[:3, :3] = T[:3, :3] @ Rotation.from_rotvec(say * turn).as_matrix()
    T[:3, 3] += say * (there[:3, 3] - T[:3, 3])
    depth = _mean_depth(anchor, prediction.depth[index], placed.T_ref_window.scale, say)
    return replace(anchor, T_ref_camera=T, depth=depth, observations=count + 1, keyframe=False)


def _mean_depth(anchor: SharedView, depth: Array, scale: float, say: float) -> Array:
    """Depth [M] moved towards a new one by ``say``, where both are of the same surface."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(scale * depth.reshape(-1)[anchor.pixels] / anchor.depth)
        same = np.abs(ratio) < SAME
    return np.asarray(anchor.depth * np.exp(np.where(same, say * ratio, 0.0)))
