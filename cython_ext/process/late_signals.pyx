# cython: language_level=3
"""Signals that come again when it can be heard what their handlers raise: NOTE [ Signals ] in signals.py.

Why this is no Python: Python looks for signals between its own instructions, and here are none, so nothing is called
before whoever is behind this goes on.
"""

from libc.stdint cimport uint64_t

import gc

cdef extern from "Python.h":
    int PyErr_SetInterruptEx(int signal)

cdef uint64_t behind = 0    # signals that come again when the collection is over, a bit each


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
    """The last of the collector's callbacks: what is raised in one that is written in Python is lost."""
    global behind
    cdef uint64_t signals = behind
    behind = 0
    come_again(signals)


cdef bint is_collecting() except -1:
    """Whether the collector is at work: a collection that is asked for meanwhile is none, and is not counted."""
    cdef object before = gc.get_stats()[0]["collections"]
    gc.collect(0)
    return gc.get_stats()[0]["collections"] == before


def late(signals: object) -> object:
    """Let signals come again behind the death of an object, or behind the collection that it dies in.

    Args:
        signals: their numbers.

    Returns:
        What must be the last of the object's attributes to die, or None where the collector brings them.
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
