"""What cameras ask the memory planner for, and the plans that were made for it."""

from __future__ import annotations

from dataclasses import replace

from da3_ros.inference.planner import Plan, Request

MOST_PLANS = 16  # that are kept at a time: of cameras whose images have different shapes


class RequestedPlans:
    """Owns the requests of cameras in turns, the newest first, and one budget's plans for them.

    ``asked`` is replaced, never changed: other threads may read it.
    """

    def __init__(self, streams: int) -> None:
        """``streams``: so many cameras take turns."""
        self._streams = streams
        self.asked: tuple[Request, ...] = ()
        self._guessed = False  # whether that is of a rehearsal, not of a camera
        self.plans: dict[Request, Plan] = {}

    @property
    def newest(self) -> Request | None:
        """The newest request; None before the first."""
        return self.asked[0] if self.asked else None

    def note(self, request: Request) -> bool:
        """A camera asks for this; what others asked for stays as far as it still holds.

        Returns whether an earlier request no longer does.
        """
        before = () if self._guessed else self.asked
        self._guessed = False
        others = [r for r in before if r != request and replace(r, image=request.image) == request]
        self.asked = (request, *others)[: self._streams]
        return bool(set(before) - set(self.asked))

    def note_guess(self) -> None:
        """What was asked for last was a guess: the first camera's request takes its place."""
        self._guessed = True

    def drop_spare(self) -> None:
        """Ask for no spare precision any more: it is wrong here."""
        self.asked = tuple(replace(r, spare_precision=None) for r in self.asked)

    def keep(self, plan: Plan) -> None:
        """A plan for the newest request, if there is one."""
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        if self.newest is not None:
            self.plans[self.newest] = plan

    def keep_only(self, plan: Plan) -> None:
        """A plan for the newest request; those made before, of another budget, hold no more."""
        self.plans.clear()
        self.keep(plan)
