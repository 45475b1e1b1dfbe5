"""Shared views at another image size, so that a scene goes on when the network's size changes.

An image is cut to the new aspect about its middle and resized; its intrinsics follow, and what was
known of its pixels moves along. It stays a picture of the same camera at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.mapping.shared_view import SharedView
from da3_ros.types import Array, Image, View

LEAST_KEPT = 0.6  # share of an image that a cut must leave: less sees too little of the scene


@dataclass(frozen=True)
class Cut:
    """Which part of an image becomes the new one; sizes are (width, height)."""

    old: tuple[int, int]
    left: int
    top: int
    size: tuple[int, int]
    new: tuple[int, int]

    @staticmethod
    def of(old: tuple[int, ...], new: tuple[int, ...]) -> Cut | None:
        """From images of shape ``old`` (height, width, ...) to ``new``; None: too little is left.

        A cut of less than a pixel's worth is left out: sides rounded to patches change the aspect
        a little, and K takes a factor for each.
        """
        (height, width), (new_height, new_width) = old[:2], new[:2]
        aspect = new_width / new_height
        size = (min(width, round(height * aspect)), min(height, round(width / aspect)))
        near = abs(np.log(width / height / aspect)) < SAME_ASPECT
        size = (width, height) if near else size
        if size[0] * size[1] < LEAST_KEPT * width * height:
            return None
        left, top = (width - size[0]) // 2, (height - size[1]) // 2
        return Cut((width, height), left, top, size, (new_width, new_height))

    @property
    def share(self) -> float:
        """Of the old image, what is left."""
        return self.size[0] * self.size[1] / (self.old[0] * self.old[1])

    def fits(self, anchor: SharedView) -> bool:
        """Whether a shared view has the old size, and enough of its picture is left."""
        same = anchor.view.image.shape[1::-1] == self.old
        return same and anchor.kept * self.share >= LEAST_KEPT

    def full(self, image: Image) -> Image:
        """The same cut of the picture [H, W, 3] at the camera's own size."""
        height, width = image.shape[:2]
        x, y = width / self.old[0], height / self.old[1]
        left, top = round(self.left * x), round(self.top * y)
        right, bottom = round((self.left + self.size[0]) * x), round((self.top + self.size[1]) * y)
        return np.ascontiguousarray(image[top:bottom, left:right])

    def image(self, image: Image) -> Image:
        """The new image [h, w, 3]."""
        part = np.ascontiguousarray(self._part(image))
        grows = self.new[0] > self.size[0] or self.new[1] > self.size[1]
        method = cv2.INTER_CUBIC if grows else cv2.INTER_AREA
        return np.asarray(cv2.resize(part, self.new, interpolation=method), np.uint8)

    def mask(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A mask [h, w] of pixels of the new image."""
        part = np.ascontiguousarray(self._part(mask), np.float32)
        return np.asarray(cv2.resize(part, self.new, interpolation=cv2.INTER_AREA) > 0.999)

    def K(self, K: Array) -> Array:
        """Intrinsics [3, 3] (corner rule) of the new image."""
        x, y = self.new[0] / self.size[0], self.new[1] / self.size[1]
        shift = np.array([[1, 0, -self.left], [0, 1, -self.top], [0, 0, 1.0]])
        return np.asarray(np.diag([x, y, 1.0]) @ shift @ K)

    def view(self, view: View) -> View:
        """The view with the new image."""
        K = None if view.K is None else self.K(view.K)
        return replace(view, image=self.image(view.image), K=K)

    def anchor(self, anchor: SharedView) -> SharedView:
        """The shared view with the new image; of pixels that fall together the first stays."""
        row, column = np.divmod(anchor.pixels, anchor.view.image.shape[1])
        x = np.floor((column + 0.5 - self.left) * self.new[0] / self.size[0]).astype(np.int64)
        y = np.floor((row + 0.5 - self.top) * self.new[1] / self.size[1]).astype(np.int64)
        inside = (x >= 0) & (x < self.new[0]) & (y >= 0) & (y < self.new[1])
        pixels, first = np.unique((y * self.new[0] + x)[inside], return_index=True)
        chosen = np.flatnonzero(inside)[first]
        return replace(
            anchor, view=self.view(anchor.view), K=self.K(anchor.K), pixels=pixels,
            depth=anchor.depth[chosen], confidence=anchor.confidence[chosen],
            kept=anchor.kept * self.share,
        )  # fmt: skip

    def _part(self, pixels: Array) -> Array:
        return pixels[self.top : self.top + self.size[1], self.left : self.left + self.size[0]]


SAME_ASPECT = 0.1  # log ratio of two aspects that rounding to patches makes
