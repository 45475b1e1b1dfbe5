"""The nodes of a scene on the page: points, path, keyframes, loops and cameras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from da3_ros.types import Array
from da3_ros.viewer.camera_pictures import FramePictures
from da3_ros.viewer.scene_lines import PathCameras, frustum_lines, path_lines
from da3_ros.viewer.wire import ViewerMessage

PATH_RGB, KEYFRAME_RGB, LOOP_RGB = (230, 60, 40), (90, 90, 90), (20, 120, 255)
CAMERA_RGB = (250, 150, 0)
NEIGHBOURS = 4000  # points that the spacing of points is measured with
FRUSTUM, CAMERA = 0.02, 0.05  # sizes of a keyframe and of the live camera over the scene's
POINT = 0.8  # size of a point over the distance to the next one
LINE_PX = 2.0


class SubmapNode:
    """The points of one submap, in its own frame: a loop moves the pose alone."""

    def __init__(self, handle: Any, centre: Array, reach: float) -> None:
        """centre, reach: of the points, in the submap's unit."""
        self.handle, self.centre, self.reach = handle, centre, reach
        self.position = np.zeros(3)  # of the centre, in the map
        self.scale = 1.0
        self._pose: Any = None  # the newest one, of the submap

    def move(self, scale: float, R: Array, t: Array) -> None:
        """Moves the points to a pose of their submap in the map."""
        pose = (scale, R.tolist(), t.tolist())
        if pose == self._pose:
            return
        self._pose, self.scale, self.position = pose, scale, scale * R @ self.centre + t
        self.handle.wxyz, self.handle.position = _wxyz(R), self.position
        if self.handle.scale != scale:
            self.handle.scale = scale


