"""Points and images of submaps that go to the disk."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import Arrays, ArraySpill
from da3_ros.mapping.scene import REFERENCE, Jpeg, Shot, join
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Submap:
    """Points and images of a run of keyframes; ``cloud`` is empty while the submap grows."""

    id: int  # counts up; never used twice in a scene
    segment: int  # windows of one segment are aligned to each other
    T_scene_submap: Similarity
    cloud: PointCloud = field(default_factory=lambda: join([]))
    images: dict[Shot, Jpeg] = field(default_factory=dict)  # JPEG, of keyframes
    keyframes: int = 0  # number of keyframes
    middle: Array = field(default_factory=lambda: np.zeros(3))  # of a sphere around all points
    reach: float = 0.0  # the sphere's radius
    part: int = REFERENCE  # part of the scene; places within one part are measured

    @property
    def image_bytes(self) -> int:
        """Memory of the images, bytes."""
        return sum(len(data) for data in self.images.values() if isinstance(data, bytes))


@dataclass(frozen=True, eq=False)
class _Move:
    submap: Submap
    cloud: PointCloud
    images: dict[Shot, NDArray[np.uint8]]
    arrays: Future[Arrays]


class SubmapSpill:
    """Moves the points and images of submaps to the disk, if there is one.

    Points on their way count as there already: ``ArraySpill`` limits how many they are.
    """

    def __init__(self) -> None:
        self.spill: ArraySpill | None = None  # None: nothing can be moved
        self._moves: deque[_Move] = deque()  # not complete, oldest first
        self._warned = False

    @property
    def is_ready(self) -> bool:
        """Whether submaps can be moved."""
        return self.spill is not None and self.spill.is_ready

    def move(self, submap: Submap) -> bool:
        """Begins to move the points and images that a submap has now; False if that fails."""
        if self.spill is None:
            return False
        cloud, images = submap.cloud, {}
        for shot, data in submap.images.items():
            if isinstance(data, bytes):
                images[shot] = np.frombuffer(data, np.uint8)
        try:
            points = cloud.xyz, cloud.rgb, cloud.confidence, cloud.count
            arrays = self.spill.offer([*points, *images.values()])
        except OSError as error:
            self._warn(error)
            return False
        submap.images.update(images)
        self._moves.append(_Move(submap, cloud, images, arrays))
        return True

    def finish(self) -> list[Submap]:
        """Completes the moves that are written; returns the submaps whose points and images stay
        in memory, because writing failed."""
        failed = []
        while self._moves and self._moves[0].arrays.done():
            move = self._moves.popleft()
            submap, error = move.submap, move.arrays.exception()
            # What has changed since then is not what was written.
            moved = [s for s, data in move.images.items() if submap.images.get(s) is data]
            if error is not None:
                self._warn(error)
                submap.images.update({shot: move.images[shot].tobytes() for shot in moved})
                failed.append(submap)
                continue
            xyz, rgb, confidence, count, *images = move.arrays.result()
            if submap.cloud is move.cloud:
                submap.cloud = PointCloud(xyz, rgb, confidence, count)
            there = dict(zip(move.images, images, strict=True))
            submap.images.update({shot: there[shot] for shot in moved})
        return failed

    def _warn(self, error: BaseException) -> None:
        if not self._warned:
            log.warning("points that memory cannot hold are dropped: %s", error)
        self._warned = True
