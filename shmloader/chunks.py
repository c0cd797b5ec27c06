"""A batch made by several workers at once: cut into chunks of rows, each written into the one slot.

A chunk is a sequence like any other (NOTE [ Slot ring ] in ring.pyx).  Which rows it is follows from its place in the
batch, so the order is the sampler's, whoever is quicker.
"""

from __future__ import annotations

from typing import Any

from shmloader._ring import ANY
from shmloader.generators import mix
from shmloader.iterator import DirectIterator
from shmloader.tasks import open_chunks

AHEAD = 2  # batches that may be under way at least: one for the trainer, and one for workers that are done with it
MOST_CHUNKS = 1024  # in flight; each has a page of its own.  A batch of more than half as many is cut into larger ones


def cut(indices: list[Any], chunk_size: int, most: int) -> list[list[Any]]:
    """Cut a batch into chunks of `chunk_size` rows, or of more where they would be more than `most`."""
    size = max(chunk_size, -(-len(indices) // most))
    return [indices[k : k + size] for k in range(0, len(indices), size)] or [[]]


class ChunkIterator(DirectIterator):
    """Iterates over batches that are cut into chunks."""

    def __init__(self, loader: Any) -> None:
        self._chunk_size: int = loader.chunk_size
        self._uncut: list[Any] | None = None  # the next batch, for which there was no room yet
        self._next_worker = 0
        super().__init__(loader)

    def _ring_size(self, loader: Any) -> tuple[int, int]:
        """So many chunks as a worker otherwise has batches, in whole batches; more of these while they are small."""
        size: Any = getattr(loader.batch_sampler, "batch_size", None)
        known = isinstance(size, int) and size > 0
        chunks = -(-int(size) // self._chunk_size) if known else self._num_workers  # of a batch
        usual = self._num_workers * self._prefetch_factor
        batches = self._batches_ahead(loader, max(AHEAD, -(-usual // chunks)), max(AHEAD, usual))
        return max(AHEAD, min(batches * chunks, MOST_CHUNKS)), batches

    def _ring_memory(self, loader: Any) -> Any:
        # A slot that several workers fill cannot be moved from /dev/shm to a memfd by one of them.
        return "memfd" if loader.ring_memory == "auto" else loader.ring_memory

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._uncut = None
        self._next_worker = 0
        super()._reset(loader, first_iter)

    def _try_put_index(self) -> None:
        """Open batches for as long as there is room; called at the start, and for each batch that was taken."""
        ring = self._ring
        self._look_further()
        while ring.under_way < self._most:
            if self._uncut is None:
                try:
                    self._uncut = list(next(self._sampler_iter))
                except StopIteration:
                    return
            # A batch without samples has no rows to be cut into; it is one task, for the collate function is to see it.
            chunks = cut(self._uncut, self._chunk_size, ring.entries // AHEAD)
            if not ring.has_room(len(chunks)):
                return
            self._uncut = None
            if self._stealing:
                workers, seed = [ANY] * len(chunks), mix(self._seed, self._send_idx)
            else:
                workers = [(self._next_worker + k) % self._num_workers for k in range(len(chunks))]
                self._next_worker = (self._next_worker + len(chunks)) % self._num_workers
                seed = 0
            open_chunks(ring, self._segment, workers, chunks, self._send_idx, seed)
            self._send_idx += 1
