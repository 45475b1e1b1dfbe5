"""Log lines above the progress bars of a terminal.

As tqdm's own ``logging_redirect_tqdm``, which loses an interruption that comes while it writes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm


@contextmanager
def logs_above_bars() -> Iterator[None]:
    """Writes what is logged to a terminal above the bars that are there."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers = [_above_bars(handler) for handler in before]
    try:
        yield
    finally:
        root.handlers = before


class _AboveBars(logging.StreamHandler[TextIO]):
    """Any other exception than errors passes: an interruption, above all."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=self.stream)
            self.flush()
        except Exception:
            self.handleError(record)


def _above_bars(handler: logging.Handler) -> logging.Handler:
    """Returns what replaces a handler; one that writes elsewhere stays."""
    stream = getattr(handler, "stream", None)
    if stream is None or stream not in (sys.stdout, sys.stderr):
        return handler
    ours = _AboveBars(stream)
    ours.setFormatter(handler.formatter)
    ours.setLevel(handler.level)
    return ours
