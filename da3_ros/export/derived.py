"""A scene made anew from stored keyframes: their depth is filtered and averaged again.

No network runs, and no filter that was set while the keyframes were taken counts.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from da3_ros.config import DepthConfig
from da3_ros.export.colmap import image_name
from da3_ros.export.selection import MIN_VOXEL, ExportError, Progress, silent
from da3_ros.geometry.projection import backproject, resize_K
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.depth_filter import filter_depth, without_smears
from da3_ros.mapping.scene import Scene, Shot, SubmapCloud
from da3_ros.mapping.submap_points import compact
from da3_ros.mapping.trajectory import ROW, Poses
from da3_ros.mapping.voxel_map import VoxelMap
from da3_ros.types import Array, FloatImage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DepthFilters:
    """Which depth of keyframes becomes points."""

    voxel: float = 0.02  # edge of the voxels that points are averaged in, units of the scene
    min_confidence: float = 0.0
    confidence_percentile: float = 0.0  # least confident share of each keyframe, percent
    max_depth: float = math.inf  # units of the scene: metres if it is metric
    edge_filter: bool = True  # whether smears at depth edges are left out

    def check(self) -> None:
        """Raises ExportError for invalid numbers."""
        if not MIN_VOXEL <= self.voxel < math.inf:
            raise ExportError(f"voxel is {self.voxel:g}: must be at least 1e-06 and finite")
        if not 0 <= self.confidence_percentile < 100:
            raise ExportError(
                f"confidence_percentile is {self.confidence_percentile:g}: must be 0 to 99"
            )
        for name in ("min_confidence", "max_depth"):
            if not getattr(self, name) >= 0:
                raise ExportError(f"{name} is {getattr(self, name)}: must be at least 0")

    def of(self, keyframe: Keyframe, unit: float) -> FloatImage:
        """Returns the depth [h, w] of a keyframe that passes, in its submap's unit, else NaN.

        unit: units of the scene per unit of the submap.
        """
        config = DepthConfig(
            min_confidence=self.min_confidence,
            confidence_percentile=self.confidence_percentile,
            edge_filter=self.edge_filter,
        )
        sky = np.isposinf(keyframe.depth)
        depth = filter_depth(keyframe.depth, keyframe.confidence, config, sky=sky)
        if self.edge_filter:
            depth = without_smears(depth)
        depth[~(depth * np.float32(unit) <= self.max_depth) | np.isinf(depth)] = np.nan
        return depth


@dataclass(frozen=True, eq=False)
class Readable:
    """A stored keyframe that can be read, and its place."""

    stored: StoredScene
    key: int  # its index in ``stored.frames``
    filters: DepthFilters
    place: Similarity  # of its submap in the scene, in the scene's published unit

    @property
    def part(self) -> int:
        """The part of the scene that it is in."""
        return self.stored.places[self.stored.frames[self.key].submap].part

    @property
    def T_map_camera(self) -> Array:
        """Pose [4, 4] in the map, units of the scene."""
        pose = self.place.pose(self.stored.frames[self.key].T_submap_camera)
        return np.asarray(self.stored.map.T_map_world @ pose)

    def load(self) -> Keyframe:
        """Returns the keyframe. Raises JournalError if it is damaged."""
        return self.stored.load(self.key)

    def image_data(self) -> bytes:
        """Returns the JPEG of its image. Raises JournalError if it is damaged."""
        return self.stored.image_data(self.key)

    def depth_of(self, keyframe: Keyframe) -> FloatImage:
        """Returns its depth [h, w] that passes the filters, units of the scene, else NaN."""
        return self.filters.of(keyframe, self.place.scale) * np.float32(self.place.scale)


def readable_keyframes(
    stored: StoredScene, filters: DepthFilters, progress: Progress = silent
) -> list[Readable]:
    """Returns the keyframes that are not damaged, with a warning for each of the others.

    ``progress`` may raise, which ends the work. Raises ExportError if none is left.
    """
    places, out = _places(stored), []
    for key in stored.images:
        progress("checking keyframes", 0.0)
        one = Readable(stored, key, filters, places[stored.frames[key].submap])
        try:
            stored.check(key)
        except JournalError as error:
            log.warning("%s: it is left out", error)
        else:
            out.append(one)
    if stored.images and not out:
        raise ExportError("all stored keyframes are damaged")
    return out


def file_names(keyframes: Sequence[Readable]) -> list[str]:
    """Returns a name for the files of each keyframe, without suffix."""
    names: dict[str, None] = {}
    for one in keyframes:
        frame = one.stored.frames[one.key]
        name = image_name(frame.camera, frame.stamp_ns)
        # A recording that is played again repeats stamps.
        names[f"{name}_{one.key}" if name in names else name] = None
    return list(names)


def derived_scene(
    stored: StoredScene, readable: Sequence[Readable], filters: DepthFilters,
    progress: Progress = silent,
) -> Scene:  # fmt: skip
    """Returns the scene of the readable keyframes, with the poses of all frames.

    ``progress`` may raise, which ends the work. Raises ExportError.
    """
    filters.check()
    of_submap: defaultdict[int, list[Readable]] = defaultdict(list)
    for one in readable:
        of_submap[stored.frames[one.key].submap].append(one)
    clouds, done = [], 0
    for id, keyframes in of_submap.items():
        place = keyframes[0].place
        voxels = VoxelMap(filters.voxel / place.scale)
        for one in keyframes:
            progress("deriving points", done / len(stored.images))
            done += 1
            _insert(voxels, one.load(), filters, place.scale)
        clouds.append(SubmapCloud(compact(voxels.cloud()), place, stored.places[id].part))
    part_of = {p.id: p.part for p in stored.places.values()}
    return Scene(
        tuple(clouds), poses_of(stored).moved(_places(stored)), stored.map.T_map_world,
        StoredImages(stored, readable), part_of,
    )  # fmt: skip


def _places(stored: StoredScene) -> dict[int, Similarity]:
    """Returns the places of submaps in the world, in metres if the scene is metric."""
    scale = stored.map.scene_scale
    places = ((p.id, p.T_scene_submap) for p in stored.places.values())
    return {id: Similarity(scale * S.scale, S.R, scale * S.t) for id, S in places}


def poses_of(stored: StoredScene) -> Poses:
    """Returns the poses of all frames in the frames of their submaps; keyframes have the K and the
    size of their stored images."""
    frames = stored.placed_frames
    cameras = tuple(dict.fromkeys(f.camera for f in frames.values()))
    rows = np.zeros(len(frames), ROW)
    for row, (index, f) in zip(rows, frames.items(), strict=True):
        K, size = f.K, f.size
        if index in stored.images:
            size = stored.images[index].image_size
            K = resize_K(K, f.size, size)
        row["stamp_ns"], row["T"], row["size"] = f.stamp_ns, f.T_submap_camera[:3], size
        row["K"] = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
        row["submap"], row["camera"] = f.submap, cameras.index(f.camera)
        row["keyframe"] = f.keyframe
    return Poses(rows, cameras)


class StoredImages(Mapping[Shot, bytes]):
    """The images of stored keyframes, read when they are asked for."""

    def __init__(self, stored: StoredScene, readable: Iterable[Readable]) -> None:
        self._stored = stored
        self._index = {stored.frames[one.key].key: one.key for one in readable}

    def __getitem__(self, key: Shot) -> bytes:
        return self._stored.image_data(self._index[key])

    def __iter__(self) -> Iterator[Shot]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


def _insert(voxels: VoxelMap, keyframe: Keyframe, filters: DepthFilters, unit: float) -> None:
    """Adds the points of a keyframe that pass, in its submap's frame."""
    depth, pose = filters.of(keyframe, unit), keyframe.pose
    known = np.isfinite(depth)
    image = np.asarray(
        cv2.resize(keyframe.image, pose.size, interpolation=cv2.INTER_AREA), np.uint8
    )
    T = pose.T_submap_camera.astype(np.float32)
    xyz = backproject(depth, pose.K)[known] @ T[:3, :3].T + T[:3, 3]
    voxels.insert(xyz, image[known], keyframe.confidence[known])
