"""Groups frames of several cameras into framesets, by one rule for live and replay.

Cameras without a common trigger have slightly different stamps, and messages arrive at different
times. Works on stamps and names; no clock, no ROS, no images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from da3_ros.config import PipelineConfig

SILENT_NS = 2_000_000_000  # a camera without frames for this long is not waited for
STRAY_NS = 1_000_000_000  # time after a jump back in which other cameras' older frames are strays


class Stamped(Protocol):
    """A frame, decoded or not."""

    @property
    def stamp_ns(self) -> int: ...
    @property
    def camera(self) -> str: ...


Item = TypeVar("Item", bound=Stamped)


@dataclass(frozen=True)
class Frameset(Generic[Item]):
    """Frames of one moment, at most one of each camera, in the order of the cameras' names."""

    frames: tuple[Item, ...]

    @property
    def stamp_ns(self) -> int:
        """Stamp of the newest frame."""
        return max(frame.stamp_ns for frame in self.frames)

    def __len__(self) -> int:
        return len(self.frames)


class RigSync(Generic[Item]):
    """Groups frames into framesets, in the order of arrival. Drops no frame that is in time.

    The oldest waiting frame forms a frameset with frames of other cameras that are at most
    ``max_skew_s`` younger. A frameset is returned when it is complete, or cannot become complete:
    each missing camera has sent a younger frame, is silent, or is later than ``max_wait_s``. A
    frame that arrives after its frameset was returned forms a frameset of its own. So the result
    depends on the order of arrival only if a camera is late.
    """

    def __init__(
        self, cameras: Sequence[str], max_skew_s: float, max_wait_s: float, max_late_s: float
    ) -> None:
        """max_late_s: a camera's stamp that is farther back is a time jump."""
        self.cameras = tuple(cameras)
        self._rank = {name: i for i, name in enumerate(self.cameras)}
        self._skew, self._wait, self._late = (
            round(s * 1e9) for s in (max_skew_s, max_wait_s, max_late_s)
        )
        self.strays = 0  # frames from before a time jump that arrived after it
        self.reset()

    @classmethod
    def of(cls, config: PipelineConfig) -> RigSync[Item]:
        """Returns a synchroniser by the parameters; cameras of independent windows are not
        grouped."""
        cameras = config.cameras if config.window.mode == "joint" else ()
        return cls(cameras, config.rig.max_skew_s, config.rig.max_wait_s, config.max_late_s)

    def reset(self) -> None:
        """Forgets waiting frames and all stamps."""
        self._waiting: list[Item] = []  # by stamp
        self._seen: dict[str, int] = {}  # newest stamp of each camera
        self._first = 0  # stamp of the first frame
        self._unjumped: set[str] = set()  # cameras that may still send frames from before a jump

    def add(self, frame: Item) -> list[Frameset[Item]]:
        """Adds a frame; returns the framesets that are ready now, in order."""
        if len(self.cameras) < 2:
            return [Frameset((frame,))]
        done: list[Frameset[Item]] = []
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

    def flush(self) -> list[Frameset[Item]]:
        """Returns all waiting frames as framesets, and resets."""
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

    def _ready(self) -> list[Frameset[Item]]:
        done = []
        while self._waiting and not any(self._awaited(name) for name in self._missing()):
            done.append(self._take())
        return done

    def _members(self) -> dict[str, Item]:
        """Returns the oldest frame and the frames of its frameset, by camera."""
        limit = self._waiting[0].stamp_ns + self._skew
        members: dict[str, Item] = {}
        for frame in self._waiting:
            if frame.stamp_ns <= limit:
                members.setdefault(frame.camera, frame)
        return members

    def _missing(self) -> set[str]:
        return set(self.cameras) - set(self._members())

    def _awaited(self, camera: str) -> bool:
        """True if a frame of this camera may still arrive for the frameset of the oldest frame."""
        oldest, newest = self._waiting[0].stamp_ns, max(self._seen.values())
        seen = self._seen.get(camera, self._first)
        gone = camera in self._seen and seen > oldest + self._skew
        return not gone and newest - oldest <= self._wait and oldest - seen <= SILENT_NS

    def _take(self) -> Frameset[Item]:
        members = self._members()
        taken = sorted(members.values(), key=lambda f: self._rank.get(f.camera, 0))
        self._waiting = [f for f in self._waiting if not any(f is t for t in taken)]
        return Frameset(tuple(taken))
