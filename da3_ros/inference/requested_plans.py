"""The planning requests of several cameras, and the plans made for them."""

from __future__ import annotations

from dataclasses import replace

from da3_ros.inference.planner import Plan, Request, network_size

MAX_PLANS = 16  # cached plans; cameras with different image shapes need one each


class RequestedPlans:
    """Owns the requests of alternating cameras, newest first, and their plans for one budget.

    ``active`` is replaced, never modified in place: other threads may read it.
    """

    def __init__(self, streams: int) -> None:
        """``streams``: number of cameras whose windows alternate."""
        self._streams = streams
        self.active: tuple[Request, ...] = ()
        self._guessed = False  # whether ``active`` comes from a warm-up instead of a camera
        self.plans: dict[Request, Plan] = {}

    @property
    def newest(self) -> Request | None:
        """The newest request; None before the first."""
        return self.active[0] if self.active else None

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Sizes (H, W) of the cameras' images in the network, each once, in a fixed order."""
        return sorted({network_size(request) for request in self.active})

    def note(self, request: Request) -> bool:
        """Add a camera's request and drop earlier requests with other settings.

        Returns True if an earlier request was dropped.
        """
        before = () if self._guessed else self.active
        self._guessed = False
        others = [r for r in before if r != request and replace(r, image=request.image) == request]
        self.active = (request, *others)[: self._streams]
        return bool(set(before) - set(self.active))

    def note_guess(self) -> None:
        """Mark the newest request as a guess: the first camera's request replaces it."""
        self._guessed = True

    def drop_lower_precision(self) -> None:
        """Remove the lower precision from all requests: it failed the self-check."""
        self.active = tuple(replace(r, lower_precision=None) for r in self.active)

    def keep(self, plan: Plan) -> None:
        """Cache the plan for the newest request, if there is one."""
        if len(self.plans) >= MAX_PLANS:
            self.plans.clear()
        if self.newest is not None:
            self.plans[self.newest] = plan

    def keep_only(self, plan: Plan) -> None:
        """Cache the plan for the newest request and drop all others: the budget has changed."""
        self.plans.clear()
        self.keep(plan)
