"""Reads a recording in a separate thread, so that decoding overlaps with the network."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator

from da3_ros.recordings.base import Recording
from da3_ros.types import Frame


class ReadAhead:
    """Frames of a recording in order, after ``prepare``. Enter the context and iterate once.

    At most ``depth`` frames are buffered. An exception of the reading thread is raised by the
    iteration, after the frames that were read before.
    """

    def __init__(
        self,
        recording: Recording,
        prepare: Callable[[Frame], Frame],
        depth: int,
        *,
        skip: int = 0,
    ) -> None:
        """skip: number of first frames that are read and dropped."""
        self._recording, self._prepare, self._depth = recording, prepare, depth
        self._skip = skip
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

    def waiting(self, limit: int) -> list[Frame]:
        """Up to ``limit`` buffered frames, oldest first; they stay buffered. Does not block."""
        with self._changed:
            return list(itertools.islice(self._frames, limit))

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
            for number, frame in enumerate(self._recording):
                if self._stop:
                    return
                if number < self._skip:
                    continue
                frame = self._prepare(frame)
                with self._changed:
                    self._changed.wait_for(lambda: len(self._frames) < self._depth or self._stop)
                    if self._stop:
                        return
                    self._frames.append(frame)
                    self._changed.notify_all()
        except BaseException as error:  # of any kind: the iteration must end
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()
