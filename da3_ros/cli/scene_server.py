"""`da3_ros view SCENE --serve`: a saved scene in a browser."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from pathlib import Path

from da3_ros.cli.arguments import FAILED
from da3_ros.cli.command_line import Interrupted
from da3_ros.config import ViewerConfig
from da3_ros.parameter_schema import ConfigError
from da3_ros.viewer.feed import Offered, ViewerFeed
from da3_ros.viewer.process import missing
from da3_ros.viewer.saved_scene import SCENE, SavedSceneView, keyframe_source

PERIOD_S = 0.1
START_S = 60.0  # longest wait for the viewer


def serve(source: Path, host: str, port: int | None, first_port: int) -> int:
    """Serves a scene until an interruption; returns the exit code.

    port: None: the first free one from ``first_port`` on. Raises ConfigError, SceneFileError.
    """
    if text := missing():
        raise ConfigError(f"--serve: {text}")
    if port is not None and not 0 < port < 65536:
        raise ConfigError(f"--port {port}: give 1 to 65535")
    logging.getLogger("da3_ros.viewer.feed").setLevel(logging.WARNING)  # the address is printed
    config = ViewerConfig(port=port or first_port, host=host)
    with SavedSceneView(source) as view:
        offered = Offered(
            str(source), [SCENE], [""], (0.0, 1.0), keyframes=view.keyframes, live=False
        )
        feed = ViewerFeed(config, offered, _warn, exact=port is not None)
        try:
            return _run(feed, view)
        finally:
            feed.close()


def _warn(text: str) -> None:
    sys.stderr.write(f"da3_ros: --serve: {text}\n")


def _run(feed: ViewerFeed, view: SavedSceneView) -> int:
    end = time.monotonic() + START_S
    while not feed.url and not feed.failure and time.monotonic() < end:
        time.sleep(PERIOD_S)
    if not feed.url:
        if not feed.failure:  # else it was said
            _warn("the viewer does not start")
        return FAILED
    sys.stdout.write(f"{feed.url}\nCtrl-C ends it.\n")
    sys.stdout.flush()
    feed.keyframe = keyframe_source(view)
    if view.keyframes:
        feed.show_keyframe(0)
    values = view.values()
    with contextlib.suppress(Interrupted):
        while not feed.failure:
            feed.take_state(values)
            feed.take_map(SCENE, view.store, view.T_ros_map)
            time.sleep(PERIOD_S)
    return FAILED if feed.failure else 0
