"""The step from one batch to the next, which `__next__()` takes: no Ctrl-C in a `for` loop loses or repeats a batch.
It decides which batch an error replaces, and refuses next() in a forked process, and inside next() or iter().

Sequences.find_ready() (sequences.pxi) says which batch comes next, in the sampler's order or by in_order=False.
"""

import _thread
import os


from shmloader.core.ring cimport fold_rested

cdef uint64_t forks = 0     # between the process that imported this module and this process


def _was_forked() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_was_forked)


def next_batch(iterator):
    """The `__next__()` of an iterator over the ring.

    Args:
        iterator: has its Steps as `_steps`, and the methods explain(), raise_in_place(), warn_of_length() and at_end():
            RingIterator.
    """
    cdef Steps steps = iterator._steps
    return steps.next(iterator)


@cython.final
cdef class Steps:
    """The step from one batch to the next, which one thread at a time takes.

    NOTE [ One step ]

        1. A signal's handler may raise KeyboardInterrupt between any two lines of Python, but not in C.  So the epoch
           (epoch_counts.pxi) has all that is unfinished: the index that was drawn and not opened, and the batch that
           was taken and not handed out.  (In this note, an index is what one draw gives: usually all indices of a
           batch.)  Whatever calls Python comes before give(), and if it is broken off, the next call goes on from
           there.  give() counts the batch, and calls no Python.  Nor does the `for` loop between that and its variable.
           So the interrupt comes before the batch, or after it.  `batch = next(iterator)` is Python behind it: there
           the batch may be lost, as with any iterator.
        2. If KeyboardInterrupt or SystemExit comes out of the sampler, the sampler's place may be lost, because a
           generator that raises has ended.  Then the indices up to that place are drawn again, or an error says that
           this is impossible (epoch.py).  So no epoch ends short in silence.
        3. An Exception of the user's code takes the place of a batch, as in torch.  So does one that a signal's handler
           raises in there.
        4. A thread holds the lock while it is in next() or iter().  Others wait for it.  If the same thread comes again
           (from a signal's handler, or from a sampler that iterates over its own loader), that is an error.
        5. A forked process has a copy of this object, but there is only one ring.  If both processes opened and took
           batches, both would lose some and get each other's.  So a call in the forked process is an error.
        6. If an index cannot be opened, next() first hands out all batches before it, and then tries again.  If that
           fails too, next() raises the error.  If it does not, next() raises the first error, which was a handler's,
           and loses nothing.  Usually the error then counts as the batch.  But if there is no memory
           in which to open the batch (MemoryError, OSError), the batch is not at fault: its index stays, and the
           following call tries once more.
        7. Whether an epoch is over is computed from its numbers (EpochCounts.is_over()).  A closed or interrupted
           iterator also ends the loop, but its epoch keeps its place.
        8. next() takes a batch, and then draws indices to open further ones.  If the sampler raises there, next()
           raises the exception in place of the batch that it has taken, and drops this batch.  torch does the same, and
           a program that continues after an error must get the same batches as from torch.  The exception counts as
           that batch, like every error that is raised in place of a batch.  Otherwise all later counts would be one
           batch short, and a resumed run would repeat a batch.
        9. If batches are opened in windows (NOTE [ Windows ]), the epoch keeps the indices that were drawn for the next
           window.  If the window cannot be opened, its batches are opened one by one, up to the batch at fault.  Rule 6
           applies to that batch.

    Args:
        ring: the trainer's side, with the epoch whose batches are opened and taken.
        conductor: its open() opens a batch: Conductor in trainer/conductor.py.
        reader: waits for batches and reads them: Delivery in trainer/delivery.py.
        wrapper: the class of the objects that stand for a batch that raised: torch's ExceptionWrapper.
        profiler: torch's module, which says whether next() is recorded.
    """
    cdef TrainerSide ring
    cdef object conductor, reader, wrapper, profiler
    cdef uint64_t born                  # `forks` when this object was made
    cdef object acquire, release        # of the lock
    cdef unsigned long occupant         # the thread that holds it; 0: none
    cdef EpochCounts ending             # it is at its end, and next() has not raised StopIteration yet
    cdef object refusal                 # why `drawn` could not be opened; None: it could, or windows are opened
    cdef public object observer         # called with the times at which next() was called and has a batch; or None
    cdef uint64_t ready_at              # when `ready` was
    cdef uint64_t yielded               # batches that the user has got in this epoch, without errors

    def __cinit__(self, TrainerSide ring, conductor, reader, wrapper=None, profiler=None):
        self.ring, self.conductor, self.reader, self.wrapper, self.born = ring, conductor, reader, wrapper, forks
        self.profiler = profiler
        lock = _thread.allocate_lock()
        self.acquire, self.release = lock.acquire, lock.release

    cdef int enter(self, iterator=None) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.born != forks:
            raise RuntimeError("this iterator belongs to the process that made it. This process was forked from that "
                               "one. Iterate over the DataLoader again in this process.")
        if self.occupant == me:
            raise RuntimeError("next() or iter() was called while this thread is in next() or iter() of the same "
                               "iterator. The call came from a signal handler, or from a sampler that iterates over "
                               "its own DataLoader. Set a flag in the handler, and give the sampler another DataLoader.")
        try:
            self.acquire()
        except RuntimeError as error:       # as in bring()
            if iterator is None:
                raise
            iterator.explain(error)
        self.occupant = me
        self.ring.inside += 1
        return 0

    cdef int leave(self) except -1:
        self.ring.inside -= 1
        self.ring.drop_words()
        self.occupant = 0
        self.release()
        return 0

    def exclusively(self, function, *arguments):
        """Call a function while no other thread is in next() or iter().  begin() and drain() need that."""
        self.enter()
        try:
            return function(*arguments)
        finally:
            self.leave()

    cdef object next(self, iterator):
        """The next batch.

        Raises:
            StopIteration: the epoch is at its end, or the ring was closed.
        """
        self.enter(iterator)
        try:
            if self.profiler is not None and self.profiler._is_profiler_enabled:
                with self.profiler.record_function(iterator._profile_name):
                    self.bring(iterator)
            else:
                self.bring(iterator)
            return self.give()
        finally:
            self.ring.turns.leave()
            self.leave()

    cdef int bring(self, iterator) except -1:
        """Have the next batch `ready`, and call all that is Python.  If a handler breaks it off, it is called again."""
        cdef EpochCounts epoch = self.ring.current
        cdef uint64_t time = now()
        self.ring.turns.ask(time)
        fold_rested(time)
        if self.ring.mapping.closed:
            epoch.ready = nothing
        if epoch.ready is nothing and self.ending is None:
            try:
                if self.fetch():
                    self.fill()
            except RuntimeError as error:   # torch's SIGCHLD handler may run at any line of Python in there
                iterator.explain(error)
        if epoch.ready is nothing:
            iterator.at_end()
        elif type(epoch.ready) is self.wrapper:
            try:
                iterator.raise_in_place(epoch.ready)
            except Exception:
                self.count()
                raise
        else:
            iterator._num_yielded = self.yielded + 1
            self.ready_at = now()
            if self.observer is not None:
                self.observer(time, self.ready_at)
            if iterator._streams:
                try:
                    iterator.warn_of_length()
                except Exception:           # the user has made warnings errors
                    self.count()
                    raise
        return 0

    cdef object give(self):
        """Hand out what is ready, or end the epoch.  It calls no Python: NOTE [ One step ], 1."""
        cdef object batch = self.ring.current.ready
        if batch is nothing:
            if self.ending is not None:
                self.ending.stopped = True
                self.ending = None
            raise StopIteration
        self.ring.turns.hand_out(self.ready_at)
        self.yielded += 1
        self.count()
        return batch

    cdef int count(self) except -1:
        """Count what is ready as handed out."""
        self.ring.hand_out()
        self.ring.current.ready = nothing
        return 0

    cdef int forget(self) except -1:
        """Drop the batch that was taken and not returned, because the user leaves the epoch."""
        self.ending, self.ring.current.ready, self.refusal = None, nothing, None
        return 0

    def begin(self) -> None:
        """Open the first batches of the ring's current epoch.  No batch of another epoch may be under way."""
        self.forget()
        self.yielded = 0
        self.ring.turns.new_epoch(self.ring.epoch)
        self.fill()

    def drain(self) -> None:
        """Wait for all batches under way, and drop them, because the user left the epoch before its end."""
        cdef TrainerSide ring = self.ring
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
            epoch.ready = batch
            ring.took()
            return True
        return False

    # -------------------------------------------------------------------------------------- the conductor's part

    cdef int fill(self) except -1:
        """Open batches while there is room."""
        return self.open_all(self.ring.current)

    cdef object draw(self, EpochCounts epoch):
        """The next index of this epoch; NOTHING if its source has no more."""
        cdef object index
        if epoch.source is None:    # a handler raised while the epoch began
            return nothing
        try:
            index = epoch.source.draw(epoch.opened + <uint64_t>len(epoch.waiting) + (epoch.drawn is not nothing))
            if type(index) is list and self.ring.window > 1:
                return index[:]     # it waits, and the sampler may give the same list again, with other indices
            return index
        except Exception:
            if epoch.source.last == RAISED and epoch.ready is not nothing:
                self.ring.hand_out()
                epoch.ready = nothing
            raise

    cdef bint takes_no_place(self, EpochCounts epoch) noexcept:
        """Whether another exception of the sampler, which has raised one, would take no batch's place (rule 7).

        So the sampler is not asked.  Otherwise one that raises for ever would keep indices that wait from being opened.
        """
        return (epoch.source is not None and epoch.source.last == RAISED and epoch.ready is nothing
                and (epoch.drawn is not nothing or len(epoch.waiting) > 0 or epoch.is_under_way()))

    cdef int open_all(self, EpochCounts epoch) except -1:
        """Open batches of this epoch while there is room, until its source has no more."""
        cdef TrainerSide ring = self.ring
        cdef uint64_t before
        cdef bint draws = not self.takes_no_place(epoch)
        if ring.window > 1:
            return self.open_windows(epoch, draws)
        while ring.under_way < ring.most and not ring.mapping.closed:
            if epoch.drawn is nothing:
                if not draws:
                    return 0
                epoch.drawn = self.draw(epoch)
                if epoch.drawn is nothing:
                    return 0
            elif epoch.refused and self.waits_its_turn(epoch):
                return 0
            before = epoch.opened
            try:
                if not self.conductor.open(epoch, epoch.drawn):
                    return 0
                self.raise_refusal()
            except Exception as error:
                if epoch.opened == before:
                    if self.waits_its_turn(epoch) and not isinstance(error, SystemError):   # a bug in shmloader
                        epoch.refused, self.refusal = True, error
                        return 0
                    self.refuse(epoch, epoch.drawn, error)
                self.refusal = None
                raise
            finally:
                if epoch.opened != before:
                    epoch.drawn, epoch.refused = nothing, False
        return 0

    cdef int raise_refusal(self) except -1:
        """Raise why the batch that is open now was refused before, unless it was for want of memory."""
        cdef object error = self.refusal
        self.refusal = None
        if error is None or isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            return 0
        raise error

    cdef int open_windows(self, EpochCounts epoch, bint draws) except -1:
        """open_all() for windows.  In iter() only one is opened, so that no more indices are drawn there than usual."""
        cdef TrainerSide ring = self.ring
        cdef int most = ring.batches if epoch.taken else ring.window
        while ring.under_way + ring.window <= most and not ring.mapping.closed:
            # If the index in front was refused, the sampler is asked later, as for single batches.
            if draws and not (epoch.refused and epoch.waiting):
                while len(epoch.waiting) < ring.window:
                    index = self.draw(epoch)
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
                    if epoch.opened != before:
                        raise
                    window = window[:1]
            else:
                window = window[:1]
            return self.conductor.open(epoch, window)
        except Exception as error:
            if epoch.opened == before:
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
        return epoch.ready is not nothing or epoch.is_under_way()

    cdef int refuse(self, EpochCounts epoch, index, error) except -1:
        """Keep an index that cannot be opened, to try it again; or count the error as its batch."""
        if isinstance(error, (MemoryError, OSError)):
            epoch.refused = True
        else:
            self.ring.pass_over(index)
        return 0
