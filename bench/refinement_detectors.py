"""Detectors and matchers of OpenCV that need no weights: right matches, spread and time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from refinement_recordings import projection, recordings
from refinement_runs import (
    as_walk,
    frame_pairs,
    means,
    one_thread,
    room_camera,
    room_seeds,
)

from da3_ros.geometry.projection import corner_K
from da3_ros.refinement.features import CONTRAST, CORNER, FeatureDetector, Features
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.tracked_view import RATIO, match
from da3_ros.types import Array, Frame, Image

GAPS = (1, 3)  # frames between the images of a pair
RIGHT_PX, EPIPOLAR_PX = 2.0, 1.0  # largest errors of a right match
GRID = (8, 6)  # cells in which right matches are counted
CENTRE = 0.5  # from OpenCV's pixel coordinates to the corner rule
QUALITY, LEAST_DISTANCE = 0.005, 6  # of goodFeaturesToTrack
FLOW = {"winSize": (21, 21), "maxLevel": 4}
RETURN_PX = 1.0  # a feature that flows forth and back must return to within this
KEYS = ("features", "matches", "right", "right_share", "spread", "error_px", "image_ms", "pair_ms")

Pairs = NDArray[np.int64]  # [P, 2] indices of features
# Which of the matched positions [P, 2] in two images are right, and errors [P], px, NaN unknown.
Judge = Callable[[int, int, Array, Array], tuple[NDArray[np.bool_], Array]]


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one camera, and the judge of matches between them."""

    name: str
    images: list[Image]
    judge: Judge


@dataclass(frozen=True, eq=False)
class Detector:
    """A detector with its descriptors; none: positions only."""

    detect: Callable[[Image], Features]
    matchers: dict[str, Callable[[Features, Features], Pairs]]


def detectors(most: int) -> dict[str, Detector]:
    """Returns the detectors by name; each gives at most about ``most`` features."""
    by_norm = {
        norm: {
            "mutual, ratio": lambda a, b, n=norm: by_ratio(a, b, n, mutual=True),
            "ratio": lambda a, b, n=norm: by_ratio(a, b, n, mutual=False),
            "cross check": lambda a, b, n=norm: by_cross_check(a, b, n),
        }
        for norm in (cv2.NORM_L2, cv2.NORM_HAMMING)
    }
    root = by_norm[cv2.NORM_L2] | {"ours": match}
    found = {
        "SIFT, spread (ours)": Detector(
            FeatureDetector(most, SolverLimits.full(most).pixels), root
        ),
        "SIFT": Detector(
            plain(cv2.SIFT.create(most, contrastThreshold=CONTRAST), CORNER), {"ours": match}
        ),
        "ORB": Detector(plain(cv2.ORB.create(most), CENTRE), by_norm[cv2.NORM_HAMMING]),
        "GFTT + SIFT": Detector(corners_with_descriptors(most), {"ours": match}),
        "GFTT + KLT": Detector(corners(most), {}),
    }
    if hasattr(cv2, "AKAZE"):  # not in OpenCV 5
        akaze = Detector(plain(cv2.AKAZE.create(), CENTRE), by_norm[cv2.NORM_HAMMING])
        found["AKAZE"] = akaze
    return found


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per data, gap, detector and matcher: means over pairs of images."""
    one_thread()
    for data in all_images(options):
        for name, detector in detectors(options.features).items():
            if name not in options.detectors:
                continue
            detector.detect(data.images[0])  # the first call is slow
            timed = [timed_ms(detector.detect, image) for image in data.images]
            image_ms = float(np.median([ms for ms, _ in timed]))
            found = [features for _, features in timed]
            for gap in GAPS:
                for matcher in detector.matchers or {"KLT": None}:
                    use = detector.matchers.get(matcher)
                    pairs = [
                        of_pair(data, i, k, found, use)
                        for i, k in frame_pairs(len(data.images), gap)
                    ]
                    if pairs:
                        head = {"data": data.name, "gap": gap, "detector": name}
                        row = head | {"matcher": matcher} | means(pairs, KEYS[:-2])
                        pair_ms = float(np.median([p["pair_ms"] for p in pairs]))
                        yield row | {"image_ms": image_ms, "pair_ms": pair_ms}


def of_pair(
    data: Images, i: int, k: int, found: Sequence[Features],
    matcher: Callable[[Features, Features], Pairs] | None,
) -> dict[str, float]:  # fmt: skip
    """Returns the figures of one pair of images."""
    if matcher is None:
        ms, (here, there) = timed_ms(flow, data.images[i], data.images[k], found[i])
    else:
        ms, pairs = timed_ms(matcher, found[i], found[k])
        here, there = found[i].pixel[pairs[:, 0]], found[k].pixel[pairs[:, 1]]
    right, error = data.judge(i, k, here, there)
    known = right & np.isfinite(error)
    return {
        "features": float(len(found[i])), "matches": float(len(here)), "right": float(right.sum()),
        "right_share": float(right.mean()) if len(right) else float("nan"),
        "spread": spread(here[right], data.images[i].shape),
        "error_px": float(np.median(error[known])) if known.any() else float("nan"),
        "pair_ms": ms,
    }  # fmt: skip


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns means over all data, per detector, matcher and gap."""
    groups = dict.fromkeys((r["detector"], r["matcher"], r["gap"]) for r in found)
    return [
        {"detector": d, "matcher": m, "gap": g}
        | means([r for r in found if (r["detector"], r["matcher"], r["gap"]) == (d, m, g)], KEYS)
        for d, m, g in groups
    ]


