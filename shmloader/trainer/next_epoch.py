"""The next epoch, begun while the last batches of this one are under way: `prefetch_epochs=True`.

NOTE [ Overlap ]

When the sampler has no more, workers would stand idle, one after the other, until the user has come to the end and
calls iter() again; then the trainer waits for a first batch that nobody has begun.  Here the sampler is asked for its
next epoch at once, and what there is room for is opened (NOTE [ One step ], 5).  So two epochs may be in the ring,
never three: an epoch is begun early only while the one before it is the user's.

    1. What a batch is made for goes with its task: the epoch, what datasets are told, seeds.  So workers need not know.
       The ring keeps their order, and of which epoch a batch is follows from how many are under way.
    2. Draws come in torch's order, but earlier: when the last index of an epoch was drawn, and not at iter().  With
       workers that persist, that is the sampler's draws alone.
    3. set_epoch() comes between the epochs, as a rule, and so too late.  What it will say is assumed: that it goes on
       as it did.  A DistributedSampler is not told, but a copy of it.  Any other sampler that has a set_epoch may do
       in there what it likes, so its next epoch is not begun early.
    4. At iter() it is looked whether what was assumed holds.  If not, all is drained, and the epoch is begun anew, with
       the seeds that were drawn for it: NOTE [ Place ], 6.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch.utils.data import DistributedSampler

from shmloader.core.next_batch import Steps
from shmloader.core.progress import Progress
from shmloader.core.trainer import TrainerSide
from shmloader.resume import seek
from shmloader.resume.drawn_from import say_not_prefetched, watch_of
from shmloader.resume.place import Epoch, Place, place_of
from shmloader.system.signals import held
from shmloader.trainer.bad_samples import Tally, epoch_seed
from shmloader.trainer.begin import seed_of_samples
from shmloader.trainer.schedule import Schedule
from shmloader.trainer.source import Source


class Overlapping:
    """What an iterator has, one epoch of which may overlap with the next."""

    _ahead: Epoch | None = None  # begun, and not asked for yet
    _not_prefetched: Epoch | None = None  # the one whose next cannot be, because its sampler cannot be compared
    _prefetches = False
    _tally: Tally | None
    loader: Callable[[], Any]
    epoch: Epoch
    _base_seed: int
    _served: int
    _auto_collation: bool
    _index_sampler: Any
    _draws: Source
    _steps: Steps
    _ring: TrainerSide
    _schedule: Schedule

    def _begin_next(self) -> Any:
        """The next epoch's indices; None while it cannot be begun early.  A signal may come behind it: then again."""
        loader = self.loader()
        if loader is None:
            return None
        with held():
            if self._ahead is None:
                place = place_of(loader)
                if place.epoch is not self.epoch or place.loaded is not None or place.then is not None:
                    return None
                self._begin_ahead(loader, place)
        return None if self._ahead is None else self._draws

    def _begin_ahead(self, loader: Any, place: Place) -> None:
        of_sampler, of_dataset = place.assumed(self.epoch)
        sampler = told(self._index_sampler, of_sampler)
        if sampler is None or self._not_prefetched is self.epoch:
            return
        watch = watch_of(self._index_sampler)
        if watch is None:
            self._not_prefetched = self.epoch
            say_not_prefetched(self._index_sampler)
            return
        delivered = Progress()
        epoch = place.epoch_of(loader, self._base_seed, self._served + 1, delivered)
        epoch.told.update(sampler_epoch=of_sampler, dataset_epoch=of_dataset)
        draws = Source(sampler, loader.generator, watch=watch)
        epoch.drawn = draws
        draws.belongs_to(epoch)
        self._ring.begin_epoch(None, self._auto_collation, of_dataset, epoch_seed(epoch), ahead=True)
        self._schedule.begin(seed_of_samples(loader, epoch))
        self._draws, self._ahead = draws, epoch
        place.begun_early(epoch)

    def _turn_over(self, loader: Any) -> bool:
        """Go on with the epoch that was begun early; false where something else is to be begun, or that one anew."""
        epoch, place = self._ahead, place_of(loader)
        if epoch is None:
            return False
        if self._steps.spoilt or not place.holds(loader, epoch):
            place.give_up(loader, epoch)
            self._ahead = None
            return False
        self._steps.drain(self, next_too=False)
        with held():
            self._ahead, self.epoch = None, epoch
            self._served += 1
            self._num_yielded = 0
            self._sampler_iter = self._draws.indices
            self._ring.hand_to(epoch.delivered)
            if self._tally is not None:
                self._tally.begin()
            place.ask_for(epoch)
        self._steps.turn_over(self, self._draws, self._prefetches)
        return True


def told(sampler: Any, epoch: int | None) -> Any:
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
