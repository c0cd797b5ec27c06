"""The next epoch, prefetched while the last batches of this one are under way: `prefetch_epochs=True`.
It decides with which samplers that is possible.

NOTE [ Overlap ]

Without an overlap, workers fall idle one after another once the sampler is exhausted, until the user reaches the end
and calls iter() again.  Then the trainer waits for a first batch that nobody has begun.  With an overlap, the sampler's
next epoch begins at once, and its batches are opened as far as there is room (NOTE [ One step ], 5).  So the ring may
hold two epochs, but never three, because an epoch is prefetched only while the user iterates over the one before it.

    1. Each task names its batch's epoch, seed, and the argument of the dataset's set_epoch().  The ring keeps the
       order: while any batch of the current epoch is under way, the batch that is delivered next belongs to the current
       epoch.  Each epoch counts its own batches.  So workers need not know of overlaps.
    2. The draws come in torch's order, but earlier: after the last index of an epoch, instead of at iter().  The
       workers persist, because prefetch_epochs requires that, and they keep their base seed.  So only the sampler
       draws.
    3. The user usually calls set_epoch() between the epochs, which is too late for us.  So we assume that its number
       grows by as much as it grew last.  We set a copy of the DistributedSampler to the assumed number, and leave the
       sampler itself alone.  The set_epoch() of any other sampler may do anything, so its next epoch is not prefetched.
    4. iter() checks what was assumed.  If it was wrong, the ring is drained and the epoch begins again, with the same
       drawn seeds: NOTE [ Place ], 6.
"""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DistributedSampler

from shmloader.attributes import attribute
from shmloader.resume import seek
from shmloader.resume.drawn_from import warn_not_prefetched, watch_of
from shmloader.resume.epoch import Epoch
from shmloader.resume.place import Place
from shmloader.resume.source import Source


def source_of(place: Place, current: Epoch, index_sampler: Any) -> tuple[Source, int | None, int | None] | None:
    """The source of the epoch after the current one; None if it cannot be known yet.

    Returns:
        The source; and the epochs that set_epoch() is assumed to set on its sampler and on the dataset.
    """
    of_sampler, of_dataset = place.assumed(current)
    sampler = with_epoch(index_sampler, of_sampler)
    if sampler is None:
        return None
    watch = watch_of(index_sampler)
    if watch is None:
        warn_not_prefetched(index_sampler)
        return None
    generator, another = place.loader.generator, place.another()
    return Source(sampler, generator, watch=watch, another=another, saving=place.saving), of_sampler, of_dataset


def with_epoch(sampler: Any, epoch: int | None) -> Any:
    """A copy of a sampler, set to this epoch; the sampler itself without an epoch; None if set_epoch() is unknown."""
    if not any(callable(attribute(part, "set_epoch")) for part in seek.within(sampler)):
        return sampler
    parts = seek.chain(sampler)
    last = parts[-1]
    if epoch is None or not seek.is_a(last, DistributedSampler) or seek.keeps_state(sampler) is not None:
        return None
    if type(last).set_epoch is not DistributedSampler.set_epoch or any(
        attribute(part, "set_epoch") is not None for part in parts[:-1]
    ):
        return None
    made = copy.copy(last)
    made.set_epoch(epoch)
    for part in reversed(parts[:-1]):
        outer = copy.copy(part)
        outer.sampler = made
        made = outer
    return made
