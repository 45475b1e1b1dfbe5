"""Which topics of a bag are cameras, and which of them is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from da3_ros.messages.topics import is_rectified_topic
from da3_ros.recordings.base import RecordingError


@dataclass(frozen=True)
class Camera:
    """An image topic, with what its first message says."""

    topic: str
    type: str
    count: int
    encoding: str = ""  # of an Image, or format of a CompressedImage
    size: tuple[int, int] = (0, 0)  # width, height; zeros: it cannot be read
    depth: bool = False
    grey: bool = False

    @property
    def base(self) -> str:
        """The topic without the transport's suffix."""
        return self.topic.removesuffix("/compressed")

    @property
    def namespace(self) -> str:
        """What stands before the last part of the base."""
        return self.base.rpartition("/")[0]

    @property
    def rectified(self) -> bool:
        """Whether the topic's name says that its images are rectified."""
        return is_rectified_topic(self.topic)

    def describe(self) -> str:
        """One line."""
        size = f"{self.size[0]}x{self.size[1]} " if self.size[0] else ""
        what = " (depth, not a camera)" if self.depth else ""
        return f"{self.topic}: {self.count} x {self.type}, {size}{self.encoding}{what}".rstrip(
            ", "
        )


def choose_camera(cameras: Sequence[Camera], wanted: str | None) -> Camera:
    """The camera that is meant.

    ``wanted`` is an image topic, with or without ``/compressed``, or what comes before its last
    part (``/camera`` for ``/camera/image_raw``). Of several, and where nothing is wanted: depth is
    no camera; raw goes before compressed of the same name; unrectified before rectified of the
    same namespace; colour before grey. Raises RecordingError, naming all image topics, if none is
    left or several are.
    """
    if wanted is None:
        return _only(_preferred([c for c in cameras if not c.depth]), cameras, "")
    name = wanted.strip("/")
    exact = [c for c in cameras if c.topic.strip("/") == name]
    exact = exact or [c for c in cameras if c.base.strip("/") == name]
    if exact:
        return exact[0]
    inside = [c for c in cameras if c.topic.strip("/").startswith(f"{name}/") and not c.depth]
    return _only(_preferred(inside), cameras, f" {wanted}")


def _preferred(cameras: Sequence[Camera]) -> list[Camera]:
    raw = {c.topic for c in cameras}
    left = [c for c in cameras if c.base == c.topic or c.base not in raw]
    plain = {c.namespace for c in left if not c.rectified}
    left = [c for c in left if not c.rectified or c.namespace not in plain]
    return [c for c in left if not c.grey] or left


def _only(left: Sequence[Camera], cameras: Sequence[Camera], wanted: str) -> Camera:
    if len(left) == 1:
        return left[0]
    topics = "; ".join(c.describe() for c in sorted(cameras, key=lambda c: c.topic))
    if not topics:
        raise RecordingError(f"no camera{wanted}: the recording has no image topics")
    if not left:
        raise RecordingError(f"no camera{wanted}: the image topics are {topics}")
    raise RecordingError(f"several cameras, name one with --camera: the image topics are {topics}")
