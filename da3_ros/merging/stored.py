"""The stored keyframes of several scenes, in one journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from da3_ros.export.selection import Progress, silent
from da3_ros.export.stored_depth import submap_poses_of
from da3_ros.keyframe_store.keyframe import FramePose
from da3_ros.keyframe_store.store import MapState, StoredScene, StoredSubmap, StoreWriter
from da3_ros.merging.inputs import InputScene

# Returns a stored submap, given with its new id, as it is in the merged scene; None: left out.
Placed = Callable[[StoredSubmap], StoredSubmap | None]


def write_stored(
    inputs: Sequence[InputScene], placed: Placed, state: MapState, folder: Path,
    progress: Progress = silent,
) -> None:  # fmt: skip
    """Writes the stored keyframes of all scenes that have some into ``folder``.

    Images and depth are copied as they are; ids, cameras and poses are those of the merged
    scene. Raises OSError, JournalError.
    """
    writer, first_track = StoreWriter(folder), 0
    try:
        writer.set_map(state)
        for one in inputs:
            if one.reader.has_keyframes:
                with one.reader.keyframes() as stored:
                    submaps = _submaps(one, stored, placed)
                    writer.place(submaps.values())
                    first_track = _copy(one, stored, submaps, writer, first_track, progress)
        writer.journal.sync()
    finally:
        writer.journal.close()


def _submaps(one: InputScene, stored: StoredScene, placed: Placed) -> dict[int, StoredSubmap]:
    """Returns the submaps in the merged scene, by the ids in the scene of their own."""
    out: dict[int, StoredSubmap] = {}
    for id, S in submap_poses_of(stored).items():
        about = stored.submaps[id]
        numbers = (
            id + one.first_submap, about.chain + one.first_chain,
            about.component + one.first_component,
        )  # fmt: skip
        if id < one.submap_count and (submap := placed(StoredSubmap(*numbers, S))) is not None:
            out[id] = submap
    return out


def _copy(
    one: InputScene, stored: StoredScene, submaps: Mapping[int, StoredSubmap], writer: StoreWriter,
    first_track: int, progress: Progress,
) -> int:  # fmt: skip
    """Copies the frames of a scene; returns the first number of the next one's tracks."""
    next_track, others = first_track, list[FramePose]()  # frames that are no keyframes
    for key, frame in stored.placed_frames.items():
        progress("copying keyframes", key / len(stored.frames))
        if frame.submap not in submaps:
            continue
        submap, camera = submaps[frame.submap].id, one.camera(frame.camera)
        pose = replace(frame, camera=camera, submap=submap)
        if key not in stored.images:
            others.append(pose)
            continue
        if others:
            writer.add_frames(others)
            others = []
        next_track = max(next_track, writer.copy(stored, key, pose, first_track))
    if others:
        writer.add_frames(others)
    return next_track
