"""Checks stated calibrations by the tracks of a map's keyframes, and measures what they lack: a
focal length that is some per cent off, a principal point, a distortion that nobody stated.

Works on features and poses; no network, no images.

A wrong lens can be made up for by wrong poses, so that a small reprojection error says little. An
estimate counts only if tracks determine it, if both halves of the keyframes agree with it, and if
tracks that only judge fit better with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from da3_ros.geometry.lens import FOCAL, K1, KNOWN, Lens
from da3_ros.refinement.bundle import Bundle, adjust
from da3_ros.refinement.map_bundle import (
    CONNECTED,
    LIMITS,
    MAX_PX,
    MIN_PX,
    RAYLEIGH,
    STEPS,
    MapMatches,
    MapTracks,
    MapView,
    chosen,
    joined_tracks,
    loose_poses,
    observations,
    typical_error,
)
from da3_ros.types import Array

FEWEST_VIEWS = 12  # keyframes of an estimate
HELD_OUT = 5  # one track of so many only judges
# Standard deviations of the stated calibration: logarithm of the focal length; principal point, in
# focal lengths; k1, k2.
STATED = (0.05, 0.02, 0.02, 0.1, 0.1)
# The same where tracks do not show the focal length, as those of a camera that goes sideways, or
# where something else than the lens is wrong, as a rolling shutter, which looks like a focal
# length or a principal point: what is radial shows all the same. Not zero: the solution divides
# by them.
DISTORTION = (1e-5, 1e-5, 1e-5, 0.1, 0.1)
LOOSER = 10.0  # than in an adjustment: poses were found with the calibration that is in doubt
USUAL_PX = 0.2  # noise of a feature; what exceeds it does not average out
# Noise of features, with more of which something else than the lens is wrong; with far more, no
# lens is measured.
MOST_PX, FAR_TOO_MUCH_PX = 0.35, 0.7
# Factor on standard deviations: errors of tracks are not those of independent features. Right
# calibrations of rendered rooms have squared errors of up to 8 times their variances without it.
DEPENDENT = 2.5
# Largest standard deviation of the logarithm of a focal length that counts, and of one beside a
# distortion that does: images of a camera that turns so little that nothing shows its focal length
# can be moved by a stabiliser, which then looks like a barrel.
FOCAL_SIGMA, FOCAL_SIGMA_BESIDE = 0.015, 0.035
CERTAIN = 12.0  # squared errors over variances from which on an estimate is no accident
LEAST_SHIFT = 0.002  # of pixels by the lens, RMS over the image's width, that is worth a change
HALVES = 0.1  # of the same of half of the keyframes: largest share that the lens of all leaves
BETTER = 0.98  # factor on the error of tracks that only judge
FARTHEST = (0.25, 0.1, 0.1, 0.5, 0.5)  # errors beyond which it is no calibration of this camera


@dataclass(frozen=True)
class LensEstimate:
    """A lens by the tracks of keyframes."""

    lens: Lens
    # Standard deviation of the logarithm of its focal length, also where that stays as stated.
    focal_sigma: float
    error_px: float  # of tracks that only judge
    error_before_px: float  # the same with the stated calibration
    views: int

    def as_report(self) -> dict[str, float]:
        """Returns the values for report.json; lengths in stated focal lengths, and pixels."""
        lens = self.lens
        return {
            "focal_factor": math.exp(lens.focal), "focal_sigma": self.focal_sigma,
            "centre_x": lens.centre_x, "centre_y": lens.centre_y, "k1": lens.k1, "k2": lens.k2,
            "keyframes": self.views, "error_px": self.error_px,
            "error_before_px": self.error_before_px,
        }  # fmt: skip


def measured_lens(views: Sequence[MapView], matches: MapMatches) -> LensEstimate | None:
    """Returns the lens of keyframes of one camera, in the order of their ids; None: the stated
    calibration is right, or tracks do not show how it is wrong."""
    if len(views) < FEWEST_VIEWS:
        return None
    tracks = chosen(joined_tracks(views, matches.of(views)), len(views))
    judges = MapTracks.of(views, tracks[HELD_OUT // 2 :: HELD_OUT])
    used = MapTracks.of(views, [t for k, t in enumerate(tracks) if k % HELD_OUT != HELD_OUT // 2])
    if used.count < CONNECTED or judges.count < CONNECTED // HELD_OUT:
        return None
    found, sigma = _solved(views, used, STATED), STATED
    if found is None:
        return None
    focal_sigma = found.sigma(FOCAL)
    if not (focal_sigma < FOCAL_SIGMA and found.noise_px < MOST_PX):
        # Else a wrong focal length would be taken for a distortion.
        if not (focal_sigma < FOCAL_SIGMA_BESIDE and found.shows_distortion):
            return None
        found, sigma = _solved(views, used, DISTORTION), DISTORTION
    if found is None or not found.counts(views[0]):
        return None
    half = len(views) // 2
    halves = views[: len(views) - half], views[half:]
    if not _halves_agree(found.lens, halves, matches, sigma):
        return None
    stated = _solved(views, used, ())
    if stated is None:
        return None
    before, after = (one.error_of(judges) for one in (stated, found))
    if not after < BETTER * before:
        return None
    lens = found.lens if sigma is STATED else Lens(k1=found.lens.k1, k2=found.lens.k2)
    return LensEstimate(lens, focal_sigma, after, before, len(views))


@dataclass(frozen=True, eq=False)
class _Solved:
    """Poses of views, and the lens of all."""

    T_local_camera: Array  # [V, 4, 4]
    stated: Array  # [V, 3, 3] K
    lens: Lens
    covariance: Array  # [5, 5] of the lens; [0, 0] if it is as stated
    noise_px: float  # standard deviation of a position

    def sigma(self, error: int) -> float:
        """Returns the standard deviation of an error of the lens."""
        return math.sqrt(float(self.covariance[error, error]))

    def counts(self, view: MapView) -> bool:
        """Whether the lens differs from the stated one, is determined, and is one at all."""
        errors, shape = self.lens.errors, view.features.shape
        if self.noise_px > FAR_TOO_MUCH_PX:
            return False
        if not (np.isfinite(self.covariance).all() and (np.abs(errors) < FARTHEST).all()):
            return False
        if not (self.lens.is_lens(view.K, shape) and self.sigma(FOCAL) < FOCAL_SIGMA):
            return False
        # A rolling shutter of a camera that always turns the same way looks like the latter.
        only_row = replace(KNOWN, centre_y=self.lens.centre_y)
        if not min(self.against(KNOWN), self.against(only_row)) > CERTAIN:
            return False
        return _rms(self.lens.shift_px(view.K, shape)) > LEAST_SHIFT * shape[1]

    @property
    def shows_distortion(self) -> bool:
        """Whether tracks show a distortion beside whatever else the lens is."""
        if not np.isfinite(self.covariance).all():
            return False
        errors, covariance = self.lens.errors[K1:], self.covariance[K1:, K1:]
        return float(errors @ np.linalg.solve(covariance, errors)) > CERTAIN

    def against(self, lens: Lens) -> float:
        """Returns the squared errors of another lens over the variances of this one."""
        errors = self.lens.errors - lens.errors
        return float(errors @ np.linalg.solve(self.covariance, errors))

    def error_of(self, tracks: MapTracks) -> float:
        """Returns the typical reprojection error of tracks, pixels."""
        K = np.array([self.lens.K(k) for k in self.stated])
        return typical_error(_undistorted(tracks, self.stated, self.lens), self.T_local_camera, K)


def _solved(
    views: Sequence[MapView], tracks: MapTracks, sigma: tuple[float, ...]
) -> _Solved | None:
    """Returns views adjusted with a lens whose errors have standard deviations ``sigma``; without
    any, with the stated one. None: too few observations."""
    T, stated = np.array([v.T_local_camera for v in views]), np.array([v.K for v in views])
    free = np.arange(len(views)) > 0
    priors = loose_poses(views, LOOSER)
    lens, pixel = KNOWN, MAX_PX
    for most, least in LIMITS:
        K = np.array([lens.K(k) for k in stated])
        straight = _undistorted(tracks, stated, lens)
        points = straight.points(T, K)
        error = straight.errors(T, K, points)
        kept = error < max(most * pixel, least)
        kept &= (np.bincount(tracks.track[kept], minlength=tracks.count) >= 2)[tracks.track]
        if (np.bincount(tracks.view[kept], minlength=len(views)) < CONNECTED / 2).any():
            return None
        bundle = Bundle(
            T, np.zeros(len(views)), stated, points, free, observations(tracks, kept, pixel),
            np.zeros(len(views)), np.full(len(views), 0.01), priors,
        )  # fmt: skip
        if sigma:
            start = lens.errors[None, : len(sigma)]
            bundle = replace(
                bundle, lens=np.zeros(len(views), int), lens_sigma=sigma, lens_start=start
            )
        done = adjust(bundle, 2 * STEPS)
        T = done.bundle.T_local_camera
        if sigma:
            lens = Lens.from_errors(done.lens[0])
        if not (np.isfinite(T).all() and np.isfinite(lens.errors).all()):
            return None
        pixel = float(np.median(done.reprojection)) / RAYLEIGH
        pixel = min(max(pixel, MIN_PX), MAX_PX)
    excess = (DEPENDENT * max(1.0, pixel / USUAL_PX)) ** 2
    covariance = excess * done.lens_covariance()[0] if sigma else np.zeros((0, 0))
    return _Solved(T, stated, lens, covariance, pixel)


def _halves_agree(
    lens: Lens, halves: Sequence[Sequence[MapView]], matches: MapMatches, sigma: tuple[float, ...]
) -> bool:
    """Whether each half of the keyframes alone speaks for the lens, and against the stated one."""
    for views in halves:
        tracks = chosen(joined_tracks(views, matches.of(views)), len(views))
        own = _solved(views, MapTracks.of(views, tracks), sigma) if tracks else None
        if own is None or not np.isfinite(own.covariance).all():
            return False
        if not own.against(lens) < HALVES * own.against(KNOWN):
            return False
    return True


def _undistorted(tracks: MapTracks, stated: Array, lens: Lens) -> MapTracks:
    """Returns tracks with positions as without the distortion of a lens."""
    if lens == KNOWN:
        return tracks
    pixel = tracks.pixel.copy()
    for k, K in enumerate(stated):
        own = tracks.view == k
        pixel[own] = lens.undistorted(K, pixel[own])
    return replace(tracks, pixel=np.where(np.isfinite(pixel), pixel, np.inf))


def _rms(shift: Array) -> float:
    return math.sqrt(float((shift**2).sum(1).mean()))
