# cython: language_level=3
"""The conductor's accounts of the other processes that read its batches.

NOTE [ Readers ]

The batches of one ring may go to several processes of a machine.  One is the **conductor**: it draws, opens, revokes
and counts, as a trainer does that reads alone.  It may read too, by its own accounts (Slots), as ever.  The others are
**readers**: they take batches in order and lend them.  Each has an index from 0 to 31, and a bit for it.

One word a payload says who reads it elsewhere: `due:32 | held:32`, a bit a reader in each.  `due` are those that have
not taken its batch yet, `held` those that read or lend it.

    conductor: open(s)      picks a payload whose word is 0; due = all readers that are there; then OPEN(s) as ever
    worker:    publish()    as ever; then rings the readers' bell too, on which all of them sleep
    reader:    take(s)      sees READY(s), copies what the workers wrote out of the entries, and then moves its bit from
                            due to held, with one CAS.  If due is 0 now, it rings the conductor's bell
    reader:    let go       its lease dies: clears its bit in held.  If the word is 0 now, it rings that bell
    conductor: admit()      gives an index.  Only what is opened later names it, or what is named to it now: batches that
                            the ring still has, whose payloads nobody was given since
    conductor: drop(r)      clears its bit in due of all payloads.  A bit that has moved to held stays
    conductor: bury(r)      r is dead (its pidfd is readable), or it has closed and holds nothing: clears both
                            bits, and tolls both bells.  Only now may the index be given again

    1. Entry s is opened as s + R when no reader is due for s, and the conductor has taken it.  Readers take in order,
       so one number, `all_took`, says up to where that is so.
    2. A payload is filled when its word is 0 and the conductor does not lend it.
    3. A reader's copy of the entries may be torn only if the reader was dropped meanwhile: while it is due, they are
       not opened again.  Then its CAS fails, and it drops what it copied.
    4. The word needs no generation.  A dropped reader's bit is never set again while that reader may still take, so its
       CAS cannot meet a word that looks the same and is not.  A reader that lives first makes sure that it takes nothing
       more (AttachedSide.leave()), and then closes its connection.  Its bit is given again only when it is in no word.
       Otherwise the death of the next reader with that bit would free what the first one lends.
    5. A reader that holds `spare` payloads copies the next batch out and lets go at once.  So the ring has one payload
       for each batch under way, and the spares of all; the conductor waits for nobody's tensors, only for a copy.
    6. open(), admit(), drop() and bury() call no Python, so the GIL makes each of them one step for the others.
    7. A reader killed between clearing a bell's sleeper bit and FUTEX_WAKE leaves others asleep.  So bury() tolls the
       conductor's bell, which readers ring, and the readers' own, which the thread that listens to the conductor tolls.
       A worker may die in the same place, so its death tolls both as well.
    8. Nobody is there to read, and the conductor does not read either: it opens nothing, and what is ready stays.

Rare events are messages over a socket: an epoch begins or ends, an error comes, the reader was dropped.  A reader's
thread receives them, and raises the reader's alarm for each.  The same thread sees the conductor's death, by its pidfd.

tests/core/model/readers_model.py has all this in every interleaving, with the faults that break it.
"""

from libc.stdint cimport uint32_t, uint64_t

from atomics cimport ring_header, ring_payload
from shmloader.core.free_slots cimport Slots
from shmloader.core.sequences cimport Sequences, ring_given


cdef class Readers:
    cdef Sequences sequences
    cdef Slots slots
    cdef ring_header *header
    cdef ring_payload *payload
    cdef int payloads, entries, batches
    cdef public bint reads              # whether the conductor's process reads too; otherwise it may pause
    cdef readonly uint32_t live         # bits of those that what is opened now is due for
    cdef readonly uint32_t known        # bits of those whose process may still be there
    cdef readonly uint64_t all_took     # the lowest sequence that somebody is due for, or that the conductor has not taken
    cdef int behind                     # batches from there on that are open
    cdef uint64_t *opened_for           # of each payload: the sequence it was opened for last, plus 1
    cdef uint64_t *epoch_of             # of each entry: the epoch of its batch

    cdef void advance(self) noexcept
    cdef bint have_room(self, int chunks, int most) noexcept
    cdef void open(self, ring_given *given, uint64_t epoch) noexcept    # its payload is about to be opened for this batch
    cdef void strike(self, int reader, bint dead) noexcept
    cdef uint64_t oldest(self) noexcept                                 # of the batches that the ring still has whole
    cdef void toll(self) noexcept nogil
