"""Checks of numbers that were read from a file, which may be damaged or crafted."""

from __future__ import annotations

from typing import Any

import numpy as np

from da3_ros.types import Array

MAX_NUMBER = 1e12
MAX_INTEGER = 1 << 30  # of ids: half of int32, so that they can still be added
SKEW = 1e-3  # largest deviation of R R' from identity


def is_rotation(R: Array) -> bool:
    """True for a rotation [3, 3], but for rounding errors; False for NaN."""
    return bool(np.allclose(R @ R.T, np.eye(3), atol=SKEW)) and bool(np.linalg.det(R) > 0)


def is_near(*numbers: Any) -> bool:
    """True if all numbers are finite and credible."""
    return all(bool((np.abs(n) <= MAX_NUMBER).all()) for n in numbers)  # False for NaN


def check(good: bool, what: str) -> None:
    """Raises ValueError, which names what is invalid, unless it is ``good``."""
    if not good:
        raise ValueError(f"{what} is invalid")
