"""Selects the views that windows share: the newest ones, and keyframes that see the same surface.

Every alignment adds its error to that of the last one. Sharing a keyframe as long as it is in
view, or again when the camera comes back, skips many alignments. A view becomes a keyframe after
enough motion; a standing camera makes none. Memory is bounded.

All poses and lengths (``ref``) are those of one segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
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

MAX_KEYFRAMES = 64  # keyframes held, each an image and some thousand numbers
OVERLAP = 0.6  # share of what the camera sees that a shared keyframe must see too
# Rotation, and distance over depth, beyond which newer views are aligned better than a keyframe.
NEARBY_DEG, NEARBY = 25.0, 0.2
OVERLAP_POINTS = 64  # points that measure the overlap
MAX_OBSERVATIONS = 1000.0  # limit, high enough that keyframes of a parked robot do not drift
SAME_SURFACE = 0.1  # largest log ratio of two depths of one pixel on the same surface
BLURRED = 0.5  # sharpness over the typical one, below which a view is blurred
BLUR_FACTOR = 2.0  # factor on the motion after which even a blurred view becomes a keyframe


@dataclass(frozen=True)
class _Entry:
    """A keyframe and its median depth."""

    shared_view: SharedView
    depth: float  # median, inf without depth
    descriptor: Array | None = None  # [D] similar for views with similar appearance; None: unknown


class KeyframeSelector:
    """The views of one segment that later windows may share."""

    def __init__(self, limits: KeyframeConfig, newest: int, most: int = MAX_KEYFRAMES) -> None:
        self.limits, self.most = limits, most
        self._newest: deque[SharedView] = deque(maxlen=newest)
        self._keyframes: list[_Entry] = []
        self._sharpness: dict[str, deque[float]] = {}  # of each camera

    def reconfigure(self, limits: KeyframeConfig) -> None:
        """Sets the limits for later views."""
        self.limits = limits

    def __len__(self) -> int:
        return len(
            {a.view.id for a in self._newest} | {k.shared_view.view.id for k in self._keyframes}
        )

    @property
    def newest(self) -> SharedView | None:
        """The view added last; None before the first."""
        return self._newest[-1] if self._newest else None

    def choose(self, views: int, keyframes: int) -> list[SharedView]:
        """Returns at most ``views`` views to share.

        First up to ``keyframes`` keyframes that see the same surface, oldest first; then the
        newest views, oldest first. The newest view is always included; the newest view of every
        other camera has priority over older ones.
        """
        last = [a.view.id for a in self._last_of_cameras()]
        keyframes = max(0, min(keyframes, views - max(1, len(last))))
        recent = {a.view.id for a in self._newest_views(views - keyframes, last)}
        old = self._nearby(recent, keyframes)
        taken = {a.view.id for a in old}
        rest = self._newest_views(views - len(old), last, taken)
        return [replace(a, keyframe=True) for a in old] + rest

    def is_new(self, shared_view: SharedView) -> bool:
        """True if a view is far enough from all keyframes, and sharp enough, to become one."""
        blurred = self._is_blurred(shared_view.view)
        if not self._keyframes:
            return True
        rotation_deg, parallax = self._motion_to(shared_view.T_ref_camera)
        wait = BLUR_FACTOR if blurred else 1.0
        near = (rotation_deg <= wait * self.limits.rotation_deg) & (
            parallax <= wait * self.limits.parallax
        )
        return not near.any()

    def choose_like(self, views: int, descriptor: Array | None) -> list[SharedView]:
        """Returns at most ``views`` keyframes, oldest first, that look most similar to a view.

        descriptor: [D] of that view. Without descriptors, keyframes of all places.
        """
        count = len(self._keyframes)
        known = [k.descriptor for k in self._keyframes]
        if descriptor is None or any(one is None for one in known):
            chosen = np.linspace(0, count - 1, min(views, count)).round().astype(int)
        else:
            all_of = np.array([*known, descriptor], float)
            all_of /= np.linalg.norm(all_of, axis=1, keepdims=True) + 1e-12
            chosen = np.argsort(-(all_of[:-1] @ all_of[-1]), kind="stable")[:views]
        return [replace(self._keyframes[i].shared_view, keyframe=True) for i in sorted(chosen)]

    def forget_newest(self) -> None:
        """Forgets the newest views: the camera is elsewhere now. Keyframes stay."""
        self._newest.clear()

    def add(
        self, shared_view: SharedView, keyframe: bool, descriptor: Array | None = None
    ) -> None:
        """Adds a view to the newest ones, and to the keyframes if it is one."""
        self._newest.append(shared_view)
        if not keyframe:
            return
        depth = float(np.median(shared_view.depth)) if len(shared_view.depth) else float("inf")
        self._keyframes.append(_Entry(shared_view, depth, descriptor))
        if len(self._keyframes) > self.most:
            del self._keyframes[self._most_redundant()]

    def observe(self, shared: list[SharedView], prediction: Prediction, placed: Alignment) -> None:
        """Averages the observations of an accepted window into the views that it shared."""
        seen = {a.view.id: updated_view(a, prediction, i, placed) for i, a in enumerate(shared)}
        self._newest = deque(
            (seen.get(a.view.id, a) for a in self._newest), maxlen=self._newest.maxlen
        )
        self._keyframes = [
            replace(k, shared_view=seen.get(k.shared_view.view.id, k.shared_view))
            for k in self._keyframes
        ]

    def forget(self, ids: Collection[int]) -> None:
        """Drops keyframes that contradict the newest views."""
        self._keyframes = [k for k in self._keyframes if k.shared_view.view.id not in ids]

    def adjust(self, moved: Mapping[int, tuple[Array, float]]) -> None:
        """Sets refined poses [4, 4] of views by id, and multiplies their depth by a factor."""

        def one(a: SharedView) -> SharedView:
            if a.view.id not in moved:
                return a
            T, factor = moved[a.view.id]
            return replace(a, T_ref_camera=T, depth=a.depth * factor, refined=True)

        self._newest = deque(map(one, self._newest), maxlen=self._newest.maxlen)
        self._keyframes = [replace(k, shared_view=one(k.shared_view)) for k in self._keyframes]

    @property
    def newest_views(self) -> list[SharedView]:
        """The newest views, oldest first."""
        return list(self._newest)

    def all(self) -> list[SharedView]:
        """Returns every held view once."""
        held = {a.view.id: a for a in [*(k.shared_view for k in self._keyframes), *self._newest]}
        return list(held.values())

    def resize(self, cut: Cut) -> None:
        """Brings all views to another image size; drops those of which too little is left."""
        new = {a.view.id: cut.shared_view(a) for a in self.all() if cut.fits(a)}
        self._newest = deque(
            (new[a.view.id] for a in self._newest if a.view.id in new), maxlen=self._newest.maxlen
        )
        self._keyframes = [
            replace(k, shared_view=new[k.shared_view.view.id])
            for k in self._keyframes
            if k.shared_view.view.id in new
        ]
        self._sharpness.clear()  # it depends on the size

    def only_newest(self, camera: str, changed: Callable[[SharedView], SharedView]) -> None:
        """Drops the views of a camera but its newest one, which ``changed`` replaces."""
        last = {a.view.camera: a for a in self._newest}.get(camera)
        self._newest = deque(
            (changed(a) if a is last else a
             for a in self._newest if a is last or a.view.camera != camera),
            maxlen=self._newest.maxlen,
        )  # fmt: skip
        self._keyframes = [k for k in self._keyframes if k.shared_view.view.camera != camera]
        self._sharpness.pop(camera, None)

    def move(self, moves: Mapping[int, Similarity], T_prior_ref: Similarity | None = None) -> None:
        """Moves the views of submaps that a correction has moved; see ``SharedView.corrected``."""

        def moved(shared_view: SharedView) -> SharedView:
            return (
                shared_view.corrected(moves[shared_view.submap], T_prior_ref)
                if shared_view.submap in moves
                else shared_view
            )

        self._newest = deque(map(moved, self._newest), maxlen=self._newest.maxlen)
        self._keyframes = [
            replace(
                k,
                shared_view=moved(k.shared_view),
                depth=k.depth * moves[k.shared_view.submap].scale,
            )
            if k.shared_view.submap in moves
            else k
            for k in self._keyframes
        ]

    def _last_of_cameras(self) -> list[SharedView]:
        """Returns the newest view of each camera, oldest first."""
        last: dict[str, SharedView] = {}
        for shared_view in self._newest:
            last.pop(shared_view.view.camera, None)
            last[shared_view.view.camera] = shared_view
        return list(last.values())

    def _newest_views(
        self, count: int, first: list[int], without: Collection[int] = ()
    ) -> list[SharedView]:
        """Returns ``count`` of the newest views, in order.

        Views whose ids are in ``first`` have priority, the last ones before the earlier ones.
        """
        remaining = [a.view.id for a in self._newest if a.view.id not in without]
        ranked = [i for i in remaining if i not in first] + [i for i in remaining if i in first]
        chosen = set(ranked[-count:])
        return [a for a in self._newest if a.view.id in chosen]

    def _nearby(self, recent: set[int], most: int) -> list[SharedView]:
        """Returns at most ``most`` keyframes, in order, that see much of what a camera sees now.

        None of the ids ``recent``. The oldest of them, which is the fewest alignments away from
        the origin, and those with the largest overlap.
        """
        now = [a for a in self._last_of_cameras() if len(a.depth)]
        if not now or not self._keyframes:
            return []
        excluded = np.array([k.shared_view.view.id in recent for k in self._keyframes])
        near, overlap = np.zeros(len(excluded), bool), np.zeros(len(excluded))
        for shared_view in now:
            rotation_deg, parallax = self._motion_to(shared_view.T_ref_camera)
            seen = self._overlap(shared_view)
            here = (
                (rotation_deg < NEARBY_DEG) & (parallax < NEARBY) & (seen >= OVERLAP) & ~excluded
            )
            overlap = np.where(here, np.maximum(overlap, seen), overlap)
            near |= here
        found = [int(i) for i in np.flatnonzero(near)]
        best = sorted(found[1:], key=lambda i: -float(overlap[i]))[: max(0, most - 1)]
        return [self._keyframes[i].shared_view for i in sorted([*found[:1], *best])[:most]]

    def _motion_to(self, T_ref_camera: Array) -> tuple[Array, Array]:
        """Returns for each keyframe the rotation (degrees) [N] to a pose, and the distance over
        the keyframe's depth [N]."""
        T = np.array([k.shared_view.T_ref_camera for k in self._keyframes])
        depth = np.array([k.depth for k in self._keyframes])
        return _rotation_deg(T, T_ref_camera), _distance(T, T_ref_camera) / depth

    def _overlap(self, newest: SharedView) -> Array:
        """Returns the share [N] of the points of ``newest`` that project into each keyframe."""
        step = max(1, len(newest.depth) // OVERLAP_POINTS)
        T = newest.T_ref_camera
        points = newest.depth[::step, None] * newest.rays()[::step] @ T[:3, :3].T + T[:3, 3]
        back = np.array([invert_pose(k.shared_view.T_ref_camera) for k in self._keyframes])
        inside = np.einsum("nij,mj->nmi", back[:, :3, :3], points) + back[:, None, :3, 3]
        K = np.array([k.shared_view.K for k in self._keyframes])
        pixel = np.einsum("nij,nmj->nmi", K, inside)
        height, width = newest.view.image.shape[:2]
        ahead = np.maximum(pixel[..., 2:], 1e-9)
        u, v = np.moveaxis(pixel[..., :2] / ahead, -1, 0)
        good = (pixel[..., 2] > 1e-9) & (u > 0) & (u < width) & (v > 0) & (v < height)
        return np.asarray(good.mean(axis=1))

    def _is_blurred(self, view: View) -> bool:
        """True if an image is much less sharp than its camera's last ones; records its
        sharpness."""
        before = self._sharpness.setdefault(view.camera, deque(maxlen=15))
        typical = float(np.median(before)) if before else 0.0
        here = sharpness(view.image)
        before.append(here)
        return here < BLURRED * typical

    def _most_redundant(self) -> int:
        """Returns the index of the later one of the two keyframes that are closest in pose."""
        T = np.array([k.shared_view.T_ref_camera for k in self._keyframes])
        depth = np.array([k.depth for k in self._keyframes])
        rotation = np.stack([_rotation_deg(T, one) for one in T]) / max(
            self.limits.rotation_deg, 1e-9
        )
        parallax = (
            np.stack([_distance(T, one) for one in T]) / depth / max(self.limits.parallax, 1e-9)
        )
        apart = np.where(np.tri(len(T), k=-1, dtype=bool), rotation + parallax, np.inf)
        return int(np.unravel_index(np.argmin(apart), apart.shape)[0])


def _rotation_deg(T: Array, one: Array) -> Array:
    """Returns the angles [N], degrees, between the rotations of poses [N, 4, 4] and one pose."""
    trace = np.einsum("nij,ij->n", T[:, :3, :3], one[:3, :3])
    return np.degrees(np.arccos(np.clip((trace - 1) / 2, -1, 1)))


def _distance(T: Array, one: Array) -> Array:
    """Returns the distances [N] between the centres of poses [N, 4, 4] and one pose."""
    return np.asarray(np.linalg.norm(T[:, :3, 3] - one[:3, 3], axis=1))


def sharpness(image: Image) -> float:
    """Returns the variance of an image's Laplacian over the variance of its grey values."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return float(cv2.Laplacian(small, cv2.CV_32F).var() / (small.var() + 1.0))


def update_weights(shared: Sequence[SharedView], prediction: Prediction) -> Array:
    """Returns the weights [S, 7] of a new observation in ``updated_view``: scale, rotation,
    position of each shared view."""
    share = np.array([1 / (min(a.observations, MAX_OBSERVATIONS) + 1) for a in shared])
    seen = [bool(np.isfinite(prediction.depth[i]).any()) for i in range(len(shared))]
    out = np.tile(share.reshape(-1, 1), (1, 7))
    out[~np.array(seen, bool), 0] = 0.0
    out[[a.refined for a in shared], 1:] = 0.0
    return out


def updated_view(
    shared_view: SharedView, prediction: Prediction, index: int, placed: Alignment
) -> SharedView:
    """Returns the view with one more window's pose, and depth if there is any, averaged in.

    The pose of a refined view stays: tracks have determined it better than a network does.
    """
    count = min(shared_view.observations, MAX_OBSERVATIONS)
    weight = 1 / (count + 1)
    there = placed.T_ref_window.pose(prediction.T_window_camera[index])
    T = shared_view.T_ref_camera.copy()
    if not shared_view.refined:
        rotvec = Rotation.from_matrix(T[:3, :3].T @ there[:3, :3]).as_rotvec()
        T[:3, :3] = T[:3, :3] @ Rotation.from_rotvec(weight * rotvec).as_matrix()
        T[:3, 3] += weight * (there[:3, 3] - T[:3, 3])
    depth = _mean_depth(shared_view, prediction.depth[index], placed.T_ref_window.scale, weight)
    return replace(
        shared_view, T_ref_camera=T, depth=depth, observations=count + 1, keyframe=False
    )


def _mean_depth(shared_view: SharedView, depth: Array, scale: float, weight: float) -> Array:
    """Returns the depth [M] moved towards a new one by ``weight``, where both are of one
    surface."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(scale * depth.reshape(-1)[shared_view.pixels] / shared_view.depth)
        same = np.abs(ratio) < SAME_SURFACE
    return np.asarray(shared_view.depth * np.exp(np.where(same, weight * ratio, 0.0)))
