"""What an IMU measures between the frames of a camera, in the camera's axes.

Samples arrive at their own times, from a topic or from a recording that is read along with its
frames. A frame gets all since the last frame of its camera, or nothing: a stretch with a gap or a
fault says nothing about the motion. No ROS, no network.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from da3_ros.config import ImuConfig
from da3_ros.inertial.samples import LEAST_LIMITS, stays_at_extreme
from da3_ros.sensors.transform_tree import JUMP_S, TransformError, TransformTree
from da3_ros.types import Array, ImuNoise, ImuStretch

# A live frame waits this long for the IMU, if that has sent anything in the last time, and unless
# so many frames in a row have waited in vain.
WAIT_S, ALIVE_S, MOST_LATE = 0.1, 0.5, 3
MOST_MIXED = 3  # changes of the frame_id, beyond which two IMUs send
KEEP_S = 10.0  # time of samples that are kept
MAX_STRETCH_S = 5.0  # longest time between two frames; the motion of a longer one is not bridged
WARNING_PERIOD_S = 5.0  # between two equal warnings
# Size of the specific force, m/s^2, that a robot has on average: gravity, and little else.
FORCES = 7.0, 13.0
CHECKED_S = 2.0  # time over which that average is taken


class ImuError(ValueError):
    """A message of an IMU that cannot be used; one line with the cause and a remedy."""


@dataclass(frozen=True, eq=False)
class ImuSample:
    """One message of an IMU, in its own axes."""

    stamp_ns: int
    frame_id: str
    values: Array  # [6] gyro, rad/s; specific force, m/s^2


class ImuHistory:
    """The newest samples of one IMU, in the order of their stamps."""

    def __init__(self, recorded: Iterable[ImuSample] = (), wait_s: float = 0.0) -> None:
        """recorded: all samples of a recording, which are read as frames need them. wait_s: how
        long a frame waits for samples that are a little late."""
        self._stamps: list[int] = []
        self._values: list[Array] = []
        self.frame_id = ""
        self._mixed = 0  # changes of the frame_id
        self._recorded: Iterator[ImuSample] = iter(recorded)
        self._unread: list[ImuSample] = []  # the next ones of the recording, mostly two
        self.jumps = 0  # back in the recording that were passed
        self._arrived = threading.Condition()  # callbacks add while a worker reads
        self._wait_s, self._received_s = wait_s, -math.inf
        self._late = 0  # frames in a row for which samples came too late

    def __len__(self) -> int:
        return len(self._stamps)

    def add(self, sample: ImuSample) -> None:
        """Adds a sample; a late one is put in its place, a repeated stamp is dropped. A stamp that
        jumps back starts a new history."""
        with self._arrived:
            self._add(sample)
            self._received_s = time.monotonic()
            self._arrived.notify_all()

    def _add(self, sample: ImuSample) -> None:
        stamps = self._stamps
        self._mixed += bool(stamps) and sample.frame_id != self.frame_id
        if self._jumps_back(sample.stamp_ns) or sample.frame_id != self.frame_id:
            stamps.clear()
            self._values.clear()
            self.frame_id = sample.frame_id
        at = bisect_left(stamps, sample.stamp_ns)
        if at < len(stamps) and stamps[at] == sample.stamp_ns:
            return
        stamps.insert(at, sample.stamp_ns)
        self._values.insert(at, sample.values)
        old = bisect_left(stamps, stamps[-1] - int(KEEP_S * 1e9))
        if old > len(stamps) // 2:  # rarely, because it moves all others
            del stamps[:old], self._values[:old]

    def _jumps_back(self, stamp_ns: int) -> bool:
        return bool(self._stamps) and stamp_ns < self._stamps[-1] - int(JUMP_S * 1e9)

    def _read_to(self, stamp_ns: int, jumps: int) -> None:
        """Reads the recording on, until a sample is as new as a stamp of a frame.

        jumps: that are behind the frame at least: samples before them are passed over.
        """
        while (sample := self._next(stamp_ns)) is not None:
            back, is_there = self._jumps_back(sample.stamp_ns), self._is_there(stamp_ns)
            if self.jumps >= jumps and (back or is_there):
                return
            del self._unread[0]
            self.jumps += back
            self._add(sample)

    def _is_there(self, stamp_ns: int) -> bool:
        return bool(self._stamps) and self._stamps[-1] >= stamp_ns

    def _next(self, stamp_ns: int) -> ImuSample | None:
        """Returns the first sample of the recording that is not read yet, and leaves it there;
        passes over one whose stamp is far from those before and after it, which would end all
        reading. stamp_ns: of the frame."""
        while True:
            before = self._stamps[-1] if self._stamps else stamp_ns
            if not self._is_wrong(0, before):
                return self._unread[0] if self._unread else None
            del self._unread[0]

    def _is_wrong(self, index: int, before_ns: int) -> bool:
        """Whether the stamp of an unread sample is far from the one before it, and that of the
        next sample is not."""
        self._unread += itertools.islice(self._recorded, max(0, index + 2 - len(self._unread)))
        stamps = [one.stamp_ns for one in self._unread[index : index + 2]]
        return [abs(stamp - before_ns) > JUMP_S * 1e9 for stamp in stamps] == [True, False]

    def pass_jump(self, before_ns: int, stamp_ns: int, jumps: int) -> None:
        """Reads the recording on to where its stamps jump back, as those of the frames have: from
        ``before_ns`` to ``stamp_ns``. If they do not soon, only the frames' stamps jump.

        jumps: as in ``between``, before that.
        """
        with self._arrived:
            if not self._stamps:  # a replay that is continued; else a frame's stamp may be wrong
                self._read_to(before_ns, jumps)
            if self._jumps_back(stamp_ns) and self._will_jump_back():
                self._read_to(stamp_ns, self.jumps + 1)

    def _will_jump_back(self) -> bool:
        newest = self._stamps[-1]
        most = newest + int(KEEP_S * 1e9)
        for index in itertools.count():
            if self._is_wrong(index, newest):
                continue
            if index >= len(self._unread) or self._unread[index].stamp_ns > most:
                return False
            if self._unread[index].stamp_ns < newest - int(JUMP_S * 1e9):
                return True
            newest = max(newest, self._unread[index].stamp_ns)
        raise AssertionError  # not reached

    def is_before(self, stamp_ns: int) -> bool:
        """Whether all samples are far before a stamp."""
        return bool(self._stamps) and self._stamps[-1] < stamp_ns - int(JUMP_S * 1e9)

    def _wait_for(self, stamp_ns: int) -> None:
        """Waits a while for samples as new as a stamp, if some are arriving, and if that has
        helped lately."""

        def is_there() -> bool:
            return self._is_there(stamp_ns)

        silent_s = time.monotonic() - self._received_s
        if not is_there() and silent_s < ALIVE_S and self._late < MOST_LATE:
            self._arrived.wait_for(is_there, self._wait_s)
        self._late = 0 if is_there() else self._late + 1

    def between(
        self, first_ns: int, last_ns: int, most_ns: int, jumps: int = 0
    ) -> tuple[Array, Array]:
        """Returns stamps int64 [N] and values [N, 6] from one stamp to another one, with
        interpolated values at both.

        most_ns: longest time between two samples; the last one may be as much too old. jumps: what
        ``jumps`` of a recording was at the frame before, where that is read anew. Raises ImuError
        if there are none, or with a gap.
        """
        with self._arrived:
            self._read_to(last_ns, jumps)
            self._wait_for(last_ns)
            begin, end = bisect_right(self._stamps, first_ns), bisect_left(self._stamps, last_ns)
            stamps = np.array(self._stamps[max(begin - 1, 0) : end + 1], np.int64)
            values = np.array(self._values[max(begin - 1, 0) : end + 1]).reshape(-1, 6)
        if self._mixed > MOST_MIXED:
            raise ImuError("its messages have several frame_ids: there are two IMUs on the topic")
        if not len(stamps):
            raise ImuError("there are no samples yet")
        if stamps[0] > first_ns:
            raise ImuError("the first sample is younger than the last frame")
        if stamps[-1] < last_ns - most_ns:
            late = (last_ns - stamps[-1]) / 1e9
            raise ImuError(f"the newest sample is {late:.2f} s older than the frame")
        gap = int(np.diff(stamps).max(initial=0))
        if gap > most_ns:
            raise ImuError(f"there is a gap of {gap / 1e9:.2f} s (imu.max_gap_s is less)")
        inside = stamps[(stamps > first_ns) & (stamps < last_ns)]
        times = np.concatenate(([first_ns], inside, [last_ns])).astype(np.int64)
        at = [np.interp(times - first_ns, stamps - first_ns, column) for column in values.T]
        return times, np.stack(at, axis=1)


class ImuInput:
    """Gives the frames of cameras what the IMU has measured since the last one.

    ``history`` is filled by a topic, or reads a recording; all else decides about results and is
    part of a replay's state.
    """

    def __init__(
        self, config: ImuConfig, transforms: TransformTree, history: ImuHistory | None = None,
        mounts: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        """transforms: for the mount of the IMU on the camera. mounts: ``T_camera_imu`` [4, 4] by
        frame_id, as a recording says it, which need no transform."""
        self.config, self._transforms = config, transforms
        self._noise = ImuNoise(
            gyro=config.gyroscope_noise_density, gyro_walk=config.gyroscope_random_walk,
            acceleration=config.accelerometer_noise_density,
            acceleration_walk=config.accelerometer_random_walk,
        )  # fmt: skip
        self._mounts = dict(mounts or {})
        self.history = ImuHistory() if history is None else history
        self.without = 0  # frames without a stretch, but for the first one of each camera
        self._last_ns: dict[str, int] = {}  # stamp of the last frame, by camera
        self._jumps = 0  # of the recording's stamps so far, see ``ImuHistory``
        self._passed: dict[str, int] = {}  # how many of them the newest frame is behind, by camera
        # By camera: integral over the newest seconds, and their number.
        self._force: dict[str, tuple[float, float]] = {}

    def stretch(
        self, camera: str, frame_id: str, stamp_ns: int, warn: Callable[..., None]
    ) -> ImuStretch | None:
        """Returns what was measured from the last frame of a camera to this one; None if that is
        unknown. warn: as that of ``FrameAnnotator``."""
        first_ns = self._last_ns.get(camera)
        if first_ns is not None and first_ns - JUMP_S * 1e9 <= stamp_ns <= first_ns:
            return None  # a late frame, which is dropped: the next one follows the last
        self._last_ns[camera] = stamp_ns
        self._passed.setdefault(camera, self._jumps)
        if first_ns is not None and stamp_ns < first_ns - JUMP_S * 1e9:
            self._follow_jump(camera, first_ns, stamp_ns)
        if first_ns is None or not 0 < stamp_ns - first_ns <= MAX_STRETCH_S * 1e9:
            return None
        try:
            return self._stretch(camera, frame_id, first_ns, stamp_ns)
        except ImuError as error:
            self.without += 1
            warn(f"imu: not used for a frame: {error}", every_s=WARNING_PERIOD_S)
            return None
        finally:
            self._jumps = max(self._jumps, self.history.jumps)

    def _follow_jump(self, camera: str, first_ns: int, stamp_ns: int) -> None:
        """Reads a recording on behind a jump of a camera's stamps, if no other camera's did."""
        if self._passed[camera] == self._jumps:
            offset = round(self.config.time_offset_s * 1e9)
            self.history.pass_jump(first_ns - offset, stamp_ns - offset, self._jumps)
            self._jumps = max(self._jumps, self.history.jumps)
        self._passed[camera] = self._jumps

    def _stretch(self, camera: str, frame_id: str, first_ns: int, last_ns: int) -> ImuStretch:
        offset = round(self.config.time_offset_s * 1e9)
        if self._passed[camera] != self._jumps:
            if self.history.is_before(last_ns - offset):
                raise ImuError("its stamps have jumped back, and those of the images have not")
            self._passed[camera] = self._jumps
        stamps, values = self.history.between(
            first_ns - offset, last_ns - offset, round(self.config.max_gap_s * 1e9), self._jumps
        )
        if not self.history.frame_id:
            raise ImuError("its messages have no header.frame_id, so that its mount is unknown")
        self._check(camera, stamps, values)
        mount = self._mount(frame_id, last_ns)
        turned = values.reshape(-1, 2, 3) @ mount[:3, :3].T
        return ImuStretch(
            stamps + offset, turned[:, 0], turned[:, 1], mount[:3, 3].copy(), self._noise
        )

    def _mount(self, frame_id: str, stamp_ns: int) -> Array:
        imu = self.history.frame_id
        if frame_id in self._mounts:
            return self._mounts[frame_id]
        if imu == frame_id.lstrip("/"):
            return np.eye(4)
        try:
            return self._transforms.lookup(frame_id, imu, stamp_ns)
        except TransformError as error:
            raise ImuError(
                f"its mount, the transform from {frame_id} to {imu}, is unknown ({error}): "
                "publish it on /tf_static"
            ) from error

    def _check(self, camera: str, stamps: Array, values: Array) -> None:
        """Raises ImuError for a sensor at its limit, or in other units.

        Each camera has a mean of its own: together they would average over a part of the time.
        """
        inside, (strong, fast) = values[1:-1], LEAST_LIMITS  # both ends are interpolated
        # In the IMU's own axes: in those of the camera a limit is no constant.
        if stays_at_extreme(inside[:, :3], fast) or stays_at_extreme(inside[:, 3:], strong):
            raise ImuError("it is at its limit (values repeat)")
        step, force = np.diff(stamps) / 1e9, values[:, 3:]
        taken = float(step.sum())
        kept = max(0.0, 1.0 - taken / CHECKED_S)
        # Of the mean from frame to frame, so that vibrations do not count.
        total, seconds = self._force.get(camera, (0.0, 0.0))
        total = kept * total + float(np.linalg.norm(step @ (force[1:] + force[:-1]))) / 2
        seconds = kept * seconds + taken
        self._force[camera] = total, seconds
        if seconds < CHECKED_S / 2:
            return
        mean = total / seconds
        if not FORCES[0] < mean < FORCES[1]:
            raise ImuError(
                f"its acceleration is {mean:.3g} m/s^2 on average, and gravity is 9.8: it must be "
                "in m/s^2 (not in g) and contain gravity (REP-145)"
            )
