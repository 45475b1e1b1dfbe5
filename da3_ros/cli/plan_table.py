"""The table that `da3_ros plan` prints: what fits into each memory budget."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from da3_ros.config import InferenceConfig
from da3_ros.derived.measuring import MeasuringLoad
from da3_ros.inference.benchmark import measure_speed
from da3_ros.inference.devices import CONTEXT, Device, DeviceError, open_device
from da3_ros.inference.loading import (
    backend_and_precision,
    int8_weight_bits,
    precision_text,
)
from da3_ros.inference.memory_governor import FREE_SHARE
from da3_ros.inference.planner import GIB, BudgetError, Plan, Request, make_plan
from da3_ros.inference.session import InferenceSession
from da3_ros.network.model import Chunks
from da3_ros.replay.log_lines import logs_above_bars

NONE = "-"  # in the columns of a plan where nothing fits
WARM_UP, TIMED = 2, 3  # windows of a measurement


class AbsentCuda(Device):
    """Stands for a recent NVIDIA GPU that this machine lacks, for predictions."""

    kind = "cuda"
    shares_host = False

    def __init__(self, mode: str = "balanced", index: int | None = None) -> None:
        super().__init__(mode)
        self.device = torch.device("cpu")

    def native_half(self) -> torch.dtype | None:
        return torch.bfloat16

    def chunks(self) -> Chunks:
        return Chunks(head_frames=8)

    def context(self) -> int:
        return CONTEXT


@dataclass(frozen=True)
class Question:
    """Arguments of `da3_ros plan`."""

    models: Sequence[str]
    budgets_gb: Sequence[float]  # 0: 90 % of the free memory
    config: InferenceConfig
    image: tuple[int, int]  # width, height
    window: int
    new: int
    measure: bool = False
    splats: bool = False  # with Gaussians of new views


def planning_device(name: str, mode: str) -> Device:
    """Returns the device of that name, or a stand-in for a missing CUDA device."""
    try:
        return open_device(name, mode)
    except DeviceError:
        if name != "cuda" or torch.cuda.is_available():
            raise
        return AbsentCuda(mode)


def table(question: Question) -> list[list[str]]:
    """Returns a header and a row per model and budget; a row tells why a model does not fit."""
    device = planning_device(question.config.device, question.config.performance_mode)
    if question.measure and isinstance(device, AbsentCuda):
        raise DeviceError("--measure needs the device itself: set --device to one of this machine")
    if isinstance(device, AbsentCuda) and not all(question.budgets_gb):
        raise DeviceError(
            "no CUDA device is here whose free memory could be the budget: add --budget GIB"
        )
    header = ["budget", "model", "views", "size", "backend", "precision", "predicted", "reduced"]
    if question.measure:
        header[7:7] = ["measured", "frames/s"]
    asked = list(itertools.product(question.budgets_gb, question.models))
    shown = tqdm(asked, desc="plan", unit="plan", leave=False, disable=not sys.stderr.isatty())
    with logs_above_bars():
        rows = [_row(question, device, model, gb, len(header)) for gb, model in shown]
    return [header, *rows]


def _row(
    question: Question, device: Device, model: str, budget_gb: float, columns: int
) -> list[str]:
    budget = int(budget_gb * GIB) or int(FREE_SHARE * device.free())
    first = [f"{budget / GIB:.2f}", model]
    config = dataclasses.replace(question.config, model=model)
    backend, precision = backend_and_precision(config, device)
    request = Request(
        model, precision, None, question.config.process_res,
        question.window, question.new, question.image, backend=backend,
        gaussians=question.splats, measuring=MeasuringLoad(),
        process_res_method=question.config.process_res_method,
    )  # fmt: skip
    try:
        plan = make_plan(device, request, budget)
    except BudgetError as error:
        return [*first, *[NONE] * (columns - 3), str(error)]
    ran = [plan.backend, precision_text(plan.precision, int8_weight_bits(plan.dtype))]
    measured: list[str] = []
    if question.measure:
        ran, measured = measure(question, plan, budget_gb)
    return [
        *first,
        str(plan.window),
        f"{plan.width}x{plan.height}",
        *ran,
        f"{plan.predicted / GIB:.2f}",
        *measured,
        ", ".join(plan.reduced) or "nothing",
    ]


def nothing_fits(rows: list[list[str]]) -> bool:
    """Whether no row of a ``table`` has a plan."""
    views = rows[0].index("views")
    return all(row[views] == NONE for row in rows[1:])


def measure(question: Question, plan: Plan, budget_gb: float) -> tuple[list[str], list[str]]:
    """Returns backend and precision that ran, and peak GiB and new frames per second.

    With random weights: speed is the same.
    """
    config = dataclasses.replace(
        question.config, model=plan.model, checkpoint="random", memory_budget_gb=budget_gb
    )
    session = InferenceSession(config, poses=False, gaussians=question.splats)
    session.warm_up(question.window, question.new, image=question.image)
    speed = measure_speed(session, TIMED, warm_up=WARM_UP)
    status = session.status()
    return (
        [status.backend, precision_text(status.precision, status.int8_weight_bits)],
        [f"{status.memory_peak_gb:.2f}", f"{speed.frames_per_s:.2f}"],
    )


def as_text(rows: list[list[str]]) -> str:
    """Returns the rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"
