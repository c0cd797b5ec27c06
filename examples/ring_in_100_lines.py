"""The protocol of shmloader in 100 lines, between real processes.  Read it from top to bottom, then run it.

Two workers fill batches for a trainer, in shared memory that has no name.  One worker is killed in the middle of batch
5, and batch 5 still comes, complete and in its turn.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import weakref
from collections.abc import Iterator

import numpy as np

Rows = np.ndarray[tuple[int], np.dtype[np.float64]]
WORKERS, ENTRIES, SPARE, ROWS = 2, 4, 1, 1000
OPEN, CLAIMED, READY = 1, 2, 3

# One piece of memory for all processes: a word for each entry, its slot's number, the lowest sequence; then the slots.
file = os.memfd_create("ring")
os.ftruncate(file, 4096 + (ENTRIES + SPARE) * ROWS * 8)
memory = mmap.mmap(file, 0)
words, slot_of = np.frombuffer(memory, np.uint64, 2 * ENTRIES).reshape(2, ENTRIES)
lowest = np.frombuffer(memory, np.uint64, 1, offset=1024)

# Bells.  An eventfd remembers a ring, so a process that looks, finds nothing and then sleeps misses none.
work_bells, ready_bell = [os.eventfd(0) for _ in range(WORKERS)], os.eventfd(0)


def word(sequence: int, owner: int, state: int) -> int:
    """Where a batch is, in 64 bits: which batch, which worker makes it, and how far it is.  Words only grow."""
    return sequence << 24 | owner << 8 | state


def swap(sequence: int, before: int, after: int) -> bool:
    """Compare and swap, which is one instruction in C.  Here the kernel unlocks if the process is killed in between."""
    at = sequence % ENTRIES
    fcntl.lockf(file, fcntl.LOCK_EX, 8, at * 8)
    same = int(words[at]) == before
    if same:
        words[at] = after
    fcntl.lockf(file, fcntl.LOCK_UN, 8, at * 8)
    return same


def slot(number: int) -> Rows:
    return np.frombuffer(memory, np.float64, ROWS, offset=4096 + number * ROWS * 8)


def work(me: int, trainer: int, dies_at: int) -> None:
    """A worker walks through all sequences in order, and makes those that name it."""
    sequence = int(lowest[0])
    while True:
        if sequence % WORKERS != me or int(words[sequence % ENTRIES]) >= word(sequence, me, READY):
            sequence += 1  # it is another worker's, or it is ready, or the trainer has it already
        elif swap(sequence, word(sequence, me, OPEN), word(sequence, me, CLAIMED)):
            batch = slot(int(slot_of[sequence % ENTRIES]))
            batch[: ROWS // 2] = sequence
            if sequence == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)  # the word stays CLAIMED, so nobody takes half a batch
            batch[ROWS // 2 :] = sequence
            swap(sequence, word(sequence, me, CLAIMED), word(sequence, me, READY))
            os.eventfd_write(ready_bell, 1)
        elif trainer in select.select([work_bells[me], trainer], [], [])[0]:
            os._exit(0)  # the trainer is dead
        else:
            os.eventfd_read(work_bells[me])  # look again: the trainer has opened something


class Ring:
    """The trainer's side: it opens sequences, takes them in order, lends their slots, and replaces dead workers."""

    def __init__(self, batches: int, dies_at: int) -> None:
        self.batches, self.opened, self.lent = batches, 0, set[int]()
        self.free = list(range(ENTRIES + SPARE))  # slots that no worker fills and no user reads
        self.lowest, lowest[0], words[:] = 0, 0, 0
        self.workers = dict(self.start(me, dies_at) for me in range(WORKERS))

    def start(self, me: int, dies_at: int = -1) -> tuple[int, tuple[int, int]]:
        trainer = os.pidfd_open(os.getpid())
        if (pid := os.fork()) == 0:
            work(me, trainer, dies_at)
        os.close(trainer)
        return os.pidfd_open(pid), (pid, me)  # the kernel makes it readable when the worker is dead

    def open_next(self) -> None:
        me, at = self.opened % WORKERS, self.opened % ENTRIES
        slot_of[at] = self.free.pop()
        words[at] = word(self.opened, me, OPEN)  # last, because from here on the worker owns entry and slot
        self.opened += 1
        os.eventfd_write(work_bells[me], 1)

    def wait(self) -> None:
        """Sleep until a batch is ready or a worker is dead.  What a dead worker had claimed is opened again."""
        for fd in select.select([ready_bell, *self.workers], [], [])[0]:
            if fd == ready_bell:
                os.eventfd_read(fd)
                continue
            pid, me = self.workers.pop(fd)
            os.waitpid(pid, 0)
            os.close(fd)
            for sequence in range(self.lowest, self.opened):
                swap(sequence, word(sequence, me, CLAIMED), word(sequence, me, OPEN))
            self.workers.update([self.start(me)])

    def lend(self, number: int) -> Rows:
        """A batch over its slot.  The slot is free again when the last view of the batch is gone."""
        batch = slot(number)
        if len(self.lent) == SPARE:  # the user keeps many batches, so this one is a copy
            batch = batch.copy()
            self.free.append(number)
        else:
            self.lent.add(number)
            weakref.finalize(batch, self.end_lease, number)
        return batch

    def end_lease(self, number: int) -> None:
        self.lent.remove(number)
        self.free.append(number)

    def __iter__(self) -> Iterator[Rows]:
        for sequence in range(self.batches):
            while self.opened < min(self.batches, sequence + ENTRIES):
                self.open_next()
            while int(words[sequence % ENTRIES]) != word(sequence, sequence % WORKERS, READY):
                self.wait()  # in order: batches that are ready earlier stay in the ring
            self.lowest = sequence + 1
            lowest[0] = self.lowest  # where a worker that replaces another one begins
            yield self.lend(int(slot_of[sequence % ENTRIES]))

    def close(self) -> None:
        while self.workers:
            fd, (pid, _) = self.workers.popitem()
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            os.close(fd)


def states() -> str:
    names = {0: "-", OPEN: "open", CLAIMED: "claimed", READY: "ready"}
    return "  ".join(f"{int(w) >> 24}:{names[int(w) & 255]}" for w in words)


if __name__ == "__main__":
    ring = Ring(batches=12, dies_at=5)
    try:
        for number, batch in enumerate(ring):
            assert (batch == number).all()
            print(f"batch {number:2}   entries  {states()}")
    finally:
        ring.close()
