"""The node's status: ``~/status`` for programs, ``/diagnostics`` for people."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from da3_ros.live.health import Facts, assess
from da3_ros.live.map_fault import map_fault
from da3_ros.live.stream import Stream
from da3_ros.mapping.scene import REFERENCE
from da3_ros.messages import build
from da3_ros.messages.build import MessageLibrary
from da3_ros.network import MODELS
from da3_ros.ros.camera_subscriber import ImageFacts
from da3_ros.types import WindowReport

BLIND = "blind_"  # begins the names of counters of images that showed nothing


@dataclass(frozen=True)
class NodeFacts:
    """The node's own part of its status."""

    name: str  # fully qualified
    library: MessageLibrary
    now_ns: int  # ROS clock
    state: str  # lifecycle state
    enabled: bool  # as set by ~/enable
    last_error: str
    failure: str  # why the last lifecycle transition failed; empty if it succeeded
    images: ImageFacts | None  # None if not active
    conflicts: tuple[str, ...] = ()  # other nodes that disturb this one
    mesh_percent: float = math.nan  # of the mesh that a service makes; NaN: none


def status(node: NodeFacts, stream: Stream | None) -> Any:
    """Returns da3_ros/Status; unknown fields are NaN, 0 or empty."""
    if stream is None:
        return build.status(
            node.library, node.now_ns, state=node.state, last_error=node.last_error
        )
    config = stream.config.pipeline
    gaps = node.images.lost if node.images is not None else 0
    lost = {"lost_on_the_way": gaps} if gaps else {}
    median, p95 = stream.latency()
    scenes = stream.pipelines
    scale = stream.last_report.scale if stream.last_report else None
    session = dataclasses.asdict(stream.session.status())
    own_keys = (
        "backend",
        "backend_since",
        "int8_weight_bits",
    )  # in diagnostics only: the message does not change
    return build.status(
        node.library,
        node.now_ns,
        state=node.state,
        model=config.inference.model,
        license=MODELS[config.inference.model].license,
        window_size=stream.pipeline.builder.window_size,
        process_size=stream.process_size,
        **{name: value for name, value in session.items() if name not in own_keys},
        frames_received=stream.frame_counts.received,
        frames_processed=stream.frame_counts.processed,
        drops=stream.frame_counts.drop_counts() | lost,
        input_hz=stream.arrived.rate_hz(),
        output_hz=stream.published.rate_hz(),
        latency_median_s=median,
        latency_p95_s=p95,
        scale_source=scale.source if scale and scale.metric else config.scale.source,
        scale=scale.value if scale else math.nan,
        scale_sigma=scale.sigma if scale else math.nan,
        map_points=sum(len(scene.map) for scene in scenes),
        map_memory_mb=sum(
            scene.map.nbytes + scene.loops.keyframes.nbytes + scene.odometry.uncertainty.nbytes
            for scene in scenes
        )
        / 2**20,
        last_error=node.last_error,
    )


def diagnostics(node: NodeFacts, stream: Stream | None) -> DiagnosticArray:
    """Returns one DiagnosticStatus; its level and message come from ``health.assess``."""
    message = status(node, stream)
    drops = dict(zip(message.drop_causes, message.drop_counts, strict=True))
    level, text = assess(_facts(node, stream, drops))
    values = {
        name: getattr(message, name)
        for name in message.get_fields_and_field_types()
        if name not in ("header", "drop_causes", "drop_counts")
    }
    values.update({f"dropped_{cause}": count for cause, count in drops.items()})
    values["publish_failed"] = stream.publish_failed if stream else 0
    values.update({} if stream is None else _blind(stream))
    values.update(_ranges(stream) | _viewer(stream))
    values.update(_backend(stream) | _alignment(stream) | _times(stream, node.now_ns))
    values["mesh_percent"] = node.mesh_percent
    values["input_stamp_age_s"] = math.nan if node.images is None else node.images.stamp_age_s
    out = DiagnosticArray()
    out.header = message.header
    out.status = [
        DiagnosticStatus(
            level=bytes([level]),
            name=f"{node.name}: stream",
            message=text,
            hardware_id=message.device or "none",
            values=[KeyValue(key=k, value=_text(v)) for k, v in values.items()],
        )
    ]
    return out


def _backend(stream: Stream | None) -> dict[str, Any]:
    """Returns the runtime of the newest window, the first window on it, and the bits of int8."""
    if stream is None or stream.last_report is None:
        return {}
    session = stream.session.status()
    bits = session.int8_weight_bits
    return {"backend": session.backend, "backend_since_window": session.backend_since} | (
        {} if bits is None else {"int8_weight_bits": bits}
    )


