"""Makes a batch from its indices in a worker: fetches the samples, as torch does, and collates them.
It also moves a resumed stream to its place, by its state or by reading samples again.
It warns if a worker spends much of its time on asking its stream for its state, which it does after each batch.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import pickle
import warnings
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from shmloader.core.batch_writer import Writer
from shmloader.protocols.user_objects import by_next, hearers, load_state, says_where_it_is, skip
from shmloader.worker.in_place import in_place
from shmloader.worker.random_states import makes_at_once
from shmloader.worker.replace_bad_samples import Skips

Fetch = Callable[[Any], Any]


class Left(NamedTuple):
    """The place from which a stream continues."""

    samples: int  # how many samples it has given; they are skipped if it has no state
    ended: bool  # whether it has nothing more to give
    state: Any  # its state at that place, from state_of_parts(); None: it has none
    errors: tuple[int, ...] = ()  # for each exception, how many samples came before it
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
    """The function that makes batches from tasks, for one epoch.

    Args:
        dataset: Map-style, or iterable; iter() of an iterable one is called again.
        auto_collation: Whether a task is the indices of a batch.  If not, it is the index of one sample.
        collate_fn: Makes the batch.
        drop_last: Whether the last batch of a stream is dropped if it is not full.
        writer: Knows the samples' places in the slot: see in_place.py.  None: they have no places.
        skips: Gets samples, and replaces bad ones; None: bad ones raise.
        left: The place from which a stream continues; None: its beginning.
        fetched: Called when a batch's samples are there, before they are collated.
        default: Does the work of default_collate, if that is the collate function.

    Returns:
        A function of a task.  It raises StopIteration when a stream has ended.
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
            samples = skips.samples(indices)
        elif at_once := makes_at_once(dataset, indices):
            samples = at_once(indices)
        else:
            samples = [dataset[index] for index in indices]
        fetched()
        return made(samples)

    return fetch


def with_states(dataset: Any, samples: Any) -> dict[str, Any]:
    """A stream and its iterator, by what a state calls them; None in place of one that does not say where it is."""
    parts = {"dataset": dataset, "iterator": samples}
    return {name: part if says_where_it_is(part) else None for name, part in parts.items()}


def state_of_stream(dataset: Any, samples: Any, ended: bool, given: int, errors: Sequence[int]) -> bytes:
    """state_of_parts() of a stream, and of its iterator; None if it has none now."""
    return state_of_parts(with_states(dataset, samples), ended, given, errors)


def state_of_parts(parts: dict[str, Any], ended: bool, given: int, errors: Sequence[int]) -> bytes:
    """The state of a stream and its iterator, pickled; empty if there is none.

    It includes whether the stream has ended, because after its end a stream may have the state of its beginning.  If it
    has raised, the state also has the number of samples that it has given, because the failed batch may have had any
    number of them.

    Args:
        parts: The stream, and its iterator, as with_states() returns them.
        ended: Whether it has nothing more to give in this epoch.
        given: How many samples it has given in this epoch.
        errors: For each exception, how many samples came before it.
    """
    fields = {name: None if part is None else part.state_dict() for name, part in parts.items()}
    state = None if all(field is None for field in fields.values()) else fields
    if state is None and not errors:
        return b""
    return pickle.dumps((ended, state, (given, list(errors)) if errors else None))


def state_at_first(left: Left) -> bytes:
    """A state for a stream before its first batch.  It is used if the stream itself has none there."""
    return pickle.dumps((left.ended, left.state, (left.samples, list(left.errors))))


def restore_stream(dataset: Any, left: Left | None) -> None:
    """Load a stream's state: before its iter(), or instead of it if the stream has ended."""
    if is_restored(dataset, left):
        assert left is not None
        load_state(dataset, left.state["dataset"])


def is_restored(dataset: Any, left: Left | None) -> bool:
    """Whether restore_stream() loads a state.

    Between two epochs a stream with a set_epoch() gets no state, because set_epoch() starts its next epoch.  The state
    would be that of its end, and after loading it some streams (Hugging Face's) give nothing in any later epoch.
    """
    if left is None or left.state is None or left.state["dataset"] is None:
        return False
    return (left.begun and not left.ended) or not hearers(dataset)


def state_when_fresh(dataset: Any, left: Left | None) -> Any:
    """The state of a stream with a set_epoch() before it is restored in mid-epoch; None for any other stream.

    The later epochs begin from this state.  Otherwise some streams (Hugging Face's) would begin each of them at the
    restored place, unless set_epoch() gives them another epoch.
    """
    if left is None or left.ended or not left.begun or left.state is None or left.state["dataset"] is None:
        return None
    with contextlib.suppress(Exception):  # it may have no state before its first iter()
        return dataset.state_dict() if hearers(dataset) else None
    return None


