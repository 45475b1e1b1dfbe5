"""What the node says of itself: ``~/status`` for machines, ``/diagnostics`` for people."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from da3_ros.inference import InferenceSession
from da3_ros.inference.planner import GIB
from da3_ros.network import MODELS
from da3_ros.ros import messages as build
from da3_ros.ros.stream import Stream

if TYPE_CHECKING:
    from da3_ros.ros.node import Da3Node

STALE_S = 5.0  # without output for so long while frames come is worth a warning


def status(node: Da3Node, stream: Stream | None, state: str) -> Any:
    """da3_ros/Status; what is not known is NaN, 0 or empty."""
    if stream is None:
        return build.status(node.library, node.now_ns(), state=state, last_error=node.last_error)
    config = stream.config.pipeline
    gaps = node.input.gaps.missing if node.input is not None else 0
    lost = {"lost_on_the_way": gaps} if gaps else {}
    median, p95 = stream.latency()
    scale = stream.last_report.scale if stream.last_report else None
    return build.status(
        node.library,
        node.now_ns(),
        state=state,
        model=config.inference.model,
        license=MODELS[config.inference.model].license,
        window_size=stream.pipeline.window_size,
        process_size=stream.process_size,
        **_inference(stream),
        frames_received=stream.received,
        frames_processed=stream.pipeline.counters["processed"],
        drops=stream.drop_counts() | lost,
        input_hz=rate(stream.arrived),
        output_hz=rate(stream.published),
        latency_median_s=median,
        latency_p95_s=p95,
        scale_source=config.scale.source,
        scale=scale.value if scale else math.nan,
        scale_sigma=scale.sigma if scale else math.nan,
        map_points=len(stream.pipeline.map),
        map_memory_mb=stream.pipeline.map.nbytes / 2**20,
        last_error=node.last_error,
    )


def _inference(stream: Stream) -> dict[str, Any]:
    """What runs where, and what memory was allowed, planned and taken (GiB)."""
    session = stream.pipeline.session
    if not isinstance(session, InferenceSession):
        return {}
    plan = session.plan
    return {
        "device": str(session.device),
        "precision": session.precision_name,
        "attention": session.attention,
        "memory_budget_gb": session.budget / GIB,
        "memory_plan_gb": plan.predicted / GIB if plan else math.nan,
        "memory_peak_gb": session.peak / GIB,
    }


def diagnostics(node: Da3Node, stream: Stream | None, state: str) -> DiagnosticArray:
    """One DiagnosticStatus: ERROR if configuring failed, WARN if something is unknown."""
    message = status(node, stream, state)
    level, text = _judge(node, stream, state)
    values = {
        name: getattr(message, name)
        for name in message.get_fields_and_field_types()
        if name not in ("header", "drop_causes", "drop_counts")
    }
    drops = zip(message.drop_causes, message.drop_counts, strict=True)
    values.update({f"dropped_{cause}": count for cause, count in drops})
    values.update(_joining(stream))
    out = DiagnosticArray()
    out.header = message.header
    out.status = [
        DiagnosticStatus(
            level=level,
            name=f"{node.get_fully_qualified_name()}: stream",
            message=text,
            hardware_id=message.device or "none",
            values=[KeyValue(key=k, value=_text(v)) for k, v in values.items()],
        )
    ]
    return out


def _joining(stream: Stream | None) -> dict[str, float]:
    """How the newest window joined the scene."""
    report = stream.last_report if stream else None
    if report is None:
        return {}
    return {
        "alignment_rms": report.alignment_rms,
        "alignment_inliers": report.alignment_inliers,
        "focal_ratio": report.focal_ratio,  # the network's focal length over camera_info's
    }


def rate(times: deque[float]) -> float:
    """Events per second over the kept ones, 0 when the newest is old."""
    held = list(times)
    if len(held) < 2 or time.monotonic() - held[-1] > STALE_S:
        return 0.0
    return (len(held) - 1) / max(held[-1] - held[0], 1e-9)


def _judge(node: Da3Node, stream: Stream | None, state: str) -> tuple[bytes, str]:
    if stream is None:
        failed = bool(node.last_error)
        return (DiagnosticStatus.ERROR if failed else DiagnosticStatus.OK), (
            node.last_error or state
        )
    if state == "active" and not rate(stream.arrived):
        return DiagnosticStatus.WARN, "no images arrive"
    if not stream.pipeline.metres.scale.metric:
        source = stream.config.pipeline.scale.source
        yet = "" if source == "none" else f" yet ({source})"
        return DiagnosticStatus.WARN, f"the scale is unknown{yet}: lengths are not metres"
    return DiagnosticStatus.OK, state


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
