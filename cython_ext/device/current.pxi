"""Which streams of a device are current, and have been, in any thread; NOTE [ Streams ] in streams.py.

This is C because neither a signal's exception nor another thread may come between the call that makes a stream current
and the note of it.  Python checks for these between bytecodes; C has none.
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
    MOST_PASSED = 64            # in passed_marks; a batch that needs an older one waits for all streams

cdef uint64_t now = 0           # counts moments
cdef uint64_t switches = 0      # counts changes of `here` and `left`
cdef dict here = {}             # by (thread, device): the current stream, unless it is the default one
cdef dict left = {}             # by stream: when it was last left
cdef list marks = []            # when a foreign stream was left, and an event after its work until then
cdef dict passed_marks = {}     # by foreign stream: when it was last left, for marks whose event has passed
cdef object current = None      # called with a device: the stream that is current in this thread
cdef object mark = None         # called with a stream: such an event
cdef object of_this_thread = threading.local()


cdef class _Thread:
    """Dies with its thread, and leaves the thread's streams."""
    cdef unsigned long thread       # 0: none

    def __del__(self):
        for thread, device in list(here):
            if thread == self.thread:
                _move(thread, device, here.get((thread, device)), None)


cdef bint _is_default(tuple stream):
    return stream is None or stream[0] == 0


cpdef bint is_of_others(tuple stream):
    """Whether other code has made this stream and may destroy it.  Then its number is its address."""
    return not _is_default(stream) and not stream[0] & 1    # torch's own have this bit, and live for ever


cdef _move(unsigned long thread, object device, tuple before, tuple after):
    """Note that a stream was left, and then that another one is current.

    In this order both count for a moment.  One stream too many does no harm; one too few does.
    """
    global now, switches
    cdef object event, when
    cdef tuple noted = here.get((thread, device))
    now += 1
    switches += 1
    if not _is_default(before):
        left[before] = now
    if not _is_default(noted) and not is_of_others(noted):     # it was left unseen, for `before`
        left[noted] = now
    if _is_default(after):
        here.pop((thread, device), None)
    else:
        here[thread, device] = after
    if is_of_others(before):
        when = now
        event = mark(before)    # from here on the stream may be destroyed, and cannot be queried later
        if event is not None:
            marks.append((when, before, event))
            if left.get(before) == when:    # another thread may have left it while the event was recorded
                left.pop(before, None)


cdef _switch(object original, tuple arguments, dict options, object device):
    """Call a function that makes a stream current, or restores one, and note the change."""
    cdef unsigned long thread = PyThread_get_thread_ident()
    cdef tuple before, after
    try:
        before = current(device)
    except Exception:           # there is no such device, and the called function raises for it
        return original(*arguments, **options)
    try:
        return original(*arguments, **options)
    finally:
        after = current(device)
        if before != after:
            _move(thread, device, before, after)
            _begin(thread)


cdef _begin(unsigned long thread):
    """Note when this thread ends.  Other threads than Python's keep their streams, because they may call it again."""
    if hasattr(of_this_thread, "cell"):
        return
    cdef _Thread cell = _Thread()
    of_this_thread.cell = None if isinstance(threading.current_thread(), threading._DummyThread) else cell
    cell.thread = thread


def watched(original: object, which: object) -> object:
    """A function that replaces `original`, which makes another stream current.

    Args:
        which: called with the same arguments: the device, or None if it is not CUDA's.
    """
    def call(*arguments, **options):
        device = which(*arguments, **options)
        if device is None:
            return original(*arguments, **options)
        return _switch(original, arguments, options, device)

    return call


def replace_method(type: object, name: str, method: object) -> bool:
    """Set a method of a type that is written in C, which Python would refuse; returns whether that was possible."""
    cdef PyTypeObject *kind = <PyTypeObject *><PyObject *>type
    if kind.tp_dict == NULL:
        return False
    (<dict>kind.tp_dict)[name] = method
    PyType_Modified(kind)
    return True


def watch(current_stream: object, make_mark: object, devices: object) -> None:
    """Begin to watch, with the streams that are current in this thread.

    Args:
        current_stream: called with a device; it must not run any Python.
        make_mark: called when a foreign stream is left, with that stream: an event after its present work, or None if
            there can be none.
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
    """The streams, except default ones, that were current in any thread at any time from this moment on.

    Returns: those that can be queried; foreign ones that were left and may be gone; and the events after these.
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
    """Drop the events of foreign streams that have passed.

    It stays recorded that such a stream was left.  A batch that was lent before, in an epoch beside the one whose
    copies are marked now, may have died on it.  Then the stream is known, but must not be queried.
    """
    for each in list(marks):
        if passed(each[2]) and each in marks:
            passed_marks[each[1]] = max(each[0], passed_marks.get(each[1], 0))
            marks.remove(each)
    while len(passed_marks) > MOST_PASSED:
        del passed_marks[min(passed_marks, key=passed_marks.__getitem__)]
