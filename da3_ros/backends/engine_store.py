"""Provides engines for the image sizes of a session: from the cache, or built beside it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from da3_ros.backends.engine_cache import EngineCache
from da3_ros.backends.interface import Backend
from da3_ros.backends.openvino_engine import EngineError
from da3_ros.backends.openvino_import import OpenVinoMissingError

log = logging.getLogger(__name__)

MOST_SIZES = 4  # image sizes with an engine in memory; the one used longest ago is dropped
END_S = 10.0  # longest wait for an engine that is being loaded
# `sys` is built in: nothing is imported before the path is set.
START = """import sys
sys.path[:] = sys.argv.pop(1).split(chr(10))
from da3_ros.backends.engine_builder import main
raise SystemExit(main())"""


@dataclass
class _Job:
    """The engine of one image size; ``done`` is set when ``backend`` or ``fault`` is."""

    done: threading.Event = field(default_factory=threading.Event)
    backend: Backend | None = None
    fault: str = ""


class EngineStore:
    """Owns the engines of a network, by image size. One thread calls it.

    Each engine is prepared by a thread. ``wait``: ``get`` blocks until the engine is there;
    otherwise it returns None meanwhile.
    """

    def __init__(self, source: EngineSource, *, wait: bool) -> None:
        self._source, self._wait = source, wait
        self._jobs: OrderedDict[tuple[int, int], _Job] = OrderedDict()
        weakref.finalize(self, source.end)  # threads hold the source, and not the store

    def prepare(self, size: tuple[int, int]) -> None:
        """Start preparing the engine for images of ``size`` (H, W), if that has not begun."""
        if size in self._jobs:
            self._jobs.move_to_end(size)
            return
        if len(self._jobs) >= MOST_SIZES:
            self._jobs.popitem(last=False)
        job = self._jobs[size] = _Job()
        self._source.start(lambda source: _work(source, size, job))

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
        self._children: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[EngineSource], None]) -> None:
        """Run ``work`` in a thread."""
        thread = threading.Thread(target=work, args=(self,), name="engine", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def open(self, size: tuple[int, int]) -> Backend:
        """The backend for images of ``size`` (H, W). Raises EngineError or OSError."""
        facts = self._facts | {"size": list(size)}
        path = self._cache.find(facts)
        if path is not None:
            try:
                return self._open(path)
            except EngineError as error:
                self._cache.remove(path, f"cannot be used ({error})")
        return self._build(size, facts)

    def end(self) -> None:
        """Stop building, at the end of the session.

        Waits for an engine that is just being loaded: a process that ends meanwhile would abort.
        """
        self.ended = True
        for child in list(self._children):
            child.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(END_S)

    def _build(self, size: tuple[int, int], facts: dict[str, Any]) -> Backend:
        begun, kept = time.monotonic(), self._cache.folder is not None
        log.info(
            "building the OpenVINO engine of %s for %d x %d pixels, %s", self.model,
            size[1], size[0], "once" if kept else "at every start: cache_dir is empty",
        )  # fmt: skip
        with self._cache.new_folder() as folder:
            self._run_builder(size, folder, facts)
            backend = self._open(self._cache.keep(folder, facts))
        log.info("the engine is ready after %.0f s", time.monotonic() - begun)
        return backend

    def _run_builder(self, size: tuple[int, int], folder: Path, facts: dict[str, Any]) -> None:
        arguments = [self.model, self._checkpoint, *map(str, size), str(folder)]
        path = "\n".join(sys.path)  # ours alone: `-m` would import from the working directory
        command = [sys.executable, "-c", START, path, *arguments, json.dumps(facts)]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self._children.append(child)
        if self.ended:
            child.kill()
        _, errors = child.communicate()
        self._children.remove(child)
        if child.returncode:
            lines = errors.strip().splitlines() or [f"exit code {child.returncode}"]
            raise EngineError(f"the engine cannot be built ({lines[-1]})")


def _work(source: EngineSource, size: tuple[int, int], job: _Job) -> None:
    """Thread: prepare one engine."""
    try:
        job.backend = source.open(size)
    except (EngineError, OpenVinoMissingError, OSError) as error:
        job.fault = " ".join(str(error).split())
    except Exception as error:  # of any kind: torch runs instead
        job.fault = f"{type(error).__name__}: {error}"
        log.debug("preparing an engine failed", exc_info=True)
    finally:
        if job.fault and not source.ended:
            log.warning("%s runs on torch: %s", source.model, job.fault)
        job.done.set()
