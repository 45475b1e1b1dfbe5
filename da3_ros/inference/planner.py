"""Fits a model into a memory budget by reducing its memory in a fixed order of steps.

Steps, until the prediction fits: the head one frame at a time; feed-forward layers in chunks;
everything in the smallest chunks; cached prefixes on the host. These change results by rounding
only. Then 16 bits (if `mixed_precision` allows it), smaller images, fewer views. The model itself
is never changed: the error names one that fits.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from da3_ros.backends import BACKENDS
from da3_ros.backends.interface import EngineMemory
from da3_ros.derived.measuring import MeasuringLoad
from da3_ros.inference.devices import SMALLER, Device
from da3_ros.inference.memory_footprint import Footprint, Shape, footprint
from da3_ros.inference.preprocess import fit_size
from da3_ros.network import MODELS
from da3_ros.network.model import Chunks
from da3_ros.network.specs import PATCH
from da3_ros.types import RESIZE_METHODS, UPPER_BOUND, ResizeRule

GIB = 2**30
SMALLEST = Chunks(head_frames=1, local_frames=1, mlp_tokens=1024)
LEAST_RES, LEAST_WINDOW = 224, 2
UNMEASURED = 1.2  # factor on activations before a measurement: work space, fragmentation
GAIN = 1.25  # least ratio of pixels of two plans for which a larger plan replaces a smaller one
SLACK = 48 * 2**20  # bytes that libraries take
ORDER = ("da3nested-giant-large", "da3-giant", "da3-large", "da3-base", "da3-small", "da3-tiny")


class BudgetError(RuntimeError):
    """Nothing fits into the memory budget; the text is one line with the remedy."""


@dataclass(frozen=True)
class CompanionModel:
    """A single-image network in the same process and budget, run on one frame at a time."""

    model: str
    precision: torch.dtype
    weights: int  # bytes


@dataclass(frozen=True)
class Request:
    """The requested settings, before any reduction."""

    model: str
    precision: torch.dtype
    lower_precision: torch.dtype | None  # 16-bit type allowed if memory is short; None: none
    process_res: int
    window: int
    new: int
    image: tuple[int, int] = (4, 3)  # width, height of the camera; only the ratio matters
    poses: bool = False  # whether windows have known poses
    streams: int = 1  # number of cameras whose windows alternate
    companion: CompanionModel | None = None
    backend: str = "torch"  # the preferred one; torch if its memory does not fit
    # Sizes (H, W) of other cameras' images in the network: each needs an engine of its own.
    other_sizes: tuple[tuple[int, int], ...] = ()
    gaussians: bool = False  # whether new views get Gaussians too
    measuring: MeasuringLoad | None = None  # of keyframes' depth, beside the windows
    process_res_method: str = UPPER_BOUND  # every reduction keeps it


@dataclass(frozen=True)
class Plan:
    """Settings that fit the budget, and their predicted memory in bytes."""

    model: str
    device: str
    precision: str
    process_res: int
    width: int
    height: int
    window: int
    new: int
    chunks: Chunks
    prefix_on_host: bool
    budget: int
    weights: int
    prefix: int
    activations: int
    fixed: int  # context and libraries, weights of a companion model, measuring depth
    reduced: tuple[str, ...] = ()  # reductions that change results
    backend: str = "torch"
    process_res_method: str = UPPER_BOUND  # plans from before there was a choice had this one

    @property
    def predicted(self) -> int:
        """Predicted peak of the process on the device."""
        kept = 0 if self.prefix_on_host else self.prefix
        return self.weights + kept + self.activations + self.fixed

    @property
    def rule(self) -> ResizeRule:
        """The size of camera images in the network."""
        return ResizeRule(self.process_res, self.process_res_method)

    @property
    def dtype(self) -> torch.dtype:
        """The type of matrix products."""
        return _dtype(self.precision)

    def repeatable(self) -> dict[str, Any]:
        """The values that determine results, measured ones set to 0; ``from_json`` reads them."""
        values = dataclasses.asdict(self) | {"chunks": list(self.chunks)}
        return values | {"budget": 0, "activations": 0, "fixed": 0}

    @staticmethod
    def from_json(text: str) -> Plan:
        """Parse a plan's values as JSON. Raises BudgetError for any other text."""
        try:
            values: dict[str, Any] = json.loads(text)
            values["chunks"] = Chunks(*values["chunks"])
            values["reduced"] = tuple(values["reduced"])
            plan = Plan(**values)
            _ = plan.dtype, plan.predicted
            if plan.backend not in BACKENDS:
                raise ValueError(f"unknown backend {plan.backend!r}")
            if plan.process_res_method not in RESIZE_METHODS:
                raise ValueError(f"unknown process_res_method {plan.process_res_method!r}")
            if (
                min(plan.width, plan.height, plan.process_res, plan.new, plan.window - plan.new)
                < 1
            ):
                raise ValueError("a size below 1")
        except (ValueError, TypeError, KeyError) as error:
            raise BudgetError(f"not a plan written by `da3_ros replay`: {error}") from error
        if plan.model not in MODELS:
            raise BudgetError(f"the plan is for an unknown model {plan.model!r}")
        return plan


