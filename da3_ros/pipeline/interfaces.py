"""What the pipeline needs of the networks."""

from __future__ import annotations

from typing import Protocol

from da3_ros.types import (
    Image,
    Prediction,
    Window,
)


class Network(Protocol):
    """What the pipeline needs of an inference session."""

    def fit(self, image: tuple[int, int], window: int, new: int) -> Limits | None:
        """What the memory budget allows for images of (width, height); None: anything."""

    def prefetch(self, image: Image) -> None:
        """Begin with the image of a view that waits for its window."""

    def infer(self, window: Window) -> Prediction: ...

    def set_budget(self, memory_budget_gb: float) -> None:
        """Take a new memory budget. Raises BudgetError if nothing fits."""


class MetricModel(Protocol):
    """A metric model that looks at a window now and then."""

    def measure(self, window: Window, prediction: Prediction) -> Prediction:
        """``prediction`` with its ``measure``, and with ``sky`` where the ruler looked."""


class Limits(Protocol):
    """What a budget allows; never more than was asked for."""

    @property
    def process_res(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def new(self) -> int: ...
