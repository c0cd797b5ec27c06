# cython: language_level=3
"""The step from one batch to the next: NOTE [ One step ]."""

import _thread
import os

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint64_t

from clock cimport now
from shmloader.core.indices cimport RAISED, Indices
from shmloader.core.indices import NOTHING
from shmloader.core.trainer cimport TrainerSide

END = object()  # Steps.next(): the epoch is at its end
cdef object end = END, nothing = NOTHING
cdef uint64_t forks = 0     # how many lie between this process and the one that imported this


def _was_forked() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_was_forked)


@cython.final
cdef class Steps:
    """The step from one batch to the next, which no signal and no other thread can fall into.

    NOTE [ One step ]

        1. A signal handler may raise (Ctrl-C: KeyboardInterrupt) between any two lines of Python, but not in here, save
           where Python is called.  So what is under way is kept in here: the index that was drawn and is not opened,
           the batch that was taken and is not handed out.  The next call goes on from there, and no batch is lost but
           one that next() had given already.  The same holds for an index that cannot be opened: the error comes from
           the next() that asked for more, and the following next() returns the batch, and opens nothing, or a lack of
           memory that lasts would keep back batches that are made.
        2. What can be lost is the sampler's place, if the handler raised in the sampler: a generator ends by that.
           Then the indices are drawn anew up to there, or it is said that they cannot be (indices.py).
        3. Two threads may call next() of one iterator.  One of them is in here, the others wait until it has left, on a
           lock that nobody touches otherwise.  The GIL makes looking at `occupied` and setting it one step.
        4. A process that is forked has a copy of all this, but the ring is one: if it opened and took what its parent
           opens and takes, both would lose batches and get each other's.  So in there it is an error.
        5. Where epochs overlap, a sampler that has no more is asked for its next epoch (next_epoch.py), whose batches
           are opened while those of this one are taken.  This one is over when all that is under way is `ahead` of it.
           What goes wrong with the next one is not this one's affair: it is begun anew at its iter(), where it is told.
        6. If an index cannot be opened, next() first hands out all batches before it, and then tries again.  An error
           there comes in the batch's place and counts as it.  A lack of memory is not the batch's fault, so that index
           stays, and the next call tries once more.
        7. Only here is an epoch found to be over: the sampler gives no more, and all that was opened was handed out.  An
           iterator that is closed, or interrupted, also gives END, but its epoch stays where it is.
        8. What the sampler raises comes in place of the batch in hand, which is dropped, because torch drops it, and
           who goes on behind an error is to get what torch gives.  It counts as that batch, as any error in a batch's
           place does: otherwise all that is counted behind it would be one batch short, and a resume would repeat one.
        9. The thread that is in here may come by again: from a signal handler, or from a sampler that iterates over its
           own loader.  That can only be an error.

    Args:
        ring: the trainer's side.
        most: batches that may be under way.
        wrapper: the class of what comes in place of a batch that raised.
    """
    cdef TrainerSide ring
    cdef object wrapper
    cdef public int most
    cdef Indices source                 # gives the indices
    cdef object drawn                   # an index that is not opened yet
    cdef object ready                   # a batch that is not handed out yet
    cdef bint refused                   # `drawn` could not be opened
    cdef uint64_t born                  # `forks`, where it was made
    cdef int ahead                      # batches under way that are of the next epoch
    cdef bint overlaps                  # what is drawn, and opened, is of the next epoch
    cdef bint turns_over                # whether the next epoch is to be begun once the sampler has no more
    cdef readonly bint spoilt           # the next epoch cannot be opened
    cdef bint occupied
    cdef unsigned long occupant         # the thread
    cdef int queued                     # threads that wait for their turn
    cdef object turn

    def __cinit__(self, TrainerSide ring, int most, wrapper=None):
        self.ring, self.most, self.born, self.wrapper = ring, most, forks, wrapper
        self.drawn = self.ready = nothing
        self.turn = _thread.allocate_lock()
        self.turn.acquire()

    cdef int enter(self) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.born != forks:
            raise RuntimeError("this iterator belongs to the process that made it, and this one was forked from that: "
                               "iterate over the DataLoader anew in here")
        if self.occupied:
            if self.occupant == me:
                raise RuntimeError("next() was called while this thread is in next() of the same iterator: from a "
                                   "signal handler, or from a sampler that iterates over its own DataLoader")
            self.queued += 1
            try:
                while self.occupied:
                    self.turn.acquire()
            finally:
                self.queued -= 1
        self.occupied, self.occupant = True, me
        self.ring.inside += 1
        return 0

    cdef int leave(self) except -1:
        self.occupied = False
        self.ring.inside -= 1
        self.ring.drop_words()
        if self.queued and self.turn.locked():
            self.turn.release()
        return 0

    def next(self, iterator):
        """The next batch, or the ExceptionWrapper in its place; END at the end of the epoch, or of a closed ring.

        Args:
            iterator: what knows the rest.  Called are its
                _await(): wait until the ring has the next batch ready; StopIteration: the iterator was ended.
                _read(): the batch of the ring's lend().
                _worker_ended(worker): the worker has nothing more to give in this epoch, which _read() told by NOTHING.
                _open(index): give the index to workers; false while there is no room.
                _begin_next(): the source of the next epoch's indices, or None if it is not to be begun yet.
        """
        self.enter()
        try:
            self.ring.turns.ask(now())
            if self.ready is nothing:   # otherwise an earlier call took it, and failed when it asked for more
                if not self.fetch(iterator):
                    return end
                self.refill(iterator)
            self.ring.hand_out()
            ready = self.ready
            self.ready = nothing
            if type(ready) is not self.wrapper:     # next() gives no batch where it raises
                self.ring.turns.hand_out(now())
            return ready
        finally:
            self.ring.turns.leave()
            self.leave()

    cdef bint fetch(self, iterator) except -1:
        """Have the next batch `ready`; false where there is none: the epoch is over, or the ring was closed."""
        cdef TrainerSide ring = self.ring
        cdef object batch
        while not ring.mapping.closed:
            if ring.under_way <= self.ahead and ring.unread is None:
                if not self.overlaps and not (self.source is not None and self.source.last == RAISED):
                    self.fill(iterator)     # an index may be left that could not be opened, or not be drawn
                if ring.under_way <= self.ahead and not ring.mapping.closed:
                    ring.delivered.over = True
                    return False
                continue
            if ring.unread is None and (ring.alarmed or not ring.sequences.is_ready()):
                iterator._await()
                continue
            batch = iterator._read()
            if batch is nothing:
                ring.stream_ended(ring.unread.owner)
                iterator._worker_ended(ring.unread.owner)
                ring.took()
                self.refill(iterator)
                continue
            self.ready = batch
            ring.took()
            return True
        return False

    def begin(self, iterator, Indices source, bint turns_over=False) -> None:
        """Open an epoch's first batches.  None of the one before may be under way.

        Args:
            turns_over: whether the next one is begun while this one's last batches are under way.
        """
        self.enter()
        try:
            self.source = source
            self.refused = False
            self.drawn = self.ready = nothing
            self.go_on(iterator, turns_over)
        finally:
            self.leave()

    def turn_over(self, iterator, Indices source, bint turns_over) -> None:
        """The epoch that was next is this one now.  Nothing else may be under way."""
        self.enter()
        try:
            if not self.overlaps:   # a handler raised behind _begin_next(), and the epoch before has ended since
                self.source = source
                self.refused = False
                self.drawn = nothing
            self.go_on(iterator, turns_over)
        finally:
            self.leave()

    cdef int go_on(self, iterator, bint turns_over) except -1:
        self.ring.turns.new_epoch(self.ring.epoch)
        self.overlaps = self.spoilt = False
        self.ahead, self.turns_over = 0, turns_over
        return self.refill(iterator)

    def drain(self, iterator, bint next_too=True) -> None:
        """Wait for all that is under way, and drop it: the epoch was left before its end.

        Args:
            next_too: whether what is under way of the next epoch is dropped as well.
        """
        cdef TrainerSide ring = self.ring
        self.enter()
        try:
            self.ready = nothing
            ring.took()
            ring.keep_state()       # the stream has gone on, though its batch is dropped
            if next_too:
                self.ahead = 0
            while ring.under_way > self.ahead:
                if ring.alarmed or not ring.sequences.is_ready():
                    iterator._await()
                else:
                    ring.lend()
                    ring.took()
                    ring.keep_state()
        finally:
            self.leave()

    cdef int refill(self, iterator) except -1:
        """Open batches for as long as there is room, of this epoch and then of the next."""
        if not self.overlaps and (not self.fill(iterator) or not self.turns_over):
            return 0
        if self.spoilt:
            return 0
        try:
            if not self.overlaps:
                source = iterator._begin_next()
                if source is None:
                    return 0
                self.source, self.overlaps = source, True
            self.fill(iterator)
        except Exception:
            self.spoilt = True
        return 0

    cdef bint fill(self, iterator) except -1:
        """Open batches for as long as there is room; true where the sampler has no more."""
        cdef TrainerSide ring = self.ring
        cdef uint64_t before
        while ring.under_way < self.most and not ring.mapping.closed:
            if self.drawn is nothing:
                self.drawn = self.draw()
                if self.drawn is nothing:
                    return True
            elif self.refused and self.waits_its_turn():
                return False
            before = ring.opened
            try:
                if not iterator._open(self.drawn):
                    return False
            except Exception as error:
                if ring.opened == before:
                    if self.waits_its_turn() and not isinstance(error, SystemError):    # that is a fault of ours
                        self.refused = True
                        return False
                    self.refuse(error)
                raise
            finally:
                if ring.opened != before:
                    self.drawn, self.refused = nothing, False
                    self.ahead += self.overlaps
        return False

    cdef bint waits_its_turn(self) noexcept:
        """Whether batches before the index that was drawn are still to be handed out."""
        return not self.overlaps and (self.ready is not nothing or self.ring.under_way > self.ahead)

    cdef int refuse(self, error) except -1:
        """The index that was drawn cannot be opened: keep it, or have the error count as its batch."""
        if self.overlaps or isinstance(error, (MemoryError, OSError)):
            self.refused = True
        else:
            self.ring.pass_over(self.drawn)
        return 0

    cdef object draw(self):
        """The sampler's next index; NOTHING where it has no more."""
        try:
            return self.source.draw(self.ring.opened)
        except Exception:
            if self.source.last == RAISED and not self.overlaps and self.ready is not nothing:
                self.ring.hand_out()
                self.ready = nothing
            raise
