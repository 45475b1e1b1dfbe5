"""Admits the images of one camera of a topic, told by their frame_id.

Used by the live node and by recordings. No ROS and no clock: the caller passes the time.
"""

from __future__ import annotations

GONE_NS = 5_000_000_000  # silence after which a camera counts as gone
PERIODS = 2  # a slower camera counts as gone after so many of its own periods
MOST_NAMED = 16  # foreign frame_ids that are reported: a faulty driver may send ever new ones


class FrameIdFilter:
    """The first image's frame_id is the camera's own; images with another one are foreign.

    Two cameras on one topic would be taken for one that jumps. A frame_id that comes after the own
    one has stopped is the same camera under a new name, as after a restart of its driver.

    ``now_ns`` is any clock that normally only goes forward: the time of recording in replay, the
    steady clock live. Not thread-safe.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._notices: list[str] = []
        self.reset()

    def reset(self) -> None:
        """Begins a new stream: the next image's frame_id is the camera's own."""
        self._own: str | None = None
        self._last_ns = self._period_ns = 0
        self._named: set[str] = set()

    def admit(self, frame_id: str, now_ns: int) -> bool:
        """Whether a received image is the camera's own; False: it must be dropped and counted."""
        silent_ns = now_ns - self._last_ns
        if frame_id == self._own:
            self._period_ns = max(0, silent_ns)
        elif self._own is None:
            self._own = frame_id
        elif 0 <= silent_ns <= max(GONE_NS, PERIODS * self._period_ns):
            return False
        else:
            self._notices.append(
                f"{self.topic}: images of frame_id '{self._own}' have stopped; those of "
                f"'{frame_id}' are used now"
            )
            self._own, self._period_ns = frame_id, 0
            self._named.clear()
        self._last_ns = now_ns
        return True

    def warning(self, foreign: str) -> str:
        """The warning about images of a foreign frame_id, once for each; else an empty text."""
        if foreign in self._named or len(self._named) >= MOST_NAMED:
            return ""
        self._named.add(foreign)
        return (
            f"{self.topic}: images of frame_id '{foreign}' are dropped, since '{self._own}' came "
            "first and still comes: give each camera a topic of its own"
        )

    def notices(self) -> list[str]:
        """Returns the one-line notices about a changed frame_id since the last call."""
        out, self._notices = self._notices, []
        return out
