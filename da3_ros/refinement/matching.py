"""Matches features of two views, and joins them into tracks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from da3_ros.refinement.features import Features
from da3_ros.refinement.tracked_view import TrackedView, TrackPoints
from da3_ros.types import Array

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
