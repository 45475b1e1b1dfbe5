"""Scales that are declared rather than measured: none, and a factor that the user knows."""

from __future__ import annotations

from da3_ros.scale_sources.interface import ScaleSource


class NoScale(ScaleSource):
    """Lengths have no unit, but in a saved scene with metres."""

    gives_metres = False

    def why_unknown(self, name: str) -> str:
        return "the scale is unknown"


class FixedFactor(ScaleSource):
    """Metres per unit of the first window."""

    declared_by = "scale.factor"
