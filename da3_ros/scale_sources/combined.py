"""Several sources of metres as one: weighed by variance, and tested against each other.

Each member measures and estimates as it does alone. What sources of one chain share, the drift of
its unit, does not average out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from scipy.special import chdtrc  # scipy.stats takes 0.4 s to import

from da3_ros.geometry.similarity import Similarity
from da3_ros.parameter_schema import PLUS
from da3_ros.scale_sources.estimates import (
    AGES,
    AGREEMENT,
    Estimate,
    MeasurementFilter,
    MemberState,
)
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.types import Array

log = logging.getLogger(__name__)

# Probability of differences as large by chance, below which sources disagree, and above which they
# agree again.
DISAGREES, AGREES = 0.001, 0.05
# Share of an estimate's variance that other sources have too. A drift below the noise is not seen.
LEAST_SHARED, MOST_SHARED = 0.3, 0.9
SILENT = 5.0  # way over depth without news, from which on a source counts no longer by name
REPORTED = 10  # disagreements that are logged


class CombinedSource(ScaleSource):
    """The sources of a list. Its members measure; what one of them needs, it needs."""

    def __init__(self, sources: Mapping[str, ScaleSource]) -> None:
        self._sources, self._reports = dict(sources), 0
        for fact in (name for name in vars(ScaleSource) if name.startswith("needs_")):
            setattr(self, fact, any(getattr(source, fact) for source in sources.values()))
        self.by_depth = all(source.by_depth for source in sources.values())

    @property
    def members(self) -> tuple[ScaleSource, ...]:
        """The sources, in their order."""
        return tuple(self._sources.values())

    def unsuited(self, cameras: int) -> str:
        """Returns why one of them is not for this number of cameras, or for a list; "" if all
        are."""
        for name, source in self._sources.items():
            if not source.learns:
                return f"{name} measures nothing, so it cannot be combined: name it alone"
            if why := source.unsuited(cameras):
                return f"{name}: {why}"
        return ""

    def report_missing(self) -> None:
        """Logs of each member once why it shows no scale."""
        for source in self._sources.values():
            source.report_missing()

    def estimator(self) -> MeasurementFilter:
        """Returns a new estimator of a chain's scale, which combines those of the members."""
        return CombinedFilter(self._sources, self.report)

    def report(self, text: str) -> None:
        """Logs that sources disagree, or agree again; a limited number of times in a scene."""
        self._reports += 1
        if self._reports <= REPORTED:
            log.warning("scale.source: %s", text)


