"""The next epoch, begun while the last batches of this one are under way: `prefetch_epochs=True`.

NOTE [ Overlap ]

When the sampler has no more, workers would stand idle, one after the other, until the user has come to the end and
calls iter() again; then the trainer waits for a first batch that nobody has begun.  Here the sampler is asked for its
next epoch at once, and what there is room for is opened (NOTE [ One step ], 5).  So two epochs may be in the ring,
never three: an epoch is begun early only while the one before it is the user's.

    1. Each task says for which epoch its batch is, with which seed, and what set_epoch() is to say to the dataset.
       The ring keeps their order, and each epoch counts its own batches: while any of the current one is under way, the
       first one is of that.  So workers need not know of overlaps.
    2. Draws come in torch's order, but earlier: when the last index of an epoch was drawn, and not at iter().  With
       workers that persist, that is the sampler's draws alone.
    3. set_epoch() comes between the epochs, as a rule, and so too late.  What it will say is assumed: that it goes on
       as it did.  A DistributedSampler is not told, but a copy of it.  Any other sampler that has a set_epoch may do
       in there what it likes, so its next epoch is not begun early.
    4. iter() looks whether what was assumed holds.  If not, all is drained, and the epoch is begun once more, with the
       seeds that were drawn for it: NOTE [ Place ], 6.
"""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DistributedSampler

from shmloader.resume import seek
from shmloader.resume.drawn_from import say_not_prefetched, watch_of
from shmloader.resume.epoch import Epoch
from shmloader.resume.place import Place
from shmloader.resume.source import Source


def source_of(place: Place, current: Epoch, index_sampler: Any) -> tuple[Source, int | None, int | None] | None:
    """What the epoch after the current one is drawn from; None if that cannot be known yet.

    Returns:
        The source; and the epochs that its sampler and the dataset are assumed to be told by set_epoch().
    """
    of_sampler, of_dataset = place.assumed(current)
    sampler = with_epoch(index_sampler, of_sampler)
    if sampler is None:
        return None
    watch = watch_of(index_sampler)
    if watch is None:
        say_not_prefetched(index_sampler)
        return None
    return Source(sampler, place.loader.generator, watch=watch), of_sampler, of_dataset


def with_epoch(sampler: Any, epoch: int | None) -> Any:
    """A copy of a sampler that was told this epoch; itself if it is told none; None if nobody knows what that does."""
    if not any(callable(getattr(part, "set_epoch", None)) for part in seek.within(sampler)):
        return sampler
    parts = seek.chain(sampler)
    last = parts[-1]
    if epoch is None or not seek.is_a(last, DistributedSampler) or seek.keeps_state(sampler) is not None:
        return None
    if type(last).set_epoch is not DistributedSampler.set_epoch or any(
        hasattr(part, "set_epoch") for part in parts[:-1]
    ):
        return None
    made = copy.copy(last)
    made.set_epoch(epoch)
    for part in reversed(parts[:-1]):
        outer = copy.copy(part)
        outer.sampler = made
        made = outer
    return made
