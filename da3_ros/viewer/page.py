"""The page of the viewer: what messages make of it. Runs in the viewer's process only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from da3_ros.types import Array
from da3_ros.viewer.camera_pictures import pictures_of
from da3_ros.viewer.page_texts import LEGEND, note, state_table, unconnected_text
from da3_ros.viewer.scene_page import ScenePage, ShownParts
from da3_ros.viewer.wire import ViewerMessage

Command = Callable[[str, dict[str, Any]], None]  # its name and values
AXES = 0.08  # size of the axes over the scene's
GROWN = 1.3  # growth of the scene after which viewers who have not moved look at it anew
EMPTY = np.full((315, 420, 3), 230, np.uint8)  # before the first picture


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
