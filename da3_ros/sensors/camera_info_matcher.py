"""Pairs images with the camera_info of their camera, by the rule of the interface.

Used by the live node and by recordings. No ROS and no clock: the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from da3_ros.sensors.calibration import CalibrationError, calibration_key, image_size
from da3_ros.sensors.calibration_check import check_calibration
from da3_ros.types import Calibration

Item = TypeVar("Item")
Source = tuple[str, int, int]  # frame_id, width, height of an image
SAME = 1e-4  # relative difference of values below which a calibration is the same
KINDS = 64  # decisions that are kept: a faulty driver may send ever new sizes


@dataclass
class _Choice:
    """The decision for one kind of image (frame_id and size)."""

    since_ns: int  # time of its first image
    made: bool = False
    calibration: Calibration | None = None
    changes: int = 0  # calibrations that were taken over after the decision


class CameraInfoMatcher(Generic[Item]):
    """Pairs images with the newest valid camera_info of the same frame_id and size.

    Binning and region of interest are taken into account. Images wait, in order, until a
    camera_info arrives, ``timeout_s`` has passed since the first image of their kind (same
    frame_id and size), or ``max_waiting`` images wait; then they continue without one, and the
    network's own K is used. A camera_info that comes later, or another one (a zoom), holds for the
    images after it; one that cannot be used changes nothing.

    ``now_ns`` is any clock that normally only goes forward: the images' stamps in replay, the
    steady clock live. Not thread-safe.
    """

    def __init__(self, topic: str, timeout_s: float = 2.0, max_waiting: int = 64) -> None:
        self.topic = topic
        self._timeout_ns = round(timeout_s * 1e9)
        self._max_waiting = max_waiting
        self._waiting: deque[tuple[Item, Source]] = deque()
        self._infos: dict[str, Calibration] = {}  # newest valid one by frame_id
        self._choices: dict[Source, _Choice] = {}
        self._fault = ""  # of the newest unusable camera_info
        self._reported: set[str] = set()  # faults; a broken driver may have ever new ones
        self._notices: list[str] = []

    @property
    def waiting(self) -> int:
        """Number of images that wait for a decision."""
        return len(self._waiting)

    def add_info(self, calibration: Calibration, frame_id: str) -> None:
        """Adds a received camera_info."""
        if _same(self._infos.get(frame_id), calibration):
            return  # most are; the check takes milliseconds
        if fault := _fault(calibration, image_size(calibration)):
            if fault not in self._reported and len(self._reported) < KINDS:
                self._reported.add(fault)
                self._notices.append(f"{self.topic}: {fault}")
            self._fault = fault
            return
        if frame_id not in self._infos and len(self._infos) >= KINDS:
            del self._infos[next(iter(self._infos))]
        self._infos[frame_id] = calibration
        for source, choice in self._choices.items():
            if choice.made and source[0] == frame_id and not _fault(calibration, source[1:]):
                self._take_over(source, choice, calibration)

    def add_image(self, item: Item, frame_id: str, width: int, height: int, now_ns: int) -> None:
        """Adds a received image; ``ready`` returns it, in order, after the decision for its
        kind."""
        source = (frame_id, width, height)
        if source not in self._choices and len(self._choices) >= KINDS:
            waiting = {kind for _, kind in self._waiting}
            self._choices.pop(next((k for k in self._choices if k not in waiting), source), None)
        self._choices.setdefault(source, _Choice(now_ns))
        self._waiting.append((item, source))

    def ready(self, now_ns: int, final: bool = False) -> list[tuple[Item, Calibration | None]]:
        """Returns images that need not wait any longer, each with its calibration or None.

        final: no more messages follow, so that no image waits.
        """
        out: list[tuple[Item, Calibration | None]] = []
        while self._waiting:
            item, source = self._waiting[0]
            choice = self._choices[source]
            if not choice.made and not self._decide(source, choice, now_ns, final):
                break
            self._waiting.popleft()
            out.append((item, choice.calibration))
        return out

    def reset(self) -> int:
        """Begins a new stream: forgets decisions and waiting images, keeps received camera_info.

        Returns the number of waiting images, which are dropped.
        """
        waited = len(self._waiting)
        self._waiting.clear()
        self._choices.clear()
        self._fault = ""
        self._reported.clear()
        return waited

    def notices(self) -> list[str]:
        """Returns the one-line warnings since the last call; each cause is reported once."""
        out, self._notices = self._notices, []
        return out

    def _decide(self, source: Source, choice: _Choice, now_ns: int, final: bool) -> bool:
        info = self._infos.get(source[0])
        if info is not None and not _fault(info, source[1:]):
            choice.made, choice.calibration = True, info
            return True
        waited_ns = now_ns - choice.since_ns
        # A clock that jumps back (a looping recording) must not make images wait forever.
        timed_out = not 0 <= waited_ns < self._timeout_ns
        if timed_out or final or len(self._waiting) > self._max_waiting:
            choice.made = True
            self._notices.append(self._why_without(source))
            return True
        return False

    def _why_without(self, source: Source) -> str:
        frame_id, width, height = source
        lead = f"{self.topic}: no camera_info for the {width}x{height} images of '{frame_id}'"
        tail = "using the network's own intrinsics until one fits"
        if frame_id in self._infos:
            return f"{lead}: {_fault(self._infos[frame_id], source[1:])}; {tail}"
        if self._infos:
            names = ", ".join(f"'{name}'" for name in sorted(self._infos))
            return f"{lead}: its frame_id is {names}, make both the same; {tail}"
        return f"{lead}: {self._fault or 'none was received, is it published?'}; {tail}"

    def _take_over(self, source: Source, choice: _Choice, new: Calibration) -> None:
        """Uses a calibration from now on. A zoom lens may send a new one with each image: the 1st,
        2nd, 4th, 8th change is reported."""
        if _nearly_same(choice.calibration, new):
            return
        old, choice.calibration = choice.calibration, new
        lead = f"{self.topic}: camera_info of '{source[0]}'"
        if old is None:
            self._notices.append(
                f"{lead} arrived late: images are rectified with it from now on, the newest view "
                "of before again; map and odometry go on"
            )
            return
        choice.changes += 1
        if choice.changes & (choice.changes - 1) == 0:
            self._notices.append(
                f"{lead} has changed ({_difference(old, new)}; change {choice.changes}): it holds "
                "for the images after it; map and odometry go on"
            )


def _fault(c: Calibration, size: tuple[int, int]) -> str:
    """Returns why a calibration does not fit images of (width, height), or an empty text."""
    try:
        check_calibration(c, size)
    except CalibrationError as error:
        return str(error)
    return ""


def _same(a: Calibration | None, b: Calibration) -> bool:
    return a is not None and calibration_key(a) == calibration_key(b)


def _nearly_same(a: Calibration | None, b: Calibration) -> bool:
    """True if two calibrations differ by less than a tenth of a pixel: each new one costs tables
    for rectification."""
    if a is None:
        return False
    if not _same(replace(a, K=b.K, D=b.D, R=b.R, P=b.P), b) or (a.P is None) != (b.P is None):
        return False
    x, y = (
        np.concatenate([np.ravel(m) for m in (c.K, c.D, c.R, c.P) if m is not None])
        for c in (a, b)
    )
    return len(x) == len(y) and np.allclose(x, y, rtol=SAME, atol=SAME / 100)


def _difference(old: Calibration, new: Calibration) -> str:
    """Returns what differs most visibly: the focal length, else the rest."""
    before, after = float(old.K[0, 0]), float(new.K[0, 0])
    return f"fx {before:.5g} to {after:.5g}" if f"{before:.5g}" != f"{after:.5g}" else "same fx"
