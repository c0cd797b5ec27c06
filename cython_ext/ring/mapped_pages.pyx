# cython: language_level=3, boundscheck=False, wraparound=False
"""Maps the pages of a slot before a worker writes to them, so that there are fewer page faults.

A payload goes from worker to worker, and each has to map its pages for itself.  A write maps one, in 1 us; a read maps
all AROUND it that were ever written, by whomever.  Those that were not cost the same either way.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    static inline void ring_peek(const volatile char *at) { (void)*at; }
    """
    void ring_peek(const char *at) nogil

cdef enum:
    AROUND = 65536      # bytes, aligned, that the kernel maps with one read, by default (fault_around_bytes)


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

    cdef int before_write(self, uint64_t address, uint64_t bytes) except -1:
        """Have the kernel map those pages of these bytes that exist."""
        cdef uint64_t end = address + bytes, piece
        with nogil:
            while address < end:
                piece = address // AROUND - self.first
                if piece < self.most and not self.mapped[piece]:    # it may lie in a further room: NOTE [ Rooms ]
                    self.mapped[piece] = True
                    ring_peek(<char *>address)
                address = (address // AROUND + 1) * AROUND
        return 0
