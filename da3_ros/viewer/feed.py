"""Feeds the viewer: what is new of frames, map and state goes to its process, newest first.

No frame waits for it: the worker leaves references to immutable arrays, and a thread sends them.
What the viewer cannot take in time is replaced by what is newer. While nobody looks, nothing is
read or sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from da3_ros.config import ViewerConfig
from da3_ros.mapping.submaps import SubmapStore
from da3_ros.refinement.track_history import TrackHistory
from da3_ros.types import Array, TrackedFrame
from da3_ros.viewer.encode import frame_message, map_message
from da3_ros.viewer.guard import LOCAL
from da3_ros.viewer.map_reader import MAX_POINTS_AT_ONCE, MapReader, MapUpdate
from da3_ros.viewer.process import ViewerProcess
from da3_ros.viewer.wire import ViewerMessage

log = logging.getLogger(__name__)

FRAME_PERIOD_S = 0.2  # between two frames of a camera
MAP_PERIOD_S = 1.0
REST_PERIOD_S = 0.1  # between two updates while changed points are missing in the viewer
FIRST_RESTART_S, LAST_RESTART_S = 1.0, 60.0  # waits for a new process after one has ended
CLOSE_S = 3.0
MOST_ANSWERS = 8  # that wait to be shown; the newest stay
MOST_COMMANDS = 4  # of users of the page that wait
SETTLE_S = 2.0  # after a command, in which a user may still be typing a value

Commands = Callable[[str, Mapping[str, Any]], tuple[bool, str]]
Keyframes = Callable[[int], "ViewerMessage | str"]  # by index; a text says why there is none


@dataclass(frozen=True)
class Offered:
    """What the page has from the beginning.

    controls: None: the page changes nothing; else ``suffixes`` of exports, and ``settings``: a
    list with name, value, text, low, high and choices of each parameter that may change.
    """

    title: str
    scenes: Sequence[str]
    cameras: Sequence[str]
    range_m: tuple[float, float]  # of depths in the colours of metric frames
    controls: Mapping[str, Any] | None = None
    keyframes: int = 0  # that can be looked at one by one
    live: bool = True  # whether frames wait while the map is read

    def message(self) -> ViewerMessage:
        """Returns the first message of a viewer."""
        return ViewerMessage("begin", {
            "title": self.title, "scenes": list(self.scenes), "controls": self.controls,
            "cameras": [name or "camera" for name in self.cameras], "keyframes": self.keyframes,
        })  # fmt: skip


@dataclass
class _SceneToSend:
    """What is left of a scene for the thread, and what the viewer has of it."""

    reader: MapReader
    update: MapUpdate | None = None  # waits
    frames: dict[str, ViewerMessage] = field(default_factory=dict)  # one of each camera waits
    # The newest one of each camera, with the map's pose: for pages that are opened later.
    last: dict[str, tuple[TrackedFrame, Array]] = field(default_factory=dict)
    greet: bool = False  # a page was opened, and gets the newest frames
    anew: bool = False  # what the viewer has is to be removed first
    due_s: float = 0.0  # of the next update
    frame_due_s: dict[str, float] = field(default_factory=dict)


class ViewerFeed:
    """Owns the viewer's process and a thread that sends. ``watched``: whether somebody looks.

    ``take_frame`` and ``take_map`` belong to the thread that owns the maps, the others to any.
    """

    def __init__(
        self, config: ViewerConfig, offered: Offered, warn: Callable[[str], None], *,
        exact: bool = False,
    ) -> None:  # fmt: skip
        """exact: whether the viewer fails if the port is in use. Raises OSError."""
        self._config, self._offered, self._warn, self._exact = config, offered, warn, exact
        self.commands: Commands = _refused  # answers what a user of the page wants
        self.keyframe: Keyframes = _no_keyframe  # gives a keyframe that a user looks at
        self.watched = 0  # number of open pages
        self.url = ""  # of the page; empty: not open
        self.failure = ""  # why there is no viewer, and will be none
        self.range_m = offered.range_m  # may change, see ``Offered``
        self.sent_bytes = 0
        self._scenes = {name: _SceneToSend(self._reader()) for name in offered.scenes}
        self._state: ViewerMessage | None = None
        self._settings: ViewerMessage | None = None
        self._answers: deque[ViewerMessage] = deque(maxlen=MOST_ANSWERS)
        self._settings_sent: Mapping[str, Any] | None = None  # None: the page may differ
        self._settled_s = 0.0  # time from which values in force are shown
        self._wanted: int | None = None  # the keyframe that a user wants to see
        self._keyframe: int | None = None  # that the viewer shows
        self._errors: set[str] = set()  # kinds that were warned of
        self._renewed = False  # the viewer has nothing of the maps; the maps' thread must know
        self._stopping = False
        self._jobs = ThreadPoolExecutor(MOST_COMMANDS, "da3-viewer-commands")
        self._busy = 0  # commands that wait or run
        self._condition = threading.Condition()
        self._process = self._start()
        self._thread = threading.Thread(target=self._run, name="da3-viewer", daemon=True)
        self._thread.start()

    # What is to be shown ------------------------------------------------------------------------

    def take_frame(
        self, scene: str, frame: TrackedFrame, T_ros_map: Array,
        tracks: Callable[[], TrackHistory | None], note: str = "",
    ) -> None:  # fmt: skip
        """Shows a processed frame, if it is due.

        tracks: returns the feature tracks that it sees. note: a line of text below.
        """
        held, now = self._scenes[scene], time.monotonic()
        held.last[frame.camera] = frame, T_ros_map
        if not self.watched or now < held.frame_due_s.get(frame.camera, 0.0):
            return
        held.frame_due_s[frame.camera] = now + FRAME_PERIOD_S
        self._send_frame(scene, frame, T_ros_map, tracks(), note)

    def take_map(
        self, scene: str, store: SubmapStore, T_ros_map: Array, *, at_once: bool = False
    ) -> None:
        """Shows the map as it is, if that is due and the last update was sent. at_once: it is."""
        held, now = self._scenes[scene], time.monotonic()
        if self._renewed:
            self._renewed = False
            for one in self._scenes.values():
                one.reader, one.due_s = self._reader(), 0.0
        if self.watched and held.greet:
            held.greet = False
            for frame, T in held.last.values():
                if now >= held.frame_due_s.get(frame.camera, 0.0):  # else it was just sent
                    self._send_frame(scene, frame, T, None)
        waits = held.update is not None
        if not self.watched or waits or (now < held.due_s and not at_once):
            return
        update = held.reader.update(store, T_ros_map)
        held.due_s = now + _pause_s(update)
        with self._condition:
            held.update = update
            self._condition.notify()

    def clear(self, scene: str) -> None:
        """Removes all of a scene, which has another map from now on."""
        with self._condition:
            held = self._scenes[scene] = _SceneToSend(self._reader())
            held.anew = True
            self._condition.notify()

    def take_state(self, values: Mapping[str, Any]) -> None:
        """Shows the state: texts by name."""
        if not self.watched:
            return
        with self._condition:
            self._state = ViewerMessage("state", values)
            self._condition.notify()

    def take_settings(self, values: Mapping[str, Any]) -> None:
        """Shows values in force: ``enabled``, and ``parameters`` by name.

        They are shown again after each command: the page has what its user wished, which the node
        may have refused.
        """
        with self._condition:
            if values == self._settings_sent or time.monotonic() < self._settled_s:
                return  # a user may be changing one
            self._settings = ViewerMessage("settings", values)
            self._settings_sent = values
            self._condition.notify()

    def show_keyframe(self, index: int) -> None:
        """Shows a stored keyframe, or why it cannot be shown; the newest wish counts."""
        with self._condition:
            self._wanted = self._keyframe = index
            self._condition.notify()

    def close(self) -> None:
        """Ends process and thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._process.close()
        self._jobs.shutdown(wait=False, cancel_futures=True)
        self._thread.join(CLOSE_S)

    def _reader(self) -> MapReader:
        most = self._config.max_points
        return MapReader(most) if self._offered.live else MapReader(most, most_of_submap=most)

    # The thread that sends ----------------------------------------------------------------------

    def _start(self) -> ViewerProcess:
        config = self._config
        return ViewerProcess(config.host, config.port, self._on_event, exact=self._exact)

    def _run(self) -> None:
        wait_s = FIRST_RESTART_S
        while not self._stopping and not self.failure:
            began_s = time.monotonic()
            try:
                self._process.send(self._offered.message())
                self._send_on()
            except OSError:
                pass
            except Exception as error:
                self._warn(f"the viewer fails: {type(error).__name__}: {error}")
            if self._stopping or self.failure:
                return
            if time.monotonic() - began_s > LAST_RESTART_S:
                wait_s = FIRST_RESTART_S
            last = f" ({self._process.last_words})" if self._process.last_words else ""
            self._warn(f"the viewer has ended{last} and begins again in {wait_s:.0f} s")
            with self._condition:
                self._condition.wait_for(lambda: self._stopping, wait_s)
            wait_s = min(2 * wait_s, LAST_RESTART_S)
            self._begin_again()

    def _begin_again(self) -> None:
        with self._condition:
            if self._stopping:
                return
            self._forget()
            self._process.close()
            self._process = self._start()

    def _forget(self) -> None:
        self.watched, self.url, self._renewed, self._settings_sent = 0, "", True, None
        self._wanted = self._keyframe
        for scene in self._scenes.values():
            scene.update = None
            scene.frames.clear()

    def _send_on(self) -> None:
        """Sends what waits, until the end. Raises OSError when the process has ended."""
        while not self._stopping:
            with self._condition:
                self._condition.wait_for(lambda: self._stopping or self._is_waiting())
                waiting = self._taken()
            for message in waiting:
                self.sent_bytes += self._process.send(message())

    def _send_frame(
        self, scene: str, frame: TrackedFrame, T_ros_map: Array, tracks: TrackHistory | None,
        note: str = "",
    ) -> None:  # fmt: skip
        message = frame_message(scene, frame, T_ros_map, tracks, self.range_m, note)
        with self._condition:
            self._scenes[scene].frames[frame.camera] = message
            self._condition.notify()

    def _keyframe_message(self, index: int) -> ViewerMessage:
        found = self.keyframe(index)
        return _answer("keyframe", False, found) if isinstance(found, str) else found

    def _is_waiting(self) -> bool:
        scenes = self._scenes.values()
        return bool(
            self._state or self._settings or self._answers or self.failure
            or self._wanted is not None or any(s.anew or s.update or s.frames for s in scenes)
        )  # fmt: skip

    def _taken(self) -> list[Callable[[], ViewerMessage]]:
        """Takes what waits; messages are made when they are sent."""
        if self.failure:
            raise BrokenPipeError(self.failure)
        out: list[Callable[[], ViewerMessage]] = []
        for name, scene in self._scenes.items():
            if scene.anew:
                out.append(_known(ViewerMessage("anew", {"scene": name})))
            if scene.update is not None:
                out.append(_later(name, scene.update))
            out += [_known(message) for message in scene.frames.values()]
            scene.update, scene.anew = None, False
            scene.frames.clear()
        keyframe, self._wanted = self._wanted, None
        if keyframe is not None:
            out.append(lambda: self._keyframe_message(keyframe))
        for message in (self._settings, self._state, *self._answers):
            if message is not None:
                out.append(_known(message))
        self._settings = self._state = None
        self._answers.clear()
        return out

    # Events of the process ----------------------------------------------------------------------

    def _on_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "listening":
            self._on_listening(int(event["port"]))
        elif kind == "failed":
            self._fail(str(event["text"]))
        elif kind == "error":
            self._note_error(str(event["text"]))
        elif kind == "clients":
            self._on_clients(int(event["count"]))
        elif kind == "command":
            self._on_command(str(event["name"]), event["values"])
        elif kind == "ended":
            with self._condition:
                self.watched = 0
                self._state = self._state or ViewerMessage(
                    "state"
                )  # wakes the thread, which finds out
                self._condition.notify()

    def _on_listening(self, port: int) -> None:
        host = self._config.host
        name = "localhost" if host == "127.0.0.1" else f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{port}"
        if port != self._config.port:
            self._warn(f"port {self._config.port} is in use: the viewer is on {port}")
        if host not in LOCAL:
            self._warn(
                f"the viewer is on {host}: everyone in the network sees the images and the map, "
                f"{'and may change the node, ' if self._config.control else ''}without a password"
            )
        log.info("viewer: %s", self.url)

    def _note_error(self, text: str) -> None:
        """Warns of what could not be shown, each kind once."""
        kind = text.partition(":")[0]
        if kind not in self._errors:
            self._errors.add(kind)
            self._warn(f"viewer: {text}")

    def _fail(self, text: str) -> None:
        with self._condition:
            self.failure = text
            self._condition.notify()
        self._warn(f"there is no viewer: {text}")

    def _on_clients(self, count: int) -> None:
        with self._condition:
            self.watched = count
            for scene in self._scenes.values():
                scene.due_s, scene.greet = 0.0, True

    def _on_command(self, name: str, values: Mapping[str, Any]) -> None:
        if name == "keyframe" and self._offered.keyframes:
            self.show_keyframe(int(values["index"]))
        elif self._config.control:  # else the page has no controls: this is no user of it
            self._submit(name, values)

    def _submit(self, name: str, values: Mapping[str, Any]) -> None:
        """Has a command carried out; more than a few at once are refused."""
        with self._condition:
            if self._busy >= MOST_COMMANDS or self._stopping:
                self._answer(_answer(name, False, "too many commands wait"))
                return
            self._busy += 1
            self._settled_s = time.monotonic() + SETTLE_S
            self._jobs.submit(self._carry_out, name, values)

    def _carry_out(self, name: str, values: Mapping[str, Any]) -> None:
        try:
            self._answer(_answer(name, *self.commands(name, values)))
        except Exception as error:  # a page's user gets an answer whatever happens
            self._answer(_answer(name, False, f"{type(error).__name__}: {error}"))
        finally:
            with self._condition:
                self._busy -= 1

    def _answer(self, message: ViewerMessage) -> None:
        """Shows the answer to a command, and has the values in force shown again."""
        with self._condition:
            self._answers.append(message)
            self._settings_sent, self._settled_s = None, time.monotonic() + SETTLE_S
            self._condition.notify()


def _answer(name: str, success: bool, text: str) -> ViewerMessage:
    return ViewerMessage("answer", {"title": name, "success": success, "text": text})


def _no_keyframe(index: int) -> ViewerMessage | str:
    return "there are no stored keyframes"


def _refused(name: str, values: Mapping[str, Any]) -> tuple[bool, str]:
    return False, "this viewer changes nothing"


def _later(scene: str, update: MapUpdate) -> Callable[[], ViewerMessage]:
    return lambda: map_message(scene, update)


def _pause_s(update: MapUpdate) -> float:
    """Returns the time until the next update. A large submap that grows is sent again and again,
    as a whole: the less often, the more points it has."""
    period = MAP_PERIOD_S if update.complete else REST_PERIOD_S
    return period * max(1.0, update.count / MAX_POINTS_AT_ONCE)


def _known(message: ViewerMessage) -> Callable[[], ViewerMessage]:
    return lambda: message
