"""Frames of one camera of a ROS 2 bag, paired with their camera_info as the live node does it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from da3_ros.recordings.bag_files import Bag, MessageError
from da3_ros.recordings.base import Recording, RecordingError, Selection, in_stamp_order
from da3_ros.recordings.cameras import (
    CAMERA_INFO,
    COMPRESSED,
    IMAGE,
    Camera,
    choose_camera,
    info_topic,
    says_rectified,
)
from da3_ros.ros.calibration import CameraInfoKeeper
from da3_ros.ros.decode import (
    MAX_PIXELS,
    ImageError,
    calibration_from_msg,
    decode,
    image_size,
    is_depth,
    is_grey,
    stamp_ns,
)
from da3_ros.types import Calibration, Frame

log = logging.getLogger(__name__)

Paired = tuple[Any, Calibration | None]  # image message and its calibration


class BagRecording(Recording):
    """One camera of a bag. Raises RecordingError where the bag or the camera cannot be had."""

    def __init__(
        self,
        path: Path,
        camera: str | None = None,
        selection: Selection | None = None,
        *,
        calibration: Calibration | None = None,
        input_rectified: str = "auto",
        camera_info_timeout_s: float = 2.0,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.path = path
        self.counters = {"bad_images": 0}
        self._selection = selection or Selection()
        self._calibration = calibration
        self._timeout_s = camera_info_timeout_s
        self._max_pixels = max_pixels
        self._bag = Bag(path)
        try:
            self.cameras = self._find_cameras()
            self.camera = choose_camera(self.cameras, camera).topic
        except BaseException:
            self._bag.close()
            raise
        self._rectified = {"true": True, "false": False}.get(
            input_rectified, says_rectified(self.camera)
        )
        self.info_topic = self._find_info_topic()
        count = sum(t.count for t in self._bag.topics if t.name == self.camera)
        self.length = self._selection.estimate(count, self._bag.duration_s)

    @property
    def stopped_at(self) -> str | None:
        """Where and why reading ended early, or None."""
        return self._bag.stopped_at

    def describe(self) -> str:
        """The image topics, the chosen one marked, and its camera_info."""
        lines = [f"{self.path.name}: {self._bag.duration_s:.3f} s"]
        for camera in self.cameras:
            mark = "*" if camera.topic == self.camera else " "
            lines.append(f"{mark} {camera.describe()}")
        lines.append(f"  calibration: {self.info_topic or 'none'}")
        return "\n".join(lines)

    def __iter__(self) -> Iterator[Frame]:
        """The selected frames, in the order of their header stamps.

        Stamps of zero, from drivers that set none, are replaced by the time of recording.
        """
        self.counters["bad_images"] = 0
        ordered = in_stamp_order(self._paired())
        for stamp, (message, calibration) in self._selection.apply(ordered):
            try:
                pixels = decode(message, self._max_pixels)
            except ImageError as error:
                self._warn_bad(f"stamp {stamp}: {error}")
                continue
            yield Frame(
                stamp_ns=stamp,
                image=pixels,
                frame_id=message.header.frame_id,
                calibration=calibration,
                rectified=self._rectified,
            )
        if self.stopped_at:
            log.warning("%s", self.stopped_at)

    def messages(self, topic: str) -> Iterator[tuple[int, Any]]:
        """(time of recording in ns, message) of any topic, in order of recording.

        Raises RecordingError where there is no such topic, or none of its type can be read.
        """
        if topic not in {t.name for t in self._bag.topics}:
            names = ", ".join(sorted({t.name for t in self._bag.topics}))
            raise RecordingError(f"{self.path.name} has no topic {topic}: it has {names}")
        return ((log_ns, message) for _, log_ns, message in self._read((topic,)))

    def topics_of(self, kind: str) -> list[str]:
        """Names of the topics that have messages of a type."""
        return sorted({t.name for t in self._bag.topics if t.type == kind and t.count})

    def close(self) -> None:
        """Release files."""
        self._bag.close()

    def _find_cameras(self) -> list[Camera]:
        counts: dict[tuple[str, str], int] = {}
        for topic in self._bag.topics:
            if topic.type in (IMAGE, COMPRESSED):
                key = (topic.name, topic.type)
                counts[key] = counts.get(key, 0) + topic.count
        return [self._look_at(*key, count) for key, count in sorted(counts.items()) if count]

    def _look_at(self, name: str, kind: str, count: int) -> Camera:
        """A camera with what its first image says of itself."""
        for _, _, _, data in self._bag.messages((name,)):
            try:
                message = self._bag.types.deserialize(kind, data)
                encoding = getattr(message, "encoding", None) or message.format
                depth, grey = is_depth(message), is_grey(message)
            except MessageError:
                continue
            try:
                size = image_size(message)
            except ImageError:
                size = (0, 0)
            return Camera(name, kind, count, encoding, size, depth, grey)
        return Camera(name, kind, count)

    def _find_info_topic(self) -> str | None:
        if self._calibration is not None:
            return None
        name = info_topic(self.camera)
        topics = [t for t in self._bag.topics if t.name == name and t.type == CAMERA_INFO]
        return name if any(t.count for t in topics) else None

    def _read(self, names: Iterable[str]) -> Iterator[tuple[str, int, Any]]:
        """Topic, time of recording and message; those that cannot be read are left out."""
        for log_ns, topic, kind, data in self._bag.messages(set(names)):
            try:
                message = self._bag.types.deserialize(kind, data)
            except MessageError as error:
                self._warn_bad(f"recorded at {log_ns}: {error}", topic)
                continue
            yield topic, log_ns, message

    def _paired(self) -> Iterator[tuple[int, Paired]]:
        """(stamp_ns, (image, calibration)) as recorded; images wait for their camera_info."""
        if self.info_topic is None:
            for _, log_ns, message in self._read((self.camera,)):
                yield _stamp(message, log_ns), (message, self._calibration)
            return
        keeper: CameraInfoKeeper[tuple[int, Any]]
        keeper = CameraInfoKeeper(self.info_topic, self._timeout_s)
        for topic, log_ns, message in self._read((self.camera, self.info_topic)):
            if topic == self.info_topic:
                keeper.add_info(calibration_from_msg(message), message.header.frame_id)
                continue
            stamp = _stamp(message, log_ns)
            self._wait(keeper, message, stamp)
            yield from _ready(keeper, stamp)
        yield from _ready(keeper, 0, final=True)

    def _wait(self, keeper: CameraInfoKeeper[tuple[int, Any]], message: Any, stamp: int) -> None:
        try:
            width, height = image_size(message)
        except ImageError as error:
            self._warn_bad(f"stamp {stamp}: {error}")
            return
        keeper.add_image((stamp, message), message.header.frame_id, width, height, stamp)

    def _warn_bad(self, text: str, topic: str | None = None) -> None:
        self.counters["bad_images"] += 1
        log.warning("%s, %s", topic or self.camera, text)


def _stamp(message: Any, log_ns: int) -> int:
    """The header's stamp; of a driver that leaves it zero, the time of recording."""
    return stamp_ns(message.header.stamp) or log_ns


def _ready(
    keeper: CameraInfoKeeper[tuple[int, Any]], now_ns: int, final: bool = False
) -> Iterator[tuple[int, Paired]]:
    pairs = keeper.ready(now_ns, final)
    for notice in keeper.notices():
        log.warning("%s", notice)
    for (stamp, message), calibration in pairs:
        yield stamp, (message, calibration)
