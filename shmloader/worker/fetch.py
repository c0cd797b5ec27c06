"""Makes a batch of its indices in a worker: the dataset's samples, collated.  Samples are fetched as in torch."""

from __future__ import annotations

import collections
import itertools
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, default_collate

from shmloader._batch_writer import Writer
from shmloader.worker.at_once import makes_at_once
from shmloader.worker.in_place import in_place
from shmloader.worker.replace_bad_samples import Skips

Fetch = Callable[[Any], Any]


class Left(NamedTuple):
    """Where a stream goes on, in the midst of an epoch."""

    samples: int  # that it has given by then, to be passed over if it says nothing of itself
    ended: bool  # whether it has nothing more to give
    state: Any  # what it said of itself by then, as said_by() has it; None: nothing


def fetch_from(
    dataset: Any,
    auto_collation: bool,
    collate_fn: Callable[[Any], Any],
    drop_last: bool,
    writer: Writer | None,
    skips: Skips | None = None,
    left: Left | None = None,
    fetched: Callable[[], None] = lambda: None,
) -> Fetch:
    """The function that makes a batch of a task, for one epoch.

    Args:
        dataset: Map-style, or iterable; an iterable one is begun anew.
        auto_collation: Whether a task is the indices of a batch; if not, it is the index of one sample.
        collate_fn: Makes the batch.
        drop_last: Whether the last batch of a stream is dropped if it is not full.
        writer: Where samples have their places: see in_place.py.  None: nowhere.
        skips: Gets samples where those that raise are replaced.
        left: Where a stream goes on; None: it begins.
        fetched: Is called when a batch's samples are there, before they are collated.

    Returns:
        A function of the task.  It raises StopIteration when a stream has nothing more.
    """
    if isinstance(dataset, IterableDataset):
        return Stream(dataset, auto_collation, collate_fn, drop_last, left, fetched)
    if not auto_collation:
        get = None if skips is None else skips.sample

        def fetch_one(index: Any) -> Any:
            sample = dataset[index] if get is None else get(index)
            fetched()
            return collate_fn(sample)

        return fetch_one

    placed = None if writer is None else in_place(dataset, collate_fn, writer, skips)

    def fetch(indices: Any) -> Any:
        if placed is not None and hasattr(indices, "__len__"):
            samples = placed.samples(indices)
        elif skips is not None:
            samples = skips.samples(indices, one_each=collate_fn is default_collate)
        elif at_once := makes_at_once(dataset, indices):
            samples = at_once(indices)
        else:
            samples = [dataset[index] for index in indices]
        fetched()
        return collate_fn(samples)

    return fetch


def says_where_it_is(what: Any) -> bool:
    """Whether a stream, or its iterator, has a state_dict() and a load_state_dict()."""
    return callable(getattr(what, "state_dict", None)) and callable(getattr(what, "load_state_dict", None))


def said_by(dataset: Any, samples: Any, ended: bool) -> bytes:
    """What a stream and its iterator say of themselves now, pickled; empty if neither does.

    Whether it has ended is said as well: a stream that has may say of itself that it is at its beginning.
    """
    parts = {"dataset": dataset, "iterator": samples}
    said = {name: part.state_dict() if says_where_it_is(part) else None for name, part in parts.items()}
    return b"" if all(part is None for part in said.values()) else pickle.dumps((ended, said))


def restore(dataset: Any, left: Left | None) -> None:
    """Tell a stream where it goes on, before it is asked for an iterator."""
    if left is not None and left.state is not None and left.state["dataset"] is not None:
        dataset.load_state_dict(left.state["dataset"])


def pass_over(samples: Any, left: Left | None) -> None:
    """Have a stream's iterator go on: by what it said of itself, or by taking what it has given from it once more."""
    if left is None or left.ended:
        return
    if left.state is None:
        collections.deque(itertools.islice(samples, left.samples), maxlen=0)
    elif left.state["iterator"] is not None:
        samples.load_state_dict(left.state["iterator"])


class Stream:
    """Batches of an iterable dataset, as they come."""

    def __init__(
        self,
        dataset: Any,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
        left: Left | None = None,
        fetched: Callable[[], None] = lambda: None,
    ) -> None:
        restore(dataset, left)
        self._dataset = dataset
        self._samples = iter(dataset)
        pass_over(self._samples, left)
        self._auto_collation = auto_collation
        self._collate_fn = collate_fn
        self._drop_last = drop_last
        self._fetched = fetched
        self._ended = left is not None and left.ended

    def said(self) -> bytes:
        """See said_by()."""
        return said_by(self._dataset, self._samples, self._ended)

    def __call__(self, task: Any) -> Any:
        if self._ended:
            raise StopIteration
        if not self._auto_collation:
            sample = next(self._samples)
            self._fetched()
            return self._collate_fn(sample)
        samples = []
        for _ in task:
            try:
                samples.append(next(self._samples))
            except StopIteration:
                self._ended = True
                break
        if not samples or (self._drop_last and len(samples) < len(task)):
            raise StopIteration
        self._fetched()
        return self._collate_fn(samples)
