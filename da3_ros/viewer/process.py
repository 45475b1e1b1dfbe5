"""The viewer's process, as the process that feeds it sees it."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, BinaryIO, cast

from da3_ros.viewer.wire import ViewerMessage, write_message

log = logging.getLogger(__name__)

STOP_S = 2.0  # longest wait for its end
MODULE = "da3_ros.viewer.server"


def missing() -> str:
    """Returns in a line what the viewer lacks on this machine; empty: nothing."""
    if find_spec("viser") is None:
        return "the viewer needs viser: pip install 'viser>=1.1,<2' (or da3_ros[viewer])"
    return ""


class ViewerProcess:
    """A running viewer. Messages go in, events come out; both end with the process."""

    def __init__(
        self, host: str, port: int, on_event: Callable[[dict[str, Any]], None], *, exact: bool
    ) -> None:
        """on_event: gets each event, on a thread of its own; ``{"event": "ended"}`` is the last.

        exact: whether it fails if the port is in use, instead of taking the next free one.
        Raises OSError.
        """
        arguments = ["--host", host, "--port", str(port), *(["--exact"] if exact else [])]
        self._child = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )  # fmt: skip
        self.last_words = ""  # the newest line of its errors
        self._input = cast(BinaryIO, self._child.stdin)
        self._on_event = on_event
        self._reader = threading.Thread(target=self._read, name="da3-viewer-events", daemon=True)
        self._reader.start()
        threading.Thread(target=self._read_errors, name="da3-viewer-errors", daemon=True).start()

    def send(self, message: ViewerMessage) -> int:
        """Sends a message; waits while the process is busy. Returns its bytes. Raises OSError if
        the process has ended."""
        try:
            return write_message(self._input, message)
        except ValueError as error:  # the pipe is closed
            raise BrokenPipeError(str(error)) from error

    def close(self) -> None:
        """Ends the process; ``send`` of another thread fails."""
        self._child.kill()  # it has nothing to save, and may be stopped or busy
        self._child.wait()
        with contextlib.suppress(OSError, ValueError):
            self._input.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(STOP_S)

    def _read_errors(self) -> None:
        """Logs what the process and its libraries complain of, for those who debug it."""
        assert self._child.stderr is not None
        with self._child.stderr as lines:
            for line in lines:
                if text := line.decode(errors="replace").strip():
                    self.last_words = text
                    log.debug("viewer: %s", text)

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # no event of ours
                    self._on_event(json.loads(line))
        self._child.wait()
        self._on_event({"event": "ended"})
