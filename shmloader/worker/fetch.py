"""Makes a batch of its indices in a worker: the dataset's samples, collated.  Samples are fetched as in torch."""

from __future__ import annotations

import collections
import contextlib
import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, default_collate

from shmloader.core.batch_writer import Writer
from shmloader.worker.getitems import makes_at_once
from shmloader.worker.in_place import in_place
from shmloader.worker.replace_bad_samples import Skips
from shmloader.wrapped_datasets import hearers

Fetch = Callable[[Any], Any]


class Left(NamedTuple):
    """Where a stream goes on."""

    samples: int  # that it has given by then, to be passed over if it says nothing of itself
    ended: bool  # whether it has nothing more to give
    state: Any  # what it said of itself by then, as state_of_stream() has it; None: nothing
    errors: tuple[int, ...] = ()  # for each time that it raised, how many samples it had given by then
    begun: bool = True  # whether the user has any batch of it in this epoch


def fetch_from(
    dataset: Any,
    auto_collation: bool,
    collate_fn: Callable[[Any], Any],
    drop_last: bool,
    writer: Writer | None,
    skips: Skips | None = None,
    left: Left | None = None,
    fetched: Callable[[], None] = lambda: None,
    default: Callable[[Any], Any] = default_collate,
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
        default: Does the work of default_collate, if that is the collate function.

    Returns:
        A function of the task.  It raises StopIteration when a stream has nothing more.
    """
    made = default if collate_fn is default_collate else collate_fn
    if isinstance(dataset, IterableDataset):
        return Stream(dataset, auto_collation, made, drop_last, left, fetched)
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
        return made(samples)

    return fetch


def says_where_it_is(what: Any) -> bool:
    """Whether a stream, or its iterator, has a state_dict() and a load_state_dict()."""
    return callable(getattr(what, "state_dict", None)) and callable(getattr(what, "load_state_dict", None))


def state_of_stream(dataset: Any, samples: Any, ended: bool, given: int, errors: Sequence[int]) -> bytes:
    """What a stream and its iterator say of themselves now, pickled; empty if there is nothing to say.

    Whether it has ended goes with it, because a stream that has may say of itself that it is at its beginning.  If it
    has raised, so does the number of samples that it has given: the batch that failed may have any number of them.

    Args:
        dataset, samples: The stream, and its iterator; None where it has none now.
        ended: Whether it has nothing more to give in this epoch.
        given: How many samples it has given in this epoch.
        errors: For each time that it raised, how many it had given by then.
    """
    parts = {"dataset": dataset, "iterator": samples}
    said = {name: part.state_dict() if says_where_it_is(part) else None for name, part in parts.items()}
    state = None if all(part is None for part in said.values()) else said
    if state is None and not errors:
        return b""
    return pickle.dumps((ended, state, (given, list(errors)) if errors else None))


def state_at_first(left: Left) -> bytes:
    """What a stream that could not go on from there says of itself: that it is still there."""
    return pickle.dumps((left.ended, left.state, (left.samples, list(left.errors))))


def restore(dataset: Any, left: Left | None) -> None:
    """Tell a stream where it goes on: before it is asked for an iterator, or instead of that where it has ended.

    Between two epochs there is nothing to tell a stream that has a set_epoch(): it gets the number of its epoch by
    that.  Some (Hugging Face's) take the state of their end for a place from which nothing follows, in any epoch.
    """
    if left is None or left.state is None or left.state["dataset"] is None:
        return
    if (left.ended or not left.begun) and any(hearers(dataset)):
        return
    dataset.load_state_dict(left.state["dataset"])


def state_when_fresh(dataset: Any, left: Left | None) -> Any:
    """What a stream that has a set_epoch() says of itself before it is restored in mid-epoch; None for any other.

    The epochs behind that one begin with it.  Otherwise some (Hugging Face's) would begin each of them where they were
    restored, unless they are told another epoch.
    """
    if left is None or left.ended or not left.begun or left.state is None or left.state["dataset"] is None:
        return None
    with contextlib.suppress(Exception):  # it may not be able to say it before it has begun
        return dataset.state_dict() if any(hearers(dataset)) else None
    return None


def pass_over(dataset: Any, samples: Any, left: Left | None) -> Any:
    """Have a stream's iterator go on: by what it said of itself, or by taking what it has given from it once more.

    Returns:
        The iterator of what is left.

    Raises:
        Exception: What the stream raises there, where it raised nothing before.
    """
    if left is None or left.ended:
        return samples
    if left.state is not None:
        if left.state["iterator"] is not None:
            samples.load_state_dict(left.state["iterator"])
            restore(dataset, left)  # again: iter() may have counted in the dataset that there was another one
        return samples
    if left.errors:
        return _passed_over(samples, left)
    collections.deque(itertools.islice(samples, left.samples), maxlen=0)
    return samples


def _passed_over(samples: Any, left: Left) -> Any:
    """The same for a stream that raised, and whose user went on: what it raises again at such a place is dropped."""
    given, errors = 0, collections.Counter(left.errors)
    while given < left.samples or errors[given]:
        try:
            sample = next(samples)
        except StopIteration:
            break
        except Exception:
            if not errors[given]:
                raise
            errors[given] -= 1
            continue
        if given == left.samples:  # an error was here that did not come again
            return itertools.chain([sample], samples)
        del errors[given]
        given += 1
    return samples


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
        self._ended = left is not None and left.ended
        # one that has ended is not asked for an iterator: it may count by that how often it was begun
        self._samples = iter(()) if self._ended else pass_over(dataset, iter(dataset), left)
        self._given = 0 if left is None else left.samples
        self._errors = [] if left is None else list(left.errors)
        self._auto_collation = auto_collation
        self._collate_fn = collate_fn
        self._drop_last = drop_last
        self._fetched = fetched

    def state(self) -> bytes:
        """See state_of_stream()."""
        return state_of_stream(self._dataset, self._samples, self._ended, self._given, self._errors)

    def _next(self, count: int) -> list[Any]:
        """The next samples, fewer where the stream has no more."""
        samples: list[Any] = []
        try:
            for _ in range(count):
                samples.append(next(self._samples))
        except StopIteration:
            self._ended = True
        except Exception:
            self._errors.append(self._given + len(samples))
            raise
        finally:
            self._given += len(samples)
        return samples

    def __call__(self, task: Any) -> Any:
        if self._ended:
            raise StopIteration
        if not self._auto_collation:
            samples = self._next(1)
            if not samples:
                raise StopIteration
            self._fetched()
            return self._collate_fn(samples.pop())
        samples = self._next(len(task))
        if not samples or (self._drop_last and len(samples) < len(task)):
            raise StopIteration
        self._fetched()
        return self._collate_fn(samples)
