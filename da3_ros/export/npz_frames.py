"""Writes each stored keyframe as an NPZ file, for programs of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from da3_ros.export.colmap import image_name
from da3_ros.export.selection import Progress, silent
from da3_ros.keyframe_store.store import StoredScene

SUFFIX = ".npz"


def write_npz_frames(stored: StoredScene, folder: Path, progress: Progress = silent) -> int:
    """Writes the keyframes into an empty folder; returns their number.

    Of each keyframe ``depth`` and ``confidence`` [h, w], ``image`` [H, W, 3], ``K`` [3, 3] of the
    depth (corner rule), ``T_map_camera`` [4, 4], ``stamp_ns``, ``camera``, ``metric``. Depth is in
    the unit of ``T_map_camera``: metres if ``metric``. Raises JournalError for a damaged keyframe.
    """
    state = stored.map
    for done, key in enumerate(stored.images):
        progress("writing keyframes", done / len(stored.images))
        keyframe = stored.load(key)
        pose, S = keyframe.pose, stored.places[keyframe.pose.submap].T_scene_submap
        T = S.pose(pose.T_submap_camera)
        T[:3, 3] *= state.scene_scale
        unit = np.float32(S.scale * state.scene_scale)
        file = folder / image_name(pose.camera, pose.stamp_ns, "npz")
        if file.exists():  # a recording that was played again repeats stamps
            file = file.with_name(f"{pose.stamp_ns}_{key}.npz")
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            file, depth=keyframe.depth * unit, confidence=keyframe.confidence,
            image=keyframe.image, K=pose.K, T_map_camera=state.T_map_world @ T,
            stamp_ns=pose.stamp_ns, camera=pose.camera, metric=state.metric,
        )  # fmt: skip
    return len(stored.images)


def is_npz_frames(folder: Path) -> bool:
    """True if a folder holds such files and nothing else."""
    return all(p.suffix == SUFFIX for p in folder.rglob("*") if not p.is_dir())
