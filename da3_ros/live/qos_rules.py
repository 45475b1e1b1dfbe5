"""The middleware's rule for incompatible QoS of a publisher and a subscription."""

from __future__ import annotations

from typing import Protocol


class Endpoint(Protocol):
    """QoS of one side of a topic; ``unknown`` if discovery does not report it."""

    @property
    def reliability(self) -> str:
        """``reliable``, ``best_effort`` or ``unknown``."""

    @property
    def durability(self) -> str:
        """``volatile``, ``transient_local`` or ``unknown``."""


def incompatible_policies(offer: Endpoint, request: Endpoint) -> list[str]:
    """Returns the policies in which a publisher offers less than a subscription requests."""
    out = []
    if (offer.reliability, request.reliability) == ("best_effort", "reliable"):
        out.append("reliability")
    if (offer.durability, request.durability) == ("volatile", "transient_local"):
        out.append("durability")
    return out
