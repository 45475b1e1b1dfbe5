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

from da3_ros.backends.engine_folder import FORMAT, GOLDEN, MANIFEST, sha256

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**30  # of all engines; those used longest ago go first
AUTO = "auto"  # as parameter `cache_dir`: the user's cache folder
UNFINISHED = "building-"
OURS = re.compile(rf"[0-9a-f]{{32}}|{UNFINISHED}\w{{8}}")  # names of engines
PARTS = {"encode", "window", "head", "image"}  # see network_parts
SUFFIXES = (".xml", ".bin", ".npz", ".json")  # of all files in an engine
ABANDONED_S = 3600.0  # age of an unfinished engine whose builder was killed


def cache_folder(cache_dir: str) -> Path | None:
    """The folder for parameter `cache_dir`: ``auto``, a path, or "" for none (None)."""
    if not cache_dir:
        return None
    if cache_dir != AUTO:
        return Path(cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return root / "da3_ros" / "engines"


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
            self.remove(path, fault)
            return None
        with _ignoring_errors():
            os.utime(path)  # used now
        return path

    def remove(self, path: Path, why: str) -> None:
        """Remove an engine of this cache that cannot be used, with one line in the log."""
        log.warning("engine %s %s: it is built again", path, why)
        _discard(path)

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """An empty folder for a new engine; removed at the end unless ``keep`` has moved it."""
        root = self.folder
        try:
            if root is not None:
                root.mkdir(parents=True, exist_ok=True)
            path = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
        except OSError as error:
            if root is None:
                raise
            log.warning("cache_dir %s: %s; engines are not kept", root, error)
            path = Path(tempfile.mkdtemp(prefix=UNFINISHED))
        try:
            yield path
        finally:
            _discard(path)

    def keep(self, path: Path, facts: Mapping[str, Any]) -> Path:
        """Move a new engine into the cache; returns where it is now."""
        if self.folder is None or path.parent != self.folder:
            return path
        target = self.folder / engine_key(facts)
        try:
            path.rename(target)
        except OSError:  # another process was faster, or a damaged engine cannot be removed
            return path if _fault(target, facts) else target
        self._make_room(target)
        return target

    def _make_room(self, newest: Path) -> None:
        """Remove the engines that were used longest ago, and what dead processes left."""
        assert self.folder is not None
        sizes: dict[Path, int] = {}
        oldest = time.time() - ABANDONED_S
        with _ignoring_errors():
            ours = [path for path in self.folder.iterdir() if _is_ours(path)]
            for path in sorted(ours, key=lambda p: p.stat().st_mtime):
                if not path.name.startswith(UNFINISHED):
                    sizes[path] = sum(f.stat().st_size for f in path.iterdir())
                elif path.stat().st_mtime < oldest:
                    _discard(path)
        for path in list(sizes):
            if sum(sizes.values()) <= self._most_bytes:
                return
            if path != newest:
                del sizes[path]
                _discard(path)


def _is_ours(path: Path) -> bool:
    """Whether a folder of the cache is an engine: users may keep their own files there."""
    if path.is_symlink() or not path.is_dir() or not OURS.fullmatch(path.name):
        return False
    return all(f.suffix in SUFFIXES and f.is_file() for f in path.iterdir())


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