def _alignment(stream: Stream | None) -> dict[str, Any]:
    """Returns the alignment of the newest window, and the components of the scene."""
    report = stream.last_report if stream else None
    if stream is None or report is None:
        return {}
    scenes = [pipeline.map for pipeline in stream.pipelines]
    components = [scene.components for scene in scenes]
    return (
        {
            "mode": stream.config.pipeline.mode,
            "place": "known" if all(scene.pose_known for scene in scenes) else "guessed",
            "place_search_s": float(
                np.fmax.reduce([p.pose_search.seconds for p in stream.pipelines])
            ),
            "poses_held": sum(p.counters["poses_held"] for p in stream.pipelines),
            "frames_standing": sum(p.counters["frames_standing"] for p in stream.pipelines),
            "parts": sum(map(len, components)),
            "parts_guessed": sum(len(ids - {REFERENCE}) for ids in components),
            "alignment_rms": report.alignment_rms,
            "alignment_inliers": report.alignment_inliers,
            "focal_ratio": report.focal_ratio,  # the network's focal length over camera_info's
            "focal_source": ", ".join(sorted(_focal_sources(stream))),
            "loops_looked_at": sum(p.loops.looked_at for p in stream.pipelines),
            "loops_verified": sum(p.loops.found for p in stream.pipelines),
            "loops_closed": sum(p.loops.closed for p in stream.pipelines),
            "joins_undone": sum(p.loops.undone for p in stream.pipelines),
        }
        | _scales(stream)
        | _imu(stream)
        | _following(stream)
        | _anchors(stream)
        | _refinement(stream, report)
        | _dense(stream)
    )


def _scales(stream: Stream) -> dict[str, Any]:
    """Returns what each of several sources of metres says: metres per unit of odometry, the
    relative standard deviation, and whether it counts."""
    found: dict[str, Any] = {}
    for one in stream.pipeline.scale.filter.estimator.states:
        said = one.estimate
        found[f"scale_{one.name}"] = math.nan if said is None else math.exp(said.log)
        found[f"scale_sigma_{one.name}"] = math.nan if said is None else said.sigma
        found[f"scale_state_{one.name}"] = one.state
    return found


def _imu(stream: Stream) -> dict[str, Any]:
    """Returns whether the cameras' rotations confirm the gyro, and frames without its data."""
    if stream.imu is None:
        return {}
    known = [state for p in stream.pipelines for state in p.gyro.states.items()]
    # In independent mode each camera has a scene, and in it a mount of the IMU.
    mounts = [(p.scene_map.level_finder.camera, p.gyro.mount) for p in stream.pipelines]
    late = [one.time_offset_s.seconds for _, one in mounts if one.time_offset_s is not None]
    faults = [(camera, one.fault) for camera, one in mounts if one.fault]
    states = {f"{camera}: {one}" if camera else one for camera, (one, _) in known}
    return {
        "imu": ", ".join(sorted(states)) or "no data",
        "gyro_bias_deg_s": math.degrees(_longest([math.nan, *(bias for _, (_, bias) in known)])),
        "imu_late_s": max(late, key=abs, default=math.nan),
        "imu_fault": "; ".join(f"{camera}: {one}" if camera else one for camera, one in faults),
        "frames_without_imu": stream.imu.without,
        "gaps_bridged": sum(p.counters["gaps_bridged"] for p in stream.pipelines),
    }


def _following(stream: Stream) -> dict[str, Any]:
    """Returns how often the map has followed another SLAM, and how far the last time."""
    following = [f for p in stream.pipelines if (f := p.scene_map.following).enabled]
    if not following:
        return {}
    return {
        "corrections_followed": sum(f.count for f in following),
        "correction_m": _longest([f.metres for f in following]),
    }


def _anchors(stream: Stream) -> dict[str, Any]:
    """Returns how many global poses have come, how many do not fit, and how often the map has
    moved by them."""
    count = Counter[str]()
    for pipeline in stream.pipelines:
        count.update(pipeline.counters)
    names = ("anchors", "anchors_wrong", "anchors_without_frame", "anchor_corrections")
    return {name: count[name] for name in names} if count["anchors"] else {}


def _longest(seconds: list[float]) -> float:
    """Returns the largest value that is not NaN; NaN if there is none."""
    return float(np.fmax.reduce(seconds))


def _refinement(stream: Stream, report: WindowReport) -> dict[str, Any]:
    """Returns the feature tracks of the newest window, and the windows that had too few."""
    if not stream.config.pipeline.refinement.enabled:
        return {"refined": "off"}
    count = Counter[str]()
    for pipeline in stream.pipelines:
        count.update(pipeline.counters)
    return {
        "refined": "yes" if report.refined else "no",
        "tracks": report.tracks,
        "reprojection_px": report.reprojection_px,
        "windows_refined": count["windows_refined"],
        "windows_few_tracks": count["windows_few_tracks"],
        "refinement_skipped": count["refinement_skipped"],
        "refinement_failed": count["refinement_failed"],
        "map_adjustments": count["map_adjustments"],
        "map_adjustments_refused": count["map_adjustments_refused"],
        "map_adjustments_failed": count["map_adjustments_failed"],
    }