def all_images(options: argparse.Namespace) -> Iterator[Images]:
    """Yields rendered walks, then the recordings if their folder is given."""
    for name in options.walks:
        for seed in room_seeds(options.rooms):
            camera = room_camera(name, seed, options.size, options.frames)
            walk = as_walk(f"{name} {seed}", camera, list(camera))
            images = [f.image for f in walk.frames]
            yield Images(walk.name, images, by_reprojection(walk.truth))
    if options.data is not None:
        for walk in recordings(options.data):
            images = [f.image for f in walk.frames]
            yield Images(walk.name, images, by_epipolar_geometry(walk.frames))


def by_reprojection(frames: Sequence[Any]) -> Judge:
    """Returns the judge that knows depth and poses: the error of reprojection in the image of the
    second frame."""

    def judge(i: int, k: int, here: Array, there: Array) -> tuple[NDArray[np.bool_], Array]:
        a, b = frames[i], frames[k]
        depth = a.depth[here[:, 1].astype(int), here[:, 0].astype(int)].astype(np.float64)
        rays = np.column_stack((here, np.ones(len(here)))) @ np.linalg.inv(a.K).T
        T = np.linalg.inv(b.T_room_camera) @ a.T_room_camera
        at = ((depth[:, None] * rays) @ T[:3, :3].T + T[:3, 3]) @ b.K.T
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.linalg.norm(at[:, :2] / at[:, 2:] - there, axis=1)
        return error < RIGHT_PX, error

    return judge


def by_epipolar_geometry(frames: Sequence[Frame]) -> Judge:
    """Returns the judge for recordings, whose truth is less exact than features: the matches that
    agree with the essential matrix that MAGSAC finds among them."""
    K = corner_K(projection(frames[0].calibration)[:, :3])

    def judge(i: int, k: int, here: Array, there: Array) -> tuple[NDArray[np.bool_], Array]:
        unknown = np.full(len(here), np.nan)
        if len(here) < 8:
            return np.zeros(len(here), bool), unknown
        _, mask = cv2.findEssentialMat(
            here, there, K, method=cv2.USAC_MAGSAC, prob=0.999, threshold=EPIPOLAR_PX
        )
        right = np.zeros(len(here), bool) if mask is None else mask.ravel() > 0
        return right, unknown

    return judge


def plain(detector: Any, offset: float) -> Callable[[Image], Features]:
    """Returns the features of an OpenCV detector; ``offset``: to the corner rule, pixels."""

    def detect(image: Image) -> Features:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        found, descriptors = detector.detectAndCompute(grey, None)
        return described(grey, found, descriptors, offset)

    return detect


def described(grey: Array, found: Any, descriptors: Any, offset: float) -> Features:
    """Returns OpenCV's features as ours."""
    if not found:
        return Features(grey.shape, np.zeros((0, 2)), np.zeros((0, 128), np.uint8))
    pixel = np.array([k.pt for k in found]) + offset
    return Features(grey.shape, pixel, descriptors.astype(np.uint8))


