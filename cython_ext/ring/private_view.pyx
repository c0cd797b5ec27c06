# cython: language_level=3, boundscheck=False, wraparound=False
"""A process's own view of the payloads: it finds the pages that this process has written, and drops them.
NOTE [ Private view ] in private_view.pxd.
"""

import os

cimport cython
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from posix.mman cimport MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, madvise, mmap, munmap
from posix.unistd cimport close, getpid

from shmloader.core.ring cimport Ring

cdef extern from "<sys/mman.h>":
    enum: MAP_NORESERVE, MADV_DONTDUMP, MADV_DONTNEED

cdef extern from "ring/written_pages.h" nogil:
    uint64_t page_faults()
    int written_watch(char *at, uint64_t bytes)
    int written_forget(int fd, char *at, uint64_t bytes)
    int written_drop(int fd, int pagemap, char *at, uint64_t bytes)
    int written_drop_own(int pagemap, char *at, uint64_t bytes, uint64_t page)

WAYS = ("noted", "looked up", "dropped")

cdef enum:
    LARGE = 1 << 20     # bytes; to look through fewer takes no longer than to read the number of page faults


@cython.final
cdef class PrivateView:
    """This process's own view of a ring's payloads.

    Args:
        ring: whose.
        fd: its memory; it may be closed afterwards.
        ways: the ways to find written pages that may be used, the first that works is.

    Raises:
        OSError: the memory cannot be mapped once more.
    """

    def __cinit__(self, Ring ring, int fd, ways=WAYS):
        cdef void *at
        self.watch = self.pagemap = -1
        self.stride, self.size, self.page = ring.slot_stride, ring.payloads * ring.slot_stride, os.sysconf("SC_PAGESIZE")
        self.lent = <uint64_t *>calloc(ring.payloads, sizeof(uint64_t))
        self.faults = <uint64_t *>calloc(ring.payloads, sizeof(uint64_t))
        if self.lent == NULL or self.faults == NULL:
            raise MemoryError()
        at = mmap(NULL, self.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, ring.slot_at)
        if at == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.base, self.pid = <char *>at, getpid()
        madvise(at, self.size, MADV_DONTDUMP)
        if ways != ("dropped",):
            try:
                self.pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:     # no /proc, or this process may not be looked into
                return
        if "noted" in ways:
            self.watch = written_watch(self.base, self.size)
            # a kernel that has the one and not the other
            if self.watch >= 0 and written_drop(self.watch, self.pagemap, self.base, self.page):
                close(self.watch)
                self.watch = -1
        if self.watch < 0 and "looked up" not in ways:
            close(self.pagemap)
            self.pagemap = -1

    def __dealloc__(self):
        free(self.lent)
        free(self.faults)
        if self.base != NULL:
            munmap(self.base, self.size)
        if self.watch >= 0:
            close(self.watch)
        if self.pagemap >= 0:
            close(self.pagemap)

    @property
    def way(self) -> str:
        """How written pages are found: one of WAYS."""
        return "noted" if self.watch >= 0 else "looked up" if self.pagemap >= 0 else "dropped"

    cpdef int lend(self, int payload, uint64_t bytes) except -1:
        """Show what lies in a payload now, whose first `bytes` may be written from here on."""
        cdef uint64_t before = self.lent[payload], after = (bytes + self.page - 1) // self.page * self.page
        cdef char *at = self.base + payload * self.stride
        cdef uint64_t faults = page_faults() if max(before, after) >= LARGE else 0
        if before and (before < LARGE or self.pid != getpid() or not faults or faults != self.faults[payload]):
            self.looks += 1
            self.drop(at, before)
        if after > before:
            if self.watch >= 0 and written_forget(self.watch, at + before, after - before):
                PyErr_SetFromErrno(OSError)
            self.lent[payload] = after
        self.faults[payload] = faults
        return 0

    def address(self, int payload) -> int:
        """Where this payload begins in this view."""
        return <uint64_t>(self.base + payload * self.stride)

    cdef int drop(self, char *at, uint64_t bytes) except -1:
        """Drop the pages of this range that were written, and maybe others."""
        cdef int failed = -1
        if self.pid != getpid():    # the descriptors tell of the process that this one was forked from
            failed = -1
        elif self.watch >= 0:
            failed = written_drop(self.watch, self.pagemap, at, bytes)
        elif self.pagemap >= 0:
            with nogil:
                failed = written_drop_own(self.pagemap, at, bytes, self.page)
        if failed and madvise(at, bytes, MADV_DONTNEED):
            PyErr_SetFromErrno(OSError)
        return 0