class CombinedFilter(MeasurementFilter):
    """The most certain estimate that several sources give together."""

    def __init__(self, sources: Mapping[str, ScaleSource], report: Callable[[str], None]) -> None:
        """report: takes one line of text."""
        super().__init__()
        self._names, self._sources = tuple(sources), tuple(sources.values())
        self._members = tuple(source.estimator() for source in self._sources)
        self._report = report
        self._newest: list[Estimate | None] = [None] * len(sources)
        self._here: Array | None = None  # [3] the newest frame's camera in ``local``
        self._ways = [0.0] * len(sources)  # over the depth, since each has said something new
        # Members that disagree, and whether a majority says that it is they who are wrong.
        self._out: dict[int, bool] = {}
        # Logarithm of the newest estimate on which most agreed: one that slips would take a later
        # one along.
        self._last: float | None = None
        self.states = tuple(MemberState(name, "unknown", None) for name in sources)

    @property
    def members(self) -> tuple[MeasurementFilter, ...]:
        """The estimators of the sources, in their order."""
        return self._members

    def interrupt_motion(self) -> None:
        """Takes over that the motion from the last frame to the next is unknown."""
        for member in self._members:
            member.interrupt_motion()

    def refine(self, poses: Mapping[int, Array]) -> None:
        """Takes over refined poses [4, 4] in ``local`` of earlier frames, by view id."""
        for member in self._members:
            member.refine(poses)

    def move(self, moves: Mapping[int, Similarity]) -> None:
        """Takes over that earlier frames have moved in ``local``, by view id."""
        for member in self._members:
            member.move(moves)

    def restart_members(self, chosen: Sequence[bool]) -> None:
        """Forgets what the chosen sources have measured."""
        pairs = zip(self._sources, self._members, chosen, strict=True)
        self._members = tuple(s.estimator() if again else old for s, old, again in pairs)
        newest = zip(self._newest, chosen, strict=True)
        self._newest = [None if again else old for old, again in newest]

    def note_way(self, T_local_camera: Array, depth: float) -> None:
        """Notes a frame's pose [4, 4]: estimates without news age with the way, over the depth."""
        here = T_local_camera[:3, 3]
        if self._here is not None and depth > 0:
            way = float(np.linalg.norm(here - self._here)) / depth
            self._ways = [known + way for known in self._ways]
        self._here = here

    def estimate(self) -> Estimate | None:
        """Returns what the members that agree say together; None if none says anything.

        Of three or more, those that disagree with the most are left out. Where no majority agrees,
        one counts: that nearest to the scale so far, else the most certain one. Its standard
        deviation then includes the difference to the others.
        """
        said = {i: e for i in range(len(self._members)) if (e := self._aged(i)) is not None}
        if not said:
            return None
        chosen = self._choose(said)
        found = combined([said[i] for i in chosen])
        found = replace(found, doubt=min(said[i].doubt for i in chosen))
        if 2 * len(chosen) <= len(said):
            apart = max(abs(said[i].log - found.log) for i in said if i not in chosen)
            found = replace(found, sigma=math.hypot(found.sigma, apart))
        if 2 * len(chosen) > len(said) or self._last is None:
            self._last = found.log
        self._note(said, chosen)
        return found

    def _aged(self, index: int) -> Estimate | None:
        """Returns the estimate of a member, with the deviation that it has by now.

        One that says nothing, as a LiDAR before a bare wall, keeps its last one: else a source
        with a bias that was outvoted by it would take over.
        """
        found = self._members[index].estimate() or self._newest[index]
        if found is None:
            return None
        if found != self._newest[index]:
            self._newest[index], self._ways[index] = found, 0.0
        age = AGES * math.sqrt(self._ways[index])
        return replace(found, sigma=math.hypot(found.sigma, age, self._sources[index].bias))

    def _choose(self, said: Mapping[int, Estimate]) -> tuple[int, ...]:
        """Returns the members that count: the most that agree."""
        for count in range(len(said), 1, -1):
            chance = {
                group: p for group in combinations(said, count)
                if (p := agreement([said[i] for i in group]))
                > (AGREES if self._out.keys() & group else DISAGREES)
            }  # fmt: skip
            if chance and (2 * count > len(said)):
                return max(chance, key=chance.__getitem__)
        last = self._last
        return (
            min(said, key=lambda i: said[i].sigma if last is None else abs(said[i].log - last)),
        )

    def _note(self, said: Mapping[int, Estimate], chosen: Sequence[int]) -> None:
        """Notes what each member is to the estimate, and reports changes."""
        outvoted = 2 * len(chosen) > len(said)
        out = {i: outvoted for i in said if i not in chosen}
        for text in self._changes(said, chosen, out):
            self._report(text)
        self._out = out
        self.states = tuple(
            MemberState(name, self._state(i, said, chosen), said.get(i))
            for i, name in enumerate(self._names)
        )
        counting = [s.name for s in self.states if s.state == "counts"]
        self.counted = PLUS.join(counting or [self._names[i] for i in chosen])

    def _state(self, index: int, said: Mapping[int, Estimate], chosen: Sequence[int]) -> str:
        if index not in said:
            return "unknown"
        if index not in chosen:
            return "left out"
        return "silent" if self._ways[index] > SILENT else "counts"

    def _changes(
        self, said: Mapping[int, Estimate], chosen: Sequence[int], out: Mapping[int, bool]
    ) -> Iterator[str]:
        """Yields what is new about the members that disagree, a line each."""
        others = " and ".join(self._names[i] for i in chosen)
        for i, outvoted in out.items():
            if self._out.get(i) in (outvoted, True):
                continue
            apart = abs(math.expm1(said[i].log - combined([said[k] for k in chosen]).log))
            text = f"{self._names[i]} differs by {100 * apart:.0f} % from {others}"
            yield text + (
                " and is left out" if outvoted
                else ", and nothing tells which is wrong: the scale is that uncertain"
            )  # fmt: skip
        yield from (
            f"{self._names[i]} agrees again" for i in self._out if i in said and i not in out
        )


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """Returns the most certain estimate by several of one chain, which share the chain's drift.

    Where they differ by more than they state, it is less certain by as much.
    """
    logs, covariance = _joint(estimates)
    weights = np.linalg.solve(covariance, np.ones(len(logs)))
    mean = float(weights @ logs / weights.sum())
    excess = max(1.0, _square(logs - mean, covariance) / max(1, len(logs) - 1))
    shared = min(e.shared for e in estimates)
    return Estimate(mean, math.sqrt(excess / float(weights.sum())), shared)


def agreement(estimates: Sequence[Estimate]) -> float:
    """Returns the probability that estimates of one value differ as much as these; 1 for
    differences that are too small to matter."""
    logs, covariance = _joint(estimates)
    if np.ptp(logs) <= AGREEMENT:
        return 1.0
    weights = np.linalg.solve(covariance, np.ones(len(logs)))
    rest = logs - float(weights @ logs / weights.sum())
    return float(chdtrc(len(logs) - 1, _square(rest, covariance)))


def _joint(estimates: Sequence[Estimate]) -> tuple[Array, Array]:
    """Returns logarithms [N] and their covariance [N, N].

    The drift of the unit is a random walk: two sources share that since the later one of the times
    that they look back to.
    """
    variances = np.square([e.sigma for e in estimates])
    stated = np.square([e.shared for e in estimates])
    shared = np.clip(stated, LEAST_SHARED * variances, MOST_SHARED * variances)
    covariance = np.minimum.outer(shared, shared)
    np.fill_diagonal(covariance, variances)
    return np.array([e.log for e in estimates]), covariance


def _square(rest: Array, covariance: Array) -> float:
    return float(rest @ np.linalg.solve(covariance, rest))