@dataclass(frozen=True)
class _Settings:
    """The settings of one step."""

    precision: torch.dtype
    process_res: int
    window: int
    chunks: Chunks
    prefix_on_host: bool = False
    backend: str = "torch"


def make_plan(
    device: Device,
    request: Request,
    budget: int,
    factor: float = UNMEASURED,
    precision: torch.dtype | None = None,
) -> Plan:
    """The plan of the first step that fits ``budget`` bytes.

    factor: ratio of measured to predicted activations. precision: used instead of the
    requested one if another camera needs the lower one. Raises BudgetError if nothing fits.
    """
    engine = _with_engine(device, request, budget, factor, precision)
    if engine is not None:
        return engine
    steps = (*_lossless_steps(device, request, precision), _last_full_size(device, request))
    plans = (_plan(device, request, choice, budget, factor) for choice in steps)
    fitting = next((p for p in plans if p.predicted <= budget), None)
    return fitting or _reduced_plan(device, request, budget, factor)


def _with_engine(
    device: Device, request: Request, budget: int, factor: float, precision: torch.dtype | None
) -> Plan | None:
    """The plan at full size with the requested engine; None if none is, or it does not fit."""
    if request.backend == "torch":
        return None
    first = next(_lossless_steps(device, request, precision))
    choice = dataclasses.replace(first, backend=request.backend)
    plan = _plan(device, request, choice, budget, factor)
    without = _plan(device, request, first, budget, factor)
    engine = _engine(request, choice)
    building = without.predicted + engine.build  # live, windows run on torch meanwhile
    if request.other_sizes:
        building += engine.weights  # of those that are built already
    return plan if max(plan.predicted, building) <= budget else None


def network_size(request: Request) -> tuple[int, int]:
    """The size (H, W) of the request's images in the network, if memory admits it."""
    width, height = _size(request, request.process_res)
    return height, width


def _size(request: Request, process_res: int) -> tuple[int, int]:
    """The size (width, height) of the request's images in the network at ``process_res``."""
    return fit_size(*request.image, process_res, request.process_res_method)[-1]


def _engine(request: Request, choice: _Settings) -> EngineMemory:
    """Predicted memory of the engines for all sizes of images, at full size."""
    own = network_size(request)
    exact = predict(request, choice.window, own, torch.float32, choice.chunks)
    spec, runtime = MODELS[request.model], BACKENDS[request.backend]()
    found = [
        runtime.memory(spec, exact.weights, choice.window, size, choice.precision)
        for size in (own, *request.other_sizes)
    ]
    return EngineMemory(
        weights=sum(e.weights for e in found),
        activations=sum(e.activations for e in found),
        build=max(e.build for e in found),
    )


def needs_lower_precision(
    device: Device, request: Request, budget: int, factor: float = UNMEASURED
) -> bool:
    """Whether the request fits at full size only in its lower precision, if one is allowed."""
    if request.lower_precision is None or least_memory(device, request, factor) > budget:
        return False
    plans = (
        _plan(device, request, choice, budget, factor)
        for choice in _lossless_steps(device, request)
    )
    return all(plan.predicted > budget for plan in plans)


def least_memory(device: Device, request: Request, factor: float = UNMEASURED) -> int:
    """Bytes of the last step. Slow at the first call for a request; later calls are cached."""
    return _plan(device, request, _smallest(device, request), 0, factor).predicted


def check_fits(device: Device, request: Request, budget: int, factor: float = UNMEASURED) -> None:
    """Raise BudgetError if ``make_plan`` would; fast, as it makes no plan."""
    needed = least_memory(device, request, factor)
    if needed > budget:
        raise BudgetError(_no_fit(device, request, budget, factor, needed))


def lossless_reductions(device: Device, request: Request, plan: Plan) -> int:
    """Number of steps that the plan was made smaller by without a change of its results.

    A torch plan where an engine is preferred counts as one more: the engine did not fit.
    """
    if plan.backend != "torch":
        return 0
    steps = [(s.chunks, s.prefix_on_host) for s in _lossless_steps(device, request)]
    own = (plan.chunks, plan.prefix_on_host)
    return (steps.index(own) if own in steps else len(steps)) + (request.backend != "torch")


def is_full(device: Device, request: Request, plan: Plan) -> bool:
    """Whether nothing of the request was reduced, so that no budget gives a larger plan."""
    return not plan.reduced and not lossless_reductions(device, request, plan)


