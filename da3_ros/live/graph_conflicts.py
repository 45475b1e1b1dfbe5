"""Other nodes that disturb this one: with its name, on its topics, or on its camera's topic.

The texts are made from plain data; ``read_conflicts`` only calls methods of a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SEEN_S = 2.5  # a conflict counts after this time: a topic's old publisher vanishes with a delay
# A killed driver's publisher stays on the graph until its lease ends: 20 s with Fast DDS.
LEASE_S = 30.0


@dataclass(frozen=True)
class Conflict:
    """What another node does, and how long it must be seen before it is reported."""

    text: str
    after_s: float = SEEN_S


class Conflicts:
    """Reports each conflict once, when it has lasted; again only if it has been gone since."""

    def __init__(self) -> None:
        self._since_s: dict[Conflict, float] = {}
        self.lasting: tuple[str, ...] = ()  # texts of those that were reported and still hold

    def update(self, found: Iterable[Conflict], now_s: float) -> list[str]:
        """Record what the graph shows now (steady seconds); returns the warnings that are due."""
        self._since_s = {one: self._since_s.get(one, now_s) for one in found}
        held = (
            one.text for one, since_s in self._since_s.items() if now_s - since_s >= one.after_s
        )
        before, self.lasting = self.lasting, tuple(held)
        return [text for text in self.lasting if text not in before]


def read_conflicts(
    node: Any, outputs: Sequence[str], images: Sequence[tuple[str, str]]
) -> list[Conflict]:
    """Read the conflicts from the graph of ``node``.

    outputs: full names of topics that only this node should publish. images: full name and type
    of each camera's image topic, which one other node should publish.
    """
    own = node.get_name(), node.get_namespace()
    found = []
    if node.get_node_names_and_namespaces().count(own) > 1:
        found.append(Conflict(_same_name(_full_name(*own))))
    shared: dict[str, list[str]] = {}
    for topic in outputs:
        for name in _publishers(node, topic):
            if name != _full_name(*own):
                shared.setdefault(name, []).append(topic)
    found += [Conflict(_same_outputs(name, topics)) for name, topics in sorted(shared.items())]
    for topic, kind in images:
        names = _publishers(node, topic, kind)
        if len(names) > 1:
            found.append(Conflict(_same_image(topic, names), LEASE_S))
    return found


def _publishers(node: Any, topic: str, kind: str = "") -> list[str]:
    """Full names of the nodes that publish a topic (with that type), if there are several."""
    if node.count_publishers(topic) < 2:
        return []
    infos = node.get_publishers_info_by_topic(topic)
    return sorted(
        _full_name(i.node_name, i.node_namespace) for i in infos if kind in ("", i.topic_type)
    )


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace.rstrip('/')}/{name}"


def _same_name(name: str) -> str:
    return (
        f"{name}: another node has this name: services and parameters reach either of them, and "
        "their outputs mix; start one with -r __node:=NAME or -r __ns:=/NAMESPACE"
    )


def _same_outputs(name: str, topics: Sequence[str]) -> str:
    more = f" and {len(topics) - 1} more of this node's topics" if len(topics) > 1 else ""
    return (
        f"{min(topics)}: {name} publishes it too{more}: subscribers get both in turns; stop one, "
        "or remap its topics"
    )


def _same_image(topic: str, names: Sequence[str]) -> str:
    return (
        f"{topic}: {' and '.join(names)} publish it: cameras with one frame_id cannot be told "
        "apart; give each camera a topic of its own"
    )
