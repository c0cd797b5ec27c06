"""Begins the epochs of an iterator, one after another, and opens their batches.
It prefetches the next epoch (`prefetch_epochs`), and drops it if iter() needs another one.

The draws from the generators, their order and the seeds are torch's, because people rely on these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from shmloader.core.trainer import TrainerSide
from shmloader.options import Options
from shmloader.resume.drawn_from import watch_of
from shmloader.resume.epoch import Epoch, next_epoch_of
from shmloader.resume.epochs import dataset_epoch, follow, length_of, listen
from shmloader.resume.loader_generators import restore
from shmloader.resume.place import Place
from shmloader.resume.source import Source
from shmloader.system.signals import held
from shmloader.trainer import next_epoch
from shmloader.trainer.bad_samples import Tally
from shmloader.trainer.schedule import Schedule
from shmloader.trainer.seeds import sample_seed, seed_of
from shmloader.trainer.step import ConductorSide
from shmloader.worker.random_states import mix

if TYPE_CHECKING:
    from shmloader.trainer.iterator import RingIterator


class Conductor(ConductorSide):
    """Begins the epochs of an iterator.

    It refers to neither the loader nor the iterator, because both must end as soon as the user drops them.

    Args:
        place: The loader's place.
        options: The loader's options.
        iterator: Has the attributes of torch's iterator: the sampler, the dataset, the base seed.
        ring: The trainer's side.
        schedule: Opens batches.
        tally: Counts the bad samples; None: none are skipped.
        served: How many epochs began with this base seed before the first one here.
    """

    def __init__(
        self,
        place: Place,
        options: Options,
        iterator: RingIterator,
        ring: TrainerSide,
        schedule: Schedule,
        tally: Tally | None,
        served: int,
    ) -> None:
        loader = place.loader
        self._place = place
        self._sampler = iterator._index_sampler
        self._dataset = iterator._dataset
        self._batched: bool = iterator._auto_collation
        self._in_order: bool = loader.in_order
        self._streams = loader.num_workers if iterator._streams else 0
        self._overlaps = options.prefetch_epochs and loader.persistent_workers
        self._ring = ring
        self.open = schedule.open
        self._tally = tally
        self.base_seed: int = iterator._base_seed
        self._served = served

    @property
    def seed(self) -> int:
        """The seed of the epoch that begins, or has begun, last."""
        return mix(self.base_seed, self._served)

    # ----------------------------------------------------------------------------------------- the user's next epoch

    def begin(self, first: bool) -> None:
        """Begin an epoch, or the rest of one: as in torch, ask the sampler for an iterator.

        No batch may be under way.  Then Steps.begin() opens the first batches, and begun() follows.

        Args:
            first: Whether it is the iterator's first.
        """
        ring, place = self._ring, self._place
        loader = place.loader
        last = ring.current if ring.next is None else ring.next
        drops = isinstance(last, Epoch) and last is not place.current
        carried = ring.states() if self._streams else []  # NOTE [ Streams from epoch to epoch ]
        start = place.starting(warns=not first)  # if it is the first, begin_iterator() has warned
        if not first:
            self._served += 1
            if start is not None:  # only workers that seed each sample are still there: dataloader.py ends all others
                restore(loader, start)
            if start is not None and start.base_seed is not None:
                self.base_seed, self._served = start.base_seed, start.served
        start = start if start is not None and start.begun else None
        source = Source(
            self._sampler,
            loader.generator,
            start,
            watch=watch_of(self._sampler) if place.begins_next else None,
            another=place.another(),
            saving=place.saving,
        )
        listen(self._dataset)  # here, because a loader's class may have an __init__ that does not call ours
        numbered = not self._in_order and not self._streams
        epoch = next_epoch_of(place, self.base_seed, self._served, numbered, self._streams)
        epoch.carried, epoch.last_worker, epoch.asks_next = carried, epoch.start.latest, self._overlaps
        if self._streams:
            epoch.states = self._states_weakly()
        self._give(epoch, source)
        ring.begin_epoch(epoch, self._batched, dataset_epoch(self._dataset), epoch.seed, drops)
        self._follow(epoch)
        if self._tally is not None:
            self._tally.begin()

    def begun(self) -> None:
        """Record that the first batches of the epoch are open, so that it is under way."""
        epoch = self._ring.current
        assert isinstance(epoch, Epoch)
        if epoch.follows:  # because the sampler may have called set_epoch() for them
            epoch.fixed["dataset_epoch"], epoch.length = dataset_epoch(self._dataset), length_of(self._dataset)
        self._place.begin(epoch)

    def _follow(self, epoch: Epoch) -> None:
        """Have the tasks of this epoch follow the dataset.  A stream has the number of its iter() to its end."""
        if not self._streams:
            epoch.follows = follow(epoch, self._dataset)

    def _give(self, epoch: Epoch, source: Source) -> None:
        epoch.seed, epoch.sample_seed = seed_of(epoch), sample_seed(epoch)
        epoch.source = source
        source.belongs_to(epoch)

    def _states_weakly(self) -> Callable[[], list[bytes | None]]:
        """A function that reads the states of the streams.  It keeps neither the ring nor this object alive."""
        mine, workers = weakref.ref(self), self._streams

        def states() -> list[bytes | None]:
            conductor = mine()
            return [b""] * workers if conductor is None else conductor._ring.states()

        return states

    # ------------------------------------------------------------------------------ the one after: NOTE [ Overlap ]

    @property
    def next(self) -> Epoch | None:
        """The prefetched epoch after the user's current one; None if there is none."""
        epoch = self._ring.coming if self._ring.next is None else self._ring.next
        return epoch if isinstance(epoch, Epoch) else None

    def draw_next(self) -> None:
        """Prefetch the epoch after the current one, unless its sampler or seed cannot be known yet.

        It is not begun in the ring: NOTE [ One step ], 5.
        """
        place, current = self._place, self._ring.current
        if place.loader is None or place.current is not current or place.loaded is not None or place.then is not None:
            return
        with held():
            if self.next is None:
                found = next_epoch.source_of(place, place.current, self._sampler)
                if found is None:
                    current.asks_next = False
                    return
                source, of_sampler, of_dataset = found
                epoch = next_epoch_of(place, self.base_seed, self._served + 1, False, 0)
                epoch.fixed.update(sampler_epoch=of_sampler, dataset_epoch=of_dataset)
                epoch.asks_next = True
                self._give(epoch, source)
                self._ring.comes(epoch)
                place.next = epoch

    def begin_next(self) -> None:
        """Prefetch the epoch after the current one, and begin it in the ring."""
        self.draw_next()
        with held():
            epoch = self.next
            if epoch is not None and self._ring.next is None:
                self._ring.begin_next(epoch, epoch.fixed["dataset_epoch"], epoch.seed)

    def holds_next(self) -> bool:
        """Whether iter() continues with the prefetched epoch; if not, that epoch is dropped."""
        epoch, place = self.next, self._place
        if epoch is None or place.next is not epoch:
            return False
        if epoch.failed or not place.holds(epoch):
            place.give_up(epoch)
            return False
        return True

    def drop_next(self) -> None:
        """Drop the prefetched epoch, because the iterator ends."""
        epochs = self._ring.current, self.next
        self._ring.drop_next()
        self._place.drop_next(epochs)

    def turn(self) -> None:
        """Make the prefetched epoch the user's.  No batch of the one before may be under way."""
        epoch = self.next
        assert epoch is not None
        with held():
            if self._ring.next is None:  # batches of the one before waited to be opened, until the user left it
                self._ring.begin_next(epoch, epoch.fixed["dataset_epoch"], epoch.seed)
            self._ring.turn()
            self._served += 1
            if self._tally is not None:
                self._tally.begin()
            self._follow(epoch)
            self._place.turn(epoch)
