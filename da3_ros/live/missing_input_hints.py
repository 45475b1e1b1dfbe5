"""What to say when nothing arrives, or when not everything does.

Texts from plain data: what the node waits for, what is on the graph, which stamps came. Knows no
middleware; ``look_around`` reads a node by its methods alone.
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

from da3_ros.live.qos_rules import refused_policies
from da3_ros.messages.topics import CAMERA_INFO, COMPRESSED, IMAGE, info_topic

PROFILE = Path("config") / "fastdds_images.xml"

_SUFFIX = "/compressed"
_SHOWN = 3  # similar topics named per awaited one
_SIMILAR = 0.8  # names of another type must be this close to be worth a word
_NOT_A_PICTURE = ("depth", "disparity", "mask", "confidence", "infra", "thermal")


@dataclass(frozen=True)
class Publisher:
    """A publisher on the graph, as discovery tells of it."""

    node: str  # full name
    type: str  # pkg/msg/Name
    reliability: str = "reliable"  # reliable, best_effort or unknown
    durability: str = "volatile"  # volatile, transient_local or unknown


@dataclass(frozen=True)
class Awaited:
    """A topic from which nothing has come, and how it is subscribed to."""

    topic: str  # full name
    type: str
    name: str  # as it stands on the left of a remap rule: "image", "front/image"
    reliability: str = "best_effort"
    durability: str = "volatile"
    reliability_parameter: str = ""  # our parameter that decides it, if there is one


@dataclass(frozen=True)
class Graph:
    """What others publish."""

    publishers: Mapping[str, Sequence[Publisher]] = field(default_factory=dict)  # by topic
    other_nodes: int = 0


# Waiting ----------------------------------------------------------------------------------------


def waiting_text(
    awaited: Sequence[Awaited], graph: Graph, surroundings: str = "", after_s: float = 5.0
) -> str:
    """One message, a line per awaited topic: what is there instead, and what to do.

    ``surroundings`` is the text of ``describe_surroundings``, added where no publisher is
    visible.
    """
    lines = [f"nothing has come for {after_s:g} s; waiting for"]
    chosen = _chosen_image(awaited, graph)
    for item in awaited:
        how = ", ".join((item.type, item.reliability, item.durability))
        lines.append(f"  {item.topic} ({how}): {_finding(item, graph, chosen)}")
    if not graph.other_nodes and not any(graph.publishers.values()):
        lines.append(
            "  No other node is visible at all: is the driver running, in the same ROS_DOMAIN_ID, "
            "discovery range and middleware?" + (f" Here: {surroundings}." if surroundings else "")
        )
    return "\n".join(lines)


def describe_surroundings(environ: Mapping[str, str], middleware: str = "") -> str:
    """The settings that decide who sees whom, out of a process's environment."""
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


def look_around(node: Any, awaited: Sequence[Awaited]) -> Graph:
    """The graph as an rclpy node sees it, without the node itself.

    Only topics of a type or with a name like an awaited one's cost a query each.
    """
    own = (node.get_name(), node.get_namespace())
    wanted = {IMAGE, COMPRESSED, CAMERA_INFO, *(item.type for item in awaited)}
    found: dict[str, list[Publisher]] = {}
    for topic, types in node.get_topic_names_and_types():
        alike = any(_likeness(item.topic, topic) >= _SIMILAR for item in awaited)
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


def _publisher(info: Any) -> Publisher:
    qos = info.qos_profile
    node = f"{info.node_namespace.rstrip('/')}/{info.node_name}"
    return Publisher(
        node, info.topic_type, qos.reliability.name.lower(), qos.durability.name.lower()
    )


