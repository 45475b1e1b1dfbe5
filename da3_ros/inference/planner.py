"""Fits a model into a memory budget: what is kept, what is given up, in a stated order.

Steps, until the prediction fits: the head one frame at a time; feed-forward layers in pieces; the
rest in the smallest pieces; kept prefixes on the host. None of these changes a result beyond
rounding. Only then 16 bits (where `mixed_precision` allows it), smaller images, fewer views. The
model itself is never changed: the error names one that fits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from da3_ros.inference.devices import SMALLER, Device
from da3_ros.inference.memory_footprint import Footprint, Shape, footprint
from da3_ros.inference.preprocess import fit_size
from da3_ros.inference.wanted_views import usual_wanted
from da3_ros.network import MODELS
from da3_ros.network.model import Chunks
from da3_ros.network.specs import PATCH

GIB = 2**30
SMALLEST = Chunks(head_frames=1, local_frames=1, mlp_tokens=1024)
LEAST_RES, LEAST_WINDOW = 224, 2
UNMEASURED = 1.2  # of predicted activations, until a pass was measured: work space, fragments
SLACK = 48 * 2**20  # what libraries keep for themselves
ORDER = ("da3nested-giant-large", "da3-giant", "da3-large", "da3-base", "da3-small", "da3-tiny")


class BudgetError(RuntimeError):
    """A budget that nothing fits into; one line with the remedy."""


@dataclass(frozen=True)
class CompanionModel:
    """A single-image network in the same process and budget, which looks at frames in turn."""

    model: str
    precision: torch.dtype
    weights: int  # bytes


@dataclass(frozen=True)
class Request:
    """What is wanted, before the budget is looked at."""

    model: str
    precision: torch.dtype
    spare_precision: torch.dtype | None  # a smaller type that is allowed, or None
    process_res: int
    window: int
    new: int
    image: tuple[int, int] = (4, 3)  # width, height of the camera; only the ratio counts
    poses: bool = False  # whether windows bring known poses
    streams: int = 1  # cameras whose windows come in turns
    beside: CompanionModel | None = None


@dataclass(frozen=True)
class Plan:
    """What runs, and what memory it is predicted to take. Sizes in bytes."""

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
    fixed: int  # context and libraries, and weights beside
    reduced: tuple[str, ...] = ()  # what was given up that changes results

    @property
    def predicted(self) -> int:
        """The peak of everything on the device."""
        kept = 0 if self.prefix_on_host else self.prefix
        return self.weights + kept + self.activations + self.fixed

    @property
    def dtype(self) -> torch.dtype:
        """The type of matrix products."""
        return _dtype(self.precision)

    def to_json(self) -> str:
        """As it is written into reports and read by ``from_json``."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def repeatable(self) -> dict[str, Any]:
        """What decides results, without what was free or measured; ``from_json`` reads it too."""
        values = dataclasses.asdict(self) | {"chunks": list(self.chunks)}
        return values | {"budget": 0, "activations": 0, "fixed": 0}

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read what ``to_json`` wrote. Raises BudgetError for anything else."""
        try:
            values: dict[str, Any] = json.loads(text)
            values["chunks"] = Chunks(*values["chunks"])
            values["reduced"] = tuple(values["reduced"])
            plan = Plan(**values)
            _ = plan.dtype, plan.predicted
            if (
                min(plan.width, plan.height, plan.process_res, plan.new, plan.window - plan.new)
                < 1
            ):
                raise ValueError("a size below 1")
        except (ValueError, TypeError, KeyError) as error:
            raise BudgetError(f"not a plan as `da3_ros replay` writes it: {error}") from error
        if plan.model not in MODELS:
            raise BudgetError(f"the plan is for an unknown model {plan.model!r}")
        return plan


@dataclass(frozen=True)
class _Choice:
    """One rung of the ladder."""

    precision: torch.dtype
    process_res: int
    window: int
    chunks: Chunks
    prefix_on_host: bool = False


def make_plan(
    device: Device,
    request: Request,
    budget: int,
    factor: float = UNMEASURED,
    precision: torch.dtype | None = None,
) -> Plan:
    """The first rung that fits ``budget`` bytes.

    factor: measured over predicted activations. precision: that of all rungs, where another camera
    needs the spare one. Raises BudgetError when nothing fits.
    """
    rungs = (*_rungs(device, request, precision), _last_full_size(device, request))
    plans = (_plan(device, request, choice, budget, factor) for choice in rungs)
    fitting = next((p for p in plans if p.predicted <= budget), None)
    return fitting or _smaller(device, request, budget, factor)


def needs_spare(device: Device, request: Request, budget: int, factor: float = UNMEASURED) -> bool:
    """Whether it fits, but only in the spare precision, where one is allowed."""
    if request.spare_precision is None or least_memory(device, request, factor) > budget:
        return False
    plans = (_plan(device, request, choice, budget, factor) for choice in _rungs(device, request))
    return all(plan.predicted > budget for plan in plans)


def least_memory(device: Device, request: Request, factor: float = UNMEASURED) -> int:
    """Bytes of the last rung of all. Found once for a request; asked again it takes no time."""
    return _plan(device, request, _last(device, request), 0, factor).predicted


def check_fits(device: Device, request: Request, budget: int, factor: float = UNMEASURED) -> None:
    """Raise BudgetError when ``make_plan`` would, without a plan, which may take seconds."""
    needed = least_memory(device, request, factor)
    if needed > budget:
        choice = _last_full_size(device, request)
        raise BudgetError(_no_fit(device, request, choice, budget, factor, needed))


def _rungs(
    device: Device, request: Request, precision: torch.dtype | None = None
) -> Iterator[_Choice]:
    """Lossless steps, in the wanted precision if no other one is given."""
    first = _Choice(
        precision or request.precision, request.process_res, request.window, device.chunks()
    )
    yield first
    for chunks in (Chunks(1, first.chunks.local_frames), Chunks(1, 1, 4096), SMALLEST):
        yield dataclasses.replace(first, chunks=chunks)
    if not device.shares_host:
        yield dataclasses.replace(first, chunks=SMALLEST, prefix_on_host=True)


def _last_full_size(device: Device, request: Request) -> _Choice:
    """The last step that leaves images and views as they are."""
    *_, last = _rungs(device, request)
    return dataclasses.replace(last, precision=request.spare_precision or request.precision)


def _last(device: Device, request: Request) -> _Choice:
    """The last rung of all: the smallest images, the fewest views."""
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


def _smaller(device: Device, request: Request, budget: int, factor: float) -> Plan:
    """Smaller images, then fewer views; the largest that fits."""
    check_fits(device, request, budget, factor)
    last = _last(device, request)

    def at(**change: int) -> Plan:
        changed = dataclasses.replace(last, **change)  # type: ignore[arg-type]
        return _plan(device, request, changed, budget, factor)

    found = _largest(_sizes(request), lambda res: at(process_res=res, window=request.window))
    return found or _largest(_views(request), lambda n: at(window=n)) or at()


def _largest(values: list[int], plan: Callable[[int], Plan]) -> Plan | None:
    """The plan of the largest value that fits; memory grows with the value."""
    low, high, best = 0, len(values), None
    while low < high:
        middle = (low + high) // 2
        tried = plan(values[middle])
        if tried.predicted <= tried.budget:
            best, low = tried, middle + 1
        else:
            high = middle
    return best


def _no_fit(
    device: Device,
    request: Request,
    choice: _Choice,
    budget: int,
    factor: float,
    needed: int,
) -> str:
    text = (
        f"{request.model} does not fit into {budget / GIB:.2f} GiB on {device.kind}: it needs "
        f"{needed / GIB:.2f} GiB at the least{_said_beside(request.beside)}; raise "
        "memory_budget_gb"
    )
    views = max(LEAST_WINDOW, request.new + 1)
    small = dataclasses.replace(choice, process_res=LEAST_RES, window=views)
    for model in ORDER[ORDER.index(request.model) + 1 :] if request.model in ORDER else ():
        other = dataclasses.replace(request, model=model)
        if _plan(device, other, small, budget, factor).predicted <= budget:
            return f"{text} or set model to {model}"
    return text


def _said_beside(beside: CompanionModel | None) -> str:
    if beside is None:
        return ""
    return (
        f", {beside.weights / GIB:.2f} of it for the weights of {beside.model} (without it: "
        "another scale.source)"
    )


def _plan(device: Device, request: Request, choice: _Choice, budget: int, factor: float) -> Plan:
    width, height = fit_size(*request.image, choice.process_res)[-1]
    needed = predict(request, choice.window, (height, width), choice.precision, choice.chunks)
    beside, new = request.beside, min(request.new, choice.window - 1)
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
        weights=needed.weights,
        prefix=needed.prefix * request.streams * kept_views(choice.window, new) // choice.window,
        activations=max(round(needed.activations * factor), _work_beside(beside, height, width)),
        fixed=SLACK + device.context() + (beside.weights if beside else 0),
        reduced=_given_up(request, choice),
    )


def kept_views(window: int, new: int) -> int:
    """How many views' prefixes a session keeps: a window's, and new ones of the next.

    Those come while this window's are still of use: of it, as many as the next one shares.
    """
    return window + min(new, window - new)


def predict(
    request: Request, views: int, size: tuple[int, int], dtype: torch.dtype, chunks: Chunks
) -> Footprint:
    """What a window of ``views`` at ``size`` (height, width) takes by the network's own shapes."""
    wanted = len(usual_wanted(views, min(views, request.new)))
    return footprint(Shape(request.model, views, wanted, *size, dtype, chunks, request.poses))


def _work_beside(beside: CompanionModel | None, height: int, width: int) -> int:
    """What the other network needs for a frame, beside its weights; never while a window runs."""
    if beside is None:
        return 0
    shape = Shape(beside.model, 1, 1, height, width, beside.precision, SMALLEST)
    return round(UNMEASURED * footprint(shape).activations)


def _given_up(request: Request, choice: _Choice) -> tuple[str, ...]:
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
