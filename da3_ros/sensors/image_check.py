"""Finds images that show nothing: dark, overexposed, blurred, noise, frozen.

Judges each image by itself and by the earlier images of its camera. No network.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import invert_pose
from da3_ros.types import Array, Image

CAUSES = ("dark", "overexposed", "blurred", "noise", "frozen")
Mask = NDArray[np.bool_]

CELLS = (32, 24)  # cells (columns, rows) whose mean grey values are compared
MIN_CONTRAST = 4.0  # grey levels between the darkest and brightest cells of an image with content
EXTREMES = (2, 98)  # percentiles of cells that count as darkest and brightest
DARK, BRIGHT = 50.0, 205.0  # mean grey value of an image without contrast: darker, brighter
BLACK = 8.0  # mean grey value of a cell that shows nothing
WHITE = 250.0
MOST_WHITE = 0.9  # share of white cells above which an image is overexposed
ROWS, LAG = 120, 2  # rows (columns) compared, and pixels between the compared grey values
FAR = 64  # part of the width at which rows and columns are compared too: noise may be in blocks
# Correlation of grey values at LAG without their shading: noise has less, along rows and along
# columns. Noise of a colour sensor has up to 0.12; fine grass and gratings have less along one
# direction only.
MIN_CORRELATION = 0.16
# Contrast of cells, times the number of pixels, over that of smaller ones: 1 to 1.36 for noise; a
# scene has at least 1.5, also a dim one with much noise of the sensor.
MIN_STRUCTURE = 1.45
LOCAL = 5  # cells (rows, columns) whose mean is shading
MIN_PLAIN_CORRELATION = 0.35  # as MIN_CORRELATION, of images too small for cells
# Least deviation of noise over the mean, and over the range of USUAL shading (percentiles of
# cells; a glow in a corner is beyond): lit walls, floors and horizons without texture have less.
NOISE_OF_MEAN, MIN_NOISE, USUAL = 0.07, 0.25, (10, 90)
WHOLE = 0.99  # share of a cell's pixels that count, from which the cell does
MIN_SHARE = 0.12  # of cells that are judged; with fewer, nothing is noise
PART = (1024, 768)  # pixels (columns, rows) in the middle whose correlation counts
PAST = 300  # earlier images of a camera that its images are compared with
LASTING = 150  # images in a row that are worse than those, after which they are the usual ones
FEWEST = 5  # earlier images, below which an image is judged by itself only
# Share of the usual value below which an image is blind, and below which it is suspect.
DETAIL, CONTRAST = (0.1, 0.5), (0.15, 0.4)
# Share of the usual correlation of far pixels below which an image is suspect, and the least usual
# one by which it is judged. Never blind by it: gravel and carpets have as little as noise. Rooms
# and roads have 0.56 to 0.9, noise below 0.1.
FAR_CORRELATION, LEAST_USUAL = 0.5, 0.4
# Newly black share of an image that gets no depth, and that makes the whole image blind.
COVERED, MOSTLY_COVERED = 0.25, 0.6
STILL_RAD, STILL_M = 0.002, 0.002  # motion of a robot that stands, between two frames


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an image shows."""

    blind: str = ""  # one of CAUSES: it shows nothing; empty: it shows something
    suspect: str = ""  # one of CAUSES, if it may show too little
    covered: Mask | None = None  # CELLS (rows, columns) that became black; None: none


CLEAR = Verdict()


@dataclass(frozen=True, eq=False)
class _Measures:
    """Measures of one image; grey values from 0 to 255."""

    mean: float
    contrast: float  # between cells
    detail: float  # variance of the Laplacian over that of the grey values
    is_noise: bool
    far_correlation: float  # of pixels a part of the width away, the smaller of both directions
    cells: Array  # [rows, columns] mean grey values


