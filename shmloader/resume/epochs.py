"""Passes the epoch of a dataset's set_epoch() on to the workers' copies of the dataset.

The dataset in the trainer and its copies in the workers are different objects.  A `set_epoch(e)` of the trainer's
dataset does not reach the copies, so persistent workers would stay in the epoch in which they started.  Therefore
the loader's constructor wraps `set_epoch` of the dataset's class, so that every call is recorded here.  Each task
carries the number that the dataset had when the task's index was drawn, and each copy comes to its worker with the
number that it has: NOTE [ Numbers of copies ] in worker/numbered_copy.py.
"""

from __future__ import annotations

import functools
import operator
import os
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from shmloader.protocols.attributes import attribute
from shmloader.protocols.wrapped_datasets import hearers
from shmloader.resume.seek import has_set_epoch, within
from shmloader.system.user_line import caller

if TYPE_CHECKING:
    from shmloader.core.trainer import EpochCounts  # off Linux there is none

MOST = (1 << 63) - 1  # a task has 64 bits for an epoch

_epochs: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id, because a dataset may define its own == and hash
_heard: weakref.WeakSet[type] = weakref.WeakSet()
_following: weakref.WeakKeyDictionary[EpochCounts, weakref.ref[Any]] = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_following.clear)  # a copy's calls are no calls of the trainer's


def listen(dataset: Any) -> None:
    """From now on, record calls of set_epoch() on datasets of this one's class, and of the datasets inside it."""
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
    except TypeError:  # the class cannot be changed, so only loader.set_epoch() reaches the workers
        return


def note(dataset: Any, *epoch: Any) -> None:
    """Record that set_epoch() was called on a dataset.  An epoch that does not fit into a task is not recorded."""
    if len(epoch) != 1 or not isinstance(epoch[0], int) or abs(epoch[0]) > MOST:
        return
    key = id(dataset)
    try:
        alive = weakref.ref(dataset, lambda _: _epochs.pop(key, None))
    except TypeError:
        return
    _epochs[key] = alive, int(epoch[0])
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
    numbers = {_own_epoch(hearer) for hearer in hearers(dataset)}
    return numbers.pop() if len(numbers) == 1 else None


def _own_epoch(dataset: Any) -> int | None:
    alive, epoch = _epochs.get(id(dataset), (None, None))
    return epoch if alive is not None and alive() is dataset else None


class Numbers:
    """The number that each dataset with a set_epoch() inside a dataset has in this process.

    It goes to a worker beside the dataset.  In a forked worker it gives the numbers of the fork, and a pickle of it has
    those of the moment at which the dataset is pickled.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self) -> list[int | None]:
        return [_own_epoch(hearer) for hearer in hearers(self._dataset)]

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
        number = _own_epoch(hearer)
        if number is not None:
            hearer.set_epoch(number)


def number_of(epoch: Any) -> int:
    """The number of an epoch, as a state and a task can hold it.

    Raises:
        TypeError, ValueError: It cannot be the number of an epoch.
    """
    try:
        number = operator.index(epoch)
    except TypeError:
        raise TypeError(f"set_epoch() takes the number of an epoch, an int, but got {epoch!r}.") from None
    if abs(number) > MOST:
        raise ValueError(f"set_epoch() got {number}. An epoch's number has 64 bits: it is from {-MOST} to {MOST}.")
    return number


def set_epoch_of_samplers(number: int, *samplers: Any) -> None:
    """Call set_epoch() of samplers and of the samplers inside them, of each once."""
    called: list[Any] = []
    for part in [part for sampler in samplers for part in within(sampler)]:
        method = attribute(part, "set_epoch")
        if callable(method) and not any(part is other for other in called):
            called.append(part)
            method(number)


_LOOKED_AT = 16  # samplers in a list
_unreached: set[tuple[str, str]] = set()


def warn_of_unreached(loader: Any, number: int, coming: int) -> None:
    """Warn once for each class of samplers whose set_epoch() the loader does not find.

    That is a sampler in an attribute with another name than `sampler` and `batch_sampler`.  A sampler around it that
    has a set_epoch() of its own may pass the number on.  Others pass it on in their __iter__(), and the user may do it
    after the loader's set_epoch().  So this looks after an epoch, and one that had the epoch's number missed nothing.

    Args:
        loader: The loader.
        number: What set_epoch() was given before the epoch that has begun last.
        coming: The number of the next epoch.  The user may have given it to the sampler already.
    """
    parts = [*within(loader.sampler), *within(loader.batch_sampler)]
    if any(has_set_epoch(part) for part in parts):
        return
    for part in parts:
        for name, value in list(attribute(part, "__dict__", {}).items()):
            held = value[:_LOOKED_AT] if isinstance(value, (list, tuple)) else [value]
            inside = (inner for each in held if isinstance(each, Sampler) for inner in within(each))
            found = next(filter(_needs_epoch, inside), None)
            if name != "data_source" and found is not None and attribute(found, "epoch") not in (number, coming):
                _warn_of_unreached(type(part).__name__, name, type(found).__name__, number)


def _needs_epoch(sampler: Any) -> bool:
    return has_set_epoch(sampler) and attribute(sampler, "shuffle", True) is not False


def _warn_of_unreached(outer: str, name: str, inner: str, number: int) -> None:
    if (outer, name) in _unreached:
        return
    _unreached.add((outer, name))
    warnings.warn(
        f"set_epoch({number}) does not reach the {inner} in {outer}.{name}. The loader looks only at attributes named "
        "sampler and batch_sampler. So this one keeps its epoch, and may give the same order in every epoch. Give "
        f"{outer} a set_epoch(epoch) that calls that of {name}, or name the attribute sampler.",
        RuntimeWarning,
        stacklevel=caller()[1],
    )
