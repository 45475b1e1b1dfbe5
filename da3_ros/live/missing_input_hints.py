"""Warnings about missing input: no messages at all, or images lost on the way.

The texts are made from plain data: the awaited topics, the ROS graph, the received stamps. No
middleware; ``read_graph`` only calls methods of a node.
"""

from __future__ import annotations

import difflib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from da3_ros.live.qos_rules import incompatible_policies
from da3_ros.messages.topics import CAMERA_INFO, COMPRESSED, IMAGE, info_topic

PROFILE = Path("config") / "fastdds_images.xml"

_SUFFIX = "/compressed"
_SHOWN = 3  # similar topics named per awaited topic
_SIMILAR = 0.8  # least similarity of a name for a topic of another type to be named
_NOT_CAMERA_IMAGES = ("depth", "disparity", "mask", "confidence", "infra", "thermal")


@dataclass(frozen=True)
class RemotePublisher:
    """A publisher on the graph, as reported by discovery."""

    node: str  # full name
    type: str  # pkg/msg/Name
    reliability: str = "reliable"  # reliable, best_effort or unknown
    durability: str = "volatile"  # volatile, transient_local or unknown


@dataclass(frozen=True)
class Awaited:
    """A topic without messages, and the QoS of its subscription."""

    topic: str  # full name
    type: str
    name: str  # left side of its remap rule: "image", "front/image"
    reliability: str = "best_effort"
    durability: str = "volatile"
    reliability_parameter: str = ""  # parameter that sets the reliability; empty if there is none


@dataclass(frozen=True)
class Graph:
    """Publishers and nodes other than this node."""

    publishers: Mapping[str, Sequence[RemotePublisher]] = field(default_factory=dict)  # by topic
    other_nodes: int = 0


# Waiting ----------------------------------------------------------------------------------------


def waiting_text(
    awaited: Sequence[Awaited], graph: Graph, settings: str = "", after_s: float = 5.0
) -> str:
    """Returns a warning with a line per awaited topic: what was found instead, and the remedy.

    after_s: seconds without a message. settings: text of ``discovery_settings``, added if no other
    node is visible.
    """
    lines = [f"no message received for {after_s:g} s; waiting for"]
    chosen = _chosen_image(awaited, graph)
    for item in awaited:
        how = ", ".join((item.type, item.reliability, item.durability))
        lines.append(f"  {item.topic} ({how}): {_finding(item, graph, chosen)}")
    if not graph.other_nodes and not any(graph.publishers.values()):
        lines.append(
            "  No other node is visible: is the driver running, with the same ROS_DOMAIN_ID, "
            "discovery range and middleware?" + (f" Here: {settings}." if settings else "")
        )
    return "\n".join(lines)


def discovery_settings(environ: Mapping[str, str], middleware: str = "") -> str:
    """Returns the environment's settings that decide which nodes discover each other."""
    settings = [f"ROS_DOMAIN_ID={environ.get('ROS_DOMAIN_ID', '0')}"]
    for name in (
        "ROS_AUTOMATIC_DISCOVERY_RANGE",
        "ROS_LOCALHOST_ONLY",
        "ROS_STATIC_PEERS",
        "ROS_DISCOVERY_SERVER",
    ):
        if name in environ:
            settings.append(f"{name}={environ[name]}")
    rmw = middleware or environ.get("RMW_IMPLEMENTATION", "")
    return ", ".join(settings + ([rmw] if rmw else []))


def read_graph(node: Any, awaited: Sequence[Awaited]) -> Graph:
    """Returns the graph as seen by an rclpy node, without the node itself.

    Queries only topics whose type or name resembles that of an awaited topic.
    """
    own = (node.get_name(), node.get_namespace())
    wanted = {IMAGE, COMPRESSED, CAMERA_INFO, *(item.type for item in awaited)}
    found: dict[str, list[RemotePublisher]] = {}
    for topic, types in node.get_topic_names_and_types():
        alike = any(_similarity(item.topic, topic) >= _SIMILAR for item in awaited)
        if not alike and not wanted.intersection(types):
            continue
        others = [
            _publisher(info)
            for info in node.get_publishers_info_by_topic(topic)
            if (info.node_name, info.node_namespace) != own
        ]
        if others:
            found[topic] = others
    names = {n for n in node.get_node_names_and_namespaces() if not n[0].startswith("_")}
    return Graph(found, len(names - {own}))


