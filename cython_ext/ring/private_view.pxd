# cython: language_level=3
"""A process's private view of the payloads, so that no other process sees what this one writes into a batch.

NOTE [ Private view ]

Training code writes to batches, for example to normalise them.  Neither other readers nor the worker that fills the
slot next may see one reader's writes.  So each process that reads maps the payloads a second time, privately
(MAP_PRIVATE).  Reading costs no more than with a shared mapping.  The first write to a page gives this process its own
copy of the page.  Once the slot is filled again, that copy would hide the new batch.  So the written pages must be
dropped before a payload is lent again.  There are three ways to find them, and the first one that this machine allows
is used:

    "noted"     The kernel records first writes (userfaultfd with asynchronous write protection, Linux 6.7), and one
                ioctl (PAGEMAP_SCAN) lists those pages.
    "looked up" /proc/self/pagemap shows for each page whether it belongs to the file.
    "dropped"   If there is no /proc, all pages are dropped and mapped again, in some milliseconds for 38 MB.

docs/readers.md has the times that we measured for the first two.

A first write to a page is a page fault.  So if this process has had no page fault since it was lent the payload, it has
written to none of the pages, and need not look for any.  Looking takes 20 us for 38 MB, and reading the number of page
faults takes 1 us.  For a payload below 1 MB, looking takes less time, so the process does not read the number first.
The number counts the faults of all threads, so a trainer that allocates memory all the time looks each time.  Every
Linux process has had page faults.  So if the number is 0, the system does not count them (gVisor, or a filter of system
calls), and the process looks each time.  The kernel counts a fault for the process that causes it.  So if another
process writes into this one's memory (process_vm_writev, a debugger), that goes unnoticed.

The ring reserves more address space than there is memory, so the mapping has MAP_NORESERVE.  A view lives while a batch
is lent over it: the lease keeps its ring alive, and the ring keeps the view.
"""

from libc.stdint cimport uint64_t
from posix.types cimport pid_t


cdef class PrivateView:
    cdef char *base                     # where the first payload begins
    cdef Py_ssize_t size, stride
    cdef pid_t pid
    cdef int watch, pagemap
    cdef uint64_t page
    cdef uint64_t *lent                 # for each payload: how many bytes may have been written, in whole pages
    cdef uint64_t *faults               # for each payload: this process's page faults when it was lent
    cdef readonly uint64_t looks        # how often written pages were looked for

    cpdef int lend(self, int payload, uint64_t bytes) except -1  # show its present bytes, which may be written
    cdef int drop(self, char *at, uint64_t bytes) except -1
