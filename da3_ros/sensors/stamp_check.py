"""Keeps back images whose header stamp cannot be right. Live and in bags; no ROS and no clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

BACK_S = 1.0  # a longer step back is a jump
# A longer step ahead is a jump if it leads into the future of the node's clock. Stamps of another
# clock jump ahead if the step is also longer than INTERVALS times the wait between the arrivals.
AHEAD_S, INTERVALS = 2.0, 5.0
# Largest distances before and after the clock at which a stamp may be of that clock.
PAST_S, FUTURE_S = 5.0, 1.0
SAME_AGE_S = 1.0  # difference of two stamps' ages on arrival in which they agree
FASTEST = 10_000.0  # largest rate, times real time, at which a recording may be played
GLITCH = 3  # images in a row with wrong stamps that agree; one more, and time has jumped
# GLITCH at the start of a camera of a rig: the other cameras do not wait long.
FIRST_GLITCH = 1
MOST_HELD = 8  # so many waiting images that nothing contradicts are believed
RELEASE_S = 1.0  # longest wait for the next image, and
RELEASE_INTERVALS = 4.0  # of a slow camera, in intervals of arrival
REPEATS = 10  # equal stamps in a row, from which on the stamp stands still


def is_plausible(age_s: float) -> bool:
    """Whether a stamp may be of the clock by which it has this age on arrival, seconds."""
    return -FUTURE_S <= age_s <= PAST_S


@dataclass(frozen=True)
class _Time:
    """A stamp, with its age by the clock and a steady clock's time on arrival, seconds."""

    stamp_ns: int
    age_s: float
    arrived_s: float

    def is_as_old_as(self, other: _Time) -> bool:
        """Whether both stamps are of one clock that runs like the node's."""
        return abs(self.age_s - other.age_s) < SAME_AGE_S


@dataclass(frozen=True, eq=False)
class CheckedStamp(Generic[Item]):
    """An image with its stamp."""

    item: Item
    time: _Time


