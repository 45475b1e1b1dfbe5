"""Views with their features, and the points of the tracks that features belong to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.projection import resize_K
from da3_ros.inertial.gyro_turns import GyroPose
from da3_ros.refinement.direct_alignment import AlignmentImage
from da3_ros.refinement.edge_points import EdgePoints
from da3_ros.refinement.features import Features
from da3_ros.types import Array, FloatImage

# Matches features of two views, and joins them into tracks.

RATIO = 0.85  # largest distance to the most similar feature over that to the second one


@dataclass(frozen=True, eq=False)
class Matches:
    """Matches of a new view to a known one."""

    known: TrackedView
    pairs: Array  # [P, 2] indices of features: of the new view, of the known one


def match(first: Features, second: Features) -> NDArray[np.int64]:
    """Returns pairs [P, 2] of indices of features that are each other's most similar ones."""
    if len(first) < 2 or len(second) < 2:
        return np.zeros((0, 2), np.int64)
    similar = first.unit @ second.unit.T
    forth, back = similar.argmax(1), similar.argmax(0)
    rows = np.arange(len(first))
    best = similar[rows, forth]
    similar[rows, forth] = -1.0
    second_best = similar.max(1)
    # The squared distance of unit vectors is 2 - 2 cos.
    clear = 1 - best < RATIO**2 * (1 - second_best)
    good = (back[forth] == rows) & clear
    return np.stack((rows[good], forth[good]), axis=1)


def extend_tracks(
    view: TrackedView, found: list[Matches], good: list[Array], points: TrackPoints
) -> None:
    """Gives a view's features the tracks of their good matches, and begins new tracks.

    good: masks [P] of the matches. A feature that matches features of several tracks takes the
    most frequent one; a track has at most one feature of a view.
    """
    pairs = [m.pairs[g] for m, g in zip(found, good, strict=True)]
    feature = np.concatenate([p[:, 0] for p in pairs])
    track = np.concatenate([m.known.track[p[:, 1]] for m, p in zip(found, pairs, strict=True)])
    old = track >= 0
    claims, votes = np.unique(
        np.column_stack((feature[old], track[old])), axis=0, return_counts=True
    )
    claims = claims[np.lexsort((claims[:, 1], claims[:, 0], -votes))]
    for column in (0, 1):  # the first claim of each feature, then of each track
        claims = claims[np.sort(np.unique(claims[:, column], return_index=True)[1])]
    view.track[claims[:, 0]] = claims[:, 1]
    fresh = np.setdiff1d(feature, feature[old])
    view.track[fresh] = points.new_ids(len(fresh))
    for m, p in zip(found, pairs, strict=True):
        mine = view.track[p[:, 0]]
        joins = (m.known.track[p[:, 1]] < 0) & (mine >= 0) & ~np.isin(mine, m.known.track)
        m.known.track[p[joins, 1]] = mine[joins]


@dataclass(frozen=True, eq=False)
class MeasuredPose:
    """A view's pose by the robot and by its rig, metres, and its orientation by a gyro."""

    T_prior_camera: Array | None = None  # [4, 4]; None: unknown
    # [6] of position, m^2, and rotation, rad^2, in the axes of the prior's frame; NaN: unknown
    prior_variance: Array | None = None
    T_rig_camera: Array | None = None  # [4, 4]; None: unknown
    frameset: int = -1  # equal for views of one frameset
    gyro: GyroPose | None = None  # None: unknown


UNPLACED = np.full((4, 4), np.nan)
NOTHING_MEASURED = MeasuredPose()


