"""The schedules, which decide which worker makes which batch.  Each iterator has one.
They also decide how many batches are under way (`prefetch_factor`), and cut batches into chunks (`chunk_size`).
The number of an epoch's batches bounds those under way, and a warning comes if there is none.

A schedule decides how large the ring must be, and opens each batch for the worker that will make it.  It may be
interrupted between any two of its lines and then be called again for the same batch (NOTE [ One step ] in
next_batch.pxi).  So it keeps nothing of an epoch: the epoch counts what was opened, and for which worker last.

As many batches may be under way as with torch, but if these are very many, not more than the epoch has, and one.  A
ring has an entry and a slot for each.  With `prefetch_factor=100_000` and an epoch of a hundred batches, almost all of
them would be made for nothing.  The one more has the loader ask for an index behind the last one in iter(), if torch
would: a RandomSampler draws from the loader's generator there, which decides the next order.

The length is only a bound.  If a sampler's `len()` is too small, or a later epoch of persistent workers is longer,
fewer batches are under way than could be, and none is lost.
"""

from __future__ import annotations

import operator
import warnings
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch.utils.data import IterableDataset

from shmloader.core.ring import ANY
from shmloader.core.trainer import TrainerSide
from shmloader.options import Options
from shmloader.protocols.places import Places
from shmloader.protocols.user_objects import ByIdentity, attribute, length_of
from shmloader.resume.epoch import Epoch
from shmloader.resume.generators import further
from shmloader.resume.samplers import samplers_of
from shmloader.system.user_line import caller
from shmloader.trainer.windows import Windows

MANY = 1024  # batches under way.  For fewer, no `len()` is called: torch calls none, and a user's may draw numbers


def most_under_way(loader: Any) -> int:
    """How many batches of a loader may be under way, at least one for each worker."""
    usual = operator.index(loader.num_workers * loader.prefetch_factor)  # torch takes no float
    batches = _batches_of(loader) if usual > MANY else None
    return usual if batches is None else min(usual, max(batches + 1, int(loader.num_workers)))


