"""Workers on Ray: processes of this machine, or of a cluster. The only module that imports Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from da3_ros import __version__
from da3_ros.config import NodeConfig
from da3_ros.fleet.jobs import FleetError, Job
from da3_ros.fleet.pool import Died, Event, Finished, NotOpened, Opened, Pool, WorkerLostError
from da3_ros.fleet.signals import signals_held
from da3_ros.fleet.worker import FleetWorker, locked
from da3_ros.merging.merge import MergeSummary
from da3_ros.replay.results import ReplayOptions

log = logging.getLogger(__name__)

MISSING = "`da3_ros fleet` needs Ray: pip install 'da3_ros[fleet]'"
LOOPBACK = "127.0.0.1"
OBJECT_STORE = 80 * 2**20  # bytes, near Ray's least: only paths and numbers are passed
LONGEST_TEMP = 30  # characters of a folder below which Ray can still name its sockets
TEMP_PREFIX = "da3_fleet_"
TOKEN, TOKEN_PATH, AUTHENTICATION = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"
NICENESS = "RAY_worker_niceness"
USUAL_TOKEN = "~/.ray/auth_token"
LOCKED_AFTER_S = 60.0  # a folder just made may not be locked yet
CONNECT_S = 10.0
SETTINGS = bytes(
    (0, 0, 0, 4, 0, 0, 0, 0, 0)
)  # an empty frame of HTTP/2; both sides send one first
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
NO_ANSWER = "what listens there is none; the port is that of `ray start --head`, 6379 unless set"
MOMENT_S = 1.0  # how long an interruption may wait
USUAL_CPUS = 4  # of a task without a GPU: beyond, threads of one task wait for each other


@dataclass(frozen=True)
class Resources:
    """What one worker takes of its machine."""

    cpus: int
    gpus: float
    share: float  # of the device's free memory


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yields the module ``ray``, connected to the cluster at ``address``; None: processes of this
    machine, which listen on the loopback interface only and end with this context.

    Raises FleetError.
    """
    ray = _import_ray(local=address is None)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    with contextlib.ExitStack() as stack:
        if address is None:
            folder = stack.enter_context(_temporary_folder())
            where = {
                "address": "local", "include_dashboard": False, "_temp_dir": str(folder),
                "_node_ip_address": LOOPBACK, "object_store_memory": OBJECT_STORE,
            }  # fmt: skip
        else:
            _check_address(address)
            where = {"address": address}
        stack.callback(_shut_down, ray)
        try:
            with signals_held(), _signal_handlers_kept(ray):
                ray.init(**where, **quiet)
        except Exception as error:  # of Ray, which has no common type for this
            why = _first_line(error)
            if address is None:
                raise FleetError(f"Ray cannot start: {why}") from error
            raise FleetError(
                f"the Ray cluster at {address} cannot be used: {why}; if it asks for a token, "
                f"copy {USUAL_TOKEN} of its head to this machine, or set {TOKEN}"
            ) from error
        if address is None:
            _check_loopback(ray)
        yield ray


def _shut_down(ray: Any) -> None:
    """Ends Ray; its processes would go on if a second signal interrupted that."""
    with signals_held():
        ray.shutdown()


