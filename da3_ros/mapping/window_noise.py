"""What a window is off by, learned from how far its shared views disagree with its fit.

Kinds of noise: of a view alone (log scale, rotation, place), and errors of rotation and place that
grow along the window, as where its poses bend. What a fit leaves is linear in the noise, so the
covariance expected of it is linear in the variances of the kinds: sums over windows of what was
expected and what was found give the variances (method of moments). Knows numbers only.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.optimize import nnls

from da3_ros.types import Array

SIZE = 7  # numbers of an error: log scale, rotation, place
SCALE, ROTATION, PLACE = slice(0, 1), slice(1, 4), slice(4, 7)
_KINDS = ((SCALE, False), (ROTATION, False), (PLACE, False), (ROTATION, True), (PLACE, True))
KINDS = len(_KINDS)
FADE = 0.98  # of a window's share in what is learned, per later window
PRIOR_WINDOWS = 1.0  # that the noise known beforehand is worth
MOST_VIEWS = 8  # of a window that are compared
OUTLIER = 9.0  # times what is expected: the most that one window may teach


class WindowNoise:
    """Variances of all kinds of noise of one stream."""

    PRIOR = np.array([0.01, 0.005, 0.01, 0.0025, 0.005]) ** 2
    FLOOR = 1e-12

    def __init__(self) -> None:
        self.variances = self.PRIOR  # [5]; of places over the squared depth
        self._expected = np.zeros((KINDS, KINDS))  # of each form, per unit of each kind
        self._found = np.zeros(KINDS)

    def add(self, residuals: Array, fitted: Array, doubt: Array, depth: float) -> None:
        """Take what a fit left of its shared views; of many, an even choice.

        residuals: [S, 7], 0 where nothing was measured. fitted: [7 S, 7 S] by how much the fit
        follows errors of scene and window. doubt: [5, 7 S, 7 S] covariance of those errors, per
        unit of each kind.
        """
        count = min(len(residuals), MOST_VIEWS)
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
        said = np.einsum("fij,kij->fk", forms, R @ doubt @ R.T)
        found = np.einsum("fij,i,j->f", forms, values, values)
        if not self._expected.any():
            self._expected, self._found = PRIOR_WINDOWS * said, PRIOR_WINDOWS * said @ self.PRIOR
        most = OUTLIER * (said @ self.variances) + self.FLOOR
        self._expected = FADE * self._expected + said
        self._found = FADE * self._found + np.minimum(found, most)
        self.variances = np.maximum(self._solved(), self.FLOOR)

    def _solved(self) -> Array:
        """Variances that explain the sums best; none below zero."""
        size = np.maximum(self._found, 1e-30)  # every form counts alike
        design = self._expected * self.PRIOR / size[:, None]
        try:
            return np.asarray(nnls(design, self._found / size)[0] * self.PRIOR)
        except RuntimeError:  # no solution within its steps: what is known stays
            return self.variances


def window_covariance(views: int, depth: float) -> Array:
    """Covariance [5, 7 N, 7 N] of what a window says of its views, per unit of each kind."""
    along = np.linspace(0, 1, views)
    out = []
    for part, grows in _KINDS:
        one = np.zeros(SIZE)
        one[part] = depth**2 if part == PLACE else 1.0
        out.append(np.kron(np.outer(along, along) if grows else np.eye(views), np.diag(one)))
    return np.stack(out)


@functools.lru_cache(maxsize=64)
def _forms(views: int) -> Array:
    """[5, 7 S, 7 S] quadratic forms of residuals, one per kind: sums of squares, and squared
    slopes along the window."""
    away = np.linspace(-1, 1, views)
    slope = np.outer(away, away) / float(away @ away)
    out = []
    for part, grows in _KINDS:
        one = np.zeros(SIZE)
        one[part] = 1.0
        out.append(np.kron(slope if grows else np.eye(views), np.diag(one)))
    return np.stack(out)
