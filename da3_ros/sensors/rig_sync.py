"""Which frames of several cameras are of one instant: one rule for live and for replay.

Cameras that are not triggered together stamp their frames a little apart, and messages come in
their own time. Knows stamps and names; no clock, no ROS, no images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from da3_ros.config import PipelineConfig

SILENT_NS = 2_000_000_000  # a camera that has said nothing for so long is not waited for
STRAY_NS = 1_000_000_000  # after a jump back, how long other cameras may still be before it


class Stamped(Protocol):
    """A frame, decoded or not."""

    @property
    def stamp_ns(self) -> int: ...
    @property
    def camera(self) -> str: ...


Item = TypeVar("Item", bound=Stamped)


@dataclass(frozen=True)
class Instant(Generic[Item]):
    """Frames of one moment, at most one of each camera, in the order of the cameras' names."""

    frames: tuple[Item, ...]

    @property
    def stamp_ns(self) -> int:
        """Of its newest frame."""
        return max(frame.stamp_ns for frame in self.frames)

    def __len__(self) -> int:
        return len(self.frames)


class RigSync(Generic[Item]):
    """Takes frames as they come and hands them on in instants. Drops nothing that is in time.

    The oldest waiting frame makes an instant with those of other cameras that are at most
    ``max_skew_s`` younger. It leaves when it is complete, or as soon as it cannot become so: what
    is missing has sent a younger frame, is silent for long, or is later than ``max_wait_s``. A
    frame that comes after its instant has left makes one of its own. So the result depends on the
    order of arrival only where a camera is late.
    """

    def __init__(
        self, cameras: Sequence[str], max_skew_s: float, max_wait_s: float, max_late_s: float
    ) -> None:
        """``max_late_s``: a camera's stamp that is farther back is a jump of time."""
        self.cameras = tuple(cameras)
        self._rank = {name: i for i, name in enumerate(self.cameras)}
        self._skew, self._wait, self._late = (
            round(s * 1e9) for s in (max_skew_s, max_wait_s, max_late_s)
        )
        self.strays = 0  # frames from before a jump that came after it
        self.reset()

    @classmethod
    def of(cls, config: PipelineConfig) -> RigSync[Item]:
        """As the parameters say; cameras of independent windows are not brought together."""
        cameras = config.cameras if config.window.mode == "joint" else ()
        return cls(cameras, config.rig.max_skew_s, config.rig.max_wait_s, config.max_late_s)

    def reset(self) -> None:
        """Forget what waits and what was seen."""
        self._waiting: list[Item] = []  # by stamp
        self._seen: dict[str, int] = {}  # newest stamp of each camera
        self._first = 0  # stamp that everything began with
        self._unjumped: set[str] = set()  # cameras that may still be where others jumped from

    def add(self, frame: Item) -> list[Instant[Item]]:
        """One frame; the instants that it lets go, in order."""
        if len(self.cameras) < 2:
            return [Instant((frame,))]
        done: list[Instant[Item]] = []
        if frame.stamp_ns < self._seen.get(frame.camera, 0) - self._late:
            done = self.flush()
            self._unjumped = set(self.cameras)
        elif self._is_stray(frame):
            self.strays += 1
            return []
        self._unjumped.discard(frame.camera)
        if not self._seen:
            self._first = frame.stamp_ns
        self._seen[frame.camera] = max(frame.stamp_ns, self._seen.get(frame.camera, 0))
        self._waiting.append(frame)
        self._waiting.sort(key=lambda f: (f.stamp_ns, self._rank.get(f.camera, 0)))
        return done + self._ready()

    def flush(self) -> list[Instant[Item]]:
        """All that waits, as it is; what comes next begins anew."""
        done = []
        while self._waiting:
            done.append(self._take())
        self.reset()
        return done

    def _is_stray(self, frame: Item) -> bool:
        if frame.camera not in self._unjumped or not self._seen:
            return False
        newest = max(self._seen.values())
        return frame.stamp_ns > newest + self._late and newest - self._first < STRAY_NS

    def _ready(self) -> list[Instant[Item]]:
        done = []
        while self._waiting and not any(self._awaited(name) for name in self._missing()):
            done.append(self._take())
        return done

    def _members(self) -> dict[str, Item]:
        """The oldest frame and what belongs to it, by camera."""
        limit = self._waiting[0].stamp_ns + self._skew
        members: dict[str, Item] = {}
        for frame in self._waiting:
            if frame.stamp_ns <= limit:
                members.setdefault(frame.camera, frame)
        return members

    def _missing(self) -> set[str]:
        return set(self.cameras) - set(self._members())

    def _awaited(self, camera: str) -> bool:
        """Whether a frame of this camera may still come that belongs to the oldest."""
        oldest, newest = self._waiting[0].stamp_ns, max(self._seen.values())
        seen = self._seen.get(camera, self._first)
        gone = camera in self._seen and seen > oldest + self._skew
        return not gone and newest - oldest <= self._wait and oldest - seen <= SILENT_NS

    def _take(self) -> Instant[Item]:
        members = self._members()
        taken = sorted(members.values(), key=lambda f: self._rank.get(f.camera, 0))
        self._waiting = [f for f in self._waiting if not any(f is t for t in taken)]
        return Instant(tuple(taken))