@dataclass(eq=False)
class TrackedView:
    """A view in the sliding graph. Scale, K and tracks change with later windows; it has a pose
    for the time of one window."""

    id: int
    camera: str
    features: Features
    K: Array  # [3, 3] corner rule, pixels of ``Features.shape``
    T_local_camera: Array  # [4, 4]; ``UNPLACED`` between windows
    log_depth: Array  # [M] logarithm of the predicted depth at the features; NaN: unknown
    own_K: bool = False  # whether K is the network's, not a calibration
    measured: MeasuredPose = NOTHING_MEASURED
    log_scale: float = 0.0  # of true over predicted depth
    unit: float = 1.0  # length in local of its submap's unit, for which ``log_depth`` holds
    track: Array = field(default_factory=lambda: np.zeros(0, int))  # [M] track id; -1: none
    image: AlignmentImage | None = None  # None: it is not aligned directly
    grown: float = 0.0  # what ``log_depth`` has grown by since it was predicted
    edges: EdgePoints = field(default_factory=EdgePoints.none)
    is_known: bool = False  # whether its pose is not to be adjusted

    def __post_init__(self) -> None:
        self.track = np.full(len(self.features), -1)

    @property
    def is_placed(self) -> bool:
        """Whether it has a pose."""
        return not np.isnan(self.T_local_camera[0, 0])

    @property
    def tracks(self) -> tuple[Array, Array]:
        """The ids of tracks of its features [M] (-1: none) and of its edge points [E]."""
        return self.track, self.edges.track

    @property
    def depth_unit(self) -> float:
        """The length in local of the unit in which its depth was predicted, by its scale."""
        return math.exp(self.grown + self.log_scale)

    def rays(self, index: Array) -> Array:
        """Returns the rays [P, 3] of features, z = 1, camera axes."""
        pixel = self.features.pixel[index]
        return np.column_stack((pixel, np.ones(len(pixel)))) @ np.linalg.inv(self.K).T

    def points(self, index: Array) -> Array:
        """Returns the points [P, 3] in local of features by predicted depth; NaN: unknown."""
        depth = np.exp(self.log_depth[index] + self.log_scale)
        T = self.T_local_camera
        return np.asarray(depth[:, None] * self.rays(index) @ T[:3, :3].T + T[:3, 3])


def tracked_view(
    id: int, camera: str, features: Features, K: Array, T_local_camera: Array, depth: FloatImage,
    *, own_K: bool = False, measured: MeasuredPose = NOTHING_MEASURED,
    image: AlignmentImage | None = None,
) -> TrackedView:  # fmt: skip
    """Returns a view with its features, and its predicted depth at them.

    depth: [h, w] units of local. K: [3, 3] corner rule, pixels of the depth.
    """
    K = resize_K(K, (depth.shape[1], depth.shape[0]), features.shape[::-1])
    log_depth = log_depth_at(features, depth)
    return TrackedView(
        id, camera, features, K, T_local_camera, log_depth, own_K, measured, image=image
    )


def log_depth_at(features: Features, depth: FloatImage) -> Array:
    """Returns the logarithm [M] of a depth image [h, w] at features; NaN where it is unknown."""
    small, size = (depth.shape[1], depth.shape[0]), features.shape[::-1]
    at = (features.pixel * small / size).astype(int)
    with np.errstate(invalid="ignore", divide="ignore"):
        log_depth = np.log(depth[at[:, 1], at[:, 0]].astype(np.float64))
    log_depth[~np.isfinite(log_depth)] = np.nan
    return log_depth


class TrackPoints:
    """Positions of tracks in local."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, int)
        self._points = np.zeros((0, 3))
        self._next = 0

    def __len__(self) -> int:
        return len(self._ids)

    def new_ids(self, count: int) -> Array:
        """Returns ids that no track has had."""
        self._next += count
        return np.arange(self._next - count, self._next)

    def of(self, ids: Array) -> Array:
        """Returns points [P, 3]; NaN for an id without a point."""
        out = np.full((len(ids), 3), np.nan)
        if len(self._ids):
            at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
            known = self._ids[at] == ids
            out[known] = self._points[at[known]]
        return out

    def set(self, ids: Array, points: Array) -> None:
        """Sets the points [P, 3] of tracks; ids ascending."""
        old = ~np.isin(self._ids, ids)
        ids = np.concatenate((self._ids[old], ids))
        points = np.concatenate((self._points[old], points))
        order = np.argsort(ids)
        self._ids, self._points = ids[order], points[order]

    def without_positions(self) -> TrackPoints:
        """Returns no points, with ids that go on."""
        out = TrackPoints()
        out._next = self._next
        return out

    def keep(self, views: Iterable[TrackedView]) -> None:
        """Forgets tracks that none of these views sees."""
        seen = np.concatenate([np.zeros(0, int), *(t for v in views for t in v.tracks)])
        held = np.isin(self._ids, seen)
        self._ids, self._points = self._ids[held], self._points[held]