def _finding(item: Awaited, graph: Graph, chosen: str) -> str:
    """What is wrong with one topic, and the remedy."""
    there = graph.publishers.get(item.topic, ())
    if there:
        return _finding_there(item, there, graph)
    if item.type == CAMERA_INFO and chosen:
        beside = info_topic(chosen)
        if any(p.type == CAMERA_INFO for p in graph.publishers.get(beside, ())):
            return f"nobody publishes it; {beside} will be used once the image is {chosen}"
    candidates = _candidates(item, graph)
    if not candidates:
        return f"nobody publishes it, nor anything else of type {item.type}: start the driver"
    named = "; ".join(_named(topic, graph, item) for topic in candidates[:_SHOWN])
    return f"nobody publishes it. There is {named}. {_remedy(item, candidates[0], graph)}"


def _finding_there(item: Awaited, there: Sequence[Publisher], graph: Graph) -> str:
    """The topic has publishers and nothing comes all the same."""
    fitting = [p for p in there if p.type == item.type]
    if not fitting:
        types = ", ".join(sorted({f"{p.type} from {p.node}" for p in there}))
        found = f"it is {types}: another type"
        usable = [t for t in _candidates(item, graph) if _rank(item.type, _types(t, graph)) < 2]
        tail = _remedy(item, usable[0], graph) if usable else f"Remap {item.name} to one of ours."
        return f"{found}. {tail}"
    refused = [f"{p.node} offers {_conflict(item, p)}" for p in fitting if _conflict(item, p)]
    if len(refused) == len(fitting):
        return f"the QoS does not fit: {'; '.join(refused)}. {_qos_remedy(item, fitting)}"
    names = ", ".join(f"{p.node} ({p.reliability})" for p in fitting if not _conflict(item, p))
    text = f"published by {names}, type and QoS fit, but nothing comes: does the camera stream?"
    if item.type == IMAGE and any(p.reliability == "best_effort" for p in fitting):
        text += (
            " Large best-effort images may all be lost on their way: publish reliable, or set "
            f"the Fast DDS profile ({PROFILE.name}) in the driver's process."
        )
    return text


def _conflict(item: Awaited, publisher: Publisher) -> str:
    """What a publisher offers that a subscription as ours refuses, or an empty text."""
    return " and ".join(
        f"{getattr(publisher, policy)}, we ask for {getattr(item, policy)}"
        for policy in refused_policies(publisher, item)
    )


def _qos_remedy(item: Awaited, publishers: Sequence[Publisher]) -> str:
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
    """The image topic that we shall propose, or an empty text."""
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
    """Topics that may be meant, the likeliest first: our type, its other transport, our name."""
    picture = item.type in (IMAGE, COMPRESSED)
    ranked = []
    for topic in filter(graph.publishers.get, graph.publishers):
        rank, likeness = _rank(item.type, _types(topic, graph)), _likeness(item.topic, topic)
        if rank == 2 and likeness < _SIMILAR:
            continue
        odd = picture and any(word in topic for word in _NOT_A_PICTURE)
        order = (rank == 2, odd, not _same_tail(item.topic, topic), rank, -likeness)
        ranked.append((order, topic))
    return [topic for _, topic in sorted(ranked)]


def _rank(ours: str, theirs: set[str]) -> int:
    if ours in theirs:
        return 0
    return 1 if ours in (IMAGE, COMPRESSED) and theirs & {IMAGE, COMPRESSED} else 2


def _types(topic: str, graph: Graph) -> set[str]:
    return {p.type for p in graph.publishers.get(topic, ())}


def _likeness(ours: str, theirs: str) -> float:
    """0 to 1: whole names and last words count alike; the transport's suffix does not."""
    a, b = ours.removesuffix(_SUFFIX), theirs.removesuffix(_SUFFIX)
    whole = difflib.SequenceMatcher(None, a, b).ratio()
    last = difflib.SequenceMatcher(None, a.rpartition("/")[2], b.rpartition("/")[2]).ratio()
    return (whole + last) / 2


def _same_tail(ours: str, theirs: str) -> bool:
    """Whether they differ by a namespace alone, or by the transport's suffix."""
    a, b = ours.removesuffix(_SUFFIX), theirs.removesuffix(_SUFFIX)
    return a.endswith(b) or b.endswith(a)


