"""Holds signals back while code runs in which their handlers must not raise."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Runs the handlers of signals only after the body, which is to be short.

    Ray's compiled code needs it: if a handler raises there, the call goes on to its end, however
    long that takes, and what was raised is lost in a SystemError.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    came: list[int] = []
    try:
        with contextlib.ExitStack() as stack:
            for number in NUMBERS:
                if callable(handler := signal.getsignal(number)):
                    stack.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, frame: came.append(number))
            yield
    finally:  # an interruption counts more than an error of the body
        if came:
            signal.raise_signal(came[0])
