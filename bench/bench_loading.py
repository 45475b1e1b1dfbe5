#!/usr/bin/env python3
"""Time to load a model from its file: building, reading, converting, and a whole session.

    python bench/bench_loading.py --out bench/results/loading.json
    python bench/bench_loading.py --models da3-tiny da3-small --device cpu

Files in the official layout are written once to a temporary folder, with random fp32 weights. Each
row is a process of its own. ``cold``: the file's pages were dropped from the page cache first,
which the kernel confirms; a disk that keeps a cache of its own, as those of virtual machines do,
may still be fast. ``warm``: the file was read just before. ``build_s``: the network without
weights; ``read_s``: file to network, with all checks of names and shapes; ``convert_s``: to
``--precision``; ``move_s``: to the device. ``session_s``: the same by a session, with its check
against fp32. Models for which memory is short are rows with the reason.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import child
import numpy as np
import results_file
import torch
from bench_network import DTYPES

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.devices import open_device
from da3_ros.inference.host_memory import host_free
from da3_ros.inference.loading import put_on
from da3_ros.network import (
    MODELS,
    Network,
    empty_network,
    initialize_randomly,
    load_checkpoint,
)
from da3_ros.network.checkpoint import make_config
from da3_ros.network.hub import CONFIG, WEIGHTS
from da3_ros.network.precision import convert

COPIES = 2.2  # of a file's bytes that loading takes: what was read, and the network
STATES = ("cold", "warm", "session")
THIS = (sys.executable, __file__)
DROPPED = 0.02  # most of a file that is still in the page cache where it counts as dropped
SETTINGS = {"fp32": "off", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}


def write_model(model: str, folder: Path) -> Path:
    """Writes a model's files with random fp32 weights; returns the file of the weights.

    The layout of safetensors: eight bytes with the header's length, the header, the data. Tensors
    are written one by one: the library's own writer takes the whole file in memory once more.
    """
    network = empty_network(model)
    initialize_randomly(network)
    weights = network.state_dict()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in weights.items():
        place = {"data_offsets": [at, at := at + tensor.numel() * 4]}
        header[f"model.{name}"] = {"dtype": "F32", "shape": list(tensor.shape)} | place
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(
        json.dumps({"model_name": model, "config": make_config(MODELS[model])})
    )
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in weights.values():
            file.write(tensor.contiguous().numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())  # only what is on the disk can leave the page cache
    return folder / WEIGHTS


def share_cached(path: Path) -> float:
    """Returns the share of a file that is in the page cache. Raises OSError if nothing tells."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        found = (ctypes.c_ubyte * pages)()
        mincore = getattr(ctypes.CDLL(None), "mincore", None)
        address = ctypes.c_void_p(ctypes.addressof(first))
        status = -1 if mincore is None else mincore(address, ctypes.c_size_t(size), found)
        del first  # else the mapping cannot be closed
    if status:
        raise OSError("this system does not tell what is in the page cache")
    return float(np.mean(np.frombuffer(found, np.uint8) & 1))


def drop(path: Path) -> None:
    """Drops a file from the page cache. Raises OSError if it is still there."""
    if not hasattr(os, "posix_fadvise"):
        raise OSError("this system cannot drop files from the page cache")
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if (left := share_cached(path)) > DROPPED:
        raise OSError(f"{left:.0%} of the file stayed in the page cache")


def read_once(path: Path) -> None:
    """Reads a file, so that it is in the page cache."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def measure(model: str, folder: Path, state: str, precision: str, device: str) -> dict[str, Any]:
    """Returns a row; to be called in a new process. ``state``: cold, warm or session."""
    on, path = open_device(device), folder / WEIGHTS
    torch.empty(1, device="meta").add(1)  # the first tensor without data imports a second's code
    size = path.stat().st_size
    row: dict[str, Any] = {"model": model, "state": state, "gb": size / 1e9}
    if COPIES * size > host_free():
        need = COPIES * size / 2**30
        return row | {"refused": f"loading takes {need:.0f} GiB, more than is free"}
    try:
        (drop if state == "cold" else read_once)(path)
    except OSError as error:
        return row | {"refused": str(error)}
    if state == "session":
        return row | opened(model, folder, precision, device)
    clock = Clock()
    network: Network = empty_network(model)
    row["build_s"] = clock.lap()
    load_checkpoint(network, folder)
    row["read_s"] = clock.lap()
    convert(network.requires_grad_(False), DTYPES[precision])
    row["convert_s"] = clock.lap()
    put_on(network, on)
    if on.kind == "cuda":
        torch.cuda.synchronize()
    row["move_s"] = clock.lap()
    row["sum_s"] = sum(row[name] for name in ("build_s", "read_s", "convert_s", "move_s"))
    return row | {"precision": precision, "read_gb_per_s": size / 1e9 / row["read_s"]}


def opened(model: str, folder: Path, precision: str, device: str) -> dict[str, Any]:
    """Returns the time of a session until it takes windows, and the precision it has chosen."""
    config = InferenceConfig(
        model, str(folder), device, "torch", mixed_precision=SETTINGS[precision]
    )
    clock = Clock()
    session = InferenceSession(config)
    return {"session_s": clock.lap(), "precision": session.status().precision}


class Clock:
    """Tells the seconds since the last lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Returns the seconds since the last lap, or since the clock was made."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before


def rows_of(model: str, options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a model; its files are gone afterwards."""
    size = 4 * MODELS[model].parameters
    if COPIES * size > host_free() or 1.1 * size > shutil.disk_usage(folder).free:
        need = COPIES * size / 2**30
        yield {"model": model, "refused": f"it takes {need:.0f} GiB of memory to load"}
        return
    with tempfile.TemporaryDirectory(dir=folder) as parent:
        where = Path(parent) / model
        child.run([*THIS, "--write", model, str(where)]).check_returncode()
        for state, _ in itertools.product(options.states, range(options.repeats)):
            words = json.dumps([model, str(where), state, options.precision, options.device])
            done = child.run([*THIS, "--one", words])
            if done.returncode:
                ended = f"the process ended with {done.returncode}"
                yield {"model": model, "state": state, "refused": ended}
                continue
            yield json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints a row for each model and state and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--states", nargs="+", default=STATES, choices=STATES)
    parser.add_argument("--precision", default="bf16", choices=SETTINGS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=1, help="processes for each state")
    parser.add_argument("--folder", type=Path, help="on the disk to be read; default: temporary")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)  # model, folder
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a row as JSON
    options = parser.parse_args()
    if options.write:
        write_model(options.write[0], Path(options.write[1]))
        return
    if options.one:
        model, folder, *others = json.loads(options.one)
        print(json.dumps(measure(model, Path(folder), *others)))
        return
    rows: list[dict[str, Any]] = []
    device = open_device(options.device).name()
    for model in options.models:
        for row in rows_of(model, options, options.folder or Path(tempfile.gettempdir())):
            rows.append(row)
            results_file.show(row)
            results_file.write(options.out, {"rows": rows}, device)  # a long run may be ended


if __name__ == "__main__":
    main()
