# cython: language_level=3, boundscheck=False, wraparound=False
"""The table of kept pictures, which several processes share: which are kept, which process keeps one, and the budget.
It counts pictures that were found, kept or missed.  NOTE [ Cache table ] in atomics.h.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport UINT64_MAX, uint8_t, uint64_t
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.types cimport pid_t
from posix.unistd cimport getpid

import os
from typing import NamedTuple

from atomics cimport (
    CACHE_CLAIM, CACHE_ENTRY, CACHE_LINES, CACHE_MAGIC, CACHE_UNIT, CACHE_VERSION, cache_claim,
    cache_claim_of, cache_count, cache_entry_of, cache_header, cache_line, cache_look, cache_pid, cache_place,
    cache_publish, cache_raise, cache_release, cache_reserve, cache_start, cache_state, cache_tag, ring_note,
    ring_noted, word_t,
)

cdef enum:
    PAGE = 1 << 16  # the largest page that a kernel for these processors has
    KEY = 16        # bytes: the first slot of a picture's probes, and its tag
    PROBES = 64     # slots that are probed for a picture; a table that needs more is nearly full

VERSION = CACHE_VERSION


class Figures(NamedTuple):
    """Counts of the processes of one dataset."""

    found: int
    kept: int
    missed: int         # decoded, but not kept because there was no room
    missed_bytes: int   # that the samples of those would take
    others: int         # pictures that the decoder does not take


cdef class CacheTable:
    """A table, and the bytes of its pictures after it in the same memory.  It has a read-only buffer of these.

    Args:
        fd: the memory.  The table does not close it.
        slots: a power of two: the memory is new, and becomes a table with that number of slots.  0: it is a table.
        budget: for a new table, the number of bytes that it may give out.

    Raises:
        ValueError: the memory is no table of this version.
        OSError: it cannot be mapped.
    """

    cdef cache_header *header
    cdef word_t *words
    cdef uint8_t *bytes
    cdef size_t mapped, bytes_mapped
    cdef readonly uint64_t slots
    cdef readonly uint64_t bytes_at     # the offset of the pictures' bytes in the memory

    def __cinit__(self, int fd, uint64_t slots=0, uint64_t budget=0):
        cdef cache_header header
        cdef bytes begin
        cdef void *at
        cdef uint64_t table_at = (sizeof(cache_header) + PAGE - 1) // PAGE * PAGE
        if slots:
            if slots & (slots - 1):
                raise ValueError(f"{slots} slots are no power of two")
            self.slots = slots
            self.bytes_at = table_at + (slots * 8 + PAGE - 1) // PAGE * PAGE
            os.ftruncate(fd, self.bytes_at + budget)
        else:
            begin = os.pread(fd, sizeof(uint64_t) * 5, 0)
            if len(begin) < <Py_ssize_t>(sizeof(uint64_t) * 5):
                raise ValueError("this memory is no table of pictures")
            memcpy(&header, PyBytes_AS_STRING(begin), sizeof(uint64_t) * 5)
            if header.magic != CACHE_MAGIC or header.version != CACHE_VERSION or header.table_at != table_at:
                raise ValueError("this memory is no table of pictures of this version")
            self.slots, self.bytes_at = header.slots, header.bytes_at
        size = os.fstat(fd).st_size
        if size < self.bytes_at or not self.slots or self.bytes_at != table_at + (self.slots * 8 + PAGE - 1) // PAGE * PAGE:
            raise ValueError("this memory is too small for its table of pictures")
        at = mmap(NULL, self.bytes_at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.header, self.mapped = <cache_header *>at, self.bytes_at
        self.words = <word_t *>(<uint8_t *>at + table_at)
        if size > self.bytes_at:
            at = mmap(NULL, size - self.bytes_at, PROT_READ, MAP_SHARED, fd, self.bytes_at)
            if at == MAP_FAILED:
                PyErr_SetFromErrno(OSError)
            self.bytes, self.bytes_mapped = <uint8_t *>at, size - self.bytes_at
        if slots:
            self.header.version, self.header.slots = CACHE_VERSION, slots
            self.header.table_at, self.header.bytes_at = table_at, self.bytes_at
            ring_note(&self.header.budget, budget)
            self.header.magic = CACHE_MAGIC

    def __dealloc__(self):
        if self.header != NULL:
            munmap(self.header, self.mapped)
        if self.bytes != NULL:
            munmap(self.bytes, self.bytes_mapped)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.bytes, self.bytes_mapped, True, flags)

    def __len__(self):
        return self.bytes_mapped

    cdef word_t *at(self, const uint64_t *key, uint64_t step) noexcept:
        return self.words + ((key[0] + step) & (self.slots - 1))

    def find(self, bytes key):
        """The offset of a picture's bytes, counted from the first picture's first byte; -1: it is not kept.

        Two pictures have the same slots and tag with probability 2 ** -26, so the caller must compare the stored key.
        """
        cdef uint64_t of[2]
        cdef uint64_t word, step
        if len(key) != KEY:
            raise ValueError(f"a key has {KEY} bytes")
        memcpy(of, PyBytes_AS_STRING(key), KEY)
        for step in range(<uint64_t>PROBES):
            word = cache_look(self.at(of, step))
            if cache_state(word) != CACHE_ENTRY:
                break
            if cache_tag(word) == cache_tag(cache_entry_of(of[1], 0)):
                return cache_place(word)
        return -1

    def takes(self, uint64_t bytes):
        """Whether that many more bytes fit.  Another process may take them first: see reserve()."""
        cdef uint64_t budget = ring_noted(&self.header.budget), used = ring_noted(&self.header.used)
        return not ring_noted(&self.header.full) and bytes <= budget and used <= budget - bytes

    def reserve(self, uint64_t bytes):
        """Reserve that many bytes for the caller alone; returns their offset, or -1 if they do not fit."""
        cdef uint64_t place = cache_reserve(self.header, (bytes + CACHE_UNIT - 1) // CACHE_UNIT * CACHE_UNIT)
        return -1 if place == UINT64_MAX else place

    def note_full(self):
        """Have no process keep more pictures; returns whether this was the first such call."""
        return cache_raise(&self.header.full, 1)

    def raise_budget(self, uint64_t bytes):
        """Raise the budget to that many bytes, unless it is larger already."""
        cache_raise(&self.header.budget, bytes)

    @property
    def is_full(self):
        """Whether note_full() was called, because the machine had no more memory."""
        return bool(ring_noted(&self.header.full))

    @property
    def used(self):
        """Bytes that were given out."""
        return ring_noted(&self.header.used)

    @property
    def budget(self):
        """Bytes that may be given out."""
        return ring_noted(&self.header.budget)

    # ------------------------------------------------------------------------------------------- what a dataset counts

    def new_line(self):
        """A new line of figures, all 0, for another dataset.  A machine's 64th dataset shares the first line again."""
        cdef int line = <int>(cache_count(&self.header.readers, 1) % CACHE_LINES)
        cdef cache_line *to = &self.header.lines[line]
        ring_note(&to.found, 0)
        ring_note(&to.kept, 0)
        ring_note(&to.missed, 0)
        ring_note(&to.missed_bytes, 0)
        ring_note(&to.others, 0)
        return line

    cdef cache_line *line(self, int number) except NULL:
        if not 0 <= number < CACHE_LINES:
            raise ValueError(f"there is no line {number}")
        return &self.header.lines[number]

    def count_found(self, int line):
        """Count a picture that was found."""
        cache_count(&self.line(line).found, 1)

    def count_kept(self, int line):
        """Count a picture that was decoded and kept."""
        cache_count(&self.line(line).kept, 1)

    def count_missed(self, int line, uint64_t bytes):
        """Count a picture that was decoded, but for which there was no room."""
        cdef cache_line *to = self.line(line)
        cache_count(&to.missed, 1)
        cache_count(&to.missed_bytes, bytes)

    def count_other(self, int line):
        """Count a picture that the decoder does not take."""
        cache_count(&self.line(line).others, 1)

    def figures(self, int line):
        """The counts of a line."""
        cdef cache_line *counts = self.line(line)
        return Figures(
            ring_noted(&counts.found), ring_noted(&counts.kept), ring_noted(&counts.missed),
            ring_noted(&counts.missed_bytes), ring_noted(&counts.others),
        )


