"""The noise of a window, learned from the residuals of its overlap views after the fit.

Kinds of noise: independent noise of each view (log scale, rotation, position), and errors of
rotation and position that grow along the window, as when its poses bend. Residuals are linear in
the noise, so their expected covariance is linear in the variances of the kinds: sums over windows
of expected and found values give the variances (method of moments).
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.optimize import nnls

from da3_ros.types import Array

SIZE = 7  # components of an error: log scale, rotation, position
SCALE, ROTATION, PLACE = slice(0, 1), slice(1, 4), slice(4, 7)
_KINDS = ((SCALE, False), (ROTATION, False), (PLACE, False), (ROTATION, True), (PLACE, True))
KINDS = len(_KINDS)
FADE = 0.98  # factor on a window's weight per later window
PRIOR_WINDOWS = 1.0  # weight of the prior noise, in windows
MAX_VIEWS = 8  # views of a window that are compared
OUTLIER = 9.0  # limit of one window's contribution over its expected value


class WindowNoise:
    """Variances of all kinds of noise of one stream."""

    PRIOR = np.array([0.01, 0.005, 0.01, 0.0025, 0.005]) ** 2
    FLOOR = 1e-12

    def __init__(self) -> None:
        self.variances = self.PRIOR  # [5]; those of positions over the squared depth
        self._expected = np.zeros((KINDS, KINDS))  # value of each form per unit of each kind
        self._found = np.zeros(KINDS)

    def add(self, residuals: Array, fitted: Array, covariance: Array, depth: float) -> None:
        """Learns from the residuals of a window's overlap views; of many, from an even choice.

        residuals: [S, 7], 0 where nothing was measured. fitted: [7 S, 7 S] derivative of the
        fitted values by the errors of scene and window. covariance: [5, 7 S, 7 S] of those errors,
        per unit of each kind.
        """
        count = min(len(residuals), MAX_VIEWS)
        if count < 2:
            return
        chosen = np.linspace(0, len(residuals) - 1, count).round().astype(int)
        rows = (SIZE * chosen[:, None] + np.arange(SIZE)).ravel()
        scale = np.tile([1, 1, 1, 1, *[1 / depth] * 3], count)
        values = scale * residuals[chosen].ravel()
        if not np.isfinite(values).all():
            return
        R = -fitted[rows]
        R[np.arange(len(rows)), rows] += 1
        R = np.where((values != 0)[:, None], scale[:, None] * R, 0.0)
        forms = _forms(count)
        expected = np.einsum("fij,kij->fk", forms, R @ covariance @ R.T)
        found = np.einsum("fij,i,j->f", forms, values, values)
        if not self._expected.any():
            self._expected, self._found = (
                PRIOR_WINDOWS * expected,
                PRIOR_WINDOWS * expected @ self.PRIOR,
            )
        most = OUTLIER * (expected @ self.variances) + self.FLOOR
        self._expected = FADE * self._expected + expected
        self._found = FADE * self._found + np.minimum(found, most)
        self.variances = np.maximum(self._solved(), self.FLOOR)

    def _solved(self) -> Array:
        """Returns the non-negative variances that explain the sums best."""
        size = np.maximum(self._found, 1e-30)  # every form counts alike
        design = self._expected * self.PRIOR / size[:, None]
        try:
            return np.asarray(nnls(design, self._found / size)[0] * self.PRIOR)
        except RuntimeError:  # no solution within the allowed iterations
            return self.variances


def window_covariance(views: int, depth: float) -> Array:
    """Returns the covariance [5, 7 N, 7 N] of a window's measurements, per unit of each kind."""
    along = np.linspace(0, 1, views)
    out = []
    for part, grows in _KINDS:
        one = np.zeros(SIZE)
        one[part] = depth**2 if part == PLACE else 1.0
        out.append(np.kron(np.outer(along, along) if grows else np.eye(views), np.diag(one)))
    return np.stack(out)


@functools.lru_cache(maxsize=64)
def _forms(views: int) -> Array:
    """Returns quadratic forms [5, 7 S, 7 S] of residuals, one per kind: sums of squares, and
    squared slopes along the window."""
    away = np.linspace(-1, 1, views)
    slope = np.outer(away, away) / float(away @ away)
    out = []
    for part, grows in _KINDS:
        one = np.zeros(SIZE)
        one[part] = 1.0
        out.append(np.kron(slope if grows else np.eye(views), np.diag(one)))
    return np.stack(out)
