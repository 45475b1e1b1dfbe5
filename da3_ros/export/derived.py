"""A scene made anew from stored keyframes: their depth is filtered and averaged again.

No network runs, and no filter that was set while the keyframes were taken counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import cv2
import numpy as np

from da3_ros.export.colmap import image_name
from da3_ros.export.cross_views import CrossViews
from da3_ros.export.selection import Progress, silent
from da3_ros.export.stored_depth import (
    DepthFilters,
    Readable,
    by_component,
    submap_poses_of,
)
from da3_ros.geometry.projection import backproject, resize_K
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.scene import Scene, Shot, SubmapCloud
from da3_ros.mapping.submap_points import compact
from da3_ros.mapping.trajectory import ROW, Poses
from da3_ros.mapping.voxel_map import VoxelMap


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
    judges = {component: CrossViews(ones) for component, ones in by_component(readable).items()}
    clouds, done = [], 0
    for id, keyframes in of_submap.items():
        T_map_submap = keyframes[0].T_map_submap
        voxels = VoxelMap(filters.voxel / T_map_submap.scale)
        for one in keyframes:
            progress("deriving points", done / len(stored.images))
            done += 1
            _insert(voxels, one, judges[one.component])
        cloud = compact(voxels.cloud())
        clouds.append(SubmapCloud(cloud, T_map_submap, stored.submaps[id].component))
    component_of = {p.id: p.component for p in stored.submaps.values()}
    return Scene(
        tuple(clouds), poses_of(stored).moved(submap_poses_of(stored)), stored.map.T_ros_map,
        KeyframeImages(stored, readable), component_of,
        {p.id: p.chain for p in stored.submaps.values()},
    )  # fmt: skip


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
    leaders = [i for i, name in enumerate(cameras) if name in stored.map.leaders]
    return Poses(rows, cameras, tuple(leaders) or (0,))


class KeyframeImages(Mapping[Shot, bytes]):
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


def _insert(voxels: VoxelMap, one: Readable, judges: CrossViews) -> None:
    """Adds the points of a keyframe that pass, in its submap's frame."""
    keyframe = one.load()
    pose = keyframe.pose
    depth = judges.judge(one, keyframe).depth / np.float32(one.T_map_submap.scale)
    known = np.isfinite(depth)
    image = np.asarray(
        cv2.resize(keyframe.image, pose.size, interpolation=cv2.INTER_AREA), np.uint8
    )
    T = pose.T_submap_camera.astype(np.float32)
    xyz = backproject(depth, pose.K)[known] @ T[:3, :3].T + T[:3, 3]
    voxels.insert(xyz, image[known], keyframe.confidence[known])