def _named(topic: str, graph: Graph, item: Awaited) -> str:
    publishers = graph.publishers[topic]
    first = publishers[0]
    kind = "" if first.type == item.type else f"{first.type}, "
    more = f" and {len(publishers) - 1} more" if len(publishers) > 1 else ""
    return f"{topic} ({kind}{first.reliability}, from {first.node}{more})"


def _remedy(item: Awaited, topic: str, graph: Graph) -> str:
    """ROS arguments that make ``topic`` arrive."""
    types = _types(topic, graph)
    if _rank(item.type, types) == 2:
        return f"{topic} has another type; if it is meant, convert it to {item.type}."
    used = item.type if item.type in types else ({IMAGE, COMPRESSED} - {item.type}).pop()
    ours, theirs = item.topic.removesuffix(_SUFFIX), topic.removesuffix(_SUFFIX)
    arguments = []
    if used == COMPRESSED and theirs == topic:
        # Not named as image_transport does: remapping the base cannot reach it.
        arguments.append(f"-r {ours}{_SUFFIX}:={topic}")
    elif ours != theirs:
        arguments.append(f"-r {item.name}:={theirs}")
    if used != item.type:
        arguments.append(f"-p image_transport:={'compressed' if used == COMPRESSED else 'raw'}")
    text = f"Start with: --ros-args {' '.join(arguments)}"
    if ours != theirs and theirs.endswith(ours):
        text += f" (or in its namespace: -r __ns:={theirs.removesuffix(ours)})"
    return text


class WaitingReport:
    """When to say that nothing arrives: after ``after_s`` on a steady clock, once per situation.

    A text is repeated only after input had come for ``after_s`` without a pause as long as that.
    """

    def __init__(self, now_s: float, after_s: float = 5.0) -> None:
        self._after_s = after_s
        self._heard_s = self._flows_since_s = now_s
        self._said = ""

    def heard(self, now_s: float) -> None:
        """Input has come."""
        if now_s - self._heard_s >= self._after_s:
            self._flows_since_s = now_s
        elif now_s - self._flows_since_s >= self._after_s:
            self._said = ""
        self._heard_s = now_s

    def restart(self, now_s: float) -> None:
        """Waiting begins anew, as at activation."""
        self._heard_s = self._flows_since_s = now_s
        self._said = ""

    def due(self, now_s: float, text: Callable[[], str]) -> str:
        """What is to be said now, or nothing; ``text`` is asked only while nothing comes."""
        if now_s - self._heard_s < self._after_s:
            return ""
        now_text = text()
        if now_text == self._said:
            return ""
        self._said = now_text
        return now_text


# Gaps -------------------------------------------------------------------------------------------

_INTERVALS, _EXPECTED, _SHARE = 30, 100, 0.05
_GAP, _PAUSE = 1.5, 20.0  # in periods
_ENOUGH = 10  # intervals before a period is believed
_SHORT = 1.75  # times the 20th percentile of the intervals: no frame is missing in these
_JITTER, _IRREGULAR = 0.3, 0.2  # of a period; share of intervals that may be farther off
_STEADY = 4  # alike intervals in a row: another rate, not loss