class StampCheck(Generic[Item]):
    """Decides whether the stamps of one camera are believed.

    A stamp that jumps is believed at once if the clock confirms it, else when no later image has
    contradicted it for a while. Until then these images wait. If the next ones go on as before the
    jump, those that wait are faulty. So a few images with a wrong stamp are no jump of time. The
    first stamp is believed likewise. Not thread-safe.
    """

    def __init__(self, *, of_rig: bool = False) -> None:
        """of_rig: whether the images of other cameras wait for those of this one."""
        self._held: list[CheckedStamp[Item]] = []
        self._first_glitch = FIRST_GLITCH if of_rig else GLITCH
        self.reset()

    def reset(self) -> int:
        """Begins a new stream. Returns the number of waiting images, which are dropped."""
        waited, self._held = len(self._held), []
        self._last: _Time | None = None  # newest believed stamp
        self._arrived_s, self._arrivals_s = 0.0, 0.0  # newest arrival, and the wait before it
        self._repeats = 0
        self._was_overdue = False
        self._faults: list[str] = []
        return waited

    @property
    def waiting(self) -> int:
        """Number of images that wait for the next ones."""
        return len(self._held)

    def add(
        self, item: Item, stamp_ns: int, clock_ns: int, arrived_s: float
    ) -> list[CheckedStamp[Item]]:
        """Adds an image; returns those that are believed now, in order.

        clock_ns: on arrival, the clock that stamps should be of (in a bag the time of recording).
        arrived_s: any steady clock.
        """
        if self._arrived_s:
            self._arrivals_s = arrived_s - self._arrived_s
        self._arrived_s = arrived_s
        if fault := self._standing(stamp_ns):
            self._faults.append(fault)
            return []
        self._was_overdue = False
        time = _Time(stamp_ns, (clock_ns - stamp_ns) / 1e9, arrived_s)
        new, last = CheckedStamp(item, time), self._last
        chain = [*self._chain(time), new]
        self._held.append(new)
        if _is_confirmed(time, last) or (last is not None and _follows(time, last)):
            self._reject(self._contradicted(chain), stamp_ns)
            return self.release()
        if len(chain) > (self._first_glitch if last is None else GLITCH):
            self._reject([one for one in self._held if one not in chain], stamp_ns)
            return self.release()
        return self._undecided()

    def overdue(self, now_s: float) -> list[CheckedStamp[Item]]:
        """Returns the images that wait, if the next one does not come. Call this regularly.

        The second such call counts: after a stall the next image may have arrived unseen.
        """
        wait_s = max(RELEASE_S, RELEASE_INTERVALS * self._arrivals_s)
        before = self._was_overdue
        self._was_overdue = bool(self._held) and now_s - self._arrived_s > wait_s
        return self.release() if before and self._was_overdue else []

    def release(self) -> list[CheckedStamp[Item]]:
        """Returns the images that wait: they are believed."""
        held, self._held = self._held, []
        if held:
            self._last = held[-1].time
        return held

    def end(self) -> list[CheckedStamp[Item]]:
        """Returns the images that wait at the end of a recording. Those whose stamps jump and are
        not confirmed by the clock are faulty: no later image can confirm them."""
        last = self._last
        if last is not None:
            wrong = [one for one in self._held if not one.time.is_as_old_as(last)]
            self._reject(wrong, last.stamp_ns)
        return self.release()

    def take_faults(self) -> list[str]:
        """Returns a line for each image since the last call whose stamp is wrong."""
        out, self._faults = self._faults, []
        return out

    def _chain(self, time: _Time) -> list[CheckedStamp[Item]]:
        """Returns the waiting images that lead to this time: each one's stamp goes on to that of
        the next."""
        out: list[CheckedStamp[Item]] = []
        for one in reversed(self._held):
            if one.time.is_as_old_as(time) or _follows(time, one.time):
                out.insert(0, one)
                time = one.time
        return out

    def _contradicted(self, chain: list[CheckedStamp[Item]]) -> list[CheckedStamp[Item]]:
        """Returns the waiting images that a believed image contradicts; it ends the ``chain``.

        No image if all stamps ascend from the last believed one. Else those outside the chain,
        and those before the last believed stamp, unless their clock was set like the newest one's.
        """
        outside = [one for one in self._held if one not in chain]
        if self._last is None:
            return outside
        newest, last_ns = chain[-1].time, self._last.stamp_ns
        stamps = [last_ns, *(one.time.stamp_ns for one in self._held)]
        if all(a <= b for a, b in itertools.pairwise(stamps)):
            return []
        before = [one for one in chain if one.time.stamp_ns <= last_ns]
        return outside + [one for one in before if not one.time.is_as_old_as(newest)]

    def _undecided(self) -> list[CheckedStamp[Item]]:
        """Returns the images that wait if they are so many that they must be believed."""
        times = [one.time for one in self._held]
        pairs = list(itertools.pairwise(times))
        if any(b.is_as_old_as(a) or _follows(b, a) for a, b in pairs):
            return self.release() if len(times) >= MOST_HELD else []
        if len(times) <= GLITCH:
            return []
        if all(_is_fast(b, a) for a, b in pairs):
            return self.release()
        self._reject(self._held[:-1], times[-1].stamp_ns)
        return []

    def _standing(self, stamp_ns: int) -> str:
        """Returns what is wrong with a stamp that is 0 or does not change, else an empty text."""
        if stamp_ns == 0:
            return "header.stamp is 0: have the camera driver set it"
        same = self._last is not None and stamp_ns == self._last.stamp_ns
        self._repeats = self._repeats + 1 if same else 0
        if self._repeats >= REPEATS:
            return (
                f"header.stamp stands still at {stamp_ns / 1e9:.3f} s: the camera driver, or its "
                "clock, does not advance"
            )
        return ""

    def _reject(self, wrong: list[CheckedStamp[Item]], next_ns: int) -> None:
        """Some of the images that wait have wrong stamps: the next one, with this stamp, does not
        agree with them."""
        self._held = [one for one in self._held if one not in wrong]
        reference_ns, reference = next_ns, "the next image"
        if self._last is not None:
            reference_ns = self._last.stamp_ns
            reference = "the image before, and no later one agrees"
        for image in wrong:
            off_s = (image.time.stamp_ns - reference_ns) / 1e9
            side = "ahead of" if off_s > 0 else "behind"
            self._faults.append(
                f"header.stamp {image.time.stamp_ns / 1e9:.3f} is {abs(off_s):.4g} s {side} "
                f"{reference}: the camera driver's clock jumped"
            )


def _is_confirmed(time: _Time, last: _Time | None) -> bool:
    """Whether the clock confirms a stamp that is the first or jumps: it may be of the clock, and
    the one before may not, or the clock was set like the camera's."""
    if not is_plausible(time.age_s):
        return False
    if last is None or not is_plausible(last.age_s):
        return True
    return time.is_as_old_as(last)


def _follows(time: _Time, before: _Time) -> bool:
    """Whether a stamp goes on from another one."""
    step_s = (time.stamp_ns - before.stamp_ns) / 1e9
    if step_s < -BACK_S:
        return False
    if step_s <= AHEAD_S:
        return True
    if is_plausible(before.age_s):
        return time.age_s >= -FUTURE_S
    waited_s = time.arrived_s - before.arrived_s  # 0 in a bag without times of recording
    return waited_s <= 0.0 or step_s <= INTERVALS * waited_s


def _is_fast(time: _Time, before: _Time) -> bool:
    """Whether a stamp may go on from another one in a recording that is played fast."""
    step_s = (time.stamp_ns - before.stamp_ns) / 1e9
    return -BACK_S <= step_s <= FASTEST * (time.arrived_s - before.arrived_s)
