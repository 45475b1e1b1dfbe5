"""Stores what the map gets: keyframes with their images, poses, and changes of submaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe, Tracks
from da3_ros.keyframe_store.recorder import Flush, KeyframeRecorder
from da3_ros.keyframe_store.store import MapState, StoredSubmap
from da3_ros.mapping.frames import LocalFrame, PoseInSubmap
from da3_ros.mapping.metric_scale import scaled_depth
from da3_ros.mapping.submap_spill import Submap
from da3_ros.splats.relative import RelativeSplats
from da3_ros.types import Array, FloatImage, Image

SAME = 1e-9  # map units; rounding of a pose that stays


@dataclass(frozen=True, eq=False)
class KeyframeData:
    """What a keyframe has beside its pose in the map."""

    image: Image  # [H, W, 3] RGB, rectified, at the camera's size
    depth: FloatImage  # [h, w] units of odometry, before the filters of confidence and edges
    descriptor: FloatImage | None  # [D]
    tracks: Tracks
    splats: RelativeSplats | None = None
    returns: FloatImage | None = None  # [N, 3] of range sensors, camera's axes, metres
    by_images: bool = True  # whether its pose is good enough to compare images by it


class KeyframeRecording:
    """Passes a scene's frames to the recorder, in the frames and units of their submaps."""

    def __init__(self, recorder: KeyframeRecorder) -> None:
        self.recorder = recorder
        # Chain and component of the submaps that are stored.
        self._stored: dict[int, tuple[int, int]] = {}

    def add_frame(
        self, frame: LocalFrame, data: KeyframeData | None, submap: Submap, T_submap_camera: Array,
        unit: float, state: MapState,
    ) -> None:  # fmt: skip
        """Stores a frame of a submap, with its pose [4, 4] there; data: of a keyframe. unit: of
        odometry, per unit of the submap."""
        if submap.id not in self._stored:
            self.place([submap])
        height, width = frame.depth.shape
        pose = FramePose(
            frame.stamp_ns,
            frame.camera,
            submap.id,
            T_submap_camera,
            frame.K,
            (width, height),
            frame.keyframe,
        )
        if data is None:
            self.recorder.add_frame(pose)
            return
        self.recorder.set_map(state)
        self.recorder.add_keyframe(
            Keyframe(
                pose, scaled_depth(data.depth, 1 / unit), frame.confidence, data.image,
                data.descriptor, data.tracks, data.splats,
            )
        )  # fmt: skip

    def begin(self) -> None:
        """Begins the scene anew: what was stored is no part of it."""
        self._stored.clear()
        self.recorder.begin()

    def flush(self, state: MapState) -> Flush:
        """Begins to store all that waits; returns at once."""
        self.recorder.set_map(state)
        return self.recorder.flush()

    def finish(self, state: MapState, timeout_s: float | None = None) -> bool:
        """Stores all that waits; False if the disk is still busy after a time."""
        self.recorder.set_map(state)
        return self.recorder.close(timeout_s)

    def place(self, submaps: Iterable[Submap]) -> None:
        """Stores the poses of submaps."""
        stored = [StoredSubmap(s.id, s.chain, s.component, s.T_map_submap) for s in submaps]
        self._stored.update({s.id: (s.chain, s.component) for s in stored})
        self.recorder.place(stored)

    def move(
        self, submaps: Iterable[Submap], before: Mapping[int, Similarity], state: MapState
    ) -> None:
        """Stores the poses of those submaps that a correction has moved, or joined to others, and
        the unit that odometry has now. before: ``T_map_submap`` before it."""
        self.recorder.set_map(state)
        self.place([s for s in submaps if self._is_other(s) or not _lies_at(s, before.get(s.id))])

    def _is_other(self, submap: Submap) -> bool:
        """Whether a submap is not stored yet, or as one of another component."""
        return self._stored.get(submap.id) != (submap.chain, submap.component)

    def correct(self, frames: Iterable[PoseInSubmap]) -> None:
        """Stores refined poses of earlier frames."""
        self.recorder.correct({(f.camera, f.stamp_ns): f.T_submap_camera for f in frames})


def _lies_at(submap: Submap, T_map_submap: Similarity | None) -> bool:
    """Whether a submap lies, but for rounding, at this pose."""
    if T_map_submap is None:
        return False
    a, b = submap.T_map_submap, T_map_submap
    pairs = ((a.scale, b.scale), (a.R, b.R), (a.t, b.t))
    return all(np.allclose(x, y, rtol=0.0, atol=SAME) for x, y in pairs)
