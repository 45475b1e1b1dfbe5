"""Depth of stored keyframes, measured by their images and those of their neighbours."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

from da3_ros.derived.dense_depth import (
    Search,
    choose_neighbours,
    confirmed_depth,
    search_depth,
)
from da3_ros.derived.plane_sweep import SweepView
from da3_ros.export.selection import ExportError, Progress, silent
from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.types import Array, DenseDepth, FloatImage


class Placed(Protocol):
    """A stored keyframe with its pose, as `stored_depth.Readable`."""

    @property
    def key(self) -> int: ...

    @property
    def T_ros_camera(self) -> Array: ...

    @property
    def T_map_submap(self) -> Similarity: ...

    def load(self) -> Keyframe: ...


class MeasuredDepth:
    """Measured depth of keyframes, by key. Kept on the disk while it is used."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="da3_measured_")
        # Smallest and largest inverse depth of keyframes that are measured, by key, in units of
        # their submaps; 1 both without depth.
        self.inverse_depths: dict[int, tuple[float, float]] = {}
        self._measured = self._pixels = 0  # of all keyframes, pixels with depth

    def add(self, key: int, dense: DenseDepth, unit: float) -> None:
        """Adds a keyframe's depth, units of the scene; unit: of those per one of its submap."""
        known = dense.depth[np.isfinite(dense.depth) & (dense.depth > 0)] / unit
        self.inverse_depths[key] = (
            (float(1 / known.max()), float(1 / known.min())) if known.size else (1.0, 1.0)
        )
        self._measured += int(dense.measured.sum())
        self._pixels += int(np.isfinite(dense.depth).sum())
        np.savez(
            self._file(key), depth=dense.depth / np.float32(unit), sigma=dense.sigma,
            measured=dense.measured,
        )  # fmt: skip

    def note_unmeasured(self, depth: FloatImage) -> None:
        """Counts the pixels of a keyframe that keeps its depth."""
        self._pixels += int(np.isfinite(depth).sum())

    def load(self, key: int) -> DenseDepth | None:
        """Returns the depth of a keyframe in its submap's unit; None if it was not measured."""
        if key not in self.inverse_depths:
            return None
        with np.load(self._file(key)) as data:
            return DenseDepth(data["depth"], data["sigma"], data["measured"])

    @property
    def share(self) -> float:
        """Share of the pixels that are measured; 0 without any."""
        return self._measured / max(1, self._pixels)

    def _file(self, key: int) -> Path:
        return Path(self._folder.name) / f"{key}.npz"


def measured_depth(
    components: Sequence[Sequence[Placed]], progress: Progress = silent
) -> MeasuredDepth:
    """Returns the measured depth of keyframes; those of one component are compared.

    ``progress`` may raise, which ends the work. Raises JournalError for a damaged keyframe, and
    ExportError if the folder for temporary files is full.
    """
    try:
        out, done, total = MeasuredDepth(), 0, 2 * sum(map(len, components))
        for ones in components:
            component = _Component(ones)
            for work in (component.sweep, lambda k, c=component: c.finish(k, out)):
                for k in range(len(ones)):
                    progress("measuring depth", done / total)
                    done += 1
                    work(k)
        return out
    except OSError as error:
        raise ExportError(
            f"no measured depth, in {tempfile.gettempdir()}: {error.strerror or error}; set "
            "TMPDIR to a folder with room, or leave out --measure-depth"
        ) from error


class _Component:
    """The keyframes of one component; their images are read when they are needed."""

    def __init__(self, ones: Sequence[Placed]) -> None:
        self._ones = ones
        self._folder = tempfile.TemporaryDirectory(prefix="da3_sweeps_")
        self._T = np.array([one.T_ros_camera for one in ones])
        self._K, self._shapes, self._median = np.zeros((len(ones), 3, 3)), [], []
        self._cameras: list[str] = []
        for k, one in enumerate(ones):
            keyframe = one.load()
            known = keyframe.depth[np.isfinite(keyframe.depth)]
            self._K[k] = keyframe.pose.K
            self._cameras.append(keyframe.pose.camera)
            self._shapes.append(keyframe.depth.shape)
            median = float(np.median(known)) if known.size else 0.0
            self._median.append(median * one.T_map_submap.scale)
        self._neighbours: dict[int, list[int]] = {}

    def sweep(self, k: int) -> None:
        """Searches the depth of a keyframe, if it has neighbours."""
        near = choose_neighbours(self._T, self._K, self._median, self._shapes, self._cameras, k)
        if len(near) < 2:
            return
        view, depth = self._view(k)
        found = search_depth(view, [self._view(j)[0] for j in near], depth)
        np.savez(
            self._file(k), depth=found.depth, decided=found.decided, disparity=found.disparity
        )
        self._neighbours[k] = near

    def finish(self, k: int, out: MeasuredDepth) -> None:
        """Adds what of a keyframe's depth its neighbours confirm."""
        near = {
            n: j for n, j in enumerate(self._neighbours.get(k, ())) if j in self._neighbours
        }  # fmt: skip
        one, (view, depth) = self._ones[k], self._view(k)
        if not near:
            out.note_unmeasured(depth)
            return
        neighbours = {n: (self._view(j)[0], self._search(j)) for n, j in near.items()}
        dense = confirmed_depth(view, depth, self._search(k), neighbours)
        out.add(one.key, dense, one.T_map_submap.scale)

    def _search(self, k: int) -> Search:
        with np.load(self._file(k)) as data:
            return Search(data["depth"], data["decided"], data["disparity"])

    def _view(self, k: int) -> tuple[SweepView, FloatImage]:
        """Returns a keyframe at the size of its depth, and its depth in units of the scene."""
        keyframe = self._ones[k].load()
        height, width = keyframe.depth.shape
        small = cv2.resize(keyframe.image, (width, height), interpolation=cv2.INTER_AREA)
        grey = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.float32) / np.float32(255)
        depth = keyframe.depth * np.float32(self._ones[k].T_map_submap.scale)
        valid = ~np.isnan(depth)  # not masked, and with a source in the image
        shown = None if valid.all() else valid
        return SweepView(grey, keyframe.pose.K, self._T[k], shown), depth

    def _file(self, k: int) -> Path:
        return Path(self._folder.name) / f"{k}.npz"
