"""The live stream in a browser: gives the viewer what the worker has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from da3_ros.config import NodeConfig
from da3_ros.export.formats import FORMATS
from da3_ros.live.scene_stream import SceneStream
from da3_ros.parameter_schema import ConfigError, parameters
from da3_ros.refinement.track_history import TrackHistory
from da3_ros.types import TrackedFrame
from da3_ros.viewer.feed import Offered, ViewerFeed
from da3_ros.viewer.process import missing


class LiveView:
    """Shows frames and maps of a stream; all but ``feed`` and ``close`` belongs to the worker."""

    def __init__(
        self, config: NodeConfig, scenes: Sequence[str], warn: Callable[[str], None]
    ) -> None:
        """Starts the viewer. Raises ConfigError if this machine lacks what it needs, OSError."""
        if text := missing():
            raise ConfigError(f"viewer.port is {config.viewer.port}: {text}; 0 means no viewer")
        offered = Offered(
            "da3_ros", list(scenes), config.pipeline.cameras or ("",),
            config.pipeline.depth.color_range_m,
            _controls(config) if config.viewer.control else None,
        )  # fmt: skip
        self.feed = ViewerFeed(config.viewer, offered, warn)

    def show(self, name: str, scene_stream: SceneStream, frame: TrackedFrame) -> None:
        """Shows a delivered frame, and the map after it."""
        pipeline = scene_stream.pipeline

        def tracks() -> TrackHistory | None:
            if not frame.window.refined or frame.blind:
                return None
            return pipeline.refinement.refiner.track_history(frame.id)

        measured = pipeline.scene_map.dense.so_far
        share = f"Measured depth: {100 * measured.share:.0f} % of the pixels of keyframes"
        note = share if measured.keyframes else ""
        self.feed.range_m = pipeline.config.depth.color_range_m
        self.feed.take_frame(name, frame, pipeline.scene_map.T_ros_map, tracks, note)
        self.show_map(name, scene_stream)

    def show_map(self, name: str, scene_stream: SceneStream, *, begins: bool = False) -> None:
        """Shows the map of a scene, if that is due. begins: it is another one."""
        if begins:
            self.feed.clear(name)
        if self.feed.watched:
            pipeline = scene_stream.pipeline
            T_ros_map = pipeline.scene_map.T_ros_map
            self.feed.take_map(name, pipeline.map, T_ros_map, at_once=begins)


def _controls(config: NodeConfig) -> dict[str, object]:
    """Returns what the page may change, see ``Offered``."""
    settings = [
        {
            "name": p.name, "value": list(p.value) if isinstance(p.value, tuple) else p.value,
            "text": p.text, "low": p.low, "high": p.high, "choices": list(p.choices),
        }
        for p in parameters(config)
        if p.live
    ]  # fmt: skip
    suffixes = [f.endings[0] for f in FORMATS.values() if f.live and f.endings]
    return {"suffixes": list(dict.fromkeys(suffixes)), "settings": settings}
