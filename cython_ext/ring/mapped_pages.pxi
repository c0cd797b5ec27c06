"""Maps the pages of a slot before a worker writes to them, so that there are fewer page faults.

A payload goes from worker to worker, and each has to map its pages for itself.  A write maps one, in 1 us; a read maps
all AROUND it that were ever written, by whomever.

Pages that nobody has written yet are the ones that the slot has just got.  The kernel fills such a page with zeros when
it is mapped, and not when it is allocated.  So it is asked to map many with one call, which takes a third less time for
a batch of 300 MB than one page fault for each.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from posix.mman cimport madvise
from posix.unistd cimport _SC_PAGESIZE, sysconf

cdef extern from *:
    """
    static inline void ring_peek(const volatile char *at) { (void)*at; }
    """
    void ring_peek(const char *at) nogil

cdef enum:
    AROUND = 65536      # bytes, aligned, that the kernel maps with one read, by default (fault_around_bytes)
    AT_ONCE = 1 << 20   # bytes, aligned, that it is asked to map; other threads may map memory in between
    POPULATE_WRITE = 23     # MADV_POPULATE_WRITE, since Linux 5.14; older headers do not have it

cdef uint64_t PAGE = sysconf(_SC_PAGESIZE)


@cython.final
cdef class MappedPages:
    """Maps pages before they are written, once each.

    Args:
        base: the address of the ring's mapping.
        size: its bytes.
    """

    def __cinit__(self, uint64_t base, uint64_t size):
        self.first, self.most = base // AROUND, size // AROUND + 2
        self.mapped = <uint8_t *>calloc(self.most, 1)
        if self.mapped == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.mapped)

    cdef int follow(self, uint32_t folds) except -1:
        """Begin once more if payloads have given their pages back since then, which the ring counts in `folds`."""
        cdef uint8_t *mapped
        if folds == self.folds:
            return 0
        mapped = <uint8_t *>calloc(self.most, 1)    # not memset(): it would touch a page for each 256 MiB of the ring
        if mapped == NULL:
            raise MemoryError()
        free(self.mapped)
        self.mapped, self.folds = mapped, folds
        return 0

    cdef int before_write(self, uint64_t address, uint64_t bytes, uint64_t fresh) except -1:
        """Have the kernel map those pages of these bytes that were written before, and those from `fresh` on."""
        cdef uint64_t end = address + bytes, piece, after
        with nogil:
            while address < end:
                if address >= fresh:
                    after = min((address // AT_ONCE + 1) * AT_ONCE, end)
                    address -= address % PAGE
                    if not madvise(<void *>address, after - address, POPULATE_WRITE):
                        address = after
                        continue
                    fresh = end         # this kernel cannot, so each page is mapped when it is written
                piece = address // AROUND - self.first
                if piece < self.most and not self.mapped[piece]:    # it may lie in a further room: NOTE [ Rooms ]
                    self.mapped[piece] = True
                    ring_peek(<char *>address)
                after = (address // AROUND + 1) * AROUND
                address = min(after, fresh) if address < fresh else after
        return 0
