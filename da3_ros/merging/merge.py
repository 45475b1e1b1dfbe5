"""Merges saved scenes of several sessions or robots into one folder.

The scenes are checked, then compared, and only then the result is written, submap by submap. The
reference is the first metric scene, else the first: its map frame, pose and size stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.export.atomic_files import atomic_folder
from da3_ros.export.scene_file import write_scene
from da3_ros.export.scene_folder import check_scene_target, foreign_to_scene
from da3_ros.export.selection import Progress, silent
from da3_ros.keyframe_store.store import MapState, StoredSubmap
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import Snapshot
from da3_ros.mapping.trajectory import Poses
from da3_ros.merging.inputs import (
    Copy,
    InputScene,
    MergeError,
    check_folders,
    open_inputs,
    open_without_copies,
)
from da3_ros.merging.joining import Joined, LoopNetwork, SceneJoiner
from da3_ros.merging.network import check_weights, open_loop_network
from da3_ros.merging.placing import Placement, box_of
from da3_ros.merging.stored import write_stored
from da3_ros.types import Array


@dataclass(frozen=True, eq=False)
class SceneOutcome:
    """What became of a scene."""

    name: str
    is_reference: bool
    metric: bool  # whether its own lengths were metres
    loops: Mapping[str, int]  # number of loops with other scenes, by their names
    components: int
    unconnected: int  # components that are so, and were none of the reference scene
    left_out: int  # components without metres that met no metric scene
    recognised: bool  # whether it has what recognises its locations
    lacks_keyframes: bool  # whether its keyframes are not stored, though those of others are


@dataclass(frozen=True, eq=False)
class MergeSummary:
    """What was done."""

    output: Path
    scenes: tuple[SceneOutcome, ...]
    metric: bool
    looks: int  # windows that were verified
    copies: tuple[Copy, ...] = ()  # scenes that were left out, not in ``scenes``

    @property
    def is_complete(self) -> bool:
        """Whether all frames of all scenes have a known pose in the map."""
        all_there = all(one.is_whole for one in self.copies)
        return all_there and not any(one.unconnected or one.left_out for one in self.scenes)


def merge(
    folders: Sequence[Path], output: Path, config: PipelineConfig,
    network: LoopNetwork | None = None, progress: Progress = silent,
    *, leave_out_copies: bool = False,
) -> MergeSummary:  # fmt: skip
    """Merges the scenes in ``folders`` into a new scene in ``output``.

    network: replaces the one that ``config`` names. leave_out_copies: of scenes with common frames
    all but the largest are left out; else they are an error. Raises MergeError, ExportError,
    SceneFileError, JournalError, and what opening a network raises; then nothing is written.
    """
    if len(folders) < 2:
        raise MergeError("name at least two scenes")
    check_folders(folders, output)
    check_scene_target(output)
    copies: Sequence[Copy] = ()
    if leave_out_copies:
        inputs, copies = open_without_copies(folders)
    else:
        inputs = open_inputs(folders)
    boxes = checked_boxes(inputs, progress)
    if check_weights(inputs, config) and network is None:
        network = open_loop_network(config)
    joiner = SceneJoiner(inputs, network, progress)
    joined = joiner.join()
    placement = Placement(joiner.components, joined, boxes)
    merged = merged_scene(inputs, joined, placement)
    _write(inputs, merged, placement, output, progress)
    return replace(summary(inputs, joined, placement, output), copies=tuple(copies))


def checked_boxes(inputs: Sequence[InputScene], progress: Progress) -> dict[int, Array]:
    """Reads all points and images once; returns the box [8, 3] of each submap in its scene.

    Raises SceneFileError: before work of minutes.
    """
    boxes = {}
    for one in inputs:
        poses, submaps = one.poses().rows, one.submaps
        for number, submap in enumerate(submaps):
            progress("checking scenes", number / len(submaps))
            points = [one.filled(submap.id).cloud.xyz]
            points.append(poses["T"][poses["submap"] == submap.id][:, :, 3])
            if sum(map(len, points)):
                box = box_of(np.concatenate(points))
                boxes[submap.id] = submap.T_map_submap.points(box)
    return boxes


def merged_scene(inputs: Sequence[InputScene], joined: Joined, placement: Placement) -> Snapshot:
    """Returns the merged scene; its submaps have no points and images yet."""
    reference = inputs[0].saved
    submaps = [
        replace(submap, T_map_submap=move @ submap.T_map_submap,
                component=placement.component_of[submap.component])
        for one in inputs for submap in one.submaps
        if (move := placement.move(submap.id)) is not None
    ]  # fmt: skip
    poses = joined_poses([one.poses() for one in inputs])
    poses = poses.take(np.isin(poses.rows["submap"], [s.id for s in submaps]))
    chain = sum(one.chain_count for one in inputs) - 1
    ids = {s.id for s in submaps}
    views = tuple(v for one in inputs for v in one.floor() if v.submap in ids)
    # Those of others may be in the frame of another site.
    anchors = tuple(a for a in inputs[0].anchors() if a.submap in ids)
    return replace(
        reference, submaps=tuple(submaps), poses=poses, chain=chain, anchors=anchors,
        recognition=_recognition(joined, placement), floor=replace(reference.floor, views=views),
    )  # fmt: skip


def joined_poses(tables: Sequence[Poses]) -> Poses:
    """Returns the rows of several tables, one after the other; all leading cameras lead."""
    cameras = tuple(dict.fromkeys(name for one in tables for name in one.cameras))
    leaders = {cameras.index(one.cameras[i]) for one in tables for i in one.leaders}
    rows = []
    for one in tables:
        rows.append(one.rows.copy())
        index = np.array([cameras.index(name) for name in one.cameras], np.int16)
        rows[-1]["camera"] = index[one.rows["camera"]]
    return Poses(np.concatenate(rows), cameras, tuple(sorted(leaders)))


def _recognition(joined: Joined, placement: Placement) -> Recognition:
    """Returns what recognises all that is not left out."""
    known, component = joined.recognition, placement.components.component
    poses = {
        id: placement.move_of_component(component(id)) @ T
        for id, T in known.T_map_submap.items() if component(id) in placement.component_of
    }  # fmt: skip
    return replace(
        known,
        nodes=tuple(n for n in known.nodes if n.first in poses),
        edges=tuple(e for e in known.edges if e.first in poses and e.second in poses),
        keyframes=tuple(k for k in known.keyframes if k.submap in poses),
        T_map_submap=poses,
    )


def _write(
    inputs: Sequence[InputScene], merged: Snapshot, placement: Placement, output: Path,
    progress: Progress,
) -> None:  # fmt: skip
    """Writes the merged scene, with the stored keyframes of those that have some."""
    submaps, components = {s.id: s for s in merged.submaps}, placement.components

    def filled(submap: Submap) -> Submap:
        own = inputs[components.scene(submap.id)].filled(submap.id)
        return replace(own, T_map_submap=submap.T_map_submap, component=submap.component)

    def placed(stored: StoredSubmap) -> StoredSubmap | None:
        move = placement.move(stored.id)
        if move is None:
            return None
        moved = move @ stored.T_map_submap
        component = placement.component_of[components.component(stored.id)]
        there = submaps.get(stored.id)
        return replace(
            stored,
            component=component,
            T_map_submap=moved if there is None else there.T_map_submap,
        )

    with atomic_folder(output, foreign_to_scene) as folder:
        if any(one.reader.has_keyframes for one in inputs):
            leaders = tuple(merged.poses.cameras[i] for i in merged.poses.leaders)
            state = MapState(merged.metric, 1.0, merged.unit, merged.T_ros_map, leaders)
            write_stored(inputs, placed, state, folder, progress)
        write_scene(merged, folder, progress, filled)


def summary(
    inputs: Sequence[InputScene], joined: Joined, placement: Placement, output: Path
) -> MergeSummary:
    """Returns what became of each scene."""
    components = placement.components
    pairs = Counter(
        frozenset((components.scene_of_component(a), components.scene_of_component(b)))
        for a, b in joined.loops
    )
    scenes, stored = [], any(one.reader.has_keyframes for one in inputs)
    for number, one in enumerate(inputs):
        own = [
            component
            for component in components.all
            if components.scene_of_component(component) == number
        ]
        there = [placement.component_of.get(component) for component in own]
        loops = {
            inputs[min(pair - {number})].name: count
            for pair, count in pairs.items() if number in pair
        }  # fmt: skip
        unconnected = (
            sum(component not in (None, REFERENCE) for component in there) if number else 0
        )
        scenes.append(
            SceneOutcome(
                one.name, number == 0, one.saved.metric, loops, len(own), unconnected,
                there.count(None), one.recognition() is not None,
                stored and not one.reader.has_keyframes,
            )
        )  # fmt: skip
    return MergeSummary(output, tuple(scenes), inputs[0].saved.metric, joined.looks)
