"""A frame's obstacles as a planar scan about the origin of its level frame. No ROS."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from da3_ros.navigation.sighting import Sighting
from da3_ros.types import Array, FloatImage

BEAMS = 720  # of a full turn, beginning backwards; the same in every scan, as consumers expect
GAP = 2  # beams on each side of a gap that pixels leave
FREE = 0.95  # share of the range to which a beam must be seen free to have no return


def scan_ranges(sighting: Sighting, T_level_camera: Array, max_range: float) -> FloatImage:
    """Returns the range [BEAMS] of each beam, metres: to the nearest obstacle; +Inf: there is none
    up to about ``max_range`` from the camera, where floor is seen; NaN: not seen so far (REP-117).

    Beam i is at angle 2 pi (i / BEAMS - 1/2) about z of the level frame, x forward.
    """
    free = np.zeros(BEAMS, bool)
    # Where a ray only passes over the floor, something lower may stand, or a way down begin. A low
    # camera sees no floor just before the range: its rows of pixels are too far apart there.
    floor = np.concatenate((sighting.floor, sighting.low_rays))
    beam, _, from_camera = _polar(floor, T_level_camera)
    free[beam[from_camera >= FREE * max_range]] = True
    ranges = np.where(_closed(free), np.float32(np.inf), np.float32(np.nan))
    beam, distance, _ = _polar(sighting.marks, T_level_camera)
    nearest = np.full(BEAMS, np.inf, np.float32)
    np.minimum.at(nearest, beam, distance)
    # Pixels may lie more than a beam apart.
    before, after = np.roll(nearest, 1), np.roll(nearest, -1)
    between = np.isinf(nearest) & np.isfinite(before) & np.isfinite(after)
    nearest[between] = np.minimum(before, after)[between]
    return np.where(np.isfinite(nearest), nearest, ranges)


def _closed(beams: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns beams [BEAMS] without gaps of up to ``2 * GAP`` beams."""
    turns = range(-GAP, GAP + 1)
    wider = np.any([np.roll(beams, by) for by in turns], axis=0)
    return np.asarray(np.all([np.roll(wider, by) for by in turns], axis=0))


def _polar(points: FloatImage, T: Array) -> tuple[Array, FloatImage, FloatImage]:
    """Returns the beam, the distance along the floor from the origin, and that from the camera, of
    points [N, 3] in camera axes."""
    x, y = (points @ T[:2, :3].T.astype(np.float32) + T[:2, 3].astype(np.float32)).T
    turns = np.arctan2(y, x) / np.float32(2 * np.pi) + np.float32(0.5)
    beam = np.rint(turns * BEAMS).astype(np.int64) % BEAMS
    return beam, np.hypot(x, y), np.hypot(x - np.float32(T[0, 3]), y - np.float32(T[1, 3]))
