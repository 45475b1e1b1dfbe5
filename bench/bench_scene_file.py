#!/usr/bin/env python3
"""The present journal against SQLite as the file of a scene: cost, size, and what a crash leaves.

Usage: bench_scene_file.py [--keyframes N] [--bytes N] [--kills N] [--cuts N] [--out FILE]

Both store the same: per keyframe a description, data of random bytes, and the new poses of five
earlier frames, in one transaction. SQLite: write-ahead log, ``synchronous=NORMAL``, data in a
table beside the rows.

busy: a loop on another thread (as that of the network), share of its speed without a writer; on
two virtual cores it varies by more than it tells.
open_s: until all descriptions and the newest poses are in memory. kill: the writing process is
killed; cut: the file (SQLite: its log, then the database itself) ends at a random byte. Both give
the share of files that open, and the keyframes that are missing of those that were written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import results_file

from da3_ros.keyframe_store.journal import JournalReader, JournalWriter
from da3_ros.keyframe_store.store import POSE

MOVED = 5  # poses that change with each keyframe
SYNC_EVERY = 50  # keyframes between two waits for the disk; 2 s at most in a recorder
READ = 500  # keyframes that are read at random


class SceneFile(Protocol):
    """A file that keyframes are appended to."""

    path: Path

    def add(self, key: int, about: dict[str, Any], data: bytes, moved: np.ndarray) -> None:
        """Appends a keyframe and the new poses of earlier ones."""

    def sync(self) -> None:
        """Waits for the disk."""

    def close(self) -> None:
        """Closes the file."""


class Journal:
    """The journal of ``keyframe_store``."""

    NAME = "scene.da3k"

    def __init__(self, folder: Path) -> None:
        self.path = folder / self.NAME
        self._writer = JournalWriter(self.path)

    def add(self, key: int, about: dict[str, Any], data: bytes, moved: np.ndarray) -> None:
        """See SceneFile."""
        poses = {"kind": "poses", "cameras": [""]}, moved.tobytes()
        self._writer.append_all([poses, ({"kind": "keyframe", "key": key, **about}, data)])

    def sync(self) -> None:
        """See SceneFile."""
        self._writer.sync()

    def close(self) -> None:
        """See SceneFile."""
        self._writer.close()

    @staticmethod
    def load(path: Path) -> tuple[dict[int, Any], dict[int, bytes], Callable[[int], bytes]]:
        """Returns descriptions and newest poses by key, and a function that reads data."""
        reader = JournalReader(path)
        rows: dict[int, Any] = {}
        poses: dict[int, bytes] = {}
        for record in reader.records():
            if record.description["kind"] == "keyframe":
                rows[record.description["key"]] = record
            else:
                for row in np.frombuffer(reader.data(record), POSE):
                    poses[int(row["stamp_ns"])] = row.tobytes()
        return rows, poses, lambda key: reader.data(rows[key])


class Sqlite:
    """SQLite with a write-ahead log."""

    NAME = "scene.sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / self.NAME
        self._base = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._base.executescript(
            "pragma journal_mode=wal; pragma synchronous=normal;"
            "create table keyframe (key integer primary key, about text, pose blob);"
            "create table data (key integer primary key, value blob)"
        )

    def add(self, key: int, about: dict[str, Any], data: bytes, moved: np.ndarray) -> None:
        """See SceneFile."""
        run = self._base.execute
        run("begin")
        text = json.dumps(about)
        run("insert into keyframe values (?, ?, ?)", (key, text, moved[0].tobytes()))
        run("insert into data values (?, ?)", (key, data))
        self._base.executemany(
            "update keyframe set pose = ? where key = ?",
            [(row.tobytes(), int(row["stamp_ns"])) for row in moved],
        )
        run("commit")

    def sync(self) -> None:
        """See SceneFile."""
        self._base.execute("pragma wal_checkpoint(passive)")

    def close(self) -> None:
        """See SceneFile."""
        self._base.close()

    @staticmethod
    def load(path: Path) -> tuple[dict[int, Any], dict[int, bytes], Callable[[int], bytes]]:
        """As that of Journal."""
        base = sqlite3.connect(path)
        rows, poses = {}, {}
        for key, about, pose in base.execute("select key, about, pose from keyframe"):
            rows[key], poses[key] = json.loads(about), pose
        read = "select value from data where key = ?"
        return rows, poses, lambda key: base.execute(read, (key,)).fetchone()[0]


KINDS: dict[str, Any] = {"journal": Journal, "sqlite": Sqlite}


def keyframe(key: int, size: int) -> tuple[dict[str, Any], bytes, np.ndarray]:
    """Returns description, data and moved poses of a keyframe, the same for the same key."""
    rng = np.random.default_rng(key)
    about = {
        "stamp_ns": key, "camera": "", "image_size": [1280, 720], "inverse_depth": [0.1, 2.0],
        "bytes": {"image": size // 2, "depth": size // 3, "tracks": size // 6},
    }  # fmt: skip
    moved = np.zeros(MOVED, POSE)
    moved["stamp_ns"] = np.maximum(key - np.arange(MOVED), 0)
    return about, rng.bytes(size), moved


def busy_loop(end: threading.Event) -> float:
    """Returns the rounds per second of a Python loop until ``end``."""
    rounds, start = 0, time.perf_counter()
    while not end.is_set():
        sum(i * i for i in range(2000))
        rounds += 1
    return rounds / (time.perf_counter() - start)


def written(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Writes and reads a file; returns its figures."""
    file = KINDS[kind](folder)
    each, syncs = [], []
    for key in range(options.keyframes):
        about, data, moved = keyframe(key, options.bytes)
        start = time.perf_counter()
        file.add(key, about, data, moved)
        each.append(time.perf_counter() - start)
        if key % SYNC_EVERY == SYNC_EVERY - 1:
            start = time.perf_counter()
            file.sync()
            syncs.append(time.perf_counter() - start)
    file.close()
    size = sum(f.stat().st_size for f in folder.iterdir())
    start = time.perf_counter()
    rows, _, read = KINDS[kind].load(file.path)
    opened = time.perf_counter() - start
    assert len(rows) == options.keyframes
    start = time.perf_counter()
    for key in random.Random(0).choices(range(options.keyframes), k=READ):
        assert len(read(key)) == options.bytes
    reading = (time.perf_counter() - start) / READ
    return {
        "add_ms": 1e3 * float(np.median(each)), "add_p99_ms": 1e3 * float(np.quantile(each, 0.99)),
        "sync_ms": 1e3 * float(np.median(syncs or [np.nan])), "open_s": opened,
        "read_ms": 1e3 * reading, "overhead_bytes": size / options.keyframes - options.bytes,
    }  # fmt: skip


