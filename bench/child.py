"""Processes that a benchmark starts, which end with it: also by a time limit and by Ctrl-C."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

POLL_S = 0.5  # between two looks at signals


def run(
    words: Sequence[str], *, timeout: float | None = None, stderr: int | IO[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns what it wrote to stdout, and its exit code.

    stderr: as ``subprocess``; None: that of this process. The command's own children, as those of
    a compiler, end with it. Raises subprocess.TimeoutExpired after ``timeout`` seconds.
    """
    starts, asked = True, False

    def end(*_: object) -> None:
        """Ends this process as an exception does, so that its children end too; once there are
        some that can be ended."""
        nonlocal asked
        asked = True
        if not starts:
            sys.exit(128 + signal.SIGTERM)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)
    try:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
    except BaseException:  # there is none that can be ended
        starts = False
        if asked:
            sys.exit(128 + signal.SIGTERM)
        raise
    with process:
        try:
            starts = False
            if asked:
                sys.exit(128 + signal.SIGTERM)
            out, err = _outputs(process, timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def _outputs(process: subprocess.Popen[str], timeout: float | None) -> tuple[str, str | None]:
    """Returns what a process wrote, once it has ended; a signal right before a read would
    wait for that. Raises subprocess.TimeoutExpired."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return process.communicate(timeout=max(0.0, min(POLL_S, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= end:
                raise
