"""TrackHistory of feature tracks: where the last views saw what a view sees. For pictures only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from da3_ros.refinement.tracked_view import TrackedView, TrackPoints
from da3_ros.types import Array

LENGTH = 8  # most views of a track


@dataclass(frozen=True, eq=False)
class TrackHistory:
    """The tracks that one view sees."""

    # [M, LENGTH, 2] column and row as fractions of the image (corner rule), oldest view first;
    # NaN: that view does not see the track. The last one is the view itself, which sees all.
    position: Array
    error_px: Array  # [M] reprojection error, pixels of the camera image; NaN: no point

    def __len__(self) -> int:
        return len(self.position)

    @property
    def rms_px(self) -> float:
        """Root mean square of the errors; NaN without any."""
        known = self.error_px[np.isfinite(self.error_px)]
        return float(np.sqrt(np.mean(known**2))) if len(known) else float("nan")


def history_of(id: int, views: Mapping[int, TrackedView], points: TrackPoints) -> TrackHistory:
    """Returns the tracks of a view in the last views of its camera.

    views: of a sliding graph, oldest first. Raises KeyError if the view is not among them.
    """
    view = views[id]
    index = np.flatnonzero(view.track >= 0)
    tracks = view.track[index]
    ids = list(views)
    before = [views[i] for i in ids[: ids.index(id)] if views[i].camera == view.camera]
    position = np.full((len(tracks), LENGTH, 2), np.nan)
    position[:, -1] = _fractions(view, index)
    for k, other in enumerate(reversed(before[1 - LENGTH :]), 2):
        _, at, seen = np.intersect1d(tracks, other.track, return_indices=True)
        position[at, -k] = _fractions(other, seen)
    return TrackHistory(position, _errors(view, index, points.of(tracks)))


def _fractions(view: TrackedView, index: Array) -> Array:
    """Returns positions [M, 2] of features as fractions of the view's image."""
    return np.asarray(view.features.pixel[index] / view.features.shape[::-1])


def _errors(view: TrackedView, index: Array, points: Array) -> Array:
    """Returns the distances [M], pixels, of features from their points [M, 3] in local."""
    T = view.T_local_camera
    x = (points - T[:3, 3]) @ T[:3, :3]
    x[~(x[:, 2] > 0)] = np.nan
    pixel = (x / x[:, 2:]) @ view.K[:2].T
    return np.asarray(np.linalg.norm(pixel - view.features.pixel[index], axis=1))