def gains(device: Device, request: Request, before: Plan, after: Plan) -> bool:
    """Whether ``after`` has at least one reduction less than ``before``, or much weaker ones.

    Much weaker: the window has GAIN times as many pixels. Smaller steps are not worth the cost of
    a change: images of another size, engines and compiled kernels of their own.
    """
    if after.reduced == before.reduced:
        steps = (lossless_reductions(device, request, plan) for plan in (after, before))
        return next(steps) < next(steps)
    if len(after.reduced) != len(before.reduced):
        return len(after.reduced) < len(before.reduced)
    pixels = [plan.window * plan.width * plan.height for plan in (before, after)]
    return pixels[1] >= GAIN * pixels[0]


def _lossless_steps(
    device: Device, request: Request, precision: torch.dtype | None = None
) -> Iterator[_Settings]:
    """Yield the lossless steps, in the requested precision unless another one is given."""
    first = _Settings(
        precision or request.precision, request.process_res, request.window, device.chunks()
    )
    yield first
    for chunks in (Chunks(1, first.chunks.local_frames), Chunks(1, 1, 4096), SMALLEST):
        yield dataclasses.replace(first, chunks=chunks)
    if not device.shares_host:
        yield dataclasses.replace(first, chunks=SMALLEST, prefix_on_host=True)


def _last_full_size(device: Device, request: Request) -> _Settings:
    """The last step that changes neither image size nor number of views."""
    *_, last = _lossless_steps(device, request)
    return dataclasses.replace(last, precision=request.lower_precision or request.precision)


def _smallest(device: Device, request: Request) -> _Settings:
    """The last step of all: the smallest images, the fewest views."""
    sizes, views = _sizes(request), _views(request)
    return dataclasses.replace(
        _last_full_size(device, request),
        process_res=sizes[0],
        window=views[0] if views else request.window,
    )


def _sizes(request: Request) -> list[int]:
    return list(range(min(LEAST_RES, request.process_res), request.process_res + 1, PATCH))


def _views(request: Request) -> list[int]:
    return list(range(max(LEAST_WINDOW, request.new + 1), request.window + 1))


def _reduced_plan(device: Device, request: Request, budget: int, factor: float) -> Plan:
    """The plan of the largest images that fit, then of the most views. Raises BudgetError."""
    check_fits(device, request, budget, factor)
    last = _smallest(device, request)

    def at(**change: int) -> Plan:
        changed = dataclasses.replace(last, **change)  # type: ignore[arg-type]
        return _plan(device, request, changed, budget, factor)

    found = _largest(_sizes(request), lambda res: at(process_res=res, window=request.window))
    return found or _largest(_views(request), lambda n: at(window=n)) or at()


def _largest(values: list[int], plan: Callable[[int], Plan]) -> Plan | None:
    """The plan of the largest value that fits, by bisection: memory grows with the value."""
    low, high, best = 0, len(values), None
    while low < high:
        middle = (low + high) // 2
        tried = plan(values[middle])
        if tried.predicted <= tried.budget:
            best, low = tried, middle + 1
        else:
            high = middle
    return best


def _no_fit(device: Device, request: Request, budget: int, factor: float, needed: int) -> str:
    budget_text, needed_text = gib_texts(budget, needed)
    text = (
        f"{request.model} does not fit into {budget_text} GiB on {device.kind}: it needs at least "
        f"{needed_text} GiB{_companion_note(request.companion)}; raise "
        "memory_budget_gb"
    )
    smaller = ORDER[ORDER.index(request.model) + 1 :] if request.model in ORDER else ()
    for model in smaller:
        other = dataclasses.replace(request, model=model)
        if request.gaussians and not MODELS[model].gaussians:
            continue
        least = _plan(device, other, _smallest(device, other), budget, factor)
        if least.predicted <= budget:
            size = f"{least.window} views of {least.width}x{least.height}"
            return f"{text} or set model to {model} (at least {size} fit)"
    return text


def gib_texts(less: int, more: int) -> tuple[str, str]:
    """Two sizes (bytes) in GiB, with as many digits as tell them apart; ``more`` is rounded up."""
    for digits in range(2, 9):
        smaller = f"{less / GIB:.{digits}f}"
        larger = f"{math.ceil(more / GIB * 10**digits) / 10**digits:.{digits}f}"
        if smaller != larger:
            break
    return smaller, larger


def _companion_note(companion: CompanionModel | None) -> str:
    if companion is None:
        return ""
    return (
        f", {companion.weights / GIB:.2f} of it for the weights of {companion.model} (another "
        "scale.source does not need it)"
    )


