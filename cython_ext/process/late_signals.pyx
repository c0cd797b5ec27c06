# cython: language_level=3
"""Delivers signals again when an exception of their handlers can be seen: NOTE [ Signals ] in signals.py.

This is C because Python checks for signals between bytecodes and C has none.  So no handler is called until the caller
resumes.
"""

from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint64_t

import functools
import gc

from shmloader.core.handlers import is_handlers

cdef enum:
    TRIES = 8   # of a __del__(): as many signals may come at once

cdef extern from "Python.h":
    int PyErr_SetInterruptEx(int signal)

cdef set ending = set()     # the threads that are in a __del__() of in_del()
cdef uint64_t behind = 0    # the signals to deliver after the collection, one bit each


cdef void come_again(uint64_t signals) noexcept:
    cdef int signal
    for signal in range(64):
        if signals >> signal & 1:
            PyErr_SetInterruptEx(signal)


cdef class _WhenGone:
    cdef uint64_t signals

    def __dealloc__(self):
        come_again(self.signals)


def _when_collected(phase: str, info: object) -> None:
    """The last of the collector's callbacks, in C because exceptions in a Python callback are lost."""
    global behind
    cdef uint64_t signals = behind
    behind = 0
    come_again(signals)


cdef bint is_collecting() except -1:
    """Whether the collector is running: a collection that is requested then does nothing, and is not counted."""
    cdef object before = gc.get_stats()[0]["collections"]
    gc.collect(0)
    return gc.get_stats()[0]["collections"] == before


def late(signals: object) -> object:
    """Deliver signals again after the death of an object, or after the collection in which it dies.

    Args:
        signals: their numbers.

    Returns:
        An object that must be the last of the object's attributes to die, or None if the collector delivers them.
    """
    global behind
    cdef uint64_t mask = 0
    cdef int signal
    cdef _WhenGone gone
    for signal in signals:
        mask |= <uint64_t>1 << signal
    if is_collecting():
        while _when_collected in gc.callbacks:
            gc.callbacks.remove(_when_collected)
        gc.callbacks.append(_when_collected)
        behind |= mask
        return None
    gone = _WhenGone()
    gone.signals = mask
    return gone


def in_del(end: object) -> object:
    """Make a `__del__()` of a function that may be called again, where a signal's handler has broken it off.

    Python checks for signals where a function begins, before its first line.  A handler that raises there would keep all
    of a `__del__()` from running: no `try` can be around that, except here.

    Args:
        end: ends an object.  If it has come to its end, another call does nothing.
    """
    @functools.wraps(end)
    def __del__(dying):
        cdef int tries
        cdef object first = None
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef bint is_nested = me in ending
        ending.add(me)
        for tries in range(TRIES):
            try:
                end(dying)
                break
            except BaseException as error:
                first = error if first is None else first
                try:
                    if isinstance(error, Exception) and not is_handlers(error):
                        break
                except BaseException:   # the handler of another signal has raised in there
                    pass
        if not is_nested:
            ending.discard(me)
        if first is not None:
            raise first
    return __del__


def is_in_del() -> bool:
    """Whether this thread is in a `__del__()` made by in_del().  The collector may have called that at any line."""
    return PyThread_get_thread_ident() in ending
