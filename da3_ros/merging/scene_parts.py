"""Which part and which scene each submap is in, of scenes that are merged."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from da3_ros.merging.inputs import InputScene


class JoinedParts:
    """Which part and which scene a submap is in, by its id."""

    def __init__(self, inputs: Sequence[InputScene]) -> None:
        self.inputs = inputs
        self._first_of_scene = [one.first_submap for one in inputs]
        submaps = sorted((s.id, s.part) for one in inputs for s in one.submaps)
        self._ids = [id for id, _ in submaps]
        self._parts = [part for _, part in submaps]
        self.all = sorted(set(self._parts))

    def scene(self, submap: int) -> int:
        """Returns the index of the scene that a submap is in."""
        return bisect_right(self._first_of_scene, submap) - 1

    def scene_of_part(self, part: int) -> int:
        """Returns the index of the scene that a part is in."""
        return bisect_right([one.first_part for one in self.inputs], part) - 1

    def part(self, submap: int) -> int:
        """Returns the part that a submap is in, also of one that is no longer in the map."""
        at = max(bisect_right(self._ids, submap) - 1, 0)
        if self.scene(self._ids[at]) != self.scene(submap):
            at += 1  # older than all that its scene still has
        return self._parts[at]

    def is_metric(self, part: int) -> bool:
        """Whether a part's lengths were metres in its own scene."""
        return self.inputs[self.scene_of_part(part)].saved.metric
