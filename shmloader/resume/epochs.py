"""The epoch that the loader or the user gave a dataset by set_epoch(), for workers' copies of it.

A dataset in the trainer and its copies in the workers are different objects.  What the user tells the one by
`set_epoch(e)` the others do not hear, and workers that persist would go on with the epoch that they were started with.
So the class's `set_epoch` is listened to, from when a loader is made of such a dataset: whoever calls it, what it was
called with is noted here, the loader looks at its next iter(), and each task says what its batch is to be made for.
"""

from __future__ import annotations

import functools
import operator
import types
import weakref
from typing import Any

from torch.utils.data import IterableDataset

from shmloader.resume.seek import within
from shmloader.wrapped_datasets import hearers

MOST = (1 << 63) - 1  # a task has 64 bits for it

_epochs: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id: a dataset may compare and hash as it likes
_heard: weakref.WeakSet[type] = weakref.WeakSet()


def listen(dataset: Any) -> None:
    """From now on, note what set_epoch() gives datasets of this one's class, and those that are wrapped in it."""
    for hearer in hearers(dataset):
        _listen_to(type(hearer))


def _listen_to(kind: type) -> None:
    if kind in _heard:
        return
    _heard.add(kind)
    owner = next((base for base in kind.__mro__ if "set_epoch" in vars(base)), None)
    method = None if owner is None else vars(owner)["set_epoch"]
    if owner is None or not isinstance(method, types.FunctionType) or hasattr(method, "_listened_to"):
        return

    @functools.wraps(method)
    def set_epoch(self: Any, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        note(self, *arguments, *options.values())
        return result

    set_epoch._listened_to = True  # type: ignore[attr-defined]
    try:
        owner.set_epoch = set_epoch  # type: ignore[attr-defined]
    except TypeError:  # a class that cannot be changed: only loader.set_epoch() reaches the workers
        return


def note(dataset: Any, *epoch: Any) -> None:
    """set_epoch() gave a dataset this epoch.  One that no task can hold is not noted."""
    if len(epoch) != 1 or not isinstance(epoch[0], int) or abs(epoch[0]) > MOST:
        return
    key = id(dataset)
    try:
        alive = weakref.ref(dataset, lambda _: _epochs.pop(key, None))
    except TypeError:
        return
    _epochs[key] = alive, int(epoch[0])


def dataset_epoch(dataset: Any) -> int | None:
    """The last epoch that set_epoch() gave this dataset; None: none, or those wrapped in it got several."""
    numbers = {_own_epoch(hearer) for hearer in hearers(dataset)}
    return numbers.pop() if len(numbers) == 1 else None


def _own_epoch(dataset: Any) -> int | None:
    alive, epoch = _epochs.get(id(dataset), (None, None))
    return epoch if alive is not None and alive() is dataset else None


def set_epoch(dataset: Any, epoch: int) -> None:
    """Tell a dataset, or those that are wrapped in it, if they can be told."""
    for hearer in hearers(dataset):
        hearer.set_epoch(epoch)
        note(hearer, epoch)


def number_of(epoch: Any) -> int:
    """The number of an epoch, as a state and a task can hold it.

    Raises:
        TypeError, ValueError: It is none.
    """
    try:
        number = operator.index(epoch)
    except TypeError:
        raise TypeError(f"set_epoch() takes the number of an epoch, an int, but got {epoch!r}.") from None
    if abs(number) > MOST:
        raise ValueError(f"set_epoch() got {number}. An epoch's number has 64 bits: it is from {-MOST} to {MOST}.")
    return number


def length_of(dataset: Any) -> int | None:
    """How long a dataset is that has a set_epoch(); None for any other, and for a stream."""
    if dataset_epoch(dataset) is None or isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)
    except TypeError:
        return None


def of_sampler(sampler: Any) -> int | None:
    """The epoch of a sampler of this chain, where it has one."""
    for part in within(sampler):
        if callable(getattr(part, "set_epoch", None)):
            number = getattr(part, "epoch", None)
            if type(number) is int:
                return number
    return None


def set_epoch_of_samplers(loader: Any, number: int) -> None:
    """Call set_epoch() of the sampler, the batch sampler, and what they are wrapped around."""
    called: list[Any] = []
    for sampler in (*within(loader.sampler), *within(loader.batch_sampler)):
        tell = getattr(sampler, "set_epoch", None)
        if callable(tell) and not any(sampler is other for other in called):
            called.append(sampler)
            tell(number)