def corners(most: int) -> Callable[[Image], Features]:
    """Returns corners by Shi and Tomasi, without descriptors."""

    def detect(image: Image) -> Features:
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        found = cv2.goodFeaturesToTrack(grey, most, QUALITY, LEAST_DISTANCE)
        pixel = np.zeros((0, 2)) if found is None else found[:, 0].astype(np.float64) + CENTRE
        return Features(grey.shape, pixel, np.zeros((len(pixel), 0), np.uint8))

    return detect


def corners_with_descriptors(most: int) -> Callable[[Image], Features]:
    """Returns corners with SIFT descriptors of one size, upright."""
    detect_corners, sift = corners(most), cv2.SIFT.create()

    def detect(image: Image) -> Features:
        pixel = detect_corners(image).pixel - CENTRE
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        keypoints = [cv2.KeyPoint(float(x), float(y), 12.0, 0.0) for x, y in pixel]
        return described(grey, *sift.compute(grey, keypoints), CENTRE)

    return detect


def flow(first: Image, second: Image, found: Features) -> tuple[Array, Array]:
    """Returns positions [P, 2] in both images of features that optical flow follows, and that
    return when it runs back."""
    grey = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (first, second)]
    begin = (found.pixel - CENTRE).astype(np.float32)
    if not len(begin):
        return found.pixel, found.pixel
    moved, forth, _ = cv2.calcOpticalFlowPyrLK(grey[0], grey[1], begin, None, **FLOW)
    back, also, _ = cv2.calcOpticalFlowPyrLK(grey[1], grey[0], moved, None, **FLOW)
    near = np.linalg.norm(back - begin, axis=1) < RETURN_PX
    good = near & (forth.ravel() > 0) & (also.ravel() > 0)
    return found.pixel[good], moved[good].astype(np.float64) + CENTRE


def by_ratio(first: Features, second: Features, norm: int, *, mutual: bool) -> Pairs:
    """Returns nearest neighbours that are clearly nearer than the second ones; ``mutual``: and
    are each other's nearest."""
    pairs = _clear(first, second, norm)
    if not mutual or not len(pairs):
        return pairs
    back = {(i, k) for k, i in _nearest(second, first, norm)}
    return np.array([p for p in pairs.tolist() if tuple(p) in back], np.int64).reshape(-1, 2)


def by_cross_check(first: Features, second: Features, norm: int) -> Pairs:
    """Returns features that are each other's nearest."""
    matcher = cv2.BFMatcher(norm, crossCheck=True)
    found = matcher.match(*_descriptors(norm, first, second))
    return np.array([(m.queryIdx, m.trainIdx) for m in found], np.int64).reshape(-1, 2)


def _clear(first: Features, second: Features, norm: int) -> Pairs:
    two = cv2.BFMatcher(norm).knnMatch(*_descriptors(norm, first, second), k=2)
    found = [m[0] for m in two if len(m) == 2 and m[0].distance < RATIO * m[1].distance]
    return np.array([(m.queryIdx, m.trainIdx) for m in found], np.int64).reshape(-1, 2)


def _nearest(first: Features, second: Features, norm: int) -> list[tuple[int, int]]:
    found = cv2.BFMatcher(norm).match(*_descriptors(norm, first, second))
    return [(m.queryIdx, m.trainIdx) for m in found]


def _descriptors(norm: int, *features: Features) -> list[Array]:
    return [f.descriptor if norm == cv2.NORM_HAMMING else f.unit for f in features]


def spread(pixel: Array, shape: tuple[int, ...]) -> float:
    """Returns the share of a grid's cells with a position [P, 2], of an image [H, W, 3]."""
    columns = (pixel[:, 0] * GRID[0] / shape[1]).astype(int)
    lines = (pixel[:, 1] * GRID[1] / shape[0]).astype(int)
    return len(np.unique(lines * GRID[0] + columns)) / (GRID[0] * GRID[1])


def timed_ms(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Returns the milliseconds of a call, and its result."""
    start = time.perf_counter()
    found = function(*arguments)
    return 1e3 * (time.perf_counter() - start), found
