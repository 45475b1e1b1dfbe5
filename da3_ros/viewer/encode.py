"""Messages of frames and maps for the viewer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from da3_ros.refinement.track_history import TrackHistory
from da3_ros.types import Array, TrackedFrame
from da3_ros.viewer.map_reader import MapUpdate
from da3_ros.viewer.wire import ViewerMessage


def frame_message(
    scene: str,
    frame: TrackedFrame,
    T_ros_map: Array,
    tracks: TrackHistory | None,
    range_m: tuple[float, float],
    note: str = "",
) -> ViewerMessage:
    """Returns a frame as it is published, with the feature tracks that it sees.

    range_m: depths that the colours of metric depth span. note: a line of text below, if the
    frame has depth.
    """
    metric = frame.scale.metric
    values = {
        "scene": scene, "camera": frame.camera, "stamp_ns": frame.stamp_ns, "metric": metric,
        "range": list(range_m) if metric else None,
        "note": f"No depth, pose held: {frame.blind}" if frame.blind else note,
    }  # fmt: skip
    arrays: dict[str, NDArray[np.generic]] = {
        "image": frame.image, "depth": frame.depth_m, "confidence": frame.confidence,
        "K": np.asarray(frame.K, np.float64),
        "T_ros_camera": np.asarray(T_ros_map @ frame.T_map_camera, np.float64),
    }  # fmt: skip
    arrays["depth"] = arrays["depth"].astype(np.float32)
    arrays["confidence"] = arrays["confidence"].astype(np.float32)
    if tracks is not None:
        arrays["track_position"] = tracks.position.astype(np.float32)
        arrays["track_error_px"] = tracks.error_px.astype(np.float32)
    return ViewerMessage("frame", values, arrays)


def map_message(scene: str, update: MapUpdate) -> ViewerMessage:
    """Returns a map's poses and its changed points.

    Points are float16 relative to the middle of their submap, which keeps a thousandth of their
    distance from it.
    """
    rows, chain_of = update.path.poses.rows, update.path.chain_of
    chains = [chain_of.get(int(id), 0) for id in rows["submap"]]
    poses = list(update.submaps.values())
    arrays: dict[str, NDArray[np.generic]] = {
        "T_ros_map": np.asarray(update.path.T_ros_map, np.float64),
        "scale": np.array([T.scale for T in poses], np.float64),
        "R": np.array([T.R for T in poses], np.float64).reshape(-1, 3, 3),
        "t": np.array([T.t for T in poses], np.float64).reshape(-1, 3),
        "path_T": rows["T"].astype(np.float64),
        "path_K": rows["K"].astype(np.float64),
        "path_size": rows["size"].astype(np.int32),
        "path_keyframe": rows["keyframe"].astype(np.uint8),
        "path_chain": np.array(chains, np.int32),
        "loops": np.asarray(update.loops, np.float64),
    }
    for id, points in update.points.items():
        low, high = points.xyz.min(axis=0), points.xyz.max(axis=0)
        middle = (low + high) / 2
        arrays[f"centre.{id}"] = middle.astype(np.float64)
        arrays[f"xyz.{id}"] = (points.xyz - middle).astype(np.float16)
        arrays[f"rgb.{id}"] = points.rgb
    values = {
        "scene": scene, "submaps": list(update.submaps), "changed": list(update.points),
        "unconnected": update.unconnected,
    }  # fmt: skip
    return ViewerMessage("map", values, arrays)
