"""Which component and which scene each submap is in, of scenes that are merged."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from da3_ros.merging.inputs import InputScene


class JoinedComponents:
    """Which component and which scene a submap is in, by its id."""

    def __init__(self, inputs: Sequence[InputScene]) -> None:
        self.inputs = inputs
        self._first_of_scene = [one.first_submap for one in inputs]
        submaps = sorted((s.id, s.component) for one in inputs for s in one.submaps)
        self._ids = [id for id, _ in submaps]
        self._components = [component for _, component in submaps]
        self.all = sorted(set(self._components))

    def scene(self, submap: int) -> int:
        """Returns the index of the scene that a submap is in."""
        return bisect_right(self._first_of_scene, submap) - 1

    def scene_of_component(self, component: int) -> int:
        """Returns the index of the scene that a component is in."""
        return bisect_right([one.first_component for one in self.inputs], component) - 1

    def component(self, submap: int) -> int:
        """Returns the component that a submap is in, also of one that is no longer in the map."""
        at = max(bisect_right(self._ids, submap) - 1, 0)
        if self.scene(self._ids[at]) != self.scene(submap):
            at += 1  # older than all that its scene still has
        return self._components[at]

    def is_metric(self, component: int) -> bool:
        """Whether a component's lengths were metres in its own scene."""
        return self.inputs[self.scene_of_component(component)].saved.metric
