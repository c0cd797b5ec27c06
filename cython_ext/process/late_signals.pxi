"""Delivers signals again when an exception of their handlers can be seen: NOTE [ Signals ] in signals.py.
It also runs a `__del__()` again that a handler's exception has broken off.

This is C because Python checks for signals between bytecodes and C has none.  So no handler is called until the caller
resumes.

But if the caller drops one object after another, Python checks for signals next where the second __del__() begins, and
the exception would be lost there.  So a signal that comes again waits in `coming` for a pending call, which Python makes
where it checks for signals.  A __del__() of in_del() that begins before takes it over, and delivers it when its own
object is gone.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint64_t

import functools
import gc
import threading


cdef enum:
    TRIES = 8   # of a __del__(): as many signals may come at once

cdef extern from "Python.h":
    int PyErr_SetInterruptEx(int number)
    int Py_AddPendingCall(int (*call)(void *) except -1, void *argument)

cdef set ending = set()     # the threads that are in a __del__() of in_del()
cdef uint64_t behind = 0    # the signals to deliver after the collection, one bit each
cdef uint64_t coming = 0    # those to deliver where Python checks for signals next
cdef unsigned long main = threading.main_thread().ident


cdef void interrupt(uint64_t signals) noexcept:
    cdef int signal
    for signal in range(64):
        if signals >> signal & 1:
            PyErr_SetInterruptEx(signal)


cdef uint64_t take_over() noexcept:
    """The signals that are coming, which the caller delivers now."""
    global coming
    cdef uint64_t signals = coming
    coming = 0
    return signals


cdef int come(void *_) except -1:
    interrupt(take_over())
    return PyErr_CheckSignals()


cdef void come_again(uint64_t signals) noexcept:
    global coming
    coming |= signals
    if Py_AddPendingCall(come, NULL) < 0:   # too many wait
        interrupt(take_over())


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
    cdef uint64_t mask = 0
    cdef int signal
    for signal in signals:
        mask |= <uint64_t>1 << signal
    return late_mask(mask)


cdef object late_mask(uint64_t mask):
    global behind
    cdef _WhenGone gone
    if is_collecting():
        while _when_collected in gc.callbacks:
            gc.callbacks.remove(_when_collected)
        gc.callbacks.append(_when_collected)
        behind |= mask
        return None
    gone = _WhenGone()
    gone.signals = mask
    return gone


cdef int hand_on(object dying, uint64_t signals) except -1:
    """Deliver signals when this object is gone, with those that came while it ended."""
    cdef object own = getattr(dying, "__dict__", None)
    cdef object last
    if own is None:
        come_again(signals)
        return 0
    last = own.get("_signals")
    if type(last) is _WhenGone:
        (<_WhenGone>last).signals |= signals
    else:
        own["_signals"] = late_mask(signals)
    return 0


cdef int mark(object dying) except -1:
    """Note that an object is in its `__del__()`, if its class has `is_dying = False`, because others look for that.

    In another thread, a weak reference still leads to the object, and strip() may take its attributes at any moment.
    While `is_dying` is False, the object lives for as long as somebody holds it.
    """
    if hasattr(type(dying), "is_dying"):
        dying.__dict__["is_dying"] = True
    return 0


def strip(dying: object) -> None:
    """Let the attributes of an object die, except `is_dying`.  No other thread sees that missing."""
    cdef object own = dying.__dict__
    cdef object attributes = dict(own)      # they die with this, and not before it is all in order
    own.clear()
    if "is_dying" in attributes:
        own["is_dying"] = True


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
        cdef uint64_t taken = take_over() if me == main else 0
        mark(dying)     # before any line of Python: from there on, another thread may run
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
        if taken:
            hand_on(dying, taken)
        if first is not None:
            raise first
    return __del__
