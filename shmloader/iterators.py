"""Makes a loader's iterators: one over the ring, or torch's, and a prefetcher on top if batches go to a device.
It decides whether iter() continues with persistent workers, or ends them because a loaded state needs new ones.

NOTE [ Iterators ]

Three calls ask for an iterator.  Each of them takes the first line that fits (dataloader.py):

    loader.__iter__()
        other code's method makes its iterators     torch's `__iter__`, which calls it.  It calls the two below
        batches ride the ring, or go to a device    begin_epoch()
        workers, or iterators of another class      super()'s `__iter__`
        neither                                     torch's `__iter__`, past our `_get_iterator`

    loader._get_iterator()
        no ring here, or iterators of another class, or workers off the ring without a device
                                                    super()'s
        other code has replaced torch's, and batches ride
                                                    the replacement.  It calls torch's own
        otherwise                                   another()

    torch's own _get_iterator(loader), which other code calls: NOTE [ Replaced ], (b)
        batches ride                                another()
        otherwise                                   torch's

Iterators of another class: requirements.why_not_of().  A loader that has those, or has no ring here, never takes the
first line of `__iter__`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from shmloader.checks import read_elsewhere, requirements
from shmloader.checks.read_elsewhere import warn_if_bypassed
from shmloader.checks.requirements import check_requirements
from shmloader.options import Options
from shmloader.private import of_torch
from shmloader.resume.place import place_of
from shmloader.system.cleanup import OwnIterator
from shmloader.system.user_line import warn_once

if requirements.why_not_here() is None:
    from shmloader.trainer.iterator import RingIterator
    from shmloader.trainer.without_workers import without_workers

_iterators: weakref.WeakSet[Any] = weakref.WeakSet()  # not in the loader, because frameworks copy its __dict__


def living(loader: Any) -> list[Any]:
    """The living iterators of a loader that have workers, or a thread."""
    return [found for found in list(_iterators) if found.loader() is loader]


def rides(loader: Any) -> bool:
    """Whether a new iterator rides the ring.  If it has workers and does not, this warns."""
    why = requirements.why_not(loader)
    if why is not None and loader.num_workers > 0:
        requirements.warn_or_refuse(loader, why)
    warn_if_bypassed(loader)
    read_elsewhere.iterates(loader)
    return why is None


def another(loader: Any, rides: bool, theirs: Callable[[], Any]) -> Any:
    """Make one more iterator of ours.

    Args:
        loader: The loader.
        rides: Whether its batches ride the ring.
        theirs: Makes torch's iterator, if they do not.
    """
    options = options_of(loader)
    source = _over_the_ring(loader, options) if rides else torchs(loader, theirs)
    if options.device is None and options.on_device is None and not getattr(source, "copies_to_pin", False):
        return source
    from shmloader.device.prefetch import prefetcher  # here, because most loaders leave their batches where they are
    from shmloader.device.to_device import stage_of

    stage, depth = stage_of(loader, options, source)
    if stage is None:
        return source
    _iterators.discard(source)
    iterator = prefetcher(loader, source, stage, depth)
    _iterators.add(iterator)
    return iterator


def begin_epoch(loader: Any, rides: bool, theirs: Callable[[], Any]) -> Any:
    """An iterator of ours that begins an epoch: the existing one, if its workers persist.

    Args: see another().
    """
    end_workers_that_cannot_go_on(loader)
    if not loader.persistent_workers:
        return another(loader, rides, theirs)
    iterator = loader._iterator  # read once, because a signal's handler may close the loader at any line
    if iterator is None or (isinstance(iterator, OwnIterator) and not iterator.goes_on):
        iterator = loader._iterator = another(loader, rides, theirs)
    else:
        iterator._reset(loader)
    return iterator


def keep_loaded_state(loader: Any, begin: Callable[[], Any]) -> Any:
    """Begin an epoch.  If iter() fails, the loaded state stays loaded."""
    place = place_of(loader)
    loaded, current, number = place.loaded, place.current, place.next_number
    loads = place.loads
    try:
        return begin()
    except BaseException:
        if place.loads == loads and loaded is not None:  # otherwise a handler has loaded one
            # no call, so no handler can come between these
            place.loaded, place.current, place.next_number = loaded, current, number
        raise


def options_of(loader: Any) -> Options:
    """A loader's options.

    Raises:
        ValueError: This loader cannot have one of them: what it needs was changed after the loader was made.
    """
    options = Options.of(loader)
    check_requirements(loader, options)
    return options


def _over_the_ring(loader: Any, options: Options) -> RingIterator:
    for lost in of_torch.what_is_lost():
        warn_once(lost)
    loader.check_worker_number_rationality()
    iterator = RingIterator(loader, options)
    _iterators.add(iterator)
    return iterator


def torchs(loader: Any, make: Callable[[], Any]) -> Any:
    """The iterator of torch's that this makes.  Without workers, we count its batches, so that it can resume."""
    options, why = options_of(loader), requirements.why_never(type(loader))
    if why is not None and options.skips_bad_samples:  # of the ring's options, only this one works without workers
        requirements.refuse(loader, why)
    if loader.num_workers or requirements.why_not_here() is not None:
        return make()
    return without_workers(loader, options, make)


def end_workers_that_cannot_go_on(loader: Any) -> None:
    """End persistent workers, if a state was loaded and seeds are set when workers start."""
    place = place_of(loader)
    if not loader.persistent_workers or loader._iterator is None or place.loaded is None:
        return
    if Options.of(loader).seeds_samples and place.loaded.base_seed is not None:
        return  # workers seed each sample, so the old ones can go on
    loader._end_workers()
