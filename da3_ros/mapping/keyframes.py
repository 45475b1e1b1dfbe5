"""Selects the views that windows share: the newest ones, and keyframes that see the same surface.

Every alignment adds its error to that of the last one. Sharing a keyframe as long as it is in
view, or again when the camera comes back, skips many alignments. A view becomes a keyframe after
enough motion; a standing camera makes none. Memory is bounded.

The views themselves are rows of the map's table; poses and lengths here are those of odometry.
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
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.map_table import MapTable, OverlapView
from da3_ros.mapping.resizing import Cut
from da3_ros.types import Array, Image, View, WindowEstimate

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
class _HeldKeyframe:
    """A keyframe and its median depth."""

    id: int
    depth: float  # median, in the unit of its submap; inf without depth
    descriptor: Array | None = None  # [D] similar for views with similar appearance; None: unknown


class KeyframeSelector:
    """The views of one chain that later windows may share; the owner of the table's views."""

    def __init__(
        self, limits: KeyframeConfig, newest: int, table: MapTable, most: int = MAX_KEYFRAMES
    ) -> None:
        """newest: number of newest views. table: views that are in it are dropped."""
        self.limits, self.most, self._table = limits, most, table
        self._newest: deque[int] = deque(maxlen=newest)  # ids
        self._keyframes: list[_HeldKeyframe] = []
        self._sharpness: dict[str, deque[float]] = {}  # of each camera
        table.share(())

    def reconfigure(self, limits: KeyframeConfig) -> None:
        """Sets the limits for later views."""
        self.limits = limits

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ids(self) -> set[int]:
        """The ids of all held views."""
        return {*self._newest, *(k.id for k in self._keyframes)}

    @property
    def newest(self) -> OverlapView | None:
        """The view added last; None before the first."""
        return self._table.view(self._newest[-1]) if self._newest else None

    def choose(self, views: int, keyframes: int) -> list[OverlapView]:
        """Returns at most ``views`` views to share.

        First up to ``keyframes`` keyframes that see the same surface, oldest first; then the
        newest views, oldest first. The newest view is always included; the newest view of every
        other camera has priority over older ones.
        """
        last = self._last_of_cameras()
        keyframes = max(0, min(keyframes, views - max(1, len(last))))
        recent = set(self._newest_ids(views - keyframes, last))
        old = self._nearby(recent, keyframes)
        rest = self._newest_ids(views - len(old), last, old)
        return self._as_keyframes(old) + [self._table.view(id) for id in rest]

    def is_new(self, overlap_view: OverlapView, motion: float = 1.0) -> bool:
        """True if a view is far enough from all keyframes, and sharp enough, to become one.

        motion: share of the limits that is far enough.
        """
        blurred = self._is_blurred(overlap_view.view)
        if not self._keyframes:
            return True
        rotation_deg, parallax = self._motion_to(overlap_view.T_local_camera)
        wait = motion * (BLUR_FACTOR if blurred else 1.0)
        near = (rotation_deg <= wait * self.limits.rotation_deg) & (
            parallax <= wait * self.limits.parallax
        )
        return not near.any()

    def choose_like(self, views: int, descriptor: Array | None) -> list[OverlapView]:
        """Returns at most ``views`` keyframes, oldest first, that look most similar to a view.

        descriptor: [D] of that view. Without descriptors, keyframes of all locations.
        """
        count = len(self._keyframes)
        known = [k.descriptor for k in self._keyframes]
        if descriptor is None or any(one is None for one in known):
            chosen = np.linspace(0, count - 1, min(views, count)).round().astype(int)
        else:
            all_of = np.array([*known, descriptor], float)
            all_of /= np.linalg.norm(all_of, axis=1, keepdims=True) + 1e-12
            chosen = np.argsort(-(all_of[:-1] @ all_of[-1]), kind="stable")[:views]
        return self._as_keyframes([self._keyframes[i].id for i in sorted(chosen)])

    def _as_keyframes(self, ids: Sequence[int]) -> list[OverlapView]:
        return [replace(self._table.view(id), keyframe=True) for id in ids]

    def forget_newest(self) -> None:
        """Forgets the newest views: the camera is elsewhere now. Keyframes stay."""
        self._newest.clear()
        self._drop_others()

    def add_view(
        self, overlap_view: OverlapView, keyframe: bool, descriptor: Array | None = None
    ) -> None:
        """Adds a view to the newest ones, and to the keyframes if it is one."""
        self._table.set_view(overlap_view)
        self._newest.append(overlap_view.view.id)
        if keyframe:
            depth = self._table.shared[overlap_view.view.id].depth
            typical = float(np.median(depth)) if len(depth) else float("inf")
            self._keyframes.append(_HeldKeyframe(overlap_view.view.id, typical, descriptor))
            if len(self._keyframes) > self.most:
                del self._keyframes[self._most_redundant()]
        self._drop_others()

    def _drop_others(self) -> None:
        self._table.share(self.ids)

    def observe(
        self, shared: list[OverlapView], estimate: WindowEstimate, placed: Alignment
    ) -> None:
        """Averages the observations of an accepted window into the views that it shared."""
        held = self.ids
        self._table.refine(
            updated_view(a, estimate, i, placed) for i, a in enumerate(shared) if a.view.id in held
        )

    def forget(self, ids: Collection[int]) -> None:
        """Drops keyframes that contradict the newest views."""
        self._keyframes = [k for k in self._keyframes if k.id not in ids]
        self._drop_others()

    def adjust(self, moved: Mapping[int, tuple[Array, float]]) -> None:
        """Sets refined poses [4, 4] of views by id, and multiplies their depth by a factor."""
        refined = []
        for id in sorted(self.ids & moved.keys()):
            (T, factor), a = moved[id], self._table.view(id)
            refined.append(replace(a, T_local_camera=T, depth=a.depth * factor, refined=True))
        self._table.refine(refined)

    @property
    def newest_views(self) -> list[OverlapView]:
        """The newest views, oldest first."""
        return [self._table.view(id) for id in self._newest]

    def all(self) -> list[OverlapView]:
        """Returns every held view once."""
        held = dict.fromkeys([*(k.id for k in self._keyframes), *self._newest])
        return [self._table.view(id) for id in held]

    def resize(self, cut: Cut) -> None:
        """Brings all views to another image size; drops those of which too little is left."""
        fits = set()
        for id in self.ids:
            row = self._table.shared[id]
            if cut.fits(row):
                fits.add(id)
                self._table.set_row(cut.row(row))
        self._newest = deque((id for id in self._newest if id in fits), self._newest.maxlen)
        self._keyframes = [k for k in self._keyframes if k.id in fits]
        self._sharpness.clear()  # it depends on the size
        self._drop_others()

    def only_newest(self, camera: str, changed: Callable[[OverlapView], OverlapView]) -> None:
        """Drops the views of a camera but its newest one, which ``changed`` replaces."""
        last = {self._camera(id): id for id in self._newest}.get(camera)
        if last is not None:
            self._table.set_view(changed(self._table.view(last)), same_image=False)
        self._newest = deque(
            (id for id in self._newest if id == last or self._camera(id) != camera),
            self._newest.maxlen,
        )
        self._keyframes = [k for k in self._keyframes if self._camera(k.id) != camera]
        self._sharpness.pop(camera, None)
        self._drop_others()

    def _camera(self, id: int) -> str:
        return self._table.shared[id].view.camera

    def _last_of_cameras(self) -> list[int]:
        """Returns the newest view of each camera, oldest first."""
        last: dict[str, int] = {}
        for id in self._newest:
            last.pop(self._camera(id), None)
            last[self._camera(id)] = id
        return list(last.values())

    def _newest_ids(
        self, count: int, first: list[int], without: Collection[int] = ()
    ) -> list[int]:
        """Returns ``count`` of the newest views, in order.

        Views in ``first`` have priority, the last ones before the earlier ones.
        """
        remaining = [id for id in self._newest if id not in without]
        ranked = [i for i in remaining if i not in first] + [i for i in remaining if i in first]
        chosen = set(ranked[-count:])
        return [id for id in self._newest if id in chosen]

    def _nearby(self, recent: set[int], most: int) -> list[int]:
        """Returns at most ``most`` keyframes, in order, that see much of what a camera sees now.

        None of the ids ``recent``. The oldest of them, which is the fewest alignments away from
        the origin, and those with the largest overlap.
        """
        now = [a for a in map(self._table.view, self._last_of_cameras()) if len(a.depth)]
        if not now or not self._keyframes:
            return []
        excluded = np.array([k.id in recent for k in self._keyframes])
        near, overlap = np.zeros(len(excluded), bool), np.zeros(len(excluded))
        for overlap_view in now:
            rotation_deg, parallax = self._motion_to(overlap_view.T_local_camera)
            seen = self._overlap(overlap_view)
            here = (
                (rotation_deg < NEARBY_DEG) & (parallax < NEARBY) & (seen >= OVERLAP) & ~excluded
            )
            overlap = np.where(here, np.maximum(overlap, seen), overlap)
            near |= here
        found = [int(i) for i in np.flatnonzero(near)]
        best = sorted(found[1:], key=lambda i: -float(overlap[i]))[: max(0, most - 1)]
        return [self._keyframes[i].id for i in sorted([*found[:1], *best])[:most]]

    def _poses(self) -> tuple[Array, Array]:
        """Returns the poses [N, 4, 4] and the median depths [N] of the keyframes."""
        T, unit = self._table.poses([k.id for k in self._keyframes])
        return T, unit * [k.depth for k in self._keyframes]

    def _motion_to(self, T_local_camera: Array) -> tuple[Array, Array]:
        """Returns for each keyframe the rotation (degrees) [N] to a pose, and the distance over
        the keyframe's depth [N]."""
        T, depth = self._poses()
        return _rotation_deg(T, T_local_camera), _distance(T, T_local_camera) / depth

    def _overlap(self, newest: OverlapView) -> Array:
        """Returns the share [N] of the points of ``newest`` that project into each keyframe."""
        step = max(1, len(newest.depth) // OVERLAP_POINTS)
        T = newest.T_local_camera
        points = newest.depth[::step, None] * newest.rays()[::step] @ T[:3, :3].T + T[:3, 3]
        back = np.array([invert_pose(T) for T in self._poses()[0]])
        inside = np.einsum("nij,mj->nmi", back[:, :3, :3], points) + back[:, None, :3, 3]
        K = np.array([self._table.shared[k.id].K for k in self._keyframes])
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
        T, depth = self._poses()
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


def update_weights(shared: Sequence[OverlapView], estimate: WindowEstimate) -> Array:
    """Returns the weights [S, 7] of a new observation in ``updated_view``: scale, rotation,
    position of each overlap view."""
    share = np.array([1 / (min(a.observations, MAX_OBSERVATIONS) + 1) for a in shared])
    seen = [bool(np.isfinite(estimate.depth[i]).any()) for i in range(len(shared))]
    out = np.tile(share.reshape(-1, 1), (1, 7))
    out[~np.array(seen, bool), 0] = 0.0
    out[[a.refined for a in shared], 1:] = 0.0
    return out


def updated_view(
    overlap_view: OverlapView, estimate: WindowEstimate, index: int, placed: Alignment
) -> OverlapView:
    """Returns the view with one more window's pose, and depth if there is any, averaged in.

    The pose of a refined view stays: tracks, or a prior, tell it better than a network does.
    """
    count = min(overlap_view.observations, MAX_OBSERVATIONS)
    weight = 1 / (count + 1)
    there = placed.T_local_window.pose(estimate.T_window_camera[index])
    T = overlap_view.T_local_camera.copy()
    if not overlap_view.refined:
        rotvec = Rotation.from_matrix(T[:3, :3].T @ there[:3, :3]).as_rotvec()
        T[:3, :3] = T[:3, :3] @ Rotation.from_rotvec(weight * rotvec).as_matrix()
        T[:3, 3] += weight * (there[:3, 3] - T[:3, 3])
    depth = _mean_depth(overlap_view, estimate.depth[index], placed.T_local_window.scale, weight)
    return replace(
        overlap_view, T_local_camera=T, depth=depth, observations=count + 1, keyframe=False
    )


def _mean_depth(overlap_view: OverlapView, depth: Array, scale: float, weight: float) -> Array:
    """Returns the depth [M] moved towards a new one by ``weight``, where both are of one
    surface."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(scale * depth.reshape(-1)[overlap_view.pixels] / overlap_view.depth)
        same = np.abs(ratio) < SAME_SURFACE
    return np.asarray(overlap_view.depth * np.exp(np.where(same, weight * ratio, 0.0)))
