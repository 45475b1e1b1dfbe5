"""Counts of a stream's images: received, processed, waiting, or lost by cause. No middleware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from da3_ros.live.counters import ThreadSafeCounter
from da3_ros.live.scene_stream import SceneStream
from da3_ros.pipeline.pipeline import Pipeline


class FrameAccounts:
    """Counts the images of all scenes from arrival to result or loss.

    Callbacks call ``receive`` and ``discard``; all other changes are the worker's. Any thread may
    read.
    """

    def __init__(self, scene_streams: Mapping[str, SceneStream]) -> None:
        self._scene_streams = scene_streams
        self.received = 0
        self._lost = ThreadSafeCounter()
        self._taken = self._finished = 0  # images taken from the queues; of these, finished

    @property
    def processed(self) -> int:
        """Number of processed images of all cameras."""
        return sum(pipeline.counters["processed"] for pipeline in self._pipelines())

    @property
    def waiting(self) -> int:
        """Number of images in the pipelines that wait for a full window."""
        return sum(pipeline.builder.waiting for pipeline in self._pipelines())

    def in_processing(self, chosen: int) -> int:
        """Returns the images taken from the queues that are not delivered, lost or waiting.

        chosen: images chosen for the next window that are not in a pipeline yet.
        """
        dropped = sum(sum(_drops(pipeline).values()) for pipeline in self._pipelines())
        return self._taken - self._finished - dropped - self.waiting - chosen

    def receive(self) -> None:
        """Count a received image."""
        self.received += 1

    def discard(self, cause: str, images: int) -> None:
        """Count images that were received and are not used."""
        self.received += images
        self._lost.add(cause, images)

    def take(self, images: int) -> None:
        """Count images that were taken from a queue."""
        self._taken += images

    def deliver(self) -> None:
        """Count a delivered image; the publisher counts failures from here on."""
        self._finished += 1

    def lose(self, cause: str, images: int = 1) -> None:
        """Count taken images that are lost because of ``cause``."""
        if images > 0:
            self._lost.add(cause, images)
            self._finished += images

    def drop_counts(self) -> dict[str, int]:
        """Returns the number of lost images by cause."""
        counts = self._lost.now()
        for scene_stream in self._scene_streams.values():
            counts.update(scene_stream.queue.counts.now())
            counts["stray"] += scene_stream.sync.strays
            counts.update(_drops(scene_stream.pipeline))
        return {name: count for name, count in sorted(counts.items()) if count}

    def _pipelines(self) -> list[Pipeline]:
        return [scene_stream.pipeline for scene_stream in self._scene_streams.values()]


def _drops(pipeline: Pipeline) -> Counter[str]:
    """Returns the images that a pipeline dropped, by cause. Thread-safe."""
    counts = dict(pipeline.counters)  # a copy: the worker may add names
    prefix = "dropped_"
    dropped = {n: c for n, c in counts.items() if n.startswith(prefix)}
    return Counter({n.removeprefix(prefix): c for n, c in dropped.items()})
