"""The page of the viewer: what messages make of it. Runs in the viewer's process only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from da3_ros.types import Array
from da3_ros.viewer.camera_pictures import FramePictures, pictures_of
from da3_ros.viewer.page_texts import LEGEND, note, state_table, unconnected_text
from da3_ros.viewer.scene_lines import PathCameras, frustum_lines, path_lines
from da3_ros.viewer.wire import ViewerMessage

Command = Callable[[str, dict[str, Any]], None]  # its name and values
PATH_RGB, KEYFRAME_RGB, LOOP_RGB, CAMERA_RGB = (
    (230, 60, 40),
    (90, 90, 90),
    (20, 120, 255),
    (250, 150, 0),
)
NEIGHBOURS = 4000  # points that the spacing of points is measured with
# Sizes of a keyframe, of the live camera and of the axes over the scene's.
FRUSTUM, CAMERA, AXES = 0.02, 0.05, 0.08
GROWN = 1.3  # growth of the scene after which viewers who have not moved look at it anew
POINT = 0.8  # size of a point over the distance to the next one
LINE_PX = 2.0
EMPTY = np.full((315, 420, 3), 230, np.uint8)  # before the first picture


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


class Page:
    """The whole page: scenes, pictures of the cameras, state, legend and controls."""

    def __init__(self, server: Any, begin: ViewerMessage, command: Command) -> None:
        """begin: the first message. command: what a control of the page calls."""
        self._server, self._command = server, command
        self._lock = threading.RLock()  # messages come in one thread, clicks in others
        self._placed: dict[int, tuple[Array, float]] = {}  # by client: where, and size of scene
        self._newest: dict[tuple[str, str], ViewerMessage] = {}  # by scene and camera
        names = begin.values["scenes"]
        server.gui.configure_theme(show_logo=False, show_share_button=False, control_width="large")
        server.gui.set_panel_label(begin.values["title"])
        self._axes = server.scene.add_frame("/axes", axes_length=AXES, axes_radius=AXES / 30)
        tabs = server.gui.add_tab_group()
        with tabs.add_tab("Cameras"):
            self._add_cameras(begin.values["cameras"], begin.values["keyframes"])
        with tabs.add_tab("State"):
            self._state = server.gui.add_html("")
        with tabs.add_tab("Show"):
            self._add_view(names)
        self.scenes = {name: ScenePage(server, f"scene{i}", self.shown)
                       for i, name in enumerate(names)}  # fmt: skip
        with tabs.add_tab("Legend"):
            server.gui.add_html(LEGEND)
        self._controls = None
        if begin.values["controls"]:
            from da3_ros.viewer.controls import Controls

            with tabs.add_tab("Control"):
                self._controls = Controls(server.gui, begin.values["controls"], command)
        self._on_change()

    def take(self, message: ViewerMessage) -> None:
        """Takes over a message. Unknown kinds are ignored."""
        with self._lock, self._server.atomic():
            if message.kind == "map":
                self.scenes[message.values["scene"]].take_map(message)
                self._place_viewers()
            elif message.kind == "frame":
                self._take_frame(message)
            elif message.kind == "anew":
                self._clear(message.values["scene"])
            elif message.kind == "state":
                self._show_state(message.values)
            elif message.kind == "settings" and self._controls is not None:
                self._controls.take(message.values)
            elif message.kind == "answer":
                self._notify(message.values)

    def _add_cameras(self, cameras: list[str], keyframes: int) -> None:
        gui = self._server.gui
        self._camera = gui.add_dropdown("Camera", cameras, visible=len(cameras) > 1)
        self._camera.on_update(lambda _: self._draw_again())
        slider = gui.add_slider("Keyframe", 1, max(2, keyframes), 1, 1, visible=keyframes > 1)
        slider.on_update(
            lambda _: self._command("keyframe", {"index": min(slider.value, keyframes) - 1})
        )
        self._tracks = gui.add_checkbox("Feature tracks", True, visible=not keyframes)
        self._tracks.on_update(lambda _: self._draw_again())
        self._image = gui.add_image(EMPTY, label="Image")
        self._depth = gui.add_image(EMPTY, label="Depth")
        self._confidence = gui.add_image(EMPTY, label="Confidence")
        self._caption = gui.add_html(note("no frame yet"))

    def _add_view(self, names: list[str]) -> None:
        gui = self._server.gui
        self._scene = gui.add_dropdown("Scene", names, visible=len(names) > 1)
        self._scene.on_update(lambda _: self._on_change())
        self.shown = ShownParts(gui, self._on_change)
        above = gui.add_button("Look from above")
        above.on_click(lambda event: self._look(event.client, above=True))
        behind = gui.add_button("Look at the scene")
        behind.on_click(lambda event: self._look(event.client, above=False))
        self._follow = gui.add_checkbox("Follow the camera", False)

    def _take_frame(self, message: ViewerMessage) -> None:
        scene, camera = message.values["scene"], message.values["camera"]
        self._newest[scene, camera] = message
        pictures = pictures_of(message, tracks=False)
        self.scenes[scene].take_frame(message, pictures)
        if self._camera.value == _label(camera):
            self._draw(message)
            if self._follow.value and self.scenes[scene] is self._chosen:
                self._look_along(message.arrays["T_ros_camera"])

    def _clear(self, scene: str) -> None:
        self.scenes[scene].clear()
        self._newest = {key: m for key, m in self._newest.items() if key[0] != scene}
        for picture in (self._image, self._depth, self._confidence):
            picture.image = EMPTY
        self._caption.content = note("no frame yet")
        self._draw_again()

    def _draw(self, message: ViewerMessage) -> None:
        pictures = pictures_of(message, tracks=self._tracks.value)
        self._image.image, self._depth.image = pictures.image, pictures.depth
        self._confidence.image, self._caption.content = pictures.confidence, pictures.caption

    def _draw_again(self) -> None:
        with self._lock:
            for (_, camera), message in self._newest.items():
                if self._camera.value == _label(camera):
                    self._draw(message)

    def _on_change(self) -> None:
        with self._lock:
            for scene in self.scenes.values():
                scene.root.visible = scene is self._chosen
                scene.apply()

    @property
    def _chosen(self) -> ScenePage:
        """The scene that is shown; the first one if a page asks for one that there is not."""
        return self.scenes.get(self._scene.value, next(iter(self.scenes.values())))

    def _show_state(self, values: Any) -> None:
        below = unconnected_text(self._chosen.unconnected)
        table = state_table(values, below)
        if self._state.content != table:
            self._state.content = table

    def _place_viewers(self) -> None:
        """Gives viewers a first look at the scene, and again as it grows, until they move."""
        scene = self._chosen
        if not scene.size:
            return
        self._axes.axes_length, self._axes.axes_radius = AXES * scene.size, AXES * scene.size / 30
        clients = self._server.get_clients()
        self._placed = {id: at for id, at in self._placed.items() if id in clients}
        for id, client in clients.items():
            if id not in self._placed or self._has_outgrown(client, *self._placed[id]):
                self._look(client, above=False)
                self._placed[id] = scene.viewpoint(above=False), scene.size

    def _has_outgrown(self, client: Any, position: Array, size: float) -> bool:
        """Whether the scene has grown since a viewer was placed who has not moved."""
        moved = float(np.linalg.norm(client.camera.position - position))
        return self._chosen.size > GROWN * size and moved < 1e-3 * size

    def _look(self, client: Any, *, above: bool) -> None:
        scene = self._chosen
        if client is None or not scene.size:
            return
        _move(client, scene.viewpoint(above=above), scene.centre)

    def _look_along(self, T_ros_camera: Array) -> None:
        """Moves all viewers behind a camera."""
        if not np.isfinite(T_ros_camera).all():
            return
        size = self._chosen.size or 1.0
        forward, position = T_ros_camera[:3, 2], T_ros_camera[:3, 3]
        behind = position - 0.15 * size * forward + np.array([0, 0, 0.05 * size])
        for client in self._server.get_clients().values():
            _move(client, behind, position + 0.1 * size * forward)

    def _notify(self, answer: Any) -> None:
        for client in self._server.get_clients().values():
            with contextlib.suppress(Exception):  # it has left
                client.add_notification(
                    answer["title"], answer["text"], auto_close_seconds=10.0,
                    color="green" if answer["success"] else "red",
                )  # fmt: skip


def _move(client: Any, position: Array, look_at: Array) -> None:
    """Moves a viewer; not one whose page has sent a camera with NaN."""
    with contextlib.suppress(ValueError), client.atomic():
        client.camera.position, client.camera.look_at = position, look_at


def _label(camera: str) -> str:
    """Returns a camera's name on the page."""
    return camera or "camera"


def _wxyz(R: Array) -> Array:
    return np.asarray(Rotation.from_matrix(R).as_quat()[[3, 0, 1, 2]])


def _spacing(xyz: Array) -> float:
    """Returns the typical distance between neighbours among points [M, 3]; 0: unknown."""
    if len(xyz) < 2:
        return 0.0
    distance, _ = cKDTree(xyz).query(xyz[:: max(1, len(xyz) // NEIGHBOURS)], k=2)
    return float(np.median(distance[:, 1]))
