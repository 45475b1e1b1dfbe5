"""Depth of stored keyframes, filtered as an export asks for, and the poses of keyframes."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from da3_ros.config import DepthConfig
from da3_ros.export.selection import MIN_VOXEL, ExportError, NumberError, Progress, silent
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.depth_filter import filter_depth, without_smears
from da3_ros.types import Array, DenseDepth, FloatImage

if TYPE_CHECKING:
    from da3_ros.export.measured_depth import MeasuredDepth

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DepthFilters:
    """Which depth of keyframes becomes points."""

    voxel: float = 0.02  # edge of the voxels that points are averaged in, units of the scene
    min_confidence: float = 0.0
    confidence_percentile: float = 0.0  # least confident share of each keyframe, percent
    max_depth: float = math.inf  # units of the scene: metres if it is metric
    edge_filter: bool = True  # whether smears at depth edges are left out
    remove_movers: bool = True  # whether what other keyframes look through is left out
    measure: bool = False  # whether depth is measured by the images first
    network: bool = False  # whether the network's depth is used where measured depth is stored
    is_source_only: bool = False  # whether these two alone were asked for: NPZ is not filtered

    def check(self) -> None:
        """Raises ExportError for invalid numbers."""
        if not MIN_VOXEL <= self.voxel < math.inf:
            raise NumberError("voxel", f"is {self.voxel:g}: must be at least 1e-06 and finite")
        if not 0 <= self.confidence_percentile < 100:
            raise NumberError(
                "confidence_percentile",
                f"is {self.confidence_percentile:g}: must be at least 0 and below 100",
            )
        if not self.min_confidence >= 0:
            raise NumberError("min_confidence", f"is {self.min_confidence}: must be at least 0")
        if not self.max_depth > 0:
            raise NumberError("max_depth", f"is {self.max_depth:g}: must be above 0")

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
    """A stored keyframe that can be read, and its pose."""

    stored: StoredScene
    key: int  # its index in ``stored.frames``
    filters: DepthFilters
    T_map_submap: Similarity  # in the scene's published unit
    measured: MeasuredDepth | None = None

    @property
    def component(self) -> int:
        """The component of the scene that it is in."""
        return self.stored.submaps[self.stored.frames[self.key].submap].component

    @property
    def T_ros_camera(self) -> Array:
        """Pose [4, 4] in the map, units of the scene."""
        pose = self.T_map_submap.pose(self.stored.frames[self.key].T_submap_camera)
        return np.asarray(self.stored.map.T_ros_map @ pose)

    def load(self) -> Keyframe:
        """Returns the keyframe, with its measured depth if there is any. Raises JournalError if it
        is damaged."""
        keyframe, dense = self.stored.load(self.key), self.load_dense()
        return keyframe if dense is None else replace(keyframe, depth=dense.depth)

    def load_network_depth(self) -> FloatImage:
        """Returns the network's depth [h, w], in its submap's unit. Raises as ``load``."""
        return self.stored.load(self.key).depth

    def load_dense(self) -> DenseDepth | None:
        """Returns its measured depth, in its submap's unit; None: it has none, or, with a warning,
        it is damaged."""
        if self.filters.network:
            return None
        if self.measured is not None:
            return self.measured.load(self.key)
        try:
            return self.stored.load_measured(self.key)
        except JournalError as error:
            log.warning("measured depth: %s: the network's is used", error)
            return None

    def inverse_depths(self) -> tuple[float, float]:
        """Returns the smallest and largest inverse depth of what ``load`` returns, in units of its
        submap; without depth both are 1. Raises JournalError."""
        found = None
        if self.measured is not None:
            found = self.measured.inverse_depths.get(self.key)
        elif not self.filters.network:
            found = self.stored.measured_inverse_depths(self.key)
        return found or self.stored.inverse_depths(self.key)

    def image_data(self) -> bytes:
        """Returns the JPEG of its image. Raises JournalError if it is damaged."""
        return self.stored.image_data(self.key)

    def depth_of(self, keyframe: Keyframe) -> FloatImage:
        """Returns its depth [h, w] that passes the filters, units of the scene, else NaN."""
        return self.filters.of(keyframe, self.T_map_submap.scale) * np.float32(
            self.T_map_submap.scale
        )


def readable_keyframes(
    stored: StoredScene, filters: DepthFilters, progress: Progress = silent
) -> list[Readable]:
    """Returns the keyframes that are not damaged, with a warning for each of the others.

    ``progress`` may raise, which ends the work. Raises ExportError if none is left.
    """
    poses, out = submap_poses_of(stored), []
    for key in stored.images:
        progress("checking keyframes", 0.0)
        one = Readable(stored, key, filters, poses[stored.frames[key].submap])
        try:
            stored.check(key)
        except JournalError as error:
            log.warning("%s: it is left out", error)
        else:
            out.append(one)
    if stored.images and not out:
        raise ExportError("all stored keyframes are damaged")
    if not filters.measure:
        return out
    from da3_ros.export.measured_depth import measured_depth  # PyTorch

    by_network = replace(filters, network=True)
    components = by_component(replace(one, filters=by_network) for one in out).values()
    measured = measured_depth(list(components), progress)
    log.info("depth measured by the images: %.0f %% of the pixels", 100 * measured.share)
    return [replace(one, measured=measured) for one in out]


def submap_poses_of(stored: StoredScene) -> dict[int, Similarity]:
    """Returns the poses of submaps in the map, in metres if the scene is metric."""
    scale = stored.map.scene_scale
    poses = ((s.id, s.T_map_submap) for s in stored.submaps.values())
    return {id: Similarity(scale * S.scale, S.R, scale * S.t) for id, S in poses}


def by_component(keyframes: Iterable[Readable]) -> dict[int, list[Readable]]:
    """Returns the keyframes of each component, in their order."""
    out: defaultdict[int, list[Readable]] = defaultdict(list)
    for one in keyframes:
        out[one.component].append(one)
    return dict(sorted(out.items()))
