"""What to say when the middleware refuses to join two endpoints: both sides, and the remedy.

Texts from plain data; ``telling_*`` read a node by its methods alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from da3_ros.ros.waiting import Publisher as Endpoint

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import (  # type: ignore[no-redef]
        PublisherEventCallbacks,
        SubscriptionEventCallbacks,
    )

EVERY_S = 10.0


def refused(offer: Endpoint, request: Endpoint) -> list[str]:
    """The policies in which a publisher offers less than a subscription asks for."""
    out = []
    if (offer.reliability, request.reliability) == ("best_effort", "reliable"):
        out.append("reliability")
    if (offer.durability, request.durability) == ("volatile", "transient_local"):
        out.append("durability")
    return out


def unheard_text(topic: str, ours: Endpoint, others: Sequence[Endpoint], remedy: str) -> str:
    """We subscribe and cannot hear a publisher."""
    return _text(topic, "cannot hear", "offers", "we ask for", ours, remedy, [
        (other, refused(other, ours)) for other in others
    ])  # fmt: skip


def unserved_text(topic: str, ours: Endpoint, others: Sequence[Endpoint]) -> str:
    """We publish and a subscription cannot hear us."""
    findings = [(other, refused(ours, other)) for other in others]
    policies = sorted({policy for _, found in findings for policy in found}) or ["POLICY"]
    remedy = "lower that there, or start us with " + " ".join(
        f"-p qos_overrides.{topic}.publisher.{policy}:={_MORE.get(policy, '...')}"
        for policy in policies
    )
    return _text(topic, "cannot serve", "asks for", "we offer", ours, remedy, findings)


_MORE = {"reliability": "reliable", "durability": "transient_local"}


def _text(
    topic: str, what: str, they: str, we: str, ours: Endpoint, remedy: str,
    findings: Sequence[tuple[Endpoint, list[str]]],
) -> str:  # fmt: skip
    unfit = [(other, found) for other, found in findings if found]
    sides = "; ".join(
        f"{other.node} {they} {_side(other)}, {we} {_side(ours)}: {' and '.join(found)} differs"
        for other, found in unfit
    )
    # Deadlines, lifespans and the like: the graph does not say whose.
    return f"{topic}: {what} every peer: {sides or 'their QoS and ours do not fit'}; {remedy}"


def _side(endpoint: Endpoint) -> str:
    return f"{endpoint.reliability} and {endpoint.durability}"


def telling_unheard(node: Any, topic: str, qos: Any, remedy: str) -> SubscriptionEventCallbacks:
    """Event callbacks of a subscription that warn when a publisher does not fit."""

    def warn(event: Any) -> None:
        others = _others(node, node.get_publishers_info_by_topic(topic))
        text = unheard_text(topic, _endpoint("", "", qos), others, remedy)
        node.get_logger().warning(text, throttle_duration_sec=EVERY_S)

    return SubscriptionEventCallbacks(incompatible_qos=warn)


def telling_unserved(node: Any, topic: str, qos: Any) -> PublisherEventCallbacks:
    """Event callbacks of a publisher that warn when a subscription does not fit."""

    def warn(event: Any) -> None:
        others = _others(node, node.get_subscriptions_info_by_topic(topic))
        text = unserved_text(topic, _endpoint("", "", qos), others)
        node.get_logger().warning(text, throttle_duration_sec=EVERY_S)

    return PublisherEventCallbacks(incompatible_qos=warn)


def _others(node: Any, infos: Sequence[Any]) -> list[Endpoint]:
    own = (node.get_name(), node.get_namespace())
    return [
        _endpoint(f"{i.node_namespace.rstrip('/')}/{i.node_name}", i.topic_type, i.qos_profile)
        for i in infos
        if (i.node_name, i.node_namespace) != own
    ]


def _endpoint(node: str, kind: str, qos: Any) -> Endpoint:
    return Endpoint(node, kind, qos.reliability.name.lower(), qos.durability.name.lower())
