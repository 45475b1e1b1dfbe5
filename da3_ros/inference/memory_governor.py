"""Keeps a session within its memory budget: plans, measures, and falls back where that fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from da3_ros.inference.devices import DeviceError
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.oom_fallback import FallbackLevel
from da3_ros.inference.peak_meter import PeakMeter
from da3_ros.inference.planner import (
    GIB,
    SMALLEST,
    UNMEASURED,
    BudgetError,
    Plan,
    Request,
    check_fits,
    kept_views,
    least_memory,
    make_plan,
    needs_spare,
)
from da3_ros.inference.prefix_cache import KeepRule, KeptPrefixes
from da3_ros.inference.requested_plans import RequestedPlans

log = logging.getLogger(__name__)

FREE_SHARE = 0.9  # of the free memory, when no budget is given


class MemoryGovernor:
    """Owns the budget, the plan, what windows were measured to take, and the fallback in force.

    The network runs as plan and fallback say. One thread owns it; any may call ``check_budget``.
    """

    def __init__(
        self,
        network: LoadedNetwork,
        kept: KeptPrefixes,
        wish: Request,
        memory_budget_gb: float,
        free: int,
    ) -> None:
        """``wish``: what all requests have in common; ``fit`` adds image, window and new views.

        ``free``: bytes that were free on the device before anything of this session was there.
        """
        self._network, self._kept, self._wish = network, kept, wish
        self._on, self._free_at_start = network.on, free
        self.budget = self._bytes(memory_budget_gb, warn=True)
        self.requests = RequestedPlans(wish.streams)
        self.fallback, self.meter = FallbackLevel(), PeakMeter(network.on)
        self.plan: Plan | None = None
        self._pinned = False  # a plan that was given stays
        self.over_budget = ""  # why a window that took more than the budget changed nothing
        self.factor = UNMEASURED  # measured over predicted activations
        self.measured = False
        self._rehearsing = False

    @property
    def degraded(self) -> tuple[str, ...]:
        """What of the results the budget costs right now."""
        plan, level = self.plan, self.fallback.level
        if plan is None:
            return ()
        below = (f"out of memory before, {level} steps down",) if level else ()
        over = (self.over_budget,) if self.over_budget else ()
        return (*plan.reduced, *below, *over)

    # Plans ---------------------------------------------------------------------------------------

    def fit(self, image: tuple[int, int], window: int, new: int) -> Plan:
        """Plan for camera images of (width, height) and windows of ``window`` views, ``new`` new.

        Raises BudgetError when nothing fits.
        """
        if self._pinned and self.plan is not None:
            return self.plan
        request = replace(
            self._wish,
            spare_precision=self._network.spare, image=image, window=window, new=new,
        )  # fmt: skip
        gone = self.requests.note(request)
        if gone and self._network.precision != self._network.wanted:
            self.requests.plans.clear()  # what needed the spare precision may be gone
        known = self.requests.plans.get(request)
        if known is not None and known.dtype == self._network.precision:
            if known is not self.plan:  # cameras in turns: nothing of the other one's is let go
                self.plan = known
                self._set_chunks()
            return known
        plan = self._adopt(self._make(request, self.budget))
        self.requests.keep(plan)
        # Found now, so that ``check_budget`` takes no time; without a spare, where that was wrong.
        least_memory(self._on, self.requests.asked[0])
        return plan

    def fit_as_is(self, size: tuple[int, int], views: int, new: int) -> None:
        """A plan for callers that did not ask for one: windows as they come.

        size: (height, width) of the images in the network.
        """
        if self.plan is None:
            self._wish = replace(self._wish, process_res=max(size))
            self.fit((size[1], size[0]), max(2, views), new)

    def use_plan(self, plan: Plan) -> None:
        """Run as ``plan`` says, whatever memory is free: two runs with one plan are equal.

        Raises ValueError for another model's plan, DeviceError for a precision that is not here.
        """
        if plan.model != self._wish.model:
            raise ValueError(f"the plan is for {plan.model}, not {self._wish.model}")
        if not self._on.can(plan.dtype):
            raise DeviceError(
                f"the plan's precision {plan.precision} is not usable on {self._on.device}"
            )
        self._pinned = True
        self._take(plan)

    def _make(self, request: Request, budget: int) -> Plan:
        """A plan, in the spare precision while another camera needs it: there is one network."""
        others = (r for r in self.requests.asked if r != request)
        needed = any(needs_spare(self._on, r, budget, self.factor) for r in others)
        spare = request.spare_precision if needed else None
        return make_plan(self._on, request, budget, self.factor, spare)

    def _take(self, plan: Plan) -> None:
        """``_adopt`` a plan of another budget or measure: those made before hold no more."""
        self.requests.keep_only(self._adopt(plan))

    def _adopt(self, plan: Plan) -> Plan:
        """Run as ``plan`` says from now on; where its precision is wrong here, as one without it.

        Returns what runs. Raises BudgetError or DeviceError, and keeps the plan before, where
        there is none.
        """
        if plan.dtype != self._network.precision:
            right = self._network.change_precision(plan.dtype)
            self._kept.clear()
            if not right:
                return self._adopt_without_spare(plan)
        before, self.plan = self.plan, plan
        if before is None or before.reduced != plan.reduced:
            for text in plan.reduced:
                log.warning("the memory budget allows only %s", text)
        if before is None or (before.width, before.height) != (plan.width, plan.height):
            self._kept.clear()
        if before is not None and before.repeatable() != plan.repeatable():
            self._network.compiler.release()
        self.over_budget = ""
        self._set_chunks()
        self.meter.let_go()
        self._on.cap(self.budget)
        return plan

    def _adopt_without_spare(self, plan: Plan) -> Plan:
        if self._pinned or self.requests.newest is None:
            raise DeviceError(f"the plan's precision {plan.precision} is not close to fp32 here")
        self._network.refuse_spare()
        self.requests.drop_spare()
        return self._adopt(self._make(self.requests.asked[0], self.budget))

    def _set_chunks(self) -> None:
        planned = self.plan.chunks if self.plan else self._on.chunks()
        short = self.fallback.level > 0
        # What memory forced waits for no compiler.
        self._network.set_chunks(SMALLEST if short else planned, may_compile=not short)

    # The budget ----------------------------------------------------------------------------------

    def set_budget(self, memory_budget_gb: float) -> None:
        """Take a new budget, 0 for 90 % of what was free at the start, and plan anew.

        Raises BudgetError, and changes nothing, when nothing fits for the images of one camera.
        """
        budget = self._bytes(memory_budget_gb, warn=True)
        self._check(budget)
        plan, request = self.plan, self.requests.newest
        if request is not None and not self._pinned:
            plan = self._make(request, budget)
        with self.undone_if_refused():
            self.budget, self.fallback.level = budget, 0
            if plan is not None:
                self._take(plan)
                self._check(budget)  # 16 bits that a plan wants may be wrong here

    def check_budget(self, memory_budget_gb: float) -> None:
        """Raise BudgetError if nothing fits into this budget; changes nothing.

        Any thread may ask, while a window runs too. No plan is made, which may take seconds.
        """
        self._check(self._bytes(memory_budget_gb))

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """After a BudgetError the budget, if it was set within, and its plans are the old ones."""
        budget, level, over_budget = self.budget, self.fallback.level, self.over_budget
        plan, plans = self.plan, dict(self.requests.plans)
        try:
            yield
        except BudgetError:
            self.budget, self.fallback.level = budget, level
            if plan is not None:
                self._adopt(plan)
            self.plan, self.requests.plans, self.over_budget = plan, plans, over_budget
            raise

    def _check(self, budget: int) -> None:
        """Raise BudgetError if a camera's images do not fit, of those that need most."""
        asked, factor = self.requests.asked, self.factor
        if asked and not self._pinned:
            most = max(asked, key=lambda r: least_memory(self._on, r, factor))
            check_fits(self._on, most, budget, factor)

    def _bytes(self, gigabytes: float, *, warn: bool = False) -> int:
        if not gigabytes:
            return int(FREE_SHARE * self._free_at_start)
        budget = int(gigabytes * GIB)
        if warn and budget > self._free_at_start:
            log.warning(
                "memory_budget_gb is %.2f, but only %.2f GiB are free on %s",
                gigabytes,
                self._free_at_start / GIB,
                self._on.name(),
            )
        return budget

    # Windows -------------------------------------------------------------------------------------

    def keep_rule(self, views: int) -> KeepRule | None:
        """How a window of ``views`` keeps prefixes; None: not at all, memory is short."""
        if self.fallback.level:
            return None
        plan = self.plan
        if plan is None:
            return KeepRule(self._wish.streams * views, on_host=False)
        room = max(views, kept_views(plan.window, plan.new))
        return KeepRule(self._wish.streams * room, plan.prefix_on_host)

    def measure(self, views: int) -> None:
        """Note the peak of a window that ran; the first at full size corrects the prediction."""
        clean = self.meter.end()
        if self._network.compiling or self._rehearsing:
            return
        plan = self.plan
        planned = plan.weights + plan.fixed if plan else 0
        taken = self.meter.taken(planned + self._kept.nbytes)
        if plan is None or self._pinned or self.fallback.level or views < plan.window:
            return
        over = taken > plan.budget
        if (over or not self.measured) and not clean:
            self.meter.let_go()  # and look at the next one
        elif over or not self.measured:
            if over:
                log.warning(
                    "a window took %.2f GiB of a budget of %.2f", taken / GIB, plan.budget / GIB
                )
            self._replan(plan, taken)

    def step_down(self, window: int, views: int) -> None:
        """Memory ran out in this window: one fallback more, for the same window.

        Raises WindowTooLargeError where there is none.
        """
        self._kept.clear()
        self._network.compiler.release()
        self._on.release()
        self.fallback.step_down(views)
        self._set_chunks()
        log.warning("out of memory: window %d again, %s", window, self.fallback.current.text)

    def note_calm(self) -> None:
        """A window ran; after many of them a fallback is taken back."""
        if self.fallback.step_up_when_calm():
            self._kept.clear()
            self._set_chunks()
            log.info("memory has been calm: now %s", self.fallback.current.text)

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Windows within are of no stream: nothing of them is kept or measured."""
        level, self._rehearsing = self.fallback.level, True
        try:
            yield
        finally:
            self._rehearsing = False
            self.fallback.restart(level)  # what a start's crowd took is there again with frames
            self._set_chunks()
            self._kept.clear()
            self.requests.note_guess()

    def _replan(self, plan: Plan, taken: int) -> None:
        """Plan anew by what a window took, in bytes."""
        self.measured = True
        activations = max(1, taken - (plan.predicted - plan.activations))
        self.factor = min(4.0, max(1.0, self.factor * activations / plan.activations))
        request = self.requests.newest
        if request is None:
            return
        try:
            self._take(self._make(request, self.budget))
        except BudgetError as error:  # the window is done, and the next may do as well
            self.over_budget = f"{error}; the old plan stays"
            log.warning("%s", self.over_budget)