def _publisher(info: Any) -> RemotePublisher:
    qos = info.qos_profile
    node = f"{info.node_namespace.rstrip('/')}/{info.node_name}"
    return RemotePublisher(
        node, info.topic_type, qos.reliability.name.lower(), qos.durability.name.lower()
    )


def _finding(item: Awaited, graph: Graph, chosen: str) -> str:
    """Returns what is wrong with one topic, and the remedy."""
    publishers = graph.publishers.get(item.topic, ())
    if publishers:
        return _finding_with_publishers(item, publishers, graph)
    if item.type == CAMERA_INFO and chosen:
        sibling = info_topic(chosen)
        if any(p.type == CAMERA_INFO for p in graph.publishers.get(sibling, ())):
            return f"it has no publisher; {sibling} will be used once the image is {chosen}"
    candidates = _candidates(item, graph)
    if not candidates:
        return f"it has no publisher, nor has any topic of type {item.type}: start the driver"
    named = "; ".join(_named(topic, graph, item) for topic in candidates[:_SHOWN])
    return f"it has no publisher. Similar topics: {named}. {_remedy(item, candidates[0], graph)}"


def _finding_with_publishers(
    item: Awaited, publishers: Sequence[RemotePublisher], graph: Graph
) -> str:
    """Returns why no message comes although the topic has publishers, and the remedy."""
    fitting = [p for p in publishers if p.type == item.type]
    if not fitting:
        types = ", ".join(sorted({f"{p.type} from {p.node}" for p in publishers}))
        found = f"its type is {types}"
        usable = [t for t in _candidates(item, graph) if _rank(item.type, _types(t, graph)) < 2]
        tail = (
            _remedy(item, usable[0], graph)
            if usable
            else f"Remap {item.name} to a topic of type {item.type}."
        )
        return f"{found}. {tail}"
    incompatible = [f"{p.node} offers {_conflict(item, p)}" for p in fitting if _conflict(item, p)]
    if len(incompatible) == len(fitting):
        return f"incompatible QoS: {'; '.join(incompatible)}. {_qos_remedy(item, fitting)}"
    names = ", ".join(f"{p.node} ({p.reliability})" for p in fitting if not _conflict(item, p))
    text = f"published by {names} with the right type and QoS, but silent: does the camera stream?"
    if item.type == IMAGE and any(p.reliability == "best_effort" for p in fitting):
        text += (
            " Large best-effort images may all be lost in transport: publish reliable, or set "
            f"the Fast DDS profile ({PROFILE.name}) in the driver's process."
        )
    return text


def _conflict(item: Awaited, publisher: RemotePublisher) -> str:
    """What a publisher offers that a subscription as wanted refuses, or an empty text."""
    return " and ".join(
        f"{getattr(publisher, policy)}, this node requests {getattr(item, policy)}"
        for policy in incompatible_policies(publisher, item)
    )


def _qos_remedy(item: Awaited, publishers: Sequence[RemotePublisher]) -> str:
    nodes = ", ".join(sorted({p.node for p in publishers}))
    durable = item.durability == "transient_local" and any(
        p.durability == "volatile" for p in publishers
    )
    if durable:
        return f"Have {nodes} offer transient_local."
    if item.reliability_parameter:
        return f"Set -p {item.reliability_parameter}:=best_effort, or have {nodes} offer reliable."
    return f"Have {nodes} offer reliable."


# Similar topics ---------------------------------------------------------------------------------


def _chosen_image(awaited: Sequence[Awaited], graph: Graph) -> str:
    """Returns the image topic to propose, or an empty text."""
    for item in awaited:
        if item.type in (IMAGE, COMPRESSED) and not graph.publishers.get(item.topic):
            pictures = [
                topic
                for topic in _candidates(item, graph)
                if _types(topic, graph) & {IMAGE, COMPRESSED}
            ]
            return pictures[0] if pictures else ""
    return ""


