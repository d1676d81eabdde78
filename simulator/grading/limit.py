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
    thread, start, lock = threading.get_ident(), time.process_time(), threading.Lock()
    over, raised = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            time.sleep(_LOOKS_EVERY_S)
            with lock:
                if not over.is_set() and time.process_time() - start > seconds:
                    raised.set()
                    _raise_in(thread)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        _end(over, lock)
        if raised.is_set():
            _let_arrive(thread)


def _end(over: threading.Event, lock: threading.Lock) -> None:
    """Let nothing be raised from now on, also if `Endless` arrives meanwhile.

    Else it would come again and again. A thread that ends with one under way leaves CPython 3.11
    looking for it for ever, in every thread: see `_let_arrive`.
    """
    while True:
        try:
            with lock:
                over.set()
            return
        except Endless:
            pass


def _raise_in(thread: int) -> None:
    """Let a thread raise `Endless` before its next bytecode, in place of one under way."""
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    set_error(ctypes.c_ulong(thread), ctypes.py_object(Endless))


def _let_arrive(thread: int) -> None:
    """Leave no `Endless` under way in this thread.

    Taking one back, with NULL, would leave CPython 3.11 looking for it for ever: it runs slower,
    and the next function that a profiler is told of never starts.
    """
    try:
        _raise_in(thread)
        while True:
            pass
    except Endless:
        pass
