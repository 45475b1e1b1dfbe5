"""Brings overlap views to another image size, so that a scene continues when the size changes.

An image is cut to the new aspect about its middle and resized. Intrinsics and depth samples
follow; the pose stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.mapping.map_table import ViewRow
from da3_ros.types import Array, Image, View

MIN_KEPT = 0.6  # share of an image that must remain: less sees too little of the scene


@dataclass(frozen=True)
class Cut:
    """The part of an image that becomes the new one; sizes are (width, height)."""

    old: tuple[int, int]
    left: int
    top: int
    size: tuple[int, int]
    new: tuple[int, int]

    @staticmethod
    def of(old: tuple[int, ...], new: tuple[int, ...]) -> Cut | None:
        """Returns the cut from images of shape ``old`` (height, width, ...) to ``new``.

        None if too little would remain. Nothing is cut where the aspects differ by rounding to
        patches alone: then K gets a factor for each axis.
        """
        (height, width), (new_height, new_width) = old[:2], new[:2]
        aspect = new_width / new_height
        size = (min(width, round(height * aspect)), min(height, round(width / aspect)))
        near = abs(np.log(width / height / aspect)) < SAME_ASPECT
        size = (width, height) if near else size
        if size[0] * size[1] < MIN_KEPT * width * height:
            return None
        left, top = (width - size[0]) // 2, (height - size[1]) // 2
        return Cut((width, height), left, top, size, (new_width, new_height))

    @property
    def share(self) -> float:
        """Share of the old image that remains."""
        return self.size[0] * self.size[1] / (self.old[0] * self.old[1])

    def fits(self, row: ViewRow) -> bool:
        """True if an overlap view has the old size, and enough of its image would remain."""
        same = row.view.image.shape[1::-1] == self.old
        return same and row.kept * self.share >= MIN_KEPT

    def full(self, image: Array) -> Array:
        """Returns the same cut of an image or mask [H, W, ...] of the camera's own size."""
        height, width = image.shape[:2]
        x, y = width / self.old[0], height / self.old[1]
        left, top = round(self.left * x), round(self.top * y)
        right, bottom = round((self.left + self.size[0]) * x), round((self.top + self.size[1]) * y)
        return np.ascontiguousarray(image[top:bottom, left:right])

    def image(self, image: Image) -> Image:
        """Returns the new image [h, w, 3]."""
        part = np.ascontiguousarray(self._part(image))
        grows = self.new[0] > self.size[0] or self.new[1] > self.size[1]
        method = cv2.INTER_CUBIC if grows else cv2.INTER_AREA
        return np.asarray(cv2.resize(part, self.new, interpolation=method), np.uint8)

    def mask(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns the mask [h, w] for the new image."""
        part = np.ascontiguousarray(self._part(mask), np.float32)
        return np.asarray(cv2.resize(part, self.new, interpolation=cv2.INTER_AREA) > 0.999)

    def K(self, K: Array) -> Array:
        """Returns the intrinsics [3, 3] (corner rule) of the new image."""
        x, y = self.new[0] / self.size[0], self.new[1] / self.size[1]
        shift = np.array([[1, 0, -self.left], [0, 1, -self.top], [0, 0, 1.0]])
        return np.asarray(np.diag([x, y, 1.0]) @ shift @ K)

    def view(self, view: View) -> View:
        """Returns the view with the new image and its intrinsics."""
        K = None if view.K is None else self.K(view.K)
        valid = None if view.valid is None else self.mask(view.valid)
        return replace(view, image=self.image(view.image), K=K, valid=valid)

    def row(self, row: ViewRow) -> ViewRow:
        """Returns the overlap view with the new image; of samples in one new pixel the first
        stays."""
        y, x = np.divmod(row.pixels, row.view.image.shape[1])
        x = np.floor((x + 0.5 - self.left) * self.new[0] / self.size[0]).astype(np.int64)
        y = np.floor((y + 0.5 - self.top) * self.new[1] / self.size[1]).astype(np.int64)
        inside = (x >= 0) & (x < self.new[0]) & (y >= 0) & (y < self.new[1])
        pixels, first = np.unique((y * self.new[0] + x)[inside], return_index=True)
        chosen = np.flatnonzero(inside)[first]
        return replace(
            row, view=self.view(row.view), K=self.K(row.K), pixels=pixels,
            depth=row.depth[chosen], confidence=row.confidence[chosen],
            kept=row.kept * self.share,
        )  # fmt: skip

    def _part(self, pixels: Array) -> Array:
        return pixels[self.top : self.top + self.size[1], self.left : self.left + self.size[0]]


SAME_ASPECT = 0.1  # log ratio of two aspects that rounding to patches makes
