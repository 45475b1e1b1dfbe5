"""The parts of a scene: runs of submaps whose places relative to each other are measured."""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_right
from collections.abc import Iterable

from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.submap_spill import Submap

log = logging.getLogger(__name__)


class SceneParts:
    """The part of new frames, and of each submap, also of those that were removed."""

    def __init__(self) -> None:
        self.current = REFERENCE  # of new frames
        self._begins: list[tuple[int, int]] = []  # (first submap, part) of each run of one part

    @property
    def place_known(self) -> bool:
        """Whether the place of new frames in the map is known."""
        return self.current == REFERENCE

    def note(self, submap: Submap) -> None:
        """Adds a submap, the newest one."""
        if not self._begins or self._begins[-1][1] != submap.part:
            self._begins.append((submap.id, submap.part))

    def begin_guessed(self) -> None:
        """Marks the first part as guessed: the map's frame is older than the scene."""
        self.current = REFERENCE + 1

    def begin(self, submaps: Iterable[Submap]) -> None:
        """Begins a new part for new frames, unless none of the ``submaps`` is in the current one;
        its number was never used: loops may refer to submaps that were removed."""
        if any(s.part == self.current for s in submaps):
            self.current = 1 + max(self.current, *(part for _, part in self._begins))

    def begin_after(self, submaps: Iterable[Submap]) -> None:
        """Begins a new part after the ``submaps`` of a loaded scene."""
        self.current = 1 + max((s.part for s in submaps), default=REFERENCE - 1)

    def merge(self, tied: Iterable[tuple[int, int]], submaps: Iterable[Submap]) -> bool:
        """Merges the parts of pairs of submaps that loops connect; the older part remains.
        Returns whether there were such parts."""
        submaps, changed = list(submaps), False
        for pair in tied:
            older, newer = sorted(map(self._of, pair))
            if older == newer:
                continue
            log.info("part %d of the scene was joined to part %d by a loop", newer, older)
            changed = True
            for submap in submaps:
                submap.part = older if submap.part == newer else submap.part
            begins = [(id, older if p == newer else p) for id, p in self._begins]
            changes = [True, *(a[1] != b[1] for a, b in itertools.pairwise(begins))]
            self._begins = list(itertools.compress(begins, changes))
            self.current = older if self.current == newer else self.current
        return changed

    def forget(self, first: int, last: int) -> None:
        """Forgets the submaps from ``first`` to before ``last``: no loop refers to them."""
        part = self._of(last)
        kept = [b for b in self._begins if not first <= b[0] <= last]
        at = sum(id < first for id, _ in kept)
        self._begins = [*kept[:at], (last, part), *kept[at:]]

    def _of(self, submap: int) -> int:
        """Returns the part of a submap by its id."""
        at = bisect_right(self._begins, submap, key=lambda begin: begin[0])
        return self._begins[at - 1][1] if at else REFERENCE
