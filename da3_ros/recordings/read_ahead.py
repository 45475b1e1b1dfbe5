"""Reads a recording in a thread of its own, so that decoding goes on while the network runs."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator

from da3_ros.recordings.base import Recording
from da3_ros.types import Frame


class ReadAhead:
    """The frames of a recording, in its order, each as ``work`` leaves it; enter, iterate once.

    At most ``depth`` frames wait. What reading raises is raised where the frame would have come.
    """

    def __init__(self, recording: Recording, work: Callable[[Frame], Frame], depth: int) -> None:
        self._recording, self._work, self._depth = recording, work, depth
        self._frames: deque[Frame] = deque()
        self._changed = threading.Condition()
        self._done = self._stop = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="da3-reader", daemon=True)

    def __iter__(self) -> Iterator[Frame]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frames or self._done)
                if not self._frames:
                    break
                frame = self._frames.popleft()
                self._changed.notify_all()
            yield frame
        if self._error is not None:
            raise self._error

    def waiting(self, most: int) -> list[Frame]:
        """The first of the frames that are read and not handed out; does not wait."""
        with self._changed:
            return list(itertools.islice(self._frames, most))

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join()  # before the files are closed

    def _read(self) -> None:
        try:
            for frame in self._recording:
                frame = self._work(frame)
                with self._changed:
                    self._changed.wait_for(lambda: len(self._frames) < self._depth or self._stop)
                    if self._stop:
                        return
                    self._frames.append(frame)
                    self._changed.notify_all()
        except BaseException as error:  # also what is no Exception must end the iteration
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()
