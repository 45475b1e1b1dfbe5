"""Keeps a session in its memory budget: plans, measures, and falls back if memory runs out."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from da3_ros.inference.devices import Device, DeviceError
from da3_ros.inference.feature_cache import CachePolicy, FeatureCache
from da3_ros.inference.interfaces import Memory
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.planner import (
    GIB,
    SMALLEST,
    UNMEASURED,
    BudgetError,
    Plan,
    Request,
    check_fits,
    gains,
    gib_texts,
    is_full,
    kept_views,
    least_memory,
    make_plan,
    needs_lower_precision,
    network_size,
)
from da3_ros.types import UPPER_BOUND

log = logging.getLogger(__name__)


FREE_SHARE = 0.9  # of the free memory, when no budget is given


class MemoryGovernor(Memory):
    """Owns the budget, the plan, the measured memory of windows, and the fallback in force.

    Applies plan and fallback to the network. One thread owns it; any thread may call
    ``check_budget``.
    """

    def __init__(
        self,
        network: LoadedNetwork,
        kept: FeatureCache,
        base_request: Request,
        memory_budget_gb: float,
        free: int,
    ) -> None:
        """``base_request``: common part of all requests; ``fit`` adds image, window and new views.

        ``free``: bytes that were free on the device before the session was opened.
        """
        self._network, self._feature_cache, self._base_request = network, kept, base_request
        self._hardware, self._free_at_start = network.hardware, free
        self._automatic = not memory_budget_gb  # whether the budget is a share of what is free
        self.growth = Growth()
        # Budget and factors, of PyTorch and of the engine; None: not grown.
        self._before_growth: tuple[int, float, float] | None = None
        self.budget = _budget_bytes(
            memory_budget_gb, self._hardware, self._free_at_start, warn=True
        )
        self.requests = RequestedPlans(base_request.streams)
        self.fallback, self.meter = FallbackLevel(), PeakMeter(network.hardware)
        self.plan: Plan | None = None
        self._pinned = False  # whether the plan comes from ``use_plan`` and must not change
        self.over_budget = ""  # why no new plan was made after a window exceeded the budget
        self.factor = UNMEASURED  # ratio of measured to predicted activations, in PyTorch
        self._engine_factor = UNMEASURED  # the same of the preferred other backend
        self._measured_on: set[str] = set()  # backends
        self._rehearsing = self._guess = False

    @property
    def degraded(self) -> tuple[str, ...]:
        """Reductions of the results, caused by the budget."""
        plan, fallback = self.plan, self.fallback
        if plan is None:
            return ()
        below = (f"memory ran out: {fallback.current.text}",) if fallback.level else ()
        over = (self.over_budget,) if self.over_budget else ()
        return (*plan.reduced, *below, *over)

    @property
    def measured(self) -> bool:
        """Whether a window was measured on the backend in use."""
        return self._network.backend.name in self._measured_on

    # Plans ---------------------------------------------------------------------------------------

    def fit(self, image: tuple[int, int], window: int, new: int, *, guess: bool = False) -> Plan:
        """Plan for camera images of (width, height) and windows of ``window`` views, ``new`` new.

        guess: no camera has sent such an image yet, so no engine is built for it. Raises
        BudgetError if nothing fits.
        """
        if self._pinned and self.plan is not None:
            return self.plan
        request = replace(
            self._base_request,
            lower_precision=self._network.lower_precision, image=image, window=window, new=new,
        )  # fmt: skip
        sizes = self.requests.sizes
        gone = self.requests.note(request)
        if request.backend != "torch" and self.requests.sizes != sizes:
            self.requests.plans.clear()  # an engine more or fewer in the budget
        self._guess = guess
        if gone and self._network.precision != self._network.preferred_precision:
            self.requests.plans.clear()  # the camera that needed the lower precision may be gone
        known = self.requests.plans.get(request)
        if known is not None and known.dtype == self._network.precision:
            if known is not self.plan:  # alternating cameras: keep the cache of the other one
                self.plan = known
                self._use_backend(known)
                self._set_chunks()
            return known
        plan = self._adopt(self._make(request, self.budget))
        self.requests.keep(plan)
        # Computed now (and cached), so that ``check_budget`` is fast. ``_adopt`` may have changed
        # the request: no lower precision after a failed self-check.
        least_memory(self._hardware, self.requests.active[0])
        return plan

    def fit_as_is(self, size: tuple[int, int], views: int, new: int) -> None:
        """Plan from the first window for callers that did not call ``fit``.

        size: (height, width) of the images in the network.
        """
        if self.plan is None:
            self._base_request = replace(
                self._base_request, process_res=max(size), process_res_method=UPPER_BOUND
            )
            self.fit((size[1], size[0]), max(2, views), new)

    def use_plan(self, plan: Plan) -> None:
        """Use ``plan`` whatever memory is free: two runs with one plan give equal results.

        Raises ValueError for another model's plan, DeviceError for an unsupported precision.
        """
        if plan.model != self._base_request.model:
            raise ValueError(f"the plan is for {plan.model}, not for {self._base_request.model}")
        if not self._hardware.supports(plan.dtype):
            raise DeviceError(
                f"the plan's precision {plan.precision} is not usable on {self._hardware.device}"
            )
        self._pinned = True
        self._take(plan)

    def _make(self, request: Request, budget: int) -> Plan:
        """Make a plan, in the lower precision if another camera needs it: they share a network."""
        factor = self.factor
        others = (r for r in self.requests.active if r != request)
        needed = any(needs_lower_precision(self._hardware, r, budget, factor) for r in others)
        lower = request.lower_precision if needed else None
        if request.backend != "torch":
            own = network_size(request)
            request = replace(
                request, other_sizes=tuple(s for s in self.requests.sizes if s != own)
            )
            # What windows take in PyTorch says nothing about an engine, nor the other way round.
            plan = make_plan(self._hardware, request, budget, self._engine_factor, lower)
            if plan.backend != "torch":
                return plan
            request = replace(request, backend="torch")
        return make_plan(self._hardware, request, budget, factor, lower)

    def _take(self, plan: Plan) -> None:
        """``_adopt`` a plan for a new budget or measurement; earlier plans become invalid."""
        self.requests.keep_only(self._adopt(plan))

    def _adopt(self, plan: Plan) -> Plan:
        """Apply ``plan``; if its precision fails the self-check, apply a plan without it.

        Returns the applied plan. Raises BudgetError or DeviceError, and keeps the previous plan,
        if there is none.
        """
        if plan.dtype != self._network.precision:
            valid = self._network.change_precision(plan.dtype)
            self._feature_cache.bound(0)
            if not valid:
                return self._adopt_without_lower_precision(plan)
        before, self.plan = self.plan, plan
        self._log_reductions(before, plan)
        if before is None or (before.width, before.height) != (plan.width, plan.height):
            self._feature_cache.bound(0)
        if before is not None and before.repeatable() != plan.repeatable():
            self._network.compiler.release()
        self.over_budget = ""
        self._use_backend(plan)
        self._set_chunks()
        self.meter.release_cached()
        self._hardware.cap(self.budget)
        return plan

    def _log_reductions(self, before: Plan | None, plan: Plan) -> None:
        if before is not None and self._is_growth(before, plan):
            less = ", ".join(plan.reduced) or "no result is reduced"
            log.info("memory suffices for a larger plan: %s", less)
        elif before is None or before.reduced != plan.reduced:
            for text in plan.reduced:
                log.warning("reduced to fit the memory budget: %s", text)

    def _is_growth(self, before: Plan, plan: Plan) -> bool:
        """Whether ``plan`` is a larger one for the request that ``before`` was made for."""
        request = self.requests.newest
        if request is None or self.requests.plans.get(request) is not before:
            return False
        return gains(self._hardware, request, before, plan)

    def _use_backend(self, plan: Plan) -> None:
        """Use the plan's backend; engines of images that no camera sends any more are dropped."""
        wanted = "torch" if self._pinned else self._base_request.backend
        own = (plan.height, plan.width)
        sizes = (own, *(size for size in self.requests.sizes if size != own))
        build = self._pinned or not self._guess
        if self._network.use_backend(plan.backend, wanted, sizes, build=build):
            self.meter.forget_kept()

    def _adopt_without_lower_precision(self, plan: Plan) -> Plan:
        if self._pinned or self.requests.newest is None:
            raise DeviceError(f"the plan's precision {plan.precision} is not close to fp32 here")
        self._network.reject_lower_precision()
        self.requests.drop_lower_precision()
        return self._adopt(self._make(self.requests.active[0], self.budget))

    def _set_chunks(self) -> None:
        planned = self.plan.chunks if self.plan else self._hardware.chunks()
        short = self.fallback.level > 0
        # A fallback is temporary: compiling for its chunk sizes would only cost memory and time.
        self._network.set_chunks(SMALLEST if short else planned, may_compile=not short)

    # The budget ----------------------------------------------------------------------------------

    def set_budget(self, memory_budget_gb: float) -> None:
        """Set the budget in GiB, 0 for 90 % of the memory free at the start, and plan again.

        Raises BudgetError, and changes nothing, if the budget is too small for any camera's
        images.
        """
        budget = _budget_bytes(memory_budget_gb, self._hardware, self._free_at_start, warn=True)
        self._check(budget)
        plan, request = self.plan, self.requests.newest
        if request is not None and not self._pinned:
            plan = self._make(request, budget)
        with self.undone_if_refused():
            self.budget, self.fallback.level = budget, 0
            self._automatic, self._before_growth = not memory_budget_gb, None
            self.growth = Growth()
            if plan is not None:
                self._take(plan)
                self._check(budget)  # again: the self-check may have ruled out a lower precision

    def check_budget(self, memory_budget_gb: float) -> None:
        """Raise BudgetError if nothing fits into this budget; changes nothing.

        Any thread may call it, even during a window. Fast: it makes no plan.
        """
        self._check(_budget_bytes(memory_budget_gb, self._hardware, self._free_at_start))

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """An error inside this context restores the budget and all plans from before."""
        budget, level, over_budget = self.budget, self.fallback.level, self.over_budget
        growth = self._automatic, self._before_growth, self.factor, self._engine_factor
        checks = self.growth
        plan, plans = self.plan, dict(self.requests.plans)
        try:
            yield
        except Exception:
            self.budget, self.fallback.level = budget, level
            self._automatic, self._before_growth, self.factor, self._engine_factor = growth
            self.growth = checks
            if plan is not None:
                self._adopt(plan)
            self.plan, self.requests.plans, self.over_budget = plan, plans, over_budget
            raise

    def _check(self, budget: int) -> None:
        """Raise BudgetError if the camera images that need most memory do not fit."""
        requests, factor = self.requests.active, self.factor
        if requests and not self._pinned:
            most = max(requests, key=lambda r: least_memory(self._hardware, r, factor))
            check_fits(self._hardware, most, budget, factor)

    # Growth --------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Make a reduced plan larger, never beyond the request, if memory has been free for long.

        It counts what an automatic budget would be now, and what windows measured: both may have
        been worse when the plan was made. No plan exceeds a budget that the user has set. If
        memory ran out since the plan grew, the plan from before is in force again; of the host's
        memory, already if it would not suffice for another window.
        """
        plan, request = self.plan, self.requests.newest
        if plan is None or request is None or self._pinned or self._guess:
            return
        if self.fallback.level:
            if self._before_growth is not None:
                self.growth.disappoint()
                self._shrink_back(request, "memory ran out after the plan had grown")
            return
        grown_on_host = (
            self._automatic and self._hardware.shares_host and self._before_growth is not None
        )
        may_grow = self.growth.goes_on and not is_full(self._hardware, request, plan)
        if not self.growth.is_due or not (may_grow or grown_on_host):
            return
        self.meter.release_cached()  # so that free memory, and the next window, are measured
        if grown_on_host and self._free_for_us(plan) < plan.predicted:
            self.growth.fail()
            self._shrink_back(request, "other processes took the memory that the plan grew into")
            return
        self.growth.note(self._budget_now(), self.factor, self._engine_factor)
        if may_grow:
            self._grow(plan, request)

    def _grow(self, plan: Plan, request: Request) -> None:
        if self.growth.lasting is None:
            return
        budget, *factors = self.growth.lasting
        before = self.budget, self.factor, self._engine_factor
        try:
            with self.undone_if_refused():
                self.factor, self._engine_factor = factors
                larger = self._make(request, budget)
                if gains(self._hardware, request, plan, larger):
                    self._before_growth = self._before_growth or before
                    self.budget = max(self.budget, budget)
                    self._take(larger)
                else:
                    _, self.factor, self._engine_factor = before
                    return
        except BudgetError:
            pass  # another camera's images need more than that
        except Exception as error:
            if not self._hardware.is_out_of_memory(error):
                raise
            log.warning("no memory for a larger plan after all: the plan from before stays")
            self.growth.disappoint()
            self.growth.fail()
        self.growth.restart()

    def _shrink_back(self, request: Request, why: str) -> None:
        """Use the plan from before it grew."""
        assert self._before_growth is not None
        log.warning("%s: the plan from before returns", why)
        self.budget, self.factor, self._engine_factor = self._before_growth
        self._before_growth = None
        with suppress(BudgetError, MemoryError):  # another camera may need more than that now
            plan = self._make(request, self.budget)
            self.fallback.restart(0)
            self._take(plan)

    def _budget_now(self) -> int:
        """The budget, if it is the user's; else what it would be now, less a margin."""
        plan = self.plan
        if not self._automatic or plan is None:
            return self.budget
        margin = HOST_MARGIN if self._hardware.shares_host else GROWTH_MARGIN
        return int(FREE_SHARE * self._free_for_us(plan) / margin)

    def _free_for_us(self, plan: Plan) -> int:
        """The free memory, with what this session surely holds: weights, prefixes, the context.

        That is less than all it holds.
        """
        companion = self._base_request.companion
        held = plan.weights + self._hardware.context() + (companion.weights if companion else 0)
        held += 0 if plan.prefix_on_host else self._feature_cache.nbytes
        held += self.meter.held
        return self._hardware.free() + min(self._hardware.in_use(), held)

    # Windows -------------------------------------------------------------------------------------

    def cache_policy(self, views: int) -> CachePolicy | None:
        """The cache policy for a window of ``views`` views; None: no caching, memory is short."""
        if self.fallback.level:
            return None
        plan = self.plan
        if plan is None:
            return CachePolicy(self._base_request.streams * views, on_host=False)
        room = max(views, kept_views(plan.window, plan.new))
        return CachePolicy(self._base_request.streams * room, plan.prefix_on_host)

    def measure(self, views: int) -> None:
        """Measure the peak of the last window; the first one at full size corrects predictions."""
        clean = self.meter.end()
        if self._network.compiling or self._rehearsing:
            return
        plan = self.plan
        planned = plan.weights + plan.fixed if plan else 0
        keeps = self._network.backend.keeps_memory
        taken = self.meter.window_peak(planned + self._feature_cache.nbytes, keeps=keeps)
        if plan is None or self._pinned or self.fallback.level or views < plan.window:
            return
        if clean:
            self.growth.measured(self._measured_factor(plan, taken), plan.backend)
        over = taken > plan.budget
        if (over or not self.measured) and not clean:
            self.meter.release_cached()  # so that the next window can be measured
        elif over or not self.measured:
            if over:
                self.growth.fail()
                budget, more = gib_texts(plan.budget, taken)
                log.warning("a window took %s GiB, above the budget of %s GiB", more, budget)
            self._replan(plan, taken)

    def apply_fallback(self, window: int, views: int) -> None:
        """Apply the next fallback after memory ran out in this window.

        Raises WindowTooLargeError if there is no further fallback.
        """
        self._feature_cache.bound(0)
        self._network.release()
        self.meter.forget_kept()
        self._hardware.release()
        self.fallback.apply_next(views)
        self.growth.fail()
        self._set_chunks()
        log.warning("out of memory: retrying window %d, %s", window, self.fallback.current.text)

    def note_success(self) -> None:
        """Count a successful window; after many of them one fallback is undone."""
        self.growth.count()
        if self.fallback.undo_when_stable():
            self._feature_cache.bound(0)
            self._set_chunks()
            log.info("memory is sufficient again: %s", self.fallback.current.text)

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Windows inside this context belong to no stream: they are not cached or measured."""
        level, self._rehearsing = self.fallback.level, True
        try:
            yield
        finally:
            self._rehearsing = False
            self.fallback.restart(level)  # memory short at start-up may be free during the stream
            self._set_chunks()
            self._feature_cache.bound(0)
            self.requests.note_guess()

    def _replan(self, plan: Plan, taken: int) -> None:
        """Plan again with the measured memory of a window, in bytes."""
        self._measured_on.add(self._network.backend.name)
        factor = self._measured_factor(plan, taken)
        if plan.backend == "torch":
            self.factor = factor
        else:
            self._engine_factor = factor
        request = self.requests.newest
        if request is None:
            return
        try:
            self._take(self._make(request, self.budget))
        except BudgetError as error:  # the window succeeded, and the next one may as well
            self.over_budget = f"{error}; the old plan stays"
            log.warning("%s", self.over_budget)

    def _measured_factor(self, plan: Plan, taken: int) -> float:
        """The ratio of measured to predicted activations of a window that took ``taken`` bytes."""
        activations = max(1, taken - (plan.predicted - plan.activations))
        planned = self.factor if plan.backend == "torch" else self._engine_factor
        return min(4.0, max(1.0, planned * activations / plan.activations))


def _budget_bytes(gigabytes: float, hardware: Device, free: int, *, warn: bool = False) -> int:
    """The budget of parameter `memory_budget_gb`; 0: a share of the ``free`` bytes."""
    if not gigabytes:
        return int(FREE_SHARE * free)
    budget = int(gigabytes * GIB)
    if warn and budget > free:
        log.warning(
            "memory_budget_gb is %s, but only %s GiB are free on %s",
            *reversed(gib_texts(free, budget)), hardware.name(),
        )  # fmt: skip
    return budget


# Fallbacks for a window that runs out of memory despite its plan.

STABLE_WINDOWS = 100  # successful windows in a row after which the last fallback is undone


class WindowTooLargeError(MemoryError):
    """Memory ran out at the last fallback: only fewer views would help."""


@dataclass(frozen=True)
class OomFallback:
    """Fallback applied when a window runs out of memory despite the plan."""

    text: str
    scale: float = 1.0  # factor for the image's sides in the network


OOM_FALLBACKS = (
    OomFallback("as planned"),
    OomFallback("smallest chunks, no cached prefixes"),
    OomFallback("images at 3/4 of their size in the network", 0.75),
    OomFallback("images at 1/2 of their size in the network", 0.5),
)


class FallbackLevel:
    """Owns the fallback in force and the number of successful windows since its last change.

    ``level`` is its index in OOM_FALLBACKS; 0: as planned.
    """

    def __init__(self) -> None:
        self.level = 0
        self._successes = 0

    @property
    def current(self) -> OomFallback:
        """The fallback in force."""
        return OOM_FALLBACKS[self.level]

    def restart(self, level: int) -> None:
        """Set ``level`` and count successful windows from 0."""
        self.level, self._successes = level, 0

    def apply_next(self, views: int) -> None:
        """Apply the next fallback after a window of ``views`` views ran out of memory.

        Raises WindowTooLargeError if there is no further fallback.
        """
        self._successes = 0
        if self.level + 1 >= len(OOM_FALLBACKS):
            raise WindowTooLargeError(
                f"out of memory with {views} views at the smallest size: lower "
                "window.size or process_res, or raise memory_budget_gb"
            )
        self.level += 1

    def undo_when_stable(self) -> bool:
        """Count a successful window. Returns True if one fallback was undone."""
        self._successes += 1
        if not self.level or self._successes < STABLE_WINDOWS:
            return False
        self.restart(self.level - 1)
        return True


# Growth of a reduced plan when memory is free again.

CHECK_EVERY = 10  # windows between two checks of free memory
CHECK_S = 5.0  # and at least this time
MOST_FAILURES = 2  # of growth, from which on a plan stays small until a budget is set
STABLE_CHECKS = 3  # checks in a row that must all allow the larger plan
MOST_CHECKS = 768  # the same after failures: about an hour
GROWTH_MARGIN = 1.1  # ratio of the budget that would be free to the one that is used
HOST_MARGIN = 2.0  # the same of the host's memory: where that runs out, the process is ended


class Growth:
    """Owns the newest checks of free memory, and tells what all of them allow.

    Free memory that comes and goes allows only its least value. A failure, a plan for which
    memory ran out, doubles the number of checks that count. After MOST_FAILURES larger plans that
    had to be given up nothing grows.
    """

    def __init__(self) -> None:
        self._windows = 0  # since the last check
        self._since = time.monotonic()  # the last check
        self._failures = 0
        self._checks: deque[tuple[int, float, float]] = deque(maxlen=STABLE_CHECKS)
        # Largest measured ones since the last check, by whether they are PyTorch's.
        self._factors: dict[bool, float] = {}

    @property
    def is_due(self) -> bool:
        """Whether enough windows and time have passed since the last check."""
        return self._windows >= CHECK_EVERY and time.monotonic() - self._since >= CHECK_S

    @property
    def goes_on(self) -> bool:
        """Whether plans may still grow."""
        return self._failures < MOST_FAILURES

    @property
    def lasting(self) -> tuple[int, float, float] | None:
        """The least budget in bytes, and the largest factors of the checks: of PyTorch and of an
        engine; None: too few checks."""
        if len(self._checks) != self._checks.maxlen:
            return None
        budgets, factors, of_engine = zip(*self._checks, strict=True)
        return min(budgets), max(factors), max(of_engine)

    def count(self) -> None:
        """Count a window."""
        self._windows += 1

    def measured(self, factor: float, backend: str) -> None:
        """Note the ratio of measured to predicted activations of a window."""
        kind = backend == "torch"
        self._factors[kind] = max(factor, self._factors.get(kind, 0.0))

    def note(self, budget: int, factor: float, of_engine: float) -> None:
        """Note a check: the budget that memory allows. The factors, of PyTorch and of an engine,
        count where none was measured."""
        found = self._factors
        self._checks.append((budget, found.get(True, factor), found.get(False, of_engine)))
        self._factors, self._windows, self._since = {}, 0, time.monotonic()

    def restart(self) -> None:
        """Forget all checks."""
        self._checks.clear()
        self._factors, self._windows, self._since = {}, 0, time.monotonic()

    def disappoint(self) -> None:
        """A larger plan had to be given up."""
        self._failures += 1

    def fail(self) -> None:
        """Memory ran out: forget all checks, and wait for twice as many before growing again."""
        assert self._checks.maxlen is not None
        self._checks = deque(maxlen=min(2 * self._checks.maxlen, MOST_CHECKS))
        self.restart()


# Measures the memory that windows take on a device.


class PeakMeter:
    """Owns the largest peak so far, and whether the next peak excludes earlier allocations.

    Call ``begin`` before and ``end`` and ``window_peak`` after each window.
    ``kept``: bytes that earlier windows left allocated, for a backend that keeps them.
    """

    def __init__(self, hardware: Device) -> None:
        self._hardware = hardware
        self.peak = 0  # bytes, the largest measured peak
        self._before = 0
        self._clean = False  # whether the next peak excludes what earlier windows left allocated
        self.kept = 0
        self._released = 0  # bytes that were freed since the last window

    def release_cached(self) -> None:
        """Free cached memory, so that the next peak excludes what earlier windows allocated."""
        self._release()
        self._clean = True

    def _release(self) -> None:
        before = self._hardware.in_use()
        self._hardware.release()
        self._released += max(0, before - self._hardware.in_use())

    def begin(self) -> None:
        """Start the measurement of a window, or restart it."""
        if self._clean:  # other networks in this process may have allocated since
            self._release()
        self._before = self._hardware.in_use()
        self._hardware.reset_peak()

    def end(self) -> bool:
        """End the measurement. True if ``release_cached`` was called before the window."""
        clean, self._clean = self._clean, False
        return clean

    @property
    def held(self) -> int:
        """What is still allocated of ``kept``: all that was released since counts as free."""
        return max(0, self.kept - self._released)

    def forget_kept(self) -> None:
        """The backend has returned the memory that windows left allocated."""
        self.kept = 0

    def window_peak(self, persistent: int, *, keeps: bool = False) -> int:
        """Peak bytes of the window, including ``persistent`` bytes of weights and prefixes.

        keeps: the memory of the window stays allocated, and the next one grows by less.
        """
        kept, released = self.held, self._released
        taken = self._hardware.window_peak(self._before, persistent + kept)
        if keeps:
            grown = max(0, self._hardware.in_use() - self._before)
            again = min(grown, released)  # what was released and is taken again is not more
            # The map and messages grow too, by little from window to window.
            new = grown - again if grown - again > NEW_SHARE * kept else 0
            self.kept = kept + again + new
        self._released = 0
        self.peak = max(self.peak, taken)
        return taken


NEW_SHARE = 0.2  # of what is kept, from which on memory that a window leaves allocated is its own


# The planning requests of several cameras, and the plans made for them.

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
