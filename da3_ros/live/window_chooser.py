"""Selects the frames of the next window, and decodes and prepares them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from da3_ros.inference import Running
from da3_ros.live.frame_accounts import FrameAccounts
from da3_ros.live.health import Stages
from da3_ros.live.scene_stream import Host, RawFrame, SceneStream
from da3_ros.messages.decode import ImageError, decode
from da3_ros.sensors.rig_sync import Instant
from da3_ros.types import Frame

POLL_S = 0.001  # between two checks of a running window


@dataclass(frozen=True, eq=False)
class NextWindow:
    """The frames of the next window of one scene."""

    scene_stream: SceneStream
    instants: list[list[Frame]]


class WindowChooser:
    """Selects frames on the worker's request, or ahead, while a window runs on another device."""

    def __init__(
        self,
        scene_streams: Mapping[str, SceneStream],
        host: Host,
        accounts: FrameAccounts,
        stages: Stages,
    ) -> None:
        self._scene_streams, self._host = scene_streams, host
        self._accounts, self._stages = accounts, stages
        self.ahead: NextWindow | None = None  # selected while a window ran
        self._preparing_s = 0.0  # duration of the last selection ahead, seconds

    @property
    def images(self) -> int:
        """Number of usable images selected ahead."""
        return sum(map(len, self.ahead.instants)) if self.ahead is not None else 0

    def next(self) -> NextWindow | None:
        """Returns the frames of the next window; None if too few wait."""
        chosen, self.ahead = self.ahead or self._choose(), None
        return chosen

    def forget_ahead(self) -> None:
        """Discard the frames that were selected ahead."""
        self.ahead = None

    def choose_ahead(self, window: Running) -> None:
        """Select and begin the next window's frames while a window runs on the device.

        The newest frames are wanted, so the selection is as late as their preparation permits. A
        later selection would not reduce the latency: the device would wait for it.
        """
        while self.ahead is None and not (window.done() or self._host.stopping()):
            start = time.perf_counter()
            if start >= window.ends - self._preparing_s:
                self.ahead = self._choose()
            if self.ahead is None:
                time.sleep(POLL_S)
                continue
            for frame in (f for instant in self.ahead.instants for f in instant):
                self.ahead.scene_stream.pipeline.begin(frame)
            self._preparing_s = time.perf_counter() - start

    def _choose(self) -> NextWindow | None:
        """Select from the scene with the oldest waiting frame among those with enough frames."""
        for scene_stream in sorted(self._scene_streams.values(), key=lambda s: s.queue.since_ns):
            waiting = scene_stream.queue.take(self._host.now_ns())
            if waiting:
                self._accounts.take(sum(map(len, waiting)))
                return NextWindow(scene_stream, [self._read(scene_stream, i) for i in waiting])
        return None

    def _read(self, scene_stream: SceneStream, instant: Instant[RawFrame]) -> list[Frame]:
        """Returns the usable frames of one instant, prepared for the network."""
        self._stages.add("wait", (self._host.now_ns() - instant.stamp_ns) / 1e9)
        frames = [self._decode(raw) for raw in instant.frames]
        with self._stages.of("prepare"):
            return [scene_stream.pipeline.prepare(frame) for frame in frames if frame is not None]

    def _decode(self, raw: RawFrame) -> Frame | None:
        try:
            with self._stages.of("decode"):
                image = decode(raw.message)
        except ImageError as error:
            self._accounts.lose("bad_image")
            self._host.warn(f"{raw.topic}: image dropped: {error}", every_s=5.0)
            return None
        return Frame(
            stamp_ns=raw.stamp_ns,
            image=image,
            frame_id=raw.frame_id,
            camera=raw.camera,
            calibration=raw.calibration,
            rectified=raw.rectified,
        )
