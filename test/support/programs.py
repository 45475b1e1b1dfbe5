"""Python programs as processes of their own, without four seconds of imports for each of them.

One server process imports the libraries, and forks for every program. The program runs as
``__main__`` with process, arguments, environment and output of its own. But its hash seed, and
what libraries read from the environment while they load (``OMP_NUM_THREADS``), are the server's:
tests to which these matter start their programs with ``subprocess``.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.context
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.progress import STALLED_S, cpu_s, wait_while_it_works

ROOT = Path(__file__).resolve().parents[2]
# With all that they import; where there is no ROS, its part is left out. PyTorch imports
# `_dynamo` when the first tensor without data is made: nine hundred modules, a second.
LIBRARIES = ["torch._dynamo", "da3_ros.replay.run", "da3_ros.drawing.scene_picture",
             "da3_ros.ros.node", "da3_ros.ros.synthetic_camera", "std_msgs.msg", "sensor_msgs.msg",
             "geometry_msgs.msg", "nav_msgs.msg", "diagnostic_msgs.msg"]  # fmt: skip


def start(
    words: Sequence[str], env: Mapping[str, str], stdout: str, stderr: str
) -> multiprocessing.context.ForkServerProcess:
    """Run ``python words`` in the clone's folder; its output is appended to the named files.

    ``words`` are ``-m MODULE ...`` or ``FILE ...``.
    """
    process = _server().Process(
        target=_run, args=(list(words), dict(env), stdout, stderr), daemon=True
    )
    process.start()
    return process


def run(
    *words: object, env: Mapping[str, str] | None = None, stalled_s: float = STALLED_S
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of ``python words``: waits, and returns status and output as text.

    Raises TimeoutExpired if it makes no progress for ``stalled_s``.
    """
    command = [str(word) for word in words]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        process = start(command, os.environ if env is None else env, out.name, err.name)
        pid = process.pid or 0
        done = wait_while_it_works(
            process.join, lambda: process.exitcode is not None, lambda: _progress(pid, out, err),
            stalled_s,
        )  # fmt: skip
        if not done:
            process.kill()
            raise subprocess.TimeoutExpired(command, stalled_s, out.read(), err.read())
        return _completed(command, process.exitcode, out, err)


def run_alone(
    *words: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As ``run``, in an interpreter of its own: with its own hash seed and libraries."""
    command = [sys.executable, *(str(word) for word in words)]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=err)

        def join(wait_s: float) -> None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)

        done = wait_while_it_works(
            join, lambda: process.poll() is not None, lambda: _progress(process.pid, out, err)
        )
        if not done:
            process.kill()
            raise subprocess.TimeoutExpired(command, STALLED_S, out.read(), err.read())
        return _completed(command, process.returncode, out, err)


def _progress(pid: int, *files: Any) -> tuple[float, ...]:
    """CPU seconds of a process, and the sizes of its output."""
    return cpu_s(pid), *(os.path.getsize(file.name) for file in files)


def _completed(
    command: list[str], status: int | None, out: Any, err: Any
) -> subprocess.CompletedProcess[str]:
    texts = [Path(file.name).read_text(errors="replace") for file in (out, err)]
    return subprocess.CompletedProcess(command, status or 0, *texts)


@functools.cache
def _server() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


def _run(words: list[str], env: dict[str, str], stdout: str, stderr: str) -> None:
    """In the new process: become that program."""
    for number, name in ((1, stdout), (2, stderr)):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    if words[0] == "-m":
        _, name, *rest = words
        sys.argv, sys.path[0] = [name, *rest], str(ROOT)
        sys.modules.pop(name, None)  # else runpy warns that it is there already
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")
