"""Points and images of submaps that go to the disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import Arrays, ArraySpill
from da3_ros.mapping.scene import REFERENCE, Jpeg, Shot, join, jpeg_bytes
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.types import Array

log = logging.getLogger(__name__)


@dataclass(eq=False)
class MovedImages:
    """Images on the disk, or on their way there. Tables, since there are many in a long run."""

    cameras: tuple[str, ...]  # names
    camera: NDArray[np.uint8]  # [N] index of its name
    stamp_ns: NDArray[np.int64]  # [N]
    end: NDArray[np.int64]  # [N] of the image in ``data``
    data: NDArray[np.uint8]  # JPEG, one after the other

    @staticmethod
    def of(images: Mapping[Shot, bytes]) -> MovedImages:
        """Returns the images as they are in memory."""
        cameras = tuple(sorted({camera for camera, _ in images}))
        return MovedImages(
            cameras,
            np.array([cameras.index(camera) for camera, _ in images], np.uint8),
            np.array([stamp for _, stamp in images], np.int64),
            np.cumsum([len(data) for data in images.values()], dtype=np.int64),
            np.frombuffer(b"".join(images.values()), np.uint8),
        )

    def items(self) -> Iterator[tuple[Shot, NDArray[np.uint8]]]:
        """Yields all images."""
        starts = [0, *self.end.tolist()]
        for i, (camera, stamp_ns) in enumerate(
            zip(self.camera.tolist(), self.stamp_ns.tolist(), strict=True)
        ):
            yield (self.cameras[camera], stamp_ns), self.data[starts[i] : starts[i + 1]]


@dataclass(eq=False)
class Submap:
    """Points and images of a run of keyframes; ``cloud`` is empty while the submap grows."""

    id: int  # counts up; never used twice in a scene
    chain: int  # windows of one chain are aligned to each other
    T_map_submap: Similarity
    cloud: PointCloud = field(default_factory=lambda: join([]))
    images: dict[Shot, Jpeg] = field(default_factory=dict)  # JPEG, of keyframes, in memory
    moved: list[MovedImages] = field(default_factory=list)  # the other ones
    keyframes: int = 0  # number of keyframes
    middle: Array = field(default_factory=lambda: np.zeros(3))  # of a sphere around all points
    reach: float = 0.0  # the sphere's radius
    component: int = REFERENCE  # component of the scene; poses within one are measured
    origin: str = ""  # name of the scene that it is from; empty: of this session

    @property
    def image_bytes(self) -> int:
        """Memory of the images, bytes."""
        return sum(map(len, self.images.values()))

    def all_images(self) -> dict[Shot, Jpeg]:
        """Returns the images, wherever they are."""
        found: dict[Shot, Jpeg] = {}
        for moved in self.moved:
            found.update(moved.items())
        return found | self.images


@dataclass(frozen=True, eq=False)
class _Move:
    submap: Submap
    cloud: PointCloud
    images: MovedImages
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
        """Begins to move the points and images that a submap has now; False if that fails.

        Raises SpillBusyError: it can be moved later.
        """
        if self.spill is None:
            return False
        cloud = submap.cloud
        images = MovedImages.of({s: jpeg_bytes(data) for s, data in submap.images.items()})
        try:
            arrays = self.spill.offer(
                [cloud.xyz, cloud.rgb, cloud.confidence, cloud.count, images.data]
            )
        except OSError as error:
            self._warn(error)
            return False
        if submap.images:
            submap.images = {}
            submap.moved.append(images)
        self._moves.append(_Move(submap, cloud, images, arrays))
        return True

    def finish(self) -> list[tuple[Submap, int]]:
        """Completes the moves that are written; returns the submaps whose points and images stay
        in memory, because writing failed, with the bytes of these images."""
        failed = []
        while self._moves and self._moves[0].arrays.done():
            move = self._moves.popleft()
            submap, error = move.submap, move.arrays.exception()
            if error is not None:
                self._warn(error)
                back: dict[Shot, bytes] = {}
                if move.images in submap.moved:  # else they were dropped
                    submap.moved.remove(move.images)
                    back = {shot: data.tobytes() for shot, data in move.images.items()}
                    submap.images |= back
                failed.append((submap, sum(map(len, back.values()))))
                continue
            xyz, rgb, confidence, count, move.images.data = move.arrays.result()
            if submap.cloud is move.cloud:  # else it has changed since then
                submap.cloud = PointCloud(xyz, rgb, confidence, count)
        return failed

    def _warn(self, error: BaseException) -> None:
        if not self._warned:
            log.warning("points that memory cannot hold are dropped: %s", error)
        self._warned = True