@dataclass(eq=False)
class _Past:
    """Earlier images of one camera."""

    contrast: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    detail: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    mean: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    far_correlation: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    black: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))  # share of cells
    worse: int = 0  # images in a row that are worse than these
    image: Image | None = None  # the last one
    T_prior_camera: Array | None = None  # [4, 4] of the last image that differed

    def add(self, measures: _Measures, black: float) -> None:
        """Adds an image that is no worse than usual."""
        self.contrast.append(measures.contrast)
        self.detail.append(measures.detail)
        self.mean.append(measures.mean)
        self.far_correlation.append(measures.far_correlation)
        self.black.append(black)
        self.worse = 0

    def note_worse(self) -> None:
        """Notes an image that is worse than usual; if that lasts, nothing is usual any more."""
        self.worse += 1
        if self.worse >= LASTING:
            for values in (
                self.contrast, self.detail, self.mean, self.far_correlation, self.black
            ):  # fmt: skip
                values.clear()
            self.worse = 0

    @property
    def knows(self) -> bool:
        """Whether there are enough images to compare with."""
        return len(self.detail) >= FEWEST


class ImageCheck:
    """Judges the images of several cameras, each in its order. Not thread-safe."""

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def __call__(
        self, camera: str, small: Image, full: Image, valid: Mask | None, T_prior: Array | None
    ) -> Verdict:
        """Returns what the next image of a camera shows.

        small: [h, w, 3], as the network sees it. full: [H, W, 3] at the camera's size. valid:
        [h, w] pixels of ``small`` that count; None: all. T_prior: [4, 4] pose of the camera by
        the robot, metres; None: unknown. With it, equal images of a robot that stands are not
        frozen.
        """
        past = self._past.setdefault(camera, _Past())
        measures = _measure(small, full, valid)
        if blind := _absolute(measures):
            past.image = None
            return Verdict(blind)
        if past.image is not None and np.array_equal(small, past.image):
            if not _stands(past.T_prior_camera, T_prior):
                return Verdict("frozen")
        else:
            past.image, past.T_prior_camera = small, T_prior
        black = measures.cells < BLACK
        share = float(black.mean())
        verdict = self._compared(past, measures, black, small, full, valid)
        if verdict is CLEAR:
            past.add(measures, share)
        else:
            past.note_worse()
        return verdict

    @staticmethod
    def _compared(
        past: _Past, measures: _Measures, black: Mask, small: Image, full: Image,
        valid: Mask | None,
    ) -> Verdict:  # fmt: skip
        """Returns what an image shows, compared with the earlier ones."""
        if not past.knows:
            return CLEAR
        more = float(black.mean()) - float(np.median(past.black))
        if more > MOSTLY_COVERED:
            return Verdict("dark")
        if more <= COVERED:
            return _relative(measures, past)
        seen = ~covered_pixels(black, small.shape)
        measures = _measure(small, full, seen if valid is None else valid & seen)
        rest = _relative(measures, past)
        suspect = "" if rest.blind else rest.suspect or "dark"
        return dataclasses.replace(rest, suspect=suspect, covered=black)


def covered_pixels(cells: Mask, shape: tuple[int, ...]) -> Mask:
    """Returns the mask of the pixels of an image of ``shape`` (h, w, ...) in ``cells``, and in
    the cells around them."""
    grown = cv2.dilate(cells.astype(np.uint8), np.ones((3, 3), np.uint8))
    size = shape[1], shape[0]
    return np.asarray(cv2.resize(grown, size, interpolation=cv2.INTER_NEAREST) > 0)


def _absolute(measures: _Measures) -> str:
    """Returns why an image shows nothing, by itself."""
    if float((measures.cells > WHITE).mean()) > MOST_WHITE:
        return "overexposed"
    if measures.contrast < MIN_CONTRAST:
        if measures.mean < DARK:
            return "dark"
        return "overexposed" if measures.mean > BRIGHT else "blurred"
    return "noise" if measures.is_noise else ""


def _relative(measures: _Measures, past: _Past) -> Verdict:
    """Returns why an image shows nothing, or less than the earlier ones."""
    detail = measures.detail / (float(np.median(past.detail)) + 1e-9)
    contrast = measures.contrast / float(np.median(past.contrast))
    darker = measures.mean < float(np.median(past.mean))
    faded = "dark" if darker else "overexposed"
    if detail < DETAIL[0]:
        return Verdict("blurred")
    if contrast < CONTRAST[0]:
        return Verdict(faded)
    if detail < DETAIL[1]:
        return Verdict(suspect="blurred")
    if contrast < CONTRAST[1]:
        return Verdict(suspect=faded)
    far, usual = measures.far_correlation, float(np.median(past.far_correlation))
    noisy = usual >= LEAST_USUAL and far < FAR_CORRELATION * usual
    return Verdict(suspect="noise") if noisy else CLEAR


