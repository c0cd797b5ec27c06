# cython: language_level=3
"""A reader's side of a served loader: it receives messages, and gives leases over the server's slots, or over copies.
No signal's handler can break off its methods, and what has come is given again until took(), so an exception of a
handler loses no batch.

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

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EAGAIN, ECONNRESET, EINTR, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from posix.stdlib cimport posix_memalign
from posix.types cimport pid_t
from posix.unistd cimport close, getpid

from atomics cimport RING_VERSION
from shmloader.core.tensors cimport copy_bytes
from shmloader.core.lease cimport Lease, answer_copy
from shmloader.core.ring cimport FILLED, Ring, check_index, overwritten

cdef extern from *:
    """
    #include <poll.h>
    #include <sys/socket.h>

    static int served_wait(int sock, int death)     /* for a message, a death or a signal; whether only the death came */
    {
        struct pollfd both[2] = {{sock, POLLIN, 0}, {death, POLLIN, 0}};
        return poll(both, 2, -1) > 0 && !both[0].revents && both[1].revents;
    }
    """
    enum: MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RDWR
    int served_wait(int sock, int death) nogil
    ssize_t recv(int sock, void *data, size_t size, int flags)
    ssize_t send(int sock, const void *data, size_t size, int flags)
    int shutdown(int sock, int how)

VERSION = RING_VERSION, 2   # of what workers write, and of the messages
MOST_IN_SOCKET = 4096       # bytes of a message; further ones find room in the socket
cdef enum:
    MOST = 4096
    PAGE = 4096
    IDLE = 4                # buffers that are kept for the next batches
    MUCH = 4                # a buffer that is so many times too large is freed

cdef uint64_t TAKEN = <uint64_t>1 << 63     # connection.py

cdef struct buffer:
    char *at
    uint64_t room


cdef class ServedSide(Ring)


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Loan:
    """The memory of one batch, which lives as long as the batch's lease."""
    cdef ServedSide side
    cdef buffer copy            # NULL: it is the slot
    cdef uint64_t number

    def __dealloc__(self):  # in any thread, with the GIL, and no call of Python
        if self.copy.at != NULL:
            self.side.put_buffer(&self.copy)
        elif self.side is not None:
            self.side.shared -= 1
            self.side.give_back(self.number)


