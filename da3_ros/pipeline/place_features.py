"""Finds keyframes that show one location, by features of their small images.

The network's descriptor says little if the network is small, or was not trained on such images.
Features say it themselves: enough of them match, with one epipolar geometry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.spatial import cKDTree

from da3_ros.geometry.projection import resize_K
from da3_ros.mapping.map_table import MapListener, OverlapView, ViewRow
from da3_ros.refinement.features import FeatureDetector, Features
from da3_ros.refinement.loop_check import of_one_geometry
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.tracked_view import TrackedView, match
from da3_ros.refinement.view_among_others import place_among
from da3_ros.types import Array, PlacedView

FEATURES, PIXELS = 200, 100_000  # of a keyframe; pixels of its image, at most, else shrunk
FEWEST = 12  # matches of one geometry; of other rooms there are 8 at most
KEPT = 512  # keyframes whose features are kept: 26 KB each
NOTHING = Features((1, 1), np.zeros((0, 2)), np.zeros((0, 128), np.uint8))
MOST_NEW = 8  # keyframes per search whose features are detected: 5 to 10 ms each


class PlaceFeatures(MapListener):
    """Features of the keyframes that were compared last."""

    def __init__(self) -> None:
        self._detector = FeatureDetector(FEATURES, PIXELS)
        self._features: OrderedDict[int, Features] = OrderedDict()  # by id of the view
        self._new = -1  # id of the keyframe that is compared, whose results are kept
        self._found: dict[int, int] = {}

    def on_clear(self) -> None:
        """The map begins anew, with other keyframes."""
        self._features.clear()
        self._new, self._found = -1, {}

    def matching(self, new: ViewRow, others: Sequence[ViewRow]) -> tuple[list[ViewRow], bool]:
        """Returns those of the others that show what a keyframe shows, the most certain first, and
        whether all were compared: some are left for the next call if there are many new ones.
        """
        if new.view.id != self._new:
            self._new, self._found = new.view.id, {}
        here = self._of(new)
        left = MOST_NEW
        for old in others:
            id = old.view.id
            if id in self._found:
                continue
            if id not in self._features:
                if not left:
                    continue
                left -= 1
            self._found[id] = self._matches(here, new, self._of(old), old)
        here.release()
        good = [o for o in others if self._found.get(o.view.id, 0) >= FEWEST]
        complete = all(o.view.id in self._found for o in others)
        return sorted(good, key=lambda o: -self._found[o.view.id]), complete

    def _of(self, one: ViewRow) -> Features:
        """Returns the features of a keyframe; none if it cannot be read."""
        id = one.view.id
        if id in self._features:
            self._features.move_to_end(id)
            return self._features[id]
        try:
            view = one.loaded().view
            found = self._detector(view.image, view.valid)
        except OSError:  # the file of a loaded scene; whoever compares it says so
            found = NOTHING
        self._features[id] = found
        if len(self._features) > KEPT:
            self._features.popitem(last=False)
        return found

    @staticmethod
    def _matches(here: Features, new: ViewRow, there: Features, old: ViewRow) -> int:
        pairs = match(here, there)
        there.release()
        if len(pairs) < FEWEST:
            return 0
        K_old, K_new = (
            resize_K(one.K, one.view.image.shape[1::-1], features.shape[::-1])
            for one, features in ((old, there), (new, here))
        )
        agree = of_one_geometry(there.pixel[pairs[:, 1]], K_old, here.pixel[pairs[:, 0]], K_new)
        return int(agree.sum())


# Places a keyframe among others by the features of their small images.

# Features and tracks over those of a window: a loop is measured once, and its error stays.
MORE_FEATURES, MORE_TRACKS = 2.5, 2.0
PLACED_KEPT = 32  # keyframes whose features are kept: 150 KB each
NEAR_SAMPLE = 2.0  # distance of a feature from the next sample with depth, over the samples' own


class KeyframePlacing(MapListener):
    """Places keyframes; has the features of those that it compared last."""

    def __init__(self) -> None:
        # By id of the view, and the shape of its image.
        self._features: OrderedDict[tuple[int, tuple[int, ...]], Features] = OrderedDict()

    def on_clear(self) -> None:
        """The map begins anew, with other keyframes."""
        self._features = OrderedDict()

    def placed(
        self, new: OverlapView, others: Sequence[OverlapView], limits: SolverLimits,
        depth_noise: float,
    ) -> PlacedView | None:  # fmt: skip
        """Returns where tracks place a keyframe among others, whose poses in local are held; None:
        they do not determine it.

        new: with the pose where it may be. limits: of a window. depth_noise: as of
        ``place_among``.
        """
        limits = replace(
            limits, features=int(MORE_FEATURES * limits.features),
            tracks=int(MORE_TRACKS * limits.tracks),
        )  # fmt: skip
        detector = FeatureDetector(limits.features, limits.pixels)
        *known, view = [
            _tracked(one, id, self._of(one, detector)) for id, one in enumerate((*others, new))
        ]
        found = place_among(view, known, limits, depth_noise)
        for one in (*known, view):
            one.features.release()
        return found

    def _of(self, one: OverlapView, detector: FeatureDetector) -> Features:
        key = one.view.id, one.view.image.shape
        if key not in self._features:
            self._features[key] = detector(one.view.image, one.view.valid)
        self._features.move_to_end(key)
        if len(self._features) > PLACED_KEPT:
            self._features.popitem(last=False)
        return self._features[key]


def _tracked(one: OverlapView, id: int, features: Features) -> TrackedView:
    """Returns a keyframe with its features, and its depth at them."""
    size = one.view.image.shape[1], one.view.image.shape[0]
    K = resize_K(one.K, size, features.shape[::-1])
    at = features.pixel * (size[0] / features.shape[1], size[1] / features.shape[0])
    log_depth = _log_depth(one, at, size)
    return TrackedView(id, one.view.camera, features, K, one.T_local_camera, log_depth)


def _log_depth(one: OverlapView, at: Array, size: tuple[int, int]) -> Array:
    """Returns the logarithm [M] of a keyframe's depth at positions [M, 2] in its image: that of
    the nearest sample; NaN where none is near."""
    if not len(one.pixels) or not len(at):
        return np.full(len(at), np.nan)
    row, column = np.divmod(one.pixels, size[0])
    away, nearest = cKDTree(np.column_stack((column, row)) + 0.5).query(at)
    spacing = np.sqrt(size[0] * size[1] / len(one.pixels))
    return np.where(away < NEAR_SAMPLE * spacing, np.log(one.depth[nearest]), np.nan)
