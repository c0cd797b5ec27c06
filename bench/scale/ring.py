"""The ring in the simulation: which batches are open, which worker claims which, and the order of all."""

from __future__ import annotations

from typing import Any

import simpy
from simpy.resources.store import StoreGet


class Ring:
    """A trainer's ring.

    Args:
        workers: How many share it.
        under_way: How many batches are opened before the first of them is taken.
        steals: Whether any worker may claim any batch.  Otherwise worker k % workers makes batch k.

    Attributes:
        taken: The batches that the trainer has taken, in order.
        remade: How many batches were opened again.
    """

    def __init__(self, env: simpy.Environment, workers: int, under_way: int, steals: bool) -> None:
        self._env = env
        # the first sequence comes first, also one that was opened again
        self._open = [simpy.PriorityStore(env) for _ in range(1 if steals else workers)]
        self._next = 0
        self._made: dict[int, Any] = {}
        self.taken: list[int] = []
        self.remade = 0
        for _ in range(under_way):
            self.open_next()

    def open_next(self) -> None:
        """Open the next sequence."""
        self._made[self._next] = self._env.event()
        self._put(self._next)
        self._next += 1

    def claim(self, worker: int) -> StoreGet:
        """An event whose value is a sequence for this worker.  It happens at once if one is open."""
        return self._open[worker % len(self._open)].get()

    def open_again(self, sequence: int) -> None:
        """The worker that had claimed this sequence is lost."""
        self.remade += 1
        self._put(sequence)

    def publish(self, sequence: int) -> None:
        """The batch is in its slot.  It is an error if it was already."""
        self._made[sequence].succeed()

    def made(self, sequence: int) -> Any:
        """An event that happens when this sequence is published."""
        return self._made[sequence]

    def take(self, sequence: int) -> None:
        """Take a batch that is published, and open the next one in its place."""
        del self._made[sequence]
        self.taken.append(sequence)
        self.open_next()

    def _put(self, sequence: int) -> None:
        self._open[sequence % len(self._open)].put(sequence)
