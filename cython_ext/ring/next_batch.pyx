# cython: language_level=3
"""The step from one batch to the next, which next() takes: no Ctrl-C and no other thread loses or repeats a batch.
It decides which batch an error replaces, and refuses next() in a forked process, and inside next() or iter().

Sequences.find_ready() (sequences.pyx) says which batch comes next, in the sampler's order or by in_order=False.
"""

import _thread
import os
import threading

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint64_t

from clock cimport now
from shmloader.core.drawing cimport Drawing
from shmloader.core.epoch_counts cimport EpochCounts, Reading
from shmloader.core.free_slots cimport fold_rested
from shmloader.core.indices import NOTHING
from shmloader.core.trainer cimport TrainerSide
from shmloader.core.handlers import is_handlers

END = object()  # Steps.next(): the epoch is at its end
cdef object end = END, nothing = NOTHING
cdef uint64_t forks = 0     # between the process that imported this module and this process


def _was_forked() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_was_forked)


@cython.final
cdef class Steps:
    """The step from one batch to the next, which no signal and no other thread can interrupt.

    NOTE [ One step ]

        1. A signal handler may raise (Ctrl-C: KeyboardInterrupt) between any two lines of Python.  In this C code it
           can do so only where Python is called.  So the epoch (epoch_counts.pyx) holds all unfinished work: the index
           that was drawn but not opened, and the batch that was taken but not handed out.  (In this note, an index is
           what one draw gives: usually all indices of a batch.)  The next call continues from there.
           A handler may also raise in the iterator's Python code, which gets the batch from here and returns it to the
           user.  So next(), if it runs in the main thread, also keeps the batch in the epoch.  (Handlers run in no
           other thread.)  The iterator's last line sets `returning` to False.  That counts the batch as handed out.
           Setting it calls no function of Python, so no handler can run between that and the return.  If that line was
           not reached, the main thread's following next() returns the kept batch, and only then counts it.  But another
           thread may call next() earlier than the main thread does.  That thread puts the kept batch into `unreturned`,
           for the main thread.  For itself, it takes the next batch.  It counts the kept batch at once,
           although the main thread gets that batch later.  A state_dict() has only the number of batches, so a batch
           can be counted only if all batches before it are.
           The epoch's end is counted in the same way: by that line, which then stands before `raise StopIteration`.
           An Exception of a handler must not be taken for one of the sampler, or of the batch: NOTE [ Handlers ] in
           handlers.pyx.
           Suppose that next() has taken a batch, and then a handler raises while further batches are opened.  next()
           raises, and keeps the batch.  The following next() returns it, and opens nothing before that.  (If an index
           cannot be opened: rule 5.)
        2. If the handler raised in the sampler, the sampler's place may be lost, because a generator that raises has
           ended.  Then the indices up to that place are drawn again, or an error reports that this is impossible
           (source.py).
        3. Several threads may call next() of one iterator.  Only one of them runs this code: the one
           that finds `occupied` false and sets it, which the GIL makes one step.  The others wait until it has left, on
           a lock that nothing else uses.
        4. A forked process has a copy of this object, but there is only one ring.  If both processes opened and took
           batches, both would lose some and get each other's.  So a call in the forked process is an error.
        5. If an index cannot be opened, next() first hands out all batches before it, and then tries again.  If that
           fails too, next() raises the error.  Usually the error then counts as the batch.  But if there is no memory
           in which to open the batch (MemoryError, OSError), the batch is not at fault: its index stays, and the
           following call tries once more.
        6. Whether an epoch is over is computed from its numbers (EpochCounts.is_over()).  A closed or interrupted
           iterator also returns END, but its epoch keeps its place.
        7. next() takes a batch, and then draws indices to open further ones.  If the sampler raises there, next()
           raises the exception in place of the batch that it has taken, and drops this batch.  torch does the same, and
           a program that continues after an error must get the same batches as from torch.  The exception counts as
           that batch, like every error that is raised in place of a batch.  Otherwise all later counts would be one
           batch short, and a resumed run would repeat a batch.
        8. If batches are opened in windows (NOTE [ Windows ]), the epoch keeps the indices that were drawn for the next
           window.  If the window cannot be opened, its batches are opened one by one, up to the batch at fault.  Rule 5
           applies to that batch.
        9. The thread that runs this code may call next() again: from a signal handler, or from a sampler that iterates
           over its own loader.  That is always an error.  A handler's call of next() is also an error while the thread
           is in iter(): between draining one epoch and beginning the next, there is no batch to wait for.

    Args:
        ring: the trainer's side, with the epoch whose batches are opened and taken.
        conductor: opens batches: ConductorSide in trainer/step.py.
        reader: waits for batches and reads them: ReaderSide there.
        wrapper: the class of the objects that stand for a batch that raised: torch's ExceptionWrapper.
    """
    cdef TrainerSide ring
    cdef object conductor, reader, wrapper
    cdef Drawing drawing
    cdef uint64_t born                  # `forks` when this object was made
    cdef bint occupied
    cdef unsigned long occupant         # the thread
    cdef int queued                     # threads that wait for their turn
    cdef object turn
    cdef unsigned long main             # the thread that runs the handlers of signals
    cdef bint given                     # next() gave it the ready batch, which it has not returned yet
    cdef EpochCounts ending             # next() gave it the END of this epoch, and it has not raised StopIteration yet
    cdef object unreturned              # a batch that next() gave it, and that another thread has counted; or NOTHING
    cdef public unsigned long beginning # the thread that is in iter(), or 0

    def __cinit__(self, TrainerSide ring, conductor, reader, wrapper=None):
        self.ring, self.conductor, self.reader, self.wrapper, self.born = ring, conductor, reader, wrapper, forks
        self.drawing = Drawing(ring)
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.main, self.unreturned = threading.main_thread().ident, nothing

    @property
    def returning(self) -> bool:
        """Whether the main thread has what next() gave, and its iterator has not returned that: NOTE [ One step ], 1.

        Set it to False where nothing but the return, or StopIteration, follows.
        """
        return self.given or self.ending is not None or self.unreturned is not nothing

    @returning.setter
    def returning(self, bint value):
        if self.main == PyThread_get_thread_ident():    # for another thread, next() has counted the batch
            if self.given:
                self.count()
            if self.ending is not None:
                self.end()
            self.unreturned = nothing

    cdef int count(self) except -1:
        """Count the ready batch as handed out."""
        self.given = False
        self.ring.hand_out()
        self.ring.current.reading.ready = nothing
        return 0

    cdef int end(self) except -1:
        """Count the epoch as ended."""
        self.ending.reading.ended = True
        self.ending = None
        return 0

    cdef int forget(self) except -1:
        """Drop the batch that was taken and not returned, because the user leaves the epoch."""
        self.given, self.ending, self.unreturned = False, None, nothing
        self.ring.current.reading.ready = nothing
        return 0

    cdef int enter(self) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.born != forks:
            raise RuntimeError("this iterator belongs to the process that made it. This process was forked from that "
                               "one. Iterate over the DataLoader again in this process.")
        if self.occupied:
            if self.occupant == me:
                raise RuntimeError("next() was called while this thread is in next() of the same iterator. The call "
                                   "came from a signal handler, or from a sampler that iterates over its own "
                                   "DataLoader. Iterate over another DataLoader there.")
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

    def next(self):
        """The next batch, or the ExceptionWrapper in its place; END at the end of the epoch, or of a closed ring."""
        cdef bint is_main
        cdef uint64_t time
        if self.beginning and self.beginning == PyThread_get_thread_ident():
            raise RuntimeError("next() was called while this thread is in iter() of the same iterator. The call came "
                               "from a signal handler. Set a flag there, and call next() in your loop.")
        self.enter()
        is_main = self.occupant == self.main
        try:
            if is_main and self.unreturned is not nothing:
                return self.unreturned
            if is_main and self.given:
                return self.ring.current.reading.ready
            if self.given:
                self.unreturned = self.ring.current.reading.ready
                self.count()
            time = now()
            self.ring.turns.ask(time)
            fold_rested(time)
            if self.ring.current.reading.ready is nothing:  # otherwise an earlier call took it, and failed afterwards
                if not self.fetch():
                    if not is_main and self.ending is not None:
                        self.end()
                    return end
                self.fill()
            ready = self.ring.current.reading.ready
            if type(ready) is not self.wrapper:     # otherwise next() raises, and gives no batch
                self.ring.turns.hand_out(now())
            self.given = is_main
            if not is_main:
                self.count()
            return ready
        finally:
            self.ring.turns.leave()
            self.leave()

    def begin(self) -> None:
        """Open the first batches of the ring's current epoch.  No batch of another epoch may be under way."""
        self.enter()
        try:
            self.forget()
            self.ring.turns.new_epoch(self.ring.epoch)
            self.fill()
        finally:
            self.leave()

    def drain(self) -> None:
        """Wait for all batches under way, and drop them, because the user left the epoch before its end."""
        cdef TrainerSide ring = self.ring
        self.enter()
        try:
            self.forget()
            ring.took()
            ring.keep_state()       # the stream has gone on, though its batch is dropped
            while ring.under_way:
                if ring.alarmed or not ring.sequences.find_ready():
                    self.reader.wait()
                else:
                    ring.lend()
                    ring.took()
                    ring.keep_state()
        finally:
            self.leave()

    # -------------------------------------------------------------------------------------- the reader's part

    cdef bint fetch(self) except -1:
        """Put the next batch into `ready`; false if there is none, because the epoch is over or the ring was closed."""
        cdef TrainerSide ring = self.ring
        cdef EpochCounts epoch = ring.current
        cdef object batch
        while not ring.mapping.closed:
            if not epoch.is_under_way():
                if not epoch.is_over():
                    self.open_all(epoch)    # an index that could not be drawn or opened may be left
                if not epoch.is_under_way() and not ring.mapping.closed:
                    self.ending = epoch if epoch.is_over() else None
                    return False
                continue
            if ring.unread is None and (ring.alarmed or not ring.sequences.find_ready()):
                self.reader.wait()
                continue
            batch = self.reader.read()
            if batch is nothing:
                ring.stream_ended(ring.unread.owner)
                self.reader.stream_ended(ring.unread.owner)
                ring.took()
                self.fill()
                continue
            epoch.reading.ready = batch
            ring.took()
            return True
        return False

    # -------------------------------------------------------------------------------------- the conductor's part

    cdef int fill(self) except -1:
        """Open batches while there is room."""
        return self.open_all(self.ring.current)

    cdef int open_all(self, EpochCounts epoch) except -1:
        """Open batches of this epoch while there is room, until its source has no more."""
        cdef TrainerSide ring = self.ring
        cdef uint64_t before
        cdef bint draws = not self.drawing.takes_no_place(epoch)
        if ring.window > 1:
            return self.open_windows(epoch, draws)
        while ring.under_way < ring.most and not ring.mapping.closed:
            if epoch.drawn is nothing:
                if not draws:
                    return 0
                epoch.drawn = self.drawing.draw(epoch)
                if epoch.drawn is nothing:
                    return 0
            elif epoch.refused and self.waits_its_turn(epoch):
                return 0
            before = epoch.opened
            try:
                if not self.conductor.open(epoch, epoch.drawn):
                    return 0
            except Exception as error:
                if epoch.opened == before and not is_handlers(error):
                    if self.waits_its_turn(epoch) and not isinstance(error, SystemError):   # a bug in shmloader
                        epoch.refused = True
                        return 0
                    self.refuse(epoch, epoch.drawn, error)
                raise
            finally:
                if epoch.opened != before:
                    epoch.drawn, epoch.refused = nothing, False
        return 0

    cdef int open_windows(self, EpochCounts epoch, bint draws) except -1:
        """open_all() for windows.  In iter() only one is opened, so that no more indices are drawn there than usual."""
        cdef TrainerSide ring = self.ring
        cdef int most = ring.batches if epoch.reading.taken else ring.window
        while ring.under_way + ring.window <= most and not ring.mapping.closed:
            # If the index in front was refused, the sampler is asked later, as for single batches.
            if draws and not (epoch.refused and epoch.waiting):
                while len(epoch.waiting) < ring.window:
                    index = self.drawing.draw(epoch)
                    if index is nothing:
                        break
                    epoch.waiting.append(index)
            if not epoch.waiting:
                return 0
            if epoch.refused and self.waits_its_turn(epoch):
                return 0
            if not self.open_window(epoch):
                return 0
        return 0

    cdef bint open_window(self, EpochCounts epoch) except -1:
        """Open the window that was drawn; or only its first batch, if the window as a whole cannot be opened.

        Returns:
            Whether anything was opened.  If not, there was no room, or earlier batches must be handed out first.
        """
        cdef uint64_t before = epoch.opened
        cdef list window = epoch.waiting
        try:
            if len(window) > 1 and not epoch.refused:
                try:
                    return self.conductor.open(epoch, window[:])
                except Exception as error:
                    if epoch.opened != before or is_handlers(error):
                        raise
                    window = window[:1]
            else:
                window = window[:1]
            return self.conductor.open(epoch, window)
        except Exception as error:
            if epoch.opened == before and not is_handlers(error):
                if self.waits_its_turn(epoch) and not isinstance(error, SystemError):
                    epoch.refused = True
                    return False
                self.refuse(epoch, window[0], error)
            raise
        finally:
            if epoch.opened != before:
                del epoch.waiting[:epoch.opened - before]
                epoch.refused = False

    cdef bint waits_its_turn(self, EpochCounts epoch) noexcept:
        """Whether batches before the drawn index must be handed out first."""
        return epoch.reading.ready is not nothing or epoch.is_under_way()

    cdef int refuse(self, EpochCounts epoch, index, error) except -1:
        """Keep an index that cannot be opened, to try it again; or count the error as its batch."""
        if isinstance(error, (MemoryError, OSError)):
            epoch.refused = True
        else:
            self.ring.pass_over(index)
        return 0
