"""Start poses of a new view from matches, and how well matches agree with poses."""

from __future__ import annotations

import cv2
import numpy as np

from da3_ros.refinement.features import Features
from da3_ros.refinement.matching import Matches
from da3_ros.refinement.tracked_view import TrackedView, TrackPoints
from da3_ros.types import Array

FEWEST = 8  # matches that determine a pose
PNP_TOLERANCE = 4.0  # pixels; depths of points are uncertain
EPIPOLAR_TOLERANCE = 1.0  # pixels
TRIALS = 200
AGREEMENT_PX = 2.0  # largest epipolar distance of a match that agrees with a pose
GROSS_PX = 30.0  # largest reprojection error of a track that agrees with a start pose
UNIT_JUMP = 0.25  # logarithm of the ratio of a view's depth to its tracks' beyond the usual noise
MIN_PARALLAX = 0.01  # rad between two rays, below which they give no depth


def start_pose(view: TrackedView, found: list[Matches], points: TrackPoints) -> list[Array]:
    """Sets the start pose that matches agree with best, and the scale of the view's depth there.

    Candidates: the pose that the view has (the network's), one by the tracks' points and the
    predicted depths (PnP), and one by matches alone (essential matrix). Returns the masks [P] of
    the matches that agree.
    """
    known = [_known_points(m, points) for m in found]
    candidates = [view.T_ref_camera, _by_points(view, found, known), _by_matches(view, found)]
    best: tuple[float, list[Array], Array] | None = None
    for T in (T for T in candidates if T is not None):
        masks, score = _agreeing(view, T, found, known)
        if best is None or score > best[0]:
            best = score, masks, T
    assert best is not None
    view.T_ref_camera = best[2]
    _set_scale(view, found, known, best[1])
    return best[1]


def _known_points(m: Matches, points: TrackPoints) -> tuple[Array, Array]:
    """Returns points [P, 3] of the known view's matched features, and whether each is a track's;
    the others are by that view's depth, NaN if unknown."""
    index = m.pairs[:, 1]
    out = points.of(m.known.track[index])
    tracked = np.isfinite(out[:, 0])
    out[~tracked] = m.known.points(index[~tracked])
    return out, tracked


def _by_points(
    view: TrackedView, found: list[Matches], known: list[tuple[Array, Array]]
) -> Array | None:
    """Returns a pose by one point of each matched feature, a track's if there is one."""
    points = np.concatenate([p for p, _ in known])
    tracked = np.concatenate([t for _, t in known])
    feature = np.concatenate([m.pairs[:, 0] for m in found])
    order = np.lexsort((~tracked, feature))
    order = order[np.isfinite(points[order, 0])]
    some = order[np.unique(feature[order], return_index=True)[1]]
    return pose_by_points(points[some], view.features.pixel[feature[some]], view.K)


def _by_matches(view: TrackedView, found: list[Matches]) -> Array | None:
    """Returns a pose by the known view with the most matches, of equals the newest."""
    best = max(found, key=lambda m: (len(m.pairs), m.known.id))
    return pose_by_epipolar_geometry(best.known, best.pairs, view.features, view.K)


def _agreeing(
    view: TrackedView, T: Array, found: list[Matches], known: list[tuple[Array, Array]]
) -> tuple[list[Array], float]:
    """Returns the masks [P] of matches that agree with the pose ``T``, and a score: their number,
    less for larger distances."""
    masks, score = [], 0.0
    for m, (points, tracked) in zip(found, known, strict=True):
        here = view.features.pixel[m.pairs[:, 0]]
        there = m.known.features.pixel[m.pairs[:, 1]]
        across = epipolar_distance(m.known, there, T, view.K, here)
        gross = reprojection_distance(points, T, view.K, here) >= GROSS_PX
        good = (across < AGREEMENT_PX) & ~(gross & tracked)
        score += float((1 - (across[good] / AGREEMENT_PX) ** 2).sum())
        masks.append(good)
    return masks, score


def _set_scale(
    view: TrackedView, found: list[Matches], known: list[tuple[Array, Array]], good: list[Array]
) -> None:
    """Sets the scale of a view whose unit differs from that of its tracks."""
    logs = [np.zeros(0)]
    T = view.T_ref_camera
    for m, (points, tracked), mask in zip(found, known, good, strict=True):
        some = tracked & mask
        z = ((points[some] - T[:3, 3]) @ T[:3, :3])[:, 2]
        with np.errstate(invalid="ignore", divide="ignore"):
            logs.append(np.log(z) - view.log_depth[m.pairs[some, 0]])
    ratio = np.concatenate(logs)
    ratio = ratio[np.isfinite(ratio)]
    if len(ratio) >= 2 * FEWEST and abs(float(np.median(ratio))) > UNIT_JUMP:
        view.log_scale = float(np.median(ratio))


