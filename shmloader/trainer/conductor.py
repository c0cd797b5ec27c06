"""Begins the epochs of an iterator, one after another, and opens their batches.
It also has the seeds of the iterator and its workers: drawn, or taken from a loaded state.

The draws from the generators, their order and the seeds are torch's, because people rely on these.  begin_iterator() in
of_torch.py runs torch's own __init__, which first begins the sampler, and then draws the base seed.

A worker seeds Python, NumPy and torch by the base seed and its number when it starts: seed_worker() in
worker/random_states.py.  Persistent workers start once, and draw on in later epochs.  If each sample has its own seed,
_seed() there sets it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmloader.core.trainer import TrainerSide
from shmloader.resume.dataset_epochs import dataset_epoch, follow, listen
from shmloader.resume.epoch import Epoch, Source, next_epoch_of
from shmloader.resume.generators import mix, undrawn
from shmloader.resume.place import Place
from shmloader.resume.sampler_generators import restore_sampling
from shmloader.resume.samplers import samplers_of
from shmloader.trainer.bad_samples import Tally
from shmloader.trainer.schedule import Schedule
from shmloader.worker.fetch import Left

if TYPE_CHECKING:
    from shmloader.trainer.iterator import RingIterator


class Conductor:
    """Begins the epochs of an iterator, and opens their batches for Steps.

    It refers to neither the loader nor the iterator, because both must end as soon as the user drops them.

    Args:
        place: The loader's place.
        iterator: Has the attributes of torch's iterator: the sampler, the dataset, the base seed.
        ring: The trainer's side.
        schedule: Opens batches.
        tally: Counts the bad samples; None: none are skipped.
        epochs_before: Epochs already run with this base seed.

    Attributes:
        open: The schedule's: a method that passes the call on would be one more call of Python for each batch.
    """

    def __init__(
        self,
        place: Place,
        iterator: RingIterator,
        ring: TrainerSide,
        schedule: Schedule,
        tally: Tally | None,
        epochs_before: int,
    ) -> None:
        loader = place.loader
        self._place = place
        self._sampler = iterator._index_sampler
        self._dataset = iterator._dataset
        self._batched: bool = iterator._auto_collation
        self._streams = loader.num_workers if iterator._streams else 0
        self._ring = ring
        self.open = schedule.open
        self._tally = tally
        self.base_seed: int = iterator._base_seed
        self._epochs_before = epochs_before

    @property
    def seed(self) -> int:
        """The seed of the epoch that begins, or has begun, last."""
        return mix(self.base_seed, self._epochs_before)

    def begin(self, first: bool) -> None:
        """Begin an epoch, or the rest of one: as in torch, ask the sampler for an iterator.

        No batch may be under way.  Then Steps.begin() opens the first batches, and begun() follows.

        Args:
            first: Whether it is the iterator's first.
        """
        ring, place = self._ring, self._place
        loader = place.loader
        carried = ring.states() if self._streams else []  # NOTE [ Streams from epoch to epoch ]
        start = place.starting(warns=not first)  # if it is the first, begin_iterator() has warned
        if not first:
            self._epochs_before += 1
            if start is not None:  # only workers that seed each sample are still there: dataloader.py ends all others
                restore_sampling(loader, start)
            if start is not None and start.base_seed is not None:
                self.base_seed, self._epochs_before = start.base_seed, start.served
        start = start if start is not None and start.begun else None
        source = Source(self._sampler, loader.generator, start, another=place.another(), saving=place.saving)
        listen(self._dataset)  # here, because a loader's class may have an __init__ that does not call ours
        epoch = next_epoch_of(place, self.base_seed, self._epochs_before, self._streams)
        epoch.carried, epoch.last_worker = carried, epoch.start.latest
        if self._streams:
            epoch.states = self._states_weakly()
        source.belongs_to(epoch)
        ring.begin_epoch(epoch, self._batched, dataset_epoch(self._dataset), epoch.seed)
        if not self._streams:  # a stream has the number of its iter() to its end
            epoch.follows = follow(epoch, self._dataset)
        if self._tally is not None:
            self._tally.begin()

    def begun(self) -> None:
        """Record that the first batches of the epoch are open, so that it is under way."""
        epoch = self._ring.current
        assert isinstance(epoch, Epoch)
        if epoch.follows:  # because the sampler may have called set_epoch() for them
            epoch.fixed["dataset_epoch"] = dataset_epoch(self._dataset)
        self._place.begin(epoch)

    def _states_weakly(self) -> Callable[[], list[bytes | None]]:
        """A function that reads the states of the streams.  It keeps neither the ring nor this object alive."""
        mine, workers = weakref.ref(self), self._streams

        def states() -> list[bytes | None]:
            conductor = mine()
            return [b""] * workers if conductor is None else conductor._ring.states()

        return states


_MOST_SEED = (1 << 63) - 1


def begin_iterator(place: Place, begin: Callable[[], Any]) -> tuple[int | None, int]:
    """Begin an iterator of torch's class.  It draws a base seed, unless the loaded state has one.

    Args:
        place: The place of the loader whose iterator it is.
        begin: Begins it.

    Returns:
        The base seed of the state, None if it was drawn; and how many epochs began with it before this one.
    """
    loader, start = place.loader, place.starting()
    if start is None:
        begin()
        return None, 0
    if start.base_seed is None:
        restore_sampling(loader, start)
        begin()
        return None, 0
    with undrawn(loader.generator):
        begin()
    restore_sampling(loader, start)
    return start.base_seed, start.served


def seed_of_workers(place: Place, base_seed: int) -> int:
    """The seed of the workers that start now, to which each adds its number: the base seed, as in torch.

    A small state cannot record what the workers have drawn.  So after the first batch the seed follows from the base
    seed, the place and the rank.
    """
    start = place.loaded
    if start is None or start.base_seed is None or not (start.served or start.batches):
        return base_seed
    rank, _ = samplers_of(place.loader).ranks
    return mix(mix(mix(base_seed, start.served), start.samples), rank) & _MOST_SEED


def left_of_streams(place: Place) -> list[Left] | None:
    """The place of each worker's stream in the epoch that is about to begin; None: they start at the beginning."""
    start = place.loaded
    if start is None or not start.streams:
        return None
    return [
        Left(stream["samples"], stream["ended"], stream["state"], tuple(stream["errors"]), stream["batches"] > 0)
        for stream in start.streams
    ]
