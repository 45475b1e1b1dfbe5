"""Frames of cameras of a ROS 2 bag, paired with their camera_info by the rule of the live node."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.messages.decode import (
    MAX_PIXELS,
    ImageError,
    decode,
    image_size,
    is_depth,
    is_grey,
    stamp_ns,
)
from da3_ros.messages.topics import CAMERA_INFO, COMPRESSED, IMAGE, info_topic, is_rectified_topic
from da3_ros.recordings.bag_files import Bag, MessageError
from da3_ros.recordings.base import (
    REORDER_DEPTH,
    FrameSelection,
    Recording,
    RecordingError,
    in_stamp_order,
)
from da3_ros.recordings.camera_topics import Camera, choose_camera
from da3_ros.sensors.camera_info_matcher import CameraInfoMatcher
from da3_ros.sensors.frame_id_filter import FrameIdFilter
from da3_ros.sensors.stamp_check import StampCheck
from da3_ros.types import Calibration, Frame

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Source:
    """A selected camera."""

    name: str  # name in the rig; empty for a single camera
    topic: str
    info_topic: str | None
    rectified: bool


@dataclass(eq=False)
class _Image:
    """An image message and its calibration, valid once ``decided``."""

    stamp_ns: int
    message: Any
    source: _Source
    calibration: Calibration | None = None
    decided: bool = False


class _Stamps:
    """Stamps of the images of one topic: those of the headers, or the times of recording if the
    driver leaves them 0."""

    def __init__(self, *, of_rig: bool) -> None:
        self.check: StampCheck[_Image] = StampCheck(of_rig=of_rig)
        self._are_set: bool | None = None  # whether the driver sets stamps; None: unknown yet
        # Images that wait until ``_are_set`` is known, with times of recording.
        self._first: list[tuple[_Image, int]] = []

    def add(self, image: _Image, log_ns: int) -> list[_Image]:
        """Adds the next image, recorded at a time; returns those whose stamps are believed."""
        self._first.append((image, log_ns))
        # One stamp of 0 may be a fault, or that of a simulator's first image.
        if self._are_set is None and (image.stamp_ns or len(self._first) > 1):
            self._are_set = image.stamp_ns != 0
        return [] if self._are_set is None else self._believed()

    def end(self) -> list[_Image]:
        """Returns the images that wait."""
        return self._believed() + [one.item for one in self.check.end()]

    def _believed(self) -> list[_Image]:
        out = []
        for image, log_ns in self._first:
            if not self._are_set:
                image.stamp_ns = log_ns
            out += self.check.add(image, image.stamp_ns, log_ns, log_ns / 1e9)
        self._first = []
        return [one.item for one in out]


class BagRecording(Recording):
    """One or several cameras of a bag. Raises RecordingError if bag or camera cannot be opened."""

    def __init__(
        self,
        path: Path,
        camera: str | None = None,
        selection: FrameSelection | None = None,
        *,
        cameras: Mapping[str, str] | None = None,
        calibration: Calibration | None = None,
        input_rectified: str = "auto",
        camera_info_timeout_s: float = 2.0,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        """``cameras``: topics of several cameras by name; replaces ``camera``."""
        self.path = path
        self.counters, self.bad_images = {"bad_images": 0}, []
        self._selection = selection or FrameSelection()
        self._calibration = calibration
        self._timeout_s = camera_info_timeout_s
        self._max_pixels = max_pixels
        self._bag = Bag(path)
        try:
            self.cameras = self._find_cameras()
            self._sources = self._find_sources(cameras or {"": camera}, input_rectified)
        except BaseException:
            self._bag.close()
            raise
        self.camera = ", ".join(source.topic for source in self._sources)
        topics = {source.topic for source in self._sources}
        count = sum(t.count for t in self._bag.topics if t.name in topics)
        self.length = self._selection.estimate(count, self._bag.duration_s)

    @property
    def stopped_at(self) -> str | None:
        """Where and why reading ended early, or None."""
        return self._bag.stopped_at

    def describe(self) -> str:
        """The image topics, the selected ones marked, and their camera_info topics."""
        lines = [f"{self.path.name}: {self._bag.duration_s:.3f} s"]
        for camera in self.cameras:
            mark = "*" if any(camera.topic == s.topic for s in self._sources) else " "
            lines.append(f"{mark} {camera.describe()}")
        infos = dict.fromkeys(source.info_topic or "none" for source in self._sources)
        lines.append(f"  calibration: {', '.join(infos)}")
        return "\n".join(lines)

    def __iter__(self) -> Iterator[Frame]:
        """Yield the selected frames in the order of their header stamps.

        A stamp of zero (not set by the driver) is replaced by the time of recording.
        """
        self.counters["bad_images"], self.bad_images = 0, []
        self.counters.pop("foreign_frames", None)
        ordered = in_stamp_order(self._paired(), REORDER_DEPTH * len(self._sources))
        for stamp, image in self._selection.apply(ordered):
            source = image.source
            try:
                pixels = decode(image.message, self._max_pixels)
            except ImageError as error:
                self._warn_bad(f"stamp {stamp}: {error}", source.topic)
                continue
            yield Frame(
                stamp_ns=stamp,
                image=pixels,
                frame_id=image.message.header.frame_id,
                camera=source.name,
                calibration=image.calibration,
                rectified=source.rectified,
            )
        if self.stopped_at:
            log.warning("%s", self.stopped_at)

    def messages(self, topic: str) -> Iterator[tuple[int, Any]]:
        """Yield (time of recording in ns, message) of any topic, in order of recording.

        Raises RecordingError if there is no such topic, or if its type cannot be read.
        """
        self._check_topic(topic)
        return ((log_ns, message) for _, log_ns, message in self._read((topic,)))

    def along(self, topic: str) -> Iterator[Any]:
        """Yields the messages of a topic as ``messages``, with files of its own: it may be read
        while the frames are."""
        self._check_topic(topic)
        return self._read_apart(topic)

    def _read_apart(self, topic: str) -> Iterator[Any]:
        bag = Bag(self.path)
        try:
            for _, _, kind, data in bag.messages({topic}):
                try:
                    message = bag.types.deserialize(kind, data)
                except MessageError as error:
                    log.warning("%s: a message is not used: %s", topic, error)
                    continue
                yield message
        finally:
            bag.close()

    def _check_topic(self, topic: str) -> None:
        if topic not in {t.name for t in self._bag.topics}:
            names = ", ".join(sorted({t.name for t in self._bag.topics}))
            raise RecordingError(f"{self.path.name} has no topic {topic}: it has {names}")

    def topics_of(self, kind: str) -> list[str]:
        """Names of the topics with messages of type ``kind``."""
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
        return [self._inspect(*key, count) for key, count in sorted(counts.items()) if count]

    def _inspect(self, name: str, kind: str, count: int) -> Camera:
        """Describe a camera by its first readable image."""
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

    def _find_sources(
        self, wanted: Mapping[str, str | None], input_rectified: str
    ) -> list[_Source]:
        rectified = {"true": True, "false": False}.get(input_rectified)
        sources = []
        for name, topic in wanted.items():
            try:
                found = choose_camera(self.cameras, topic).topic
            except RecordingError as error:
                hint = f" (camera {name}: give its topic with --camera {name}:=TOPIC)"
                raise RecordingError(f"{error}{hint if name else ''}") from error
            is_rectified = is_rectified_topic(found) if rectified is None else rectified
            sources.append(_Source(name, found, self._find_info_topic(found), is_rectified))
        for other, source in itertools.combinations(sources, 2):
            if other.topic == source.topic:
                raise RecordingError(
                    f"cameras {other.name} and {source.name} have the same topic {source.topic}: "
                    "give their topics with --camera NAME:=TOPIC"
                )
        return sources

    def _find_info_topic(self, camera: str) -> str | None:
        if self._calibration is not None:
            return None
        name = info_topic(camera)
        topics = [t for t in self._bag.topics if t.name == name and t.type == CAMERA_INFO]
        return name if any(t.count for t in topics) else None

    def _read(self, names: Iterable[str]) -> Iterator[tuple[str, int, Any]]:
        """Yield topic, time of recording and message; unreadable messages are skipped."""
        for log_ns, topic, kind, data in self._bag.messages(set(names)):
            try:
                message = self._bag.types.deserialize(kind, data)
            except MessageError as error:
                self._warn_bad(f"recorded at {log_ns}: {error}", topic)
                continue
            yield topic, log_ns, message

    def _paired(self) -> Iterator[tuple[int, _Image]]:
        """Yield (stamp_ns, image) in recorded order, once the camera_info is decided."""
        by_topic = {source.topic: source for source in self._sources}
        keepers: dict[str, CameraInfoMatcher[_Image]] = {
            s.topic: CameraInfoMatcher(s.info_topic, self._timeout_s)
            for s in self._sources
            if s.info_topic is not None
        }
        frame_ids = {topic: FrameIdFilter(topic) for topic in by_topic}
        waiting: deque[_Image] = deque()
        stamps = {topic: _Stamps(of_rig=len(by_topic) > 1) for topic in by_topic}
        infos = {s.info_topic for s in self._sources if s.info_topic is not None}
        for topic, log_ns, message in self._read({*by_topic, *infos}):
            if topic in infos:
                for keeper in (k for k in keepers.values() if k.topic == topic):
                    keeper.add_info(calibration_from_msg(message), message.header.frame_id)
                continue
            if not self._is_own(frame_ids[topic], message.header.frame_id, log_ns):
                continue
            image = _Image(
                stamp_ns(message.header.stamp), message, by_topic[topic], self._calibration
            )
            believed = stamps[topic].add(image, log_ns)
            self._note_faults(stamps[topic], topic, f"recorded at {log_ns} or before")
            yield from self._decided(believed, waiting, keepers)
        for topic, one in stamps.items():
            believed = one.end()
            self._note_faults(one, topic, "at the end")
            yield from self._decided(believed, waiting, keepers)
        yield from _ready(waiting, keepers.values(), 0, final=True)

    def _decided(
        self,
        images: Iterable[_Image],
        waiting: deque[_Image],
        keepers: Mapping[str, CameraInfoMatcher[_Image]],
    ) -> Iterator[tuple[int, _Image]]:
        """Add images to those that wait; yield those whose calibration is decided."""
        for image in images:
            if self._wait(keepers.get(image.source.topic), image):
                waiting.append(image)
            yield from _ready(waiting, keepers.values(), image.stamp_ns)

    def _wait(self, keeper: CameraInfoMatcher[_Image] | None, image: _Image) -> bool:
        """Let an image wait for its camera_info; False if it is not a valid image."""
        if keeper is None:
            image.decided = True
            return True
        try:
            width, height = image_size(image.message)
        except ImageError as error:
            self._warn_bad(f"stamp {image.stamp_ns}: {error}", image.source.topic)
            return False
        frame_id = image.message.header.frame_id
        keeper.add_image(image, frame_id, width, height, image.stamp_ns)
        return True

    def _is_own(self, frame_ids: FrameIdFilter, frame_id: str, log_ns: int) -> bool:
        """False, counted and reported, for an image of another camera on a camera's topic."""
        own = frame_ids.admit(frame_id, log_ns)
        for notice in frame_ids.notices():
            log.warning("%s", notice)
        if not own:
            self.counters["foreign_frames"] = self.counters.get("foreign_frames", 0) + 1
            if warning := frame_ids.warning(frame_id):
                log.warning("%s", warning)
        return own

    def _note_faults(self, stamps: _Stamps, topic: str, when: str) -> None:
        for fault in stamps.check.take_faults():
            self._warn_bad(f"{when}: {fault}", topic)

    def _warn_bad(self, text: str, topic: str) -> None:
        self.counters["bad_images"] += 1
        self.bad_images.append(f"{topic}, {text}")
        log.warning("%s", self.bad_images[-1])


def _ready(
    waiting: deque[_Image],
    keepers: Iterable[CameraInfoMatcher[_Image]],
    now_ns: int,
    final: bool = False,
) -> Iterator[tuple[int, _Image]]:
    """Remove and yield images at the head of ``waiting`` whose calibration is decided."""
    for keeper in keepers:
        pairs = keeper.ready(now_ns, final)
        for notice in keeper.notices():
            log.warning("%s", notice)
        for image, calibration in pairs:
            image.calibration, image.decided = calibration, True
    while waiting and waiting[0].decided:
        image = waiting.popleft()
        yield image.stamp_ns, image
