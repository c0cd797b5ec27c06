"""Indices that a worker reads before it makes their batches, and the dataset's `__prefetch__` that gets them.

NOTE [ Look ahead ]

A worker knows more indices than those of the batch that it makes.  The trainer has opened later batches for it already,
and their tasks lie in the ring.  With `look_ahead=k` it reads the tasks of k batches, the one at hand included, and
calls `dataset.__prefetch__(indices)` once with the indices of each.  The dataset starts to read them, and returns.

    1. Only tasks that are open for this worker alone are read (WorkerSide.upcoming).  With work stealing, any worker
       may claim a batch, so a worker knows only the batch that it makes.  All are of one epoch, because none begins
       while a batch is under way.
    2. The option changes no batch, because nothing is claimed, drawn or seeded early.  A worker that replaces a dead
       one has read nothing yet, so it calls __prefetch__ once more for the batches that are open.
    3. Data that was read and not used is lost with its worker when an iterator ends.  If the user breaks out of the
       loop, persistent workers still make all batches that were open.  So they use what they have read.
    4. An exception of __prefetch__ comes in place of the batch whose indices it got, and not of the batch at hand.
    5. __prefetch__ is looked up in the class, as Python's own special methods are.  A subclass that overrides only
       __getitem__ inherits __prefetch__, because most such subclasses just add a transform.  If a subclass's indices
       mean something else, it must override both methods.  A wrapper that only forwards attributes by __getattr__
       counts as having no __prefetch__.  We want that, because its indices may mean something else.
    6. It can happen that nobody asks for a sample that was announced, because another sample of its batch raises, or
       because __getitem__ reads other files.  Data that was read early for it must not serve a later batch, because it
       may have changed meanwhile.  So __prefetch__ gets a reference to its batch from announced_batch(), and keeps it
       with the data.  Before __getitem__ uses the data, it asks may_serve() whether that batch is still the right one.
"""

from __future__ import annotations

import bisect
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from torch.utils.data import ConcatDataset, IterableDataset, StackDataset, Subset

from shmloader.core.worker import WorkerSide
from shmloader.protocols.user_objects import attribute
from shmloader.ring.tasks import read_listed, read_task

Prefetch = Callable[[list[Any]], Any]

DEFAULT = 2  # batches; measured by `python -m bench storage --parts far_load`


class Announced:
    """A batch whose indices were passed on.  It lives until its worker begins a later one, or the next epoch.

    Args:
        sequence: Its sequence.
    """

    __slots__ = ("__weakref__", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence


_BATCH: ContextVar[weakref.ref[Announced] | None] = ContextVar("shmloader announced batch", default=None)


def announced_batch() -> weakref.ref[Announced] | None:
    """In a call of __prefetch__ by a worker: the batch whose indices it gets.  None: another caller has called it."""
    return _BATCH.get()


def may_serve(batch: weakref.ref[Announced]) -> bool:
    """Whether data that was read early for a batch may serve the sample that is made now."""
    return batch() is not None


def prefetch_of(dataset: Any) -> Prefetch | None:
    """A dataset's `__prefetch__`, also inside torch's wrappers; None if it has none, or must not be called."""
    if is_torchs(dataset, Subset):
        inner = prefetch_of(dataset.dataset)
        return None if inner is None else lambda indices: inner([dataset.indices[index] for index in indices])
    if is_torchs(dataset, ConcatDataset):
        return _of_several(dataset)
    if is_torchs(dataset, StackDataset):
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        known = [prefetch for prefetch in map(prefetch_of, parts) if prefetch is not None]
        return (lambda indices: [prefetch(list(indices)) for prefetch in known]) if known else None
    if not hasattr(type(dataset), "__prefetch__"):
        return None
    prefetch: Prefetch | None = attribute(dataset, "__prefetch__")
    return prefetch


def is_torchs(dataset: Any, kind: Any) -> bool:
    """Whether a dataset is this wrapper of torch's, or a subclass that makes samples in the same way."""
    return isinstance(dataset, kind) and type(dataset).__getitem__ is kind.__getitem__


def _of_several(dataset: ConcatDataset[Any]) -> Prefetch | None:
    """prefetch_of() for a ConcatDataset: each part gets its own indices, counted from its beginning."""
    of_each = [prefetch_of(part) for part in dataset.datasets]
    if not any(of_each):
        return None
    ends = dataset.cumulative_sizes

    def prefetch(indices: Iterable[Any]) -> None:
        own: dict[int, list[Any]] = {}
        for index in indices:
            index = index + ends[-1] if index < 0 else index
            if 0 <= index < ends[-1]:  # otherwise __getitem__ raises
                which = bisect.bisect_right(ends, index)
                own.setdefault(which, []).append(index - ends[which - 1] if which else index)
        for which, of_it in own.items():
            begin = of_each[which]
            if begin is not None:
                begin(of_it)

    return prefetch


class LookAhead:
    """Passes on the indices of the batch at hand, and of those that follow it.

    Args:
        ring: This worker's side of the ring.
        prefetch: Called once for each batch, with its indices.
        batches: How many batches, the one at hand included; None: the default.
        auto_collation: Whether a task is the indices of a batch.  If not, it is the index of one sample.
    """

    def __init__(self, ring: WorkerSide, prefetch: Prefetch, batches: int | None, auto_collation: bool) -> None:
        self._ring = ring
        self._prefetch = prefetch
        self._batches = DEFAULT if batches is None else max(1, batches)
        self._auto_collation = auto_collation
        self._given: deque[Announced] = deque()  # nobody else holds them
        self._raised: dict[int, Exception] = {}  # by the sequence whose indices were given

    def look(self, task: Any) -> None:
        """Pass on the indices that were not passed on yet.

        Args:
            task: The task of the batch at hand.

        Raises:
            Exception: What `prefetch` raised for the indices of this batch, now or earlier.
        """
        now, given = self._ring.sequence, self._given
        while given and given[0].sequence < now:
            given.popleft()
        if not given or given[0].sequence > now:  # with stealing, a dead worker's batch may come after later ones
            given.clear()
            self._give(now, task)
        if wanted := self._batches - len(given):
            for sequence, written, listed in self._ring.upcoming(given[-1].sequence, wanted):
                self._give(sequence, read_listed(written)[0] if listed else read_task(written))
        error = self._raised.pop(now, None)
        if error is not None:
            raise error

    def _give(self, sequence: int, task: Any) -> None:
        self._given.append(Announced(sequence))
        before = _BATCH.set(weakref.ref(self._given[-1]))  # a traceback must not keep the batch itself alive
        try:
            self._prefetch(indices_of(task, self._auto_collation))
        except Exception as error:
            self._raised[sequence] = error
        finally:
            _BATCH.reset(before)


def prefetching(dataset: Any, ring: WorkerSide, batches: int | None, auto_collation: bool) -> LookAhead | None:
    """What calls a dataset's __prefetch__; None if it has none, or if it must not be called.

    Args:
        dataset: The dataset.
        ring, auto_collation: See LookAhead.
        batches: The loader's `look_ahead`.
    """
    if batches == 0 or isinstance(dataset, IterableDataset) or (prefetch := prefetch_of(dataset)) is None:
        return None
    return LookAhead(ring, prefetch, batches, auto_collation)


def indices_of(task: Any, auto_collation: bool) -> list[Any]:
    """A plain list of a task's indices; reading a list whose samples are seeded would seed them."""
    if not auto_collation:
        return [task]
    if isinstance(task, list):
        return task[:]
    return list(task) if hasattr(task, "__len__") else []
