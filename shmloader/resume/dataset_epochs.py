"""Passes the epoch of a dataset's set_epoch() on to the workers' copies of the dataset.

The dataset in the trainer and its copies in the workers are different objects.  A `set_epoch(e)` of the trainer's
dataset does not reach the copies, so persistent workers would stay in the epoch in which they started.  Therefore
the loader's constructor wraps `set_epoch` of the dataset's class, so that every call is recorded here.  Each task
carries the number that the dataset had when the task's index was drawn, and each copy comes to its worker with the
number that it has: NOTE [ Numbers of copies ] in worker/numbered_copy.py.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import types
import weakref
from typing import TYPE_CHECKING, Any

from shmloader.protocols.user_objects import ByIdentity, hearers

if TYPE_CHECKING:
    from shmloader.core.trainer import EpochCounts  # off Linux there is none

MOST = (1 << 63) - 1  # a task has 64 bits for an epoch

_epochs: ByIdentity[int] = ByIdentity()
_following: weakref.WeakKeyDictionary[EpochCounts, weakref.ref[Any]] = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_following.clear)  # a copy's calls are no calls of the trainer's


def listen(dataset: Any) -> None:
    """From now on, record calls of set_epoch() on datasets of this one's class, and of the datasets inside it."""
    for hearer in hearers(dataset):
        _listen_to(type(hearer))


def _listen_to(kind: type) -> None:
    owner = next((base for base in kind.__mro__ if "set_epoch" in vars(base)), None)
    method = None if owner is None else vars(owner)["set_epoch"]
    if owner is None or not isinstance(method, types.FunctionType) or hasattr(method, "_listened_to"):
        return
    if method.__code__.co_argcount < 2 and not method.__code__.co_flags & inspect.CO_VARARGS:
        return  # copies cannot be called with a number

    @functools.wraps(method)
    def set_epoch(self: Any, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        note(self, *arguments, *options.values())
        return result

    set_epoch._listened_to = True  # type: ignore[attr-defined]
    try:
        owner.set_epoch = set_epoch  # type: ignore[attr-defined]
    except TypeError:  # the class cannot be changed, so only loader.set_epoch() reaches the workers
        return


def note(dataset: Any, *epoch: Any) -> None:
    """Record that set_epoch() was called on a dataset.  What is not one number, or too large for a task, is none."""
    try:
        (number,) = map(operator.index, epoch)
    except (TypeError, ValueError):
        number = MOST + 1
    try:
        if abs(number) <= MOST:
            _epochs[dataset] = number
        else:
            _epochs.pop(dataset)  # the number before it would be a wrong one
    except TypeError:  # it can have no weak reference
        return
    for follower, of in list(_following.items()):
        if (followed := of()) is not None:
            follower.dataset_has(dataset_epoch(followed))


def follow(epoch: EpochCounts, dataset: Any) -> bool:
    """From now on, tell an epoch which number its dataset has from set_epoch(); false if the dataset has none.

    A sampler may call set_epoch() while it is asked for an index, and its user between two batches.
    """
    if not hearers(dataset):
        return False
    try:
        _following[epoch] = weakref.ref(dataset)
    except TypeError:
        return False
    epoch.dataset_has(dataset_epoch(dataset))
    return True


def dataset_epoch(dataset: Any) -> int | None:
    """The last epoch that set_epoch() gave this dataset; None: none, or the datasets inside it got different ones."""
    numbers = {_epochs.get(hearer) for hearer in hearers(dataset)}
    return numbers.pop() if len(numbers) == 1 else None


class Numbers:
    """The number that each dataset with a set_epoch() inside a dataset has in this process.

    It goes to a worker beside the dataset.  In a forked worker it gives the numbers of the fork, and a pickle of it has
    those of the moment at which the dataset is pickled.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self) -> list[int | None]:
        return [_epochs.get(hearer) for hearer in hearers(self._dataset)]

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (list, self())


def set_epoch(dataset: Any, epoch: int) -> None:
    """Call set_epoch() of a dataset, or of the datasets inside it, if they have one."""
    for hearer in hearers(dataset):
        hearer.set_epoch(epoch)
        note(hearer, epoch)


def set_epoch_again(dataset: Any) -> None:
    """Call set_epoch() of a dataset, or of the datasets inside it, with the last number of each, if it has one."""
    for hearer in hearers(dataset):
        if (number := _epochs.get(hearer)) is not None:
            hearer.set_epoch(number)


def number_of(epoch: Any) -> int:
    """The number of an epoch, as a state and a task can hold it.

    Raises:
        TypeError, ValueError: It cannot be the number of an epoch.
    """
    number = operator.index(epoch)
    if abs(number) > MOST:
        raise ValueError(f"set_epoch() got {number}. An epoch's number has 64 bits: it is from {-MOST} to {MOST}.")
    return number
