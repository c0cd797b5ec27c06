# cython: language_level=3
"""What a process sees of the payloads where others read them too.

NOTE [ Private view ]

Training code normalises in place.  What one reader writes, no other may see, and neither may the worker that fills the
slot next.  So each process that reads maps the payloads a second time, privately (MAP_PRIVATE).  Reading costs nothing
more than of a shared mapping.  The first write to a page gives this process a copy of it.  That copy hides what is
filled into the slot later, so before a payload is lent again, the pages that were written must be dropped.  Which ones?

    "noted"     The kernel notes first writes by itself (userfaultfd with asynchronous write protection, Linux 6.7), and
                one ioctl (PAGEMAP_SCAN) lists those pages.  About 15 us for 38 MB of which nothing was written.
    "looked up" /proc/self/pagemap says of each page whether it is the file's.  About 500 us for 38 MB.
    "dropped"   All pages are dropped, and mapped again: some milliseconds for 38 MB.  Where there is no /proc.

The first way that this machine allows is used.  The ring reserves more than there is memory, so MAP_NORESERVE.
A view lives as long as a batch is lent over it, since each lease keeps its ring and that keeps the view.
"""

from libc.stdint cimport uint64_t
from posix.types cimport pid_t


cdef class PrivateView:
    cdef char *base                     # where the first payload begins
    cdef Py_ssize_t size, stride
    cdef pid_t pid
    cdef int watch, pagemap
    cdef uint64_t page
    cdef uint64_t *lent                 # of each payload: bytes that may have been written, in whole pages

    cpdef int lend(self, int payload, uint64_t bytes) except -1  # show what lies there now; these bytes may be written
    cdef int drop(self, char *at, uint64_t bytes) except -1