def _candidates(item: Awaited, graph: Graph) -> list[str]:
    """Returns the candidates, best first: same type, other image transport, similar name."""
    picture = item.type in (IMAGE, COMPRESSED)
    ranked = []
    for topic in filter(graph.publishers.get, graph.publishers):
        rank, similarity = _rank(item.type, _types(topic, graph)), _similarity(item.topic, topic)
        if rank == 2 and similarity < _SIMILAR:
            continue
        odd = picture and any(word in topic for word in _NOT_CAMERA_IMAGES)
        order = (rank == 2, odd, not _same_suffix(item.topic, topic), rank, -similarity)
        ranked.append((order, topic))
    return [topic for _, topic in sorted(ranked)]


def _rank(wanted: str, found: set[str]) -> int:
    """0: same type; 1: other image transport; 2: another type."""
    if wanted in found:
        return 0
    return 1 if wanted in (IMAGE, COMPRESSED) and found & {IMAGE, COMPRESSED} else 2


def _types(topic: str, graph: Graph) -> set[str]:
    return {p.type for p in graph.publishers.get(topic, ())}


def _similarity(wanted: str, found: str) -> float:
    """Similarity of two topic names without transport suffix, 0 to 1.

    The mean of the similarities of the whole names and of their last words.
    """
    a, b = wanted.removesuffix(_SUFFIX), found.removesuffix(_SUFFIX)
    whole = difflib.SequenceMatcher(None, a, b).ratio()
    last = difflib.SequenceMatcher(None, a.rpartition("/")[2], b.rpartition("/")[2]).ratio()
    return (whole + last) / 2


def _same_suffix(wanted: str, found: str) -> bool:
    """True if two names differ only by a namespace or the transport suffix."""
    a, b = wanted.removesuffix(_SUFFIX), found.removesuffix(_SUFFIX)
    return a.endswith(b) or b.endswith(a)


def _named(topic: str, graph: Graph, item: Awaited) -> str:
    publishers = graph.publishers[topic]
    first = publishers[0]
    kind = "" if first.type == item.type else f"{first.type}, "
    more = f" and {len(publishers) - 1} more" if len(publishers) > 1 else ""
    return f"{topic} ({kind}{first.reliability}, from {first.node}{more})"


def _remedy(item: Awaited, topic: str, graph: Graph) -> str:
    """Returns the ROS arguments that subscribe to ``topic`` instead."""
    types = _types(topic, graph)
    if _rank(item.type, types) == 2:
        return f"{topic} has another type; to use it, convert it to {item.type}."
    used = item.type if item.type in types else ({IMAGE, COMPRESSED} - {item.type}).pop()
    wanted, found = item.topic.removesuffix(_SUFFIX), topic.removesuffix(_SUFFIX)
    arguments = []
    if used == COMPRESSED and found == topic:
        # Its name lacks image_transport's suffix: remapping the base name cannot reach it.
        arguments.append(f"-r {wanted}{_SUFFIX}:={topic}")
    elif wanted != found:
        arguments.append(f"-r {item.name}:={found}")
    if used != item.type:
        arguments.append(f"-p image_transport:={'compressed' if used == COMPRESSED else 'raw'}")
    text = f"Start with: --ros-args {' '.join(arguments)}"
    if wanted != found and found.endswith(wanted):
        text += f" (or in its namespace: -r __ns:={found.removesuffix(wanted)})"
    return text


