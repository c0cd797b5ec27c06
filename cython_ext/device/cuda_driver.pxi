"""Calls of CUDA's driver (libcuda) that are needed for each batch: events, contexts, captures of graphs.

The driver's functions are looked up once, and called from C.  Through torch's objects each call would take some
microseconds of the trainer's time, most of them in Python.  The runtime (libcudart) would also keep each error for this
thread's next launch; the driver only returns it.  Both have the same streams and events.

No call is made with the GIL held.  Each may wait for a lock of the driver, which another thread may hold while it waits
for the GIL: torch's own Event.query() does not release it.
"""

cimport cython
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport realloc
from posix.dlfcn cimport RTLD_NOW, dlopen, dlsym

cdef enum:
    MOST_DEVICES = 128          # torch has fewer
    RELAXED = 2                 # of CUstreamCaptureMode
    WITHOUT_TIMING = 2          # CU_EVENT_DISABLE_TIMING
    NOT_READY = 600

cdef struct functions:
    int (*push)(void *context) noexcept nogil
    int (*pop)(void **context) noexcept nogil
    int (*device)(int *device, int index) noexcept nogil
    int (*state)(int device, unsigned *flags, int *active) noexcept nogil
    int (*retain)(void **context, int device) noexcept nogil
    int (*exchange)(int *mode) noexcept nogil
    int (*create)(void **event, unsigned flags) noexcept nogil
    int (*record)(void *event, void *stream) noexcept nogil
    int (*query)(void *event) noexcept nogil
    int (*capturing)(void *stream, int *status) noexcept nogil

cdef struct pool:
    void **events
    int count, room

cdef functions driver
cdef void *contexts[MOST_DEVICES]       # torch's, of devices that are known to be in use
cdef pool pools[MOST_DEVICES]           # events that are not in use, by device; the GIL guards them
cdef uint64_t captures = 0


class Refused(RuntimeError):
    """The driver has returned an error that torch does not know yet."""


# -------------------------------------------------------------------------------------------------------- for the core


cdef int exchange_mode(int *mode) noexcept nogil:
    return driver.exchange(mode)


cdef int find_context(int device) noexcept nogil:
    cdef int error, number, active = 0
    cdef unsigned flags
    if contexts[device] == NULL:        # making one would take some hundred megabytes
        error = driver.device(&number, device) or driver.state(number, &flags, &active)
        if error or not active:
            return error or NOT_IN_USE
        error = driver.retain(&contexts[device], number)    # it stays until the process ends
        if error:
            contexts[device] = NULL
            return error
    return 0


cdef int enter(int device) noexcept nogil:
    return find_context(device) or driver.push(contexts[device])


cdef void leave() noexcept nogil:
    cdef void *context
    driver.pop(&context)


cdef int find_capture(void *stream, int *found) noexcept nogil:
    return driver.capturing(stream, found)


cdef int record_event(void **event, void *stream) noexcept nogil:
    cdef int error
    if event[0] == NULL:
        error = driver.create(event, WITHOUT_TIMING)
        if error:
            event[0] = NULL
            return error
    return driver.record(event[0], stream)


cdef int ask_event(void *event, bint *passed) noexcept nogil:
    cdef int error = driver.query(event)
    passed[0] = error == 0
    return 0 if error == NOT_READY else error


@cython.final
@cython.freelist(16)
cdef class Event:
    """Passes when all work is done that was on a stream when it was recorded."""

    def __cinit__(self, int device):
        cdef pool *unused = &pools[device]
        self.device = device
        if unused.count:
            unused.count -= 1
            self.handle = unused.events[unused.count]

    def __dealloc__(self):
        # Any thread may run this, with the GIL held, so CUDA is not called.  A later recording reuses the event.
        cdef pool *unused = &pools[self.device]
        cdef void *more
        if self.handle == NULL or self.is_of_a_capture:
            return
        if unused.count == unused.room:
            more = realloc(unused.events, 2 * (unused.room + 8) * sizeof(void *))
            if more == NULL:
                return
            unused.events, unused.room = <void **>more, 2 * (unused.room + 8)
        unused.events[unused.count] = self.handle
        unused.count += 1

    def query(self) -> bool:
        """Whether it has passed."""
        cdef int error
        cdef bint passed = False
        with nogil:
            error = ask_event(self.handle, &passed)
        if error:
            raise Refused(f"the driver does not say whether an event has passed: error {error}")
        return passed


cdef uint64_t captures_so_far() noexcept:
    return captures


# ---------------------------------------------------------------------------------------------------------- for Python


def open_driver() -> bool:
    """Look up the driver's functions; returns whether all were found.  Initialise CUDA before any other call."""
    cdef void *library = dlopen("libcuda.so.1", RTLD_NOW)
    cdef void **to = <void **>&driver
    cdef list names = [
        b"cuCtxPushCurrent_v2", b"cuCtxPopCurrent_v2", b"cuDeviceGet", b"cuDevicePrimaryCtxGetState",
        b"cuDevicePrimaryCtxRetain", b"cuThreadExchangeStreamCaptureMode", b"cuEventCreate", b"cuEventRecord",
        b"cuEventQuery", b"cuStreamIsCapturing",
    ]
    cdef int k
    if library == NULL:
        return False
    for k in range(len(names)):         # in the order of `functions`
        to[k] = dlsym(library, names[k])
        if to[k] == NULL:
            return False
    return True


def record_on(stream: int, device: int) -> Event:
    """A new event after the present work of a stream, given by its address, of a device in use."""
    cdef Event event = Event(device)
    cdef void *on = <void *><uintptr_t>stream
    cdef int error, index = device
    with nogil:
        error = enter(index)
        if not error:
            error = record_event(&event.handle, on)
            leave()
    if error:
        raise Refused(f"the driver records no event: error {error}")
    return event


def has_context(device: int) -> bool:
    """Whether this process has a context on this device."""
    cdef int error, index = device
    with nogil:
        error = find_context(index)
    return error == 0


def is_captured(stream: int, device: int) -> bool:
    """Whether a graph is captured on this stream of this device; RuntimeError if the driver does not answer."""
    cdef void *on = <void *><uintptr_t>stream
    cdef int error, index = device, found = 0
    with nogil:
        error = enter(index)
        if not error:
            error = find_capture(on, &found)
            leave()
    if error and error != NOT_IN_USE:
        raise Refused(f"the driver does not say whether a graph is captured: error {error}")
    return found != 0


def captures_begun() -> int:
    """How many captures of graphs have begun, or were about to, according to count_capture()."""
    return captures


def count_capture() -> None:
    """Count a capture that is about to begin, or has begun."""
    global captures
    captures += 1
