"""Writes each stored keyframe as an NPZ file, for programs of one's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from da3_ros.export.atomic_files import atomic_folder, files_in, size_of
from da3_ros.export.cross_views import CrossViews
from da3_ros.export.derived import file_names
from da3_ros.export.selection import Progress, silent
from da3_ros.export.stored_depth import DepthFilters, by_component, readable_keyframes
from da3_ros.keyframe_store.store import StoredScene

SUFFIX, MARKER = ".npz", "da3_ros.txt"
NAME = re.compile(r"-?\d+(_\d+)?\.npz")  # a stamp, or one that came again


@dataclass(frozen=True)
class ExportedFrames:
    """The result of an export of keyframes."""

    path: Path
    count: int  # of keyframes that could be read
    bytes: int  # of all files
    keyframes: int  # that are stored
    points: int = 0

    @property
    def text(self) -> str:
        """The result in one line."""
        return f"{self.count} keyframes in {self.path}"


def export_npz_frames(
    stored: StoredScene, path: Path, filters: DepthFilters | None, progress: Progress = silent
) -> ExportedFrames:
    """Writes the keyframes as files of the folder ``path``, as ``write_npz_frames``."""
    with atomic_folder(path, foreign_to_npz_frames) as temporary:
        count = write_npz_frames(stored, filters, temporary, progress)
    return ExportedFrames(path, count, size_of(path), len(stored.images))


def write_npz_frames(
    stored: StoredScene, filters: DepthFilters | None, folder: Path, progress: Progress = silent
) -> int:
    """Writes the keyframes into an empty folder; returns their number.

    Of each keyframe ``depth`` and ``confidence`` [h, w], ``image`` [H, W, 3], ``K`` [3, 3] of the
    depth (corner rule), ``T_map_camera`` [4, 4], ``stamp_ns``, ``camera``, ``metric``. Depth is in
    the unit of ``T_map_camera``: metres if ``metric``. Where depth was measured also
    ``network_depth``, ``sigma`` (relative standard deviation of ``depth``) and ``measured``
    [h, w], none of which is filtered. filters: depth that does not pass is NaN,
    and what other keyframes look through; None: depth as it is stored. Damaged keyframes are left
    out, with a warning. Raises ExportError.
    """
    readable = readable_keyframes(stored, filters or DepthFilters(), progress)
    judges = {component: CrossViews(ones) for component, ones in by_component(readable).items()}
    (folder / MARKER).write_text("Keyframes of da3_ros, docs/keyframes.md\n")
    for done, (one, name) in enumerate(zip(readable, file_names(readable), strict=True)):
        progress("writing keyframes", done / len(readable))
        keyframe = one.load()
        pose = keyframe.pose
        if filters is None or filters.is_source_only:
            depth = keyframe.depth * np.float32(one.T_map_submap.scale)
        else:
            depth = judges[one.component].judge(one, keyframe).depth
        dense, more = one.load_dense(), {}
        if dense is not None:
            network = one.load_network_depth() * np.float32(one.T_map_submap.scale)
            more = {"network_depth": network, "sigma": dense.sigma, "measured": dense.measured}
        file = folder / f"{name}{SUFFIX}"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            file, depth=depth, confidence=keyframe.confidence, image=keyframe.image, K=pose.K,
            T_map_camera=one.T_ros_camera, stamp_ns=pose.stamp_ns, camera=pose.camera,
            metric=stored.map.metric, **more,
        )  # fmt: skip
    return len(readable)


def foreign_to_npz_frames(folder: Path) -> Path | None:
    """Returns a file of a folder that was not written here; None: all were."""
    marker = folder / MARKER
    known = marker.is_file()
    foreign = (p for p in files_in(folder)
               if not known or (p != marker and not NAME.fullmatch(p.name)))  # fmt: skip
    return next(foreign, None)