class GapMeter:
    """Counts the frames missing from a stream by its header stamps, and warns once.

    The period is the median of the shorter of the last 30 intervals, those that lack no frame; an
    interval above 1.5 periods lacks frames.
    Time jumps, pauses and a camera that changes its rate are no loss. Of a stream without a period
    (a camera that is triggered, or goes at our own pace) missing frames cannot be counted: no
    loss. Regular loss (every second frame) looks like another rate and is not counted.
    """

    def __init__(self, topic: str, profile: str, middleware: str = "") -> None:
        """``profile``: path of the Fast DDS profile; ``middleware``: identifier, empty: any."""
        self.topic, self._profile, self._middleware = topic, profile, middleware
        self.missing = 0  # since the beginning
        self._last_ns: int | None = None
        self._intervals: deque[int] = deque(maxlen=_INTERVALS)
        self._expected: deque[bool] = deque(maxlen=_EXPECTED)  # whether each frame has come
        self._warned = False

    @property
    def share(self) -> float:
        """Share of the last 100 expected frames that is missing."""
        return self._expected.count(False) / len(self._expected) if self._expected else 0.0

    def add(self, stamp_ns: int, size_bytes: int, *, best_effort: bool = True) -> str:
        """A frame has come; returns the warning when it is due, once, else nothing."""
        last, self._last_ns = self._last_ns, stamp_ns
        if last is None:
            return ""
        after_gap = self._count(stamp_ns - last)
        # Right after a gap it is open whether the rate has changed.
        if after_gap or self._warned or not best_effort:
            return ""
        if len(self._expected) < _EXPECTED or self.share < _SHARE:
            return ""
        self._warned = True
        return self._warning(size_bytes)

    def _count(self, interval: int) -> bool:
        """Take an interval in; says whether frames are missing in it."""
        known = len(self._intervals) >= _ENOUGH
        period = self._period() if known else 0.0
        if interval <= 0 or (known and interval > _PAUSE * period):
            return False
        self._intervals.append(interval)
        if not known or not self._is_periodic(period):
            return False
        lacking = round(interval / period) - 1 if interval > _GAP * period else 0
        self.missing += lacking
        self._expected.extend([False] * lacking + [True])
        if lacking and self._rate_has_changed():
            self.missing -= min(_STEADY * lacking, self.missing)
            self._intervals.clear()
            self._expected.clear()
        return lacking > 0

    def _period(self) -> float:
        """Nanoseconds between frames, though half of them may be lost."""
        short = sorted(self._intervals)[len(self._intervals) // 5]
        return median(i for i in self._intervals if i <= _SHORT * short)

    def _is_periodic(self, period: float) -> bool:
        """Whether nearly all intervals are whole periods: lost frames leave those, too."""
        turns = [i / period for i in self._intervals]
        off = sum(abs(t - max(1, round(t))) > _JITTER for t in turns)
        return off <= _IRREGULAR * len(self._intervals)

    def _rate_has_changed(self) -> bool:
        newest = list(self._intervals)[-_STEADY:]
        return max(newest) - min(newest) < 0.1 * min(newest)

    def _warning(self, size_bytes: int) -> str:
        return (
            f"{self.topic}: {100 * self.share:.0f} % of the last {_EXPECTED} best-effort images "
            f"({size_bytes} bytes each) were lost on their way. The cure belongs in the process "
            f"that publishes them (the camera driver), not in this one: {self._cures()}; or have "
            "it publish reliable"
        )

    def _cures(self) -> str:
        cures = {
            "fastrtps": "Fast DDS: set in its environment "
            f"FASTDDS_DEFAULT_PROFILES_FILE={self._profile} (before Jazzy "
            "FASTRTPS_DEFAULT_PROFILES_FILE)",
            "cyclonedds": "Cyclone DDS: raise net.core.rmem_max (here too) and MaxMessageSize",
            "zenoh": "Zenoh: enable shared memory",
        }
        fitting = [text for name, text in cures.items() if name in self._middleware]
        return "; ".join(fitting or cures.values())


def profile_file(prefix_path: str = "") -> str:
    """Path of the Fast DDS profile: installed below one of AMENT_PREFIX_PATH's, or in the clone.

    Empty if it is in neither.
    """
    folders = [Path(p) / "share" / "da3_ros" for p in prefix_path.split(os.pathsep) if p]
    for folder in [*folders, Path(__file__).parents[2]]:
        if (folder / PROFILE).is_file():
            return str(folder / PROFILE)
    return ""
