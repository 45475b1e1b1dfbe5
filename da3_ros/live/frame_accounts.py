"""Where each image of a stream went: processed, waiting, or lost under a cause. No middleware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from da3_ros.live.counters import ThreadSafeCounter
from da3_ros.live.scene_stream import SceneStream
from da3_ros.pipeline.pipeline import Pipeline


class FrameAccounts:
    """Counts the images of all scenes from their arrival to their end.

    The worker writes, but for ``receive`` and ``discard``; any thread may read.
    """

    def __init__(self, scene_streams: Mapping[str, SceneStream]) -> None:
        self._scene_streams = scene_streams
        self.received = 0
        self._lost = ThreadSafeCounter()
        self._taken = self._settled = 0  # images out of the queues; of these, accounted for

    @property
    def processed(self) -> int:
        """Images of all cameras that went through a window."""
        return sum(pipeline.counters["processed"] for pipeline in self._pipelines())

    @property
    def waiting(self) -> int:
        """Images in the pipelines that wait for a full window."""
        return sum(pipeline.builder.waiting for pipeline in self._pipelines())

    def in_hand(self, chosen: int) -> int:
        """Images that were taken and neither wait for a window, went out nor are counted.

        chosen: images that wait outside the pipelines, chosen for the next window.
        """
        dropped = sum(sum(_drops(pipeline).values()) for pipeline in self._pipelines())
        return self._taken - self._settled - dropped - self.waiting - chosen

    def receive(self) -> None:
        """An image came."""
        self.received += 1

    def discard(self, cause: str, images: int) -> None:
        """So many images came and are not used."""
        self.received += images
        self._lost.add(cause, images)

    def take(self, images: int) -> None:
        """So many images left a queue."""
        self._taken += images

    def deliver(self) -> None:
        """An image was processed; what goes wrong from here on is the publisher's to count."""
        self._settled += 1

    def lose(self, cause: str, images: int = 1) -> None:
        """So many images that were taken come to nothing."""
        if images > 0:
            self._lost.add(cause, images)
            self._settled += images

    def drop_counts(self) -> dict[str, int]:
        """Images lost so far, by cause."""
        counts = self._lost.now()
        for scene_stream in self._scene_streams.values():
            counts.update(scene_stream.queue.counts.now())
            counts["stray"] += scene_stream.sync.strays
            counts.update(_drops(scene_stream.pipeline))
        return {name: count for name, count in sorted(counts.items()) if count}

    def _pipelines(self) -> list[Pipeline]:
        return [scene_stream.pipeline for scene_stream in self._scene_streams.values()]


def _drops(pipeline: Pipeline) -> Counter[str]:
    """What a pipeline dropped, by cause; any thread may ask."""
    counts = dict(pipeline.counters)  # a whole copy: the worker adds names meanwhile
    lead = "dropped_"
    return Counter({n.removeprefix(lead): c for n, c in counts.items() if n.startswith(lead)})