def _import_ray(*, local: bool) -> Any:
    """Imports Ray without its usage reports. Raises FleetError if it is missing."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Else Ray's workers are nicer than all other processes (15), and get next to nothing of a core
    # beside one of them. A cluster's machines have this from `ray start`.
    os.environ.setdefault(NICENESS, "0")
    if local:
        # Where Ray is for one machine only, it listens on the loopback interface. It has that
        # mode for macOS and Windows; this variable, read at its import, selects it here.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        # Else Ray writes a token into the home folder, and clusters started later ask for it.
        os.environ[AUTHENTICATION], os.environ[TOKEN] = "token", secrets.token_hex(32)
    elif AUTHENTICATION not in os.environ and _has_token():
        # As `ray start` does; `ray.init` with an address does not.
        os.environ[AUTHENTICATION] = "token"
    try:
        import ray
    except ImportError as error:
        raise FleetError(MISSING) from error
    return ray


def _has_token() -> bool:
    """Returns whether this user has a token for clusters."""
    file = Path(os.environ.get(TOKEN_PATH, USUAL_TOKEN)).expanduser()
    return bool(os.environ.get(TOKEN)) or file.is_file()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yields a folder for Ray's sockets and logs, and removes it, and those of killed fleets."""
    usual = tempfile.gettempdir()
    parent = Path(usual if len(usual) <= LONGEST_TEMP else "/tmp")
    for old in parent.glob(f"{TEMP_PREFIX}*"):
        _remove_unused(old)
    folder = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX, dir=parent))
    try:
        with locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unused(folder: Path) -> None:
    """Removes a temporary folder of this user in which no fleet works."""
    with contextlib.suppress(FleetError, OSError):
        age_s = time.time() - folder.stat().st_mtime
        if folder.is_symlink() or folder.stat().st_uid != os.getuid() or age_s < LOCKED_AFTER_S:
            return
        with locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _check_address(address: str) -> None:
    """Raises FleetError if no server of HTTP/2 listens at HOST:PORT, which a Ray cluster has: Ray
    itself tries for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise FleetError(f"--address {address}: give HOST:PORT of a Ray cluster, or auto")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connection:
            connection.settimeout(CONNECT_S)
            connection.sendall(GREETING)
            answer = b""
            while len(answer) < len(SETTINGS) and (more := connection.recv(64)):
                answer += more
    except TimeoutError as error:
        raise FleetError(f"no Ray cluster at {address}: {NO_ANSWER}") from error
    except (OSError, OverflowError) as error:
        raise FleetError(f"no Ray cluster at {address}: {error}") from error
    if len(answer) < len(SETTINGS) or answer[3] != SETTINGS[3]:
        raise FleetError(f"no Ray cluster at {address}: {NO_ANSWER}")


@contextlib.contextmanager
def _signal_handlers_kept(ray: Any) -> Iterator[None]:
    """Keeps signal handlers that Ray replaces: its own ends the program on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ray sets none either
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    utils = ray._private.utils
    theirs = getattr(utils, "set_sigterm_handler", None)
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        if theirs is not None:
            utils.set_sigterm_handler = theirs
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _check_loopback(ray: Any) -> None:
    """Raises FleetError if Ray listens to other machines although no cluster was asked for."""
    others = [n["NodeManagerAddress"] for n in _nodes(ray) if n["NodeManagerAddress"] != LOOPBACK]
    if others:
        raise FleetError(
            f"Ray would listen on {others[0]}, not on this machine only: import nothing of Ray "
            "before, or start a cluster yourself and name it with --address"
        )


def resources_for(
    ray: Any, settings: NodeConfig, gpus: float | None, cpus: int | None
) -> Resources:
    """Returns what one worker takes; None selects by the machines.

    gpus None: one where there are any, unless ``device`` is another. cpus None: with a GPU the
    cores of a machine over its GPUs, without one 4. Raises FleetError.
    """
    # The head of a cluster may have no cores for others.
    machines = [m for m in _machines(ray) if m.get("CPU", 0.0) >= 1]
    if not machines:
        raise FleetError("no machine of the cluster has cores: see `ray status`")
    device = settings.pipeline.inference.device
    cards = max(m.get("GPU", 0.0) for m in machines)
    if gpus is None:
        gpus = 1.0 if cards and device not in ("cpu", "mps") else 0.0
    if gpus and ":" in device:
        raise FleetError(f"device {device}: each worker sees its own card only; set it to cuda")
    fit = [m for m in machines if m.get("GPU", 0.0) >= gpus] or machines
    cores = [int(m["CPU"]) for m in fit]
    if cpus is None:
        if gpus:
            shares = (int(m["CPU"] / (m["GPU"] / gpus)) for m in fit if m.get("GPU"))
            cpus = max(1, min(shares, default=min(cores)))
        else:
            cpus = min(USUAL_CPUS, max(cores))
    # The largest machine holds most workers.
    share = min(1.0, gpus) if gpus else min(1.0, cpus / max(cores))
    found = Resources(cpus, gpus, share)
    if not any(_room(m, found) for m in machines):
        had = ", ".join(f"{m['CPU']:g} cores and {m.get('GPU', 0):g} GPUs" for m in machines)
        raise FleetError(
            f"no machine has the {cpus} cores and {gpus:g} GPUs of one worker, but {had}: lower "
            "--cpus-per-task or --gpus-per-task"
        )
    return found


def _machines(ray: Any) -> list[dict[str, float]]:
    """Returns what each machine has."""
    return [node["Resources"] for node in _nodes(ray) if node["Alive"]]


@signals_held()
def _nodes(ray: Any) -> list[dict[str, Any]]:
    """Returns what Ray knows of each machine."""
    return list(ray.nodes())