class WaitingReport:
    """Decides when to warn about missing input: after ``after_s`` steady seconds without any.

    The same text is repeated only after input has arrived for ``after_s`` without such a pause.
    """

    def __init__(self, now_s: float, after_s: float = 5.0) -> None:
        self._after_s = after_s
        self._received_s = self._flowing_since_s = now_s
        self._last_text = ""

    def received(self, now_s: float) -> None:
        """Record a received message."""
        if now_s - self._received_s >= self._after_s:
            self._flowing_since_s = now_s
        elif now_s - self._flowing_since_s >= self._after_s:
            self._last_text = ""
        self._received_s = now_s

    def restart(self, now_s: float) -> None:
        """Restart the wait, as after an activation."""
        self._received_s = self._flowing_since_s = now_s
        self._last_text = ""

    def due(self, now_s: float, text: Callable[[], str]) -> str:
        """Returns the warning if due, else ""; calls ``text`` only while input is missing."""
        if now_s - self._received_s < self._after_s:
            return ""
        now_text = text()
        if now_text == self._last_text:
            return ""
        self._last_text = now_text
        return now_text


# Gaps -------------------------------------------------------------------------------------------

_INTERVALS, _EXPECTED, _SHARE = 100, 100, 0.05
_PAUSE = 8.0  # periods; longer intervals are pauses
_ENOUGH = 20  # intervals needed to estimate a period
# An interval up to this multiple of the 20th percentile is taken as one without a missing frame.
_SHORT = 1.75
# Standard deviation of intervals, in periods, with which a camera is steady, and how many of them
# an interval must be longer than a period to be a gap.
_STEADY_JITTER, _GAP_SIGMAS, _LEAST_GAP = 0.2, 4.5, 0.5
_EQUAL = 4  # equal intervals in a row: a changed rate, not loss
_PUBLISHERS = 16  # of one topic, whose numbers are remembered
_FRAGMENTED = 64_000  # bytes of a message above which the middleware's buffers decide


