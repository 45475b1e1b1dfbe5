"""What the dispatcher needs of workers, however they are started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from da3_ros.fleet.jobs import FleetError, Job
from da3_ros.fleet.worker import Outcome, WorkerInfo


class WorkerLostError(FleetError):
    """A worker is gone."""


@dataclass(frozen=True)
class Opened:
    """A worker is ready."""

    worker: int
    info: WorkerInfo


@dataclass(frozen=True)
class NotOpened:
    """A worker could not load the networks; it is gone."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Finished:
    """A worker has ended a recording."""

    worker: int
    outcome: Outcome


@dataclass(frozen=True)
class Died:
    """A worker was killed, or its machine is gone, while it had a recording."""

    worker: int
    reason: str


Event = Opened | NotOpened | Finished | Died


class Pool(ABC):
    """Starts, asks and stops workers, which are known by their numbers."""

    @abstractmethod
    def capacity(self) -> int:
        """The number of workers for which there is room on all machines now."""

    @abstractmethod
    def start(self) -> int:
        """Starts another worker; an event tells when it is open."""

    @abstractmethod
    def stop(self, worker: int) -> None:
        """Stops a worker; what it does is lost, and no event tells of it."""

    @abstractmethod
    def run(self, worker: int, job: Job, attempt: int) -> None:
        """Gives a recording to an idle worker; an event tells what became of it."""

    @abstractmethod
    def wait(self, timeout_s: float) -> list[Event]:
        """Returns what has happened; waits for it at most that long."""

    @abstractmethod
    def progress(self) -> dict[int, tuple[int, int]]:
        """Frames read, and all frames, of the recordings that workers have; never waits."""
