"""An iterator that begins its epoch before the user asks for it: `loader.start()`.

It is kept beside the loader, and not in it, because frameworks copy a loader's __dict__, and two loaders must not take
the same iterator.  It dies with its loader: nothing else refers to it, and it refers to no loader.

If workers persist, a loop over an earlier epoch has the same iterator.  Until iter() asks for the epoch that start()
began, next() ends that loop (`is_unasked`).  Otherwise the loop would take batches that no state counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from shmloader.options import Options
from shmloader.resume.generators import undrawn_if_it_fails
from shmloader.resume.place import place_of
from shmloader.system.by_identity import ByIdentity

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch  # it needs the core, which is built only on Linux

_started: ByIdentity[Any] = ByIdentity()


def start(loader: Any, iterators: Iterable[Any], begin: Callable[[], Any]) -> None:
    """Begin the loader's next epoch early, unless it has already begun.

    Args:
        loader: The loader.
        iterators: Its living iterators.
        begin: Begins the epoch, and returns its iterator.

    Raises:
        RuntimeError: The user is in the middle of an epoch, and has loaded no state.
    """
    place = place_of(loader)
    if place.next is not None:
        return
    epoch = place.current
    if epoch is not None and not epoch.ended and any(_is_in(iterator, epoch) for iterator in iterators):
        if Options.of(loader).prefetch_epochs:  # the next epoch begins by itself, before this one ends
            return
        if place.loaded is None:  # otherwise iter() would leave that epoch, too
            raise RuntimeError(
                f"start() cannot begin the next epoch, because an iterator is in the middle of epoch {epoch.number}. "
                "Call start() before an epoch or after its last batch. Or close() the iterator first, or give "
                "prefetch_epochs=True."
            )
    with place.beginning_next(), undrawn_if_it_fails(loader.generator):
        _started[loader] = begin()
    if (started := _started.get(loader)) is not None:  # otherwise a signal's handler has called iter()
        started.is_unasked = True


def _is_in(iterator: Any, epoch: Epoch) -> bool:
    return getattr(iterator, "epoch", None) is epoch and not iterator._shutdown


def goes_on(iterator: Any) -> bool:
    """Whether an iterator can begin another epoch: it was not closed, and this process was not forked from its own."""
    return not getattr(iterator, "_shutdown", False) and getattr(iterator, "_owner", os.getpid()) == os.getpid()


def taken(loader: Any) -> Any:
    """The iterator that start() made, for iter() to return; None if there is none.

    It is also None if that iterator has begun another epoch than the one that is wanted now.
    """
    started = _started.pop(loader, None)
    if started is not None:
        started.is_unasked = False
    place = place_of(loader)
    if started is None or not goes_on(started) or (epoch := place.next) is None:
        return None
    if place.holds(epoch):
        place.turn(epoch)
        return started
    place.give_up(epoch)
    # persistent workers have read on in their streams, which must continue from their old places
    if not loader.persistent_workers or isinstance(loader.dataset, IterableDataset):
        started.close()
    return None


def is_asked_for(loader: Any, iterator: Any) -> bool:
    """Whether torch's own `__iter__` resets an iterator in order to get its prefetched epoch.

    With persistent workers, torch's method keeps the loader's iterator and calls its `_reset`.

    Raises:
        RuntimeError: Another epoch is asked for, and the workers have read on in their streams.
    """
    if _started.get(loader) is not iterator:
        return False
    if taken(loader) is iterator:
        return True
    if not goes_on(iterator):
        loader._iterator = None
        raise RuntimeError(
            "start() began a different epoch from the one that iter() must return now. torch's DataLoader.__iter__ "
            "keeps the workers, but they have already read their streams for that epoch. Call set_epoch() and "
            "load_state_dict() before start(), or call iter() again."
        )
    return False


def drop(loader: Any) -> None:
    """Drop the iterator that start() made, because the loader was closed."""
    _started.pop(loader, None)
    place_of(loader).next = None