def _dense(stream: Stream) -> dict[str, Any]:
    """Returns how much of the keyframes' depth is measured, of the first camera's map, and what
    was left out."""
    config = stream.config.pipeline
    measures = config.refinement.enabled or stream.ranges is not None
    if not (config.dense.enabled and measures):
        return {"dense": "off"}
    count = Counter[str]()
    for pipeline in stream.pipelines:
        count.update(pipeline.counters)
    so_far = stream.pipeline.scene_map.dense.so_far
    return {
        "dense_keyframes": so_far.keyframes,
        "dense_share": so_far.share,
        "dense_agreement": so_far.agreement,
        "dense_s": so_far.seconds_per_keyframe,
        "dense_waiting": sum(p.scene_map.dense.waiting for p in stream.pipelines),
        "keyframes_depth_skipped": count["keyframes_depth_skipped"],
        "keyframes_depth_failed": count["keyframes_depth_failed"],
        "depth_not_stored": count["depth_not_stored"],
        "frames_depth_corrected": count["frames_depth_corrected"],
    }


def _ranges(stream: Stream | None) -> dict[str, Any]:
    """Returns the newest frame's returns of range sensors, how much older they are than it, and
    messages without returns by cause."""
    if stream is None or stream.ranges is None:
        return {}
    sensors = stream.ranges
    return {"returns": sensors.returns, "returns_age_s": sensors.age_s} | dict(sensors.counts)


def _viewer(stream: Stream | None) -> dict[str, str]:
    """Returns the address of the page in a browser, or why there is none; empty while it
    starts."""
    if stream is None or stream.view is None:
        return {}
    feed = stream.view.feed
    return {"viewer": feed.url or feed.failure}


def _focal_sources(stream: Stream) -> set[str]:
    """Returns where focal lengths are from, with the camera's name if it has one."""
    sources = [p.refinement.focal_sources for p in stream.pipelines]
    return {f"{name}: {one}" if name else one for s in sources for name, one in s.items()}


def _times(stream: Stream | None, now_ns: int) -> dict[str, float]:
    """Returns ages of the newest image and result, and times of the processing stages, seconds."""
    if stream is None:
        return {}
    ages = {
        "input_age_s": stream.arrived.age_s(now_ns), "output_age_s": stream.published.age_s(now_ns)
    }  # fmt: skip
    return ages | {"warm_up_s": stream.warm_up_s} | stream.stages.summary()


def _blind(stream: Stream) -> dict[str, int]:
    """Returns the images that showed nothing, by cause and camera."""
    count = Counter[str]()
    for pipeline in stream.pipelines:
        count.update(pipeline.counters)
    return {name: n for name, n in sorted(count.items()) if name.startswith(BLIND)}


def _facts(node: NodeFacts, stream: Stream | None, drops: dict[str, int]) -> Facts:
    """Collects the facts that ``health.assess`` needs."""
    if stream is None:
        return Facts(node.state, configured=False, failure=node.failure, conflicts=node.conflicts)
    now, silent = time.monotonic(), stream.published.silent_s()
    refused = sum(p.counters["windows_refused"] for p in stream.pipelines)
    unrefined = sum(p.counters["refinement_failed"] for p in stream.pipelines)
    failures = {
        "windows_refused": refused, "refinement_failed": unrefined,
        "publish_failed": stream.publish_failed,
    } | _blind(stream)  # fmt: skip
    growing = stream.growth.update(drops | failures, now)
    scale = stream.pipeline.scale
    unknown = scale.source.why_unknown(stream.config.pipeline.scale.source)
    return Facts(
        node.state,
        enabled=node.enabled,
        last_error=node.last_error,
        failure=node.failure,
        input_age_s=stream.arrived.silent_s(),
        output_age_s=stream.arrived.since_first_s() if silent is None else silent,
        growing=tuple(cause for cause in growing if cause not in failures),
        blind=tuple(
            cause.removeprefix(BLIND).replace("_", " of ", 1)
            for cause in growing
            if cause.startswith(BLIND)
        ),
        refused="windows_refused" in growing,
        unrefined="refinement_failed" in growing,
        unpublished="publish_failed" in growing,
        degraded=stream.session.status().degraded,
        scale="" if scale.scale.metric else f"{unknown}: lengths are not in metres",
        map_fault=next(filter(None, map(map_fault, stream.pipelines)), ""),
        stamp_age_s=math.nan if node.images is None else node.images.stamp_age_s,
        silent=() if node.images is None else node.images.silent,
        conflicts=node.conflicts,
    )


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