def pose_by_points(points: Array, pixel: Array, K: Array) -> Array | None:
    """Returns ``T_ref_camera`` [4, 4] of a camera that sees points [P, 3] at pixels [P, 2], by
    RANSAC; None without a pose that a third of them and at least ``FEWEST`` agree with."""
    if len(points) < FEWEST:
        return None
    try:
        found, rotation, place, inliers = cv2.solvePnPRansac(
            points, pixel, K, None, iterationsCount=TRIALS, reprojectionError=PNP_TOLERANCE,
            flags=cv2.SOLVEPNP_SQPNP,
        )  # fmt: skip
    except cv2.error:
        return None
    if not found or inliers is None or len(inliers) < max(FEWEST, len(points) // 4):
        return None
    some = inliers[:, 0]
    rotation, place = cv2.solvePnPRefineLM(points[some], pixel[some], K, None, rotation, place)
    T = np.eye(4)
    T[:3, :3] = cv2.Rodrigues(rotation)[0].T
    T[:3, 3] = -T[:3, :3] @ place[:, 0]
    return T if np.isfinite(T).all() else None


def pose_by_epipolar_geometry(
    known: TrackedView, matched: Array, features: Features, K: Array
) -> Array | None:
    """Returns ``T_ref_camera`` [4, 4] of a new camera from its matches [P, 2]: indices of its own
    features and of those of a known view.

    The essential matrix gives rotation and direction. The length of the motion is the one at
    which triangulated depths have the median of the known view's depths. None without a pose.
    """
    if len(matched) < 2 * FEWEST:
        return None
    here, there = features.pixel[matched[:, 0]], known.features.pixel[matched[:, 1]]
    rays, known_rays = _rays(here, K), _rays(there, known.K)
    focal = (K[0, 0] + known.K[0, 0]) / 2
    try:
        E, mask = cv2.findEssentialMat(
            known_rays[:, :2], rays[:, :2], np.eye(3), method=cv2.USAC_MAGSAC, prob=0.999,
            threshold=EPIPOLAR_TOLERANCE / focal,
        )  # fmt: skip
        if E is None or E.shape != (3, 3):
            return None
        count, R, t, mask = cv2.recoverPose(
            E, known_rays[:, :2], rays[:, :2], np.eye(3), mask=mask
        )
    except cv2.error:
        return None
    inside = mask.ravel() > 0
    if count < FEWEST:
        return None
    depth = np.exp(known.log_depth[matched[:, 1]] + known.log_scale)
    at_unit, angle = depth_along(known_rays, rays @ R, -R.T @ t[:, 0])
    good = inside & (angle > MIN_PARALLAX) & (at_unit > 0) & np.isfinite(depth)
    length = float(np.median(depth[good] / at_unit[good])) if good.sum() >= FEWEST else 0.0
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R.T, -R.T @ t[:, 0] * length
    return np.asarray(known.T_ref_camera @ T)


def depth_along(first: Array, second: Array, centre: Array) -> tuple[Array, Array]:
    """Returns the depths [P] along ``first`` rays [P, 3] (z = 1, from the origin) where they are
    nearest to ``second`` rays [P, 3] from ``centre`` [3], and the angles [P] between both."""
    a = np.einsum("pi,pi->p", first, first)
    b = np.einsum("pi,pi->p", first, second)
    c = np.einsum("pi,pi->p", second, second)
    d, e = first @ centre, second @ centre
    across = np.maximum(a * c - b * b, 1e-18)
    return (d * c - b * e) / across, np.sqrt(across / (a * c))


def epipolar_distance(
    known: TrackedView, there: Array, T_ref_camera: Array, K: Array, here: Array
) -> Array:
    """Returns the Sampson distances [P], pixels, of matched positions [P, 2] in a known view and
    in one with the pose ``T_ref_camera``."""
    R = T_ref_camera[:3, :3].T @ known.T_ref_camera[:3, :3]
    t = T_ref_camera[:3, :3].T @ (known.T_ref_camera[:3, 3] - T_ref_camera[:3, 3])
    length = float(np.linalg.norm(t))
    a, b = _rays(there, known.K) @ R.T, _rays(here, K)
    focal = (K[0, 0] + known.K[0, 0]) / 2
    if length < 1e-9:
        with np.errstate(all="ignore"):
            return np.asarray(focal * np.linalg.norm(a[:, :2] / a[:, 2:] - b[:, :2], axis=1))
    cross = np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]]) / length
    Ea, Eb = a @ cross.T, b @ cross
    top = np.einsum("pi,pi->p", b, Ea)
    # Derivatives by both images' positions; those of the first one in its own axes.
    Eb = Eb @ R
    below = (Ea[:, :2] ** 2).sum(1) + (Eb[:, :2] ** 2).sum(1)
    return np.asarray(focal * np.abs(top) / np.sqrt(below + 1e-300))


def reprojection_distance(points: Array, T_ref_camera: Array, K: Array, pixel: Array) -> Array:
    """Returns the distances [P], pixels, of points [P, 3] from positions [P, 2]; inf behind the
    camera, NaN for unknown points."""
    x = (points - T_ref_camera[:3, 3]) @ T_ref_camera[:3, :3]
    with np.errstate(all="ignore"):
        at = x @ K.T
        distance = np.linalg.norm(at[:, :2] / at[:, 2:] - pixel, axis=1)
    return np.where(x[:, 2] <= 0, np.inf, distance)


def _rays(pixel: Array, K: Array) -> Array:
    return np.asarray(np.column_stack((pixel, np.ones(len(pixel)))) @ np.linalg.inv(K).T)