def pass_over(dataset: Any, samples: Any, left: Left | None) -> Any:
    """Move a stream's iterator to its place: by its state, or by taking the delivered samples from it again.

    Returns:
        The iterator of the rest.

    Raises:
        Exception: What the stream raises at a place where it did not raise before.
    """
    if left is None or left.ended:
        return samples
    if left.state is not None:
        if left.state["iterator"] is not None:
            load_state(samples, left.state["iterator"])
            restore_stream(dataset, left)  # again, because iter() may have counted the new iterator in the dataset
        return samples
    if left.errors:
        return pass_errors_over(dataset, samples, left)
    skip(samples, left.samples)
    return samples


def pass_errors_over(dataset: Any, samples: Any, left: Left, each: int = 1) -> Any:
    """pass_over() for a stream that raised before the user continued: an error at the same place is dropped.

    An error that does not come again may have taken a sample's place, or the stream may have tried that sample again.
    In the first case the stream now gives a sample more: the one that raised, or, because the count ends one sample
    early, one that was delivered.

    Args:
        dataset, samples, left: As in pass_over().
        each: How many samples an item of the iterator counts as.
    """
    given, errors = 0, collections.Counter(left.errors)
    missing: list[int] = []
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
        missing += [given] * errors.pop(given, 0)
        if given == left.samples:  # the error came behind the last delivered sample, so this one was not delivered
            samples = itertools.chain([sample], by_next(samples))
            break
        given += each
    if missing:
        _warn_of_missing(dataset, missing)
    return samples


def _warn_of_missing(dataset: Any, missing: list[int]) -> None:
    """Warn of the errors that did not come again.  A worker has no line of the user's loop, so the stream's is named.

    Args:
        dataset: The stream.
        missing: For each error, how many samples came before it.
    """
    kind, worker = type(dataset), get_worker_info()
    named = kind.__name__ if worker is None else f"{kind.__name__} in worker {worker.id}"
    after = f"{missing[0]} sample{'s' * (missing[0] != 1)}"
    code = getattr(kind.__iter__, "__code__", _warn_of_missing.__code__)
    warnings.warn_explicit(
        f"the stream {named} raised after {after} in the saved run, but not in this one. It has no "
        "state_dict(), so the loader counts its samples to find the place. If the stream left a sample out when it "
        f"raised, more samples come than in an uninterrupted run, or come twice: {len(missing)}. None is lost. Give "
        "the stream a state_dict() and a load_state_dict().",
        RuntimeWarning,
        code.co_filename,
        code.co_firstlineno,
    )


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
        restore_stream(dataset, left)
        self._dataset = dataset
        self._ended = left is not None and left.ended
        # iter() is not called on a stream that has ended, because a stream may count its epochs by that
        self._samples = iter(()) if self._ended else pass_over(dataset, iter(dataset), left)
        self._given = 0 if left is None else left.samples
        self._errors = [] if left is None else list(left.errors)
        self._auto_collation = auto_collation
        self._collate_fn = collate_fn
        self._drop_last = drop_last
        self._fetched = fetched
        self._parts: dict[str, Any] | None = None

    def state(self) -> bytes:
        """See state_of_parts()."""
        if self._parts is None:  # looked up once, because this is called after each batch
            self._parts = with_states(self._dataset, self._samples)
        return state_of_parts(self._parts, self._ended, self._given, self._errors)

    def _next(self, count: int) -> list[Any]:
        """The next samples; fewer at the end of the stream."""
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


SHARE = 0.1  # of the worker's time
LEAST = 0.1  # seconds on states, before which a share says nothing


class StateCosts:
    """Measures one worker.

    Args:
        dataset: The stream.
        worker: The worker's number.
    """

    def __init__(self, dataset: Any, worker: int) -> None:
        self._kind = type(dataset)
        self._worker = worker
        self._began = self._states = self._all = 0
        self._has_warned = False

    def begin(self) -> None:
        """The worker begins a batch."""
        self._began = monotonic_ns()

    def add(self, asked: int) -> None:
        """The worker has asked for the state behind the batch, and written it, since `asked`, a time in nanoseconds."""
        now = monotonic_ns()
        self._states += now - asked
        self._all += now - self._began
        if not self._has_warned and self._states > LEAST * 1e9 and self._states > SHARE * self._all:
            self._has_warned = True
            self._warn()

    def _warn(self) -> None:
        code = getattr(getattr(self._kind, "state_dict", None), "__code__", self._warn.__code__)
        warnings.warn_explicit(
            f"the state of the stream {self._kind.__name__} takes {self._states / self._all:.0%} of the time of worker "
            f"{self._worker} ({self._states / 1e9:.1f} s so far). A worker asks its stream for its state after each "
            f"batch, and that should take less than {SHARE:.0%}. Have state_dict() return less, or faster. Or leave it "
            "out, if you need not resume in mid-epoch.",
            RuntimeWarning,
            code.co_filename,
            code.co_firstlineno,
        )