def _room(machine: dict[str, float], one: Resources) -> int:
    """Returns how many workers a machine can hold."""
    by_cpu = machine.get("CPU", 0.0) // one.cpus
    return int(min(by_cpu, machine.get("GPU", 0.0) // one.gpus) if one.gpus else by_cpu)


class RayPool(Pool):
    """Workers as Ray's actors, each with its cores and cards.

    Every call into Ray is short, and signals wait for its end.
    """

    @signals_held()
    def __init__(
        self, ray: Any, settings: NodeConfig, options: ReplayOptions, one: Resources
    ) -> None:
        """options: what all replays share; ``output`` is the fleet's. one: what a worker takes."""
        self._ray, self._one = ray, one
        self._arguments = (ray.put(settings), ray.put(options))
        # A second thread answers `progress`.
        self._actor = ray.remote(
            num_cpus=one.cpus, num_gpus=one.gpus, max_concurrency=2, max_restarts=0
        )(FleetWorker)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, tuple[int, str]] = {}  # by reference: worker, and which call
        self._asked: dict[int, Any] = {}  # the call of `progress` that was not answered yet
        self._progress: dict[int, tuple[int, int]] = {}
        self._count = 0

    def capacity(self) -> int:
        return sum(_room(machine, self._one) for machine in _machines(self._ray))

    @signals_held()
    def start(self) -> int:
        number, self._count = self._count, self._count + 1
        settings, options = self._arguments
        actor = self._actor.remote(number, settings, options, self._one.share)
        self._actors[number] = actor
        self._pending[actor.open.remote(__version__)] = (number, "open")
        return number

    @signals_held()
    def stop(self, worker: int) -> None:
        self._ray.kill(self._actors.pop(worker), no_restart=True)
        self._forget(worker)

    @signals_held()
    def run(self, worker: int, job: Job, attempt: int) -> None:
        self._progress[worker] = (0, 0)
        self._pending[self._actors[worker].run.remote(job, attempt)] = (worker, "run")

    def merge(self, worker: int, scenes: Sequence[Path], folder: Path) -> MergeSummary:
        """As ``FleetWorker.merge``. Raises FleetError; WorkerLostError if the worker is gone."""
        with signals_held():
            reference = self._actors[worker].merge.remote(scenes, folder)
        while not self._has_answer(reference):
            pass
        return self._merged(reference)

    @signals_held()
    def _has_answer(self, reference: Any) -> bool:
        """Waits for the answer of a call for a moment."""
        return bool(self._ray.wait([reference], timeout=MOMENT_S)[0])

    @signals_held()
    def _merged(self, reference: Any) -> MergeSummary:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            raise WorkerLostError(_reason(error)) from error
        except Exception as error:
            raise FleetError(_reason(error)) from error

    def wait(self, timeout_s: float) -> list[Event]:
        if not self._pending:  # which Ray refuses to wait for
            time.sleep(timeout_s)
            return []
        with signals_held():
            ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=timeout_s)
            return [self._event(reference) for reference in ready]

    @signals_held()
    def progress(self) -> dict[int, tuple[int, int]]:
        for worker, actor in self._actors.items():
            asked = self._asked.get(worker)
            if asked is not None and not self._ray.wait([asked], timeout=0)[0]:
                continue
            if asked is not None:
                with contextlib.suppress(self._ray.exceptions.RayError):  # `wait` tells of it
                    self._progress[worker] = self._ray.get(asked)
            self._asked[worker] = actor.progress.remote()
        return dict(self._progress)

    def _event(self, reference: Any) -> Event:
        worker, call = self._pending.pop(reference)
        try:
            answer = self._ray.get(reference)
        except Exception as error:  # what the worker raised, or that it is gone
            self._actors.pop(worker, None)
            self._forget(worker)
            reason = _reason(error)
            return (NotOpened if call == "open" else Died)(worker, reason)
        return Opened(worker, answer) if call == "open" else Finished(worker, answer)

    def _forget(self, worker: int) -> None:
        for known in (self._asked, self._progress):
            known.pop(worker, None)
        self._pending = {r: of for r, of in self._pending.items() if of[0] != worker}


def _reason(error: BaseException) -> str:
    """Returns what a worker raised, or why it is gone, as one line."""
    return _first_line(getattr(error, "cause", None) or error)


def _first_line(error: BaseException) -> str:
    """Returns an error's first line; Ray adds many about its own processes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
