"""The search for the camera's place in the map: how long it took, and where a user says it is."""

from __future__ import annotations

import math
import time

from da3_ros.mapping.place_hint import PlaceHint

HINT_S = 30.0  # a camera that was not found is elsewhere by then


class PlaceSearch:
    """The search for the place of new frames. Not thread-safe."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begins in another scene."""
        self._hint: PlaceHint | None = None
        self._hint_ends = -math.inf
        self._begin_ns: int | None = None
        self.seconds = math.nan  # of the current or last search, by stamps; NaN: there was none

    @property
    def hint(self) -> PlaceHint | None:
        """Where the camera may be, in the map; None: anywhere."""
        return self._hint if time.monotonic() < self._hint_ends else None

    def narrow(self, hint: PlaceHint) -> None:
        """Looks near a place first, for ``HINT_S``."""
        self._hint, self._hint_ends = hint, time.monotonic() + HINT_S

    def add(self, stamp_ns: int, *, known: bool) -> None:
        """Adds a frame, and whether its place in the map is known."""
        if known and self._begin_ns is None:
            return
        if self._begin_ns is None or stamp_ns < self._begin_ns:
            self._begin_ns = stamp_ns
        self.seconds = (stamp_ns - self._begin_ns) / 1e9
        if known:
            self._begin_ns = self._hint = None
