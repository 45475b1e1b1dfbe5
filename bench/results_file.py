"""Writes the results of a benchmark as JSON, with the machine and the command."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]


def machine(device: str) -> dict[str, Any]:
    """Returns the machine, versions and commit of a run; ``device``: its readable name."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "device": device,
        "cpu": cpu_field("model name") or platform.processor() or platform.machine(),
        "amx": "amx_bf16" in cpu_field("flags").split(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "openvino": version("openvino"),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
        "commit": commit,
    }


def version(package: str) -> str | None:
    """Returns the version of an installed package; None: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_field(name: str, cpuinfo: str = "/proc/cpuinfo") -> str:
    """Returns what the system says of the first processor; empty: nothing."""
    try:
        lines = Path(cpuinfo).read_text().splitlines()
    except OSError:
        return ""
    return next((x.partition(":")[2].strip() for x in lines if x.startswith(name)), "")


def show(row: dict[str, Any]) -> None:
    """Prints the names and values of a row in a line."""
    parts = (f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print("  ".join(parts), flush=True)


def command() -> str:
    """Returns the command line of this process, relative to the root of the clone."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(name), *sys.argv[1:]])


def write(path: Path | None, found: dict[str, Any], device: str) -> None:
    """Writes ``found`` with machine and command to ``path``; None: nothing is written.

    A run that is killed leaves the file as it was.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    context = {"machine": machine(device) | found.pop("machine", {}), "command": command()}
    whole = path.with_name(f".{path.name}.new")
    whole.write_text(json.dumps(context | found, indent=1) + "\n")
    whole.replace(path)