def busy(kind: str, folder: Path, options: argparse.Namespace) -> float:
    """Returns the speed of another thread beside a writer, as a share of its speed alone."""
    alone = threading.Event()
    threading.Timer(2.0, alone.set).start()
    free = busy_loop(alone)
    file, end = KINDS[kind](folder), threading.Event()
    frames = [keyframe(key, options.bytes) for key in range(100)]

    def write() -> None:
        until, key = time.perf_counter() + 4.0, 0
        while time.perf_counter() < until:
            about, data, moved = frames[key % len(frames)]
            file.add(key, about, data, moved)
            key += 1
            time.sleep(0.1)  # 10 keyframes per second
        end.set()

    thread = threading.Thread(target=write)
    thread.start()
    share = busy_loop(end) / free
    thread.join()
    file.close()
    return share


def killed(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Kills writing processes at random; returns what their files have."""
    whole, missing = 0, []
    for n in range(options.kills):
        place = folder / str(n)
        place.mkdir()
        command = [sys.executable, __file__, "--write", kind, str(place), str(options.bytes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            last, until = -1, None
            for line in process.stdout:
                last = int(line)
                until = until or time.monotonic() + random.Random(n).uniform(0.1, 0.6)
                if time.monotonic() > until:
                    process.send_signal(signal.SIGKILL)
                    break
            last = max([last, *(int(line) for line in process.stdout if line.strip())])
        kept = survivors(kind, place / KINDS[kind].NAME)
        whole += kept is not None
        missing.append(last + 1 - len(kept or ()))
        shutil.rmtree(place)
    return {"kills": options.kills, "open": whole / options.kills, "missing": max(missing)}


def cut(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Cuts copies of a file at random bytes; returns what these have, at worst."""
    count = 200
    file, ends = KINDS[kind](folder), []
    for key in range(count):
        file.add(key, *keyframe(key, options.bytes))
        ends.append(sum(f.stat().st_size for f in folder.iterdir() if "shm" not in f.name))
    found: dict[str, list[tuple[bool, int]]] = {}
    rng = random.Random(0)
    for n in range(options.cuts):
        copy = folder.parent / f"{kind}_cut_{n}"
        shutil.copytree(folder, copy)
        parts = sorted(f for f in copy.iterdir() if "shm" not in f.name and f.stat().st_size)
        part = parts[n % len(parts)]
        os.truncate(part, rng.randrange(part.stat().st_size))
        kept = survivors(kind, copy / file.path.name)
        found.setdefault(part.suffix, []).append((kept is not None, count - len(kept or ())))
        shutil.rmtree(copy)
    file.close()
    out: dict[str, float] = {}
    for suffix, rows in found.items():
        out[f"open {suffix}"] = float(np.mean([opened for opened, _ in rows]))
        out[f"kept {suffix}"] = 1 - float(np.mean([lost for _, lost in rows])) / count
    return out


def survivors(kind: str, path: Path) -> list[int] | None:
    """Returns the keyframes of a file whose data can be read; None if it cannot be opened."""
    try:
        rows, _, read = KINDS[kind].load(path)
        return [key for key in rows if read(key)]
    except (sqlite3.DatabaseError, OSError, RuntimeError):
        return None


def write_for_ever(kind: str, folder: Path, size: int) -> None:
    """Writes keyframes until killed, and prints the number of each that is written."""
    file, key = KINDS[kind](folder), 0
    while True:
        file.add(key, *keyframe(key, size))
        print(key, flush=True)
        key += 1


def main(arguments: list[str] | None = None) -> int:
    """Prints a table, and writes it with ``--out``. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keyframes", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=17_000, help="data of a keyframe")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.write:
        write_for_ever(options.write[0], Path(options.write[1]), int(options.write[2]))
    found = []
    for kind in KINDS:
        row: dict[str, Any] = {"kind": kind}
        for name in ("written", "busy", "killed", "cut"):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place) / kind
                folder.mkdir()
                figures = globals()[name](kind, folder, options)
            row |= {"busy": figures} if name == "busy" else figures
        found.append(row)
        results_file.show(row)
    results_file.write(options.out, {"rows": found}, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
