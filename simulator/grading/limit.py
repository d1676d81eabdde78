"""A limit for answers that never end, which works in every thread and on every system."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 20.0
"""Seconds of processor time for an answer; right ones take one at most."""

_LOOKS_EVERY_S = 0.1


class Endless(BaseException):
    """An answer takes too long; no Exception, so that an answer's own handlers let it through."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Endless` in the calling thread, at the line that runs, if the body takes too long.

    Parameters
    ----------
    seconds : float
        Of processor time of the process, so that a busy machine does not count.
    """
    # Signals would reach the main thread only, and have no timers on Windows.
    thread, start, over, lock = threading.get_ident(), time.process_time(), [], threading.Lock()

    def watch() -> None:
        while not over:
            time.sleep(_LOOKS_EVERY_S)
            with lock:
                if not over and time.process_time() - start > seconds:
                    _raise_in(thread, Endless)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            over.append(True)
        _raise_in(thread, None)  # what was not raised yet


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Let a thread raise an exception before its next bytecode; None takes one back."""
    given = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
