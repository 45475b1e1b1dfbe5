"""Which QoS of a publisher and a subscription do not fit: the middleware's own rule."""

from __future__ import annotations

from typing import Protocol


class Endpoint(Protocol):
    """One side of a topic; ``unknown`` where discovery does not tell."""

    @property
    def reliability(self) -> str:
        """``reliable``, ``best_effort`` or ``unknown``."""

    @property
    def durability(self) -> str:
        """``volatile``, ``transient_local`` or ``unknown``."""


def refused_policies(offer: Endpoint, request: Endpoint) -> list[str]:
    """The policies in which a publisher offers less than a subscription requests."""
    out = []
    if (offer.reliability, request.reliability) == ("best_effort", "reliable"):
        out.append("reliability")
    if (offer.durability, request.durability) == ("volatile", "transient_local"):
        out.append("durability")
    return out
