"""Finds the camera topics of a bag, and selects one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from da3_ros.messages.topics import is_rectified_topic
from da3_ros.recordings.base import RecordingError


@dataclass(frozen=True)
class Camera:
    """An image topic, described by its first message."""

    topic: str
    type: str
    count: int
    encoding: str = ""  # of an Image, or format of a CompressedImage
    size: tuple[int, int] = (0, 0)  # width, height; zeros: unreadable
    depth: bool = False
    grey: bool = False

    @property
    def base(self) -> str:
        """The topic without the transport's suffix."""
        return self.topic.removesuffix("/compressed")

    @property
    def namespace(self) -> str:
        """The base without its last part."""
        return self.base.rpartition("/")[0]

    @property
    def rectified(self) -> bool:
        """Whether the topic's name says that its images are rectified."""
        return is_rectified_topic(self.topic)

    def describe(self) -> str:
        """The topic, its type, size and encoding in one line."""
        size = f"{self.size[0]}x{self.size[1]} " if self.size[0] else ""
        what = " (depth, not a camera)" if self.depth else ""
        return f"{self.topic}: {self.count} x {self.type}, {size}{self.encoding}{what}".rstrip(
            ", "
        )


def choose_camera(cameras: Sequence[Camera], wanted: str | None) -> Camera:
    """Select a camera by topic or namespace.

    ``wanted``: an image topic, with or without ``/compressed``, or its namespace (``/camera`` for
    ``/camera/image_raw``); None: any. If several match: depth is not a camera; raw is preferred
    to compressed of the same name, unrectified to rectified of the same namespace, colour to
    grey. Raises RecordingError with all image topics if none or several remain.
    """
    if wanted is None:
        return _single(_preferred([c for c in cameras if not c.depth]), cameras, "")
    name = wanted.strip("/")
    exact = [c for c in cameras if c.topic.strip("/") == name]
    exact = exact or [c for c in cameras if c.base.strip("/") == name]
    if exact:
        if exact[0].depth:
            raise RecordingError(
                f"no camera {wanted}: {exact[0].describe()}; choose a colour topic"
            )
        return exact[0]
    inside = [c for c in cameras if c.topic.strip("/").startswith(f"{name}/") and not c.depth]
    return _single(_preferred(inside), cameras, f" {wanted}")


def _preferred(cameras: Sequence[Camera]) -> list[Camera]:
    raw = {c.topic for c in cameras}
    left = [c for c in cameras if c.base == c.topic or c.base not in raw]
    plain = {c.namespace for c in left if not c.rectified}
    left = [c for c in left if not c.rectified or c.namespace not in plain]
    return [c for c in left if not c.grey] or left


def _single(left: Sequence[Camera], cameras: Sequence[Camera], wanted: str) -> Camera:
    if len(left) == 1:
        return left[0]
    topics = "; ".join(c.describe() for c in sorted(cameras, key=lambda c: c.topic))
    if not topics:
        raise RecordingError(f"no camera{wanted}: the recording has no image topics")
    if not left:
        raise RecordingError(f"no camera{wanted}: the image topics are {topics}")
    raise RecordingError(
        f"several cameras: choose one with --camera; the image topics are {topics}"
    )
