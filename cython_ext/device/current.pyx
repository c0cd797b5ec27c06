# cython: language_level=3
"""Which streams of a device are current, and have been, in whatever thread; NOTE [ Streams ] in streams.py.

Why this is no Python: between the call that makes a stream current and what notes it nothing may come, neither a
signal's exception nor another thread.  Python looks for these between its own instructions, and here are none.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

import threading

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject *tp_dict
    unsigned long PyThread_get_thread_ident()
    void PyType_Modified(PyTypeObject *type)

cdef enum:
    CUDA = 1                    # of torch's device types; ROCm's devices are of this one too
    MOST_PASSED = 64            # in passed_marks; for a batch that needs an older one all streams are waited for

cdef uint64_t now = 0           # counted up by each thing that is to be told from what was before it
cdef uint64_t switches = 0      # counted up where `here` or `left` changes
cdef dict here = {}             # by (thread, device): the stream that is current there, unless it is the default one
cdef dict left = {}             # by stream: when it was last left
cdef list marks = []            # when which stream of others was left, and an event behind what it had to do by then
cdef dict passed_marks = {}     # by stream of others: when it was last left, of marks whose event has passed
cdef object current = None      # called with a device: the stream that is current in this thread
cdef object mark = None         # called with a stream: such an event
cdef object of_this_thread = threading.local()


cdef class _Thread:
    """Dies with its thread, and leaves its streams."""
    cdef unsigned long thread       # 0: of none

    def __del__(self):
        for thread, device in list(here):
            if thread == self.thread:
                _move(thread, device, here.get((thread, device)), None)


cdef bint _is_default(tuple stream):
    return stream is None or stream[0] == 0


cpdef bint is_of_others(tuple stream):
    """Whether others have made this stream and may destroy it.  Then its number is its address."""
    return not _is_default(stream) and not stream[0] & 1    # torch's own have this bit, and live for ever


cdef _move(unsigned long thread, object device, tuple before, tuple after):
    """A stream is left, then another one is current.  In this order: one too many does no harm, one too few does."""
    global now, switches
    cdef object event, when
    cdef tuple noted = here.get((thread, device))
    now += 1
    switches += 1
    if not _is_default(before):
        left[before] = now
    if not _is_default(noted) and not is_of_others(noted):     # it was left out of sight, for `before`
        left[noted] = now
    if _is_default(after):
        here.pop((thread, device), None)
    else:
        here[thread, device] = after
    if is_of_others(before):
        when = now
        event = mark(before)    # it may be destroyed from here on, and cannot be asked later
        if event is not None:
            marks.append((when, before, event))
            if left.get(before) == when:    # another thread may have left it while the event was recorded
                left.pop(before, None)


cdef _switch(object original, tuple arguments, dict options, object device):
    """Call what makes a stream current, or another one current again, and note what it has done."""
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef tuple before, after
    try:
        before = current(device)
    except Exception:           # there is no such device: what was called says so
        return original(*arguments, **options)
    try:
        return original(*arguments, **options)
    finally:
        after = current(device)
        if before != after:
            _move(thread, device, before, after)
            _begin(thread)


cdef _begin(unsigned long thread):
    """Have this thread's end noted.  One that is not Python's may end for Python and come again: its streams stay."""
    if hasattr(of_this_thread, "cell"):
        return
    cdef _Thread cell = _Thread()
    of_this_thread.cell = None if isinstance(threading.current_thread(), threading._DummyThread) else cell
    cell.thread = thread


def watched(original: object, which: object) -> object:
    """A function in the place of `original`, which makes another stream current.

    Args:
        which: called with the same arguments: the device, or None where it is none of CUDA's.
    """
    def call(*arguments, **options):
        device = which(*arguments, **options)
        if device is None:
            return original(*arguments, **options)
        return _switch(original, arguments, options, device)

    return call


def replace_method(type: object, name: str, method: object) -> bool:
    """Set a method of a type that is written in C, which Python would refuse; whether that was possible."""
    cdef PyTypeObject *of = <PyTypeObject *><PyObject *>type
    if of.tp_dict == NULL:
        return False
    (<dict>of.tp_dict)[name] = method
    PyType_Modified(of)
    return True


def watch(current_stream: object, make_mark: object, devices: object) -> None:
    """Begin, with the streams that are current in this thread.

    Args:
        current_stream: called with a device; it may not run any Python.
        make_mark: called with a stream that others have made when it is left: an event behind what it has to do by
            then, or None where that cannot be had.
        devices: of this thread.
    """
    global current, mark
    current, mark = current_stream, make_mark
    for device in devices:
        _move(PyThread_get_thread_ident(), device, None, current(device))


def moment() -> int:
    """A number that is greater than all before it."""
    global now
    now += 1
    return now


def since(begin: int) -> tuple[set[tuple[int, int, int]], set[tuple[int, int, int]], list[object]]:
    """The streams, but for default ones, that were current in any thread at any time from this moment on.

    Returns: those that can be asked; those of others that were left and may be gone; and the events behind these.
    """
    cdef uint64_t first = begin
    cdef set streams = set(here.values()), gone = set()
    cdef list events = []
    for stream, when in left.items():
        if <uint64_t>when > first:
            streams.add(stream)
    for when, stream, event in marks:
        if <uint64_t>when > first:
            gone.add(stream)
            events.append(event)
    for stream, when in passed_marks.items():
        if <uint64_t>when > first:
            gone.add(stream)
    return streams, gone, events


cdef uint64_t switches_so_far() noexcept:
    return switches


cdef set chosen_since(uint64_t begin, bint *any_left):
    cdef set streams = set(here.values())
    any_left[0] = False
    for stream, when in left.items():
        if <uint64_t>when > begin:
            streams.add(stream)
            any_left[0] = True
    for when, stream, event in marks:
        if <uint64_t>when > begin:
            return None
    return streams


def drop_marks(passed: object) -> None:
    """Forget the events of streams of others that have passed.

    That such a stream was left is not forgotten.  A batch that was lent before, in an epoch that goes on beside the one
    whose copies are marked now, may have died on it: then the stream is known, and may not be asked any more.
    """
    for each in list(marks):
        if passed(each[2]) and each in marks:
            passed_marks[each[1]] = max(each[0], passed_marks.get(each[1], 0))
            marks.remove(each)
    while len(passed_marks) > MOST_PASSED:
        del passed_marks[min(passed_marks, key=passed_marks.__getitem__)]
