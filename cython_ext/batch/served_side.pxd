# cython: language_level=3
"""A reader's side of a served loader: it receives messages, and gives leases over the server's slots, or over copies.

NOTE [ Readers on leases ]

`shmloader serve` takes batches as any trainer does, and the ring knows nothing of its readers.  The server sends each
reader the descriptions and plans of a batch, as the workers wrote them, and the number of its slot.  It holds the
batch's lease until all readers have sent the batch's number back, so no worker fills the slot before.

    1. A reader maps the memory once.  The slots are in a memfd from the start and stay where they are, because a slot
       that moved would be in another file, or at another address.
    2. By default, a reader copies a batch into a buffer of its own and sends it back at once.  Its writes are its own,
       and it may keep the batch.  When the batch dies, the buffer is used again.
    3. With copy=False, tensors lie over the slot.  When the last of them dies, in whatever thread, the lease's Loan
       dies, which sends the batch back.  Several readers may keep batches of different times, and so all slots but
       one.  The server sends what lies in the last slot as one to copy, so that slot is never kept.
    4. The server may drop a reader that is too slow, and let its slots be filled again.  It closes the connection
       first.  A copy is sent back after it was made.  So if that fails, the slot may have been filled meanwhile, and
       the copy counts only if the server has not dropped this reader but ended.  A reader that shares announces that
       before it reads a slot.  What it has announced stays lent until it lets go of all, or ends.
    5. When the server ends, nobody fills the slots that are lent.  The memory lives as long as a process maps it.
    6. What the socket or the lease cannot hold lies in a second file, `beside`: long messages, and the bytes of batches
       that their workers keep.  Readers always copy these.
    7. The kernel reports the death of the process at the other end.  The socket alone does not, while a process that
       was forked from that one keeps it open.
"""

from libc.stdint cimport uint64_t
from posix.types cimport pid_t

from shmloader.core.lease cimport Lease
from shmloader.core.ring cimport Ring

cdef enum:
    IDLE = 4            # buffers that are kept for the next batches

cdef struct buffer:
    char *at
    uint64_t room


cdef class Loan:                        # the memory of one batch, which lives as long as the batch's lease
    cdef ServedSide side
    cdef buffer copy                    # NULL: it is the slot
    cdef uint64_t number


cdef class ServedSide(Ring):
    cdef int sock, death, beside
    cdef pid_t owner                    # the process that has connected
    cdef int inside                     # threads that are in receive()
    cdef bint closed
    cdef list queue                     # messages that have come
    cdef readonly int shared            # slots that batches of this process lie in
    cdef buffer idle[IDLE]
    cdef int idle_count
    cdef Lease last                     # until took()
    cdef list parts                     # whose texts it refers to
    cdef uint64_t number                # of its batch
    cdef bint was_lent

    cdef bint draw(self) except -1      # move a message from the socket to the queue; false: there is none
    cdef bint give_back(self, uint64_t number) noexcept
    cdef int take_buffer(self, uint64_t bytes, buffer *taken) except -1
    cdef void put_buffer(self, buffer *taken) noexcept
    cdef void close_all(self) noexcept