def _measure(small: Image, full: Image, valid: Mask | None) -> _Measures:
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float32)
    if valid is not None and not valid.all():
        grey[~valid] = grey[valid].mean() if valid.any() else 0.0
    cells = cv2.resize(grey, CELLS, interpolation=cv2.INTER_AREA)
    low, high = np.percentile(cells, EXTREMES)
    laplacian = cv2.Laplacian(cv2.resize(grey, None, fx=0.5, fy=0.5,
                                         interpolation=cv2.INTER_AREA), cv2.CV_32F)  # fmt: skip
    far = max(LAG, round(grey.shape[1] / FAR))
    return _Measures(
        mean=float(grey.mean()),
        contrast=float(high - low),
        detail=float(laplacian.var() / (grey.var() + 1.0)),
        is_noise=_is_noise(full, valid),
        far_correlation=min(
            _correlation(grey[:: _stride(grey.shape[0])], far),
            _correlation(grey.T[:: _stride(grey.shape[1])], far),
        ),
        cells=cells,
    )


def _is_noise(image: Image, valid: Mask | None) -> bool:
    """Whether an image [H, W, 3] shows a sensor's noise, shaded or not: what remains without
    shading and bands is strong, and neither neighbouring pixels nor cells of it are alike.

    valid: [h, w] pixels, of the image at any size, that count; None: all.
    """
    values = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    (h, w), (columns, rows) = values.shape, CELLS
    if valid is not None:
        valid = None if valid.all() else _resized(valid, (h, w))
    if w < 4 * columns or h < 4 * rows:
        grey = values.astype(np.float32)
        rest = _counted(grey - _mean(grey, valid), valid)
        is_strong = _deviation(rest, valid) > NOISE_OF_MEAN * _mean(grey, valid).item()
        return is_strong and _near_correlation(rest) < MIN_PLAIN_CORRELATION
    structure, share = _structure(values, valid)
    # The fewer cells there are, the more likely a scene has as little structure as noise.
    if share < MIN_SHARE or structure >= 1 + (MIN_STRUCTURE - 1) * share:
        return False
    top, left = max(0, (h - PART[1]) // 2), max(0, (w - PART[0]) // 2)
    part = slice(top, top + PART[1]), slice(left, left + PART[0])
    grey = values[part].astype(np.float32)
    shading = cv2.resize(grey, CELLS, interpolation=cv2.INTER_AREA)
    rest, usual, inner = grey - cv2.resize(shading, grey.shape[::-1]), shading.reshape(-1), None
    if valid is None:
        rest = _without_bands(rest, None)
    else:
        whole = _whole_cells(valid[part])
        cells = _inner(whole)
        inner, usual = _resized(cells, grey.shape), shading[cells]
        rest = _counted(_without_bands(rest, _resized(whole, grey.shape)), inner)
    if not len(usual):
        return False
    low, high = np.percentile(usual, USUAL)
    least = max(NOISE_OF_MEAN * float(usual.mean()), MIN_NOISE * float(high - low))
    return _deviation(rest, inner) > least and _near_correlation(rest) < MIN_CORRELATION


def _deviation(rest: Array, valid: Mask | None) -> float:
    """Returns the standard deviation of grey values whose mean is 0."""
    return float(_mean(rest**2, valid).item() ** 0.5)


def _structure(values: Array, valid: Mask | None) -> tuple[float, float]:
    """Returns how much more the cells of grey values [H, W] differ from those around them than
    noise would: the variance of CELLS over that of cells of a quarter of their area, times four.
    Also the share of the cells of which that is known.

    The variance of a mean of noise is inverse to the number of pixels, also if close ones are
    correlated, as by demosaicing. valid: [H, W] pixels that count; None: all. Only
    cells whose neighbours count are judged; infinite if there are none.
    """
    size = 2 * CELLS[0], 2 * CELLS[1]
    whole = None if valid is None else _whole_cells(valid)
    counts = np.ones(CELLS[::-1], np.bool_) if whole is None else _inner(whole)
    counts[[0, -1]] = counts[:, [0, -1]] = False
    share = float(counts[1:-1, 1:-1].mean())
    if share == 0.0:
        return np.inf, 0.0
    counts_fine = _resized(counts, size[::-1])
    while values.shape[1] >= 8 * size[0] and values.shape[0] >= 8 * size[1]:  # halving is fast
        values = cv2.resize(values, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    fine = cv2.resize(values.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    fine = _without_bands(fine, None if whole is None else _resized(whole, fine.shape))
    cells = cv2.resize(fine, CELLS, interpolation=cv2.INTER_AREA)
    shading = cv2.blur(cells, (LOCAL, LOCAL), borderType=cv2.BORDER_REFLECT)
    inner = (cells - shading)[counts]
    inner_fine = (fine - cv2.resize(shading, size))[counts_fine]
    return float(4.0 * (inner**2).mean() / ((inner_fine**2).mean() + 1e-9)), share


def _whole_cells(valid: Mask) -> Mask:
    """Returns which of CELLS (rows, columns) count: those whose pixels do."""
    share = cv2.resize(valid.astype(np.float32), CELLS, interpolation=cv2.INTER_AREA)
    return np.asarray(share > WHOLE)


def _inner(cells: Mask) -> Mask:
    """Returns the cells whose shading is known: those around them count too."""
    around = np.ones((LOCAL, LOCAL), np.uint8)
    return np.asarray(cv2.erode(cells.astype(np.uint8), around) > 0)


def _resized(mask: Mask, shape: tuple[int, ...]) -> Mask:
    size = shape[1], shape[0]
    return np.asarray(cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0)


def _without_bands(grey: Array, valid: Mask | None) -> Array:
    """Returns grey values without offsets of rows and columns; 0 where they do not count."""
    grey = grey - _mean(grey, valid, axis=0)
    grey = grey - _mean(grey, valid, axis=1)
    return _counted(grey, valid)


def _counted(grey: Array, valid: Mask | None) -> Array:
    """Returns grey values; 0 where they do not count."""
    return grey if valid is None else np.where(valid, grey, np.float32(0))


def _mean(grey: Array, valid: Mask | None, axis: int | None = None) -> Array:
    """Returns the mean of the grey values that count, 0 if there are none; keeps dimensions."""
    if valid is None:
        return grey.mean(axis=axis, keepdims=True)
    number = valid.sum(axis=axis, keepdims=True)
    return _counted(grey, valid).sum(axis=axis, keepdims=True) / np.maximum(number, 1).astype("f4")


def _near_correlation(grey: Array) -> float:
    """Returns the correlation of grey values at LAG, the larger of both directions."""
    rows, columns = grey[:: _stride(grey.shape[0])], grey.T[:: _stride(grey.shape[1])]
    return max(_correlation(rows, LAG), _correlation(columns, LAG))


def _stride(length: int) -> int:
    """Returns the stride that takes about ROWS of this many rows."""
    return max(1, length // ROWS)


def _correlation(rows: Array, lag: int) -> float:
    """Returns the correlation of grey values [N, n] at a distance of ``lag`` along the rows; 1 if
    these are too short."""
    if rows.shape[1] <= lag:
        return 1.0
    rows = rows - rows.mean()
    return float((rows[:, lag:] * rows[:, :-lag]).mean() / ((rows**2).mean() + 1e-9))


def _stands(before: Array | None, now: Array | None) -> bool:
    """Whether a robot has hardly moved between two poses [4, 4], metres; None: unknown."""
    if before is None or now is None:
        return False
    T = invert_pose(before) @ now
    if not np.isfinite(T).all():
        return False
    turned = float(Rotation.from_matrix(T[:3, :3]).magnitude())
    return turned < STILL_RAD and float(np.linalg.norm(T[:3, 3])) < STILL_M