class GapMeter:
    """Counts the images that existed and did not arrive, and warns once.

    Each publisher numbers its messages: a number that is left out is a lost image, and nothing
    else is. Where the middleware does not tell the numbers, the header stamps of a steady camera
    count, if single images are missing: an interval longer than its jitter explains, on the
    camera's grid. Pauses, bursts, time jumps and a changed rate are no loss, and without a period
    (a triggered camera, or one paced by this node) nothing is counted.
    """

    def __init__(self, topic: str, profile: str, middleware: str = "") -> None:
        """``profile``: path of the Fast DDS profile; ``middleware``: identifier, empty: any."""
        self.topic, self._profile, self._middleware = topic, profile, middleware
        self.missing = 0  # frames since the start
        self._expected: deque[bool] = deque(
            maxlen=_EXPECTED
        )  # True for each frame that was received
        self._warned = False
        self.restart()

    def restart(self) -> None:
        """Notes a new subscription: what came between is not lost."""
        self._last_ns: int | None = None
        self._intervals: deque[int] = deque(maxlen=_INTERVALS)
        self._numbers: dict[bytes, int] = {}  # newest message of each publisher

    @property
    def share(self) -> float:
        """Share of the last 100 expected frames that is missing."""
        return self._expected.count(False) / len(self._expected) if self._expected else 0.0

    def add(
        self,
        stamp_ns: int,
        size_bytes: int,
        *,
        best_effort: bool = True,
        numbered: tuple[bytes, int] | None = None,
    ) -> str:
        """Record a frame; returns the warning, once, when it is due, else an empty text.

        numbered: the publisher, and its number of this message; None: not told.
        """
        lacking = self._by_stamp(stamp_ns) if numbered is None else self._by_number(*numbered)
        # Right after a gap the rate may have changed.
        if (lacking and numbered is None) or self._warned or not best_effort:
            return ""
        if len(self._expected) < _EXPECTED or self.share < _SHARE:
            return ""
        self._warned = True
        return self._warning(size_bytes)

    def _note(self, lacking: int) -> None:
        self.missing += lacking
        self._expected.extend([False] * min(lacking, _EXPECTED) + [True])

    def _by_number(self, publisher: bytes, number: int) -> int:
        """Returns how many messages of a publisher are missing before this one."""
        last = self._numbers.pop(publisher, None)
        self._numbers[publisher] = number if last is None else max(number, last)
        if len(self._numbers) > _PUBLISHERS:
            del self._numbers[next(iter(self._numbers))]
        lacking = 0 if last is None else max(number - last - 1, 0)
        self._note(lacking)
        return lacking

    def _by_stamp(self, stamp_ns: int) -> int:
        """Returns how many images of a steady camera are missing before this one."""
        last, self._last_ns = self._last_ns, stamp_ns
        interval = 0 if last is None else stamp_ns - last
        known = len(self._intervals) >= _ENOUGH
        period = self._period() if known else 0.0
        if interval <= 0 or (known and interval > _PAUSE * period):
            return 0
        self._intervals.append(interval)
        if not known:
            return 0
        jitter = self._jitter(period)
        if jitter > _STEADY_JITTER:
            return 0
        gap = interval > (1 + max(_LEAST_GAP, _GAP_SIGMAS * jitter)) * period
        lacking = round(interval / period) - 1 if gap and self._are_losses(period) else 0
        self._note(lacking)
        if lacking and self._rate_has_changed():
            self.missing -= min(_EQUAL * lacking, self.missing)
            self._intervals.clear()
            self._expected.clear()
        return lacking

    def _period(self) -> float:
        """Returns the nanoseconds between frames; valid if up to half of the frames are lost."""
        short = sorted(self._intervals)[len(self._intervals) // 5]
        return median(i for i in self._intervals if i <= _SHORT * short)

    def _jitter(self, period: float) -> float:
        """Returns the standard deviation of intervals from whole numbers of periods, in periods,
        by the median."""
        periods = [i / period for i in self._intervals]
        return 1.48 * median(abs(p - max(1, round(p))) for p in periods)

    def _are_losses(self, period: float) -> bool:
        """True if gaps of one image prevail, and gaps lie on the camera's grid: transport loses
        images one by one, but pauses are longer."""
        gaps = [p for i in self._intervals if (p := i / period) > 1 + _LEAST_GAP]
        single = sum(round(p) == 2 for p in gaps)
        on_grid = sum(abs(p - round(p)) < 2 * _STEADY_JITTER for p in gaps)
        return 2 * single >= len(gaps) and 4 * on_grid >= 3 * len(gaps)

    def _rate_has_changed(self) -> bool:
        newest = list(self._intervals)[-_EQUAL:]
        return max(newest) - min(newest) < 0.1 * min(newest)

    def _warning(self, size_bytes: int) -> str:
        lead = (
            f"{self.topic}: {100 * self.share:.0f} % of the last {_EXPECTED} best-effort images "
            f"({size_bytes} bytes each) did not arrive. "
        )
        if size_bytes < _FRAGMENTED:
            return lead + (
                "They are too small for the middleware's buffers to matter: the network loses "
                "them, or this computer is too busy to take them. Make the camera driver publish "
                "reliable, or less often"
            )
        return lead + (
            "If this computer is not overloaded, they were lost in transport. Apply the remedy in "
            f"the process that publishes them (the camera driver), not in this one: "
            f"{self._remedies()}; or make it publish reliable"
        )

    def _remedies(self) -> str:
        remedies = {
            "fastrtps": "Fast DDS: set in its environment "
            f"FASTDDS_DEFAULT_PROFILES_FILE={self._profile} (before Jazzy "
            "FASTRTPS_DEFAULT_PROFILES_FILE)",
            "cyclonedds": "Cyclone DDS: raise net.core.rmem_max (here too) and MaxMessageSize",
            "zenoh": "Zenoh: enable shared memory",
        }
        fitting = [text for name, text in remedies.items() if name in self._middleware]
        return "; ".join(fitting or remedies.values())


def profile_file(prefix_path: str = "") -> str:
    """Returns the path of the Fast DDS profile: installed (AMENT_PREFIX_PATH) or in the clone.

    Empty if it is in neither.
    """
    folders = [Path(p) / "share" / "da3_ros" for p in prefix_path.split(os.pathsep) if p]
    for folder in [*folders, Path(__file__).parents[2]]:
        if (folder / PROFILE).is_file():
            return str(folder / PROFILE)
    return ""
