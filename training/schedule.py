"""Schedule of training: phases, learning rate and curriculum, all counted in steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from training.data import Bucket

WARM_UP, DECAY_FROM = 0.02, 0.7  # shares of all steps
PHASE_WARM_UP = 0.01  # share of all steps, at the start of each phase
LAST_RATE = 0.01  # of the full rate, at the end


@dataclass(frozen=True)
class Phase:
    """A phase of training.

    share: of all steps. size: (height, width) of the rendered pool. near: smallest overlap of
    views, at the phase's start and from its middle on.
    """

    name: str
    share: float
    size: tuple[int, int]
    buckets: tuple[Bucket, ...]
    near: tuple[float, float]
    dense: bool = True  # run and train the DPT head
    posed: float = 0.0  # share of steps with given poses


PHASES = (
    Phase("near pairs", 0.6, (98, 126), (Bucket(2, 98, 126),), (0.75, 0.3), dense=False),
    Phase(
        "views",
        0.28,
        (126, 168),
        (
            *(Bucket(n, 126, 168) for n in (2, 3, 4, 6)),
            Bucket(2, 98, 168),
            Bucket(3, 126, 126),
        ),
        (0.4, 0.25),
        posed=0.5,
    ),
    Phase(
        "views and poses",
        0.12,
        (168, 224),
        (
            *(Bucket(n, 168, 224) for n in (2, 3, 4, 6, 8)),
            Bucket(4, 126, 224),
            Bucket(3, 168, 168),
        ),
        (0.3, 0.2),
        posed=0.5,
    ),
)


@dataclass(frozen=True)
class Moment:
    """A step's phase, and its position in that phase."""

    phase: int
    step: int  # within the phase
    steps: int  # of the phase


@dataclass(frozen=True)
class Schedule:
    """Phases over ``steps`` optimiser steps."""

    steps: int
    phases: tuple[Phase, ...] = PHASES
    trained: bool = False  # the run starts from trained weights

    @property
    def ends(self) -> list[int]:
        """Returns the first step after each phase."""
        total, ends = 0.0, []
        whole = sum(p.share for p in self.phases)
        for phase in self.phases:
            total += phase.share
            ends.append(round(self.steps * total / whole))
        return ends

    def at(self, step: int) -> Moment:
        """Returns the phase of a step. Raises ValueError beyond the last step."""
        start = 0
        for number, end in enumerate(self.ends):
            if step < end:
                return Moment(number, step - start, end - start)
            start = end
        raise ValueError(f"step {step} is beyond the last, {self.steps - 1}")

    def rate(self, step: int) -> float:
        """Returns the factor on the learning rate: warm-up, constant, cosine decay."""
        moment = self.at(step)
        rise = (step + 1) / max(1.0, WARM_UP * self.steps)
        again = (moment.step + 1) / max(1.0, PHASE_WARM_UP * self.steps)
        done = (step / self.steps - DECAY_FROM) / (1 - DECAY_FROM)
        fall = LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * max(0.0, done)))
        return min(1.0, rise, again) * fall

    def near(self, step: int) -> float:
        """Returns the smallest overlap of views, as a share of their image."""
        moment = self.at(step)
        first, last = self.phases[moment.phase].near
        return first + (last - first) * min(1.0, 2 * moment.step / moment.steps)

    def trust(self, step: int) -> float:
        """Returns how far losses are weighted by confidence, 0 to 1.

        0 in the first third of the steps that train the head, rising to 1 at their middle; 1 for a
        run that starts from trained weights.
        """
        if self.trained:
            return 1.0
        ends = [0, *self.ends]
        begin = next((a for a, p in zip(ends, self.phases, strict=False) if p.dense), self.steps)
        done = (step - begin) / max(1, self.steps - begin)
        return min(1.0, max(0.0, (done - 1 / 3) * 6))
