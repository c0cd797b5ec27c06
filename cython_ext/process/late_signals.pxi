"""`__del__()` in C, which loses no signal: NOTE [ Signals ] in signals.py, 5.

Python checks for signals between bytecodes, and C has none.  So a signal that this delivers again is handled where the
caller goes on, unless that is in something that Python calls as the object dies.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint64_t

import functools
import signal
import threading


cdef enum:
    TRIES = 8   # of a __del__(): as often may it be broken off

cdef extern from "Python.h":
    int PyErr_SetInterruptEx(int number)


cdef inline uint64_t bit_of(int number) noexcept:
    return <uint64_t>1 << (number - 1)      # there are 64 signals, from 1


cdef uint64_t INTERRUPT = bit_of(signal.SIGINT)
cdef unsigned long main = threading.main_thread().ident
cdef int ending = 0         # nested __del__() of in_del() in the main thread, which alone runs handlers
cdef uint64_t noted = 0     # the signals to deliver when the last of these has ended, one bit each


def is_in_del() -> bool:
    """Whether this thread runs the handlers of signals, and is in a `__del__()` of in_del()."""
    return ending > 0 and PyThread_get_thread_ident() == main


def deliver_after_del(signals: object) -> None:
    """Deliver these signals again when the `__del__()` has ended."""
    global noted
    for number in signals:
        noted |= bit_of(number)


cdef void deliver(uint64_t signals) noexcept:
    cdef int number
    for number in range(1, 65):
        if signals & bit_of(number):
            PyErr_SetInterruptEx(number)


cdef class _WhenGone:
    """Delivers signals when it dies, as the last attribute of an object: what dies before may call Python, too."""
    cdef uint64_t signals

    def __dealloc__(self):
        deliver(self.signals)


cdef int deliver_behind(object dying, uint64_t signals) except -1:
    cdef _WhenGone gone = _WhenGone()
    gone.signals = signals
    try:
        dying._signals = gone
    except AttributeError:      # it has slots alone, and `gone` dies here
        pass
    return 0


def in_del(end: object) -> object:
    """Make a `__del__()` of a function that may be called again, where a Ctrl-C has broken it off.

    Python drops what a `__del__()` raises.  It checks for signals where a function begins, before its first line, so no
    `try` in Python can be around that.

    Args:
        end: ends an object.  If it has come to its end, another call does nothing.
    """
    @functools.wraps(end)
    def __del__(dying):
        global ending, noted
        cdef bint is_main = PyThread_get_thread_ident() == main
        cdef int tries, failed = 0
        cdef object first = None
        cdef uint64_t signals
        ending += is_main
        try:
            for tries in range(TRIES):
                try:
                    PyErr_CheckSignals()    # so that what has come already does not keep end() from beginning
                except KeyboardInterrupt:
                    noted |= INTERRUPT
                    continue
                except BaseException as error:
                    first = error
                    continue
                try:
                    end(dying)
                    break
                except KeyboardInterrupt:
                    noted |= INTERRUPT
                except BaseException as error:  # a handler's, or the end's own, which comes again
                    first, failed = error, failed + 1
                    if failed == 2:
                        break
            if first is not None:
                raise first
        finally:
            ending -= is_main
            if noted and not ending:
                signals, noted = noted, 0
                deliver_behind(dying, signals)
    return __del__
