"""Stores keyframes in a thread of its own, so that frames do not wait for the disk.

Any failure of the disk pauses storing, with one line; later keyframes try again. Updates of
submaps and poses are buffered meanwhile, so that what is stored stays right.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from da3_ros.keyframe_store.disk_limit import DiskLimit, LimitError
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe, MeasuredKeyframe
from da3_ros.keyframe_store.store import MapState, StoredSubmap, StoreWriter
from da3_ros.types import Array

log = logging.getLogger(__name__)

WAITING = 8  # keyframes that may wait for the disk
DEPTH_WAITING = 16  # keyframes whose measured depth may wait: as many as come at once at the end
RETRY_S = 10.0  # after a failure
FULL = (errno.ENOSPC, errno.EDQUOT)
SYNC_S = 2.0  # between two waits for the disk
# Frames after which changes are written without a keyframe. Not a time: two replays shall write
# the same bytes.
MANY = 256
MOST = 10_000  # frames and poses that may wait while the disk is full or hangs


@dataclass(eq=False)
class _Changes:
    """What is stored beside keyframes; of submaps, poses and map the newest values only."""

    begins: bool = False  # whether the scene begins anew, before all else here
    submaps: dict[int, StoredSubmap] = field(default_factory=dict)
    poses: dict[tuple[str, int], Array] = field(default_factory=dict)
    map: MapState | None = None
    frames: list[FramePose] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        some = self.begins or self.submaps or self.poses or self.frames
        return not some and self.map is None

    def add(self, newer: _Changes) -> None:
        if newer.begins:
            self.begins, self.submaps, self.poses, self.frames = True, {}, {}, []
        self.submaps |= newer.submaps
        self.poses |= newer.poses
        self.map = newer.map or self.map
        self.frames += newer.frames
        del self.frames[:-MOST]  # while the disk is full
        for old in list(self.poses)[:-MOST]:
            del self.poses[old]


@dataclass(frozen=True, eq=False)
class RecorderState:
    """What a recorder has written, and what still waits."""

    size: int  # of the journal, bytes
    changes: _Changes


@dataclass(frozen=True, eq=False)
class Flush:
    """The storing of all that was given so far."""

    folder: Path  # of the journal
    done: Future[bool]  # whether all is in the journal, and can be read


def _as_frame(keyframe: Keyframe) -> FramePose:
    """Returns the pose of a keyframe that is not stored, as that of another frame."""
    return replace(keyframe.pose, keyframe=False)


_Item = Keyframe | MeasuredKeyframe | _Changes | Flush | threading.Event


class KeyframeRecorder:
    """Stores the keyframes of one scene; used by one thread."""

    def __init__(
        self, folder: Path, *, counters: Counter[str], wait: bool,
        limit: DiskLimit | None = None, continued: RecorderState | None = None,
    ) -> None:  # fmt: skip
        """Goes on with the journal in ``folder``, or begins one. Raises OSError, JournalError.

        continued: the state to go on from; what the journal has beyond it is cut off. wait:
        whether ``add`` waits for the disk; else keyframes that are too many are not stored,
        and counted (``keyframes_not_stored``, ``depth_not_stored``). limit: of the files of the
        run.
        """
        self._folder, self._size = folder, None if continued is None else continued.size
        self._paused, self._retry_at = False, 0.0  # after a failure of the disk, and until when
        self._writer: StoreWriter | None = None
        try:
            self._open()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._pause(str(error))
        self._counters, self._wait = counters, wait
        self._share = (limit or DiskLimit()).share()
        self._queue: queue.Queue[_Item | None] = queue.Queue()
        self._room = threading.Semaphore(WAITING)
        self._depth_room = threading.Semaphore(DEPTH_WAITING)
        self._late = _Changes()  # not given to the thread yet
        # Not written yet; of the thread.
        self._changes = _Changes() if continued is None else continued.changes
        self._thread = threading.Thread(target=self._run, name="da3-keyframes", daemon=True)
        self._thread.start()

    def add_keyframe(self, keyframe: Keyframe) -> None:
        """Stores a keyframe, after all that was given before."""
        if not self._room.acquire(blocking=self._wait):
            self._counters["keyframes_not_stored"] += 1
            if self._counters["keyframes_not_stored"] == 1:
                log.warning("%s: the disk is too slow for all keyframes", self._folder)
            self._put(_Changes(frames=[_as_frame(keyframe)]))
            return
        self._put_late()
        self._queue.put(keyframe)

    def add_frame(self, pose: FramePose) -> None:
        """Stores the pose of a frame that is no keyframe."""
        self._put(_Changes(frames=[pose]))

    def measure(self, measured: MeasuredKeyframe) -> None:
        """Stores the measured depth of a keyframe, after all that was given before."""
        if not self._depth_room.acquire(blocking=self._wait):
            self._counters["depth_not_stored"] += 1
            if self._counters["depth_not_stored"] == 1:
                log.warning("%s: the disk is too slow for all measured depth", self._folder)
            return
        self._put_late()
        self._queue.put(measured)

    def place(self, submaps: Iterable[StoredSubmap]) -> None:
        """Stores new poses of submaps."""
        self._put(_Changes(submaps={s.id: s for s in submaps}))

    def correct(self, poses: Mapping[tuple[str, int], Array]) -> None:
        """Stores new poses ``T_submap_camera`` [4, 4], by camera and stamp."""
        if poses:
            self._put(_Changes(poses=dict(poses)))

    def set_map(self, state: MapState) -> None:
        """Stores the map's state."""
        self._put(_Changes(map=state))

    def begin(self) -> None:
        """Begins the scene anew; what was stored before stays on the disk, but is no part of
        it."""
        self._put(_Changes(begins=True))

    def flush(self) -> Flush:
        """Begins to store all that was given so far; returns at once."""
        flush = Flush(self._folder, Future())
        self._put_late()
        self._queue.put(flush)
        return flush

    def state(self) -> RecorderState:
        """Waits until the thread has done all, and returns its state; what was written is on the
        disk then. Raises OSError."""
        done = threading.Event()
        self._put_late()
        self._queue.put(done)
        done.wait()
        if self._writer is None:
            return RecorderState(self._size or 0, copy.deepcopy(self._changes))
        self._writer.journal.sync()
        return RecorderState(self._writer.journal.size, copy.deepcopy(self._changes))

    def close(self, timeout_s: float | None = None) -> bool:
        """Stores what waits, and ends the thread; False if it is still busy after a time."""
        self._put_late()
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _put(self, changes: _Changes) -> None:
        """Gives changes to the thread; while a disk hangs, the newest values are kept here."""
        self._late.add(changes)
        if self._queue.qsize() < MOST:
            self._put_late()

    def _put_late(self) -> None:
        late, self._late = self._late, _Changes()
        if not late.is_empty:
            self._queue.put(late)

    def _run(self) -> None:
        synced = time.monotonic()
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif isinstance(item, _Changes):
                self._changes.add(item)
                if len(self._changes.frames) >= MANY:
                    self._attempt(None)
            elif isinstance(item, Flush):
                self._retry_at = 0.0  # a caller waits for it
                item.done.set_result(self._attempt(None))
            elif isinstance(item, MeasuredKeyframe):
                self._counters["depth_not_stored"] += not self._attempt(item)
                self._depth_room.release()
            else:
                stored = self._attempt(item)
                if not stored:
                    self._changes.add(_Changes(frames=[_as_frame(item)]))
                self._room.release()
                self._counters["keyframes_stored" if stored else "keyframes_not_stored"] += 1
            if time.monotonic() - synced > SYNC_S:
                self._sync()
                synced = time.monotonic()
        self._retry_at = 0.0  # one last attempt
        self._attempt(None)
        self._sync()
        if self._writer is not None:
            self._writer.journal.close()

    def _open(self) -> StoreWriter:
        """Returns the open journal. Raises OSError, JournalError."""
        if self._writer is None:
            self._writer = StoreWriter(self._folder, self._size)
        return self._writer

    def _sync(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):  # the next record fails too
                self._writer.journal.sync()

    def _attempt(self, keyframe: Keyframe | MeasuredKeyframe | None) -> bool:
        """Writes what has changed, and a keyframe or its depth; False if that fails."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            writer = self._open()
            self._write_changes(writer)  # also past the limit: they are small
            if keyframe is not None:
                self._share.require(writer.journal.size)
                if isinstance(keyframe, MeasuredKeyframe):
                    writer.measure(keyframe)
                else:
                    writer.add_keyframe(keyframe)
            self._share.set_size(writer.journal.size)
        except LimitError as error:
            self._pause(str(error))
            return False
        except OSError as error:
            self._pause(str(error))
            self._retry_at = time.monotonic() + RETRY_S
            return False
        except Exception as error:
            # The thread must go on: a replay waits for it.
            log.error("%s: %s is not stored: %s", self._folder, keyframe, error, exc_info=True)
            return False
        if self._paused:
            log.info("%s: storing keyframes goes on", self._folder)
        self._paused = False
        return True

    def _pause(self, why: str) -> None:
        if not self._paused:
            log.warning("%s: storing keyframes is paused: %s", self._folder, why)
        self._paused = True

    def _write_changes(self, writer: StoreWriter) -> None:
        changes = self._changes
        if changes.begins:
            writer.begin()
            changes.begins = False
        if changes.submaps:
            writer.place(changes.submaps.values())
            changes.submaps = {}
        if changes.frames:
            writer.add_frames(changes.frames)
            changes.frames = []
        if changes.poses:
            writer.correct(changes.poses)
            changes.poses = {}
        if changes.map is not None:
            writer.set_map(changes.map)
            changes.map = None
