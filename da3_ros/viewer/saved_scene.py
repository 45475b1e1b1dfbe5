"""A saved scene in the viewer: its map, and its stored keyframes one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from da3_ros.config import MapConfig
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import find_scene
from da3_ros.geometry.similarity import IDENTITY
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.submaps import SubmapStore
from da3_ros.types import DenseDepth
from da3_ros.viewer.wire import ViewerMessage

SCENE = "map"  # name of the only scene


class SavedSceneView:
    """What the viewer shows of a saved scene; a context manager."""

    def __init__(self, path: Path) -> None:
        """path: a scene's folder, or one that contains it. Raises SceneFileError."""
        file = SceneFile(find_scene(path))
        saved = file.load()
        self.metric, self.T_ros_map = saved.metric, saved.T_ros_map
        self.store = SubmapStore(MapConfig())
        self.store.restore(saved, searched=True, whole=True)
        if saved.recognition is not None:
            self.store.table.edges.extend(saved.recognition.edges)
        self._stored: StoredScene | None = None
        if file.has_keyframes:
            self._stored = file.keyframes()
        self._keys = self._placed_keys()

    def __enter__(self) -> SavedSceneView:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stored is not None:
            self._stored.reader.close()

    @property
    def keyframes(self) -> int:
        """Number of keyframes that can be looked at."""
        return len(self._keys)

    def values(self) -> dict[str, str]:
        """Returns the scene's state: texts by name, as in ``/diagnostics``."""
        poses = self.store.poses()
        return {
            "map_points": str(len(self.store)),
            "map_memory_mb": f"{self.store.nbytes / 2**20:.1f}",
            "keyframes": str(int(poses.rows["keyframe"].sum())),
            "frames_processed": str(len(poses)),
            "scale_source": "lengths are metres" if self.metric else "unknown",
            "parts": str(len({s.component for s in self.store.submaps.values()})),
            "dense_keyframes": self._measured_text(),
        }

    def keyframe(self, index: int) -> ViewerMessage:
        """Returns a keyframe as a ``frame`` message, with measured depth if there is one.

        index: from 0, in the order of storing. Raises JournalError if it is damaged, IndexError.
        """
        if self._stored is None:
            raise IndexError("there are none")
        key = self._keys[index]
        one, dense = self._stored.load(key), self._stored.load_measured(key)
        submap = self.store.submaps.get(one.pose.submap)
        T_map_submap = IDENTITY if submap is None else submap.T_map_submap
        depth = one.depth if dense is None else dense.depth
        T = T_map_submap.pose(one.pose.T_submap_camera)
        size = (depth.shape[1], depth.shape[0])
        small = cv2.resize(one.image, size, interpolation=cv2.INTER_AREA)
        values = {
            "scene": SCENE, "camera": "", "stamp_ns": one.pose.stamp_ns, "range": None,
            "metric": self.metric, "note": _note(one.pose.camera, dense),
        }  # fmt: skip
        return ViewerMessage("frame", values, {
            "image": np.asarray(small, np.uint8),
            "depth": (depth * np.float32(T_map_submap.scale)).astype(np.float32),
            "confidence": one.confidence.astype(np.float32),
            "K": np.asarray(one.pose.K, np.float64),
            "T_ros_camera": np.asarray(self.T_ros_map @ T, np.float64),
        })  # fmt: skip

    def _placed_keys(self) -> list[int]:
        if self._stored is None:
            return []
        view = self.store.view
        shown = {id for id, component in view.component_of.items() if component == view.component}
        return [key for key in self._stored.images if self._stored.frames[key].submap in shown]

    def _measured_text(self) -> str:
        if self._stored is None or not self._stored.measured:
            return "nan"
        return f"{len(self._stored.measured)} of {len(self._stored.images)} keyframes"


def keyframe_source(view: SavedSceneView) -> Callable[[int], ViewerMessage | str]:
    """Returns what gives the message of a keyframe, or a text that says why there is none."""

    def get(index: int) -> ViewerMessage | str:
        try:
            return view.keyframe(index)
        except (JournalError, IndexError) as error:
            return f"this keyframe cannot be shown: {error}"

    return get


def _note(camera: str, dense: DenseDepth | None) -> str:
    of = f"camera {camera}, " if camera else ""
    if dense is None:
        return f"Keyframe, {of}depth of the network"
    return f"Keyframe, {of}depth measured in {100 * dense.measured.mean():.0f} % of the pixels"