@cython.no_gc_clear     # __dealloc__ writes into the table's memory
cdef class Claim:
    """One process's claim, to keep one picture.  Whatever happens in between, release() ends it.

    Args:
        table: the table.
        pid, start: of this process: see NOTE [ Cache table ].
    """

    cdef CacheTable table
    cdef word_t *word               # NULL: nothing is claimed
    cdef uint64_t mine, tag
    cdef pid_t process

    def __cinit__(self, CacheTable table, uint64_t pid, uint64_t start):
        self.table, self.process = table, getpid()
        self.mine = cache_claim_of(pid, start)

    def __dealloc__(self):
        if self.process == getpid():    # in a forked child the claim is still the parent's
            self.release()

    def take(self, bytes key, has_ended):
        """Claim the slot of a picture.

        Args:
            key: of the picture.
            has_ended: a function of a pid and a start time that returns whether that process is gone.

        Returns:
            Whether it is claimed.  If not, another process keeps it now or has kept it, or all its slots are taken.
        """
        cdef uint64_t of[2]
        cdef uint64_t word, step
        if len(key) != KEY or self.word != NULL:
            raise ValueError(f"a key has {KEY} bytes, and a claim one slot")
        memcpy(of, PyBytes_AS_STRING(key), KEY)
        for step in range(<uint64_t>PROBES):
            word = cache_look(self.table.at(of, step))
            if cache_state(word) == CACHE_ENTRY:
                if cache_tag(word) == cache_tag(cache_entry_of(of[1], 0)):
                    return False
                continue
            if cache_state(word) == CACHE_CLAIM and not has_ended(cache_pid(word), cache_start(word)):
                return False
            # No line of Python runs between the compare-and-swap and self.word, so no exception can lose a claim.
            if not cache_claim(self.table.at(of, step), word, self.mine):
                return False
            self.word, self.tag = self.table.at(of, step), of[1]
            return True
        return False

    def publish(self, uint64_t place):
        """Publish the entry, once the picture's bytes are complete at this offset.

        Returns:
            Whether that succeeded.  If not, another process took the claim over, and the bytes are lost.
        """
        cdef word_t *word = self.word
        if word == NULL:
            raise ValueError("nothing is claimed: take() first")
        self.word = NULL
        return cache_publish(word, self.mine, cache_entry_of(self.tag, place))

    cpdef release(self):
        """Release the claim, if there is one."""
        cdef word_t *word = self.word
        self.word = NULL
        if word != NULL:
            cache_release(word, self.mine)
