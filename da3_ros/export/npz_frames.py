"""Writes each stored keyframe as an NPZ file, for programs of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from da3_ros.export.derived import file_names
from da3_ros.export.selection import Progress, silent
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.keyframe_store.store import StoredScene

SUFFIX, MARKER = ".npz", "da3_ros.txt"


def write_npz_frames(
    stored: StoredScene, filters: DepthFilters | None, folder: Path, progress: Progress = silent
) -> int:
    """Writes the keyframes into an empty folder; returns their number.

    Of each keyframe ``depth`` and ``confidence`` [h, w], ``image`` [H, W, 3], ``K`` [3, 3] of the
    depth (corner rule), ``T_map_camera`` [4, 4], ``stamp_ns``, ``camera``, ``metric``. Depth is in
    the unit of ``T_map_camera``: metres if ``metric``. filters: of the depth; None: none. Damaged
    keyframes are left out, with a warning. Raises ExportError.
    """
    readable = readable_keyframes(stored, filters or DepthFilters())
    (folder / MARKER).write_text("Keyframes of da3_ros, docs/keyframes.md\n")
    for done, (one, name) in enumerate(zip(readable, file_names(readable), strict=True)):
        progress("writing keyframes", done / len(readable))
        keyframe = one.load()
        pose = keyframe.pose
        raw = keyframe.depth * np.float32(one.place.scale)
        file = folder / f"{name}{SUFFIX}"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            file, depth=raw if filters is None else one.depth_of(keyframe),
            confidence=keyframe.confidence, image=keyframe.image, K=pose.K,
            T_map_camera=one.T_map_camera, stamp_ns=pose.stamp_ns, camera=pose.camera,
            metric=stored.map.metric,
        )  # fmt: skip
    return len(readable)


def is_npz_frames(folder: Path) -> bool:
    """True if a folder holds such files and nothing else."""
    files = [p for p in folder.rglob("*") if not p.is_dir()]
    ours = (folder / MARKER).is_file()
    return ours and all(p.suffix == SUFFIX or p.name == MARKER for p in files)
