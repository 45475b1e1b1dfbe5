"""Start poses of a new view from matches, and how well matches agree with poses."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import nearest_rotation
from da3_ros.refinement.bundle import NETWORK
from da3_ros.refinement.track_noise import TrackNoise
from da3_ros.refinement.tracked_view import Matches, TrackedView, TrackPoints
from da3_ros.types import Array

FEWEST = 8  # matches that determine a pose
PNP_TOLERANCE = 4.0  # pixels; depths of points are uncertain
EPIPOLAR_TOLERANCE = 1.0  # pixels
TRIALS = 200
PLANE_TOLERANCE = 2.0  # pixels; walls are seldom alone
PLANES = 2  # known views by which a pose before a plane is looked for
CHANCE = 2.0  # standard deviations of a number of matches
LEAST_PLANE = 0.4  # share of a view's matches that lie in a plane
BEFORE_PLANE = 0.9  # share of a plane's points that must lie before the camera
FEW = 0.2  # share of matches that are not worth a pose of their own
NARROWING = (16.0, 8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0)  # tolerances, pixels
AGREEMENT_PX = 2.0  # largest distance of a match that agrees with a pose
TRACKED_REACH = 0.1  # of the logarithm of a tracked point's depth
DEPTH_SIGMAS, LEAST_REACH = 3.0, 1.0  # the same of predicted depth: standard deviations, least
# What all matches together weigh against the network's pose: as many independent measurements.
EVIDENCE = 12.0
# Share of the features, and number, that match the newest views. With fewer, matches weigh less,
# and no distance from the network's pose is forgiven: a repeated pattern looks like an old view.
ENOUGH, FEWEST_NEW = 0.1, 20
MOST_DOUBT = 4.0  # largest cost of a pose that is far from the network's: networks fail
UNIT_JUMP = 0.25  # logarithm of the ratio of a view's depth to its tracks' beyond the usual noise
MIN_PARALLAX = 0.01  # rad between two rays, below which they give no depth


@dataclass(frozen=True, eq=False)
class _Matched:
    """The matches of a new view to a known one. P rows."""

    known: TrackedView
    feature: Array  # [P] of the new view
    here: Array  # [P, 2] positions in the new view
    there: Array  # [P, 2] and in the known one
    points: Array  # [P, 3] in local: the track's, or by the known view's depth; NaN: unknown
    tracked: Array  # [P] bool, whether the point is a track's
    near: Array  # [P, 3] the same points as near as they may be
    far: Array  # [P, 3] and as far


@dataclass(frozen=True, eq=False)
class _StartPose:
    """A candidate for the start pose of a new view."""

    T_local_camera: Array  # [4, 4]
    masks: list[Array]  # [P] of each known view: the matches that agree
    agreed: float  # their number, less for larger distances
    score: float


def start_pose(
    view: TrackedView,
    found: list[Matches],
    newest: Collection[int],
    points: TrackPoints,
    noise: TrackNoise,
) -> list[Array]:
    """Sets a new view's start pose, and the scale of its depth there.

    Candidates: the pose that the view has (the network's), the one next to it that matches agree
    on, poses by the points of matches (PnP) and by matches alone (essential matrix), also by those
    that disagree with the first: something else may move through the image; and poses before a
    plane (homography), if they agree with more matches than all others, and beside the plane with
    as many as the first two. The best one agrees with many matches, and is not far from the
    network's. newest: ids of the views right before. A view whose pose is known keeps it.
    Returns the masks [P] of the matches that agree.
    """
    matched = [_matched(view, m, points, noise.depth) for m in found]
    network = view.T_local_camera
    if view.is_known:
        return _agreeing(view, network, matched)[0]
    known, pixel = _best_points(view, matched)
    candidates = [
        network,
        pose_nearby(known, pixel, view.K, network),
        *_by_points(known, pixel, view.K),
        *_by_matches(view, matched),
    ]
    count = sum(len(m.here) for m in matched)
    fresh = [m.feature for m in matched if m.known.id in newest]
    features = len(np.unique(np.concatenate([np.zeros(0, int), *fresh])))
    enough = features / max(ENOUGH * len(view.features), FEWEST_NEW)
    evidence, most = EVIDENCE * min(1.0, enough) ** 2, MOST_DOUBT if enough >= 1 else math.inf

    def start(T: Array) -> _StartPose:
        masks, agreed = _agreeing(view, T, matched)
        doubt = min(_doubt(T, network, matched, noise), most)
        return _StartPose(T, masks, agreed, evidence * agreed / count - doubt)

    starts = [start(T) for T in candidates]
    others = max(s.agreed for s in starts)
    first = starts[:2]
    for k, beside, T in _by_planes(view, matched):
        # A plane may move, or be a pattern that repeats: then what is beside it contradicts.
        there = max(int(s.masks[k][beside].sum()) for s in first)
        agreeing = _distance(matched[k], T, view.K)[beside] < AGREEMENT_PX
        if int(agreeing.sum()) < there - CHANCE * math.sqrt(there):
            continue
        # Half of the others are wrong, and may be near a wrong one of the network.
        one = start(T)
        if one.agreed > others:
            starts.append(one)
    best = max(starts, key=lambda s: s.score)
    view.T_local_camera = best.T_local_camera
    _set_scale(view, matched, best.masks)
    return best.masks


def _matched(view: TrackedView, m: Matches, points: TrackPoints, depth_sigma: float) -> _Matched:
    feature, index = m.pairs.T
    at = points.of(m.known.track[index])
    tracked = np.isfinite(at[:, 0])
    at[~tracked] = m.known.points(index[~tracked])
    reach = np.where(tracked, TRACKED_REACH, max(LEAST_REACH, DEPTH_SIGMAS * depth_sigma))
    centre = m.known.T_local_camera[:3, 3]
    ray = at - centre
    return _Matched(
        m.known, feature, view.features.pixel[feature], m.known.features.pixel[index], at, tracked,
        centre + ray * np.exp(-reach)[:, None], centre + ray * np.exp(reach)[:, None],
    )  # fmt: skip


def _best_points(view: TrackedView, matched: list[_Matched]) -> tuple[Array, Array]:
    """Returns one known point [Q, 3] of each matched feature, a track's if there is one, and the
    features' positions [Q, 2]."""
    points = np.concatenate([m.points for m in matched])
    tracked = np.concatenate([m.tracked for m in matched])
    feature = np.concatenate([m.feature for m in matched])
    order = np.lexsort((~tracked, feature))
    order = order[np.isfinite(points[order, 0])]
    some = order[np.unique(feature[order], return_index=True)[1]]
    return points[some], view.features.pixel[feature[some]]


def _by_points(points: Array, pixel: Array, K: Array) -> Iterator[Array]:
    """Yields a pose by most points [Q, 3], and one by the others."""
    for _ in range(2):
        T = pose_by_points(points, pixel, K)
        if T is None:
            return
        yield T
        other = ~(reprojection_distance(points, T, K, pixel) < PNP_TOLERANCE)
        if other.mean() < FEW:
            return
        points, pixel = points[other], pixel[other]


def pose_nearby(points: Array, pixel: Array, K: Array, T_local_camera: Array) -> Array:
    """Returns the pose [4, 4] next to ``T_local_camera`` that points [Q, 3] at positions [Q, 2]
    agree on, by weights that narrow from step to step: others far away count nothing."""
    T = T_local_camera.copy()
    for tolerance in NARROWING:
        x = (points - T[:3, 3]) @ T[:3, :3]
        z = np.where(x[:, 2] > 1e-6, x[:, 2], np.nan)
        f = np.diag(K)[:2]
        r = f * x[:, :2] / z[:, None] + K[:2, 2] - pixel
        weight = 1 / (1 + (r**2).sum(1) / tolerance**2) ** 2
        good = np.isfinite(weight)
        if good.sum() < FEWEST:
            return T_local_camera
        x, z, r, weight = x[good], z[good], r[good], weight[good]
        by_x = np.zeros((len(x), 2, 3))
        by_x[:, 0, 0], by_x[:, 1, 1] = f[0] / z, f[1] / z
        by_x[:, :, 2] = -f * x[:, :2] / z[:, None] ** 2
        J = np.concatenate((np.cross(by_x, x[:, None]), -by_x), axis=2)  # turn, move in own axes
        A = np.einsum("qij,q,qik->jk", J, weight, J)
        g = np.einsum("qij,q,qi->j", J, weight, r)
        try:
            step = np.linalg.solve(A + 1e-9 * np.trace(A) * np.eye(6), -g)
        except np.linalg.LinAlgError:
            return T_local_camera
        T[:3, 3] += T[:3, :3] @ step[3:]
        T[:3, :3] = T[:3, :3] @ Rotation.from_rotvec(step[:3]).as_matrix()
    return T if np.isfinite(T).all() else T_local_camera


def _by_matches(view: TrackedView, matched: list[_Matched]) -> Iterator[Array]:
    """Yields poses by the known view with the most matches, of equals the newest: one of most
    matches, and one of the others."""
    best = max(matched, key=lambda m: (len(m.here), m.known.id))
    known, depth = best.known, _depth_in(best.known, best.points)
    rest = np.ones(len(best.here), bool)
    for _ in range(2):
        T = pose_by_epipolar_geometry(
            known, best.there[rest], depth[rest], best.here[rest], view.K
        )
        if T is None:
            return
        yield T
        rest &= ~(epipolar_distance(known, best.there, T, view.K, best.here) < AGREEMENT_PX)
        if rest.mean() < FEW:
            return


def _by_planes(view: TrackedView, matched: list[_Matched]) -> Iterator[tuple[int, Array, Array]]:
    """Yields poses by the known views with the most matches, as if these lay in one plane: the
    known view's number, the mask [P] of its matches beside the plane, and the pose."""
    order = sorted(range(len(matched)), key=lambda k: (len(matched[k].here), matched[k].known.id))
    for k in order[-PLANES:]:
        m = matched[k]
        depth = _depth_in(m.known, m.points)
        poses, inside = poses_before_plane(m.known, m.there, depth, m.here, view.K)
        for T in poses:
            yield k, ~inside, T


def _agreeing(view: TrackedView, T: Array, matched: list[_Matched]) -> tuple[list[Array], float]:
    """Returns the masks [P] of matches that agree with the pose ``T``, and their number, less for
    larger distances."""
    masks, score = [], 0.0
    for m in matched:
        distance = _distance(m, T, view.K)
        good = distance < AGREEMENT_PX
        score += float((1 - (distance[good] / AGREEMENT_PX) ** 2).sum())
        masks.append(good)
    return masks, score


def _distance(m: _Matched, T: Array, K: Array) -> Array:
    """Returns the distances [P], pixels, of matches from where their points may be seen: between
    the nearest and the farthest position, or on the epipolar line if the depth is unknown. +Inf of
    points that lie behind the camera: their lines may fit a pose that looks the other way."""
    near, far = _seen_at(m.near, T, K), _seen_at(m.far, T, K)
    along = far - near
    length = (along**2).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = ((m.here - near) * along).sum(1) / np.maximum(length, 1e-12)
        nearest = near + np.clip(share, 0, 1)[:, None] * along
        distance = np.linalg.norm(m.here - nearest, axis=1)
    across = epipolar_distance(m.known, m.there, T, K, m.here)
    behind = np.isfinite(m.near[:, 0]) & np.isnan(near[:, 0]) & np.isnan(far[:, 0])
    across = np.where(behind, np.inf, across)
    return np.where(np.isfinite(distance), distance, across)


def _seen_at(points: Array, T_local_camera: Array, K: Array) -> Array:
    """Returns the positions [P, 2] at which a camera sees points [P, 3]; NaN behind it."""
    x = (points - T_local_camera[:3, 3]) @ T_local_camera[:3, :3] @ K.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(x[:, 2:] > 0, x[:, :2] / x[:, 2:], np.nan)


def _doubt(T: Array, network: Array, matched: list[_Matched], noise: TrackNoise) -> float:
    """Returns the cost of a pose's distance from the network's."""
    usual = noise.poses[NETWORK]
    depth = np.concatenate([_depth_in(m.known, m.points) for m in matched])
    depth = depth[np.isfinite(depth)]
    typical = float(np.median(depth)) if len(depth) else 1.0
    turn = Rotation.from_matrix(network[:3, :3].T @ T[:3, :3]).magnitude() / usual.rotation
    move = np.linalg.norm(T[:3, 3] - network[:3, 3]) / (usual.position * typical)
    return (float(turn) ** 2 + float(move) ** 2) / 2


def _depth_in(view: TrackedView, points: Array) -> Array:
    """Returns the depths [P] of points [P, 3] in a view; NaN behind it."""
    z = (points - view.T_local_camera[:3, 3]) @ view.T_local_camera[:3, 2]
    return np.where(z > 0, z, np.nan)


def _set_scale(view: TrackedView, matched: list[_Matched], good: list[Array]) -> None:
    """Sets the scale of a view whose unit differs from that of its tracks."""
    logs = [np.zeros(0)]
    for m, mask in zip(matched, good, strict=True):
        some = m.tracked & mask
        with np.errstate(invalid="ignore", divide="ignore"):
            logs.append(np.log(_depth_in(view, m.points[some])) - view.log_depth[m.feature[some]])
    ratio = np.concatenate(logs)
    ratio = ratio[np.isfinite(ratio)]
    if len(ratio) >= 2 * FEWEST and abs(float(np.median(ratio))) > UNIT_JUMP:
        view.log_scale = float(np.median(ratio))


def pose_by_points(points: Array, pixel: Array, K: Array) -> Array | None:
    """Returns ``T_local_camera`` [4, 4] of a camera that sees points [P, 3] at pixels [P, 2], by
    RANSAC; None without a pose that a quarter of them and at least ``FEWEST`` agree with."""
    if len(points) < FEWEST:
        return None
    try:
        found, rotation, position, inliers = cv2.solvePnPRansac(
            points, pixel, K, None, iterationsCount=TRIALS, reprojectionError=PNP_TOLERANCE,
            flags=cv2.SOLVEPNP_SQPNP,
        )  # fmt: skip
    except cv2.error:
        return None
    if not found or inliers is None or len(inliers) < max(FEWEST, len(points) // 4):
        return None
    some = inliers[:, 0]
    rotation, position = cv2.solvePnPRefineLM(
        points[some], pixel[some], K, None, rotation, position
    )
    T = np.eye(4)
    T[:3, :3] = cv2.Rodrigues(rotation)[0].T
    T[:3, 3] = -T[:3, :3] @ position[:, 0]
    return T if np.isfinite(T).all() else None


def pose_by_epipolar_geometry(
    known: TrackedView, there: Array, depth: Array, here: Array, K: Array
) -> Array | None:
    """Returns ``T_local_camera`` [4, 4] of a new camera from positions [P, 2] ``there`` in a known
    view, their depths [P] (NaN: unknown), and positions [P, 2] ``here`` in the new one.

    The essential matrix gives rotation and direction. The length of the motion is the one at
    which triangulated depths have the median of the known ones. None without a pose.
    """
    if len(here) < 2 * FEWEST:
        return None
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
    at_unit, angle = depth_along(known_rays, rays @ R, -R.T @ t[:, 0])
    good = inside & (angle > MIN_PARALLAX) & (at_unit > 0) & np.isfinite(depth)
    length = float(np.median(depth[good] / at_unit[good])) if good.sum() >= FEWEST else 0.0
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R.T, -R.T @ t[:, 0] * length
    return np.asarray(known.T_local_camera @ T)


def poses_before_plane(
    known: TrackedView, there: Array, depth: Array, here: Array, K: Array
) -> tuple[list[Array], NDArray[np.bool_]]:
    """Returns the ``T_local_camera`` [4, 4] of a new camera that explain positions [P, 2]
    ``there`` in a known view, with depths [P] (NaN: unknown), and ``here`` in the new one, if many
    points lie in one plane; and which do [P]. None where there is no such plane.

    Before a plane, two motions have nearly the same epipolar lines: a step sideways looks like a
    turn, and an essential matrix takes either. A homography has both, and most often the plane
    would be behind a camera in one of them. The plane's known depths give the length.
    """
    nothing = np.zeros(len(here), bool)
    if len(here) < 2 * FEWEST:
        return [], nothing
    rays, known_rays = _rays(here, K), _rays(there, known.K)
    focal = (K[0, 0] + known.K[0, 0]) / 2
    try:
        H, mask = cv2.findHomography(
            known_rays[:, :2], rays[:, :2], cv2.RANSAC, PLANE_TOLERANCE / focal, maxIters=TRIALS
        )
        if H is None:
            return [], nothing
        _, *solutions = cv2.decomposeHomographyMat(H, np.eye(3))
    except cv2.error:
        return [], nothing
    inside = mask.ravel() > 0
    if inside.mean() < LEAST_PLANE:
        return [], nothing
    poses = []
    for R, t, normal in zip(*solutions, strict=True):
        toward = known_rays @ normal[:, 0]
        away = (toward * depth)[inside & np.isfinite(depth)]
        if len(away) < FEWEST or (toward[inside] > 0).mean() < BEFORE_PLANE:
            continue
        if not np.abs(R @ R.T - np.eye(3)).max() < 1e-3:  # of a homography that is almost none
            continue
        R = nearest_rotation(R)
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = R.T, -R.T @ t[:, 0] * float(np.median(away))
        poses.append(np.asarray(known.T_local_camera @ T))
    return poses, inside


def depth_along(first: Array, second: Array, centre: Array) -> tuple[Array, Array]:
    """Returns the depths [P] along ``first`` rays [P, 3] (z = 1, from the origin) where they are
    nearest to ``second`` rays [P, 3] from ``centre`` [3], and the angles [P] between both."""
    a = np.einsum("pi,pi->p", first, first)
    b = np.einsum("pi,pi->p", first, second)
    c = np.einsum("pi,pi->p", second, second)
    d, e = first @ centre, second @ centre
    across = np.maximum(a * c - b * b, 1e-18)
    return (d * c - b * e) / across, np.sqrt(across / (a * c))


class Posed(Protocol):
    """A view with a pose."""

    @property
    def K(self) -> Array:
        """[3, 3] corner rule, pixels of the positions."""
        ...

    @property
    def T_local_camera(self) -> Array:
        """[4, 4]."""
        ...


def epipolar_distance(
    known: Posed, there: Array, T_local_camera: Array, K: Array, here: Array
) -> Array:
    """Returns the Sampson distances [P], pixels, of matched positions [P, 2] in a known view and
    in one with the pose ``T_local_camera``."""
    R = T_local_camera[:3, :3].T @ known.T_local_camera[:3, :3]
    t = T_local_camera[:3, :3].T @ (known.T_local_camera[:3, 3] - T_local_camera[:3, 3])
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


def reprojection_distance(points: Array, T_local_camera: Array, K: Array, pixel: Array) -> Array:
    """Returns the distances [P], pixels, of points [P, 3] from positions [P, 2]; inf behind the
    camera, NaN for unknown points."""
    x = (points - T_local_camera[:3, 3]) @ T_local_camera[:3, :3]
    with np.errstate(all="ignore"):
        at = x @ K.T
        distance = np.linalg.norm(at[:, :2] / at[:, 2:] - pixel, axis=1)
    return np.where(x[:, 2] <= 0, np.inf, distance)


def _rays(pixel: Array, K: Array) -> Array:
    return np.asarray(np.column_stack((pixel, np.ones(len(pixel)))) @ np.linalg.inv(K).T)