def _plan(device: Device, request: Request, choice: _Settings, budget: int, factor: float) -> Plan:
    width, height = _size(request, choice.process_res)
    needed = predict(request, choice.window, (height, width), choice.precision, choice.chunks)
    companion, new = request.companion, min(request.new, choice.window - 1)
    more = factor * device.work_space(choice.precision, "torch")
    weights, activations = needed.weights, round(needed.activations * more)
    if choice.backend != "torch":
        # Beside the network in PyTorch, which runs until the engine is ready, and if it fails.
        engine = _engine(request, choice)
        weights += engine.weights
        # Its formula was fitted to measurements: only more than predicted counts.
        more = max(1.0, factor / UNMEASURED) * device.work_space(choice.precision, choice.backend)
        activations = max(activations, round(engine.activations * more))
    return Plan(
        model=request.model,
        device=device.kind,
        precision=str(choice.precision).removeprefix("torch."),
        process_res=choice.process_res,
        width=width,
        height=height,
        window=choice.window,
        new=new,
        chunks=choice.chunks,
        prefix_on_host=choice.prefix_on_host,
        budget=budget,
        weights=weights,
        prefix=needed.prefix * request.streams * kept_views(choice.window, new) // choice.window,
        activations=max(activations, _companion_activations(device, companion, height, width)),
        fixed=SLACK
        + device.context()
        + (companion.weights if companion else 0)
        + _measuring(device, request, (width, height)),
        reduced=_reductions(request, choice),
        backend=choice.backend,
        process_res_method=request.process_res_method,
    )


def _measuring(device: Device, request: Request, size: tuple[int, int]) -> int:
    """Bytes of measuring keyframes' depth, in the device's memory. size: (width, height)."""
    load = request.measuring
    if load is None:
        return 0
    return load.search_bytes(size) + (load.kept_bytes(size) if device.shares_host else 0)


def kept_views(window: int, new: int) -> int:
    """Number of views whose prefixes are cached: a window, and new views of the next one.

    New views are encoded while this window's prefixes are still needed; at most as many as the
    next window shares with this one.
    """
    return window + min(new, window - new)


def predict(
    request: Request, views: int, size: tuple[int, int], dtype: torch.dtype, chunks: Chunks
) -> Footprint:
    """Predicted memory of a window of ``views`` views at ``size`` (height, width)."""
    new = min(views, request.new)
    wanted, splats = len(usual_wanted(views, new)), new if request.gaussians else 0
    shape = Shape(
        request.model, views, wanted, *size, dtype, chunks, request.poses, splats
    )  # fmt: skip
    return footprint(shape)


def _companion_activations(
    device: Device, companion: CompanionModel | None, height: int, width: int
) -> int:
    """Activation bytes of the companion for one frame; it never runs at the same time."""
    if companion is None:
        return 0
    shape = Shape(companion.model, 1, 1, height, width, companion.precision, SMALLEST)
    more = UNMEASURED * device.work_space(companion.precision, "torch")
    return round(more * footprint(shape).activations)


def _reductions(request: Request, choice: _Settings) -> tuple[str, ...]:
    parts = []
    if choice.precision != request.precision:
        parts.append(f"precision {str(choice.precision).removeprefix('torch.')}")
    if choice.process_res != request.process_res:
        parts.append(f"process_res {choice.process_res} instead of {request.process_res}")
    if choice.window != request.window:
        parts.append(f"window.size {choice.window} instead of {request.window}")
    return tuple(parts)


def _dtype(name: str) -> torch.dtype:
    types = {"float32": torch.float32, **SMALLER}
    if name not in types:
        raise ValueError(f"unknown precision {name!r}: one of {', '.join(types)}")
    return types[name]


# Selects the views whose depth a window needs: the new ones, and shared ones for alignment.

# Overlap views whose depth is computed for alignment; of the others only the pose is used.
ALIGNING = 3


def wanted_views(keyframes: Sequence[bool], cameras: Sequence[str], new: int) -> tuple[int, ...]:
    """Ascending indices of the views whose depth a window needs, as in ``Window.wanted``.

    ``keyframes`` (is it a keyframe) and ``cameras`` (its camera) describe the overlap views,
    oldest first; ``new`` new views follow. Order of preference among overlap views: keyframes,
    the newest view, the newest view of each other camera, the first view, the middle one.
    """
    count, last = len(keyframes), len(keyframes) - 1
    newest = {camera: i for i, camera in enumerate(cameras)}
    others = sorted(set(newest.values()) - {last}, reverse=True)
    chosen = [i for i, keyframe in enumerate(keyframes) if keyframe][: ALIGNING - 1]
    order = [*chosen, last, *others, 0, last // 2] if count else []
    aligning = sorted(list(dict.fromkeys(order))[:ALIGNING])
    return (*aligning, *range(count, count + new))


def usual_wanted(views: int, new: int) -> tuple[int, ...]:
    """``wanted_views`` for a window of ``views`` views of one camera, without keyframes."""
    shared = views - new
    return wanted_views([False] * shared, [""] * shared, new)