@cython.final
cdef class ServedSide(Ring):
    """The messages and the memory of a server.  It closes the connection when it dies.

    Args:
        memory: the mapping and the geometry, as a segment has them.
        sock: the socket, which is this object's from here on.
        beside: the second file; it may be closed afterwards.
        death: readable when the server has ended, or -1; as `beside`.
    """
    cdef int sock, death, beside
    cdef pid_t owner            # the process that has connected
    cdef int inside             # threads that are in receive()
    cdef bint closed
    cdef list queue             # messages that have come
    cdef readonly int shared    # slots that batches of this process lie in
    cdef buffer idle[IDLE]
    cdef int idle_count
    cdef Lease last             # until took()
    cdef list parts             # whose texts it refers to
    cdef uint64_t number        # of its batch
    cdef bint was_lent

    def __cinit__(self, memory, sock, int beside, int death):
        self.sock = self.beside = self.death = -1
        self.owner, self.queue = getpid(), []
        self.beside = os.dup(beside)
        self.death = os.dup(death) if death >= 0 else -1
        self.sock = sock.detach()

    def __dealloc__(self):
        cdef int k
        self.close_all()
        for k in range(self.idle_count):
            free(self.idle[k].at)

    # ------------------------------------------------------------------------------------------------ messages

    def receive(self):
        """The next message, the same one until took(); None: the server has ended, or this side was closed.

        Raises:
            RuntimeError: this process was forked from the one that connected.
        """
        cdef bint dead = False
        if self.owner != getpid():
            raise RuntimeError("This iterator belongs to the process that made it. This process was forked from that "
                               "one. Iterate in the process that attached, or attach here.")
        self.inside += 1
        try:
            while not self.queue and not self.draw() and not self.closed and not dead:
                with nogil:
                    dead = served_wait(self.sock, self.death)
                PyErr_CheckSignals()
                dead = dead and not self.draw()
            return self.queue[0] if self.queue else None
        finally:
            self.inside -= 1
            if self.closed and not self.inside:
                self.close_all()

    def messages(self) -> list[bytes]:
        """All messages that have come and were not taken."""
        while self.draw():
            pass
        return list(self.queue)

    cdef bint draw(self) except -1:
        """Move a message from the socket to the queue; false: there is none."""
        cdef char[MOST] data
        cdef ssize_t got = -1
        while not self.closed:
            got = recv(self.sock, data, MOST, MSG_DONTWAIT)
            if got > 0:
                self.queue.append(PyBytes_FromStringAndSize(data, got))
                return True
            if got == 0:
                self.closed = True
            elif errno == EAGAIN:
                return False
            elif errno != EINTR and errno != ECONNRESET:    # after that one, what the server had sent comes
                PyErr_SetFromErrno(OSError)
        return False

    def took(self, uint64_t back=0) -> None:
        """The message that receive() gave was used.

        Args:
            back: the number that is sent back for it; 0: none.
        """
        if back:
            self.give_back(back)
        self.last = self.parts = None       # from here on only the batch's tensors keep the lease
        del self.queue[:1]

    cdef bint give_back(self, uint64_t number) noexcept:
        """Send a number back; false if the server cannot receive it.  Not in a process that was forked."""
        if self.owner != getpid():
            return True
        return self.sock >= 0 and send(self.sock, &number, sizeof(number), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0

    def text_beside(self, Py_ssize_t at, Py_ssize_t size) -> bytes:
        """A long message."""
        return os.pread(self.beside, size, at)

    def close(self) -> None:
        """Leave the server.  Twice does no harm."""
        self.closed, self.last = True, None
        if self.inside:
            shutdown(self.sock, SHUT_RDWR)  # wakes the thread that waits, which then closes the rest
        else:
            self.close_all()

    cdef void close_all(self) noexcept:
        if self.sock >= 0:
            if self.owner == getpid():      # otherwise a process that was forked from this one keeps it open
                shutdown(self.sock, SHUT_RDWR)
            close(self.sock)
        for fd in (self.beside, self.death):
            if fd >= 0:
                close(fd)
        self.sock = self.beside = self.death = -1

    # ------------------------------------------------------------------------------------------------ batches

    def lease(self, uint64_t number, bint copies, int payload, uint64_t used, tuple table, int rows, listed,
              list parts, Py_ssize_t at):
        """A lease over a batch, the same one until took().

        Args:
            number: the batch's.
            copies: whether the slot's bytes are copied into a buffer.
            payload: its slot.
            used: its bytes.
            table: where the table of its pickled leaves lies: offset and size.
            rows: of the batch, if it was made in chunks; otherwise 0.
            listed: for each chunk, its rows; None: they are consecutive.
            parts: for each chunk a text (description, plan, pickled leaves), the sizes of the first two, and its row.
            at: where the bytes lie in the second file; -1: in the slot.

        Returns:
            The lease, and whether the server still lent the slot when it was copied, or when its sharing was announced.
        """
        cdef Lease lease = Lease.__new__(Lease)
        cdef Loan loan = Loan.__new__(Loan)
        cdef answer_copy *answer
        cdef int k
        if self.last is not None and self.number == number:     # the slot may be filled again already
            return self.last, self.was_lent
        lease.answers, lease.payload, lease.ring = &lease.whole, -1, self
        if len(parts) > 1:
            lease.answers = <answer_copy *>calloc(len(parts), sizeof(answer_copy))
            if lease.answers == NULL:
                raise MemoryError()
        lease.chunks, lease.rows, lease.listed, self.parts = len(parts), rows, listed, parts
        for k in range(lease.chunks):
            answer = &lease.answers[k]
            text, meta, plan, answer.row = parts[k]
            answer.area, answer.outcome, answer.used = PyBytes_AS_STRING(text), FILLED, used
            answer.meta_size, answer.plan_at, answer.plan_size = meta, meta, plan
            answer.objects_at, answer.objects_size = (meta + plan, len(text) - meta - plan) if rows else table
        check_index("payload", payload, self.payloads)
        if used > <uint64_t>self.slot_stride:
            raise overwritten("a batch's size", used, self.slot_stride)
        lease.used = lease.room = lease.bytes = used
        lease.data = self.slot(payload)
        loan.number, self.was_lent = number, True
        if at < 0 and not copies:
            loan.side = self
            self.shared += 1
            self.was_lent = self.give_back(number | TAKEN)
        else:
            self.take_buffer(used, &loan.copy)
            loan.side, lease.data = self, loan.copy.at
            if at >= 0:
                if os.preadv(self.beside, [lease], at) != lease.bytes:
                    raise overwritten("the file of long messages", at, "not there")
            else:
                copy_bytes(<uint64_t>loan.copy.at, <uint64_t>self.slot(payload), used)
            self.was_lent = self.give_back(number)
        lease.loan = loan
        self.last, self.number = lease, number
        return lease, self.was_lent

    cdef int take_buffer(self, uint64_t bytes, buffer *taken) except -1:
        cdef void *at = NULL
        while self.idle_count:
            self.idle_count -= 1
            taken[0] = self.idle[self.idle_count]
            if bytes <= taken.room <= MUCH * (bytes + PAGE):
                return 0
            free(taken.at)
        taken.at, taken.room = NULL, (bytes // PAGE + 1) * PAGE
        if posix_memalign(&at, PAGE, taken.room):
            raise MemoryError(f"there is no memory to copy a batch of {bytes} bytes into. Drop batches that you keep.")
        taken.at = <char *>at
        return 0

    cdef void put_buffer(self, buffer *taken) noexcept:
        if self.idle_count == IDLE:
            free(taken.at)
        else:
            self.idle[self.idle_count] = taken[0]
            self.idle_count += 1
