"""Keeps back images whose header stamp cannot be right. Live and in bags; no ROS and no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

# A jump is farther ahead than the first, and than a slow camera's interval times the second; or
# farther back than the third.
AHEAD_S, INTERVALS, BACK_S = 2.0, 5.0, 1.0
FIRST_AHEAD_S = 10.0  # in place of the first, before an interval is known
# Largest distances before and after the clock at which the clock confirms a stamp.
PAST_S, FUTURE_S = 5.0, 1.0
SAME_AGE_S = 1.0  # difference of two stamps' ages on arrival in which they are of one clock
GLITCH = 3  # images in a row with wrong stamps that agree; one more, and time has jumped
FIRST_GLITCH = 1  # the same at the start: the other cameras of a rig do not wait long
RELEASE_S = 1.0  # longest wait for the next image, and
RELEASE_INTERVALS = 4.0  # of a slow camera, in intervals of arrival
REPEATS = 10  # equal stamps in a row, from which on the stamp stands still


def is_plausible(age_s: float) -> bool:
    """Whether a stamp may be of the clock by which it has this age on arrival, seconds."""
    return -FUTURE_S <= age_s <= PAST_S


@dataclass(frozen=True)
class Stamped(Generic[Item]):
    """An image with its stamp."""

    item: Item
    stamp_ns: int


class StampCheck(Generic[Item]):
    """Decides whether the stamps of one camera are believed.

    A stamp that jumps is believed at once if the clock confirms it, else when the next images
    agree with it. Until then these images wait. If the next ones go on as before the jump, those
    that wait are faulty. So a few images with a wrong stamp are no jump of time. The first stamp
    is believed likewise, as soon as one more agrees with it. Not thread-safe.
    """

    def __init__(self) -> None:
        self._held: list[Stamped[Item]] = []
        self.reset()

    def reset(self) -> int:
        """Begins a new stream. Returns the number of waiting images, which are dropped."""
        waited, self._held = len(self._held), []
        self._last: int | None = None  # newest believed stamp
        self._interval_s = 0.0  # between the newest two that were believed
        self._arrived_s, self._arrivals_s = 0.0, 0.0  # newest arrival, and the wait before it
        self._age_s = 0.0  # of the newest believed stamp on arrival, by the clock
        self._repeats = 0
        self._faults: list[str] = []
        return waited

    @property
    def waiting(self) -> int:
        """Number of images that wait for the next ones."""
        return len(self._held)

    def add(
        self, item: Item, stamp_ns: int, clock_ns: int, arrived_s: float
    ) -> list[Stamped[Item]]:
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
        new, last = Stamped(item, stamp_ns), self._last
        age_s = (clock_ns - stamp_ns) / 1e9
        follows = last is not None and self._follows(stamp_ns, last)
        if follows or self._is_confirmed(age_s):
            self._reject_held(stamp_ns)
            self._age_s = age_s
            return self._believe([new])
        if self._held and not self._follows(stamp_ns, self._held[-1].stamp_ns):
            self._reject_held(stamp_ns)
        self._held.append(new)
        most = FIRST_GLITCH if last is None else GLITCH
        return self.release() if len(self._held) > most else []

    def overdue(self, now_s: float) -> list[Stamped[Item]]:
        """Returns the images that wait, if the next one does not come."""
        wait_s = max(RELEASE_S, RELEASE_INTERVALS * self._arrivals_s)
        return self.release() if self._held and now_s - self._arrived_s > wait_s else []

    def release(self) -> list[Stamped[Item]]:
        """Returns the images that wait: they are believed."""
        held, self._held = self._held, []
        return self._believe(held)

    def take_faults(self) -> list[str]:
        """Returns a line for each image since the last call whose stamp is wrong."""
        out, self._faults = self._faults, []
        return out

    def _is_confirmed(self, age_s: float) -> bool:
        """Whether the clock confirms a stamp that is the first or jumps: it is plausible by the
        clock, and the ones before were not, or were of the same age."""
        before = self._age_s
        return is_plausible(age_s) and (
            self._last is None or not is_plausible(before) or abs(age_s - before) < SAME_AGE_S
        )

    def _standing(self, stamp_ns: int) -> str:
        """Returns what is wrong with a stamp that is 0 or does not change, else an empty text."""
        if stamp_ns == 0:
            return "header.stamp is 0: have the camera driver set it"
        self._repeats = self._repeats + 1 if stamp_ns == self._last else 0
        if self._repeats >= REPEATS:
            return (
                f"header.stamp stands still at {stamp_ns / 1e9:.3f} s: the camera driver, or its "
                "clock, does not advance"
            )
        return ""

    def _follows(self, stamp_ns: int, last_ns: int) -> bool:
        ahead_s = (stamp_ns - last_ns) / 1e9
        most = max(AHEAD_S, INTERVALS * self._interval_s) if self._interval_s else FIRST_AHEAD_S
        return -BACK_S <= ahead_s <= most

    def _believe(self, images: list[Stamped[Item]]) -> list[Stamped[Item]]:
        for image in images:
            if self._last is not None and self._follows(image.stamp_ns, self._last):
                if image.stamp_ns > self._last:
                    self._interval_s = (image.stamp_ns - self._last) / 1e9
                self._last = max(self._last, image.stamp_ns)
            else:
                self._last = image.stamp_ns
        return images

    def _reject_held(self, next_ns: int) -> None:
        """The images that wait have wrong stamps: the next one, with this stamp, does not agree
        with them."""
        held, self._held = self._held, []
        if self._last is None:
            reference_ns, reference = next_ns, "the next image"
        else:
            reference_ns, reference = (
                self._last,
                "the image before, and the next ones do not agree",
            )
        for image in held:
            off_s = (image.stamp_ns - reference_ns) / 1e9
            side = "ahead of" if off_s > 0 else "behind"
            self._faults.append(
                f"header.stamp is {abs(off_s):.4g} s {side} {reference}: the camera driver's "
                "clock jumped"
            )
