# cython: language_level=3
"""The conductor's records of the other processes that read its batches.

NOTE [ Readers ]

Several processes of a machine may read the batches of one ring.  One of them is the **conductor**.  It draws indices,
opens batches, revokes claims and keeps the counts, as a trainer without readers does.  It may also read batches itself.
In that case Slots records which payloads it lends; the words below do not.  The other processes are **readers**: they
take batches in order and lend them.  Each reader has an index k from 0 to 31.  Bit k in the words below is its bit.

Each payload has one word, `due:32 | held:32`, with a bit for each reader in both halves.  A reader is *due* until it
has taken the payload's batch.  It *holds* the payload while it reads or lends it.

    conductor: open(s)      picks a payload whose word is 0, sets due to all living readers, then writes OPEN(s)
    worker:    publish()    also rings the readers' bell, on which all readers sleep
    reader:    take(s)      sees READY(s), copies the workers' descriptions out of the entries, and moves its bit from
                            due to held, with one CAS.  If no reader is due any longer, it rings the conductor's bell
    reader:    let go       when its lease dies, clears its bit in held.  If the word is then 0, it rings the
                            conductor's bell
    conductor: admit()      gives a new reader an index.  The reader becomes due for all batches that are opened later.
                            It may also become due for batches that the ring still has, if their payloads were not
                            given to other batches since
    conductor: drop(r)      clears r's bit in due, in all payloads, and leaves r's bit in held.  If no reader is left,
                            the conductor remembers the lowest sequence that r was due for, and the next reader begins
                            there
    conductor: bury(r)      clears both bits of r, and tolls both bells: it rings them, and wakes sleepers even if the
                            sleeper bit is already cleared (ring_toll).  The conductor does this when r is dead (its
                            pidfd is readable), or has closed and holds nothing.  Only then may another reader get the
                            index

    1. The entry of s may be used for s + R once no reader is due for s and the conductor has taken s.  Readers take in
       order, so one number is enough: `all_took`, the lowest sequence that a reader or the conductor has not taken yet.
    2. A payload may be filled again once its word is 0 and the conductor does not lend it.
    3. While a reader is due for a batch, the entries of that batch are not opened again.  So the descriptions that the
       reader copies are whole.  If the reader was dropped meanwhile, its copy may be torn.  But then its CAS fails, and
       it discards the copy.
    4. The word needs no generation counter.  A dropped reader may still try to take a batch.  As long as that is
       possible, its bit is not set in any word's `due` again.  So its CAS fails, however the word has changed in the
       meantime.
       To leave, a reader makes sure that it takes nothing more (AttachedSide.leave()), and only then closes its
       connection.  Another reader gets the same bit only when no word has that bit.  Otherwise the death of the new
       owner of the bit would free payloads that its former owner still lends.
    5. A reader that holds `spare` payloads copies the next batch out, and lets its payload go at once.  So the ring
       needs one payload for each batch under way, and `spare` more for each reader.  The conductor may wait until such
       a copy is made, but never until a tensor dies.
    6. open(), admit(), drop() and bury() call no Python.  So the GIL makes each of them one step for other threads.
       Tasks are written into the entries before open(), and pickling a task may call Python.  Meanwhile another thread
       may admit a reader.  So the conductor reserves the entries first (reserve()).  A reserved entry may still
       describe an old batch, and admit() gives no reader that batch.
       admit() may give a new reader a batch whose payload is free already, because the payload keeps its bytes until
       another batch is written into it.  Then admit() sets the reader's bit in `due`, and the payload is not free any
       longer.  That may happen between reserve() and open().  So the conductor looks for a free payload again before
       open().
    7. A process wakes others by clearing a bell's sleeper bit and then calling FUTEX_WAKE.  If it is killed between the
       two, the others sleep on.  So each death tolls the bells.  If a reader dies, bury() tolls both bells.  If a
       worker dies, the conductor tolls both.  Each reader has a thread that listens to the conductor.  If the
       conductor dies, these threads toll the readers' bell.
    8. If there is no reader, and the conductor does not read itself, it opens nothing.  Ready batches stay ready.

Rare events are messages over a socket: an epoch begins or ends, an error comes, the reader was dropped.  In each reader
a thread receives them, and raises the reader's alarm for each.  The same thread notices the conductor's death, by its
pidfd.

tests/core/model/readers_model.py explores every interleaving of all this.  It also checks that deliberately broken
versions of the protocol fail.
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
    cdef readonly uint32_t live         # readers that become due for a batch opened now: their bits
    cdef readonly uint32_t known        # readers whose processes may still exist: their bits
    cdef readonly uint64_t all_took     # the lowest sequence that a reader is due for, or the conductor has not taken
    cdef uint64_t untaken               # where the last reader left: the lowest sequence that it was due for then
    cdef int behind                     # how many batches from there on are open
    cdef uint64_t reserved              # tasks of sequences below it may have been written over what their entries had
    cdef uint64_t *opened_for           # for each payload: the last sequence it was opened for, plus 1
    cdef uint64_t *epoch_of             # for each entry: the epoch of its batch

    cdef void advance(self) noexcept
    cdef bint have_room(self, int chunks, int most) noexcept
    cdef void reserve(self, int chunks) noexcept
    cdef void open(self, ring_given *given, uint64_t epoch) noexcept    # a payload is about to be opened for this batch
    cpdef uint64_t joins_at(self) noexcept                               # where a reader begins that names no batch
    cdef void strike(self, int reader, bint dead) noexcept
    cdef uint64_t oldest(self) noexcept                                 # of the batches that the ring still has whole
    cdef void toll(self) noexcept nogil
