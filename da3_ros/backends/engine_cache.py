"""A folder of engines on disk, which several processes may share.

An engine is a subfolder named by the hash of what it depends on. It is written under another name
and then renamed, so it is never seen half-written; a process that finds it there already discards
its own. Files are checked by hash before use.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from da3_ros.backends.engine_folder import FORMAT, GOLDEN, MANIFEST, sha256

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**30  # of all engines; those used longest ago go first
AUTO = "auto"  # as parameter `cache_dir`: the user's cache folder
UNFINISHED = "da3_ros-building-"
ENGINE, UNFINISHED_ENGINE = re.compile("[0-9a-f]{32}"), re.compile(rf"{UNFINISHED}\w{{8}}")
PARTS = {"encode", "window", "head", "image"}  # see network_parts
SUFFIXES = (".xml", ".bin", ".npz", ".json")  # of all files in an engine
# Least age of an unfinished engine that is removed because its process has ended; and where
# that cannot be known.
ABANDONED_S, ABANDONED_UNKNOWN_S = 60.0, 86400.0


def cache_folder(cache_dir: str) -> Path | None:
    """The folder for parameter `cache_dir`: ``auto``, a path, or "" for none (None)."""
    if not cache_dir:
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = base if os.path.isabs(base) else "~/.cache"
    path = Path(root, "da3_ros", "engines") if cache_dir == AUTO else Path(cache_dir)
    try:
        return path.expanduser()
    except RuntimeError:  # a service without HOME whose user is not in the user database
        log.warning("no home folder: engines are not kept; set cache_dir to a folder")
        return None


def engine_key(facts: Mapping[str, Any]) -> str:
    """The name of an engine with these facts (JSON values)."""
    text = json.dumps(dict(facts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class EngineCache:
    """Finds and keeps engines in ``folder``; None: keeps none. Thread-safe."""

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self._most_bytes = folder, most_bytes

    def find(self, facts: Mapping[str, Any]) -> Path | None:
        """The folder of an intact engine with these facts; a damaged one is removed."""
        if self.folder is None:
            return None
        path = self.folder / engine_key(facts)
        if not path.is_dir():
            return None
        fault = _fault(path, facts)
        if fault:
            log.warning("engine %s %s: it is built again", path, fault)
            _discard(path)
            return None
        with _ignoring_errors():
            os.utime(path)  # used now
        return path

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """An empty folder for a new engine; removed at the end unless ``keep`` has moved it."""
        path = self._make_folder()
        _remove_abandoned(path.parent)
        with _locked(path):
            try:
                yield path
            finally:
                _discard(path)

    def _make_folder(self) -> Path:
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                return Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.folder))
            except OSError as error:
                why = error.strerror or error
                log.warning("cache_dir %s: %s; engines are not kept", self.folder, why)
        return Path(tempfile.mkdtemp(prefix=UNFINISHED))

    def keep(self, path: Path, facts: Mapping[str, Any]) -> Path:
        """Move a new engine into the cache; returns where it is now."""
        if self.folder is None or path.parent != self.folder:
            return path
        target = self.folder / engine_key(facts)
        try:
            # Temporary folders are for one user; a cache may be shared, as in a container's image.
            path.chmod(self.folder.stat().st_mode & 0o777)
            path.rename(target)
        except OSError:  # another process was faster, or a damaged engine cannot be removed
            return path if _fault(target, facts) else target
        self._make_room(target)
        return target

    def _make_room(self, newest: Path) -> None:
        """Remove the engines that were used longest ago."""
        assert self.folder is not None
        sizes: dict[Path, int] = {}
        with _ignoring_errors():
            engines = [path for path in self.folder.iterdir() if ENGINE.fullmatch(path.name)]
            ours = [path for path in engines if _is_ours(path)]
            for path in sorted(ours, key=lambda p: p.stat().st_mtime):
                sizes[path] = sum(f.stat().st_size for f in path.iterdir())
        for path in list(sizes):
            if sum(sizes.values()) <= self._most_bytes:
                return
            if path != newest:
                del sizes[path]
                _discard(path)


def _is_ours(path: Path) -> bool:
    """Whether a folder holds nothing but an engine: users may keep their own files there."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(f.suffix in SUFFIXES and f.is_file() for f in path.iterdir())


def _remove_abandoned(folder: Path) -> None:
    """Remove the unfinished engines of killed processes."""
    with _ignoring_errors():
        for path in folder.glob(f"{UNFINISHED}*"):
            ours = UNFINISHED_ENGINE.fullmatch(path.name) and _is_ours(path)
            if ours and _is_abandoned(path):
                _discard(path)


def _is_abandoned(path: Path) -> bool:
    """Whether the process that built this engine has ended."""
    age = time.time() - path.stat().st_mtime
    if age < ABANDONED_S:  # perhaps not locked yet
        return False
    try:
        with _locked(path) as known:
            return known or age > ABANDONED_UNKNOWN_S
    except BlockingIOError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Lock a folder for this process; the system unlocks it however the process ends.

    Yields False if this file system has no locks. Raises BlockingIOError if it is locked.
    """
    if fcntl is None:
        yield False
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        yield _lock(handle)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        log.debug("no locks here: %s", error)
        return False
    return True


def _fault(path: Path, facts: Mapping[str, Any]) -> str:
    """Why the engine in ``path`` cannot be used; "" if it can."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != FORMAT or any(manifest[k] != v for k, v in facts.items()):
            return "is of another version"
        files = {str(name): str(digest) for name, digest in manifest["files"].items()}
        parts = set(manifest["parts"])
        expected = {GOLDEN} | {f"{part}{end}" for part in parts for end in (".xml", ".bin")}
        if not parts <= PARTS or set(files) != expected:
            return "holds other files than an engine"
        damaged = [n for n, digest in files.items() if sha256(path / Path(n).name) != digest]
    except Exception as error:  # of any kind, as of JSON nested without end
        return f"cannot be read ({type(error).__name__})"
    return f"is damaged ({damaged[0]})" if damaged else ""


@contextmanager
def _ignoring_errors() -> Iterator[None]:
    """Another process may remove what this one looks at."""
    try:
        yield
    except OSError as error:
        log.debug("%s", error)


def _discard(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
