"""Publishers and subscriptions whose QoS the user can override, and what to say when the
middleware refuses to join one to a peer: both sides, and the remedy.

Texts from plain data; only ``Endpoints`` knows a node.
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
from da3_ros.live.missing_input_hints import Publisher as Endpoint
from da3_ros.live.qos_rules import refused_policies
from da3_ros.parameter_schema import ConfigError

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import (
        PublisherEventCallbacks,
        SubscriptionEventCallbacks,
    )

EVERY_S = 10.0  # per topic
LOOKS = 4  # at the graph, before a peer may stay without a name
UNNAMED = "a node whose name is not known yet"
# rclpy's default ones, and the one that a latched topic needs.
OVERRIDABLE = (
    QoSPolicyKind.HISTORY,
    QoSPolicyKind.DEPTH,
    QoSPolicyKind.RELIABILITY,
    QoSPolicyKind.DURABILITY,
)
_COMPARED = ("reliability", "durability")
_MORE = {"reliability": "reliable", "durability": "transient_local"}
_LESS = {"reliability": "best_effort", "durability": "volatile"}


def unheard_text(
    topic: str,
    ours: Endpoint,
    others: Sequence[Endpoint],
    remedy: str = "",
    policies: Iterable[str] = (),
) -> str:
    """We subscribe and cannot hear a publisher; ``policies``: others that the event named."""
    findings = [(other, refused_policies(other, ours)) for other in others]
    remedy = remedy or _remedy(topic, "subscription", "raise that there", _LESS, findings)
    return _text(topic, "cannot hear", "offers", "we ask for", ours, remedy, findings, policies)


def unserved_text(
    topic: str, ours: Endpoint, others: Sequence[Endpoint], policies: Iterable[str] = ()
) -> str:
    """We publish and a subscription cannot hear us; ``policies``: others that the event named."""
    findings = [(other, refused_policies(ours, other)) for other in others]
    remedy = _remedy(topic, "publisher", "lower that there", _MORE, findings)
    return _text(topic, "cannot serve", "asks for", "we offer", ours, remedy, findings, policies)


Findings = Sequence[tuple[Endpoint, list[str]]]


def _remedy(topic: str, side: str, there: str, values: dict[str, str], findings: Findings) -> str:
    policies = sorted({policy for _, found in findings for policy in found})
    arguments = [f"-p qos_overrides.{topic}.{side}.{p}:={values[p]}" for p in policies]
    return there + (f", or start us with {' '.join(arguments)}" if arguments else "")


def _text(
    topic: str, what: str, they: str, we: str, ours: Endpoint, remedy: str, findings: Findings,
    policies: Iterable[str],
) -> str:  # fmt: skip
    unfit = [(other, found) for other, found in findings if found]
    sides = "; ".join(
        f"{other.node} {they} {_side(other)}, {we} {_side(ours)}: {' and '.join(found)} differs"
        for other, found in unfit
    )
    # Deadlines, lifespans and the like: the graph does not say whose.
    named = " and ".join(sorted(policies)) or "QoS"
    return f"{topic}: {what} every peer: {sides or f'their {named} and ours do not fit'}; {remedy}"


def _side(endpoint: Endpoint) -> str:
    return f"{endpoint.reliability} and {endpoint.durability}"


class Refusal:
    """Whether, and what, there is to say of one endpoint of ours whose peers were refused.

    The middleware's event comes before discovery has told who the peer is: it is only noted, and
    looked into later, more than once where names are still missing.
    """

    def __init__(
        self,
        peers: Callable[[], Sequence[Endpoint]],
        unfit: Callable[[Endpoint], list[str]],
        text: Callable[[Sequence[Endpoint], Iterable[str]], str],
    ) -> None:
        """``unfit``: in which policies a peer does not fit; ``text(peers, other policies)``."""
        self._peers, self._unfit, self._say = peers, unfit, text
        self._looks = 0  # left; 0: nothing is noted
        self._policies: set[str] = set()  # that the event named and the graph does not tell

    def note(self, policy: str = "") -> None:
        """The middleware has refused a peer."""
        self._looks = self._looks or LOOKS
        if policy and policy not in _COMPARED:
            self._policies.add(policy)

    @property
    def noted(self) -> bool:
        """Whether there may be something to say."""
        return self._looks > 0

    def text(self) -> str:
        """What to say, now that names are known or enough was waited for them; or nothing yet."""
        peers = list(self._peers())
        unfit = [peer for peer in peers if self._unfit(peer)]
        self._looks -= 1
        if self._looks and not (unfit and all(peer.node != UNNAMED for peer in unfit)):
            return ""
        policies, self._policies = self._policies, set()
        self._looks = 0
        # Without any of the two the peer is gone again.
        return self._say(peers, policies) if unfit or (peers and policies) else ""


class Endpoints:
    """Creates a node's publishers and subscriptions, and says which peers they were refused."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._refusals: dict[tuple[str, str], Refusal] = {}
        self._throttle = Throttle()

    def subscribe(
        self,
        kind: type,
        topic: str,
        callback: Callable[[Any], None],
        qos: Any,
        *,
        remedy: str = "",
        overridable: Sequence[QoSPolicyKind] = OVERRIDABLE,
    ) -> Any:
        """A subscription; ``qos`` takes over what the user overrides. Raises ConfigError."""
        node, name = self._node, self._node.resolve_topic_name(topic)
        # The profile is read when something is said: rclpy writes the overrides into it.
        refusal = Refusal(
            lambda: _others(node, node.get_publishers_info_by_topic(name)),
            lambda peer: refused_policies(peer, _ours(qos)),
            lambda peers, policies: unheard_text(name, _ours(qos), peers, remedy, policies),
        )
        with _named(f"qos_overrides.{name}.subscription"):
            subscription = node.create_subscription(
                kind,
                topic,
                callback,
                qos,
                event_callbacks=SubscriptionEventCallbacks(
                    incompatible_qos=functools.partial(_note, refusal)
                ),
                qos_overriding_options=QoSOverridingOptions(overridable),
            )
        self._refusals[name, "subscription"] = refusal
        return subscription

    def advertise(self, kind: type, topic: str, qos: Any) -> Any:
        """A publisher; ``qos`` takes over what the user overrides. Raises ConfigError."""
        node, name = self._node, self._node.resolve_topic_name(topic)
        refusal = Refusal(
            lambda: _others(node, node.get_subscriptions_info_by_topic(name)),
            lambda peer: refused_policies(_ours(qos), peer),
            lambda peers, policies: unserved_text(name, _ours(qos), peers, policies),
        )
        with _named(f"qos_overrides.{name}.publisher"):
            publisher = node.create_publisher(
                kind,
                topic,
                qos,
                event_callbacks=PublisherEventCallbacks(
                    incompatible_qos=functools.partial(_note, refusal)
                ),
                qos_overriding_options=QoSOverridingOptions(OVERRIDABLE),
            )
        self._refusals[name, "publisher"] = refusal
        return publisher

    def drop_subscription(self, subscription: Any) -> None:
        """Destroy it, and say no more of it."""
        self._refusals.pop((subscription.topic_name, "subscription"), None)
        self._node.destroy_subscription(subscription)

    def drop_publisher(self, publisher: Any) -> None:
        """Destroy it, and say no more of it."""
        self._refusals.pop((publisher.topic_name, "publisher"), None)
        self._node.destroy_publisher(publisher)

    def tell(self, now_s: float) -> list[str]:
        """What is to be said by now; call it about once per second, on steady time."""
        texts = []
        for (topic, side), refusal in list(self._refusals.items()):
            key = f"{topic} {side}"
            if refusal.noted and self._throttle.ready(key, EVERY_S, now_s):
                text = refusal.text()
                if text:
                    self._throttle.due(key, EVERY_S, now_s)
                    texts.append(text)
        return texts


@contextmanager
def _named(override: str) -> Iterator[None]:
    """Says whose override it is that rclpy refuses, in whichever of its ways."""
    try:
        yield
    except (RuntimeError, AssertionError, TypeError, ValueError, ParameterException) as error:
        raise ConfigError(f"{override}: {error or 'a value of another type is wanted'}") from error


def _note(refusal: Refusal, event: Any) -> None:
    refusal.note(qos_policy_name_from_kind(event.last_policy_kind).lower())


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


def _ours(qos: Any) -> Endpoint:
    return _endpoint("", "", qos)


def _endpoint(node: str, kind: str, qos: Any) -> Endpoint:
    return Endpoint(node, kind, qos.reliability.name.lower(), qos.durability.name.lower())
