"""Publishers and subscriptions with QoS that the user can override, and warnings about
incompatible QoS that name both sides and the remedy.

Only ``Endpoints`` uses a node; the texts are made from plain data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rclpy.exceptions import ParameterException
from rclpy.qos import QoSPolicyKind, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions

from da3_ros.live.log_throttle import Throttle
from da3_ros.live.missing_input_hints import RemotePublisher as Endpoint
from da3_ros.live.qos_rules import incompatible_policies
from da3_ros.parameter_schema import ConfigError

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import (
        PublisherEventCallbacks,
        SubscriptionEventCallbacks,
    )

EVERY_S = 10.0  # least seconds between two warnings about one topic
ATTEMPTS = 4  # graph queries before a warning goes out without the peer's name
UNNAMED = "a node of unknown name"
# rclpy's defaults, and durability, which a latched topic needs.
OVERRIDABLE = (
    QoSPolicyKind.HISTORY,
    QoSPolicyKind.DEPTH,
    QoSPolicyKind.RELIABILITY,
    QoSPolicyKind.DURABILITY,
)
_COMPARED = ("reliability", "durability")
_MORE = {"reliability": "reliable", "durability": "transient_local"}
_LESS = {"reliability": "best_effort", "durability": "volatile"}


def incompatible_publishers_text(
    topic: str,
    own: Endpoint,
    others: Sequence[Endpoint],
    remedy: str = "",
    policies: Iterable[str] = (),
) -> str:
    """Returns a warning about publishers that this node's subscription cannot receive from.

    ``policies``: further policies that the middleware's event named.
    """
    findings = [(other, incompatible_policies(other, own)) for other in others]
    remedy = remedy or _remedy(topic, "subscription", "raise it there", _LESS, findings)
    what = "cannot receive from every publisher"
    return _text(topic, what, "offers", "this node requests", own, remedy, findings, policies)


def incompatible_subscribers_text(
    topic: str, own: Endpoint, others: Sequence[Endpoint], policies: Iterable[str] = ()
) -> str:
    """Returns a warning about subscriptions that this node's publisher cannot deliver to.

    ``policies``: further policies that the middleware's event named.
    """
    findings = [(other, incompatible_policies(own, other)) for other in others]
    remedy = _remedy(topic, "publisher", "lower it there", _MORE, findings)
    what = "cannot deliver to every subscriber"
    return _text(topic, what, "requests", "this node offers", own, remedy, findings, policies)


Findings = Sequence[tuple[Endpoint, list[str]]]


def _remedy(topic: str, side: str, there: str, values: dict[str, str], findings: Findings) -> str:
    policies = sorted({policy for _, found in findings for policy in found})
    arguments = [f"-p qos_overrides.{topic}.{side}.{p}:={values[p]}" for p in policies]
    return there + (f", or start this node with {' '.join(arguments)}" if arguments else "")


def _text(
    topic: str, what: str, other_verb: str, own_verb: str, own: Endpoint, remedy: str,
    findings: Findings, policies: Iterable[str],
) -> str:  # fmt: skip
    incompatible = [(other, found) for other, found in findings if found]
    sides = "; ".join(
        f"{other.node} {other_verb} {_side(other)}, {own_verb} {_side(own)}: "
        f"incompatible {' and '.join(found)}"
        for other, found in incompatible
    )
    # For deadline, lifespan and the like the graph does not tell which peer is incompatible.
    named = " and ".join(sorted(policies)) or "QoS"
    return f"{topic}: {what}: {sides or f'incompatible {named}'}; {remedy}"


def _side(endpoint: Endpoint) -> str:
    return f"{endpoint.reliability} and {endpoint.durability}"


class Incompatibility:
    """Incompatible peers of one endpoint of this node, and the warning about them.

    The middleware's event comes before discovery knows the peer's name. So the event is only
    recorded; ``text`` queries the graph later, several times while names are missing.
    """

    def __init__(
        self,
        peers: Callable[[], Sequence[Endpoint]],
        incompatible: Callable[[Endpoint], list[str]],
        text: Callable[[Sequence[Endpoint], Iterable[str]], str],
    ) -> None:
        """peers: returns the endpoints of other nodes on the topic.

        incompatible: returns the incompatible policies of a peer. text: makes the warning from
        peers and other policies.
        """
        self._peers, self._incompatible, self._text = peers, incompatible, text
        self._attempts = 0  # graph queries left; 0: no event is recorded
        self._policies: set[str] = set()  # named by events and not visible in the graph

    def record(self, policy: str = "") -> None:
        """Record that the middleware rejected a peer because of ``policy``."""
        self._attempts = self._attempts or ATTEMPTS
        if policy and policy not in _COMPARED:
            self._policies.add(policy)

    @property
    def pending(self) -> bool:
        """True if an event is recorded and not yet reported."""
        return self._attempts > 0

    def text(self) -> str:
        """Returns the warning once names are known or attempts are used up, else an empty text."""
        peers = list(self._peers())
        incompatible = [peer for peer in peers if self._incompatible(peer)]
        named = all(peer.node != UNNAMED for peer in incompatible)
        self._attempts -= 1
        if self._attempts and not (incompatible and named):
            return ""
        policies, self._policies = self._policies, set()
        self._attempts = 0
        # If neither holds, the peer is gone again.
        return self._text(peers, policies) if incompatible or (peers and policies) else ""


class Endpoints:
    """Creates a node's publishers and subscriptions, and warns about peers of incompatible QoS."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._incompatibilities: dict[tuple[str, str], Incompatibility] = {}
        self._throttle = Throttle()

    def subscribe(
        self,
        kind: type,
        topic: str,
        callback: Callable[..., None],
        qos: Any,
        *,
        remedy: str = "",
        overridable: Sequence[QoSPolicyKind] = OVERRIDABLE,
    ) -> Any:
        """Create a subscription; ``qos`` receives the user's overrides. Raises ConfigError."""
        node, name = self._node, self._node.resolve_topic_name(topic)
        # The profile is read when a warning is made: rclpy writes the overrides into it.
        incompatibility = Incompatibility(
            lambda: _others(node, node.get_publishers_info_by_topic(name)),
            lambda peer: incompatible_policies(peer, _own(qos)),
            lambda peers, policies: incompatible_publishers_text(
                name, _own(qos), peers, remedy, policies
            ),
        )
        with _named(f"qos_overrides.{name}.subscription"):
            subscription = node.create_subscription(
                kind,
                topic,
                callback,
                qos,
                event_callbacks=SubscriptionEventCallbacks(
                    incompatible_qos=functools.partial(_note, incompatibility)
                ),
                qos_overriding_options=QoSOverridingOptions(overridable),
            )
        self._incompatibilities[name, "subscription"] = incompatibility
        return subscription

    def advertise(self, kind: type, topic: str, qos: Any) -> Any:
        """Create a publisher; ``qos`` receives the user's overrides. Raises ConfigError."""
        node, name = self._node, self._node.resolve_topic_name(topic)
        incompatibility = Incompatibility(
            lambda: _others(node, node.get_subscriptions_info_by_topic(name)),
            lambda peer: incompatible_policies(_own(qos), peer),
            lambda peers, policies: incompatible_subscribers_text(
                name, _own(qos), peers, policies
            ),
        )
        with _named(f"qos_overrides.{name}.publisher"):
            publisher = node.create_publisher(
                kind,
                topic,
                qos,
                event_callbacks=PublisherEventCallbacks(
                    incompatible_qos=functools.partial(_note, incompatibility)
                ),
                qos_overriding_options=QoSOverridingOptions(OVERRIDABLE),
            )
        self._incompatibilities[name, "publisher"] = incompatibility
        return publisher

    def drop_subscription(self, subscription: Any) -> None:
        """Destroy a subscription and its pending warnings."""
        self._incompatibilities.pop((subscription.topic_name, "subscription"), None)
        self._node.destroy_subscription(subscription)

    def drop_publisher(self, publisher: Any) -> None:
        """Destroy a publisher and its pending warnings."""
        self._incompatibilities.pop((publisher.topic_name, "publisher"), None)
        self._node.destroy_publisher(publisher)

    def warnings(self, now_s: float) -> list[str]:
        """Returns the warnings that are due; call this about once per second, on steady time."""
        texts = []
        for (topic, side), incompatibility in list(self._incompatibilities.items()):
            key = f"{topic} {side}"
            if incompatibility.pending and self._throttle.ready(key, EVERY_S, now_s):
                text = incompatibility.text()
                if text:
                    self._throttle.due(key, EVERY_S, now_s)
                    texts.append(text)
        return texts


@contextmanager
def _named(override: str) -> Iterator[None]:
    """Turns whatever rclpy raises for a wrong override into a ConfigError that names it."""
    try:
        yield
    except (RuntimeError, AssertionError, TypeError, ValueError, ParameterException) as error:
        raise ConfigError(f"{override}: {error or 'wrong type of value'}") from error


def _note(incompatibility: Incompatibility, event: Any) -> None:
    incompatibility.record(qos_policy_name_from_kind(event.last_policy_kind).lower())


def _others(node: Any, infos: Sequence[Any]) -> list[Endpoint]:
    own = (node.get_name(), node.get_namespace())
    return [
        _endpoint(_name(i), i.topic_type, i.qos_profile)
        for i in infos
        if (i.node_name, i.node_namespace) != own
    ]


def _name(info: Any) -> str:
    if not info.node_name or info.node_name.startswith("_NODE_NAME_UNKNOWN"):
        return UNNAMED
    return f"{info.node_namespace.rstrip('/')}/{info.node_name}"


def _own(qos: Any) -> Endpoint:
    return _endpoint("", "", qos)


def _endpoint(node: str, kind: str, qos: Any) -> Endpoint:
    return Endpoint(node, kind, qos.reliability.name.lower(), qos.durability.name.lower())