def _batches_of(loader: Any) -> int | None:
    """How many batches an epoch has; None if that is not known."""
    if not isinstance(loader.dataset, IterableDataset):
        return length_of(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
    samples = length_of(loader.dataset)  # each worker's last batch may be smaller
    return None if samples is None else -(-samples // (loader.batch_size or 1)) + loader.num_workers


_warned: ByIdentity[bool] = ByIdentity()


def warn_if_all_dropped(loader: Any, epoch: Any) -> None:
    """Warn once for each loader if an epoch, which is over, had no batch because of drop_last=True.

    Args:
        loader: The loader; None if it is gone.
        epoch: The epoch; of a closed ring it is none.  The rest of one may be empty.
    """
    if loader is None or not isinstance(epoch, Epoch) or loader in _warned:
        return
    if epoch.handed_out.batches or epoch.start.begun or not _drops(loader):
        return
    _warned[loader] = True
    warnings.warn(
        "the epoch had no batch, because drop_last=True drops what does not fill one. With a stream, each worker drops "
        "its own last batch. Give drop_last=False, fewer workers, or a smaller batch_size.",
        RuntimeWarning,
        stacklevel=caller()[1],
    )


def _drops(loader: Any) -> bool:
    """Whether a loader drops the last batch, and has samples, as far as it shows."""
    if isinstance(loader.dataset, IterableDataset):
        return bool(loader.drop_last)
    sampler = loader.batch_sampler
    return attribute(sampler, "drop_last") is True and bool(length_of(attribute(sampler, "sampler")))


STEALING_FACTOR = 4  # with stealing and small batches, up to this many times as many are under way as in torch
FURTHER_BYTES = 256 << 20  # the most memory that these may take
LEAST_CHUNKED = 2  # batches in chunks under way: the trainer waits for one, and workers done with it make the other
MOST_TASKS = 2048  # of a window that is cut by places; two windows are in flight, with a page for each task
MOST_CHUNKS = 1024  # in flight, with a page each.  A batch of more than half as many chunks is cut into larger ones


@dataclass(frozen=True)
class Size:
    """What a schedule needs of the ring."""

    entries: int  # sequences that may be in flight
    batches: int  # batches that may be under way
    at_first: int  # batches that may be under way until their size is known
    leaves_shm: bool  # whether slots lie in a memfd from the start, unless the user chooses /dev/shm


class Schedule:
    """Opens the batches of an epoch."""

    size: Size
    opens_first = False  # whether batches may be opened before workers start, so that the first worker begins at once
    seeds_samples = False  # whether workers seed each sample from the batch's seed
    stride = 1  # if samples are seeded: how many ranks share the order

    def _read_seed_options(self, loader: Any, options: Options) -> None:
        """Find out whether samples are to be seeded, and how many ranks share their order."""
        self.seeds_samples = options.seeds_samples
        self.stride = samplers_of(loader).ranks[1]

    def attach(self, ring: TrainerSide) -> None:
        """Use this ring from now on."""
        self._ring = ring
        ring.most = self.size.at_first

    def open(self, epoch: Epoch, index: Any) -> bool:
        """Open the next batch of an epoch, for which its source gave `index`; false if there is no room for it now.

        If the ring opens windows, `index` is a list: what the source gave for several batches.
        """
        raise NotImplementedError

    def _next_seed(self, epoch: Epoch) -> int:
        """The seed of the batch of this epoch that is opened next."""
        return further(epoch.sample_seed, epoch.samples * self.stride)


class RoundRobin(Schedule):
    """Worker k % N makes batch k, as in torch; for map-style datasets, in order."""

    def __init__(self, loader: Any, options: Options) -> None:
        self._workers: int = loader.num_workers
        self._read_seed_options(loader, options)
        batches = most_under_way(loader)
        self.size = Size(batches, batches, batches, leaves_shm=False)

    def open(self, epoch: Epoch, index: Any) -> bool:
        self._ring.open(epoch.opened % self._workers, index, self._next_seed(epoch) if self.seeds_samples else 0)
        return True


class InTurn(Schedule):
    """The next worker that has something left makes the next batch; for iterable datasets, and out of order.

    Out of order, workers that have their share under way are skipped, or the slow one would collect all batches.
    """

    def __init__(self, loader: Any, options: Options) -> None:
        self._workers: int = loader.num_workers
        self._in_order: bool = loader.in_order
        self._none_ended = [False] * self._workers
        batches = most_under_way(loader)
        self.size = Size(batches, batches, batches, leaves_shm=False)

    def open(self, epoch: Epoch, index: Any) -> bool:
        ring = self._ring
        ended = epoch.handed_out.ended or self._none_ended
        share = self.size.batches // max(1, ended.count(False))
        for behind in range(1, self._workers + 1):
            worker = (epoch.last_worker + behind) % self._workers
            if not ended[worker] and (self._in_order or ring.sequences.under_way_of(worker) < share):
                ring.open(worker, index)
                return True
        return False


class _Further(Schedule):
    """Allows more batches under way, as long as FURTHER_BYTES hold them; STEALING_FACTOR times as many with stealing.

    Otherwise one late batch would soon leave all other workers idle.  All batches that may be under way would be made,
    and the trainer would take none of them before the late one.
    """

    opens_first = True

    def __init__(self, loader: Any, options: Options, least: int, usual: int) -> None:
        self._least = least
        self._furthest = usual * STEALING_FACTOR if options.steals else usual
        if options.max_ring_bytes is not None:  # it must hold all slots at full size, so more slots could be refused
            self._furthest = least
        self._read_seed_options(loader, options)

    def _look_further(self, epoch: Epoch) -> None:
        """After the 1st, 2nd, 4th, 8th batch and so on, set how many may be under way, by the largest one so far."""
        ring = self._ring
        came = epoch.taken
        if came and not came & came - 1:
            largest = max(ring.committed(payload) for payload in range(ring.payloads))
            ring.most = min(max(self._least, FURTHER_BYTES // largest), self._furthest)


class Steal(_Further):
    """Any free worker makes the next batch.  Each batch has a seed, derived from the epoch's and its place in it.

    The first worker whose claim succeeds has it (WorkerSide.claim).  The trainer takes sequences in order, so nothing
    has to restore torch's order.
    """

    def __init__(self, loader: Any, options: Options) -> None:
        batches = most_under_way(loader)
        super().__init__(loader, options, batches, batches)
        # otherwise /dev/shm must have room for all slots, though the additional ones may never be filled
        self.size = Size(self._furthest, self._furthest, batches, leaves_shm=self._furthest > batches)

    def open(self, epoch: Epoch, index: Any) -> bool:
        self._look_further(epoch)
        self._ring.open(ANY, index, self._next_seed(epoch))
        return True


class Chunks(_Further):
    """A batch is cut into chunks of rows, which several workers make at once, each in its place in the one slot.

    A chunk is a sequence like any other (NOTE [ Slot ring ] in ring.pxd).  Its place in the batch says which rows it
    has, so the order is the sampler's, whichever worker is quicker.

    If chunks fail, the exception of the first of them takes the batch's place (BatchReader.read_chunks).

    At first as many chunks are under way as batches would be without chunks, rounded up to whole batches.  If batches
    are small, more follow.
    """

    def __init__(self, loader: Any, options: Options) -> None:
        assert options.chunk_size is not None
        self._chunk_size = options.chunk_size
        self._workers: int = loader.num_workers
        self._steals = options.steals
        size: Any = attribute(loader.batch_sampler, "batch_size")
        known = isinstance(size, int) and size > 0
        chunks = -(-int(size) // self._chunk_size) if known else self._workers  # of a batch
        usual = most_under_way(loader)
        super().__init__(loader, options, max(LEAST_CHUNKED, -(-usual // chunks)), max(LEAST_CHUNKED, usual))
        entries = max(LEAST_CHUNKED, min(self._furthest * chunks, MOST_CHUNKS))
        # a slot that several workers fill cannot be moved from /dev/shm to a memfd by one of them
        self.size = Size(entries, self._furthest, self._least, leaves_shm=True)

    def open(self, epoch: Epoch, index: Any) -> bool:
        self._look_further(epoch)
        ring = self._ring
        # A batch without samples cannot be cut into rows.  It is one task, since the collate function must see it.
        chunks = cut(list(index), self._chunk_size, ring.entries // LEAST_CHUNKED)
        if not ring.has_room(len(chunks)):
            return False
        if self._steals:
            workers = [ANY] * len(chunks)
        else:
            first = ring.sequences.next_open - epoch.first
            workers = [(first + k) % self._workers for k in range(len(chunks))]
        ring.open_chunks(workers, chunks, self._next_seed(epoch) if self.seeds_samples else 0)
        return True


class ByPlace(Schedule):
    """Batches are opened in windows, which are cut by where their samples lie: NOTE [ Places ] in windows.py."""

    opens_first = True

    def __init__(self, loader: Any, options: Options) -> None:
        workers: int = loader.num_workers
        self._read_seed_options(loader, options)
        self._places = Places(options.group_by, loader.dataset)
        self._window = max(2, min(most_under_way(loader), MOST_TASKS // 2 // workers))
        least = 2 * workers * self._window  # tasks, because each worker may have some of each batch
        size: Any = attribute(loader.batch_sampler, "batch_size")
        rows = self._window * size if isinstance(size, int) and size > 0 else MOST_TASKS
        self._windows = Windows(workers, max(least, min(rows, MOST_TASKS)), options.chunk_size)
        batches = 2 * self._window
        self.size = Size(2 * self._windows.most, batches, batches, leaves_shm=True)  # as in Chunks

    def attach(self, ring: TrainerSide) -> None:
        super().attach(ring)
        ring.window = self._window

    def open(self, epoch: Epoch, index: Any) -> bool:
        """Open the next batches, for which the epoch's source gave what is in the list `index`."""
        ring = self._ring
        batches = [list(indices) for indices in index]
        due = ring.sequences.rows_due() if self.seeds_samples else [0] * ring.workers
        window = self._windows.cut([[self._places(each) for each in indices] for indices in batches], due)
        if ring.under_way and not ring.has_room_for(len(batches), len(window.tasks)):
            return False
        tasks = [
            (batch, worker, batches[batch] if rows is None else [batches[batch][row] for row in rows], rows)
            for batch, worker, rows in window.tasks
        ]
        samples = [len(indices) for indices in batches]
        before = accumulate(samples, initial=epoch.samples)
        seeds = [further(epoch.sample_seed, each * self.stride) for each in before] if self.seeds_samples else None
        ring.open_window(tasks, samples, seeds or [0] * len(batches))
        self._windows.recent = window.recent
        return True


def cut(indices: list[Any], chunk_size: int, most: int) -> list[list[Any]]:
    """Cut a batch into chunks of `chunk_size` rows; of more rows, if there would be more than `most` chunks."""
    size = max(chunk_size, -(-len(indices) // most))
    return [indices[k : k + size] for k in range(0, len(indices), size)] or [[]]


def schedule_of(loader: Any, options: Options) -> Schedule:
    """The schedule that a loader with these options asks for."""
    if options.group_by is not None:
        return ByPlace(loader, options)
    if options.chunk_size is not None:
        return Chunks(loader, options)
    if options.steals:
        return Steal(loader, options)
    if loader.in_order and not isinstance(loader.dataset, IterableDataset):
        return RoundRobin(loader, options)
    return InTurn(loader, options)