class ScenePage:
    """The nodes of one scene: points, path, keyframes, loops and cameras, below ``/NAME``."""

    def __init__(self, server: Any, name: str, shown: ShownParts) -> None:
        self._server, self._root, self._shown = server, f"/{name}", shown
        self.root = server.scene.add_frame(self._root, show_axes=False)
        self._map = server.scene.add_frame(f"{self._root}/map", show_axes=False)
        self._points = server.scene.add_frame(f"{self._root}/map/points", show_axes=False)
        self._submaps: dict[int, SubmapNode] = {}
        self._lines: dict[str, Any] = {}
        self._cameras: dict[str, Any] = {}
        self._posed: set[str] = set()  # cameras whose pose is known
        self._spacing = 0.0
        self.size = 0.0  # diagonal of the box around the submaps; 0: no points yet
        self.centre = np.zeros(3)
        self._heading = np.array([1.0, 0.0])  # of the first camera, on the ground
        self.unconnected = 0

    def clear(self) -> None:
        """Removes all: another map begins."""
        for handle in (*self._lines.values(), *self._cameras.values()):
            handle.remove()
        for node in self._submaps.values():
            node.handle.remove()
        self._lines.clear()
        self._cameras.clear()
        self._submaps.clear()
        self._spacing = self.size = 0.0
        self.unconnected = 0

    def take_map(self, message: ViewerMessage) -> None:
        """Takes over a ``map`` message."""
        arrays, ids = message.arrays, message.values["submaps"]
        T_ros_map = arrays["T_ros_map"]
        self._map.wxyz, self._map.position = _wxyz(T_ros_map[:3, :3]), T_ros_map[:3, 3]
        for id in set(self._submaps) - set(ids):
            self._submaps.pop(id).handle.remove()
        for id in message.values["changed"]:
            self._set_points(id, message)
        for i, id in enumerate(ids):
            self._submaps[id].move(float(arrays["scale"][i]), arrays["R"][i], arrays["t"][i])
        self._measure(T_ros_map)
        self._set_lines(message, T_ros_map)
        self.unconnected = int(message.values["unconnected"])
        self.apply()

    def take_frame(self, message: ViewerMessage, pictures: FramePictures) -> None:
        """Moves a camera to a frame's pose; a camera whose pose is unknown is hidden."""
        camera, T = message.values["camera"], message.arrays["T_ros_camera"]
        posed = bool(np.isfinite(T).all())
        handle = self._cameras.get(camera)
        if posed and handle is None:
            handle = self._cameras[camera] = self._add_camera(camera, message, pictures)
        if handle is None:
            return
        self._posed.discard(camera)
        if posed:
            self._posed.add(camera)
            handle.wxyz, handle.position = _wxyz(T[:3, :3]), T[:3, 3]
            handle.image = pictures.image
            handle.scale = CAMERA * (self.size or 1.0)
        self.apply()

    def viewpoint(self, *, above: bool) -> Array:
        """Returns a position [3] from which the scene is seen: from above, or from behind and
        beside the first camera."""
        x, y = self._heading
        beside = np.array([-0.8 * x + 0.3 * y, -0.8 * y - 0.3 * x, 0.55])
        away = np.array([-1e-3 * x, -1e-3 * y, 1.3]) if above else beside
        return np.asarray(self.centre + self.size * away)

    def apply(self) -> None:
        """Shows and hides the parts as the boxes on the page say."""
        shown = self._shown
        self._points.visible = shown.points.value
        for name, box in (("path", shown.path), ("keyframes", shown.keyframes),
                          ("loops", shown.loops)):  # fmt: skip
            if name in self._lines:
                self._lines[name].visible = box.value
        for camera, handle in self._cameras.items():
            handle.visible = camera in self._posed and shown.cameras.value
        for node in self._submaps.values():
            size = self._point_size(node)
            if node.handle.point_size != size:
                node.handle.point_size = size

    def _point_size(self, node: SubmapNode) -> float:
        return max(1e-6, POINT * node.scale * self._spacing * float(self._shown.point_size.value))

    def _set_points(self, id: int, message: ViewerMessage) -> None:
        arrays = message.arrays
        xyz, centre = arrays[f"xyz.{id}"], arrays[f"centre.{id}"]
        reach = float(np.abs(xyz).max(initial=0.0))
        if not self._spacing:
            self._spacing = _spacing(xyz.astype(np.float32))
        handle = self._server.scene.add_point_cloud(
            f"{self._root}/map/points/{id}", xyz, arrays[f"rgb.{id}"],
            point_size=max(1e-6, self._spacing), point_shape="rounded", point_shading="flat",
        )  # fmt: skip
        self._submaps[id] = SubmapNode(handle, centre, reach)

    def _measure(self, T_ros_map: Array) -> None:
        if not self._submaps:
            self.size = 0.0
            return
        centres = np.array([node.position for node in self._submaps.values()])
        reach = np.array([node.reach * node.scale for node in self._submaps.values()])[:, None]
        # Half of the reach: most points are nearer to the middle than the farthest one.
        low, high = (centres - reach / 2).min(axis=0), (centres + reach / 2).max(axis=0)
        self.size = float(np.linalg.norm(high - low))
        self.centre = T_ros_map[:3, :3] @ ((low + high) / 2) + T_ros_map[:3, 3]

    def _set_lines(self, message: ViewerMessage, T_ros_map: Array) -> None:
        arrays = message.arrays
        cameras = PathCameras(arrays["path_T"], arrays["path_K"], arrays["path_size"],
                          arrays["path_keyframe"] > 0, arrays["path_chain"])  # fmt: skip
        if len(cameras.T_map_camera):
            forward = T_ros_map[:3, :3] @ cameras.T_map_camera[0, :, 2]
            self._heading = forward[:2] / max(float(np.linalg.norm(forward[:2])), 1e-9)
        self._set("path", path_lines(cameras), PATH_RGB, T_ros_map)
        lines = frustum_lines(cameras, FRUSTUM * (self.size or 1.0))
        self._set("keyframes", lines, KEYFRAME_RGB, T_ros_map)
        self._set("loops", arrays["loops"], LOOP_RGB, T_ros_map)

    def _set(self, name: str, lines: Array, color: tuple[int, int, int], T: Array) -> None:
        placed = np.asarray(lines @ T[:3, :3].T + T[:3, 3], np.float32)
        held = self._lines.get(name)
        if held is not None:
            if not np.array_equal(held.points, placed):
                held.points = placed
        elif len(placed):
            self._lines[name] = self._server.scene.add_line_segments(
                f"{self._root}/{name}", placed, color, thickness=LINE_PX, thickness_units="screen"
            )

    def _add_camera(self, camera: str, message: ViewerMessage, pictures: FramePictures) -> Any:
        K, (height, width) = message.arrays["K"], message.arrays["depth"].shape
        return self._server.scene.add_camera_frustum(
            f"{self._root}/cameras/{camera or 'camera'}",
            fov=2 * float(np.arctan2(height / 2, K[1, 1])), aspect=width / height,
            scale=CAMERA * (self.size or 1.0), color=CAMERA_RGB, image=pictures.image,
            thickness=LINE_PX, thickness_units="screen",
        )  # fmt: skip


class ShownParts:
    """The boxes that say what is shown."""

    def __init__(self, gui: Any, on_change: Callable[[], None]) -> None:
        self.points = gui.add_checkbox("Points", True)
        self.path = gui.add_checkbox("Path", True)
        self.keyframes = gui.add_checkbox("Keyframes", True)
        self.loops = gui.add_checkbox("Loops", True)
        self.cameras = gui.add_checkbox("Cameras", True)
        self.point_size = gui.add_slider("Point size", 0.25, 4.0, 0.25, 1.0)
        boxes = (self.points, self.path, self.keyframes, self.loops, self.cameras)
        for one in (*boxes, self.point_size):
            one.on_update(lambda _: on_change())


def _wxyz(R: Array) -> Array:
    return np.asarray(Rotation.from_matrix(R).as_quat()[[3, 0, 1, 2]])


def _spacing(xyz: Array) -> float:
    """Returns the typical distance between neighbours among points [M, 3]; 0: unknown."""
    if len(xyz) < 2:
        return 0.0
    distance, _ = cKDTree(xyz).query(xyz[:: max(1, len(xyz) // NEIGHBOURS)], k=2)
    return float(np.median(distance[:, 1]))
