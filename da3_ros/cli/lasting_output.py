"""Output that is dropped where nobody reads it any more, as after `| head`: the work goes on."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

NAMES = ("stdout", "stderr")


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Drops what is written to standard output or error output after its reader has gone.

    Without output at all, as the caller may have closed it, the same.
    """
    for name in NAMES:
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (until the process ends)
    before = {name: getattr(sys, name) for name in NAMES}
    for name, stream in before.items():
        setattr(sys, name, _Lasting(stream))
    try:
        yield
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)


class _Lasting:
    """A text stream whose reader may go."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._drops():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._drops():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _drops(self) -> Iterator[None]:
        """From an error on, also what is buffered goes nowhere: Python writes it at its end."""
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
