"""Views that windows share: their poses and samples of their depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.array_spill import Arrays
from da3_ros.mapping.frames import LocalFrame
from da3_ros.types import Array, View

SAMPLES = 2730  # pixels of a view that give its depth
FEW_SAMPLES = 1024  # of a keyframe that is kept for loops only
NO_SUBMAP = -1  # in place of a submap's id


class KeyframeFile(Protocol):
    """A file with the keyframes of a saved scene."""

    def arrays(self, index: int) -> tuple[Arrays, NDArray[np.bool_] | None]:
        """Returns the arrays of a keyframe, as ``ViewRow.arrays``, and the valid pixels of its
        image, if not all are. Raises OSError."""
        ...


@dataclass(frozen=True, eq=False)
class ViewRow:
    """A view in the frame and unit of its submap: corrections leave it as it is. Its arrays may be
    on the disk."""

    view: View
    K: Array  # [3, 3] corner rule; the same in every window
    T_submap_camera: Array  # [4, 4]; of a loaded scene, in a frame that ``T_submap_ref`` maps
    pixels: Array  # [M] indices into the flattened depth image
    depth: Array  # [M] z-depth
    confidence: Array  # [M]
    submap: int = NO_SUBMAP
    observations: float = 1.0  # number of windows that are averaged
    refined: bool = False  # whether feature tracks determine its pose
    kept: float = 1.0  # share of the camera's image that remains after cuts to other sizes
    # Of keyframes of loops:
    descriptor: Array = field(default_factory=lambda: np.zeros(0))  # [D]
    # [3] variance since its submap's first keyframe: log scale, rotation, position
    variance_in_submap: Array = field(default_factory=lambda: np.zeros(3))
    typical_depth: float = float("nan")  # median
    depth_factor: float = 1.0  # of what later windows say of the depth, over that of the samples
    # Of keyframes of a loaded scene: the file that holds the arrays, and its number there. Until
    # it is ``loaded``, the image is black and there are no samples.
    T_submap_ref: Similarity | None = None  # None: ref is the submap
    file: KeyframeFile | None = None
    index: int = -1

    @property
    def id(self) -> int:
        """The id of its view."""
        return self.view.id

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays that may lie on the disk."""
        return self.view.image, self.pixels, self.depth, self.confidence

    def with_arrays(self, arrays: Sequence[Array]) -> ViewRow:
        """Returns the row with the ``arrays`` that are its own."""
        image, pixels, depth, confidence = arrays
        return replace(
            self, view=replace(self.view, image=image), pixels=pixels, depth=depth,
            confidence=confidence, file=None,
        )  # fmt: skip

    def with_fewer_pixels(self) -> ViewRow:
        """Returns the row with fewer pixels: many keyframes are kept for a long time."""
        if len(self.pixels) <= FEW_SAMPLES:
            return self
        keep = sample(np.ones(len(self.pixels), bool), FEW_SAMPLES)
        return replace(
            self, pixels=self.pixels[keep], depth=self.depth[keep],
            confidence=self.confidence[keep],
        )  # fmt: skip

    def loaded(self) -> ViewRow:
        """Returns the row with its arrays. Raises OSError."""
        if self.file is None:
            return self
        arrays, valid = self.file.arrays(self.index)
        out = self.with_arrays(arrays)
        return replace(out, view=replace(out.view, valid=valid))

    def placed(self, T_local_camera: Array, unit: float) -> OverlapView:
        """Returns the view at a pose [4, 4] in the frame of odometry, with lengths ``unit`` times
        as long."""
        depth = self.depth if unit == 1.0 else unit * self.depth
        return OverlapView(
            self.view, self.K, T_local_camera, self.pixels, depth, self.confidence,
            self.observations, submap=self.submap, refined=self.refined, kept=self.kept,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class OverlapView:
    """An overlap view in the frame and unit of odometry, for the time of one window."""

    view: View
    K: Array  # [3, 3] corner rule; the same in every window
    T_local_camera: Array  # [4, 4]
    pixels: Array  # [M] indices into the flattened depth image
    depth: Array  # [M] z-depth
    confidence: Array  # [M]
    observations: float = 1.0  # number of windows that are averaged
    keyframe: bool = False  # shared as a keyframe, not as one of the newest views
    submap: int = NO_SUBMAP
    refined: bool = False  # whether feature tracks determine its pose
    kept: float = 1.0  # share of the camera's image that remains after cuts to other sizes

    def stored(self, T_local_submap: Similarity) -> ViewRow:
        """Returns the view in the frame of its submap."""
        back = T_local_submap.inverse()
        depth = self.depth if back.scale == 1.0 else back.scale * self.depth
        return ViewRow(
            self.view, self.K, back.pose(self.T_local_camera), self.pixels, depth,
            self.confidence, self.submap, self.observations, self.refined, self.kept,
        )  # fmt: skip

    @staticmethod
    def of(view: View, frame: LocalFrame) -> OverlapView:
        """Returns the overlap view of a frame; without pixels of unknown depth."""
        pixels = sample(np.isfinite(frame.depth), SAMPLES)
        depth = frame.depth.reshape(-1)[pixels].astype(np.float64)
        confidence = frame.confidence.reshape(-1)[pixels].astype(np.float64)
        return OverlapView(view, frame.K, frame.T_local_camera, pixels, depth, confidence)

    def rays(self) -> Array:
        """Returns the rays [M, 3] of the pixels, z = 1, camera axes."""
        row, column = np.divmod(self.pixels, self.view.image.shape[1])
        ones = np.ones(len(self.pixels))
        return np.stack((column + 0.5, row + 0.5, ones), axis=1) @ np.linalg.inv(self.K).T


def sample(valid: Array, count: int) -> Array:
    """Returns indices of at most ``count`` valid pixels, evenly spread; deterministic."""
    index = np.flatnonzero(valid)
    if len(index) <= count:
        return index
    return index[np.arange(count) * len(index) // count]
