"""Provides engines for the image sizes of a session: from the cache, or built beside it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from da3_ros.backends.engine_cache import EngineCache
from da3_ros.backends.interface import Backend, Engines
from da3_ros.backends.openvino_engine import EngineError
from da3_ros.backends.openvino_import import OpenVinoMissingError

log = logging.getLogger(__name__)

END_S = 10.0  # longest wait for an engine that is being loaded
# A builder that takes longer hangs; da3-giant on a small computer takes minutes.
BUILD_S, POLL_S = 3600.0, 0.2
REMIND_S = 60.0  # between lines in the log while an engine is built
# `sys` is built in: nothing is imported before the path is set.
START = """import sys
sys.path[:] = sys.argv.pop(1).split(chr(10))
from da3_ros.backends.child_process import end_with
end_with(int(sys.argv.pop(1)))
from da3_ros.backends.engine_builder import main
raise SystemExit(main())"""


@dataclass
class _EngineJob:
    """The engine of one image size; ``done`` is set when ``backend`` or ``fault`` is."""

    build: bool  # if it is not in the cache
    wanted: bool = True
    done: threading.Event = field(default_factory=threading.Event)
    backend: Backend | None = None
    fault: str = ""


class EngineStore(Engines):
    """Owns the engines of a network, by image size. One thread calls it.

    Each engine is prepared by a thread, one after another. ``wait``: ``get`` blocks until the
    engine is there; otherwise it returns None meanwhile. ``most_sizes``: number of engines in
    memory; the one used longest ago is dropped.
    """

    def __init__(self, source: EngineSource, *, wait: bool, most_sizes: int = 1) -> None:
        self._source, self._wait, self._most_sizes = source, wait, most_sizes
        self._jobs: OrderedDict[tuple[int, int], _EngineJob] = OrderedDict()
        self._given_up = False  # whether an engine was dropped before it was ready: warned once
        weakref.finalize(self, source.end)  # threads hold the source, and not the store

    @property
    def preparing(self) -> bool:
        """Whether an engine is being prepared."""
        return not all(job.done.is_set() for job in self._jobs.values())

    def prepare(self, size: tuple[int, int], *, build: bool = True) -> None:
        """Start preparing the engine for images of ``size`` (H, W), if that has not begun.

        build: False takes it from the cache only.
        """
        job = self._jobs.get(size)
        if job is not None:
            self._jobs.move_to_end(size)
            missing = job.done.is_set() and not (job.backend or job.fault or job.build)
            job.build |= build
            if not (missing and build):
                return
        elif len(self._jobs) >= self._most_sizes:
            self._drop(next(iter(self._jobs)))
        job = self._jobs[size] = _EngineJob(build)
        self._source.start(lambda source: _work(source, size, job))

    def keep_only(self, sizes: Collection[tuple[int, int]]) -> bool:
        """Drop the engines of all other sizes; returns whether there were any."""
        others = [size for size in self._jobs if size not in sizes]
        for size in others:
            self._drop(size)
        return bool(others)

    def get(self, size: tuple[int, int]) -> Backend | None:
        """The backend for images of ``size``; None: not prepared, not ready, or failed."""
        job = self._jobs.get(size)
        if job is None:
            return None
        if self._wait:
            job.done.wait()
        return job.backend

    def fault(self, size: tuple[int, int]) -> str:
        """Why there is no engine for this size; "" if there is one, or none was prepared."""
        job = self._jobs.get(size)
        return job.fault if job is not None else ""

    def _drop(self, size: tuple[int, int]) -> None:
        job = self._jobs.pop(size)
        job.wanted = False
        if not self._given_up and not job.done.is_set():
            self._given_up = True
            log.warning(
                "the engine for %d x %d pixels is given up before it is ready: images have other "
                "sizes now, or memory_budget_gb is too small", size[1], size[0],
            )  # fmt: skip


class EngineSource:
    """Finds engines of one network in the cache, or builds them in a process of their own."""

    def __init__(
        self,
        model: str,
        checkpoint: str,
        facts: Mapping[str, Any],
        cache: EngineCache,
        open_engine: Callable[[Path], Backend],
    ) -> None:
        """``facts``: what an engine depends on besides its size.

        ``open_engine``: makes a checked backend of an engine's folder; raises EngineError.
        """
        self.model, self.ended = model, False
        self._checkpoint, self._facts = checkpoint, dict(facts)
        self._cache, self._open = cache, open_engine
        self._child: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []
        self._turn = threading.Lock()  # one engine at a time: each takes memory and a processor

    def start(self, work: Callable[[EngineSource], None]) -> None:
        """Run ``work`` in a thread."""
        thread = threading.Thread(target=work, args=(self,), name="engine", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def open(
        self, size: tuple[int, int], build: Callable[[], bool], wanted: Callable[[], bool]
    ) -> Backend | None:
        """The backend for images of ``size`` (H, W); None: not in the cache, and not to build.

        An engine in the cache whose files are intact is never built again: building has the same
        result. ``wanted`` False ends the work. Raises EngineError or OSError.
        """
        with self._turn:
            if self.ended or not wanted():
                return None
            facts = self._facts | {"size": list(size)}
            path = self._cache.find(facts)
            if path is None:
                return self._build(size, facts, wanted) if build() else None
            try:
                return self._open(path)
            except EngineError as error:
                raise EngineError(f"{error}; delete {path} to build it again") from error

    def end(self) -> None:
        """Stop building, at the end of the session.

        Waits for an engine that is just being loaded: a process that ends meanwhile would abort.
        """
        self.ended = True
        child = self._child
        if child is not None:
            child.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(END_S)

    def _build(
        self, size: tuple[int, int], facts: dict[str, Any], wanted: Callable[[], bool]
    ) -> Backend:
        begun, kept = time.monotonic(), self._cache.folder is not None
        log.info(
            "building the OpenVINO engine of %s for %d x %d pixels, %s", self.model,
            size[1], size[0], "once" if kept else "at every start: cache_dir is empty",
        )  # fmt: skip
        with self._cache.new_folder() as folder:
            self._run_builder(size, folder, facts, wanted)
            backend = self._open(self._cache.keep(folder, facts))
        log.info("the engine is ready after %.0f s", time.monotonic() - begun)
        return backend

    def _run_builder(
        self,
        size: tuple[int, int],
        folder: Path,
        facts: dict[str, Any],
        wanted: Callable[[], bool],
    ) -> None:
        arguments = [self.model, self._checkpoint, *map(str, size), str(folder)]
        path = "\n".join(sys.path)  # ours alone: `-m` would import from the working directory
        command = [sys.executable, "-c", START, path, str(os.getpid()), *arguments]
        child = self._child = subprocess.Popen(
            [*command, json.dumps(facts)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        errors, fault = self._wait(child, wanted)
        self._child = None
        if child.returncode:
            lines = errors.strip().splitlines() or [f"exit code {child.returncode}"]
            raise EngineError(f"the engine cannot be built ({fault or lines[-1]})")

    def _wait(self, child: subprocess.Popen[str], wanted: Callable[[], bool]) -> tuple[str, str]:
        """What the builder wrote to stderr, and why it was ended before its time, or ""."""
        begun, fault = time.monotonic(), ""
        remind = begun + REMIND_S
        while True:
            try:
                return child.communicate(timeout=POLL_S)[1], fault
            except subprocess.TimeoutExpired:
                if self.ended or not wanted():
                    fault = "it is not needed any more"
                elif time.monotonic() > begun + BUILD_S:
                    fault = f"its process did not end within {BUILD_S:.0f} s"
                if fault:
                    child.kill()
                elif time.monotonic() > remind:
                    remind += REMIND_S
                    log.info("still building the engine after %.0f s", time.monotonic() - begun)


def _work(source: EngineSource, size: tuple[int, int], job: _EngineJob) -> None:
    """Thread: prepare one engine."""
    try:
        job.backend = source.open(size, lambda: job.build, lambda: job.wanted)
    except (EngineError, OpenVinoMissingError, OSError) as error:
        job.fault = " ".join(str(error).split())
    except Exception as error:  # of any kind: torch runs instead
        job.fault = f"{type(error).__name__}: {error}"
        log.debug("preparing an engine failed", exc_info=True)
    finally:
        if job.fault and job.wanted and not source.ended:
            log.warning("%s runs on torch: %s", source.model, job.fault)
        job.done.set()
